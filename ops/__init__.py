"""The elementwise and resampling ops that image networks spend their time in: a fast reference, and CUDA kernels."""

from .library import backend
from .pointwise import adain, bias_act, scale_bias_lrelu
from .resample import downsample2d, setup_filter, upfirdn2d, upsample2d

__all__ = [
    "adain",
    "backend",
    "bias_act",
    "downsample2d",
    "scale_bias_lrelu",
    "setup_filter",
    "upfirdn2d",
    "upsample2d",
]
