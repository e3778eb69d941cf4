"""Attackers: everything that tries to bring the source back. For testing one's own anonymisation."""

from ficgan.attacks.base import REVERSERS, Knowledge, Pairs, Reverser, ReverserTraits

__all__ = ["REVERSERS", "Knowledge", "Pairs", "Reverser", "ReverserTraits"]
