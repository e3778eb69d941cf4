"""Face sets for evaluations: each face is detected once, on the clear image, and cut upright; and their split."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images, generator
from ficgan.data import alignment_name, decode, decode_rgb
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import Alignment, Face, FaceDetector, crop, get_detector, transform_points
from ficgan.files import content_key
from ficgan.lab.attacks.base import one_each_unknown
from ficgan.lab.matrix_config import SplitConfig
from ficgan.lab.metrics.pictures import quick
from ficgan.lab.run import Store
from ficgan.lab.sets.faceset import FaceSet, open_set

__all__ = ["FaceSet", "Prepared", "Quick", "Split", "open_set", "prepare", "split", "without_repeats", "written"]


Rows = NDArray[np.int64]
PARTS = ("background", "attacker", "gallery", "probe", "unused")
_PRIORITY = ("gallery", "probe", "attacker", "background")  # Of equal pictures the first in this order stays


@dataclass(frozen=True)
class Split:
    """Rows of a set, each in one part. The manifest says how it was drawn and what each part holds, with hashes."""

    background: Rows  # images of people that anonymisers may mix in
    attacker: Rows  # images of people from whom attackers learn
    gallery: Rows  # enrolled images of the people of the evaluation
    probe: Rows  # the other images of the same people
    unused: Rows
    manifest: dict[str, Any] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """sha256 of who and what is in which part."""
        return str(self.manifest["sha256"])


def split(people: NDArray[Any], wanted: SplitConfig, names: Sequence[str] | None = None) -> Split:
    """Draw people for background, attacker and evaluation from those with the most images (Fantômas, §7.3, §7.4).

    `people` [N] are one number per person, −1 where unknown: those images stay unused. Where there are too few, all
    parts shrink alike.
    """
    people = np.asarray(people, np.int64)
    who, counts = np.unique(people[people >= 0], return_counts=True)
    asked = {"background": wanted.background, "attacker": wanted.attacker, "test": wanted.test}
    sizes, scale = _sizes(asked, len(who), int((counts >= 2).sum()))
    drawn = _draw(who, counts, sizes, wanted.seed)
    background, attacker = (np.flatnonzero(np.isin(people, drawn[part])) for part in ("background", "attacker"))
    gallery, probe = _enrol(drawn["test"], people, wanted.enrolment, wanted.seed)
    unused = np.setdiff1d(np.arange(len(people)), np.concatenate([background, attacker, gallery, probe]))
    how = {
        "seed": wanted.seed,
        "enrolment": wanted.enrolment,
        "wanted": asked,
        "scale": scale,
        "people_with_one_image": int((counts == 1).sum()),
        "images_of_unknown_people": int((people < 0).sum()),
    }
    return written(Split(background, attacker, gallery, probe, unused), people, how, names)


def written(split: Split, people: NDArray[Any], how: dict[str, Any], names: Sequence[str] | None = None) -> Split:
    """A split with its manifest: `how` it was made, then what is in it."""
    parts: dict[str, dict[str, Any]] = {}
    for part in PARTS:
        rows = getattr(split, part)
        who = people[rows]
        lines = "\n".join(f"{people[row]}\0{names[row] if names is not None else row}" for row in rows)
        parts[part] = {"people": len(np.unique(who[who >= 0])), "images": len(rows), "sha256": _sha256(lines)}
    # What was drawn, not what was asked for: two ways to one division have one hash.
    total = _sha256("".join(parts[part]["sha256"] for part in PARTS))
    return replace(split, manifest={**how, "parts": parts, "sha256": total})


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _sizes(wanted: dict[str, int], people: int, several: int) -> tuple[dict[str, int], float]:
    if several < 2:
        raise InputError(f"{several} of {people} people have two images, one to enrol and one to find; give at least 2")
    factor = min(1.0, people / sum(wanted.values()), several / wanted["test"])
    # No part vanishes by scaling alone; what rounding up has added is taken from the largest part.
    sizes = {part: max(min(count, 1), math.floor(count * factor + 1e-9)) for part, count in wanted.items()}
    sizes["test"] = max(2, sizes["test"])
    largest = max(("background", "attacker"), key=lambda part: sizes[part])
    sizes[largest] -= min(sizes[largest], max(0, sum(sizes.values()) - people))
    if sum(sizes.values()) > people or sizes["test"] > several:
        raise InputError(f"{people} people, {several} of them with two images, are too few for {sizes}; ask for fewer")
    return sizes, factor


def _draw(who: Rows, counts: Rows, sizes: dict[str, int], seed: int) -> dict[str, Rows]:
    pool = np.sort(np.argsort(-counts, kind="stable")[: sum(sizes.values())])
    shuffled = generator(seed, "split").permutation(pool)
    test = shuffled[counts[shuffled] >= 2][: sizes["test"]]
    rest = shuffled[~np.isin(shuffled, test)]
    background, attacker, _ = np.split(rest, np.cumsum([sizes["background"], sizes["attacker"]]))
    drawn = {"background": background, "attacker": attacker, "test": test}
    return {part: np.sort(who[index]) for part, index in drawn.items()}


def _enrol(who: Rows, people: Rows, enrolment: float, seed: int) -> tuple[Rows, Rows]:
    gallery, probe = [], []
    for person in who.tolist():
        rows = generator(seed, "enrolment", person).permutation(np.flatnonzero(people == person))
        count = min(max(1, math.floor(enrolment * len(rows) + 0.5)), len(rows) - 1)
        gallery.append(rows[:count])
        probe.append(rows[count:])
    return np.sort(np.concatenate(gallery)), np.sort(np.concatenate(probe))


def without_repeats(split: Split, people: Rows, names: Sequence[str] | None, digests: Sequence[str]) -> Split:
    """The split without pictures (equal `digests`) that stand in two parts or twice: they would flatter its figures."""
    first: dict[str, tuple[int, str]] = {}
    gone: set[int] = set()
    for part in _PRIORITY:
        for row in getattr(split, part).tolist():
            kept, where = first.setdefault(digests[row], (row, part))
            # What attackers learn from and what is mixed in may repeat itself.
            if kept != row and not (where == part and part in ("attacker", "background")):
                gone.add(row)
    if not gone:
        return split
    count = len(gone)
    gallery, probe = (set(people[[r for r in part if r not in gone]]) for part in (split.gallery, split.probe))
    lost = gallery ^ probe  # whoever has lost one side leaves the evaluation with the other
    gone |= {int(row) for row in np.concatenate([split.gallery, split.probe]) if people[row] in lost}
    if not gallery & probe:
        raise InputError("no picture of the evaluation is left that stands in one part only; give another set")
    removed = np.array(sorted(gone), np.int64)
    parts: dict[str, Any] = {part: np.setdiff1d(getattr(split, part), removed) for part in _PRIORITY}
    unused = np.sort(np.concatenate([split.unused, removed]))
    how = {key: value for key, value in split.manifest.items() if key not in ("parts", "sha256")}
    how |= {"duplicates_removed": count, "people_lost_by_it": len(lost)}
    return written(replace(split, **parts, unused=unused), people, how, names)


Box = tuple[int, int, int, int]
KIND = ("race", "gender")  # Groups that say what kind of person somebody is
GREY = 127  # What stands where nothing may be seen
# On 567 CelebA crops one pass recognises as well as the pyramid of sizes (rank-1 .963 and .965, of both judges); on
# the 720 px portraits of the London set it is a twelfth of the time.
_LOOK_AT = 480
_BYSTANDER = 0.25  # Size of a whole face, of that of a face that the border cuts, from which it counts as the main one


@dataclass(frozen=True)
class Prepared:
    """N aligned faces of a set, made by `prepare`: crops [N,S,S,3], landmarks in pixels of the crop, people."""

    faces: Faces
    region: Box  # x0, y0, x1, y1 of the centred square that is replaced, in pixels of the crop
    attributes: dict[str, NDArray[np.uint8]] = field(default_factory=dict)  # name → [N]
    groups: dict[str, tuple[str, ...]] = field(default_factory=dict)  # name → N texts
    missed: tuple[tuple[str, str], ...] = ()  # name and reason of images in which no face was acquired
    source: dict[str, Any] = field(default_factory=dict)  # facts of the set and of its preparation, JSON-ready

    def __len__(self) -> int:
        return len(self.faces)

    @property
    def whole(self) -> bool:
        side = self.faces.images.shape[1]
        return self.region == (0, 0, side, side)

    @property
    def digest(self) -> str:
        """sha256 of the pixels of all crops, in their order, 64 hex digits."""
        digest = hashlib.sha256(repr(self.faces.images.shape).encode())
        digest.update(np.ascontiguousarray(self.faces.images).data)
        return digest.hexdigest()

    @property
    def kinds(self) -> NDArray[np.str_] | None:
        """[N] ethnicity and gender of each person, "" where one is unknown; None where the set does not say both."""
        if not all(any(self.groups.get(column, ())) for column in KIND):
            return None
        pairs = zip(*(self.groups[column] for column in KIND), strict=True)
        return np.array([", ".join(pair) if all(pair) else "" for pair in pairs])

    @cached_property
    def people(self) -> NDArray[np.int64]:
        """[N] who is in each crop; every image of somebody unknown is a person of its own."""
        return one_each_unknown(self.faces.people, len(self))

    def part(self, rows: Sequence[int] | NDArray[np.integer], images: Images | None = None) -> Prepared:
        """Some rows with their labels, perhaps in other pixels [M,S,S,3]."""
        index = np.asarray(rows, np.int64)
        faces = self.faces.take(index)
        return replace(
            self,
            faces=faces if images is None else faces.with_images(images),
            attributes={name: values[index] for name, values in self.attributes.items()},
            groups={name: tuple(values[row] for row in index) for name, values in self.groups.items()},
        )

    def digests(self) -> tuple[str, ...]:
        """A hash of each crop's pixels: equal ones are the same picture."""
        return tuple(content_key(image) for image in self.faces.images)

    def regions(self) -> Faces:
        """The inner squares alone, landmarks in their pixels; not copied where they are the whole crops."""
        if self.whole:
            return self.faces
        x0, y0, x1, y1 = self.region
        inner = np.ascontiguousarray(self.faces.images[:, y0:y1, x0:x1])
        shifted = (self.faces.landmarks - np.array([x0, y0], np.float32)).astype(np.float32)
        return Faces(inner, self.faces.names, shifted, self.faces.people)

    def with_regions(self, images: Images | np.uint8) -> Faces:
        """The crops with other pixels [N,n,n,3], or a grey, in the inner square; around it they are bit-identical."""
        x0, y0, x1, y1 = self.region
        out = self.faces.images.copy()
        out[:, y0:y1, x0:x1] = images
        return self.faces.with_images(out)

    def anonymise(self, change: Callable[[Faces], Images]) -> Faces:
        """The crops with the inner square anonymised, or changed in another way, and the rest as it was."""
        return self.with_regions(change(self.regions()))

    def surroundings(self) -> Faces:
        """The crops with the inner square grey: what is left of people without their faces."""
        return self.with_regions(np.uint8(GREY))

    def inside(self) -> Faces:
        grey = self.faces.with_images(np.full_like(self.faces.images, GREY))
        return replace(self, faces=grey).with_regions(self.regions().images)

    def facts(self) -> dict[str, Any]:
        """The set in a report: its source, faces, people, failures to acquire; JSON-ready."""
        people = np.zeros(0) if self.faces.people is None else self.faces.people
        return {
            **self.source,
            "faces": len(self),
            "people": len(np.unique(people[people >= 0])),
            "failures_to_acquire": [list(pair) for pair in self.missed],
            "region": list(self.region),
            "pixels": self.digest,
        }


@dataclass
class Quick:
    """A detector that looks once at a picture reduced to `_LOOK_AT` pixels, and thoroughly where that finds nothing."""

    detector: FaceDetector

    def __post_init__(self) -> None:
        self._fast = quick(self.detector, _LOOK_AT, enlarge=False)
        self.name = f"{self.detector.name}, one pass at {_LOOK_AT} px"

    def detect(self, image: Images) -> list[Face]:
        """Faces of a uint8 [H,W,3] RGB image, sorted by score, highest first."""
        return self._fast.detect(image) or self.detector.detect(image)


def prepare(
    faceset: FaceSet,
    *,
    size: int = 128,
    context: float = 1.0,
    detector: FaceDetector | None = None,
    alignment: Alignment | None = None,
    aligned: bool = False,
    cache: Path | None = None,
    progress: Progress = unheard,
) -> Prepared:
    """Aligned crops of `size` pixels; images in which no face is acquired are listed (Fantômas, §7.3).

    `context` is the side of the crop in sides of the face square, from 1 to 4. Of a set that is `aligned` nothing is
    detected. The folder `cache` keeps the crops.
    """
    alignment = alignment or Alignment()
    kind = alignment_name(alignment)
    if aligned and context != 1:
        raise UsageError("aligned images have nothing around the face square; leave out context, or give photos")
    if aligned and faceset.alignment not in (None, kind):
        raise UsageError(f"{faceset.name} is aligned as {faceset.alignment}, not as {kind}; name its own alignment")
    margin = round((size - size / context) / 2)  # As much on one side as on the other
    region = (margin, margin, size - margin, size - margin)
    finder = None if aligned else detector or Quick(get_detector())
    name = None if finder is None else finder.name
    how = {"size": size, "region": list(region), "alignment": kind, "detector": name}
    files = {blob.source for blob in faceset.blobs}
    times = sorted((str(file), file.stat().st_mtime_ns) for file in files if file.exists())
    placed = [how, getattr(getattr(finder, "detector", finder), "threshold", None), asdict(alignment)]
    crops: dict[str, NDArray[Any]] = Store(cache).kept(
        ["crops", faceset.digest, times, placed], lambda: _cut(faceset, size, region, finder, alignment, progress)
    )
    progress(len(faceset), len(faceset), "cutting faces")
    missed = tuple((faceset.names[row], str(why)) for row, why in zip(crops["missed"], crops["reasons"], strict=True))
    if not len(crops["rows"]):
        reasons = "; ".join(dict.fromkeys(why for _, why in missed[:3]))
        raise InputError(f"no face was acquired in {len(faceset)} images of {faceset.name} ({reasons})")
    found = faceset.take(crops["rows"])
    faces = Faces(crops["images"], found.names, crops["landmarks"], found.people)
    return Prepared(faces, region, found.attributes, found.groups, missed, {**faceset.facts(), **how})


def _cut(
    faceset: FaceSet, size: int, region: Box, finder: FaceDetector | None, alignment: Alignment, report: Progress
) -> dict[str, NDArray[Any]]:
    """Crops [N,S,S,3], landmarks [N,5,2], rows [N] of the set; rows [M] of images without a crop, and reasons [M]."""
    images = np.empty((len(faceset), size, size, 3), np.uint8)
    landmarks = np.empty((len(faceset), 5, 2), np.float32)
    rows: list[int] = []
    missed: dict[int, str] = {}
    for row, blob in enumerate(faceset.blobs):
        at = len(rows)
        try:
            image = decode(blob, size) if finder is None else np.array(decode_rgb(blob))
            if not np.ptp(image.reshape(-1, 3), axis=0).any():
                raise InputError("all its pixels are of one colour")
            if finder is None:
                images[at], landmarks[at] = image, alignment.points(size)
            else:
                face = _main_face(finder.detect(image), image.shape)
                matrix = alignment.matrix(face.landmarks, region[2] - region[0])
                matrix[:, 2] += region[:2]
                images[at] = crop(image, matrix, size)
                landmarks[at] = transform_points(matrix, face.landmarks)
            rows.append(row)
        except InputError as error:  # With the image's name in the set: reports are read on other machines
            text = str(error).replace(blob.where, blob.name)
            missed[row] = re.sub(r"<_io\.BytesIO[^>]*>", "its content", text)
        report(row + 1, len(faceset), "cutting faces")
    return {
        "images": images[: len(rows)],
        "landmarks": landmarks[: len(rows)],
        "rows": np.array(rows, np.int64),
        "missed": np.array(list(missed), np.int64),
        "reasons": np.array(list(missed.values()), np.str_),
    }


def _main_face(faces: list[Face], shape: tuple[int, ...]) -> Face:
    """The largest face whose landmarks are in the picture; one that the border cuts only beside small bystanders."""
    height, width = shape[:2]
    edge = (width - 0.5, height - 0.5)
    inside = [face for face in faces if (face.landmarks >= -0.5).all() and (face.landmarks <= edge).all()]
    if not inside:
        raise InputError("no face is fully in it" if faces else "no face was found")

    def size(face: Face) -> float:
        x0, y0, x1, y1 = (float(value) for value in face.box)
        cut = x0 <= 0 or y0 <= 0 or x1 >= width or y1 >= height
        return (_BYSTANDER if cut else 1) * (x1 - x0) * (y1 - y0)

    return max(inside, key=size)
