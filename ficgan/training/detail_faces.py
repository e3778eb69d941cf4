"""Faces that detail is learnt from: photos in the frame, and generated faces, read once and kept."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.data import FaceData
from ficgan.errors import InputError
from ficgan.faces import Alignment, Face, get_recognizer
from ficgan.frame import read_texture
from ficgan.frame.learn import images_of
from ficgan.frame_model import FrameModel
from ficgan.identity.kind import kind_reader
from ficgan.policy import Attempt
from ficgan.training.stats import Say, unheard
from ficgan.training.step import StoredRows
from ficgan.training.task import read_once

Floats = NDArray[np.float32]
# Least score of a mesh that is learnt from, and its most turn, radians.
PRESENCE, MOST_YAW = 8.0, 0.3
# Difference in a texture, of 255, from which on something lies over the face that no new face has.
COVERED = 24


@dataclass(frozen=True, eq=False)
class DetailFaces:
    """A training set; pictures stay on disk, in the order of the set.

    Args:
        rows: int64 [M], faces of the set that are clear.
        photos: rows uint8 [2R,2R,3], the faces in the frame.
        made: rows uint8 [1+D,R,R,3]: its reconstruction, and D drawn faces in its place.
        seen: rows uint8 [R,R], 255 where the photo shows what a new face may have; not hair, nor what covers the face.
        kinds: float32 [N,9], see `DetailWriter`.
    """

    rows: NDArray[np.int64]
    photos: StoredRows
    made: StoredRows
    seen: StoredRows
    kinds: Floats

    @classmethod
    def prepare(
        cls, data: FaceData, model: FrameModel, draws: int, folder: Path, key: str, say: Say = unheard
    ) -> DetailFaces:
        """Read the clear faces of a set, or take what an earlier run has left in `folder`.

        Args:
            data: aligned faces of twice the frame's size.
            model: makes faces in their place.
            draws: D.
            key: of the model; with it the arrays of others are not taken.
            say: called as say(stage, done, total).
        """
        digest = hashlib.sha256(f"{key}/{data.fingerprint}/{draws}".encode()).hexdigest()
        read_once(folder, digest, lambda: _read_faces(data, model, draws, folder, say))
        photos, made, seen = (StoredRows(folder / f"{name}.npy") for name in ("photos", "made", "seen"))
        return cls(np.load(folder / "rows.npy"), photos, made, seen, kind_reader().read(np.load(folder / "gate.npy")))


def _read_faces(data: FaceData, model: FrameModel, draws: int, folder: Path, say: Say) -> None:
    size, count, first = model.resolution, len(data), Attempt(0)
    shapes = {
        "photos": (count, 2 * size, 2 * size, 3),
        "made": (count, 1 + draws, size, size, 3),
        "seen": (count, size, size),
    }
    kept: dict[str, Any] = {
        name: np.lib.format.open_memmap(folder / f"{name}.npy", mode="w+", dtype=np.uint8, shape=shape)
        for name, shape in shapes.items()
    }
    points = Alignment().points(data.resolution).astype(np.float32)
    face = Face(np.array([0, 0, data.resolution, data.resolution], np.float32), points, 1.0)
    gate, embeddings, clear = get_recognizer("dlib"), [], []
    for number, image in enumerate(images_of(data)):
        say("reading faces", number + 1, count)
        embeddings.append(gate.embed(image, points[None])[0])
        found = model.find([(image, face)])
        sight = model.see([(image, face)], found)[0]
        if found[0] is None or not found[0].presence >= PRESENCE or sight.problem:
            continue
        moment = sight.place.moment
        if abs(float(moment.read.pose.yaw[0])) > MOST_YAW:
            continue
        kind, psi = kind_reader().read(embeddings[-1][None])[0], model.auto_psi(1)
        drawn = [model.draw(f"{number}/{n}", first, psi, sight.z_id, kind) for n in range(draws)]
        rows = np.concatenate([model.own_styles([sight]), model.styles(np.stack([sight.z_id] * draws), drawn, first)])
        made = model.undetailed(rows, [sight] * len(rows))
        upright, mesh = moment.read.upright[0], moment.read.points[0]
        bare = np.abs(read_texture(image, upright, mesh, model.model.warp).astype(int) - sight.place.texture).max(2)
        kept["photos"][number] = read_texture(image, upright, mesh, model.model.warp, finer=2)
        kept["made"][number] = np.rint(np.clip([one.texture for one in made], 0, 1) * 255)
        kept["seen"][number] = np.rint(255 * (1 - sight.place.hair) * (bare < COVERED))
        clear.append(number)
    if not clear:
        raise InputError(f"none of the {count} faces is clear enough: give larger, sharper, frontal ones")
    np.save(folder / "rows.npy", np.array(clear))
    np.save(folder / "gate.npy", np.stack(embeddings).astype(np.float32))
    for array in kept.values():
        array.flush()
