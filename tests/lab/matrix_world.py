"""Made people whose identity is a texture, a judge that reads it, and an attacker that learns by heart."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self

import numpy as np

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError, Progress
from ficgan.lab.attacks import Pairs, ReverserTraits
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.registry import param

SIDE = 32


def described(folder: Path, **more: object) -> dict[str, object]:
    """A set of the matrix."""
    return {"name": folder.name, "path": str(folder), "labels": str(folder / "labels.csv"), "aligned": True, **more}


def config(folder: Path, set: dict[str, object] | None = None, **more: object) -> MatrixConfig:
    split = {"background": 4, "attacker": 10, "test": 16, "enrolment": 0.5}
    tree = {
        "title": "made people",
        "sets": [described(folder, size=SIDE, split=split, **(set or {}))],
        "methods": ["block-permutation:block=8,key=a"],
        "scenarios": ["clear", "naive", "reversed-general"],
        "general": ["by-heart"],
        "recognisers": ["dlib"],
        "resamples": 50,
        "utility": False,
        "reversal_metrics": False,
        **more,
    }
    return MatrixConfig.model_validate(tree)


@dataclass
class Log:
    """What the attackers were given."""

    steps: list[int] = field(default_factory=list)
    pairs: list[Pairs] = field(default_factory=list)
    trained: int = 0
    loaded: int = 0
    fail_at: int | None = None

    def pixels(self) -> set[str]:
        """Digests of every crop that an attacker saw while it learnt."""
        return {digest(image) for one in self.pairs for side in (one.anonymised, one.clear) for image in side.images}


LOG = Log()


def digest(image: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(image).tobytes()).hexdigest()


@dataclass(frozen=True)
class ByHeart(Learned):
    """Learns its pairs by heart in six steps, and gives back the clear faces of the nearest anonymised ones."""

    name: ClassVar[str] = "by-heart"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="By heart", source="a test", knowledge=frozenset({"pairs"}), several=True
    )
    note: str = param("", "of no effect")
    pairs: Pairs | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs, *, workspace: Path | None = None, progress: Progress | None = None) -> Self:
        LOG.pairs.append(pairs)
        state = None if workspace is None else workspace / "step"
        done = int(state.read_text()) if state is not None and state.exists() else 0
        LOG.loaded += done == 6
        for step in range(done, 6):
            if step == LOG.fail_at:
                raise KeyboardInterrupt
            LOG.steps.append(step)
            if state is not None:
                state.write_text(str(step + 1))
            if progress:
                progress(step + 1, 6, "learning")
        LOG.trained += done < 6
        return type(self)(**self.settings(), pairs=pairs)

    def guess(self, faces: Faces) -> np.ndarray:
        return self.reverse(faces, 1)[:, 0]

    def reverse(self, faces: Faces, n: int = 1) -> np.ndarray:
        assert self.pairs is not None
        known = self.pairs.anonymised.images.reshape(len(self.pairs.clear), -1).astype(np.float32)
        seen = faces.images.reshape(len(faces), -1).astype(np.float32)
        near = np.argsort(((seen[:, None] - known[None]) ** 2).sum(2), axis=1, kind="stable")[:, :n]
        return self.pairs.clear.images[near]


def speak(name: str, say: Callable[[str], object]) -> None:
    """A task that is talked of; that called b fails."""
    say(f"{name} has begun")
    if name == "b":
        raise FicganError("it failed")
