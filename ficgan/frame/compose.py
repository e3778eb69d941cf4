"""From a photo into the frame, and from the frame back onto the photo."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import Image, blurred, brightest, carried, grey_of, luminance
from ficgan.faces.crops import MOVED, Paste, crop, invert, mix, nothing, transform_points
from ficgan.faces.mesh import FACE_OVAL
from ficgan.frame import Doubles, Floats, Warp
from ficgan.frame.colours import free_of_hair, shaded
from ficgan.frame.look import EYES, MOST_GRAIN, Look, chance_detail, grain_of, pore_noise, skin_windows

# Side of the grid on which the warp is inverted; it is smooth, so a larger patch only interpolates it.
_COARSE = 96
# Share of a patch over which the far edge of a turned face fades.
_FADE = 0.04
# Half of the widest gap that is filled, cells of the grid.
_GAP = 5
# Step between neighbours' places in the frame, of the median one, from which on there is a fold between them.
_TORN = 6.0
# Units around a face over which its surroundings move with the outline; cells of the grid on which that is computed.
_REACH, _CELLS = 24.0, 32
# Widest line that is taken from the surroundings, units, and least contrast of one, grey levels.
_LINES, _SEEN = 3.0, 12
# Blur that averages over a pixel of the photo, of its size in pixels of the texture.
_AVERAGED = 0.2
# Pixels of the source beside the edge of a photo, of those that are there now, at least.
_STRETCHED = 0.4
# Units by which points of the outline reach along it.
_ALONG = 6.0
# Pixels of a patch that are computed at once.
_AT_ONCE = 1 << 18
# Side of the upright picture in which a forehead is looked for, one pixel a unit, and where upright (0, 0) lies.
HEAD_SIDE, HEAD_SHIFT = 144, (8.0, 58.0)
# Mesh points at the top of the brows, and on cheeks that glasses and beards leave free.
_BROWS, _CHEEKS = (105, 334), (50, 280, 101, 330)
# How far skin may be from the cheeks' colour at the same brightness, and how dark and how bright it may be, of theirs.
_HUE, _LIT = 0.05, (0.5, 1.9)
# Difference in [0,1] from the forehead nearby beyond which it is no skin any more.
_NEAR = 0.11
# Units below the mask's upper edge over which it gives way to the new face's own forehead.
_RAMP = 10.0
# Blur of the forehead's skin, units: wrinkles go, shine stays.
_SMOOTH = 4.5
# Light of a temple, as a share of that skin's: up to the first it is hair, from the second to the third it lies in
# shade, from the last on it is lit.
_SHADE = (0.25, 0.35, 0.8, 0.93)
# Share of the forehead under the mask that must be skin: else a fringe or a hat lies on it.
_LEAST = 0.2
# Detail of a drawn forehead: standard deviations of the blurs between which it lies, units; pixels a unit; strength, of
# the skin's: made by chance it shows more than lines and pores do.
_PORES, _FINER, _STIPPLED = (0.35, 1.0), 4, 0.7
# Most pores that are added, of the light.
_MOST_PORES = 0.03


def read_texture(
    photo: Image, upright: Doubles, points: Doubles, warp: Warp, *, finer: int = 1, grid: Floats | None = None
) -> Image:
    """A face of a photo in the frame, uint8 [finer·R,finer·R,3]; what a turned head hides is the mirrored other side.

    Args:
        upright: float64 [2,3], photo → upright units.
        points: [468,3] the mesh in upright units.
        finer: samples per pixel of the frame's grid, in each direction.
        grid: [R,R,2] of `warp.to_upright`, where it is known already.
    """
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
    found = cv2.remap(
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
    if finer == 1:
        return field
    at = np.linspace(0, len(field) - 1, finer * len(field), dtype=np.float32)
    x, y = np.meshgrid(at, at)
    return cv2.remap(field, x, y, cv2.INTER_CUBIC if field.ndim == 3 and field.shape[2] == 3 else cv2.INTER_LINEAR)


def _extent(field: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The least and the greatest x and y of a field [R,R,2]."""
    channels = field[..., 0], field[..., 1]  # one by one: a reduction over pairs is ten times as slow
    return np.array([channel.min() for channel in channels]), np.array([channel.max() for channel in channels])


def paste_texture(
    photo: Image,
    upright: Doubles,
    points: Doubles,
    texture: Floats,
    mask: Floats,
    warp: Warp,
    look: Look | None = None,
    *,
    seed: int = 0,
    grid: Floats | None = None,
    forehead: Forehead | None = None,
    hair: Floats | float = 0.0,
    pores: Floats | None = None,
    source: Doubles | None = None,
    rims: Sequence[Doubles] = (),
) -> Paste:
    """Lay a texture of the frame, float32 [R,R,3] in [0,1] or of several times the size, onto a photo.

    Args:
        points: [468,3] of the published mesh, upright units.
        mask: float32 [R,R], weight of the texture.
        source: [468,≥2] the source's mesh, upright units: its surroundings move with the outline, so that no rim of the
            source stays beside a slimmer face, and a wider one is no halo. None: they stay.
        rims: outlines [n,2] in upright units within which lines go from the surroundings.
        look, seed: grain to add, None: none; and its seed.
        forehead: skin above the mask that is laid on, too; but not where [R,R] there is `hair` that stays.
        pores: float32 [n,n], a pattern in the frame that is added until skin is as fine as `look` says.
    """
    x0, y0, x1, y1 = _patch(photo, upright, points, forehead)
    if x1 <= x0 or y1 <= y0:
        return nothing(photo)
    width, height = x1 - x0, y1 - y0
    cells = min(_COARSE, max(width, height))
    columns, rows = (max(2, math.ceil(side * cells / max(width, height))) for side in (width, height))
    x, y = np.meshgrid(np.linspace(x0, x1 - 1, columns), np.linspace(y0, y1 - 1, rows))
    wanted = transform_points(upright, np.stack([x, y], -1)).astype(np.float32)
    there = warp.to_upright(points[None])[0] if grid is None else grid
    at, found = warp.to_frame(there, wanted, points)
    at, found = _without_gaps(at, found, mask)
    # Pixels of the texture a pixel of the photo: those of a small face are averaged, or fine detail would alias.
    finer = len(texture) / warp.size * math.sqrt(abs(np.linalg.det(upright[:, :2]))) / float(warp.step.mean())
    if finer > 1:
        texture = blurred(texture, _AVERAGED * math.sqrt(finer**2 - 1))
    placed = _PlacedTexture(np.dstack([at, found]), (width, height), texture, warp.size, pores)
    grain = None if look is None or look.grain <= 0.002 else grain_of((height, width), look, seed)

    amount = 0.0
    if pores is not None and look is not None and look.pores:
        mesh = transform_points(invert(upright), points[:, :2]) - (x0, y0)
        amount = placed.pores_for(look, mesh, grain is not None)
    bare = free_of_hair(np.zeros_like(mask) + np.float32(hair))
    pixels, weight = np.empty((height, width, 3), np.uint8), np.empty((height, width), np.float32)
    step = max(1, _AT_ONCE // width)
    for first in range(0, height, step):  # a large face in strips, or its maps take hundreds of megabytes
        strip = slice(first, first + step)
        u, v, sure = placed.places(strip)
        new = placed.drawn(u, v, amount)
        share = cv2.remap(mask, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
        share *= sure
        share[share < 1 / 255] = 0
        if forehead is not None:
            free = cv2.remap(bare, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            fine = 0.0 if look is None else look.fine
            new, share = _with_forehead(new, share, free, forehead, x0, y0 + first, fine)
        if grain is not None:
            new += grain[strip, :, None]
        pixels[strip], weight[strip] = np.rint(np.clip(new, 0, 1) * 255), share
    if source is None:
        return mix(photo, x0, y0, pixels, weight)
    around = _surroundings(photo, upright, source, points, (x0, y0, x1, y1), rims)
    mix(around.pixels, x0 - around.x0, y0 - around.y0, pixels, weight).onto(around.pixels, around.weight)
    return around


class _PlacedTexture:
    """A texture and a pattern of pores [n,n] of the frame of R=`side` pixels, as they lie in a patch of a photo.

    `at` [rows,columns,3] is where a coarse grid over the patch lies in the frame, and how much of the face is there.
    """

    def __init__(self, at: Floats, size: tuple[int, int], texture: Floats, side: int, pores: Floats | None) -> None:
        self._at, self._size, self._texture, self._side, self._pores = at, size, texture, side, pores
        # Corners of the coarse grid are corners of the patch, so the fine grid is a plain interpolation between them.
        rows, columns = at.shape[:2]
        self._x = np.linspace(0, columns - 1, size[0], dtype=np.float32)
        self._y = np.linspace(0, rows - 1, size[1], dtype=np.float32)

    def places(self, rows: slice, columns: slice = np.s_[:]) -> tuple[Floats, Floats, Floats]:
        """Of pixels of the patch: x and y in the frame, and how much of the face is there."""
        grid = np.meshgrid(self._x[columns], self._y[rows])
        fine = cv2.remap(self._at, *grid, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        u, v, sure = (np.ascontiguousarray(fine[..., i]) for i in range(3))
        return u, v, sure

    def drawn(self, u: Floats, v: Floats, amount: float = 0.0) -> Floats:
        """Colours of the texture at places of the frame, with an amount of pores."""
        scale = np.float32((len(self._texture) - 1) / (self._side - 1))
        new = cv2.remap(self._texture, scale * u, scale * v, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
        new = _without_tears(new, u, v)
        return shaded(new, np.float32(amount) * self._pattern(u, v)) if amount else new

    def _pattern(self, u: Floats, v: Floats) -> Floats:
        assert self._pores is not None
        scale = np.float32((len(self._pores) - 1) / (self._side - 1))
        return cv2.remap(self._pores, scale * u, scale * v, cv2.INTER_LINEAR)

    def pores_for(self, look: Look, mesh: NDArray[Any], grain: bool) -> float:
        """The amount with which skin is as fine as a look says; mesh [468,2] in pixels of the patch."""
        levels = []
        for window in skin_windows(mesh, self._size):
            u, v, _ = self.places(*window)
            grey = luminance(self.drawn(u, v))
            levels.append((pore_noise(grey), pore_noise(self._pattern(u, v)), float(np.median(grey))))
        if not levels:
            return 0.0
        own, pore, light = np.median(levels, 0)
        grown = min(look.grain, MOST_GRAIN) * look.coarse / 2 if grain else 0.0
        missing = math.sqrt(max(look.pores**2 - own**2 - grown**2, 0))
        # In huge faces the pattern is smooth at two pixels: no amount of it makes skin finer.
        return min(missing / max(pore * light, 1e-6), _MOST_PORES)


def _without_gaps(at: Floats, found: Floats, mask: Floats) -> tuple[Floats, Floats]:
    """Places in the frame [h,w,2], also in the gaps beside a fold, as behind the nose of a turned face; and how much of
    the face is there [h,w], fading at its far edge, where the mask's own edge is narrower than a pixel.
    """
    known = (found > 0.5).astype(np.uint8)
    near = cv2.GaussianBlur(known.astype(np.float32), (0, 0), _GAP / 2)
    around = cv2.GaussianBlur(at * known[..., None], (0, 0), _GAP / 2)
    at = np.where(known[..., None] > 0, at, around / np.maximum(near, 1e-6)[..., None]).astype(np.float32)
    padded = cv2.copyMakeBorder(known, _GAP, _GAP, _GAP, _GAP, cv2.BORDER_REPLICATE)
    closed = cv2.morphologyEx(padded, cv2.MORPH_CLOSE, np.ones((3, 3), np.uint8), iterations=_GAP)
    closed = closed[_GAP:-_GAP, _GAP:-_GAP]
    share = cv2.remap(mask, at[..., 0], at[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_CONSTANT, borderValue=0)
    depth = cv2.distanceTransform((share > 0.05).astype(np.uint8) & closed, cv2.DIST_L2, 3)
    fade = max(_FADE * max(at.shape[:2]), 1.0)
    return at, cv2.GaussianBlur(np.clip(depth / fade, 0, 1), (0, 0), 0.7)


def _without_tears(colours: Floats, u: Floats, v: Floats) -> Floats:
    """Colours [h,w,3], blended across folds, where the places in the frame [h,w] jump."""
    steps = np.zeros(u.shape, np.float32)
    for place in (u, v):
        for axis in (0, 1):
            step = np.abs(np.diff(place, axis=axis, prepend=place.take([0], axis)))
            steps = np.maximum(steps, step)
    torn = (steps > _TORN * np.median(steps)).astype(np.uint8)
    if not torn.any():
        return colours
    width = float(cv2.distanceTransform(torn, cv2.DIST_L2, 3).max())
    share = cv2.GaussianBlur(cv2.dilate(torn, np.ones((3, 3), np.uint8)).astype(np.float32), (0, 0), 0.7)
    return colours + share[..., None] * (carried(colours, 1 - torn.astype(np.float32), width) - colours)


def _patch(photo: Image, upright: Doubles, points: Doubles, forehead: Forehead | None) -> tuple[int, int, int, int]:
    """x0, y0, x1, y1 of the part of a photo that a face and its forehead cover."""
    outline = transform_points(invert(upright), points[FACE_OVAL, :2])
    if forehead is not None and forehead.weight.any():
        at_rows, at_columns = np.nonzero(forehead.weight)
        corners = [[x, y] for x in (at_columns.min(), at_columns.max()) for y in (at_rows.min(), at_rows.max())]
        outline = np.concatenate([outline, transform_points(invert(forehead.matrix), corners)])
    margin = 0.06 * float(np.ptp(outline, axis=0).max()) + 2
    low, high = np.floor(outline.min(0) - margin), np.ceil(outline.max(0) + margin) + 1
    x0, y0 = (int(v) for v in np.clip(low, 0, photo.shape[1::-1]))
    x1, y1 = (int(v) for v in np.clip(high, 0, photo.shape[1::-1]))
    return x0, y0, x1, y1


def _surroundings(
    photo: Image,
    upright: Doubles,
    source: Doubles,
    points: Doubles,
    patch: tuple[int, int, int, int],
    rims: Sequence[Doubles],
) -> Paste:
    """The photo around a face, and its patch x0, y0, x1, y1, moved as the outline moves to the published mesh.

    Of `paste_texture`'s `rims` no lines are left.
    """
    back = invert(upright)
    unit = math.sqrt(abs(np.linalg.det(back[:, :2])))
    # The silhouette: of a turned head the cheek, and not the outline of the face, ends its far side.
    hull = cv2.convexHull(points[:, :2].astype(np.float32), returnPoints=False)
    old, new = (_dense(mesh[hull[:, 0], :2]) for mesh in (source, points))
    place = transform_points(back, new)
    low, high = np.floor(place.min(0) - _REACH * unit), np.ceil(place.max(0) + _REACH * unit) + 1
    x0, y0 = (int(v) for v in np.minimum(patch[:2], np.clip(low, 0, photo.shape[1::-1])))
    x1, y1 = (int(v) for v in np.maximum(patch[2:], np.clip(high, 0, photo.shape[1::-1])))
    width, height = x1 - x0, y1 - y0
    x, y = np.meshgrid(np.linspace(x0, x1 - 1, _CELLS), np.linspace(y0, y1 - 1, _CELLS))
    at = transform_points(upright, np.stack([x, y], -1))
    apart = np.square(at[..., :1] - new[:, 0]) + np.square(at[..., 1:] - new[:, 1])
    nearest = apart.min(-1, keepdims=True)
    share = np.exp(((nearest - apart) / _ALONG**2).astype(np.float32))
    move = share @ (old - new) / share.sum(-1, keepdims=True)
    far = np.clip(1 - np.sqrt(nearest[..., 0]) / _REACH, 0, 1)
    brows, eyes = (float(source[list(marks), 1].mean()) for marks in (_BROWS, EYES))
    lower = np.clip((at[..., 1] - brows) / max(eyes - brows, 1.0), 0, 1)  # the forehead and its hair stay
    move *= (far * far * (3 - 2 * far) * lower)[..., None]
    length = np.linalg.norm(move, axis=-1, keepdims=True)
    move *= np.minimum(1, _REACH / 3 / np.maximum(length, 1e-9))  # nothing folds
    field = cv2.resize((move @ back[:, :2].T).astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    some = (length[..., 0] > 0).astype(np.float32)
    changed: Any = np.ceil(cv2.resize(some, (width, height), interpolation=cv2.INTER_LINEAR))
    for axis, (places, first, last) in enumerate(
        ((np.arange(width), x0, photo.shape[1] - 1), (np.arange(height)[:, None], y0, photo.shape[0] - 1))
    ):  # beyond the edge of the photo nothing is known: what is left before it is stretched
        least, most = (np.float32(_STRETCHED) * (places + first - end) + (end - first) for end in (0, last))
        field[..., axis] = np.clip(field[..., axis] + places, least, most)
    region = np.ascontiguousarray(photo[y0:y1, x0:x1])
    plain, erased = _without_lines(region, [transform_points(back, rim) - (x0, y0) for rim in rims], _LINES * unit)
    changed = np.maximum(changed, erased)
    moved = cv2.remap(plain, field, None, cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return Paste(photo, x0, y0, cv2.blendLinear(moved, region, changed, 1 - changed), np.float32(MOVED) * changed)


def _without_lines(region: Image, outlines: Sequence[Doubles], width: float) -> tuple[Image, Floats]:
    """A picture [h,w,3] without lines, up to a width, within outlines [n,2]; and 1 where it changed."""
    erased = np.zeros(region.shape[:2], np.uint8)
    if not outlines:
        return region, erased.astype(np.float32)
    cv2.fillPoly(erased, [np.rint(outline).astype(np.int32) for outline in outlines], 1)
    side = 2 * math.ceil(width / 2) + 1
    x, y, w, h = cv2.boundingRect(erased)
    near = np.s_[max(y - 3 * side, 0) : y + h + 3 * side, max(x - 3 * side, 0) : x + w + 3 * side]
    grey, square = cv2.cvtColor(region[near], cv2.COLOR_RGB2GRAY), np.ones((side, side), np.uint8)
    thin = np.maximum(*(cv2.morphologyEx(grey, how, square) for how in (cv2.MORPH_BLACKHAT, cv2.MORPH_TOPHAT)))
    lines = cv2.dilate((thin > _SEEN).astype(np.uint8) & erased[near], square[: side // 2 + 1, : side // 2 + 1])
    share = np.zeros(erased.shape, np.float32)
    share[near] = cv2.GaussianBlur(lines.astype(np.float32), (0, 0), max(width / 6, 0.5))
    plain = region.copy()
    plain[near] = cv2.medianBlur(region[near], 2 * side + 1)
    return cv2.blendLinear(plain, region, share, 1 - share), np.ceil(share)


def _dense(outline: Doubles) -> Doubles:
    """A closed line [n,2] with a point between each two: [2n,2]."""
    steps = np.arange(0, 1, 0.5)[None, :, None]
    return (outline[:, None] * (1 - steps) + np.roll(outline, -1, 0)[:, None] * steps).reshape(-1, 2)


def _with_forehead(
    new: Floats, share: Floats, free: Floats, forehead: Forehead, x0: int, y0: int, fine: float
) -> tuple[Floats, Floats]:
    """Colours [h,w,3] and weights [h,w] of a strip that begins at (x0, y0), with the forehead where it is `free`."""
    matrix = forehead.matrix.copy()
    matrix[:, 2] += matrix[:, :2] @ (x0, y0)
    skin = cv2.warpAffine(forehead.fill, invert(matrix), share.shape[::-1], borderMode=cv2.BORDER_REPLICATE)
    above: Any = free * cv2.warpAffine(forehead.weight, invert(matrix), share.shape[::-1])
    if fine:
        fine_matrix = _FINER * matrix
        fine_matrix[:, 2] += (_FINER - 1) / 2
        pattern = chance_detail(_FINER * HEAD_SIDE, _FINER * _PORES[0], _FINER * _PORES[1])
        pores = cv2.warpAffine(pattern, invert(fine_matrix), share.shape[::-1])
        skin += (_STIPPLED * fine * pores / np.maximum(luminance(skin), 0.05))[..., None] * skin
    total = share + above * (1 - share)
    total[total < 1 / 255] = 0
    part = (above / np.maximum(total, 1e-6))[..., None]  # all of it beside the face, and as far as it fades in under it
    return new + part * (skin - new), total


@dataclass(frozen=True, eq=False)
class Forehead:
    """Skin above the mask, in a picture of the head brought upright by `matrix` [2,3].

    `fill` [S,S,3] in [0,1] is the skin without what is anybody's: smooth, in the light of the source. `weight` [S,S]
    fades out under the mask's upper edge.
    """

    matrix: Doubles
    fill: Floats
    weight: Floats

    def at(self, upright: Doubles) -> Forehead:
        """The same skin on a head that stands elsewhere, by its matrix photo → upright."""
        return replace(self, matrix=_head_matrix(upright))


def _head_matrix(upright: Doubles) -> Doubles:
    return np.column_stack([upright[:, :2], upright[:, 2] + HEAD_SHIFT])


def read_forehead(photo: Image, upright: Doubles, points: Doubles) -> Forehead:
    """The bare forehead of a face, arguments as of `read_texture`; 0 where hair or a hat begins at the mask."""
    matrix = _head_matrix(upright)
    image = crop(photo, matrix, HEAD_SIDE)
    mesh = points[:, :2] + HEAD_SHIFT
    face = np.zeros((HEAD_SIDE, HEAD_SIDE), np.uint8)
    cv2.fillPoly(face, [np.rint(mesh[FACE_OVAL] * 16).astype(np.int32)], 1, shift=4)
    (x0, y0), (x1, y1) = mesh[list(_BROWS)]
    columns, rows = np.meshgrid(np.arange(HEAD_SIDE), np.arange(HEAD_SIDE))
    above = rows < y0 + (y1 - y0) / max(x1 - x0, 1.0) * (columns - x0) - 3
    oval = mesh[FACE_OVAL]
    temples = np.append(oval[oval[:, 1] < (y0 + y1) / 2, 0], (x0 + x1) / 2)
    between = (columns > temples.min() + 1) & (columns < temples.max() - 1)

    colours = cv2.GaussianBlur(image, (0, 0), 1.0).astype(np.float32) / np.float32(255)
    at = np.clip(np.rint(mesh[list(_CHEEKS)]).astype(int), 2, HEAD_SIDE - 3)
    cheek = np.median([colours[y - 2 : y + 3, x - 2 : x + 3].reshape(-1, 3).mean(0) for x, y in at], axis=0)
    grey = grey_of(colours)
    bright = grey / max(float(cheek.mean()), 0.02)
    hue = np.abs(colours / np.maximum(grey, 0.02)[..., None] - cheek / max(float(cheek.mean()), 0.02))
    skin = (brightest(hue) * cheek.mean() < _HUE) & (bright > _LIT[0]) & (bright < _LIT[1])
    zone = (face > 0) & above
    seeds = zone & skin
    if seeds.sum() < max(_LEAST * zone.sum(), 20):
        return Forehead(matrix, colours, np.zeros((HEAD_SIDE, HEAD_SIDE), np.float32))
    near = carried(colours, seeds.astype(np.float32), 20.0)
    like = skin & (brightest(np.abs(colours - near)) < _NEAR) & above & between
    count, label = cv2.connectedComponents((like | seeds).astype(np.uint8), connectivity=4)
    reached = np.zeros(count, bool)
    reached[np.unique(label[seeds])] = True
    reached[0] = False
    found = cv2.morphologyEx(reached[label].astype(np.uint8), cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    found = cv2.erode(found | zone.astype(np.uint8), np.ones((3, 3), np.uint8))
    inner = cv2.GaussianBlur(found.astype(np.float32), (0, 0), 1.2)
    known = (found > 0) & skin
    fill = carried(colours, known.astype(np.float32), _SMOOTH)
    depth = cv2.distanceTransform(face, cv2.DIST_L2, 3)
    ramp = np.clip(1 - depth / _RAMP, 0, 1) * np.clip((y0 + y1) / 2 - 3 - rows, 0, 6) / 6
    # On a temple in shade the skin of the forehead would be a light rim.
    light = grey / np.maximum(grey_of(fill), 0.02)
    shade = np.interp(light, _SHADE, (0, 1, 1, 0)) * ((columns < x0) | (columns > x1))
    weight = inner * ramp * between * (1 - cv2.GaussianBlur(shade, (0, 0), 1.2))
    return Forehead(matrix, fill, weight.astype(np.float32))


def steadied(foreheads: Sequence[Forehead], at: int) -> Forehead:
    """One of the foreheads of consecutive frames: the mean of all, in its place."""
    weights: Floats = np.stack([forehead.weight for forehead in foreheads])
    shares = np.expand_dims(weights + np.float32(1e-3), 3)  # colours count where they are skin
    sums: Floats = np.einsum("nhwo,nhwc->hwc", shares, np.stack([forehead.fill for forehead in foreheads]))
    weight: Floats = np.einsum("nhw->hw", weights) / np.float32(len(weights))
    return replace(foreheads[at], fill=sums / np.einsum("nhwo->hwo", shares), weight=weight)
