"""Judges: of shapes, retrained; the identity probe: what it finds where something is hidden, and where nothing is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from made_world import people, prepared
from network_world import write_network
from safetensors.numpy import load_file
from scipy.linalg import eigh
from scipy.spatial.transform import Rotation
from stand_ins import random_network

from ficgan import pretrained
from ficgan.anonymizers import ANONYMIZERS, Anonymizer
from ficgan.errors import UsageError
from ficgan.faces import Mesh
from ficgan.files import file_digest
from ficgan.frame import FaceShape
from ficgan.lab import readers
from ficgan.lab.attackers import fit_probes, run_identity_probe, whitening
from ficgan.lab.bench import Bench, NotApplicable, Subject
from ficgan.lab.matrix_config import SCENARIOS, SplitConfig
from ficgan.lab.metrics.privacy import Scores, auc, similarities
from ficgan.lab.readers import Reader, ShapeRecognizer, discriminant
from ficgan.lab.results import Trial
from ficgan.lab.run import Store
from ficgan.lab.sets import split


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[np.ndarray]], tuple[ShapeRecognizer, np.ndarray]]:
    def embed(meshes: list[np.ndarray]) -> tuple[ShapeRecognizer, np.ndarray]:
        """The judge and its embeddings of pictures whose meshes are these [468,3], or of no face where all is 0."""
        found = [
            Mesh(np.concatenate([points, np.zeros((10, 3))]).astype(np.float32), 20.0 if points.any() else -20.0)
            for points in meshes
        ]
        monkeypatch.setattr(readers, "find_meshes", lambda mesh, image, marks: [found[image[0, 0, 0]]])
        images = np.arange(len(found), dtype=np.uint8)[:, None, None, None].repeat(3, 3)
        judge = ShapeRecognizer()
        return judge, judge.embed_each(images, np.zeros((len(found), 5, 2)))

    return embed


def test_pose_is_taken_out_and_the_shape_stays(embedded) -> None:
    rng = np.random.default_rng(0)
    mean, spread, moving = readers._yardstick()
    first, second = (mean + rng.normal(size=mean.shape) * spread for _ in range(2))
    turned = [
        rng.uniform(0.5, 8) * shape @ Rotation.from_euler("xyz", rng.uniform(-30, 30, 3), degrees=True).as_matrix().T
        + rng.normal(size=3) * 100
        for shape in (first, first, second)
    ]
    _, seen = embedded(turned)
    assert seen.shape == (3, 1405) and np.abs(seen[:, :-1] @ moving).max() < 1e-3
    np.testing.assert_allclose(seen[0], seen[1], atol=2e-3)
    assert np.abs(seen[0] - seen[2]).mean() > 0.5
    # In standard deviations from the mean face; a seventh of the noise, the rigid part of it, was taken for pose.
    assert np.std(seen[0]) == pytest.approx(1, abs=0.1)


def test_the_judge_sees_no_expression(embedded) -> None:
    """Two people, each with two expressions and once turned: a smile would outweigh who it is."""
    shape = FaceShape.from_arrays(load_file(pretrained.path("linear")))
    rng = np.random.default_rng(1)
    who = np.einsum("pi,inj->pnj", rng.normal(size=(2, len(shape.basis))), shape.basis)
    moved = np.einsum("ei,inj->enj", rng.normal(size=(3, 10)) * 3, shape.moves[1:])
    _, seen = embedded([shape.mean + who[person] + moved[way] for person, way in ((0, 0), (0, 1), (1, 0), (1, 2))])
    alike = similarities(seen, seen, "cosine")
    assert alike[0, 1] > 0.9 and alike[2, 3] > 0.9 and alike[0, 2] < 0.6


def test_a_picture_without_a_mesh_is_like_nobody(embedded) -> None:
    mean, spread, _ = readers._yardstick()
    shape = mean + np.random.default_rng(2).normal(size=mean.shape) * spread
    judge, seen = embedded([shape, 0 * mean, np.full_like(mean, np.nan)])
    assert Reader(judge, "shape", "").unread(seen) == 2
    assert abs(similarities(seen[:1], seen[1:2], "cosine")[0, 0]) < 1e-3


EACH, WIDTH = 6, 24
TURN = np.linalg.qr(np.random.default_rng(99).normal(size=(WIDTH, WIDTH)))[0]


def codes(seed: int, people: int = 80, signal: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Four weak coordinates tell people apart, the others are loud noise; all of it turned by one rotation."""
    rng = np.random.default_rng(seed)
    index = np.repeat(np.arange(people), EACH)
    own = signal * rng.normal(size=(people, WIDTH)) * (np.arange(WIDTH) < 4)
    x = own[index] + rng.normal(size=(len(index), WIDTH)) * np.where(np.arange(WIDTH) < 4, 0.2, 2.0)
    return (x @ TURN).astype(np.float32), index


def nearest(x: np.ndarray, people: np.ndarray) -> float:
    unit = x / np.linalg.norm(x, axis=1, keepdims=True)
    score = unit @ unit.T
    np.fill_diagonal(score, -np.inf)
    return float((people[score.argmax(1)] == people).mean())


def test_the_head_finds_what_tells_other_people_apart() -> None:
    x, people = codes(0)
    unseen, others = codes(1)
    matrix = discriminant(x, people)
    best = nearest((unseen @ TURN.T)[:, :4], others)
    assert nearest(unseen, others) < 0.2 * best
    assert nearest((unseen - x.mean(0)) @ matrix, others) > 0.8 * best


def test_fewer_images_than_numbers_are_enough() -> None:
    """Written out, with fewer images than an embedding has numbers: the shrunk covariance can still be inverted."""
    x, people = codes(4)
    wide = (x[:60] @ np.random.default_rng(5).normal(size=(WIDTH, 90))) + np.random.default_rng(6).normal(size=(60, 90))
    people = people[:60]
    ours = discriminant(wide, people)
    means = np.stack([wide[people == one].mean(0) for one in range(10)])
    inside, spread = wide - means[people], means - means.mean(0)
    within = inside.T @ inside / 50
    within += 0.1 * np.trace(within) / 90 * np.eye(90)
    between = spread.T @ spread / 9 - within / EACH
    values, vectors = eigh(between, within)
    whole = vectors * np.sqrt((values / (1 + values)).clip(0))
    np.testing.assert_allclose(ours @ ours.T, whole @ whole.T, rtol=1e-6, atol=1e-9 * np.abs(whole @ whole.T).max())


# -- the identity probe ------------------------------------------------------------------------------------------------


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
    found = {name: area(probe((unseen,)), others) for name, probe in fit_probes((x,), people).items()}
    assert found["linear probe"] > 0.9
    assert found["whitened cosine"] < found["linear probe"] - 0.1


def test_where_there_is_no_identity_nothing_is_found() -> None:
    x, people = codes(3, 60, signal=0.0)
    unseen, others = codes(4, 80, signal=0.0)
    for probe in fit_probes((x,), people).values():
        assert area(probe((unseen,)), others) == pytest.approx(0.5, abs=0.05)


@pytest.fixture(scope="module")
def bench() -> Bench:
    faces = people(20, 3, side=32)
    parts = split(faces.people, SplitConfig(background=0, attacker=10, test=10))  # type: ignore[arg-type]
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
    assert len(trials) == len(rows) * 2
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
    nobody = split(bench.people, SplitConfig(background=0, attacker=0, test=10))
    with pytest.raises(UsageError, match="nobody to learn from"):
        probed(Bench(bench.prepared, nobody, [], None, Store(tmp_path)), ANONYMIZERS.make("ficgan", layer=0))


def test_a_judge_of_ones_own_is_known_by_its_file(tmp_path: Path) -> None:
    (reader,) = readers.get_readers([f"onnx:{random_network(tmp_path / 'judge.onnx')}"])
    assert (reader.name, reader.digest) == ("judge", file_digest(tmp_path / "judge.onnx"))
