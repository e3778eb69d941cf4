"""`ficgan-eval` and `ficgan-attack` as their user meets them: lists, checks, what is written."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image
from stand_ins import invoke
from texture_world import judged_by_textures, write_people

from ficgan.cli.attack import NOTICE, attack
from ficgan.cli.evaluate import evaluate
from ficgan.cli.main import Console
from ficgan.errors import UsageError
from ficgan.lab import bench as lab_bench
from ficgan.lab import matrix
from ficgan.lab.attacks import training
from ficgan.lab.attacks.learned import read_header
from ficgan.lab.matrix_config import MatrixConfig

evaluating = partial(invoke, evaluate)


@pytest.mark.parametrize(
    ("what", "names"),
    [
        ("anonymizers", {"ficgan", "gaussian-blur", "k-same-pixel", "dp-pix", "fawkes", "k-rtio", "external"}),
        ("attackers", {"learn-permutation", "ridge", "wiener", "mean-face"}),
        ("scenarios", {"clear", "naive", "parrot-train", "attribute-inference"}),
        ("metrics", {"rank-1", "D_sys", "singling-out", "ssim", "detected"}),
        ("configs", {"quick", "fantomas"}),
    ],
)
def test_lists_are_a_name_and_a_line(what: str, names: set[str]) -> None:
    code, out, err = evaluating("list", what)
    assert code == 0 and not err
    rows = [line.split("\t") for line in out.splitlines()]
    assert all(len(row) == 2 and row[1] for row in rows)
    assert names <= {row[0] for row in rows}


MATRIX = """
sets: [{name: a, path: faces}]
methods: [solid, "pixelation:size=6"]
"""


def test_a_dry_run_counts_and_reads_nothing(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(MATRIX)
    words = ("run", str(tmp_path / "m.yaml"), "-o", str(tmp_path / "out"), "--dry-run")
    code, _, err = evaluating(*words)
    assert code == 3 and "faces" in err
    (tmp_path / "faces").mkdir()
    code, out, _ = evaluating(*words)
    assert code == 0 and json.loads(out)["tasks"] == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [(MATRIX.replace("solid", "sold"), 2, "did you mean solid"), ("[]", 2, "docs/evaluation.md"), (MATRIX, 3, "faces")],
)
def test_mistakes_are_one_sentence(tmp_path: Path, text: str, code: int, said: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    found, out, err = evaluating("run", str(tmp_path / "m.yaml"), "-o", str(tmp_path / "out"), "--progress", "none")
    assert (found, out) == (code, "")
    assert err.startswith("Error: ") and err.count("\n") == 1 and said in err


def test_presets_need_data_and_others_take_none(tmp_path: Path) -> None:
    code, _, err = evaluating("run", "quick", "-o", str(tmp_path))
    assert code == 2 and "--data" in err
    (tmp_path / "m.yaml").write_text(MATRIX)
    code, _, err = evaluating("run", str(tmp_path / "m.yaml"), "-o", str(tmp_path), "--data", str(tmp_path))
    assert code == 2 and "its own sets" in err


PEOPLE, EACH, SIDE = 24, 4, 32
CONFIG = {
    "title": "made",
    "attacker": {"name": "autoencoder", "size": 16, "epochs": 3, "batch": 8, "lr": 0.003},
    "anonymizer": {"method": "block-permutation", "block": 8},
    "set": {
        "size": SIDE,
        "aligned": True,
        "licence": "none, made up",
        "split": {"background": 2, "attacker": 14, "test": 8, "enrolment": 0.5},
    },
}


call = partial(invoke, attack)


@pytest.fixture(scope="module", autouse=True)
def _judge() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        judged_by_textures(patch)
        yield
    lab_bench._cached_bench.cache_clear()


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("faces"), PEOPLE, EACH)


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "made.yaml"
    file.write_text(yaml.safe_dump(CONFIG))
    return file


@pytest.fixture(scope="module")
def trained(faces: Path, config: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    out = tmp_path_factory.mktemp("run")
    code, said, record = call("train", config, "--data", faces, "--labels", faces / "labels.csv", "-o", out)
    assert code == 0, record
    return out, said, record


@pytest.mark.slow
def test_training_leaves_weights_statistics_and_who_was_learnt_from(trained: tuple[Path, str, str]) -> None:
    out, said, record = trained
    assert NOTICE in record and said.count("\n") == 1
    done = json.loads(said)
    assert (done["name"], done["epochs"]) == ("autoencoder", 3) and done["pairs"] == 14 * EACH
    assert (out / "stats.jsonl").read_text().count("\n") == 3 and any((out / "tensorboard").iterdir())
    manifest = json.loads((out / "manifest.json").read_text())
    assert len(manifest["learnt"]) == len(manifest["photos"]) == (14 + 2) * EACH
    assert manifest["split"]["parts"]["gallery"]["people"] == 8
    about = read_header(out / "attacker.safetensors")["about"]
    assert about["anonymizer"] == {"method": "block-permutation", "label": None, "block": 8}
    assert about["data"]["licence"] == "none, made up" and len(about["data"]["digest"]) == 64
    for text in (json.dumps(manifest), json.dumps(about)):
        assert str(out.parent) not in text and "labels.csv" not in text


@pytest.mark.slow
def test_the_same_command_reads_what_is_finished_and_another_is_refused(
    trained: tuple[Path, str, str], faces: Path, config: Path
) -> None:
    out, before, _ = trained
    words = ("train", config, "--data", faces, "--labels", faces / "labels.csv", "-o", out, "--quiet")
    code, said, record = call(*words)
    assert code == 0 and not record
    first, second = json.loads(before), json.loads(said)
    assert {**first, "command_seconds": 0} == {**second, "command_seconds": 0}
    code, said, record = call(*words, "attacker.epochs=4")
    assert code == 2 and "attacker" in record and "another --out" in record and not said


@pytest.mark.slow
def test_an_interrupted_training_says_how_to_go_on(
    faces: Path, config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That it then comes to the same is tested with the loop."""
    say = Console.__call__

    def stop(self: Console, done: int, total: int, stage: str = "") -> None:
        say(self, done, total, stage)
        if stage.startswith("training") and done == 9:
            raise KeyboardInterrupt

    monkeypatch.setattr(Console, "__call__", stop)
    monkeypatch.setattr(training, "REPORT_EVERY", 0.0)
    words = ("train", config, "--data", faces, "--labels", faces / "labels.csv", "-o", tmp_path, "--progress", "jsonl")
    code, said, record = call(*words)
    assert code == 130 and not said and "go on with: " in record.splitlines()[-1]
    events = [json.loads(line) for line in record.splitlines()[:-1]]
    assert events[0] == {"level": "info", "message": NOTICE}
    assert {event["unit"] for event in events if "unit" in event} == {"step"}
    assert not (tmp_path / "attacker.safetensors").exists()


def test_a_dry_run_reads_nothing(config: Path, tmp_path: Path) -> None:
    code, out, err = call("train", config, "--data", tmp_path / "none", "-o", tmp_path / "r", "--dry-run")
    tree = json.loads(out)
    assert code == 0 and not err and tree["network_parameters"] > 20_000 and tree["attacker"]["name"] == "autoencoder"
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_guesses_mirror_the_folder_and_overwrite_nothing(
    trained: tuple[Path, str, str], faces: Path, tmp_path: Path
) -> None:
    weights = trained[0] / "attacker.safetensors"
    (tmp_path / "in" / "deep").mkdir(parents=True)
    shutil.copy(faces / "000-0.png", tmp_path / "in" / "a.png")
    shutil.copy(faces / "001-0.png", tmp_path / "in" / "deep" / "b.png")
    Image.new("RGB", (30, 20)).save(tmp_path / "in" / "wide.png")
    words = ("run", weights, tmp_path / "in", "-o", tmp_path / "out")
    code, out, err = call(*words)
    assert code == 3 and "wide.png" in err and "square" in err and NOTICE in err
    done = json.loads(out)
    assert {key: done[key] for key in ("inputs", "written", "failed")} == {"inputs": 3, "written": 2, "failed": 1}
    with Image.open(tmp_path / "out" / "deep" / "b.png") as guess:
        assert guess.size == (SIDE, SIDE)
    before = (tmp_path / "out" / "a.png").read_bytes()
    code, _, err = call(*words)
    assert code == 2 and "exists" in err and (tmp_path / "out" / "a.png").read_bytes() == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("autoencoder", "FACE"), "must be trained"),
        (("ridge", "FACE"), "needs pairs"),
        (("wavelet", "FACE", "--candidates", "3"), "one guess"),
        (("wavelet", "missing.png"), "does not exist"),
        (("wavelett", "FACE"), "did you mean wavelet"),
        (("wavelet", "FACE", "OTHER"), "one name"),
    ],
)
def test_what_cannot_guess_says_why(words: tuple[str, ...], said: str, faces: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "000-0.png"
    other.parent.mkdir()
    other.write_bytes((faces / "000-0.png").read_bytes())
    named = {"FACE": str(faces / "000-0.png"), "OTHER": str(other)}
    code, out, err = call("run", *(named.get(word, word) for word in words), "-o", tmp_path / "out")
    err = err.replace(NOTICE + "\n", "")
    assert code == 2 and not out and said in err and err.count("\n") == 1


@pytest.mark.slow
def test_the_evaluation_tests_people_it_never_saw(
    trained: tuple[Path, str, str], faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ficgan.cli.attack.write_pages", lambda results, out: ["report.html"])
    out, weights = tmp_path / "out", trained[0] / "attacker.safetensors"
    words = ("evaluate", weights, "--data", faces, "--labels", faces / "labels.csv", "-o", out, "--resamples", "50")
    code, said, err = call(*words)
    assert code == 0, err
    found = {(each["scenario"], each["attacker"]): each["rank-1"] for each in json.loads(said)["reversed"]}
    assert found["clear", ""] == 1.0 and found["constant", ""] == pytest.approx(1 / 8)
    assert {("naive", ""), ("reversed-general", "autoencoder (trained)"), ("reversed-general", "mean-face")} <= set(
        found
    )
    assert found["reversed-general", "mean-face"] == pytest.approx(1 / 8)
    text = (out / "results.json").read_text()
    assert str(trained[0]) not in text and "made up" in text and json.loads(said)["report"] == ["report.html"]
    metrics = {
        each["metric"]
        for trial in json.loads(text)["trials"]
        for each in trial["figures"]
        if trial["attacker"] == "autoencoder (trained)"
    }
    assert {"rank-1", "reversibility", "PSNR", "IDD"} <= metrics
    code, _, err = call(*words, "--no-report", "--quiet")
    assert code == 0, err
    before = (out / "results.json").read_bytes()
    for more in (("--method", "block-permutation:block=4"), ("--judge", "insightface"), ("--people", "20")):
        code, _, err = call(*words, *more, "--quiet")
        assert code == 2 and "another folder" in err
    assert (out / "results.json").read_bytes() == before


def matrix_of(weights: Path, faces: Path, **split: int) -> MatrixConfig:
    """A matrix in which an attacker from a file is tried on a division of its own."""
    parts = {**CONFIG["set"]["split"], **split}  # type: ignore[index]
    each = {"name": "made", "path": str(faces), "labels": str(faces / "labels.csv"), "size": SIDE, "aligned": True}
    return MatrixConfig.model_validate(
        {
            "sets": [{**each, "split": parts}],
            "methods": ["block-permutation:block=8"],
            "resamples": 20,
            "scenarios": ["clear", "naive", "reversed-general"],
            "general": [f"trained:file={weights}"],
            "utility": False,
            "reversal_metrics": False,
        }
    )


@pytest.mark.slow
def test_a_matrix_refuses_people_that_a_trained_attacker_learnt_from(
    trained: tuple[Path, str, str], faces: Path, tmp_path: Path
) -> None:
    weights = trained[0] / "attacker.safetensors"
    matrix.run_matrix(matrix_of(weights, faces), tmp_path / "same")
    with pytest.raises(UsageError, match=r"learnt from [1-8] of the 8 people it would be tested on, such as from \d"):
        matrix.run_matrix(matrix_of(weights, faces, seed=7), tmp_path / "other")
    again = matrix_of(weights, faces, seed=7)
    with pytest.raises(UsageError, match="learnt from"):
        lab_bench.open_bench(again, again.sets[0], tmp_path / "other")
    shutil.copy(weights, tmp_path / "attacker.safetensors")
    with pytest.raises(UsageError, match=r"there is no .*manifest\.json"):
        matrix.run_matrix(matrix_of(tmp_path / "attacker.safetensors", faces), tmp_path / "none")
