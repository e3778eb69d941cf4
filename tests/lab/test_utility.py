"""The door to utility figures: what each says of known changes, what is said where a judge is missing, intervals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from ficgan.anonymizers import Faces
from ficgan.errors import InputError
from ficgan.lab.metrics import judges as judging
from ficgan.lab.metrics.geometry import Detections
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.perceptual import Perception
from ficgan.lab.metrics.utility import UTILITY, Judges, Readings, compare, utility_figures
from ficgan.lab.results import Figure

LACKING = {
    name: f"no {name} here" for name in ("detector", "age_gender", "attributes", "squeezenet", "lpips", "inception")
}


def some_faces(rng: np.random.Generator, count: int = 12, side: int = 64) -> Faces:
    images = rng.integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return Faces(images, tuple(map(str, range(count))), people=np.arange(count) // 2)


def by_name(figures: tuple[Figure, ...]) -> dict[str, Figure]:
    out = {figure.metric: figure for figure in figures}
    assert len(out) == len(figures)
    order = [metric.name for metric in UTILITY]
    assert sorted(out, key=order.index) == list(out)  # known names, in the order of the list
    return out


def full(faces: Faces, rng: np.random.Generator) -> Readings:
    """Readings as if every judge had been there."""
    count = len(faces)
    detections = Detections(
        np.tile(np.array([10, 10, 50, 50], np.float32), (count, 1)),
        (faces.landmarks + rng.normal(0, 2, (count, 5, 2))).astype(np.float32),
    )
    return Readings(
        faces,
        rng.uniform(50, 90, count),
        detections,
        rng.uniform(20, 60, count).astype(np.float32),
        rng.random(count).astype(np.float32),
        rng.random((count, 3)).astype(np.float32),
        ("Smiling", "Mouth_Slightly_Open", "Bald"),
        Perception(rng.random((count, 9)).astype(np.float32), None, 0.4, None),
        rng.random((count, 7)).astype(np.float32),
        used={"detector": "standin", "lpips": "alex"},
    )


def test_metrics_have_unique_names_and_are_utility():
    assert len({metric.name for metric in UTILITY}) == len(UTILITY)
    assert {metric.kind for metric in UTILITY} == {"utility"}


def test_the_clear_images_themselves_are_perfect(rng):
    clear = full(some_faces(rng, 40), rng)
    seen = replace(clear.perception, distances=np.zeros(40))
    figures = by_name(compare(clear, replace(clear, perception=seen, lpips=np.zeros(40), against=clear)))
    ones = ("ssim ms-ssim-short sharpness diversity distinct detected box-iou yaw-r pitch-r roll-r mouth-r smile-r "
            "mouth-open-r gender-kept attributes attributes-balanced")  # fmt: skip
    zeros = "lpips lpips-squeezenet fid fd-squeezenet landmarks landmarks-px yaw-error pitch-error roll-error age-error"
    for name in ones.split():
        assert figures[name].value == pytest.approx(1, abs=1e-5), name
    for name in zeros.split():
        assert figures[name].value == pytest.approx(0, abs=1e-6), name
    assert figures["psnr"].value is None and "40 of 40 images are equal" in figures["psnr"].note
    assert figures["detected"].low == pytest.approx(0.839, abs=0.01)  # Wilson with 20 people, none missed
    assert set(figures) == {m.name for m in UTILITY} - {"ms-ssim", "attributes-accuracy"}


def test_figures_are_plain_means_and_correlations(rng):
    clear, after = (full(some_faces(np.random.default_rng(3), 30), rng) for _ in range(2))
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


def test_missed_faces_are_counted_and_left_out(rng):
    clear = full(some_faces(rng, 20), rng)
    lost = Detections(clear.detections.boxes.copy(), clear.detections.landmarks + np.float32(3))
    lost.boxes[:5], lost.landmarks[:5] = np.nan, np.nan
    figures = by_name(compare(clear, replace(clear, detections=lost)))
    assert figures["detected"].value == 0.75 and "standin; 1.000 of the clear" in figures["detected"].note
    assert figures["landmarks-px"].value == pytest.approx(np.sqrt(18), rel=1e-5) and figures["landmarks-px"].n == 15
    assert "5 of 20 faces were lost" in figures["landmarks-px"].note
    none = Detections(np.full((20, 4), np.nan, np.float32), np.full((20, 5, 2), np.nan, np.float32))
    figures = by_name(compare(clear, replace(clear, detections=none)))
    assert figures["detected"].value == 0 and figures["landmarks"].value is None and figures["yaw-r"].value is None


def test_the_interval_is_that_of_a_slow_bootstrap_over_people(rng):
    clear = full(some_faces(rng, 30), rng)
    after = replace(clear, ages=clear.ages + rng.normal(0, 5, 30).astype(np.float32))
    figure = by_name(compare(clear, after, bootstrap=Bootstrap(4000, 1)))["age-error"]
    error, people = np.abs(after.ages - clear.ages), clear.faces.people
    means = []
    for _ in range(4000):
        drawn = rng.integers(0, 15, 15)
        means.append(np.mean(np.concatenate([error[people == person] for person in drawn])))
    np.testing.assert_allclose([figure.low, figure.high], np.quantile(means, [0.025, 0.975]), rtol=0.05)
    assert figure == by_name(compare(clear, after, bootstrap=Bootstrap(4000, 1)))["age-error"]


def test_the_region_alone_is_compared(rng):
    faces = some_faces(rng)
    other = faces.images.copy()
    other[:, 16:48, 16:48] = 0
    clear, after = (Judges().read(one) for one in (faces, faces.with_images(other)))
    whole, inner = (by_name(compare(clear, after, region=box))["ssim"].value for box in (None, (16, 16, 48, 48)))
    assert inner < 0.05 < 0.4 < whole
    assert by_name(compare(clear, after, region=(0, 0, 8, 8)))["ssim"].value is None


def test_what_is_missing_is_said(rng):
    faces = some_faces(rng, side=176)
    figures = by_name(utility_figures(faces, faces.with_images(255 - faces.images), Judges(missing=LACKING)))
    had = {"ssim", "ms-ssim", "psnr", "sharpness", "distinct"}
    assert {name for name, figure in figures.items() if figure.value is not None} == had
    assert figures["fid"].note == "no inception here" and figures["smile-r"].note == "no attributes here"
    assert figures["box-iou"].note == "no detector here" and figures["gender-kept"].note == "no age_gender here"
    assert all(figure.note for name, figure in figures.items() if name not in had)


def test_sets_without_pairs_have_figures_of_whole_sets_only(rng):
    clear, after = full(some_faces(rng, 20), rng), full(some_faces(rng, 14), rng)
    figures = by_name(compare(clear, after, pairs=False))
    assert set(figures) == {"fid", "kid", "fd-squeezenet", "kd-squeezenet", "diversity", "distinct", "detected"}
    assert figures["fd-squeezenet"].value > 0 and "two halves of the clear images" in figures["fd-squeezenet"].note
    with pytest.raises(InputError, match="one by one"):
        compare(clear, after)


def test_faces_that_do_not_fit_are_refused(rng):
    faces = some_faces(rng)
    clear = Judges().read(faces)
    with pytest.raises(InputError, match="no pairs"):
        Judges().read(some_faces(rng, side=32), against=clear)
    with pytest.raises(InputError, match="no faces"):
        Judges().read(faces.take([]))
    with pytest.raises(InputError, match="one by one"):
        compare(clear, Judges().read(faces.take(np.arange(12)[::-1])))
    with pytest.raises(InputError, match="labels"):
        every = full(faces, rng)
        compare(every, every, labels=np.zeros((12, 2), np.uint8))


def test_nothing_is_found_in_an_empty_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(judging, "detector_missing", lambda name: "none")
    found = Judges.find([tmp_path, tmp_path / "absent"])
    assert (found.detector, found.age_gender, found.attributes, found.squeezenet) == (None,) * 4
    assert set(found.missing) == set(LACKING) and all(found.missing.values())


def test_real_judges_see_a_blur(shared_models, monkeypatch, tmp_path, shared_data):
    """Twelve real faces, blurred: every figure that the shared models allow moves the right way."""
    import io
    import tarfile

    import cv2
    from PIL import Image

    monkeypatch.setenv("FICGAN_MODELS", str(shared_models))
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    with tarfile.open(shared_data / "faces128-val.tar") as archive:
        members = [member for member in archive if member.isfile()][:12]
        images = np.stack(
            [np.asarray(Image.open(io.BytesIO(archive.extractfile(one).read())).convert("RGB")) for one in members]
        )
    faces = Faces(images, tuple(one.name for one in members))
    judges = Judges.find()
    clear = judges.read(faces)
    blurred = (faces.with_images(np.stack([cv2.GaussianBlur(i, (0, 0), s) for i in images])) for s in (1.0, 4.0))
    weak, strong = (by_name(compare(clear, judges.read(some, against=clear))) for some in blurred)
    assert weak["detected"].value == 1 and weak["attributes"].value is None
    for name in ("ssim", "ms-ssim-short", "psnr", "sharpness", "box-iou"):
        assert weak[name].value > strong[name].value, name
    for name in ("lpips-squeezenet", "fd-squeezenet", "landmarks", "age-error"):
        assert 0 < weak[name].value < strong[name].value, name
    own = by_name(compare(clear, judges.read(faces, against=clear)))
    assert own["lpips-squeezenet"].value < 1e-5 and own["landmarks"].value == 0 and own["age-error"].value < 1e-3
