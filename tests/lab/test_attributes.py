"""The attribute classifier learns what can be seen, on people it has not seen; its file is whole or refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError
from ficgan.lab.attributes import AttributeClassifier, auc, infer, split_people, train_attributes


def painted(rng: np.random.Generator, count: int, side: int = 64) -> tuple[Faces, dict[str, np.ndarray]]:
    """Noise with a bright mouth, a dark brow, both or neither; a third attribute that cannot be seen."""
    smile, brow, hidden = rng.integers(0, 2, (3, count)).astype(np.uint8)
    images = rng.integers(90, 160, (count, side, side, 3)).astype(np.uint8)
    images[smile > 0, side * 5 // 8 : side * 6 // 8, side // 4 : -side // 4] = 230
    images[brow > 0, side // 8 : side // 4] = 30
    faces = Faces(images, tuple(map(str, range(count))), people=rng.integers(0, count // 4, count))
    return faces, {"Smiling": smile, "Brow": brow, "Hidden": hidden}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict, Faces, dict]:
    faces, attributes = painted(np.random.default_rng(5), 80)
    out = tmp_path_factory.mktemp("attributes") / "attributes.safetensors"
    steps: list[tuple[int, int, str]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ficgan.lab.attributes._BATCH", 16)  # more steps of fewer images
        report = train_attributes(
            faces, attributes, out, source={"name": "painted"}, epochs=1, progress=lambda *step: steps.append(step)
        )
    assert steps == [(1, 1, "training")]
    return out, report, faces, attributes


@pytest.mark.slow
def test_what_can_be_seen_is_learnt_and_what_cannot_is_not(monkeypatch, tmp_path):
    monkeypatch.setattr("ficgan.lab.attributes._BATCH", 16)
    painting = painted(np.random.default_rng(5), 200)
    report = train_attributes(*painting, tmp_path / "a", source={"name": "painted"}, epochs=4)
    test = report["test"]["attributes"]
    assert test["Smiling"]["auc"] > 0.95 and test["Brow"]["auc"] > 0.95
    assert abs(test["Hidden"]["auc"] - 0.5) < 0.25
    assert report["source"] == {"name": "painted"} and sum(report["images"]) == 200


def test_figures_are_those_of_scikit_learn(trained):
    out, report, faces, attributes = trained
    classifier = AttributeClassifier.load(out)
    rows = split_people(faces.people, (0.7, 0.1, 0.2), seed=0)[2]
    read = classifier.predict(faces.take(rows))
    for column, name in enumerate(classifier.names):
        truth, said = attributes[name][rows], report["test"]["attributes"][name]
        assert said["auc"] == pytest.approx(roc_auc_score(truth, read[:, column]), abs=1e-4)
        assert said["accuracy"] == pytest.approx(accuracy_score(truth, read[:, column] >= 0.5), abs=1e-4)
    assert report["test"]["mean_auc"] == pytest.approx(
        np.mean([one["auc"] for one in report["test"]["attributes"].values()]), abs=1e-4
    )


def test_a_classifier_is_the_same_after_its_file_and_in_any_batch(trained, tmp_path):
    out, report, faces, _ = trained
    classifier = AttributeClassifier.load(out)
    assert classifier.names == ("Smiling", "Brow", "Hidden") and classifier.training == report
    some = faces.take(range(70))
    read = classifier.predict(some)
    assert read.shape == (70, 3) and read.dtype == np.float32 and ((read >= 0) & (read <= 1)).all()
    classifier.save(tmp_path / "again.safetensors")
    np.testing.assert_array_equal(AttributeClassifier.load(tmp_path / "again.safetensors").predict(some), read)
    np.testing.assert_allclose(classifier.predict(some.take([66])), read[66:67], atol=1e-5)
    assert classifier.predict(some.take([])).shape == (0, 3)


def test_faces_are_read_at_their_landmarks(trained):
    """The same faces in a corner of a larger crop: landmarks bring them back."""
    out, _, faces, _ = trained
    classifier = AttributeClassifier.load(out)
    some = faces.take(range(20))
    wide = np.full((20, 128, 128, 3), 127, np.uint8)
    wide[:, 60:124, 4:68] = some.images
    moved = Faces(wide, some.names, some.landmarks + np.array([4, 60], np.float32))
    near, lost = classifier.predict(moved), classifier.predict(Faces(wide, some.names))
    np.testing.assert_allclose(near, classifier.predict(some), atol=1e-4)
    assert np.abs(lost - near).max() > 1e-3


def test_nobody_is_in_two_parts():
    people = np.random.default_rng(0).integers(0, 60, 500)
    parts = split_people(people, (0.7, 0.1, 0.2))
    assert sorted(np.concatenate(parts).tolist()) == list(range(500))
    kinds = [set(people[rows]) for rows in parts]
    assert not kinds[0] & kinds[1] and not kinds[0] & kinds[2] and not kinds[1] & kinds[2]
    assert [len(one) for one in kinds] == [42, 6, 12]
    assert all(len(part) for part in split_people(np.arange(10), (0.7, 0.1, 0.2)))


@given(st.integers(0, 10_000), st.integers(2, 40))
def test_auc_counts_ties_half(seed, distinct):
    rng = np.random.default_rng(seed)
    scores, labels = rng.integers(0, distinct, 60), (rng.random(60) < 0.4).astype(np.uint8)
    labels[:2], weights = (1, 0), rng.integers(1, 4, 60)
    for counted in (None, weights):
        assert auc(scores, labels, counted) == pytest.approx(roc_auc_score(labels, scores, sample_weight=counted))
    assert auc(scores, np.ones(60, np.uint8)) is None and auc(scores, labels, labels.astype(float)) is None


def test_files_that_are_no_classifier_are_refused(tmp_path, trained):
    import torch
    from safetensors.torch import load_file

    from ficgan.models import save_tensors

    path = tmp_path / "other.safetensors"
    weights = load_file(trained[0])
    headers = ({"schema": 2, "names": ["a"]}, {"schema": 1, "names": ["a"]})
    for write in (
        lambda: None,
        lambda: path.write_bytes(b"nothing"),
        lambda: save_tensors(path, {"x": torch.zeros(1)}, {}, kind="model"),
        *(partial(save_tensors, path, weights, header, kind="attributes") for header in headers),
    ):
        write()
        with pytest.raises(FicganError):
            AttributeClassifier.load(path)


# Attribute inference


@pytest.mark.slow
def test_what_is_there_is_told_and_what_is_not_is_chance() -> None:
    rng = np.random.default_rng(0)
    train, test = rng.normal(size=(400, 32)), rng.normal(size=(300, 32))
    people = np.repeat(np.arange(100), 3)
    labels = {"told": train[:, 0] + 0.3 * train[:, 1] > 0, "noise": rng.random(400) < 0.5, "rare": np.arange(400) < 50}
    truth = {"told": test[:, 0] + 0.3 * test[:, 1] > 0, "noise": rng.random(300) < 0.5, "rare": np.arange(300) < 24}
    labels, truth = ({name: values.astype(np.int8) for name, values in some.items()} for some in (labels, truth))
    # Where nobody knows, nothing is learnt or asked: these answers are wrong, and must not count.
    labels["told"][:40] = -1
    train_people = np.repeat(np.arange(200), 2)
    figures = {
        figure.metric: figure for figure in infer(train, labels, test, truth, train_people, people, resamples=40)
    }
    told, noise = figures["inference of told"], figures["inference of noise"]
    assert told.value > 0.95 and told.low <= told.value <= told.high
    assert noise.low < 0.5 < noise.high
    assert "inference of rare" not in figures
    assert np.isclose(figures["inference (mean AUC)"].value, (told.value + noise.value) / 2)
