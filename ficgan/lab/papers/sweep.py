"""Source and output of the same photo, face by face: what the judges say of each setting, kept as it is found."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images
from ficgan.arrays import content_key
from ficgan.images import atomic_write
from ficgan.lab.metrics.intervals import Bootstrap, percentiles, proportion, ratios
from ficgan.lab.metrics.utility import Judges, Readings, compare, kept
from ficgan.lab.readers import Embeddings, Reader
from ficgan.lab.results import Figure
from ficgan.lab.stored import VERSION, digest

__all__ = ["Found", "Kept", "Stage", "anonymised", "mean_figure"]

CHUNK = 256
"""Faces that are anonymised together; with alpha = 1 they are each other's targets."""
_SHOWN = frozenset({
    "attributes", "attributes-balanced", "attributes-accuracy", "fid", "fd-squeezenet", "lpips", "lpips-squeezenet",
    "ssim",
})  # fmt: skip


@dataclass(frozen=True)
class Kept:
    """How an attribute fared.

    Args:
        there: share of the images with it, as read in the source, in which it is still read; None where there is none.
        lacking: share of those without it in which it is still not read.
        images: how many have it.
    """

    there: float | None
    lacking: float | None
    images: int


@dataclass(frozen=True)
class Found:
    """What was measured of one setting.

    Args:
        judges: name of a recogniser → its figures "ID cosine" and "match rate" of source and output.
        figures: utility figures and "mse".
        attributes: name → how it fared.
    """

    judges: dict[str, tuple[Figure, ...]]
    figures: tuple[Figure, ...]
    attributes: dict[str, Kept] = field(default_factory=dict)

    def figure(self, metric: str) -> Figure | None:
        """Of that metric, where it has a value."""
        return next((one for one in self.figures if one.metric == metric and one.value is not None), None)

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Found:
        """From JSON, as `dataclasses.asdict` gives it."""
        return cls(
            {name: tuple(Figure(**one) for one in some) for name, some in raw["judges"].items()},
            tuple(Figure(**one) for one in raw["figures"]),
            {name: Kept(**one) for name, one in raw["attributes"].items()},
        )


@dataclass
class Stage:
    """Faces and who looks at them.

    Args:
        faces: N clear crops.
        readers: recognisers that had no part in training.
        judges: of utility.
        folder: where what is found is kept, a file for each setting.
        labels: [N,A], 0 or 1, in the order of the classifier's attributes; None where the set does not have them all.
        context: JSON-ready; what else the outcome depends on, such as the attribute classifier's digest.
        bootstrap: over people where they are known, else over images.
    """

    faces: Faces
    readers: Sequence[Reader]
    judges: Judges
    folder: Path
    labels: NDArray[np.uint8] | None = None
    context: Any = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @cached_property
    def clear(self) -> Readings:
        """What the judges of utility read in the clear faces."""
        return self.judges.read(self.faces)

    @cached_property
    def source(self) -> dict[str, Embeddings]:
        """Embeddings of the clear faces by each recogniser."""
        return {reader.name: reader.embed(self.faces) for reader in self.readers}

    @cached_property
    def digest(self) -> str:
        """Of the pixels, the people, the readers and the context."""
        pixels = [content_key(image) for image in self.faces.images]
        people = None if self.faces.people is None else self.faces.people.tolist()
        told = [reader.digest for reader in self.readers], asdict(self.bootstrap), self.context
        return digest([VERSION, pixels, list(self.faces.names), people, self.judges.missing, told])

    def measure(self, key: Any, make: Callable[[], Images]) -> Found:
        """Figures of one setting; read from its file where it was measured before.

        Args:
            key: JSON-ready; everything the output depends on besides the faces.
            make: gives the output [N,S,S,3] uint8 RGB.
        """
        path = self.folder / f"{digest([self.digest, key])}.json"
        try:
            return Found.read(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            found = self._measured(self.faces.with_images(make()))
        self.folder.mkdir(parents=True, exist_ok=True)
        with atomic_write(path, overwrite=True) as file:
            file.write(json.dumps(asdict(found), allow_nan=False).encode())
        return found

    def _measured(self, output: Faces) -> Found:
        seen = self.judges.read(output, against=self.clear)
        figures = compare(self.clear, seen, labels=self.labels, bootstrap=self.bootstrap)
        error = np.array([_square(a, b) for a, b in zip(self.faces.images, output.images, strict=True)])
        attributes = {}
        if seen.attributes is not None and self.clear.attributes is not None:
            having = (self.clear.attributes >= 0.5).sum(0)
            shares = kept(self.clear.attributes, seen.attributes, seen.attribute_names)
            attributes = {
                name: Kept(there, lacking, int(images))
                for (name, (there, lacking, _)), images in zip(shares.items(), having, strict=True)
            }
        return Found(
            {reader.name: self._read(reader, output) for reader in self.readers},
            (
                *(one for one in figures if one.metric in _SHOWN),
                mean_figure("mse", error, self.faces.people, self.bootstrap, note="of pixels on [−1, 1]"),
            ),
            attributes,
        )

    def _read(self, reader: Reader, output: Faces) -> tuple[Figure, ...]:
        a, b = (values.astype(np.float64) for values in (self.source[reader.name], reader.embed(output)))
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosine = (a * b).sum(1) / lengths.clip(1e-12)
        similarity = cosine if reader.metric == "cosine" else -np.linalg.norm(a - b, axis=1)
        note = "" if reader.metric == "cosine" else "cosine of embeddings that are compared by distance"
        people, bootstrap = self.faces.people, self.bootstrap
        return (
            mean_figure("ID cosine", cosine, people, bootstrap, note=note),
            mean_figure("match rate", similarity > reader.threshold, people, bootstrap),
        )


def anonymised(anonymizer: Anonymizer, faces: Faces) -> Images:
    """All faces in chunks, so that memory is bounded by the output."""
    out = np.empty_like(faces.images)
    for rows in np.array_split(np.arange(len(faces)), max(1, -(-len(faces) // CHUNK))):
        out[rows] = anonymizer(faces.take(rows))
    return out


def mean_figure(
    metric: str,
    values: NDArray[Any],
    people: NDArray[np.int64] | None,
    bootstrap: Bootstrap,
    *,
    note: str = "",
) -> Figure:
    """The mean over images with its interval over people.

    Args:
        metric: name.
        values: [N]; bool for a share.
        people: [N]; None, or unknown ones (−1): every image counts as a person.
        bootstrap: draws people.
        note: to be read with it.
    """
    who = np.arange(len(values)) if people is None or (people < 0).any() else people
    known, cluster = np.unique(who, return_inverse=True)
    sums = np.bincount(cluster, values.astype(np.float64), len(known)).astype(np.float64)
    counts = np.bincount(cluster, minlength=len(known)).astype(np.float64)
    drawn = bootstrap.weights(len(known))
    if values.dtype == bool:
        low, high = proportion(drawn, sums, counts)
    else:
        low, high = percentiles(ratios(drawn, sums, counts))
    return Figure(metric, float(np.mean(values, dtype=np.float64)), low, high, len(values), "images", note)


def _square(a: Images, b: Images) -> float:
    return float(((a.astype(np.float32) - b) ** 2).mean(dtype=np.float64)) / 127.5**2
