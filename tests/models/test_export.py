"""ONNX files in onnxruntime against the torch modules they were written from."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from _onnx import KINDS, Runner, calibrate, drawn_faces, quantise, to_onnx

from ficgan import __version__
from ficgan.config import load_config
from ficgan.errors import FicganError, UsageError
from ficgan.models import FICGAN, CheckpointHeader
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


def test_every_weight_is_in_the_files(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, header = tiny
    stored = sum(
        int(np.prod(tensor.dims)) for proto in to_onnx(model, header, "").values() for tensor in proto.graph.initializer
    )
    assert stored >= sum(parameter.numel() for parameter in model.parameters())


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


@pytest.mark.slow
def test_the_smaller_precisions_are_smaller(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, header = make("channel_max=128", "channel_base=4096")
    calibration = calibrate(model, drawn_faces(model, 2, seed=0))
    sizes = {p: [m.ByteSize() for m in to_onnx(model, header, "", p, calibration).values()] for p in ("fp32", "int8")}
    sizes["fp16"] = [m.ByteSize() for m in to_onnx(model, header, "", "fp16").values()]
    for full, half, eight in zip(sizes["fp32"], sizes["fp16"], sizes["int8"], strict=True):
        assert half < 0.6 * full and eight < 0.7 * full


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
    codes = runner.encode(faces.numpy())
    error = runner.generate(codes.w, codes.z_non) - wanted.numpy()
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


def test_drawn_faces_repeat_and_take_the_banks_codes(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, _ = tiny
    assert torch.equal(drawn_faces(model, 3, seed=5), drawn_faces(model, 3, seed=5))
    assert not torch.equal(drawn_faces(model, 3, seed=5), drawn_faces(model, 3, seed=6))
    one, other = (np.random.default_rng(i).standard_normal((1, 512)).astype(np.float16) for i in (0, 1))
    assert not torch.equal(drawn_faces(model, 3, seed=5, codes=one), drawn_faces(model, 3, seed=5, codes=other))


def test_the_model_is_left_as_it_was(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, header = tiny
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_onnx(model, header, "", "fp16")
    proto = to_onnx(model, header, "")["encoder"]
    data = proto.SerializeToString()
    quantise(proto, {"image": np.zeros((1, 3, 32, 32), np.float32)})
    assert proto.SerializeToString() == data
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def wrong(tiny: tuple[FICGAN, CheckpointHeader]) -> dict[str, tuple[Any, type[Exception], str]]:
    model, header = tiny
    models = to_onnx(model, header, "")
    return {
        "unknown precision": (lambda: to_onnx(model, header, "", "int4"), UsageError, "'int4'; use one of fp32"),
        "no calibration": (lambda: to_onnx(model, header, "", "int8"), UsageError, "give a calibration"),
        "no faces": (lambda: calibrate(model, torch.zeros(0, 3, 32, 32)), UsageError, "at least one"),
        "wrong size": (lambda: calibrate(model, torch.zeros(1, 3, 64, 64)), UsageError, r"\[N,3,32,32\]"),
        "foreign bank": (
            lambda: drawn_faces(model, 1, seed=0, codes=np.zeros((2, 8), np.float16)),
            UsageError,
            r"\[N,512\]",
        ),
        "half a pair": (lambda: Runner({"encoder": models["encoder"]}), FicganError, "no generator among encoder"),
        "swapped": (
            lambda: Runner(dict(zip(KINDS, reversed(models.values()), strict=True))),
            FicganError,
            "is generator",
        ),
        "two checkpoints": (
            lambda: Runner({**models, "encoder": to_onnx(model, header, "other")["encoder"]}),
            FicganError,
            "different",
        ),
        "not ONNX": (lambda: Runner(dict.fromkeys(KINDS, b"no model")), FicganError, "cannot load the encoder"),
    }


CASES = (
    "unknown precision",
    "no calibration",
    "no faces",
    "wrong size",
    "foreign bank",
    "half a pair",
    "swapped",
    "two checkpoints",
    "not ONNX",
)


@pytest.mark.parametrize("case", CASES)
def test_wrong_use_is_one_sentence(tiny: tuple[FICGAN, CheckpointHeader], case: str) -> None:
    work, kind, message = wrong(tiny)[case]
    with pytest.raises(kind, match=message) as caught:
        work()
    assert "\n" not in str(caught.value)


def test_other_taps_are_refused(tiny: tuple[FICGAN, CheckpointHeader]) -> None:
    model, header = make("resolution=8")
    model.generator.layers[0].taps = torch.tensor([0.25, 0.25, 0.25, 0.25])
    with pytest.raises(UsageError, match="taps 1 3 3 1 only"):
        to_onnx(model, header, "")
