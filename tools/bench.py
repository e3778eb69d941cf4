"""Per-face cost of encode + generate on this machine, beside the cost of its bare convolutions (the floor).

    python tools/bench.py --checkpoint FILE | --config NAME [--batch 1 8] [--threads N] [--seconds 5] [--compile]

The floor runs the same convolutions and matrix products, on tensors of the same shapes and layout, and nothing else.
Model and floor are timed in turn, so that a change of the machine's speed meets both; ratios are what counts.
"new face" is encode, map, styles and synthesis; "known face" leaves out what a face that keeps its identity over a film
needs only once (map and styles).
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan import ops
from ficgan.config import load_config
from ficgan.device import resolve_device
from ficgan.errors import FicganError
from ficgan.models import FICGAN, InferenceModel, load_checkpoint
from ficgan.models.ficgan import StyleLayer
from ficgan.models.layers import Conv2d, Linear


def floor_of(model: FICGAN, x: Tensor) -> Callable[[], None]:
    """The bare convolutions and matrix products of one reconstruction of x, recorded with hooks."""
    calls: list[Callable[[], Tensor]] = []

    def record(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        x = inputs[0].detach().clone(memory_format=torch.preserve_format)
        weight = module.weight.detach().to(x.dtype)  # type: ignore[operator, union-attr]
        if isinstance(module, Linear):
            calls.append(lambda: F.linear(x, weight))
            return
        if weight.shape[-1] > 1:
            weight = weight.contiguous(memory_format=torch.channels_last)
        if isinstance(module, Conv2d) and module.down:
            x = x[:, :, ::2, ::2].contiguous(memory_format=torch.channels_last)
        padding = weight.shape[-1] // 2
        calls.append(lambda: F.conv2d(x, weight, padding=padding))

    hooks = [
        m.register_forward_pre_hook(record) for m in model.modules() if isinstance(m, Conv2d | Linear | StyleLayer)
    ]
    model(x)
    for hook in hooks:
        hook.remove()

    def bare() -> None:
        for call in calls:
            call()

    return bare


def timed(work: Callable[[], object]) -> float:
    """Seconds of one call, the GPU's work included."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    begin = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def peak(device: str) -> float:
    """Most memory used so far, MiB: of the GPU, or of the whole process."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    timed_one = parser.add_mutually_exclusive_group(required=True)
    timed_one.add_argument("--checkpoint", type=Path, help="a network's, as `ficgan train` writes it")
    timed_one.add_argument("--config", help="time this configuration's networks with random weights instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="faces at once")
    parser.add_argument("--precision", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu", help="cpu, cuda or auto")
    parser.add_argument("--compile", action="store_true", help="compile the networks first")
    parser.add_argument("--threads", type=int, help="torch threads; all cores if not given")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each row")
    options = parser.parse_args()
    ops.keep_freed_memory()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = resolve_device(options.device)
    try:
        config, file = options.config, options.checkpoint
        model = FICGAN(load_config(config).model).eval() if config else load_checkpoint(file)[0]
    except FicganError as error:
        raise SystemExit(str(error)) from None
    where = torch.cuda.get_device_name() if device != "cpu" else f"{torch.get_num_threads()} threads"
    print(f"{model.resolution}², L = {model.num_layers}, {where}, torch {torch.__version__}, ops {ops.backend()}")
    print(
        "| precision | batch | ms/new face | ms/known face | floor ms/face | ratio | ratio known | new faces/s |"
        "\n|-|-|-|-|-|-|-|-|"
    )
    for precision in options.precision:
        dtype = getattr(torch, precision)
        plain = model.to(device=device, dtype=dtype, memory_format=torch.channels_last)  # type: ignore[call-overload]
        fast = InferenceModel(model.float(), device=device, dtype=dtype, compile=options.compile)
        plain = model.to(dtype)
        for batch in options.batch:
            x = torch.rand(batch, 3, model.resolution, model.resolution, dtype=dtype, device=device) * 2 - 1
            x = x.contiguous(memory_format=torch.channels_last)

            with torch.inference_mode():
                bare = floor_of(plain, x)
                styles = fast.styles(fast.map(fast.encode(x).z_id))

                def known(x: Tensor = x, fast: InferenceModel = fast, styles: Tensor = styles) -> Tensor:
                    return fast.synthesise(styles, fast.encode(x).z_non)

                calls = (lambda x=x, fast=fast: fast(x)), known, bare  # type: ignore[misc]
                for call in calls * 3:
                    call()
                rows = []
                until = time.perf_counter() + options.seconds
                while time.perf_counter() < until or len(rows) < 5:
                    rows.append([timed(call) for call in calls])
            new, again, floor = (statistics.median(column) * 1000 / batch for column in zip(*rows, strict=True))
            ratios = [statistics.median(row[n] / row[2] for row in rows) for n in (0, 1)]
            cells = [f"{value:.2f}" for value in (new, again, floor, *ratios)] + [f"{1000 / new:.0f}"]
            print(f"| {precision} | {batch} | {' | '.join(cells)} |", flush=True)
    print(f"peak memory {peak(device):.0f} MiB" + (" (process)" if device == "cpu" else " (GPU)"))


if __name__ == "__main__":
    main()
