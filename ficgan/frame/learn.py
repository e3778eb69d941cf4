"""From a set of aligned faces to a fitted appearance model, and to the codes of a bank."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.device import cpus
from ficgan.errors import InputError
from ficgan.faces import Alignment, FaceMesh, find_meshes
from ficgan.frame.appearance import AppearanceModel
from ficgan.frame.compose import fine_detail, read_texture
from ficgan.frame.drawn import TEETH_UNIT, read_teeth, teeth_of
from ficgan.frame.file import FrameNetwork
from ficgan.frame.fit import FitConfig, fit_appearance, fit_shape
from ficgan.frame.geometry import LO, Readings, Warp

if TYPE_CHECKING:
    from ficgan.data import FaceData, Labels

Floats = NDArray[np.float32]
Progress = Callable[[str, int, int], None]
Found = TypeVar("Found")
# Of the aligned crops, pixels: a frame unit is a 128th of the template's crop.
SIDE = 128
# Opening of a mouth, in its widths, and brightness of its teeth above the dark, from which on they can be lent.
_OPEN, _CLEAR = 0.13, 0.2
# Share of a face beyond which it gives no code to a bank: one in 23 of the clear faces of FairFace.
_COVERED = 0.12
_IN_MEMORY = 256  # decoded crops
_AGE = re.compile(r"(\d+)\s*-\s*(\d+)|(?:more than|over|\+)?\s*(\d+)\s*\+?")


@dataclass(frozen=True, eq=False)
class Learnt:
    """A fitted model, and what it was fitted to.

    Args:
        model: the model.
        record: of the data, JSON-ready.
        rows: int64 [M], the clear ones of the set's faces.
        read: of their M meshes.
        textures: uint8 [M,R,R,3].
    """

    model: AppearanceModel
    record: dict[str, Any]
    rows: NDArray[np.int64]
    read: Readings
    textures: NDArray[np.uint8]

    def codes(self, model: AppearanceModel) -> Floats:
        """Codes as a bank holds them and attributes [M,D+A] of the clear faces, as a model reads them."""
        rows = range(len(self.rows))
        return np.stack([_banked(model, self.textures[row], self.read.take([row]))[0] for row in rows])


def learn(
    data: FaceData, mesh: FaceMesh, config: FitConfig, progress: Progress | None = None, meshes: Path | None = None
) -> Learnt:
    """Fit geometry and appearance.

    Args:
        data: aligned faces at 128² by the default template, with labels where there are any.
        mesh: reads them.
        config: numbers.
        progress: called as progress(stage, done, total).
        meshes: file of `meshes_of`.

    Raises:
        InputError: too few clear faces; or the file of meshes is of other faces.
    """
    say = progress or (lambda stage, done, total: None)
    points, presence = meshes_of(data, mesh, say, meshes)
    clear = np.flatnonzero(presence >= config.presence)
    needed = 4 * (config.lights + config.textures)
    if len(clear) < needed:
        raise InputError(f"{len(clear)} of {len(data)} faces are clear, and a fit needs {needed}: give more of them")
    shape = fit_shape(points[clear], config)
    read = shape.read(points[clear])
    warp = Warp(shape.front, config.size)
    textures = np.empty((len(clear), config.size, config.size, 3), np.uint8)

    def texture(row: int, image: NDArray[np.uint8]) -> NDArray[np.uint8]:
        return read_texture(image, read.upright[row], read.points[row], warp)

    for row, found in _each(data.subset(clear), texture, "reading textures", say):
        textures[row] = found
    labels = None if data.labels is None else data.labels.take([int(i) for i in clear])
    names, kept = kept_attributes(labels, len(clear))
    model = fit_appearance(shape, read, textures, _groups(labels, len(clear)), kept, names, config, say)
    record = {"images": len(data), "clear": len(clear), "mesh": mesh.name, "fingerprint": data.fingerprint}
    return Learnt(model, record, clear, read, textures)


def lend(model: AppearanceModel, data: FaceData, mesh: FaceMesh, number: int = 36) -> AppearanceModel:
    """The model with the fine detail of synthetic faces.

    Args:
        model: fitted.
        data: aligned faces of nobody, of at least twice the frame's size.
        mesh: reads them.
        number: most faces that lend theirs; those whose detail is most ordinary are taken: no glasses, no wrinkles.
    """
    details, looks, mouths = [], [], []
    for image in images_of(data):
        found = find_meshes(mesh, image, Alignment().points(data.resolution)[None])[0]
        if found.presence < 10:
            continue
        read = model.shape.read(found.points[None])
        if abs(float(read.pose.yaw[0])) > 0.3:
            continue
        double = read_texture(image, read.upright[0], read.points[0], model.warp, finer=2)
        details.append(fine_detail(double, model.fine_pixels))
        small = read_texture(image, read.upright[0], read.points[0], model.warp)
        looks.append(model.encode(small[None], read)[1].kept[0])
        mouths.append((*teeth_of(image, found.points), read_teeth(small, model.mask, model.shape.front, model.warp)))
    if not details:
        raise InputError("no face of the detail set is clear enough: give aligned, frontal faces")
    table = np.stack(details)
    spread, lashes = table.std(1), table[:, _around_eyes(model)].std(1)
    apart = np.abs(table - np.median(table, axis=0))
    odd = np.quantile(apart / (np.median(apart, axis=0) + 0.004), 0.995, axis=1)  # lines and dots that others have not
    strange = np.abs(np.log(spread / np.median(spread))) + np.maximum(lashes / np.median(lashes) - 1, 0)
    strange += 1.5 * np.maximum(np.log(odd / np.median(odd)), 0)
    rows = np.sort(np.argsort(strange)[:number])
    scale = float(np.quantile(np.abs(table[rows]), 0.9995)) / 127
    steps = np.clip(np.rint(table[rows] / scale), -127, 127).astype(np.int8)
    teeth, openings = _open_mouths(mouths)
    return replace(
        model,
        details=steps,
        lenders=np.stack(looks)[rows].astype(np.float32),
        detail_scale=scale,
        teeth=teeth,
        teeth_openings=openings,
    )


def _open_mouths(mouths: Sequence[tuple[Floats, float, Floats]], number: int = 12) -> tuple[NDArray[np.uint8], Floats]:
    """Teeth and openings of those mouths that show theirs clearly, the most ordinary ones."""
    shown = [mouth for mouth in mouths if mouth[1] > _OPEN and mouth[2][:3].mean() - mouth[2][3] > _CLEAR]
    if not shown:
        return np.zeros((0, 1, 1), np.uint8), np.zeros(0, np.float32)
    table = np.stack([one[0] for one in shown])
    strange = np.abs(table - np.median(table, axis=0)).mean((1, 2))
    rows = np.sort(np.argsort(strange)[:number])
    steps = np.rint(np.clip(TEETH_UNIT * table[rows], 0, 255)).astype(np.uint8)
    return steps, np.array([shown[row][1] for row in rows], np.float32)


def _around_eyes(model: AppearanceModel) -> NDArray[np.bool_]:
    """Which of the doubled frame's pixels lie within 12 units of an eye's corners."""
    y, x = np.divmod(model.fine_pixels, 2 * model.size)
    place = np.stack([x, y], 1) * (model.warp.step * (model.size - 1) / (2 * model.size - 1)) + LO
    corners = model.shape.front[[33, 133, 362, 263]]
    return np.linalg.norm(place[:, None] - corners, axis=2).min(1) < 12


def codes_of(
    model: AppearanceModel,
    data: FaceData,
    mesh: FaceMesh,
    presence: float,
    network: FrameNetwork | None = None,
    progress: Progress | None = None,
    meshes: Path | None = None,
) -> tuple[Floats, NDArray[np.int64]]:
    """Codes as a bank holds them, attributes and the network's w [M,D+A+W] of a set's clear faces; their rows [M].

    Faces with much before them (glasses, hands) are left out: a mean of old people would wear spectacles.
    """
    say = progress or (lambda stage, done, total: None)
    points, sure = meshes_of(data, mesh, say, meshes)
    clear = np.flatnonzero(sure >= presence)
    if not len(clear):
        raise InputError(f"none of the {len(data)} faces is clear enough: give larger, sharper, frontal ones")

    def code_of(row: int, image: NDArray[np.uint8]) -> tuple[Floats, float]:
        read = model.shape.read(points[clear[row]][None])
        texture = read_texture(image, read.upright[0], read.points[0], model.warp)
        return _banked(model, texture, read, network)

    found = [one for _, one in _each(data.subset(clear), code_of, "encoding", say)]
    bare = np.array([covered < _COVERED for _, covered in found])
    return np.stack([code for code, _ in found])[bare], clear[bare]


def _banked(
    model: AppearanceModel, texture: NDArray[np.uint8], read: Readings, network: FrameNetwork | None = None
) -> tuple[Floats, float]:
    """Code, attributes and w [D+A+W] of one face without what lies over it, and how much of it that covers."""
    texture, covered = model.uncovered(texture, read)
    code, moment = model.encode(texture[None], read)
    parts = [model.banked(code)[0], moment.kept[0]]
    if network is not None:
        parts.append(network.read(texture[None], model.identity_code(code, moment.kept))[0])
    return np.concatenate(parts).astype(np.float32), covered


def kept_attributes(labels: Labels | None, count: int) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """Gender and age, as far as labels have them: names, and values [N,A] with NaN where unknown."""
    names: list[str] = []
    columns: list[NDArray[np.float64]] = []
    if labels is not None:
        known = {name.casefold(): labels.attributes[:, i] for i, name in enumerate(labels.attribute_names)}
        if "male" in known:
            other = known.get("female", 1 - known["male"])
            names.append("Male")
            columns.append(np.where(known["male"] + other == 1, known["male"].astype(float), np.nan))
        ages = {i: age for i, name in enumerate(labels.attribute_names) if (age := _age(name)) is not None}
        if len(ages) > 1:
            table = labels.attributes[:, list(ages)] != 0
            names.append("age")
            columns.append(np.where(table.sum(1) == 1, table @ np.array(list(ages.values())), np.nan))
    return tuple(names), np.stack(columns, 1) if columns else np.zeros((count, 0))


def _age(name: str) -> float | None:
    match = _AGE.fullmatch(name.strip())
    if not match:
        return None
    return (int(match[1]) + int(match[2])) / 2 if match[1] else float(match[3])


def _groups(labels: Labels | None, count: int) -> Sequence[str]:
    """Group of each face, of which every one is trimmed alike: the race where labels have it, else none."""
    if labels is None or not labels.attribute_columns:
        return [""] * count
    rows = [i for i, column in enumerate(labels.attribute_columns) if column.casefold() in ("race", "ethnicity")]
    if not rows:
        return [""] * count
    table = labels.attributes[:, rows]
    return [labels.attribute_names[rows[one.argmax()]] if one.any() else "" for one in table]


def meshes_of(
    data: FaceData, mesh: FaceMesh, progress: Progress | None = None, kept: Path | None = None
) -> tuple[Floats, Floats]:
    """The mesh of every face of a set.

    Args:
        data: aligned faces at 128² by the default template.
        mesh: reads them; that takes most of the time of a fit.
        progress: called as progress(stage, done, total).
        kept: a safetensors file that the meshes are taken from; where there is none, they are read and written there.

    Returns:
        Points float32 [N,478,3] in pixels of the crops, and presence float32 [N].

    Raises:
        InputError: the file holds the meshes of other faces or of another mesh, or is no such file.
    """
    from safetensors import SafetensorError, safe_open
    from safetensors.numpy import save

    from ficgan.files import atomic_write

    header = {"ficgan": json.dumps({"meshes": mesh.name, "faces": data.fingerprint})}
    if kept is not None and kept.exists():
        try:
            with safe_open(kept, "np") as file:
                fits = file.metadata() == header
                if fits:
                    return file.get_tensor("points"), file.get_tensor("presence")
        except (SafetensorError, OSError) as error:
            raise InputError(f"{kept} holds no meshes ({error}): name another file.") from None
        raise InputError(f"{kept} holds the meshes of other faces, or of another network: name another file.")
    template = Alignment().points(SIDE)[None]

    def read(row: int, image: NDArray[np.uint8]) -> tuple[Floats, float]:
        found = find_meshes(mesh, image, template)[0]
        return found.points, found.presence

    found = [one for _, one in _each(data, read, "reading meshes", progress or (lambda stage, done, total: None))]
    points, presence = np.stack([one[0] for one in found]), np.array([one[1] for one in found], np.float32)
    if kept is not None:
        with atomic_write(kept) as file:
            file.write(save({"points": points, "presence": presence}, header))
    return points, presence


def _each(
    data: FaceData, work: Callable[[int, NDArray[np.uint8]], Found], stage: str, say: Progress
) -> Iterator[tuple[int, Found]]:
    """Row and work(row, crop) of every face, in order; as many at once as there are cores, a few hundred in memory."""
    with ThreadPoolExecutor(cpus()) as pool:
        for begin in range(0, len(data), _IN_MEMORY):
            rows = range(begin, min(begin + _IN_MEMORY, len(data)))
            yield from zip(rows, pool.map(work, rows, _crops(data, rows)), strict=True)
            say(stage, rows.stop, len(data))


def images_of(data: FaceData) -> Iterator[NDArray[np.uint8]]:
    """Decoded crops, a few hundred at a time in memory."""
    for begin in range(0, len(data), _IN_MEMORY):
        yield from _crops(data, range(begin, min(begin + _IN_MEMORY, len(data))))


def _crops(data: FaceData, rows: range) -> NDArray[np.uint8]:
    return np.ascontiguousarray(data.subset(rows).resident().numpy().transpose(0, 2, 3, 1))
