"""Attackers that train a network on pairs of anonymised and clear faces."""

from ficgan.attacks.learned.autoencoder import AutoEncoder
from ficgan.attacks.learned.base import Learned, Told
from ficgan.attacks.learned.files import Trained, load_attacker, read_header, save_attacker
from ficgan.attacks.learned.pix2pix import Pix2Pix
from ficgan.attacks.learned.thesis_autoencoder import ThesisAutoEncoder

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
