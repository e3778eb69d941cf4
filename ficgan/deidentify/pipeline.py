"""Deidentifier: one face pipeline for photos, batches of photos and aligned crops; films use its parts.

detect → align → encode → k-same → layer mixing → generate → blend back → verify → retry or cover
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.anonymizers.modes import (
    HIDING,
    Methods,
    check_mode,
    cover,
    cover_all,
    mode_of,
    placement,
    shown,
    square,
    without_folders,
)
from ficgan.arrays import content_key
from ficgan.deidentify.films import Films
from ficgan.deidentify.loading import load_face_model
from ficgan.deidentify.options import Box, Checking, Diversity, Finding, Hiding, Identity, Image
from ficgan.deidentify.pictures import Picture, as_photo
from ficgan.deidentify.rules import Exemptions, doubts
from ficgan.device import resolve_device
from ficgan.errors import InputError, UsageError
from ficgan.face_model import FaceModel, ModelInfo, Sight
from ficgan.faces import (
    Alignment,
    Face,
    FaceDetector,
    Paste,
    Recognizer,
    blur_face,
    get_detector,
    get_recognizer,
    mosaic_face,
    solid_mask,
)
from ficgan.faces.detection import check_image
from ficgan.identity.file import file_digest
from ficgan.policy import Attempt, Policy, covered
from ficgan.results import FaceResult, Result

if TYPE_CHECKING:
    from ficgan.video import EncodeOptions, Project, Rules, VideoResult, VideoSettings, VideoTools
    from ficgan.video.live import Stream

__all__ = ["MODES", "Deidentifier", "Mode", "refuse_trainer"]

Mode = str
ChannelOrder = Literal["rgb", "bgr"]
Mask = NDArray[np.float32]
StillPath = str | os.PathLike[str]
Report = Callable[[int, int | None, str], None]
MODES = HIDING
"""Of our own; names of anonymisers are modes, too."""
TEMPLATE_BOX = np.array([0.1, -0.08, 0.91, 0.97], np.float32)
"""Where a detector sees the face of an aligned crop, in sides of the crop: the median over crops."""


def _average(image: Image, face: Face, *, mask_scale: float = 1.0) -> Paste:
    """A face under one patch of its own mean colour."""
    x0, y0, x1, y1 = (int(value) for value in np.rint(face.box))
    region = image[max(y0, 0) : max(y1, y0 + 1, 1), max(x0, 0) : max(x1, x0 + 1, 1)]
    red, green, blue = (round(value) for value in region.reshape(-1, 3).mean(0)) if region.size else (0, 0, 0)
    return solid_mask(image, face, colour=(red, green, blue), mask_scale=mask_scale)


_COVERS: dict[str, tuple[Callable[..., Paste], str]] = {
    "blur": (blur_face, "blurred"),
    "mosaic": (mosaic_face, "mosaic"),
    "solid": (solid_mask, "solid"),
    "average": (_average, "average"),
}


@dataclass
class _Work:
    """One face on its way through the pipeline."""

    face: Face
    key: str
    psi: float
    readable: bool = True
    """Whether its landmarks span a face."""
    fallback: str = "solid"
    """What covers it where it cannot be generated."""
    doubt: str = ""
    """Why the find may be no face."""
    kept: str = ""
    """Why it stays as it is; "" where it is hidden."""
    by_hand: bool = False
    """Whether a person chose its fallback in place of a new face."""
    aimed: FaceModel | None = None
    """The model aimed at an exemplar for this face alone."""
    sight: Sight | None = None
    """What the model sees of it."""
    source: NDArray[np.float32] | None = None
    """Embedding of the source face by the gate."""
    generated: Any = None
    """New face, as the model made it."""
    rung: int = 0
    """Attempt of the policy's ladder this face is at."""
    result: FaceResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = FaceResult(self.face.box, self.face.landmarks, self.face.score, doubt=self.doubt)

    @property
    def live(self) -> bool:
        """Whether a generated face can stand here; otherwise it is covered."""
        return self.sight is not None and not self.sight.problem and self.result.action != "masked"


class Deidentifier:
    """Replaces faces by k-anonymous ones.

    Args:
        model: with its bank and controls, see `load_face_model`; None where nothing is generated (other modes).
        identity, hiding, finding, checking: options; None: the usual ones.
        device: "cpu", "cuda" or "cuda:N".
        info: of the model's checkpoint, for the audit.
        digests: sha256 of the checkpoint, for the audit.

    Raises:
        UsageError: a value that cannot work with this checkpoint and bank.
    """

    def __init__(
        self,
        model: FaceModel | None,
        *,
        identity: Identity | None = None,
        hiding: Hiding | None = None,
        finding: Finding | None = None,
        checking: Checking | None = None,
        device: str = "cpu",
        info: ModelInfo | None = None,
        digests: Mapping[str, str] | None = None,
    ) -> None:
        identity, hiding = identity or Identity(), hiding or Hiding()
        finding, checking = finding or Finding(), checking or Checking()
        given = {} if isinstance(hiding.mode, str) else {mode_of(hiding.mode): hiding.mode}
        self.mode: Mode = check_mode(hiding.mode) if isinstance(hiding.mode, str) else next(iter(given))
        self.policy, self.layer, self.psi = checking.policy, identity.layer, identity.psi
        self.mask_scale, self.fallback = hiding.mask_scale, hiding.fallback
        self.methods = Methods(hiding.background, identity.seed, {self.mode}, given)
        self.method = None if self.mode in MODES and not given else self.methods(self.mode)
        self.header, self.digests = info, dict(digests or {})
        self.device, self._face_model = resolve_device(device), model
        if model is not None:
            if model.band is None:
                model.check_layer(self.layer)
            # Too few people, or a ψ that cannot be, is known before any photo is read.
            model.draw("check", Attempt(self.layer), self._psi(1))
        elif self.mode == "ficgan":
            raise UsageError("a face can be generated only with a model and an identity bank; give both")
        self.alignment = Alignment() if model is None else model.alignment
        self.detector: FaceDetector = (
            finding.detector
            if not isinstance(finding.detector, str)
            # With the model on a GPU the detector takes the best provider onnxruntime has, and says which.
            else get_detector(
                finding.detector, threshold=finding.threshold, scale=finding.scale,
                device="cpu" if self.device == "cpu" else "auto",
            )
        )  # fmt: skip
        gate = checking.recognizer if self.policy.verify else None
        if isinstance(gate, str):
            refuse_trainer(info, gate)
        self.recognizer: Recognizer | None = get_recognizer(gate) if isinstance(gate, str) else gate
        self.min_score, self.strict = finding.min_score, finding.strict
        self.exemptions = Exemptions.of(finding, self.detector, self.recognizer or checking.recognizer or "auto")
        if model is not None and model.swap and identity.exemplar is None:
            raise UsageError("an identity swap needs an exemplar image; give one, or leave the swap out")
        if identity.exemplar is not None:
            self.face_model.aim_at(identity.exemplar, self._exemplar_face(identity.exemplar))

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | Path | None = None,
        bank: str | Path | None = None,
        *,
        k: int = 3000,
        layer: int = 0,
        band: str | None = None,
        psi: Diversity = "auto",
        seed: int | None = None,
        alpha: float = 0.5,
        attributes: str | None = None,
        add: Sequence[str] = (),
        exemplar: Image | None = None,
        swap: bool = False,
        mode: Mode | Anonymizer = "ficgan",
        fallback: str = "solid",
        mask_scale: float = 1.0,
        background: Faces | None = None,
        detector: FaceDetector | str = "auto",
        threshold: float | None = None,
        scale: float | None = None,
        min_score: float | None = None,
        strict: bool = False,
        keep: Mapping[str, Image] | None = None,
        only: Mapping[str, Image] | None = None,
        boxes: Sequence[Box] = (),
        recognizer: Recognizer | str | None = "auto",
        verify: bool = True,
        policy: Policy | None = None,
        device: str = "cpu",
        precision: str = "auto",
        compile: bool = False,
    ) -> Deidentifier:
        """The embedded default model, or the given files, with all options by name.

        Args:
            checkpoint: model file; None: the embedded one.
            bank: identity bank made with it; None: the embedded one (or, for another checkpoint, an error).
            k, band, seed, alpha, attributes, add, swap, precision, compile: of the model, see `load_face_model`.
            layer, psi, exemplar: see `Identity`.
            mode, fallback, mask_scale, background: see `Hiding`.
            detector, threshold, scale, min_score, strict, keep, only, boxes: see `Finding`.
            recognizer, policy: see `Checking`.
            verify: shorthand for `policy=Policy(verify=…)`.
            device: "cpu", "cuda" or "cuda:N".

        Raises:
            FicganError: missing or damaged files, or a bank of another model.
            UsageError: a value that cannot work.
        """
        make = partial(
            cls,
            identity=Identity(layer, psi, seed, exemplar),
            hiding=Hiding(mode, fallback, mask_scale, background),
            finding=Finding(detector, threshold, scale, min_score, strict, keep or {}, only or {}, boxes),
            checking=Checking(recognizer, policy or Policy(verify=verify)),
            device=device,
        )
        if mode != "ficgan" and checkpoint is None and bank is None:
            return make(None)  # nothing will be generated: no model
        model, info, digest = load_face_model(
            checkpoint, bank, device=device, k=k, band=band, seed=seed, alpha=alpha, attributes=attributes, add=add,
            swap=swap, precision=precision, compile=compile,
        )  # fmt: skip
        return make(model, info=info, digests={"checkpoint": digest})

    @property
    def face_model(self) -> FaceModel:
        """The model with the controls.

        Raises:
            UsageError: this Deidentifier was made for another mode and loaded no model.
        """
        if self._face_model is None:
            raise UsageError(f"this Deidentifier was made for mode {self.mode} and has no model; make one for ficgan")
        return self._face_model

    @property
    def model(self) -> FaceModel:
        """The model with its controls; see `face_model`."""
        return self.face_model

    def with_controls(
        self, *, k: int | None = None, layer: int | None = None, psi: Diversity | None = None,
        attributes: str | None = None,
    ) -> Deidentifier:  # fmt: skip
        """The same with other controls; nothing is loaded again. None leaves k, layer and ψ as they are.

        Raises:
            UsageError: a value that cannot work with this model and bank.
        """
        other, model = copy(self), copy(self.face_model)
        other.__dict__.pop("films", None)
        model.k, model.attributes = model.k if k is None else k, attributes or None
        other._face_model = model
        other.layer = other.layer if layer is None else model.check_layer(layer)
        other.psi = other.psi if psi is None else psi
        model.draw("check", Attempt(other.layer), other._psi(1))
        return other

    # -- photos -------------------------------------------------------------------------------------------------------

    def __call__(
        self, image: Picture, *, key: str | None = None, layer: int | None = None, channel_order: ChannelOrder = "rgb"
    ) -> Result:
        """De-identify one image. Several threads may call this at once.

        Args:
            image: array [H,W,3] RGB, [H,W,4] RGBA or [H,W] grey, uint8 or uint16; a PIL image; or the path of a file.
                It is not changed.
            key: names the photo or person in the keyed draw; another key gives other faces. None: a hash of the pixels.
            layer: i for this image; None: as the Deidentifier was made.
            channel_order: "rgb", or "bgr" as OpenCV has it, for the array given and the one returned.

        Returns:
            The new image, an array with the channels and the depth of the one given, and what was done.

        Raises:
            InputError: no such image.
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

        Args:
            images: see `__call__`.
            keys: one per image, see `__call__`; None: a hash of each image's pixels.
            layer: i for these images; None: as the Deidentifier was made.
            channel_order: of all images, in and out.

        Returns:
            One result per image.
        """
        photos = [as_photo(image, bgr=channel_order == "bgr") for image in images]
        pixels = [photo.rgb for photo in photos]
        keys = [content_key(image) for image in pixels] if keys is None else keys
        layer = self.layer if layer is None else self.face_model.check_layer(layer)
        works = [self._works(image, key) for image, key in zip(pixels, keys, strict=True)]
        if self.mode == "ficgan":
            self._encode([(image, work) for image, group in zip(pixels, works, strict=True) for work in group])
        results = [self._finish(image, group, layer) for image, group in zip(pixels, works, strict=True)]
        for photo, result in zip(photos, results, strict=True):
            result.image = photo.merge(result.image) if photo.mode != "RGB" or photo.depth != 8 else result.image
            if channel_order == "bgr" and result.image.ndim == 3:
                result.image = np.ascontiguousarray(result.image[..., [2, 1, 0, 3][: result.image.shape[2]]])
        return results

    def aligned(
        self, crops: NDArray[np.uint8], *, keys: Sequence[str] | None = None, layer: int | None = None
    ) -> tuple[Image, list[FaceResult]]:
        """De-identify crops that are already aligned as the checkpoint's; no detector, no blending.

        With ψ "auto" each crop gets the plain mean, as a person alone in a photo does; give ψ to tell people apart.

        Args:
            crops: [B,S,S,3] uint8 RGB.
            keys: one per crop, for the keyed draw; None: a hash of each crop's pixels.
            layer: i for these crops; None: as the Deidentifier was made.

        Returns:
            Crops of the same shape, and what was done to each; a crop that no setting hides becomes grey.

        Raises:
            InputError: not such an array.
            UsageError: the Deidentifier was made for another mode.
        """
        if self.mode != "ficgan":
            raise UsageError(f"aligned crops can only be generated anew, not {self.mode}; use mode ficgan")
        if crops.ndim != 4 or crops.shape[1] != crops.shape[2] or crops.shape[3] != 3 or crops.dtype != np.uint8:
            raise InputError(f"aligned crops must be [B,S,S,3] uint8 RGB, not {crops.dtype} {list(crops.shape)}")
        size = crops.shape[1]
        layer = self.layer if layer is None else self.face_model.check_layer(layer)
        points = self.alignment.points(size).astype(np.float32)
        keys = [content_key(crop_) for crop_ in crops] if keys is None else keys
        face = Face(size * TEMPLATE_BOX, points, 1.0)
        works = [_Work(face, key, self._psi(1)) for key in keys]
        self._encode(list(zip(crops, works, strict=True)))

        def whole(source: Image, group: list[_Work]) -> tuple[Image, Mask]:
            made, sight = group[0].generated, group[0].sight
            if made is None or sight is None:
                return np.full((size, size, 3), 127, np.uint8), np.ones((size, size), np.float32)
            return self.face_model.on_crop(source, sight, made, mask_scale=self.mask_scale)

        out = [
            self._settle(source, [work], layer, partial(whole, source))[0]
            for source, work in zip(crops, works, strict=True)
        ]
        return np.stack(out) if out else np.empty_like(crops), [work.result for work in works]

    def _exemplar_face(self, image: Image) -> Face:
        check_image(image)
        faces = self.detector.detect(image)
        if not faces:
            raise UsageError("no face was found in the exemplar image; give a photo with one clear face")
        faces = sorted(faces, key=lambda face: float(np.ptp(face.box[[0, 2]])), reverse=True)
        if len(faces) > 1 and np.ptp(faces[1].box[[0, 2]]) > 0.5 * np.ptp(faces[0].box[[0, 2]]):
            raise UsageError(f"the exemplar image shows {len(faces)} faces; crop it to the one that is meant")
        return faces[0]

    # -- films --------------------------------------------------------------------------------------------------------

    @cached_property
    def films(self) -> Films:
        """What all films share."""
        psi = None if self.psi == "auto" else float(self.psi)
        return Films(
            self._face_model, self.detector, self.recognizer, self.policy, self.mode, self.methods, self.mask_scale,
            self.layer, psi,
        )  # fmt: skip

    def video_settings(self, **changes: Any) -> VideoSettings:
        """The usual settings with this Deidentifier's mode, and what is changed."""
        return self.films.settings(**changes)

    def video_tools(self, settings: VideoSettings, *, generate: bool = True, trusted: bool = False) -> VideoTools:
        """Detector, recogniser and model for a film, see `Films.tools`."""
        return self.films.tools(settings, generate=generate, trusted=trusted)

    def process_video(
        self,
        source: StillPath,
        output: StillPath,
        *,
        settings: VideoSettings | None = None,
        rules: Rules | None = None,
        encode: EncodeOptions | None = None,
        start: float | None = None,
        end: float | None = None,
        project: StillPath | None = None,
        overwrite: bool = False,
        progress: Report | None = None,
        is_cancelled: Callable[[], bool] | None = None,
    ) -> VideoResult:
        """Redact a film, animation, sequence of images, camera or stream; see `ficgan.video.process_film`.

        Args:
            source: file, pattern such as `frames/%05d.png`, `camera:0`, or address.
            output: file to make.
            settings: stride, pads, linking, fallbacks; None: the usual ones with this Deidentifier's mode.
            rules: whom to leave as they are.
            encode: codec, quality, sound.
            start, end: seconds.
            project: folder that keeps the analysis.
            overwrite: replace an existing result.
            progress: called with frames done, frames in all or None, and the stage.
            is_cancelled: asked after each frame.

        Returns:
            What was done; the second look's findings are in `check`.

        Raises:
            InputError: the film cannot be read, or the output not be written.
            Cancelled: `is_cancelled` said so; nothing is left.
        """
        from ficgan.video import process_film, record_live
        from ficgan.video.read import is_live

        settings = settings or self.video_settings()
        tools = self.films.tools(settings, trusted=True)
        run = (
            partial(record_live, tools)
            if is_live(source)
            else partial(process_film, tools, people=self.films.linked(settings))
        )
        return run(
            source, output, settings=settings, rules=rules, encode=encode, start=start, end=end, project=project,
            overwrite=overwrite, progress=progress, is_cancelled=is_cancelled,
        )  # fmt: skip

    def analyse_video(
        self,
        source: StillPath,
        folder: StillPath,
        *,
        settings: VideoSettings | None = None,
        rules: Rules | None = None,
        start: float | None = None,
        end: float | None = None,
        overwrite: bool = False,
        progress: Report | None = None,
    ) -> Project:
        """Find the faces of a film and write a project to review; see `ficgan.video.analyse_film`."""
        from ficgan.video import analyse_film

        settings = settings or self.video_settings()
        return analyse_film(
            self.films.tools(settings, generate=False), source, folder, settings=settings, rules=rules, start=start,
            end=end, overwrite=overwrite, people=self.films.linked(settings), progress=progress,
        )  # fmt: skip

    def render_video(
        self,
        folder: StillPath,
        source: StillPath,
        output: StillPath,
        *,
        settings: VideoSettings | None = None,
        encode: EncodeOptions | None = None,
        decisions: StillPath | None = None,
        force: bool = False,
        overwrite: bool = False,
        progress: Report | None = None,
    ) -> VideoResult:
        """Apply a reviewed project; see `ficgan.video.render_film`."""
        from ficgan.video import render_film

        settings = settings or self.video_settings()
        return render_film(
            self.films.tools(settings), folder, source, output, settings=settings, encode=encode, decisions=decisions,
            force=force, overwrite=overwrite, progress=progress,
        )  # fmt: skip

    def stream(
        self,
        frames: Iterable[Image],
        fps: float = 25.0,
        *,
        settings: VideoSettings | None = None,
        look_ahead: int | None = None,
        budget: float | None = None,
    ) -> Stream:
        """Redact frames as they come, with a bounded look-ahead; see `ficgan.video.live`."""
        from ficgan.video import stream

        settings = settings or self.video_settings()
        tools = self.films.tools(settings, trusted=True)
        return stream(tools, frames, fps, settings=settings, look_ahead=look_ahead, budget=budget)

    # -- faces of one photo -------------------------------------------------------------------------------------------

    def _works(self, image: Image, key: str) -> list[_Work]:
        found = [
            (index, face)
            for index, face in enumerate(self.detector.detect(image))
            if self.min_score is None or face.score >= self.min_score
        ]
        psi = self._psi(len(found))
        kept = self.exemptions(image, [face for _, face in found])
        return [
            _Work(
                face, f"{key}/{index}", psi, _spans_a_face(self.alignment, face), self.fallback,
                doubts(face, image.shape, self.detector.name), why,
            )
            for (index, face), why in zip(found, kept, strict=True)
        ]  # fmt: skip

    def _psi(self, faces: int) -> float:
        if self.psi != "auto":
            return float(self.psi)
        return 0.0 if self._face_model is None else self._face_model.auto_psi(faces)

    def _finish(self, image: Image, works: list[_Work], layer: int) -> Result:
        hidden = [work for work in works if not work.kept]
        for work in works:
            if work.kept:
                work.result.keep(work.kept)
        if self.mode != "ficgan":
            out, mask = self._obscure(image, hidden)
        else:
            out, mask = self._settle(image, hidden, layer, lambda group: self._compose(image, group))
        faces = [work.result for work in works]
        return Result(out, faces, self._audit(faces, layer), mask)

    def _settle(
        self, image: Image, works: list[_Work], layer: int, compose: Callable[[list[_Work]], tuple[Image, Mask]]
    ) -> tuple[Image, Mask]:
        """Generate, compose and verify until every face of the last composite passes or is covered."""
        ladder = self.policy.attempts(layer, self.face_model.band, drawn=not self.face_model.swap)
        for work in works:
            if work.by_hand:
                work.result.action = _COVERS[work.fallback][1]
            elif self.strict and work.result.doubt:
                work.result.mask(f"doubtful find ({work.result.doubt})")
            elif not work.live:
                work.result.mask("" if work.sight is None else work.sight.problem)
            elif work.sight is not None:
                work.result.note = work.sight.note
        self._read(image, works)
        pending, changed = [work for work in works if work.live], works
        while True:
            for rung in sorted({work.rung for work in pending}):
                self._generate([work for work in pending if work.rung == rung], ladder[rung])
            out, mask = compose(works)
            self._judge(out, mask, _near(changed, works))
            failing = [work for work in works if self._fails(work)]
            if not failing:
                break
            for work in failing:
                if not work.live:  # the fallback hides it no better
                    work.fallback, work.result.matched = "solid", False
                    continue
                work.rung += 1
                if work.rung == len(ladder) or not work.result.covered:  # no setting covers more than another
                    work.generated = None
                    work.result.mask()
                else:
                    work.result.attempts, work.result.action = work.rung + 1, "retried"
            pending, changed = [work for work in failing if work.live], failing
        return out, mask

    @staticmethod
    def _fails(work: _Work) -> bool:
        """Whether something else has to take this face's place; nothing covers more than the solid cover."""
        bad = work.result.matched or not work.result.covered
        return bad and (work.live or (work.result.action == "masked" and work.fallback != "solid"))

    def _compose(self, image: Image, works: list[_Work]) -> tuple[Image, Mask]:
        """All faces pasted into a copy of the image, the largest last; those without a new face are covered."""
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for work in sorted(works, key=lambda work: float(np.ptp(work.face.landmarks[:, 0]))):
            if work.generated is None or work.sight is None:
                paste = _COVERS[work.fallback][0](out, work.face, mask_scale=max(1.0, self.mask_scale))
            else:
                paste = self.face_model.paste(out, work.sight, work.generated, mask_scale=self.mask_scale)
            paste.onto(out, mask)
        return out, mask

    def _obscure(self, image: Image, works: list[_Work]) -> tuple[Image, Mask]:
        """Cover all faces by the mode, and read them again."""
        self._read(image, works)
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        if self.method is None:
            effect, action = _COVERS[self.mode]
            for work in works:
                effect(out, work.face, mask_scale=self.mask_scale).onto(out, mask)
                work.result.action = action
        else:
            self._apply(self.method, out, mask, works)
        self._judge(out, mask, works)
        return out, mask

    def _apply(self, method: Anonymizer, out: Image, mask: Mask, works: list[_Work]) -> None:
        """An anonymiser on all faces, in place; a face that it cannot hide becomes a solid mask."""
        kind, keyed = placement(method), method.traits.keyed and bool(getattr(method, "key", ""))
        if kind == "scene" and works:
            cover_all(method, out, [work.face for work in works], mask_scale=self.mask_scale).onto(out, mask)
        for work in works:
            work.result.action, name = method.name, self.methods.name(work.key)
            try:
                # The blur of a whole photo is as soft as its largest face wants it; the small ones get their own.
                if kind != "scene" or not self._covers(mask, work):
                    cover(method, out, work.face, name=name, mask_scale=self.mask_scale).onto(out, mask)
            except (InputError, UsageError) as error:
                if method.traits.family == "external":
                    raise
                work.result.note = str(error)
            else:
                if kind == "square":
                    work.result.square = square(work.face, out.shape[:2], mask_scale=self.mask_scale)
                    work.result.name = name if keyed else None  # what is drawn is undone with the key and the name
            if work.result.note or not self._covers(mask, work):
                work.result.mask(work.result.note)
                solid_mask(out, work.face, mask_scale=max(1.0, self.mask_scale)).onto(out, mask)

    def _covers(self, mask: Mask, work: _Work) -> bool:
        return covered(mask, work.face.landmarks, work.face.box, self.policy.coverage)

    def _read(self, image: Image, works: list[_Work]) -> None:
        """Embed the source faces."""
        readable = [work for work in works if work.readable and work.source is None]
        if self.recognizer is not None and readable:
            marks = np.stack([work.face.landmarks for work in readable])
            for work, embedding in zip(readable, self.recognizer.embed(image, marks), strict=True):
                work.source = embedding

    def _judge(self, out: Image, mask: Mask, works: list[_Work]) -> None:
        """Whether each face of the composite is covered, and whether the gate still knows it."""
        for work in works:
            work.result.covered = self._covers(mask, work)
        # A solid cover need not be read: there is nothing to see.
        readable = [
            (work, work.source) for work in works
            if work.source is not None and (work.result.action != "masked" or work.fallback != "solid")
        ]  # fmt: skip
        if self.recognizer is None or not readable:
            return
        again = self.recognizer.embed(out, np.stack([work.face.landmarks for work, _ in readable]))
        for (work, before), after in zip(readable, again, strict=True):
            work.result.distance = float(self.recognizer.distance(before, after))
            work.result.matched = bool(self.recognizer.is_match(before, after))

    # -- the model ----------------------------------------------------------------------------------------------------

    def _encode(self, pairs: Sequence[tuple[Image, _Work]]) -> None:
        """What the model sees of all faces of all images, together."""
        ready = [(image, work) for image, work in pairs if work.readable and not work.kept]
        sights = self.face_model.see([(image, work.face) for image, work in ready])
        for (_, work), sight in zip(ready, sights, strict=True):
            work.sight = sight
            if sight.doubt:
                work.result.doubt = ", ".join(filter(None, [work.result.doubt, sight.doubt]))

    def _generate(self, works: Sequence[_Work], attempt: Attempt) -> None:
        """New faces for these at one setting."""
        for model in {work.aimed or self.face_model for work in works}:
            self._generate_by(model, [work for work in works if (work.aimed or self.face_model) is model], attempt)

    @staticmethod
    def _generate_by(model: FaceModel, works: Sequence[_Work], attempt: Attempt) -> None:
        sights = [work.sight for work in works if work.sight is not None]
        draws = [model.draw(work.key, attempt, work.psi, sight.z_id) for work, sight in zip(works, sights, strict=True)]
        styles = model.styles(np.stack([sight.z_id for sight in sights]), draws, attempt)
        for work, draw, made in zip(works, draws, model.render(styles, sights), strict=True):
            work.generated = made
            work.result.layer = None if attempt.band else attempt.layer
            if not model.swap:
                work.result.k, work.result.psi, work.result.members_digest = draw.k, draw.psi, draw.members_digest

    # -- the account --------------------------------------------------------------------------------------------------

    def _audit(self, faces: Sequence[FaceResult], layer: int) -> dict[str, Any]:
        """JSON-ready: versions, mode and its settings, detector, gate, every face; no secrets, no folders."""
        from ficgan import __version__

        gate, model = self.recognizer, self._face_model
        account = {
            "ficgan": __version__,
            "mode": self.mode if self.method is None else shown(self.mode, self.method),
            **self.methods.accounts([self.mode]),
            "detector": self.detector.name,
            "gate": None if gate is None else without_folders(gate.name),
            "gate_threshold": None if gate is None else float(gate.match_threshold),
            "checkpoint": self.digests.get("checkpoint"),
            "data_licence": None if self.header is None else self.header.data.get("licence"),
            "precision": None if model is None else model.precision,
            "faces": [face.to_dict() for face in faces],
        }
        if notes := _notes(faces):
            account["notes"] = notes
        if self.mode == "ficgan":
            psi = [face.psi for face in faces if face.psi is not None]
            account |= self.face_model.account(layer=layer, psi=psi)
        return account


def _near(changed: Sequence[_Work], works: Sequence[_Work]) -> list[_Work]:
    """The faces that changed, and those whose surroundings they may reach into."""
    if len(changed) == len(works):
        return list(works)

    def reach(work: _Work) -> NDArray[np.float32]:
        margin = 0.5 * float(np.ptp(work.face.box.reshape(2, 2), axis=0).max())
        return work.face.box + np.array([-margin, -margin, margin, margin], np.float32)

    boxes = [reach(work) for work in changed]
    return [
        work for work in works
        if any((np.maximum(a[:2], b[:2]) <= np.minimum(a[2:], b[2:])).all() for a in [reach(work)] for b in boxes)
    ]  # fmt: skip


def _spans_a_face(alignment: Alignment, face: Face) -> bool:
    """False for landmarks in one point or on a line."""
    try:
        alignment.matrix(face.landmarks, 64)
    except InputError:
        return False
    return True


def _notes(faces: Sequence[FaceResult]) -> list[str]:
    """What a user should know without opening the audit."""
    masked = Counter(face.note or "no new face passed the check" for face in faces if face.action == "masked")
    notes = [f"{_were(number)} masked: {why}" for why, number in masked.items()]
    lowered = Counter(face.layer for face in faces if face.action == "retried" and face.layer is not None)
    if lowered:
        layers = ", ".join(str(layer) for layer in sorted(lowered))
        number = sum(lowered.values())
        notes.append(f"{_were(number)} still recognised at first and tried again, with layer {layers}")
    kept = Counter(face.note for face in faces if face.action == "kept")
    notes += [f"{_were(number)} left as found: {why}" for why, number in kept.items()]
    seen = Counter(face.note for face in faces if face.note and face.action in ("generated", "retried"))
    notes += [f"{'1 face' if number == 1 else f'{number} faces'}: {what}" for what, number in seen.items()]
    notes += [
        f"doubtful find at {', '.join(str(round(float(value))) for value in face.box)}: {face.doubt}"
        for face in faces if face.doubt and face.action != "kept"
    ]  # fmt: skip
    return notes


def _were(number: int) -> str:
    return "1 face was" if number == 1 else f"{number} faces were"


def refuse_trainer(header: ModelInfo | None, recognizer: str) -> None:
    """A UsageError where a recogniser is the network V that the model was trained against: it would only flatter.

    Args:
        header: of the checkpoint; its training record holds V's sha256; None: no network was trained.
        recognizer: name for `get_recognizer`, such as "onnx:PATH".
    """
    if header is None:
        return
    kind, _, path = recognizer.partition(":")
    trainer = header.training.get("verifier_sha256")
    if kind == "onnx" and trainer and Path(path).is_file() and file_digest(path) == trainer:
        raise UsageError(f"recogniser {recognizer} is the network this model was trained against; take another one")
