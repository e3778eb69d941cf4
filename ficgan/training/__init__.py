"""Training of FICGAN: one door, `train`."""

from ficgan.training.loop import Interrupted, train

__all__ = ["Interrupted", "train"]
