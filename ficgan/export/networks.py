"""Encoder (with mapping network) and generator as ONNX models."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import torch
from torch import nn

from ficgan import __version__
from ficgan.models import FICGAN, CheckpointHeader, Encoder, FrameFICGAN, Generator
from ficgan.models.frame import FrameGenerator
from ficgan.models.generator import StyleLayer
from ficgan.models.layers import normalise_rms

from .graph import SQRT_2, Graph

__all__ = ["KINDS", "encoder_to_onnx", "frame_to_onnx", "generator_to_onnx", "metadata_of"]

KINDS = ("encoder", "generator")
DIGEST = "checkpoint_sha256"
"""Key of the metadata that says which checkpoint a file was made from."""


def metadata_of(header: CheckpointHeader, digest: str) -> dict[str, str]:
    """What a stranger needs to use the files: the same lines for encoder and generator.

    Args:
        header: of the checkpoint.
        digest: sha256 of the checkpoint file.
    """
    return {
        DIGEST: digest,
        "alignment": json.dumps(header.alignment, sort_keys=True),
        "resolution": str(header.model.resolution),
        "num_layers": str(header.model.num_layers),
        "training_data": json.dumps(header.data, sort_keys=True, ensure_ascii=False),
        "training_data_licence": str(header.data.get("licence", "not stated")),
        "images": "RGB, float32 [B,3,R,R], −1 is black, 1 is white, aligned as `alignment` says",
    }


def encoder_to_onnx(model: FICGAN, metadata: Mapping[str, str], *, half: bool = False) -> onnx.ModelProto:
    """E and the mapping network: image [B,3,R,R] in [−1, 1] → z_id [B,id_dim], z_non [B,C,4,4], w [B,w_dim].

    Args:
        model: its weights are copied, gains folded in.
        metadata: becomes metadata_props, beside `kind` and `precision`.
        half: weights and feature maps in float16; inputs and outputs stay float32.

    Returns:
        Opset `OPSET`, the batch dynamic, float32 at the ends.

    Raises:
        UsageError: a filter other than 1 3 3 1.
    """
    encoder, config, g = model.encoder, model.config, Graph("encoder", half=half)
    x = g.conv(encoder.from_rgb, g.to_features("image", "image/half"), "from_rgb")
    for index, block in enumerate(encoder.trunk):
        x = g.down_block(block, x, f"trunk.{index}")  # type: ignore[arg-type]
    pooled = g.node("GlobalAveragePool", g.conv(encoder.identity_conv, x, "identity_conv"), name="identity/pool")
    z_id = g.linear(
        encoder.identity_head, g.node("Flatten", g.to_float(pooled, "identity/float"), name="identity"), "identity_head"
    )
    g.output(z_id, "z_id")
    g.output(_spatial_code(g, encoder, x), "z_non")
    w = g.normalise_rms("z_id", "mapping/rms")
    for index, layer in enumerate(model.mapping.layers):
        w = g.linear(layer, w, f"mapping.{index}")  # type: ignore[arg-type]
    g.output(w, "w")
    side = config.resolution
    return g.model(
        {"image": ["batch", 3, side, side]},
        {
            "z_id": ["batch", config.id_dim],
            "z_non": ["batch", config.spatial_channels, 4, 4],
            "w": ["batch", config.w_dim],
        },
        {"kind": "encoder", "precision": "fp16" if half else "fp32", **metadata},
        __version__,
    )


def _spatial_code(g: Graph, encoder: Encoder, trunk: str) -> str:
    if encoder.spatial_conv is not None and encoder.spatial_head is not None:
        code = g.conv(encoder.spatial_head, g.conv(encoder.spatial_conv, trunk, "spatial_conv"), "spatial_head")  # type: ignore[arg-type]
        code = g.to_float(code, "spatial/float")
        return g.normalise_rms(code, "spatial/rms") if encoder.config.spatial_norm else code
    assert encoder.spatial_constant is not None
    constant = encoder.spatial_constant.detach()
    stored = g.weight(
        "spatial_constant", normalise_rms(constant) if encoder.config.spatial_norm else constant, features=False
    )
    batch = g.node("Shape", "image", name="spatial/batch", start=0, end=1)
    rest = g.constant("spatial/rest", np.array(constant.shape[1:], np.int64))
    return g.node("Expand", stored, g.node("Concat", batch, rest, name="spatial/shape", axis=0), name="spatial/Expand")


def generator_to_onnx(model: FICGAN, metadata: Mapping[str, str], *, half: bool = False) -> onnx.ModelProto:
    """G: w [B,L,w_dim] and z_non [B,C,4,4] → image [B,3,R,R], about [−1, 1].

    Args and Returns are those of `encoder_to_onnx`. For one w in all layers repeat it L times.
    """
    generator, config, g = model.generator, model.config, Graph("generator", half=half)
    x = g.conv(generator.start, g.to_features("z_non", "z_non/half"), "start")
    image, side = "", 4
    for index, to_rgb in enumerate(generator.to_rgb):
        x, image = _stage(g, generator, index, to_rgb, x, image, side)
        side *= 2
    g.output(image, "image")
    return g.model(
        {
            "w": ["batch", model.num_layers, config.w_dim],
            "z_non": ["batch", config.spatial_channels, 4, 4],
        },
        {"image": ["batch", 3, config.resolution, config.resolution]},
        {"kind": "generator", "precision": "fp16" if half else "fp32", **metadata},
        __version__,
    )


def frame_to_onnx(model: FrameFICGAN) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A network in the canonical frame, as what reads a face and what writes one.

    Args:
        model: its weights are copied, gains folded in.

    Returns:
        texture [B,3,R,R] in [−1, 1], code [B,C] → w [B,w_dim], z_non [B,S,4,4]; and
        w [B,L,w_dim], moment [B,M], z_non, linear [B,3,R,R] → texture [B,3,R,R], shape [B,I].
        Weights are kept in float16 and computed with in float32.
    """
    config, encoder, generator = model.config, model.encoder, model.generator
    frame = config.frame
    assert frame is not None
    sides: list[int | str] = ["batch", 3, config.resolution, config.resolution]
    spatial: list[int | str] = ["batch", config.spatial_channels, 4, 4]
    g = Graph("read", stored_half=True)
    folded = g.node("SpaceToDepth", "texture", name="folded", blocksize=2)
    x = g.conv(encoder.stem, folded, "encoder.stem", order=[c * 4 + p for p in range(4) for c in range(3)])
    for index, block in enumerate(encoder.trunk):
        x = g.down_block(block, x, f"encoder.trunk.{index}")  # type: ignore[arg-type]
    pooled = g.node("GlobalAveragePool", g.conv(encoder.identity_conv, x, "encoder.identity_conv"), name="pool")
    learned = g.linear(encoder.identity_head, g.node("Flatten", pooled, name="pooled"), "encoder.identity_head")
    z_non = g.conv(encoder.spatial_conv, x, "encoder.spatial_conv")
    z_non = g.conv(encoder.spatial_head, z_non, "encoder.spatial_head")
    g.output(g.normalise_rms(z_non, "spatial/rms") if config.spatial_norm else z_non, "z_non")
    w = g.normalise_rms(g.node("Concat", "code", learned, name="z_id", axis=1), "mapping/rms")
    for index, layer in enumerate(model.mapping.layers):
        w = g.linear(layer, w, f"mapping.layers.{index}")  # type: ignore[arg-type]
    g.output(w, "w")
    codes: dict[str, Sequence[int | str]] = {"w": ["batch", config.w_dim], "z_non": spatial}
    read = g.model({"texture": sides, "code": ["batch", frame.code_dim]}, codes, {"kind": "read"}, __version__)

    g = Graph("write", stored_half=True)
    pyramid = ["linear"]
    for number in range(len(generator.to_rgb)):
        pyramid.append(g.node("AveragePool", pyramid[-1], name=f"linear/{number}", kernel_shape=[2, 2], strides=[2, 2]))
    x, image, side = g.conv(generator.start, "z_non", "generator.start"), "", 4
    for index, (to_rgb, given) in enumerate(zip(generator.to_rgb, generator.given, strict=True)):
        told = g.conv(given, pyramid[-1 - index], f"generator.given.{index}")  # type: ignore[arg-type]
        x = g.node("Add", x, told, name=f"given.{index}")
        x, image = _stage(g, generator, index, to_rgb, x, image, side, "generator.", "moment")
        side *= 2
    g.output(image, "texture")
    axes = g.constant("layers", np.array([1], np.int64))
    mean = g.node("ReduceMean", "w", axes, name="w/mean", keepdims=0)
    whole = g.node("Concat", mean, "moment", name="w/told", axis=1)
    moved = g.linear(generator.shape_head, g.linear(generator.shape_hidden, whole, "generator.shape_hidden"),
                     "generator.shape_head")  # fmt: skip
    limit = g.number(max(generator.limit, 1e-6))
    bounded = g.node("Tanh", g.node("Div", moved, limit, name="shape/part"), name="shape/tanh")
    g.output(g.node("Mul", bounded, limit, name="shape/bounded"), "shape")
    told_sizes: dict[str, Sequence[int | str]] = {
        "w": ["batch", model.num_layers, config.w_dim], "moment": ["batch", frame.moment_dim], "z_non": spatial,
        "linear": sides,
    }  # fmt: skip
    made: dict[str, Sequence[int | str]] = {"texture": sides, "shape": ["batch", frame.shape_dim]}
    return read, g.model(told_sizes, made, {"kind": "write"}, __version__)


def _stage(
    g: Graph, generator: Generator | FrameGenerator, index: int, to_rgb: nn.Module, x: str, image: str, side: int,
    path: str = "", told: str = "",
) -> tuple[str, str]:  # fmt: skip
    """Two style layers that double the resolution, and the sum of RGB outputs so far."""
    for number in (2 * index, 2 * index + 1):
        x = _style_layer(g, generator, number, x, side, path, told)
        side *= 2 if generator.layers[number].up else 1
    name = f"{path}to_rgb.{index}"
    rgb = g.to_float(g.conv(to_rgb, x, name), f"{name}/float")  # type: ignore[arg-type]
    if image:
        above = g.upsample(image, side // 2, generator.taps, f"image.{side}/up", features=False)
        rgb = g.node("Add", rgb, above, name=f"image.{side}")
    return x, rgb


def _style_layer(
    g: Graph, generator: Generator | FrameGenerator, number: int, x: str, side: int, path: str, told: str
) -> str:
    layer, name = generator.layers[number], f"{path}layers.{number}"
    assert isinstance(layer, StyleLayer)
    w = g.node("Gather", "w", g.constant(f"index {number}", np.array(number, np.int64)), name=f"{name}/w", axis=1)
    if told:
        w = g.node("Concat", w, told, name=f"{name}/told", axis=1)
    style = g.linear(layer.affine, w, f"{name}.affine")
    weight = layer.weight.detach().double() * layer.weight_gain
    if layer.modulation == "adain":
        y = _adain(g, layer, weight, style, x, name)
    else:
        y = _demodulate(g, layer, weight, style, x, name)
    return g.upsample(y, side, layer.taps, f"{name}/up") if layer.up else y


def _per_channel(g: Graph, values: str, name: str) -> str:
    """[B,C] → [B,C,1,1], in the type of feature maps."""
    wide = g.node("Unsqueeze", values, g.constant("plane", np.array([2, 3], np.int64)), name=f"{name}/plane")
    return g.to_features(wide, f"{name}/half")


def _adain(g: Graph, layer: StyleLayer, weight: torch.Tensor, style: str, x: str, name: str) -> str:
    terms = g.weight(f"{name}.weight", weight * SQRT_2), g.weight(f"{name}.bias", layer.bias.double() * SQRT_2)
    y = g.lrelu(g.node("Conv", x, *terms, name=f"{name}/Conv", pads=[1] * 4), f"{name}/lrelu")
    channels = len(weight)
    ones = g.weight(f"ones ×{channels}", torch.ones(channels))
    zeros = g.weight(f"zeros ×{channels}", torch.zeros(channels))
    y = g.node("InstanceNormalization", y, ones, zeros, name=f"{name}/norm", epsilon=1e-5)
    scale, shift = (_per_channel(g, half, half) for half in g.halves(style, name, ("scale", "shift")))
    return g.node("Add", g.node("Mul", y, scale, name=f"{name}/scaled"), shift, name=f"{name}/shifted")


def _demodulate(g: Graph, layer: StyleLayer, weight: torch.Tensor, style: str, x: str, name: str) -> str:
    x = g.node("Mul", x, _per_channel(g, style, f"{name}/style"), name=f"{name}/modulated")
    # lrelu(√2·(n·y + b)) with n = 1/√(Σ s²·Σ k² + 1e-8): the √2 goes into n, by halving what the root is taken of.
    power = g.weight(f"{name}.power", weight.square().sum((2, 3)).t() / 2, features=False)
    square = g.node("Mul", style, style, name=f"{name}/square")
    total = g.node("Add", g.node("MatMul", square, power, name=f"{name}/power"), g.number(0.5e-8), name=f"{name}/eps")
    norm = g.node("Reciprocal", g.node("Sqrt", total, name=f"{name}/root"), name=f"{name}/norm")
    y = g.node("Conv", x, g.weight(f"{name}.weight", weight), name=f"{name}/Conv", pads=[1] * 4)
    y = g.node("Mul", y, _per_channel(g, norm, f"{name}/norm"), name=f"{name}/demodulated")
    bias = g.weight(f"{name}.bias", layer.bias.double()[:, None, None] * SQRT_2)
    return g.lrelu(g.node("Add", y, bias, name=f"{name}/biased"), f"{name}/lrelu")
