"""The fused tails of a style layer against formulas in float64, their gradients against differences."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from native_kernels import SETTINGS, Array, Style, accumulator, assert_close, rounded

LAYOUTS = ("contiguous", "channels_last")
TYPES = ("f16", "bf16", "f32", "f64")
ALPHA, EPS = 0.2, 1e-5


def lrelu(v):
    return np.where(v > 0, v, ALPHA * v)


def slope(v):
    return np.where(v > 0, 1.0, ALPHA)


def spread(v):
    """[N,C] or [C] → broadcast over [N,C,H,W]."""
    return v[..., None, None] if v.ndim == 2 else v[:, None, None]


class Case:
    """Random tensors as the type rounds them, and the four launchers on them."""

    def __init__(self, native, dtype, layout, shape, *, gain=2**0.5, shift=0, offset=0.0, eps=EPS):
        generator = np.random.default_rng(6)
        n, c, h, w = shape
        self.native, self.dtype, self.shape, self.shift = native, dtype, shape, shift
        self.last, self.gain, self.eps = layout == "channels_last", gain, eps
        self.sizes = Style(LAYOUTS.index(layout), n, c, h * w, ALPHA, gain, eps)
        self.x = rounded(generator.standard_normal(shape) + offset, dtype)
        self.dy = rounded(generator.standard_normal(shape) + 0.3, dtype)
        self.b = rounded(generator.standard_normal(c), dtype)
        self.scale = rounded(generator.standard_normal((n, c)) + 1, dtype)
        self.offset = rounded(generator.standard_normal((n, c)), dtype)

    def tensor(self, values=None):
        return Array(self.dtype, self.shape, values, channels_last=self.last, shift=self.shift)

    def small(self, values):
        return Array(self.dtype, values.shape, values, shift=self.shift)

    def sums(self, values=None):
        return Array(accumulator(self.dtype), self.shape[:2], values)

    def demodulate(self, x=None, scale=None, b=None):
        y = self.tensor()
        inputs = (self.x if x is None else x, self.scale if scale is None else scale, self.b if b is None else b)
        self.native.call(
            "scale_bias_lrelu", self.dtype, self.sizes, self.tensor(inputs[0]), *map(self.small, inputs[1:]), y
        )
        return y.values()

    def demodulate_grad(self, y):
        dx, dscale, dbias = self.tensor(), self.sums(), self.sums()
        inputs = (self.tensor(self.dy), self.tensor(self.x), self.tensor(y), self.small(self.scale))
        self.native.call("scale_bias_lrelu_grad", self.dtype, self.sizes, *inputs, dx, dscale, dbias)
        return dx.values(), dscale.values(), dbias.values()

    def adain(self, x=None, b=None, scale=None, offset=None):
        y, mean, rstd = self.tensor(), self.sums(), self.sums()
        inputs = (
            self.tensor(self.x if x is None else x),
            self.small(self.b if b is None else b),
            self.small(self.scale if scale is None else scale),
            self.small(self.offset if offset is None else offset),
        )
        self.native.call("adain", self.dtype, self.sizes, *inputs, y, mean, rstd)
        return y.values(), mean.values(), rstd.values()

    def adain_grad(self, mean, rstd):
        dx, dscale, dshift, dbias = self.tensor(), self.sums(), self.sums(), self.sums()
        inputs = (self.tensor(self.dy), self.tensor(self.x), self.small(self.b), self.small(self.scale))
        self.native.call(
            "adain_grad", self.dtype, self.sizes, *inputs, self.sums(mean), self.sums(rstd), dx, dscale, dshift, dbias
        )
        return dx.values(), dscale.values(), dshift.values(), dbias.values()


def check_demodulate(case):
    x, b, scale = case.x, spread(case.b), spread(case.scale)
    y = case.demodulate()
    terms = case.gain * (np.abs(x * scale) + np.abs(b))
    assert_close(y, case.gain * lrelu(x * scale + b), case.dtype, terms)

    inner = case.dy * case.gain * slope(y)  # the sign as the saved output has it
    dx, dscale, dbias = case.demodulate_grad(y)
    assert_close(dx, inner * scale, case.dtype)
    space = (2, 3)
    assert_close(dscale, (inner * x).sum(space), accumulator(case.dtype), np.abs(inner * x).sum(space))
    assert_close(dbias, inner.sum(space), accumulator(case.dtype), np.abs(inner).sum(space))


def check_adain(case):
    v, scale, offset, space = case.x + spread(case.b), spread(case.scale), spread(case.offset), (2, 3)
    a = case.gain * lrelu(v)
    mean, variance = a.mean(space), a.var(space)
    rstd = 1 / np.sqrt(variance + case.eps)
    y, got_mean, got_rstd = case.adain()
    kind = accumulator(case.dtype)
    size = np.abs(a).max(space, initial=0)
    assert_close(got_mean, mean, kind, size)
    # The rounding of a, of relative size u, changes the variance by u · (|a| / σ) of itself.
    assert_close(got_rstd, rstd, kind, rstd * (1 + size * rstd))
    normal = (a - spread(mean)) * spread(rstd)
    error = np.abs(scale) * spread((1 + size * rstd) * (1 + np.abs(normal).max(space, initial=0)))
    assert_close(y, scale * normal + offset, case.dtype, error + np.abs(offset))

    # From here on with the mean and rstd that the kernel is given.
    normal = (a - spread(got_mean)) * spread(got_rstd)
    pixels = case.shape[2] * case.shape[3]
    dx, dscale, dshift, dbias = case.adain_grad(got_mean, got_rstd)
    sums = case.dy.sum(space), (case.dy * normal).sum(space)
    total = np.abs(case.dy).sum(space), (np.abs(case.dy) * (np.abs(normal) + spread(size * got_rstd))).sum(space)
    assert_close(dshift, sums[0], kind, total[0])
    assert_close(dscale, sums[1], kind, total[1])
    da = scale * spread(got_rstd) * (case.dy - spread(sums[0]) / pixels - normal * spread(sums[1]) / pixels)
    expected = da * case.gain * slope(v)
    bound = (
        np.abs(case.dy)
        + spread(total[0]) / pixels
        + (np.abs(normal) + spread(size * got_rstd)) * (spread(total[1]) / pixels)
    )
    bound = np.abs(scale * spread(got_rstd)) * bound * case.gain
    # float32 adds x + b with its own rounding, which may decide the slope of what is nearly 0.
    sure = np.abs(v) > 1e-6
    assert_close(dx[sure], expected[sure], case.dtype, bound[sure])
    if sure.all():
        assert_close(dbias, expected.sum(space), kind, bound.sum(space))


@settings(max_examples=200, **SETTINGS)
@given(
    op=st.sampled_from([check_demodulate, check_adain]),
    dtype=st.sampled_from(TYPES),
    layout=st.sampled_from(LAYOUTS),
    shape=st.tuples(
        st.integers(0, 3),
        st.one_of(st.integers(1, 20), st.sampled_from([8, 16, 24, 32, 40])),
        st.integers(1, 9),
        st.one_of(st.integers(1, 9), st.sampled_from([8, 16])),
    ),
    gain=st.sampled_from([1.0, 2**0.5]),
    shift=st.sampled_from([0, 0, 1]),
    order=st.integers(0, 2),
    most_grid=st.sampled_from([0, 1]),
)
def test_against_formulas(native, op, dtype, layout, shape, gain, shift, order, most_grid):
    native.set(order=order, most_grid=most_grid)
    op(Case(native, dtype, layout, shape, gain=gain, shift=shift))


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("op", [check_demodulate, check_adain])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("contiguous", (1, 3, 40, 52)),  # a block a plane (f16: 260 vectors)
        ("contiguous", (1, 2, 61, 37)),  # the same, element by element
        ("contiguous", (2, 1, 160, 104)),  # the largest block
        ("channels_last", (1, 64, 33, 17)),
        ("channels_last", (1, 40, 20, 31)),  # channels beyond the last group of 8 vectors
        ("channels_last", (2, 37, 11, 13)),  # channel by channel
    ],
)
def test_larger_planes(native, op, dtype, layout, shape, order):
    native.set(order=order)
    op(Case(native, dtype, layout, shape))


@pytest.mark.parametrize("op", [check_demodulate, check_adain])
@pytest.mark.parametrize(("dtype", "shape"), [("f16", (34, 64, 2, 2)), ("f32", (90, 70, 2, 1))])
def test_many_images(native, op, dtype, shape):
    """Enough blocks for the widest rows of channels, by vectors and one by one, the last row not full."""
    op(Case(native, dtype, "channels_last", shape))


def test_the_most_sums_at_once(native):
    """The widest rows in the largest block: the sanitizer watches the scratch memory's bounds."""
    check_demodulate(Case(native, "f16", "channels_last", (264, 64, 19, 27)))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f16", "f32"])
def test_statistics_survive_a_large_mean(native, layout, dtype):
    """Mean 1000 beside a deviation of 1: E[a²] − E[a]² in float32 would lose the variance."""
    case = Case(native, dtype, layout, (1, 8, 32, 32), offset=1000.0, gain=1.0)
    a = lrelu(case.x + spread(case.b))
    _, mean, rstd = case.adain()
    np.testing.assert_allclose(mean, a.mean((2, 3)), rtol=1e-6)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(a.var((2, 3)) + EPS), rtol=1e-4)
    naive = (a.astype(np.float32) ** 2).mean((2, 3)) - a.astype(np.float32).mean((2, 3)) ** 2
    assert np.abs(1 / np.sqrt(np.abs(naive) + EPS) / rstd - 1).max() > 1e-3, "the case is too easy"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_outlier_at_the_start(native, layout):
    case = Case(native, "f32", layout, (2, 4, 16, 16))
    case.x[:, :, 0, 0] = 3e4
    check_adain(case)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients_are_differences(native, layout):
    """⟨dy, f(θ + h·u) − f(θ − h·u)⟩ / 2h = ⟨∂⟨dy, f⟩/∂θ, u⟩, for every input θ, in float64."""
    case = Case(native, "f64", layout, (2, 3, 3, 5))
    generator, step = np.random.default_rng(7), 1e-6
    assert np.abs(case.x + spread(case.b)).min() > 1e-4
    assert np.abs(case.x * spread(case.scale) + spread(case.b)).min() > 1e-4

    def difference(function, name, value):
        u = generator.standard_normal(value.shape)
        high, low = function(**{name: value + step * u}), function(**{name: value - step * u})
        return (case.dy * (high - low)).sum() / (2 * step), u

    dx, dscale, dbias = case.demodulate_grad(case.demodulate())
    for name, value, gradient in (("x", case.x, dx), ("scale", case.scale, dscale), ("b", case.b, dbias.sum(0))):
        expected, u = difference(case.demodulate, name, value)
        np.testing.assert_allclose((gradient * u).sum(), expected, rtol=1e-6)

    _, mean, rstd = case.adain()
    dx, dscale, dshift, dbias = case.adain_grad(mean, rstd)
    for name, value, gradient in (
        ("x", case.x, dx),
        ("b", case.b, dbias.sum(0)),
        ("scale", case.scale, dscale),
        ("offset", case.offset, dshift),
    ):
        expected, u = difference(lambda **k: case.adain(**k)[0], name, value)
        np.testing.assert_allclose((gradient * u).sum(), expected, rtol=1e-6)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_pixels_no_images(native, layout):
    """Sums over nothing are written as 0; without images nothing is."""
    case = Case(native, "f32", layout, (2, 3, 0, 4))
    for result in (*case.demodulate_grad(case.demodulate())[1:], *case.adain_grad(*case.adain()[1:])[1:]):
        assert result.shape == (2, 3) and (result == 0).all()
    empty = Case(native, "f32", layout, (0, 3, 4, 4))
    assert empty.demodulate().size == empty.adain()[0].size == 0


def test_the_same_again(native):
    """Bit for bit, whatever the order of the threads."""
    for layout in LAYOUTS:
        results = []
        for order in range(3):
            native.set(order=order)
            case = Case(native, "f16", layout, (2, 16, 24, 24))
            results.append([*case.demodulate_grad(case.demodulate()), *case.adain_grad(*case.adain()[1:])])
        for other in results[1:]:
            assert all(np.array_equal(a, b) for a, b in zip(results[0], other, strict=True))
