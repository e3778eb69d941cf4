"""Attackers: everything that tries to bring the source back. For testing one's own anonymisation."""

from ficgan.attacks.base import REVERSERS, Knowledge, Pairs, Reverser, ReverserTraits
from ficgan.attacks.deconvolution import RichardsonLucy, Wiener, WienerBlind
from ficgan.attacks.denoising import InterpolateGrey, Wavelet
from ficgan.attacks.diffusion.revelio import Revelio
from ficgan.attacks.external import ExternalRestorer
from ficgan.attacks.k_same import KSameSubtraction
from ficgan.attacks.keyed import KeyedInverse, another_key
from ficgan.attacks.learned import AutoEncoder, Learned, Pix2Pix, ThesisAutoEncoder, Told, Trained, load_attacker
from ficgan.attacks.linear_map import Identity, MeanFace, Ridge
from ficgan.attacks.permutation import LearnPermutation
from ficgan.attacks.resampling import Bicubic, Linear
from ficgan.attacks.sparsity import NormSparsity

__all__ = [
    "REVERSERS",
    "AutoEncoder",
    "Bicubic",
    "ExternalRestorer",
    "Identity",
    "InterpolateGrey",
    "KSameSubtraction",
    "KeyedInverse",
    "Knowledge",
    "LearnPermutation",
    "Learned",
    "Linear",
    "MeanFace",
    "NormSparsity",
    "Pairs",
    "Pix2Pix",
    "Revelio",
    "Reverser",
    "ReverserTraits",
    "RichardsonLucy",
    "Ridge",
    "ThesisAutoEncoder",
    "Told",
    "Trained",
    "Wavelet",
    "Wiener",
    "WienerBlind",
    "another_key",
    "load_attacker",
]
