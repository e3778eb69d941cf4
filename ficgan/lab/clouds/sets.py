"""Whose clouds are read: scans in a folder, morphs of scans, made heads; who is enrolled and who is looked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.lab.clouds.config import CloudStudyConfig, SyntheticConfig
from ficgan.lab.stored import digest, files_digest
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.landmarks import FaceLandmarks, landmark_file_beside, read_landmarks

__all__ = ["CloudSet", "Scan", "open_clouds", "people_of_names"]

_HEADS = ("neutral", "smile")
_MORPHS = ("neutral", "other")  # Of made heads and of morphs: the gallery's expression, and the probe's
_SEEDS = 100_003  # Between the people of one seed and of the next
_IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"}


@dataclass(frozen=True)
class Scan:
    person: str
    expression: str  # what distinguishes it from the person's other scans
    path: Path | None = None  # None: it is made
    number: int = 0  # of a made person
    digest: str = ""  # of its contents, or of what it is made from

    @property
    def name(self) -> str:
        return f"{self.person}/{self.expression}"


@dataclass(frozen=True)
class CloudSet:
    """Clouds and their parts in a study; no row is both enrolled and looked for."""

    name: str
    scans: tuple[Scan, ...]  # all, the target's too
    gallery: tuple[int, ...]  # rows of `scans`; without photos every probe's person is in it
    probes: tuple[int, ...]  # rows of `scans`
    target: int | None = None  # row of the face that merge-2-faces mixes in
    photos: tuple[Scan, ...] = ()  # the gallery instead, where there are any
    synthetic: SyntheticConfig | None = None  # how the people are made; None: they are real
    model: Path | None = None  # file of the morphs, where they are morphs

    @cached_property
    def people(self) -> tuple[str, ...]:
        """Everybody who is enrolled or looked for, in order; their places are their numbers."""
        named = {self.scans[row].person for row in (*self.gallery, *self.probes)} | {p.person for p in self.photos}
        return tuple(sorted(named))

    def numbers(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """[N] number of the person of each row."""
        return self.numbers_of([self.scans[row] for row in rows])

    def numbers_of(self, scans: Sequence[Scan]) -> NDArray[np.int64]:
        """[N] number of the person of each scan or photo."""
        return np.array([self.people.index(scan.person) for scan in scans], np.int64)

    @cached_property
    def digest(self) -> str:
        scans, photos = ([scan.digest for scan in some] for some in (self.scans, self.photos))
        return digest([scans, self.gallery, self.probes, self.target, photos])

    def facts(self) -> dict[str, Any]:
        """JSON-ready, for the report."""
        made = "made heads" if self.model is None else "morphs of scans"
        return {
            "kind": "scans" if self.synthetic is None else made, "scans": len(self.scans), "people": len(self.people),
            "probes": len(self.probes), "probe_people": len({self.scans[row].person for row in self.probes}),
            "gallery": len(self.photos) or len(self.gallery),
            "gallery_kind": "photos" if self.photos else "projections",
            "target": None if self.target is None else self.scans[self.target].name, "digest": self.digest,
        }  # fmt: skip

    def load(self, row: int) -> tuple[Cloud, FaceLandmarks | None]:
        """A scan, in metres, and its landmarks in its frame."""
        scan = self.scans[row]
        if scan.path is not None:
            from ficgan.pointcloud.files import read_cloud

            beside = landmark_file_beside(scan.path)
            return read_cloud(scan.path), None if beside is None else read_landmarks(beside)
        assert self.synthetic is not None
        seed = self.synthetic.seed * _SEEDS + scan.number
        calm = scan.expression == "neutral"
        if self.model is None:
            from ficgan.pointcloud.heads import made_head

            head = made_head(seed, expression=0.0 if calm else 0.5, scan=0 if calm else 1, noise=0.0002)
            return head.cloud, FaceLandmarks.of_points(head.landmarks)
        from ficgan.pointcloud.shading import shaded

        model = _model(self.model)
        # Probes show expressions that both sides of the face share, else whatever there is.
        even = [name for name in model.expressions if name != "neutral" and not name.startswith(("left", "right"))]
        moods = even or model.expressions
        mood = "neutral" if calm else moods[scan.number % len(moods)]
        made = model.scanned(seed, expression=mood, scan=0 if calm else 1)
        # Colours of morphs are without light; a scanner's are not.
        return shaded(made.cloud, tone=None), FaceLandmarks.of_points(made.landmarks)


def open_clouds(
    config: CloudStudyConfig, folder: Path | None = None, say: Callable[[str], object] = lambda text: None
) -> CloudSet:
    """The clouds a configuration asks for, read later; `folder` keeps the model of morphs, None: there must be none."""
    merging = "merge-2-faces" in config.methods
    model = None
    if config.synthetic is not None:
        scans, model = _synthetic(config.synthetic, merging and config.target is None, folder, say)
        name = f"{config.synthetic.people} synthetic people"
    else:
        assert config.clouds is not None
        scans, name = _in_folder(config.clouds), config.clouds.name
    photos = () if config.photos is None else _photos(config.photos)
    target = _target(config, scans) if merging else None
    away = None if target is None else scans[target].person
    gallery, probes = _parts(scans, [row for row, scan in enumerate(scans) if scan.person != away], photos)
    kept = tuple(photo for photo in photos if photo.person != away)
    out = CloudSet(name, scans, gallery, probes, target, kept, config.synthetic, model)
    if len(out.people) < 2 or not out.probes:
        raise InputError(
            f"{name}: {len(out.people)} people can be told apart and {len(out.probes)} scans looked for; give at least "
            "two people, and two scans of one of them or photos of everybody"
        )
    return out


def people_of_names(names: Sequence[str]) -> list[tuple[str, str]]:
    """Person and expression of files by their names: PERSON/EXPRESSION, or PERSON_EXPRESSION.

    Where every file of a flat folder has the same PERSON_ (id_000, id_001), the whole name is the person.
    """
    flat = [name for name in names if "/" not in name]
    alone = len(flat) > 1 and len({name.partition("_")[0] for name in flat}) == 1
    out = []
    for name in names:
        folder, slash, rest = name.rpartition("/")
        person, _, expression = name.partition("_")
        out.append((folder.rpartition("/")[2], rest) if slash else (name, "") if alone else (person, expression))
    return out


def _in_folder(folder: Path) -> tuple[Scan, ...]:
    from ficgan.pointcloud.files import FORMATS

    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one with clouds")
    found = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix.lower() in FORMATS)
    beside = {path: landmark_file_beside(path) for path in found}
    # NAME.landmarks.txt and NAME_landmarks_mm.txt are no clouds, though tables may be.
    files = [path for path in found if path not in beside.values() and "landmarks" not in path.stem]
    if not files:
        raise InputError(f"{folder} holds no point clouds; known are {', '.join(sorted(FORMATS))}")
    return _named(folder, files, [[path, *filter(None, [beside[path]])] for path in files])


def _photos(folder: Path) -> tuple[Scan, ...]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one that holds a folder of photos for each person")
    files = [p for pattern in ("*/*", "*") for p in sorted(folder.glob(pattern)) if p.suffix.lower() in _IMAGES]
    if not files:
        raise InputError(f"{folder} holds no photos; put those of each person into a folder of the person's name")
    return _named(folder, files, [[path] for path in files])


def _named(folder: Path, files: Sequence[Path], contents: Sequence[Sequence[Path]]) -> tuple[Scan, ...]:
    names = people_of_names([path.relative_to(folder).with_suffix("").as_posix() for path in files])
    digests = [digest([files_digest(str(one.absolute())) for one in some]) for some in contents]
    return tuple(Scan(*name, path, digest=of) for name, path, of in zip(names, files, digests, strict=True))


def _target(config: CloudStudyConfig, scans: Sequence[Scan]) -> int:
    count = Counter(scan.person for scan in scans)
    person = config.target
    if person is None:
        single = [name for name, number in count.items() if number == 1]
        person = single[0] if single and len(single) < len(count) else list(count)[-1]
    if person not in count:
        raise UsageError(f"there is no person {person!r} to be the target; there are {', '.join(count)}")
    return _calm(scans, [row for row, scan in enumerate(scans) if scan.person == person])


def _parts(
    scans: Sequence[Scan], rows: Sequence[int], photos: Sequence[Scan]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if photos:
        known = {photo.person for photo in photos}
        return (), tuple(row for row in rows if scans[row].person in known)
    of: dict[str, list[int]] = {}
    for row in rows:
        of.setdefault(scans[row].person, []).append(row)
    gallery = tuple(_calm(scans, mine) for mine in of.values())
    return gallery, tuple(row for row in rows if row not in gallery)


def _calm(scans: Sequence[Scan], rows: Sequence[int]) -> int:
    return next((row for row in rows if "neutral" in scans[row].expression), rows[0])


def _synthetic(
    config: SyntheticConfig, spare: bool, folder: Path | None, say: Callable[[str], object]
) -> tuple[tuple[Scan, ...], Path | None]:
    model, origin = None, ""
    if config.scans is not None:
        from ficgan.lab.clouds.morphs import morphs_of_folder

        if folder is None:
            raise UsageError("morphs of scans need a folder for their model; run the study with an output folder")
        origin = digest([scan.digest for scan in _in_folder(config.scans)])
        model = folder / f"morphs-{origin}.npz"
        if not model.is_file():
            folder.mkdir(parents=True, exist_ok=True)
            made = morphs_of_folder(config.scans, lambda done, total: say(f"morphs of scans: {done}/{total}"))
            part = model.with_name(f".{model.name}.partial.npz")
            made.save(part)
            part.replace(model)
    scans = tuple(
        Scan(f"{number:04d}", mood, number=number, digest=digest([origin, config.seed, number, mood]))
        for number in range(config.people + spare)
        for mood in (_HEADS if config.scans is None else _MORPHS)
    )
    return scans, model


@lru_cache(maxsize=1)
def _model(path: Path) -> Any:
    from ficgan.lab.clouds.morphs import MorphModel

    return MorphModel.load(path)
