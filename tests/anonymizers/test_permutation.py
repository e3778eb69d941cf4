"""Permutations against loops over pixels and blocks, their inverses, and what a wrong key gives."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces
from ficgan.anonymizers.base import generator
from ficgan.anonymizers.permutation import BlockPermutation, PixelRelocation
from ficgan.errors import UsageError


def numbered(side: int, count: int = 1) -> Faces:
    """Crops in which every pixel has a colour of its own."""
    n = np.arange(side * side).reshape(side, side)
    image = np.stack([n % 256, n // 256 % 256, n // 65536], -1).astype(np.uint8)
    images = np.array([np.roll(image, i, 0) for i in range(count)], np.uint8).reshape(count, side, side, 3)
    return Faces(images, tuple(f"face-{i}" for i in range(count)))


def places(image: np.ndarray) -> np.ndarray:
    """[S,S] where in the numbered crop each pixel comes from."""
    return image[..., 0] + 256 * image[..., 1].astype(int) + 65536 * image[..., 2].astype(int)


def slow_path(side: int) -> list[tuple[int, int]]:
    """(row, column) in the order of the released program: Ls of width one, from the outside in, to and fro."""
    path: list[tuple[int, int]] = []
    for lap, last in enumerate(range(side - 1, -1, -1)):
        ell = [(r, last) for r in range(last + 1)] + [(last, c) for c in range(last - 1, -1, -1)]
        path += ell if lap % 2 == 0 else ell[::-1]
    return path


# Pixel relocation


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


def test_fifty_steps_move_a_pixel_by_45_pixels() -> None:
    """The figure measured on the released program: mean L1 distance 45 px at 224 px."""
    out = PixelRelocation(variant="as_released")(numbered(224))[0]
    came = np.stack(np.divmod(places(out), 224), -1)
    here = np.stack(np.indices((224, 224)), -1)
    assert abs(np.abs(came - here).sum(-1).mean() - 45.0) < 0.05


@pytest.mark.parametrize("side", [2, 9, 40])
def test_described_relocation_goes_on_along_a_keyed_order(side: int) -> None:
    """`steps` single steps give the same as all at once, and side² of them the source."""
    faces = numbered(side)
    one = PixelRelocation(steps=1, key="k")
    walked = faces
    for _ in range(3):
        walked = walked.with_images(one(walked))
    assert np.array_equal(walked.images, PixelRelocation(steps=3, key="k")(faces))
    round_trip = replace(one, steps=side**2 - 1)(faces.with_images(one(faces)))
    assert np.array_equal(round_trip, faces.images)


def test_described_relocation_scatters_pixels_over_the_crop() -> None:
    """Two uniform points of a square of side 1 have a mean L1 distance of 2/3."""
    out = PixelRelocation(key="k")(numbered(64))[0]
    came = np.stack(np.divmod(places(out), 64), -1)
    here = np.stack(np.indices((64, 64)), -1)
    assert abs(np.abs(came - here).sum(-1).mean() / 64 - 2 / 3) < 0.03


def test_more_steps_move_pixels_farther_as_released() -> None:
    smooth = np.add.outer(np.arange(64), np.arange(64))[..., None].repeat(3, -1).astype(np.uint8)
    faces = Faces(smooth[None], ("a",))
    changes = [
        np.abs(PixelRelocation(variant="as_released", steps=n)(faces).astype(int) - smooth).mean()
        for n in (1, 5, 20, 50)
    ]
    assert changes == sorted(changes) and changes[0] < changes[-1]


# Block permutation


@settings(max_examples=40, deadline=None)
@given(side=st.integers(2, 50), data=st.data(), key=st.text(max_size=5))
def test_blocks_change_places_whole_and_the_remainder_stays(side: int, data: st.DataObject, key: str) -> None:
    block = data.draw(st.integers(1, side // 2))
    faces = numbered(side)
    out, n = BlockPermutation(block=block, key=key)(faces)[0], side // block
    source = faces.images[0]
    tiles = {source[r * block : r * block + block, c * block : c * block + block].tobytes(): (r, c)
             for r in range(n) for c in range(n)}  # fmt: skip
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


def test_the_cycle_of_blocks_is_drawn_from_the_key() -> None:
    """Each block of the order drawn goes to the place of the next one."""
    order = generator("block-permutation", 3, "k").permutation(9)
    faces = numbered(6)
    out = BlockPermutation(block=2, key="k")(faces)[0]
    for now, then in zip(order, np.roll(order, -1), strict=True):
        (r, c), (y, x) = divmod(2 * int(now), 6), divmod(2 * int(then), 6)
        r, y = 2 * r, 2 * y
        assert np.array_equal(out[y : y + 2, x : x + 2], faces.images[0, r : r + 2, c : c + 2])


def test_smaller_blocks_change_more() -> None:
    rng = np.random.default_rng(1)
    smooth = np.add.outer(np.arange(96), np.arange(96))[..., None].repeat(3, -1) + rng.integers(0, 3, (96, 96, 3))
    faces = Faces(smooth.astype(np.uint8)[None], ("a",))
    roughness = []
    for block in (48, 24, 8, 2):
        out = BlockPermutation(block=block)(faces).astype(int)
        roughness.append(np.abs(np.diff(out, axis=1)).mean())  # neighbours that were none before
    assert roughness == sorted(roughness) and roughness[0] < roughness[-1]


# Both

KEYED = [
    BlockPermutation(block=4, key="right"),
    PixelRelocation(key="right"),
    PixelRelocation(variant="as_released", steps=50),
]


@pytest.mark.parametrize("made", KEYED, ids=lambda made: f"{made.name}-{getattr(made, 'variant', '')}")
@pytest.mark.parametrize("side", [12, 13, 33])
def test_the_right_key_gives_the_source_back_and_a_wrong_one_does_not(made: Anonymizer, side: int) -> None:
    rng = np.random.default_rng(3)
    images = rng.integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    faces = Faces(images, tuple("abcd"))
    before = images.copy()
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


@settings(max_examples=40, deadline=None)
@given(
    side=st.integers(2, 40),
    count=st.integers(0, 3),
    key=st.text(max_size=4),
    steps=st.integers(1, 3000),
    which=st.sampled_from(["block", "as_described", "as_released"]),
)
def test_every_size_and_key_inverts(side: int, count: int, key: str, steps: int, which: str) -> None:
    made: Anonymizer
    if which == "block":
        made = BlockPermutation(block=max(1, side // 3), key=key)
    elif steps % side**2:
        made = PixelRelocation(variant=which, steps=steps, key=key)
    else:
        return
    faces = numbered(side, count)
    faces.images.setflags(write=False)
    hidden = made(faces)
    assert hidden.shape == faces.images.shape
    assert np.array_equal(made.invert(faces.with_images(hidden)), faces.images)


@pytest.mark.parametrize("made", KEYED, ids=lambda made: f"{made.name}-{getattr(made, 'variant', '')}")
def test_one_permutation_for_all_images(made: Anonymizer) -> None:
    """Whatever their names: what pairs of one image teach undoes all others."""
    faces = numbered(16, 3)
    out = made(faces)
    moved = places(made(numbered(16))[0]).ravel()
    for image, hidden in zip(faces.images, out, strict=True):
        assert np.array_equal(image.reshape(-1, 3)[moved], hidden.reshape(-1, 3))


def test_views_that_are_not_contiguous() -> None:
    images = np.random.default_rng(0).integers(0, 256, (6, 16, 16, 3), dtype=np.uint8)
    turned = Faces(images[::2, :, ::-1, ::-1], tuple("abc"))
    straight = Faces(np.ascontiguousarray(turned.images), tuple("abc"))
    for made in KEYED:
        assert np.array_equal(made(turned), made(straight))


def test_the_key_is_no_setting() -> None:
    for name in ("block-permutation", "pixel-relocation"):
        made = ANONYMIZERS.make(name, key="hush")
        assert made.traits.keyed and "hush" not in repr(made) and "key" not in made.settings()
    released = ANONYMIZERS.make("pixel-relocation", variant="as_released", key="hush")
    plain = cast(PixelRelocation, ANONYMIZERS.make("pixel-relocation", variant="as_released"))
    assert np.array_equal(released(numbered(9)), plain(numbered(9)))  # there the steps are all there is


@pytest.mark.parametrize(("side", "block"), [(1, 1), (31, 32), (63, 32), (5, 3)])
def test_too_few_blocks_are_refused(side: int, block: int) -> None:
    with pytest.raises(UsageError, match="block-permutation: block is"):
        BlockPermutation(block=block)(numbered(side))


@pytest.mark.parametrize(("side", "steps"), [(1, 50), (5, 25), (5, 50)])
def test_a_round_trip_is_refused(side: int, steps: int) -> None:
    for variant in ("as_described", "as_released"):
        with pytest.raises(UsageError, match="pixel-relocation: steps is"):
            PixelRelocation(variant=variant, steps=steps)(numbered(side))


def test_wrong_parameters_are_refused() -> None:
    for name, parameters in [
        ("block-permutation", {"block": 0}),
        ("block-permutation", {"block": "a"}),
        ("block-permutation", {"key": 3}),
        ("pixel-relocation", {"steps": 0}),
        ("pixel-relocation", {"variant": "secret"}),
    ]:
        with pytest.raises(UsageError):
            ANONYMIZERS.make(name, **parameters)
