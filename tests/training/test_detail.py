"""The network that adds detail: what it may change, its form for use, a run, and the product that uses its file."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from judge_detail import judge
from PIL import Image

from ficgan import pretrained
from ficgan.config import Config, load_config
from ficgan.deidentify import Deidentifier
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, crop, get_detector
from ficgan.files import file_digest
from ficgan.frame.file import DetailWriter, load_appearance, sharpness
from ficgan.identity import IdentityBank
from ficgan.models import DetailNetwork
from ficgan.models.frame import local_mean
from ficgan.models.onnx import detail_to_onnx
from ficgan.training import train
from ficgan.training.detail import DetailTask
from ficgan.training.stats import reading_lines

CONFIG = Path(__file__).resolve().parents[2] / "configs/detail.yaml"
SMALL = [
    "model.detail.channels=8", "model.detail.blocks=1", "discriminator.channel_base=1024",
    "discriminator.channel_max=8", "optimizer.batch=4", "optimizer.warmup_steps=0", "loss.adversarial_start_kimg=0",
    "loss.adversarial_ramp_kimg=0", "loss.r1_interval=2", "precision=fp32", "schedule.total_kimg=0.016",
    "schedule.tick_kimg=0.008", "schedule.snapshot_kimg=0.016",
]  # fmt: skip


def small(*overrides: str) -> Config:
    return load_config(CONFIG, [*SMALL, *overrides])


def network(seed: int = 0) -> DetailNetwork:
    torch.manual_seed(seed)
    model = DetailNetwork(small().model).eval().requires_grad_(False)
    torch.nn.init.normal_(model.end.weight)
    return model


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve pictures of the astronaut's face at 256², each lit and turned a little otherwise."""
    photo = pytest.importorskip("skimage.data").astronaut()
    face = get_detector("auto").detect(photo)[0]
    folder, rng = tmp_path_factory.mktemp("faces"), np.random.default_rng(0)
    for number in range(12):
        moved = face.landmarks + rng.normal(0, 1.5, (5, 2)).astype(np.float32)
        one = crop(photo, Alignment().matrix(moved, 256), 256).astype(float) * rng.uniform(0.6, 1.1)
        Image.fromarray(np.clip(one, 0, 255).astype(np.uint8)).save(folder / f"{number:02d}.png")
    return folder


@pytest.fixture(scope="module")
def trained(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after two steps and resumed to four."""
    folder = tmp_path_factory.mktemp("trained")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        train(small("schedule.total_kimg=0.008"), [faces], folder, device="cpu", progress="none")
        train(small(), [faces], folder, device="cpu", progress="none")
    return folder


@pytest.mark.parametrize("side", [3, 5, 17])
def test_running_sums_are_the_mean_of_the_pixels_there_are(side: int) -> None:
    x = torch.rand(2, 3, 20, 31)
    wanted = F.avg_pool2d(x, side, 1, side // 2, count_include_pad=False)
    torch.testing.assert_close(local_mean(x, side), wanted, atol=2e-6, rtol=0)


def test_it_leaves_the_tone_as_it_is_and_repeats_no_pattern() -> None:
    model = network()
    detail = model(torch.rand(2, 3, 128, 128) * 2 - 1, torch.zeros(2, 1), torch.randn(2, 16, 64, 64))
    assert detail.shape == (2, 1, 256, 256)
    coarse = F.avg_pool2d(detail, 64).abs().max()
    assert coarse < 0.02 * detail.std()
    flat = model(torch.zeros(1, 3, 128, 128), torch.zeros(1, 1), torch.zeros(1, 16, 64, 64))
    blocks = F.pixel_unshuffle(flat, 4)[:, :, 8:-8, 8:-8]  # where nothing but the place varies, and slowly
    assert blocks.std() < 0.02 * detail.std()
    torch.nn.init.zeros_(model.end.weight)
    assert not model(torch.rand(1, 3, 128, 128), torch.zeros(1, 1), torch.randn(1, 16, 64, 64)).any()


def test_its_form_for_use_is_the_network() -> None:
    model, rng = network(), np.random.default_rng(0)
    for weight in model.parameters():
        if weight.ndim > 1:  # what 8 bits can say, so that keeping it so loses nothing
            step = weight.abs().flatten(1).amax(1).clamp_min(1e-8).reshape(-1, 1, 1, 1) / 127
            weight.copy_((weight / step).round() * step)
    file = detail_to_onnx(model).SerializeToString()
    given = {
        "texture": rng.uniform(-1, 1, (2, 3, 128, 128)), "sharp": rng.normal(size=(2, 1)),
        "noise": rng.normal(size=(2, 16, 64, 64)),
    }  # fmt: skip
    given = {name: value.astype(np.float32) for name, value in given.items()}
    (made,) = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"]).run(["detail"], given)
    wanted = model(*(torch.from_numpy(value) for value in given.values())).numpy()
    np.testing.assert_allclose(made, wanted, atol=4e-3 * np.abs(wanted).max())  # biases are kept in 16 bits
    writer, texture = DetailWriter(file), rng.uniform(size=(128, 128, 3)).astype(np.float32)
    first, again, other = (writer.write(texture, 0.02, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert first.shape == (256, 256) and (first != other).any()
    assert sharpness(np.array([1e-9, 0.015, 1.0])).ravel().tolist() == [-2.5, 0.0, 2.5]


def test_a_run_leaves_a_model_with_the_network(trained: Path, faces: Path) -> None:
    model, _, info, _ = load_appearance(trained / "network.safetensors")
    before = load_appearance(pretrained.path("model"))[0]
    np.testing.assert_array_equal(model.components, before.components)
    assert 0 < model.detail_network.size < 2**20 and info.training["detail"]["images_seen"] == 16
    judged = json.loads((trained / "snapshots.jsonl").read_text().splitlines()[-1])
    assert judged["kimg"] == 0.016 and judged["l1"] > 0 and judged["sharpness"] > judged["sharpness_none"] > 0
    ticks = [json.loads(line) for line in (trained / "stats.jsonl").read_text().splitlines()]
    assert {"rec", "energy", "adv", "d", "d_right", "r1"} <= set(ticks[-1])
    with Image.open(trained / "grid-000000.png") as sheet:
        assert sheet.size == (256, 7 * 256)  # one of twelve is held out
    with pytest.raises(UsageError, match=r"model\.resolution is 128, .* set it to 256"):
        DetailTask(small("model.resolution=128"), [faces], None, None, torch.device("cpu"))


def test_a_run_is_judged_beside_lent_detail_and_none(trained: Path, faces: Path, tmp_path: Path) -> None:
    head, _, *rows = judge(trained / "network.safetensors", [faces], None, tmp_path / "sheet.png")
    assert head.split(" | ")[1] == "L1" and [row.split(" | ")[0] for row in rows] == ["| none", "| lent", "| network"]
    assert all(0 < float(row.split(" | ")[1]) < 0.5 for row in rows)
    with Image.open(tmp_path / "sheet.png") as sheet:
        assert sheet.size == (256, 7 * 256)


def test_faces_without_detail_are_refused(faces: Path, tmp_path: Path) -> None:
    with Image.open(faces / "03.png") as face:
        face.resize((255, 255)).save(tmp_path / "few.png")
    with pytest.raises(InputError, match=r"few\.png has 255×255 pixels; give faces of at least 256×256"):
        DetailTask(small(), [faces, tmp_path], None, None, torch.device("cpu"))


def test_a_long_reading_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    say = reading_lines("text", every=0.1)
    for number in (1, 2, 3):
        say("reading faces", number, 4)
    time.sleep(0.11)
    for number in (4, 5):
        say("reading faces", number, 6)
    say("reading identities", 1, 1)
    reading_lines("none")("reading faces", 1, 4)
    said = capsys.readouterr()
    assert not said.out
    assert said.err.splitlines() == ["reading faces: 1 of 4", "reading faces: 4 of 6", "reading identities: 1 of 1"]


def test_large_faces_get_its_detail_and_small_ones_do_not(trained: Path, tmp_path: Path) -> None:
    photo = pytest.importorskip("skimage.data").astronaut()
    path, bank = trained / "network.safetensors", tmp_path / "bank.safetensors"
    people = IdentityBank.load(pretrained.path("bank"))  # codes do not depend on detail
    replace(people, provenance={**people.provenance, "checkpoint": file_digest(path)}).save(bank)
    pairs = [(pretrained.path("model"), pretrained.path("bank")), (path, bank)]
    large = np.asarray(Image.fromarray(photo).resize((1024, 1024), Image.Resampling.LANCZOS))
    for image, same in ((photo[:256, 100:356], True), (large, False)):
        made = [Deidentifier.from_pretrained(*pair, k=5, layer=0, seed=1, verify=False)(image) for pair in pairs]
        assert [one.action for one in made[1].faces] == ["generated"]
        assert np.array_equal(made[0].image, made[1].image) == same
