"""The report of a study of clouds: a page that needs nothing but itself, tables beside it as CSV."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from ficgan.errors import InputError
from ficgan.images import atomic_write
from ficgan.lab.clouds import tables
from ficgan.lab.clouds.figures import METRICS
from ficgan.lab.clouds.plots import draw_all
from ficgan.lab.report.tables import to_csv
from ficgan.lab.results import Results

__all__ = ["write_cloud_report"]


def write_cloud_report(results: Results, out: Path, *, pictures: Path | None = None) -> list[Path]:
    """Write `report.html`, `report.json`, `figures/*.png|svg` and `tables/*.csv`.

    Args:
        results: of `run_cloud_study`.
        out: folder; files of these names are replaced.
        pictures: folder in which the results' pictures lie; None: `out`.

    Returns:
        The files written, the page first.

    Raises:
        InputError: a picture is not where it should be.
    """
    from jinja2 import Environment, StrictUndefined

    out.mkdir(parents=True, exist_ok=True)
    drawn = draw_all(results, out / "figures")
    rows = {
        "points": tables.points(results), "summary": tables.summary(results), "controls": tables.controls(results),
        "attackers": tables.attackers(results), "space": tables.geometry(results),
        "figures": tables.every_figure(results),
    }  # fmt: skip
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = files("ficgan.lab.report").joinpath("clouds.html.j2").read_text(encoding="utf-8")
    text = environment.from_string(source).render(
        results=results, metrics=METRICS, columns=_columns, spelt=_spelt,
        data=[{"set": name, **facts, "digest": facts["digest"][:12]} for name, facts in results.sets.items()],
        points=[{k: value for k, value in row.items() if not k.endswith((" low", " high"))} for row in rows["points"]],
        plots={caption: _inline(path) for caption, path in drawn.items()},
        sheets=_sheets(results, pictures or out), whole=tables.tried_whole(results),
        **{name: rows[name] for name in ("summary", "attackers", "space", "controls")},
    )  # fmt: skip
    written = [_write(out / "report.html", text), _write(out / "report.json", results.to_json())]
    (out / "tables").mkdir(exist_ok=True)
    written += [_write(out / "tables" / f"{name}.csv", to_csv(some)) for name, some in rows.items() if some]
    for path in drawn.values():
        written += [path, path.with_suffix(".svg")]
    return written


def _columns(rows: Sequence[tables.Row]) -> list[str]:
    return list(dict.fromkeys(column for row in rows for column in row))


def _spelt(value: Any) -> str:
    return "–" if value is None else f"{value:.3g}" if isinstance(value, float) else str(value)


def _inline(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode()


def _sheets(results: Results, folder: Path) -> dict[str, list[str]]:
    out: dict[str, list[str]] = {}
    for label, names in results.pictures.items():
        for name in names:
            if not (folder / name).is_file():
                raise InputError(f"the picture {name} of {label} is not beside the results; run the study again")
            out.setdefault(label, []).append(_inline(folder / name))
    return out


def _write(path: Path, text: str) -> Path:
    with atomic_write(path, overwrite=True) as file:
        file.write(text.encode())
    return path
