"""The two elementwise and resampling ops that image networks spend their time in, with a fast reference path."""

from .activation import bias_act
from .backend import backend
from .memory import keep_freed_memory
from .resample import downsample2d, filter2d, setup_filter, upfirdn2d, upsample2d

__all__ = [
    "backend",
    "bias_act",
    "downsample2d",
    "filter2d",
    "keep_freed_memory",
    "setup_filter",
    "upfirdn2d",
    "upsample2d",
]
