"""An ONNX graph under construction, and the layers of the networks as its nodes.

The graph is written from the modules rather than traced: it needs nothing but `onnx`, does not depend on which exporter
a version of torch has, and says what is meant: gains folded into the weights, activations that onnxruntime fuses into
the convolution, and for each resampling the form that is fast there.
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

from ficgan.errors import UsageError
from ficgan.models.layers import SQRT_HALF, Conv2d, DownBlock, Linear

__all__ = ["IR_VERSION", "OPSET", "Graph"]

OPSET, IR_VERSION = 20, 9
"""The newest that the oldest onnxruntime and onnx in pyproject.toml read (1.17 and 1.15)."""

LEAK, SQRT_2 = 0.2, math.sqrt(2)


class Graph:
    """Nodes and constants of one network.

    Names of weights and nodes begin with the path of their module.

    Args:
        name: of the graph.
        half: store weights in float16 and compute feature maps in it; styles, codes and the sum of RGB outputs stay in
            float32, where squares and tiny constants need the range.
        stored_half: store weights in float16 and compute everything in float32.
    """

    def __init__(self, name: str, *, half: bool = False, stored_half: bool = False) -> None:
        self.name, self.half, self.stored_half = name, half, stored_half
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}

    def node(self, op: str, *inputs: str, name: str, **attributes: Any) -> str:
        """Append a node with one output, which takes the node's name."""
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: NDArray[Any]) -> str:
        """A tensor that is stored as it is; the first one of a name stays."""
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.array(value, order="C"), name)
        return name

    def number(self, value: float) -> str:
        """A float32 scalar."""
        return self.constant(f"number {value:g}", np.array(value, np.float32))

    def weight(self, name: str, value: Tensor, *, features: bool = True) -> str:
        """A weight, stored in float16 if `half`.

        Args:
            name: path of the parameter.
            value: any shape.
            features: it meets feature maps, which are float16 too if `half`; otherwise it is used in float32.
        """
        kind = np.float16 if self.half or self.stored_half else np.float32
        stored = self.constant(name, value.detach().cpu().numpy().astype(kind))
        if self.stored_half:
            whole = f"{name}/float"
            if not any(node.name == whole for node in self.nodes):
                self.node("Cast", stored, name=whole, to=TensorProto.FLOAT)
            return whole
        return stored if features else self.to_float(stored, f"{name}/float")

    def to_features(self, x: str, name: str) -> str:
        """Float32 → the type of feature maps."""
        return self.node("Cast", x, name=name, to=TensorProto.FLOAT16) if self.half else x

    def to_float(self, x: str, name: str) -> str:
        """The type of feature maps → float32."""
        return self.node("Cast", x, name=name, to=TensorProto.FLOAT) if self.half else x

    def halves(self, x: str, name: str, parts: tuple[str, str]) -> list[str]:
        """Cut [B,2C] into two of [B,C]."""
        outputs = [f"{name}/{part}" for part in parts]
        self.nodes.append(helper.make_node("Split", [x], outputs, name=f"{name}/Split", axis=1, num_outputs=2))
        return outputs

    def output(self, x: str, name: str) -> None:
        """Give the result `x` the name of an output."""
        self.node("Identity", x, name=name)

    def model(
        self,
        inputs: Mapping[str, Sequence[int | str]],
        outputs: Mapping[str, Sequence[int | str]],
        metadata: Mapping[str, str],
        producer_version: str,
    ) -> onnx.ModelProto:
        """The finished model, checked.

        Args:
            inputs, outputs: name → shape, "batch" where it is dynamic; all are float32.
            metadata: becomes metadata_props.
            producer_version: of ficgan.
        """

        def values(shapes: Mapping[str, Sequence[int | str]]) -> list[onnx.ValueInfoProto]:
            return [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]

        graph = helper.make_graph(
            self.nodes, self.name, values(inputs), values(outputs), initializer=list(self.constants.values())
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="ficgan",
            producer_version=producer_version,
        )
        helper.set_model_props(model, dict(metadata))
        onnx.checker.check_model(model, full_check=True)
        return model

    # -- layers -----------------------------------------------------------------------------------------------------

    def lrelu(self, x: str, name: str) -> str:
        return self.node("LeakyRelu", x, name=name, alpha=LEAK)

    def conv(self, layer: Conv2d, x: str, name: str, gain: float = 1.0, order: Sequence[int] | None = None) -> str:
        """`Conv2d`. act(x + b)·g = act(g·x + g·b): every gain goes into weight and bias.

        Args:
            layer: the module.
            x: its input.
            name: path of the module.
            gain: of the output.
            order: which channel of the module each channel of `x` is; None: the same.
        """
        if layer.down:
            x = self.downsample(x, layer.weight.shape[1], layer.taps, f"{name}/down")
        gain *= SQRT_2 if layer.activation == "lrelu" else 1.0
        kernel = layer.weight if order is None else layer.weight[:, list(order)]
        terms = [self.weight(f"{name}.weight", kernel.double() * (layer.weight_gain * gain))]
        if layer.bias is not None:
            terms.append(self.weight(f"{name}.bias", layer.bias.double() * gain))
        y = self.node("Conv", x, *terms, name=f"{name}/Conv", pads=[layer.kernel // 2] * 4)
        return self.lrelu(y, f"{name}/lrelu") if layer.activation == "lrelu" else y

    def linear(self, layer: Linear, x: str, name: str) -> str:
        """`Linear`, in float32."""
        gain = SQRT_2 if layer.activation == "lrelu" else 1.0
        weight = self.weight(f"{name}.weight", layer.weight.double() * (layer.weight_gain * gain), features=False)
        bias = self.weight(f"{name}.bias", layer.bias.double() * (layer.bias_gain * gain), features=False)
        y = self.node("Gemm", x, weight, bias, name=f"{name}/Gemm", transB=1)
        return self.lrelu(y, f"{name}/lrelu") if layer.activation == "lrelu" else y

    def down_block(self, block: DownBlock, x: str, name: str) -> str:
        wide = self.conv(block.conv1, self.conv(block.conv0, x, f"{name}.conv0"), f"{name}.conv1", SQRT_HALF)
        return self.node("Add", wide, self.conv(block.skip, x, f"{name}.skip", SQRT_HALF), name=f"{name}/Add")

    def normalise_rms(self, x: str, name: str) -> str:
        """x / √(mean over channels of x² + 1e-8), in float32."""
        square = self.node("Mul", x, x, name=f"{name}/square")
        axes = self.constant("channels", np.array([1], np.int64))
        mean = self.node("ReduceMean", square, axes, name=f"{name}/mean", keepdims=1)
        root = self.node("Sqrt", self.node("Add", mean, self.number(1e-8), name=f"{name}/eps"), name=f"{name}/rms")
        return self.node("Div", x, root, name=f"{name}/Div")

    def downsample(self, x: str, channels: int, taps: Tensor, name: str) -> str:
        """`ops.downsample2d` with the taps 1 3 3 1: a depthwise convolution."""
        check_taps(taps)
        kernel = torch.outer(taps, taps).expand(channels, 1, 4, 4)
        weight = self.weight(f"taps ×{channels}", kernel)
        return self.node("Conv", x, weight, name=name, pads=[1] * 4, strides=[2, 2], group=channels)

    def upsample(self, x: str, side: int, taps: Tensor, name: str, *, features: bool = True) -> str:
        """`ops.upsample2d` with the taps 1 3 3 1 of maps [B,C,side,side], as bilinear doubling.

        That repeats the outermost samples where the filter meets zeros: there it gives x, wanted is 3/4 of it.
        """
        check_taps(taps)
        edge = torch.ones(2 * side)
        edge[0] = edge[-1] = 0.75
        scales = self.constant("twice", np.array([1, 1, 2, 2], np.float32))
        y = self.node("Resize", x, "", scales, name=f"{name}/Resize", mode="linear")
        kind = "" if features else " float"
        edges = self.weight(f"edges {2 * side}{kind}", torch.outer(edge, edge), features=features)
        return self.node("Mul", y, edges, name=name)


def check_taps(taps: Tensor) -> None:
    """The graphs know one filter, the networks' own."""
    if taps.shape != (4,) or not torch.allclose(taps.double().cpu() * 8, taps.new_tensor([1, 3, 3, 1]).double().cpu()):
        raise UsageError(f"export knows the taps 1 3 3 1 only, not {taps.tolist()}; give a model with these")
