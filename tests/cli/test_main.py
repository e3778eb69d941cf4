"""The group of commands: loaded when called, help fast and light, errors in one sentence; `ficgan doctor`."""

from __future__ import annotations

import hashlib
import json
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from ficgan import __version__, diagnosis, pretrained
from ficgan.cli import main as command
from ficgan.cli import main as group
from ficgan.cli.main import handle_errors, reporting
from ficgan.diagnosis import EMBEDDED, OPENCV_REMEDY, DoctorFinding
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


# -- doctor ------------------------------------------------------------------------------------------------------------


def invoke(monkeypatch: pytest.MonkeyPatch, *findings: DoctorFinding, words: tuple[str, ...] = ()) -> tuple[int, str]:
    monkeypatch.setattr(diagnosis, "diagnose", lambda: {"section": list(findings)})
    result = CliRunner().invoke(command.doctor, list(words))
    return result.exit_code, result.stdout


def test_exit_code_is_about_what_the_main_job_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    good = DoctorFinding("torch", True, "2.0", required=True)
    optional = DoctorFinding("av", False, "not installed", "pip install av")
    broken = DoctorFinding("model", False, "damaged", "reinstall ficgan", required=True)
    assert invoke(monkeypatch, good, optional)[0] == 0
    code, text = invoke(monkeypatch, good, optional, broken)
    assert code == 1
    assert "until this is repaired: model." in text and "reinstall ficgan" in text and "pip install av" in text
    code, text = invoke(monkeypatch, broken, words=("--json",))
    found = json.loads(text)
    assert code == 1 and found["ok"] is False and found["blockers"] == ["model"]
    assert found["sections"]["section"][0]["remedy"] == "reinstall ficgan"


@pytest.mark.slow
def test_everything_is_probed_and_a_probe_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def _devices() -> None:
        raise OSError("driver\nmismatch")

    monkeypatch.setattr(diagnosis, "_devices", _devices)
    found = diagnosis.diagnose()
    assert list(found) == ["versions", "libraries", "devices", "detectors", "recognizers", "pretrained"]
    assert all(found.values())
    assert found["devices"] == [DoctorFinding("devices", False, "OSError: driver mismatch")]
    names = {finding.name: finding for section in found.values() for finding in section}
    assert names["torch"].ok and names["torchvision"].ok
    assert all(finding.ok for finding in found["pretrained"])
    assert [finding.name for finding in found["pretrained"]] == list(EMBEDDED)


def test_a_library_that_is_broken_or_absent_is_told_with_its_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "halflib.py").write_text("raise OSError('libGL.so.1: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = diagnosis._library("halflib-dist", "halflib", True)
    assert not found.ok and found.required and "libGL" in found.detail and found.remedy == OPENCV_REMEDY
    found = diagnosis._library("no-such-library", "no_such_library", False)
    assert (found.ok, found.detail, found.remedy) == (False, "not installed", "pip install no-such-library")


def test_a_gpu_that_does_not_compute_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def fail(*size: int, device: str) -> None:
        raise RuntimeError(f"no kernel image is available on {device}")

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: "Old GPU")
    monkeypatch.setattr(torch, "ones", fail)
    gpu = list(diagnosis._devices())[-2]
    assert (gpu.name, gpu.ok, gpu.required) == ("cuda:0", False, False)
    assert "Old GPU" in gpu.detail and "no kernel image" in gpu.detail


@pytest.mark.parametrize("role", ["bank", "mesh"])
@pytest.mark.parametrize("damage", ["damaged", "missing", "not in the manifest"])
def test_the_embedded_files_are_checked(
    damage: str, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for name in EMBEDDED:
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
        files[f"{name}.safetensors"] = {"role": name, "sha256": hashlib.sha256(name.encode()).hexdigest()}
    if damage == "not in the manifest":
        del files[f"{role}.safetensors"]
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    if damage == "damaged":
        (tmp_path / f"{role}.safetensors").write_bytes(b"bonk")
    if damage == "missing":
        (tmp_path / f"{role}.safetensors").unlink()
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    found = {finding.name: finding for finding in diagnosis._pretrained()}
    assert {name for name, finding in found.items() if not finding.ok} == {role} and set(found) == set(EMBEDDED)
    assert damage in found[role].detail and "reinstall ficgan" in found[role].remedy
    # Another model comes with another bank; the mesh is always this one.
    assert ("--checkpoint" in found[role].remedy) is (role == "bank")
