"""`ficgan doctor`: probes are guarded, what is broken comes with what to do, the exit code tells whether it matters."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from ficgan import diagnosis, pretrained
from ficgan.cli import main as command
from ficgan.diagnosis import OPENCV_REMEDY, Diagnosis, DoctorFinding


def invoke(
    monkeypatch: pytest.MonkeyPatch, *findings: DoctorFinding, arguments: tuple[str, ...] = ()
) -> tuple[int, str]:
    monkeypatch.setattr(diagnosis, "diagnose", lambda: Diagnosis({"section": list(findings)}))
    result = CliRunner().invoke(command.doctor, list(arguments))
    return result.exit_code, result.stdout


def test_exit_code_is_about_what_the_main_job_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    good = DoctorFinding("torch", True, "2.0", required=True)
    optional = DoctorFinding("av", False, "not installed", "pip install av")
    broken = DoctorFinding("model", False, "damaged", "reinstall ficgan", required=True)
    assert invoke(monkeypatch, good, optional)[0] == 0
    code, text = invoke(monkeypatch, good, optional, broken)
    assert code == 1
    assert "until this is repaired: model." in text and "reinstall ficgan" in text and "pip install av" in text


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = DoctorFinding("model", False, "damaged", "reinstall ficgan", required=True)
    code, text = invoke(monkeypatch, broken, arguments=("--json",))
    found = json.loads(text)
    assert code == 1 and found["ok"] is False and found["blockers"] == ["model"]
    assert found["sections"]["section"][0]["remedy"] == "reinstall ficgan"


def test_everything_is_probed_and_nothing_raises() -> None:
    found = diagnosis.diagnose()
    assert list(found.sections) == ["versions", "libraries", "devices", "ops", "detectors", "recognizers", "pretrained"]
    assert all(found.sections.values())
    names = {finding.name: finding for section in found.sections.values() for finding in section}
    assert names["torch"].ok and names["torch + torchvision"].ok
    assert names["onnxruntime"].ok and names["back end"].ok
    assert all("\n" not in finding.detail for finding in names.values())


@pytest.mark.slow
def test_a_probe_that_fails_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def _libraries() -> None:
        raise RuntimeError("driver\nmismatch")

    def _devices() -> None:
        raise OSError("none")

    monkeypatch.setattr(diagnosis, "_libraries", _libraries)
    monkeypatch.setattr(diagnosis, "_devices", _devices)
    found = diagnosis.diagnose()
    assert found.sections["libraries"] == [
        DoctorFinding("libraries", False, "RuntimeError: driver mismatch", required=True)
    ]
    assert not found.sections["devices"][0].required
    assert found.sections["pretrained"]


def test_a_broken_import_is_told_with_its_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "halflib.py").write_text("raise OSError('libGL.so.1: cannot open shared object file')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = diagnosis._library("halflib-dist", "halflib", True)
    assert not found.ok and found.required
    assert "libGL" in found.detail and found.remedy == OPENCV_REMEDY


def test_an_absent_library_is_told_with_its_remedy() -> None:
    found = diagnosis._library("no-such-library", "no_such_library", False)
    assert (found.ok, found.detail, found.remedy) == (False, "not installed", "pip install no-such-library")


@pytest.mark.parametrize(
    ("torch", "vision", "needs", "ok"),
    [("2.14.1+cpu", "0.28.0", ["numpy", "torch==2.13.0"], False), (None, "0.29.1", [], False)],
)
def test_an_odd_pair_of_torch_and_torchvision(
    monkeypatch: pytest.MonkeyPatch, torch: str | None, vision: str, needs: list[str], ok: bool
) -> None:
    monkeypatch.setattr(diagnosis, "_version", {"torch": torch, "torchvision": vision}.get)
    monkeypatch.setattr(diagnosis.metadata, "requires", lambda name: needs)
    assert diagnosis._pair().ok is ok


def test_a_gpu_that_does_not_compute_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    def fail(*size: int, device: str) -> None:
        raise RuntimeError(f"no kernel image is available on {device}")

    properties = SimpleNamespace(name="Old GPU", total_memory=4 * 2**30, major=3, minor=5)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties)
    monkeypatch.setattr(torch, "ones", fail)
    gpu = list(diagnosis._devices())[-1]
    assert (gpu.name, gpu.ok, gpu.required) == ("cuda:0", False, False)
    assert "Old GPU, 4 GiB, capability 3.5" in gpu.detail and "no kernel image" in gpu.detail


@pytest.mark.parametrize("role", ["model", "bank", "mesh", "gate", "detector", "check", "kind"])
@pytest.mark.parametrize("damage", [None, "flip", "remove", "unlisted"])
def test_the_embedded_files_are_checked(
    damage: str | None, role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = ("model", "bank", "mesh", "gate", "detector", "check", "kind")
    files = {}
    for name in roles:
        (tmp_path / f"{name}.safetensors").write_bytes(name.encode())
        files[f"{name}.safetensors"] = {"role": name, "sha256": hashlib.sha256(name.encode()).hexdigest()}
    if damage == "unlisted":
        del files[f"{role}.safetensors"]
    (tmp_path / "manifest.json").write_text(json.dumps({"files": files}))
    if damage == "flip":
        (tmp_path / f"{role}.safetensors").write_bytes(b"bonk")
    if damage == "remove":
        (tmp_path / f"{role}.safetensors").unlink()
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    found = {finding.name: finding for finding in diagnosis._pretrained()}
    assert set(found) == set(roles)
    for name in roles:
        assert found[name].ok is (damage is None or name != role), name
    assert all(finding.required for finding in found.values())
    if damage is None:
        assert pretrained.path(role) == tmp_path / f"{role}.safetensors"
    else:
        said = {"flip": "damaged", "remove": "missing", "unlisted": "not in the manifest"}
        assert said[damage] in found[role].detail and "reinstall ficgan" in found[role].remedy
        # Another model comes with another bank; the mesh is always this one.
        assert ("--checkpoint" in found[role].remedy) is (role in ("model", "bank"))


def test_the_embedded_files_are_whole() -> None:
    found = list(diagnosis._pretrained())
    assert [finding.name for finding in found] == ["model", "bank", "mesh", "gate", "detector", "check", "kind"]
    assert all(finding.ok for finding in found), found
