"""tools/export_onnx.py: files, check, tables, and what it refuses."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from ficgan import pretrained
from ficgan.config import load_config
from ficgan.models import FICGAN, CheckpointHeader, load_checkpoint, save_checkpoint
from ficgan.models.io import file_digest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "export_onnx.py"
from _onnx import Runner  # noqa: E402


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(TOOL.parent)
    spec = importlib.util.spec_from_file_location("export_onnx", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MEASURE_ON", 4)
    return module


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    config = load_config("tiny").model
    torch.manual_seed(0)
    header = CheckpointHeader(model=config, alignment={"kind": "ffhq"}, data={"licence": "drawn"})
    save_checkpoint(tmp_path / "m.safetensors", FICGAN(config), header)
    return tmp_path / "m.safetensors"


def run(tool: ModuleType, checkpoint: Path, *options: str) -> int:
    code = tool.main(["--checkpoint", str(checkpoint), "-o", str(checkpoint.parent / "out"), *options])
    assert isinstance(code, int)
    return code


def rows(text: str) -> list[list[str]]:
    """Cells of the Markdown tables' rows, heads left out."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]


@pytest.mark.slow
def test_all_precisions_with_tables(
    tool: ModuleType, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = torch.get_num_threads()
    bench = ["--bench", "--threads", "1", "--batch", "1", "2", "--seconds", "0"]
    try:
        assert run(tool, checkpoint, "--precision", "fp32", "fp16", "int8", *bench) == 0
    finally:
        torch.set_num_threads(threads)
    out = checkpoint.parent / "out"
    assert sorted(path.name for path in out.iterdir()) == [
        "encoder-fp16.onnx",
        "encoder-int8.onnx",
        "encoder.onnx",
        "generator-fp16.onnx",
        "generator-int8.onnx",
        "generator.onnx",
    ]
    table = rows(capsys.readouterr().out)
    assert {row[1] for row in table if row[0] == "int8"} == {"noise (3)", "drawn faces (4)", "a photo (1)"}
    assert all(float(cell) < 1e-4 for row in table if row[0] == "fp32" for cell in row[2:6])
    timed = [row for row in table if row[0] == "1"]
    assert [row[1] for row in timed] == ["1"] * 6 + ["2"] * 6
    assert [float(row[4]) for row in timed if row[2] == "torch, InferenceModel"] == [1.0, 1.0]
    model, _ = load_checkpoint(checkpoint)
    runner = Runner({kind: (out / f"{kind}.onnx").read_bytes() for kind in ("encoder", "generator")})
    x = torch.rand(2, 3, 32, 32) * 2 - 1
    codes = runner.encode(x.numpy())
    np.testing.assert_allclose(runner.generate(codes.w, codes.z_non), model(x).numpy(), atol=1e-4)
    told = {entry.key: entry.value for entry in onnx.load(out / "encoder-int8.onnx").metadata_props}
    assert told["checkpoint_sha256"] == file_digest(checkpoint) and told["training_data_licence"] == "drawn"


def test_existing_files_stay_unless_told(
    tool: ModuleType, checkpoint: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = checkpoint.parent / "out"
    out.mkdir()
    (out / "generator.onnx").write_bytes(b"mine")
    assert run(tool, checkpoint) == 1
    assert re.search(r"generator\.onnx exist already; use --overwrite", capsys.readouterr().err)
    assert [path.name for path in out.iterdir()] == ["generator.onnx"]
    assert (out / "generator.onnx").read_bytes() == b"mine"
    assert run(tool, checkpoint, "--overwrite", "--no-check") == 0
    assert sorted(path.name for path in out.iterdir()) == ["encoder.onnx", "generator.onnx"]
    assert (out / "generator.onnx").read_bytes() != b"mine"


def test_a_file_that_is_wrong_is_not_written(
    tool: ModuleType, checkpoint: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = tool.to_onnx

    def wrong(model: FICGAN, *rest: object) -> dict[str, onnx.ModelProto]:
        models: dict[str, onnx.ModelProto] = right(model, *rest)
        for tensor in models["generator"].graph.initializer:
            if tensor.name == "to_rgb.0.bias":
                tensor.CopyFrom(onnx.numpy_helper.from_array(np.full(3, 0.01, np.float32), tensor.name))
        return models

    monkeypatch.setattr(tool, "to_onnx", wrong)
    assert run(tool, checkpoint) == 1
    assert "more than 0.001 away from torch; nothing was written" in capsys.readouterr().err
    assert not (checkpoint.parent / "out").exists()


def test_nothing_is_written_when_one_file_cannot_be(
    tool: ModuleType, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second file fails when the first is done: neither is there."""
    real, opened = tool.atomic_write, []

    def full(path: Path, *, overwrite: bool) -> object:
        opened.append(path)
        if len(opened) == 2:
            raise tool.FicganError("the disk is full")
        return real(path, overwrite=overwrite)

    monkeypatch.setattr(tool, "atomic_write", full)
    assert run(tool, checkpoint, "--no-check") == 1
    assert list((checkpoint.parent / "out").iterdir()) == []


@pytest.mark.slow
def test_int8_of_photos(tool: ModuleType, checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, rng = checkpoint.parent / "faces", np.random.default_rng(0)
    folder.mkdir()
    for index in range(5):
        Image.fromarray(rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(folder / f"{index}.png")
    tool.CALIBRATE_ON = 3
    assert run(tool, checkpoint, "--precision", "int8", "--calibrate", str(folder)) == 0
    assert "photos held out (2)" in capsys.readouterr().out
    assert len(list((checkpoint.parent / "out").iterdir())) == 2


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (("--calibrate", "faces"), 2, "--calibrate is for int8 only"),
        (("--checkpoint", "missing.safetensors"), 1, "missing.safetensors does not exist"),
        (("--precision", "int8", "--calibrate", "missing"), 3, "missing"),
        (("--bank", "missing.safetensors"), 1, "missing.safetensors does not exist"),
        (("--checkpoint", str(pretrained.path("model"))), 1, "this needs a network: give a checkpoint of"),
    ],
)
def test_wrong_use(
    tool: ModuleType,
    checkpoint: Path,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    code: int,
    message: str,
) -> None:
    assert run(tool, checkpoint, *options) == code
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (checkpoint.parent / "out").exists()
