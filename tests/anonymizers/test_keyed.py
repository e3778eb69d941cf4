"""Permutations and k-RTIO against pixel-by-pixel loops, and their inverses."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand_ins import faces_of, noise

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.anonymizers.keyed import BlockPermutation, KRtio, PixelRelocation
from ficgan.errors import UsageError


def numbered(side: int) -> Faces:
    """A crop in which every pixel has a colour of its own."""
    n = np.arange(side * side).reshape(side, side)
    return faces_of(np.stack([n % 256, n // 256 % 256, n // 65536], -1).astype(np.uint8)[None])


def slow_path(side: int) -> list[tuple[int, int]]:
    """(row, column) in the order of the released program: Ls of width one, from the outside in, to and fro."""
    path: list[tuple[int, int]] = []
    for lap, last in enumerate(range(side - 1, -1, -1)):
        ell = [(r, last) for r in range(last + 1)] + [(last, c) for c in range(last - 1, -1, -1)]
        path += ell if lap % 2 == 0 else ell[::-1]
    return path


@pytest.mark.parametrize("side", [2, 3, 4, 7, 8, 31])
@pytest.mark.parametrize("steps", [1, 2, 5, 50])
def test_released_relocation_moves_pixels_along_the_path(side: int, steps: int) -> None:
    if steps % side**2 == 0:
        return
    faces, path = numbered(side), slow_path(side)
    assert sorted(path) == [(r, c) for r in range(side) for c in range(side)]
    assert all(abs(a[0] - b[0]) + abs(a[1] - b[1]) == 1 for a, b in itertools.pairwise(path))
    expected = np.empty_like(faces.images[0])
    for i, place in enumerate(path):
        expected[path[(i + steps) % len(path)]] = faces.images[0][place]
    out = PixelRelocation(variant="as_released", steps=steps)(faces)[0]
    assert np.array_equal(out, expected)


@given(side=st.integers(2, 50), data=st.data(), key=st.text(max_size=5))
def test_blocks_change_places_whole_and_the_remainder_stays(side: int, data: st.DataObject, key: str) -> None:
    block = data.draw(st.integers(1, side // 2))
    faces = numbered(side)
    out, n = BlockPermutation(block=block, key=key)(faces)[0], side // block
    source = faces.images[0]
    tiles = {
        source[r * block : r * block + block, c * block : c * block + block].tobytes(): (r, c)
        for r in range(n)
        for c in range(n)
    }
    came = []
    for r in range(n):
        for c in range(n):
            tile = out[r * block : r * block + block, c * block : c * block + block]
            came.append(tiles[tile.tobytes()])
            assert came[-1] != (r, c)  # no block stays
    assert len(set(came)) == n * n
    rest = np.ones((side, side), bool)
    rest[: n * block, : n * block] = False
    assert np.array_equal(out[rest], source[rest])


KEYED = [
    BlockPermutation(block=4, key="right"),
    PixelRelocation(key="right"),
    PixelRelocation(variant="as_released", steps=50),
]


@pytest.mark.parametrize("made", KEYED, ids=lambda made: f"{made.name}-{getattr(made, 'variant', '')}")
@pytest.mark.parametrize("side", [12, 13, 33])
def test_the_right_key_gives_the_source_back_and_a_wrong_one_does_not(made: Anonymizer, side: int) -> None:
    faces = noise(4, side, 3)
    images, before = faces.images, faces.images.copy()
    hidden = made(faces)
    assert hidden.dtype == np.uint8 and np.array_equal(images, before)
    assert all(not np.array_equal(a, b) for a, b in zip(hidden, images, strict=True))
    for channel in range(3):  # bijective: the same colours, elsewhere
        there, here = (np.sort(pixels[..., channel].reshape(4, -1)) for pixels in (hidden, images))
        assert np.array_equal(there, here)
    assert np.array_equal(made.invert(faces.with_images(hidden)), images)
    released = isinstance(made, PixelRelocation) and made.variant == "as_released"
    wrong = replace(made, **({"steps": 51} if released else {"key": "wrong"}))  # type: ignore[arg-type]
    back = wrong.invert(faces.with_images(hidden))
    assert all(not np.array_equal(a, b) for a, b in zip(back, images, strict=True))
    assert (back != images).any(-1).mean() > 0.5
    assert np.array_equal(faces.with_images(hidden).images, hidden)


def test_the_released_relocation_needs_no_key() -> None:
    released, plain = (PixelRelocation(variant="as_released", key=key) for key in ("hush", ""))
    assert released.traits.keyed and "hush" not in repr(released) + str(released.settings())
    assert np.array_equal(released(numbered(9)), plain(numbered(9)))  # there the steps are all there is


def test_as_described_mixes_the_face_with_permuted_blocks(rng: np.random.Generator) -> None:
    overlays, faces = rng.integers(0, 256, (1, 20, 20, 3), np.uint8), noise(3, 20)
    out = KRtio(key="k", alpha=0.5, block=5, k=1, overlays=overlays)(faces)
    shown = 2 * out.astype(int) - faces.images  # the overlay, within a level

    for image in shown:
        sums = image.reshape(4, 5, 4, 5, 3).sum((1, 3, 4)).ravel()
        expected = overlays[0].reshape(4, 5, 4, 5, 3).sum((1, 3, 4), dtype=int).ravel()
        assert np.abs(np.sort(sums) - np.sort(expected)).max() <= 75 and not np.array_equal(sums, expected)


@given(
    alpha=st.floats(0.05, 1.0),
    size=st.integers(1, 41),
    block=st.integers(1, 45),
    k=st.integers(1, 5),
    key=st.text(min_size=1, max_size=100),
    seed=st.integers(0, 99),
)
def test_the_right_key_gives_the_face_back_within_the_bound(
    alpha: float, size: int, block: int, k: int, key: str, seed: int
) -> None:
    try:
        key.encode()
    except UnicodeEncodeError:
        return
    rng = np.random.default_rng(seed)
    faces = noise(1, size, seed)
    extreme = rng.random(faces.images.shape) < 0.3
    faces.images[extreme] = rng.choice([0, 255])
    method = KRtio(key=key, alpha=alpha, block=block, k=k, overlays=noise(5, 16).images)
    back = method.invert(faces.with_images(method(faces)))
    assert np.abs(back.astype(int) - faces.images).max() <= math.floor(0.5 / alpha + 0.5 + 1e-9)


def test_as_released_cannot_be_inverted_and_draws_from_the_seed() -> None:
    faces = noise(2, 64)
    method = KRtio(variant="as_released", key="k", overlays=noise(5, 64, 1).images)
    with pytest.raises(UsageError, match="has no inverse"):
        method.invert(faces)
    assert np.array_equal(method(faces), replace(method, key="other")(faces))
    assert not np.array_equal(method(faces), replace(method, seed=1)(faces))
