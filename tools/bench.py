"""Per-face cost of encode + generate on this machine, beside the cost of its bare convolutions (the floor).

    python tools/bench.py [--checkpoint FILE] [--batch 1 8] [--threads N] [--seconds 5]

The floor runs the same convolutions and matrix products, on tensors of the same shapes and layout, and nothing else.
Model and floor are timed in turn, so that a change of the machine's speed meets both; ratios are what counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.config import load_config
from ficgan.models import FICGAN, load_checkpoint
from ficgan.models.generator import StyleLayer
from ficgan.models.layers import Conv2d, Linear


def floor_of(model: FICGAN, run: Callable[[], Tensor]) -> Callable[[], None]:
    """The bare convolutions and matrix products of one run, recorded with hooks."""
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
    run()
    for hook in hooks:
        hook.remove()

    def bare() -> None:
        for call in calls:
            call()

    return bare


def timed(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, help="model; the embedded one if not given")
    parser.add_argument("--config", help="time this configuration's networks with random weights instead")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="faces at once")
    parser.add_argument("--threads", type=int, help="torch threads; all cores if not given")
    parser.add_argument("--seconds", type=float, default=5.0, help="time for each row")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    if options.config:
        model = FICGAN(load_config(options.config).model).eval()
    else:
        from ficgan import pretrained

        model, _ = load_checkpoint(options.checkpoint or pretrained.path("model"))
    model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    print(f"{model.resolution}², L = {model.num_layers}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    print("| precision | batch | ms/face | floor ms/face | ratio | faces/s |\n|-|-|-|-|-|-|")
    for dtype in (torch.float32, torch.bfloat16):
        cast = model.to(dtype)
        for batch in options.batch:
            x = torch.rand(batch, 3, model.resolution, model.resolution, dtype=dtype) * 2 - 1
            x = x.contiguous(memory_format=torch.channels_last)

            def run(x: Tensor = x, cast: FICGAN = cast) -> Tensor:
                codes = cast.encode(x)
                return cast.generate(cast.map(codes.z_id), codes.z_non)

            with torch.inference_mode():
                bare = floor_of(cast, run)
                pairs = []
                timed(run), timed(bare)
                until = time.perf_counter() + options.seconds
                while time.perf_counter() < until or len(pairs) < 5:
                    pairs.append((timed(run), timed(bare)))
            whole, floor = (statistics.median(column) * 1000 / batch for column in zip(*pairs, strict=True))
            ratio = statistics.median(a / b for a, b in pairs)
            name = str(dtype).removeprefix("torch.")
            print(f"| {name} | {batch} | {whole:.2f} | {floor:.2f} | {ratio:.2f} | {1000 / whole:.0f} |")


if __name__ == "__main__":
    main()
