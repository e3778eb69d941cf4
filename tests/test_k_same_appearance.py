"""The classical k-same by the linear model: the same engine as FICGAN's, with the controls that the method has."""

from __future__ import annotations

import numpy as np
import pytest

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.faces import Alignment, crop, get_detector
from ficgan.frame_model import FrameModel
from ficgan.lab import Ficgan, KSameAppearance


@pytest.fixture(scope="module")
def faces() -> Faces:
    """One aligned face, twice."""
    photo = np.ascontiguousarray(pytest.importorskip("skimage.data").astronaut()[:256, 80:400])
    found = get_detector("auto").detect(photo)[0]
    image = crop(photo, Alignment().matrix(found.landmarks, 128), 128)
    return Faces(np.stack([image, image]), ("a", "b"))


def test_it_has_the_parameters_of_the_method_and_no_others() -> None:
    assert ANONYMIZERS["k-same-appearance"] is KSameAppearance
    assert {field.name for field, _ in KSameAppearance.parameters()} == {"k", "psi", "layer", "same"}
    made = ANONYMIZERS.make("k-same-appearance", k="40", psi="0.5", layer="2", same="all", seed="3")
    assert (made.k, made.psi, made.layer, made.same, made.seed) == (40, 0.5, 2, "all", 3)  # type: ignore[attr-defined]
    assert "Gross et al. 2006" in KSameAppearance.traits.source
    usual = KSameAppearance()
    assert usual.psi == usual.layer == 0
    assert set(usual.settings()) == {"k", "psi", "layer", "same", "checkpoint_sha256", "bank_digest"}


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
