"""Made worlds of moving faces with known places, a detector that errs as it is told, and a small untrained model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ficgan.config import ModelConfig
from ficgan.face_model import CropModel, FaceModel, ModelInfo
from ficgan.faces import Alignment, Face
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN
from ficgan.video.association import Associator
from ficgan.video.tracks import Track, Tracklet

# Landmarks inside a box: fractions of its width and height.
MARKS = np.array([[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.35, 0.8], [0.65, 0.8]])
RATE = 25.0


def box_at(x: float, y: float, size: float) -> NDArray[np.float64]:
    """The box of a face: a little higher than wide."""
    half = size * np.array([0.44, 0.56])
    return np.concatenate([np.array([x, y]) - half, np.array([x, y]) + half])


def face_at(box: NDArray[np.float64], score: float = 0.9) -> Face:
    return Face(box.astype(np.float32), (box[:2] + MARKS * (box[2:] - box[:2])).astype(np.float32), score)


def crop_model(seed: int | None = 1) -> FaceModel:
    """Faces of 32² pixels from an untrained network and 60 made people."""
    config = ModelConfig(resolution=32, channel_base=256, channel_max=16, spatial_channels=4, mapping_layers=1)
    torch.manual_seed(0)
    model = FICGAN(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.1)
    bank = IdentityBank.from_codes(np.random.default_rng(0).normal(size=(60, 512)), np.arange(60), None, [], {})
    return CropModel(model, ModelInfo(Alignment().to_dict(), {}, {}), bank, k=20, seed=seed, precision="float32")


@dataclass
class Actor:
    """A face: where it is at each frame, and in which frames the detector cannot see it."""

    path: Callable[[float], tuple[float, float, float]]
    """Seconds → x, y, size in pixels."""
    frames: tuple[int, int] = (0, 10_000)
    """First and last frame it is there."""
    hidden: tuple[range, ...] = ()

    def box(self, frame: int) -> NDArray[np.float64] | None:
        if not self.frames[0] <= frame <= self.frames[1]:
            return None
        return box_at(*self.path(frame / RATE))

    def visible(self, frame: int) -> bool:
        return self.box(frame) is not None and not any(frame in one for one in self.hidden)


@dataclass
class World:
    actors: list[Actor]
    length: int
    cuts: tuple[int, ...] = ()
    noise: float = 0.03
    """Standard deviation of a box's edges, in sizes."""
    seed: int = 0
    owner: dict[int, int] = field(default_factory=dict)
    """id() of a face → its actor."""

    def detect(self, frame: int) -> list[Face]:
        rng = np.random.default_rng([self.seed, frame])
        faces = []
        for number, actor in enumerate(self.actors):
            box = actor.box(frame)
            error = rng.normal(size=4) * self.noise
            if box is not None and actor.visible(frame):
                faces.append(face_at(box + error * np.sqrt(np.prod(box[2:] - box[:2]))))
                self.owner[id(faces[-1])] = number
        return [faces[number] for number in rng.permutation(len(faces))]

    def follow(self, stride: int = 1) -> list[Tracklet]:
        """Tracklets when the detector looks at every `stride`-th frame and after cuts."""
        tracker, found = Associator(), []
        for frame in range(self.length):
            cut = frame in self.cuts
            faces = self.detect(frame) if frame % stride == 0 or cut else None
            found += tracker.step(frame, frame / RATE, faces, cut)[1]
        return sorted([*found, *tracker.finish()], key=lambda one: one.id)

    def owners(self, tracklet: Tracklet) -> list[int]:
        return [self.owner[id(one.face)] for one in tracklet.sightings]

    def switches(self, tracklets: list[Tracklet]) -> int:
        """How often a tracklet goes from one actor to another."""
        return sum(int((np.diff(self.owners(one)) != 0).sum()) for one in tracklets)


def covered(box: NDArray[np.float64], tracks: list[Track], frame: int, margin: float = 1.3) -> bool:
    """Whether the ellipse inside a true box lies inside the 1.3-fold box of one track."""
    for track in tracks:
        row = frame - track.first
        if not 0 <= row < len(track):
            continue
        seen = track.boxes[row].astype(np.float64)
        middle, half = (seen[:2] + seen[2:]) / 2, (seen[2:] - seen[:2]) / 2 * margin
        # The ellipse touches its box at four points; an upright box holds it where it holds these.
        if (box[:2] >= middle - half).all() and (box[2:] <= middle + half).all():
            return True
    return False
