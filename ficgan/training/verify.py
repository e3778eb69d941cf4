"""V for training: from a file, or untrained for tests of the software."""

from __future__ import annotations

import warnings

import torch

from ficgan.config import Config
from ficgan.faces.alignment import Alignment
from ficgan.verification import SPHEREFACE_POINTS, AlignedInput, SphereFace20, VAugment, Verifier, load_verifier
from ficgan.verification.sphereface import SPHEREFACE_SIZE

__all__ = ["make_verify"]


def make_verify(config: Config, alignment: Alignment, device: torch.device) -> Verifier:
    """The frozen verification network of a configuration.

    Args:
        config: `verifier.spec` and `verifier.augment`; "untrained" makes a small SphereFace-like network with random
            weights, which tests the software and disentangles nothing.
        alignment: of the training crops.
        device: where V computes.

    Returns:
        V, on images of the configuration's resolution.
    """
    resolution = config.model.resolution
    augment = VAugment() if config.verifier.augment else None
    if config.verifier.spec != "untrained":
        return load_verifier(
            config.verifier.spec, alignment=alignment, resolution=resolution, augment=augment, device=str(device)
        )
    warnings.warn("verifier.spec=untrained: V has random weights; the model will not learn identity", stacklevel=2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = SphereFace20()
    aligned = AlignedInput(alignment, resolution, SPHEREFACE_POINTS, SPHEREFACE_SIZE, augment)
    return Verifier(network, aligned, mean=127.5, scale=128.0, name="untrained").to(device)
