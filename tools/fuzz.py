"""Read damaged files of every kind that ficgan reads, in a child with limits.

    python tools/fuzz.py --count 20000 --log fuzz.json        a night; the same command goes on after an end
    python tools/fuzz.py --count 300 --kinds photo,film

Small files of every kind are made by code, mutated, and read as the program reads them. Each must be read or refused
with one of ficgan's own sentences: no crash, no other exception, no more than 10 s of processor time, no more than
2 GB of memory, no file outside the output folder. What fails is kept in --keep with its seed. Ends with 1 then.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import select
import signal
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from _fuzz_files import COMPANIONS, KINDS, Reader, own_errors

SECONDS = 10
"""Of processor time."""
PATIENCE = 120
"""Seconds of the clock, on a machine that does other things."""
MEMORY = 2 << 30
FILES_A_WORKER = 200
OUTCOMES = ("read", "refused", "crash", "hang", "memory", "outside")


@dataclass(frozen=True)
class Seed:
    """A sound file."""

    kind: str
    name: str
    data: bytes


# -- mutations ---------------------------------------------------------------------------------------------------------

EDGES = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF]
WORDS = [b"NaN", b"-1", b"1e999", b"99999999999999999999", b"null", b"[]", b"{}", b"../../x", b"\xff\xfe", b"\0", b'"']


def mutate(data: bytes, other: bytes, rng: np.random.Generator) -> bytes:
    """One to four changes: bits, bytes, sizes at their edges, cuts, repeats, pieces of another file, words.

    Of half the files of JSON, the values and keys are changed instead: they stay JSON.
    """
    if data[:1] == b"{" and rng.random() < 0.5:
        return _other_values(data, rng)
    out = bytearray(data)
    for _ in range(min(4, int(rng.geometric(0.6)))):
        if not out:
            break
        at, length = int(rng.integers(len(out))), int(rng.integers(1, 65))
        if rng.random() < 0.25:  # most formats decide at their beginning
            at = min(at, int(rng.integers(1, 200)))
        match int(rng.integers(9)):
            case 0:
                out[at] ^= 1 << int(rng.integers(8))
            case 1:
                out[at] = int(rng.integers(256))
            case 2:
                size = int(rng.choice([1, 2, 4, 8]))
                value = int(rng.choice(EDGES)) & (256**size - 1)
                out[at : at + size] = value.to_bytes(size, "little" if rng.random() < 0.5 else "big")
            case 3:
                del out[at : len(out) if rng.random() < 0.3 else at + length]
            case 4:
                out[at:at] = out[at : at + length] * int(rng.integers(1, 20))
            case 5:
                out[at:at] = bytes(rng.integers(0, 256, length, dtype=np.uint8))
            case 6:
                begin = int(rng.integers(max(1, len(other))))
                out[at : at + length] = other[begin : begin + length]
            case 7:
                out[at : at + int(rng.integers(0, 8))] = WORDS[int(rng.integers(len(WORDS)))]
            case _:
                digits = [n for n, byte in enumerate(out) if 48 <= byte <= 57]
                if digits:
                    place = digits[int(rng.integers(len(digits)))]
                    out[place : place + 1] = WORDS[int(rng.integers(len(WORDS)))]
    return _with_checksums(bytes(out)) if rng.random() < 0.7 else bytes(out)


VALUES: list[object] = [
    None,
    True,
    0,
    -1,
    1,
    0.5,
    1e300,
    float("nan"),
    float("-inf"),
    2**70,
    "",
    "a",
    "../../x",
    "\0",
    "\ud800",
    "<b>",
    "9" * 400,
    [],
    {},
    [[]],
    [None],
    {"a": None},
    [1, 2, 3],
    [0, 0, 0, 0],
    [1e9, 1e9, -1e9, -1e9],
]


def _other_values(data: bytes, rng: np.random.Generator) -> bytes:
    """JSON, or lines of JSON, with one to four of its values replaced, removed, or given a second time or a new key."""
    lines = data.splitlines(keepends=True)
    try:
        trees = [json.loads(data)]
    except ValueError:
        trees = [json.loads(line) for line in lines]
    for _ in range(min(4, int(rng.geometric(0.6)))):
        places: list[tuple[Any, Any]] = []
        waiting: list[Any] = list(trees)
        while waiting:
            node = waiting.pop()
            keys = list(node) if isinstance(node, dict) else list(range(len(node))) if isinstance(node, list) else []
            places += [(node, key) for key in keys]
            waiting += [node[key] for key in keys]
        if not places:
            break
        node, key = places[int(rng.integers(len(places)))]
        value = VALUES[int(rng.integers(len(VALUES)))]
        match int(rng.integers(6)):
            case 0:
                del node[key]
            case 1 if isinstance(node, list):
                node.insert(key, json.loads(json.dumps(node[key])))
            case 1:
                node[str(value)[:20]] = node.pop(key)
            case 2:
                other, place = places[int(rng.integers(len(places)))]
                node[key] = json.loads(json.dumps(other[place]))
            case _:
                node[key] = json.loads(json.dumps(value))
    return b"\n".join(json.dumps(tree).encode() for tree in trees) + b"\n"


def _with_checksums(data: bytes) -> bytes:
    """A PNG whose checksums are right, so that its decoder is reached; any other file as it is."""
    if not data.startswith(b"\x89PNG\r\n\x1a\n"):
        return data
    out, at = bytearray(data), 8
    while at + 12 <= len(out):
        end = at + 8 + int.from_bytes(out[at : at + 4], "big")
        if end + 4 > len(out):
            break
        out[end : end + 4] = zlib.crc32(out[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return bytes(out)


# -- the worker --------------------------------------------------------------------------------------------------------


class Worker:
    """A child that reads one file after another; it is started anew after a fault, and after `FILES_A_WORKER` files.

    Args:
        readers: name → how a file is read.
        top: an empty folder. The child works two folders below, so that a path such as `../../x` is seen, too.
    """

    def __init__(self, readers: Mapping[str, Reader], top: Path) -> None:
        self._readers = readers
        self._top = top
        self._folders = {part: top / "a" / "b" / part for part in ("in", "out", "tmp")}
        self._pid, self._left = 0, 0
        self._orders: IO[bytes]
        self._answers: IO[bytes]

    def __call__(self, reader: str, name: str, data: bytes) -> str:
        """ "read", "refused", or what went wrong, as `OUTCOMES` says."""
        for path in sorted(self._top.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        for folder in self._folders.values():
            folder.mkdir(parents=True)
        path = self._folders["in"] / name
        path.write_bytes(data)
        if not self._left:
            self.close()
            self._start()
        self._left -= 1
        self._orders.write(json.dumps([reader, name]).encode() + b"\n")
        self._orders.flush()
        answer = self._answer()
        if answer is None:
            return f"hang: no answer for {PATIENCE} s"
        strangers = [
            str(found.relative_to(self._top))
            for found in self._top.rglob("*")
            if found.is_file()
            and found != path
            and self._folders["out"] not in found.parents
            and (found.parent != path.parent or found.name not in COMPANIONS)
        ]
        return f"outside: wrote {strangers}" if strangers else answer

    def close(self) -> None:
        """End the child."""
        if self._pid:
            self._orders.close()
            self._answers.close()
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            self._pid = self._left = 0

    def _start(self) -> None:
        order, orders = os.pipe()
        answers, answer = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            os.close(orders)
            os.close(answers)
            _serve(self._readers, self._folders, os.fdopen(order, "rb"), answer)
        os.close(order)
        os.close(answer)
        self._orders, self._answers = os.fdopen(orders, "wb"), os.fdopen(answers, "rb")
        self._left = FILES_A_WORKER

    def _answer(self) -> str | None:
        """What the child says of the file, or what it died of; None where it says nothing."""
        if not select.select([self._answers], [], [], PATIENCE)[0]:
            self.close()
            return None
        line = self._answers.readline()
        if line:
            return str(json.loads(line))
        status = os.waitpid(self._pid, 0)[1]
        self._orders.close()
        self._answers.close()
        self._pid = self._left = 0
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            return f"hang: more than {SECONDS} s" if number == signal.SIGXCPU else f"crash: signal {number}"
        return f"crash: ended with {os.waitstatus_to_exitcode(status)} and said nothing"


def _serve(readers: Mapping[str, Reader], folders: dict[str, Path], orders: IO[bytes], answers: int) -> None:
    """The child: an order a line, an answer a line."""
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + MEMORY, mapped + MEMORY))
        for line in orders:
            reader, name = json.loads(line)
            os.chdir(folders["tmp"])
            tempfile.tempdir = os.environ["TMPDIR"] = str(folders["tmp"])
            used = resource.getrusage(resource.RUSAGE_SELF)
            seconds = math.ceil(used.ru_utime + used.ru_stime) + SECONDS
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.RLIM_INFINITY))
            text = _outcome(readers[reader], folders["in"] / name, folders["out"])
            os.write(answers, json.dumps(text).encode() + b"\n")
    finally:
        os._exit(0)


def _outcome(reader: Reader, path: Path, out: Path) -> str:
    try:
        reader(path, out)
    except MemoryError:
        return f"memory: more than {MEMORY >> 20} MB"
    except BaseException as error:
        text = " ".join(str(error).split())
        if isinstance(error, own_errors()) and text and "\n" not in str(error):
            return "refused"
        return f"crash: {type(error).__name__}: {text[:300]}"
    return "read"


def _until_interrupted(numbers: Iterable[int]) -> Iterator[int]:
    """Ctrl-C ends it after the case in hand, and what was counted is told."""
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
    for number in numbers:
        if asked:
            break
        yield number
    signal.signal(signal.SIGINT, before)


@dataclass
class Counts:
    """What was found so far, of the files below `done`."""

    seed: int
    kinds: list[str]
    done: int = 0
    seconds: float = 0.0
    formats: dict[str, dict[str, int]] = field(default_factory=dict)
    """`kind ending` → outcome → files; not the sound ones."""
    wrong: list[str] = field(default_factory=list)

    @classmethod
    def begin(cls, seed: int, kinds: list[str], log: Path | None) -> Counts:
        """Those in the log if they are of the same seed and kinds, else none."""
        if log is not None and log.exists():
            found = cls(**json.loads(log.read_text()))
            if (found.seed, found.kinds) == (seed, kinds):
                return found
        return cls(seed, kinds)

    def add(self, kind: str, name: str, outcome: str) -> None:
        counts = self.formats.setdefault(f"{kind} {Path(name).suffix[1:]}", dict.fromkeys(OUTCOMES, 0))
        counts[outcome.split(":")[0]] += 1

    def save(self, log: Path | None) -> None:
        if log is not None:
            fresh = log.with_name(log.name + ".new")
            fresh.write_text(json.dumps(asdict(self), indent=1))
            fresh.replace(log)

    def summary(self) -> dict[str, object]:
        table: dict[str, Counter[str]] = {}
        for name, counts in self.formats.items():
            table.setdefault(name.split()[0], Counter()).update(counts)
        return {
            "files": sum(sum(counts.values()) for counts in table.values()),
            "wrong": len(self.wrong),
            "kinds": {kind: dict(+counts) for kind, counts in sorted(table.items())},
            "formats": len(self.formats),
            "seconds": round(self.seconds),
        }


def fuzz(count: int, kinds: list[str], seed: int, keep: Path | None, log: Path | None) -> Counts:
    """Read `count` mutated files in all; a log is written every minute, and gone on with."""
    rng = np.random.default_rng(seed)
    seeds = [Seed(kind, name, data) for kind in kinds for name, data in KINDS[kind][0](rng)]
    by_kind = {kind: [one for one in seeds if one.kind == kind] for kind in kinds}
    counts = Counts.begin(seed, kinds, log)
    began, saved = time.monotonic() - counts.seconds, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        read = Worker({kind: reader for kind, (_, reader) in KINDS.items()}, Path(folder))
        for one in seeds if not counts.done else ():  # sound files are read
            outcome = read(one.kind, one.name, one.data)
            if outcome != "read":
                counts.wrong.append(f"{one.kind} {one.name}, not mutated: {outcome}")
        for number in _until_interrupted(range(counts.done, count)):
            case = np.random.default_rng([seed, number])
            kind = kinds[number % len(kinds)]
            one, other = (by_kind[kind][int(case.integers(len(by_kind[kind])))] for _ in range(2))
            data = mutate(one.data, other.data, case)
            outcome = read(kind, one.name, data)
            counts.add(kind, one.name, outcome)
            counts.done, counts.seconds = number + 1, time.monotonic() - began
            if outcome not in ("read", "refused"):
                counts.wrong.append(f"{kind} {one.name}, case {number} of seed {seed}: {outcome}")
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{kind}-{seed}-{number}-{one.name}").write_bytes(data)
            if time.monotonic() - saved > 60:
                saved = time.monotonic()
                counts.save(log)
        read.close()
    counts.save(log)
    return counts


def warm() -> None:
    """Import what the children need, once."""
    import av
    import cv2
    import onnx
    import onnxruntime

    import ficgan.images
    import ficgan.lab.matrix_config
    import ficgan.models
    import ficgan.pointcloud.files
    import ficgan.video.project

    cv2.setNumThreads(1)
    av.logging.set_level(av.logging.PANIC)
    assert onnx and onnxruntime and ficgan.images and ficgan.models and ficgan.pointcloud.files and ficgan.video.project


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="mutated files, over all kinds")
    parser.add_argument("--kinds", default=",".join(KINDS), help="which, with commas")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="folder for the files that went wrong")
    parser.add_argument("--log", type=Path, help="file of counts; the same command goes on from it")
    given = parser.parse_args()
    kinds = given.kinds.split(",")
    if unknown := set(kinds) - set(KINDS):
        parser.error(f"there is no kind {min(unknown)!r}; there are {', '.join(KINDS)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warm()
    counts = fuzz(given.count, kinds, given.seed, given.keep, given.log)
    for line in counts.wrong:
        print(line, file=sys.stderr)
    print(json.dumps(counts.summary()))
    return 1 if counts.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
