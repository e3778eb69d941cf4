"""Attackers that learn, in the matrix: trained once, resumed, kept away from probes; closed worlds; other sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matrix_world as world
import numpy as np
import pytest
from texture_world import judged_by_textures, write_people

from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix
from ficgan.lab.attackers import titles
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.bench import Subject
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.lab.report.tables import figure
from ficgan.lab.results import Results, Trial

METHOD = "block-permutation (block 8)"


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("made"))


@pytest.fixture(autouse=True)
def _world(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    judged_by_textures(monkeypatch)
    monkeypatch.setitem(REVERSERS._classes, "by-heart", world.ByHeart)
    monkeypatch.setattr(world, "LOG", world.Log())
    yield
    lab_bench._cached_bench.cache_clear()


def trials(results: Results, scenario: str) -> dict[str, Trial]:
    return {t.attacker: t for t in results.trials if t.scenario == scenario}


def rank1(trial: Trial) -> float:
    value = figure(trial.figures, "rank-1").value  # type: ignore[union-attr]
    assert value is not None
    return value


def bench_of(config: MatrixConfig, out: Path) -> object:
    (out / "store").mkdir(parents=True, exist_ok=True)
    return lab_bench.open_bench(config, config.sets[0], out)


def test_one_training_serves_scenarios_and_runs(people: Path, tmp_path: Path) -> None:
    config = world.config(people)
    matrix.run_matrix(config, tmp_path)
    assert world.LOG.trained == 1 and world.LOG.steps == list(range(6))
    more = world.config(
        people, scenarios=["clear", "naive", "reversed-general", "reversed-specialised"], specialised=["by-heart"]
    )
    lab_bench._cached_bench.cache_clear()
    results = matrix.run_matrix(more, tmp_path)
    assert world.LOG.trained == 1
    one, other = trials(results, "reversed-general")["by-heart"], trials(results, "reversed-specialised")["by-heart"]
    assert rank1(one) == rank1(other)


def test_an_interrupted_training_goes_on(people: Path, tmp_path: Path) -> None:
    world.LOG.fail_at = 3
    with pytest.raises(KeyboardInterrupt):
        matrix.run_matrix(world.config(people), tmp_path)
    world.LOG.fail_at = None
    matrix.run_matrix(world.config(people), tmp_path)
    assert world.LOG.steps == [0, 1, 2, 3, 4, 5] and world.LOG.trained == 1


def test_another_set_to_learn_from(people: Path, tmp_path: Path) -> None:
    other = write_people(tmp_path / "other", people=6, seed=9)
    shared = sorted(people.glob("*.png"))[:3]
    for index, path in enumerate(shared):  # the same pictures under other names
        (other / f"000-{index}.png").write_bytes(path.read_bytes())
    config = world.config(
        people,
        set={"learn_from": world.described(other, licence="CC0")},
        general=["by-heart", "ridge"],
        scenarios=["clear", "naive", "reversed-general"],
    )
    results = matrix.run_matrix(config, tmp_path / "out")
    assert set(trials(results, "reversed-general")) == {"by-heart: learnt on other", "ridge: learnt on other"}
    bench = bench_of(config, tmp_path / "out")
    seen = world.LOG.pixels()
    mine = np.concatenate(
        [
            bench.prepared.faces.images,
            Subject(bench, config.methods[0].make())
            .anonymised(np.sort(np.concatenate([bench.split.gallery, bench.split.probe])))
            .images,
        ]
    )
    assert not seen & {world.digest(image) for image in mine}
    facts = results.sets[people.name]["learn_from"]
    assert facts["licence"] == "CC0" and facts["faces"] == 21 and facts["people"] == 6
    assert str(tmp_path) not in results.to_json()


def test_titles_are_short_and_tell_apart() -> None:
    specs = [
        "ridge:penalty=3",
        "autoencoder:size=64,linear=none,epochs=400,batch=64,patience=30",
        "autoencoder:size=64,linear=full,epochs=400,batch=64,patience=30",
        "trained:file=/home/somebody/trained/attacker.safetensors",
        "trained:file=/home/another/trained/attacker.safetensors",
    ]
    found = list(titles(specs).values())
    assert found[0] == "ridge:penalty=3" and "linear=none" in found[1]
    assert len(set(found)) == len(specs) and max(map(len, found)) <= 80 and "/" not in "".join(found)
