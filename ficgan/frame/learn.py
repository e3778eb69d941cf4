"""Read aligned faces, fit a model to them, and make the codes of a bank.

And the synthetic faces that lend new ones their fine detail and their teeth.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import blurred, luminance
from ficgan.device import cpus
from ficgan.errors import InputError, Progress, unheard
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes, get_recognizer
from ficgan.faces.mesh import GOOD_PRESENCE
from ficgan.frame import Doubles, Floats, Readings, Warp
from ficgan.frame.appearance import COVERED, MIDDLE_UNIT, SHAVED, TONE_UNIT, AppearanceModel
from ficgan.frame.beards import UNSURE as PERHAPS_A_BEARD
from ficgan.frame.beards import read_beard
from ficgan.frame.compose import read_texture
from ficgan.frame.drawn import TEETH_UNIT, read_teeth, teeth_of
from ficgan.frame.file import FrameNetwork
from ficgan.frame.glasses import UNSURE, read_glasses
from ficgan.frame.lent import middle_of, relief_of, tone_of
from ficgan.identity.kind import AGE, Kind, kind_reader

if TYPE_CHECKING:
    from ficgan.data import FaceData, Labels

from ficgan.frame.fit import FitConfig, fit_appearance, fit_shape

Found = TypeVar("Found")
# Of the aligned crops, pixels: a frame unit is a 128th of the template's crop.
SIDE = 128
# Share of a face beyond which it gives no code to a bank: one in 23 of the clear faces of FairFace.
_COVERED = 0.12
_IN_MEMORY = 256  # decoded crops
_AGE = re.compile(r"(\d+)\s*-\s*(\d+)|(?:more than|over|\+)?\s*(\d+)\s*\+?")


@dataclass(frozen=True, eq=False)
class Learnt:
    """A fitted model, a record of the data, and the M clear faces: rows, readings, textures uint8 [M,R,R,3]."""

    model: AppearanceModel
    record: dict[str, Any]
    rows: NDArray[np.int64]
    read: Readings
    textures: NDArray[np.uint8]

    def codes(self, model: AppearanceModel) -> Floats:
        """Codes as a bank holds them and attributes [M,D+A] of the clear faces, as a model reads them."""
        rows = range(len(self.rows))
        return np.stack([_banked(model, self.textures[row], self.read.take([row]))[0] for row in rows])


def learn(data: FaceData, mesh: MediaPipeMesh, config: FitConfig, progress: Progress = unheard) -> Learnt:
    """Fit geometry and appearance to aligned faces at 128² by the default template, with labels where there are any."""
    points, presence = meshes_of(data, mesh, progress)
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

    for row, found in _each(data.subset(clear), texture, "reading textures", progress):
        textures[row] = found
    labels = None if data.labels is None else data.labels.take([int(i) for i in clear])
    names, kept = kept_attributes(labels, len(clear))
    model = fit_appearance(shape, read, textures, _groups(labels, len(clear)), kept, names, config, progress)
    record = {"images": len(data), "clear": len(clear), "mesh": mesh.name, "fingerprint": data.fingerprint}
    return Learnt(model, record, clear, read, textures)


def codes_of(
    model: AppearanceModel,
    data: FaceData,
    mesh: MediaPipeMesh,
    presence: float,
    network: FrameNetwork | None = None,
    progress: Progress = unheard,
) -> tuple[Floats, NDArray[np.int64]]:
    """Codes as a bank holds them, attributes and the network's w [M,D+A+W] of a set's clear faces; their rows [M].

    Faces with glasses or much else before them (hands) are left out: draws of old people would wear spectacles.
    """
    points, sure = meshes_of(data, mesh, progress)
    clear = np.flatnonzero(sure >= presence)
    if not len(clear):
        raise InputError(f"none of the {len(data)} faces is clear enough: give larger, sharper, frontal ones")

    def code_of(row: int, image: NDArray[np.uint8]) -> tuple[Floats, bool]:
        read = model.shape.read(points[clear[row]][None])
        texture = read_texture(image, read.upright[0], read.points[0], model.warp)
        code, covered = _banked(model, texture, read, network)
        return code, covered < _COVERED and read_glasses(texture, model.warp)[0] < UNSURE

    found = [one for _, one in _each(data.subset(clear), code_of, "encoding", progress)]
    bare = np.array([bare for _, bare in found])
    return np.stack([code for code, _ in found])[bare], clear[bare]


def _banked(
    model: AppearanceModel, texture: NDArray[np.uint8], read: Readings, network: FrameNetwork | None = None
) -> tuple[Floats, float]:
    """Code, attributes and w [D+A+W] of one face without what lies over it, and how much of it that covers."""
    texture, covered, _ = model.uncovered(texture, read)
    code, moment = model.encode(texture[None], read)
    parts = [model.bank_codes(code)[0], moment.kept[0]]
    if network is not None:
        parts.append(network.read(texture[None], model.identity_code(code, moment.kept))[0])
    return np.concatenate(parts).astype(np.float32), covered


def kept_attributes(labels: Labels | None, count: int) -> tuple[tuple[str, ...], Doubles]:
    """Gender and age, as far as labels have them: names, and values [N,A] with NaN where unknown."""
    names: list[str] = []
    columns: list[Doubles] = []
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
    columns = () if labels is None else labels.attribute_columns
    rows = [i for i, column in enumerate(columns) if column.casefold() in ("race", "ethnicity")]
    if labels is None or not rows:
        return [""] * count
    table = labels.attributes[:, rows]
    return [labels.attribute_names[rows[one.argmax()]] if one.any() else "" for one in table]


def meshes_of(data: FaceData, mesh: MediaPipeMesh, progress: Progress = unheard) -> tuple[Floats, Floats]:
    """Points float32 [N,478,3] in pixels of the crops, and presence float32 [N], of aligned faces at 128²."""
    template = Alignment().points(SIDE)[None]

    def read(row: int, image: NDArray[np.uint8]) -> tuple[Floats, float]:
        found = find_meshes(mesh, image, template)[0]
        return found.points, found.presence

    found = [one for _, one in _each(data, read, "reading meshes", progress)]
    return np.stack([points for points, _ in found]), np.array([presence for _, presence in found], np.float32)


def _each(
    data: FaceData, work: Callable[[int, NDArray[np.uint8]], Found], stage: str, progress: Progress
) -> Iterator[tuple[int, Found]]:
    """Row and work(row, crop) of every face, in order; as many at once as there are cores, a few hundred in memory."""
    with ThreadPoolExecutor(cpus()) as pool:
        for begin in range(0, len(data), _IN_MEMORY):
            rows = range(begin, min(begin + _IN_MEMORY, len(data)))
            yield from zip(rows, pool.map(work, rows, _crops(data, rows)), strict=True)
            progress(rows.stop, len(data), stage)


def images_of(data: FaceData) -> Iterator[NDArray[np.uint8]]:
    """Decoded crops, a few hundred at a time in memory."""
    for begin in range(0, len(data), _IN_MEMORY):
        yield from _crops(data, range(begin, min(begin + _IN_MEMORY, len(data))))


def _crops(data: FaceData, rows: range) -> NDArray[np.uint8]:
    return np.ascontiguousarray(data.subset(rows).resident().numpy().transpose(0, 2, 3, 1))


# -- faces that lend new ones their detail and their teeth -------------------------------------------------------------

# Faces that lend; share of those that may, by how ordinary it is; share of a face that may be unlike the
# model: wrinkles are, as are glasses.
LENDERS, _ODDEST, _UNLIKE = 128, 0.9, 3 * COVERED
# Deviations of other lenders' light and shade beyond which one's is a scar or a shadow; how many more of brows, which
# differ; blur of them, pixels. Lightest skin close to brows, of the contrast: a lighter end of a brow is a patch.
_MOST_ODD, _OF_BROWS, _AROUND, _BESIDE_BROWS = 1.5, 2.0, 2.0, np.float32(0.4)
# Usual strength of a lender's detail at ages; years that one seems older with twice as much; the oldest that anybody
# seems, as readers hardly tell 70 from 85.
_YEARS, _USUAL_DETAIL, _OLDER = (10, 20, 35, 55, 65, 75), (0.014, 0.02, 0.028, 0.035, 0.055, 0.08), 6.0
_OLDEST = 70.0
# Most turn of a face that lends anything, radians.
_FRONTAL = 0.3
# Opening of a mouth, in its widths, and brightness of its teeth above the dark, from which on they can be lent.
_OPEN, _CLEAR = 0.13, 0.2


def lend(
    model: AppearanceModel, data: FaceData, mesh: MediaPipeMesh, number: int | None = LENDERS
) -> tuple[AppearanceModel, list[str]]:
    """The model with the fine detail and the teeth of aligned synthetic faces, and the names of those that lend detail.

    Of each kind of person, as far as there are faces, those lend detail that is closest to the median. Faces that
    something lies over lend none, but may lend teeth.

    Args:
        data: faces of at least twice the frame's size.
        number: how many lend, at most; None: all, as people have looked at them.
    """
    gate, corners = get_recognizer("dlib"), Alignment().points(data.resolution).astype(np.float32)
    details, tones, middles, embeddings, mouths, names = [], [], [], [], [], []
    for name, image in zip(data.names, images_of(data), strict=True):
        found = find_meshes(mesh, image, corners[None])[0]
        if found.presence < GOOD_PRESENCE:
            continue
        read = model.shape.read(found.points[None])
        if abs(float(read.pose.yaw[0])) > _FRONTAL:
            continue
        small, double = (read_texture(image, read.upright[0], read.points[0], model.warp, finer=n) for n in (1, 2))
        seen = read_teeth(small, found.points, model.mask, model.warp)
        mouths.append((*teeth_of(image, found.points), seen))
        _, covered, (_, moment) = model.uncovered(small, read)
        pixels = model.seen(small[None])[0]
        hairy = bool(read_beard(small, model.shape.front).evidence > PERHAPS_A_BEARD)
        hairy |= bool(model.moustache[0] @ model.unpredicted(pixels, moment) < SHAVED)
        if covered > _UNLIKE or hairy or read_glasses(small, model.warp)[0] > UNSURE:
            continue
        middle = middle_of(pixels, model, moment)
        middles.append(_evened(middle, model).ravel()[model.pixels])
        grey = luminance(double) / np.float32(255)
        details.append(relief_of(grey).ravel()[model.fine_pixels])
        tones.append(tone_of(grey, model.size // 2))
        embeddings.append(gate.embed(image, corners[None])[0])
        names.append(name)
    if not details:
        raise InputError("no face of the detail set is clear enough: give aligned, frontal faces")
    table, kinds = np.stack(details), kind_reader().read(np.stack(embeddings).astype(np.float32))
    every = np.arange(len(names))
    rows = every if number is None else _typical((table, np.stack(middles)), kinds, number)
    scale = float(np.quantile(np.abs(table[rows]), 0.9995)) / 127
    teeth, openings = _open_mouths(mouths)
    lent = replace(
        model,
        details=_steps(table[rows] / scale),
        detail_tones=_steps(TONE_UNIT * np.stack(tones)[rows]),
        middles=_steps(MIDDLE_UNIT * _ordinary(np.stack(middles), model)[rows]),
        lenders=as_old_as_they_look(kinds[rows], table[rows]),
        detail_scale=scale,
        teeth=teeth,
        teeth_openings=openings,
    )
    return lent, [names[row] for row in rows]


def as_old_as_they_look(kinds: Floats, details: Floats) -> Floats:
    """Readings [N,9] of lenders, older where their detail [N,Q] is stronger than is usual at that age."""
    usual = np.interp(kinds[:, AGE], _YEARS, _USUAL_DETAIL)
    out, times = kinds.copy(), np.median(np.abs(details), axis=1) / 0.6745 / usual
    older = out[:, AGE] + _OLDER * np.maximum(np.log2(np.maximum(times, 1e-6)), 0)
    out[:, AGE] = np.maximum(out[:, AGE], np.minimum(older, _OLDEST))
    return out


def _steps(values: Floats) -> NDArray[np.int8]:
    return np.clip(np.rint(values), -127, 127).astype(np.int8)


def _evened(middle: Floats, model: AppearanceModel) -> Floats:
    """Light and shade [R,R] of a lender, made alike on both sides: wholly on brows and nose, half elsewhere.

    Light from the side and a raised brow belong to one photo. Wrinkles differ from side to side.
    """
    alike = np.maximum(model.on_brows, model.nose)
    share = np.float32(0.25) * (1 + np.maximum(alike, alike[:, ::-1]))
    return middle + share * (middle[:, ::-1] - middle)


def _ordinary(middles: Floats, model: AppearanceModel) -> Floats:
    """Light and shade [N,P] of lenders without what the others have not, or less of it."""
    usual = np.median(middles, axis=0)
    spread = np.zeros((model.size, model.size), np.float32)
    spread.ravel()[model.pixels] = np.median(np.abs(middles - usual), axis=0) / 0.6745
    most = np.float32(_MOST_ODD) * blurred(spread, _AROUND).ravel()[model.pixels] + np.float32(1 / MIDDLE_UNIT)
    on_brows = model.on_brows.ravel()[model.pixels]
    most *= 1 + np.float32(_OF_BROWS) * on_brows
    out: Floats = usual + most * np.tanh((middles - usual) / most)
    light = np.maximum(out, 0)
    out -= on_brows * (light - _BESIDE_BROWS * np.tanh(light / _BESIDE_BROWS))
    return out


def _typical(tables: Sequence[Floats], kinds: Floats, number: int) -> NDArray[np.int64]:
    """Ascending rows of the faces that lend: of each kind [N,9] those with the most typical tables [N,Q]."""
    oddness = np.sum([_oddness(table, kinds) for table in tables], axis=0)
    kept = np.flatnonzero(oddness <= np.quantile(oddness, _ODDEST))
    cells = [Kind.of(kinds[row]).cells.argmax() for row in kept]
    rank, count = np.empty(len(kept), int), Counter[int]()
    for place in np.argsort(oddness[kept], kind="stable"):
        rank[place] = count[cells[place]]
        count[cells[place]] += 1
    return np.sort(kept[np.lexsort([oddness[kept], rank])[:number]])


def _oddness(table: Floats, kinds: Floats) -> Floats:
    """How far each of [N,Q] is from the usual strength, and how many lines and dots it has that others have not."""
    spread = np.log(table.std(1))
    if len(table) > 2:  # the old have more detail than the young
        spread = spread - np.polyval(np.polyfit(kinds[:, AGE], spread, 1), kinds[:, AGE])
    deviation = np.abs(table - np.median(table, axis=0))
    lines = np.log(np.quantile(deviation, 0.995, axis=1) / table.std(1))
    return np.abs(spread - np.quantile(spread, 0.25)) + np.maximum(lines - np.median(lines), 0)


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
