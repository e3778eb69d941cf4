"""Points drawn as discs, the later over the earlier, by a grey dilation instead of a loop over points."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import UsageError

__all__ = ["splat"]

Ranks = NDArray[np.unsignedinteger]
RADIUS_STEP = 0.5
"""Where every point has a radius of its own, radii are rounded to this many cells; those alike are drawn together."""
LARGE = 16
"""Cells from which on a step is a 32nd of the radius, so there are few steps however large discs grow."""
MOST_SAMPLES = 16
LEAST_WIDE = 512
"""Pixels that the radius of a disc may have, however small the picture; else as many as the picture is wide or high."""
MOST_BYTES = 4 << 30
"""Of memory that drawing may take."""


def splat(
    places: NDArray[np.floating],
    colors: NDArray[np.uint8],
    radius: float | NDArray[np.floating],
    size: tuple[int, int],
    *,
    background: int | tuple[int, int, int] = 255,
    samples: int = 2,
) -> NDArray[np.uint8]:
    """Draw points as filled discs, each over all that come before it.

    Every point's rank is written at its cell, and the ranks are dilated by a disc: the highest rank that reaches a cell
    is the last point drawn over it. So the time hangs on the picture and the radius, hardly on the number of points.

    Args:
        places: [N,2], column and row in pixels, pixel centres at integers; points outside are cut.
        colors: [N,3] RGB.
        radius: of the discs in pixels, one or [N].
        size: width and height in pixels.
        background: grey or RGB where no disc lies.
        samples: cells per pixel in each direction; edges are blended over samples² cells, and places rounded to a cell.
            With 1, edges are hard.

    Returns:
        [height,width,3] RGB.

    Raises:
        UsageError: a size, a radius or a number of samples that is not above 0, over 16 samples, or so large a picture
            or discs that they cannot be drawn.
    """
    width, height = size
    radii = np.asarray(radius, np.float64)
    if min(width, height, samples) < 1 or samples > MOST_SAMPLES or not (radii > 0).all():
        raise UsageError(
            f"discs of {radii.min()} pixels on {width}×{height} of {samples}² cells; give numbers "
            f"above 0, and at most {MOST_SAMPLES}² cells"
        )
    _need_room(float(radii.max()), len(places), size, samples)
    # A cell's centre lies at (index + .5)/samples − .5 pixels.
    cells = np.floor((np.asarray(places, np.float64) + 0.5) * samples)
    ranks = _winners(cells, radii * samples, (width * samples, height * samples))
    palette = np.zeros((len(colors) + 1, 4), np.uint8)
    palette[0, :3] = background
    palette[1:, :3] = colors
    drawn = np.take(palette.view(np.uint32)[:, 0], ranks)
    return _averaged(drawn, samples)


def _need_room(radius: float, count: int, size: tuple[int, int], samples: int) -> None:
    """Refuse what would take minutes or all memory; every doubling of runs in `_dilate` is kept."""
    width, height = size
    widest = max(width, height, LEAST_WIDE)
    if radius > widest:
        raise UsageError(
            f"discs of {radius:.3g} pixels are wider than the picture of {width}×{height}, where {widest} is the most; "
            "give smaller points, or move the camera away"
        )
    margin = radius * samples
    cells = (width * samples + 2 * margin) * (height * samples + 2 * margin)
    need = int(cells * (2 if count < 2**16 - 1 else 4) * (2 + np.log2(2 * margin + 1)))
    if need > MOST_BYTES:
        raise UsageError(
            f"discs of {radius:.3g} pixels on {width}×{height} of {samples}² cells need {need / 2**30:.3g} GiB, and "
            f"{MOST_BYTES >> 30} is the limit; give smaller points, a smaller picture or fewer samples"
        )


def _stepped(radius: NDArray[np.float64]) -> NDArray[np.float64]:
    """Radii in cells, rounded so that many are alike."""
    even = np.maximum(np.round(radius / RADIUS_STEP), 1) * RADIUS_STEP
    growth = 1 + RADIUS_STEP / LARGE
    steps = np.round(np.log(np.maximum(radius, LARGE) / LARGE) / np.log(growth))
    return np.where(radius < LARGE, even, LARGE * growth**steps)


def _winners(cells: NDArray[np.float64], radius: NDArray[np.float64], size: tuple[int, int]) -> Ranks:
    """[height,width] of the highest rank (1…N; 0: none) whose disc covers a cell."""
    width, height = size
    kind: type[np.unsignedinteger] = np.uint16 if len(cells) < 2**16 - 1 else np.uint32
    out = np.zeros((height, width), kind)
    if radius.ndim:
        radius = _stepped(radius)
    for one in np.unique(radius):
        margin = int(one)
        inside = np.all((cells >= -margin) & (cells < np.array([width, height]) + margin), axis=1)
        rows = np.flatnonzero(inside & (radius == one))
        at = (cells[rows] + margin).astype(np.intp)
        seeds = np.zeros((height + 2 * margin, width + 2 * margin), kind)
        np.maximum.at(seeds.reshape(-1), at[:, 1] * seeds.shape[1] + at[:, 0], (rows + 1).astype(kind))
        _dilate(seeds, float(one), out)
    return out


def _dilate(seeds: Ranks, radius: float, out: Ranks) -> None:
    """Raise `out` to the maximum of `seeds` over a disc; `seeds` is wider by the whole radius on each side.

    A row of the disc is a run of cells. Maxima over runs of 2, 4, 8… cells come by doubling; any run is two of those.
    """
    margin = int(radius)
    height, width = out.shape
    powers = {1: seeds}
    run: Ranks = seeds
    reached = -1
    for away in range(margin, -1, -1):
        half = int(np.sqrt(radius**2 - away**2))
        if half != reached:
            run, reached = _run_maxima(powers, 2 * half + 1, margin - half, width), half
        for row in {margin - away, margin + away}:
            np.maximum(out, run[row : row + height], out=out)


def _run_maxima(powers: dict[int, Ranks], length: int, start: int, width: int) -> Ranks:
    """[:,width] of maxima over `length` cells that begin at `start` + column."""
    power = max(powers)
    while 2 * power <= length:
        half = powers[power]
        powers[2 * power] = np.maximum(half[:, :-power], half[:, power:])
        power *= 2
    power = 1 << (length.bit_length() - 1)
    whole = powers[power]
    end = start + length - power
    return np.maximum(whole[:, start : start + width], whole[:, end : end + width])


def _averaged(drawn: NDArray[np.uint32], samples: int) -> NDArray[np.uint8]:
    """[H·s,W·s] of packed colours → [H,W,3], the mean of each s×s cells, rounded."""
    height, width = drawn.shape[0] // samples, drawn.shape[1] // samples
    if samples == 1:
        return np.ascontiguousarray(drawn.view(np.uint8).reshape(height, width, 4)[..., :3])
    # Two channels to a word: up to 16² cells of 8 bits fit in each half.
    low = np.zeros((2, height, width), np.uint32)
    for row in range(samples):
        for column in range(samples):
            cell = drawn[row::samples, column::samples]
            low[0] += cell & 0x00FF00FF
            low[1] += (cell >> 8) & 0x00FF00FF
    halves = low.view(np.uint16).reshape(2, height, width, 2)
    mean = (halves + samples**2 // 2) // samples**2
    return np.stack([mean[0, ..., 0], mean[1, ..., 0], mean[0, ..., 1]], axis=-1).astype(np.uint8)
