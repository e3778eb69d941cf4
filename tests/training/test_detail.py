"""The network that adds detail: what it may change, its form for use, a run, and the product that uses its file."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from small import astronauts

from ficgan import pretrained
from ficgan.arrays import luminance
from ficgan.config import Config, load_config
from ficgan.data import open_faces
from ficgan.deidentify import Deidentifier
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, MediaPipeMesh, find_meshes
from ficgan.files import file_digest
from ficgan.frame.appearance import MIDDLE_UNIT
from ficgan.frame.compose import read_texture
from ficgan.frame.file import DetailWriter, detail_conditions, load_appearance
from ficgan.frame.learn import as_old_as_they_look, lend
from ficgan.frame.lent import relief_of
from ficgan.identity import IdentityBank
from ficgan.models import DetailNetwork
from ficgan.models.frame import local_mean
from ficgan.models.onnx import detail_to_onnx
from ficgan.training import train
from ficgan.training.detail import DetailTask

DEVICE = torch.device("cpu")
CONFIG = Path(__file__).resolve().parents[2] / "configs/detail.yaml"
SMALL = [
    "model.detail.channels=8",
    "model.detail.fine_channels=8",
    "model.detail.blocks=1",
    "model.detail.draws=2",
    "model.detail.finest=1",
    "discriminator.channel_base=1024",
    "discriminator.channel_max=8",
    "optimizer.batch=4",
    "optimizer.warmup_steps=0",
    "loss.adversarial_start_kimg=0",
    "loss.adversarial_ramp_kimg=0",
    "loss.r1_interval=2",
    "precision=fp32",
    "schedule.total_kimg=0.016",
    "schedule.tick_kimg=0.008",
    "schedule.snapshot_kimg=0.016",
]


def small(*overrides: str) -> Config:
    return load_config(CONFIG, [*SMALL, *overrides])


def network(seed: int = 0) -> DetailNetwork:
    torch.manual_seed(seed)
    model = DetailNetwork(small().model).eval().requires_grad_(False)
    for weight in (model.end.weight, model.styles.weight, model.places):
        torch.nn.init.normal_(weight)
    return model


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return astronauts(tmp_path_factory.mktemp("faces"), 12, 256)


@pytest.fixture(scope="module")
def trained(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after two steps and resumed to four."""
    folder = tmp_path_factory.mktemp("trained")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(small("schedule.total_kimg=0.008"), [faces], folder, device="cpu", progress="none")
        train(small(), [faces], folder, device="cpu", progress="none")
    return folder


def test_running_sums_are_the_mean_of_the_pixels_there_are(side: int = 5) -> None:
    x = torch.rand(2, 3, 20, 31)
    wanted = F.avg_pool2d(x, side, 1, side // 2, count_include_pad=False)
    torch.testing.assert_close(local_mean(x, side), wanted, atol=2e-6, rtol=0)


def test_it_leaves_the_tone_as_it_is_and_repeats_no_pattern() -> None:
    model = network()
    given = torch.rand(2, 3, 128, 128) * 2 - 1, torch.rand(2, 10), 0.02 * torch.randn(2, 1, 256, 256)
    detail = model(*given)
    assert detail.shape == (2, 1, 256, 256)
    assert F.avg_pool2d(detail, 36).abs().max() < 0.1 * detail.std()
    for number in (0, 7, 8, 9):  # ethnicity, gender, age, sharpness
        other = given[1].clone()
        other[:, number] += 0.5
        assert (model(given[0], other, given[2]) - detail).abs().mean() > 0.01 * detail.std()
    torch.nn.init.zeros_(model.places)
    flat = model(torch.zeros(1, 3, 128, 128), torch.zeros(1, 10), torch.zeros(1, 1, 256, 256))
    assert flat[..., 40:-40, 40:-40].abs().max() < 1e-4 * detail.std()
    torch.nn.init.zeros_(model.end.weight)
    assert not model(*given).any()


def test_its_form_for_use_is_the_network() -> None:
    model, rng = network(), np.random.default_rng(0)
    for weight in model.parameters():
        if weight.ndim > 1:  # what 8 bits can say, so that keeping it so loses nothing
            step = weight.abs().flatten(1).amax(1).clamp_min(1e-8).reshape(-1, *[1] * (weight.ndim - 1)) / 127
            weight.copy_((weight / step).round() * step)
    writer, texture = DetailWriter(detail_to_onnx(model).SerializeToString()), rng.random((128, 128, 3), np.float32)
    kind = rng.random(9, np.float32)
    lent = 0.02 * rng.standard_normal((256, 256), np.float32)
    condition = detail_conditions(kind[None], np.array([0.02]))
    given = 2 * texture.transpose(2, 0, 1)[None] - 1, condition, lent[None, None]
    wanted = model(*map(torch.from_numpy, given))[0, 0].numpy()
    made, again = (writer.write(texture, lent, kind, 0.02) for _ in range(2))
    np.testing.assert_allclose(made, wanted, atol=4e-3 * np.abs(wanted).max())  # the map is kept in 16 bits
    np.testing.assert_array_equal(made, again)
    assert made.shape == (256, 256) and (made != writer.write(texture, -lent, kind, 0.02)).any()


@pytest.mark.slow
def test_a_resumed_run_is_the_run_itself(trained: Path, faces: Path, tmp_path: Path) -> None:
    shutil.copytree(trained / "faces", tmp_path / "faces")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(small(), [faces], tmp_path, device="cpu", progress="none")
    one, other = (load_appearance(run / "network.safetensors")[0].detail_network for run in (trained, tmp_path))
    np.testing.assert_array_equal(one, other)
    read = [(run / "faces/faces.json").stat().st_mtime for run in (trained, tmp_path)]
    assert read[0] == read[1]  # what an earlier run has read is not read again


@pytest.mark.slow
def test_a_run_leaves_a_model_with_the_network(trained: Path, faces: Path) -> None:
    model, _, info, _ = load_appearance(trained / "network.safetensors")
    before = load_appearance(pretrained.path("model"))[0]
    np.testing.assert_array_equal(model.components, before.components)
    assert 0 < model.detail_network.size < 2**20 and info.training["detail"]["images_seen"] == 16
    judged = json.loads((trained / "snapshots.jsonl").read_text().splitlines()[-1])
    assert judged["kimg"] == 0.016 and judged["l1"] > 0 and judged["energy"] > 0
    assert judged["sharpness"] != judged["sharpness_lent"] > 0 and judged["sharpness_drawn"] > 0
    ticks = [json.loads(line) for line in (trained / "stats.jsonl").read_text().splitlines()]
    assert {"rec", "detail", "structure", "adv", "d", "d_right", "r1"} <= set(ticks[-1])
    with Image.open(trained / "grid-000000.png") as sheet:
        assert sheet.size == (5 * 256, 256)  # one of twelve is held out
    with pytest.raises(UsageError, match=r"model\.resolution is 128"):
        DetailTask(small("model.resolution=128"), [faces], None, None, DEVICE)


def test_typical_faces_lend_their_detail(faces: Path, tmp_path: Path) -> None:
    """A painted face lends none, a blurred one is not typical; what is stored is the relief of the faces named."""
    given = shutil.copytree(faces, tmp_path / "given")
    pixels = np.array(Image.open(given / "00.png"))
    Image.fromarray(pixels).resize((40, 40)).resize((256, 256)).save(given / "blurred.png")
    pixels[60:190, 70:190] = (0, 90, 200)
    Image.fromarray(pixels).save(given / "painted.png")
    model, mesh = load_appearance(pretrained.path("model"))[0], MediaPipeMesh()
    lent, names = lend(model, open_faces([given], resolution=256), mesh, 4)
    assert len(names) == 4 and names == sorted(names) and not {"painted.png", "blurred.png"} & set(names)
    assert lent.details.shape == (4, len(model.fine_pixels)) and lent.lenders.shape == (4, 9)
    assert lent.middles.shape == (4, len(model.pixels)) and lent.middles.any()
    whole = np.zeros((4, model.size, model.size))
    whole.reshape(4, -1)[:, model.pixels] = lent.middles
    assert np.abs(whole - whole[..., ::-1])[:, np.minimum(model.nose, model.nose[:, ::-1]) == 1].max() <= 2
    assert lent.middles[:, model.on_brows.ravel()[model.pixels] == 1].max() <= 0.4 * MIDDLE_UNIT
    assert set(names) < set(lend(model, open_faces([given], resolution=256), mesh, None)[1])
    kinds, rough = np.full((3, 9), 35, np.float32), 0.6745 * 0.028 * np.array([[0.5], [1], [2]]) * np.ones(9)
    np.testing.assert_allclose(as_old_as_they_look(kinds, rough)[:, -1], (35, 35, 41), atol=1e-3)
    for number, name in enumerate(names):
        image = np.asarray(Image.open(given / name))
        read = model.shape.read(find_meshes(mesh, image, Alignment().points(256)[None])[0].points[None])
        texture = read_texture(image, read.upright[0], read.points[0], model.warp, finer=2)
        wanted = relief_of(luminance(texture) / 255).ravel()[model.fine_pixels]
        apart = np.abs(lent.lent(number).relief.ravel()[model.fine_pixels] - wanted)
        assert np.median(apart) <= lent.detail_scale and np.quantile(apart, 0.99) <= lent.detail_scale


def test_faces_without_detail_are_refused(faces: Path, tmp_path: Path) -> None:
    Image.open(faces / "03.png").resize((255, 255)).save(tmp_path / "few.png")
    with pytest.raises(InputError, match=r"few\.png has 255×255 pixels; give faces of at least 256×256"):
        DetailTask(small(), [faces, tmp_path], None, None, DEVICE)


@pytest.mark.slow
def test_large_faces_get_its_detail_and_small_ones_do_not(trained: Path, tmp_path: Path) -> None:
    photo = pytest.importorskip("skimage.data").astronaut()
    path, bank = trained / "network.safetensors", tmp_path / "bank.safetensors"
    people = IdentityBank.load(pretrained.path("bank"))  # codes do not depend on detail
    replace(people, provenance={**people.provenance, "checkpoint": file_digest(path)}).save(bank)
    pairs = [(pretrained.path("model"), pretrained.path("bank")), (path, bank)]
    large = np.asarray(Image.fromarray(photo).resize((1024, 1024), Image.Resampling.LANCZOS))
    for image, same in ((np.asarray(Image.fromarray(photo[:256, 100:356]).resize((84, 84))), True), (large, False)):
        made = [Deidentifier.from_pretrained(*pair, k=5, layer=0, seed=1, verify=False)(image) for pair in pairs]
        assert [one.action for one in made[1].faces] == ["generated"]
        assert np.array_equal(made[0].image, made[1].image) == same
