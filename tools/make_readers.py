"""Make what reads a face: kind.safetensors (ethnic group, gender, age), glasses.safetensors, beards.safetensors.

    python tools/make_readers.py kind faces128-*.tar --labels faces128.csv --check faces128-val.tar
    python tools/make_readers.py glasses faces256-crisp-0.tar faces256-crisp-1.tar
    python tools/make_readers.py beards faces256-crisp-0.tar faces256-crisp-1.tar

Faces are aligned as `ficgan align` does it. `kind` takes labels as FairFace has them: columns race, gender, age. Its
table says how often faces of --check, which it does not learn from, are read right, and what they are taken for.

The labels of glasses and beards, beside this file, were given by looking at the faces: 1 for a beard, 2 for one that is
lent, too (synthetic faces alone); those of whom it is hard to say are left out. Printed is how well faces are read that
were left out of the fit.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC
from torch import nn

from ficgan.arrays import LUMA, luminance, write_arrays
from ficgan.cli.main import handle_errors
from ficgan.data import open_faces
from ficgan.errors import InputError
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes, get_recognizer
from ficgan.faces.mesh import LEFT_EYE, RIGHT_EYE
from ficgan.frame import LO, Readings, beards, glasses
from ficgan.frame.appearance import AppearanceModel
from ficgan.frame.compose import read_texture
from ficgan.frame.file import load_appearance
from ficgan.frame.learn import SIDE, images_of
from ficgan.identity.kind import AGES, ETHNICITIES, GENDERS, YEARS, KindReader, cells_of

FOLDER = Path(__file__).resolve().parent
PRETRAINED = FOLDER.parent / "pretrained"

Floats = NDArray[np.float32]

# --- kind -----------------------------------------------------------------------------------------------------------

HIDDEN, DROPOUT, NOISE, EPOCHS, BATCH = 384, 0.4, 0.3, 24, 256
RATE, DECAY, SMOOTHING, YEARS_SOFT, YEARS_WEIGHT = 2e-3, 0.05, 0.05, 6.0, 0.03


def read(paths: list[Path], labels: Path) -> tuple[Floats, NDArray[np.int64]]:
    """Embeddings [N,128] and cells [N] of the labelled faces."""
    faces = open_faces(paths, resolution=SIDE, labels=labels)
    marks = faces.labels
    cell = None if marks is None else cells_of(marks.attributes, marks.attribute_names)
    if cell is None:
        raise InputError(f"{labels} does not know race, gender and age as FairFace names them")
    gate, points = get_recognizer("dlib"), Alignment().points(SIDE)[None]
    found = np.concatenate([gate.embed(image, points) for image in images_of(faces)])
    return found[cell >= 0], cell[cell >= 0]


def fit(embeddings: Floats, cell: NDArray[np.int64], seed: int = 0) -> KindReader:
    """Train the reader: noise on the embeddings, labels smoothed, ages as a distribution over neighbouring bands."""
    torch.manual_seed(seed)
    mean, scale = embeddings.mean(0), embeddings.std(0)
    x = torch.from_numpy((embeddings - mean) / scale)
    group, male, age = (torch.from_numpy(part) for part in np.unravel_index(cell, (len(ETHNICITIES), 2, len(AGES))))
    years = torch.from_numpy(YEARS)
    soft = (-(years[age][:, None] - years).abs() / YEARS_SOFT).softmax(1)
    sizes = (x.shape[1], HIDDEN, HIDDEN, len(ETHNICITIES) + 1 + len(AGES))
    layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
    network = nn.Sequential(
        layers[0], nn.SiLU(), nn.Dropout(DROPOUT), layers[1], nn.SiLU(), nn.Dropout(DROPOUT), layers[2]
    )
    steps = EPOCHS * (len(x) // BATCH)
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=max(steps, 1))
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x)).split(BATCH):
            if len(rows) < BATCH:
                continue
            out = network(x[rows] + NOISE * torch.randn(BATCH, x.shape[1]))
            races, sex, ages = out.split([len(ETHNICITIES), 1, len(AGES)], 1)
            loss = F.cross_entropy(races, group[rows], label_smoothing=SMOOTHING)
            loss = loss + F.binary_cross_entropy_with_logits(sex[:, 0], male[rows].float())
            loss = loss + 0.5 * F.cross_entropy(ages, soft[rows])
            loss = loss + YEARS_WEIGHT * (ages.softmax(1) @ years - years[age[rows]]).abs().mean()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
    arrays = [
        tuple(part.detach().numpy().T.copy() for part in parts)
        for parts in ([layer.weight for layer in layers], [layer.bias for layer in layers])
    ]
    return KindReader(mean, scale, *arrays)


def table(reader: KindReader, embeddings: Floats, cell: NDArray[np.int64]) -> list[str]:
    """How often each group is read right, and what it is taken for."""
    found = reader.read(embeddings)
    group, male, age = np.unravel_index(cell, (len(ETHNICITIES), len(GENDERS), len(AGES)))
    read_as, sex, years = found[:, : len(ETHNICITIES)].argmax(1), found[:, -2] > 0.5, found[:, -1]

    def line(name: str, rows: Any) -> str:
        taken = np.bincount(read_as[rows], minlength=len(ETHNICITIES))
        right = [np.mean(read_as[rows] == group[rows]), np.mean(sex[rows] == male[rows])]
        error = np.abs(years[rows] - YEARS[age[rows]]).mean()
        return f"{name:16} {right[0]:.3f}  {right[1]:.3f}  {error:4.1f}  {' '.join(f'{count:4}' for count in taken)}"

    head = f"{'':16} group  gender age   taken for {', '.join(ETHNICITIES)}"
    lines = [head, line("all", np.ones(len(cell), bool))]
    lines += [line(name, group == n) for n, name in enumerate(ETHNICITIES) if (group == n).any()]
    return lines + [line(name, age == n) for n, name in enumerate(AGES) if (age == n).any()]


def make_kind(options: argparse.Namespace) -> None:
    reader = fit(*read(options.faces, options.labels))
    if options.check:
        print("\n".join(table(reader, *read(options.check, options.labels))))
    reader.save(options.out)


# --- glasses and beards ---------------------------------------------------------------------------------------------

# Parts of the cross-validation.
PARTS = 16


def labelled(
    paths: list[Path], what: str, model: AppearanceModel
) -> Iterator[tuple[int, NDArray[np.uint8], Readings, NDArray[np.uint8]]]:
    """Label, picture, reading and texture of each face of the table of `what`."""
    with (FOLDER / f"{what}.csv").open() as file:
        labels = {name: int(label) for name, label in list(csv.reader(file))[1:]}
    faces = open_faces(paths, resolution=256)
    faces = faces.subset([row for row, name in enumerate(faces.names) if name in labels])
    mesh, points = MediaPipeMesh(), Alignment().points(faces.resolution).astype(np.float32)
    for name, image in zip(faces.names, images_of(faces), strict=True):
        found = find_meshes(mesh, image, points[None])[0]
        seen = model.shape.read(found.points[None])
        yield labels[name], image, seen, read_texture(image, seen.upright[0], seen.points[0], model.warp)


def fitted(
    machine: BaseEstimator, x: Floats, y: NDArray[np.bool_], limits: Sequence[float]
) -> tuple[StandardScaler, Any]:
    """A scaler and the machine behind it, fitted; prints how well faces are read that were left out."""
    reader = make_pipeline(StandardScaler(), machine)
    left_out = cross_val_predict(reader, x, y, cv=PARTS, method="decision_function")
    print(f"{len(y)} faces, {y.sum()} that wear it; left out: AUC {roc_auc_score(y, left_out):.3f}")
    for limit in limits:
        hits, false = (left_out[y] > limit).mean(), (left_out[~y] > limit).mean()
        print(f"evidence above {limit}: {hits:.3f} of those who wear it, {false:.3f} of the others")
    scaler, machine = reader.fit(x, y)
    return scaler, machine


# Inverse strength of the regularisation.
STRENGTH = 0.005
# What is farther from the expected texture counts as so far, in units of the contrast; middle of glasses below the
# eyes, and reach above and below it, in units of the frame.
MOST, LOWER, REACH = 4.0, 3.0, 22.0


def make_glasses(options: argparse.Namespace) -> None:
    model = load_appearance(PRETRAINED / "appearance.safetensors")[0]
    lines, rests, worn = [], [], []
    for label, _, seen, texture in labelled(options.faces, "glasses", model):
        lines.append(glasses.lines_of(texture))
        rests.append(model.unpredicted(model.seen(texture[None])[0], model.encode(texture[None], seen)[1]))
        worn.append(label == 1)
    x, y, rest = np.stack(lines), np.array(worn), np.clip(np.stack(rests), -MOST, MOST)
    line = LogisticRegression(C=STRENGTH, max_iter=2000)
    scaler, line = fitted(line, x, y, (glasses.UNSURE, glasses.SURE))
    weight = (line.coef_[0] / scaler.scale_).astype(np.float32)
    bias = np.array([line.intercept_[0] - weight @ scaler.mean_], np.float32)
    trace = np.zeros(model.size**2, np.float32)
    trace[model.pixels] = luminance((rest[y].mean(0) - rest[~y].mean(0)).reshape(-1, 3))
    trace = trace.reshape(model.size, model.size) * around_eyes(model)
    levels = rest @ glasses.Trace.of(model, trace).reads
    levels = np.array([levels[~y].mean(), levels[y].mean()], np.float32)
    arrays = glasses.GlassesReader(weight, bias, trace, levels)._asdict()
    write_arrays(options.out, {**arrays, "trace": trace.astype(np.float16)}, {}, kind="glasses-reader")


def around_eyes(model: AppearanceModel) -> NDArray[np.float32]:
    """Weights [R,1] of rows, 1 where glasses may be."""
    eyes = (model.shape.front[np.r_[LEFT_EYE, RIGHT_EYE], 1].mean() + LOWER - LO[1]) / model.warp.step[1]
    away = np.abs(np.arange(model.size) - eyes) * model.warp.step[1] / REACH
    return np.clip(1.3 - away, 0, 1)[:, None].astype(np.float32)


# Penalty of errors; the kernel's width times the number of features.
PENALTY, WIDTH = 30.0, 0.6
# Most turn of a face that is learnt from, radians.
MOST_YAW = 0.3
# Mesh points amid skin, and amid a beard, of a lender; half of the windows around them, pixels of twice SIDE.
SKIN, BEARD, WINDOWS = [50, 280, 101, 330], [199, 136, 365, 169, 394, 149, 378], (8, 6)
# How a lender's beard is told from skin: blurs of colours and of the strength of hairs, and of the border.
BLURS, SOFT, BLACK = (1.2, 2.5, 3.0, 4.0), 2.5, 0.03
# Width of a beard's border, and of the blur that leaves its shade, pixels.
BORDER, SHADE = 7, 4.0
# Where a beard may end above: distance from the middle, and heights between that of the nose's base (0) and that of the
# corners of the mouth (1). What is darker above is a fold or a shadow.
ACROSS, ABOVE = (0.11, 0.16, 0.2, 0.42), (0.1, 0.75, 0.6, -1.0)
# Mesh points at the nose's base, at a corner of the mouth and around the lips; twice the skin around these, pixels.
NOSE, CORNER, LIP = 2, 61, 7
LIPS = [61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291, 409, 270, 269, 267, 0, 37, 39, 40, 185]


def make_beards(options: argparse.Namespace) -> None:
    model = load_appearance(PRETRAINED / "appearance.safetensors")[0]
    tones, worn, lent = list[Floats](), list[bool](), list[tuple[Floats, ...]]()
    for label, image, seen, texture in labelled(options.faces, "beards", model):
        if abs(float(seen.pose.yaw[0])) > MOST_YAW:
            continue
        tones.append(beards.tones_of(texture, model.shape.front))
        worn.append(label > 0)
        if label == 2:
            fine = read_texture(image, seen.upright[0], seen.points[0], model.warp, finer=2)
            lent.append(layer_of(fine.astype(np.float32) / np.float32(255), model))
    x, y = np.stack(tones), np.array(worn)
    machine = SVC(C=PENALTY, gamma=WIDTH / x.shape[1], class_weight="balanced")
    scaler, machine = fitted(machine, x, y, (beards.UNSURE, beards.SURE))
    cover, hairs, levels = (np.stack(parts) for parts in zip(*lent, strict=True))
    first = int(np.flatnonzero(cover.max((0, 2)) > 0.01).min())
    cover, hairs = cover[:, first:], hairs[:, first:]
    arrays = beards.BeardReader(
        scaler.mean_.astype(np.float16),
        scaler.scale_.astype(np.float16),
        machine.support_vectors_.astype(np.float16),
        machine.dual_coef_[0].astype(np.float32),
        machine.intercept_.astype(np.float32),
        np.array([machine.gamma], np.float32),
        np.rint(255 * cover.mean(0)).astype(np.uint8),
        np.rint(np.clip(beards.HAIR_UNIT * hairs, -127, 127)).astype(np.int8),
        levels.astype(np.float32),
    )
    write_arrays(options.out, arrays._asdict(), {}, kind="beard-reader")


def layer_of(texture: NDArray[np.float32], model: AppearanceModel) -> tuple[NDArray[np.float32], ...]:
    """Of the beard in a texture [n,n,3]: cover [n,n], how much lighter than its mean it is [n,n], and it than skin."""
    front, side = model.shape.front, len(texture)
    logs = np.log(texture + np.float32(BLACK))
    beside = logs - beards.skin_of(logs, front)
    grey = beside @ LUMA
    band = grey - cv2.GaussianBlur(grey, (0, 0), BLURS[1])
    strength = np.log(np.sqrt(cv2.GaussianBlur(band * band, (0, 0), BLURS[2])) + 0.01)
    seen = np.dstack([cv2.GaussianBlur(beside, (0, 0), BLURS[0]), strength, cv2.GaussianBlur(grey, (0, 0), BLURS[3])])

    def around(marks: list[int], half: int) -> NDArray[np.float32]:
        windows = [seen[y - half : y + half + 1, x - half : x + half + 1] for x, y in beards.places(marks, front, side)]
        return np.concatenate([window.reshape(-1, seen.shape[2]) for window in windows])

    skin, hair = around(SKIN, WINDOWS[0]), around(BEARD, WINDOWS[1])
    known = np.repeat([0, 1], [len(skin), len(hair)])
    teller = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1, priors=[0.5, 0.5])
    teller.fit(np.concatenate([skin, hair]), known)
    apart = teller.decision_function(hair).mean() - teller.decision_function(skin).mean()
    odds = 4 * teller.decision_function(seen.reshape(-1, seen.shape[2])).reshape(side, side) / max(np.sqrt(apart), 1)
    told = cv2.GaussianBlur((1 / (1 + np.exp(-np.clip(odds, -20, 20)))).astype(np.float32), (0, 0), SOFT)
    ys, xs = np.mgrid[:side, :side].astype(np.float32)
    (nose, corner), lips = beards.places([NOSE, CORNER], front, side), np.zeros((side, side), np.float32)
    top = nose[1] + (corner[1] - nose[1]) * np.interp(np.abs(xs - nose[0]) / side, ACROSS, ABOVE)
    below = np.clip((ys - top) / 8 + 0.5, 0, 1)
    cv2.fillPoly(lips, [beards.places(LIPS, front, side).astype(np.int32)], 1.0)
    lips = cv2.GaussianBlur(cv2.dilate(lips, np.ones((LIP, LIP))), (0, 0), LIP / 3)
    cover = told * below * (1 - lips)
    # At its border a beard lets skin through: there it gets the shade of what lies farther inside, and hairs as there.
    inside = cv2.erode(cover, np.ones((BORDER, BORDER))) + np.float32(1e-4) * cover
    shade = cv2.GaussianBlur(grey * inside, (0, 0), SHADE) / (cv2.GaussianBlur(inside, (0, 0), SHADE) + 1e-9)
    least, most = np.quantile((grey - shade)[inside > 0.9], (0.02, 0.98))
    level = np.average(shade, weights=cover)
    return cover, shade - level + np.clip(grey - shade, least, most), np.float32(level)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    makers = {"kind": make_kind, "glasses": make_glasses, "beards": make_beards}
    for name in makers:
        command = commands.add_parser(name)
        command.add_argument("faces", type=Path, nargs="+")
        command.add_argument("-o", "--out", type=Path, default=PRETRAINED / f"{name}.safetensors")
        if name == "kind":
            command.add_argument("--labels", type=Path, required=True)
            command.add_argument("--check", type=Path, nargs="+", default=[])
    options = parser.parse_args()
    makers[options.command](options)
    print(f"{options.out}: {options.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    handle_errors(main)()
