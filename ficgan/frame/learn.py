"""From a set of aligned faces to a fitted appearance model, and to the codes of a bank."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.faces import Alignment, FaceMesh, find_meshes
from ficgan.frame.appearance import AppearanceModel
from ficgan.frame.compose import fine_detail, read_texture
from ficgan.frame.file import FrameNetwork
from ficgan.frame.fit import FitConfig, fit_appearance, fit_shape
from ficgan.frame.geometry import LO, Readings, Warp

if TYPE_CHECKING:
    from ficgan.data import FaceData, Labels

__all__ = ["SIDE", "Learnt", "codes_of", "detail_strength", "images_of", "kept_attributes", "learn", "lend"]

Floats = NDArray[np.float32]
Progress = Callable[[str, int, int], None]
SIDE = 128
"""Of the aligned crops, pixels: a frame unit is a 128th of the template's crop."""
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
        """Codes and attributes [M,D+A] of the clear faces, as a model reads them."""
        parts = []
        for begin in range(0, len(self.rows), 256):
            part = slice(begin, begin + 256)
            code, moment = model.encode(self.textures[part], self.read.take(part))
            parts.append(np.concatenate([code, moment.kept], 1))
        return np.concatenate(parts).astype(np.float32)


def learn(data: FaceData, mesh: FaceMesh, config: FitConfig, progress: Progress | None = None) -> Learnt:
    """Fit geometry and appearance.

    Args:
        data: aligned faces at 128² by the default template, with labels where there are any.
        mesh: reads them.
        config: numbers.
        progress: called as progress(stage, done, total).

    Raises:
        InputError: too few clear faces.
    """
    say = progress or (lambda stage, done, total: None)
    points, presence = _meshes(data, mesh, say)
    clear = np.flatnonzero(presence >= config.presence)
    needed = 4 * (config.lights + config.textures)
    if len(clear) < needed:
        raise InputError(f"{len(clear)} of {len(data)} faces are clear, and a fit needs {needed}: give more of them")
    shape = fit_shape(points[clear], config)
    read = shape.read(points[clear])
    warp = Warp(shape.front, config.size)
    textures = np.empty((len(clear), config.size, config.size, 3), np.uint8)
    for done, (row, image) in enumerate(zip(clear, images_of(data.subset(clear)), strict=True)):
        textures[done] = read_texture(image, read.upright[done], read.points[done], warp)
        if done % 100 == 99 or row == clear[-1]:
            say("reading textures", done + 1, len(clear))
    labels = None if data.labels is None else data.labels.take([int(i) for i in clear])
    names, kept = kept_attributes(labels, len(clear))
    model, _ = fit_appearance(shape, read, textures, _groups(labels, len(clear)), kept, names, config, say)
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
    details, looks = [], []
    for image in images_of(data):
        found = find_meshes(mesh, image, Alignment().points(data.resolution)[None])[0]
        if found.presence < 10:
            continue
        read = model.shape.read(found.points[None])
        if abs(float(read.pose.yaw[0])) > 0.3:
            continue
        double = read_texture(image, read.upright[0], read.points[0], model.warp, finer=2)
        details.append(fine_detail(double).ravel()[model.fine_pixels])
        small = read_texture(image, read.upright[0], read.points[0], model.warp)
        looks.append(model.encode(small[None], read)[1].kept[0])
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
    return replace(model, details=steps, lenders=np.stack(looks)[rows].astype(np.float32), detail_scale=scale)


def detail_strength(texture: NDArray[np.uint8], model: AppearanceModel) -> float:
    """Standard deviation of what only a texture [2R,2R,3] of twice the frame's size shows."""
    return float(fine_detail(texture).ravel()[model.fine_pixels].std())


def _around_eyes(model: AppearanceModel) -> NDArray[np.bool_]:
    """Which of the doubled frame's pixels lie within 12 units of an eye's corners."""
    y, x = np.divmod(model.fine_pixels, 2 * model.size)
    place = np.stack([x, y], 1) * (model.warp.step * (model.size - 1) / (2 * model.size - 1)) + LO
    corners = model.shape.front[[33, 133, 362, 263]]
    return np.linalg.norm(place[:, None] - corners, axis=2).min(1) < 12


def codes_of(
    model: AppearanceModel, data: FaceData, mesh: FaceMesh, presence: float, network: FrameNetwork | None = None,
    progress: Progress | None = None,
) -> tuple[Floats, NDArray[np.int64]]:  # fmt: skip
    """Codes, attributes and the network's w [M,D+A+W] of the clear faces of a set, and their rows [M]."""
    say = progress or (lambda stage, done, total: None)
    codes, rows = [], []
    for done, image in enumerate(images_of(data)):
        found = find_meshes(mesh, image, _template())[0]
        if found.presence >= presence:
            read = model.shape.read(found.points[None])
            texture = read_texture(image, read.upright[0], read.points[0], model.warp)
            code, moment = model.encode(texture[None], read)
            parts = [code[0], moment.kept[0]]
            if network is not None:
                parts.append(network.read(texture[None], model.identity_code(code, moment.kept))[0][0])
            codes.append(np.concatenate(parts))
            rows.append(done)
        if done % 100 == 99 or done == len(data) - 1:
            say("encoding", done + 1, len(data))
    if not codes:
        raise InputError(f"none of the {len(data)} faces is clear enough: give larger, sharper, frontal ones")
    return np.stack(codes).astype(np.float32), np.array(rows)


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


def _meshes(data: FaceData, mesh: FaceMesh, say: Progress) -> tuple[Floats, Floats]:
    points, presence = [], []
    for done, image in enumerate(images_of(data)):
        found = find_meshes(mesh, image, _template())[0]
        points.append(found.points)
        presence.append(found.presence)
        if done % 100 == 99 or done == len(data) - 1:
            say("reading meshes", done + 1, len(data))
    return np.stack(points), np.array(presence, np.float32)


def _template() -> NDArray[np.float64]:
    return Alignment().points(SIDE)[None]


def images_of(data: FaceData) -> Iterator[NDArray[np.uint8]]:
    """Decoded crops, a few hundred at a time in memory."""
    for begin in range(0, len(data), 256):
        part = data.subset(range(begin, min(begin + 256, len(data))))
        yield from np.ascontiguousarray(part.resident().numpy().transpose(0, 2, 3, 1))
