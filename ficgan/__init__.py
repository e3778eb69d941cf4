"""Replace the identities in photos by k-anonymous ones, under control, and measure what was achieved.

    from ficgan import Deidentifier

    deid = Deidentifier.from_pretrained(k=3000, seed=7)
    result = deid(image)                 # H×W×3 uint8 RGB → result.image, result.faces, result.audit

Every name is imported when it is first used, so `import ficgan` loads none of the heavy libraries.
"""

from __future__ import annotations

import logging
import os
from importlib import import_module
from typing import TYPE_CHECKING

__version__ = "0.1.0"

# onnxruntime 1.31 keeps a device number and an account of what is run in ~/.cache/Microsoft, for its maker; it
# looks at this when it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

logging.getLogger(__name__).addHandler(logging.NullHandler())  # silent until the program that uses ficgan asks

# Public name → the room that offers it.
_ROOMS = {
    "FICGAN": "models",
    "Alignment": "faces",
    "Deidentifier": "deidentify",
    "FicganError": "errors",
    "IdentityBank": "identity",
    "InputError": "errors",
    "UsageError": "errors",
    "get_detector": "faces",
    "get_recognizer": "faces",
    "load_checkpoint": "models",
    "load_config": "config",
}

__all__ = ["__version__", *_ROOMS]

if TYPE_CHECKING:
    from ficgan.config import load_config as load_config
    from ficgan.deidentify import Deidentifier as Deidentifier
    from ficgan.errors import FicganError as FicganError
    from ficgan.errors import InputError as InputError
    from ficgan.errors import UsageError as UsageError
    from ficgan.faces import Alignment as Alignment
    from ficgan.faces import get_detector as get_detector
    from ficgan.faces import get_recognizer as get_recognizer
    from ficgan.identity import IdentityBank as IdentityBank
    from ficgan.models import FICGAN as FICGAN
    from ficgan.models import load_checkpoint as load_checkpoint


def __getattr__(name: str) -> object:
    """Import the public name `name` from its room and keep it."""
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"ficgan.{_ROOMS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
