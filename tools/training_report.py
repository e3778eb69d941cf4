"""Curves and a table of training runs, from what each run wrote into its folder.

    python tools/training_report.py curves RUN ... -o curves.png
    python tools/training_report.py table RUN ...

`curves` draws losses (stats.jsonl) and figures of held-out faces (snapshots.jsonl). `table` prints the last
snapshot of each run as Markdown, beside what its configuration changes from the first run's.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ficgan.cli.main import handle_errors
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
    """What a run has written: its configuration, and the records of stats.jsonl and snapshots.jsonl."""

    name: str
    config: dict[str, Any]
    ticks: list[dict[str, float]]
    snapshots: list[dict[str, float]]

    @classmethod
    def read(cls, folder: Path) -> Run:
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} is no folder of a training run ({error})") from None
        ticks, snapshots = (_lines(folder / f"{name}.jsonl") for name in ("stats", "snapshots"))
        return cls(folder.resolve().name, config, ticks, snapshots)


def _lines(path: Path) -> list[dict[str, float]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("}")]  # the last one may be cut short


def curves(runs: Sequence[Run], out: Path) -> None:
    """Draw the losses of ticks and the figures of snapshots, each run in its colour, the linear model dotted."""
    from matplotlib.figure import Figure

    panels = [
        (title, key, records)
        for names, records in ((LOSSES, [run.ticks for run in runs]), (FIGURES, [run.snapshots for run in runs]))
        for key, title in names
        if any(key in record for some in records for record in some)
    ]
    rows, columns = -(-len(panels) // 4), 4
    figure = Figure(figsize=(3.3 * columns, 2.3 * rows), layout="constrained")
    every = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axis, (title, key, records) in zip(every, panels, strict=False):
        axis.set_title(title, fontsize=9)
        axis.set_xlabel("thousands of images", fontsize=8)
        axis.grid(alpha=0.3)
        for number, (run, some) in enumerate(zip(runs, records, strict=True)):
            for name, colour, style in ((key, f"C{number}", "-"), (f"{key}_linear", "0.6", ":")):
                known = [record for record in some if name in record]
                y = [record[name] for record in known]
                smooth = [statistics.median(y[max(0, n - SMOOTH // 2) : n + SMOOTH // 2 + 1]) for n in range(len(y))]
                x = [record["kimg"] for record in known]
                axis.plot(x, smooth if some is run.ticks else y, style, color=colour, label=run.name)
    for axis in every[len(panels) :]:
        axis.set_visible(False)
    every[0].legend(fontsize=6)
    with atomic_write(out, overwrite=True) as file:
        figure.savefig(file, format="png", dpi=100)


def table(runs: Sequence[Run]) -> list[str]:
    """Markdown: the last snapshot of each run, the linear model's figures first."""
    judged = [run for run in runs if run.snapshots]
    if not judged:
        raise InputError("none of these runs has a snapshot yet")
    keys = [figure for figure in FIGURES if figure[0] in judged[0].snapshots[-1]]
    lines = [_row(["run", "change", "kimg", "s/kimg", *(title for _, title in keys)]), "|-" * (len(keys) + 4) + "|"]
    last = judged[0].snapshots[-1]
    lines.append(_row(["linear model", "", "", "", *(f"{last[f'{key}_linear']:.3g}" for key, _ in keys)]))
    for run in judged:
        last = run.snapshots[-1]
        pace = f"{statistics.median(tick['sec_per_kimg'] for tick in run.ticks):.0f}" if run.ticks else ""
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
