"""Deidentifier: one face pipeline for single images, batches and aligned crops.

detect → align → encode → k-same → layer mixing → generate → blend back → verify → retry or mask
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.anonymizers.modes import HIDING, Methods, check_mode, mode_of
from ficgan.arrays import content_key
from ficgan.deidentify.account import refuse_trainer
from ficgan.deidentify.films import Films
from ficgan.deidentify.photos import Image, Mask, Photos, Work
from ficgan.device import resolve_device
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.face_model import FaceModel, ModelInfo
from ficgan.faces import Alignment, Face, FaceDetector, Recognizer, get_detector, get_recognizer
from ficgan.faces.detection import check_image
from ficgan.identity import IdentityBank
from ficgan.identity.file import file_digest, file_header
from ficgan.policy import Attempt, Policy
from ficgan.results import FaceResult, Result

__all__ = ["MODES", "Deidentifier", "Mode", "refuse_trainer"]

Mode = str
ChannelOrder = Literal["rgb", "bgr"]
MODES = HIDING
"""Of our own; names of anonymisers are modes, too."""


class Deidentifier(Photos, Films):
    """Replaces faces by k-anonymous ones.

    Args:
        model: with its bank and controls, see `load_face_model`; None where nothing is generated (other modes).
        layer: i; style layers 1..i keep the source's code, 0 is strongest. Up to L − 1.
        seed: of anonymisers that draw; None: a random one that is not kept.
        psi: diversity ψ of the variance-restored mean; "auto": what the model does best with.
        exemplar: H×W×3 uint8 RGB image with one face, given by the user.
        detector, recognizer: back ends, or names for `get_detector` and `get_recognizer`.
        threshold: lowest detection score.
        scale: detection scale, see `get_detector`.
        mask_scale: size of the replaced region, 1 covers hairline to chin.
        policy: verification, retries and coverage.
        mode: "ficgan"; "blur", "mosaic" (both reversible), "solid"; NAME or NAME:PARAMETER=VALUE,… of
            `ficgan.anonymizers.ANONYMIZERS`; or an anonymiser.
        background: other people's aligned faces, for the methods that need them.
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
        layer: int = 0,
        seed: int | None = None,
        psi: float | Literal["auto"] = "auto",
        exemplar: Image | None = None,
        detector: FaceDetector | str = "auto",
        recognizer: Recognizer | str | None = "auto",
        threshold: float | None = None,
        scale: float | None = None,
        mask_scale: float = 1.0,
        policy: Policy | None = None,
        mode: Mode | Anonymizer = "ficgan",
        background: Faces | None = None,
        device: str = "cpu",
        info: ModelInfo | None = None,
        digests: dict[str, str] | None = None,
    ) -> None:
        given = {} if isinstance(mode, str) else {mode_of(mode): mode}
        mode = check_mode(mode) if isinstance(mode, str) else next(iter(given))
        if mask_scale <= 0:
            raise UsageError(f"mask scale {mask_scale} must be above 0; 1 covers hairline to chin")
        self.policy = policy or Policy()
        self.layer, self.psi, self.mode, self.mask_scale = layer, psi, mode, mask_scale
        self.methods = Methods(background, seed, {mode}, given)
        self.method = None if mode in MODES and not given else self.methods(mode)
        self.digests = digests or {}
        self.device, self._face_model = resolve_device(device), model
        if model is not None:
            if model.band is None:
                model.check_layer(layer)
            # Too few people, or a ψ that cannot be, is known before any photo is read.
            model.draw("check", Attempt(layer), self._psi(1))
        elif mode == "ficgan":
            raise UsageError("a face can be generated only with a model and an identity bank; give both")
        self.header = info
        self.alignment = Alignment() if model is None else model.alignment
        # With the model on a GPU the detector takes the best provider onnxruntime has, and says which.
        where = "cpu" if self.device == "cpu" else "auto"
        self.detector: FaceDetector = (
            get_detector(detector, threshold=threshold, scale=scale, device=where)
            if isinstance(detector, str)
            else detector
        )
        wanted = recognizer if self.policy.verify else None
        if isinstance(wanted, str):
            refuse_trainer(info, wanted)
        self.recognizer = get_recognizer(wanted) if isinstance(wanted, str) else wanted
        if model is not None and model.swap and exemplar is None:
            raise UsageError("an identity swap needs an exemplar image; give one, or leave the swap out")
        if exemplar is not None:
            self.face_model.aim_at(exemplar, self._exemplar_face(exemplar))

    @classmethod
    def from_pretrained(
        cls,
        checkpoint: str | Path | None = None,
        bank: str | Path | None = None,
        *,
        verify: bool = True,
        **options: Any,
    ) -> Deidentifier:
        """The embedded default model, or the given files.

        Args:
            checkpoint: model file; None: the embedded one.
            bank: identity bank made with it; None: the embedded one (or, for another checkpoint, an error).
            verify: shorthand for `policy=Policy(verify=…)`.
            options: as of the class, and the model's controls: k, band, alpha, attributes, add, swap, precision,
                compile; see `load_face_model`.

        Raises:
            FicganError: missing or damaged files, or a bank of another model.
            UsageError: a value that cannot work.
        """
        options.setdefault("policy", Policy(verify=verify))
        controls = {name: options.pop(name) for name in CONTROLS if name in options}
        if options.get("mode", "ficgan") != "ficgan" and checkpoint is None and bank is None:
            return cls(None, seed=controls.get("seed"), **options)  # nothing will be generated: no model
        model, info, digest = load_face_model(
            checkpoint, bank, device=options.get("device", "cpu"), **{"k": 3000, **controls}
        )
        return cls(model, seed=controls.get("seed"), info=info, digests={"checkpoint": digest}, **options)

    @property
    def model(self) -> FaceModel:
        """The model with its controls; see `face_model`."""
        return self.face_model

    # -- use --------------------------------------------------------------------------------------------------------

    def __call__(
        self, image: Image, *, key: str | None = None, layer: int | None = None, channel_order: ChannelOrder = "rgb"
    ) -> Result:
        """De-identify one image.

        Args:
            image: H×W×3 uint8; not changed.
            key: names the photo or person in the keyed draw; another key gives other faces. None: a hash of the pixels.
            layer: i for this image; None: as the Deidentifier was made.
            channel_order: "rgb", or "bgr" as OpenCV has it, for the image given and the one returned.

        Returns:
            The new image and what was done.

        Raises:
            InputError: not such an array.
        """
        keys = None if key is None else [key]
        return self.batch([image], keys=keys, layer=layer, channel_order=channel_order)[0]

    def batch(
        self,
        images: Sequence[Image],
        *,
        keys: Sequence[str] | None = None,
        layer: int | None = None,
        channel_order: ChannelOrder = "rgb",
    ) -> list[Result]:
        """De-identify several images, their faces encoded together; sizes may differ.

        Args:
            images: each H×W×3 uint8; not changed.
            keys: one per image, see `__call__`; None: a hash of each image's pixels.
            layer: i for these images; None: as the Deidentifier was made.
            channel_order: of all images, in and out.

        Returns:
            One result per image.
        """
        for image in images:
            check_image(image)
        if channel_order == "bgr":
            images = [np.ascontiguousarray(image[..., ::-1]) for image in images]
        keys = [content_key(image) for image in images] if keys is None else keys
        layer = self.layer if layer is None else self.face_model.check_layer(layer)
        works = [self._works(image, key) for image, key in zip(images, keys, strict=True)]
        if self.mode == "ficgan":
            self._encode([(image, work) for image, group in zip(images, works, strict=True) for work in group])
        results = [self._finish(image, group, layer) for image, group in zip(images, works, strict=True)]
        if channel_order == "bgr":
            for result in results:
                result.image = np.ascontiguousarray(result.image[..., ::-1])
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
        works = [Work(face, key, self._psi(1)) for key in keys]
        self._encode(list(zip(crops, works, strict=True)))

        def whole(source: Image, group: list[Work]) -> tuple[Image, Mask]:
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


TEMPLATE_BOX = np.array([0.1, -0.08, 0.91, 0.97], np.float32)
"""Where a detector sees the face of an aligned crop, in sides of the crop: the median over crops."""
CONTROLS = ("k", "band", "seed", "alpha", "attributes", "add", "swap", "precision", "compile")
"""Options of `Deidentifier.from_pretrained` that belong to the model."""


def load_face_model(
    checkpoint: str | Path | None = None, bank: str | Path | None = None, *, device: str = "cpu", **controls: Any
) -> tuple[FaceModel, ModelInfo, str]:
    """The embedded default model, or the given files, ready for use.

    Args:
        checkpoint: appearance model or network; None: the embedded one.
        bank: identity bank made with it; None: the embedded one (or, for another checkpoint, an error).
        device: "cpu", "cuda" or "cuda:N".
        k: people per k-same code.
        band: "first-last": put the k-same code into just these style layers.
        seed: of the k-same draws; the same seed and bank give the same faces. None: a random one that is not kept.
        alpha: how far towards the exemplar, w_d = w_m + α·(w_t − w_m); 1 is a swap, which is not anonymous.
        attributes: "Female,-White": average only people with and without these.
        add: ["Female=0.7", …]: move along attribute directions.
        swap: put the exemplar's own code in place of w_m (identity swap; not anonymous).
        precision: of a network: "float32", "bfloat16", "float16", or "auto": what this machine is faster in.
        compile: let torch.compile fuse a network; pays over many faces only.

    Returns:
        The model, what its header says, and the sha256 of its file.

    Raises:
        FicganError: missing or damaged files, or a bank of another model.
        UsageError: a value that cannot work.
    """
    from ficgan import pretrained

    if checkpoint is not None and bank is None:
        raise UsageError("a checkpoint of your own needs the bank built with it; give --bank (see `ficgan bank`)")
    try:
        checkpoint = Path(checkpoint) if checkpoint is not None else pretrained.path("model")
        bank = Path(bank) if bank is not None else pretrained.path("bank")
    except (FileNotFoundError, KeyError):
        raise FicganError("this copy of ficgan holds no embedded model; give --checkpoint and --bank") from None
    precision, compile = controls.pop("precision", "auto"), controls.pop("compile", False)
    kind = file_header(checkpoint)[0]
    if kind == "appearance" and (compile or precision not in ("auto", "float32")):
        raise UsageError(f"{checkpoint.name} computes in float32; precision and compile are for networks on crops")
    loaded, digest = IdentityBank.load(bank), file_digest(checkpoint)
    if loaded.provenance.get("checkpoint") not in (None, digest):
        raise UsageError(
            f"the bank {bank} was built with another model than {checkpoint}; build one with `ficgan bank`"
        )
    if kind == "appearance":
        from ficgan.frame.file import load_appearance
        from ficgan.frame_model import FrameModel

        appearance, config, info, network = load_appearance(checkpoint)
        return (
            FrameModel(appearance, config, loaded, network=network, sha256=digest, device=device, **controls),
            info,
            digest,
        )
    from ficgan.face_model import CropModel
    from ficgan.models import load_checkpoint

    trained, header = load_checkpoint(checkpoint)
    info = ModelInfo(header.alignment, header.data, header.training)
    made = CropModel(trained, info, loaded, device=device, precision=precision, compile=compile, **controls)
    return made, info, digest
