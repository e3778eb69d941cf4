"""`ficgan bank` and `ficgan measure` around a small untrained model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from ficgan.cli.measure import measure
from ficgan.cli.train import bank
from ficgan.config import ModelConfig
from ficgan.data import open_faces
from ficgan.faces import Alignment, MediaPipeMesh
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN, CheckpointHeader, load_checkpoint, save_checkpoint
from ficgan.models.io import encode_faces

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
    command = ["build", str(checkpoint), "--data", str(faces), "--labels", labels, "-o", str(out), "--licence", "drawn"]
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


def test_bank_in_portions_is_the_same(
    checkpoint: Path, faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = []
    for number, portion in enumerate((1024, 4)):  # six pictures: all at once, and four and two
        monkeypatch.setattr("ficgan.cli.train._AT_ONCE", portion)
        out = tmp_path / f"{number}.safetensors"
        done = CliRunner().invoke(bank, ["build", str(checkpoint), "--data", str(faces), "-o", str(out)])
        assert done.exit_code == 0, done.output
        codes.append(IdentityBank.load(out).codes.astype(np.float32))
    assert codes[0].shape == (6, 8)
    np.testing.assert_allclose(codes[1], codes[0], atol=2e-3)


def test_bank_without_identities_says_so(checkpoint: Path, faces: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.safetensors"
    done = CliRunner().invoke(bank, ["build", str(checkpoint), "--data", str(faces), "-o", str(out)])
    assert done.exit_code == 0 and "k counts pictures, not people" in done.stderr
    provenance = IdentityBank.load(out).provenance
    assert provenance["identities_known"] is False and provenance["people"] == 6
    assert provenance["data"]["licence"] == "", "the licence of other data was taken for that of these faces"


def test_bank_refuses_faces_aligned_otherwise(checkpoint: Path, faces: Path, tmp_path: Path) -> None:
    (faces / "faces.csv").write_text("file,alignment\n0.png,ffhq\n")
    command = ["build", str(checkpoint), "--data", str(faces), "-o", str(tmp_path / "b")]
    done = CliRunner().invoke(bank, command)
    assert done.exit_code == 2 and "aligned as ffhq" in done.stderr and "template(0.37,0.31)" in done.stderr
    (faces / "faces.csv").write_text('file,alignment\n0.png,"template(0.37,0.31)"\n')
    assert CliRunner().invoke(bank, command).exit_code == 0


@pytest.fixture(scope="module")
def portraits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven aligned pictures of one face, in other lights or mirrored, and one of nothing; who is who is made up."""
    from ficgan.faces import crop, get_detector

    folder = tmp_path_factory.mktemp("portraits")
    photo = np.ascontiguousarray(pytest.importorskip("skimage.data").astronaut()[:256, 80:400])
    matrix = Alignment().matrix(get_detector("auto").detect(photo)[0].landmarks, 128)
    face, rng = crop(photo, matrix, 128), np.random.default_rng(0)
    rows = ["file,person,gender,alignment"]
    for index, person in enumerate(("0", "0", "1", "1", "1", "", "", "2")):
        pixels = (face[:, ::-1] if index % 2 else face) * (0.7 + 0.06 * index)
        pixels = rng.integers(0, 256, face.shape) if person == "2" else pixels.clip(0, 255)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{index}.png")
        rows.append(f'{index}.png,{person},{"Female" if index % 3 else "Male"},"template(0.37,0.31)"')
    (folder / "faces.csv").write_text("\n".join(rows))
    return folder


def test_bank_of_an_appearance_model(portraits: Path, tmp_path: Path) -> None:
    from ficgan import pretrained
    from ficgan.files import file_digest
    from ficgan.frame.file import load_appearance
    from ficgan.frame.fit import codes_of

    model, out = pretrained.path("model"), tmp_path / "bank.safetensors"
    labels = ["--labels", str(portraits / "faces.csv")]
    done = CliRunner().invoke(bank, ["build", str(model), "--data", str(portraits), *labels, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "1 of 8 faces are not clear enough and left out" in done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert (told["people"], told["images"], told["images_of_unknown_people"]) == (4, 7, 2)
    made = IdentityBank.load(out)
    assert made.provenance["checkpoint"] == file_digest(model)
    assert made.provenance["alignment"] == {"kind": "canonical"}
    assert made.provenance["data"]["licence"] == "", "the licence of other data was taken for that of these faces"
    assert made.attributes.sum(1).max() == 1, "somebody is both Female and Male"
    appearance = load_appearance(model)[0]
    codes, rows = codes_of(appearance, open_faces([portraits], resolution=128), MediaPipeMesh(), 8.0)
    assert rows.tolist() == [0, 1, 2, 3, 4, 5, 6]
    linear = made.codes[:, : codes.shape[1]].astype(np.float32)  # the network's w follows
    np.testing.assert_allclose(linear[0], codes[:2].mean(0), atol=0.01)
    np.testing.assert_allclose(linear[3], codes[6], atol=0.01)
    again = CliRunner().invoke(bank, ["build", str(model), "--data", str(portraits), "-o", str(out)])
    assert again.exit_code == 2 and "--overwrite" in again.output


def test_bank_of_an_appearance_model_refuses_faces_aligned_otherwise(portraits: Path, tmp_path: Path) -> None:
    from ficgan import pretrained

    folder = tmp_path / "faces"
    folder.mkdir()
    (folder / "0.png").write_bytes((portraits / "0.png").read_bytes())
    (folder / "faces.csv").write_text("file,alignment\n0.png,ffhq\n")
    command = ["build", str(pretrained.path("model")), "--data", str(folder), "-o", str(tmp_path / "b")]
    done = CliRunner().invoke(bank, command)
    assert done.exit_code == 2 and "aligned as ffhq" in done.stderr and "template(0.37,0.31)" in done.stderr


@pytest.mark.slow
def test_measure_of_the_embedded_model(portraits: Path) -> None:
    """Faces that `ficgan align` made, and says so, are what it needs."""
    done = CliRunner().invoke(measure, ["--aligned", str(portraits), "--layer", "0", "--k", "500", "--limit", "3"])
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    rows = {row["row"]: row["value"] for row in report["lines"]}
    assert rows["rec-cosine"] > rows["id-cosine"] and rows["detected"] == 1 and rows["rec-mse"] < 0.05


@pytest.mark.parametrize("options", ["--diversity much", "--diversity 2", "--k 1", "--layer -1", "--layer 9"])
def test_measure_refuses_what_cannot_be(checkpoint: Path, faces: Path, tmp_path: Path, options: str) -> None:
    IdentityBank.from_codes(np.eye(12, 8), np.arange(12)).save(tmp_path / "bank.safetensors")
    files = ["--checkpoint", str(checkpoint), "--bank", str(tmp_path / "bank.safetensors"), "--aligned", str(faces)]
    k = [] if "--k" in options else ["--k", "5"]
    done = CliRunner().invoke(measure, [*files, *k, *options.split()])
    assert done.exit_code == 2 and "Error: " in done.stderr and "Traceback" not in done.output
