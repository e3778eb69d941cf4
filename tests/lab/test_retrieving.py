"""Several guesses at each probe: against slow loops over candidates and photos, and in the matrix."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import matrix_world as world
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score
from texture_world import Textures, judged_by_textures, write_people

from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix
from ficgan.lab import trials as lab_trials
from ficgan.lab.attackers import halves
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import Subject, anonymiser_for
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.results import Figure, Results, Trial
from ficgan.lab.trials import Read, retrieval_figures, spread, stranger_figures

BOOTSTRAP = Bootstrap(100, 0)


def by_name(figures: tuple[Figure, ...]) -> dict[str, Figure]:
    return {one.metric: one for one in figures}


def made(seed: int, probes: int = 12, guesses: int = 5, people: int = 8, photos: int = 2, noise: float = 1.2) -> Read:
    """People are directions; guesses are noisy; the judge is Euclidean."""
    rng = np.random.default_rng(seed)
    who = rng.normal(size=(people, 6))
    enrolled = np.repeat(np.arange(people), photos)
    gallery = who[enrolled] + rng.normal(size=(len(enrolled), 6)) * 0.3
    shown = np.arange(probes) % people
    seen = who[shown][:, None] + rng.normal(size=(probes, guesses, 6)) * noise
    return Read(seen.astype(np.float32), shown, gallery.astype(np.float32), enrolled, "euclidean")


def slow(read: Read, guesses: int | None = None) -> list[int]:
    """Each guess names the person of its nearest photo; most win, of several the nearest."""
    found = []
    for probe in read.candidates[:, :guesses]:
        named: list[tuple[float, int]] = []
        for guess in probe:
            named.append(
                min(
                    (float(np.linalg.norm(guess - photo)), int(who))
                    for photo, who in zip(read.gallery, read.enrolled, strict=True)
                )
            )
        votes = Counter(who for _, who in named)
        most = max(votes.values())
        found.append(min((far, who) for far, who in named if votes[who] == most)[1])
    return found


@given(st.integers(0, 10**6))
def test_names_are_those_of_a_slow_vote(seed: int) -> None:
    read = made(seed)
    found = by_name(retrieval_figures(read, BOOTSTRAP))
    hits = int(np.sum(np.array(slow(read)) == read.people))
    assert found["IRA"].value == pytest.approx(hits / 12) and found["IRA"].n == 12
    interval = binomtest(hits, 12).proportion_ci(method="wilson")
    assert (found["IRA"].low, found["IRA"].high) == pytest.approx((interval.low, interval.high), abs=1e-9)
    assert found["IRA (one guess)"].value == pytest.approx(np.mean(np.array(slow(read, 1)) == read.people))
    right = np.array(slow(read)) == read.people
    by_person = [right[read.people == who].mean() for who in range(8)]
    assert found["rank-1"].value == pytest.approx(np.mean(by_person)) and found["rank-1"].n == 8
    assert found["chance"].value == 1 / 8


@given(st.integers(0, 10**6), st.floats(0.1, 3))
def test_strangers_are_told_by_thresholds_of_other_people(seed: int, noise: float) -> None:
    read = made(seed, probes=24, noise=noise)
    known = np.arange(0, 8, 2)
    figures, curve = stranger_figures(read, known, BOOTSTRAP)
    found = by_name(figures)
    stranger = ~np.isin(read.people, known)
    least = [
        min(
            np.linalg.norm(guess - photo)
            for guess in probe
            for photo, who in zip(read.gallery, read.enrolled, strict=True)
            if who in known
        )
        for probe in read.candidates
    ]
    assert found["stranger AUC"].value == pytest.approx(roc_auc_score(stranger, least), abs=1e-6)
    tpr, fpr = found["stranger TPR"], found["stranger FPR"]
    share = (tpr.value * tpr.n + (1 - fpr.value) * fpr.n) / 24  # type: ignore[operator]
    assert found["stranger accuracy"].value == pytest.approx(share)
    assert curve[0] == [0.0, 0.0] and curve[-1] == [1.0, 1.0]
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(curve))


def test_thresholds_do_not_flatter_where_there_is_nothing_to_tell() -> None:
    """Guesses that show nobody: whoever chooses the threshold on the tested people themselves tells some apart."""
    balanced, flattered = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        seen, gallery = rng.normal(size=(32, 1, 2)), rng.normal(size=(16, 2)) * 0.1
        shown = np.arange(32) % 16
        read = Read(seen.astype(np.float32), shown, gallery.astype(np.float32), np.arange(16), "euclidean")
        figures, curve = stranger_figures(read, np.arange(8), Bootstrap(2, 0))
        found = by_name(figures)
        balanced.append((found["stranger TPR"].value - found["stranger FPR"].value + 1) / 2)  # type: ignore[operator]
        flattered.append(max((tpr - fpr + 1) / 2 for fpr, tpr in curve))
    assert np.mean(balanced) == pytest.approx(0.5, abs=0.04) and np.mean(flattered) > 0.56


# In the matrix


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    judged_by_textures(monkeypatch)
    monkeypatch.setattr(lab_trials, "_judges", lambda *_: Judges(missing={"squeezenet": "not here"}))
    monkeypatch.setitem(REVERSERS._classes, "by-heart", world.ByHeart)
    monkeypatch.setattr(world, "LOG", world.Log())
    yield
    lab_bench._cached_bench.cache_clear()


def config(people: Path, **more: object) -> MatrixConfig:
    scenarios = ["clear", "naive", "retrieval", "retrieval-closed"]
    return world.config(people, scenarios=scenarios, general=["by-heart", "ridge"], candidates=4, **more)


def trials(results: Results, scenario: str) -> dict[str, Trial]:
    return {t.attacker: t for t in results.trials if t.scenario == scenario}


def test_the_scenarios_against_a_slow_one(people: Path, tmp_path: Path) -> None:
    setting = config(people, retrieval_probes=20)
    results = matrix.run_matrix(setting, tmp_path)
    assert set(trials(results, "retrieval")) == {"by-heart"}  # ridge has one guess at each
    bench = lab_bench.open_bench(setting, setting.sets[0], tmp_path)
    method = anonymiser_for(bench, setting.methods[0].make())
    rows, subject, judge = spread(bench), Subject(bench, method), Textures()
    assert len(rows) == 20

    def embedded(images: np.ndarray) -> np.ndarray:
        made = np.concatenate([judge.embed(image, np.zeros((5, 2))) for image in images])
        return made / np.linalg.norm(made, axis=1, keepdims=True)

    gallery, enrolled = embedded(subject.clear(bench.split.gallery).images), bench.people[bench.split.gallery]
    known, _ = halves(bench)
    for name, trial, mine in (
        ("retrieval", "by-heart", np.ones(20, bool)),
        ("retrieval-closed", "by-heart (known)", np.isin(bench.people[rows], known)),
        ("retrieval-closed", "by-heart (unknown)", ~np.isin(bench.people[rows], known)),
    ):
        learnt = np.concatenate([bench.split.attacker, bench.split.gallery[np.isin(enrolled, known)]])
        learnt = bench.split.attacker if name == "retrieval" else learnt
        seen = np.concatenate(
            [subject.anonymised(bench.split.attacker).images, subject.anonymised(bench.split.gallery).images]
        ).astype(float)
        at = np.concatenate([bench.split.attacker, bench.split.gallery])
        seen = seen[np.isin(at, learnt)]
        hits = []
        for row in rows[mine]:
            probe = subject.anonymised(np.array([row])).images[0].astype(float)
            near = np.argsort(((seen - probe) ** 2).sum((1, 2, 3)), kind="stable")[:4]
            guesses = embedded(subject.clear(at[np.isin(at, learnt)][near]).images)
            alike = guesses @ gallery.T
            named = [(1 - float(one.max()), int(enrolled[one.argmax()])) for one in alike]
            votes = Counter(who for _, who in named)
            won = min((far, who) for far, who in named if votes[who] == max(votes.values()))[1]
            hits.append(won == bench.people[row])
        found = by_name(trials(results, name)[trial].figures)
        assert found["IRA"].value == pytest.approx(np.mean(hits)), (name, trial)
    closed = trials(results, "retrieval-closed")
    assert by_name(closed["by-heart (known)"].figures)["stranger AUC"].value > 0.9  # type: ignore[operator]
    assert "strangers" in closed["by-heart (known)"].curves and not closed["by-heart (unknown)"].curves
    assert "stranger AUC" not in by_name(closed["by-heart (unknown)"].figures)
