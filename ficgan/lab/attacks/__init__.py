"""Attackers: everything that tries to bring the source back. For testing one's own anonymisation."""

from ficgan.lab.attacks.base import REVERSERS, Knowledge, Pairs, Reverser, ReverserTraits
from ficgan.lab.attacks.deconvolution import RichardsonLucy, Wiener, WienerBlind
from ficgan.lab.attacks.denoising import InterpolateGrey, Wavelet
from ficgan.lab.attacks.diffusion.revelio import Revelio
from ficgan.lab.attacks.external import ExternalRestorer
from ficgan.lab.attacks.k_same import KSameSubtraction
from ficgan.lab.attacks.keyed import KeyedInverse, another_key
from ficgan.lab.attacks.learned import AutoEncoder, Learned, Pix2Pix, ThesisAutoEncoder, Told, Trained, load_attacker
from ficgan.lab.attacks.linear_map import Identity, MeanFace, Ridge
from ficgan.lab.attacks.permutation import LearnPermutation
from ficgan.lab.attacks.resampling import Bicubic, Linear
from ficgan.lab.attacks.sparsity import NormSparsity

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
