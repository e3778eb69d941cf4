"""Curves and a table of training runs, from what each run wrote into its folder.

    python tools/training_report.py curves RUN ... -o curves.png
    python tools/training_report.py table RUN ...

`curves` draws losses (stats.jsonl) and figures of held-out faces (snapshots.jsonl) over the images that the weights
have seen, those of an earlier run included from whose state a run began. `table` prints the last snapshot of each run
as Markdown, beside what its configuration changes from the first run's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ficgan.cli._console import handle_errors
from ficgan.errors import InputError
from ficgan.files import atomic_write

# Terms of stats.jsonl that are drawn, and figures of snapshots.jsonl, with what the picture calls them.
LOSSES = (
    ("rec", "reconstruction, L1"),
    ("neg", "V against the source"),
    ("pos", "V against the target"),
    ("keep", "expression and attributes"),
    ("shape", "shape moved, squared"),
    ("anchor", "away from the linear model"),
    ("d_0", "D right, V's map at 28²"),
    ("d_1", "D right, V's map at 14²"),
)
FIGURES = (
    ("match", "mixes taken for their source"),
    ("distance", "distance of mixes to it"),
    ("swap_match", "swaps taken for their target"),
    ("swap_source", "swaps taken for their source"),
    ("keep", "expression and attributes"),
    ("mse", "reconstruction, MSE"),
    ("distance_rec", "distance of reconstructions"),
    ("sharpness", "sharpness, of the source's"),
)
# Ticks of a moving median.
SMOOTH = 5


@dataclass(frozen=True)
class Run:
    """What a run has written."""

    name: str  # of its folder
    ticks: list[dict[str, float]]  # of stats.jsonl, by images of the run
    snapshots: list[dict[str, float]]  # of snapshots.jsonl, by images that the weights have seen
    config: dict[str, Any]
    offset: float  # thousands of images that the weights had seen before

    @classmethod
    def read(cls, folder: Path) -> Run:
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} is no folder of a training run ({error})") from None
        ticks, snapshots = (_lines(folder / f"{name}.jsonl") for name in ("stats", "snapshots"))
        return cls(folder.resolve().name, ticks, snapshots, config, _offset(folder / "state.safetensors"))


def _lines(path: Path) -> list[dict[str, float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be cut short


def _offset(state: Path) -> float:
    from safetensors import safe_open

    if not state.exists():
        return 0.0
    with safe_open(str(state), framework="numpy") as file:
        counters = json.loads(file.metadata()["header"])["counters"]
    return float(counters["start_images"]) / 1000


def curves(runs: Sequence[Run], out: Path) -> None:
    """Draw losses and figures of a chain of runs."""
    from matplotlib.figure import Figure

    losses = [one for one in LOSSES if any(one[0] in tick for run in runs for tick in run.ticks)]
    figures = [one for one in FIGURES if any(one[0] in shot for run in runs for shot in run.snapshots)]
    columns = 4
    rows_of = [-(-len(part) // columns) for part in (losses, figures)]
    figure = Figure(figsize=(3.3 * columns, 2.3 * sum(rows_of)), layout="constrained")
    axes = figure.subplots(sum(rows_of), columns, sharex=True, squeeze=False)
    for axis in axes.flat:
        axis.set_visible(False)
    for first, names, of in ((0, losses, "ticks"), (rows_of[0], figures, "snapshots")):
        for number, (key, title) in enumerate(names):
            axis = axes[first + number // columns][number % columns]
            axis.set_visible(True)
            axis.set_title(title, fontsize=9)
            axis.tick_params(labelsize=8)
            axis.grid(alpha=0.3)
            for colour, run in enumerate(runs):
                _draw(axis, run, getattr(run, of), key, f"C{colour}", run.offset if of == "ticks" else 0.0)
    for axis in axes[-1]:
        axis.set_xlabel("thousands of images", fontsize=8)
    handles, labels = next(axis for axis in axes.flat if axis.get_visible()).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(runs), 8), fontsize=8, frameon=False)
    with atomic_write(out, overwrite=True) as file:
        figure.savefig(file, format="png", dpi=100)


def _draw(axis: Any, run: Run, records: list[dict[str, float]], key: str, colour: str, offset: float) -> None:
    known = [(one["kimg"] + offset, one[key]) for one in records if key in one]
    x, y = [at for at, _ in known], [value for _, value in known]
    if records is run.ticks:
        axis.plot(x, y, color=colour, alpha=0.25, linewidth=0.8)
        y = [statistics.median(y[max(0, n - SMOOTH // 2) : n + SMOOTH // 2 + 1]) for n in range(len(y))]
    axis.plot(x, y, color=colour, linewidth=1.4, label=run.name, marker="." if records is run.snapshots else "")
    linear = [(one["kimg"], one[f"{key}_linear"]) for one in records if f"{key}_linear" in one]
    axis.plot(*zip(*linear, strict=True) if linear else ([], []), color="0.6", linewidth=1.0, linestyle=":")


def table(runs: Sequence[Run]) -> list[str]:
    """Markdown: the last snapshot of each run, the linear model's figures first."""
    judged = [run for run in runs if run.snapshots]
    if not judged:
        raise InputError("none of these runs has a snapshot yet")
    keys = [one for one in FIGURES if one[0] in judged[0].snapshots[-1]]
    lines = [_row(["run", "change", "kimg", "s/kimg", *(title for _, title in keys)]), "|-" * (len(keys) + 4) + "|"]
    last = judged[0].snapshots[-1]
    lines.append(_row(["linear model", "", "", "", *(f"{last[f'{key}_linear']:.3g}" for key, _ in keys)]))
    for run in judged:
        last = run.snapshots[-1]
        pace = f"{statistics.median(one['sec_per_kimg'] for one in run.ticks):.0f}" if run.ticks else ""
        changed = ", ".join(_changes(runs[0].config, run.config))
        values = (f"{last[key]:.3g}" if key in last else "" for key, _ in keys)
        lines.append(_row([run.name, changed, f"{last['kimg']:.3g}", pace, *values]))
    return lines


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _changes(before: dict[str, Any], after: dict[str, Any], path: str = "") -> list[str]:
    """Settings that differ, as overrides of the command line."""
    out: list[str] = []
    for key, value in after.items():
        was = before.get(key)
        if isinstance(value, dict) and isinstance(was, dict):
            out += _changes(was, value, f"{path}{key}.")
        elif value != was:
            out.append(f"{path}{key}={json.dumps(value).strip(chr(34))}")
    return out


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("curves", "table"):
        command = commands.add_parser(name)
        command.add_argument("runs", nargs="+", type=Path, metavar="RUN")
        if name == "curves":
            command.add_argument("-o", "--out", type=Path, required=True, help="PNG to write")
    options = parser.parse_args(arguments)
    runs = [Run.read(folder) for folder in options.runs]
    if options.command == "curves":
        curves(runs, options.out)
    else:
        print("\n".join(table(runs)))


if __name__ == "__main__":
    handle_errors(main)()
