"""`ficgan measure --bars` around a small untrained model."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from ficgan.cli.evaluate import measure
from ficgan.config import ModelConfig
from ficgan.faces import Alignment
from ficgan.identity import IdentityBank
from ficgan.lab.bars import bench as bars_bench
from ficgan.lab.readers import Reader
from ficgan.models import FICGAN, CheckpointHeader, save_checkpoint

CONFIG = ModelConfig(
    resolution=16, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
)


@dataclass
class Means:
    """Reads the mean colour of the four quarters."""

    name: str = "means"
    metric: str = "cosine"
    match_threshold: float = 0.5

    def is_match(self, a: np.ndarray, b: np.ndarray) -> bool:
        return not self.distance(a, b) >= self.match_threshold

    def distance(self, a: np.ndarray, b: np.ndarray) -> float:
        return 1 - float(a @ b / np.sqrt((a @ a) * (b @ b)))

    def embed(self, image: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        half = image.shape[0] // 2
        parts = [image[y : y + half, x : x + half].mean((0, 1)) for y in (0, half) for x in (0, half)]
        return np.repeat(np.concatenate(parts)[None].astype(np.float32) - 120, len(landmarks), 0)


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a small model, its bank and eight faces."""
    monkeypatch.delenv("FICGAN_MODELS", raising=False)
    for room in ("deidentify.pipeline", "video.tools"):
        monkeypatch.setattr(f"ficgan.{room}.get_recognizer", lambda name, **_: Means())
    judge = Reader(Means(), "means", "means", "means-1")  # type: ignore[arg-type]
    monkeypatch.setattr(bars_bench, "get_readers", lambda names, device="cpu": [judge])
    monkeypatch.setattr(bars_bench, "detector_missing", lambda name: f"{name} is not here")
    torch.manual_seed(0)
    header = CheckpointHeader(model=CONFIG, alignment=Alignment().to_dict(), data={"licence": "drawn"})
    save_checkpoint(tmp_path / "m.safetensors", FICGAN(CONFIG), header)
    rng = np.random.default_rng(0)
    IdentityBank.from_codes(rng.normal(size=(12, 8)), np.arange(12)).save(tmp_path / "b.safetensors")
    faces = tmp_path / "faces"
    for person in range(8):
        (faces / f"p{person}").mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(faces / f"p{person}" / "0.png")
    return [
        "--checkpoint",
        str(tmp_path / "m.safetensors"),
        "--bank",
        str(tmp_path / "b.safetensors"),
        "--aligned",
        str(faces),
        "--k",
        "5",
    ]


def test_bars_are_written_step_by_step_and_summed_up_in_a_line(files: list[str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    more = ["-o", str(out), "--layer", "0", "--limit", "6"]
    more += ["--progress", "jsonl"]
    done = CliRunner().invoke(measure, [*files, *more])
    assert done.exit_code == 0, done.output
    assert done.stdout.count("\n") == 1
    steps = [json.loads(line) for line in done.stderr.splitlines()]
    assert any(step.get("stage", "").endswith("faces: reconstruction") for step in steps)
    assert steps[-1]["done"] == steps[-1]["total"]
    told = json.loads(done.stdout)
    assert told["bars"] == ["bars.json", "bars.md"]
    written = json.loads((out / "bars.json").read_text(encoding="utf-8"))
    assert {line["row"] for line in written["lines"]} >= {"id-cosine", "tar", "retried", "draws", "swap", "border"}
    policy = {line["row"] for line in written["lines"] if line["setting"] == "i = 0, policy on"}
    assert policy == {"id-cosine", "tar"}  # rows of identity alone, of the published pictures
    assert written["verdicts"] == told["verdicts"] and written["checkpoint"] == told["checkpoint"]
    assert written["sets"]["faces"]["faces"] == 6 and written["settings"]["layers"] == [0]
    missed = [line for line in written["lines"] if line["verdict"] == "missed"]
    shown = [[one["set"], one["setting"], one["row"], one["judge"]] for one in missed]
    assert told["missed"] == [", ".join(filter(None, one)) for one in shown] and missed
    reasons = {one["what"]: one["why"] for one in written["left_out"]}
    assert all("two images" in reasons[row] for row in ("parrot", "naive", "shape"))
    assert reasons["memorised"] == "no training faces were given"
    assert str(tmp_path) not in (out / "bars.md").read_text(encoding="utf-8")


def test_without_the_table_the_first_rows_are_a_line_of_json(files: list[str]) -> None:
    done = CliRunner().invoke(measure, [*files, "--layer", "0", "--layer", "2", "--quiet"])
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    values = {(line["row"], line["setting"]): line["value"] for line in lines}
    assert {"rec-mse", "rec-cosine", "id-cosine", "match", "detected"} <= {row for row, _ in values}
    assert {setting for _, setting in values} == {"reconstruction", "i = 0", "i = 2"}
    assert values["rec-mse", "reconstruction"] > 0 and -1 <= values["id-cosine", "i = 0"] <= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--train", "x.tar"], "-o"),
        (["--attributes", "x"], "-o"),
        (["-o", "out", "--layer", "9"], "9"),
        (["-o", "out", "--k", "99"], "99"),
        (["-o", "out", "--limit", "1"], "--limit"),
    ],
)
def test_wrong_options_are_one_sentence(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(measure, [*files, *options])
    assert not Path("out").exists()
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.output and done.stdout == ""


@pytest.mark.parametrize("option", ["--train", "--attributes", "--aligned"])
def test_files_that_are_not_there_are_named(files: list[str], tmp_path: Path, option: str) -> None:
    done = CliRunner().invoke(measure, [*files, "-o", str(tmp_path / "out"), option, "nowhere.zip"])
    assert done.exit_code in (1, 2, 3) and "nowhere.zip" in done.stderr and done.stdout == ""
    assert "Traceback" not in done.output and not (tmp_path / "out").exists()


def test_the_network_that_trained_the_model_does_not_judge(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import hashlib

    trainer = tmp_path / "v.onnx"
    trainer.write_bytes(b"v")
    header = CheckpointHeader(
        model=CONFIG,
        alignment=Alignment().to_dict(),
        data={"licence": "drawn"},
        training={"verifier_sha256": hashlib.sha256(b"v").hexdigest()},
    )
    save_checkpoint(tmp_path / "m.safetensors", FICGAN(CONFIG), header)
    done = CliRunner().invoke(measure, [*files, "-o", str(tmp_path / "out"), "--judge", f"onnx:{trainer}"])
    assert done.exit_code == 2 and "trained against" in done.stderr
