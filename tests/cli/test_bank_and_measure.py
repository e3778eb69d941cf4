"""`ficgan bank` and `ficgan measure` around a small untrained model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from ficgan.cli.bank import bank
from ficgan.cli.measure import measure
from ficgan.config import ModelConfig
from ficgan.evaluation.basics import fidelity
from ficgan.faces import Alignment
from ficgan.identity import IdentityBank, encode_faces
from ficgan.models import FICGAN, CheckpointHeader, load_checkpoint, save_checkpoint

CONFIG = ModelConfig(
    resolution=16, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    header = CheckpointHeader(model=CONFIG, alignment=Alignment().to_dict(), data={"licence": "drawn"})
    save_checkpoint(path, FICGAN(CONFIG), header)
    return path


@pytest.fixture
def faces(tmp_path: Path) -> Path:
    """Six pictures of four people, two of whom appear twice."""
    folder = tmp_path / "faces"
    folder.mkdir()
    rng = np.random.default_rng(0)
    rows = ["file,person,gender"]
    for index, person in enumerate([0, 0, 1, 2, 3, 3]):
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(folder / f"{index}.png")
        rows.append(f"{index}.png,{person},{'Female' if person < 2 else 'Male'}")
    (tmp_path / "labels.csv").write_text("\n".join(rows))
    return folder


def test_bank_counts_people_not_pictures(checkpoint: Path, faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "bank.safetensors"
    labels = str(tmp_path / "labels.csv")
    command = ["build", str(checkpoint), "--data", str(faces), "--labels", labels, "-o", str(out)]
    done = CliRunner().invoke(bank, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["people"] == 4
    made = IdentityBank.load(out)
    assert len(made) == 4 and made.counts["Female"] == 2
    model, _ = load_checkpoint(checkpoint)
    pictures = [Image.open(faces / f"{i}.png").resize((16, 16), Image.Resampling.LANCZOS) for i in (0, 1)]
    images = torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures]).permute(0, 3, 1, 2)
    mean = encode_faces(model, images).mean(0)
    np.testing.assert_allclose(made.codes[0].astype(np.float32), mean, atol=0.05)
    assert made.provenance["data"]["licence"] == "drawn"
    shown = json.loads(CliRunner().invoke(bank, ["show", str(out)]).stdout)
    assert shown["people"] == 4 and shown["attributes"]["Male"] == 2

    again = CliRunner().invoke(bank, command)
    assert again.exit_code == 2 and "--overwrite" in again.output


def test_bank_of_a_missing_checkpoint(faces: Path, tmp_path: Path) -> None:
    command = ["build", str(tmp_path / "no.safetensors"), "--data", str(faces), "-o", str(tmp_path / "b")]
    done = CliRunner().invoke(bank, command)
    assert done.exit_code == 1 and "does not exist" in done.output and not (tmp_path / "b").exists()


def test_measure_needs_something_to_measure_on() -> None:
    done = CliRunner().invoke(measure, [])
    assert done.exit_code == 2 and "--aligned or --photos" in done.output


def test_measure_reports_every_setting(checkpoint: Path, faces: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    made = IdentityBank.from_codes(rng.normal(size=(12, 8)), np.arange(12))
    made.save(tmp_path / "bank.safetensors")
    done = CliRunner().invoke(
        measure,
        [
            "--checkpoint",
            str(checkpoint),
            "--bank",
            str(tmp_path / "bank.safetensors"),
            "--aligned",
            str(faces),
            "--k",
            "5",
        ],
    )
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout.splitlines()[-1])["aligned"]
    assert [row["setting"] for row in rows] == ["clear", "reconstruction", "i = 0", "i = 3"]
    assert all(-1 <= row["similarity"]["dlib"] <= 1 for row in rows)
    assert rows[1]["mse"] > 0 and -1 <= rows[1]["ssim"] <= 1


def test_fidelity_of_known_pairs() -> None:
    a = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    assert fidelity(a, a) == (0.0, 1.0)
    mse, ssim = fidelity(np.full_like(a, 0), np.full_like(a, 255))
    assert mse == pytest.approx(4.0) and ssim < 0.01
