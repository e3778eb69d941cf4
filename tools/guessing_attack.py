"""Measure the guessing attack of docs/attacks.md on photos named PERSON_ANYTHING.jpg, two or more of each person.

    python tools/guessing_attack.py FOLDER --people 60 --seeds 8

The first photo of each person is published with a random seed. Guesses are once the same photos ("original") and once
other photos of the same people ("another photo"). Prints one line of JSON per guess and score.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ficgan import Deidentifier
from ficgan.deidentify.pipeline import TEMPLATE_BOX
from ficgan.faces import Face
from ficgan.faces.blend import crop
from ficgan.lab.attacks import retrieval

SIDE = 256


def crops(paths: list[Path], engine: Deidentifier) -> NDArray[np.uint8]:
    out = []
    for path in paths:
        photo = np.asarray(Image.open(path).convert("RGB"))
        faces = engine.detector.detect(photo)
        if not faces:
            raise SystemExit(f"{path}: no face found; leave it out")
        out.append(crop(photo, engine.alignment.matrix(faces[0].landmarks, SIDE), SIDE))
    return np.stack(out)


def readings(images: NDArray[np.uint8], engine: Deidentifier) -> tuple[Any, Any]:
    """Identity codes and readings of the moment; rows of NaN where a face cannot be read."""
    points = engine.alignment.points(SIDE).astype(np.float32)
    sights = engine.face_model.see([(image, Face(SIDE * TEMPLATE_BOX, points, 1.0)) for image in images])
    codes = np.stack([sight.z_id for sight in sights])
    size, shape, lights = (getattr(engine.face_model.model, n) for n in ("code_size", "shape", "lights"))  # type: ignore[union-attr]
    codes = np.delete(codes[:, :size], np.s_[len(shape.basis) : len(shape.basis) + lights], axis=1)
    moments = np.stack([
        np.full(14, np.nan) if sight.problem else np.concatenate([
            sight.place.moment.numbers[0], sight.place.moment.light[0],
            [sight.place.moment.read.pose.yaw[0], sight.place.moment.read.pose.pitch[0]],
        ])
        for sight in sights
    ])  # fmt: skip
    return codes, moments


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the guessing attack.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--people", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=8)
    given = parser.parse_args()
    by_person: dict[str, list[Path]] = {}
    for path in sorted(given.folder.glob("*.jpg")):
        by_person.setdefault(path.stem.split("_")[0], []).append(path)
    pairs = [paths[:2] for paths in by_person.values() if len(paths) > 1][: given.people]

    def program(images: NDArray[np.uint8], seed: int | None) -> NDArray[np.uint8]:
        engine = Deidentifier.from_pretrained(seed=seed)
        keys = [f"{seed}-{number}" for number in range(len(images))]
        return engine.aligned(images, keys=keys)[0]

    reader = Deidentifier.from_pretrained(seed=1 << 70)
    first, second = (crops([pair[n] for pair in pairs], reader) for n in (0, 1))
    published = program(first, None)
    y, x = np.mgrid[:SIDE, :SIDE] / SIDE - 0.5
    weight = ((x / 0.28) ** 2 + ((y - 0.05) / 0.36) ** 2 <= 1).astype(np.float32)  # within what is replaced
    codes, moments = readings(published, reader)
    gate = reader.recognizer
    assert gate is not None
    marks = np.repeat(reader.alignment.points(SIDE)[None], len(first), 0)
    likeness = gate.embed_each(published, marks)  # type: ignore[attr-defined]
    for guess, candidates in (("the original", first), ("another photo", second)):
        own_codes, own_moments = readings(candidates, reader)
        good = np.isfinite(own_moments).all(1) & np.isfinite(moments).all(1)
        right = np.arange(int(good.sum()))
        seen = gate.embed_each(candidates, marks)[good]  # type: ignore[attr-defined]
        scores = {
            "recogniser (dlib)": -np.linalg.norm(likeness[good][:, None] - seen[None], axis=2),
            "far from the source's code": retrieval.far_from_source(codes[good], own_codes[good]),
            "expression, pose, light": retrieval.near(moments[good], own_moments[good]),
            "one draw of one's own": retrieval.repeated(
                published[good], candidates[good], program, seeds=[101], weight=weight
            ),
            f"mean of {given.seeds} draws": retrieval.repeated(
                published[good], candidates[good], program, seeds=range(101, 101 + given.seeds), weight=weight
            ),
        }  # fmt: skip
        scores["all together"] = retrieval.combined(*scores.values())
        for name, values in scores.items():
            told = asdict(retrieval.confirmation(values, right))
            short = {key: np.round(value, 3).tolist() for key, value in told.items()}
            print(json.dumps({"guess": guess, "score": name, **short}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
