"""tools/training_report.py: curves and a table of what runs wrote."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from PIL import Image

from ficgan.config import load_config

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOLS)
    return importlib.import_module("training_report")


def run(folder: Path, *overrides: str, match: float) -> Path:
    """What a run of three ticks and two snapshots leaves, the last line cut short."""
    folder.mkdir()
    config = load_config(TOOLS.parent / "configs/ablation64.yaml", overrides).model_dump(mode="json")
    (folder / "config.json").write_text(json.dumps(config))
    ticks = [{"kimg": n, "sec_per_kimg": 80 + 10 * n, "rec": 0.1 / n, "neg": 0.2, "keep": 0.3} for n in (1, 2, 3)]
    (folder / "stats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ticks) + '{"kimg": 4, "re')
    shots = [{"kimg": n, "match": match / n, "match_linear": 0.4, "mse": 0.01, "mse_linear": 0.02} for n in (1, 2)]
    (folder / "snapshots.jsonl").write_text("".join(json.dumps(one) + "\n" for one in shots))
    return folder


def test_a_table_says_what_changed(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [
        run(tmp_path / "full", match=0.2),
        run(tmp_path / "adain", "model.modulation=adain", "seed=3", match=0.6),
    ]
    assert tool.main(["table", *map(str, folders)]) == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    assert {len(row) for row in rows} == {6}
    assert rows[0][4:] == ["mixes taken for their source", "reconstruction, MSE"]
    assert rows[2] == ["linear model", "", "", "", "0.4", "0.02"]
    assert rows[3] == ["full", "", "2", "100", "0.1", "0.01"]
    assert rows[4] == ["adain", "model.modulation=adain, seed=3", "2", "100", "0.3", "0.01"]


def test_curves_are_drawn(tool: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [run(tmp_path / name, match=0.2) for name in ("first", "second")]
    assert tool.main(["curves", *map(str, folders), "-o", str(tmp_path / "curves.png")]) == 0
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 1000 and len(np.unique(np.asarray(picture.convert("L")))) > 20
    assert tool.main(["table", str(tmp_path)]) == 3
    assert "no folder of a training run" in capsys.readouterr().err
