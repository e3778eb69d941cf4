"""The identity probe: what it finds where something is hidden, that it finds nothing where nothing is, and its rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from made_world import people, prepared
from network_world import write_network

from ficgan.anonymizers import ANONYMIZERS, Anonymizer
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject
from ficgan.lab.matrix_config import SCENARIOS
from ficgan.lab.metrics.privacy import Scores, auc
from ficgan.lab.probe import PROBES, fit_probe, run_identity_probe, whitening
from ficgan.lab.results import Trial
from ficgan.lab.run import Store
from ficgan.lab.sets import split

EACH, WIDTH = 6, 24


def codes(seed: int, people: int, signal: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Four weak coordinates tell people apart, the others are loud noise; all of it turned by one rotation."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(people), EACH)
    own = signal * rng.normal(size=(people, WIDTH)) * (np.arange(WIDTH) < 4)
    x = own[index] + rng.normal(size=(len(index), WIDTH)) * np.where(np.arange(WIDTH) < 4, 0.3, 3.0)
    turn = np.linalg.qr(np.random.default_rng(99).normal(size=(WIDTH, WIDTH)))[0]
    return (x @ turn).astype(np.float32), index


def area(x: np.ndarray, people: np.ndarray) -> float:
    """AUC, every image against every other."""
    scores = Scores.compare(x, x, people, people, metric="cosine", exclude_same=True)
    value = auc(scores).value
    assert value is not None
    return value


def test_whitening_leaves_no_covariance_and_what_does_not_vary_out() -> None:
    x, _ = codes(0, 60)
    ours = whitening(np.hstack([x, x[:, :2]]))(np.hstack([x, x[:, :2]]))
    assert ours.shape == (360, WIDTH) and np.allclose(np.cov(ours.T), np.eye(WIDTH), atol=1e-3)


@pytest.mark.slow
def test_learnt_probes_find_what_the_cosine_does_not() -> None:
    x, people = codes(1, 80)
    unseen, others = codes(2, 40)
    found = {kind: area(fit_probe(kind, (x,), people)((unseen,)), others) for kind in PROBES}
    assert found["linear"] > 0.9
    assert found["cosine"] < found["linear"] - 0.1


@pytest.mark.parametrize("kind", PROBES)
def test_where_there_is_no_identity_nothing_is_found(kind: str) -> None:
    x, people = codes(3, 60, signal=0.0)
    unseen, others = codes(4, 80, signal=0.0)
    assert area(fit_probe(kind, (x,), people)((unseen,)), others) == pytest.approx(0.5, abs=0.05)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def bench() -> Bench:
    faces = people(20, 3, side=32)
    parts = split(faces.people, background=0, attacker=10, test=10)  # type: ignore[arg-type]
    return Bench(prepared(faces), parts, [], None, Store(None), resamples=50)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    return {**write_network(tmp_path_factory.mktemp("network")), "k": 50}


def probed(bench: Bench, anonymizer: Anonymizer) -> list[Trial]:
    return run_identity_probe(Subject(bench, anonymizer, "ours"), SCENARIOS["identity-probe"])


VIEWS = ("as the generator is given it", "read from the published image", "read from published images, parrot")
SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("settings", "span"),
    [
        pytest.param({"layer": 0}, "", marks=SLOW),
        pytest.param({"band": "3-6"}, "1–2, 7–8", marks=SLOW),
        pytest.param({"layer": 4}, "1–4", marks=SLOW),
    ],
)
def test_rows_of_a_model(bench: Bench, network: dict[str, object], settings: dict[str, object], span: str) -> None:
    """Layers that keep the source's code have rows of their own."""
    trials = probed(bench, ANONYMIZERS.make("ficgan", **settings, **network))
    codes_ = ["z_non", *([f"w of layers {span}", f"z_non + w of layers {span}"] if span else [])]
    rows = {(f"{code}, {view}", "codes" if view == VIEWS[0] else "") for code in codes_ for view in VIEWS}
    rows.add((f"z_id, {VIEWS[0]}", "codes"))
    assert {(t.attacker, t.control) for t in trials} == rows
    assert len(trials) == len(rows) * len(PROBES)
    assert {(t.method, t.scenario) for t in trials} == {("ours", "identity-probe")}
    for trial in trials:
        assert [one.metric for one in trial.figures] == ["rank-1", "AUC", "EER", "chance"]
        first = trial.figures[0]
        assert first.low is not None and first.value is not None and first.high is not None
        assert first.low <= first.value <= first.high
        assert trial.figures[3].value == pytest.approx(1 / len(set(bench.people[bench.split.gallery])))


def test_other_methods_and_splits_without_an_attacker_are_refused(bench: Bench, tmp_path: Path) -> None:
    with pytest.raises(NotApplicable):
        probed(bench, ANONYMIZERS.make("solid"))
    nobody = split(bench.people, background=0, attacker=0, test=10)
    with pytest.raises(Refused, match="train a probe"):
        probed(Bench(bench.prepared, nobody, [], None, Store(tmp_path)), ANONYMIZERS.make("ficgan", layer=0))
