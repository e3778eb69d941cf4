"""The elementwise and resampling ops that image networks spend their time in: a fast reference, and CUDA kernels."""

from .activation import bias_act
from .backend import backend
from .memory import keep_freed_memory
from .resample import downsample2d, filter2d, setup_filter, upfirdn2d, upsample2d
from .style import adain, scale_bias_lrelu

__all__ = [
    "adain",
    "backend",
    "bias_act",
    "downsample2d",
    "filter2d",
    "keep_freed_memory",
    "scale_bias_lrelu",
    "setup_filter",
    "upfirdn2d",
    "upsample2d",
]
