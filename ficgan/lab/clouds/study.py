"""What is done to one scan, and what detectors and recognisers read of the result: in pictures, and by shape."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

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
from ficgan.lab.run import Say
from ficgan.pointcloud import PreparedFace, prepare
from ficgan.pointcloud.cloud import Cloud, merged, without_duplicates
from ficgan.pointcloud.frame import Placed, canonical
from ficgan.pointcloud.geometry import DESCRIPTIONS, THESIS_SIZE, describe, project, shaded
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, CloudAnonymizer, SmoothKNN, unmerge, unsmooth, untaper

Image = NDArray[np.uint8]  # [H,W,3] RGB, or several
# Structured arrays. Of projections: the fields `made`, `found`, `box`, `marks`, `ssim`, `features`, and `by NAME` for
# each recogniser. Of clouds: `made`, and `seen NAME` and `by NAME` for each recogniser of shape.
Record = NDArray[np.void]
Swept = list[tuple[CloudAnonymizer, Cloud | None]]  # methods, and what they made; None: they cannot work
IN_SPACE = " (3D)"  # ends the names of what is read in the clouds themselves
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

    @property
    def name(self) -> str:
        return f"{self.method} {self.attacker}".strip()


def treatments_of(config: CloudStudyConfig, *, costly: bool = False) -> list[Treatment]:
    """All treatments of a study; `costly`: at its costly strengths alone, as slow inverses always are."""
    out = []
    for method in config.methods:
        for attacker in ("", *(name for name, inverse in INVERSES.items() if inverse.method == method)):
            few = costly or (attacker and not INVERSES[attacker].exact)
            out.append(Treatment(method, attacker, config.costly_strengths if few else tuple(sorted(config.strengths))))
    return out


def sweep(made: Sequence[CloudAnonymizer], cloud: Cloud, name: str) -> Swept:
    """A cloud under one method at several strengths; SmoothKNN's neighbours are looked for once."""
    found: dict[CloudAnonymizer, Cloud] = {}
    if smooth := [one for one in made if isinstance(one, SmoothKNN) and one.k <= len(cloud)]:
        rows = cKDTree(cloud.points).query(cloud.points, range(1, max(one.k for one in smooth) + 1))[1]
        ends, sizes = [one.k - 1 for one in smooth], np.array([one.k for one in smooth])
        means = [np.cumsum(column[rows], axis=1)[:, ends] / sizes for column in cloud.columns.T]
        found |= {one: Cloud.of_columns(mean) for one, mean in zip(smooth, np.stack(means).T, strict=True)}
    for anonymise in set(made) - set(smooth):
        with contextlib.suppress(InputError):
            found[anonymise] = anonymise(cloud, name=name)
    return [(one, found.get(one)) for one in made]


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

    def read(self, images: Sequence[Image], clear: tuple[Image, Record] | None = None) -> Record:
        """What is read in projections H×W×3 uint8 RGB; `clear` is the projection and record that SSIM is taken to.

        Where no face is found, recognisers read the place of the face in the clear projection, or the whole image.
        """
        stack = np.stack(images)
        height, width = stack.shape[1:3]
        # Of several faces the one nearest to here is taken.
        near, lost = np.full((5, 2), (width / 2, height / 2), np.float32), _whole(stack[0])
        if clear is not None and clear[1]["found"][0]:
            near = lost = clear[1]["marks"][0]
        seen = detect_faces(self.detector, stack, np.broadcast_to(near, (len(stack), 5, 2)))
        marks = np.where(seen.found[:, None, None], seen.landmarks, lost)
        likeness = np.full(len(stack), np.nan) if clear is None else _likeness(clear, stack)
        fields: dict[str, Any] = {"made": np.ones(len(stack), bool), "found": seen.found}
        fields |= {"box": seen.boxes, "marks": seen.landmarks, "ssim": likeness.astype(np.float32)}
        fields |= {f"by {reader.name}": reader.embed_each(stack, marks) for reader in self.readers}
        if self.perception is not None:
            fields["features"] = self.perception.features(stack).astype(np.float16)
        return _record(fields)


def _record(fields: Mapping[str, NDArray[Any]]) -> Record:
    """Arrays [N,…] by name as one structured array [N]."""
    dtype: Any = [(name, values.dtype, values.shape[1:]) for name, values in fields.items()]
    out: Record = np.zeros(len(fields["made"]), dtype)
    for name, values in fields.items():
        out[name] = values
    return out


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


def read_shapes(clouds: Sequence[Cloud | None]) -> Record:
    """What recognisers of shape see in clouds (None: none was made)."""
    fields = {"made": np.array([cloud is not None for cloud in clouds])}
    for name, length in DESCRIPTIONS.items():
        # Depths are millimetres; unit vectors need fewer digits.
        kind = np.float32 if name == "depth" else np.float16
        fields |= {f"seen {name}": np.zeros(len(clouds), bool), f"by {name}": np.zeros((len(clouds), length), kind)}
    for place, cloud in enumerate(clouds):
        with contextlib.suppress(InputError):  # it has no upper face
            for name, vector in ({} if cloud is None else describe(cloud)).items():
                fields[f"seen {name}"][place], fields[f"by {name}"][place] = True, vector
    return _record(fields)


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
        given = Placed(without_duplicates(cloud)[0], np.eye(4), "given") if self.config.prepared else None
        made = prepare(given or canonical(cloud, landmarks))
        if made.inner.colors is not None:
            return made
        whole, count = shaded(merged(made.inner, made.outer)), len(made.inner)
        return replace(made, inner=whole.take(np.arange(count)), outer=whole.take(np.arange(count, len(whole))))

    def anonymisers(self, method: str, strengths: Sequence[int]) -> list[CloudAnonymizer]:
        """A method at several strengths, with the study's seed and target."""
        made = [CLOUD_ANONYMIZERS[method].of_strength(strength, seed=self.config.seed) for strength in strengths]
        if self.clouds.target is None:
            return made
        target = self.prepared(self.clouds.target).inner
        return [one.with_target(target) for one in made]

    def swept(self, row: int, method: str, strengths: Sequence[int]) -> Swept:
        """The inner part of a scan under one method at several strengths."""
        return sweep(self.anonymisers(method, strengths), self.prepared(row).inner, self.clouds.scans[row].name)

    def picture(self, row: int, inner: Cloud | None = None, **drawn: Any) -> Image:
        """The projection of a scan: clear, or with another inner part."""
        parts = self.prepared(row)
        return project(merged(parts.inner if inner is None else inner, parts.outer), **drawn)

    def pictures(self, row: int, swept: Swept) -> list[Image]:
        """As the thesis draws the results of methods; the surroundings alone where none could be made."""
        return [
            self.surroundings(row) if cloud is None else self.picture(row, cloud, **how.drawn_with())
            for how, cloud in swept
        ]

    def surroundings(self, row: int) -> Image:
        """The projection of the outer part alone; white where there is none."""
        outer = self.prepared(row).outer
        return project(outer) if len(outer) else np.full_like(self.picture(row), 255)

    def treatments(self, row: int) -> list[Treatment]:
        """Of a scan; the gallery is enrolled at the costly strengths alone, and nobody takes its treatments back."""
        if row in self.clouds.gallery:
            return [how for how in treatments_of(self.config, costly=True) if not how.attacker]
        return treatments_of(self.config)

    def seconds(self, row: int, method: str) -> NDArray[np.float64]:
        """[strengths of the study] seconds of each anonymisation, nothing remembered; NaN where it cannot work."""
        inner, strengths, times = self.prepared(row).inner, sorted(self.config.strengths), []
        for strength in (strengths[0], *strengths):  # once for what is imported on first use
            (made,) = self.anonymisers(method, [strength])
            fresh, begun, worked = inner.take(np.roll(np.arange(len(inner)), strength)), time.perf_counter(), False
            with contextlib.suppress(InputError):
                made(fresh, name=self.clouds.scans[row].name)
                worked = True
            times.append(time.perf_counter() - begun if worked else np.nan)
        return np.array(times[1:])

    def key(self, row: int) -> list[Any]:
        """JSON-ready: what `read_scan` depends on."""
        clouds, config = self.clouds, self.config
        scan, target = clouds.scans[row], None if clouds.target is None else clouds.scans[clouds.target].digest
        made = [self.treatments(row), config.costly_strengths, config.seed, target]
        timed = row in clouds.probes[: config.timed]
        views = None
        if config.attack and row in training_rows(self):
            views = config.attack.model_dump(include={"views", "size", "strengths"})
        return ["scan", __version__, scan.digest, scan.name, config.prepared, self.judges.key, made, timed, views]


@lru_cache(maxsize=1)
def open_study(config: CloudStudyConfig) -> CloudStudy:
    """The study of a configuration in this process."""
    return CloudStudy(config, open_clouds(config), PictureJudges.open(config))


def read_photo(config: CloudStudyConfig, place: int, say: Say) -> Record:
    """What is read in a gallery photo: a record [1]; of the whole photo where no face is found."""
    study = open_study(config)
    path = study.clouds.photos[place].path
    assert path is not None
    image = read_image(path).rgb
    faces = get_detector(config.detector).detect(image)
    marks = faces[0].landmarks if faces else _whole(image)
    read = {f"by {reader.name}": reader.embed_each(image[None], marks[None]) for reader in study.judges.readers}
    return _record({"made": np.ones(1, bool), **read})


def read_scan(config: CloudStudyConfig, row: int, say: Say) -> dict[str, NDArray[Any]]:
    """All that is read in a scan, records by name.

    Of pictures: "clear" [1], "surroundings" [1] and each treatment [its strengths]; of clouds the same with `IN_SPACE`
    behind the name, at the costly strengths alone. "seconds METHOD" [strengths] and the auto-encoder's "views" where
    the scan is for them.
    """
    study = open_study(config)
    seen = study.picture(row)
    clear = study.judges.read([seen])
    around = study.judges.read([study.surroundings(row)], (seen, clear))
    inner = study.prepared(row).inner
    out: dict[str, NDArray[Any]] = {"clear": clear, "surroundings": around, "clear" + IN_SPACE: read_shapes([inner])}
    for how in study.treatments(row):
        say(f"{study.clouds.scans[row].name}: {how.name}")
        swept = study.swept(row, how.method, how.strengths)
        if how.attacker:
            undo = INVERSES[how.attacker].undo
            swept = [(one, None if cloud is None else undo(one, inner, cloud)) for one, cloud in swept]
        record = study.judges.read(study.pictures(row, swept), (seen, clear))
        record["made"] = [cloud is not None for _, cloud in swept]
        few = [cloud for (_, cloud), at in zip(swept, how.strengths, strict=True) if at in config.costly_strengths]
        out |= {how.name: record, how.name + IN_SPACE: read_shapes(few)}
    if row in study.clouds.probes[: config.timed]:
        out |= {f"seconds {method}": study.seconds(row, method) for method in config.methods}
    if row in training_rows(study):
        out["views"] = training_views(study, row)
    return out


# -- the auto-encoder of the thesis (§4.3.5): learnt from some people, tried on others ---------------------------------

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
    """Rows of the scans that the auto-encoder learns from: the probes of its people; none without an attack."""
    if study.config.attack is None:
        return ()
    people = study.clouds.numbers(study.clouds.probes)
    learnt, _ = split(people, study.config.seed)
    return tuple(row for row, who in zip(study.clouds.probes, people, strict=True) if who in learnt)


def training_views(study: CloudStudy, row: int) -> Image:
    """Views of a scan that the auto-encoder learns from [1 + what was made, views, S, S, 3], clear ones first."""
    settings, strengths = _settings(study)
    angles = np.linspace(-_WIDEST, _WIDEST, settings.views) if settings.views > 1 else np.zeros(1)

    def views(inner: Cloud | None, **drawn: Any) -> Image:
        return _windows(np.stack([study.picture(row, inner, yaw=float(a), **drawn) for a in angles]), settings.size)

    out = [views(None)]
    for method in study.config.methods:
        swept = study.swept(row, method, strengths)
        out += [views(cloud, **how.drawn_with()) for how, cloud in swept if cloud is not None]
    return np.stack(out)


def train_and_guess(
    study: CloudStudy, scans: Mapping[int, Mapping[str, Any]], out: Path, say: Callable[[str], None]
) -> CloudGuesses:
    """Train (or resume) the auto-encoder and read its guesses at people it did not learn from; `read_scan` by row."""
    from ficgan.anonymizers import Faces
    from ficgan.lab.attacks import Pairs, ThesisAutoEncoder
    from ficgan.lab.attacks.learned import digest_of

    settings, strengths = _settings(study)
    people = study.clouds.numbers(study.clouds.probes)
    learning, tried = split(people, study.config.seed)
    seen, plain, whose, rows = [], [], list[int](), training_rows(study)
    for row, person in zip(rows, study.clouds.numbers(rows).tolist(), strict=True):
        clear, *made = scans[row]["views"]
        seen += made
        plain += [clear] * len(made)
        whose += [person] * (len(made) * settings.views)
    names, who = tuple(map(str, range(len(whose)))), np.array(whose)
    pairs = Pairs(*(Faces(np.concatenate(some), names, people=who) for some in (seen, plain)))
    held = min(0.5, _WATCHED * (len(learning) + len(tried)) / len(learning))
    given = settings.model_dump(include={"size", "epochs", "minutes", "device"})
    attacker = ThesisAutoEncoder(batch=8, held=held, seed=study.config.seed, **given)
    workspace = out / "attacker" / digest_of(attacker, pairs)
    trained = attacker.fit(pairs, workspace=workspace, progress=lambda done, of, text: say(f"{text}: {done}/{of}"))
    probes = np.flatnonzero(np.isin(people, tried))
    records: dict[tuple[str, int], list[Record]] = {}
    for row in np.array(study.clouds.probes)[probes].tolist():
        name, clear = study.clouds.scans[row].name, (study.picture(row), scans[row]["clear"])
        say(f"guessing at {name}")
        for method in study.config.methods:
            images = study.pictures(row, study.swept(row, method, strengths))
            names = tuple(f"{name} {method} {strength}" for strength in strengths)
            guesses = trained.guess(Faces(_windows(np.stack(images), settings.size), names))
            for image, guess in zip(images, guesses, strict=True):
                image[_MIDDLE] = resize(guess, _WINDOW)
            for strength, record in zip(strengths, study.judges.read(images, clear), strict=True):
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


def _windows(images: Image, size: int) -> Image:
    """[N,H,W,3] → [N,size,size,3]: the squares about the nose tip."""
    return np.stack([resize(image[_MIDDLE], size) for image in images])
