"""What a study of point clouds is run on: its configuration, and the scans or made heads."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator

from ficgan.config import check, hint, override, read_tree
from ficgan.errors import InputError
from ficgan.lab.run import digest, files_digest
from ficgan.pointcloud.cloud import READERS, Cloud, read_cloud
from ficgan.pointcloud.face import FaceLandmarks, landmark_file_beside, made_head, read_landmarks
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, STRENGTHS

METHODS = tuple(CLOUD_ANONYMIZERS)


class MadeHeadsConfig(BaseModel, frozen=True, extra="forbid"):
    """People who do not exist: made heads, two scans of each."""

    people: int = Field(200, ge=2)
    seed: int = Field(0, ge=0)


class AutoEncoderConfig(BaseModel, frozen=True, extra="forbid"):
    """The thesis' auto-encoder (§4.3.5), trained on people who are not tested."""

    epochs: int = Field(250, ge=1)
    # At which it learns and is tried; the thesis has five, and does not say which.
    strengths: tuple[int, ...] = (7, 14, 21, 28, 35)
    views: int = Field(11, ge=1)  # of each training person, evenly from −10° to 10° of yaw; 1: the frontal one
    size: int = Field(128, ge=16, le=1024)  # side of the square at which the network works, pixels
    minutes: float = Field(0.0, ge=0)  # training ends after so many minutes; 0: no limit
    device: str = "auto"


class CloudStudyConfig(BaseModel, frozen=True, extra="forbid"):
    """Whose clouds, what is done to them, and who looks (point-cloud thesis, chapters 4.2 and 5.3)."""

    title: str = "Anonymised face point clouds"
    # Folder of scans named PERSON_EXPRESSION.ext or PERSON/EXPRESSION.ext, landmarks beside them.
    clouds: Path | None = None
    synthetic: MadeHeadsConfig | None = None  # made people in place of a folder
    # Folder with a folder of photos for each person: the gallery. None: another scan of each person, projected.
    photos: Path | None = None
    prepared: bool = False  # the clouds are in the canonical frame already

    methods: tuple[str, ...] = Field(METHODS, min_length=1)
    strengths: tuple[int, ...] = Field(tuple(STRENGTHS), min_length=1)
    seed: int = Field(0, ge=0)  # of what the methods draw

    recognisers: tuple[str, ...] = Field(("dlib",), min_length=1)  # dlib, insightface or onnx:PATH; the thesis: ArcFace
    # auto: the first there is of insightface, yunet, centerface and dlib; the thesis: RetinaFace
    detector: str = "auto"
    timed: int = Field(3, ge=0)  # on so many people every anonymisation is timed alone
    # Strengths at which parrots, slow inverses and recognisers of shape are tried; where the study has none of them, at
    # all of its own.
    costly: tuple[int, ...] = (1, 5, 10, 15, 20, 25, 30, 35)
    attack: AutoEncoderConfig | None = None
    resamples: int = Field(1000, ge=1)  # of the bootstrap over people

    @model_validator(mode="after")
    def _sound(self) -> CloudStudyConfig:
        if (self.clouds is None) == (self.synthetic is None):
            raise ValueError("give either clouds, a folder of scans, or synthetic")
        attacked = self.attack.strengths if self.attack else self.strengths
        for values in (self.strengths, self.costly, attacked):
            if not set(values) <= set(STRENGTHS) or len(set(values)) != len(values):
                raise ValueError(f"strengths must lie between {STRENGTHS[0]} and {STRENGTHS[-1]}, each once")
        for name in self.methods:
            if name not in METHODS:
                raise ValueError(f"there is no point-cloud anonymiser {name!r}; {hint(name, METHODS)}")
        if not set(attacked) & set(self.strengths):
            raise ValueError("attack.strengths has no strength in common with strengths; give one that it has")
        return self

    @property
    def costly_strengths(self) -> tuple[int, ...]:
        """Of `costly`, those that the study has."""
        return tuple(sorted(set(self.costly) & set(self.strengths)) or sorted(self.strengths))

    @classmethod
    def read(cls, path: Path | str, overrides: Sequence[str] = (), **given: Any) -> CloudStudyConfig:
        """A YAML file or a packaged configuration, with "key=value" overrides, and `given` on top."""
        tree = override(read_tree(path, kind="eval", prefix="pointcloud"), overrides, example="timed=0")
        return check(cls, {**tree, **given}, where=str(path))


_SEEDS = 100_003  # between the people of one seed and of the next
_IMAGES = {".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff"}


@dataclass(frozen=True)
class CloudScan:
    """A scan, or a photo of the gallery."""

    person: str
    expression: str  # what distinguishes it from the person's other scans
    path: Path | None = None  # None: it is made
    seed: int = 0  # of a made person
    digest: str = ""  # of its contents, or of what it is made from

    @property
    def name(self) -> str:
        return f"{self.person}/{self.expression}"

    def load(self) -> tuple[Cloud, FaceLandmarks | None]:
        """The cloud, in metres, and its landmarks in its frame."""
        if self.path is not None:
            beside = landmark_file_beside(self.path)
            return read_cloud(self.path), None if beside is None else read_landmarks(beside)
        smiling = self.expression == "smiling"
        head = made_head(self.seed, smiling=smiling, scan=int(smiling))
        return head.cloud, FaceLandmarks.of_points(head.landmarks)


@dataclass(frozen=True)
class CloudSet:
    """Clouds and their parts in a study; no row is both enrolled and looked for."""

    name: str
    scans: tuple[CloudScan, ...]  # all, the target's too
    gallery: tuple[int, ...]  # rows of `scans`; without photos every probe's person is in it
    probes: tuple[int, ...]  # rows of `scans`
    target: int | None = None  # row of the face that merge-2-faces mixes in
    photos: tuple[CloudScan, ...] = ()  # the gallery instead, where there are any
    made: bool = False  # the people are made heads

    @cached_property
    def people(self) -> tuple[str, ...]:
        """Everybody who is enrolled or looked for, in order; their places are their numbers."""
        named = {self.scans[row].person for row in (*self.gallery, *self.probes)} | {p.person for p in self.photos}
        return tuple(sorted(named))

    def numbers(self, rows: Sequence[int]) -> NDArray[np.int64]:
        """[N] number of the person of each row; of the photos where there are no rows."""
        scans = [self.scans[row] for row in rows] or self.photos
        return np.array([self.people.index(scan.person) for scan in scans], np.int64)

    def facts(self) -> dict[str, Any]:
        """JSON-ready, for the report."""
        scans, photos = ([scan.digest for scan in some] for some in (self.scans, self.photos))
        return {
            "kind": "made heads" if self.made else "scans",
            "scans": len(self.scans),
            "people": len(self.people),
            "probes": len(self.probes),
            "probe_people": len({self.scans[row].person for row in self.probes}),
            "gallery": len(self.photos) or len(self.gallery),
            "gallery_kind": "photos" if self.photos else "projections",
            "target": None if self.target is None else self.scans[self.target].name,
            "digest": digest([scans, self.gallery, self.probes, self.target, photos]),
        }


def open_clouds(config: CloudStudyConfig) -> CloudSet:
    """The clouds a configuration asks for, read later.

    Of a person's scans the neutral one is enrolled. Whose face merge-2-faces mixes in is neither enrolled nor looked
    for: a person with a single scan, or else the last one.
    """
    merging = "merge-2-faces" in config.methods
    if config.synthetic is not None:
        name, count = f"{config.synthetic.people} made people", config.synthetic.people
        scans = tuple(
            CloudScan(f"{number:04d}", mood, seed=seed, digest=digest([seed, mood]))
            for number in range(count + merging)
            for seed in [config.synthetic.seed * _SEEDS + number]
            for mood in ("neutral", "smiling")
        )
    else:
        assert config.clouds is not None
        scans, name = _in_folder(config.clouds, "*", READERS), config.clouds.name
    rows: dict[str, list[int]] = {}
    for row, scan in enumerate(scans):
        rows.setdefault(scan.person, []).append(row)
    calm = {who: next((r for r in mine if "neutral" in scans[r].expression), mine[0]) for who, mine in rows.items()}
    away = None
    if merging:
        single = [who for who, mine in rows.items() if len(mine) == 1]
        away = single[0] if single and len(single) < len(rows) else list(rows)[-1]
    photos = () if config.photos is None else _in_folder(config.photos, "*/*", _IMAGES)
    photos = tuple(photo for photo in photos if photo.person != away)
    known = {photo.person for photo in photos} if config.photos else rows.keys()
    others = [row for row, scan in enumerate(scans) if scan.person != away and scan.person in known]
    gallery = () if config.photos else tuple(row for row in others if row in calm.values())
    probes = tuple(row for row in others if row not in gallery)
    out = CloudSet(name, scans, gallery, probes, None if away is None else calm[away], photos, not config.clouds)
    if len(out.people) < 2 or not out.probes:
        raise InputError(
            f"{name}: {len(out.people)} people can be told apart and {len(out.probes)} scans looked for; give at least "
            "two people, and two scans of one of them or photos of everybody"
        )
    return out


def person_of(name: str) -> tuple[str, str]:
    """Person and expression of a file by its name: PERSON/EXPRESSION, or PERSON_EXPRESSION."""
    folder, slash, rest = name.rpartition("/")
    person, _, expression = name.partition("_")
    return (folder.rpartition("/")[2], rest) if slash else (person, expression)


def _in_folder(folder: Path, pattern: str, suffixes: Collection[str]) -> tuple[CloudScan, ...]:
    out = []
    for path in sorted(folder.rglob(pattern)):
        # NAME.landmarks.txt and NAME_landmarks_mm.txt are no clouds, though tables may be.
        if path.is_file() and path.suffix.lower() in suffixes and "landmarks" not in path.stem:
            contents = filter(None, [path, landmark_file_beside(path)])
            mark = digest([files_digest(str(each.absolute())) for each in contents])
            who = person_of(path.relative_to(folder).with_suffix("").as_posix())
            out.append(CloudScan(*who, path, digest=mark))
    return tuple(out)
