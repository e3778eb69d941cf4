"""Bars: each row against slow loops, known pictures and other libraries; verdicts and the page."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_world import SIDE, Means, bench, people, reader, seen
from stand_ins import cosine

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.lab import bars as rows
from ficgan.lab.bars import Line, Sheet, strangers, threshold_of
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.results import Figure


@dataclass(frozen=True)
class Does(Anonymizer):
    """Whatever a function does to images."""

    what: Any = None

    def __call__(self, faces: Faces) -> Images:
        return self.what(faces.images)


KEEP = Does(what=lambda images: images.copy())


@given(st.integers(31, 200), st.integers(0, 5), st.booleans())
def test_the_threshold_is_what_a_slow_search_finds(count: int, seed: int, ties: bool) -> None:
    scores = np.random.default_rng(seed).normal(size=count)
    scores = np.round(scores, 1) if ties else scores
    far = 30 / count
    assert threshold_of(scores, far=far) == min(one for one in scores if np.mean(scores > one) <= far + 1e-12)


def test_too_few_strangers_have_no_threshold() -> None:
    assert threshold_of(np.zeros(9_999)) is None
    assert threshold_of(np.arange(30_000.0)) == 29_969  # Thirty lie above it
    threshold, found = strangers(bench(), reader())
    assert threshold is None and found["tar"].value is None and "10000 are needed" in found["tar"].note


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_strangers_are_other_people_of_the_same_group(metric: str) -> None:
    groups = {"gender": ("Female",) * 6 + ("Male",) * 6, "race": ("a", "a", "b", "b") * 3}
    judge = reader(metric=metric, match_threshold=0.9 if metric == "cosine" else 300.0)
    made = bench(groups=groups, readers=(judge,))
    codes = [seen(image) for image in made.faces.images]
    who = made.faces.people
    assert who is not None
    near, matched = [], []
    for i, a in enumerate(codes):
        alike = [
            j for j in range(len(codes)) if who[j] != who[i] and all(told[i] == told[j] for told in groups.values())
        ]
        if alike:
            near.append(np.mean([cosine(a, codes[j]) for j in alike]))
            distance = [1 - cosine(a, codes[j]) if metric == "cosine" else np.linalg.norm(a - codes[j]) for j in alike]
            matched.append(np.mean(np.array(distance) < judge.recognizer.match_threshold))
    found = strangers(made, judge)[1]
    assert found["id-cosine"].value == pytest.approx(np.mean(near), abs=1e-6)
    assert found["match"].value == pytest.approx(np.mean(matched))


def test_identity_rows_by_loops() -> None:
    made = bench(groups={"gender": ("Female",) * 6 + ("Male",) * 6})
    noise = np.random.default_rng(3).integers(0, 256, made.faces.images.shape)
    mixed = made.faces.with_images((made.faces.images / 2 + noise / 2).astype(np.uint8))
    found = rows.identity(made, made.recognised(mixed))
    pairs = zip(made.faces.images, mixed.images, strict=True)
    alike = [cosine(seen(before), seen(after)) for before, after in pairs]
    assert found["id-cosine", "blocks"].value == pytest.approx(np.mean(alike), abs=1e-6)
    assert found["match", "blocks"].value == np.mean(np.array(alike) > 0.5)
    assert found["tar", "blocks"].value is None
    assert rows.beside_strangers(made)["match", "blocks"][1] == strangers(made, reader())[1]["match"]


def test_two_outputs_of_one_person_are_compared_among_people_of_the_kind() -> None:
    made = bench(people(8, 2), groups={"gender": ("Female",) * 8 + ("Male",) * 8, "race": ("a",) * 16})
    other = made.faces.with_images(np.random.default_rng(4).permutation(made.faces.images))
    found, areas = rows.within_kinds(made, other, made.recognised(other)), []
    for i, image in enumerate(other.images):
        alike = [cosine(seen(image), seen(each)) for each in other.images]
        areas.append(np.mean([alike[i ^ 1] > alike[j] for j in range(16) if j // 8 == i // 8 and j // 2 != i // 2]))
    for row in ("linked", "linked (square)"):
        assert found[row, "blocks"].value == pytest.approx(np.mean(areas))
    alone = bench(people(8, 1), groups={"gender": ("Female",) * 8, "race": ("a",) * 8})
    assert len(rows.within_kinds(alone, alone.faces, alone.recognised(alone.faces))) == 2  # nobody comes twice


@dataclass
class Clock:
    """Male where green is above 127."""

    def predict(self, faces: Faces) -> tuple[np.ndarray, np.ndarray]:
        means = faces.images.mean((1, 2))
        return (means[:, 0] / 3).astype(np.float32), (means[:, 1] / 254).astype(np.float32)


def test_likeness_by_loops() -> None:
    made = bench(people(spread=120), judges=Judges(age_gender=Clock()))  # type: ignore[arg-type]
    other = np.random.default_rng(5).permutation(made.faces.images)
    found = rows.likeness(made, made.faces.with_images(other))
    greens = [images[..., 1].mean((1, 2)) >= 127 for images in (made.faces.images, other)]
    assert found["gender", "age_gender"].value == np.mean(greens[0] == greens[1])
    assert found["detected", "no detector"].value is None and found["sharpness-kept", ""].n == 12
    assert rows.likeness(made, made.faces)["sharpness-kept", ""].value == pytest.approx(1)


def test_fidelity_of_a_known_change() -> None:
    made = bench(Faces(np.full((3, SIDE, SIDE, 3), 100, np.uint8), ("a", "b", "c")))
    found = rows.fidelity(made, made.faces.with_images(np.full((3, SIDE, SIDE, 3), 151, np.uint8)))
    assert found["rec-mse", ""].value == pytest.approx(0.16)  # 51 of 127.5, squared
    assert found["rec-cosine", "blocks"].value == pytest.approx(-1, abs=1e-3)  # 27 below and 24 above the middle
    assert found["rec-lpips", ""].value is None and rows.likeness(made, made.faces)["fd", "SqueezeNet"].value is None


def test_pictures_are_judged_by_squeezenet_against_the_clear_halves() -> None:
    made = bench(people(12, 2, spread=60), judges=Judges(squeezenet=Means()))  # type: ignore[arg-type]
    lighter = made.faces.with_images(made.faces.images // 2 + 120)
    assert rows.likeness(made, made.faces)["fd", "SqueezeNet"].value == pytest.approx(1)
    found = rows.likeness(made, lighter)["fd", "SqueezeNet"]
    assert found.value is not None and found.value > 2 and "two halves" in found.note
    away = np.abs(lighter.images.astype(float) - made.faces.images).mean()
    assert rows.fidelity(made, lighter)["rec-lpips", ""].value == pytest.approx(away)


def test_a_swap_is_compared_with_its_target() -> None:
    made = bench(people(5, 1)).one_each(4)
    assert made.faces.people is None and len(made.faces) == 4
    perfect = rows.swap(made, Does(what=lambda images: np.roll(images, -1, 0)))
    assert perfect["swap", "blocks"].value == pytest.approx(1)
    none = rows.swap(made, KEEP)["swap", "blocks"]
    codes = [seen(image) for image in made.faces.images]
    assert none.value == pytest.approx(np.mean([cosine(codes[i], codes[(i + 1) % 4]) for i in range(4)]), abs=1e-6)


def test_the_policy_is_counted_face_by_face() -> None:
    made = bench(people(4, 1))

    class Engine:
        recognizer = SimpleNamespace(name="gate")

        def aligned(self, images: np.ndarray, *, keys: Any, layer: int) -> Any:
            return 255 - images, [SimpleNamespace(action=one) for one in ("generated", "retried", "masked", "retried")]

        def __call__(self, image: np.ndarray, *, key: str, layer: int) -> Any:
            faces = [] if key.startswith("0") else [SimpleNamespace(action="masked")]
            return SimpleNamespace(faces=faces, image=image if not faces else image // 2)

    found, published = rows.policy(made, Engine(), 4)  # type: ignore[arg-type]
    np.testing.assert_array_equal(published.images, 255 - made.faces.images)
    assert found["retried", "gate (the gate)"].value == 0.75 and found["masked", "gate (the gate)"].value == 0.25
    photos = replace(made, prepared=replace(made.prepared, region=(8, 8, 56, 56)))
    found, published = rows.policy(photos, Engine(), 4)  # type: ignore[arg-type]
    assert published.names == photos.faces.names
    for row, image in enumerate(photos.faces.images):  # what was not found leaves as it came
        np.testing.assert_array_equal(published.images[row], image if row == 0 else image // 2)
    masked = found["masked", "gate (the gate)"]
    assert (masked.value, masked.n) == (1, 3) and "1 photos in which no face" in masked.note


def _line(row: str, value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Line:
    return Line("set", row, "i = 0", "judge", Figure(row, value, low, high, 9, "images", "why"), **more)


@pytest.mark.parametrize(
    ("row", "value", "verdict"),
    [
        ("id-cosine", 0.13, "met"),
        ("id-cosine", 0.23, "missed"),
        ("detected", 0.9, "missed"),
        ("sharpness-kept", 0.4, "missed"),
        ("sharpness-kept", 1.9, "missed"),
        ("sharpness-kept", 1.0, "met"),
        ("within-kind", 0.6, "no bar"),
        ("smile-r", None, "not measured"),
        ("match", 0.1, "not measured"),
    ],
)
def test_verdicts(row: str, value: float | None, verdict: str) -> None:
    assert _line(row, value).verdict == verdict


def test_a_measured_bar_is_the_controls() -> None:
    control = "same-group strangers", Figure("strangers", 0.06)
    assert _line("match", 0.05, control=control).verdict == "met"
    missed = _line("match", 0.1, control=control)
    assert (missed.verdict, missed.cells()["most"]) == ("missed", 0.06)


def test_the_table_hides_nothing(tmp_path: Path) -> None:
    strangers = "strangers", Figure("", 0.05)
    lines = [_line("id-cosine", 0.25, 0.2, 0.3, sticker=Figure("", 0.1), control=strangers), _line("smile-r", None)]
    facts = {"judges": {"judge": "had no part"}, "sets": {"set": {"faces": 9, "people": 8, "licence": "CC0"}}}
    sheet = Sheet(lines, facts)
    assert [path.name for path in sheet.write(tmp_path / "new")] == ["bars.json", "bars.csv"]
    rows = list(csv.DictReader((tmp_path / "new" / "bars.csv").read_text(encoding="utf-8").splitlines()))
    found = {key: rows[0][key] for key in ("value", "low", "most", "sticker", "control", "control is", "verdict")}
    assert list(found.values()) == ["0.25", "0.2", "0.13", "0.1", "0.05", "strangers", "missed"]
    assert (rows[1]["value"], rows[1]["note"]) == ("", "why")
    written = json.loads((tmp_path / "new" / "bars.json").read_text(encoding="utf-8"))
    assert written["verdicts"] == {"not measured": 1, "missed": 1}
    assert [line["row"] for line in written["lines"]] == ["id-cosine", "smile-r"]
