"""The networks of FICGAN and their checkpoints."""

from ficgan.models.ficgan import FICGAN, Discriminator, MappingNetwork
from ficgan.models.frame import DetailDiscriminator, DetailNetwork, FrameDiscriminator, FrameFICGAN
from ficgan.models.io import (
    CheckpointHeader,
    InferenceModel,
    load_checkpoint,
    load_tensors,
    save_checkpoint,
    save_tensors,
)

# What a run trains.
__all__ = [
    "FICGAN",
    "CheckpointHeader",
    "DetailDiscriminator",
    "DetailNetwork",
    "Discriminator",
    "FrameDiscriminator",
    "FrameFICGAN",
    "InferenceModel",
    "MappingNetwork",
    "load_checkpoint",
    "load_tensors",
    "save_checkpoint",
    "save_tensors",
]
