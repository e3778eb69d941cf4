"""From a photo into the frame, and from the frame back onto the photo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.faces.blend import Paste, crop, invert, mix, nothing, transform_points
from ficgan.faces.mesh import FACE_OVAL, LEFT_EYE, LEFT_IRIS, MESH_POINTS, RIGHT_EYE, RIGHT_IRIS
from ficgan.frame.geometry import LO, Warp

__all__ = [
    "EyeConfig", "Look", "detail_of", "fine_detail", "hair_over", "matched_border", "no_sharper", "paste_texture",
    "read_gaze", "read_look", "read_texture", "sharpened", "stretched", "with_eyes",
]  # fmt: skip

Image = NDArray[np.uint8]
Floats = NDArray[np.float32]

_COARSE = 96
"""Side of the grid on which the warp is inverted; it is smooth, so a larger patch only interpolates it."""
_AT_ONCE = 1 << 18
"""Pixels of a patch that are computed at once."""
FINE = 2.2
"""Standard deviation, in pixels of the doubled frame, of the blur that leaves fine detail behind."""
KEPT = 0.35
"""What is left in the middle of a face of the difference that its border has from the source's."""
HAIR = 0.15
"""Difference from skin, in [0,1], at which what lies on a forehead is taken for hair."""
_GREY = np.array([0.299, 0.587, 0.114], np.float32)


def read_texture(
    photo: Image, upright: NDArray[np.float64], points: NDArray[np.float64], warp: Warp, *, finer: int = 1,
    grid: Floats | None = None,
) -> Image:  # fmt: skip
    """A face of a photo in the frame; what a turned head hides is the mirrored other side.

    Args:
        photo: uint8 [H,W,3] RGB.
        upright: float64 [2,3], photo → upright units.
        points: [468,3] the mesh in upright units.
        warp: of the frame.
        finer: samples per pixel of the frame's grid, in each direction.
        grid: [R,R,2] of `warp.to_upright`, where it is known already.

    Returns:
        uint8 [finer·R,finer·R,3].
    """
    import cv2

    grid = warp.to_upright(points[None])[0] if grid is None else grid
    unit = 1 / math.sqrt(abs(np.linalg.det(upright[:, :2])))  # photo pixels per frame unit
    finest = float(warp.step.min()) / finer
    if unit * finest > 1.25:  # a large face: reduced first, or fine texture would alias
        scale = 1 / finest
        low, high = _extent(grid)
        side = math.ceil(float((high - low).max()) * scale) + 2
        matrix = np.column_stack([upright[:, :2] * scale, (upright[:, 2] - low) * scale])
        photo, place = crop(photo, matrix, side), (grid - low) * scale
    else:
        place = transform_points(invert(upright), grid)
        low, high = _extent(place)
        low, high = np.floor(low).astype(int) - 4, np.ceil(high).astype(int) + 5
        x0, y0 = (int(v) for v in np.clip(low, 0, (photo.shape[1] - 1, photo.shape[0] - 1)))
        x1, y1 = (int(v) for v in np.clip(high, (x0 + 1, y0 + 1), photo.shape[1::-1]))
        photo, place = photo[y0:y1, x0:x1], place - np.array([x0, y0])
    place = stretched(place.astype(np.float32), finer)
    found: Any = cv2.remap(
        np.ascontiguousarray(photo), place[..., 0], place[..., 1], cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE
    )
    seen = warp.seen(grid)
    lost = np.clip(seen[:, ::-1] - seen, 0, 1)
    if lost.max() > 0.02:
        share = stretched(lost[..., None], finer).reshape(*found.shape[:2], 1)
        found = np.rint(found + share * (found[:, ::-1].astype(np.float32) - found)).astype(np.uint8)
    return found


def stretched(field: Floats, finer: int) -> Floats:
    """A field [R,R,…] on a grid `finer` times as fine whose corners are the same: [finer·R,finer·R,…]."""
    import cv2

    if finer == 1:
        return field
    at = np.linspace(0, len(field) - 1, finer * len(field), dtype=np.float32)
    x, y = np.meshgrid(at, at)
    out: Any = cv2.remap(field, x, y, cv2.INTER_CUBIC if field.ndim == 3 and field.shape[2] == 3 else cv2.INTER_LINEAR)
    return out


def _extent(field: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The least and the greatest x and y of a field [R,R,2]."""
    channels = field[..., 0], field[..., 1]  # one by one: a reduction over pairs is ten times as slow
    return np.array([one.min() for one in channels]), np.array([one.max() for one in channels])


@dataclass(frozen=True)
class Look:
    """How sharp and how noisy a photo is around and in a face.

    Args:
        detail: standard deviation of the fine detail of the source's texture in the frame, [0,1].
        grain: standard deviation of the noise around the face, [0,1], photo pixels.
        coarse: noise that is left after averaging 2×2 pixels, of what white noise would leave; 1 … 2.
        fine: standard deviation of detail that only a texture of twice the size holds, [0,1]; 0 for small faces.
    """

    detail: float
    grain: float
    coarse: float = 1.0
    fine: float = 0.0


def read_look(photo: Image, upright: NDArray[np.float64], texture: Image, mask: Floats) -> Look:
    """Sharpness of the source's texture and grain of its surroundings.

    The noise is the median of a high-pass filter over what lies around the face, which edges hardly move.

    Source: Immerkær 1996, with a median in place of the mean.
    """
    import cv2

    detail = detail_of(texture.astype(np.float32) / np.float32(255), mask)
    unit = 1 / math.sqrt(abs(np.linalg.det(upright[:, :2])))
    centre = transform_points(invert(upright), [[64.0, 64.0]])[0]
    half = int(75 * unit) + 2
    x0, y0 = (int(v) for v in np.clip(np.rint(centre - half), 0, np.array(photo.shape[1::-1]) - 1))
    x1, y1 = (int(v) for v in np.clip(np.rint(centre + half), (x0 + 1, y0 + 1), photo.shape[1::-1]))
    if min(y1 - y0, x1 - x0) < 8:
        return Look(detail, 0.0)
    part = photo[y0:y1, x0:x1, 0] * (_GREY[0] / np.float32(255))  # one colour at a time: a third of the memory
    for colour in (1, 2):
        part += photo[y0:y1, x0:x1, colour] * (_GREY[colour] / np.float32(255))
    first = _noise(part)
    second = _noise(cv2.resize(part, (part.shape[1] // 2, part.shape[0] // 2), interpolation=cv2.INTER_AREA))
    # A face of few pixels is nothing but edges, which look like noise: the smaller, the less is believed.
    first *= float(np.clip(2 * unit - 1, 0, 1))
    return Look(detail, first, float(np.clip(2 * second / max(first, 1e-6), 1, 2)))


def matched_border(made: Floats, source: Image, mask: Floats) -> Floats:
    """A texture whose skin and border have the source's colours, the border's difference fading smoothly inwards.

    Args:
        made: float32 [R,R,3] in [0,1].
        source: uint8 [R,R,3].
        mask: [R,R], what will be replaced.

    What lies there and differs both from the face beside it and more than light would, such as hair, a hat or a hand,
    counts little.
    """
    import cv2

    half = (len(mask) + 1) // 2  # what fades smoothly needs no more pixels

    def reduced(image: Any) -> Any:
        return cv2.resize(image, (half, half), interpolation=cv2.INTER_AREA)

    small = reduced(mask)
    difference = reduced(source.astype(np.float32) / 255 - made)
    skin = small >= 0.85
    cast = np.clip(np.median(difference[skin], axis=0), -0.25, 0.25) if skin.any() else np.zeros(3, np.float32)
    difference -= cast
    ring = ((small > 0.02) & (small < 0.85)).astype(np.float32)
    usual = np.median(difference[ring > 0], axis=0) if ring.any() else np.zeros(3, np.float32)
    odd = np.abs(difference - usual).max(2) / 0.08
    inside = skin.astype(np.float32)
    colours = reduced(source.astype(np.float32) / 255)
    near = [cv2.GaussianBlur(one, (0, 0), 0.2 * half) for one in (colours * inside[..., None], inside)]
    foreign = np.abs(colours - near[0] / np.maximum(near[1], 1e-6)[..., None]).max(2) / 0.12
    ring *= np.exp(-np.square(np.minimum(odd, foreign)))  # skin goes on beyond the border, or differs as light does
    known = np.dstack([difference * ring[..., None], ring])
    total = np.zeros_like(known)
    for share, trust in ((0.04, 1.0), (0.1, 0.1), (0.25, 0.005)):  # near the border the nearest pixels decide
        total += np.float32(trust) * cv2.GaussianBlur(known, (0, 0), share * half)
    fade = np.clip(total[..., :3] / np.maximum(total[..., 3:], 1e-6), -0.25, 0.25)
    # The middle has the source's colours by now: a border of another brightness must not bleach or darken it.
    depth = cv2.distanceTransform(inside.astype(np.uint8), cv2.DIST_L2, 3)[..., None]
    fade = cast + fade * (KEPT + (1 - KEPT) * np.exp(-depth / np.float32(0.12 * half)))
    return made + cv2.resize(fade, mask.shape[::-1], interpolation=cv2.INTER_LINEAR)


def hair_over(source: Image, expected: Floats, mask: Floats, brow: int) -> Floats:
    """How much of the forehead is hair or a hat, which stays as it is: float32 [R,R] in [0,1].

    Hair that lies on the forehead goes on above it. So only what reaches the upper edge of the mask counts.

    Args:
        source: uint8 [R,R,3].
        expected: float32 [R,R,3] in [0,1], an average face in the light of the source.
        mask: float32 [R,R], what will be replaced.
        brow: row of the frame above which this is looked for.
    """
    import cv2

    rows = np.arange(len(mask), dtype=np.float32)[:, None]
    high = np.clip((brow - rows) / (0.015 * len(mask)), 0, 1)
    other = np.abs(cv2.GaussianBlur(source, (0, 0), 0.7).astype(np.float32) / 255 - expected).max(2) / HAIR
    found = (np.clip(2 * other - 1.5, 0, 1) * high * (mask > 0.02)).astype(np.float32)
    count, label = cv2.connectedComponents((found > 0.3).astype(np.uint8))
    edge = (mask > 0.02) & (mask < 0.5) & (high > 0)
    reaches = np.zeros(count, bool)
    reaches[np.unique(label[edge])] = True
    reaches[0] = False
    found *= cv2.dilate(reaches[label].astype(np.float32), np.ones((3, 3), np.uint8))
    out: Any = cv2.GaussianBlur(found, (0, 0), 1.0)
    return out


@dataclass(frozen=True)
class EyeConfig:
    """How eyes are drawn. Lengths of the face are in widths of the eye, those of the iris in its radii.

    Args:
        radius: of the iris; the mean of 13,445 FairFace crops, of which most lie within .02.
        ahead: how far the irises are outside of the middle of the eyes when they look ahead; from the same crops.
        most: farthest that the irises are moved.
        white: luminance of the white, of what the texture has beside the iris: 1.06 in synthetic faces, 1.09 in photos.
        iris, contrast: the iris is `iris`·(the texture's iris ÷ its eye)^`contrast` of the white. In 521 photos that
            follows the real one with r = .7 to .8; pixels as small as the frame's blur it, so it is drawn darker.
        pupil: luminance of the pupil, of the iris.
        tint: RGB of the iris, of the eye's.
        pupil_radius: of the pupil.
        rim: how much darker the iris is at its rim.
        shadow, shadow_depth: how much darker the white is at the lids, and to which depth.
        glint, glint_radius, glint_at: share of white in the reflection of a lamp, its size and its place.
    """

    radius: float = 0.217
    ahead: float = 0.04
    most: float = 0.2
    white: float = 1.1
    iris: float = 0.5
    contrast: float = 1.35
    pupil: float = 0.25
    tint: tuple[float, float, float] = (1.04, 0.99, 0.96)
    pupil_radius: float = 0.42
    rim: float = 0.45
    shadow: float = 0.28
    shadow_depth: float = 0.09
    glint: float = 0.6
    glint_radius: float = 0.15
    glint_at: tuple[float, float] = (-0.25, -0.35)


@dataclass(frozen=True, eq=False)
class _Eye:
    """Where an eye is: its middle between the corners, a unit vector across and one down, its width, its lids."""

    middle: NDArray[np.float64]
    across: NDArray[np.float64]
    down: NDArray[np.float64]
    width: float
    lids: NDArray[np.float64]

    @classmethod
    def of(cls, points: NDArray[Any], contour: NDArray[np.int64]) -> _Eye:
        """From the mesh [≥468,≥2] and the closed contour that begins in the left corner."""
        left, upper, right, lower = np.asarray(points, np.float64)[contour[[0, 4, 8, 12]], :2]
        width = max(float(np.linalg.norm(right - left)), 1e-6)
        across = (right - left) / width
        return cls((left + right) / 2, across, np.array([-across[1], across[0]]), width, (upper + lower) / 2)


def read_gaze(points: NDArray[Any], config: EyeConfig | None = None) -> Floats:
    """Where a face looks: how far its irises are to the right of and below where they are when it looks ahead.

    Args:
        points: [478,≥2] of the mesh, photo pixels.
        config: numbers.

    Returns:
        float32 [2] in widths of the eye, the mean of both eyes; 0 for a mesh without irises.
    """
    config, found = config or EyeConfig(), []
    if len(points) == MESH_POINTS:
        return np.zeros(2, np.float32)
    for contour, iris, side in ((LEFT_EYE, LEFT_IRIS, -1), (RIGHT_EYE, RIGHT_IRIS, 1)):
        eye, at = _Eye.of(points, contour), np.asarray(points[iris[0], :2], np.float64)
        sideways = (at - eye.middle) @ eye.across / eye.width - side * config.ahead
        found.append((sideways, (at - eye.lids) @ eye.down / eye.width))
    return np.clip(np.mean(found, axis=0), -config.most, config.most).astype(np.float32)


def with_eyes(
    texture: Floats, points: NDArray[Any], gaze: Floats, yaw: float, front: Floats, warp: Warp,
    config: EyeConfig | None = None,
) -> Floats:  # fmt: skip
    """A texture whose eyes look somewhere. The mean of people who look elsewhere has grey and blurred irises.

    Light and colour are those of the texture's own eyes; shape and size of an iris are everybody's.

    Args:
        texture: float32 [R,R,3] in [0,1], or of twice the size.
        points: [468,3] of the published mesh, upright units.
        gaze: float32 [2] of `read_gaze`.
        yaw: of the head, radians.
        front: [468,2], where the mesh's points lie in the frame.
        warp: of the frame.
        config: numbers.
    """
    config, out = config or EyeConfig(), texture.copy()
    finer = len(texture) // warp.size
    step = warp.step * (warp.size - 1) / (len(texture) - 1)  # frame units a pixel
    places = np.dstack([stretched(one, finer) for one in np.moveaxis(warp.to_upright(points[None])[0], 2, 0)])
    drawn, darkness = [], []
    for contour, side in ((LEFT_EYE, -1), (RIGHT_EYE, 1)):
        eye, outline = _Eye.of(points, contour), (front[contour] - LO) / step
        (x0, y0), (x1, y1) = np.floor(outline.min(0)).astype(int) - 2, np.ceil(outline.max(0)).astype(int) + 3
        window = np.s_[y0:y1, x0:x1]
        old, place = texture[window], places[window]
        inside, depth = _opening(outline - (x0, y0), (y1 - y0, x1 - x0))
        depth *= float(step[0]) / float(np.ptp(front[contour, 0]))
        share = (inside * _smooth(depth, 0.01, 0.05))[..., None]  # the line of the lashes stays
        ahead = eye.middle + side * config.ahead * eye.width * eye.across
        ahead = ahead + ((eye.lids - ahead) @ eye.down) * eye.down
        width = eye.width * config.radius
        height = width / max(math.cos(yaw), 0.7)  # a turned eye is narrow, not low
        dx, dy = (place - ahead) @ eye.across / width, (place - ahead) @ eye.down / height
        usual = np.hypot(dx, dy)[..., None]
        mean, beside, within = (_mean(old, share * part) for part in (1, usual > 1.25, usual < 0.85))
        darkness.append(min(float(within.mean() / mean.mean()), 1.0))
        dx, dy = dx - gaze[0] * eye.width / width, dy - gaze[1] * eye.width / height
        corner = np.abs((place - eye.middle) @ eye.across) / eye.width * 2
        shadow = config.shadow * (1 - _smooth(depth, 0, config.shadow_depth)) + 0.18 * _smooth(corner, 0.5, 1)
        drawn.append((window, share, config.white * beside, shadow, mean / mean.mean(), dx, dy, step.mean() / width))
    iris = config.iris * np.mean(darkness) ** config.contrast  # both eyes have one colour
    for window, share, white, shadow, colour, dx, dy, pixel in drawn:
        rho, soft = np.hypot(dx, dy), max(0.12, 0.6 * pixel)
        fibres = (1 + 0.25 * _smooth(rho, 0.35, 0.8)) * (1 - config.rim * _smooth(rho, 0.7, 1))
        fibres *= 1 + 0.25 * np.clip(dy, -1, 1)  # light comes from above, and leaves the eye below
        fibres *= 1 - (1 - config.pupil) * (1 - _smooth(rho, config.pupil_radius - soft, config.pupil_radius + soft))
        disc = (1 - _smooth(rho, 1 - soft, 1 + soft))[..., None]
        new = white * (1 - shadow)[..., None]
        new += disc * (iris * white.mean() * np.array(config.tint) * colour * fibres[..., None] - new)
        apart = np.square(dx - config.glint_at[0]) + np.square(dy - config.glint_at[1])
        glint = config.glint * np.exp(-apart / (2 * max(config.glint_radius, 0.45 * pixel) ** 2))
        new += glint[..., None] * (1.3 * white - new)
        out[window] += (share * (new - out[window])).astype(np.float32)
    return out


def _mean(image: Floats, weight: Floats) -> Floats:
    """Mean colour [3] under a weight [h,w,1], at least a little bright."""
    out: Floats = (image * weight).sum((0, 1)) / max(float(weight.sum()), 1e-6)
    return np.maximum(out, 0.02)


def _opening(outline: NDArray[Any], shape: tuple[int, int]) -> tuple[Floats, Floats]:
    """How much of each pixel [h,w] lies inside a polygon, and how many pixels deep."""
    import cv2

    finer = 8
    mask = np.zeros((finer * shape[0], finer * shape[1]), np.uint8)
    cv2.fillPoly(mask, [np.rint(finer * (outline + 0.5) - 0.5).astype(np.int32)], 1)
    depth = cv2.distanceTransform(mask, cv2.DIST_L2, 5) / finer
    whole = cv2.resize(np.dstack([mask.astype(np.float32), depth]), shape[::-1], interpolation=cv2.INTER_AREA)
    return whole[..., 0], whole[..., 1]


def _smooth(x: NDArray[Any], low: float, high: float) -> NDArray[Any]:
    """0 below low, 1 above high, a cubic between them."""
    t = np.clip((x - low) / (high - low), 0, 1)
    out: NDArray[Any] = t * t * (3 - 2 * t)
    return out


def sharpened(texture: Floats, gains: Sequence[float]) -> Floats:
    """A texture [R,R,3] whose bands of fine detail are raised: an average of faces has less of them than a face.

    Args:
        texture: float32.
        gains: of the bands between blurs of standard deviation 0, .7, 1.4, 2.8, … pixels, the finest first.
    """
    import cv2

    out, finer = texture.copy(), texture
    for number, gain in enumerate(gains):
        coarser = cv2.GaussianBlur(texture, (0, 0), 0.7 * 2**number)
        out += np.float32(gain - 1) * (finer - coarser)
        finer = coarser
    return out


def fine_detail(texture: Image, pixels: NDArray[np.int64]) -> Floats:
    """Luminance in [0,1], at flat indices [P], that only a texture [2R,2R,3] of twice the frame's size shows."""
    import cv2

    grey = texture.astype(np.float32) @ _GREY / 255
    out: Any = (grey - cv2.GaussianBlur(grey, (0, 0), FINE)).ravel()[pixels]
    return out


def detail_of(texture: Floats, mask: Floats) -> float:
    """Standard deviation of the fine detail of a texture [R,R,3] in [0,1] under a mask."""
    import cv2

    grey = texture @ _GREY
    fine = grey - cv2.GaussianBlur(grey, (0, 0), 1.2)
    return float(np.sqrt(np.average(np.square(fine), weights=mask)))


def no_sharper(texture: Floats, mask: Floats, detail: float) -> Floats:
    """A texture blurred until its fine detail under the mask is at most `detail`, as a blurred photo wants it."""
    import cv2

    sharper, more = texture, detail_of(texture, mask)
    for sigma in (0.5, 0.8, 1.2, 1.8, 2.6, 4.0):
        if more <= detail:
            break
        blurred = cv2.GaussianBlur(texture, (0, 0), sigma)
        if (less := detail_of(blurred, mask)) <= detail:  # between the two, or the face of a film would flicker
            return blurred + np.float32((detail - less) / max(more - less, 1e-9)) * (sharper - blurred)
        sharper, more = blurred, less
    return sharper


def paste_texture(
    photo: Image, upright: NDArray[np.float64], points: NDArray[np.float64], texture: Floats, mask: Floats, warp: Warp,
    look: Look | None = None, *, seed: int = 0,
) -> Paste:  # fmt: skip
    """Lay a texture of the frame onto a photo.

    Args:
        photo: uint8 [H,W,3] RGB; not changed.
        upright: float64 [2,3], photo → upright units.
        points: [468,3] of the published mesh, upright units.
        texture: float32 [R,R,3] in [0,1], or one of several times the size.
        mask: float32 [R,R], weight of the texture.
        warp: of the frame.
        look: grain to add; None: none.
        seed: of the grain.
    """
    import cv2

    back = invert(upright)
    outline = transform_points(back, points[FACE_OVAL, :2])
    margin = 0.06 * float(np.ptp(outline, axis=0).max()) + 2
    low, high = np.floor(outline.min(0) - margin), np.ceil(outline.max(0) + margin) + 1
    x0, y0 = (int(v) for v in np.clip(low, 0, photo.shape[1::-1]))
    x1, y1 = (int(v) for v in np.clip(high, 0, photo.shape[1::-1]))
    if x1 <= x0 or y1 <= y0:
        return nothing(photo)
    width, height = x1 - x0, y1 - y0
    cells = min(_COARSE, max(width, height))
    columns, rows = (max(2, math.ceil(side * cells / max(width, height))) for side in (width, height))
    x, y = np.meshgrid(np.linspace(x0, x1 - 1, columns), np.linspace(y0, y1 - 1, rows))
    wanted = transform_points(upright, np.stack([x, y], -1)).astype(np.float32)
    there = warp.to_upright(points[None])[0]
    at, found = warp.to_frame(there, wanted, warp.depth(points))
    found = cv2.GaussianBlur(found, (0, 0), 0.7)  # the far edge of a turned face is soft, not stairs of the grid
    # Corners of the coarse grid are corners of the patch, so the fine grid is a plain interpolation between them.
    fx = np.linspace(0, columns - 1, width, dtype=np.float32)
    fy = np.linspace(0, rows - 1, height, dtype=np.float32)
    packed = np.dstack([at, found])
    scale = np.float32((len(texture) - 1) / (warp.size - 1))
    grain = None if look is None or look.grain <= 0.002 else _grain((height, width), look, seed)
    pixels, weight = np.empty((height, width, 3), np.uint8), np.empty((height, width), np.float32)
    step = max(1, _AT_ONCE // width)
    for first in range(0, height, step):  # a large face in strips, or its maps take hundreds of megabytes
        strip = slice(first, first + step)
        fine: Any = cv2.remap(packed, *np.meshgrid(fx, fy[strip]), cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        u, v, sure = (np.ascontiguousarray(fine[..., i]) for i in range(3))
        new: Any = cv2.remap(texture, scale * u, scale * v, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        share: Any = cv2.remap(mask, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
        share *= np.clip(2 * sure - 1, 0, 1)
        share[share < 1 / 255] = 0
        if grain is not None:
            new += grain[strip, :, None]
        pixels[strip], weight[strip] = np.rint(np.clip(new, 0, 1) * 255), share
    return mix(photo, x0, y0, pixels, weight)


def _noise(grey: Floats) -> float:
    """Standard deviation of white noise in a picture [h,w], by the median of a second difference."""
    import cv2

    kernel = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32) / 6
    return float(np.median(np.abs(cv2.filter2D(grey, -1, kernel)))) / 0.6745


def _grain(shape: tuple[int, int], look: Look, seed: int) -> Floats:
    import cv2

    rng = np.random.default_rng(seed)
    noise = rng.standard_normal(shape, np.float32)
    if look.coarse > 1.1:
        noise = cv2.GaussianBlur(noise, (0, 0), 0.5 * look.coarse)
        noise /= float(noise.std()) + 1e-6
    return np.float32(min(look.grain, 0.03)) * noise

