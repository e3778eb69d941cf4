"""Utility of one anonymiser on one set's probes, by groups of people too, and examples of what it does."""

from __future__ import annotations

import io
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.images import atomic_write
from ficgan.lab.bench import Bench, pixels_of
from ficgan.lab.metrics.intervals import Bootstrap, wilson
from ficgan.lab.metrics.utility import Judges, Readings, compare
from ficgan.lab.results import Figure, Utility
from ficgan.lab.trials import LEAST_GROUP

if TYPE_CHECKING:
    from ficgan.lab.matrix_config import MatrixConfig

__all__ = ["pictures", "usefulness"]


@lru_cache(maxsize=1)
def _judges(attributes: str | None) -> Judges:
    return Judges.find(attributes=None if attributes is None else Path(attributes))


_READ: dict[tuple[str, str | None], Readings] = {}
"""What was read in the clear probes of the set at work: one set at a time."""


def _clear(bench: Bench, attributes: str | None) -> Readings:
    key = (bench.digest, attributes)
    if key not in _READ:
        _READ.clear()
        _READ[key] = _judges(attributes).read(bench.prepared.faces.take(bench.split.probe))
    return _READ[key]


def usefulness(config: MatrixConfig, bench: Bench, anonymizer: Anonymizer | None, label: str) -> Utility:
    """Every utility figure on the probes; None as the anonymiser gives the clear images' own.

    Args:
        config: its attribute classifier, columns, resamples and seed count.
        bench: set and split.
        anonymizer: ready to use.
        label: of the method.
    """
    clear = _clear(bench, config.attributes)
    rows = bench.split.probe
    faces = clear.faces if anonymizer is None else pixels_of(bench, anonymizer, rows)
    seen = _judges(config.attributes).read(faces, against=clear)
    labels = _labels(bench, clear, rows)
    bootstrap = Bootstrap(config.resamples, config.seed)
    figures = compare(clear, seen, region=bench.prepared.region, labels=labels, bootstrap=bootstrap)
    return Utility(bench.name, label, figures, _groups(bench, clear, seen, rows))


def _labels(bench: Bench, clear: Readings, rows: NDArray[np.int64]) -> NDArray[np.uint8] | None:
    """Labels of the set in the order of the classifier's attributes, where it has them all."""
    names = clear.attribute_names
    if not names or any(name not in bench.prepared.attributes for name in names):
        return None
    return np.stack([bench.prepared.attributes[name][rows] for name in names], 1).astype(np.uint8)


def _groups(bench: Bench, clear: Readings, seen: Readings, rows: NDArray[np.int64]) -> dict[str, tuple[Figure, ...]]:
    """Detection, gender and attributes of each group."""
    out: dict[str, tuple[Figure, ...]] = {}
    for column in bench.columns:
        values = bench.prepared.groups.get(column)
        told = np.array([values[row] for row in rows], dtype=object) if values else np.array([], dtype=object)
        for value in sorted({one for one in told if one}):
            mask = told == value
            if len(np.unique(bench.people[rows[mask]])) < LEAST_GROUP:
                continue
            figures = []
            if seen.detections is not None:
                figures.append(_share("detected", seen.detections.found[mask]))
            if seen.males is not None and clear.males is not None:
                figures.append(_share("gender-kept", ((seen.males >= 0.5) == (clear.males >= 0.5))[mask]))
            if seen.attributes is not None and clear.attributes is not None:
                same = ((seen.attributes >= 0.5) == (clear.attributes >= 0.5))[mask]
                figures.append(Figure("attributes", float(same.mean()), n=int(mask.sum()), unit="images"))
            out[f"{column}={value}"] = tuple(figures)
    return out


def _share(metric: str, hits: NDArray[np.bool_]) -> Figure:
    low, high = wilson(int(hits.sum()), len(hits))
    return Figure(metric, float(hits.mean()), low, high, len(hits), "images")


def pictures(bench: Bench, anonymizer: Anonymizer | None, key: str, out: Path, count: int) -> list[str]:
    """The first probes as PNG below `out/pictures`, named by their task's key; the same people for every method.

    Returns:
        Files relative to `out`.
    """
    from PIL import Image

    rows = bench.split.probe
    first = np.array([rows[np.flatnonzero(bench.people[rows] == p)[0]] for p in np.unique(bench.people[rows])[:count]])
    faces: Faces = bench.prepared.faces.take(first) if anonymizer is None else pixels_of(bench, anonymizer, first)
    folder = out / "pictures"
    folder.mkdir(exist_ok=True)
    written = []
    for number, image in enumerate(faces.images):
        name = f"{key[:12]}-{number:02d}.png"
        data: Any = io.BytesIO()
        Image.fromarray(image).save(data, format="PNG")
        with atomic_write(folder / name, overwrite=True) as file:
            file.write(data.getvalue())
        written.append(f"pictures/{name}")
    return written
