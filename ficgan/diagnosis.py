"""What is installed, what works, and what is missing: each probe is guarded, so one broken library hides no other."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from importlib.util import find_spec
from pathlib import Path

import ficgan
from ficgan import pretrained
from ficgan.device import cpus
from ficgan.errors import sentence

# Extras, and the modules that they bring.
EXTRAS = {
    "train": ("torch", "torchvision", "kornia", "onnx", "onnx2torch", "tensorboard"),
    "eval": ("skimage", "sklearn", "matplotlib", "jinja2", "lpips", "torch_fidelity"),
    "pointcloud": ("scipy", "trimesh"),
    "heif": ("pillow_heif",),
    "dlib": ("dlib", "face_recognition_models"),
    "insightface": ("insightface",),
    "serve": ("starlette", "uvicorn"),
}
# opencv-python, which insightface asks for, needs libraries of a desktop; its headless build does not.
OPENCV_REMEDY = "pip install --force-reinstall --no-deps opencv-python-headless"
GRAPHICS_LIBRARIES = ("libGL", "libgthread", "libglib", "libxcb", "libSM", "libXext")
# Modules that replacing faces needs, and those that only training and measuring need.
NEEDED = ("numpy", "cv2", "PIL", "pydantic", "safetensors", "onnxruntime", "av")
OPTIONAL = ("torch", "torchvision", "scipy", "pillow_heif", "dlib", "insightface", "kornia", "onnx", "onnx2torch")
DISTRIBUTIONS = {"cv2": "opencv-python-headless", "PIL": "pillow", "pillow_heif": "pillow-heif", "dlib": "dlib-bin"}
# Roles of the embedded files.
EMBEDDED = ("model", "linear", "bank", "mesh", "gate", "detector", "check", "kind", "glasses", "beards")


@dataclass(frozen=True)
class DoctorFinding:
    """The outcome of one probe."""

    name: str
    ok: bool
    detail: str  # version, path or reason, on one line
    remedy: str = ""  # what to do about it, one clause
    required: bool = False  # replacing faces in a photo needs it


def diagnose() -> dict[str, list[DoctorFinding]]:
    """The findings of every probe, by section. Nothing is downloaded, and a failing probe becomes a finding."""
    probes: dict[str, Callable[[], Iterable[DoctorFinding]]] = {
        "versions": _versions,
        "libraries": lambda: [
            _library(DISTRIBUTIONS.get(name, name), name, name in NEEDED) for name in NEEDED + OPTIONAL
        ],
        "devices": _devices,
        "detectors": partial(_back_ends, "detector"),
        "recognizers": partial(_back_ends, "recognizer"),
        "pretrained": _pretrained,
    }
    sections: dict[str, list[DoctorFinding]] = {name: [] for name in probes}
    for name, probe in probes.items():
        try:
            sections[name].extend(probe())
        except Exception as error:
            sections[name].append(DoctorFinding(name, False, _reason(error), required=name != "devices"))
    return sections


def import_remedy(error: ImportError) -> str:
    """What to do about a library that cannot be imported, one clause."""
    if any(library in str(error) for library in GRAPHICS_LIBRARIES):
        return f"this machine lacks the graphics libraries of the full OpenCV: run {OPENCV_REMEDY}"
    extra = _extra((error.name or "").partition(".")[0])
    return f"run {extra}" if extra else "`ficgan doctor` shows what is missing and what to do"


def _extra(module: str) -> str:
    """How to install the extra that brings a module."""
    return next((f"pip install 'ficgan[{extra}]'" for extra, modules in EXTRAS.items() if module in modules), "")


def _reason(error: BaseException) -> str:
    return sentence(error)[:300].rstrip(".")


def _versions() -> Iterator[DoctorFinding]:
    yield DoctorFinding("ficgan", True, f"{ficgan.__version__} in {Path(ficgan.__file__).parent}", required=True)
    yield DoctorFinding("python", True, platform.python_version(), required=True)
    yield DoctorFinding("system", True, f"{platform.system()} {platform.release()} {platform.machine()}")


def _library(distribution: str, module: str, required: bool) -> DoctorFinding:
    """Whether `module` really imports: an installed version says little about its shared libraries."""
    if find_spec(module) is None:
        remedy = _extra(module) or f"pip install {distribution}"
        return DoctorFinding(distribution, False, "not installed", remedy, required)
    try:
        imported = import_module(module)
        if module == "torchvision":  # its operators load where it is built for this torch
            import_module("torchvision.ops")
    except Exception as error:
        graphics = module == "cv2" or any(library in str(error) for library in GRAPHICS_LIBRARIES)
        remedy = OPENCV_REMEDY if graphics else f"pip install --force-reinstall {distribution}"
        return DoctorFinding(distribution, False, f"installed but broken ({_reason(error)})", remedy, required)
    version = getattr(imported, "__version__", "version unknown")
    with suppress(metadata.PackageNotFoundError):
        version = metadata.version(distribution)
    return DoctorFinding(distribution, True, str(version), required=required)


def _devices() -> Iterator[DoctorFinding]:
    import onnxruntime

    yield DoctorFinding("CPU", True, f"{platform.machine()}, {cpus()} cores")
    providers = [name for name in onnxruntime.get_available_providers() if "Azure" not in name]
    yield DoctorFinding("onnxruntime", True, f"offers {', '.join(providers)}")
    if find_spec("torch") is None:
        return
    import torch

    for index in range(torch.cuda.device_count()):
        name, detail = f"cuda:{index}", torch.cuda.get_device_name(index)
        try:
            torch.ones(1, device=name).add_(1).item()
        except Exception as error:
            remedy = "use --device cpu, or install a torch that is built for this GPU"
            yield DoctorFinding(name, False, f"{detail}, but does not compute ({_reason(error)})", remedy)
        else:
            yield DoctorFinding(name, True, detail)
    from ficgan.ops import backend, library

    used = backend()
    why = f" ({problem})" if used == "ref" and (problem := library.load()) else ""
    yield DoctorFinding("ops", True, {"native": "compiled kernels", "ref": "plain torch"}[used] + why)


def _back_ends(kind: str) -> Iterator[DoctorFinding]:
    from ficgan import faces

    get = getattr(faces, f"get_{kind}")
    for name in (*(faces.DETECTORS if kind == "detector" else ("dlib", "insightface")), "auto"):
        chosen = name == "auto"
        try:
            found = get(name)
        except Exception as error:
            yield DoctorFinding(name, False, _reason(error), "reinstall ficgan" if chosen else "", chosen)
        else:
            where = f"takes {found.name}" if chosen else str(getattr(found, "path", "works"))
            yield DoctorFinding(name, True, where, required=chosen)


def _pretrained() -> Iterator[DoctorFinding]:
    roles = {entry["role"]: name for name, entry in pretrained.manifest()["files"].items() if "role" in entry}
    for role in EMBEDDED:
        name = roles.get(role)
        wrong = "not in the manifest" if name is None else pretrained.check(name)
        detail = ": ".join(filter(None, [wrong, str(pretrained.FOLDER / (name or "manifest.json"))]))
        own = ", or name your own with --checkpoint and --bank" if role in ("model", "bank") else ""
        yield DoctorFinding(role, wrong is None, detail, f"reinstall ficgan{own}" if wrong else "", True)
