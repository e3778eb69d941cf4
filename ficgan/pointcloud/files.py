"""Point clouds in and out: meshes by trimesh, PCD, tables of numbers and NumPy files."""

from __future__ import annotations

import difflib
import io
import math
import os
import re
import warnings
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.files import atomic_write
from ficgan.pointcloud.cloud import Cloud

Numbers = NDArray[Any]

MAX_POINTS = 50_000_000
MAX_BYTES = 4 << 30
UNITS = {"m": 1.0, "cm": 0.01, "mm": 0.001}  # metres in one
UNIT_NAMES = {"m": "metres", "cm": "centimetres", "mm": "millimetres"}  # as a comment in a file says them
# Metres across: a part of a face, and a person with surroundings, among which the face is searched for.
SMALLEST, LARGEST = 0.05, 4.0
# Metres across, from a cropped face to a bust: only a unit by which a cloud is such is advised.
HEAD = (0.15, 0.6)
# Metres that single precision may cost before coordinates are written in double; scanners resolve 100 times less.
LOSS = 1e-7


class Fields(NamedTuple):
    """What a file holds: points [N,3] and colours [N,3] as numbers of any kind."""

    points: Numbers
    colors: Numbers | None = None


@dataclass(frozen=True)
class CloudFormat:
    """A kind of files."""

    read: Callable[[bytes, Path, list[str]], Fields]  # bytes, path and a list for notes → fields
    # file, cloud in the unit of the file, and the unit; None: such files are only read
    write: Callable[[BinaryIO, Cloud, str], None] | None = None


def read_cloud(
    path: str | os.PathLike[str], *, unit: str = "m", check: bool = True, notes: list[str] | None = None
) -> Cloud:
    """Read a point cloud, or the vertices of a mesh.

    Args:
        path: a file of one of `FORMATS`.
        unit: of its coordinates, one of `UNITS`.
        check: refuse a cloud in which no face can be, see `check_size`.
        notes: takes a sentence for each thing that could not be kept; None: they are warnings.

    Returns:
        The cloud in metres, in the file's own frame and order.

    Raises:
        InputError: the file is missing, damaged, too large, or of another size than a head.
    """
    path, found = Path(path), list[str]()
    _need_unit(unit)
    form = _format(path, InputError, FORMATS)
    try:
        points, colors = form.read(_bytes(path), path, found)
        known: NDArray[np.bool_] = np.asarray(~np.isnan(points.astype(np.float64)).any(axis=1))
        _need_count(int(known.sum()))
        if not known.all():
            found.append(f"{(~known).sum():,} of {len(known):,} points have no coordinates (NaN) and were left out")
        with np.errstate(over="ignore"):
            metres = points[known].astype(np.float64) * UNITS[unit]
        cloud = Cloud(metres, None if colors is None else _eight_bit(colors[known]))
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if check:
        check_size(cloud, str(path), unit)
    for note in found:
        if notes is None:
            warnings.warn(f"{path}: {note}", stacklevel=2)
        else:
            notes.append(note)
    return cloud


def check_size(cloud: Cloud, where: str = "", unit: str = "m") -> None:
    """Refuse a cloud in which no face can be: less than .05 m or more than 4 m across its middle 98 %."""
    low, high = np.percentile(cloud.points, [1, 99], axis=0) if len(cloud) else np.zeros((2, 3))
    with np.errstate(over="ignore"):
        extent = float((high - low).max())
    if SMALLEST <= extent <= LARGEST:
        return
    begin = f"{where}: the cloud" if where else "the cloud"
    if extent == 0:
        raise InputError(f"{begin} has all its points at one place")
    advised = [name for name in UNITS if HEAD[0] <= extent * UNITS[name] / UNITS[unit] <= HEAD[1]]
    advice = f"none of {', '.join(UNITS)} makes it one: bring its coordinates to metres"
    if advised:
        advice = f"give --unit {advised[0]}"
    raise InputError(f"{begin} is {extent:.3g} m across, read in {unit}; a face is some 0.2 m: {advice}")


def check_writable(path: str | os.PathLike[str], *, colors: bool = False) -> None:
    """Refuse with a UsageError a file name whose format cannot hold a cloud, with colours if it has them."""
    path = Path(path)
    _format(path, UsageError, {suffix: form for suffix, form in FORMATS.items() if form.write})
    if colors and path.suffix.lower() == ".npy":
        raise UsageError(f"{path}: a .npy file holds points only, and the cloud has colours; write a .npz or .ply file")


def write_cloud(path: str | os.PathLike[str], cloud: Cloud, *, unit: str = "m", overwrite: bool = False) -> None:
    """Write points and colours of a cloud, whole or not at all; the folder must exist.

    Args:
        path: its ending is one of `FORMATS` that can be written.
        cloud: in metres. Coordinates are single precision where that moves no point by more than .0001 mm.
        unit: of the coordinates in the file; PLY and OBJ name it.
        overwrite: replace a file.
    """
    path = Path(path)
    _need_unit(unit)
    check_writable(path, colors=cloud.colors is not None)
    if not len(cloud):
        raise InputError(f"{path}: a cloud without points is not written")
    write = FORMATS[path.suffix.lower()].write
    assert write is not None
    with atomic_write(path, overwrite=overwrite) as file:
        write(file, cloud.scaled(1 / UNITS[unit]), unit)


def _need_unit(unit: str) -> None:
    if unit not in UNITS:
        raise UsageError(f"the unit is {unit!r}; use one of {', '.join(UNITS)}")


def _format(path: Path, error: type[Exception], formats: Mapping[str, CloudFormat]) -> CloudFormat:
    suffix = path.suffix.lower()
    if suffix in formats:
        return formats[suffix]
    if suffix in FORMATS:
        raise error(f"{path}: {suffix} files are only read; write one of {', '.join(formats)}")
    near = difflib.get_close_matches(suffix, formats, n=1)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(formats)}"
    raise error(f"{path}: its suffix {suffix!r} is of no known point cloud; {hint}")


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise InputError("it is no regular file; name one" if path.exists() else "there is no such file")
        if path.stat().st_size > MAX_BYTES:
            raise InputError(f"it has more than {MAX_BYTES:,} bytes, which is the limit; thin the cloud out")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise InputError(f"it cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if not data:
        raise InputError("it is empty (0 bytes)")
    return data


def _need_count(says: int, holds: int | None = None) -> None:
    """Refuse a cloud that is empty, larger than `MAX_POINTS`, or of which the file holds a part."""
    if says < 1:
        raise InputError("it holds no points with coordinates")
    if says > MAX_POINTS:
        raise InputError(f"its header says {says:,} points, and {MAX_POINTS:,} is the limit; thin the cloud out")
    if holds is not None and holds < says:
        raise InputError(f"it is truncated: its header says {says:,} points and it holds {holds:,}; copy it again")


def _damaged(kind: str, error: BaseException) -> InputError:
    reason = " ".join(str(error).split())[:80] or type(error).__name__
    return InputError(f"it is damaged or cut off, or no {kind} file ({reason}); copy it again")


def _eight_bit(values: Numbers) -> NDArray[np.uint8]:
    """Colours as bytes: floats up to 1 count to 1, everything else to 255, or 16-bit integers to 65535."""
    if values.dtype == np.uint8:
        return values
    low, high = float(values.min()), float(values.max())
    full = 65535.0 if values.dtype == np.uint16 and high > 255 else 255.0
    if np.issubdtype(values.dtype, np.floating) and high <= 1:
        full = 1.0
    if not 0 <= low <= high <= full:
        raise InputError(f"its colours go from {low:g} to {high:g}; they must be 0 to 1 or 0 to 255")
    return np.rint(values.astype(np.float64) * (255.0 / full)).astype(np.uint8)


def _side_by_side(columns: Mapping[str, Numbers], *names: str) -> Numbers | None:
    return np.stack([columns[name] for name in names], axis=1) if set(names) <= set(columns) else None


# -- meshes, by trimesh -----------------------------------------------------------------------------------------------


def _read_mesh(data: bytes, path: Path, notes: list[str]) -> Fields:
    """The vertices of all parts; colours of their own, or of the texture or material."""
    import trimesh
    from trimesh.resolvers import FilePathResolver

    kind = path.suffix.lower()[1:]
    header = data[: data.find(b"end_header")] if kind == "ply" else b""
    says = int((re.search(rb"element vertex (\d{1,18})\s", header) or [b"", b"0"])[1])
    for count in [says, *map(int, re.findall(rb'"count"\s*:\s*(\d+)', data) if kind == "glb" else [])]:
        _need_count(max(count, 1))  # before anything is allocated
    try:
        scene = trimesh.load_scene(
            io.BytesIO(data), file_type=kind, process=False, maintain_order=True, resolver=FilePathResolver(str(path))
        )
        shapes = [scene.geometry[scene.graph[node][1]] for node in scene.graph.nodes_geometry]
        total = sum(len(getattr(shape, "vertices", ())) for shape in shapes)
        _need_count(total)  # before a shape is copied to each place it is shown at
        _need_count(says or total, total)
        parts: list[Any] = [part for part in scene.dump() if len(getattr(part, "vertices", ()))]
        if kind == "stl":  # it has no vertices, but corners of triangles
            for part in parts:
                part.merge_vertices()
        points = np.concatenate([np.asarray(part.vertices) for part in parts])
    except InputError:
        raise
    except Exception as error:  # trimesh promises no kinds of errors
        raise _damaged(kind.upper(), error) from error
    if faces := sum(len(getattr(part, "faces", ())) for part in parts):
        notes.append(f"its {faces:,} faces are not kept: a point cloud has none")
    colors = [_mesh_colors(part) for part in parts]
    known = [color for color in colors if color is not None]
    if len(known) < len(colors) and (known or (kind == "obj" and b"mtllib" in data)):
        notes.append("its colours were left out: a texture or material is not beside it, or not of every part")
    return Fields(points, np.concatenate(known) if len(known) == len(colors) else None)


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


# -- PCD --------------------------------------------------------------------------------------------------------------


def _read_pcd(data: bytes, path: Path, notes: list[str]) -> Fields:
    """PCD (Point Cloud Library, version .7), ASCII or binary."""
    try:
        head, mark, _ = data.partition(b"\nDATA ")
        form, _, body = data[len(head) + len(mark) :].partition(b"\n")
        lines = [line.split() for line in head.decode("latin-1").splitlines() if line and line[0] != "#"]
        entries = {words[0]: words[1:] for words in lines if words}
        names, kinds = [name.lower() for name in entries["FIELDS"]], zip(entries["TYPE"], entries["SIZE"], strict=True)
        counts = [int(count) for count in entries.get("COUNT", ["1"] * len(names))]
        letters = {"F": "f", "I": "i", "U": "u"}
        row = np.dtype(
            [
                (name, f"<{letters[kind]}{int(size)}", (count,))
                for name, (kind, size), count in zip(names, kinds, counts, strict=True)
            ]
        )
        sides = [entries["POINTS"]] if "POINTS" in entries else [entries["WIDTH"], entries["HEIGHT"]]
        says = math.prod(int(words[0]) for words in sides)
        _need_count(says)
        if form.strip() == b"ascii":
            table = _table(body.splitlines()[:says], path)
            _need_count(says, len(table))
            parts = np.split(table, np.cumsum(counts)[:-1], axis=1)
            columns = {name: part[:, 0].astype(row[name].base) for name, part in zip(names, parts, strict=True)}
        elif form.strip() == b"binary":
            _need_count(says, len(body) // row.itemsize)
            array = np.frombuffer(body, row, says)
            columns = {name: array[name][:, 0] for name in names}
        else:
            raise InputError("its data are compressed, which cannot be read; save it as binary or ASCII PCD, or as PLY")
    except (KeyError, ValueError, IndexError, TypeError, OverflowError) as error:
        raise _damaged("PCD", error) from error
    points = _side_by_side(columns, "x", "y", "z")
    if points is None:
        raise InputError("its points have no fields x, y and z")
    colors = _side_by_side(columns, "r", "g", "b")
    packed = columns.get("rgb", columns.get("rgba"))
    if colors is None and packed is not None and packed.dtype.itemsize == 4:
        bits = np.ascontiguousarray(packed).view(np.uint32)
        colors = np.stack([bits >> 16 & 255, bits >> 8 & 255, bits & 255], axis=1).astype(np.uint8)
    return Fields(points, colors)


# -- tables of numbers ------------------------------------------------------------------------------------------------

_NAMES = {"red": "r", "green": "g", "blue": "b", "rf": "r", "gf": "g", "bf": "b"}  # what CloudCompare calls colours


def _table(lines: Sequence[bytes], path: Path) -> Numbers:
    """Numbers [lines,columns], separated by white space."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's about no data
            return np.loadtxt(lines, np.float64, comments=None, ndmin=2)
    except (ValueError, OverflowError) as error:
        raise _damaged(path.suffix, error) from error


def _read_table(data: bytes, path: Path, notes: list[str]) -> Fields:
    """A table: columns by the names in its first line, else x y z, then colours where three columns look like such.

    A `.pts` with seven columns has the intensity before the colours. Beside semicolons a comma is a decimal point.
    """
    if b"\0" in data:
        raise InputError("it is not text (it holds zero bytes); tables are read as ASCII or UTF-8")
    data = data.removeprefix(b"\xef\xbb\xbf")
    if b";" in data:
        data = data.replace(b",", b".").replace(b";", b" ")
    lines = [line.strip() for line in data.replace(b",", b" ").splitlines()]
    lines = [line for line in lines if line]
    first = re.sub(rb"^(#|//)+", b"", lines[0]).decode("latin-1").lower().split() if lines else []
    names = [_NAMES.get(word.strip("\"'"), word.strip("\"'")) for word in first]
    lines = [line for line in lines if not line.startswith((b"#", b"//"))]
    if lines and re.match(rb"[A-Za-z\"']", lines[0]) and not re.match(rb"(?i)(nan|inf)\b", lines[0]):
        lines = lines[1:]
    if len(lines) > 1 and lines[0].isdigit() and len(lines[1].split()) > 1:  # the count of a .pts
        _need_count(int(lines[0][:18]), len(lines) - 1)
        lines = lines[1:]
    _need_count(len(lines))
    values = _table(lines, path)
    if values.shape[1] < 3:
        raise InputError(f"it has {values.shape[1]} columns; three coordinates are needed")
    if len(names) == values.shape[1] and {"x", "y", "z"} <= set(names):
        columns = dict(zip(names, values.T, strict=True))
        points, colors = _side_by_side(columns, "x", "y", "z"), _side_by_side(columns, "r", "g", "b")
        assert points is not None
        return Fields(points, colors)
    start = 4 if values.shape[1] == 7 and path.suffix.lower() == ".pts" else 3
    rest = values[:, start : start + 3]
    if rest.shape[1] == 3 and (rest >= 0).all() and (rest <= 255).all() and path.suffix.lower() != ".xyzn":
        normals = np.abs(np.linalg.norm(rest, axis=1) - 1).max() < 0.01 and (rest != np.rint(rest)).any()
        if not normals:
            return Fields(values[:, :3], rest)
    if values.shape[1] > 4:  # a fourth column alone is an intensity by custom
        notes.append("columns after the third were left out; a first line 'x y z r g b' names them")
    return Fields(values[:, :3])


# -- NumPy files ------------------------------------------------------------------------------------------------------


def _read_numpy(data: bytes, path: Path, notes: list[str]) -> Fields:
    """A `.npy` file [N,3], or the arrays `points` and `colors` of a `.npz` file."""
    try:
        if path.suffix.lower() == ".npz":
            with zipfile.ZipFile(io.BytesIO(data)) as archive:
                if sum(entry.file_size for entry in archive.infolist()) > MAX_BYTES:
                    raise InputError(f"it unpacks to more than {MAX_BYTES:,} bytes, which is the limit")
        loaded: Any = np.load(io.BytesIO(data), allow_pickle=False)
        held = loaded if isinstance(loaded, Mapping) else {"points": loaded}
        arrays = {name: held[name] for name in ("points", "colors") if name in held}
    except InputError:
        raise
    except Exception as error:  # the header is parsed as Python's own literals, and nearly anything can go wrong
        raise _damaged("NumPy", error) from error
    points = arrays.get("points", np.zeros(0))
    for name, array in arrays.items():
        if array.shape != points.shape or array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise InputError(f"its {name} are {list(array.shape)} of {array.dtype}; numbers [N,3] are needed")
    if points.ndim != 2 or points.shape[1] != 3:
        raise InputError("it needs an array 'points' [N,3], and 'colors' [N,3] if any; save it with np.savez")
    _need_count(len(points))
    return Fields(points, arrays.get("colors"))


# -- writing ----------------------------------------------------------------------------------------------------------


def _coordinates(cloud: Cloud, unit: str) -> Numbers:
    """Points [N,3] in single precision where that costs no more than `LOSS`, else in double."""
    with np.errstate(over="ignore", invalid="ignore"):
        loss = np.abs(cloud.points.astype("<f4") - cloud.points).max()
    return cloud.points.astype("<f4" if loss * UNITS[unit] <= LOSS else "<f8")


def _row_bytes(*columns: Numbers) -> bytes:
    """Columns, each [N,any], one point after another."""
    rows = np.empty(len(columns[0]), [(f"f{at}", one.dtype, one.shape[1:]) for at, one in enumerate(columns)])
    for at, column in enumerate(columns):
        rows[f"f{at}"] = column
    return rows.tobytes()


def _write_rows(file: BinaryIO, start: str, separator: str, *columns: Numbers) -> None:
    """Columns, each [N,any], as lines of text: integers as such, other numbers in as many digits as they hold."""
    digits = {"f4": "%.9g", "f8": "%.17g"}
    forms = [digits.get(column.dtype.str[1:], "%d") for column in columns for _ in range(column.shape[1])]
    np.savetxt(file, np.hstack([column.astype(np.float64) for column in columns]), fmt=start + separator.join(forms))


def _write_ply(file: BinaryIO, cloud: Cloud, unit: str) -> None:
    points, colors = _coordinates(cloud, unit), [] if cloud.colors is None else [cloud.colors]
    kind = "float" if points.dtype.itemsize == 4 else "double"
    lines = ["ply", "format binary_little_endian 1.0", f"comment {UNIT_NAMES[unit]}", f"element vertex {len(cloud)}"]
    lines += [f"property {kind} {axis}" for axis in "xyz"]
    lines += [f"property uchar {name}" for name in ("red", "green", "blue") if colors]
    file.write("\n".join([*lines, "end_header", ""]).encode() + _row_bytes(points, *colors))


def _write_pcd(file: BinaryIO, cloud: Cloud, unit: str) -> None:
    """Binary; colours are packed into a float `rgb`, which PCL's own point types expect."""
    points, packed = _coordinates(cloud, unit), []
    if cloud.colors is not None:
        red, green, blue = cloud.colors.T.astype("<u4")
        packed = [(red << 16 | green << 8 | blue).view("<f4")[:, None]]
    sizes = [str(points.dtype.itemsize)] * 3 + ["4"] * len(packed)
    lines = ["VERSION 0.7", "FIELDS x y z" + " rgb" * len(packed), f"SIZE {' '.join(sizes)}"]
    lines += [f"TYPE {' '.join('F' * len(sizes))}", f"COUNT {' '.join('1' * len(sizes))}", f"WIDTH {len(cloud)}"]
    lines += ["HEIGHT 1", "VIEWPOINT 0 0 0 1 0 0 0", f"POINTS {len(cloud)}", "DATA binary", ""]
    file.write("\n".join(lines).encode() + _row_bytes(points, *packed))


def _write_obj(file: BinaryIO, cloud: Cloud, unit: str) -> None:
    """Vertices, with colours 0 to 1 if there are any, without faces."""
    file.write(f"# {UNIT_NAMES[unit]}\n".encode())
    colors = [] if cloud.colors is None else [(cloud.colors / np.float32(255)).astype("<f4")]
    _write_rows(file, "v ", " ", _coordinates(cloud, unit), *colors)


def _table_writer(start: str, separator: str = " ") -> Callable[[BinaryIO, Cloud, str], None]:
    def write(file: BinaryIO, cloud: Cloud, unit: str) -> None:
        names, colors = ["x", "y", "z"], [] if cloud.colors is None else [cloud.colors]
        names += ["r", "g", "b"] * len(colors)
        file.write(start.format(names=separator.join(names), count=len(cloud)).encode())
        _write_rows(file, "", separator, _coordinates(cloud, unit), *colors)

    return write


def _write_npy(file: BinaryIO, cloud: Cloud, unit: str) -> None:
    np.save(file, cloud.points, allow_pickle=False)


def _write_npz(file: BinaryIO, cloud: Cloud, unit: str) -> None:
    arrays: dict[str, Any] = {"points": cloud.points} | ({} if cloud.colors is None else {"colors": cloud.colors})
    np.savez(file, **arrays)


_TEXT = CloudFormat(_read_table, _table_writer("# {names}\n"))
# By suffix, in small letters.
FORMATS = {
    ".ply": CloudFormat(_read_mesh, _write_ply),
    ".obj": CloudFormat(_read_mesh, _write_obj),
    **dict.fromkeys((".stl", ".off", ".glb"), CloudFormat(_read_mesh)),
    ".pcd": CloudFormat(_read_pcd, _write_pcd),
    **dict.fromkeys((".xyz", ".asc", ".txt"), _TEXT),
    **dict.fromkeys((".xyzn", ".xyzrgb"), CloudFormat(_read_table)),
    ".pts": CloudFormat(_read_table, _table_writer("{count}\n")),
    ".csv": CloudFormat(_read_table, _table_writer("{names}\n", ",")),
    ".npy": CloudFormat(_read_numpy, _write_npy),
    ".npz": CloudFormat(_read_numpy, _write_npz),
}
