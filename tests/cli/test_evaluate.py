"""`ficgan-eval` as its user meets it: lists, checks before anything is read, one sentence for every mistake."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from stand_ins import invoke

from ficgan.cli.evaluate import evaluate

call = partial(invoke, evaluate)


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
    code, out, err = call("list", what)
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
    code, _, err = call(*words)
    assert code == 3 and "faces" in err
    (tmp_path / "faces").mkdir()
    code, out, _ = call(*words)
    assert code == 0 and json.loads(out)["tasks"] == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [(MATRIX.replace("solid", "sold"), 2, "did you mean solid"), ("[]", 2, "docs/evaluation.md"), (MATRIX, 3, "faces")],
)
def test_mistakes_are_one_sentence(tmp_path: Path, text: str, code: int, said: str) -> None:
    (tmp_path / "m.yaml").write_text(text)
    found, out, err = call("run", str(tmp_path / "m.yaml"), "-o", str(tmp_path / "out"), "--progress", "none")
    assert (found, out) == (code, "")
    assert err.startswith("Error: ") and err.count("\n") == 1 and said in err


def test_presets_need_data_and_others_take_none(tmp_path: Path) -> None:
    code, _, err = call("run", "quick", "-o", str(tmp_path))
    assert code == 2 and "--data" in err
    (tmp_path / "m.yaml").write_text(MATRIX)
    code, _, err = call("run", str(tmp_path / "m.yaml"), "-o", str(tmp_path), "--data", str(tmp_path))
    assert code == 2 and "its own sets" in err
