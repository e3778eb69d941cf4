"""The group of commands: loaded when called, help fast and light, no lab in the product, errors in one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from ficgan import __version__
from ficgan.cli import main as group
from ficgan.cli.main import handle_errors, reporting
from ficgan.diagnosis import OPENCV_REMEDY
from ficgan.errors import FicganError, InputError, UsageError

SHORT = "Error: not enough memory: allow more, run less at once (--jobs, --batch), or take smaller files\n"
HELP = """
import contextlib, io, json, os, sys, time

def ask(command, words):
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        command.main([*words, "--help"], prog_name="ficgan")
    assert "Usage: " in out.getvalue(), words

def deeper(command, words):
    for name, below in getattr(command, "commands", {}).items():
        ask(main, [*words, name])
        yield " ".join([*words, name])
        yield from deeper(below, [*words, name])

for name in NAMES:
    if os.fork():
        os.wait()
        continue
    start = time.process_time()
    from ficgan.cli.main import load, main
    ask(main, [name])
    seconds = time.process_time() - start
    known = [name, *deeper(load(name), [name])]
    loaded = [word for word in HEAVY if word in sys.modules]
    print(json.dumps([known, seconds, loaded]), flush=True)
    os._exit(0)
"""


@pytest.mark.slow
def test_every_help_is_fast_and_loads_nothing_heavy() -> None:
    """A process forks for every command; the sub-commands of groups are asked, too."""
    heavy = ["torch", "torch._dynamo", "cv2", "numpy", "scipy", "pydantic", "onnxruntime", "av", "ficgan.lab"]
    code = HELP.replace("NAMES", repr(list(group.COMMANDS))).replace("HEAVY", repr(heavy))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [known[0] for known, _, _ in found] == list(group.COMMANDS)
    every = {name for known, _, _ in found for name in known}
    assert every >= {"bank build", "attack evaluate", "eval paper revelio", "eval survey make", "pointcloud make-head"}
    for known, seconds, loaded in found:
        assert loaded == [], known[0]
        assert seconds < 0.3, known[0]


def test_version_and_help() -> None:
    runner = CliRunner()
    assert runner.invoke(group.main, ["--version"]).output.strip() == f"ficgan, version {__version__}"
    listing = runner.invoke(group.main, ["--help"])
    assert listing.exit_code == 0
    for name, (_, line) in group.COMMANDS.items():
        assert name in listing.output and line in listing.output
    assert runner.invoke(group.main, ["-h"]).exit_code == 0
    unknown = runner.invoke(group.main, ["dide"])
    assert unknown.exit_code == 2 and "No such command 'dide'" in unknown.stderr


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (ImportError("libGL.so.1: cannot open shared object file: No such file or directory"), OPENCV_REMEDY),
        (ModuleNotFoundError("No module named 'torch'"), "ficgan doctor"),
    ],
)
def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: ImportError, advice: str) -> None:
    def fail(name: str) -> object:
        raise error

    monkeypatch.setattr(group, "import_module", fail)
    result = CliRunner().invoke(group.main, ["deid", "photo.jpg"])
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1 and advice in result.stderr and "ficgan deid" in result.stderr


@pytest.mark.parametrize("name", ["deid", "train", "eval", "attack"])
def test_console_scripts(name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    entry = getattr(group, f"{name}_main")
    for word in ("--help", "-h"):
        monkeypatch.setattr(sys, "argv", [f"/somewhere/ficgan-{name}", word])
        with pytest.raises(SystemExit) as end:
            entry()
        assert end.value.code == 0
        assert f"Usage: ficgan-{name} " in capsys.readouterr().out


@pytest.mark.parametrize(("failed", "code"), [(False, 0), (True, 3)])
def test_a_command_ends_with_a_line_of_json(failed: bool, code: int) -> None:
    @click.command()
    @click.option("--count", default=2)
    @reporting("thing")
    def counts(count: int, report: object) -> tuple[dict[str, int], bool]:
        report.info("a word")  # type: ignore[attr-defined]
        return {"count": count}, failed

    outcome = CliRunner().invoke(counts, ["--count", "3"])
    assert outcome.exit_code == code and outcome.stderr == "a word\n" and outcome.stdout.count("\n") == 1
    assert json.loads(outcome.stdout) == {"count": 3, "seconds": pytest.approx(0, abs=1)}
    assert CliRunner().invoke(counts, ["--quiet"]).stderr == ""


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (FicganError("a"), 1, "Error: a\n"),
        (UsageError("b"), 2, "Error: b\n"),
        (InputError("c\nd"), 3, "Error: c d\n"),
        (KeyboardInterrupt(), 130, "Interrupted.\n"),
        (
            KeyboardInterrupt("stopped at 3 kimg;\nthe same command goes on"),
            130,
            "Interrupted: stopped at 3 kimg; the same command goes on\n",
        ),
        (click.Abort(), 130, "Interrupted.\n"),
        (BrokenPipeError(), 1, ""),
        (ValueError("x\ny"), 1, "Error: ValueError: x y\n"),
        (OSError(28, "No space left on device", "/f"), 1, "Error: No space left on device: /f\n"),
        (MemoryError(), 1, SHORT),
        (OSError(12, "Cannot allocate memory"), 1, SHORT),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:1] . DefaultCPUAllocator: can't allocate memory"), 1, SHORT),
        (RuntimeError("[enforce fail a"), 1, SHORT),
        (RuntimeError("[enforce fail at x.cc]"), 1, "Error: RuntimeError: [enforce fail at x.cc]\n"),
    ],
)
def test_handle_errors(error: BaseException, code: int, said: str) -> None:
    @click.command()
    @handle_errors
    def fails() -> None:
        raise error

    before = signal.getsignal(signal.SIGTERM)
    outcome = CliRunner().invoke(fails)
    assert (outcome.exit_code, outcome.stdout, outcome.stderr) == (code, "", said)
    assert signal.getsignal(signal.SIGTERM) == before
