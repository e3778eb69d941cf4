"""Networks as ONNX graphs, written from their modules.

Nothing is traced, so the export needs only `onnx`. Gains are folded into the weights, onnxruntime fuses the activations
into the convolutions, and each resampling has the form that is fast there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from ficgan import __version__
from ficgan.models.ficgan import Conv2d, DownBlock, Linear, StyleLayer
from ficgan.models.frame import CONDITIONS, LOOK, SHOWN, DetailNetwork, FrameFICGAN, FrameGenerator

# The newest that the oldest onnxruntime and onnx in pyproject.toml read (1.17 and 1.15).
OPSET, IR_VERSION = 20, 9

LEAK, SQRT_2 = 0.2, math.sqrt(2)

# Fewer are not worth 8 bits: colours, and filters of single channels.
FEW_CHANNELS = 8


class Graph:
    """Nodes and constants of one network; names of weights and nodes begin with the path of their module."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, *inputs: str, name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """A tensor that is stored as it is; the first one of a name stays."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def number(self, value: float) -> str:
        return self.constant(f"number {value:g}", np.array(value, np.float32))

    def weight(self, name: str, value: Tensor) -> str:
        return self.constant(name, value.detach().cpu().numpy().astype(np.float32))

    def split(self, x: str, name: str, parts: Sequence[str]) -> None:
        """Cut [B,N·C] into N parts of [B,C]."""
        self.nodes.append(helper.make_node("Split", [x], list(parts), name=name, axis=1, num_outputs=len(parts)))

    def output(self, x: str, name: str) -> None:
        self.node("Identity", x, name=name)

    def model(self, inputs: Mapping[str, Sequence[int]], outputs: Mapping[str, Sequence[int]]) -> onnx.ModelProto:
        """The finished model, checked; `inputs` and `outputs` are name → shape without the dynamic batch."""

        def values(shapes: Mapping[str, Sequence[int]]) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *s]) for n, s in shapes.items()]

        constants = list(self.constants.values())
        graph = helper.make_graph(self.nodes, self.kind, values(inputs), values(outputs), initializer=constants)
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="ficgan", producer_version=__version__
        )
        helper.set_model_props(model, {"kind": self.kind})
        onnx.checker.check_model(model, full_check=True)
        return model

    def lrelu(self, x: str, name: str) -> str:
        return self.node("LeakyRelu", x, name=name, alpha=LEAK)

    def conv(self, layer: Conv2d, x: str, name: str, order: Sequence[int] | None = None) -> str:
        """`Conv2d`, every gain in weight and bias; `order` says which channel of the module each channel of `x` is."""
        if layer.down:
            x = self.downsample(x, layer.weight.shape[1], layer.taps, f"{name}/down")
        kernel = layer.weight if order is None else layer.weight[:, list(order)]
        terms = [self.weight(f"{name}.weight", kernel.double() * (layer.weight_gain * layer.gain))]
        if layer.bias is not None:
            terms.append(self.weight(f"{name}.bias", layer.bias.double() * layer.gain))
        y = self.node("Conv", x, *terms, name=f"{name}/Conv", pads=[layer.kernel // 2] * 4)
        return self.lrelu(y, f"{name}/lrelu") if layer.activation == "lrelu" else y

    def linear(self, layer: Linear, x: str, name: str) -> str:
        gain = SQRT_2 if layer.activation == "lrelu" else 1.0
        weight = self.weight(f"{name}.weight", layer.weight.double() * (layer.weight_gain * gain))
        bias = self.weight(f"{name}.bias", layer.bias.double() * (layer.bias_gain * gain))
        y = self.node("Gemm", x, weight, bias, name=f"{name}/Gemm", transB=1)
        return self.lrelu(y, f"{name}/lrelu") if layer.activation == "lrelu" else y

    def down_block(self, block: DownBlock, x: str, name: str) -> str:
        wide = self.conv(block.conv1, self.conv(block.conv0, x, f"{name}.conv0"), f"{name}.conv1")
        return self.node("Add", wide, self.conv(block.skip, x, f"{name}.skip"), name=f"{name}/Add")

    def normalise_rms(self, x: str, name: str) -> str:
        """x / √(mean over channels of x² + 1e-8)."""
        square = self.node("Mul", x, x, name=f"{name}/square")
        axes = self.constant("channels", np.array([1], np.int64))
        mean = self.node("ReduceMean", square, axes, name=f"{name}/mean", keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.number(1e-8), name=f"{name}/eps"), name=f"{name}/rms")
        return self.node("Div", x, root, name=f"{name}/Div")

    def downsample(self, x: str, channels: int, taps: Tensor, name: str) -> str:
        """`ops.downsample2d` with the taps 1 3 3 1: a depthwise convolution."""
        kernel = torch.outer(taps, taps).expand(channels, 1, 4, 4)
        weight = self.weight(f"taps ×{channels}", kernel)
        return self.node("Conv", x, weight, name=name, pads=[1] * 4, strides=[2, 2], group=channels)

    def upsample(self, x: str, side: int, name: str) -> str:
        """`ops.upsample2d` with the taps 1 3 3 1 as bilinear doubling, whose repeated border samples count 3/4."""
        edge = torch.ones(2 * side)
        edge[0] = edge[-1] = 0.75
        scales = self.constant("twice", np.array([1, 1, 2, 2], np.float32))
        y = self.node("Resize", x, "", scales, name=f"{name}/Resize", mode="linear")
        return self.node("Mul", y, self.weight(f"edges {2 * side}", torch.outer(edge, edge)), name=name)


def frame_to_onnx(model: FrameFICGAN) -> tuple[onnx.ModelProto, onnx.ModelProto]:
    """A network in the canonical frame, as what reads a face and what writes one; the weights are copied, in 8 bits.

    It computes in float32: feature maps of 8 bits cost half of the detail that it draws. Texture [B,3,R,R] in [−1, 1]
    and code [B,C] → w [B,w_dim]; w [B,L,w_dim], moment [B,M] and linear [B,3,R,R] → texture [B,3,R,R] and shape [B,I].
    """
    config, encoder, generator = model.config, model.encoder, model.generator
    frame = config.frame
    assert frame is not None
    sides = [3, config.resolution, config.resolution]
    g = Graph("read")
    folded = g.node("SpaceToDepth", "texture", name="folded", blocksize=2)
    x = g.conv(encoder.stem, folded, "encoder.stem", order=[c * 4 + p for p in range(4) for c in range(3)])
    for index, block in enumerate(encoder.trunk):
        x = g.down_block(block, x, f"encoder.trunk.{index}")  # type: ignore[arg-type]
    pooled = g.node("GlobalAveragePool", g.conv(encoder.identity_conv, x, "encoder.identity_conv"), name="pool")
    added = g.linear(encoder.identity_head, g.node("Flatten", pooled, name="pooled"), "encoder.identity_head")
    look = g.linear(encoder.reader, _even_look(g, config.resolution), "encoder.reader")
    learned = g.node("Add", added, look, name="learned")
    w = g.normalise_rms(g.node("Concat", "code", learned, name="z_id", axis=1), "mapping/rms")
    for index, layer in enumerate(model.mapping.layers):
        w = g.linear(layer, w, f"mapping.layers.{index}")  # type: ignore[arg-type]
    g.output(w, "w")
    read = g.model({"texture": sides, "code": [frame.code_dim]}, {"w": [config.w_dim]})

    g = Graph("write")
    pyramid = ["linear"]
    for number in range(len(generator.to_rgb)):
        half_side = g.node("AveragePool", pyramid[-1], name=f"linear/{number}", kernel_shape=[2, 2], strides=[2, 2])
        pyramid.append(half_side)
    x, image, side = g.constant("generator.constant", generator.constant.detach().cpu().numpy()), "", 4
    for index, (to_rgb, given) in enumerate(zip(generator.to_rgb, generator.given, strict=True)):
        seen = g.conv(given, pyramid[-1 - index], f"generator.given.{index}")  # type: ignore[arg-type]
        x = g.node("Add", x, seen, name=f"given.{index}")
        for number in (2 * index, 2 * index + 1):
            x = _style_layer(g, generator, number, x, side)
            side *= 2 if generator.layers[number].up else 1
        rgb = g.conv(to_rgb, x, f"generator.to_rgb.{index}")  # type: ignore[arg-type]
        if image:
            rgb = g.node("Add", rgb, g.upsample(image, side // 2, f"image.{side}/up"), name=f"image.{side}")
        image = rgb
    g.output(image, "texture")
    axes = g.constant("layers", np.array([1], np.int64))
    mean = g.node("ReduceMean", "w", axes, name="w/mean", keepdims=0)
    whole = g.node("Concat", mean, "moment", name="w/moment", axis=1)
    moved = g.linear(
        generator.shape_head, g.linear(generator.shape_hidden, whole, "generator.shape_hidden"), "generator.shape_head"
    )
    limit = g.number(max(generator.limit, 1e-6))
    bounded = g.node("Tanh", g.node("Div", moved, limit, name="shape/part"), name="shape/tanh")
    g.output(g.node("Mul", bounded, limit, name="shape/bounded"), "shape")
    inputs = {"w": [model.num_layers, config.w_dim], "moment": [frame.moment_dim], "linear": sides}
    write = g.model(inputs, {"texture": sides, "shape": [frame.shape_dim]})
    return in_bytes(read), in_bytes(write)


def detail_to_onnx(model: DetailNetwork) -> onnx.ModelProto:
    """A detail network but for the means that it takes off at the end, its weights in 8 bits and its map in 16.

    Texture [B,3,R,R], condition [B,10], lent [B,1,2R,2R] → detail [B,4,R,R], 2×2 pixels.
    """
    side = model.size // 2
    g = Graph("detail")
    condition: str = "condition"
    for index, layer in enumerate(model.condition):
        condition = g.linear(layer, condition, f"condition.{index}")  # type: ignore[arg-type]
    styles = g.linear(model.styles, condition, "styles")
    mean = "texture"
    for name, kernel in (("rows", [5, 1]), ("columns", [1, 5])):
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        mean = g.node("AveragePool", mean, name=f"mean/{name}", kernel_shape=kernel, pads=pads, count_include_pad=0)
    above = g.node("Mul", g.node("Sub", "texture", mean, name="above"), g.number(SHOWN), name="shown")
    folded = [g.node("SpaceToDepth", x, name=f"{x}/folded", blocksize=2) for x in ("texture", above)]
    lent = g.node(
        "Mul", g.node("SpaceToDepth", "lent", name="lent/folded", blocksize=4), g.number(SHOWN), name="lent/shown"
    )
    order = [12 * part + c * 4 + p for part in (0, 1) for p in range(4) for c in range(3)] + [*range(24, 40)]
    x = g.conv(model.start, g.node("Concat", *folded, lent, name="given", axis=1), "start", order=order)
    places = g.constant("places", model.places.detach().cpu().numpy().astype(np.float16))
    x = g.node("Add", x, g.node("Cast", places, name="places/float", to=TensorProto.FLOAT), name="placed")
    parts = [f"styles/{index}/{part}" for index in range(len(model.first)) for part in ("scale", "shift")]
    g.split(styles, "styles/Split", parts)
    for index, (first, last) in enumerate(zip(model.first, model.last, strict=True)):
        y = g.conv(first, x, f"first.{index}")  # type: ignore[arg-type]
        scale, shift = (_per_channel(g, part, f"{part}/plane") for part in parts[2 * index : 2 * index + 2])
        y = g.node("Mul", y, g.node("Add", scale, g.number(1), name=f"{scale}/one"), name=f"first.{index}/scaled")
        y = g.conv(last, g.node("Add", y, shift, name=f"first.{index}/shifted"), f"last.{index}")  # type: ignore[arg-type]
        x = g.node("Add", x, y, name=f"blocks.{index}")
    x = g.node("DepthToSpace", g.conv(model.wide, x, "wide"), name="unfolded", blocksize=2, mode="CRD")
    g.output(g.conv(model.end, g.conv(model.fine, x, "fine"), "end"), "detail")
    inputs = {"texture": [3, 2 * side, 2 * side], "condition": [CONDITIONS], "lent": [1, 4 * side, 4 * side]}
    return in_bytes(g.model(inputs, {"detail": [4, 2 * side, 2 * side]}))


def _even_look(g: Graph, side: int) -> str:
    """`even_look` of "texture", [B,3,side,side]."""
    pool = side // LOOK
    small = g.node("AveragePool", "texture", name="look/small", kernel_shape=[pool, pool], strides=[pool, pool])
    flat = g.node("Flatten", g.node("Transpose", small, name="look/colours", perm=[0, 2, 3, 1]), name="look/flat")
    axes = g.constant("numbers", np.array([1], np.int64))
    apart = g.node("Sub", flat, g.node("ReduceMean", flat, axes, name="look/mean"), name="look/apart")
    square = g.node("Mul", apart, apart, name="look/square")
    root = g.node("Sqrt", g.node("ReduceMean", square, axes, name="look/variance"), name="look/deviation")
    return g.node("Div", apart, g.node("Max", root, g.number(2 / 255), name="look/least"), name="look")


def in_bytes(model: onnx.ModelProto, least: int = 1024) -> onnx.ModelProto:
    """Keep weights of `least` numbers and more in 8 bits, with a step an output channel; floats compute."""
    graph, steps, casts = model.graph, [], []
    for stored in graph.initializer:
        value = numpy_helper.to_array(stored)
        if value.dtype != np.float32 or value.size < least or value.ndim < 2 or value[0].size < FEW_CHANNELS:
            continue
        rows = np.abs(value).reshape(len(value), -1).max(1)
        step = (np.maximum(rows, 1e-8) / 127).reshape(-1, *[1] * (value.ndim - 1)).astype(np.float32)
        name, kept = stored.name, f"{stored.name}/bytes"
        stored.CopyFrom(numpy_helper.from_array(np.rint(value / step).astype(np.int8), kept))
        steps.append(numpy_helper.from_array(step, f"{name}/step"))
        whole = f"{kept}/float"
        casts.append(helper.make_node("Cast", [kept], [whole], name=whole, to=TensorProto.FLOAT))
        casts.append(helper.make_node("Mul", [whole, f"{name}/step"], [name], name=name))
    graph.initializer.extend(steps)
    for place, node in enumerate(casts):
        graph.node.insert(place, node)
    return model


def _style_layer(g: Graph, generator: FrameGenerator, number: int, x: str, side: int) -> str:
    layer, name = generator.layers[number], f"generator.layers.{number}"
    assert isinstance(layer, StyleLayer)
    w = g.node("Gather", "w", g.constant(f"index {number}", np.array(number, np.int64)), name=f"{name}/w", axis=1)
    style = g.linear(layer.affine, g.node("Concat", w, "moment", name=f"{name}/moment", axis=1), f"{name}.affine")
    weight = layer.weight.detach().double() * layer.weight_gain
    if layer.modulation == "adain":
        y = _adain(g, layer, weight, style, x, name)
    else:
        y = _demodulate(g, layer, weight, style, x, name)
    return g.upsample(y, side, f"{name}/up") if layer.up else y


def _per_channel(g: Graph, values: str, name: str) -> str:
    """[B,C] → [B,C,1,1]."""
    return g.node("Unsqueeze", values, g.constant("plane", np.array([2, 3], np.int64)), name=f"{name}/plane")


def _adain(g: Graph, layer: StyleLayer, weight: torch.Tensor, style: str, x: str, name: str) -> str:
    terms = g.weight(f"{name}.weight", weight * SQRT_2), g.weight(f"{name}.bias", layer.bias.double() * SQRT_2)
    y = g.lrelu(g.node("Conv", x, *terms, name=f"{name}/Conv", pads=[1] * 4), f"{name}/lrelu")
    channels = len(weight)
    ones = g.weight(f"ones ×{channels}", torch.ones(channels))
    zeros = g.weight(f"zeros ×{channels}", torch.zeros(channels))
    y = g.node("InstanceNormalization", y, ones, zeros, name=f"{name}/norm", epsilon=1e-5)
    g.split(style, f"{name}/Split", [f"{name}/scale", f"{name}/shift"])
    scale, shift = (_per_channel(g, part, part) for part in (f"{name}/scale", f"{name}/shift"))
    return g.node("Add", g.node("Mul", y, scale, name=f"{name}/scaled"), shift, name=f"{name}/shifted")


def _demodulate(g: Graph, layer: StyleLayer, weight: torch.Tensor, style: str, x: str, name: str) -> str:
    x = g.node("Mul", x, _per_channel(g, style, f"{name}/style"), name=f"{name}/modulated")
    # lrelu(√2·(n·y + b)) with n = 1/√(Σ s²·Σ k² + 1e-8): the √2 goes into n, by halving what the root is taken of.
    power = g.weight(f"{name}.power", weight.square().sum((2, 3)).t() / 2)
    square = g.node("Mul", style, style, name=f"{name}/square")
    total = g.node("Add", g.node("MatMul", square, power, name=f"{name}/power"), g.number(0.5e-8), name=f"{name}/eps")
    norm = g.node("Reciprocal", g.node("Sqrt", total, name=f"{name}/root"), name=f"{name}/norm")
    y = g.node("Conv", x, g.weight(f"{name}.weight", weight), name=f"{name}/Conv", pads=[1] * 4)
    y = g.node("Mul", y, _per_channel(g, norm, f"{name}/norm"), name=f"{name}/demodulated")
    bias = g.weight(f"{name}.bias", layer.bias.double()[:, None, None] * SQRT_2)
    return g.lrelu(g.node("Add", y, bias, name=f"{name}/biased"), f"{name}/lrelu")
