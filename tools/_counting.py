"""What a training step is made of: FLOPs and bytes of every operator, and where its time goes.

FLOPs: two for a multiplication and addition of a convolution or matrix product; other operators count none.
Bytes: every tensor an operator reads and every tensor it writes, once each, as executed; views move nothing.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.profiler import record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

CONVOLUTIONS, ELEMENTWISE, COPIES = "convolutions and matrix products", "elementwise and reductions", "copies and casts"
V, RESAMPLING, OPTIMISER, AUGMENTATION = "V", "resampling", "optimiser and average", "augmentation"
V_CONVOLUTIONS = "V, its convolutions and matrix products"
COMPILED = "kernels of torch.compile"
OVERHEAD = "Python, dispatch, autograd engine, waiting"
CLASSES = (
    CONVOLUTIONS,
    V_CONVOLUTIONS,
    V,
    ELEMENTWISE,
    RESAMPLING,
    COPIES,
    OPTIMISER,
    AUGMENTATION,
    COMPILED,
    OVERHEAD,
)

_PRODUCT = re.compile(r"conv(?!ert)|(^|::)(mm|addmm|bmm|baddbmm|addmv|mv|dot|linear|matmul|einsum)$")
_COPY = re.compile(
    r"::(copy_|_to_copy|to|clone|contiguous|cat|stack|fill_|zero_|zeros|zeros_like|ones|ones_like|full|full_like|new_\w+"
    r"|constant_pad_nd|repeat|index|index_select|flip|slice_backward|select_backward|_local_scalar_dense|roll)$"
)
# Nothing is computed or moved: allocation and new names for old memory.
_FREE = re.compile(
    r"::(empty\w*|resize_|view|_unsafe_view|reshape|as_strided|expand|expand_as|t|transpose|permute|unsqueeze|squeeze"
    r"|detach|detach_|alias|slice|select|split|chunk|unbind|unflatten|flatten|view_as|narrow|set_|item|is_nonzero)$"
)
_PREFIX = "bench: "


class Scopes:
    """Names the part of the step that is running, for the counter and as ranges of the profiler."""

    def __init__(self) -> None:
        self._stack: list[tuple[str, record_function]] = []

    @property
    def current(self) -> str | None:
        return self._stack[-1][0] if self._stack else None

    def enter(self, name: str) -> None:
        label = record_function(_PREFIX + name)
        label.__enter__()
        self._stack.append((name, label))

    def leave(self) -> None:
        self._stack.pop()[1].__exit__(None, None, None)

    def around(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`function`, in a scope; of its derivative nothing is known."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.enter(name)
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return wrapped

    def region(self, function: Callable[..., Any], name: str) -> Callable[..., Any]:
        """`function` of one tensor, in a scope forward and backward.

        The derivative enters the scope where it passes the outputs and leaves it at the input: autograd runs the
        youngest nodes first, so nothing older comes in between.
        """

        def wrapped(x: Tensor, *args: Any, **kwargs: Any) -> Any:
            result = self.around(function, name)(_Inner.apply(x, self), *args, **kwargs)
            outputs = tree_leaves(result)
            marked = iter(_Outer.apply(self, name, *outputs))
            if isinstance(result, Tensor):
                return next(marked)
            rest = result[1]
            return next(marked), [next(marked) for _ in rest]

        return wrapped


class _Inner(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scopes: Scopes) -> Tensor:
        ctx.scopes = scopes
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        ctx.scopes.leave()
        return grads[0], None


class _Outer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, scopes: Scopes, name: str, *outputs: Tensor) -> tuple[Tensor, ...]:
        ctx.scopes, ctx.name = scopes, name
        ctx.set_materialize_grads(False)
        return tuple(y.view_as(y) for y in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        ctx.scopes.enter(ctx.name)
        return None, None, *grads


@contextmanager
def scoped(run: Any, scopes: Scopes) -> Iterator[None]:
    """Within, the parts of a training run (`ficgan.training.loop`) and the resampling of the ops are scopes."""
    from ficgan.ops import resample
    from ficgan.training.state import Augment

    # Looked up through the type, so replaced there; the wrapper is no method and gets the image alone.
    augment = scopes.region(lambda x: original(run.state.augment, x), AUGMENTATION)
    original = Augment.__call__
    with ExitStack() as stack:
        if not run.config.compile:  # or everything compiled would be compiled anew, around the patch
            stack.enter_context(mock.patch.object(resample, "compute", scopes.around(resample.compute, RESAMPLING)))
        judged: list[tuple[Any, str, Any]] = []
        if run.config.model.frame:  # V reads several batches in one pass
            network = run.task.verify.network
            judged.append((network, "forward", scopes.region(network.forward, V)))
        elif run.task.verify is not None:
            judged.append((run.task, "verify", scopes.region(run.task.verify, V)))
        for owner, name, value in (
            (Augment, "__call__", lambda self, x: augment(x) if self.active else x),
            *judged,
            (run, "_apply", scopes.around(run._apply, OPTIMISER)),
            (run.state.ema, "update", scopes.around(run.state.ema.update, OPTIMISER)),
        ):
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


def class_of(operator: str, scope: str | None) -> str:
    """The class of an operator, such as "aten::mul", in a scope."""
    if scope == V:
        return V_CONVOLUTIONS if _PRODUCT.search(operator) else V
    if scope is not None:
        return scope
    if operator.startswith("ficgan_ops::upfirdn2d"):
        return RESAMPLING
    if _PRODUCT.search(operator):
        return CONVOLUTIONS
    return COPIES if _COPY.search(operator) else ELEMENTWISE


@dataclass(frozen=True)
class Executed:
    """One operator of a step."""

    operator: str
    kind: str
    dtype: torch.dtype | None
    flops: float
    bytes: float

    @property
    def is_layer(self) -> bool:
        """Whether the roofline holds it: a convolution or matrix product, those of resampling filters left out."""
        return self.flops > 0 and self.kind in (CONVOLUTIONS, V_CONVOLUTIONS)


class Counter(TorchDispatchMode):
    """Within, records every operator that computes or moves something.

    Args:
        scopes: the parts of the step.
    """

    def __init__(self, scopes: Scopes | None = None) -> None:
        super().__init__()
        self.scopes = scopes or Scopes()
        self.executed: list[Executed] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._overloadpacket not in flop_registry and func is not torch.ops.prim.device.default:
            with self:
                whole = func.decompose(*args, **kwargs)
            if whole is not NotImplemented:
                return whole
        out = func(*args, **kwargs)
        moved, tensors = bytes_of(func, args, kwargs, out)
        if moved:
            name = func._schema.name
            dtype = next((t.dtype for t in tensors if t.is_floating_point()), None)
            kind = class_of(name, self.scopes.current)
            self.executed.append(Executed(name, kind, dtype, flops_of(func, args, kwargs, out), moved))
        return out


def flops_of(func: Any, args: Any, kwargs: Any, out: Any) -> float:
    """FLOPs of one call by torch's own registry."""
    aten = torch.ops.aten
    packet = func._overloadpacket
    if packet is aten.convolution_backward:
        # The gradients by input and by weight cost one forward convolution each. (The registry's formula for the one
        # by weight leaves the groups out of account.)
        grad, x, weight, _, _, _, _, transposed, _, _, wanted = args[:11]
        positions = (x if transposed else grad).shape[2:]
        return 2.0 * x.shape[0] * prod(positions) * prod(weight.shape) * (wanted[0] + wanted[1])
    formula = flop_registry.get(packet)
    return float(formula(*args, **kwargs, out_val=out)) if formula else 0.0


def bytes_of(func: Any, args: Any, kwargs: Any, out: Any) -> tuple[float, list[Tensor]]:
    """Bytes that one call must read and write, and the tensors it does that to; none for views and allocations."""
    schema = func._schema
    aliases = [value.alias_info for value in schema.returns]
    if any(alias is not None and not alias.is_write for alias in aliases) or _FREE.search(schema.name):
        return 0.0, []
    read: list[Tensor] = []
    written: list[Tensor] = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
    overwritten = re.search(r"::(copy|fill|zero|normal|uniform|random|bernoulli)_$", schema.name) is not None
    for position, argument in enumerate(schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors = [t for t in tree_leaves(value) if isinstance(t, Tensor)]
        changed = argument.alias_info is not None and argument.alias_info.is_write
        if changed:
            written += tensors
        if not (changed and (overwritten or argument.is_out)):
            read += tensors
    return _bytes(read) + _bytes(written), read + written


def _bytes(tensors: Iterable[Tensor]) -> float:
    """Bytes of the memory of `tensors`: an expanded dimension holds one element, and a tensor named twice is one."""
    distinct = {}
    for t in tensors:
        elements = prod(size for size, stride in zip(t.shape, t.stride(), strict=True) if stride)
        distinct[t.data_ptr(), tuple(t.shape), t.stride()] = float(elements * t.element_size() if t.numel() else 0)
    return sum(distinct.values())


@dataclass(frozen=True)
class Floors:
    """Least seconds of a step on a machine."""

    arithmetic: float
    """All FLOPs of its layers at the arithmetic rate."""
    roofline: float
    """Σ over layers of max(FLOPs/rate, bytes/bandwidth)."""


def floors(executed: Iterable[Executed], rates: Mapping[torch.dtype, float], bandwidth: float) -> Floors:
    """Floors of the recorded step.

    Args:
        executed: of a `Counter`.
        rates: FLOP/s by the layers' dtype.
        bandwidth: bytes/s.
    """
    layers = [e for e in executed if e.is_layer]
    assert all(e.dtype is not None for e in layers)
    seconds = [(e.flops / rates[e.dtype], e.bytes / bandwidth) for e in layers]  # type: ignore[index]
    return Floors(sum(a for a, _ in seconds), sum(max(pair) for pair in seconds))


@dataclass(frozen=True)
class Account:
    """Where the time of a profiled step went."""

    seconds: dict[str, float]
    """By class; their sum is the step's wall time."""
    operators: dict[tuple[str, str], float]
    """By (class, operator), without the overhead."""


def account(step: Callable[[], object], device: torch.device, calls: int = 3) -> Account:
    """Profile `step` (within `scoped`) and sort the operators' own times into classes; of several calls the quickest.

    On the CPU an operator's own time is that of its kernel; on a GPU it is that of the kernels it launched, and what is
    left of the step is time in which the GPU had nothing to do.
    """
    return min((_profile(step, device) for _ in range(calls)), key=lambda each: sum(each.seconds.values()))


def _profile(step: Callable[[], object], device: torch.device) -> Account:
    activities = [torch.profiler.ProfilerActivity.CPU]
    cuda = device.type == "cuda"
    if cuda:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
        torch.cuda.synchronize(device)
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        begin = time.perf_counter()
        step()
        if cuda:
            torch.cuda.synchronize(device)
        wall = time.perf_counter() - begin
    return sort(list(profiler.events() or []), wall, cuda)


def sort(events: list[Any], wall: float, cuda: bool) -> Account:
    """The profiler's events as an account of `wall` seconds."""
    on_host = [e for e in events if e.device_type == torch.autograd.DeviceType.CPU]
    ranges: dict[int, list[tuple[float, float, str]]] = defaultdict(list)
    for event in on_host:
        if event.name.startswith(_PREFIX):
            span = (event.time_range.start, event.time_range.end, event.name.removeprefix(_PREFIX))
            ranges[event.thread].append(span)
    operators: dict[tuple[str, str], float] = defaultdict(float)
    for event in on_host:
        if event.is_user_annotation or event.name.startswith(_PREFIX):
            continue
        own = (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e6
        # On the CPU the engine's own time, and that of operators that only allocate or rename, is overhead.
        idle = not cuda and ("autograd::" in event.name or _FREE.search(event.name))
        if own <= 0 or "::" not in event.name or idle:
            continue
        inside = [span for span in ranges[event.thread] if span[0] <= event.time_range.start < span[1]]
        scope = max(inside)[2] if inside else None  # the innermost began last
        operators[class_of(event.name, scope), event.name] += own
    seconds: dict[str, float] = defaultdict(float)
    for (kind, _), own in operators.items():
        seconds[kind] += own
    if cuda:
        kernels = [e for e in events if e.device_type == torch.autograd.DeviceType.CUDA and not e.is_user_annotation]
        busy = sum(e.time_range.elapsed_us() for e in kernels if not e.name.startswith(_PREFIX)) / 1e6
        # Kernels that no operator launched are those torch.compile wrote.
        seconds[COMPILED] = max(busy - sum(seconds.values()), 0.0)
    seconds[OVERHEAD] = max(wall - sum(seconds.values()), 0.0)
    return Account(dict(seconds), dict(operators))
