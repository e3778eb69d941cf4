"""Steps of the study of point clouds: scans prepared, treated, projected, and read by detectors and recognisers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import resize
from ficgan.errors import InputError
from ficgan.faces import DetectAt, FaceDetector, get_detector
from ficgan.faces.alignment import ARCFACE_POINTS
from ficgan.lab.clouds.sets import CloudSet, CloudStudyConfig, open_clouds
from ficgan.lab.clouds.treatments import INVERSES, drawn_as, inverse_key, sweep, take_back, time_alone
from ficgan.lab.metrics.geometry import detect_faces
from ficgan.lab.metrics.perceptual import SqueezeNet, ssim
from ficgan.lab.readers import Reader, get_readers
from ficgan.lab.stored import Store, files_digest
from ficgan.pointcloud.cloud import Cloud, merged

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
        from ficgan.faces.models import find_model

        readers = get_readers(config.recognisers)
        detector = get_detector(config.detector, threshold=config.confidence)
        once: Any = getattr(detector, "once", None)
        quick = DetectAt(once() if once else detector, (config.look, config.look))
        path = find_model("squeezenet*_features.onnx")
        if path is None:
            return cls(config, readers, quick)
        return cls(config, readers, quick, SqueezeNet(path), str(files_digest(str(path))))

    @property
    def key(self) -> list[Any]:
        """Of everything that a record depends on besides the image; JSON-ready."""
        config = self.config
        return [
            [reader.digest for reader in self.readers], self.detector.name, config.confidence, config.look,
            config.undetected, self.squeezenet_digest,
        ]  # fmt: skip

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        fields: list[Any] = [
            ("made", bool), ("found", bool), ("box", np.float32, (4,)), ("marks", np.float32, (5, 2)),
            ("ssim", np.float32), ("seconds", np.float32),
        ]  # fmt: skip
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
            out[f"by {reader.name}"] = embedded(reader, stack, marks)
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


def embedded(reader: Reader, images: NDArray[np.uint8], marks: NDArray[np.float32]) -> NDArray[np.float32]:
    """Embeddings [N,D] of images [N,H,W,3] at landmarks [N,5,2]."""
    each: Any = getattr(reader.recognizer, "embed_each", None)
    if each is not None:
        found: NDArray[np.float32] = each(images, marks)
        return found
    return np.stack([reader.recognizer.embed(x, m[None])[0] for x, m in zip(images, marks, strict=True)])


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


@dataclass
class ShapeJudges:
    """Recognisers of shape, who know another scan of each, and distortion."""

    names: Sequence[str]  # of `GEOMETRIC_RECOGNISERS`
    enrolled: Callable[[], list[Cloud]]  # inner parts of the gallery, which icp compares clouds with
    rows: int  # how many are enrolled
    example: Callable[[], Cloud]  # from which the lengths of the records are taken

    @cached_property
    def dtype(self) -> np.dtype[np.void]:
        from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS

        fields: list[Any] = [("made", bool), *((name, np.float32) for name in DISTORTION)]
        for name in self.names:
            length = self.rows if name == "icp" else len(GEOMETRIC_RECOGNISERS[name]().describe(self.example()))
            # Depths are millimetres, of which halves of a hundredth matter; shares and unit vectors need fewer digits.
            kind = np.float32 if name in ("depth", "icp") else np.float16
            fields += [(f"seen {name}", bool), (f"by {name}", kind, (length,))]
        return np.dtype(fields)

    def read(self, clouds: Sequence[Cloud | None], source: ClearShape | None = None, *, enrolled: bool) -> Record:
        """What recognisers see in clouds (None: none was made), and how far these are from their source."""
        from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS, IcpRecogniser

        out: Record = np.zeros(len(clouds), self.dtype)
        for name in DISTORTION:
            out[name] = np.nan
        for place, cloud in enumerate(clouds):
            out["made"][place] = cloud is not None
            if cloud is None:
                continue
            if source is not None:
                for name, value in zip(DISTORTION, source.measure(cloud), strict=True):
                    out[name][place] = value
            for name in self.names:
                if name == "icp" and enrolled:
                    continue
                try:
                    if name == "icp":
                        out["by icp"][place] = IcpRecogniser().compare(self.enrolled(), [cloud])[0]
                    else:
                        out[f"by {name}"][place] = GEOMETRIC_RECOGNISERS[name]().describe(cloud)
                    out[f"seen {name}"][place] = True
                except InputError:
                    out[f"seen {name}"][place] = False
        return out

    @staticmethod
    def compare(name: str, record: Record, gallery: Record) -> NDArray[np.float32]:
        """[P,G] scores; a gallery cloud without an upper face is unlike everybody, and no part of the mean face."""
        from ficgan.pointcloud.geometry import GEOMETRIC_RECOGNISERS

        probes = record[f"by {name}"].astype(np.float32)
        if name == "icp":
            return np.asarray(probes)
        seen = gallery[f"seen {name}"]
        scores = np.full((len(record), len(gallery)), -1e9, np.float32)
        scores[:, seen] = GEOMETRIC_RECOGNISERS[name]().compare(gallery[seen][f"by {name}"].astype(np.float32), probes)
        return scores


@dataclass(frozen=True)
class ClearShape:
    """What anonymised clouds are measured against: a cloud with normals, and its mean curvature, computed once."""

    cloud: Cloud
    curvature: NDArray[np.float64]

    @classmethod
    def of(cls, cloud: Cloud) -> ClearShape:
        from ficgan.pointcloud.geometry import curvature
        from ficgan.pointcloud.registration import with_normals

        fitted = with_normals(cloud)
        return cls(fitted, curvature(fitted).mean)

    def measure(self, cloud: Cloud) -> tuple[float, float, float]:
        """Chamfer distance in mm, normal error in degrees, curvature error in 1/m; NaN where there is no surface."""
        from ficgan.pointcloud.cloud import nearest
        from ficgan.pointcloud.geometry import chamfer, curvature, normal_error
        from ficgan.pointcloud.registration import with_normals

        apart = 1000 * chamfer(cloud, self.cloud)
        try:
            fitted = with_normals(cloud)
            rows = nearest(self.cloud.points, cloud.points, 1)[1][:, 0]
            bent = float(np.abs(curvature(fitted).mean - self.curvature[rows]).mean())
            return apart, normal_error(fitted, self.cloud), bent
        except InputError:  # all on one line
            return apart, float("nan"), float("nan")


_STEPS = 3  # Raised where code that makes what is stored changes its results
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

    # -- clouds -------------------------------------------------------------------------------------------------------

    def prepared(self, row: int) -> Parts:
        """A scan in the canonical frame, thinned, without outliers, in two parts, with colours."""
        try:
            return self._remembered(row)
        except InputError as error:
            raise InputError(f"{self.clouds.scans[row].name}: {error}") from None

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

    def inner_parts(self, rows: Iterable[int]) -> list[Cloud]:
        """Inner parts of scans, which are remembered: every probe is compared with all of the gallery."""
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

    def swept(self, row: int, method: str, degrees: Iterable[int]) -> list[tuple[int, Cloud | None]]:
        """The inner part of a scan under one method at several degrees, ascending; None: the method made nothing."""
        return list(sweep(method, degrees, self.prepared(row).inner, **self._drawing(row, method)))

    def treated(self, row: int, method: str, degrees: Sequence[int], attacker: str = "") -> list[Cloud | None]:
        """The inner part of a scan under a method, and after its inverse where one is named."""

        def make() -> list[Cloud | None]:
            made = self.swept(row, method, degrees)
            return [take_back(self, row, attacker, degree, cloud) if attacker else cloud for degree, cloud in made]

        if not attacker or INVERSES[attacker].quick:
            return make()
        key = ["recovered", *self.method_key(row, method, degrees), *inverse_key(self, row, attacker)]
        length = len(self.prepared(row).inner)
        return [_unpacked(one) for one in self.kept(key, lambda: np.stack([_packed(one, length) for one in make()]))]

    # -- projections --------------------------------------------------------------------------------------------------

    def picture(self, row: int, inner: Cloud | None = None, **drawn: Any) -> Image:
        """The projection of a scan: clear, or with another inner part."""
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

    # -- records of projections ---------------------------------------------------------------------------------------

    def clear(self, row: int) -> Record:
        """What is read in a scan's clear projection: a record [1]."""

        def read(template: Template | None) -> Record:
            key = ["clear", None if template is None else template.key, *self._scan_key(row)]
            return self.kept(key, lambda: self.judges.read([self.picture(row)], template))

        record = read(None)
        return record if self.template is None or record["found"][0] else read(self.template)

    def photo(self, index: int) -> Record:
        """What is read in a gallery photo: a record [1]; of the whole image where no face is found."""
        from ficgan.faces import get_detector
        from ficgan.images import read_image

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
        made = np.ones(1, bool)
        return self.kept(key, lambda: self.read(row, [self.picture_of(row, None, "", 0)], made))

    def pictured(self, row: int, method: str, degrees: Sequence[int], attacker: str = "") -> Record:
        """What is read in a scan's projections under a method, or after its inverse: a record [degrees]."""

        def read() -> Record:
            clouds = self.treated(row, method, degrees, attacker)
            images = [self.picture_of(row, cloud, method, d) for d, cloud in zip(degrees, clouds, strict=True)]
            return self.read(row, images, np.array([cloud is not None for cloud in clouds]))

        key = [self._template_key, *self.method_key(row, method, degrees), *inverse_key(self, row, attacker)]
        return self.kept(["pictured", *key], read)

    def read(self, row: int, images: Sequence[Image], made: NDArray[np.bool_]) -> Record:
        """What is read in projections of a treated scan: a record [N]; not kept."""
        record = self.judges.read(images, self.template, (self.picture(row), self.clear(row)))
        record["made"] = made
        return record

    def seconds(self, row: int, method: str) -> NDArray[np.float64]:
        """[degrees of the study] time of each anonymisation alone."""
        degrees = sorted(self.config.degrees)

        def measure() -> NDArray[np.float64]:
            inner, drawing = self.prepared(row).inner, self._drawing(row, method)
            time_alone(method, degrees[0], inner, **drawing)  # what is imported on first use
            return np.array([time_alone(method, degree, inner, **drawing) for degree in degrees])

        return self.kept(["seconds", *self.method_key(row, method, degrees)], measure)

    # -- records of clouds --------------------------------------------------------------------------------------------

    @cached_property
    def in_space(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Rows of the probes whose clouds are compared, and of the gallery: everybody, or the first so many people."""
        clouds, geometry = self.clouds, self.config.geometry
        if geometry is None:
            return (), ()
        named = list(dict.fromkeys(clouds.scans[row].person for row in clouds.probes))[: geometry.people or None]
        people = set(named) if geometry.people else set(clouds.people)

        def among(rows: Sequence[int]) -> tuple[int, ...]:
            return tuple(row for row in rows if clouds.scans[row].person in people)

        return among(clouds.probes), among(clouds.gallery)

    @cached_property
    def shapes(self) -> ShapeJudges:
        assert self.config.geometry is not None
        gallery = self.in_space[1]
        example = self.clouds.probes[0]
        enrolled = partial(self.inner_parts, gallery)
        return ShapeJudges(
            self.config.geometry.recognisers, enrolled, len(gallery), lambda: self.prepared(example).inner
        )

    def shaped(self, row: int, method: str = "", degrees: Sequence[int] = (), attacker: str = "") -> Record:
        """What is read in a scan's clouds, clear [1] or under a method [degrees]; distortion is a probe's."""
        enrolled = row in self.clouds.gallery
        names = list(self.shapes.names)
        pairs = [self.clouds.scans[other].digest for other in self.in_space[1]] if "icp" in names else None

        def read() -> Record:
            if not method:
                return self.shapes.read([self.prepared(row).inner], enrolled=enrolled)
            source = None if enrolled or attacker else self._clear_shape(row)
            return self.shapes.read(self.treated(row, method, degrees, attacker), source, enrolled=enrolled)

        of = self.method_key(row, method, degrees) if method else self._scan_key(row)
        return self.kept(["space", names, pairs, enrolled, *of, *inverse_key(self, row, attacker)], read)

    @cached_property
    def _clear_shape(self) -> Callable[[int], ClearShape]:
        return lru_cache(1)(lambda row: ClearShape.of(self.prepared(row).inner))

    # -- keys ---------------------------------------------------------------------------------------------------------

    def kept(self, key: list[Any], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        return self.store.array([_STEPS, *key], make)

    @property
    def _template_key(self) -> list[Any] | None:
        return None if self.template is None else self.template.key

    def _scan_key(self, row: int) -> list[Any]:
        from ficgan import __version__

        config = self.config
        return [__version__, self.clouds.scans[row].digest, config.shade, config.prepared, *self.judges.key]

    def method_key(self, row: int, method: str, degrees: Sequence[int]) -> list[Any]:
        """JSON-ready; what the anonymised clouds of a scan depend on, and who reads them."""
        target = self.clouds.target
        mixed = self.clouds.scans[target].digest if method == "merge-2-faces" and target is not None else None
        return [*self._scan_key(row), method, list(degrees), self.config.seed, self.clouds.scans[row].name, mixed]


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
