"""The networks of FICGAN and their checkpoints."""

from ficgan.models.ficgan import FICGAN, Codes, Discriminator, Encoder, Generator, MappingNetwork
from ficgan.models.frame import FrameDiscriminator, FrameFICGAN
from ficgan.models.inference import InferenceModel
from ficgan.models.io import CheckpointHeader, load_checkpoint, load_tensors, save_checkpoint, save_tensors

__all__ = [
    "FICGAN",
    "CheckpointHeader",
    "Codes",
    "Discriminator",
    "Encoder",
    "FrameDiscriminator",
    "FrameFICGAN",
    "Generator",
    "InferenceModel",
    "MappingNetwork",
    "load_checkpoint",
    "load_tensors",
    "save_checkpoint",
    "save_tensors",
]
