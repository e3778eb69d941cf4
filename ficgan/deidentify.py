"""Deidentifier: one face pipeline for single images, batches and aligned crops.

detect → align → encode → k-same → layer mixing → generate → blend back → verify → retry or mask
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.faces import (
    Alignment,
    Face,
    FaceDetector,
    Paste,
    Recognizer,
    blur_face,
    crop,
    get_detector,
    get_recognizer,
    mosaic_face,
    paste_back,
    solid_mask,
)
from ficgan.identity import IdentityBank, KSameCode, audit, exemplar, mix_layers, parse_band
from ficgan.policy import Attempt, Policy, covered

if TYPE_CHECKING:
    import torch

    from ficgan.models import FICGAN, CheckpointHeader, Codes

__all__ = ["Deidentifier", "FaceResult", "Result"]

Image = NDArray[np.uint8]
Mode = Literal["ficgan", "blur", "mosaic", "solid"]
ChannelOrder = Literal["rgb", "bgr"]
MODES: tuple[str, ...] = ("ficgan", "blur", "mosaic", "solid")
COVERS: dict[str, tuple[Callable[[Image, Face], Paste], str]] = {
    "blur": (blur_face, "blurred"),
    "mosaic": (mosaic_face, "mosaic"),
    "solid": (solid_mask, "solid"),
}
SEVERAL_FACES_PSI = 0.6
"""ψ of `psi="auto"` where several people share a photo, so that they do not become clones of one mean face."""
CHUNK = 32
"""Faces generated at once: bounds the memory of a crowd."""


@dataclass
class FaceResult:
    """What was done to one face."""

    box: NDArray[np.float32]
    landmarks: NDArray[np.float32]
    score: float
    action: str
    """"generated", "retried" (a stronger setting or another draw), "masked" (nothing else passed), "blurred",
    "mosaic" or "solid" (asked for)."""
    attempts: int = 1
    layer: int | None = None
    k: int | None = None
    psi: float | None = None
    members_digest: str | None = None
    distance: float | None = None
    """Between source and output, by the gate recogniser; None where it was not asked."""
    matched: bool = False
    """Whether the gate still takes the output for the source: never true for a face that leaves unmasked."""
    covered: bool = True

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready, without embeddings."""
        return {
            "box": [round(float(v), 1) for v in self.box],
            "landmarks": [[round(float(v), 1) for v in point] for point in self.landmarks],
            "score": round(float(self.score), 4),
            "action": self.action,
            "attempts": self.attempts,
            "layer": self.layer,
            "k": self.k,
            "psi": self.psi,
            "members_digest": self.members_digest,
            "distance": None if self.distance is None else round(self.distance, 4),
            "matched": self.matched,
            "covered": self.covered,
        }


@dataclass
class Result:
    """A de-identified image and its account."""

    image: Image
    """H×W×3 uint8 RGB, a new array."""
    faces: list[FaceResult]
    audit: dict[str, Any]
    mask: NDArray[np.float32]
    """[H,W]: how much of each pixel was replaced; where it is 0 the image is bit-identical to the input."""

    @property
    def uncovered(self) -> int:
        """Faces whose landmarks the blend did not hide."""
        return sum(not face.covered for face in self.faces)

    @property
    def reidentified(self) -> int:
        """Faces the gate still recognises."""
        return sum(face.matched for face in self.faces)


@dataclass
class _Work:
    """One face on its way through the pipeline."""

    face: Face
    matrix: NDArray[np.float64] | None
    key: str
    psi: float
    codes: Codes | None = None
    generated: Image | None = None
    result: FaceResult = field(init=False)

    def __post_init__(self) -> None:
        self.result = FaceResult(self.face.box, self.face.landmarks, self.face.score, "generated")


class Deidentifier:
    """Replaces faces by k-anonymous ones.

    Args:
        model: the networks, in evaluation mode.
        header: of the checkpoint; its alignment is used.
        bank: identities to average.
        k: people per k-same code.
        layer: i; style layers 1..i keep the source's code, 0 is strongest. Up to L − 1.
        band: "first-last": put the k-same code into just these layers instead.
        seed: of the k-same draws; the same seed and bank give the same faces.
        alpha: how far towards the exemplar, w_d = w_m + α·(w_t − w_m).
        psi: diversity ψ of the variance-restored mean; "auto" is 0 for one face, 0.6 for several.
        attributes: "Female,-Eyeglasses": average only people with and without these.
        add: "Smiling=0.7": move along attribute directions.
        exemplar: H×W×3 uint8 RGB image with one face, given by the user.
        swap: put the exemplar's own code in place of w_m (identity swap; not anonymous).
        detector, recognizer: back ends, or names for `get_detector` and `get_recognizer`.
        threshold: lowest detection score.
        scale: detection scale, see `get_detector`.
        mask_scale: size of the replaced region, 1 covers hairline to chin.
        policy: verification, retries and coverage.
        mode: "ficgan", or "blur", "mosaic" (both reversible), "solid".
        device: "cpu", "cuda" or "cuda:N".
        digests: sha256 of the checkpoint, for the audit.

    Raises:
        UsageError: a value that cannot work with this checkpoint and bank.
    """

    def __init__(
        self,
        model: FICGAN,
        header: CheckpointHeader,
        bank: IdentityBank,
        *,
        k: int = 3000,
        layer: int = 4,
        band: str | None = None,
        seed: int = 0,
        alpha: float = 1.0,
        psi: float | Literal["auto"] = "auto",
        attributes: str | None = None,
        add: Sequence[str] = (),
        exemplar: Image | None = None,
        swap: bool = False,
        detector: FaceDetector | str = "auto",
        recognizer: Recognizer | str | None = "auto",
        threshold: float | None = None,
        scale: float | None = None,
        mask_scale: float = 1.0,
        policy: Policy | None = None,
        mode: Mode = "ficgan",
        device: str = "cpu",
        digests: dict[str, str] | None = None,
    ) -> None:
        import torch

        if mode not in MODES:
            raise UsageError(f"mode {mode!r} is unknown; it is one of {', '.join(MODES)}")
        if mask_scale <= 0:
            raise UsageError(f"mask scale {mask_scale} must be above 0; 1 covers hairline to chin")
        self.device = _device(device)
        self.model = model.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.header, self.bank = header, bank
        self.alignment = Alignment.from_dict(header.alignment)
        self.policy = policy or Policy()
        self.k, self.layer, self.seed, self.alpha, self.psi = k, layer, seed, alpha, psi
        self.attributes, self.swap, self.mode, self.mask_scale = attributes, swap, mode, mask_scale
        self.add = tuple(add)
        self.band = parse_band(band, model.num_layers) if band else None
        self.digests = digests or {}
        self._mix_check()
        # Too few people, or a ψ that cannot be, is known before any photo is read.
        self.bank.k_same(k, "check", seed=seed, attributes=attributes, psi=self._psi(1))
        self.shift = sum((_direction(bank, text) for text in add), np.zeros(model.config.w_dim, np.float32))
        # With the model on a GPU the detector takes the best provider onnxruntime has, and says which.
        where = "cpu" if self.device == "cpu" else "auto"
        self.detector: FaceDetector = (
            get_detector(detector, threshold=threshold, scale=scale, device=where)
            if isinstance(detector, str)
            else detector
        )
        wanted = recognizer if self.policy.verify else None
        self.recognizer = get_recognizer(wanted) if isinstance(wanted, str) else wanted
        if swap and exemplar is None:
            raise UsageError("an identity swap needs an exemplar image; give one, or leave the swap out")
        self.w_target: torch.Tensor | None = None if exemplar is None else self._exemplar_code(exemplar)

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
            options: as of the class.

        Raises:
            FicganError: missing or damaged files, or a bank of another model.
            UsageError: a value that cannot work.
        """
        from ficgan import pretrained
        from ficgan.errors import FicganError
        from ficgan.models import load_checkpoint
        from ficgan.models.io import file_digest

        if checkpoint is not None and bank is None:
            raise UsageError("a checkpoint of your own needs the bank built with it; give --bank (see `ficgan bank`)")
        try:
            checkpoint = Path(checkpoint) if checkpoint is not None else pretrained.path("model")
            bank = Path(bank) if bank is not None else pretrained.path("bank")
        except (FileNotFoundError, KeyError):
            raise FicganError("this copy of ficgan holds no embedded model; give --checkpoint and --bank") from None
        model, header = load_checkpoint(checkpoint)
        loaded = IdentityBank.load(bank)
        digest = file_digest(checkpoint)
        made_with = loaded.provenance.get("checkpoint")
        if made_with not in (None, digest):
            raise UsageError(
                f"the bank {bank} was built with another model than {checkpoint}; build one with `ficgan bank`"
            )
        options.setdefault("policy", Policy(verify=verify))
        return cls(model, header, loaded, digests={"checkpoint": digest}, **options)

    # -- use --------------------------------------------------------------------------------------------------------

    def __call__(self, image: Image, *, key: str = "", channel_order: ChannelOrder = "rgb") -> Result:
        """De-identify one image.

        Args:
            image: H×W×3 uint8; not changed.
            key: names the photo or person in the keyed draw; another key gives other faces.
            channel_order: "rgb", or "bgr" as OpenCV has it, for the image given and the one returned.

        Returns:
            The new image and what was done.

        Raises:
            InputError: not such an array.
        """
        return self.batch([image], keys=[key], channel_order=channel_order)[0]

    def batch(
        self, images: Sequence[Image], *, keys: Sequence[str] | None = None, channel_order: ChannelOrder = "rgb"
    ) -> list[Result]:
        """De-identify several images, all their faces generated together; sizes may differ.

        Args:
            images: each H×W×3 uint8; not changed.
            keys: one per image, see `__call__`; None gives all the same.
            channel_order: of all images, in and out.

        Returns:
            One result per image.
        """
        keys = [""] * len(images) if keys is None else keys
        for image in images:
            _check_image(image)
        if channel_order == "bgr":
            results = self.batch([np.ascontiguousarray(image[..., ::-1]) for image in images], keys=keys)
            for result in results:
                result.image = np.ascontiguousarray(result.image[..., ::-1])
            return results
        works = [self._works(image, key) for image, key in zip(images, keys, strict=True)]
        if self.mode == "ficgan":
            self._encode([(image, work) for image, group in zip(images, works, strict=True) for work in group])
        return [self._finish(image, group) for image, group in zip(images, works, strict=True)]

    def aligned(self, crops: NDArray[np.uint8], *, keys: Sequence[str] | None = None) -> tuple[Image, list[FaceResult]]:
        """De-identify crops that are already aligned as the checkpoint's; no detector, no blending.

        Args:
            crops: [B,S,S,3] uint8 RGB.
            keys: one per crop, for the keyed draw; None: "0", "1", …

        Returns:
            Crops of the same shape, and what was done to each; a crop that no setting hides becomes grey.
        """
        if crops.ndim != 4 or crops.shape[1] != crops.shape[2] or crops.shape[3] != 3 or crops.dtype != np.uint8:
            raise InputError(f"aligned crops must be [B,S,S,3] uint8 RGB, not {crops.dtype} {list(crops.shape)}")
        size = crops.shape[1]
        points = self.alignment.points(size).astype(np.float32)
        keys = [str(index) for index in range(len(crops))] if keys is None else keys
        matrix = self.alignment.matrix(points, self.model.resolution)
        psi = self._psi(2 if len(crops) > 1 else 1)
        face = Face(np.array([0, 0, size, size], np.float32), points, 1.0)
        works = [_Work(face, matrix, key, psi) for key in keys]
        self._encode(list(zip(crops, works, strict=True)))
        out = np.empty_like(crops)
        for index, (source, work) in enumerate(zip(crops, works, strict=True)):

            def whole(group: list[_Work], size: int = size) -> tuple[Image, NDArray[np.float32]]:
                generated = group[0].generated
                grey = generated is None
                image = np.full((size, size, 3), 127, np.uint8) if grey else _resize(cast(Image, generated), size)
                return image, np.ones((size, size), np.float32)

            out[index] = self._settle(source, [work], whole)[0]
        return out, [work.result for work in works]

    # -- one image --------------------------------------------------------------------------------------------------

    def _works(self, image: Image, key: str) -> list[_Work]:
        faces = self.detector.detect(image)
        psi = self._psi(len(faces))
        works = []
        for index, face in enumerate(faces):
            try:
                matrix = self.alignment.matrix(face.landmarks, self.model.resolution)
            except InputError:  # landmarks in one point or on a line: the box is masked instead
                matrix = None
            works.append(_Work(face, matrix, f"{key}/{index}", psi))
        return works

    def _psi(self, faces: int) -> float:
        if self.psi == "auto":
            return SEVERAL_FACES_PSI if faces > 1 else 0.0
        return float(self.psi)

    def _finish(self, image: Image, works: list[_Work]) -> Result:
        if self.mode != "ficgan":
            out, mask = self._obscure(image, works)
        else:
            out, mask = self._settle(image, works, lambda group: self._compose(image, group))
        faces = [work.result for work in works]
        return Result(out, faces, self._audit(faces), mask)

    def _settle(self, image: Image, works: list[_Work], compose: Any) -> tuple[Image, NDArray[np.float32]]:
        """Generate, compose and verify until every face passes or is masked."""
        pending = [work for work in works if work.matrix is not None]
        for work in works:
            if work.matrix is None:
                work.result.action = "masked"
        source = self._embed(image, works)
        for number, attempt in enumerate(self.policy.attempts(self.layer)):
            self._generate(pending, attempt)
            out, mask = compose(works)
            for work in pending:
                work.result.attempts = number + 1
                work.result.action = "generated" if number == 0 else "retried"
            if self.recognizer is None:
                break
            again = self._embed(out, works)
            for index, work in enumerate(works):
                work.result.distance = float(self.recognizer.distance(source[index], again[index]))
                work.result.matched = bool(self.recognizer.is_match(source[index], again[index]))
            pending = [work for work in pending if work.result.matched]
            if not pending:
                break
        for work in pending if self.recognizer is not None else []:
            work.generated, work.result.action, work.result.matched = None, "masked", False
        if self.recognizer is not None and pending:
            out, mask = compose(works)
        for work in works:
            work.result.covered = covered(mask, work.face.landmarks, self.policy.coverage)
        return out, mask

    def _compose(self, image: Image, works: list[_Work]) -> tuple[Image, NDArray[np.float32]]:
        """All faces pasted into a copy of the image, the largest last; those without a crop are masked."""
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for work in sorted(works, key=lambda work: float(np.ptp(work.face.landmarks[:, 0]))):
            if work.generated is None or work.matrix is None:
                paste = solid_mask(out, work.face)
            else:
                square = self.alignment.face_square(self.model.resolution)
                paste = paste_back(
                    out, work.generated, work.matrix, mask_scale=self.mask_scale, face_square=square
                )
            out, mask = paste.image, np.maximum(mask, paste.mask)
        return out, mask

    def _obscure(self, image: Image, works: list[_Work]) -> tuple[Image, NDArray[np.float32]]:
        effect, action = COVERS[self.mode]
        out, mask = image.copy(), np.zeros(image.shape[:2], np.float32)
        for work in works:
            paste = effect(out, work.face)
            out, mask = paste.image, np.maximum(mask, paste.mask)
            work.result.action = action
        for work in works:
            work.result.covered = covered(mask, work.face.landmarks, self.policy.coverage)
        return out, mask

    def _embed(self, image: Image, works: list[_Work]) -> NDArray[np.float32]:
        if self.recognizer is None or not works:
            return np.zeros((len(works), 1), np.float32)
        return self.recognizer.embed(image, np.stack([work.face.landmarks for work in works]))

    # -- the model --------------------------------------------------------------------------------------------------

    def _encode(self, pairs: Sequence[tuple[Image, _Work]]) -> None:
        """Codes of all faces, a chunk at a time."""
        import torch

        from ficgan.models import Codes

        ready = [(image, work) for image, work in pairs if work.matrix is not None]
        for begin in range(0, len(ready), CHUNK):
            part = ready[begin : begin + CHUNK]
            crops = np.stack([crop(image, cast(Any, work.matrix), self.model.resolution) for image, work in part])
            with torch.inference_mode():
                codes = self.model.encode(_to_tensor(crops, self.device))
            for index, (_, work) in enumerate(part):
                work.codes = Codes(codes.z_id[index : index + 1], codes.z_non[index : index + 1])

    def _generate(self, works: Sequence[_Work], attempt: Attempt) -> None:
        """New crops for these faces at one setting."""
        import torch

        for begin in range(0, len(works), CHUNK):
            part = works[begin : begin + CHUNK]
            draws = [self._draw(work, attempt) for work in part]
            with torch.inference_mode():
                z_id = torch.cat([cast("Codes", work.codes).z_id for work in part])
                z_non = torch.cat([cast("Codes", work.codes).z_non for work in part])
                w_new = torch.from_numpy(np.stack([draw.w for draw in draws]) + self.shift).float().to(self.device)
                if self.w_target is not None:
                    target = self.w_target.expand_as(w_new)
                    w_new = target if self.swap else exemplar(w_new, target, self.alpha)
                where: dict[str, Any] = {"band": self.band} if self.band else {"layer": attempt.layer}
                w = mix_layers(self.model.map(z_id), w_new, num_layers=self.model.num_layers, **where)
                images = self.model.generate(w, z_non)
            for work, draw, pixels in zip(part, draws, _to_pixels(images), strict=True):
                work.generated = pixels
                work.result.layer = None if self.band else attempt.layer
                work.result.k, work.result.psi, work.result.members_digest = draw.k, draw.psi, draw.members_digest

    def _draw(self, work: _Work, attempt: Attempt) -> KSameCode:
        key = work.key if attempt.draw == 0 else f"{work.key}#{attempt.draw}"
        return self.bank.k_same(self.k, key, seed=self.seed, attributes=self.attributes, psi=work.psi)

    def _exemplar_code(self, image: Image) -> torch.Tensor:
        import torch

        _check_image(image)
        faces = self.detector.detect(image)
        if not faces:
            raise UsageError("no face was found in the exemplar image; give a photo with one clear face")
        matrix = self.alignment.matrix(faces[0].landmarks, self.model.resolution)
        pixels = crop(image, matrix, self.model.resolution)
        with torch.inference_mode():
            return self.model.map(self.model.encode(_to_tensor(pixels[None], self.device)).z_id)

    def _mix_check(self) -> None:
        """Let `mix_layers` judge the layer before any photo is read."""
        import torch

        if self.band is None:
            code = torch.zeros(1, self.model.config.w_dim)
            mix_layers(code, code, num_layers=self.model.num_layers, layer=self.layer)

    # -- account ----------------------------------------------------------------------------------------------------

    def _audit(self, faces: Sequence[FaceResult]) -> dict[str, Any]:
        """JSON-ready account of what was done and of what k-same covers here."""
        from ficgan import __version__

        account: dict[str, Any] = {
            "ficgan": __version__,
            "mode": self.mode,
            "detector": self.detector.name,
            "gate": None if self.recognizer is None else self.recognizer.name,
            "gate_threshold": None if self.recognizer is None else float(self.recognizer.match_threshold),
            "checkpoint": self.digests.get("checkpoint"),
            "data_licence": self.header.data.get("licence"),
            "faces": [face.to_dict() for face in faces],
        }
        if self.mode == "ficgan":
            account |= audit(
                self.bank,
                k=self.k,
                psi=sorted({face.psi for face in faces if face.psi is not None}),
                alpha=self.alpha if self.w_target is not None else None,
                num_layers=self.model.num_layers,
                layer=None if self.band else self.layer,
                band=self.band,
                seed=self.seed,
                attributes=self.attributes,
                directions=self.add,
                target="swap" if self.swap else "exemplar" if self.w_target is not None else "bank",
            )
        return account


def _direction(bank: IdentityBank, text: str) -> NDArray[np.float32]:
    from ficgan.identity import parse_direction

    name, amount = parse_direction(text)
    return (bank.direction(name) * amount).astype(np.float32)


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"device {name} was asked for, but torch sees no CUDA GPU here; use --device cpu")
    if name != "cpu" and not name.startswith("cuda"):
        raise UsageError(f"device {name!r} is unknown; it is auto, cpu, cuda or cuda:N")
    return name


def _check_image(image: Any) -> None:
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        shape = f"{getattr(image, 'dtype', type(image).__name__)} {list(getattr(image, 'shape', []))}"
        raise InputError(f"an image must be an H×W×3 uint8 RGB array, not {shape}")
    if 0 in image.shape:
        raise InputError(f"an image must have pixels, not shape {list(image.shape)}")


def _to_tensor(crops: NDArray[np.uint8], device: str) -> torch.Tensor:  # [B,S,S,3] uint8 → [B,3,S,S] in [−1, 1]
    import torch

    x = torch.from_numpy(crops).to(device).permute(0, 3, 1, 2).float().div_(127.5).sub_(1)
    return x.contiguous(memory_format=torch.channels_last)


def _to_pixels(images: torch.Tensor) -> NDArray[np.uint8]:  # [B,3,S,S] in [−1, 1] → [B,S,S,3] uint8
    import torch

    scaled = images.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    return scaled.permute(0, 2, 3, 1).contiguous().cpu().numpy()


def _resize(image: Image, size: int) -> Image:
    import cv2

    if image.shape[0] == size:
        return image
    how = cv2.INTER_CUBIC if size > image.shape[0] else cv2.INTER_AREA
    return cast(Image, cv2.resize(image, (size, size), interpolation=how))
