"""Decoding in a child process with limits, so that a file made to do harm finds nothing there to harm.

`used()` or FICGAN_SANDBOX=1 switches it on for this process and those that it starts; `read_image` and `open_video`
then ask a child, see `ficgan.images.read` and `ficgan.video.media`. The child is a fresh interpreter: no
model, no seed, no other photo is in its memory. It answers in JSON and raw pixels, which are checked here; nothing is
unpickled. Its limits: memory, processor time of a step, time of an answer, files of 0 bytes. Where Linux has Landlock
it can make, write, remove or execute no file, and open no TCP connection.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.errors import InputError, UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SUPPORTED", "Child", "Limits", "Server", "from_json", "is_on", "to_json", "used"]

SWITCH = "FICGAN_SANDBOX"
"""Environment variable: 1 where photos and films are decoded in a child."""
SUPPORTED = sys.platform in ("linux", "darwin")
_KEPT = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "TMPDIR",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
)
"""Environment of the child; tokens and keys stay behind."""
_HEADER = 64 << 20
"""Most bytes of an answer without its pixels: profiles and metadata."""


@dataclass(frozen=True)
class Limits:
    """Of one child.

    Args:
        memory: bytes beyond what it has after its imports.
        cpu: seconds of processor time for one step: a photo, or a frame.
        answer: seconds of the clock for one answer, on a machine that does other things.
        network: whether it may open TCP connections, for films at an address.
    """

    memory: int = 4 << 30
    cpu: int = 60
    answer: float = 180.0
    network: bool = False


LIMITS = Limits()


@contextmanager
def used() -> Iterator[None]:
    """Decode photos and films in children, in this process and those that it starts."""
    if not SUPPORTED:
        raise UsageError("--sandbox needs Linux or macOS; give --no-sandbox")
    before = os.environ.get(SWITCH)
    os.environ[SWITCH] = "1"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(SWITCH, None)
        else:
            os.environ[SWITCH] = before


def is_on() -> bool:
    """Whether photos and films are decoded in children."""
    return os.environ.get(SWITCH) == "1"


# -- this side ---------------------------------------------------------------------------------------------------------


class Child:
    """A process that decodes one file: the `main` of a module is run there, with a `Server`."""

    def __init__(self, module: str, name: str, limits: Limits = LIMITS) -> None:
        self._name, self._limits, self._hung = name, limits, False
        environment = {key: value for key, value in os.environ.items() if key in _KEPT}
        # What this process may import, but after Python's own modules: no file of the caller's may replace one.
        begin = f"import sys; sys.path += sys.argv[2:]; from {module} import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-X", "utf8", "-c", begin, json.dumps(asdict(limits)), *filter(None, sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            process_group=0,  # Ctrl-C is for this process alone
        )

    def ask(self, request: Mapping[str, Any], data: bytes = b"", *, most: int = 1 << 30) -> tuple[dict[str, Any], Any]:
        """The answer to a request, and its pixels: uint8 or uint16 of the shape that it states, or None.

        At most `most` bytes of pixels are accepted. An InputError where the child refused the file, hung, crashed, or
        answered nonsense.
        """
        watch = threading.Timer(self._limits.answer, self._give_up)
        watch.daemon = True
        watch.start()
        try:
            assert self._process.stdin is not None and self._process.stdout is not None
            with suppress(BrokenPipeError):  # it died: what it left to read says why
                _send(self._process.stdin, request, data)
            answer = _receive(self._process.stdout, _HEADER)
            if "error" in answer:
                raise InputError(str(answer["error"])[:2000])
            return answer, _pixels(self._process.stdout, answer, most)
        except EOFError:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(10)
            raise InputError(f"{self._name}: {self._fate()}") from None
        except (ValueError, TypeError, KeyError, RecursionError):
            self._process.kill()
            raise InputError(f"{self._name}: its decoder answered nonsense; the file may be made to do harm") from None
        finally:
            watch.cancel()

    def _give_up(self) -> None:
        self._hung = True
        self._process.kill()

    def _fate(self) -> str:
        if self._hung:
            return f"its decoder gave no answer in {self._limits.answer:g} s and was ended"
        code = self._process.poll()
        if code == -signal.SIGXCPU:
            return f"takes more than {self._limits.cpu} s to decode and was given up"
        if code == -signal.SIGKILL:
            return "its decoder was ended; it may need more memory than there is"
        return f"its decoder crashed (exit code {code}); the file is damaged, or made to do harm"

    def close(self) -> None:
        """End the process."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(0.5)  # it has read the end of its input, unless it hangs
        self._process.kill()
        self._process.wait()


# -- messages: a length, JSON, then raw bytes --------------------------------------------------------------------------


def _send(pipe: Any, message: Mapping[str, Any], data: Any = b"") -> None:
    text = json.dumps(message).encode()
    pipe.write(struct.pack("<QQ", len(text), len(data)))
    pipe.write(text)
    pipe.write(data)
    pipe.flush()


def _receive(pipe: Any, most: int) -> dict[str, Any]:
    """A message without its bytes, whose number it holds as `bytes`."""
    length, size = struct.unpack("<QQ", _read(pipe, 16))
    if length > most:
        raise ValueError("the message is too long")
    message = json.loads(_read(pipe, length))
    if not isinstance(message, dict):
        raise ValueError("no message")
    return {**message, "bytes": size}


def _read(pipe: Any, size: int) -> bytes:
    data: bytes = pipe.read(size)
    if len(data) < size:
        raise EOFError
    return data


def _pixels(pipe: Any, answer: Mapping[str, Any], most: int) -> NDArray[Any] | None:
    import numpy as np

    if not answer["bytes"]:
        return None
    shape = [int(side) for side in answer["shape"]]
    kind = {"uint8": np.uint8, "uint16": np.uint16}[answer["dtype"]]
    size = int(np.prod([*shape, np.dtype(kind).itemsize], dtype=object))
    if min(shape) < 1 or size != answer["bytes"] or size > most:
        raise ValueError("no such picture")
    pixels: NDArray[Any] = np.empty(shape, kind)
    view, at = pixels.reshape(-1).view(np.uint8).data, 0
    while at < size:
        count = pipe.readinto(view[at:])
        if not count:
            raise EOFError
        at += count
    return pixels


def to_json(value: Any) -> Any:
    """Bytes, tuples and numbered tables as JSON can hold them."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Mapping):
        return {"table": [[to_json(key), to_json(entry)] for key, entry in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [to_json(entry) for entry in value]}
    if isinstance(value, list):
        return [to_json(entry) for entry in value]
    return value if isinstance(value, str | int | float | None) else str(value)


def from_json(value: Any) -> Any:
    if isinstance(value, dict):
        if "base64" in value:
            return base64.b64decode(value["base64"])
        if "tuple" in value:
            return tuple(from_json(entry) for entry in value["tuple"])
        return {from_json(key): from_json(entry) for key, entry in value["table"]}
    return [from_json(entry) for entry in value] if isinstance(value, list) else value


# -- the child ---------------------------------------------------------------------------------------------------------


class Server:
    """The child's side. Import everything that decoding needs before it is made: then the limits begin."""

    def __init__(self) -> None:
        self._in, self._out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)  # what libraries print does not reach the other side
        self.limits = Limits(**json.loads(sys.argv[1]))
        _restrict(self.limits)

    def receive(self) -> tuple[dict[str, Any], bytes]:
        """The next request and its bytes; the process ends where there is none."""
        try:
            request = _receive(self._in, _HEADER)
            return request, _read(self._in, request["bytes"])
        except EOFError:
            os._exit(0)  # without any decoder's clean-up

    def send(self, message: Mapping[str, Any], pixels: NDArray[Any] | None = None) -> None:
        """Answer, with an array uint8 or uint16."""
        import numpy as np

        if pixels is None:
            _send(self._out, message)
            return
        flat = np.ascontiguousarray(pixels).reshape(-1).view(np.uint8).data
        _send(self._out, {**message, "shape": pixels.shape, "dtype": str(pixels.dtype)}, flat)

    @contextmanager
    def step(self) -> Iterator[None]:
        """One answer, with processor time of its own; an error becomes a sentence for the other side."""
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        seconds = int(used.ru_utime + used.ru_stime) + self.limits.cpu + 1
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
        try:
            yield
        except Exception as error:
            causes = (error, error.__cause__, error.__context__)
            own = isinstance(error, InputError)
            text = " ".join(str(error).split()) if own else f"damaged ({type(error).__name__})"
            if any(isinstance(one, MemoryError) for one in causes):
                text = f"needs more than {self.limits.memory >> 20} MB of memory to be decoded"
            self.send({"error": text})


def _restrict(limits: Limits) -> None:
    import resource

    with suppress(OSError, ValueError):  # macOS knows no such size
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + limits.memory,) * 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        _lock(network=limits.network)


def _lock(*, network: bool) -> None:
    """Landlock (Linux 5.13, for TCP 6.7): no file is made, written, removed or executed; see landlock(7)."""
    libc = ctypes.CDLL(None, use_errno=True)
    create, restrict_self, no_new_privileges = 444, 446, 38
    version = libc.syscall(create, None, 0, 1)
    if version < 1:
        return
    files = 1 << 0 | 1 << 1 | sum(1 << bit for bit in range(4, 13))  # execute, write, remove and make
    files |= (1 << 13 if version >= 2 else 0) | (1 << 14 if version >= 3 else 0)  # refer, truncate
    ports = 0 if network else 0b11  # bind, connect
    rules = struct.pack("<QQ", files, ports) if version >= 4 else struct.pack("<Q", files)
    fence = libc.syscall(create, rules, len(rules), 0)
    if fence >= 0 and not libc.prctl(no_new_privileges, 1, 0, 0, 0):
        libc.syscall(restrict_self, fence, 0)
