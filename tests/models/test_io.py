"""Checkpoints: what goes in comes out; everything else is one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from ficgan.config import ModelConfig
from ficgan.errors import FicganError
from ficgan.models import FICGAN, CheckpointHeader, load_checkpoint, load_tensors, save_checkpoint, save_tensors

CONFIG = ModelConfig(
    resolution=8, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
)


def make(path: Path) -> FICGAN:
    torch.manual_seed(0)
    model = FICGAN(CONFIG).eval()
    save_checkpoint(
        path, model, CheckpointHeader(model=CONFIG, alignment={"kind": "template"}, data={"licence": "CC0"})
    )
    return model


def test_round_trip(tmp_path: Path) -> None:
    model = make(tmp_path / "m.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]
    loaded, header = load_checkpoint(tmp_path / "m.safetensors")
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(loaded(x), model(x), rtol=2e-2, atol=2e-2)
    assert header.data == {"licence": "CC0"} and header.model == CONFIG
    assert not loaded.training and not any(p.requires_grad for p in loaded.parameters())
    with pytest.raises(FicganError, match="cannot be written"):
        make(tmp_path / "missing" / "m.safetensors")


@given(cut=st.integers(0, 4000))
def test_truncated(tmp_path_factory: pytest.TempPathFactory, cut: int) -> None:
    path = tmp_path_factory.mktemp("cut") / "m.safetensors"
    make(path)
    path.write_bytes(path.read_bytes()[: -1 - cut])
    with pytest.raises(FicganError, match=r"damaged|schema"):
        load_checkpoint(path)


def test_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / "f.safetensors"
    writers = [
        lambda: None,
        lambda: path.write_bytes(b"\x80\x04 a pickle is never opened"),
        lambda: save_file({"a": torch.zeros(1)}, str(path)),
        lambda: save_tensors(path, {"a": torch.zeros(1)}, {}, kind="identity bank"),
    ]
    for write, message in zip(writers, ("cannot be read", "damaged", "not written", "identity bank"), strict=True):
        write()
        with pytest.raises(FicganError, match=message):
            load_checkpoint(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema_version": 99}, "upgrade ficgan"),
        ({"schema_version": None}, "schema None"),
        ({"surprise": 1}, "surprise"),
        ({"model": {"resolution": 7}}, "resolution"),
        ({"model": {"resolution": 16}}, "do not fit"),
    ],
)
def test_header_that_does_not_fit(tmp_path: Path, change: dict, message: str) -> None:
    path = tmp_path / "m.safetensors"
    make(path)
    tensors, header = load_tensors(path, kind="model")
    if "model" in change:
        change = {"model": {**header["model"], **change["model"]}}
    save_tensors(path, tensors, {**header, **change}, kind="model")
    with pytest.raises(FicganError, match=message):
        load_checkpoint(path)
