"""What may take a face's place, by name: a new face, three quick covers, and every method of `ficgan.anonymizers`."""

from __future__ import annotations

import difflib
import hashlib
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces
from ficgan.anonymizers.onto import is_fitted
from ficgan.arrays import content_key
from ficgan.errors import InputError, UsageError
from ficgan.registry import parse_spec

__all__ = [
    "COVERS",
    "HIDING",
    "Methods",
    "caution",
    "check_mode",
    "method_of",
    "mode_of",
    "mode_type",
    "shown",
    "told",
    "without_folders",
]

COVERS: tuple[str, ...] = ("blur", "mosaic", "solid")
"""Quick covers with a soft edge, scaled to the face; all that may be a fallback or cover a region."""
HIDING: tuple[str, ...] = ("ficgan", *COVERS)
"""The modes of our own; others are names of anonymisers, with parameters or without."""
_INSTEAD = {"blur": "gaussian-blur", "mosaic": "pixelation"}


def check_mode(mode: str) -> str:
    """The mode, if there is such a method and its parameters can be.

    Args:
        mode: "ficgan", "blur", "mosaic", "solid", or NAME or NAME:PARAMETER=VALUE,… of `ANONYMIZERS`.

    Raises:
        UsageError: an unknown name, with the nearest known one, or a parameter that cannot work.
    """
    method_of(mode)
    return mode


def method_of(mode: str) -> Anonymizer | None:
    """The anonymiser of a mode, not yet fitted to a background; None for "ficgan", "blur", "mosaic" and "solid".

    Raises:
        UsageError: as of `check_mode`.
    """
    if mode in HIDING:
        return None
    name, given = parse_spec(mode)
    if name == "ficgan":
        raise UsageError("mode ficgan takes no parameters; its controls are options of their own, such as k and layer")
    if name in _INSTEAD:
        raise UsageError(f"mode {name} takes no parameters; {_INSTEAD[name]} does")
    if name not in ANONYMIZERS:
        near = difflib.get_close_matches(name, [*HIDING, *ANONYMIZERS], n=1)
        hint = f"did you mean {near[0]}?" if near else "`ficgan-eval list anonymizers` lists them"
        raise UsageError(f"there is no mode {name!r}; {hint}")
    method = ANONYMIZERS.make(name, **given)
    _check_usable(method)
    return method


def mode_of(method: Anonymizer) -> str:
    """The text that asks for a method, but for its secrets and what is no plain value."""
    given = [(key, value) for key, value in method.settings().items() if value not in (None, "")]
    parts = [f"{key}={value}" for key, value in given if "," not in str(value)]
    return ":".join(filter(None, [method.name, ",".join(parts)]))


def shown(mode: str, method: Anonymizer | None = None) -> str:
    """A mode as others may read it: no keys, no folders of this machine.

    Args:
        mode: as given.
        method: the anonymiser, where it is at hand.
    """
    method = method or method_of(mode)
    if method is None:
        return mode
    name, given = parse_spec(mode)
    public = method.settings()
    parts = [f"{key}={without_folders(value)}" for key, value in given.items() if key.replace("-", "_") in public]
    return ":".join(filter(None, [name, ",".join(parts)]))


def told(method: Anonymizer) -> dict[str, Any]:
    """JSON-ready account of a method: what it is and its parameters, no keys, no folders of this machine."""
    settings = {
        key: without_folders(value) if isinstance(value, str) else value for key, value in method.settings().items()
    }
    traits = method.traits
    return {"name": method.name, "family": traits.family, "source": traits.source, "settings": settings}


def without_folders(text: str) -> str:
    """ "onnx:/home/me/r.onnx" → "onnx:r.onnx"."""
    return re.sub(r"[^\s:+='\"]*/(?=[^/\s])", "", text)


def caution(mode: str, method: Anonymizer | None = None) -> str | None:
    """A sentence for modes that leave faces recognisable, or that can be undone; None for others.

    Args:
        mode: its name or text.
        method: the anonymiser, where it is at hand.
    """
    if mode in _INSTEAD:
        return f"{mode} can be reversed; use it only where recognition would do no harm."
    method = method or method_of(mode)
    if method is None or method.name == "solid":
        return None
    name, family = method.name, method.traits.family
    if method.traits.keyed:
        if getattr(method, "key", "") and getattr(method, "variant", "") != "as_released":
            return f"{name} is undone by whoever has the key, or learns it from pairs of faces; keep the key secret."
        return f"{name} without a secret key can be undone by anybody; use it only where recognition would do no harm."
    if family in ("basic", "adversarial", "overlay", "differential privacy") or name == "obfuscation-blur":
        return (
            f"faces stay recognisable under {name}, for people or for programs made for it; use it only where "
            "recognition would do no harm."
        )
    if family == "k-anonymity":
        return f"whoever has the background faces can take them out of {name} again; keep the background secret."
    return None


def mode_type(modes: Iterable[str]) -> np.dtype[np.str_]:
    """Texts wide enough for these modes and for every fallback."""
    return np.dtype(f"<U{max(map(len, [*HIDING, *modes]))}")


class Methods:
    """Anonymisers ready for use on photos and films.

    Args:
        background: other people's aligned faces, for the methods that need them.
        seed: of all that is drawn; None: a random one.
        trusted: modes that the user gave themselves; others, from files, may not run programs.
        given: anonymisers made by the caller, by the mode they stand for.
    """

    def __init__(
        self,
        background: Faces | None = None,
        seed: int | None = None,
        trusted: Iterable[str] = (),
        given: Mapping[str, Anonymizer] | None = None,
    ) -> None:
        self.background, self.seeded = background, seed is not None
        self.seed = secrets.randbits(128) if seed is None else seed
        self.trusted, self._given = frozenset(trusted), dict(given or {})
        self._ready: dict[str, Anonymizer] = {}

    def __call__(self, mode: str) -> Anonymizer:
        """The anonymiser of a mode, fitted.

        Raises:
            UsageError: no such one, or what it needs is missing.
            InputError: a file asks for a program to be run.
        """
        if mode not in self._ready:
            self._ready[mode] = self._made(mode)
        return self._ready[mode]

    def trusting(self, mode: str) -> Methods:
        """The same, of the same seed, for a mode that the user gave as well."""
        more = Methods(self.background, self.seed, self.trusted | {mode}, self._given)
        more.seeded = self.seeded
        return more

    def name(self, *key: object) -> str:
        """Of a face, for all that is drawn for it: the same for a seed and key, and nobody can tell the key from it."""
        text = "\0".join(str(part) for part in (self.seed, *key))
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def identity(self) -> list[Any]:
        """What results depend on, but for a random seed: two jobs with the same may go on from one another."""
        background = None if self.background is None else content_key(self.background.images)
        return [self.seed if self.seeded else None, background, sorted(map(repr, self._given.values()))]

    def accounts(self, modes: Iterable[str]) -> dict[str, Any]:
        """JSON-ready: the methods of modes, and the background where one of them has it; empty for our own modes."""
        methods = [self(mode) for mode in sorted(modes) if mode in self._given or mode not in HIDING]
        account: dict[str, Any] = {"methods": [told(method) for method in methods]} if methods else {}
        if self.background is not None and any(method.traits.needs & {"background", "overlays"} for method in methods):
            digest = hashlib.sha256(np.ascontiguousarray(self.background.images).tobytes()).hexdigest()
            account["background"] = {"faces": len(self.background), "pixels_sha256": digest}
        return account

    def _made(self, mode: str) -> Anonymizer:
        method = self._given.get(mode) or method_of(mode)
        if method is None:
            raise UsageError(f"mode {mode} is one of our own, and no anonymiser")
        _check_usable(method)
        if method.traits.family == "external" and mode not in self.trusted:
            raise InputError(
                "a project's file asks for a program to be run (mode external), which only an option may; "
                "use ficgan-deid --mode external:command=… on the film"
            )
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


def _check_usable(method: Anonymizer) -> None:
    """Refuse what works on sets of crops only."""
    if method.traits.family == "k-anonymity" and getattr(method, "variant", "") == "genuine":
        raise UsageError(
            f"{method.name}: genuine makes groups of a whole set, and faces of photos come singly; leave variant out"
        )
    if getattr(method, "folder", ""):
        raise UsageError(
            "external: images made before are found by the names of crops, which the faces of a photo do not have; "
            "give command"
        )
