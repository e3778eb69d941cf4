"""tools/make_embedded.py: the embedded files, without paths of the machine that made them."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_embedded
import numpy as np
import pytest

from ficgan import pretrained
from ficgan.face_model import ModelInfo
from ficgan.files import file_digest
from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
from ficgan.identity import IdentityBank


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the embedded files go: the networks of others are there, and what was embedded before."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    for name in (*make_embedded.NETWORKS.values(), make_embedded.MODEL, make_embedded.BANK):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def call(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The command, with a fitted model, its bank and figures."""
    appearance, config, *_ = load_appearance(pretrained.path("model"))
    info = ModelInfo({"kind": "canonical"}, {"licence": "drawn"}, {"images": 5})
    save_appearance(tmp_path / "fitted.safetensors", appearance, config, info)
    codes = np.random.default_rng(0).normal(size=(4, 6))
    provenance = {"checkpoint": file_digest(tmp_path / "fitted.safetensors")}
    IdentityBank.from_codes(codes, None, np.eye(4, 1, dtype=np.uint8), ["Female"], provenance).save(tmp_path / "people")
    (tmp_path / "measured.json").write_text('{"aligned": [1, 2]}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(make_embedded, "FOLDER", folder)

    def run(*arguments: str) -> None:
        monkeypatch.setattr(sys, "argv", ["make_embedded.py", *arguments])
        make_embedded.main()

    return run


def test_the_embedded_files(call: Callable[..., None], folder: Path, tmp_path: Path) -> None:
    call("fitted.safetensors", "people", "--measured", "measured.json")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    manifest: dict[str, Any] = json.loads(files["manifest.json"])
    roles = "model linear lenders bank mesh gate detector check kind glasses beards"
    assert set(roles.split()) == {entry["role"] for entry in manifest["files"].values()}
    assert set(files) == {*manifest["files"], "manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == file_digest(folder / name) and entry["bytes"] == len(files[name])
    ours, given = (
        load_appearance(each) for each in (folder / "appearance.safetensors", tmp_path / "fitted.safetensors")
    )
    np.testing.assert_array_equal(ours[0].components, given[0].components)
    assert ours[1] == FrameConfig()  # numbers of the code, whatever the fitted file was made with
    bank = IdentityBank.load(folder / "bank.safetensors")
    assert manifest["bank"] == {"people": 4, "digest": bank.digest, "attributes": {"Female": 1}}
    assert bank.provenance["checkpoint"] == manifest["files"]["appearance.safetensors"]["sha256"]
    assert (manifest["data"], manifest["training"]) == ({"licence": "drawn"}, {"images": 5})
    assert manifest["measured"] == {"aligned": [1, 2]}
