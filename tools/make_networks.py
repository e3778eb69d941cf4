"""Make the embedded networks from the published ones.

    python tools/make_networks.py gate dlib_face_recognition_resnet_model_v1.dat
    python tools/make_networks.py detector centerface.onnx
    python tools/make_networks.py mesh face_mesh.onnx

The gate is dlib's face recognition network (CC0). Its file is dlib's own serialisation: layers stand in it in the order
of computing, each after its name, and tensors are plain little-endian floats after their sizes. The architecture is
fixed, so the names tell all that is needed. The detector is CenterFace (MIT), freed from its fixed size of pictures.
Both keep their weights as 16-bit integers with a scale for each row, which become floats when the file is opened;
16-bit floats would be ten times less exact.

The mesh is MediaPipe's, as converted to ONNX: a network `image` (float [B,256,256,3] in [0, 1]) → `landmarks`,
`presence`. What is written computes the same from uint8, small and fast; nothing is where the two differ by more than
LIMIT pixels. What is changed:

- Two thirds of the time went into PRelu, for which onnxruntime leaves its blocked layout and comes back. A PRelu is
  left·x + relu((right − left)·x): two 1×1 depthwise convolutions, which swallow the relu and the sum. This wants
  right ≥ left; where it is not so, the channel is stored negated, and the weights that read it are negated too.
- Padding by empty channels is a convolution too, and 8 channels become 16, a whole block: the layout is never left.
- Weights are stored as float16 wherever that loses nothing: all of them were float16 in MediaPipe's file.
- Pixels are scaled by the first convolution, names are short, and the third output (unused) is gone.

Source: King, dlib, examples/dnn_face_recognition_ex.cpp (the network) and dlib/dnn (the serialisation).
"""

from __future__ import annotations

import argparse
import re
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
from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"

Array = NDArray[Any]
Floats = NDArray[np.float32]


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


def model_of(
    graph: Writer, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto], licence: str
) -> onnx.ModelProto:
    """The model of a grown graph, checked."""
    made = helper.make_graph(graph.casts + graph.nodes, "ficgan", inputs, outputs, graph.weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"licence": licence})
    onnx.checker.check_model(model, full_check=True)
    return model


def shrunk(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same network with its large weights in 16 bits."""
    casts, weights = [], []
    for stored in model.graph.initializer:
        value = numpy_helper.to_array(stored)
        if value.dtype != np.float32 or value.size < 512:
            weights.append(stored)
            continue
        scale = np.abs(value).max(tuple(range(1, value.ndim)), keepdims=True).clip(1e-12) / 32767
        name = stored.name
        weights += [
            numpy_helper.from_array(np.rint(value / scale).astype(np.int16), f"{name}/steps"),
            numpy_helper.from_array(scale.astype(np.float32), f"{name}/scale"),
        ]
        casts.append(helper.make_node("Cast", [f"{name}/steps"], [f"{name}/float"], to=TensorProto.FLOAT))
        casts.append(helper.make_node("Mul", [f"{name}/float", f"{name}/scale"], [name]))
    nodes = list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.initializer.extend(weights)
    model.graph.node.extend([*casts, *nodes])
    return model


# --- gate -------------------------------------------------------------------------------------------------------------

SIDE = 150
MEANS = (122.782, 117.001, 104.298)  # of dlib's input layer, RGB; pixels are divided by 256 then
LICENCE = "dlib_face_recognition_resnet_model_v1, Davis King 2017, CC0 1.0; converted"
_LAYER = re.compile(rb"\x01.(con_4|affine_|avg_pool_2|fc_2)", re.DOTALL)


def integer(data: bytes, at: int) -> tuple[int, int]:
    """One of dlib's integers, and where the next begins: a byte with the sign and the number of bytes that follow."""
    size, negative = data[at] & 15, bool(data[at] & 128)
    value = int.from_bytes(data[at + 1 : at + 1 + size], "little")
    return (-value if negative else value), at + 1 + size


def tensor(data: bytes, at: int) -> Floats:
    """The numbers of a tensor that begins with its version and four sizes."""
    version, at = integer(data, at)
    if version != 2:
        raise SystemExit(f"a tensor has version {version}, this reads version 2")
    count = 1
    for _ in range(4):
        size, at = integer(data, at)
        count *= size
    return np.frombuffer(data, "<f4", count, at).copy()


def read(path: Path) -> list[tuple[str, Floats]]:
    """Layers with weights or pooling, in the order of computing."""
    data, layers = path.read_bytes(), []
    for match in _LAYER.finditer(data):
        name = match[1].decode()
        if data[match.start() + 1] != len(name):
            continue
        at = match.end()
        if name == "fc_2":
            _, at = integer(data, at)  # outputs
            _, at = integer(data, at)  # inputs
        layers.append((name, np.zeros(0, np.float32) if name == "avg_pool_2" else tensor(data, at)))
    if not layers:
        raise InputError(f"{path} holds no network of dlib's; name dlib_face_recognition_resnet_model_v1.dat")
    return layers


def gate(path: Path) -> onnx.ModelProto:
    """The network: images uint8 [N,150,150,3] → embeddings float32 [N,128]."""
    graph, rest = Writer(), iter(read(path))

    def convolution(x: str, inside: int, outside: int, side: int, stride: int) -> str:
        """A convolution, the affine layer behind it folded in."""
        name, params = next(rest)
        after, scale = next(rest)
        if (name, after) != ("con_4", "affine_") or len(params) != outside * (inside * side * side + 1):
            raise SystemExit("the file holds another network")
        weight, bias = params[:-outside].reshape(outside, inside, side, side), params[-outside:]
        gamma, beta = scale[:outside], scale[outside:]
        pad = side // 2 if stride == 1 else 0
        sizes = {"kernel_shape": [side] * 2, "strides": [stride] * 2, "pads": [pad] * 4}
        return graph.conv(x, weight * gamma[:, None, None, None], bias * gamma + beta, **sizes)

    def block(x: str, inside: int, outside: int, height: int, down: bool) -> tuple[str, int]:
        """Two convolutions and a way past them; where sizes differ, dlib fills the smaller one with zeros."""
        y = graph.node("Relu", convolution(x, inside, outside, 3, 2 if down else 1))
        y = convolution(y, outside, outside, 3, 1)
        if down:
            if next(rest)[0] != "avg_pool_2":
                raise SystemExit("the file holds another network")
            x = graph.node("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
            made, past = (height - 3) // 2 + 1, (height - 2) // 2 + 1
            x, y = filled(x, outside - inside, made - past), filled(y, 0, past - made)
            height = max(made, past)
        return graph.node("Relu", graph.node("Add", x, y)), height

    def filled(x: str, channels: int, edge: int) -> str:
        edge = max(edge, 0)
        if not channels and not edge:
            return x
        return graph.node("Pad", x, graph.weight(np.array([0, 0, 0, 0, 0, channels, edge, edge], np.int64)))

    x = graph.node("Cast", "images", to=TensorProto.FLOAT)
    x = graph.node("Sub", x, graph.weight(np.array(MEANS, np.float32)))
    x = graph.node("Mul", x, graph.weight(np.array(1 / 256, np.float32)))
    x = graph.node("Transpose", x, perm=[0, 3, 1, 2])
    x = graph.node("Relu", convolution(x, 3, 32, 7, 2))
    x = graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2])
    inside, height = 32, ((SIDE - 7) // 2 + 1 - 3) // 2 + 1
    for outside, plain, down in ((32, 3, False), (64, 3, True), (128, 2, True), (256, 2, True), (256, 0, True)):
        if down:
            x, height = block(x, inside, outside, height, True)
        for _ in range(plain):
            x, height = block(x, outside, outside, height, False)
        inside = outside
    x = graph.node("Flatten", graph.node("GlobalAveragePool", x))
    if next(rest)[0] != "avg_pool_2":
        raise SystemExit("the file holds another network")
    _, last = next(rest)
    graph.node("MatMul", x, graph.weight(last.reshape(256, 128)), name="embeddings")
    image = helper.make_tensor_value_info("images", TensorProto.UINT8, ["N", SIDE, SIDE, 3])
    out = helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["N", 128])
    return shrunk(model_of(graph, [image], [out], LICENCE))


# --- detector ---------------------------------------------------------------------------------------------------------


def detector(path: Path) -> onnx.ModelProto:
    """CenterFace with free batch, height and width: the file fixes them, though it is fully convolutional."""
    network = onnx.load(str(path))
    weights = {value.name for value in network.graph.initializer}
    inputs = [value for value in network.graph.input if value.name not in weights]  # old files list weights, too
    del network.graph.input[:]
    network.graph.input.extend(inputs)
    del network.graph.value_info[:]
    for value in (*network.graph.input, *network.graph.output):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if axis != 1:
                dimension.dim_param = f"{value.name}_{axis}"
    network.ir_version = max(network.ir_version, 4)  # earlier ones want the weights among the inputs
    helper.set_model_props(network, {"licence": "CenterFace, Star-Clouds 2019, MIT; converted"})
    return shrunk(network)


# --- mesh -------------------------------------------------------------------------------------------------------------

LIMIT = 0.01  # pixels of 256; float32 sums in another order differ by .001
BLOCK = 16
MESH_LICENCE = "MediaPipe Face Mesh, Google, Apache License 2.0; converted, changed"


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
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", 256, 256, 3])
    found = [
        helper.make_tensor_value_info("landmarks", TensorProto.FLOAT, ["batch", 478, 3]),
        helper.make_tensor_value_info("presence", TensorProto.FLOAT, ["batch"]),
    ]
    return model_of(out, [image], found, MESH_LICENCE)


def pictures(count: int = 16) -> NDArray[np.uint8]:
    """The astronaut's face: smooth and rough, bright and dark."""
    face = np.asarray(Image.open(FOLDER.parent / "tools" / "astronaut.jpg").convert("RGB"))[35:205, 140:310]
    rng, images = np.random.default_rng(0), []
    for index in range(count):
        turn = cv2.getRotationMatrix2D(rng.uniform(70, 100, 2), rng.uniform(-25, 25), rng.uniform(1.2, 1.8))
        turn[:, 2] += 43
        image = cv2.warpAffine(face, turn, (256, 256), borderMode=cv2.BORDER_REFLECT)
        noise = rng.normal(0, 4 * index, image.shape)
        images.append((image * rng.uniform(0.5, 1.2) + noise).clip(0, 255).astype(np.uint8))
    return np.stack(images)


def mesh(path: Path) -> onnx.ModelProto:
    """The face mesh rewritten, after a comparison with its source."""
    source = onnx.load(str(path))
    made, images = rewrite(source), pictures()
    wanted, got = (
        onnx_session(model.SerializeToString()).run(["landmarks", "presence"], {"image": given})
        for model, given in ((source, images.astype(np.float32) / 255), (made, images))
    )
    gaps = [float(np.abs(a - b).max()) for a, b in zip(wanted, got, strict=True)]
    print(f"largest difference: landmarks {gaps[0]:.5f} px of 256, presence {gaps[1]:.5f} (about {got[1].max():.0f})")
    if not max(gaps) <= LIMIT:
        raise FicganError(f"the networks differ by more than {LIMIT}; nothing was written")
    return made


# --- command line -----------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    makers = {"gate": (gate, "gate.onnx"), "detector": (detector, "detector.onnx"), "mesh": (mesh, "face_mesh.onnx")}
    parser.add_argument("what", choices=makers)
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--out", type=Path, help="default: the file in pretrained/")
    options = parser.parse_args()
    make, name = makers[options.what]
    made, out = make(options.file), options.out or FOLDER / name
    onnx.checker.check_model(made)
    with atomic_write(out, overwrite=True) as file:
        file.write(made.SerializeToString(deterministic=True))
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    handle_errors(main)()
