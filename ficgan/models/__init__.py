"""The networks of FICGAN and their checkpoints."""

from ficgan.models.ficgan import FICGAN, Codes, Discriminator, Encoder, Generator, MappingNetwork
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
Network = FICGAN | FrameFICGAN | DetailNetwork

__all__ = [
    "FICGAN",
    "CheckpointHeader",
    "Codes",
    "DetailDiscriminator",
    "DetailNetwork",
    "Discriminator",
    "Encoder",
    "FrameDiscriminator",
    "FrameFICGAN",
    "Generator",
    "InferenceModel",
    "MappingNetwork",
    "Network",
    "load_checkpoint",
    "load_tensors",
    "save_checkpoint",
    "save_tensors",
]
