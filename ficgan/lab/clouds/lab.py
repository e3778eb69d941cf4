"""One study's clouds, eyes and store: whatever is computed of a cloud is computed here, once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError
from ficgan.lab.clouds.config import CloudStudyConfig
from ficgan.lab.clouds.inverses import INVERSES, degrees_of, inverse_key, inverses, taken_back
from ficgan.lab.clouds.reading import Eyes, Image, Record, Template
from ficgan.lab.clouds.sets import CloudSet, open_clouds
from ficgan.lab.clouds.sweep import alone, drawn_as, sweep
from ficgan.lab.stored import Store
from ficgan.pointcloud.cloud import Cloud, merged

__all__ = ["Lab", "Parts", "open_lab"]

_STEPS = 2
"""Raised where code that makes what is stored changes its results."""
_KEPT = 4
"""Prepared clouds that are remembered."""


@dataclass(frozen=True)
class Parts:
    """A prepared face.

    Args:
        inner: what is anonymised, in the canonical frame.
        outer: what is not; may be empty.
    """

    inner: Cloud
    outer: Cloud

    @property
    def whole(self) -> Cloud:
        """Both."""
        return merged(self.inner, self.outer)


@dataclass(eq=False)
class Lab:
    """What a study works with; every lab is itself alone, so that things may be remembered by it.

    Args:
        config: of the study.
        clouds: whose.
        eyes: who looks.
        store: where records are kept.
    """

    config: CloudStudyConfig
    clouds: CloudSet
    eyes: Eyes
    store: Store
    _prepared: dict[int, Parts] = field(default_factory=dict, repr=False)
    _enrolled: dict[int, Cloud] = field(default_factory=dict, repr=False)

    # -- clouds -----------------------------------------------------------------------------------------------------

    def prepared(self, row: int) -> Parts:
        """A scan in the canonical frame, thinned, without outliers, in two parts, with colours.

        Raises:
            InputError: a scan that cannot be used; the message begins with its name.
        """
        if row not in self._prepared:
            while len(self._prepared) >= _KEPT:  # the oldest goes, but never the target's
                del self._prepared[next(key for key in self._prepared if key != self.clouds.target)]
            try:
                self._prepared[row] = self._prepare(row)
            except InputError as error:
                raise InputError(f"{self.clouds.scans[row].name}: {error}") from None
        return self._prepared[row]

    def _prepare(self, row: int) -> Parts:
        from ficgan.pointcloud.frame import Placed
        from ficgan.pointcloud.projection import shaded
        from ficgan.pointcloud.scan import prepare, prepare_placed

        cloud, landmarks = self.clouds.load(row)
        there = self.config.prepared
        made = prepare_placed(Placed(cloud, np.eye(4), "given")) if there else prepare(cloud, landmarks)
        inner, outer = made.inner, made.outer
        if self.config.shade == "before" and (inner.colors is None or (len(outer) and outer.colors is None)):
            whole = shaded(merged(inner, outer))
            inner, outer = whole.take(np.arange(len(inner))), whole.take(np.arange(len(inner), len(whole)))
        return Parts(inner, outer)

    def enrolled(self, rows: Sequence[int]) -> list[Cloud]:
        """Inner parts of the gallery's scans, which are remembered: every probe is compared with all of them."""
        for row in rows:
            if row not in self._enrolled:
                self._enrolled[row] = self.prepared(row).inner
        return [self._enrolled[row] for row in rows]

    @property
    def parrots(self) -> tuple[int, ...]:
        """Rows of the gallery that are also enrolled anonymised."""
        return self.clouds.gallery if self.config.parrot else ()

    @property
    def target(self) -> Cloud | None:
        """The inner part of the face that merge-2-faces mixes in."""
        return None if self.clouds.target is None else self.prepared(self.clouds.target).inner

    def swept(self, row: int, method: str, degrees: Iterable[int]) -> Iterable[tuple[int, Cloud | None]]:
        """The inner part of a scan under one method at several degrees."""
        inner, name = self.prepared(row).inner, self.clouds.scans[row].name
        target = self.target if method == "merge-2-faces" else None
        return sweep(method, sorted(degrees), inner, seed=self.config.seed, target=target, name=name)

    def picture(self, row: int, inner: Cloud | None = None, **drawn: Any) -> Image:
        """The projection of a scan: clear, or with another inner part.

        Args:
            inner: anonymised; None: the scan's own.
            drawn: settings of the projection.
        """
        from ficgan.pointcloud.projection import project

        parts = self.prepared(row)
        return project(parts.whole if inner is None else merged(inner, parts.outer), **drawn)

    def picture_of(self, row: int, inner: Cloud | None, method: str, degree: int) -> Image:
        """With the outer part alone, or nothing, where nothing could be made."""
        outer = self.prepared(row).outer
        if inner is not None:
            return self.picture(row, inner, **drawn_as(method, degree))
        if len(outer):
            return self.picture(row, outer.take(np.zeros(0, np.intp)))
        return np.full_like(self.picture(row), 255)

    # -- records ----------------------------------------------------------------------------------------------------

    def clear(self, row: int, template: Template | None = None) -> Record:
        """What is read in a scan's clear projection: a record [1].

        Args:
            template: for a scan in which no face is found.
        """
        key = [*self.base_key(row), "clear", None if template is None else template.key()]
        return self.store.array(key, lambda: self.eyes.read([self.picture(row)], template=template))

    def photo(self, index: int) -> Record:
        """What is read in a gallery photo: a record [1]; of the whole image where no face is found."""
        from ficgan.faces import get_detector
        from ficgan.images import read_image

        photo = self.clouds.photos[index]

        def read() -> Record:
            image = read_image(photo.path).rgb
            faces = get_detector(self.config.detector).detect(image)
            record: Record = np.zeros(1, self.eyes.dtype)
            record["made"], record["found"] = True, bool(faces)
            marks = faces[0].landmarks if faces else self.eyes.where_lost(image, None)
            for reader in self.eyes.readers:
                record[f"by {reader.name}"] = reader.recognizer.embed(image, marks[None])
            return record

        return self.store.array([_STEPS, "photo", photo.digest, *self.eyes.key()], read)

    def surroundings(self, row: int, template: Template | None) -> Record:
        """What is read where the face is left out, and hair, neck and ears alone are drawn: a record [1]."""

        key = [*self.base_key(row), "surroundings", None if template is None else template.key()]
        made = np.ones(1, bool)
        return self.store.array(key, lambda: self._read(row, [self.picture_of(row, None, "", 0)], template, made))

    def anonymised(self, row: int, method: str, template: Template | None, degrees: Sequence[int] = ()) -> Record:
        """What is read in a scan's projections under a method: a record [degrees], by default all of the study's."""
        degrees = sorted(degrees or self.config.degrees)

        def read() -> Record:
            made = list(self.swept(row, method, degrees))
            images = [self.picture_of(row, cloud, method, degree) for degree, cloud in made]
            return self._read(row, images, template, np.array([cloud is not None for _, cloud in made]))

        return self.store.array(self._of(row, method, degrees, template), read)

    def inverted(self, row: int, attacker: str, template: Template | None) -> Record:
        """The same after the method's inverse, by one of the attackers of `inverses`, at the degrees it tries."""
        degrees, method = degrees_of(self.config, attacker), inverses(self.config)[attacker]

        def read() -> Record:
            back = self.recovered(row, attacker, degrees)
            images = [self.picture_of(row, cloud, method, d) for d, cloud in zip(degrees, back, strict=True)]
            return self._read(row, images, template, np.array([cloud is not None for cloud in back]))

        key = [*self._of(row, method, degrees, template), *inverse_key(self, row, attacker)]
        return self.store.array(key, read)

    def recovered(self, row: int, attacker: str, degrees: Sequence[int]) -> list[Cloud | None]:
        """What an attacker makes of a scan's anonymised clouds; of one that takes long it is kept, to single precision.

        Args:
            degrees: of its method, ascending.
        """
        method = inverses(self.config)[attacker]

        def make() -> list[Cloud | None]:
            made = self.swept(row, method, degrees)
            return [taken_back(self, row, attacker, degree, cloud) for degree, cloud in made]

        if INVERSES[attacker].quick:
            return make()
        key = ["recovered", *self.method_key(row, method, degrees), *inverse_key(self, row, attacker)]
        length = len(self.prepared(row).inner)
        return [_unpacked(one) for one in self.kept(key, lambda: np.stack([_packed(one, length) for one in make()]))]

    def guessed(self, row: int, images: Sequence[Image], template: Template | None) -> Record:
        """What is read in an attacker's guesses at a probe's clear projection; not kept."""
        return self._read(row, images, template, np.ones(len(images), bool))

    def seconds(self, row: int, method: str) -> NDArray[np.float64]:
        """[degrees of the study] time of each anonymisation alone."""
        degrees = sorted(self.config.degrees)

        def measure() -> NDArray[np.float64]:
            inner, target = self.prepared(row).inner, self.target if method == "merge-2-faces" else None
            given: dict[str, Any] = {"seed": self.config.seed, "target": target, "name": self.clouds.scans[row].name}
            alone(method, degrees[0], inner, **given)  # what is imported on first use
            return np.array([alone(method, degree, inner, **given) for degree in degrees])

        return self.store.array([*self._of(row, method, degrees, None), "seconds"], measure)

    def kept(self, key: list[Any], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """Anything else of this study that is kept."""
        return self.store.array([_STEPS, *key], make)

    def _read(self, row: int, images: Sequence[Image], template: Template | None, made: NDArray[np.bool_]) -> Record:
        record = self.eyes.read(images, clear=(self.picture(row), self.clear(row)), template=template)
        record["made"] = made
        return record

    def base_key(self, row: int) -> list[Any]:
        """JSON-ready; what everything that is read of a scan depends on."""
        from ficgan import __version__

        return [
            _STEPS,
            __version__,
            self.clouds.scans[row].digest,
            self.config.shade,
            self.config.prepared,
            *self.eyes.key(),
        ]

    def method_key(self, row: int, method: str, degrees: Sequence[int]) -> list[Any]:
        """JSON-ready; what the anonymised clouds of a scan depend on, and who reads them."""
        target = self.clouds.target
        mixed = self.clouds.scans[target].digest if method == "merge-2-faces" and target is not None else None
        name = self.clouds.scans[row].name
        return [*self.base_key(row), method, list(degrees), self.config.seed, name, mixed]

    def _of(self, row: int, method: str, degrees: Sequence[int], template: Template | None) -> list[Any]:
        return [*self.method_key(row, method, degrees), None if template is None else template.key()]


_PACKED = np.dtype([("made", bool), ("coloured", bool), ("points", np.float32, (3,)), ("colors", np.uint8, (3,))])


def _packed(cloud: Cloud | None, length: int) -> NDArray[np.void]:
    """A cloud of that length as an array, or none."""
    out: NDArray[np.void] = np.zeros(length, _PACKED)
    if cloud is not None:
        out["made"], out["points"] = True, cloud.points
        if cloud.colors is not None:
            out["coloured"], out["colors"] = True, cloud.colors
    return out


def _unpacked(packed: NDArray[np.void]) -> Cloud | None:
    if not packed["made"][0]:
        return None
    return Cloud(packed["points"].astype(np.float64), packed["colors"].copy() if packed["coloured"][0] else None)


@lru_cache(maxsize=1)
def open_lab(config: CloudStudyConfig, out: Path) -> Lab:
    """The lab of a study in this process.

    Args:
        config: of the study.
        out: its folder.
    """
    return Lab(config, open_clouds(config, out), Eyes.open(config), Store(out / "store"))
