"""Make pretrained/gate.onnx and pretrained/detector.onnx from the published networks.

    python tools/make_networks.py gate dlib_face_recognition_resnet_model_v1.dat
    python tools/make_networks.py detector centerface.onnx

The gate is dlib's face recognition network (CC0). Its file is dlib's own serialisation: layers stand in it in the order
of computing, each after its name, and tensors are plain little-endian floats after their sizes. The architecture is
fixed, so the names tell all that is needed. The detector is CenterFace (MIT), freed from its fixed size of pictures.
Both keep their weights as 16-bit integers with a scale for each row, which become floats when the file is opened;
16-bit floats would be ten times less exact.

Source: King, dlib, examples/dnn_face_recognition_ex.cpp (the network) and dlib/dnn (the serialisation).
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import numpy as np
import onnx
from make_mesh import Writer
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from ficgan.cli.main import handle_errors
from ficgan.errors import InputError
from ficgan.files import atomic_write

FOLDER = Path(__file__).resolve().parent.parent / "pretrained"
SIDE = 150
MEANS = (122.782, 117.001, 104.298)  # of dlib's input layer, RGB; pixels are divided by 256 then
LICENCE = "dlib_face_recognition_resnet_model_v1, Davis King 2017, CC0 1.0; converted"
_LAYER = re.compile(rb"\x01.(con_4|affine_|avg_pool_2|fc_2)", re.DOTALL)

Floats = NDArray[np.float32]


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
    return network


def gate(layers: list[tuple[str, Floats]]) -> onnx.ModelProto:
    """The network: images uint8 [N,150,150,3] → embeddings float32 [N,128]."""
    graph, rest = Writer(), iter(layers)

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
    made = helper.make_graph(graph.casts + graph.nodes, "dlib face recognition", [image], [out], graph.weights)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    helper.set_model_props(model, {"licence": LICENCE})
    onnx.checker.check_model(model, full_check=True)
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("gate", "detector"))
    parser.add_argument("file", type=Path)
    parser.add_argument("-o", "--out", type=Path, help="default: pretrained/gate.onnx or detector.onnx")
    options = parser.parse_args()
    made = gate(read(options.file)) if options.what == "gate" else detector(options.file)
    made = shrunk(made)
    onnx.checker.check_model(made)
    out = options.out or FOLDER / f"{options.what}.onnx"
    with atomic_write(out, overwrite=True) as file:
        file.write(made.SerializeToString())
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    handle_errors(main)()
