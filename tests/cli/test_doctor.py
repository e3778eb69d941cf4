"""`ficgan doctor`: probes are guarded, what is broken comes with what to do, the exit code tells whether it matters."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from ficgan import diagnosis, pretrained
from ficgan.cli import main as command
from ficgan.diagnosis import EMBEDDED, OPENCV_REMEDY, Diagnosis, DoctorFinding


def invoke(monkeypatch: pytest.MonkeyPatch, *findings: DoctorFinding, words: tuple[str, ...] = ()) -> tuple[int, str]:
    monkeypatch.setattr(diagnosis, "diagnose", lambda: Diagnosis({"section": list(findings)}))
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
    assert list(found.sections) == ["versions", "libraries", "devices", "detectors", "recognizers", "pretrained"]
    assert all(found.sections.values())
    assert found.sections["devices"] == [DoctorFinding("devices", False, "OSError: driver mismatch")]
    names = {finding.name: finding for section in found.sections.values() for finding in section}
    assert names["torch"].ok and names["torchvision"].ok
    assert all(finding.ok for finding in found.sections["pretrained"])
    assert [finding.name for finding in found.sections["pretrained"]] == list(EMBEDDED)


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
