"""What a run shows: running means of the losses, the three places they go to, and sheets of pictures."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ficgan.errors import Progress, unheard
from ficgan.files import atomic_write


class Means:
    """Sums of named scalars, kept on their device until they are read."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: dict[str, int] = {}

    def add(self, terms: dict[str, Tensor]) -> None:
        for name, value in terms.items():
            self._sums[name] = self._sums[name] + value if name in self._sums else value.clone()
            self._counts[name] = self._counts.get(name, 0) + 1

    def finite(self) -> bool:
        return not self._sums or bool(torch.stack([s.float() for s in self._sums.values()]).isfinite().all())

    def take(self, average: Callable[[Tensor], Tensor]) -> dict[str, float]:
        names = sorted(self._sums)
        if not names:
            return {}
        values = average(torch.stack([self._sums[n].float() / self._counts[n] for n in names]))
        self._sums, self._counts = {}, {}
        return dict(zip(names, (float(v) for v in values), strict=True))


def reading_lines(progress: str, every: float = 30.0) -> Progress:
    """A line on stderr when a stage begins, every so many seconds, and when it ends; none if `progress` is none."""
    if progress == "none":
        return unheard
    from tqdm import tqdm

    last, at = "", 0.0

    def line(done: int, total: int | None, stage: str) -> None:
        nonlocal last, at
        now = time.monotonic()
        if stage != last or done == total or now - at >= every:
            tqdm.write(f"{stage}: {done} of {total}", file=sys.stderr)
            last, at = stage, now

    return line


class Reporter:
    """Writes the numbers of every tick: a bar or lines, `stats.jsonl`, and tensorboard events."""

    def __init__(self, out: Path, total: int, done: int, progress: str = "auto") -> None:
        from torch.utils.tensorboard import SummaryWriter
        from tqdm import tqdm

        self.total = total
        _forget_after(out / "stats.jsonl", done / 1000)
        self._file = open(out / "stats.jsonl", "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
        self._board = SummaryWriter(str(out / "tensorboard"), purge_step=done)
        bar = progress == "auto" and sys.stderr.isatty()
        self._bar = tqdm(total=total, initial=done, unit="img", disable=not bar, dynamic_ncols=True, file=sys.stderr)
        self._lines = progress != "none"

    def advance(self, images: int) -> None:
        self._bar.update(images)

    def tick(self, images: int, seconds_per_kimg: float, numbers: dict[str, float], elapsed: float) -> None:
        memory = peak_memory_mib()
        left = (self.total - images) / 1000 * seconds_per_kimg
        record: dict[str, Any] = {
            "kimg": images / 1000,
            "sec_per_kimg": seconds_per_kimg,
            "seconds": elapsed,
            "memory_mib": memory,
            "time": time.time(),
            **numbers,
        }
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        for name, value in record.items():
            if name != "time":
                self._board.add_scalar(name, value, images)
        self._board.flush()
        if self._lines:
            shown = "  ".join(f"{name} {value:.3f}" for name, value in numbers.items() if name != "total")
            self._bar.write(
                f"kimg {images / 1000:<9.2f} sec/kimg {seconds_per_kimg:<8.2f} mem {memory:.0f} MiB  "
                f"left {duration(left)}  {shown}",
                file=sys.stderr,
            )

    def say(self, text: str) -> None:
        if self._lines:
            self._bar.write(text, file=sys.stderr)

    def close(self) -> None:
        self._bar.close()
        self._board.close()
        self._file.close()


def _forget_after(path: Path, kimg: float) -> None:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if line.endswith("}") and json.loads(line)["kimg"] <= kimg]
    if len(kept) < len(lines):
        with atomic_write(path, overwrite=True) as file:
            file.write("".join(line + "\n" for line in kept).encode())


def peak_memory_mib() -> float:
    """Peak memory of the GPU where there is one, else of the process."""
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        return torch.cuda.max_memory_allocated() / 2**20
    import resource

    scale = 2**20 if sys.platform == "darwin" else 2**10  # ru_maxrss is in bytes there, in KiB elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / scale


def duration(seconds: float) -> str:
    """Seconds as 1d 02h, 3h 04m, 5m 06s."""
    total = max(0, int(seconds))
    days, hours, minutes, rest = total // 86400, total // 3600 % 24, total // 60 % 60, total % 60
    if days:
        return f"{days}d {hours:02d}h"
    return f"{hours}h {minutes:02d}m" if hours else f"{minutes}m {rest:02d}s"


def save_grid(images: Tensor, path: Path) -> None:
    """Write images [rows,columns,3,R,R] in [−1, 1] as one PNG, whole or not at all."""
    from PIL import Image

    rows, columns, _, height, width = images.shape
    pixels = ((images.float().clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8).cpu()
    sheet = pixels.permute(0, 3, 1, 4, 2).reshape(rows * height, columns * width, 3)
    with atomic_write(path, overwrite=True) as file:
        Image.fromarray(sheet.numpy()).save(file, format="PNG")
