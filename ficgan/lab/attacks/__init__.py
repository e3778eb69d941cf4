"""Attackers: everything that tries to bring the source back. For testing one's own anonymisation."""

from ficgan.lab.attacks import deconvolution, restoration, revelio  # noqa: F401 (they register themselves)
from ficgan.lab.attacks.base import REVERSERS, Pairs, Reverser, ReverserTraits, reverser_of
from ficgan.lab.attacks.learned import Learned, ThesisAutoEncoder, load_attacker

__all__ = ["REVERSERS", "Learned", "Pairs", "Reverser", "ReverserTraits"]
__all__ += ["ThesisAutoEncoder", "load_attacker", "reverser_of"]
