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
from ficgan.models.frame import CONDITIONS, LOOK, SHOWN, DetailNetwork, FrameFICGAN

OPSET, IR_VERSION = 20, 9  # the newest that the oldest onnxruntime and onnx in pyproject.toml read (1.17 and 1.15)

LEAK, SQRT_2 = 0.2, math.sqrt(2)

FEW_CHANNELS = 8  # fewer are not worth 8 bits: colours, and filters of single channels


class Value:
    """A tensor in a graph; arithmetic adds nodes to it."""

    def __init__(self, graph: Graph, name: str) -> None:
        self.graph, self.name = graph, name

    def __add__(self, other: Given) -> Value:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Given) -> Value:
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Given) -> Value:
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other: Given) -> Value:
        return self.graph.node("Div", self, other)


# What a node may be given: a value, the name of an input of the graph, a constant; tensors and numbers become float32.
Given = Value | str | float | Tensor | NDArray[Any]


class Graph:
    """Nodes and constants of one network."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[tuple[Any, ...], onnx.TensorProto] = {}

    def node(self, op: str, *inputs: Given, name: str = "", **attributes: Any) -> Value:
        name = name or f"{op} {len(self.nodes)}"
        self.nodes.append(helper.make_node(op, [self._name(x) for x in inputs], [name], name=name, **attributes))
        return Value(self, name)

    def split(self, x: Value, parts: int) -> list[Value]:
        """Cut [B,N·C] into N parts of [B,C]."""
        names = [f"{x.name}, part {number}" for number in range(parts)]
        self.nodes.append(helper.make_node("Split", [x.name], names, axis=1, num_outputs=parts))
        return [Value(self, name) for name in names]

    def _name(self, x: Given) -> str:
        if isinstance(x, Value | str):
            return x if isinstance(x, str) else x.name
        if isinstance(x, Tensor):
            x = x.detach().cpu().numpy().astype(np.float32)
        array = np.array(x, np.float32 if isinstance(x, float) else None, order="C")
        key = (array.dtype, array.shape, array.tobytes())
        if key not in self.constants:
            self.constants[key] = numpy_helper.from_array(array, f"constant {len(self.constants)}")
        name: str = self.constants[key].name
        return name

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
        return in_bytes(model)

    def conv(self, layer: Any, x: Given, order: Sequence[int] | None = None) -> Value:
        """`Conv2d`, every gain in weight and bias; `order` says which channel of the module each channel of `x` is."""
        if layer.down:
            # `ops.downsample2d`: a depthwise convolution.
            channels, kernel = layer.weight.shape[1], torch.outer(layer.taps, layer.taps)
            taps = kernel.expand(channels, 1, *kernel.shape)
            x = self.node("Conv", x, taps, pads=[1] * 4, strides=[2, 2], group=channels)
        kernel = layer.weight if order is None else layer.weight[:, list(order)]
        terms = [kernel.double() * (layer.weight_gain * layer.gain)]
        if layer.bias is not None:
            terms.append(layer.bias.double() * layer.gain)
        y = self.node("Conv", x, *terms, pads=[layer.kernel // 2] * 4)
        return self.lrelu(y) if layer.activation == "lrelu" else y

    def linear(self, layer: Any, x: Given) -> Value:
        gain = SQRT_2 if layer.activation == "lrelu" else 1.0
        weight = layer.weight.double() * (layer.weight_gain * gain)
        y = self.node("Gemm", x, weight, layer.bias.double() * (layer.bias_gain * gain), transB=1)
        return self.lrelu(y) if layer.activation == "lrelu" else y

    def lrelu(self, x: Value) -> Value:
        return self.node("LeakyRelu", x, alpha=LEAK)

    def mean(self, x: Given, *, keepdims: bool = True) -> Value:
        """Over the second dimension."""
        return self.node("ReduceMean", x, np.array([1], np.int64), keepdims=int(keepdims))

    def upsample(self, x: Value, side: int) -> Value:
        """`ops.upsample2d` with the taps 1 3 3 1 as bilinear doubling, whose repeated border samples count 3/4."""
        edge = torch.ones(2 * side)
        edge[0] = edge[-1] = 0.75
        return self.node("Resize", x, "", np.array([1, 1, 2, 2], np.float32), mode="linear") * torch.outer(edge, edge)

    def plane(self, values: Value) -> Value:
        """[B,C] → [B,C,1,1]."""
        return self.node("Unsqueeze", values, np.array([2, 3], np.int64))

    def style_layer(self, layer: Any, number: int, x: Value, side: int) -> Value:
        """A `StyleLayer`, whose style comes from layer `number` of "w" and from "moment"."""
        w = self.node("Gather", "w", np.array(number, np.int64), axis=1)
        style = self.linear(layer.affine, self.node("Concat", w, "moment", axis=1))
        weight = layer.weight.detach().double() * layer.weight_gain
        if layer.modulation == "adain":
            y = self.lrelu(self.node("Conv", x, weight * SQRT_2, layer.bias.double() * SQRT_2, pads=[1] * 4))
            ones, zeros = torch.ones(len(weight)), torch.zeros(len(weight))
            scale, shift = map(self.plane, self.split(style, 2))
            y = self.node("InstanceNormalization", y, ones, zeros, epsilon=1e-5) * scale + shift
        else:
            # lrelu(√2·(n·y + b)) with n = 1/√(Σ s²·Σ k² + 1e-8): the √2 goes into n, by halving what the root is of.
            total = self.node("MatMul", style * style, weight.square().sum((2, 3)).t() / 2) + 0.5e-8
            norm = self.node("Reciprocal", self.node("Sqrt", total))
            y = self.node("Conv", x * self.plane(style), weight, pads=[1] * 4) * self.plane(norm)
            y = self.lrelu(y + layer.bias.double()[:, None, None] * SQRT_2)
        return self.upsample(y, side) if layer.up else y


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
    folded = g.node("SpaceToDepth", "texture", blocksize=2)
    x = g.conv(encoder.stem, folded, order=[c * 4 + p for p in range(4) for c in range(3)])
    for block in encoder.trunk:
        x = g.conv(block.conv1, g.conv(block.conv0, x)) + g.conv(block.skip, x)
    pooled = g.node("GlobalAveragePool", g.conv(encoder.identity_conv, x))
    learned = g.linear(encoder.identity_head, g.node("Flatten", pooled))
    pool = [config.resolution // LOOK] * 2  # `even_look`
    small = g.node("AveragePool", "texture", kernel_shape=pool, strides=pool)
    flat = g.node("Flatten", g.node("Transpose", small, perm=[0, 2, 3, 1]))
    apart = flat - g.mean(flat)
    look = apart / g.node("Max", g.node("Sqrt", g.mean(apart * apart)), 2 / 255)
    learned = learned + g.linear(encoder.reader, look)
    z_id = g.node("Concat", "code", learned, axis=1)
    w = z_id / g.node("Sqrt", g.mean(z_id * z_id) + 1e-8)
    for layer in model.mapping.layers:
        w = g.linear(layer, w)
    g.node("Identity", w, name="w")
    read = g.model({"texture": sides, "code": [frame.code_dim]}, {"w": [config.w_dim]})

    g = Graph("write")
    pyramid: list[Given] = ["linear"]
    for _ in generator.to_rgb:
        pyramid.append(g.node("AveragePool", pyramid[-1], kernel_shape=[2, 2], strides=[2, 2]))
    features: Given = generator.constant
    side, image = 4, None
    for index, (to_rgb, given) in enumerate(zip(generator.to_rgb, generator.given, strict=True)):
        x = g.conv(given, pyramid[-1 - index]) + features
        for number in (2 * index, 2 * index + 1):
            x = g.style_layer(generator.layers[number], number, x, side)
            side *= 2 if generator.layers[number].up else 1
        rgb = g.conv(to_rgb, x)
        image = rgb if image is None else rgb + g.upsample(image, side // 2)
        features = x
    assert image is not None
    g.node("Identity", image, name="texture")
    whole = g.node("Concat", g.mean("w", keepdims=False), "moment", axis=1)
    moved, limit = g.linear(generator.shape_head, g.linear(generator.shape_hidden, whole)), max(generator.limit, 1e-6)
    g.node("Identity", g.node("Tanh", moved / limit) * limit, name="shape")
    inputs = {"w": [model.num_layers, config.w_dim], "moment": [frame.moment_dim], "linear": sides}
    return read, g.model(inputs, {"texture": sides, "shape": [frame.shape_dim]})


def detail_to_onnx(model: DetailNetwork) -> onnx.ModelProto:
    """A detail network but for the means that it takes off at the end, its weights in 8 bits and its map in 16.

    Texture [B,3,R,R], condition [B,10], lent [B,1,2R,2R] → detail [B,4,R,R], 2×2 pixels.
    """
    side = model.size // 2
    g = Graph("detail")
    condition: Given = "condition"
    for layer in model.condition:
        condition = g.linear(layer, condition)
    mean: Given = "texture"
    for kernel in ([5, 1], [1, 5]):
        pads = [kernel[0] // 2, kernel[1] // 2] * 2
        mean = g.node("AveragePool", mean, kernel_shape=kernel, pads=pads, count_include_pad=0)
    above = g.node("Sub", "texture", mean) * SHOWN
    folded = [g.node("SpaceToDepth", x, blocksize=2) for x in ("texture", above)]
    lent = g.node("SpaceToDepth", "lent", blocksize=4) * SHOWN
    order = [12 * part + c * 4 + p for part in (0, 1) for p in range(4) for c in range(3)] + [*range(24, 40)]
    x = g.conv(model.start, g.node("Concat", *folded, lent, axis=1), order=order)
    x = x + g.node("Cast", model.places.detach().cpu().numpy().astype(np.float16), to=TensorProto.FLOAT)
    styles = g.split(g.linear(model.styles, condition), 2 * len(model.first))
    for index, (first, last) in enumerate(zip(model.first, model.last, strict=True)):
        scale, shift = map(g.plane, styles[2 * index : 2 * index + 2])
        x = x + g.conv(last, g.conv(first, x) * (scale + 1.0) + shift)
    x = g.node("DepthToSpace", g.conv(model.wide, x), blocksize=2, mode="CRD")
    g.node("Identity", g.conv(model.end, g.conv(model.fine, x)), name="detail")
    inputs = {"texture": [3, 2 * side, 2 * side], "condition": [CONDITIONS], "lent": [1, 4 * side, 4 * side]}
    return g.model(inputs, {"detail": [4, 2 * side, 2 * side]})


def in_bytes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Keep weights of 1,024 numbers and more in 8 bits, with a step an output channel; floats compute."""
    graph, steps, casts = model.graph, [], []
    for stored in graph.initializer:
        value = numpy_helper.to_array(stored)
        if value.dtype != np.float32 or value.size < 1024 or value.ndim < 2 or value[0].size < FEW_CHANNELS:
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
