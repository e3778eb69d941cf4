"""tools/make_embedded.py: the embedded files, whole or not at all, and without paths of the machine that made them."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from ficgan.config import ModelConfig
from ficgan.faces import Alignment
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN, CheckpointHeader, load_checkpoint, save_checkpoint
from ficgan.models.io import file_digest

TOOL = Path(__file__).resolve().parent.parent / "tools" / "make_embedded.py"
CONFIG = ModelConfig(
    resolution=16, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
)


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_embedded", TOOL)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "pretrained").mkdir()
    monkeypatch.setattr(module, "FOLDER", tmp_path / "pretrained")
    return module


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A command line, and the checkpoint it names."""
    torch.manual_seed(0)
    training = {"config": {"verifier": {"spec": f"onnx:{tmp_path}/secret/v.onnx"}}, "images": 5}
    header = CheckpointHeader(
        model=CONFIG, alignment=Alignment().to_dict(), data={"licence": "drawn"}, training=training
    )
    save_checkpoint(tmp_path / "network.safetensors", FICGAN(CONFIG), header)
    rng = np.random.default_rng(0)
    rows = ["file,person,gender"]
    (tmp_path / "faces").mkdir()
    for index, person in enumerate(("0", "0", "1", "", "")):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / f"faces/{index}.png")
        rows.append(f"{index}.png,{person},{'Female' if index % 2 else 'Male'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    (tmp_path / "record.json").write_text('{"hours": 1}')
    options = f"network.safetensors --data {tmp_path}/faces --labels {tmp_path}/labels.csv --record record.json"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["make_embedded.py", *options.split()])
    return tmp_path / "network.safetensors"


def test_the_embedded_files(tool: ModuleType, arguments: Path, tmp_path: Path) -> None:
    tool.main()
    folder = tmp_path / "pretrained"
    assert sorted(path.name for path in folder.iterdir()) == [
        "faces64-bank.safetensors",
        "faces64.safetensors",
        "manifest.json",
    ]
    assert not [path.name for path in folder.iterdir() if str(tmp_path).encode() in path.read_bytes()]
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["training"]["config"]["verifier"]["spec"] == "onnx:v.onnx"
    assert manifest["training"]["record"] == {"hours": 1}
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == file_digest(folder / name)
    before, after = load_checkpoint(arguments)[0].state_dict(), load_checkpoint(folder / "faces64.safetensors")[0]
    assert all(torch.equal(before[name], tensor) for name, tensor in after.state_dict().items())
    bank = IdentityBank.load(folder / "faces64-bank.safetensors")
    assert len(bank) == 4, "the two unknown people were merged"
    assert bank.provenance["checkpoint"] == manifest["files"]["faces64.safetensors"]["sha256"]
    assert bank.provenance["images_of_unknown_people"] == 2
    assert bank.attributes.sum(1).max() == 1, "somebody is both Female and Male"


def test_a_failure_leaves_the_old_files(
    tool: ModuleType, arguments: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool.main()
    folder = tmp_path / "pretrained"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("half way")

    monkeypatch.setattr(tool, "encode_faces", fails)
    with pytest.raises(RuntimeError, match="half way"):
        tool.main()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
