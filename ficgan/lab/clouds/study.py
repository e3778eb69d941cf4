"""What a study does to one scan, and what detectors and recognisers read of the result: in pictures, and by shape."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from ficgan import __version__
from ficgan.arrays import resize
from ficgan.errors import InputError, UsageError
from ficgan.faces import FaceDetector, get_detector
from ficgan.faces.crops import ARCFACE_POINTS
from ficgan.images.read import read_image
from ficgan.lab.clouds.sets import AutoEncoderConfig, CloudSet, CloudStudyConfig, open_clouds
from ficgan.lab.metrics.pictures import Inception, SqueezeNet, detect_faces, quick, ssim
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.readers import Reader, get_readers
from ficgan.pointcloud import PreparedFace, prepare
from ficgan.pointcloud.cloud import Cloud, merged, rounded_colors
from ficgan.pointcloud.frame import Placed, canonical
from ficgan.pointcloud.geometry import DESCRIPTIONS, THESIS_SIZE, compare_descriptions, describe, project, shaded
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, CloudAnonymizer, unmerge, unsmooth, untaper

if TYPE_CHECKING:
    from ficgan.lab.attacks import Pairs

Image = NDArray[np.uint8]
# Structured arrays [N], one entry a strength. Of projections: the fields `made`, `found`, `box`, `marks`, `ssim`,
# `features`, and `by NAME` for each recogniser. Of clouds: `made`, and `seen NAME` and `by NAME` for each recogniser of
# shape.
Record = NDArray[np.void]
Swept = list[Cloud | None]  # anonymised clouds by strength; None: the method cannot work
CONFIDENCE = 0.9  # of a detection
_LOOK = 320  # projections are searched at this longer side, pixels, in one pass
_FLOOR = 0.02  # factors of tapering below which a point is not brought back: it would fly away with its rounding
SQUEEZED = 512  # features of SqueezeNet, which stands in for Inception
_LEAST = 16  # pixels of the shortest side in which SSIM is taken; its window has 11


# -- treatments -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inverse:
    """An attacker who has the cloud and knows the strength (as who tries all 35) and the target."""

    method: str  # that is taken back
    note: str  # what is done, for the report
    undo: Callable[[Any, Cloud, Cloud], Cloud]  # anonymiser, the clear face (to know how a target lay), what it became
    exact: bool = False  # it gives the face back, wherever that is possible; quick, so tried at every strength


INVERSES = {
    "untaper": Inverse(
        "tapering", "the inverse of tapering", lambda made, clear, cloud: untaper(cloud, made.r, floor=_FLOOR), True
    ),
    "unmerge": Inverse(
        "merge-2-faces",
        "that of merge-2-faces, by whoever has the target's scan and knows how it was laid",
        lambda made, clear, cloud: unmerge(cloud, made.weight, made.target, made.registered(clear).transform),
        True,
    ),
    "unsmooth": Inverse(
        "smooth-knn", "SmoothKNN's means undone step by step", lambda made, clear, cloud: unsmooth(cloud, made.k)
    ),
}


class Treatment(NamedTuple):
    """What is done to a face at some strengths."""

    method: str
    attacker: str  # who takes it back, of `INVERSES`; "": nobody
    strengths: tuple[int, ...]


def treatments_of(config: CloudStudyConfig, *, gallery: bool = False, costly: bool = False) -> list[Treatment]:
    """All of a study: of probes, or of a gallery, which nobody takes back; `costly`: at its costly strengths alone."""
    every = tuple(sorted(config.strengths))
    return [
        Treatment(
            method,
            attacker,
            config.costly_strengths if costly or (attacker and not INVERSES[attacker].exact) else every,
        )
        for method in config.methods
        for attacker in ("", *(name for name, inverse in INVERSES.items() if inverse.method == method and not gallery))
    ]


def anonymiser(method: str, strength: int, *, seed: int = 0, target: Cloud | None = None) -> CloudAnonymizer:
    made = CLOUD_ANONYMIZERS[method].of_strength(strength, seed=seed)
    return made if target is None else made.with_target(target)


def sweep(
    method: str, strengths: Iterable[int], cloud: Cloud, *, seed: int = 0, target: Cloud | None = None, name: str = ""
) -> Swept:
    """A cloud under one method at several strengths; neighbours and registrations are looked for once."""
    made = [anonymiser(method, strength, seed=seed, target=target) for strength in strengths]
    if method == "smooth-knn":
        return _smoothed([smoother.settings()["k"] for smoother in made], cloud)
    found: Swept = []
    for anonymise in made:
        try:
            found.append(anonymise(cloud, name=name))
        except InputError:
            found.append(None)
    return found


def _smoothed(sizes: list[int], cloud: Cloud) -> Swept:
    """SmoothKNN at several k, by running sums over the neighbours of the largest."""
    means = {k: np.empty((len(cloud), 3 if cloud.colors is None else 6)) for k in sizes if k <= len(cloud)}
    centre = cloud.points.mean(axis=0)  # about which sums of many lose fewer digits
    values = cloud.points - centre if cloud.colors is None else np.hstack([cloud.points - centre, cloud.colors])
    rows = cKDTree(cloud.points).query(cloud.points, max(means, default=1))[1].reshape(len(cloud), -1)
    for column, channel in enumerate(values.T):
        sums = np.cumsum(channel[rows], axis=1)
        for k, mean in means.items():
            mean[:, column] = sums[:, k - 1] / k
    made = {
        k: cloud.with_points(mean[:, :3] + centre, None if cloud.colors is None else rounded_colors(mean[:, 3:]))
        for k, mean in means.items()
    }
    return [made.get(k) for k in sizes]


# -- who looks at pictures --------------------------------------------------------------------------------------------


@dataclass
class PictureJudges:
    """A detector, recognisers, and Inception where its weights are here, else SqueezeNet."""

    readers: Sequence[Reader]
    detector: FaceDetector  # in one pass
    perception: Inception | SqueezeNet | None = None

    @classmethod
    def open(cls, config: CloudStudyConfig) -> PictureJudges:
        """Those a configuration names; one that is not available here is a `UsageError`."""
        readers = get_readers(config.recognisers)
        detector = quick(get_detector(config.detector, threshold=CONFIDENCE), _LOOK)
        found = Judges.find()
        return cls(readers, detector, found.inception or found.squeezenet)

    @property
    def key(self) -> list[Any]:
        """Of everything that a record depends on besides the image; JSON-ready."""
        return [[reader.digest for reader in self.readers], self.detector.name, type(self.perception).__name__]

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        fields: list[Any] = [("made", bool), ("found", bool), ("box", "f4", (4,)), ("marks", "f4", (5, 2))]
        fields.append(("ssim", "f4"))
        blank = np.full((112, 112, 3), 255, np.uint8)
        for reader in self.readers:
            length = reader.recognizer.embed(blank, ARCFACE_POINTS[None]).shape[1]
            fields.append((f"by {reader.name}", "f4", (length,)))
        if self.perception is not None:
            fields.append(("features", "f2", (2048 if isinstance(self.perception, Inception) else SQUEEZED,)))
        return np.dtype(fields)

    def read(self, images: Sequence[Image], clear: tuple[Image, Record] | None = None) -> Record:
        """What is read in projections H×W×3 uint8 RGB; `clear` is the projection and record that SSIM is taken to.

        Where no face is found, recognisers read the place of the face in the clear projection, or the whole image.
        """
        out: Record = np.zeros(len(images), self.dtype)
        out["made"], out["ssim"] = True, np.nan
        stack = np.stack(images)
        height, width = stack.shape[1:3]
        # Of several faces the one nearest to here is taken.
        near, lost = np.full((5, 2), (width / 2, height / 2), np.float32), _whole(stack[0])
        if clear is not None and clear[1]["found"][0]:
            near = lost = clear[1]["marks"][0]
        seen = detect_faces(self.detector, stack, np.broadcast_to(near, (len(stack), 5, 2)))
        out["found"], out["box"], out["marks"] = seen.found, seen.boxes, seen.landmarks
        marks = np.where(seen.found[:, None, None], seen.landmarks, lost)
        for reader in self.readers:
            out[f"by {reader.name}"] = reader.embed_each(stack, marks)
        if clear is not None:
            out["ssim"] = _likeness(clear, stack)
        if self.perception is not None:
            out["features"] = self.perception.features(stack)
        return out

    def read_photo(self, image: Image, detector: FaceDetector) -> Record:
        """What is read in a gallery photo: a record [1]; of the whole image where no face is found."""
        faces = detector.detect(image)
        record: Record = np.zeros(1, self.dtype)
        record["made"], record["found"] = True, bool(faces)
        marks = faces[0].landmarks if faces else _whole(image)
        for reader in self.readers:
            record[f"by {reader.name}"] = reader.embed_each(image[None], marks[None])
        return record


def _whole(image: Image) -> NDArray[np.float32]:
    """[5,2]: landmarks by which a recogniser reads a whole image: a square about it, of its longer side."""
    height, width = image.shape[:2]
    side = max(height, width)
    corner = np.array([width - side, height - side]) / 2
    return ((np.asarray(ARCFACE_POINTS) + 0.5) * side / 112 + corner - 0.5).astype(np.float32)


def _likeness(clear: tuple[Image, Record], images: NDArray[np.uint8]) -> NDArray[np.float64]:
    """[N] SSIM within the box of the clear projection; all of it, where it has none."""
    image, record = clear
    height, width = image.shape[:2]
    box = record["box"][0] if record["found"][0] else np.array([0, 0, width, height])
    x0, y0, x1, y1 = box.astype(np.float64)
    left, top = max(int(np.floor(x0)), 0), max(int(np.floor(y0)), 0)
    right, bottom = max(int(np.ceil(x1)), left + _LEAST), max(int(np.ceil(y1)), top + _LEAST)
    part = images[:, top:bottom, left:right]
    return ssim(np.broadcast_to(image[top:bottom, left:right], part.shape), part)


# -- who compares shapes ----------------------------------------------------------------------------------------------


def read_shapes(clouds: Sequence[Cloud | None]) -> Record:
    """What recognisers of shape see in clouds (None: none was made)."""
    # Depths are millimetres; unit vectors need fewer digits.
    fields: list[Any] = [("made", bool)]
    for name, length in DESCRIPTIONS.items():
        fields += [(f"seen {name}", bool), (f"by {name}", "f4" if name == "depth" else "f2", (length,))]
    out: Record = np.zeros(len(clouds), fields)
    for place, cloud in enumerate(clouds):
        if cloud is None:
            continue
        out["made"][place] = True
        with contextlib.suppress(InputError):  # it has no upper face
            for name, vector in describe(cloud).items():
                out[f"seen {name}"][place], out[f"by {name}"][place] = True, vector
    return out


def compare_shapes(name: str, record: Record, gallery: Record) -> NDArray[np.float32]:
    """[P,G] scores; a gallery cloud without an upper face is unlike everybody, and no part of the mean face."""
    seen = gallery[f"seen {name}"]
    scores = np.full((len(record), len(gallery)), -1e9, np.float32)
    known, probes = (some[f"by {name}"].astype(np.float32) for some in (gallery[seen], record))
    scores[:, seen] = compare_descriptions(known, probes)
    return scores


# -- one scan ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class CloudStudy:
    """The scans of a study and who looks at them; one a process."""

    config: CloudStudyConfig
    clouds: CloudSet
    judges: PictureJudges

    def __post_init__(self) -> None:
        self._remembered = lru_cache(4)(self._prepare)

    def prepared(self, row: int) -> PreparedFace:
        """A scan in the canonical frame, thinned, without outliers, in two parts, with colours."""
        try:
            return self._remembered(row)
        except InputError as error:
            raise InputError(f"{self.clouds.scans[row].name}: {error}") from None

    def _prepare(self, row: int) -> PreparedFace:
        cloud, landmarks = self.clouds.scans[row].load()
        made = prepare(Placed(cloud, np.eye(4), "given") if self.config.prepared else canonical(cloud, landmarks))
        if made.inner.colors is not None:
            return made
        whole, count = shaded(merged(made.inner, made.outer)), len(made.inner)
        return replace(made, inner=whole.take(np.arange(count)), outer=whole.take(np.arange(count, len(whole))))

    @cached_property
    def target(self) -> Cloud | None:
        """The inner part of the face that merge-2-faces mixes in."""
        return None if self.clouds.target is None else self.prepared(self.clouds.target).inner

    def _drawing(self, row: int, method: str) -> dict[str, Any]:
        target = self.target if method == "merge-2-faces" else None
        return {"seed": self.config.seed, "target": target, "name": self.clouds.scans[row].name}

    def swept(self, row: int, method: str, strengths: Iterable[int]) -> Swept:
        """The inner part of a scan under one method at several strengths."""
        return sweep(method, strengths, self.prepared(row).inner, **self._drawing(row, method))

    def treated(self, row: int, how: Treatment) -> Swept:
        """The inner part of a scan after a treatment, at each of its strengths."""
        made = self.swept(row, how.method, how.strengths)
        if not how.attacker:
            return made
        clear, target = self.prepared(row).inner, self.target if how.method == "merge-2-faces" else None
        undo = INVERSES[how.attacker].undo
        return [
            None if cloud is None else undo(anonymiser(how.method, strength, target=target), clear, cloud)
            for strength, cloud in zip(how.strengths, made, strict=True)
        ]

    def picture(self, row: int, inner: Cloud | None = None, **drawn: Any) -> Image:
        """The projection of a scan: clear, or with another inner part."""
        parts = self.prepared(row)
        return project(merged(parts.inner if inner is None else inner, parts.outer), **drawn)

    def picture_of(self, row: int, inner: Cloud | None, method: str = "", strength: int = 1) -> Image:
        """As the thesis draws a method's result; the outer part alone, or nothing, where nothing could be made."""
        outer = self.prepared(row).outer
        if inner is not None:
            return self.picture(row, inner, **anonymiser(method, strength).drawn_with())
        return project(outer) if len(outer) else np.full_like(self.picture(row), 255)

    def read(self, row: int, images: Sequence[Image], made: NDArray[np.bool_], clear: Record) -> Record:
        """What is read in projections of a treated scan: a record [N]; `clear` is the record of its clear one."""
        record = self.judges.read(images, (self.picture(row), clear))
        record["made"] = made
        return record

    def pictured(self, row: int, how: Treatment, clear: Record) -> Record:
        """What is read in a scan's projections after a treatment: a record [strengths]."""
        clouds = self.treated(row, how)
        images = [
            self.picture_of(row, cloud, how.method, strength)
            for cloud, strength in zip(clouds, how.strengths, strict=True)
        ]
        return self.read(row, images, np.array([cloud is not None for cloud in clouds]), clear)

    def photo(self, index: int) -> Record:
        """What is read in a gallery photo: a record [1]."""
        path = self.clouds.photos[index].path
        assert path is not None
        return self.judges.read_photo(read_image(path).rgb, get_detector(self.config.detector))

    def seconds(self, row: int, method: str) -> NDArray[np.float64]:
        """[strengths of the study] seconds of each anonymisation, nothing remembered; NaN where it cannot work."""
        inner, drawing = self.prepared(row).inner, self._drawing(row, method)
        name, strengths, times = drawing.pop("name"), sorted(self.config.strengths), []
        for strength in (strengths[0], *strengths):  # once for what is imported on first use
            made, fresh = anonymiser(method, strength, **drawing), inner.take(np.roll(np.arange(len(inner)), strength))
            begun, worked = time.perf_counter(), False
            with contextlib.suppress(InputError):
                made(fresh, name=name)
                worked = True
            times.append(time.perf_counter() - begun if worked else np.nan)
        return np.array(times[1:])

    def shaped(self, row: int, how: Treatment | None = None) -> Record:
        """What is read in a scan's clouds, clear [1] or after a treatment [strengths]."""
        return read_shapes([self.prepared(row).inner] if how is None else self.treated(row, how))

    def key(self, row: int, how: Treatment | None = None) -> list[Any]:
        """JSON-ready: what the clouds of a scan depend on, clear or after a treatment, and who reads them."""
        scans, target, config = self.clouds.scans, self.clouds.target, self.config
        key = [__version__, scans[row].digest, config.prepared, *self.judges.key]
        if how is not None:
            mixed = scans[target].digest if how.method == "merge-2-faces" and target is not None else None
            key += [list(how), config.seed, scans[row].name, mixed]
        return key


@lru_cache(maxsize=1)
def open_study(config: CloudStudyConfig) -> CloudStudy:
    """The study of a configuration in this process."""
    return CloudStudy(config, open_clouds(config), PictureJudges.open(config))


# -- the auto-encoder of the thesis (§4.3.5): learnt from some people, tried on others ---------------------------------

Images = NDArray[np.uint8]

# Shares of the people that are tried on, and that training is watched on (§4.3.5.1: 80, 10, 10 %).
_TESTED, _WATCHED = 0.1, 0.1
_WIDEST = 10.0  # degrees of yaw of the outermost views
# Side of the square about the nose tip that the network sees, pixels; the thesis has the whole picture.
_WINDOW = 256
# Rows and columns of that square in a projection, in whose middle the nose tip lies.
_MIDDLE = tuple(slice((length - _WINDOW) // 2, (length + _WINDOW) // 2) for length in THESIS_SIZE[::-1])


@dataclass(frozen=True)
class CloudGuesses:
    """What the auto-encoder's guesses are read as."""

    probes: NDArray[np.intp]  # [T] places of the tried probes among the study's
    records: dict[tuple[str, int], Record]  # (method, strength) → [T]
    record: dict[str, Any]  # of the training, with "people": how many it learnt from, and was tried on


def split(people: NDArray[np.int64], seed: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Who is learnt from (and watched on), and who is tried on: disjoint people of the probes' [P]."""
    known = np.random.default_rng([seed, 80_10_10]).permutation(np.unique(people))
    if len(known) < 3:
        raise UsageError(f"{len(known)} people cannot be split into learnt from, watched on and tried; give at least 3")
    tried = max(1, round(_TESTED * len(known)))
    return np.sort(known[tried:]), np.sort(known[:tried])


def training_rows(study: CloudStudy) -> tuple[int, ...]:
    """Rows of the scans that the auto-encoder learns from: the probes of its people."""
    people = study.clouds.numbers(study.clouds.probes)
    learnt, _ = split(people, study.config.seed)
    return tuple(row for row, who in zip(study.clouds.probes, people, strict=True) if who in learnt)


def training_key(study: CloudStudy, row: int) -> list[Any]:
    """JSON-ready: what `training_views` depends on."""
    settings, strengths = _settings(study)
    every = [study.key(row, Treatment(method, "", strengths)) for method in study.config.methods]
    return ["training views", every, settings.views, settings.size]


def training_views(study: CloudStudy, row: int) -> Images:
    """Views of a scan that the auto-encoder learns from [1 + methods·strengths, views, S, S, 3], clear ones first."""
    settings, strengths = _settings(study)
    parts = study.prepared(row)
    out = [_views(merged(parts.inner, parts.outer), settings)]
    for method in study.config.methods:
        for strength, made in zip(strengths, study.swept(row, method, strengths), strict=True):
            if made is None:  # black, which no projection is: `_pairs` leaves it out
                out.append(np.zeros_like(out[0]))
            else:
                out.append(_views(merged(made, parts.outer), settings, **anonymiser(method, strength).drawn_with()))
    return np.stack(out)


def train_and_guess(
    study: CloudStudy, learnt: Sequence[Images], clear: Record, out: Path, say: Callable[[str], None]
) -> CloudGuesses:
    """Train (or resume) the auto-encoder and read its guesses at the people it did not learn from.

    It has the `training_views` of each of `training_rows`, and the records [P] of the clear projections of the probes.
    """
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import ThesisAutoEncoder
    from ficgan.lab.attacks.learned import digest_of

    settings, strengths = _settings(study)
    people = study.clouds.numbers(study.clouds.probes)
    learning, tried = split(people, study.config.seed)
    pairs = _pairs(study, learnt)
    attacker = ThesisAutoEncoder(
        size=settings.size,
        epochs=settings.epochs,
        batch=8,
        minutes=settings.minutes,
        held=min(0.5, _WATCHED * (len(learning) + len(tried)) / len(learning)),
        seed=study.config.seed,
        device=settings.device,
    )
    workspace = out / "attacker" / digest_of(attacker, pairs)
    trained = attacker.fit(pairs, workspace=workspace, progress=lambda done, of, text: say(f"{text}: {done}/{of}"))
    probes = np.flatnonzero(np.isin(people, tried))
    records: dict[tuple[str, int], list[Record]] = {}
    for place in probes:
        row = study.clouds.probes[place]
        name = study.clouds.scans[row].name
        say(f"guessing at {name}")
        for method in study.config.methods:
            swept = zip(strengths, study.swept(row, method, strengths), strict=True)
            images = [study.picture_of(row, made, method, strength) for strength, made in swept]
            names = tuple(f"{name} {method} {strength}" for strength in strengths)
            guesses = trained.guess(Faces(_windows(np.stack(images), settings.size), names))
            for image, guess in zip(images, guesses, strict=True):
                image[_MIDDLE] = resize(guess, _WINDOW)
            read = study.read(row, images, np.ones(len(images), bool), clear[[place]])
            for strength, record in zip(strengths, read, strict=True):
                records.setdefault((method, strength), []).append(record[None])
    record = {
        **{k: v for k, v in trained.record.items() if k != "plan"},
        **trained.settings(),
        "people": {"learnt from or watched on": len(learning), "tried on": len(tried)},
        "views": settings.views,
        "strengths": list(strengths),
    }
    return CloudGuesses(probes, {key: np.concatenate(some) for key, some in records.items()}, record)


def _settings(study: CloudStudy) -> tuple[AutoEncoderConfig, tuple[int, ...]]:
    settings = study.config.attack
    assert settings is not None
    return settings, tuple(sorted({*settings.strengths} & {*study.config.strengths}))


def _pairs(study: CloudStudy, learnt: Sequence[Images]) -> Pairs:
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import Pairs

    seen, clear, people = [], [], []
    for block, person in zip(learnt, study.clouds.numbers(training_rows(study)), strict=True):
        kept = block[1:][block[1:].reshape(len(block) - 1, -1).any(axis=1)]
        seen.append(kept.reshape(-1, *block.shape[2:]))
        clear.append(np.tile(block[0], (len(kept), 1, 1, 1)))
        people.append(np.full(len(seen[-1]), person))
    whose = np.concatenate(people)
    names = tuple(str(index) for index in range(len(whose)))
    return Pairs(Faces(np.concatenate(seen), names, people=whose), Faces(np.concatenate(clear), names, people=whose))


def _views(cloud: Cloud, settings: AutoEncoderConfig, **drawn: Any) -> Images:
    angles = np.linspace(-_WIDEST, _WIDEST, settings.views) if settings.views > 1 else [0.0]
    return _windows(np.stack([project(cloud, yaw=float(angle), **drawn) for angle in angles]), settings.size)


def _windows(images: Images, size: int) -> Images:
    """[N,H,W,3] → [N,size,size,3]: the squares about the nose tip."""
    return np.stack([resize(image[_MIDDLE], size) for image in images])
