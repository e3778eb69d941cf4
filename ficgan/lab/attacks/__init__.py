"""Attackers: everything that tries to bring the source back. For testing one's own anonymisation."""

from ficgan.lab.attacks.base import (
    REVERSERS,
    ExternalRestorer,
    Knowledge,
    MeanFace,
    NothingDone,
    Pairs,
    Reverser,
    ReverserTraits,
)
from ficgan.lab.attacks.deconvolution import NormSparsity, RichardsonLucy, Wiener, WienerBlind
from ficgan.lab.attacks.learned import AutoEncoder, Learned, Pix2Pix, ThesisAutoEncoder, Trained, load_attacker
from ficgan.lab.attacks.restoration import (
    BicubicResampling,
    InterpolateGrey,
    LearnPermutation,
    LinearResampling,
    Ridge,
    Wavelet,
    another_key,
)
from ficgan.lab.attacks.revelio import Revelio

__all__ = [
    "REVERSERS",
    "AutoEncoder",
    "BicubicResampling",
    "ExternalRestorer",
    "InterpolateGrey",
    "Knowledge",
    "LearnPermutation",
    "Learned",
    "LinearResampling",
    "MeanFace",
    "NormSparsity",
    "NothingDone",
    "Pairs",
    "Pix2Pix",
    "Revelio",
    "Reverser",
    "ReverserTraits",
    "RichardsonLucy",
    "Ridge",
    "ThesisAutoEncoder",
    "Trained",
    "Wavelet",
    "Wiener",
    "WienerBlind",
    "another_key",
    "load_attacker",
]
