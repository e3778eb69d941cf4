"""Anonymisers taken back, from the result alone or with what else an attacker may have."""

from ficgan.pointcloud.attack.merge import Unmerged, guess_merge_weight, target_from, unmerge
from ficgan.pointcloud.attack.noise import denoise, guess_noise
from ficgan.pointcloud.attack.smooth import guess_smoothing, unsmooth
from ficgan.pointcloud.attack.taper import Untapered, guess_taper, untaper

__all__ = [
    "Unmerged",
    "Untapered",
    "denoise",
    "guess_merge_weight",
    "guess_noise",
    "guess_smoothing",
    "guess_taper",
    "target_from",
    "unmerge",
    "unsmooth",
    "untaper",
]
