"""Attackers that train a network on pairs of anonymised and clear faces."""

from ficgan.lab.attacks.learned.autoencoder import AutoEncoder
from ficgan.lab.attacks.learned.base import Learned, Told
from ficgan.lab.attacks.learned.files import Trained, load_attacker, read_header, save_attacker
from ficgan.lab.attacks.learned.pix2pix import Pix2Pix
from ficgan.lab.attacks.learned.thesis_autoencoder import ThesisAutoEncoder

__all__ = [
    "AutoEncoder",
    "Learned",
    "Pix2Pix",
    "ThesisAutoEncoder",
    "Told",
    "Trained",
    "load_attacker",
    "read_header",
    "save_attacker",
]
