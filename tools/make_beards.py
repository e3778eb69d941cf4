"""Make pretrained/beards.safetensors, which reads from a face in the frame whether it has a beard, and lends others.

    python tools/make_beards.py faces256-crisp-0.tar faces256-crisp-1.tar

The labels beside this file were given by looking at the faces: 1 for a beard, 2 for one that is lent, too (synthetic
faces alone); those of whom it is hard to say are left out. Prints how well faces are read that were left out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from ficgan.arrays import LUMA, write_arrays
from ficgan.cli.main import handle_errors
from ficgan.data import open_faces
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes
from ficgan.frame.appearance import AppearanceModel
from ficgan.frame.beards import HAIR_UNIT, SURE, UNSURE, BeardReader, places, skin_of, tones_of
from ficgan.frame.compose import read_texture
from ficgan.frame.file import load_appearance
from ficgan.frame.learn import images_of

FOLDER = Path(__file__).resolve().parent
PRETRAINED = FOLDER.parent / "pretrained"
# Penalty of errors, of the kernel's width times the number of features; parts of the cross-validation.
PENALTY, WIDTH, PARTS = 30.0, 0.6, 16
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faces", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path, default=PRETRAINED / "beards.safetensors")
    options = parser.parse_args()
    with (FOLDER / "beards.csv").open() as file:
        labels = {row["file"]: int(row["beard"]) for row in csv.DictReader(file)}
    faces = open_faces(options.faces, resolution=256)
    faces = faces.subset([row for row, name in enumerate(faces.names) if name in labels])
    model, mesh = load_appearance(PRETRAINED / "appearance.safetensors")[0], MediaPipeMesh()
    points, front = Alignment().points(faces.resolution).astype(np.float32), model.shape.front
    tones, worn, lent = list[NDArray[np.float32]](), list[bool](), list[tuple[NDArray[np.float32], ...]]()
    for name, image in zip(faces.names, images_of(faces), strict=True):
        found = find_meshes(mesh, image, points[None])[0]
        read = model.shape.read(found.points[None])
        if abs(float(read.pose.yaw[0])) > MOST_YAW:
            continue
        tones.append(tones_of(read_texture(image, read.upright[0], read.points[0], model.warp), front))
        worn.append(labels[name] > 0)
        if labels[name] == 2:
            texture = read_texture(image, read.upright[0], read.points[0], model.warp, finer=2)
            lent.append(layer_of(texture.astype(np.float32) / np.float32(255), model))
    x, y = np.stack(tones), np.array(worn)
    machine = SVC(C=PENALTY, gamma=WIDTH / x.shape[1], class_weight="balanced")
    reader = make_pipeline(StandardScaler(), machine)
    left_out = cross_val_predict(reader, x, y, cv=PARTS, method="decision_function")
    print(
        f"{len(y)} faces, {y.sum()} with a beard, {len(lent)} lenders; left out: AUC {roc_auc_score(y, left_out):.3f}"
    )
    for limit in (UNSURE, SURE):
        hits, false = (left_out[y] > limit).mean(), (left_out[~y] > limit).mean()
        print(f"evidence above {limit}: {hits:.3f} of those with a beard, {false:.3f} of the others")
    scaler, machine = reader.fit(x, y)
    first = int(min(np.flatnonzero(cover.max(1) > 0.01).min() for cover, _ in lent))
    cover, hairs = (np.stack(parts)[:, first:] for parts in zip(*lent, strict=True))
    arrays = BeardReader(
        scaler.mean_.astype(np.float16),
        scaler.scale_.astype(np.float16),
        machine.support_vectors_.astype(np.float16),
        machine.dual_coef_[0].astype(np.float32),
        machine.intercept_.astype(np.float32),
        np.array([machine.gamma], np.float32),
        np.rint(255 * cover).astype(np.uint8),
        np.rint(np.clip(HAIR_UNIT * hairs, -127, 127)).astype(np.int8),
    )
    write_arrays(options.out, arrays._asdict(), {}, kind="beard-reader")


def layer_of(texture: NDArray[np.float32], model: AppearanceModel) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """How much of a texture [n,n,3] a beard covers, and how light it is beside its mean, logarithms: [n,n] each."""
    front, side = model.shape.front, len(texture)
    logs = np.log(texture + np.float32(BLACK))
    beside = logs - skin_of(logs, front)
    grey = beside @ LUMA
    band = grey - cv2.GaussianBlur(grey, (0, 0), BLURS[1])
    strength = np.log(np.sqrt(cv2.GaussianBlur(band * band, (0, 0), BLURS[2])) + 0.01)
    seen = np.dstack([cv2.GaussianBlur(beside, (0, 0), BLURS[0]), strength, cv2.GaussianBlur(grey, (0, 0), BLURS[3])])

    def around(marks: list[int], half: int) -> NDArray[np.float32]:
        windows = [seen[y - half : y + half + 1, x - half : x + half + 1] for x, y in places(marks, front, side)]
        return np.concatenate([window.reshape(-1, seen.shape[2]) for window in windows])

    skin, hair = around(SKIN, WINDOWS[0]), around(BEARD, WINDOWS[1])
    known = np.repeat([0, 1], [len(skin), len(hair)])
    teller = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.1, priors=[0.5, 0.5])
    teller.fit(np.concatenate([skin, hair]), known)
    apart = teller.decision_function(hair).mean() - teller.decision_function(skin).mean()
    odds = 4 * teller.decision_function(seen.reshape(-1, seen.shape[2])).reshape(side, side) / max(np.sqrt(apart), 1)
    told = cv2.GaussianBlur((1 / (1 + np.exp(-np.clip(odds, -20, 20)))).astype(np.float32), (0, 0), SOFT)
    ys, xs = np.mgrid[:side, :side].astype(np.float32)
    (nose, corner), lips = places([NOSE, CORNER], front, side), np.zeros((side, side), np.float32)
    top = nose[1] + (corner[1] - nose[1]) * np.interp(np.abs(xs - nose[0]) / side, ACROSS, ABOVE)
    below = np.clip((ys - top) / 8 + 0.5, 0, 1)
    cv2.fillPoly(lips, [places(LIPS, front, side).astype(np.int32)], 1.0)
    lips = cv2.GaussianBlur(cv2.dilate(lips, np.ones((LIP, LIP))), (0, 0), LIP / 3)
    cover = told * below * (1 - lips)
    # At its border a beard lets skin through: there it gets the shade of what lies farther inside, and hairs as there.
    inside = cv2.erode(cover, np.ones((BORDER, BORDER))) + np.float32(1e-4) * cover
    shade = cv2.GaussianBlur(grey * inside, (0, 0), SHADE) / (cv2.GaussianBlur(inside, (0, 0), SHADE) + 1e-9)
    least, most = np.quantile((grey - shade)[inside > 0.9], (0.02, 0.98))
    return cover, shade - np.average(shade, weights=cover) + np.clip(grey - shade, least, most)


if __name__ == "__main__":
    handle_errors(main)()
