"""Utility figures of known changes, of missing judges, their intervals; what the attribute classifier learns."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, roc_auc_score
from stand_ins import noise

from ficgan.anonymizers import Faces
from ficgan.errors import FicganError
from ficgan.lab.attributes import AttributeClassifier, auc, infer, split_people, train_attributes
from ficgan.lab.metrics import METRICS, Bootstrap
from ficgan.lab.metrics.pictures import Detections
from ficgan.lab.metrics.utility import Judges, UtilityReadings, agreement, balanced_agreement, compare
from ficgan.lab.results import Figure
from ficgan.lab.sets import open_set, prepare


def by_name(figures: tuple[Figure, ...]) -> dict[str, Figure]:
    out = {figure.metric: figure for figure in figures}
    assert len(out) == len(figures)
    order = list(METRICS["utility"])
    assert sorted(out, key=order.index) == list(out)  # known names, in the order of the list
    return out


def full(faces: Faces, rng: np.random.Generator) -> UtilityReadings:
    """UtilityReadings as if every judge had been there."""
    count = len(faces)
    detections = Detections(
        np.tile(np.array([10, 10, 50, 50], np.float32), (count, 1)),
        (faces.landmarks + rng.normal(0, 2, (count, 5, 2))).astype(np.float32),
    )
    return UtilityReadings(
        faces,
        rng.uniform(50, 90, count),
        detections,
        rng.uniform(20, 60, count).astype(np.float32),
        rng.random(count).astype(np.float32),
        rng.random((count, 3)).astype(np.float32),
        ("Smiling", "Mouth_Slightly_Open", "Bald"),
        rng.random((count, 9)).astype(np.float32),
        None,
        rng.random((count, 7)).astype(np.float32),
        used={"detector": "standin", "lpips": "alex"},
    )


def test_the_clear_images_themselves_are_perfect(rng):
    clear = full(noise(40, 64, per_person=2), rng)
    figures = by_name(compare(clear, replace(clear, lpips=np.zeros(40), perceived=np.zeros(40))))
    ones = (
        "ssim sharpness detected box-iou yaw-r pitch-r roll-r mouth-r smile-r "
        "mouth-open-r gender-kept attributes attributes-balanced"
    )
    zeros = "lpips lpips-squeezenet fid fd-squeezenet landmarks landmarks-px yaw-error pitch-error roll-error age-error"
    for name in ones.split():
        assert figures[name].value == pytest.approx(1, abs=1e-5), name
    for name in zeros.split():
        assert figures[name].value == pytest.approx(0, abs=1e-6), name
    assert figures["psnr"].value is None and "40 of 40 are equal" in figures["psnr"].note
    assert figures["detected"].low == pytest.approx(0.839, abs=0.01)  # Wilson with 20 people, none missed
    assert set(figures) == {*METRICS["utility"]} - {"attributes-accuracy"}


def test_figures_are_plain_means_and_correlations(rng):
    clear, after = (full(noise(30, 64, 3, per_person=2), rng) for _ in range(2))
    labels = rng.integers(0, 2, (30, 3)).astype(np.uint8)
    figures = by_name(compare(clear, after, labels=labels))
    assert figures["age-error"].value == pytest.approx(np.mean(np.abs(clear.ages - after.ages)), rel=1e-6)
    assert figures["gender-kept"].value == np.mean((clear.males >= 0.5) == (after.males >= 0.5))
    assert figures["sharpness"].value == pytest.approx(
        np.exp(np.mean(np.log((after.sharpness + 1) / (clear.sharpness + 1))))
    )
    r = np.corrcoef(clear.attributes[:, 0], after.attributes[:, 0])[0, 1]
    assert figures["smile-r"].value == pytest.approx(r, rel=1e-9)
    assert figures["smile-r"].low < r < figures["smile-r"].high
    moved = np.linalg.norm(clear.detections.landmarks - after.detections.landmarks, axis=2).mean()
    assert figures["landmarks-px"].value == pytest.approx(moved, rel=1e-5)
    assert figures["attributes-accuracy"].value == pytest.approx(np.mean((after.attributes >= 0.5) == labels))
    assert f"{np.mean((clear.attributes >= 0.5) == labels):.3f} on the clear" in figures["attributes-accuracy"].note


@pytest.mark.slow
def test_the_interval_is_that_of_a_slow_bootstrap_over_people(rng):
    clear = full(noise(30, 64, per_person=2), rng)
    after = replace(clear, ages=clear.ages + rng.normal(0, 5, 30).astype(np.float32))
    figure = by_name(compare(clear, after, bootstrap=Bootstrap(4000, 1)))["age-error"]
    error, people = np.abs(after.ages - clear.ages), clear.faces.people
    means = []
    for _ in range(4000):
        drawn = rng.integers(0, 15, 15)
        means.append(np.mean(np.concatenate([error[people == person] for person in drawn])))
    np.testing.assert_allclose([figure.low, figure.high], np.quantile(means, [0.025, 0.975]), rtol=0.05)
    assert figure == by_name(compare(clear, after, bootstrap=Bootstrap(4000, 1)))["age-error"]


@pytest.mark.slow
def test_real_judges_see_a_blur(shared_models, monkeypatch, tmp_path, shared_data):
    """Twelve real faces, blurred: every figure that the shared models allow moves the right way."""
    import cv2

    monkeypatch.setenv("FICGAN_MODELS", str(shared_models))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    faces = prepare(open_set(shared_data / "faces128-val.tar").take(range(12)), size=128, aligned=True).faces
    judges = Judges.find()
    clear = judges.read(faces)
    blurred = (faces.with_images(np.stack([cv2.GaussianBlur(i, (0, 0), s) for i in faces.images])) for s in (1.0, 4.0))
    weak, strong = (by_name(compare(clear, judges.read(some, against=clear))) for some in blurred)
    assert weak["detected"].value == 1 and weak["attributes"].value is None
    for name in ("ssim", "psnr", "sharpness", "box-iou"):
        assert weak[name].value > strong[name].value, name
    for name in ("lpips-squeezenet", "fd-squeezenet", "landmarks", "age-error"):
        assert 0 < weak[name].value < strong[name].value, name
    own = by_name(compare(clear, judges.read(faces, against=clear)))
    assert own["lpips-squeezenet"].value < 1e-5 and own["landmarks"].value == 0 and own["age-error"].value < 1e-3


def slow_balanced(clear: np.ndarray, after: np.ndarray, least: int, times: np.ndarray) -> float:
    """One attribute and one image after another; an image counts `times` as often."""
    means = []
    for a in range(clear.shape[1]):
        rows = {True: [], False: []}
        before = [bool(clear[i, a] >= 0.5) for i in range(len(clear))]
        if min(sum(before), len(before) - sum(before)) < least:
            continue
        for i, was in enumerate(before):
            rows[was] += [float(was == (after[i, a] >= 0.5))] * int(times[i])
        if rows[True] and rows[False]:
            means.append((np.mean(rows[True]) + np.mean(rows[False])) / 2)
    return float(np.mean(means)) if means else float("nan")


@settings(derandomize=True)
@given(n=st.integers(1, 30), a=st.integers(1, 6), seed=st.integers(0, 10**6))
def test_agreement_equals_the_loop(n, a, seed):
    rng = np.random.default_rng(seed)
    clear, after = rng.random((2, n, a)) ** rng.uniform(0.3, 3, a)
    alike = [[(clear[i, j] >= 0.5) == (after[i, j] >= 0.5) for j in range(a)] for i in range(n)]
    np.testing.assert_allclose(agreement(clear, after), [sum(row) / a for row in alike])
    times = rng.integers(0, 3, (4, n)).astype(np.float32)
    expected = [slow_balanced(clear, after, 2, row) for row in times]
    np.testing.assert_allclose(balanced_agreement(clear, after, times, least=2), expected, rtol=1e-6)


# -- the attribute classifier ------------------------------------------------------------------------------------------


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
    made = infer((train, labels, train_people), (test, truth, people), Bootstrap(40))
    figures = {figure.metric: figure for figure in made}
    told, noise = figures["inference of told"], figures["inference of noise"]
    assert told.value > 0.95 and told.low <= told.value <= told.high
    assert noise.low < 0.5 < noise.high
    assert "inference of rare" not in figures
    assert np.isclose(figures["inference (mean AUC)"].value, (told.value + noise.value) / 2)
