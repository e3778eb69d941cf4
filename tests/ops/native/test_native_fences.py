"""No kernel reads outside of its tensors: pages before and behind them that kill the process that touches them."""

from __future__ import annotations

import faulthandler
import os
import resource
import sys
import traceback

import native_kernels
import numpy as np
import pytest
from native_kernels import Array, BiasAct
from test_native_bias_act import Case as Elementwise
from test_native_style import Case, check_adain, check_demodulate
from test_native_upfirdn2d import check as check_upfirdn2d

LAYOUTS = ("contiguous", "channels_last")


def in_child(fence, function):
    """Runs `function` in a forked process with fenced arrays → its wait status, 0 for success."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            faulthandler.disable()
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            native_kernels.FENCE = fence
            function()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1]


@pytest.mark.parametrize("fence", ["start", "end"])
def test_a_fence_kills(native, fence):
    """One element too many, at the end of its pages or before their start."""

    def overrun():
        x, y = Array("f32", (4096,), np.ones(4096)), Array("f32", (4097,))
        native.call("bias_act", "f32", BiasAct(0, 0.0, 1.0, -1.0, 4097, 1, 1), x, None, y)

    def underrun():
        x = Array("f32", (4096,), np.ones(4096))
        np.ctypeslib.as_array((native_kernels.ctypes.c_float * 2).from_address(x.pointer - 4)).sum()

    assert os.WIFSIGNALED(in_child(fence, overrun if fence == "end" else underrun))


@pytest.mark.parametrize("fence", ["start", "end"])
@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_elementwise(native, dtype, fence):
    def run():
        for shape in ((1, 3, 5), (2, 8, 16), (3, 16, 1), (5, 7, 9), (1, 1, 2049)):
            for act in ("lrelu", "swish"):
                case = Elementwise(native, dtype, act, shape)
                case.run("bias_act_grad", case.dy, case.run("bias_act", case.x))
            case.run("bias_act_grad2", case.ddx, case.dy, case.x)

    assert in_child(fence, run) == 0


@pytest.mark.parametrize("fence", ["start", "end"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_planes(native, dtype, layout, fence):
    def run():
        for shape in ((1, 3, 5, 7), (2, 8, 4, 8), (2, 24, 5, 16), (1, 2, 40, 56), (2, 37, 6, 5)):
            check_demodulate(Case(native, dtype, layout, shape))
            check_adain(Case(native, dtype, layout, shape))

    assert in_child(fence, run) == 0


@pytest.mark.parametrize("fence", ["start", "end"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_filters(native, dtype, layout, fence):
    def run():
        for shape in ((1, 8, 9, 16), (2, 3, 7, 5), (1, 16, 5, 72), (1, 1, 1, 1)):
            for up, down in ((1, 1), (2, 1), (1, 2), (3, 2)):
                for f_size, pad in ((4, (2, 1, 2, 1)), (4, (1, 2, 1, 3)), (3, (5, 4, 3, 3)), (6, (3, 5, 6, 7))):
                    check_upfirdn2d(native, dtype, layout, shape, (f_size,) * 2, (up,) * 2, (down,) * 2, pad)

    assert in_child(fence, run) == 0
