"""`ficgan-eval survey` as its user meets it: made, answered, scored; one sentence for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from texture_world import judged_by_textures, write_people

from ficgan.cli.evaluate import evaluate

SIDE = 32


def call(*words: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(evaluate, ["survey", *map(str, words)])
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty people, two photos each, as aligned crops."""
    return write_people(tmp_path_factory.mktemp("set") / "faces", 40, 2, 1, noise=8, genders=True)


def make(faces: Path, out: Path, *more: object) -> tuple[int, str, str]:
    return call(
        "make",
        "--data",
        faces,
        "--labels",
        faces / "labels.csv",
        "--aligned",
        "--size",
        SIDE,
        "--pairs",
        4,
        "-o",
        out,
        "--methods",
        "solid",
        *more,
    )


def answers(out: Path, file: Path, code: str, **more: Any) -> Path:
    """All right, of the first questionnaire."""
    asked = json.loads((out / "key.json").read_text())["questionnaires"][0]
    rows = [{"item": one["id"], "answer": "yes" if one["same"] else "no", "seconds": 1} for one in asked["items"]]
    tree = {"schema": "ficgan-survey-answers/1", "questionnaire": asked["token"], "participant": code, "consent": True}
    file.write_text(json.dumps({**tree, "finished": True, "answers": rows, **more}))
    return file


def test_a_survey_is_made_answered_and_scored(faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, consent = tmp_path / "survey", tmp_path / "consent.txt"
    consent.write_text("I agree <b>freely</b>.")
    code, said, error = make(faces, out, "--consent", consent, "--seed", 3)
    assert code == 0 and not error
    told = json.loads(said)
    assert told["questionnaires"] == 2 and told["questions"] == 10 and told["conditions"] == ["clear", "solid"]
    assert told["people"] == 15 and not told["notes"]
    pages = list((out / "pages").iterdir())
    assert len(pages) == 2 and all("I agree &lt;b&gt;freely&lt;/b&gt;." in page.read_text() for page in pages)
    code, _, error = make(faces, out)
    assert code != 0 and "not empty" in error and "Traceback" not in error

    judged_by_textures(monkeypatch)
    good = answers(out, tmp_path / "a.json", "ada")
    scored = tmp_path / "score.json"
    code, said, error = call("score", out, good, "--judge", "textures", "-o", scored, "--resamples", 50)
    assert code == 0 and not error and "1 participants count" in said and "textures F1" in said
    tree = json.loads(scored.read_text())
    clear, solid = tree["conditions"]
    assert clear["as wrong"]["F1"]["value"] == 1 and clear["judges"]["textures"]["accuracy"]["value"] == 1
    assert solid["judges"]["textures"]["F1"]["value"] == 0  # who sees nothing knows nobody
    code, _, error = call("score", out, good, "-o", scored)
    assert code != 0 and "exists already" in error

    words = ("--judge", "textures", "--threshold", "textures=-2", "-o", tmp_path / "all.json")
    code, said, _ = call("score", out, good, *words)
    solid = json.loads((tmp_path / "all.json").read_text())["conditions"][1]
    judge = solid["judges"]["textures"]
    assert judge["sensitivity"]["value"] == 1 and judge["specificity"]["value"] == 0

    bad = answers(out, tmp_path / "b.json", "bob", answers=[])
    code, said, error = call("score", out, good, bad, good)
    assert code == 3 and "refused: 1 unfinished, 1 repeated" in said and error.count("Error: ") == 2


def test_a_matrix_names_set_and_methods(faces: Path, tmp_path: Path) -> None:
    matrix = tmp_path / "m.yaml"
    matrix.write_text(
        f"sets: [{{name: made, path: {faces}, labels: {faces / 'labels.csv'}, size: 32, aligned: true, "
        "split: {background: 0, attacker: 8, test: 32, enrolment: 0.5}}]\n"
        "methods: [solid, {method: pixelation, size: 4, label: blocks}]\n"
    )
    few = ("--pairs", 4, "--no-control", "--questionnaires", 1)
    code, said, error = call("make", matrix, "-o", tmp_path / "out", *few, "--reversed", "blocks@ridge")
    assert code == 0 and not error
    assert json.loads(said)["conditions"] == ["solid", "blocks", "blocks, reversed by ridge"]
    words = ("--methods", "solid", "--reversed", "blocks@ridge")
    code, said, error = call("make", matrix, "-o", tmp_path / "out2", *few, *words)
    assert code == 0 and not error
    assert json.loads(said)["conditions"] == ["solid", "blocks, reversed by ridge"]
    assert json.loads(said)["questionnaires"] == 1
    code, _, error = call("make", matrix, "-o", tmp_path / "no", "--set", "other")
    assert code == 2 and "no set 'other'" in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--methods", "solid"], "needs faces"),
        (["fantomas"], "needs faces"),
        (["nowhere.yaml"], "cannot be read"),
        (["nowhere.yaml", "--data", "x", "--methods", "solid"], "names its own sets"),
        (["--data", "x"], "needs methods"),
        (["--data", "x", "--methods", "sollid"], "did you mean solid"),
        (["--data", "x", "--methods", "solid", "--pairs", "3"], "even number"),
        (["--data", "x", "--methods", "solid", "--reversed", "solid"], "METHOD@ATTACKER"),
        (["--data", "no-such-folder", "--methods", "solid", "--aligned"], "no-such-folder"),
    ],
)
def test_mistakes_are_one_sentence(words: list[str], said: str, tmp_path: Path) -> None:
    code, out, error = call("make", *words, "-o", tmp_path / "out")
    assert code in (1, 2, 3) and not out and said in error
    assert error.startswith("Error: ") and error.count("\n") == 1 and not (tmp_path / "out").exists()


def test_thresholds_name_judges(faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "s"
    assert make(faces, out)[0] == 0
    file = answers(out, tmp_path / "a.json", "a")
    for text, said in (("dlib", "JUDGE=SIMILARITY"), ("dlib=0.3", "no --judge")):
        code, _, error = call("score", out, file, "--threshold", text)
        assert code == 2 and said in error
    code, _, error = call("score", tmp_path, file)
    assert code != 0 and "key.json" in error
