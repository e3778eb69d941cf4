"""Worker processes: order, crashes, time, what a worker with limits may do, and that none outlives its parent."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ficgan import workers
from ficgan.errors import FicganError, InputError, TakenError, UsageError
from ficgan.workers import Limits, Workers, is_cancelled, report

LIMITED = pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock and RLIMIT_AS")


def tried(action: Callable[[], object]) -> str:
    try:
        action()
    except BaseException as error:
        return type(error).__name__
    return "done"


def work(task: Any) -> Any:
    """What a task names, in the worker."""
    name, *given = task
    if name == "echo":
        return given
    if name == "sleep":
        time.sleep(given[0])
        return os.getpid()
    if name == "raise":
        raise given[0]
    if name == "crash":
        os.abort()
    if name == "eat":
        return len(np.ones(given[0], np.uint8))
    if name == "print":
        print("what a library prints")
        os.system("echo what a program prints")
    if name == "nonsense":
        workers._answers.send_bytes(b"[")
        time.sleep(60)
    if name == "environment":
        return sorted(os.environ)
    if name == "report":
        for n in range(given[0]):
            report(n, "of", given[0])
            time.sleep(given[1])
    if name == "wait":
        report("here")
        while not is_cancelled():
            time.sleep(0.01)
        return "cancelled"
    if name == "thread":
        listener = next(thread for thread in threading.enumerate() if "listen" in thread.name)
        status = Path(f"/proc/self/task/{listener.native_id}/status").read_text()
        return "NoNewPrivs:\t1" in status
    if name == "harm":
        place, port = given
        return {
            "file": tried(lambda: Path(place, "made").write_text("x")),
            "old": tried(lambda: Path(place, "old").open("r+")),
            "folder": tried(lambda: os.mkdir(f"{place}/folder")),
            "remove": tried(lambda: os.unlink(f"{place}/old")),
            "rename": tried(lambda: os.rename(f"{place}/old", f"{place}/new")),
            "link": tried(lambda: os.symlink("/", f"{place}/link")),
            "run": tried(lambda: subprocess.run(["/bin/true"], check=True)),
            "connect": tried(lambda: socket.create_connection(("127.0.0.1", port), 2).close()),
        }
    return None


def setup() -> Callable[[Any], Any]:
    return work


def no_setup() -> Callable[[Any], Any]:
    raise UsageError("there is no such model")


def dead_setup() -> Callable[[Any], Any]:
    os._exit(1)


@pytest.fixture(scope="module")
def pair() -> Iterator[Workers]:
    with Workers(setup, 2) as workers:
        for child in workers._children:
            child.wait()
        yield workers


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workers, Path]]:
    """A worker with limits, and the folder it may write to."""
    os.environ["A_TOKEN"] = "secret"
    folder = tmp_path_factory.mktemp("allowed")
    with Workers(setup, 1, Limits(memory=256 << 20, seconds=1.0, folders=[folder])) as workers:
        yield workers, folder
    del os.environ["A_TOKEN"]


def test_results_come_in_the_order_of_completion(pair: Workers) -> None:
    assert [task[1] for task, _ in pair.run(("sleep", t) for t in (0.6, 0.0, 0.1))] == [0.0, 0.1, 0.6]
    tasks = [("echo", n, b"\0\xff" * n, (1, None), {"a": np.float32(n)}) for n in range(40)]
    for task, result in pair.run(tasks):
        assert result == [*task[1:3], [1, None], task[4]]
    assert list(pair.run([])) == []


def test_tasks_are_taken_one_by_one(pair: Workers) -> None:
    taken: list[int] = []

    def tasks() -> Iterator[tuple[str, int]]:
        for n in range(100):
            taken.append(n)
            yield "echo", n

    for number, _ in enumerate(pair.run(tasks())):
        if number == 5:
            break
    assert len(taken) < 20

    def broken() -> Iterator[tuple[str, int]]:
        yield "echo", 1
        raise FicganError("the list ended early")

    with pytest.raises(FicganError, match="early"):
        list(pair.run(broken()))


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InputError("x"), InputError),
        (TakenError("x"), TakenError),
        (UsageError("x"), UsageError),
        (OSError(28, "full"), OSError),
        (MemoryError("x"), MemoryError),
        (KeyError("x"), RuntimeError),
    ],
)
def test_errors_keep_their_class(error: Exception, kind: type[Exception], pair: Workers) -> None:
    with pytest.raises(kind) as caught:
        pair.do(("raise", error))
    assert type(caught.value) is kind and (kind is not OSError or caught.value.errno == 28)
    assert pair.do(("echo", 1)) == [1]


def test_a_worker_that_dies_is_replaced(pair: Workers) -> None:
    tasks = [("echo", 1), ("crash",), ("echo", 2), ("crash",), ("echo", 3)]
    results = dict(pair.run(tasks))
    assert isinstance(results[("crash",)], InputError) and len(results) == 4
    assert [results["echo", n] for n in (1, 2, 3)] == [[1], [2], [3]]
    for _ in range(2):  # one that died at leisure is no file's fault
        os.kill(pair.do(("sleep", 0)), signal.SIGKILL)
    time.sleep(0.3)
    assert pair.do(("echo", 4)) == [4]


def test_progress_and_cancelling(pair: Workers) -> None:
    heard: list[Any] = []
    pair.do(("report", 3, 0), progress=lambda *values: heard.append(values))
    assert heard == [(n, "of", 3) for n in range(3)]
    assert pair.do(("wait",), progress=lambda _: pair.cancel()) == "cancelled"
    assert pair.do(("echo", 1)) == [1]


@pytest.mark.parametrize(
    ("make", "kind"), [(no_setup, UsageError), pytest.param(dead_setup, FicganError, marks=pytest.mark.slow)]
)
def test_a_setup_that_fails(make: Any, kind: type[Exception]) -> None:
    with Workers(make) as workers:
        for ask in (workers.wait, lambda: workers.do(("echo", 1)), lambda: list(workers.run([("echo", 1)]))):
            with pytest.raises(kind):
                ask()


@LIMITED
def test_a_worker_keeps_within_its_limits(held: tuple[Workers, Path], tmp_path: Path) -> None:
    workers, allowed = held
    for task in (("eat", 1 << 30), ("sleep", 60), ("crash",), ("nonsense",)):
        with pytest.raises(InputError):
            workers.do(task)
    assert workers.do(("eat", 1 << 20)) == 1 << 20
    workers.do(("report", 4, 0.4))  # longer than a task may be silent
    assert "A_TOKEN" not in workers.do(("environment",)) and "PATH" in workers.do(("environment",))
    assert workers.do(("thread",))  # the fence holds for other threads, too
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for folder in (allowed, tmp_path):
            (folder / "old").write_text("x")
        outside = workers.do(("harm", str(tmp_path), port))
        inside = workers.do(("harm", str(allowed), port))
    import ctypes

    if ctypes.CDLL(None).syscall(444, None, 0, 1) >= 4:  # Landlock with TCP
        assert set(outside.values()) == {"PermissionError"} or "done" not in outside.values(), outside
        assert [path.name for path in tmp_path.iterdir()] == ["old"]
        assert [name for name, what in inside.items() if what != "done"] == ["rename", "run", "connect"]


PARENT = """
import sys, threading
sys.path.insert(0, {folder!r})
from test_workers import setup
from ficgan.workers import Workers
workers = Workers(setup)
threading.Thread(target=workers.do, args=(("sleep", 600),), daemon=True).start()
workers.wait()
print(*(child._process.pid for child in workers._children), flush=True)
threading.Event().wait()
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_workers_end_with_their_parent(how: int) -> None:
    text = PARENT.format(folder=str(Path(__file__).parent))
    parent = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert parent.stdout is not None
    with parent.stdout as out:
        child = int(out.readline())
    assert Path(f"/proc/{child}").exists()
    parent.send_signal(how)
    parent.wait(60)
    until = time.monotonic() + 60
    while Path(f"/proc/{child}").exists() and "Z" not in Path(f"/proc/{child}/stat").read_text().split()[2]:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_worker_whose_parent_is_gone_at_once_is_quiet() -> None:
    begin = "import os; from ficgan.workers import Pipe, main; a, b = Pipe(); a.close(); main(os.dup(b.fileno()))"
    assert subprocess.run([sys.executable, "-c", begin], capture_output=True, check=True).stderr == b""


def test_closing_ends_what_is_at_work() -> None:
    workers = Workers(setup)
    workers.wait()
    began = time.monotonic()
    tasks = workers.run([("sleep", 600), ("echo", 1)])
    threading.Timer(0.3, workers.close).start()
    assert all(isinstance(result, InputError) for _, result in tasks)
    assert time.monotonic() - began < 60
