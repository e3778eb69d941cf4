"""The classical k-same by the linear model: the same engine as FICGAN's, with the controls that the method has."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.anonymizers import Faces
from ficgan.faces import Alignment, crop, get_detector
from ficgan.frame_model import FrameModel
from ficgan.lab import Ficgan, KSameAppearance


@pytest.fixture(scope="module")
def faces() -> Faces:
    photo = np.ascontiguousarray(pytest.importorskip("skimage.data").astronaut()[:256, 80:400])
    found = get_detector("auto").detect(photo)[0]
    image = crop(photo, Alignment().matrix(found.landmarks, 128), 128)
    return Faces(np.stack([image, image]), ("a", "b"))


@pytest.mark.slow
def test_it_makes_what_the_embedded_model_makes_at_these_settings(faces: Faces) -> None:
    mine, whole = KSameAppearance(k=500, seed=4), Ficgan(k=500, layer=0, psi=0.0, seed=4)
    assert isinstance(mine.face_model, FrameModel)
    made = mine(faces)
    np.testing.assert_array_equal(made, whole(faces))
    changed = np.abs(made.astype(int) - faces.images).mean((1, 2, 3))
    assert (changed > 2).all() and not np.array_equal(made[0], made[1])  # another key, another draw
    together = KSameAppearance(k=500, seed=4, same="all")(faces)
    np.testing.assert_array_equal(together[0], together[1])
