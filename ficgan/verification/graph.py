"""ONNX recognisers as torch modules, rewritten to cost less and to hand out early feature maps."""

from __future__ import annotations

import operator
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.utils.fusion import fuse_conv_bn_eval

from ficgan.errors import InputError

TAP_SIZES = (56, 28, 14)  # at 112 px: strides 2, 4 and 8


def load_onnx(path: Path) -> tuple[nn.Module, tuple[int, int], float, float]:
    """A recogniser's network as a module that returns (embeddings, feature maps).

    Returns:
        the module; (height, width) of its input; mean and scale of (grey level − mean) / scale that it expects.
    Raises:
        InputError: the file is not a readable ONNX recogniser, or holds an operator torch has no counterpart for.
    """
    import onnx
    import onnx2torch

    try:
        model = onnx.load(str(path))
        onnx.checker.check_model(model)
    except Exception as error:  # protobuf, checker and I/O errors have no common base
        raise InputError(f"{path} is not a readable ONNX model ({_first_line(error)}); give a recogniser.") from error
    constants = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in constants]
    shape = [dim.dim_value for dim in inputs[0].type.tensor_type.shape.dim] if len(inputs) == 1 else []
    if len(shape) != 4 or shape[1] != 3 or min(shape[2:]) < 16:
        raise InputError(f"{path} is not a face recogniser: it needs one input N×3×height×width of fixed size.")
    size = (shape[2], shape[3])
    first = next(node for node in model.graph.node if inputs[0].name in node.input)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            graph = onnx2torch.convert(model).eval().requires_grad_(False)
        network = optimise(graph, size)
    except Exception as error:  # onnx2torch raises NotImplementedError, KeyError, RuntimeError, …
        raise InputError(f"{path} cannot be turned into a torch module ({_first_line(error)}).") from error
    # Networks that open with a convolution were trained on [−1, 1]; the others normalise grey levels themselves.
    mean, scale = (127.5, 127.5) if first.op_type == "Conv" else (0.0, 1.0)
    return network, size, mean, scale


def optimise(graph: fx.GraphModule, size: tuple[int, int]) -> fx.GraphModule:
    """The same function with constants folded, activations in place and feature maps as a second output.

    Args:
        graph: as onnx2torch makes it; one input, one output [B, D].
        size: (height, width) of the input.
    Returns:
        module x [B, 3, h, w] → (embeddings [B, D], maps: the narrowest late activation at strides 2, 4 and 8).
    """
    _fold_affine(graph)
    _activations(graph)
    graph.graph.eliminate_dead_code()
    graph.delete_all_unused_submodules()
    graph.recompile()
    _add_taps(graph, size)
    graph.recompile()
    return graph


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0][:160]


def _module(graph: fx.GraphModule, node: fx.Node) -> nn.Module | None:
    return graph.get_submodule(str(node.target)) if node.op == "call_module" else None


def _constant(graph: fx.GraphModule, arg: object) -> Tensor | None:
    """The tensor behind a node that only hands out a constant."""
    if not isinstance(arg, fx.Node):
        return None
    value: object = None
    if arg.op == "get_attr":
        value = operator.attrgetter(str(arg.target))(graph)
    elif type(_module(graph, arg)).__name__ == "OnnxConstant":
        value = getattr(_module(graph, arg), "value", None)
    return value.detach() if isinstance(value, Tensor) else None


def _replace(graph: fx.GraphModule, node: fx.Node, module: nn.Module, source: fx.Node) -> None:
    """Put `module` in the place of `node`, fed by `source` alone."""
    name = f"own_{node.name}"
    graph.add_module(name, module)
    with graph.graph.inserting_before(node):
        new = graph.graph.call_module(name, (source,))
    node.replace_all_uses_with(new)
    graph.graph.erase_node(node)


def _fold_affine(graph: fx.GraphModule) -> None:
    """Fold into a convolution what follows it: batch norm, or a product, sum or difference with a value per channel."""
    for node in list(graph.graph.nodes):
        module = _module(graph, node)
        source = next((arg for arg in node.args if isinstance(_node_module(graph, arg), nn.Conv2d)), None)
        if module is None or not isinstance(source, fx.Node) or len(source.users) != 1:
            continue
        conv = _module(graph, source)
        assert isinstance(conv, nn.Conv2d)
        if isinstance(module, nn.BatchNorm2d):
            fused: nn.Conv2d | None = fuse_conv_bn_eval(conv, module)
        else:
            fused = _folded(graph, node, module, source, conv)
        feed = source.args[0]
        if fused is not None and isinstance(feed, fx.Node):
            # A module that several nodes share must not change under the others' feet: the result gets its own name.
            _replace(graph, source, fused.requires_grad_(False), feed)
            new = next(n for n in graph.graph.nodes if n.target == f"own_{source.name}")
            node.replace_all_uses_with(new)
            graph.graph.erase_node(node)


def _node_module(graph: fx.GraphModule, arg: object) -> nn.Module | None:
    return _module(graph, arg) if isinstance(arg, fx.Node) else None


def _folded(
    graph: fx.GraphModule, node: fx.Node, module: nn.Module, source: fx.Node, conv: nn.Conv2d
) -> nn.Conv2d | None:
    """`conv` with the product or sum of `node` in its weights, or None where that is not what `node` computes."""
    function = getattr(module, "math_op_function", None)
    if len(node.args) != 2 or node.args[0] is not source or conv.padding_mode != "zeros":
        return None
    value = _constant(graph, node.args[1])
    if value is None or value.numel() not in (1, conv.out_channels) or value.ndim not in (0, 3, 4):
        return None
    if value.numel() > 1 and value.shape[-3] != conv.out_channels:
        return None
    value = value.flatten().expand(conv.out_channels).double()
    weight, bias = conv.weight.double(), torch.zeros(conv.out_channels, dtype=torch.float64)
    if conv.bias is not None:
        bias = conv.bias.double()
    if function is torch.mul:
        weight, bias = weight * value[:, None, None, None], bias * value
    elif function is torch.add:
        bias = bias + value
    elif function is torch.sub:
        bias = bias - value
    else:
        return None
    shape = (conv.in_channels, conv.out_channels, conv.kernel_size)
    fused = nn.Conv2d(*shape, conv.stride, conv.padding, conv.dilation, conv.groups)  # type: ignore[arg-type]
    fused.weight = nn.Parameter(weight.float(), requires_grad=False)
    fused.bias = nn.Parameter(bias.float(), requires_grad=False)
    return fused


def _activations(graph: fx.GraphModule) -> None:
    """Activations by torch's own modules, in place where they read a convolution's output that nobody else reads."""
    for node in list(graph.graph.nodes):
        module = _module(graph, node)
        source = node.args[0] if node.args else None
        if module is None or not isinstance(source, fx.Node):
            continue
        inplace = len(source.users) == 1 and isinstance(_module(graph, source), nn.Conv2d)
        if isinstance(module, nn.ReLU6) and inplace:
            _replace(graph, node, _ClampInPlace(module.min_val, module.max_val), source)
        elif isinstance(module, nn.ReLU) and inplace:
            _replace(graph, node, nn.ReLU(inplace=True), source)
        elif type(module).__name__ == "OnnxPReLU":
            slope = _constant(graph, node.args[1])
            if slope is not None and slope.ndim == 3 and slope.shape[1:] == (1, 1):
                own = nn.PReLU(slope.numel())
                own.weight = nn.Parameter(slope.flatten().clone(), requires_grad=False)
                _replace(graph, node, own, source)


def _add_taps(graph: fx.GraphModule, size: tuple[int, int]) -> None:
    """Make the module return (output, maps): for each stride, the last of the narrowest activations of that size.

    The narrowest are the trunk; the wide ones between are a block's inner expansion.
    """
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
        alike = [node for node in graph.graph.nodes if len(shapes[node]) == 4 and shapes[node][2:] == side]
        nodes = [node for node in alike if not _overwritten(graph, node)]
        if nodes:
            narrowest = min(shapes[node][1] for node in nodes)
            taps.append([node for node in nodes if shapes[node][1] == narrowest][-1])
    output.args = ((embedding, taps),)


def _overwritten(graph: fx.GraphModule, node: fx.Node) -> bool:
    """Whether an activation works in place on this node's output."""
    return any(getattr(_module(graph, user), "inplace", False) for user in node.users)


class _ClampInPlace(nn.Module):
    """ReLU6 and its like in place: torch's own keeps a copy of its input for the gradient, this keeps the output.

    Halves the memory of a MobileFaceNet and saves an eighth of its forward pass.
    """

    inplace = True

    def __init__(self, low: float, high: float) -> None:
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling():
            return x.clamp(self.low, self.high)
        return _Clamp.apply(x, self.low, self.high)


class _Clamp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:
        x.clamp_(low, high)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.bounds = (low, high)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (y,) = ctx.saved_tensors
        low, high = ctx.bounds
        return torch.ops.aten.hardtanh_backward(gradient, y, low, high), None, None
