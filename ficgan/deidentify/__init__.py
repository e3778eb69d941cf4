"""Deidentifier, the entry point of the library: photos, batches of photos, aligned crops, films and streams."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, get_args

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import file_header
from ficgan.deidentify.found import CheckedDetector, Exemptions, FaceJob, Image, Linked, load_objects
from ficgan.deidentify.photos import Mask, Photos, name_possible
from ficgan.device import check_onnx_device, insightface_file, resolve_device
from ficgan.errors import FicganError, InputError, UsageError, hint
from ficgan.face_model import CropModel, FaceModel, ModelInfo
from ficgan.faces import Alignment, DetectAt, Face, FaceDetector, Recognizer, get_detector, get_recognizer, make_gate
from ficgan.faces.detection import PyramidDetector
from ficgan.faces.recognition import INSIGHTFACE_FILES
from ficgan.files import content_key, file_digest
from ficgan.identity import IdentityBank
from ficgan.identity.kind import parse_parts
from ficgan.images.read import Picture, as_photo, swap_red_and_blue
from ficgan.options import HIDING, Checking, Computing, Finding, Hiding, Identity, grouped
from ficgan.policy import Attempt, FaceResult, Policy, Result

if TYPE_CHECKING:
    from ficgan.video import VideoSettings, VideoTools
    from ficgan.video.live import Stream
    from ficgan.video.people import People
    from ficgan.video.project import Project
    from ficgan.video.rendered import VideoResult

__all__ = ["Deidentifier", "FaceResult", "Result", "load_face_model", "refuse_trainer"]

log = logging.getLogger(__name__)

ChannelOrder = Literal["rgb", "bgr"]
StillPath = str | os.PathLike[str]
# What `with_controls` can change.
CONTROLS = ("k", "layer", "psi", "attributes", "keep_kind", "fallback")
# Box of a detector on the face of an aligned crop, in sides of the crop: the median over crops.
TEMPLATE_BOX = np.array([0.1, -0.08, 0.91, 0.97], np.float32)


class Deidentifier(Photos):
    """Replaces faces by k-anonymous ones.

    Args:
        model: with its bank and controls, see `load_face_model`; None where nothing is generated (other modes).
        groups: options, as `grouped` makes them.
        info, digests: of the model's checkpoint (header, sha256), for the audit.
    """

    def __init__(
        self,
        model: FaceModel | None,
        groups: Mapping[str, Any],
        info: ModelInfo | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        self.groups, identity, checking = groups, groups["identity"], groups["checking"]
        self.hiding, self.finding, self.seed = groups["hiding"], groups["finding"], identity.seed
        self.mode = self.hiding.mode if isinstance(self.hiding.mode, str) else ""  # named by its `methods`
        self.method = None if self.mode in HIDING else self.methods(self.mode)
        self._people: People | None = None  # of the films so far, where they are linked
        self.policy, self.layer, self.psi = checking.policy or Policy(), identity.layer, identity.psi
        self.model, self.header, self.digests = model, info, digests or {}
        # Where torch computes on a GPU, onnxruntime takes the best that it has; else exactly what was asked for.
        torch, wanted = isinstance(model, CropModel), groups["computing"].device
        device = resolve_device(wanted) if torch else check_onnx_device(wanted)
        sessions = device if not torch or device == "cpu" else "auto"
        if model is not None:
            if model.band is None:
                model.check_layer(self.layer)
            # Too few people, or a ψ that cannot be, is known before any photo is read.
            model.check_draws(Attempt(self.layer), self.auto_psi(1))
        elif self.mode == "ficgan":
            raise UsageError("a face can be generated only with a model and an identity bank; give both")
        self.alignment = Alignment() if model is None else model.alignment
        self.detector = _detector(self.finding, sessions)
        names = checking.recognizers if self.policy.verify else ()
        for name in names:
            if isinstance(name, str):
                refuse_trainer(info, name)
        judges = [get_recognizer(name, device=sessions) for name in names]
        self.gate = make_gate(judges)
        self.recognizer = next(iter(judges), None)
        teller = self.recognizer or next(iter(checking.recognizers), "auto")  # even where nothing is verified
        self.exemptions = Exemptions(self.finding, self.detector, teller)
        self.objects = load_objects(self.finding.cover_also, device=sessions)
        if model is not None and model.swap and identity.exemplar is None:
            raise UsageError("an identity swap needs an exemplar image; give one, or leave the swap out")
        if identity.exemplar is not None:
            self.face_model.aim_at(identity.exemplar, self._exemplar_face(identity.exemplar))
        if identity.link == "job" and model is not None:
            self.linked = Linked(get_recognizer(teller), self.gate)

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | Path | None = None,
        bank: str | Path | None = None,
        *,
        identity: Identity | None = None,
        hiding: Hiding | None = None,
        finding: Finding | None = None,
        checking: Checking | None = None,
        computing: Computing | None = None,
        **fields: Any,
    ) -> Deidentifier:
        """The embedded default model, or the given files.

        Args:
            checkpoint, bank: files; None: the embedded ones. A checkpoint needs its own bank.
            identity, hiding, finding, checking, computing: groups of options; None: the usual ones.
            fields: single options of any group, or of `Policy`, by name: k=3000, layer=4, mode="blur", verify=False.

        Raises:
            FicganError: missing or damaged files, or a bank of another model.
        """
        given = {"identity": identity, "hiding": hiding, "finding": finding, "checking": checking}
        files = {name: file for name, file in (("checkpoint", checkpoint), ("bank", bank)) if file is not None}
        groups = grouped({**given, "computing": computing}, {**fields, **files})
        used = groups["computing"]
        if groups["hiding"].mode != "ficgan" and used.checkpoint is None and used.bank is None:
            return cls(None, groups)  # nothing will be generated: no model
        model, info, digest = load_face_model(**vars(used), **groups["identity"].controls)
        return cls(model, groups, info, {"checkpoint": digest})

    def __copy__(self) -> Self:
        _ = self.methods  # its random seed is that of all copies
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as the arguments it was made of, with the seed: networks cannot be pickled."""
        if self.model is not None and not self.digests:
            raise UsageError("only a Deidentifier of from_pretrained can be pickled; make this one in each process")
        seed = self.methods.seed if self.model is None else self.model.seed  # all processes draw alike
        groups = {**self.groups, "identity": replace(self.groups["identity"], seed=seed)}
        return partial(type(self).from_pretrained, **groups), ()

    def with_controls(self, **controls: Any) -> Deidentifier:
        """The same with other controls: k, layer, psi, attributes, keep_kind or fallback; nothing is loaded again."""
        if wrong := next(iter(controls.keys() - CONTROLS), None):
            raise UsageError(f"{wrong!r} is no control; {hint(wrong, CONTROLS)}")
        other = copy(self)
        other.groups, other._people = grouped(self.groups, controls), None
        identity, other.hiding = other.groups["identity"], other.groups["hiding"]
        model = other.model = copy(self.face_model)
        model.k, model.attributes, model.keep_kind = identity.k, identity.attributes, parse_parts(identity.keep_kind)
        other.psi, other.layer = identity.psi, identity.layer
        if "layer" in controls:
            model.check_layer(other.layer)
        model.check_draws(Attempt(other.layer), other.auto_psi(1))
        return other

    # -- photos -------------------------------------------------------------------------------------------------------

    def __call__(
        self, image: Picture, *, key: str | None = None, layer: int | None = None, channel_order: ChannelOrder = "rgb"
    ) -> Result:
        """De-identify one image. Several threads may call this at once.

        Args:
            image: array [H,W,3] RGB, [H,W,4] RGBA or [H,W] grey, uint8 or uint16; a PIL image; or a photo's file: its
                path, its bytes, or an open one. It is not changed. Colour profiles are heeded.
            key: names the photo or person in the keyed draw; another key gives other faces. None: a hash of the pixels.
            layer: i for this image; None: as the Deidentifier was made.
            channel_order: "rgb", or "bgr" as OpenCV has it, for the array given and the one returned.

        Returns:
            The new image, an array with the channels, depth and colour space of the one given, and what was done.
        """
        keys = None if key is None else [key]
        return self.batch([image], keys=keys, layer=layer, channel_order=channel_order)[0]

    def batch(
        self,
        images: Sequence[Picture],
        *,
        keys: Sequence[str] | None = None,
        layer: int | None = None,
        channel_order: ChannelOrder = "rgb",
    ) -> list[Result]:
        """De-identify several images, their faces encoded together; sizes may differ.

        Arguments as of `__call__`, with a key for each image.
        """
        if channel_order not in get_args(ChannelOrder):
            raise UsageError(f"channel_order is {channel_order!r}; use {' or '.join(get_args(ChannelOrder))}")
        photos = [as_photo(image, bgr=channel_order == "bgr") for image in images]
        pixels = [photo.rgb for photo in photos]
        keys = _keys_of(pixels, keys)
        layer = self.layer if layer is None else self.face_model.check_layer(layer)
        found = [self.find(image, key) for image, key in zip(pixels, keys, strict=True)]
        if self.mode == "ficgan":
            self.encode([(image, job) for image, (jobs, _) in zip(pixels, found, strict=True) for job in jobs])
        results = []
        for photo, image, (jobs, possible) in zip(photos, pixels, found, strict=True):
            result = self.finish(image, jobs, layer, self.objects_in(image))
            name_possible(result, possible)
            result.image = photo.merge(result.image)
            if channel_order == "bgr" and result.image.ndim == 3:
                result.image = swap_red_and_blue(result.image)
            results.append(result)
        return results

    def aligned(
        self, crops: NDArray[np.uint8], *, keys: Sequence[str] | None = None, layer: int | None = None
    ) -> tuple[Image, list[FaceResult]]:
        """De-identify crops [B,S,S,3] that are already aligned as the checkpoint's; no detector, no blending.

        With ψ "auto" each crop gets the plain mean, as a person alone in a photo does; give ψ to tell people apart. A
        crop that no setting hides becomes grey. `keys` and `layer` are as of `__call__`.
        """
        if self.mode != "ficgan":
            raise UsageError(f"aligned crops can only be generated anew, not {self.mode}; use mode ficgan")
        if crops.ndim != 4 or crops.shape[1] != crops.shape[2] or crops.shape[3] != 3 or crops.dtype != np.uint8:
            raise InputError(f"aligned crops must be [B,S,S,3] uint8 RGB, not {crops.dtype} {list(crops.shape)}")
        size = crops.shape[1]
        layer = self.layer if layer is None else self.face_model.check_layer(layer)
        points = self.alignment.points(size).astype(np.float32)
        face = Face(size * TEMPLATE_BOX, points, 1.0)
        jobs = [FaceJob(face, key, self.auto_psi(1)) for key in _keys_of(crops, keys)]
        self.encode(list(zip(crops, jobs, strict=True)))

        def whole(source: Image, group: list[FaceJob]) -> tuple[Image, Mask]:
            made, reading = group[0].generated, group[0].reading
            if made is None or reading is None:
                return np.full((size, size, 3), 127, np.uint8), np.ones((size, size), np.float32)
            return self.face_model.on_crop(source, reading, made, mask_scale=self.hiding.mask_scale)

        out = np.empty_like(crops)
        for new, source, job in zip(out, crops, jobs, strict=True):
            new[:] = self.settle(source, [job], layer, partial(whole, source))[0]
        return out, [job.result for job in jobs]

    def _exemplar_face(self, image: Image) -> Face:
        """The largest face of a photo uint8 [H,W,3] RGB; UsageError where there is none, or two of like size."""
        faces = sorted(self.detector.detect(image), key=lambda face: -float(np.ptp(face.box[[0, 2]])))
        if not faces:
            raise UsageError("no face was found in the exemplar image; give a photo with one clear face")
        if len(faces) > 1 and np.ptp(faces[1].box[[0, 2]]) > 0.5 * np.ptp(faces[0].box[[0, 2]]):
            raise UsageError(f"the exemplar image shows {len(faces)} faces; crop it to the one that is meant")
        return faces[0]

    # -- films --------------------------------------------------------------------------------------------------------

    def video_settings(self, **changes: Any) -> VideoSettings:
        """The usual settings with this Deidentifier's mode, and what is changed."""
        from ficgan.video import VideoSettings

        verify = "sampled" if self.policy.verify else "off"
        return VideoSettings(**{"mode": self.mode, "mask_scale": self.hiding.mask_scale, "verify": verify, **changes})

    def video_tools(self, settings: VideoSettings, *, generate: bool = True, trusted: bool = False) -> VideoTools:
        """Detector, recogniser and model for a film; a mode that is not `trusted` may not run programs."""
        from ficgan.video import VideoTools

        detector = self.detector
        # A photo is searched at several scales; a film has many looks at the same face.
        if isinstance(detector, PyramidDetector) and not self.finding.thorough:
            detector = detector.once()
        return VideoTools(
            detector,
            self._teller,
            self.face_model if generate and settings.mode == "ficgan" else self.model,
            self.policy,
            self.layer,
            self.auto_psi(2),
            methods=self.methods.trusting(settings.mode) if trusted else self.methods,
            gate=self.gate,
            objects=self.objects,
            redrawn=lambda drawing: drawing.applied(self).video_tools(settings, generate=generate),
        )

    @cached_property
    def _teller(self) -> Recognizer:
        """Tells the people of films apart, even where results are not verified."""
        return get_recognizer("auto" if self.recognizer is None else self.recognizer)

    def _known_people(self, settings: VideoSettings) -> People | None:
        """People of the earlier films, where they are to be linked."""
        from ficgan.video.people import People

        if settings.link == "job" and self._people is None:
            self._people = People(self._teller, "job")
        return self._people if settings.link == "job" else None

    def process_video(
        self, source: StillPath, output: StillPath, *, settings: VideoSettings | None = None, **options: Any
    ) -> VideoResult:
        """Redact a film, animation, camera (`camera:0`) or stream (address) into a new file.

        Args:
            settings: stride, pads, linking, fallbacks; None: the usual ones with this Deidentifier's mode.
            options: of `ficgan.video.film.process_film`: rules, encode, start, end, overwrite, progress.
        """
        from ficgan.video.film import process_film

        settings = settings or self.video_settings()
        tools, people = self.video_tools(settings, trusted=True), self._known_people(settings)
        return process_film(tools, source, output, settings=settings, people=people, **options)

    def analyse_video(
        self, source: StillPath, folder: StillPath, *, settings: VideoSettings | None = None, **options: Any
    ) -> Project:
        """Find the faces of a film and write a project to review; options as of `ficgan.video.film.analyse_film`."""
        from ficgan.video.film import analyse_film

        settings = settings or self.video_settings()
        tools, people = self.video_tools(settings, generate=False), self._known_people(settings)
        return analyse_film(tools, source, folder, settings=settings, people=people, **options)

    def render_video(
        self,
        folder: StillPath,
        source: StillPath,
        output: StillPath,
        *,
        settings: VideoSettings | None = None,
        **options: Any,
    ) -> VideoResult:
        """Apply a reviewed project; options as of `ficgan.video.film.render_film`."""
        from ficgan.video.film import render_film

        settings = settings or self.video_settings()
        return render_film(self.video_tools(settings), folder, source, output, settings=settings, **options)

    def stream(
        self, frames: Iterable[Image], fps: float = 25.0, *, settings: VideoSettings | None = None, **options: Any
    ) -> Stream:
        """Redact frames uint8 [H,W,3] RGB as they come; options `look_ahead` and `budget` as of `ficgan.video.live`."""
        from ficgan.video.live import stream

        settings = settings or self.video_settings()
        return stream(self.video_tools(settings, trusted=True), frames, fps, settings=settings, **options)


def load_face_model(
    checkpoint: str | Path | None = None,
    bank: str | Path | None = None,
    *,
    device: str = "cpu",
    precision: str = "auto",
    **controls: Any,
) -> tuple[FaceModel, ModelInfo, str]:
    """The embedded default model, or the given files; with what its header says, and the sha256 of its file.

    Args:
        checkpoint: appearance model or network; None: the embedded one. Another one needs its own bank.
        device, precision: see `Computing`.
        controls: k, band, seed, alpha, attributes, add, swap, keep_kind, see `Identity`.

    Raises:
        FicganError: missing or damaged files, or a bank of another model.
    """
    checkpoint, bank = _files_of(checkpoint, bank)
    kind = file_header(checkpoint)[0]
    if kind == "appearance":
        check_onnx_device(device)
        if precision not in ("auto", "float32"):
            raise UsageError(f"{checkpoint.name} computes in float32; precision is for networks on crops")
    loaded, digest = IdentityBank.load(bank), file_digest(checkpoint)
    if loaded.provenance.get("checkpoint") not in (None, digest):
        raise UsageError(f"the bank {bank} was built with another model than {checkpoint}; see `ficgan bank build`")
    log.info("model %s (%s), bank of %d codes", checkpoint.name, kind, len(loaded))
    if kind == "appearance":
        from ficgan.faces import MediaPipeMesh
        from ficgan.frame.file import load_appearance
        from ficgan.frame_model import FrameModel

        appearance, config, info, network = load_appearance(checkpoint)
        _ = appearance.warp  # made once, before several threads want it
        mesh = MediaPipeMesh(device)
        network = None if network is None else replace(network, device=device)
        shared: dict[str, Any] = {"network": network, "mesh": mesh, "sha256": digest, "device": device}
        return FrameModel(appearance, config, loaded, **shared, **controls), info, digest
    from ficgan.face_model import CropModel
    from ficgan.models import load_checkpoint

    trained, header = load_checkpoint(checkpoint)
    info = ModelInfo(header.alignment, header.data, header.training)
    crops = CropModel(trained, info, loaded, device=device, precision=precision, **controls)
    return crops, info, digest


def _files_of(checkpoint: str | Path | None, bank: str | Path | None) -> tuple[Path, Path]:
    """The files of a model and its bank; None: the embedded ones, as they were shipped."""
    import ficgan.pretrained as pretrained

    if checkpoint is not None and bank is None:
        raise UsageError("a checkpoint of your own needs the bank built with it; give --bank (see `ficgan bank`)")
    try:
        checkpoint = Path(checkpoint) if checkpoint is not None else pretrained.path("model")
        bank = Path(bank) if bank is not None else pretrained.path("bank")
    except (FileNotFoundError, KeyError):
        raise FicganError("this copy of ficgan holds no embedded model; give --checkpoint and --bank") from None
    for file in (checkpoint, bank):
        if file.parent == pretrained.FOLDER and (wrong := pretrained.check(file.name)):
            raise FicganError(f"the embedded file {file.name} is {wrong}: install ficgan again")
    return checkpoint, bank


def _detector(finding: Finding, device: str) -> FaceDetector:
    if isinstance(finding.detector, str):
        given = {name: getattr(finding, name) for name in ("threshold", "scale", "thorough")}
        return get_detector(finding.detector, **given, device=device)
    checked = isinstance(finding.detector, PyramidDetector | DetectAt)
    return finding.detector if checked else CheckedDetector(finding.detector)


def refuse_trainer(header: ModelInfo | None, recognizer: str) -> None:
    """A UsageError where a recogniser is the network V that the model was trained against: it would only flatter.

    `header` is the checkpoint's, whose training record holds V's sha256; None: no network was trained.
    """
    trainer = None if header is None else header.training.get("verifier_sha256")
    kind, _, path = recognizer.partition(":")
    if kind == "insightface":
        path = str(insightface_file(*INSIGHTFACE_FILES) or "")
    if trainer and kind in ("onnx", "insightface") and Path(path).is_file() and file_digest(path) == trainer:
        raise UsageError(f"recogniser {recognizer} is the network this model was trained against; take another one")


def _keys_of(images: Sequence[Image] | NDArray[np.uint8], keys: Sequence[str] | None) -> Sequence[str]:
    """The keys given, one for each image, or hashes of the pixels."""
    if keys is None:
        return [content_key(image) for image in images]
    if isinstance(keys, str) or len(keys) != len(images):
        raise UsageError(f"there are {len(images)} images, and keys are {keys!r}; give a list with a key for each")
    return keys
