"""`ficgan bank` and `ficgan measure` around a small untrained model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image
from texture_world import Textures

from ficgan.cli.evaluate import measure
from ficgan.cli.train import bank
from ficgan.config import ModelConfig
from ficgan.data import open_faces
from ficgan.faces import Alignment, MediaPipeMesh
from ficgan.identity import IdentityBank
from ficgan.lab import bars
from ficgan.lab.metrics import utility
from ficgan.lab.readers import Reader
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
    command = ["build", str(checkpoint), "--data", str(faces), "--labels", labels, "-o", str(out), "--licence", "drawn"]
    done = CliRunner().invoke(bank, command)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout.splitlines()[-1])["people"] == 4
    made = IdentityBank.load(out)
    assert len(made) == 4 and made.counts["Female"] == 2
    model, _ = load_checkpoint(checkpoint)
    pictures = [Image.open(faces / f"{i}.png").resize((16, 16), Image.Resampling.LANCZOS) for i in (0, 1)]
    images = torch.stack([torch.from_numpy(np.array(picture)) for picture in pictures]).permute(0, 3, 1, 2)
    mean = model.mapping(model.encoder(images / 127.5 - 1).z_id).mean(0).numpy()
    np.testing.assert_allclose(made.codes[0].astype(np.float32), mean, atol=0.05)
    assert made.provenance["data"]["licence"] == "drawn"
    shown = json.loads(CliRunner().invoke(bank, ["show", str(out)]).stdout)
    assert shown["people"] == 4 and shown["attributes"]["Male"] == 2

    again = CliRunner().invoke(bank, command)
    assert again.exit_code == 2 and "--overwrite" in again.output


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


@pytest.mark.slow
def test_bank_of_an_appearance_model(portraits: Path, tmp_path: Path) -> None:
    from ficgan import pretrained
    from ficgan.files import file_digest
    from ficgan.frame.file import load_appearance
    from ficgan.frame.learn import codes_of

    model, out = pretrained.path("model"), tmp_path / "bank.safetensors"
    labels = ["--labels", str(portraits / "faces.csv")]
    done = CliRunner().invoke(bank, ["build", str(model), "--data", str(portraits), *labels, "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert "1 of 8 faces are not clear enough and left out" in done.stderr
    record = json.loads(done.stdout.splitlines()[-1])
    assert (record["people"], record["images"], record["images_of_unknown_people"]) == (4, 7, 2)
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


@pytest.fixture
def files(checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a small model, its bank and eight faces."""
    monkeypatch.delenv("FICGAN_MODELS", raising=False)
    for room in ("deidentify", "faces"):
        monkeypatch.setattr(f"ficgan.{room}.get_recognizer", lambda name, **_: Textures(2))
    judge = Reader(Textures(2), "textures", "textures-2")  # type: ignore[arg-type]
    monkeypatch.setattr(bars, "get_readers", lambda names, device="cpu": [judge])
    monkeypatch.setattr(utility, "detector_missing", lambda name: f"{name} is not here")
    rng = np.random.default_rng(0)
    IdentityBank.from_codes(rng.normal(size=(12, 8)), np.arange(12)).save(tmp_path / "b.safetensors")
    faces = tmp_path / "people"
    for person in range(8):
        (faces / f"p{person}").mkdir(parents=True)
        Image.fromarray(rng.integers(0, 256, (20, 20, 3), dtype=np.uint8)).save(faces / f"p{person}" / "0.png")
    return f"--checkpoint {checkpoint} --bank {tmp_path / 'b.safetensors'} --aligned {faces} --k 5".split()


def test_without_the_table_the_first_rows_are_a_line_of_json(files: list[str]) -> None:
    done = CliRunner().invoke(measure, [*files, "--layer", "0", "--layer", "2", "--quiet"])
    assert done.exit_code == 0, done.output
    lines = json.loads(done.stdout)["lines"]
    values = {(line["row"], line["setting"]): line["value"] for line in lines}
    assert {"rec-mse", "rec-cosine", "id-cosine", "match", "detected"} <= {row for row, _ in values}
    assert {setting for _, setting in values} == {"reconstruction", "i = 0", "i = 2"}
    assert values["rec-mse", "reconstruction"] > 0 and -1 <= values["id-cosine", "i = 0"] <= 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--attributes", "x"], "-o"),
        (["--diversity", "2"], "--diversity"),
        (["--k", "1"], "--k"),
        (["-o", "out", "--layer", "9"], "9"),
        (["-o", "out", "--k", "99"], "99"),
        (["-o", "out", "--limit", "1"], "--limit"),
    ],
)
def test_wrong_options_are_one_sentence(
    files: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(measure, [*files, *options])
    assert not Path("out").exists()
    assert done.exit_code == 2 and said in done.stderr and "Traceback" not in done.output and done.stdout == ""
