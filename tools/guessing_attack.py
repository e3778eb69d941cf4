"""Measure the guessing attack of docs/attacks.md on photos named PERSON_ANYTHING.jpg, two or more of each person.

    python tools/guessing_attack.py FOLDER --people 60 --seeds 8

The first photo of each person is published with a random seed. Guesses are once the same photos ("original") and once
other photos of the same people ("another photo"). Prints one line of JSON per guess and score.

The attacker has the program, the public model and bank, and photos of some candidates; the seed is unknown. Each score
says how well a candidate fits a published face; higher is better. Nothing here restores a face.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image
from scipy.spatial.distance import cdist

from ficgan import Deidentifier
from ficgan.cli.main import handle_errors
from ficgan.deidentify import TEMPLATE_BOX
from ficgan.errors import UsageError
from ficgan.faces import Face
from ficgan.faces.crops import crop

SIDE = 256
Pixels = NDArray[np.uint8]
Scores = NDArray[np.float64]  # [N published, M candidates]
Program = Callable[[Pixels, int], Pixels]  # Aligned faces [M,S,S,3] and a seed → what the program makes of them


def repeated(
    published: Pixels, candidates: Pixels, program: Program, *, seeds: Sequence[int], weight: NDArray[np.float32]
) -> Scores:
    """Less the colour-free square distance [N,M] of published faces to means over seeds of the program on candidates.

    Averaging over seeds takes the k-same code away; what remains is what the program keeps of a source: expression,
    pose, light, attributes, outline. `weight` [S,S]: where the face is replaced; elsewhere pictures confirm themselves.
    """
    mean = np.mean([program(candidates, seed) for seed in seeds], axis=0)
    share = (weight / weight.sum()).ravel()

    def colour_free(images: NDArray[np.generic]) -> NDArray[np.float64]:
        flat = images.reshape(len(images), -1, 3)[:, share > 0].astype(np.float64) / 255
        counted = share[share > 0][None, :, None]
        return ((flat - (flat * counted).sum(1, keepdims=True)) * np.sqrt(counted / 3)).reshape(len(images), -1)

    return -cdist(colour_free(published), colour_free(mean), "sqeuclidean")


def far_from_source(published: ArrayLike, candidates: ArrayLike) -> Scores:
    """Less the cosine of codes [N,D] and [M,D]: of several draws the program takes the one least like its source."""
    return cdist(np.asarray(published, np.float64), np.asarray(candidates, np.float64), "cosine") - 1


def near(published: ArrayLike, candidates: ArrayLike) -> Scores:
    """Less the distance of readings [N,D] and [M,D] (expression, pose, light), each in its standard deviations."""
    a, b = np.asarray(published, np.float64), np.asarray(candidates, np.float64)
    spread = np.maximum(b.std(0), 1e-9)
    return -cdist(a / spread, b / spread)


def combined(*scores: Scores) -> Scores:
    """The sum of several scores, each in standard deviations over the candidates of a published face."""
    parts = (
        (score - score.mean(1, keepdims=True)) / np.maximum(score.std(1, keepdims=True), 1e-12) for score in scores
    )
    return np.sum(list(parts), axis=0)


@dataclass(frozen=True)
class Confirmation:
    """How well scores tell the right candidate from the others; value, low, high of 95 % intervals by a bootstrap."""

    rank1: tuple[float, float, float]  # share of published faces whose right candidate scores highest; a guess is 1/M
    auc: tuple[float, float, float]  # share of pairs of a right and a wrong candidate in order; ½ is chance
    confirmed: tuple[float, float, float]  # share of right ones above what 1 of 100 wrong ones passes; chance is .01
    n: int  # published faces
    candidates: int  # M


def confirmation(scores: Scores, right: ArrayLike, *, resamples: int = 1000, seed: int = 0) -> Confirmation:
    """Judge scores [N,M] by the number of the right candidate of each published face [N]."""
    truth, (n, m) = np.asarray(right, np.int64), scores.shape
    if truth.shape != (n,) or m < 2 or not ((truth >= 0) & (truth < m)).all():
        raise UsageError(f"scores {list(scores.shape)} and {list(truth.shape)} right candidates do not belong together")
    own, others = scores[np.arange(n), truth], scores[np.arange(m) != truth[:, None]].reshape(n, m - 1)
    # Ties count half, so that scores that say nothing come out at chance.
    above, equal = others > own[:, None], others == own[:, None]
    hit = np.where(above.any(1), 0.0, 1 / (1 + equal.sum(1)))
    order = 1 - (above + 0.5 * equal).mean(1)
    # One threshold for all published faces, on scores that are comparable between them.
    centre, spread = others.mean(1), np.maximum(others.std(1), 1e-12)
    bar = np.quantile((others - centre[:, None]) / spread[:, None], 0.99)
    passed = ((own - centre) / spread > bar).astype(np.float64)
    rows = np.random.default_rng(seed).integers(0, n, (resamples, n))

    def figure(values: NDArray[np.float64]) -> tuple[float, float, float]:
        low, high = np.quantile(values[rows].mean(1), [0.025, 0.975])
        return float(values.mean()), float(low), float(high)

    return Confirmation(figure(hit), figure(order), figure(passed), n, m)


def crops(paths: list[Path], engine: Deidentifier) -> Pixels:
    out = []
    for path in paths:
        photo = np.asarray(Image.open(path).convert("RGB"))
        faces = engine.detector.detect(photo)
        if not faces:
            raise SystemExit(f"{path}: no face found; leave it out")
        out.append(crop(photo, engine.alignment.matrix(faces[0].landmarks, SIDE), SIDE))
    return np.stack(out)


def readings(images: Pixels, engine: Deidentifier) -> tuple[Any, Any]:
    """Identity codes and readings of the moment; rows of NaN where a face cannot be read."""
    points = engine.alignment.points(SIDE).astype(np.float32)
    sights = engine.face_model.see([(image, Face(SIDE * TEMPLATE_BOX, points, 1.0)) for image in images])
    codes = np.stack([sight.z_id for sight in sights])
    size, shape, lights = (getattr(engine.face_model.model, n) for n in ("code_size", "shape", "lights"))  # type: ignore[union-attr]
    codes = np.delete(codes[:, :size], np.s_[len(shape.basis) : len(shape.basis) + lights], axis=1)
    moments = np.full((len(sights), 14), np.nan)
    for row, sight in zip(moments, sights, strict=True):
        if not sight.problem:
            moment = sight.place.moment
            pose = moment.read.pose
            row[:] = [*moment.numbers[0], *moment.light[0], pose.yaw[0], pose.pitch[0]]
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
    if len(pairs) < 2:
        parser.error(f"{given.folder} has no two people with two photos PERSON_ANYTHING.jpg each")

    def program(images: Pixels, seed: int | None) -> Pixels:
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
            "far from the source's code": far_from_source(codes[good], own_codes[good]),
            "expression, pose, light": near(moments[good], own_moments[good]),
            "one draw of one's own": repeated(published[good], candidates[good], program, seeds=[101], weight=weight),
            f"mean of {given.seeds} draws": repeated(
                published[good], candidates[good], program, seeds=range(101, 101 + given.seeds), weight=weight
            ),
        }
        scores["all together"] = combined(*scores.values())
        for name, values in scores.items():
            figures = asdict(confirmation(values, right))
            short = {key: np.round(value, 3).tolist() for key, value in figures.items()}
            print(json.dumps({"guess": guess, "score": name, **short}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(handle_errors(main)())
