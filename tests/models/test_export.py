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
from export_onnx import KINDS, Runner, calibrate, drawn_faces, to_onnx

from ficgan import __version__
from ficgan.config import load_config
from ficgan.errors import FicganError, UsageError
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
    runner = Runner(models, threads=1)
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


@pytest.mark.parametrize("precision", ["fp32", "fp16", "int8"])
def test_a_stranger_can_read_what_it_is(tiny: tuple[FICGAN, CheckpointHeader], precision: str) -> None:
    model, header = tiny
    calibration = calibrate(model, drawn_faces(model, 2, seed=0)) if precision == "int8" else None
    for kind, proto in to_onnx(model, header, "ab" * 32, precision, calibration).items():
        onnx.checker.check_model(proto, full_check=True)
        told = {entry.key: entry.value for entry in proto.metadata_props}
        assert (told["kind"], told["precision"], told["checkpoint_sha256"]) == (kind, precision, "ab" * 32)
        assert (told["resolution"], told["num_layers"]) == ("32", "6")
        assert json.loads(told["alignment"]) == {"kind": "ffhq"}
        assert json.loads(told["training_data"]) == {"licence": "CC0 é", "images": 5}
        assert told["training_data_licence"] == "CC0 é" and "onnx.quant.pre_process" not in told
        assert {entry.domain: entry.version for entry in proto.opset_import}[""] == OPSET
        assert proto.producer_version == __version__
        ends = [*proto.graph.input, *proto.graph.output]
        assert {end.type.tensor_type.shape.dim[0].dim_param for end in ends} == {"batch"}
        assert {end.type.tensor_type.elem_type for end in ends} == {onnx.TensorProto.FLOAT}


@pytest.mark.parametrize("modulation", ["adain", "demodulate"])
def test_int8_is_near_torch_and_float_where_it_must_be(modulation: str) -> None:
    model, header = make(f"modulation={modulation}")
    faces = drawn_faces(model, 16, seed=1)
    models = to_onnx(model, header, "", "int8", calibrate(model, faces))
    eight_bit = {
        node.input[1].removesuffix("_DequantizeLinear_Output")
        for proto in models.values()
        for node in proto.graph.node
        if node.op_type == "Conv" and node.input[1].endswith("_DequantizeLinear_Output")
    }
    assert {"trunk.0.conv0.weight", "layers.0.weight", "start.weight"} <= eight_bit
    assert {"trunk.0.conv0.weight_quantized", "layers.0.weight_quantized"} <= {
        tensor.name
        for proto in models.values()
        for tensor in proto.graph.initializer
        if tensor.data_type == onnx.TensorProto.INT8
        and np.abs(onnx.numpy_helper.to_array(tensor).astype(int)).max() <= 64
    }, "a CPU without VNNI would overflow"
    assert not [name for name in eight_bit if name.startswith(("to_rgb", "from_rgb", "taps"))]
    runner = Runner(models, threads=1)
    wanted = model(faces)
    _, z_non, w = runner.encode(faces.numpy())
    error = runner.generate(w, z_non) - wanted.numpy()
    spread = float(wanted.std())
    assert 0 < np.sqrt(np.mean(error**2)) < 0.1 * spread, "8 bits leave an error, and a small one"


def test_calibration_holds_the_mean_identity(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, _ = tiny
    faces = drawn_faces(model, 40, seed=0)  # more than are encoded at once
    calibration = calibrate(model, faces)
    w = model.map(model.encode(faces).z_id).numpy()
    np.testing.assert_allclose(calibration.w[:40, 3], w, atol=1e-5)
    np.testing.assert_allclose(calibration.w[-1, 0], w.mean(0), atol=1e-5)
    assert calibration.image.shape == (40, 3, 32, 32) and len(calibration.z_non) == len(calibration.w) == 120


def test_wrong_use(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, header = tiny
    with pytest.raises(UsageError):
        drawn_faces(model, 1, seed=0, codes=np.zeros((2, 8), np.float16))
    other, _ = make("resolution=8")
    other.generator.layers[0].taps = torch.tensor([0.25, 0.25, 0.25, 0.25])
    with pytest.raises(UsageError, match="taps"):
        to_onnx(other, header, "")


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
    assert export("--precision", "fp32", "fp16", "int8") == 0
    out = checkpoint.parent / "out"
    ends = ("", "-fp16", "-int8")
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
    assert export("--overwrite", "--no-check") == 0
    (out / "encoder.onnx").unlink()
    monkeypatch.setattr("export_onnx.LIMIT", 0)
    assert export("--overwrite") == 1 and not (out / "encoder.onnx").exists()
