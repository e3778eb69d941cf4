"""V: any face recogniser as a frozen network that is differentiable in the image, behind one similarity of crops."""

from __future__ import annotations

import math
import operator
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn import functional as F

from ficgan.arrays import LUMA
from ficgan.errors import InputError, reason
from ficgan.faces.crops import Alignment, similarity

Size = tuple[int, int]  # height and width


# How far a face is varied at random before V sees it, so that G cannot please V with one fixed pattern: shift (of the
# side), scale, rotation (degrees), weight of a 3×3 blur, noise (grey levels), changes of colour.
SHIFT, SCALE, ROTATION, BLUR, NOISE = 0.05, 0.05, 5.0, 0.7, 4.0
BRIGHTNESS, CONTRAST, SATURATION = 0.1, 0.1, 0.1


class AlignedInput(nn.Module):
    """Carries crops of a checkpoint to the crops a recogniser was trained on; differentiable, always float32.

    What lies outside the checkpoint's crop is black: stretching it makes strangers look alike (mean cosine .58).

    Args:
        points: [5, 2] where the recogniser expects them, pixels (x, y), centres at integers.
    """

    theta: Tensor

    def __init__(self, alignment: Alignment, resolution: int, points: ArrayLike, size: Size) -> None:
        super().__init__()
        self.size = size
        matrix = similarity(alignment.points(resolution), points)
        # Reduced by averaging first where the similarity shrinks by more than 2: bilinear sampling alone would skip
        # pixels, which aliases and leaves them without a gradient.
        shrink = 1 / math.hypot(matrix[0, 0], matrix[1, 0])
        self.pool = 1
        while self.pool * 2 <= shrink * (1 + 1e-6) and resolution % (self.pool * 2) == 0:
            self.pool *= 2
        self.register_buffer("theta", torch.from_numpy(_theta(matrix, resolution, size)).float(), persistent=False)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Crops [B,3,R,R] in [−1, 1] as a recogniser sees them, [B,3,h,w] in 0..255; varied with a generator."""
        x = (x.float() + 1) * 127.5
        if self.pool > 1:
            x = F.avg_pool2d(x, self.pool)
        theta = self.theta.expand(len(x), 2, 3)
        if generator is not None:
            x = _jitter_colour(x, generator)
            theta = self._vary(theta, generator)
        grid = F.affine_grid(theta, [len(x), 3, *self.size], align_corners=False)
        y = F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
        if generator is not None:
            y = _blur_and_noise(y, generator)
        return y

    def _vary(self, theta: Tensor, generator: torch.Generator) -> Tensor:
        """theta [B,2,3] after a random similarity about the centre of the recogniser's crop."""
        shift_x, shift_y, scale, turn = _uniform(4, len(theta), generator, theta.device)
        size = 1 + SCALE * scale
        angle = math.radians(ROTATION) * turn
        cos, sin = size * angle.cos(), size * angle.sin()
        # In normalised coordinates a rotation of a crop that is not square must be undone by its aspect.
        aspect = self.size[0] / self.size[1]
        zero, one = torch.zeros_like(cos), torch.ones_like(cos)
        rows = [cos, -sin * aspect, 2 * SHIFT * shift_x, sin / aspect, cos, 2 * SHIFT * shift_y]
        vary = torch.stack([*rows, zero, zero, one], 1).view(-1, 3, 3)
        return theta @ vary


def _theta(matrix: NDArray[np.float64], resolution: int, size: Size) -> NDArray[np.float64]:
    """`F.affine_grid`'s matrix (output → input, coordinates −1..1) of a pixel matrix (input → output)."""

    def normalise(width: int, height: int) -> NDArray[np.float64]:
        # Pixel p has its centre at (2p + 1)/n − 1 when corners are not aligned.
        return np.array([[2 / width, 0, 1 / width - 1], [0, 2 / height, 1 / height - 1], [0, 0, 1]])

    forward = np.vstack([matrix, [0, 0, 1]])
    output = normalise(size[1], size[0])
    return (normalise(resolution, resolution) @ np.linalg.inv(forward) @ np.linalg.inv(output))[:2]


def _uniform(rows: int, batch: int, generator: torch.Generator, device: torch.device) -> Tensor:
    return torch.rand(rows, batch, generator=generator, device=generator.device).to(device) * 2 - 1


def _jitter_colour(x: Tensor, generator: torch.Generator) -> Tensor:
    brightness, contrast, saturation = _uniform(3, len(x), generator, x.device)
    gain = (1 + BRIGHTNESS * brightness) * (1 + CONTRAST * contrast)
    offset = -127.5 * CONTRAST * contrast
    keep = (1 + SATURATION * saturation)[:, None, None]
    grey = x.new_tensor(LUMA.tolist()).expand(3, 3)  # saturation turns about it
    matrix = gain[:, None, None] * (keep * torch.eye(3, device=x.device) + (1 - keep) * grey)
    return torch.baddbmm(offset[:, None, None].expand(-1, 3, 1), matrix, x.flatten(2)).view_as(x)


def _blur_and_noise(y: Tensor, generator: torch.Generator) -> Tensor:
    blur, noise = (_uniform(2, len(y), generator, y.device) + 1) / 2
    row = torch.tensor([1.0, 2.0, 1.0], device=y.device) / 4
    kernel = torch.outer(row, row).expand(3, 1, 3, 3)
    smooth = F.conv2d(F.pad(y, (1, 1, 1, 1), mode="replicate"), kernel, groups=3)
    y = torch.lerp(y, smooth, (BLUR * blur)[:, None, None, None])
    grain = torch.randn(y.shape, generator=generator, device=generator.device).to(y.device)
    return y + grain * (NOISE * noise)[:, None, None, None]


class Verifier(nn.Module):
    """A frozen recogniser behind the alignment of a checkpoint; it sees (grey level − mean) / scale."""

    def __init__(self, network: nn.Module, aligned: AlignedInput, *, mean: float, scale: float, name: str) -> None:
        super().__init__()
        self.network, self.aligned, self.mean, self.scale, self.name = network, aligned, mean, scale, name
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> Verifier:
        """V stays frozen and in evaluation mode, whatever is asked of the module that holds it."""
        return super().train(False)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Embeddings, float32 also under autocast, of crops [B,3,R,R] in [−1, 1]; varied with a generator."""
        return self.read((x, generator))[0]

    def read(self, *parts: tuple[Tensor, torch.Generator | None]) -> tuple[Tensor, list[Tensor]]:
        """Embeddings and up to three early feature maps, finest first, of batches, each with its generator."""
        with torch.autocast(device_type=parts[0][0].device.type, enabled=False):
            y = (torch.cat([self.aligned(x, generator) for x, generator in parts]) - self.mean) / self.scale
            embedding, maps = self.network(y.contiguous(memory_format=torch.channels_last))
        return embedding, maps


TAP_SIZES = (56, 28, 14)  # at 112 px: strides 2, 4 and 8


def load_onnx(path: Path) -> tuple[nn.Module, Size, float, float]:
    """A recogniser's network returning (embeddings, maps); (height, width) of its input; its mean and scale."""
    import onnx
    import onnx2torch

    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf, checker and I/O errors have no common base
        raise InputError(f"{path} is not a readable ONNX model ({reason(error)}); give a recogniser.") from error
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    shape = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim] if len(inputs) == 1 else []
    if len(shape) != 4 or shape[1] != 3 or min(shape[2:]) < 16:
        raise InputError(f"{path} is not a face recogniser: it needs one input N×3×height×width of fixed size.")
    size = (shape[2], shape[3])
    # Networks that open with a convolution were trained on [−1, 1]; the others normalise grey levels themselves.
    first = next(node for node in model.graph.node if inputs[0].name in node.input)
    mean, scale = (127.5, 127.5) if first.op_type == "Conv" else (0.0, 1.0)
    del model.graph.input[:]
    model.graph.input.extend(inputs)  # old files list weights, too, which then could not be folded
    model.ir_version = max(model.ir_version, 4)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = onnx2torch.convert(_folded(model)).eval().requires_grad_(False)
        _own_prelus(graph)
        _add_taps(graph, size)
        graph.recompile()
    except Exception as error:  # onnx2torch raises NotImplementedError, KeyError, RuntimeError, …
        raise InputError(f"{path} cannot be turned into a torch module ({reason(error)}).") from error
    return graph, size, mean, scale


def _folded(model: Any) -> Any:
    """An ONNX model with constants, scales, offsets and batch norms in the convolutions before them."""
    import onnx
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/folded.onnx"
        onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath)


def _own_prelus(graph: fx.GraphModule) -> None:
    """Put torch's PReLU, which is faster, in the place of onnx2torch's."""
    for node in list(graph.graph.nodes):
        module = graph.get_submodule(str(node.target)) if node.op == "call_module" else None
        if type(module).__name__ != "OnnxPReLU" or node.args[1].op != "get_attr":
            continue
        slope = operator.attrgetter(node.args[1].target)(graph)
        if slope.shape[1:] == (1, 1):
            own = nn.PReLU(len(slope))
            own.weight = nn.Parameter(slope.flatten().clone(), requires_grad=False)
            # Several nodes may share a module, which so stays.
            node.target, node.args = f"own_{node.name}", (node.args[0],)
            graph.add_module(node.target, own)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()


def _add_taps(graph: fx.GraphModule, size: Size) -> None:
    device = next((p.device for p in graph.parameters()), torch.device("cpu"))
    with torch.no_grad():
        ShapeProp(graph).propagate(torch.zeros(2, 3, *size, device=device))
    shapes: dict[object, tuple[int, ...]] = {
        node: tuple(getattr(node.meta.get("tensor_meta"), "shape", ())) for node in graph.graph.nodes
    }
    output = next(node for node in graph.graph.nodes if node.op == "output")
    embedding = output.args[0]
    if len(shapes.get(embedding, ())) != 2 or shapes[embedding][0] != 2:
        raise ValueError(f"its output is not batch × dimensions but {shapes.get(embedding)}")
    taps = []
    for tap in TAP_SIZES:
        side = (size[0] * tap // 112, size[1] * tap // 112)
        nodes = [node for node in graph.graph.nodes if len(shapes[node]) == 4 and shapes[node][2:] == side]
        if nodes:
            narrowest = min(shapes[node][1] for node in nodes)
            taps.append([node for node in nodes if shapes[node][1] == narrowest][-1])
    output.args = ((embedding, taps),)
