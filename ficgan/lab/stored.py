"""What runs keep: atomic files, pages, arrays by a digest of all they depend on, locked folders, and parallel tasks."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import io
import json
import multiprocessing
import os
import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import contextmanager
from functools import lru_cache
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from ficgan.errors import FicganError, InputError
from ficgan.files import atomic_write, lock
from ficgan.registry import Parametrised


def read_json(path: Path) -> Any:
    """A JSON file."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); name another") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read as JSON ({error}); check the file") from error


Model = TypeVar("Model")


def read_checked(path: Path, kind: type[Model], schemas: tuple[str | int, ...], otherwise: str) -> Model:
    """A JSON object of one of the schemas as a dataclass, checked by pydantic; `otherwise` says what else to do."""
    raw = read_json(path)
    if not isinstance(raw, dict) or raw.pop("schema", None) not in schemas:
        raise InputError(f"{path} is not of the schema {schemas[0]}; {otherwise}")
    try:
        return TypeAdapter(kind).validate_python(raw)
    except (ValidationError, LookupError, TypeError, AttributeError) as error:
        problem = repr(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise InputError(f"{path} is damaged ({problem}); {otherwise}") from None


def write_json(path: Path, tree: Any) -> None:
    write_file(path, json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def write_file(path: Path, content: str | bytes) -> Path:
    """Write a file whole or not at all, replacing one of this name; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path, overwrite=True) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return path


def png(pixels: NDArray[np.uint8]) -> bytes:
    """[H,W,3] uint8 RGB as PNG, nothing in it but pixels."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(buffer, "PNG")
    return buffer.getvalue()


def new_folder(folder: Path, *inside: str) -> None:
    """Make a folder for source faces and right answers, which only its owner can open, with folders inside."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"{folder} is not empty; the files of two runs must not mix: choose a new folder")
        folder.chmod(0o700)
        for name in inside:
            (folder / name).mkdir()
    except OSError as error:
        raise InputError(f"{folder} cannot be made ({error.strerror}); choose another folder") from error


def data_url(kind: str, file: bytes) -> str:
    """A file as an address within the page, such as of kind "image/png"."""
    return f"data:{kind};base64,{base64.b64encode(file).decode()}"


def page_template(package: str) -> str:
    """The `page.html` of a package."""
    return files(package).joinpath("page.html").read_text(encoding="utf-8")


def page_script(template: str) -> str:
    """The script of a page. What stands in it above `if (typeof document …)` is pure."""
    return template.partition("<script>")[2].partition("</script>")[0]


def fill_page(template: str, data: Any, **texts: str) -> str:
    """A page with its texts escaped, a digest of its only allowed script, and data in which "<" is an escape."""
    digest = base64.b64encode(hashlib.sha256(page_script(template).encode()).digest()).decode()
    plain = json.dumps(data).replace("<", "\\u003c")
    values = {name: escape(text) for name, text in texts.items()}
    values["script"] = f"sha256-{digest}"
    values["data"] = f'<script id="data" type="application/json">{plain}</script>'
    return re.sub(r"\{\{ (\w+) \}\}", lambda match: values[match[1]], template)


def text_table(lines: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines of text, the first column to the left and the others to the right."""
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return [
        "  ".join(v.rjust(w) if k else v.ljust(w) for k, (v, w) in enumerate(zip(line, widths, strict=True)))
        for line in lines
    ]


VERSION = 2  # Raised where code that makes what is stored changes its results
Progress = Callable[[int, int, str], None]  # Called as progress(done, total, what is at work)
Say = Callable[[str], object]  # Called with what is at work, by a task that does not know how many others there are
_LISTEN = 0.5  # Seconds between two looks at the messages of the processes
_queue: Any = None  # In a process of the pool: its messages go through it


class Store:
    """A folder of .npy files, and of folders in which attackers are trained; None keeps nothing."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def array(self, key: list[Any], make: Callable[[], NDArray[Any]]) -> NDArray[Any]:
        """The array of a JSON-ready key; made, and written whole, where it is missing or damaged."""
        if self.folder is None:
            return make()
        path = self.folder / f"{digest([VERSION, *key])}.npy"
        try:
            found: NDArray[Any] = np.load(path, allow_pickle=False)
            return found
        except (OSError, ValueError, EOFError):
            made = make()
        with atomic_write(path, overwrite=True) as file:
            np.save(file, made, allow_pickle=False)
        return made

    @contextmanager
    def workspace(self, key: list[Any], *, waiting: Callable[[], None] | None = None) -> Iterator[Path | None]:
        """The folder of a JSON-ready key, locked to one process by the kernel; None where nothing is kept."""
        if self.folder is None:
            yield None
            return
        folder = self._workspace(key)
        folder.mkdir(parents=True, exist_ok=True)
        with folder.with_suffix(".lock").open("a") as file:
            if not lock(file, wait=False):
                if waiting is not None:
                    waiting()
                lock(file)
            yield folder

    def kept_in(self, key: list[Any], name: str) -> Path | None:
        """A file in the folder of that key; None where there is none. Nothing is made or locked."""
        path = None if self.folder is None else self._workspace(key) / name
        return path if path is not None and path.is_file() else None

    def _workspace(self, key: list[Any]) -> Path:
        assert self.folder is not None
        return self.folder / "attackers" / digest([VERSION, *key])


def digest(key: Any) -> str:
    """sha256 of something JSON-ready, 32 hex digits."""
    return hashlib.sha256(json.dumps(key, sort_keys=True, default=str).encode()).hexdigest()[:32]


def fingerprint(method: Parametrised) -> str | None:
    """Digest of an anonymiser or reverser with its fields, fitted arrays and files; None for an external program."""
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(method):
        value = getattr(method, field.name)
        if field.name == "command" and value:
            return None
        if isinstance(value, Parametrised):  # a method within a method
            value = fingerprint(value)
            if value is None:
                return None
        if isinstance(value, np.ndarray):
            value = hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()
        # Anything else a fitted one carries came of its background, whose digest is in the keys it is used in.
        plain = value is None or isinstance(value, (str, int, float, bool))
        fields[field.name] = value if plain else type(value).__name__
    files = [files_digest(value) for value in fields.values() if isinstance(value, str)]
    return digest([method.name, fields, method.settings(), files])


def files_in(text: str) -> list[Path]:
    """Files and folders that a parameter names, such as onnx:PATH, or several with + between."""
    pieces, found = text.split("+"), []
    while pieces:
        # The longest comes first, for a path may hold + and : itself.
        for count in range(len(pieces), 0, -1):
            path = _named("+".join(pieces[:count]))
            if path is not None:
                found.append(path)
                break
        pieces = pieces[count:]
    return found


def _named(text: str) -> Path | None:
    for part in (text, text.partition(":")[2]):
        if ("/" in part or "." in part) and os.path.exists(path := os.path.expanduser(part)):
            return Path(path)
    return None


@lru_cache(maxsize=256)
def _file_digest(path: Path, size: int, changed: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def files_digest(text: str) -> list[str]:
    """Digests of the files a parameter names; folders count by names, sizes and times of their files."""
    out = []
    for path in files_in(text):
        state = path.stat()
        if path.is_file():
            out.append(_file_digest(path, state.st_size, state.st_mtime_ns))
        else:
            inner = sorted((str(p.relative_to(path)), p.stat().st_size, p.stat().st_mtime_ns) for p in path.rglob("*"))
            out.append(digest(inner))
    return out


Work = Sequence[tuple[str, tuple[Any, ...]]]  # Title and arguments of each task


@dataclasses.dataclass
class Tasks:
    """Tasks of a run, in groups that are counted together; what fails is said at the end of all of them."""

    out: Path
    total: int
    jobs: int = 1
    progress: Progress | None = None
    done: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)

    def say(self, text: str) -> None:
        if self.progress:
            self.progress(self.done, self.total, text)

    def run(self, task: Callable[..., object], group: Work) -> None:
        """Do `task(*arguments, say)` for each of a group; a failure leaves the others going."""
        for number, problem in run_tasks(task, group, jobs=self.jobs, say=self.say):
            title = group[number][0]
            self.done += 1
            if problem:
                self.failures.append(problem if problem.startswith(title) else f"{title}: {problem}")
            self.say(title)

    def check(self) -> None:
        """Raise the first failure, if there was one."""
        if self.failures:
            more = f" ({len(self.failures) - 1} more tasks failed)" if self.failures[1:] else ""
            kept = f"what is finished is kept in {self.out}, run again after mending it"
            raise FicganError(f"{self.failures[0]}{more}; {kept}")


def run_tasks(task: Callable[..., object], group: Work, *, jobs: int, say: Say) -> Iterator[tuple[int, str]]:
    """Run tasks; yields (number of the task, why it failed or "") as each ends. All must be picklable."""
    if jobs <= 1 or len(group) <= 1:
        for index, (_, arguments) in enumerate(group):
            yield index, _attempt(task, arguments, say)
        return
    context = multiprocessing.get_context("spawn")
    queue: Any = context.SimpleQueue()  # what is put is in the pipe before the task ends
    with _threads(max(1, (os.cpu_count() or 1) // jobs)):
        pool = ProcessPoolExecutor(min(jobs, len(group)), mp_context=context, initializer=_listen, initargs=(queue,))
        try:
            running: dict[Future[str], int] = {
                pool.submit(_in_process, task, arguments): index for index, (_, arguments) in enumerate(group)
            }
            while running:
                finished, _ = wait(running, timeout=_LISTEN, return_when=FIRST_COMPLETED)
                while not queue.empty():
                    say(queue.get())
                for future in finished:
                    yield running.pop(future), future.result()
        except BaseException:
            for process in list((pool._processes or {}).values()):
                process.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _attempt(task: Callable[..., object], arguments: tuple[Any, ...], say: Say) -> str:
    try:
        task(*arguments, say)
    except FicganError as error:
        return str(error)
    return ""


def _listen(queue: Any) -> None:
    global _queue
    _queue = queue


def _in_process(task: Callable[..., object], arguments: tuple[Any, ...]) -> str:
    return _attempt(task, arguments, _queue.put)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update({name: str(count) for name in names})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
