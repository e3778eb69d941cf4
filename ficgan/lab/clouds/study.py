"""Steps of the study of point clouds: scans prepared, treated, projected, and read by detectors and recognisers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.arrays import resize
from ficgan.errors import InputError
from ficgan.faces import DetectAt, FaceDetector, get_detector
from ficgan.faces.alignment import ARCFACE_POINTS
from ficgan.faces.models import find_model
from ficgan.images import read_image
from ficgan.lab.clouds.sets import CloudSet, CloudStudyConfig, open_clouds
from ficgan.lab.clouds.treatments import INVERSES, Swept, Treatment, drawn_as, inverse_key, sweep, take_back, time_alone
from ficgan.lab.metrics.pictures import SqueezeNet, detect_faces, ssim
from ficgan.lab.readers import Reader, get_readers
from ficgan.lab.run import Store, files_digest
from ficgan.pointcloud.cloud import Cloud, closest, merged, with_normals
from ficgan.pointcloud.frame import Placed, canonical
from ficgan.pointcloud.geometry import DESCRIPTIONS, cloud_distances, compare_descriptions, curvature, normal_error
from ficgan.pointcloud.projection import project, shaded
from ficgan.pointcloud.scan import prepare

Image = NDArray[np.uint8]
Record = NDArray[np.void]
"""[N]. Of projections: the fields `made`, `found`, `box`, `marks`, `ssim`, `seconds`, `features`, and `by NAME` for
each recogniser. Of clouds: `made`, those of `DISTORTION`, and `seen NAME` and `by NAME` for each recogniser."""
DISTORTION = ("chamfer", "normal-error", "curvature-error")
_LEAST = 16  # Pixels of the shortest side in which SSIM is taken; its window has 11


@dataclass(frozen=True)
class Template:
    """Where faces lie in clear projections: box [4] x0, y0, x1, y1 and marks [5,2], pixels."""

    box: NDArray[np.float32]
    marks: NDArray[np.float32]

    @classmethod
    def of(cls, clear: Record) -> Template | None:
        """The medians over clear projections in which a face was found, in whole pixels; None where there is none."""
        seen = clear[clear["found"]]
        if not len(seen):
            return None
        return cls(*(np.median(seen[name], axis=0).round().astype(np.float32) for name in ("box", "marks")))

    @property
    def key(self) -> list[Any]:
        """JSON-ready."""
        return [self.box.tolist(), self.marks.tolist()]


@dataclass
class PictureJudges:
    config: CloudStudyConfig
    readers: Sequence[Reader]
    detector: FaceDetector  # in one pass at the study's size and confidence
    squeezenet: SqueezeNet | None = None  # None where its file is not here
    squeezenet_digest: str = ""

    @classmethod
    def open(cls, config: CloudStudyConfig) -> PictureJudges:
        """Those the configuration names; one that is not available here is a `UsageError`."""
        readers = get_readers(config.recognisers)
        detector = get_detector(config.detector, threshold=config.confidence)
        once: Any = getattr(detector, "once", None)
        made = cls(config, readers, DetectAt(once() if once else detector, (config.look, config.look)))
        if (path := find_model("squeezenet*_features.onnx")) is not None:
            made.squeezenet, made.squeezenet_digest = SqueezeNet(path), str(files_digest(str(path)))
        return made

    @property
    def key(self) -> list[Any]:
        """Of everything that a record depends on besides the image; JSON-ready."""
        config = self.config
        return [
            [reader.digest for reader in self.readers],
            self.detector.name,
            config.confidence,
            config.look,
            config.undetected,
            self.squeezenet_digest,
        ]

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        fields: list[Any] = [
            ("made", bool),
            ("found", bool),
            ("box", np.float32, (4,)),
            ("marks", np.float32, (5, 2)),
            ("ssim", np.float32),
            ("seconds", np.float32),
        ]
        blank = np.full((112, 112, 3), 255, np.uint8)
        for reader in self.readers:
            length = reader.recognizer.embed(blank, ARCFACE_POINTS[None]).shape[1]
            fields.append((f"by {reader.name}", np.float32, (length,)))
        if self.squeezenet is not None:
            fields.append(("features", np.float16, (self.squeezenet.read(blank[None]).features.shape[1],)))
        return np.dtype(fields)

    def read(
        self, images: Sequence[Image], template: Template | None, clear: tuple[Image, Record] | None = None
    ) -> Record:
        """What is read in projections H×W×3 uint8 RGB; `clear` is the projection and record that SSIM is taken to."""
        out: Record = np.zeros(len(images), self.dtype)
        out["made"], out["seconds"], out["ssim"] = True, np.nan, np.nan
        if not len(images):
            return out
        stack = np.stack(images)
        height, width = stack.shape[1:3]
        near = np.full((5, 2), (width / 2, height / 2), np.float32)  # of several faces the one nearest to here is taken
        if clear is not None and clear[1]["found"][0]:
            near = clear[1]["marks"][0]
        elif template is not None:
            near = template.marks
        seen = detect_faces(self.detector, stack, np.broadcast_to(near, (len(stack), 5, 2)))
        out["found"], out["box"], out["marks"] = seen.found, seen.boxes, seen.landmarks
        marks = np.where(seen.found[:, None, None], seen.landmarks, self.where_lost(stack[0], template))
        for reader in self.readers:
            each: Any = getattr(reader.recognizer, "embed_each", None)
            pairs = zip(stack, marks, strict=True)
            out[f"by {reader.name}"] = (
                each(stack, marks) if each else [reader.recognizer.embed(x, m[None])[0] for x, m in pairs]
            )
        if clear is not None:
            out["ssim"] = _likeness(clear, stack, template)
        if self.squeezenet is not None:
            side = max(height, width)
            top, left = (side - height) // 2, (side - width) // 2
            around = ((top, side - height - top), (left, side - width - left), (0, 0))
            squares = [resize(np.pad(x, around, constant_values=255), self.squeezenet.size) for x in stack]
            out["features"] = self.squeezenet.read(np.stack(squares)).features
        return out

    def where_lost(self, image: Image, template: Template | None) -> NDArray[np.float32]:
        """[5,2]: at which landmarks an image without a face is read."""
        if template is not None and self.config.undetected == "template":
            return template.marks
        # The whole image as if it were a crop in the recogniser's template: a square about it, of its longer side.
        height, width = image.shape[:2]
        side = max(height, width)
        corner = np.array([width - side, height - side]) / 2
        return ((np.asarray(ARCFACE_POINTS) + 0.5) * side / 112 + corner - 0.5).astype(np.float32)


def _likeness(clear: tuple[Image, Record], images: NDArray[np.uint8], template: Template | None) -> NDArray[np.float64]:
    """[N] SSIM within the box of the clear projection; within the template's, else all of it, where it has none."""
    image, record = clear
    height, width = image.shape[:2]
    box = np.array([0, 0, width, height]) if template is None else template.box
    x0, y0, x1, y1 = (record["box"][0] if record["found"][0] else box).astype(np.float64)
    left, top = max(int(np.floor(x0)), 0), max(int(np.floor(y0)), 0)
    right, bottom = max(int(np.ceil(x1)), left + _LEAST), max(int(np.ceil(y1)), top + _LEAST)
    part = images[:, top:bottom, left:right]
    return ssim(np.broadcast_to(image[top:bottom, left:right], part.shape), part)


@dataclass(frozen=True)
class ClearShape:
    """What anonymised clouds are measured against: a cloud with normals, and its mean curvature, computed once."""

    cloud: Cloud
    curvature: NDArray[np.float64]

    @classmethod
    def of(cls, cloud: Cloud) -> ClearShape:
        fitted = with_normals(cloud)
        return cls(fitted, curvature(fitted)[0])

    def measure(self, cloud: Cloud) -> tuple[float, float, float]:
        """Chamfer distance in mm, normal error in degrees, curvature error in 1/m; NaN where there is no surface."""
        apart = 1000 * cloud_distances(cloud, self.cloud).chamfer
        try:
            fitted = with_normals(cloud)
            rows = closest(self.cloud.points, cloud.points)[1]
            bent = float(np.abs(curvature(fitted)[0] - self.curvature[rows]).mean())
            return apart, normal_error(fitted, self.cloud), bent
        except InputError:  # all on one line
            return apart, float("nan"), float("nan")


def read_shapes(dtype: np.dtype[np.void], clouds: Sequence[Cloud | None], source: ClearShape | None = None) -> Record:
    """What recognisers of shape see in clouds (None: none was made), and how far these are from their source."""
    out: Record = np.zeros(len(clouds), dtype)
    for name in DISTORTION:
        out[name] = np.nan
    for place, cloud in enumerate(clouds):
        out["made"][place] = cloud is not None
        if cloud is None:
            continue
        if source is not None:
            for name, value in zip(DISTORTION, source.measure(cloud), strict=True):
                out[name][place] = value
        for field in dtype.names or ():
            if field.startswith("by "):
                try:
                    out[field][place] = DESCRIPTIONS[field[3:]](cloud)
                    out[f"seen {field[3:]}"][place] = True
                except InputError:  # it has no upper face
                    continue
    return out


def compare_shapes(name: str, record: Record, gallery: Record) -> NDArray[np.float32]:
    """[P,G] scores; a gallery cloud without an upper face is unlike everybody, and no part of the mean face."""
    seen = gallery[f"seen {name}"]
    scores = np.full((len(record), len(gallery)), -1e9, np.float32)
    known, probes = (some[f"by {name}"].astype(np.float32) for some in (gallery[seen], record))
    scores[:, seen] = compare_descriptions(known, probes)
    return scores


_STEPS = 4  # Raised where code that makes what is stored changes its results
_KEPT = 4  # Prepared clouds that are remembered
_PACKED = np.dtype([("made", bool), ("coloured", bool), ("points", np.float32, (3,)), ("colors", np.uint8, (3,))])


@dataclass(frozen=True)
class Parts:
    """A prepared face in the canonical frame: what is anonymised, and what is not, which may be empty."""

    inner: Cloud
    outer: Cloud

    @property
    def whole(self) -> Cloud:
        return merged(self.inner, self.outer)


@dataclass(eq=False)
class CloudStudy:
    config: CloudStudyConfig
    clouds: CloudSet
    judges: PictureJudges
    store: Store
    template: Template | None = None  # None until the clear projections have been read, or where no face is in them

    def __post_init__(self) -> None:
        self._remembered = lru_cache(_KEPT)(self._prepare)
        self._inner = lru_cache(None)(lambda row: self.prepared(row).inner)
        self._clear_shape = lru_cache(1)(lambda row: ClearShape.of(self.prepared(row).inner))

    # -- clouds -------------------------------------------------------------------------------------------------------

    def prepared(self, row: int) -> Parts:
        """A scan in the canonical frame, thinned, without outliers, in two parts, with colours."""
        try:
            return self._remembered(row)
        except InputError as error:
            raise InputError(f"{self.clouds.scans[row].name}: {error}") from None

    def _prepare(self, row: int) -> Parts:
        cloud, landmarks = self.clouds.load(row)
        made = prepare(Placed(cloud, np.eye(4), "given") if self.config.prepared else canonical(cloud, landmarks))
        inner, outer = made.inner, made.outer
        if self.config.shade == "before" and (inner.colors is None or (len(outer) and outer.colors is None)):
            whole = shaded(merged(inner, outer))
            inner, outer = whole.take(np.arange(len(inner))), whole.take(np.arange(len(inner), len(whole)))
        return Parts(inner, outer)

    def inner_parts(self, rows: Iterable[int]) -> list[Cloud]:
        """Inner parts of scans, which are remembered: the same few are needed for every probe."""
        return [self._inner(row) for row in rows]

    @cached_property
    def target(self) -> Cloud | None:
        """The inner part of the face that merge-2-faces mixes in."""
        return None if self.clouds.target is None else self.prepared(self.clouds.target).inner

    @property
    def parrots(self) -> tuple[int, ...]:
        """Rows of the gallery that are also enrolled anonymised."""
        return self.clouds.gallery if self.config.parrot else ()

    def is_timed(self, row: int) -> bool:
        return row in self.clouds.probes[: self.config.timed]

    def _drawing(self, row: int, method: str) -> dict[str, Any]:
        target = self.target if method == "merge-2-faces" else None
        return {"seed": self.config.seed, "target": target, "name": self.clouds.scans[row].name}

    def swept(self, row: int, method: str, degrees: Iterable[int]) -> Swept:
        """The inner part of a scan under one method at several degrees."""
        return sweep(method, degrees, self.prepared(row).inner, **self._drawing(row, method))

    def treated(self, row: int, how: Treatment) -> list[Cloud | None]:
        """The inner part of a scan after a treatment, at each of its degrees."""

        def make() -> list[Cloud | None]:
            made = self.swept(row, how.method, how.degrees)
            return [take_back(self, row, how.attacker, degree, x) if how.attacker else x for degree, x in made]

        if not how.attacker or INVERSES[how.attacker].quick:
            return make()
        key = ["recovered", *self.method_key(row, how)]
        length = len(self.prepared(row).inner)
        return [_unpacked(one) for one in self.kept(key, lambda: np.stack([_packed(one, length) for one in make()]))]

    # -- projections --------------------------------------------------------------------------------------------------

    def picture(self, row: int, inner: Cloud | None = None, **drawn: Any) -> Image:
        """The projection of a scan: clear, or with another inner part."""
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

    def read(self, row: int, images: Sequence[Image], made: NDArray[np.bool_]) -> Record:
        """What is read in projections of a treated scan: a record [N]; not kept."""
        record = self.judges.read(images, self.template, (self.picture(row), self.clear(row)))
        record["made"] = made
        return record

    # -- records, which are kept --------------------------------------------------------------------------------------

    def clear(self, row: int) -> Record:
        """What is read in a scan's clear projection: a record [1]."""

        def read(template: Template | None) -> Record:
            key = ["clear", None if template is None else template.key, *self._scan_key(row)]
            return self.kept(key, lambda: self.judges.read([self.picture(row)], template))

        record = read(None)
        return record if self.template is None or record["found"][0] else read(self.template)

    def photo(self, index: int) -> Record:
        """What is read in a gallery photo: a record [1]; of the whole image where no face is found."""
        photo = self.clouds.photos[index]

        def read() -> Record:
            assert photo.path is not None
            image = read_image(photo.path).rgb
            faces = get_detector(self.config.detector).detect(image)
            record: Record = np.zeros(1, self.judges.dtype)
            record["made"], record["found"] = True, bool(faces)
            marks = faces[0].landmarks if faces else self.judges.where_lost(image, None)
            for reader in self.judges.readers:
                record[f"by {reader.name}"] = reader.recognizer.embed(image, marks[None])
            return record

        return self.kept(["photo", photo.digest, *self.judges.key], read)

    def surroundings(self, row: int) -> Record:
        """What is read where the face is left out, and hair, neck and ears alone are drawn: a record [1]."""
        key = ["surroundings", self._template_key, *self._scan_key(row)]
        return self.kept(key, lambda: self.read(row, [self.picture_of(row, None, "", 0)], np.ones(1, bool)))

    def pictured(self, row: int, how: Treatment) -> Record:
        """What is read in a scan's projections after a treatment: a record [degrees]."""

        def read() -> Record:
            clouds = self.treated(row, how)
            pairs = zip(clouds, how.degrees, strict=True)
            images = [self.picture_of(row, cloud, how.method, degree) for cloud, degree in pairs]
            return self.read(row, images, np.array([cloud is not None for cloud in clouds]))

        return self.kept(["pictured", self._template_key, *self.method_key(row, how)], read)

    def seconds(self, row: int, method: str) -> NDArray[np.float64]:
        """[degrees of the study] time of each anonymisation alone."""
        degrees = tuple(sorted(self.config.degrees))

        def measure() -> NDArray[np.float64]:
            inner, drawing = self.prepared(row).inner, self._drawing(row, method)
            time_alone(method, degrees[0], inner, **drawing)  # what is imported on first use
            return np.array([time_alone(method, degree, inner, **drawing) for degree in degrees])

        return self.kept(["seconds", *self.method_key(row, Treatment(method, degrees=degrees))], measure)

    @cached_property
    def _shapes(self) -> np.dtype[np.void]:
        """Of a record of clouds. Depths are millimetres; shares and unit vectors need fewer digits."""
        assert self.config.geometry is not None
        example = self.prepared(self.clouds.probes[0]).inner
        fields: list[Any] = [("made", bool), *((name, np.float32) for name in DISTORTION)]
        for name in self.config.geometry.recognisers:
            kind = np.float32 if name == "depth" else np.float16
            fields += [(f"seen {name}", bool), (f"by {name}", kind, (len(DESCRIPTIONS[name](example)),))]
        return np.dtype(fields)

    def shaped(self, row: int, how: Treatment | None = None) -> Record:
        """What is read in a scan's clouds, clear [1] or after a treatment [degrees]; distortion is a probe's."""
        assert self.config.geometry is not None
        enrolled = row in self.clouds.gallery

        def read() -> Record:
            if how is None:
                return read_shapes(self._shapes, [self.prepared(row).inner])
            source = None if enrolled or how.attacker else self._clear_shape(row)
            return read_shapes(self._shapes, self.treated(row, how), source)

        of = self._scan_key(row) if how is None else self.method_key(row, how)
        return self.kept(["space", self.config.geometry.recognisers, enrolled, *of], read)

    # -- keys ---------------------------------------------------------------------------------------------------------

    def kept(self, key: list[Any], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return self.store.array([_STEPS, *key], make)

    @property
    def _template_key(self) -> list[Any] | None:
        return None if self.template is None else self.template.key

    def _scan_key(self, row: int) -> list[Any]:
        config = self.config
        return [__version__, self.clouds.scans[row].digest, config.shade, config.prepared, *self.judges.key]

    def method_key(self, row: int, how: Treatment) -> list[Any]:
        """JSON-ready; what the treated clouds of a scan depend on, and who reads them."""
        target, scans = self.clouds.target, self.clouds.scans
        mixed = scans[target].digest if how.method == "merge-2-faces" and target is not None else None
        made = [how.method, list(how.degrees), self.config.seed, scans[row].name, mixed]
        return [*self._scan_key(row), *made, *inverse_key(self, row, how.attacker)]


def _packed(cloud: Cloud | None, length: int) -> NDArray[np.void]:
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
def open_study(config: CloudStudyConfig, out: Path) -> CloudStudy:
    """The study of a configuration in this process, with its folder."""
    return CloudStudy(config, open_clouds(config, out), PictureJudges.open(config), Store(out / "store"))
