"""The kernels of bias_act against formulas in float64, and their derivatives against differences."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_kernels import ACTIVATIONS, SETTINGS, Array, BiasAct, assert_close, rounded
from scipy.special import expit

SMOOTH = ("sigmoid", "tanh", "swish", "softplus")
ALPHA = 0.2

VALUE = {
    "linear": lambda v: v,
    "relu": lambda v: np.maximum(v, 0),
    "lrelu": lambda v: np.where(v > 0, v, ALPHA * v),
    "sigmoid": expit,
    "tanh": np.tanh,
    "swish": lambda v: v * expit(v),
    "softplus": lambda v: np.logaddexp(0, v),
}
SLOPE = {
    "linear": np.ones_like,
    "relu": lambda v: (v > 0) * 1.0,
    "lrelu": lambda v: np.where(v > 0, 1.0, ALPHA),
    "sigmoid": lambda v: expit(v) * expit(-v),
    "tanh": lambda v: np.cosh(v) ** -2.0,
    "swish": lambda v: expit(v) + v * expit(v) * expit(-v),
    "softplus": expit,
}
CURVATURE = {
    "sigmoid": lambda v: expit(v) * expit(-v) * (expit(-v) - expit(v)),
    "tanh": lambda v: -2 * np.tanh(v) * np.cosh(v) ** -2.0,
    "swish": lambda v: expit(v) * expit(-v) * (2 + v * (expit(-v) - expit(v))),
    "softplus": lambda v: expit(v) * expit(-v),
}


class Case:
    """x [N,C,inner] and b [C] as the type rounds them, and what the kernels make of them."""

    def __init__(self, native, dtype, act, shape, *, bias=True, gain=1.0, limit=-1.0, shift=0, spread=2.0):
        generator = np.random.default_rng(5)
        self.native, self.dtype, self.act, self.shape, self.shift = native, dtype, act, shape, shift
        self.gain, self.limit = gain, limit
        self.x = rounded(generator.standard_normal(shape) * spread, dtype)
        self.dy = rounded(generator.standard_normal(shape), dtype)
        self.ddx = rounded(generator.standard_normal(shape), dtype)
        self.b = rounded(generator.standard_normal(shape[1]), dtype) if bias else None
        self.v = self.x + (self.b[:, None] if bias else 0.0)
        self.sizes = BiasAct(ACTIVATIONS.index(act), ALPHA, gain, limit, self.x.size, shape[1], shape[2])

    def run(self, name, *inputs):
        arrays = [Array(self.dtype, self.shape, i, shift=self.shift) for i in inputs]
        bias = None if self.b is None else Array(self.dtype, self.b.shape, self.b, shift=self.shift)
        out = Array(self.dtype, self.shape, shift=self.shift)
        self.native.call(name, self.dtype, self.sizes, *arrays, bias, out)
        return out.values()

    def unclamped(self):
        return self.gain * VALUE[self.act](self.v)

    def inside(self):
        return np.abs(self.unclamped()) < self.limit if self.limit >= 0 else np.ones(self.shape, bool)

    def error_scale(self):
        # The sum x + b is rounded to float32 before the activation.
        return self.gain * (np.abs(self.x) + np.abs(self.v - self.x)) * 4


@settings(max_examples=120, **SETTINGS)
@given(
    dtype=st.sampled_from(["f16", "bf16", "f32", "f64"]),
    act=st.sampled_from(ACTIVATIONS),
    shape=st.tuples(
        st.integers(0, 3),
        st.one_of(st.integers(1, 17), st.sampled_from([8, 16, 24])),
        st.one_of(st.just(1), st.integers(1, 20), st.sampled_from([8, 16])),
    ),
    bias=st.booleans(),
    gain=st.sampled_from([1.0, 2**0.5]),
    limit=st.sampled_from([-1.0, 0.0, 0.7]),
    shift=st.sampled_from([0, 0, 1]),
    order=st.integers(0, 2),
)
def test_forward_and_derivatives(native, dtype, act, shape, bias, gain, limit, shift, order):
    native.set(order=order)
    case = Case(native, dtype, act, shape, bias=bias, gain=gain, limit=limit, shift=shift)
    y, inside = case.unclamped(), case.inside()
    expected = y if limit < 0 else np.clip(y, -limit, limit)
    result = case.run("bias_act", case.x)
    assert_close(result, expected, dtype, case.error_scale())

    # Where rounding decides on which side of a kink or of the limit a number falls, no answer is wrong.
    sure = np.abs(np.abs(y) - limit) > 1e-5
    saved = case.x if act in SMOOTH else result
    slope = np.where(result > 0, 1.0, SLOPE[act](np.array([-1.0]))) if act not in SMOOTH else SLOPE[act](case.v)
    if act not in SMOOTH and limit >= 0:
        inside = np.abs(result) < rounded(np.array([limit]), dtype)
        sure = np.ones(shape, bool)
    gradient = case.run("bias_act_grad", case.dy, saved)
    expected = case.dy * gain * slope * inside
    assert_close(gradient[sure], expected[sure], dtype, (np.abs(case.dy) * case.error_scale())[sure])
    if act in SMOOTH:
        second = case.run("bias_act_grad2", case.ddx, case.dy, case.x)
        expected = case.ddx * case.dy * gain * CURVATURE[act](case.v) * inside
        scale = np.abs(case.ddx * case.dy) * (case.error_scale() + 1)
        assert_close(second[sure], expected[sure], dtype, scale[sure])


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("shape", [(3, 5, 700), (2, 7, 333), (700, 16, 1), (700, 5, 1)])
@pytest.mark.parametrize("dtype", ["f16", "f64"])
def test_blocks_that_loop(native, dtype, shape, order):
    """More elements than one block takes at a time, in every way to find a bias."""
    native.set(order=order, most_grid=2)
    case = Case(native, dtype, "lrelu", shape)
    assert_close(case.run("bias_act", case.x), case.unclamped(), dtype, case.error_scale())


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_derivatives_are_differences(native, act):
    step, limit = 1e-5, 1.0 if act in ("sigmoid", "tanh") else 2.5
    case = Case(native, "f64", act, (2, 3, 11), gain=1.3, limit=limit)
    keep = (np.abs(case.v) > 0.01) & (np.abs(np.abs(case.unclamped()) - limit) > 0.01)
    assert keep.mean() > 0.9 and not case.inside().all()

    def difference(name, *before):
        return (case.run(name, *before, case.x + step) - case.run(name, *before, case.x - step)) / (2 * step)

    saved = case.x if act in SMOOTH else case.run("bias_act", case.x)
    gradient = case.run("bias_act_grad", case.dy, saved)
    np.testing.assert_allclose(gradient[keep], (case.dy * difference("bias_act"))[keep], atol=1e-8)
    if act in SMOOTH:
        second = case.run("bias_act_grad2", case.ddx, case.dy, case.x)
        np.testing.assert_allclose(second[keep], (case.ddx * difference("bias_act_grad", case.dy))[keep], atol=1e-8)


@pytest.mark.parametrize("dtype", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("limit", [0.7, 0.1, 1 / 3])
def test_an_output_at_the_limit_has_no_gradient(native, dtype, limit):
    """Also where the limit is no number of the type and the saved output therefore differs from it."""
    case = Case(native, dtype, "lrelu", (1, 4, 50), limit=limit)
    gradient = case.run("bias_act_grad", case.dy, case.run("bias_act", case.x))
    far = np.abs(case.unclamped()) > 1.02 * limit
    assert far.any() and (gradient[far] == 0).all() and (gradient[np.abs(case.unclamped()) < 0.98 * limit] != 0).all()


@pytest.mark.parametrize("act", ACTIVATIONS)
def test_extremes(native, act):
    """Infinities and numbers far out neither overflow nor turn into others; what is not a number stays so."""
    case = Case(native, "f32", act, (1, 1, 6), bias=False)
    case.x = np.array([[[-np.inf, -1e4, 1e4, np.inf, np.nan, -0.0]]])
    result = case.run("bias_act", case.x)[0, 0]
    with np.errstate(invalid="ignore"):
        expected = VALUE[act](case.x)[0, 0]
    if act == "swish":
        expected[0] = np.nan  # −∞ · 0
    np.testing.assert_allclose(result, expected, rtol=1e-6)
    if act in SMOOTH:
        slope = case.run("bias_act_grad", np.ones(case.shape), case.x)[0, 0, 1:3]
        np.testing.assert_allclose(slope, SLOPE[act](np.array([-300.0, 300.0])), atol=1e-30)


def test_what_cannot_be_is_refused(native):
    sizes = BiasAct(2, 0.2, 1.0, -1.0, 4, 1, 4)
    x = Array("f32", (4,), np.ones(4))
    pointer = ctypes.c_void_p(x.pointer)
    library = native.library
    assert library.call_bias_act(7, ctypes.byref(sizes), pointer, None, pointer) != 0, "an unknown type"
    assert library.call_bias_act_grad2(2, ctypes.byref(sizes), pointer, pointer, pointer, None, pointer) != 0
    sizes.act = 9
    assert library.call_bias_act(2, ctypes.byref(sizes), pointer, None, pointer) != 0, "an unknown activation"
    x.check()
