"""Attackers: everything that tries to bring the source back. For testing one's own anonymisation."""

from ficgan.lab.attacks import deconvolution, restoration
from ficgan.lab.attacks.base import REVERSERS, Pairs, Reverser, ReverserTraits, reverser_of
from ficgan.lab.attacks.learned import Learned, ThesisAutoEncoder, load_attacker
from ficgan.lab.attacks.revelio import Revelio

__all__ = [
    "REVERSERS",
    "Learned",
    "Pairs",
    "Revelio",
    "Reverser",
    "ReverserTraits",
    "ThesisAutoEncoder",
    "deconvolution",
    "load_attacker",
    "restoration",
    "reverser_of",
]
