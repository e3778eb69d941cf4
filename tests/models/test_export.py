"""ONNX files in onnxruntime against the torch modules they were written from."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import export_onnx
import numpy as np
import onnx
import pytest
import torch
from export_onnx import KINDS, Runner, to_onnx

from ficgan import __version__
from ficgan.config import load_config
from ficgan.errors import FicganError
from ficgan.models import FICGAN, CheckpointHeader, save_checkpoint
from ficgan.models.onnx import OPSET

VARIANTS: dict[str, tuple[str, ...]] = {
    "demodulate": ("modulation=demodulate",),
    "adain": ("modulation=adain",),
    "narrow normalised code": ("spatial_norm=true", "spatial_channels=3", "id_dim=24", "w_dim=20"),
    "constant": ("spatial_code=learned-constant",),
    "normalised constant, adain": ("spatial_code=learned-constant", "spatial_norm=true", "modulation=adain"),
    "smallest": ("resolution=8", "mapping_layers=1"),
    "larger": ("resolution=64", "modulation=adain"),
}


def make(*overrides: str) -> tuple[FICGAN, CheckpointHeader]:
    """A network whose every parameter, biases too, has an effect."""
    config = load_config("tiny", [f"model.{override}" for override in overrides]).model
    torch.manual_seed(0)
    model = FICGAN(config).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            parameter += 0.3 * torch.randn_like(parameter) * parameter.abs().mean().clamp(min=1)
    header = CheckpointHeader(model=config, alignment={"kind": "ffhq"}, data={"licence": "CC0 é", "images": 5})
    return model, header


def largest(a: np.ndarray, b: torch.Tensor) -> float:
    assert a.shape == tuple(b.shape) and a.dtype == np.float32
    return float(np.abs(a - b.numpy()).max())


@pytest.fixture(scope="module")
def tiny() -> tuple[FICGAN, CheckpointHeader]:
    return make()


@pytest.mark.parametrize("overrides", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize(("precision", "tolerance"), [("fp32", 1e-4), ("fp16", 5e-2)])
def test_equal_to_torch(overrides: tuple[str, ...], precision: str, tolerance: float) -> None:
    model, header = make(*overrides)
    models = to_onnx(model, header, "0" * 64, precision)
    runner = Runner(models)
    for batch in (1, 3):
        generator = torch.Generator().manual_seed(batch)
        x = torch.rand(batch, 3, model.resolution, model.resolution, generator=generator) * 2 - 1
        z_id, z_non = model.encode(x)
        w = model.map(z_id)
        codes = runner.encode(x.numpy())
        for got, wanted in zip(codes, (z_id, z_non, w), strict=True):
            assert largest(got, wanted) < tolerance * max(1, float(wanted.abs().max()))
        per_layer = torch.randn(batch, model.num_layers, model.config.w_dim, generator=generator)
        for code in (w, per_layer):
            wanted = model.generate(code, z_non)
            scale = max(1.0, float(wanted.abs().max()))
            assert wanted.std() > 0.05, "a constant image would prove nothing"
            assert largest(runner.generate(code.numpy(), z_non.numpy()), wanted) < tolerance * scale


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_stranger_can_read_what_it_is(tiny: tuple[FICGAN, CheckpointHeader], precision: str) -> None:
    model, header = tiny
    for kind, proto in to_onnx(model, header, "ab" * 32, precision).items():
        onnx.checker.check_model(proto, full_check=True)
        told = {entry.key: entry.value for entry in proto.metadata_props}
        assert (told["kind"], told["precision"], told["checkpoint_sha256"]) == (kind, precision, "ab" * 32)
        assert (told["resolution"], told["num_layers"]) == ("32", "6")
        assert json.loads(told["alignment"]) == {"kind": "ffhq"}
        assert json.loads(told["training_data"]) == {"licence": "CC0 é", "images": 5}
        assert told["training_data_licence"] == "CC0 é"
        assert {entry.domain: entry.version for entry in proto.opset_import}[""] == OPSET
        assert proto.producer_version == __version__
        ends = [*proto.graph.input, *proto.graph.output]
        assert {end.type.tensor_type.shape.dim[0].dim_param for end in ends} == {"batch"}
        assert {end.type.tensor_type.elem_type for end in ends} == {onnx.TensorProto.FLOAT}


@pytest.fixture
def checkpoint(tmp_path: Path, tiny: tuple[FICGAN, CheckpointHeader]) -> Path:
    model, header = tiny
    save_checkpoint(tmp_path / "m.safetensors", model, header)
    return tmp_path / "m.safetensors"


@pytest.fixture
def export(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    def run(*options: str) -> int:
        given = ["export_onnx", "--checkpoint", str(checkpoint), "-o", str(checkpoint.parent / "out"), *options]
        monkeypatch.setattr("sys.argv", given)
        return export_onnx.main()

    return run


@pytest.mark.slow
def test_the_tool_writes_all_precisions(
    checkpoint: Path, export: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert export("--precision", "fp32", "fp16") == 0
    out = checkpoint.parent / "out"
    ends = ("", "-fp16")
    assert {path.name for path in out.iterdir()} == {f"{kind}{end}.onnx" for kind in KINDS for end in ends}
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line[:6] == "| fp32"]
    assert len(rows) == 2 and all(float(cell) < 1e-3 for row in rows for cell in row[2:6])


def test_the_tool_replaces_and_writes_nothing_that_it_should_not(
    checkpoint: Path, export: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = checkpoint.parent / "out"
    out.mkdir()
    (out / "generator.onnx").write_bytes(b"mine")
    with pytest.raises(FicganError, match="--overwrite"):
        export()
    assert [path.read_bytes() for path in out.iterdir()] == [b"mine"]
    assert export("--overwrite") == 0
    (out / "encoder.onnx").unlink()
    monkeypatch.setattr("export_onnx.LIMIT", 0)
    assert export("--overwrite") == 1 and not (out / "encoder.onnx").exists()
