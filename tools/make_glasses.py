"""Make pretrained/glasses.safetensors, which reads from a face in the frame whether it wears glasses.

    python tools/make_glasses.py faces256-crisp-0.tar faces256-crisp-1.tar

The labels beside this file were given by looking at the faces. Prints how well faces are read that were left out.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from ficgan.arrays import luminance, write_arrays
from ficgan.cli.main import handle_errors
from ficgan.data import open_faces
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes
from ficgan.faces.mesh import LEFT_EYE, RIGHT_EYE
from ficgan.frame import LO
from ficgan.frame.appearance import AppearanceModel
from ficgan.frame.compose import read_texture
from ficgan.frame.file import load_appearance
from ficgan.frame.glasses import SURE, UNSURE, GlassesReader, Trace, lines_of
from ficgan.frame.learn import images_of

FOLDER = Path(__file__).resolve().parent
PRETRAINED = FOLDER.parent / "pretrained"
# Inverse strength of the regularisation; parts of the cross-validation.
PENALTY, PARTS = 0.005, 16
# What is farther from the expected texture counts as so far, in units of the contrast; middle of glasses below the
# eyes, and reach above and below it, in units of the frame.
MOST, LOWER, REACH = 4.0, 3.0, 22.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("faces", type=Path, nargs="+")
    parser.add_argument("-o", "--out", type=Path, default=PRETRAINED / "glasses.safetensors")
    options = parser.parse_args()
    with (FOLDER / "glasses.csv").open() as file:
        labels = {row["file"]: row["glasses"] == "1" for row in csv.DictReader(file)}
    faces = open_faces(options.faces, resolution=256)
    faces = faces.subset([row for row, name in enumerate(faces.names) if name in labels])
    model, mesh, corners = load_appearance(PRETRAINED / "appearance.safetensors")[0], MediaPipeMesh(), Alignment()
    points = corners.points(faces.resolution).astype(np.float32)
    lines, rests, worn = [], [], []
    for name, image in zip(faces.names, images_of(faces), strict=True):
        found = find_meshes(mesh, image, points[None])[0]
        read = model.shape.read(found.points[None])
        texture = read_texture(image, read.upright[0], read.points[0], model.warp)
        lines.append(lines_of(texture))
        rests.append(model.unpredicted(model.seen(texture[None])[0], model.encode(texture[None], read)[1]))
        worn.append(labels[name])
    x, y, rest = np.stack(lines), np.array(worn), np.clip(np.stack(rests), -MOST, MOST)
    reader = make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=2000))
    left_out = cross_val_predict(reader, x, y, cv=PARTS, method="decision_function")
    print(f"{len(y)} faces, {y.sum()} with glasses; left out: AUC {roc_auc_score(y, left_out):.3f}")
    for limit in (UNSURE, SURE):
        hits, false = (left_out[y] > limit).mean(), (left_out[~y] > limit).mean()
        print(f"evidence above {limit}: {hits:.3f} of those with glasses, {false:.3f} of the others")
    scaler, line = reader.fit(x, y)
    weight = (line.coef_[0] / scaler.scale_).astype(np.float32)
    bias = np.array([line.intercept_[0] - weight @ scaler.mean_], np.float32)
    trace = np.zeros(model.size**2, np.float32)
    trace[model.pixels] = luminance((rest[y].mean(0) - rest[~y].mean(0)).reshape(-1, 3))
    trace = trace.reshape(model.size, model.size) * around_eyes(model)
    levels = rest @ Trace.of(model, trace).reads
    arrays = GlassesReader(weight, bias, trace, np.array([levels[~y].mean(), levels[y].mean()], np.float32))
    write_arrays(options.out, {**arrays._asdict(), "trace": trace.astype(np.float16)}, {}, kind="glasses-reader")


def around_eyes(model: AppearanceModel) -> NDArray[np.float32]:
    """Weights [R,1] of rows, 1 where glasses may be."""
    eyes = (model.shape.front[np.r_[LEFT_EYE, RIGHT_EYE], 1].mean() + LOWER - LO[1]) / model.warp.step[1]
    away = np.abs(np.arange(model.size) - eyes) * model.warp.step[1] / REACH
    return np.clip(1.3 - away, 0, 1)[:, None].astype(np.float32)


if __name__ == "__main__":
    handle_errors(main)()
