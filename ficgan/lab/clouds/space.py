"""What is measured on the clouds themselves: distortion, and recognisers of shape that know another scan of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, InputError
from ficgan.lab.clouds.config import CloudStudyConfig, GeometryConfig
from ficgan.lab.clouds.figures import trial
from ficgan.lab.clouds.inverses import INVERSES, inverse_key, inverses
from ficgan.lab.clouds.lab import Lab, open_lab
from ficgan.lab.clouds.labels import CLEAR, IN_SPACE, label, parrot_of
from ficgan.lab.clouds.sampling import Sample
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure, Results, Trial, Utility
from ficgan.lab.stored import Say
from ficgan.pointcloud.cloud import Cloud

__all__ = ["add_space", "compare_one", "compared_in", "looked_for"]

Record = NDArray[np.void]
"""[N] of the fields `made`, `chamfer`, `normal-error`, `curvature-error`; `seen NAME`, `by NAME` of recognisers."""
_DISTORTION = ("chamfer", "normal-error", "curvature-error")


def looked_for(lab: Lab) -> tuple[int, ...]:
    """Rows of the probes whose clouds are compared: of the first so many people as the configuration says."""
    people = _people(lab)
    return tuple(row for row in lab.clouds.probes if lab.clouds.scans[row].person in people)


def compared_in(lab: Lab) -> tuple[int, ...]:
    """Rows of all clouds that `compare_one` has to look at: those probes, and, where parrots enrol it, the gallery."""
    return looked_for(lab) + (tuple(_gallery(lab)) if lab.parrots else ())


def compare_one(config: CloudStudyConfig, out: Path, row: int, say: Say) -> str:
    """Task: one probe, or one scan of the gallery, under every method."""
    lab = open_lab(config, out)
    say(f"{lab.clouds.scans[row].name} in space")
    try:
        _clear(lab, row)
        for method in config.methods:
            _anonymised(lab, row, method)
        for attacker, method in inverses(config).items():
            if INVERSES[attacker].alike or row in lab.clouds.probes:
                _anonymised(lab, row, method, attacker)
    except FicganError as error:
        return str(error)
    return ""


def add_space(lab: Lab, rows: Sequence[int], results: Results, bootstrap: Bootstrap) -> None:
    """Add trials of the recognisers of shape, and distortion, to a study's results.

    Args:
        lab: of the study.
        rows: of the probes, of `looked_for`; they have been compared.
        results: with its utilities, to which distortion is added.
        bootstrap: over people.
    """
    clouds, config = lab.clouds, lab.config
    who = clouds.numbers([clouds.scans[row] for row in rows])
    bench = _Bench(lab, who, bootstrap, results)
    if bench.gallery is not None:
        results.trials += bench.trials(
            np.concatenate([_clear(lab, row) for row in rows]), CLEAR, "clear", "", "ceiling"
        )
    left = {use.method: place for place, use in enumerate(results.utilities)}
    for method in config.methods:
        made = np.stack([_anonymised(lab, row, method) for row in rows])
        inverted = {
            attacker: np.stack([_anonymised(lab, row, method, attacker) for row in rows])
            for attacker, whose in inverses(config).items() if whose == method
        }  # fmt: skip
        enrolled = bench.parrot(method, [name for name in inverted if INVERSES[name].alike])
        for place, degree in enumerate(config.costly_degrees):
            name = label(method, degree)
            record = made[:, place]
            if bench.gallery is not None:
                results.trials += bench.trials(record, name, "naive", "")
                for attacker, back in inverted.items():
                    results.trials += bench.trials(back[:, place], name, "inverse", attacker)
                for attacker, others in enrolled.items():
                    seen = inverted[attacker][:, place] if attacker else record
                    results.trials += bench.parroted(seen, others[:, place], name, attacker)
            use = results.utilities[left[name]]
            results.utilities[left[name]] = Utility(
                use.set, use.method, use.figures + _distortion(record, Sample(who, bootstrap)), use.groups
            )


class _Bench:
    """The gallery of clouds, and its people."""

    def __init__(self, lab: Lab, who: NDArray[np.int64], bootstrap: Bootstrap, results: Results) -> None:
        self.lab, self.who, self.bootstrap = lab, who, bootstrap
        rows = _gallery(lab)
        self.gallery = None if len(rows) < 2 else np.concatenate([_clear(lab, row) for row in rows])
        self.enrolled = lab.clouds.numbers([lab.clouds.scans[row] for row in rows])
        self.name = lab.clouds.name
        if len(rows) < len(lab.clouds.gallery):
            # Fewer enrolled people are easier to tell apart: figures must not stand beside those of all.
            self.name = f"{lab.clouds.name}, {len(rows)} of them in space"
            facts = {**lab.clouds.facts(), "people": len(rows), "gallery": len(rows), "probes": len(who)}
            results.sets[self.name] = {**facts, "probe_people": len(np.unique(who))}

    def trials(self, record: Record, method: str, scenario: str, attacker: str, control: str = "") -> list[Trial]:
        """Of every recogniser of shape."""
        out = []
        for name in _settings(self.lab).recognisers:
            where = {"set": self.name, "method": method, "scenario": scenario, "recogniser": name + IN_SPACE}
            scores = Scores.from_matrix(
                self._matrix(name, record), self.who, self.enrolled, metric="euclidean", acquired=record[f"seen {name}"]
            )
            one = trial(scores, None, self.bootstrap, where={**where, "attacker": attacker}, control=control)
            out.append(one)
        return out

    def parrot(self, method: str, alike: Sequence[str]) -> dict[str, Record]:
        """Attacker → [G,degrees] of the gallery under a method, and after the inverses that probes are read after."""
        if self.gallery is None or not self.lab.parrots:
            return {}
        rows = _gallery(self.lab)
        return {name: np.stack([_anonymised(self.lab, row, method, name) for row in rows]) for name in ("", *alike)}

    def parroted(self, record: Record, enrolled: Record, method: str, attacker: str) -> list[Trial]:
        """Of every recogniser of shape that has something to tell the gallery's people apart by."""
        out = []
        for name in _settings(self.lab).recognisers:
            if name == "icp" or enrolled[f"seen {name}"].sum() < 2:
                continue
            where = {"set": self.name, "method": method, "recogniser": name + IN_SPACE, **parrot_of(attacker)}
            scores = Scores.from_matrix(
                _compared(name, record, enrolled), self.who, self.enrolled, metric="euclidean",
                acquired=record[f"seen {name}"],
            )  # fmt: skip
            out.append(trial(scores, None, self.bootstrap, where=where))
        return out

    def _matrix(self, name: str, record: Record) -> NDArray[np.float32]:
        """[P,G] scores."""
        if name == "icp":
            found: NDArray[np.float32] = record[f"by {name}"].astype(np.float32)
            return found
        assert self.gallery is not None
        return _compared(name, record, self.gallery)


def _compared(name: str, record: Record, gallery: Record) -> NDArray[np.float32]:
    """[P,G] scores; a gallery cloud without an upper face is unlike everybody, and no part of the mean face."""
    from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS

    seen = gallery[f"seen {name}"]
    probes, faces = (one[f"by {name}"].astype(np.float32) for one in (record, gallery[seen]))
    scores = np.full((len(record), len(gallery)), -1e9, np.float32)
    scores[:, seen] = GEOMETRIC_RECOGNISERS[name]().compare(faces, probes)
    return scores


def _distortion(record: Record, sample: Sample) -> tuple[Figure, ...]:
    made = record["made"]
    return tuple(sample.mean(name, np.where(made, record[name], np.nan)) for name in _DISTORTION)


def _clear(lab: Lab, row: int) -> Record:
    enrolled = row in lab.clouds.gallery
    key = ["space", *lab.base_key(row), "clear", _key(lab), enrolled]
    return lab.kept(key, lambda: _described(lab, [lab.prepared(row).inner], None, gallery=enrolled))


def _anonymised(lab: Lab, row: int, method: str, attacker: str = "") -> Record:
    """Of a scan under a method, after an attacker's inverse where one is named; distortion is a probe's."""
    degrees = lab.config.costly_degrees
    enrolled = row in lab.clouds.gallery

    def make() -> Record:
        clouds = lab.recovered(row, attacker, degrees) if attacker else [c for _, c in lab.swept(row, method, degrees)]
        return _described(lab, clouds, None if enrolled or attacker else _source(lab, row), gallery=enrolled)

    key = ["space", *lab.method_key(row, method, degrees), _key(lab), enrolled, *inverse_key(lab, row, attacker)]
    return lab.kept(key, make)


@lru_cache(maxsize=1)
def _source(lab: Lab, row: int) -> _Source:
    return _Source.of(lab.prepared(row).inner)


def _described(lab: Lab, clouds: Sequence[Cloud | None], source: _Source | None, *, gallery: bool = False) -> Record:
    """What recognisers of shape see in clouds, and how far these are from their source, where there is one.

    Args:
        gallery: the clouds are enrolled; pairs of them are not compared.
    """
    out: Record = np.zeros(len(clouds), _dtype(lab))
    for place, cloud in enumerate(clouds):
        out["made"][place] = cloud is not None
        for name in _DISTORTION:
            out[name][place] = np.nan
        if cloud is None:
            continue
        if source is not None:
            for name, value in zip(_DISTORTION, source.measure(cloud), strict=True):
                out[name][place] = value
        for name in _settings(lab).recognisers:
            if name == "icp" and gallery:
                continue
            try:
                out[f"by {name}"][place] = _seen(lab, name, cloud)
                out[f"seen {name}"][place] = True
            except InputError:
                out[f"seen {name}"][place] = False
    return out


@dataclass(frozen=True)
class _Source:
    """What anonymised clouds are measured against: a cloud with normals, and its curvature, computed once."""

    cloud: Cloud
    bent: NDArray[np.float64]

    @classmethod
    def of(cls, cloud: Cloud) -> _Source:
        from ficgan.pointcloud.geometry import curvature
        from ficgan.pointcloud.registration import with_normals

        fitted = with_normals(cloud)
        return cls(fitted, curvature(fitted).mean)

    def measure(self, cloud: Cloud) -> tuple[float, float, float]:
        """Chamfer distance in mm, normal error in degrees, curvature error in 1/m; NaN where there is no surface."""
        from ficgan.pointcloud.geometry import chamfer, curvature, normal_error
        from ficgan.pointcloud.neighbours import nearest
        from ficgan.pointcloud.registration import with_normals

        apart = 1000 * chamfer(cloud, self.cloud)
        try:
            fitted = with_normals(cloud)
            rows = nearest(self.cloud.points, cloud.points, 1)[1][:, 0]
            bent = float(np.abs(curvature(fitted).mean - self.bent[rows]).mean())
            return apart, normal_error(fitted, self.cloud), bent
        except InputError:  # all on one line
            return apart, float("nan"), float("nan")


def _seen(lab: Lab, name: str, cloud: Cloud) -> NDArray[np.float32]:
    from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS, IcpRecogniser

    if name != "icp":
        return GEOMETRIC_RECOGNISERS[name]().describe(cloud)
    return IcpRecogniser().compare(lab.enrolled(_gallery(lab)), [cloud])[0]


@lru_cache(maxsize=1)
def _dtype(lab: Lab) -> np.dtype[np.void]:
    from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS

    fields: list[Any] = [("made", bool), *((name, np.float32) for name in _DISTORTION)]
    shape = lab.prepared(lab.clouds.probes[0]).inner
    for name in _settings(lab).recognisers:
        length = len(_gallery(lab)) if name == "icp" else len(GEOMETRIC_RECOGNISERS[name]().describe(shape))
        # Depths are millimetres, of which halves of a hundredth matter; shares and unit vectors need fewer digits.
        fields += [
            (f"seen {name}", bool),
            (f"by {name}", np.float32 if name in ("depth", "icp") else np.float16, (length,)),
        ]
    return np.dtype(fields)


def _people(lab: Lab) -> set[str]:
    most = _settings(lab).people
    named = list(dict.fromkeys(lab.clouds.scans[row].person for row in lab.clouds.probes))
    return set(named[:most] if most else named)


def _gallery(lab: Lab) -> list[int]:
    """Rows of the enrolled clouds: everybody, or, where few are looked for, those."""
    if not _settings(lab).people:
        return list(lab.clouds.gallery)
    return [row for row in lab.clouds.gallery if lab.clouds.scans[row].person in _people(lab)]


def _key(lab: Lab) -> list[Any]:
    """What a record depends on besides its own cloud; pairs are with a gallery."""
    names = list(_settings(lab).recognisers)
    return [names, [lab.clouds.scans[row].digest for row in _gallery(lab)] if "icp" in names else None]


def _settings(lab: Lab) -> GeometryConfig:
    assert lab.config.geometry is not None
    return lab.config.geometry
