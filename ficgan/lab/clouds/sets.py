"""Whose clouds are looked at: scans in a folder, morphs of scans, made heads; who is enrolled and who is looked for."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.lab.clouds.config import CloudStudyConfig, SyntheticConfig
from ficgan.lab.stored import digest

if TYPE_CHECKING:
    from ficgan.pointcloud.cloud import Cloud

__all__ = ["CloudSet", "Photo", "Scan", "open_clouds", "parts_of"]

_HEADS = ("neutral", "smile")
_MORPHS = ("neutral", "other")
"""Of made heads and of morphs: the gallery's expression, and the probe's."""
_SEEDS = 100_003
"""Between the people of one seed and of the next."""
_IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"}


@dataclass(frozen=True)
class Scan:
    """One cloud of one person.

    Args:
        person: who.
        expression: what distinguishes it from the person's other scans.
        path: its file; None: it is made.
        number: of a made person.
        digest: of its contents, or of what it is made from.
    """

    person: str
    expression: str
    path: Path | None = None
    number: int = 0
    digest: str = ""

    @property
    def name(self) -> str:
        """PERSON/EXPRESSION; what methods draw depends on it."""
        return f"{self.person}/{self.expression}"


@dataclass(frozen=True)
class Photo:
    """A photo of a person for the gallery."""

    person: str
    path: Path
    digest: str


@dataclass(frozen=True)
class CloudSet:
    """Clouds and their parts in a study.

    Args:
        name: for tables.
        scans: all, the target's too.
        gallery, probes: rows of `scans`; no row is in both. Without photos every probe's person is in the gallery.
        target: row of the face that merge-2-faces mixes in; None where there is nobody to spare.
        photos: the gallery instead, where there are any.
        synthetic: how the people are made; None: they are real.
        model: file of the morphs, where they are morphs.
    """

    name: str
    scans: tuple[Scan, ...]
    gallery: tuple[int, ...]
    probes: tuple[int, ...]
    target: int | None = None
    photos: tuple[Photo, ...] = ()
    synthetic: SyntheticConfig | None = None
    model: Path | None = None

    @cached_property
    def people(self) -> tuple[str, ...]:
        """Everybody who is enrolled or looked for, in order; their places are their numbers."""
        named = {self.scans[row].person for row in (*self.gallery, *self.probes)} | {p.person for p in self.photos}
        return tuple(sorted(named))

    def numbers(self, named: Sequence[Scan | Photo]) -> NDArray[np.int64]:
        """[N] number of the person of each."""
        place = {person: index for index, person in enumerate(self.people)}
        return np.array([place[one.person] for one in named], np.int64)

    @cached_property
    def digest(self) -> str:
        """Of the scans, photos and parts."""
        return digest(
            [[s.digest for s in self.scans], self.gallery, self.probes, self.target, [p.digest for p in self.photos]]
        )

    def facts(self) -> dict[str, Any]:
        """JSON-ready, for the report."""
        real = self.synthetic is None
        kind = "scans" if real else "made heads" if self.synthetic.scans is None else "morphs of scans"  # type: ignore[union-attr]
        return {
            "kind": kind, "scans": len(self.scans), "people": len(self.people), "probes": len(self.probes),
            "probe_people": len({self.scans[row].person for row in self.probes}),
            "gallery": len(self.photos) or len(self.gallery),
            "gallery_kind": "photos" if self.photos else "projections",
            "target": None if self.target is None else self.scans[self.target].name, "digest": self.digest,
        }  # fmt: skip

    def load(self, row: int) -> tuple[Cloud, Any]:
        """A scan and its landmarks.

        Returns:
            The cloud, in metres, and `FaceLandmarks` in its frame, or None.
        """
        scan = self.scans[row]
        if scan.path is not None:
            from ficgan.pointcloud.files import read_cloud
            from ficgan.pointcloud.landmarks import landmark_file_beside, read_landmarks

            beside = landmark_file_beside(scan.path)
            return read_cloud(scan.path), None if beside is None else read_landmarks(beside)
        assert self.synthetic is not None
        return _made(self.synthetic, scan, self.model)


def open_clouds(
    config: CloudStudyConfig, folder: Path | None = None, say: Callable[[str], None] | None = None
) -> CloudSet:
    """The clouds a configuration asks for; their contents are read later.

    Args:
        config: of a study.
        folder: where the model of morphs is kept; it is made of people's scans. None: there must be no morphs.
        say: progress.

    Raises:
        InputError: no folder, no clouds, or nobody who could be both enrolled and looked for.
        UsageError: a target who is not there.
    """
    merging = "merge-2-faces" in config.methods
    model = None
    if config.synthetic is not None:
        scans = _synthetic(config.synthetic, merging and config.target is None)
        name = f"{config.synthetic.people} synthetic people"
        model = _morphs(config.synthetic, folder, say or (lambda text: None))
    else:
        assert config.clouds is not None
        scans, name = _in_folder(config.clouds), config.clouds.name
    photos = () if config.photos is None else _photos(config.photos)
    target = _target(config, scans) if merging else None
    away = None if target is None else scans[target].person
    left = [row for row, scan in enumerate(scans) if scan.person != away]
    gallery, probes = _parts([scans[row] for row in left], photos)
    kept = tuple(photo for photo in photos if photo.person != away)
    out = CloudSet(
        name,
        scans,
        tuple(left[i] for i in gallery),
        tuple(left[i] for i in probes),
        target,
        kept,
        config.synthetic,
        model,
    )
    if len(out.people) < 2 or not out.probes:
        raise InputError(
            f"{name}: {len(out.people)} people can be told apart and {len(out.probes)} scans looked for; give at least "
            "two people, and two scans of one of them or photos of everybody"
        )
    return out


def parts_of(names: Sequence[str]) -> list[tuple[str, str]]:
    """Person and expression of files by their names without suffix, relative to the folder.

    PERSON/EXPRESSION, or PERSON_EXPRESSION; where every file of a flat folder has the same PERSON_, as id_000 and
    id_001, the whole name is the person.
    """
    flat = [name for name in names if "/" not in name]
    before = Counter(name.partition("_")[0] for name in flat)
    alone = len(flat) > 1 and len(before) == 1
    out = []
    for name in names:
        folder, slash, rest = name.rpartition("/")
        if slash:
            out.append((folder.rpartition("/")[2], rest))
        else:
            person, _, expression = name.partition("_")
            out.append((name, "") if alone else (person, expression))
    return out


def _in_folder(folder: Path) -> tuple[Scan, ...]:
    from ficgan.pointcloud.files import FORMATS
    from ficgan.pointcloud.landmarks import landmark_file_beside

    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one with clouds")
    found = sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix.lower() in FORMATS)
    beside = {path: landmark_file_beside(path) for path in found}
    marks = set(beside.values())
    # NAME.landmarks.txt and NAME_landmarks_mm.txt are no clouds, though tables may be.
    files = [path for path in found if path not in marks and "landmarks" not in path.stem]
    if not files:
        raise InputError(f"{folder} holds no point clouds; known are {', '.join(sorted(FORMATS))}")
    names = parts_of([path.relative_to(folder).with_suffix("").as_posix() for path in files])
    out = []
    for path, (person, expression) in zip(files, names, strict=True):
        contents = [path, *filter(None, [beside[path]])]
        out.append(Scan(person, expression, path, digest=digest([_of_file(one) for one in contents])))
    return tuple(out)


def _of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _photos(folder: Path) -> tuple[Photo, ...]:
    if not folder.is_dir():
        raise InputError(f"there is no folder {folder}; name one that holds a folder of photos for each person")
    files = sorted(p for p in folder.glob("*/*") if p.suffix.lower() in _IMAGES)
    files += sorted(p for p in folder.glob("*") if p.suffix.lower() in _IMAGES)  # PERSON.jpg, PERSON_….jpg
    if not files:
        raise InputError(f"{folder} holds no photos; put those of each person into a folder of the person's name")
    names = parts_of([path.relative_to(folder).with_suffix("").as_posix() for path in files])
    return tuple(Photo(person, path, _of_file(path)) for path, (person, _) in zip(files, names, strict=True))


def _target(config: CloudStudyConfig, scans: Sequence[Scan]) -> int | None:
    """The row of merge-2-faces' other face: of the person who is named, or who can be missed most."""
    count = Counter(scan.person for scan in scans)
    if config.target is not None:
        rows = [row for row, scan in enumerate(scans) if scan.person == config.target]
        if not rows:
            raise UsageError(f"there is no person {config.target!r} to be the target; there are {', '.join(count)}")
        return _calm(scans, rows)
    single = [person for person, number in count.items() if number == 1]
    person = single[0] if single and len(single) < len(count) else list(count)[-1]
    return _calm(scans, [row for row, scan in enumerate(scans) if scan.person == person])


def _parts(scans: Sequence[Scan], photos: Sequence[Photo]) -> tuple[list[int], list[int]]:
    """Rows of the gallery and of the probes: with photos every scan is a probe, else all but one of each person."""
    if photos:
        known = {photo.person for photo in photos}
        return [], [row for row, scan in enumerate(scans) if scan.person in known]
    rows: dict[str, list[int]] = {}
    for row, scan in enumerate(scans):
        rows.setdefault(scan.person, []).append(row)
    gallery = [_calm(scans, mine) for mine in rows.values()]
    return gallery, [row for row in range(len(scans)) if row not in set(gallery)]


def _calm(scans: Sequence[Scan], rows: Sequence[int]) -> int:
    """The neutral scan of a person, else the first."""
    return next((row for row in rows if "neutral" in scans[row].expression), rows[0])


def _synthetic(config: SyntheticConfig, spare: bool) -> tuple[Scan, ...]:
    """Everybody twice, and, where a target is needed, one more person."""
    origin = "" if config.scans is None else digest([scan.digest for scan in _in_folder(config.scans)])
    moods = _HEADS if config.scans is None else _MORPHS
    return tuple(
        Scan(f"{number:04d}", mood, number=number, digest=digest([origin, config.seed, number, mood]))
        for number in range(config.people + spare)
        for mood in moods
    )


def _made(config: SyntheticConfig, scan: Scan, model: Path | None) -> tuple[Cloud, Any]:
    from ficgan.pointcloud.landmarks import FaceLandmarks

    seed = config.seed * _SEEDS + scan.number
    if model is None:
        from ficgan.pointcloud.heads import made_head

        calm = scan.expression == _HEADS[0]
        head = made_head(seed, expression=0.0 if calm else 0.5, scan=0 if calm else 1, noise=0.0002)
        return head.cloud, FaceLandmarks.of_points(head.landmarks)
    from ficgan.pointcloud.projection import ShadingConfig, shaded

    found = _model(model)
    calm = scan.expression == _MORPHS[0]
    mood = "neutral" if calm else _moods(found.expressions)[scan.number % len(_moods(found.expressions))]
    made = found.scanned(seed, expression=mood, scan=0 if calm else 1)
    # Colours of morphs are without light; a scanner's are not.
    return shaded(made.cloud, ShadingConfig(tone=None)), FaceLandmarks.of_points(made.landmarks)


def _moods(known: Sequence[str]) -> list[str]:
    """Expressions of the probes: those that both sides of the face share, else whatever there is."""
    even = [name for name in known if name != "neutral" and not name.startswith(("left", "right"))]
    return even or list(known)


def _morphs(config: SyntheticConfig, folder: Path | None, say: Callable[[str], None]) -> Path | None:
    """The model of morphs as a file in `folder`; built, in a minute, where it is not there."""
    if config.scans is None:
        return None
    from ficgan.pointcloud.morphs import morphs_of_folder

    if folder is None:
        raise UsageError("morphs of scans need a folder for their model; run the study with an output folder")
    path = folder / f"morphs-{digest([scan.digest for scan in _in_folder(config.scans)])}.npz"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        model = morphs_of_folder(config.scans, progress=lambda done, total: say(f"morphs of scans: {done}/{total}"))
        part = path.with_name(f".{path.name}.partial.npz")
        model.save(part)
        part.replace(path)
    return path


@lru_cache(maxsize=1)
def _model(path: Path) -> Any:
    from ficgan.pointcloud.morphs import MorphModel

    return MorphModel.load(path)
