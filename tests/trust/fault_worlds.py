"""Runs of the program in which one call of the system fails, or which are killed there.

`Server` starts one process under `faulty.c`; each run is a fork of it. What a run has imported the process imports,
too: for the next runs it would take longer than they do. `python fault_worlds.py` is that process: a line of JSON on
stdin is a run, a line on stdout its outcome.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
KINDS = ("open", "write", "sync", "rename")
LIMIT = 120.0
"""Seconds that a run may take."""


@dataclass(frozen=True)
class Fault:
    """The `number`-th call of a kind fails with `error`, or ends the process where that is 0."""

    kind: str
    number: int
    error: int


@dataclass(frozen=True)
class Outcome:
    code: int
    """Exit code, negative for a signal."""
    out: str
    err: str
    counts: dict[str, int]


class Server:
    """Runs commands of ficgan in forks of a process that has imported them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        library = folder / "faulty.so"
        source = Path(__file__).with_name("faulty.c")
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
        paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        environment = {
            **os.environ,
            "PYTHONPATH": paths,
            "LD_PRELOAD": str(library),
            "FAULTY": str(library),
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(folder),
        }
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def __call__(
        self,
        command: str,
        arguments: Sequence[object],
        folder: Path,
        fault: Fault | None = None,
        *,
        kill_after: float = 0.0,
        clock: float = 0.0,
        memory: int = 0,
        times: int = 1,
    ) -> Outcome:
        """Run a command; only calls on files below `folder` count.

        Args:
            command: deid, bank or train.
            arguments: of the command.
            folder: where calls count.
            fault: what goes wrong.
            kill_after: seconds after which it is killed.
            clock: seconds by which the wall clock is moved.
            memory: bytes that it may take beyond what is imported; 0: no limit.
            times: how many do the same at once; the outcome is that of the first that failed, else of the first.
        """
        request = {
            "command": command,
            "arguments": [str(argument) for argument in arguments],
            "folder": str(folder),
            "fault": None if fault is None else [KINDS.index(fault.kind), fault.number, fault.error],
            "kill_after": kill_after,
            "clock": clock,
            "memory": memory,
            "times": times,
        }
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        return Outcome(answer["code"], answer["out"], answer["err"], dict(zip(KINDS, answer["counts"], strict=True)))

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(LIMIT)
        self._process.stdout.close()


def contents(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# -- the process ------------------------------------------------------------------------------------------------------


def _commands() -> dict[str, Any]:
    import cv2  # noqa: F401
    import onnxruntime  # noqa: F401
    import scipy.optimize  # noqa: F401
    import torch

    import ficgan.cli.main as main
    import ficgan.data
    import ficgan.training
    import ficgan.video.film
    from ficgan.cli.deid import deid
    from ficgan.cli.train import bank, train

    torch.set_num_threads(1)
    assert main and ficgan.data and ficgan.training and ficgan.video.film
    return {"deid": deid, "bank": bank, "train": train}


def _child(request: dict[str, Any], command: Any, library: Any, out: int, err: int, told: int) -> None:
    before = set(sys.modules)
    signal.alarm(int(LIMIT))
    os.dup2(out, 1)
    os.dup2(err, 2)
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    if request["memory"]:
        limit = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + request["memory"]
        resource.setrlimit(resource.RLIMIT_AS, (limit, most))
    if request["clock"]:
        real = time.time
        time.time = lambda: real() + request["clock"]
    kind, number, error = request["fault"] or (-1, 0, 0)
    library.faulty_arm(request["folder"].encode(), kind, number, error)
    code = 70
    try:
        command(request["arguments"], prog_name="ficgan")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))  # what follows is no part of the run
        counts = [library.faulty_count(kind) for kind in range(4)]
        os.write(told, json.dumps({"counts": counts, "modules": [*set(sys.modules) - before]}).encode())
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _serve() -> None:
    library = ctypes.CDLL(os.environ["FAULTY"])
    library.faulty_count.restype = ctypes.c_long
    library.faulty_arm.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_long, ctypes.c_int]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    commands = _commands()
    for line in sys.stdin:
        request = json.loads(line)
        children = [_start(request, commands[request["command"]], library) for _ in range(request["times"])]
        if request["kill_after"]:
            time.sleep(request["kill_after"])
            for pid, _ in children:
                os.kill(pid, signal.SIGKILL)
        ends = [_end(pid, files) for pid, files in children]
        answers.write(json.dumps(next((end for end in ends if end["code"]), ends[0])) + "\n")
        answers.flush()
        for name in sorted(set(ends[0]["modules"]) - set(sys.modules)):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def _start(request: dict[str, Any], command: Any, library: Any) -> tuple[int, list[Any]]:
    files = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115 (closed by _end)
    pid = os.fork()
    if not pid:
        _child(request, command, library, *(file.fileno() for file in files))
    return pid, files


def _end(pid: int, files: list[Any]) -> dict[str, Any]:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    texts = []
    for file in files:
        file.seek(0)
        texts.append(file.read().decode("utf-8", "replace"))
        file.close()
    told = json.loads(texts[2] or '{"counts": [0, 0, 0, 0], "modules": []}')  # nothing of a killed run
    return {"code": code, "out": texts[0], "err": texts[1], **told}


def copied(folder: Path, to: Path) -> Path:
    """A fresh copy of a folder."""
    if to.exists():
        shutil.rmtree(to)
    return Path(shutil.copytree(folder, to))


if __name__ == "__main__":
    _serve()
