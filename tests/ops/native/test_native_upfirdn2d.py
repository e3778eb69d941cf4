"""The kernels of upfirdn2d against SciPy on the zero-inserted, padded signal, in float64."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from native_kernels import SETTINGS, Array, Upfirdn2d, accumulator, assert_close, rounded
from scipy.signal import correlate2d

LAYOUTS = ("contiguous", "channels_last")
TYPES = ("f16", "bf16", "f32", "f64")


def oracle(x, f, up, down, pad, flip, gain):
    """x [N,C,H,W], f [h,w], up and down (x, y), pad (x0, x1, y0, y1) → [N,C,H',W'] as defined in kernels.h."""
    n, c, h, w = x.shape
    inserted = np.zeros((n, c, h * up[1], w * up[0]))
    inserted[:, :, :: up[1], :: up[0]] = x
    x0, x1, y0, y1 = pad
    inserted = np.pad(inserted, [(0, 0), (0, 0), (max(y0, 0), max(y1, 0)), (max(x0, 0), max(x1, 0))])
    height, width = inserted.shape[2:]
    inserted = inserted[:, :, max(-y0, 0) : height - max(-y1, 0), max(-x0, 0) : width - max(-x1, 0)]
    f = f if flip else f[::-1, ::-1]
    out_h, out_w = (inserted.shape[2] - f.shape[0]) // down[1] + 1, (inserted.shape[3] - f.shape[1]) // down[0] + 1
    out = np.zeros((n, c, out_h, out_w))
    for b in range(n):
        for k in range(c):
            out[b, k] = correlate2d(inserted[b, k], f, "valid")[:: down[1], :: down[0]]
    return out * gain


def out_size(shape, f, up, down, pad):
    x0, x1, y0, y1 = pad
    return ((shape[2] * up[1] + y0 + y1 - f[0]) // down[1] + 1, (shape[3] * up[0] + x0 + x1 - f[1]) // down[0] + 1)


def run(
    native, dtype, layout, x, f, up=(1, 1), down=(1, 1), pad=(0, 0, 0, 0), flip=False, gain=1.0, shift=0, size=None
):
    n, c, h, w = x.shape
    out = size or out_size(x.shape, f.shape, up, down, pad)
    last = layout == "channels_last"
    sizes = Upfirdn2d(LAYOUTS.index(layout), n, c, h, w, *out, *f.shape, *up, *down, pad[0], pad[2], int(flip), gain)
    source = Array(dtype, x.shape, x, channels_last=last, shift=shift)
    taps = Array(accumulator(dtype), f.shape, f)
    target = Array(dtype, (n, c, *out), channels_last=last, shift=shift)
    native.call("upfirdn2d", dtype, sizes, source, taps, target)
    return target.values()


def check(native, dtype, layout, shape, f_shape, up, down, pad, flip=False, gain=1.0, shift=0):
    generator = np.random.default_rng(3)
    x = rounded(generator.standard_normal(shape), dtype)
    f = rounded(generator.standard_normal(f_shape), accumulator(dtype))
    result = run(native, dtype, layout, x, f, up, down, pad, flip, gain, shift)
    expected = oracle(x, f, up, down, pad, flip, gain)
    assert result.shape == expected.shape
    terms = oracle(np.abs(x), np.abs(f), up, down, pad, flip, abs(gain))
    assert_close(result, expected, dtype, terms)


@settings(max_examples=250, **SETTINGS)
@given(
    dtype=st.sampled_from(TYPES),
    layout=st.sampled_from(LAYOUTS),
    shape=st.tuples(
        st.integers(0, 2),
        st.one_of(st.integers(1, 5), st.sampled_from([8, 16])),
        st.integers(1, 13),
        st.one_of(st.integers(1, 13), st.sampled_from([8, 16])),
    ),
    f_shape=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    up=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    down=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(*[st.integers(-4, 12)] * 4),
    flip=st.booleans(),
    gain=st.sampled_from([1.0, 4.0, 0.3]),
    shift=st.sampled_from([0, 0, 1]),
)
def test_any_geometry(native, dtype, layout, shape, f_shape, up, down, pad, flip, gain, shift):
    inside = shape[2] * up[1] + min(pad[2], 0) + min(pad[3], 0), shape[3] * up[0] + min(pad[0], 0) + min(pad[1], 0)
    assume(min(inside) >= 0 and min(out_size(shape, f_shape, up, down, pad)) >= 1)
    check(native, dtype, layout, shape, f_shape, up, down, pad, flip, gain, shift)


@settings(max_examples=200, **SETTINGS)
@given(
    dtype=st.sampled_from(TYPES),
    layout=st.sampled_from(LAYOUTS),
    channels=st.sampled_from([1, 3, 8, 16, 24]),
    size=st.tuples(st.integers(1, 40), st.one_of(st.integers(1, 40), st.sampled_from([8, 16, 32, 40]))),
    f_shape=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    factors=st.sampled_from([(1, 1), (2, 1), (1, 2)]),
    pad=st.tuples(*[st.integers(-3, 5)] * 4),
    flip=st.booleans(),
    shift=st.sampled_from([0, 0, 0, 1]),
    order=st.integers(0, 2),
)
def test_fast_kernels(native, dtype, layout, channels, size, f_shape, factors, pad, flip, shift, order):
    shape = (1, channels if layout == "channels_last" else 2, *size)
    up, down = (factors[0],) * 2, (factors[1],) * 2
    inside = size[0] * up[1] + min(pad[2], 0) + min(pad[3], 0), size[1] * up[0] + min(pad[0], 0) + min(pad[1], 0)
    assume(min(inside) >= 0 and min(out_size(shape, f_shape, up, down, pad)) >= 1)
    native.set(order=order)
    check(native, dtype, layout, shape, f_shape, up, down, pad, flip, 1.5, shift)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("size", "factors", "pad"),
    [
        ((72, 136), (1, 1), (2, 1, 2, 1)),  # several tiles, all vectors
        ((67, 131), (1, 1), (1, 1, 1, 1)),  # rows that start anywhere
        ((67, 129), (1, 1), (1, 1, 1, 1)),  # the blur behind a transposed convolution: odd in, even out
        ((40, 72), (2, 1), (2, 1, 2, 1)),
        ((36, 72), (2, 1), (1, 2, 1, 2)),  # the other phase: tiles that start before 0
        ((40, 136), (1, 2), (1, 1, 1, 1)),
        ((39, 133), (1, 2), (0, 3, 2, -1)),
    ],
)
def test_several_tiles(native, dtype, layout, size, factors, pad, order):
    """Outputs beyond one tile in x and y, with blocks that do several tiles."""
    native.set(order=order, most_grid=3)
    shape = (1, 8 if layout == "channels_last" else 2, *size)
    check(native, dtype, layout, shape, (4, 4), (factors[0],) * 2, (factors[1],) * 2, pad)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("channels", [8, 16, 32, 64, 96])
def test_groups_of_channels(native, layout, channels):
    check(native, "f16", layout, (2, channels, 6, 9), (4, 4), (1, 1), (1, 1), (2, 1, 2, 1))


@settings(max_examples=60, **SETTINGS)
@given(
    layout=st.sampled_from(LAYOUTS),
    channels=st.sampled_from([1, 2, 3]),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    f_shape=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    up=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    down=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    pad=st.tuples(*[st.integers(-2, 5)] * 4),
    flip=st.booleans(),
)
def test_adjoint(native, layout, channels, size, f_shape, up, down, pad, flip):
    """⟨A x, y⟩ = ⟨x, Aᵀ y⟩ where Aᵀ swaps up and down, mirrors the filter and pads by h − 1 − p."""
    shape = (2, channels, *size)
    out = out_size(shape, f_shape, up, down, pad)
    assume(min(out) >= 1 and size[0] * up[1] + pad[2] >= 1 and size[1] * up[0] + pad[0] >= 1)
    generator = np.random.default_rng(4)
    x, y, f = (generator.standard_normal(s) for s in (shape, (2, channels, *out), f_shape))
    forward = run(native, "f64", layout, x, f, up, down, pad, flip)
    back = (f_shape[1] - 1 - pad[0], 0, f_shape[0] - 1 - pad[2], 0)
    adjoint = run(native, "f64", layout, y, f, down, up, back, not flip, size=size)
    np.testing.assert_allclose((forward * y).sum(), (x * adjoint).sum(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("f_size", [4, 5])
def test_an_output_without_input_is_zero(native, layout, f_size):
    """Padding alone, and no rows at all."""
    f = np.ones((f_size, f_size))
    x = np.ones((1, 2, 3, 3))
    result = run(native, "f32", layout, x, f, pad=(-20, 30, -20, 30))
    assert result.size and (result == 0).all()
    result = run(native, "f32", layout, np.ones((1, 2, 0, 0)), f, pad=(5, 5, 5, 5))
    assert result.size and (result == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_far_padding(native, layout):
    """Padding that no int holds: the general kernel."""
    far = 3_000_000_000
    result = run(native, "f32", layout, np.ones((1, 1, 2, 2)), np.ones((4, 4)), pad=(far, 0, -far, 0), size=(3, 3))
    assert (result == 0).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_infinity_reaches_what_the_filter_covers(native, layout):
    """Of 4×4 filters; smaller ones are held as 4×4 and reach farther."""
    x = np.zeros((1, 8, 9, 9))
    x[0, 0, 4, 4] = np.inf
    result = run(native, "f32", layout, x, np.ones((4, 4)), pad=(2, 1, 2, 1))
    reached = np.zeros_like(x, bool)
    reached[0, 0, 3:7, 3:7] = True
    np.testing.assert_array_equal(np.isfinite(result), ~reached)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(70_000, 1), (1, 70_000)])
def test_more_planes_than_a_grid_has_rows(native, layout, shape):
    generator = np.random.default_rng(3)
    x = rounded(generator.standard_normal((*shape, 2, 1)), "f32")
    result = run(native, "f32", layout, x, np.array([[2.0], [1.0]]), pad=(0, 0, 1, 0))
    expected = np.stack([1 * x[:, :, 0] * 2.0, 2.0 * x[:, :, 1] + x[:, :, 0]], 2)
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
