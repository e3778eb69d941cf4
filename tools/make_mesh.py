"""Make the face mesh's network small and fast: pretrained/face_mesh.onnx from MediaPipe's, as converted to ONNX.

    python tools/make_mesh.py face_mesh.onnx [-o pretrained/face_mesh.onnx]

reads a network `image` (float [B,256,256,3] in [0, 1]) → `landmarks`, `presence`, and writes one that computes the same
from uint8. Nothing is written where they differ by more than LIMIT pixels (exit 1). What it changes:

- Two thirds of the time went into PRelu, for which onnxruntime leaves its blocked layout and comes back. A PRelu is
  left·x + relu((right − left)·x): two 1×1 depthwise convolutions, which swallow the relu and the sum. This wants
  right ≥ left; where it is not so, the channel is stored negated, and the weights that read it are negated too.
- Padding by empty channels is a convolution too, and 8 channels become 16, a whole block: the layout is never left.
- Weights are stored as float16 wherever that loses nothing: all of them were float16 in MediaPipe's file.
- Pixels are scaled by the first convolution, names are short, and the third output (unused) is gone.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from ficgan.cli.main import handle_errors
from ficgan.device import onnx_session
from ficgan.files import atomic_write

OUTPUT = Path(__file__).resolve().parent.parent / "pretrained" / "face_mesh.onnx"
ASTRONAUT = Path(__file__).resolve().parent / "astronaut.jpg"
LIMIT = 0.01  # pixels of 256; float32 sums in another order differ by .001
BLOCK = 16

Array = NDArray[Any]


class Writer:
    """A graph that grows; weights are kept as float16 where that loses nothing and saves something."""

    def __init__(self) -> None:
        self.casts: list[onnx.NodeProto] = []
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []

    def node(self, kind: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        name = name or f"t{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def weight(self, value: Array) -> str:
        name = f"w{len(self.weights)}"
        if value.dtype.kind == "f":
            value, half = value.astype(np.float32), value.astype(np.float16)
            if value.size >= 512 and (half == value).all():
                self.casts.append(helper.make_node("Cast", [f"{name}h"], [name], to=TensorProto.FLOAT))
                self.weights.append(numpy_helper.from_array(half, f"{name}h"))
                return name
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def conv(self, x: str, weight: Array, *bias: Array, **attributes: Any) -> str:
        return self.node("Conv", x, self.weight(weight), *(self.weight(array) for array in bias), **attributes)

    def scale(self, x: str, factor: Array) -> str:
        """A factor for each channel, as a convolution."""
        return self.conv(x, factor.reshape(-1, 1, 1, 1), group=len(factor), kernel_shape=[1, 1])


def rewrite(source: onnx.ModelProto) -> onnx.ModelProto:
    """The same function from uint8 pixels, in operators that onnxruntime keeps in its blocked layout."""
    values = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    users: dict[str, list[onnx.NodeProto]] = {}
    for node in source.graph.node:
        for name in node.input:
            users.setdefault(name, []).append(node)
    out = Writer()
    new: dict[str, str] = {}  # name in the source -> name here
    sign: dict[str, Array] = {}  # name in the source -> 1 or -1 for each channel, 0 for one added to fill a block

    def prelu(x: str, slope: Array, sx: Array, exact: bool) -> tuple[str, Array]:
        slope = np.pad(slope.ravel().astype(np.float64), (0, len(sx) - slope.size))
        left, right = np.where(sx < 0, -1.0, slope), np.where(sx < 0, -slope, 1.0)
        if exact:  # for a pooling, which cannot read negated channels
            kink = out.scale(out.node("Relu", x), right - left)
            return out.node("Add", out.scale(x, left), kink), np.abs(sx)
        s = np.where(right < left, -1.0, 1.0)
        kink = out.node("Relu", out.scale(x, s * (right - left)))
        return out.node("Add", out.scale(x, s * left), kink), s * np.abs(sx)

    def convolve(node: onnx.NodeProto, x: str, sx: Array, attributes: dict[str, Any]) -> tuple[str, Array]:
        weight, bias = values[node.input[1]], values[node.input[2]]
        if x == "pixels":
            weight = weight.astype(np.float64) / 255
        depthwise = attributes["group"] > 1
        fill = BLOCK - len(bias) if len(bias) == BLOCK // 2 else 0
        weight = np.pad(weight, ((0, fill), (0, 0 if depthwise else len(sx) - weight.shape[1]), (0, 0), (0, 0)))
        s = np.pad(np.ones(len(bias)), (0, fill))
        if depthwise:
            s, attributes["group"] = sx, len(sx)
        else:
            weight = weight * sx[:, None, None]
            if [user.op_type for user in users[node.output[0]]] == ["Add"]:  # it joins what is there
                (other,) = set(users[node.output[0]][0].input) - set(node.output)
                s = sign[other]
                weight = weight * s[:, None, None, None]
        return out.conv(x, weight, np.pad(bias, (0, fill)) * s, **attributes), s

    for node in source.graph.node:
        name, x = node.output[0], new.get(node.input[0], "")
        attributes = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if node.op_type == "Transpose":
            nchw = out.node("Transpose", "image", perm=[0, 3, 1, 2])
            new[name] = out.node("Cast", nchw, name="pixels", to=TensorProto.FLOAT)
            sign[name] = np.ones(3)
        elif node.op_type == "Conv":
            new[name], sign[name] = convolve(node, x, sign[node.input[0]], attributes)
        elif node.op_type == "PRelu":
            pooled = any(user.op_type == "MaxPool" for user in users[name])
            new[name], sign[name] = prelu(x, values[node.input[1]], sign[node.input[0]], pooled)
        elif node.op_type == "Add":
            assert (sign[node.input[0]] == sign[node.input[1]]).all()
            new[name], sign[name] = out.node("Add", x, new[node.input[1]]), sign[node.input[0]]
        elif node.op_type == "MaxPool":
            assert (sign[node.input[0]] == 1).all()
            new[name], sign[name] = out.node("MaxPool", x, **attributes), sign[node.input[0]]
        elif node.op_type == "Pad":
            have, more = len(sign[node.input[0]]), int(values[node.input[1]][5])
            sign[name] = np.ones(have + more)
            new[name] = out.conv(x, np.eye(have + more, have)[..., None, None], kernel_shape=[1, 1])
        elif node.op_type == "Reshape" and x:  # two in a row before each output; the last one says it all
            new[name] = x
            if name == "landmarks":
                out.node("Reshape", x, out.weight(np.array([0, 478, 3])), name=name)
            elif name == "presence":
                out.node("Reshape", x, out.weight(np.array([-1])), name=name)
        elif node.op_type not in ("Sigmoid", "Reshape"):
            raise SystemExit(f"The network has an operator {node.op_type}, which this tool does not know.")
    return finished(out)


def finished(out: Writer) -> onnx.ModelProto:
    """The model of a grown graph, checked."""
    graph = helper.make_graph(
        out.casts + out.nodes,
        "face_mesh",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 256, 256, 3])],
        [
            helper.make_tensor_value_info("landmarks", TensorProto.FLOAT, ["batch", 478, 3]),
            helper.make_tensor_value_info("presence", TensorProto.FLOAT, ["batch"]),
        ],
        out.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model.producer_name = "ficgan tools/make_mesh.py"
    model.doc_string = (
        "MediaPipe Face Mesh, Google, Apache License 2.0; changed by ficgan: converted to ONNX, reads uint8, PRelu "
        "written as convolutions, the third output left out."
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def pictures(count: int = 16) -> NDArray[np.uint8]:
    """The astronaut's face: smooth and rough, bright and dark."""
    face = np.asarray(Image.open(ASTRONAUT).convert("RGB"))[35:205, 140:310]
    rng, images = np.random.default_rng(0), []
    for index in range(count):
        turn = cv2.getRotationMatrix2D(rng.uniform(70, 100, 2), rng.uniform(-25, 25), rng.uniform(1.2, 1.8))
        turn[:, 2] += 43
        image = cv2.warpAffine(face, turn, (256, 256), borderMode=cv2.BORDER_REFLECT)
        noise = rng.normal(0, 4 * index, image.shape)
        images.append((image * rng.uniform(0.5, 1.2) + noise).clip(0, 255).astype(np.uint8))
    return np.stack(images)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="MediaPipe's network, converted to ONNX")
    parser.add_argument(
        "-o", "--output", type=Path, default=OUTPUT, help="the file to write; pretrained/face_mesh.onnx"
    )
    options = parser.parse_args()
    made = rewrite(onnx.load(str(options.source))).SerializeToString(deterministic=True)
    images = pictures()
    before, after = onnx_session(options.source), onnx_session(made)
    feeds: dict[Any, Array] = {before: images.astype(np.float32) / 255, after: images}
    wanted, got = ([*session.run(["landmarks", "presence"], {"image": feeds[session]})] for session in feeds)
    gap, presence_gap = (float(np.abs(a - b).max()) for a, b in zip(wanted, got, strict=True))
    print(f"{len(made):,} bytes, SHA-256 {hashlib.sha256(made).hexdigest()}")
    print(f"largest difference: landmarks {gap:.5f} px of 256, presence {presence_gap:.5f} (about {got[1].max():.0f})")
    if not max(gap, presence_gap) <= LIMIT:
        print(f"The networks differ by more than {LIMIT}; nothing was written.", file=sys.stderr)
        return 1
    with atomic_write(options.output, overwrite=True) as stream:
        stream.write(made)
    return 0


if __name__ == "__main__":
    sys.exit(handle_errors(main)())
