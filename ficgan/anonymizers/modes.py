"""Anonymisers for photos and films: their names, the part that is replaced, and how the result is put back."""

from __future__ import annotations

import hashlib
import math
import secrets
from collections.abc import Iterable, Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images
from ficgan.anonymizers.basic import ObfuscationBlur, ObfuscationOverlay, obfuscate_blur, obfuscate_overlay
from ficgan.errors import InputError, UsageError, hint
from ficgan.faces.crops import Alignment, Paste, check_mask_scale, crop, nothing, paste_back
from ficgan.faces.detection import Face, check_image
from ficgan.files import content_key
from ficgan.options import HIDING, without_folders
from ficgan.registry import parse_spec

_INSTEAD = {"blur": "gaussian-blur", "mosaic": "pixelation"}  # What does the same as a mode of our own, with parameters


def check_mode(mode: str) -> str:
    """The mode if valid: one of `HIDING`, NAME or NAME:PARAMETER=VALUE,…; UsageError else."""
    method_of(mode)
    return mode


def method_of(mode: str) -> Anonymizer | None:
    """The anonymiser of a mode, not yet fitted; None for our own modes. Refuses as `check_mode` does."""
    if mode in HIDING:
        return None
    name, given = parse_spec(mode)
    if name == "ficgan" or name in _INSTEAD:
        raise UsageError(f"mode {name} takes no parameters; {_INSTEAD.get(name, 'options such as --k')} does")
    if name not in ANONYMIZERS:
        raise UsageError(f"there is no mode {name!r}; {hint(name, [*HIDING, *ANONYMIZERS])}")
    if name == "external" and given.get("folder"):
        raise UsageError("external: images made before have names, and faces of a photo have none; give command")
    return ANONYMIZERS.make(name, **given)


def mode_of(method: Anonymizer) -> str:
    """The text that asks for a method, but for its secrets and what is no plain value."""
    return _text(method.name, {key: value for key, value in method.settings().items() if "," not in str(value)})


def shown(mode: str, method: Anonymizer | None = None) -> str:
    """A mode as others may read it: no keys, no folders of this machine; `method` where it is at hand."""
    method = method or method_of(mode)
    if method is None:
        return mode
    name, given = parse_spec(mode)
    public = method.settings()
    return _text(name, {key: without_folders(value) for key, value in given.items() if key.replace("-", "_") in public})


def _text(name: str, parameters: Mapping[str, Any]) -> str:
    parts = [f"{key}={value}" for key, value in parameters.items() if value not in (None, "")]
    return ":".join(filter(None, [name, ",".join(parts)]))


_HARMLESS = "use it only where recognition would do no harm."


def caution(mode: str, method: Anonymizer | None = None) -> str | None:
    """A sentence for modes that leave faces recognisable, or that can be undone; None for others."""
    if mode in _INSTEAD:
        return f"{mode} can be reversed; {_HARMLESS}"
    method = method or method_of(mode)
    if method is None or method.name == "solid":
        return None
    name, family = method.name, method.traits.family
    if method.traits.keyed:
        if getattr(method, "key", "") and getattr(method, "variant", "") != "as_released":
            return f"{name} is undone by whoever has the key, or learns it from pairs of faces; keep the key secret."
        return f"{name} without a secret key can be undone by anybody; {_HARMLESS}"
    if family in ("basic", "adversarial", "overlay", "differential privacy") or name == "obfuscation-blur":
        return f"faces stay recognisable under {name}, for people or for programs made for it; {_HARMLESS}"
    if family == "k-anonymity":
        return f"whoever has the background faces can take them out of {name} again; keep the background secret."
    return None


def mode_type(modes: Iterable[str]) -> np.dtype[np.str_]:
    """Texts wide enough for these modes and for every fallback."""
    return np.dtype(f"<U{max(map(len, [*HIDING, *modes]))}")


@dataclass(eq=False)
class Methods:
    """Anonymisers ready for use on photos and films."""

    background: Faces | None = None
    given_seed: int | None = None  # of all that is drawn; None: a random one
    trusted: Set[str] = frozenset()  # modes that the user gave; others, from files, may not run programs
    given: Mapping[str, Anonymizer] = field(default_factory=dict)  # made by the caller, by mode

    def __post_init__(self) -> None:
        self.seed = secrets.randbits(128) if self.given_seed is None else self.given_seed
        self._ready: dict[str, Anonymizer] = {}

    def __call__(self, mode: str) -> Anonymizer:
        """The anonymiser of a mode, fitted."""
        if mode not in self._ready:
            self._ready[mode] = self._made(mode)
        return self._ready[mode]

    def trusting(self, mode: str) -> Methods:
        """The same, of the same seed, for a mode that the user gave as well."""
        more = copy(self)
        more.trusted, more._ready = self.trusted | {mode}, {}
        return more

    def name(self, *key: object) -> str:
        """Of a face, for all that is drawn for it: the same for a seed and key, and nobody can tell the key from it."""
        text = "\0".join(str(part) for part in (self.seed, *key))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def identity(self) -> list[Any]:
        """All that results depend on but a random seed: jobs with the same may go on from one another."""
        background = None if self.background is None else content_key(self.background.images)
        return [self.given_seed, background, sorted(map(repr, self.given.values()))]

    def accounts(self, modes: Iterable[str]) -> dict[str, Any]:
        """JSON-ready: the methods of modes, and the background where one of them has it; empty for our own modes."""
        methods = [self(mode) for mode in sorted(modes) if mode in self.given or mode not in HIDING]
        account: dict[str, Any] = {}
        for method in methods:
            given = method.settings().items()
            settings = {key: without_folders(value) if isinstance(value, str) else value for key, value in given}
            known = {"name": method.name, "family": method.traits.family, "source": method.traits.source}
            account.setdefault("methods", []).append({**known, "settings": settings})
        if self.background is not None and any(method.traits.needs & {"background", "overlays"} for method in methods):
            digest = hashlib.sha256(np.ascontiguousarray(self.background.images).tobytes()).hexdigest()
            account["background"] = {"faces": len(self.background), "pixels_sha256": digest}
        return account

    def _made(self, mode: str) -> Anonymizer:
        method = self.given.get(mode) or method_of(mode)
        if method is None:
            raise UsageError(f"mode {mode} is one of our own, and no anonymiser")
        if method.traits.family == "external" and mode not in self.trusted:
            asked = "a project's file asks for a program to be run (mode external), which only an option may"
            raise InputError(f"{asked}; use ficgan-deid --mode external:command=… on the film")
        if self.background is not None:
            method = method.fit(self.background)
        elif not is_fitted(method):
            raise UsageError(f"mode {method.name} needs other people's aligned faces; give them: --background FACES")
        if method.traits.needs & {"verifier"} or method.traits.family == "external":
            side = 112 if self.background is None else self.background.images.shape[1]
            try:
                method(Faces(np.zeros((0, side, side, 3), np.uint8), ()))  # refuses what is missing
            except InputError as error:  # such as a recogniser's file: a value of the mode, and no input
                raise UsageError(str(error)) from error
        return method


Square = tuple[int, int, int]  # x0, y0, side in whole pixels of the photo; it may reach beyond the photo

_MARGIN = 1.3  # Detectors' boxes end at the brow and the chin; this brings hairline and ears into the square
# In films sides are powers of this: random numbers of a crop change with its size, and must not do so often.
_STEP = 2**0.25


def placement(anonymizer: Anonymizer) -> Literal["square", "aligned", "scene"]:
    """The way an anonymiser is put onto a photo.

    "square": an upright, hard-edged square around the face, so that keyed methods can be inverted; "aligned": an
    aligned crop of the background's size, pasted back with a soft edge; "scene": the photo itself with its boxes.
    """
    if anonymizer.traits.domain == "scene":
        return "scene"
    return "aligned" if "background" in anonymizer.traits.needs else "square"


def is_fitted(anonymizer: Anonymizer) -> bool:
    """Whether an anonymiser has a background, or needs none."""
    if "overlays" in anonymizer.traits.needs:
        return getattr(anonymizer, "overlays", None) is not None
    return "background" not in anonymizer.traits.needs or anonymizer.crop_side is not None


def cover(
    anonymizer: Anonymizer, image: Images, face: Face, *, name: str, mask_scale: float = 1.0, stepped: bool = False
) -> Paste:
    """A photo [H,W,3] uint8 with one face anonymised by draws of `name`; bit-identical where the mask is 0."""
    kind = placement(anonymizer)
    if kind == "scene":
        return cover_all(anonymizer, image, [face], mask_scale=mask_scale)
    if kind == "aligned":
        new = aligned_crop(anonymizer, image, face, name=name)
        return paste_aligned(image, new, face, mask_scale=mask_scale)
    image = check_image(image)
    height, width = image.shape[:2]
    x0, y0, side = square(face, (height, width), mask_scale=mask_scale, stepped=stepped)
    left, top, right, bottom = max(x0, 0), max(y0, 0), min(x0 + side, width), min(y0 + side, height)
    if right <= left or bottom <= top:
        return nothing(image)
    rows, columns = (np.arange(start, start + side) for start in (y0, x0))
    cut = image[rows.clip(0, height - 1)[:, None], columns.clip(0, width - 1)]
    marks = (face.landmarks - np.array([x0, y0])).astype(np.float32)
    new = anonymizer(Faces(cut[None], (name,), marks[None]))[0]
    pixels = np.ascontiguousarray(new[top - y0 : bottom - y0, left - x0 : right - x0])
    return Paste(image, left, top, pixels, np.ones(pixels.shape[:2], np.float32))


def square(face: Face, shape: tuple[int, int], *, mask_scale: float = 1.0, stepped: bool = False) -> Square:
    """The square about a face's box that is cut from a photo of this `shape`, moved into it where it fits.

    A `mask_scale` of 1 is 1.3 times the box's longer side; `stepped`, for films, rounds it up to the next power of 2^¼.
    """
    check_mask_scale(mask_scale)
    box = np.asarray(face.box, np.float64)
    wanted = _MARGIN * mask_scale * max(float((box[2:] - box[:2]).max()), 1.0)
    if stepped:
        wanted = _STEP ** math.ceil(math.log(wanted, _STEP) - 1e-9)
    side, size = max(2, math.ceil(wanted - 1e-6)), np.array([shape[1], shape[0]])
    corner = np.rint((box[:2] + box[2:]) / 2 - side / 2)
    stays = (side > size) | (corner + side <= 0) | (corner >= size)
    x0, y0 = np.where(stays, corner, np.minimum(corner.clip(0), size - side)).astype(int).tolist()
    return x0, y0, side


def aligned_crop(anonymizer: Anonymizer, image: Images, face: Face, *, name: str) -> Images:
    """The anonymised crop [S,S,3] of a face, aligned and of the background's size, for `paste_aligned`."""
    size = anonymizer.needed(anonymizer.crop_side)
    cut = crop(image, Alignment().matrix(face.landmarks, size), size)
    return anonymizer(Faces(cut[None], (name,)))[0]


def paste_aligned(image: Images, new: Images, face: Face, *, mask_scale: float = 1.0) -> Paste:
    """An aligned crop [S,S,3] in the place of a face, with the soft oval of generated faces."""
    return paste_back(image, new, Alignment().matrix(face.landmarks, len(new)), mask_scale=mask_scale)


def cover_all(anonymizer: Anonymizer, image: Images, faces: Sequence[Face], *, mask_scale: float = 1.0) -> Paste:
    """A photo with all its faces' boxes, scaled by `mask_scale`, obfuscated at once, and its mask."""
    image = check_image(image)
    boxes = np.array([face.box for face in faces], np.float64).reshape(-1, 4)
    centres, halves = (boxes[:, :2] + boxes[:, 2:]) / 2, (boxes[:, 2:] - boxes[:, :2]) / 2 * mask_scale
    boxes = np.hstack([centres - halves, centres + halves])
    if isinstance(anonymizer, ObfuscationBlur):
        pixels, weight = obfuscate_blur(image, boxes, anonymizer.variant, anonymizer.radius)
    else:
        assert isinstance(anonymizer, ObfuscationOverlay)
        pixels = obfuscate_overlay(image, boxes, anonymizer.colour)
        white = obfuscate_overlay(np.zeros_like(image), boxes, "white")[..., 0]
        weight = np.divide(white, 255, dtype=np.float32)
    return Paste(image, 0, 0, pixels, weight)
