"""Where networks run: processors and precisions of torch, model files and sessions of onnxruntime.

Nothing is ever downloaded.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path

from ficgan import pretrained
from ficgan.errors import FicganError, InputError, UsageError, reason

if TYPE_CHECKING:
    import torch

_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # of glibc's mallopt
PRECISIONS = ("auto", "float32", "bfloat16", "float16")


def cpus() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def keep_freed_memory() -> bool:
    """Let glibc reuse the memory of freed tensors instead of giving it back to the system; for training on the CPU.

    By default every tensor above 32 MiB is mapped anew, and page faults may take longer than the arithmetic. The
    process stays as large as it once was. Call it before the first large tensor; False where this is not glibc.
    """
    mallopt = _glibc("mallopt")
    return bool(mallopt and mallopt(_M_MMAP_MAX, 0) and mallopt(_M_TRIM_THRESHOLD, 2**31 - 1))


def _glibc(name: str) -> Any:
    """A function of the C library; None where that is not glibc."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform.startswith("linux") else None


def first_process() -> bool:
    """Whether this is the only process of a training, or the first of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def resolve_device(name: str) -> str:
    """The device of a name: "auto" (a CUDA GPU where there is one), "cpu", "cuda" or "cuda:N"."""
    number = _gpu_of(name)
    if name == "cpu":
        return name
    import torch

    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if name == "auto":
        return "cuda" if there else "cpu"
    if number >= there:
        raise UsageError(f"device {name} was asked for, but torch sees {there} CUDA GPUs here; use --device cpu")
    return name


def _gpu_of(device: str) -> int:
    """The number of the GPU, from 0; a UsageError where the name is no device's."""
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?", device, re.ASCII) is None:
        raise UsageError(f"device {device!r} is unknown; it is auto, cpu, cuda or cuda:N")
    return int(device.partition(":")[2] or 0)


def resolve_precision(name: str, device: str) -> torch.dtype:
    """The type to run the networks in on "cpu", "cuda" or "cuda:N".

    "float32", "bfloat16", "float16" (GPU only), or "auto": bfloat16 on a GPU that supports it, else float32.
    """
    import torch

    if name not in PRECISIONS:
        raise UsageError(f"precision {name!r} is unknown; it is one of {', '.join(PRECISIONS)}")
    if name == "auto":
        fast = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
        name = "bfloat16" if fast else "float32"
    if name == "float16" and device == "cpu":
        raise UsageError("precision float16 needs a GPU; on the CPU use float32 or bfloat16")
    return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]


# -- model files, and sessions of onnxruntime --------------------------------------------------------------------------

_CPU, _CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Packs of insightface in the order of preference; `antelopev2` and `buffalo_l` hold the strongest recognisers.
_INSIGHTFACE_PACKS = ("buffalo_l", "antelopev2", "buffalo_m", "buffalo_s", "buffalo_sc")


def model_folders() -> list[Path]:
    """Folders in which model files are looked up: $FICGAN_MODELS first, then the user's cache folder `ficgan`."""
    folders = [Path(entry).expanduser() for entry in os.environ.get("FICGAN_MODELS", "").split(os.pathsep) if entry]
    return [*folders, user_cache_path("ficgan", appauthor=False)]


@cache
def embedded_file(name: str) -> Path:
    """A network of `ficgan.pretrained` whose sha256 is the manifest's; read once a process (11 MB take some 10 ms)."""
    path = pretrained.FOLDER / name
    if wrong := pretrained.check(name):
        raise FicganError(f"the embedded file {path} is {wrong}: install ficgan again")
    return path


def insightface_file(*patterns: str) -> Path | None:
    """A file of an insightface model pack in the model folders or in $INSIGHTFACE_HOME/models, or None."""
    home = Path(os.environ.get("INSIGHTFACE_HOME", "~/.insightface")).expanduser()
    places = itertools.product((*model_folders(), home / "models"), _INSIGHTFACE_PACKS, patterns)
    return next((path for root, pack, pattern in places for path in sorted((root / pack).glob(pattern))), None)


def missing_pack(user: str, *patterns: str) -> str | None:
    """None where a pack of insightface holds a file; else which pack belongs where."""
    remedy = "unpack buffalo_l into ~/.insightface/models or into a folder named in $FICGAN_MODELS."
    return None if insightface_file(*patterns) else f"The {user} needs a model pack on the disk: {remedy}"


def onnx_session(model: Path | bytes, device: str = "cpu") -> Any:
    """An onnxruntime session of a file or a serialised model; a UsageError where the device cannot be had.

    It is "cpu", "cuda", "cuda:N", or "auto" (CUDA where onnxruntime has it, else the CPU).
    """
    import onnxruntime as ort

    providers = _providers(device)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # exporters leave harmless warnings by the hundred, and errors are raised
    options.enable_mem_pattern = False  # patterns are for one size of input; with many they cost time and memory
    _share_memory()
    options.add_session_config_entry("session.use_env_allocators", "1")
    # Respect the user's thread limit, which onnxruntime's own pool otherwise ignores.
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > 0:
        options.intra_op_num_threads = int(threads)
    try:
        session = ort.InferenceSession(model if isinstance(model, bytes) else str(model), options, providers=providers)
    except Exception as error:  # onnxruntime raises many private classes; none of them helps a user
        name = "the model" if isinstance(model, bytes) else model
        raise InputError(f"Cannot open {name} as an ONNX model ({reason(error)[:200]}): check the file.") from error
    if len(providers) > 1 and _CUDA not in session.get_providers():  # it is advertised, and its libraries are not there
        raise UsageError(f"Device {device!r} was asked for, but onnxruntime fell back to the CPU: use device 'cpu'.")
    if (trim := _glibc("malloc_trim")) is not None:
        trim(0)  # opening a network leaves some 40 MiB in glibc's heap
    return session


@cache
def _share_memory() -> None:
    """Give all networks one arena, which grows by what is asked for: arenas that double take 70 MiB more."""
    import onnxruntime as ort

    memory = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
    usual = {"max_mem": 0, "initial_chunk_size_bytes": -1, "max_dead_bytes_per_chunk": -1}
    ort.create_and_register_allocator(memory, ort.OrtArenaCfg({**usual, "arena_extend_strategy": 1}))


def shrinking_run() -> Any:
    """Options of a run after which the session hands its memory back to the system."""
    import onnxruntime as ort

    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    return options


def check_onnx_device(device: str) -> str:
    """The device itself; a UsageError where onnxruntime cannot have it."""
    _providers(device)
    return device


def _providers(device: str) -> list[Any]:
    number = _gpu_of(device)
    if device == "cpu":
        return [_CPU]
    import onnxruntime as ort

    if _CUDA in ort.get_available_providers():
        return [(_CUDA, {"device_id": number}), _CPU]
    if device == "auto":
        return [_CPU]
    remedy = "install onnxruntime-gpu in place of onnxruntime, or use 'cpu'"
    raise UsageError(f"device {device!r} was asked for, but this onnxruntime has no {_CUDA}: {remedy}")
