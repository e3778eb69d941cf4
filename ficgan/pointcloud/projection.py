"""Pictures of point clouds: the thesis' orthographic projection (§4.3.2), turned views, a camera."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from scipy.ndimage import gaussian_filter

from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud, facing_front, pca_normals, rigid
from ficgan.yaml_settings import check

# Chosen by the scores of YuNet, a detector, on twelve scans without colours. No recogniser was asked.
LAMP = np.array([1.0, 0.6, 0.0]) / np.linalg.norm([1.0, 0.6, 0.0])
"""Direction of the lamp in the canonical frame: in front of and above the face."""
AMBIENT = 0.2
"""Share of the light that comes from everywhere."""
CAVITY = 0.3
"""How much a point `DEEP` behind the smoothed face is darkened, as an exponent."""
DEEP = 0.003
"""Metres behind the smoothed face at which a cavity has its full darkening; it may double, no more."""
REACH = 0.008
"""Metres; standard deviation of the Gaussian that smooths the face."""
SKIN = (224, 186, 160)
"""RGB of fully lit skin."""
NEIGHBOURS = 20
CELL = 0.002
"""Metres; of the relief that cavities are read from."""
WIDEST = 8.0
"""Metres of a cloud; its relief then has 16 million cells."""


def shaded(cloud: Cloud, tone: tuple[int, int, int] | None = SKIN, *, cavity: float = CAVITY) -> Cloud:
    """The cloud with colours as if a lamp shone on it (Lambert's cosine law), and with normals.

    `tone` is the RGB of fully lit skin (None: its own colours are darkened); `cavity`: see `CAVITY`.
    """
    if tone is None and cloud.colors is None:
        raise InputError("the cloud has no colours to be darkened; give the shading a tone")
    if len(cloud) and (wide := float(np.ptp(cloud.points, axis=0).max())) > WIDEST:
        raise InputError(
            f"the cloud is {wide:.3g} m wide, and {WIDEST:g} m is the most that is shaded; remove stray points, or "
            "check its unit"
        )
    normals = pca_normals(cloud.points, neighbours=NEIGHBOURS) if cloud.normals is None else cloud.normals
    normals = facing_front(normals)
    light = AMBIENT + (1 - AMBIENT) * np.clip(normals @ LAMP, 0, 1)
    if cavity:
        deep = -_relief(cloud.points) / DEEP
        light = np.minimum(light * np.exp(-cavity * np.clip(deep, -0.3, 2)), 1)
    base = cloud.colors if tone is None else np.array(tone, np.float64)
    assert base is not None
    colors = np.round(light[:, None] * base).astype(np.uint8)
    return replace(cloud, colors=colors, normals=normals if cloud.normals is None else cloud.normals)


def _relief(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """[N] metres by which points lie in front of the face smoothed over `REACH`, seen along x."""
    low = points[:, 1:].min(axis=0) - 3 * REACH
    rows, columns = np.floor((points[:, 1:] - low) / CELL).astype(np.intp).T
    shape = (int(rows.max() + 3 * REACH / CELL) + 2, int(columns.max() + 3 * REACH / CELL) + 2)
    flat = rows * shape[1] + columns
    count, total = (np.bincount(flat, of, shape[0] * shape[1]).reshape(shape) for of in (None, points[:, 0]))
    weight = gaussian_filter((count > 0).astype(np.float64), REACH / CELL)
    smooth = gaussian_filter(total / np.maximum(count, 1), REACH / CELL)
    return points[:, 0] - smooth[rows, columns] / weight[rows, columns]


Picture = NDArray[np.uint8]
Floats = NDArray[np.float64]

ANGLES = range(-10, 11, 2)
"""Degrees of yaw of the pictures that the auto-encoder learns from (thesis, figure 4.26: −10 to 10)."""
THESIS_SIZE = (389, 515)
THESIS_PER_METRE = 496 / 0.5  # pixels, upright
NEAR = 0.05
"""Metres; what is nearer to a camera is cut."""
MOST_BYTES = 4 << 30
"""Of memory that drawing may take."""
_PIXELS_PER_POINT = 100 / 72
"""At matplotlib's 100 dots per inch."""
_LINE_WIDTH = 1.0
"""Points; matplotlib draws a line of this width around a marker, half of it outside."""
_LARGEST_POINT = int((THESIS_SIZE[0] / _PIXELS_PER_POINT - _LINE_WIDTH) ** 2)
"""Points² of a disc as wide as the thesis' picture; discs grow with the picture."""
_RADIUS_STEP = 0.5
"""Where every point has a radius of its own, radii are rounded to this many cells, and equal ones drawn together."""
_LARGE = 16
"""Cells from which on a step is a 32nd of the radius, so there are few steps however large discs grow."""
_LEAST_WIDE = 512
"""Pixels that the radius of a disc may have, however small the picture; else as many as the picture is wide or high."""


_Level = Annotated[int, Field(ge=0, le=255)]
_Side = Annotated[int, Field(ge=1)]
_Length = Annotated[FiniteFloat, Field(gt=0)]


class CloudView(BaseModel):
    """Settings of any picture of a cloud.

    Args:
        size: width and height in pixels.
        point_size: marker area, points² (thesis: 25, and up to 60 for sparse results).
        background: grey or RGB.
        yaw: degrees about the upright axis through the nose tip; above 0 towards the viewer's right.
        pitch: degrees the head is raised.
        samples: cells per pixel in each direction (see `splat`); 1 is fastest and has hard edges.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    size: tuple[_Side, _Side] = THESIS_SIZE
    point_size: float = Field(25.0, gt=0, le=_LARGEST_POINT)  # a disc as wide as the picture
    background: _Level | tuple[_Level, _Level, _Level] = 255
    yaw: FiniteFloat = 0.0
    pitch: FiniteFloat = 0.0
    samples: int = Field(2, ge=1, le=8)

    @property
    def thesis_radius(self) -> float:
        """Pixels, in the thesis' picture, of matplotlib's marker with the line around it."""
        return float((np.sqrt(self.point_size) + _LINE_WIDTH) / 2 * _PIXELS_PER_POINT)

    def splat(
        self, places: Floats, cloud: Cloud, order: NDArray[np.intp], radius: float | Floats, size: tuple[int, int]
    ) -> Picture:
        """Draw points of a cloud, given the places of all of them, in an order."""
        assert cloud.colors is not None
        colors = cloud.colors[order]
        return splat(places[order], colors, radius, size, background=self.background, samples=self.samples)


class Projection(CloudView):
    """How a cloud becomes a picture; the thesis' numbers (§4.3.2).

    Args:
        limits: metres from the nose tip to the side and to the upper edge of the drawn area, which fills the same
            pixels as in a tight matplotlib figure: 369.6×496 of 389×515.
        order: what is drawn last lies on top: "y", the highest; "x" or "depth", the nearest to the viewer.
    """

    limits: tuple[_Length, _Length] = (0.18, 0.25)
    order: Literal["y", "x", "depth"] = "y"

    def places(self, points: Floats) -> Floats:
        """Columns and rows [N,2], pixel centres at integers, of points [N,3] of the turned head."""
        middle, half = _area(self.size)
        return np.asarray(middle - 0.5 - points[:, [2, 1]] * (half / self.limits))


class Camera(CloudView):
    """A pinhole camera on the axis through the nose tip; discs are as large as in the thesis' picture.

    Args:
        distance: metres from the camera to the nose tip.
        fov: degrees from the lower to the upper edge of the picture.
    """

    distance: FiniteFloat = Field(1.0, gt=NEAR)
    fov: float = Field(28.0, gt=0, lt=180)


def project(cloud: Cloud, **settings: Any) -> Picture:
    """The front view [height,width,3] uint8 RGB of a canonical face, along −z and −y (thesis, §4.3.2, eq. 4.3).

    A cloud without colours is shaded first; settings are fields of `Projection`, such as point_size=40.
    """
    drawing = check(Projection, settings, where="the projection")
    cloud = turned(_coloured(cloud), drawing.yaw, drawing.pitch)
    order = np.argsort(cloud.points[:, 1 if drawing.order == "y" else 0], kind="stable")
    middle, half = _area(drawing.size)
    corner = np.floor(middle - half + 0.5).astype(int)
    (left, top), (right, bottom) = corner, np.maximum(np.floor(middle + half + 0.5).astype(int), corner + 1)
    radius = drawing.thesis_radius * float(np.sqrt(np.prod(drawing.size) / np.prod(THESIS_SIZE)))
    window = (int(right - left), int(bottom - top))  # matplotlib clips to whole pixels
    drawn = drawing.splat(drawing.places(cloud.points) - corner, cloud, order, radius, window)
    picture = np.empty((drawing.size[1], drawing.size[0], 3), np.uint8)
    picture[:] = drawing.background
    picture[top:bottom, left:right] = drawn
    return picture


def _area(size: tuple[int, int]) -> tuple[Floats, Floats]:
    """Middle and half size [2] of the drawn area, pixels from the upper left edge."""
    # Of matplotlib's 640×480 pixels the axes take 496×369.6 from (80, 52.8). The tight box begins 10 pixels outside
    # them and is cut to whole pixels. Of 516 the thesis has 515; the lost one is the upper edge, once turned.
    scale = np.array(size) / THESIS_SIZE
    return scale * (194.2, 257.0), scale * (369.6 / 2, 496 / 2)


def views(cloud: Cloud, angles: Iterable[float] = ANGLES, **settings: Any) -> list[Picture]:
    """Projections of the head turned by several yaws (thesis, figure 4.26), shaded before it is turned."""
    cloud = _coloured(cloud)
    return [project(cloud, yaw=float(angle), **settings) for angle in angles]


def perspective(cloud: Cloud, **settings: Any) -> Picture:
    """The face as a camera sees it, the nearest disc on top; settings are fields of `Camera`."""
    camera = check(Camera, settings, where="the camera")
    cloud = turned(_coloured(cloud), camera.yaw, camera.pitch)
    depth = camera.distance - cloud.points[:, 0]
    order = np.argsort(-depth, kind="stable")
    order = order[depth[order] > NEAR]
    if len(order) == 0:
        raise InputError(f"no point lies more than {NEAR} m before the camera; move it away, or check the cloud's unit")
    focal_length = camera.size[1] / 2 / np.tan(np.radians(camera.fov) / 2)
    scale = focal_length / np.maximum(depth, NEAR)
    places = (np.array(camera.size) - 1) / 2 - cloud.points[:, [2, 1]] * scale[:, None]
    radius = camera.thesis_radius / THESIS_PER_METRE * scale[order]
    return camera.splat(places, cloud, order, radius, camera.size)


def turned(cloud: Cloud, yaw: float, pitch: float = 0.0) -> Cloud:
    """The head raised by `pitch` degrees, then turned by `yaw` towards the viewer's right."""
    if yaw == 0 and pitch == 0:
        return cloud
    (s, t), (c, d) = np.sin(np.radians([yaw, pitch])), np.cos(np.radians([yaw, pitch]))
    turn = np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]]) @ np.array([[d, -t, 0], [t, d, 0], [0, 0, 1]])
    return cloud.moved(rigid(turn, np.zeros(3)))


def _coloured(cloud: Cloud) -> Cloud:
    if len(cloud) == 0:
        raise InputError("a cloud of no points cannot be drawn; give one with points")
    return shaded(cloud) if cloud.colors is None else cloud


def strip(pictures: Sequence[Picture], *, gap: int = 0, background: int = 255) -> Picture:
    """One picture of several [H,W,3], from left to right, with a gap in pixels; lower ones stand at the upper edge."""
    if not pictures or any(p.ndim != 3 or p.shape[2] != 3 or p.dtype != np.uint8 for p in pictures):
        raise InputError("a strip needs at least one picture, each [H,W,3] uint8")
    height = max(len(picture) for picture in pictures)
    padded = [np.pad(p, ((0, height - len(p)), (0, gap), (0, 0)), constant_values=background) for p in pictures]
    whole = np.concatenate(padded, axis=1)
    return np.ascontiguousarray(whole[:, : whole.shape[1] - gap])


def splat(
    places: NDArray[np.floating],
    colors: NDArray[np.uint8],
    radius: float | NDArray[np.floating],
    size: tuple[int, int],
    *,
    background: int | tuple[int, int, int] = 255,
    samples: int = 2,
) -> Picture:
    """Draw points as filled discs, each over all that come before it: [height,width,3] RGB.

    Ranks are written at cells and dilated by a disc, so time depends on picture and radius, hardly on the points.

    Args:
        places: [N,2], column and row in pixels, pixel centres at integers; points outside are cut.
        radius: of the discs in pixels, one or [N].
        samples: cells per pixel in each direction; edges are blended over samples² cells.
    """
    width, height = size
    radii = np.asarray(radius, np.float64)
    _need_room(float(radii.max()), len(places), size, samples)
    # A cell's centre lies at (index + .5)/samples − .5 pixels.
    cells = np.floor((np.asarray(places, np.float64) + 0.5) * samples)
    ranks = _highest_ranks(cells, radii * samples, (width * samples, height * samples))
    palette = np.zeros((len(colors) + 1, 4), np.uint8)  # four bytes, so that one look-up copies a whole colour
    palette[0, :3], palette[1:, :3] = background, colors
    drawn = np.take(palette.view(np.uint32)[:, 0], ranks)
    blocks = drawn.view(np.uint8).reshape(height, samples, width, samples, 4)[..., :3]
    if samples == 1:
        return np.ascontiguousarray(blocks[:, 0, :, 0])
    total = np.zeros((height, width, 3), np.uint16)
    for row, column in np.ndindex(samples, samples):
        total += blocks[:, row, :, column]
    return ((total + samples**2 // 2) // samples**2).astype(np.uint8)


def _need_room(radius: float, count: int, size: tuple[int, int], samples: int) -> None:
    margin, widest = radius * samples, max(*size, _LEAST_WIDE)
    ranks = (2 if count < 2**16 - 1 else 4) * (2 + np.log2(2 * margin + 1))
    need = np.prod(np.array(size) * samples + 2 * margin) * ranks + 8.0 * np.prod(size) * samples
    if radius > widest or need > MOST_BYTES:
        raise UsageError(
            f"discs of {radius:.3g} pixels on {size[0]}×{size[1]} of {samples}² cells cannot be drawn: {widest} pixels "
            f"and {MOST_BYTES >> 30} GiB are the most; give smaller points, a smaller picture or fewer samples, or "
            "move the camera away"
        )


def _stepped(radius: Floats) -> Floats:
    even = np.maximum(np.round(radius / _RADIUS_STEP), 1) * _RADIUS_STEP
    growth = 1 + _RADIUS_STEP / _LARGE
    steps = np.round(np.log(np.maximum(radius, _LARGE) / _LARGE) / np.log(growth))
    return np.where(radius < _LARGE, even, _LARGE * growth**steps)


def _highest_ranks(cells: Floats, radius: Floats, size: tuple[int, int]) -> NDArray[np.unsignedinteger]:
    width, height = size
    out = np.zeros((height, width), np.uint16 if len(cells) < 2**16 - 1 else np.uint32)
    radius = _stepped(radius) if radius.ndim else radius
    for reach in np.unique(radius):
        margin = int(reach)
        inside = np.all((cells >= -margin) & (cells < np.array([width, height]) + margin), axis=1)
        ranks = np.flatnonzero(inside & (radius == reach))
        columns, rows = (cells[ranks] + margin).astype(np.intp).T
        seeds = np.zeros((height + 2 * margin, width + 2 * margin), out.dtype)
        np.maximum.at(seeds, (rows, columns), (ranks + 1).astype(out.dtype))
        _dilate(seeds, float(reach), out)
    return out


def _dilate(seeds: NDArray[np.unsignedinteger], radius: float, out: NDArray[np.unsignedinteger]) -> None:
    margin = int(radius)
    height, width = out.shape
    powers = {1: seeds}
    for away in range(margin, -1, -1):
        half = int(np.sqrt(radius**2 - away**2))
        length, power = 2 * half + 1, 1 << ((2 * half + 1).bit_length() - 1)
        while (last := max(powers)) < power:
            powers[2 * last] = np.maximum(powers[last][:, :-last], powers[last][:, last:])
        first, second = margin - half, margin - half + length - power
        for row in {margin - away, margin + away}:
            band = powers[power][row : row + height]
            np.maximum(out, band[:, first : first + width], out=out)
            np.maximum(out, band[:, second : second + width], out=out)
