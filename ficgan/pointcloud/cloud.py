"""A point cloud in memory and in files, and what its points' neighbours tell: means, normals, outliers, samples."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from ficgan.errors import InputError, UsageError, reason
from ficgan.files import atomic_write, unreadable

Floats = NDArray[np.float64]
Points = Floats
Colors = NDArray[np.uint8]
Rows = NDArray[np.intp]

# Outliers: neighbours of a point, and deviations from the mean distance to them (thesis, algorithm 7).
OUTLIER_NEIGHBOURS, OUTLIER_RATIO = 50, 4.0
_CHUNK = 16384  # queries answered at a time, to bound memory
# Steps of farthest-point sampling that update every point; later only few points change, and a tree finds them.
_ALL_POINTS_STEPS = 200


@dataclass(frozen=True, eq=False)
class Cloud:
    """Points [N,3] float64 with colours [N,3] uint8 RGB where they are known.

    A cloud equals itself only, so that results can be remembered for it; its arrays are not to be changed.

    In the canonical frame (thesis, §3.2.2, §4.1.4.2) the unit is the metre, the nose tip is the origin, the face looks
    towards +x, +y is up and +z is the person's right.
    """

    points: Points
    colors: Colors | None = None

    def __post_init__(self) -> None:
        points = np.ascontiguousarray(self.points, np.float64)
        if points.ndim != 2 or points.shape[1] != 3:
            raise InputError(f"a cloud's points must be numbers [N,3], not {list(points.shape)}")
        if bad := int((~np.isfinite(points).all(axis=1)).sum()):
            raise InputError(f"{bad} of {len(points)} points have coordinates that are not finite; remove them")
        object.__setattr__(self, "points", points)
        if self.colors is not None:
            colors = np.asarray(self.colors)
            if colors.shape != points.shape or colors.dtype != np.uint8:
                raise InputError(f"colours are {colors.dtype} {list(colors.shape)}, not uint8 [{len(points)},3]")
            object.__setattr__(self, "colors", np.ascontiguousarray(colors))

    def __len__(self) -> int:
        return len(self.points)

    @property
    def columns(self) -> Floats:
        """Coordinates and, where they are known, colours: [N,3] or [N,6], of which means can be taken."""
        return self.points if self.colors is None else np.hstack([self.points, self.colors])

    @classmethod
    def of_columns(cls, columns: Floats) -> Cloud:
        """Of `columns`; colours are rounded to the nearest of 0…255, halves up."""
        colors = np.floor(columns[:, 3:] + 0.5).clip(0, 255).astype(np.uint8)
        return cls(columns[:, :3], colors if columns.shape[1] > 3 else None)

    def take(self, rows: NDArray[np.integer] | NDArray[np.bool_]) -> Cloud:
        """The points at `rows` (indices or a mask) in that order, with their colours."""
        return Cloud(self.points[rows], None if self.colors is None else self.colors[rows])

    def moved(self, transform: NDArray[np.floating]) -> Cloud:
        """The cloud after a rigid motion [4,4]."""
        return replace(self, points=moved(self.points, transform))

    def need(self, count: int, what: str) -> None:
        """Raise an InputError where the cloud has fewer points than `what` needs."""
        if len(self) < count:
            raise InputError(f"the cloud has {len(self)} points, and {what} needs at least {count}")


def merged(*clouds: Cloud) -> Cloud:
    """All points of one or more clouds, in order. Colours that one cloud lacks are dropped for all."""
    colors = [cloud.colors for cloud in clouds if cloud.colors is not None]
    points = np.concatenate([cloud.points for cloud in clouds])
    return Cloud(points, np.concatenate(colors) if len(colors) == len(clouds) else None)


def moved(points: Points, transform: NDArray[np.floating]) -> Points:
    """Points [...,3] after a rigid motion [4,4]."""
    return np.asarray(points @ transform[:3, :3].T + transform[:3, 3], np.float64)


def rigid(rotation: Floats, shift: Floats) -> Floats:
    """The motion [4,4] of a rotation [3,3] and a shift [3]."""
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = rotation, shift
    return matrix


# -- neighbours -------------------------------------------------------------------------------------------------------


def closest(points: Points, queries: Points) -> tuple[Floats, Rows]:
    """Of each query [M,3] the distance to the nearest point [N,3], and its row."""
    return cKDTree(points).query(queries)


def mean_of_neighbours(points: Points, values: Floats, k: int) -> Floats:
    """For each point [N,3], the mean of `values` [N,C] over its k nearest points, of which it is one."""
    mean = np.empty(values.shape)
    for part, _, rows in _neighbourhoods(points, k):
        starts = np.arange(0, rows.size + 1, k)
        mean[part] = csr_array((np.ones(rows.size), rows.ravel(), starts), shape=(len(part), len(points))) @ values / k
    return mean


def _neighbourhoods(points: Points, k: int) -> Iterator[tuple[Rows, Floats, Rows]]:
    """Some points [C], the distances to their k nearest points [C,k] and the rows of these [C,k], until all had it."""
    if k < 1:
        raise UsageError(f"the number of neighbours is {k}; it must be at least 1")
    if len(points) < k:
        raise InputError(f"the cloud has {len(points)} points, too few for {k} neighbours; give a denser cloud")
    tree = cKDTree(points)
    for start in range(0, len(points), _CHUNK):
        part = tree.indices[start : start + _CHUNK]  # points near each other are answered faster together
        yield part, *tree.query(points[part], np.arange(1, k + 1))


def pca_normals(points: Points, *, neighbours: int = 30) -> Floats:
    """Unit normals [N,3] by principal components of each point's neighbours (Rusu 2009, §4.3), none towards −x."""
    if len(points) < 3:
        raise InputError(f"normals need at least 3 points, and the cloud has {len(points)}")
    extent = np.linalg.svd(np.cov(points.T), compute_uv=False)
    if extent[1] <= 1e-14 * max(extent[0], np.finfo(float).tiny):
        raise InputError(f"all {len(points)} points are on one line, so they have no normals; give a surface")
    # Covariances from means of products. Offsets from the middle of the cloud, with neighbours that vary by a hundredth
    # of its size, lose four of sixteen digits.
    middle = points - points.mean(axis=0)
    products = (middle[:, :, None] * middle[:, None, :]).reshape(-1, 9)
    means = mean_of_neighbours(points, np.hstack([middle, products]), min(neighbours, len(points)))
    mean, second = means[:, :3], means[:, 3:]
    spread = second.reshape(-1, 3, 3) - mean[:, :, None] * mean[:, None, :]
    normals = np.asarray(np.linalg.eigh(spread)[1][:, :, 0], np.float64)
    return np.where(normals[:, :1] < 0, -normals, normals)


def without_outliers(cloud: Cloud) -> Cloud:
    """The cloud without outliers by mean neighbour distance (thesis, algorithm 7; as Open3D)."""
    mean = np.empty(len(cloud))
    for part, distances, _ in _neighbourhoods(cloud.points, OUTLIER_NEIGHBOURS):
        mean[part] = distances.mean(axis=1)
    return cloud.take(mean <= mean.mean() + OUTLIER_RATIO * mean.std(ddof=1) + np.spacing(mean.max()))


def farthest_point_sample(points: Points, count: int) -> Rows:
    """Indices of `count` points [N,3], the first one first, each the farthest from those before it (Gonzalez 1985)."""
    points = np.asarray(points, np.float64) - np.mean(points, axis=0)
    tree = cKDTree(points)
    squared = np.full(len(points), np.inf)
    chosen = np.empty(count, np.intp)
    newest = 0
    for step in range(count):
        chosen[step] = newest
        # A point changes only where the new one is nearer than those before, so within the largest distance left.
        rows: slice | list[int] = slice(None)
        if step >= _ALL_POINTS_STEPS:
            rows = tree.query_ball_point(points[newest], np.sqrt(squared[newest]) * (1 + 1e-9), return_sorted=False)
        squared[rows] = np.minimum(squared[rows], ((points[rows] - points[newest]) ** 2).sum(axis=1))
        squared[newest] = -1.0  # a duplicate of a chosen point may follow, the point itself may not
        newest = int(squared.argmax())
    return chosen


def without_duplicates(cloud: Cloud) -> tuple[Cloud, int]:
    """The cloud with each place once, and how many points were left out: of exactly equal ones the first stays."""
    first = np.sort(np.unique(cloud.points, axis=0, return_index=True)[1])
    return (cloud.take(first) if len(first) < len(cloud) else cloud), len(cloud) - len(first)


def voxels(columns: Floats, side: float, origin: Floats) -> tuple[Floats, Floats]:
    """Of columns [N,C], of which three are the points, the mean [V,C] in each occupied cube of a side, metres.

    Returns the cubes, too: how many sides [V,3] they lie from the origin, which is below all points.
    """
    cells = np.floor((columns[:, :3] - origin) / side)
    # Occupied planes are numbered: a stray point far away would need too many of all.
    planes, ranks = zip(*(np.unique(axis, return_inverse=True) for axis in cells.T), strict=True)
    shape = tuple(len(plane) for plane in planes)
    numbers, group, count = np.unique(np.ravel_multi_index(ranks, shape), return_inverse=True, return_counts=True)
    means = np.column_stack([np.bincount(group, values) for values in columns.T]) / count[:, None]
    cubes = [plane[at] for plane, at in zip(planes, np.unravel_index(numbers, shape), strict=True)]
    return np.column_stack(cubes), means


def blurred(depth: Floats, blur: float, least: float = 0.01) -> Floats:
    """A map [Y,Z], NaN where nothing is known, smoothed over `blur` cells; NaN where less than `least` is known."""
    known = np.isfinite(depth)
    weight = gaussian_filter(known.astype(float), blur)
    return np.where(weight > least, gaussian_filter(np.nan_to_num(depth), blur) / np.maximum(weight, 1e-9), np.nan)


def relief(cells: Rows, depths: Floats, shape: tuple[int, int], blur: float, least: float = 0.01) -> Floats:
    """The means of depths [N] that lie in cells [N,2] of a map, `blurred`."""
    flat = np.ravel_multi_index(tuple(cells.T), shape)
    count, total = (np.bincount(flat, of, shape[0] * shape[1]).reshape(shape) for of in (None, depths))
    return blurred(np.where(count > 0, total / np.maximum(count, 1), np.nan), blur, least)


def sample_surface(
    points: Points, triangles: NDArray[np.integer], count: int, rng: np.random.Generator
) -> tuple[NDArray[np.integer], Floats]:
    """Corners [count,3], rows of `points`, and weights [count,3] of points drawn uniformly on triangles [F,3]."""
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    upto = np.cumsum(np.linalg.norm(np.cross(b - a, c - a), axis=1))
    total = upto[-1] if upto[-1] > 0 else 1.0
    chosen = np.searchsorted(upto, rng.random(count) * total, side="right").clip(max=len(triangles) - 1)
    # The root makes equal areas equally likely: the triangle widens from its first corner in proportion.
    root, along = np.sqrt(rng.random(count)), rng.random(count)
    weights = np.stack([1 - root, root * (1 - along), root * along], axis=1)
    return triangles[chosen], weights


# -- files ------------------------------------------------------------------------------------------------------------

Numbers = NDArray[Any]
Fields = tuple[Numbers, Numbers | None]  # points [N,3] and colours [N,3] as numbers of any kind

MAX_POINTS, MAX_BYTES = 50_000_000, 4 << 30
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}  # metres in one
# Metres across: a part of a face, and a person with surroundings, among which the face is searched for.
SMALLEST, LARGEST = 0.05, 4.0
HEAD = (0.15, 0.6)  # metres across, from a cropped face to a bust: only a unit by which a cloud is such is advised
# Metres that single precision may cost before coordinates are written in double; scanners resolve 100 times less.
LOSS = 1e-7


def read_cloud(path: str | os.PathLike[str], *, unit: str = "m", notes: list[str] | None = None) -> Cloud:
    """The points of a file of one of `READERS`, or the vertices of a mesh, in metres and in the file's own order.

    `unit` is that of the file, one of `UNITS`; `notes` takes a sentence for each thing that could not be kept.

    Raises:
        InputError: the file is missing, damaged, too large, or of a size in which no face can be.
    """
    path, notes = Path(path), [] if notes is None else notes
    _need_unit(unit)
    if path.suffix.lower() not in READERS:
        raise InputError(f"{path}: its ending is of no known point cloud; known are {', '.join(READERS)}")
    try:
        if problem := unreadable(path):
            raise InputError(problem)
        if not 0 < path.stat().st_size <= MAX_BYTES:
            raise InputError(f"it is empty, or has more than {MAX_BYTES:,} bytes, which is the limit")
        points, colors = READERS[path.suffix.lower()](path.read_bytes(), path, notes)
        known: NDArray[np.bool_] = np.asarray(~np.isnan(points.astype(np.float64)).any(axis=1))
        _need_count(int(known.sum()))
        if not known.all():
            notes.append(f"{(~known).sum():,} of {len(known):,} points have no coordinates (NaN) and were left out")
        metres = points[known].astype(np.float64) * UNITS[unit]
        cloud = Cloud(metres, None if colors is None else _eight_bit(colors[known]))
        check_size(cloud, unit)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    return cloud


def check_size(cloud: Cloud, unit: str = "m") -> None:
    """Refuse a cloud in which no face can be: less than .05 m or more than 4 m across its middle 98 %."""
    low, high = np.percentile(cloud.points, [1, 99], axis=0) if len(cloud) else np.zeros((2, 3))
    extent = float((high - low).max())
    if SMALLEST <= extent <= LARGEST:
        return
    fits = [name for name in UNITS if HEAD[0] <= extent * UNITS[name] / UNITS[unit] <= HEAD[1]]
    advice = f"give --unit {fits[0]}" if fits else "bring its coordinates to metres"
    raise InputError(f"the cloud is {extent:.3g} m across, read in {unit}; a face is some 0.2 m: {advice}")


def write_cloud(path: str | os.PathLike[str], cloud: Cloud, *, unit: str = "m", overwrite: bool = False) -> None:
    """Write points (metres) and colours as PLY, whole or not at all, in a `unit`; the folder must exist.

    Coordinates are single precision where that moves no point by more than .0001 mm.
    """
    path = Path(path)
    _need_unit(unit)
    if path.suffix.lower() != ".ply":
        raise UsageError(f"{path}: clouds are written as PLY; choose a name that ends in .ply")
    if not len(cloud):
        raise InputError(f"{path}: a cloud without points is not written")
    points: Numbers = cloud.points / UNITS[unit]
    with np.errstate(over="ignore", invalid="ignore"):
        lost = np.abs(points.astype("<f4") - points).max() * UNITS[unit]
    kind, name_of_kind = ("<f4", "float") if lost <= LOSS else ("<f8", "double")
    rows = [points.astype(kind).view(np.uint8), *([] if cloud.colors is None else [cloud.colors])]
    lines = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}"]
    lines += [f"property {name_of_kind} {axis}" for axis in "xyz"]
    lines += [f"property uchar {name}" for name in ("red", "green", "blue") if cloud.colors is not None]
    with atomic_write(path, overwrite=overwrite) as file:
        file.write("\n".join([*lines, "end_header", ""]).encode() + np.hstack(rows).tobytes())


def _need_unit(unit: str) -> None:
    if unit not in UNITS:
        raise UsageError(f"the unit is {unit!r}; use one of {', '.join(UNITS)}")


def _need_count(says: int, holds: int | None = None) -> None:
    """Refuse a cloud that is empty, larger than `MAX_POINTS`, or of which the file holds a part."""
    if not 0 < says <= MAX_POINTS:
        raise InputError(f"it holds {says:,} points with coordinates; give 1 to {MAX_POINTS:,}")
    if holds is not None and holds < says:
        raise InputError(f"it is truncated: its header says {says:,} points and it holds {holds:,}; copy it again")


def _damaged(kind: str, error: BaseException) -> InputError:
    return InputError(f"it is damaged or cut off, or no {kind} file ({reason(error)[:80]}); copy it again")


def _eight_bit(values: Numbers) -> Colors:
    """Colours as bytes: floats up to 1 count to 1, everything else to 255."""
    if values.dtype == np.uint8:
        return values
    low, high = float(values.min()), float(values.max())
    full = 1.0 if np.issubdtype(values.dtype, np.floating) and high <= 1 else 255.0
    if not 0 <= low <= high <= full:
        raise InputError(f"its colours go from {low:g} to {high:g}; they must be 0 to 1 or 0 to 255")
    return np.rint(values.astype(np.float64) * (255.0 / full)).astype(np.uint8)


def _read_mesh(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The vertices of all parts; colours of their own, or of the texture or material."""
    import trimesh
    from trimesh.resolvers import FilePathResolver

    kind = path.suffix.lower()[1:]
    header = data[: data.find(b"end_header")] if kind == "ply" else b""
    says = re.search(rb"element vertex (\d{1,18})\s", header)
    if says:
        _need_count(int(says[1]))  # before anything is allocated
    try:
        scene = trimesh.load_scene(
            io.BytesIO(data), file_type=kind, process=False, maintain_order=True, resolver=FilePathResolver(str(path))
        )
        parts: list[Any] = [part for part in scene.dump() if len(getattr(part, "vertices", ()))]
        if kind == "stl":  # it has no vertices, but corners of triangles
            for part in parts:
                part.merge_vertices()
        points = np.concatenate([np.asarray(part.vertices) for part in parts])
    except Exception as error:  # trimesh promises no kinds of errors
        raise _damaged(kind.upper(), error) from error
    _need_count(int(says[1]) if says else len(points), len(points))
    if faces := sum(len(getattr(part, "faces", ())) for part in parts):
        notes.append(f"its {faces:,} faces are not kept: a point cloud has none")
    colors = [_mesh_colors(part) for part in parts]
    known = [color for color in colors if color is not None]
    if len(known) < len(colors) and (known or (kind == "obj" and b"mtllib" in data)):
        notes.append("its colours were left out: a texture or material is not beside it, or not of every part")
    return points, np.concatenate(known) if len(known) == len(colors) else None


def _mesh_colors(part: Any) -> Numbers | None:
    """Colours [N,3] of a part's vertices; None where it has none."""
    visual = part.visual
    if visual.kind == "texture":
        material = visual.material
        plain = getattr(material, "image", None) is None and getattr(material, "baseColorTexture", None) is None
        if visual.uv is None or plain:
            return None
        visual = visual.to_color()
    if visual.kind not in ("vertex", "face"):
        return None
    colors = np.asarray(getattr(part, "colors", None) if not hasattr(part, "faces") else visual.vertex_colors)
    return colors[:, :3].astype(np.uint8) if len(colors) == len(part.vertices) else None


def _read_table(data: bytes, path: Path, notes: list[str]) -> Fields:
    """A table: columns by the names in its first line, else x y z, and r g b where three more hold whole levels."""
    try:
        text = re.sub(r"[,;]", " ", data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _damaged("text", error) from error
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    names = [word.strip("\"'") for word in re.sub(r"^[#/]+", "", lines[0]).lower().split()] if lines else []
    lines = [line for line in lines if not line.startswith(("#", "//"))]
    if lines and re.match(r"[A-Za-z\"']", lines[0]) and not lines[0].lower().startswith(("nan", "inf")):
        lines = lines[1:]
    _need_count(len(lines))
    try:
        values = np.loadtxt(lines, np.float64, comments=None, ndmin=2)
    except ValueError as error:
        raise _damaged(path.suffix, error) from error
    if values.shape[1] < 3:
        raise InputError(f"it has {values.shape[1]} columns; three coordinates are needed")
    if len(names) == values.shape[1] and {"x", "y", "z"} <= set(names):
        colored = {"r", "g", "b"} <= set(names)
        points, colors = (values[:, [names.index(name) for name in names_of]] for names_of in ("xyz", "rgb" * colored))
        return points, colors if colored else None
    rest = values[:, 3:6]
    if rest.shape[1] == 3 and ((rest == np.rint(rest)) & (rest >= 0) & (rest <= 255)).all():
        return values[:, :3], rest
    if rest.shape[1]:
        notes.append("columns after the third were left out; a first line 'x y z r g b' names them")
    return values[:, :3], None


# By ending, in small letters: bytes, path and a list for notes → points and colours.
READERS: dict[str, Callable[[bytes, Path, list[str]], Fields]] = {
    **dict.fromkeys((".ply", ".obj", ".stl", ".off", ".glb"), _read_mesh),
    **dict.fromkeys((".xyz", ".txt", ".csv"), _read_table),
}
