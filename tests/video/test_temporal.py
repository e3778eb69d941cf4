"""Generated faces over time: one face from frame to frame, no trembling, no flicker that the source does not have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from stand_ins import Fixed
from worlds import crop_model

from ficgan.face_model import FaceModel
from ficgan.faces import Alignment, Face, crop
from ficgan.faces.alignment import jitter
from ficgan.policy import Policy
from ficgan.video import tracks as module
from ficgan.video.decided import Appearance, FrameJob
from ficgan.video.read import Frame
from ficgan.video.rendered import Renderer
from ficgan.video.settings import VideoSettings, VideoTools
from ficgan.video.tracks import Sighting, Track, fill_track

Image = NDArray[np.uint8]
SIZE, FRAMES, RATE = 80, 40, 25.0


@pytest.fixture(scope="module")
def face_model() -> FaceModel:
    return crop_model()


def left_at(frame: int) -> NDArray[np.float64]:
    """Top left corner of the made face: it sways."""
    return np.array([60 + 20 * np.sin(frame / 9), 40 + 8 * np.cos(frame / 7)])


def marks_at(frame: int) -> NDArray[np.float64]:
    return Alignment().points(SIZE) + left_at(frame)


def made_clip(light: Sequence[float]) -> list[Image]:
    """A painted face that moves evenly, under a light that changes; nothing else does."""
    y, x = np.mgrid[:160, :220].astype(np.float64)
    images = []
    for n, bright in enumerate(light):
        middle = left_at(n) + SIZE / 2
        inside = ((x - middle[0]) / 34) ** 2 + ((y - middle[1]) / 42) ** 2 < 1
        image = np.where(inside[..., None], np.array([205.0, 160, 135]), np.array([70.0, 90, 110]))
        for mark in marks_at(n):
            image = image - 90 * np.exp(-((x - mark[0]) ** 2 + (y - mark[1]) ** 2) / 18)[..., None]
        images.append(np.rint((image * bright).clip(0, 255)).astype(np.uint8))
    return images


def followed(stride: int, noise: float, smooth: bool = True) -> Track:
    """The track of the made face, seen by a detector that trembles by `noise` pixels."""
    rng = np.random.default_rng(4)
    sightings = []
    for n in range(0, FRAMES, stride):
        corner = left_at(n)
        box = np.concatenate([corner, corner + SIZE]) + rng.normal(size=4) * noise
        marks = marks_at(n) + rng.normal(size=(5, 2)) * noise
        sightings.append(Sighting(n, Face(box.astype(np.float32), marks.astype(np.float32), 0.9)))
    with pytest.MonkeyPatch.context() as patch:
        if not smooth:
            patch.setattr(module, "smooth_landmarks", lambda landmarks, rate: landmarks)
        return fill_track(sightings, 0, FRAMES - 1, 0.2, 0.2, RATE)


def rendered(face_model: FaceModel, images: Sequence[Image], track: Track, chunk: int) -> tuple[list[Image], Renderer]:
    tools = VideoTools(Fixed(), None, face_model, Policy(verify=False), layer=2)
    renderer, out = Renderer(tools, VideoSettings()), []
    jobs = [
        FrameJob(Frame(n, n, n / RATE, image), [Appearance(1, "a", track.face(n), "ficgan")])
        for n, image in enumerate(images)
    ]
    for begin in range(0, len(jobs), chunk):
        out += renderer(jobs[begin : begin + chunk])
    return out, renderer


def middles(images: Sequence[Image]) -> NDArray[Any]:
    """The middle of the face of each frame, where it truly is: float64 [n,32,32,3]."""
    return (
        np.stack([crop(im, Alignment().matrix(marks_at(n), 48), 48)[8:40, 8:40] for n, im in enumerate(images)]) * 1.0
    )


def flicker(images: Sequence[Image]) -> float:
    return float(np.abs(np.diff(middles(images), axis=0)).mean())


@pytest.mark.slow
@pytest.mark.parametrize("stride", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_trembling_detector_does_not_make_the_face_tremble(face_model: FaceModel, stride: int) -> None:
    """Beside the same without smoothing, and beside a detector without error."""
    images = made_clip([1.0] * FRAMES)
    raw, calm, true = followed(1, 1.5, smooth=False), followed(stride, 1.5), followed(1, 0.0)
    bend = [jitter(one.landmarks[: len(images)]) for one in (raw, calm, true)]
    assert bend[1] < 0.35 * bend[0]
    flickers = [flicker(rendered(face_model, images, one, 8)[0]) for one in (raw, calm, true)]
    assert flickers[1] < 0.6 * flickers[0] and flickers[1] < flickers[2] + 0.35 * (flickers[0] - flickers[2])


def test_chunks_and_a_new_start_give_the_same_film(face_model: FaceModel) -> None:
    """No state but the person's cast: how frames are cut up, and an interruption, cannot be seen."""
    images, track = made_clip([1.0] * FRAMES), followed(5, 1.0)
    whole, renderer = rendered(face_model, images, track, 8)
    # The cast is the mean of the first chunk's codes, so the first chunk is the same.
    again = Renderer(renderer.tools, renderer.settings)
    again.identities.people["a"] = again.identities.identity("a", renderer.identities.people["a"].z_id)
    for n in (7, 8, 23, 39):
        job = FrameJob(Frame(n, n, n / RATE, images[n]), [Appearance(1, "a", track.face(n), "ficgan")])
        assert np.abs(again([job])[0].astype(int) - whole[n]).max() <= 1


# -- real films --------------------------------------------------------------------------------------------------------
