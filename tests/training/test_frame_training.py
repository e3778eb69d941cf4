"""Training in the canonical frame: it starts at the linear model, sees what is published, and its file is used."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from small import astronauts

from ficgan import frame_model
from ficgan.config import Config, load_config
from ficgan.data import open_faces
from ficgan.deidentify import Deidentifier
from ficgan.faces import Alignment, Face, MediaPipeMesh
from ficgan.frame.compose import paste_texture
from ficgan.frame.file import FrameNetwork, load_appearance
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.models import FrameFICGAN
from ficgan.models.onnx import frame_to_onnx
from ficgan.policy import Attempt
from ficgan.training import train
from ficgan.training.frame import FrameLosses, FrameTask
from ficgan.training.frame_faces import CodeMemory, build_bank

pytestmark = pytest.mark.filterwarnings("ignore:verifier.spec=untrained")
SMALL = [
    "model.channel_base=1024",
    "model.channel_max=16",
    "model.id_dim=8",
    "model.w_dim=16",
    "discriminator.taps=[32,64]",
    "verifier.spec=untrained",
    "loss.r1_interval=2",
    "optimizer.batch=4",
    "optimizer.warmup_steps=0",
    "loss.verification_ramp_kimg=[0,0]",
    "loss.adversarial_ramp_kimg=0",
    "precision=fp32",
    "schedule.total_kimg=0.016",
    "schedule.tick_kimg=0.008",
    "schedule.snapshot_kimg=0.016",
]


def small(*overrides: str) -> Config:
    return load_config("faces128", [*SMALL, *overrides])


@pytest.fixture(scope="module")
def faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return astronauts(tmp_path_factory.mktemp("faces"), 40, 128)


@pytest.fixture(scope="module")
def task(faces: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[FrameTask, FrameFICGAN]:
    """A prepared task, and a network whose outputs are still zero."""
    config = small()
    torch.manual_seed(0)
    model = FrameFICGAN(config.model).eval()
    made = FrameTask(config, [faces], None, None, torch.device("cpu"))
    made.prepare(tmp_path_factory.mktemp("run"), [model])
    return made, model


class Certain:
    """Stands for a generator whose every draw is its mean or its top."""

    @staticmethod
    def random(size: Any) -> NDArray[np.float64]:
        return np.ones(size)

    @staticmethod
    def standard_normal(size: Any) -> NDArray[np.float64]:
        return np.zeros(size)


@pytest.mark.slow
def test_a_new_network_is_the_linear_model(task: tuple[FrameTask, FrameFICGAN]) -> None:
    made, model = task
    rows = made.rows[:3]
    batch = made.mixes.batch(rows, *new_of(made, rows[::-1]), np.array([1, 4, 10]), np.random.default_rng(0))
    w = model.mapping(model.encode(batch.texture, batch.code))
    pictures, textures, shape, _ = made._published(model, batch, w.repeat(2, 1))
    assert torch.equal(textures, batch.linear) and not shape.any()
    changed = (pictures - torch.cat([batch.source] * 2)).abs().amax((1, 2, 3))
    assert (changed > 0.05).all()


@pytest.mark.slow
def test_the_composite_is_what_is_pasted(task: tuple[FrameTask, FrameFICGAN]) -> None:
    made, _ = task
    rows, model = made.rows[:2], made.model
    batch = made.mixes.batch(rows, *new_of(made, rows[::-1]), np.array([1, 1]), np.random.default_rng(1))
    source, mix = batch.source, batch.linear[2:]
    seen = made.composite(source, mix, batch.points[2:], batch.upright)
    for row, one in enumerate(rows):
        read = made.set.read.take([one])
        points = np.concatenate([batch.points[2 + row].numpy(), read.points[0][:, 2:]], 1)
        texture = np.ascontiguousarray(mix[row].permute(1, 2, 0).numpy() / 2 + 0.5)
        paste = paste_texture(np.array(made.set.images[one]), read.upright[0], points, texture, model.mask, model.warp)
        apart = np.abs((seen[row].permute(1, 2, 0).numpy() + 1) * 127.5 - paste.image)
        assert apart.mean() < 0.8 and np.quantile(apart, 0.999) < 20  # bilinear there, bicubic here


@pytest.mark.slow
def test_batches_show_what_the_product_publishes(
    task: tuple[FrameTask, FrameFICGAN], faces: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_model, "_SOME_HAIR", 2.0)  # training takes a fringe for light
    made, _ = task
    given: dict[str, NDArray[Any]] = {}

    class Told(FrameNetwork):
        """Adds nothing, and keeps what it was given."""

        def read(self, textures: Any, codes: Any) -> Any:
            return np.zeros((len(codes), 16), np.float32)

        def write(self, w: Any, moment: Any, linear: Any) -> Any:
            given.update(moment=moment, linear=linear)
            return np.zeros_like(linear), np.zeros((len(w), 20), np.float32)

    one, other = made.rows[:2]
    codes = np.concatenate([made.set.codes, made.set.moment.kept, np.zeros((len(made.set), 16))], 1)
    bank = IdentityBank.from_codes(codes.astype(np.float16), None)
    config = replace(made.frame, jitter=(0.0,) * 6)
    mesh, spoken = MediaPipeMesh(), Told(b"", b"", 16, made.model.num_layers)
    engine = FrameModel(made.model, config, bank, k=2, seed=1, network=spoken, mesh=mesh)
    image = np.array(made.set.images[one])
    points = Alignment().points(128).astype(np.float32)
    sight = engine.see([(image, Face(np.float32([0, 0, 128, 128]), points, 1.0))])[0]
    styles = engine.mixed(sight.z_id[None], codes[other][None].astype(np.float32), Attempt(layer=3))
    published = engine.render(styles, [sight])[0]
    batch = made.mixes.batch(  # type: ignore[call-overload]
        np.array([one]), made.set.codes[[other]], made.set.moment.kept[[other]], np.array([4]), Certain()
    )
    np.testing.assert_allclose(published.points[:, :2], batch.points[1].numpy(), atol=2e-3)
    np.testing.assert_allclose(given["moment"], batch.moment[1:].numpy(), atol=2e-3)
    linear = batch.linear[1].permute(1, 2, 0).numpy() / 2 + 0.5
    np.testing.assert_allclose(given["linear"][0], linear, atol=4.5e-3)  # textures are of 8 bits


def new_of(task: FrameTask, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return task.set.codes[rows], task.set.moment.kept[rows]


def test_means_are_drawn_with_the_spread_of_a_bank() -> None:
    rng = np.random.default_rng(3)
    memory = CodeMemory(size=4000, k=500, psi=1.0)
    for _ in range(65):  # what draws see is renewed at every 64th
        memory.add(rng.normal(2, 3, (100, 8)).astype(np.float32), np.full(100, -1))
    drawn = np.stack([memory.draw(rng) for _ in range(600)])
    np.testing.assert_allclose(drawn.mean(0), 2, atol=0.4)
    np.testing.assert_allclose(drawn.std(0), 3 * np.sqrt(7 / 12), rtol=0.2)  # mean square of psi, uniform in .5 … 1


@pytest.mark.slow
def test_a_mix_is_held_to_the_kind_that_it_shall_have(task: tuple[FrameTask, FrameFICGAN]) -> None:
    faces, rng = task[0].set, np.random.default_rng(5)
    cell = np.arange(len(faces)) % 2 * 117  # a Black girl and a White man
    identity = rng.normal(0, 0.1, (len(faces), 8)).astype(np.float32)
    identity[:, 0] += np.where(cell > 0, 1, -1)
    losses = FrameLosses(replace(faces, identity=identity, cell=cell), 4)
    of = torch.from_numpy(cell)
    mean, seen = torch.ones(len(cell), dtype=torch.bool), torch.from_numpy(identity)
    right, wrong = losses.kind(seen, seen, of, mean), losses.kind(-seen, seen, of, mean)
    assert wrong.min() > 4 * right.max()
    assert not losses.kind(-seen, seen, torch.full_like(of, -1), mean).any()  # of no known kind
    assert losses.kind(3 * seen, seen, of, ~mean).abs().max() < 1e-6  # takes that one's identity, and kind


@pytest.fixture(scope="module")
def trained(faces: Path, task: tuple[FrameTask, FrameFICGAN], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run stopped after two steps and resumed to four; it takes the faces that `task` has read."""
    folder = tmp_path_factory.mktemp("trained")
    shutil.copytree(Path(task[0].set.images.filename).parent, folder / "faces")  # type: ignore[attr-defined]
    read = (folder / "faces/identity.npy").stat().st_mtime_ns
    with warnings.catch_warnings():  # marks of tests do not reach fixtures
        warnings.simplefilter("ignore")
        first = train(small("schedule.total_kimg=0.008"), [faces], folder, device="cpu", progress="none")
        assert load_appearance(first)[2].training["network"]["images_seen"] == 8
        train(small(), [faces], folder, device="cpu", progress="none")
    assert (folder / "faces/identity.npy").stat().st_mtime_ns == read
    return folder


@pytest.mark.slow
def test_a_run_leaves_a_model_for_use(trained: Path) -> None:
    model, _, info, network = load_appearance(trained / "network.safetensors")
    assert info.training["network"]["images_seen"] == 16 and model.num_layers == 10
    assert network is not None and network.num_layers == 10
    ticks = [json.loads(line) for line in (trained / "stats.jsonl").read_text().splitlines()]
    judged = json.loads((trained / "snapshots.jsonl").read_text().splitlines()[-1])
    assert judged["kimg"] == 0.016 and judged["sharpness_linear"] > 0
    for name in ("match", "swap_match", "swap_source", "swap_match_linear"):
        assert 0 <= judged[name] <= 1
    assert {"rec", "neg", "pos", "perceptual", "keep", "structure", "adv_mix", "d", "shape"} <= set(ticks[-1])
    with Image.open(trained / "grid-000000.png") as sheet:
        assert sheet.size[1] == 7 * 128
    texture = np.random.default_rng(0).integers(0, 255, (1, 128, 128, 3), np.uint8)
    w = network.read(texture, np.zeros((1, 158), np.float32))
    linear = texture.astype(np.float32) / 255
    added, shape = network.write(w[:, None].repeat(10, 1), np.zeros((1, 18), np.float32), linear)
    assert added.shape == (1, 128, 128, 3) and shape.shape == (1, 20) and added.any() and shape.any()


@pytest.mark.slow
def test_its_file_makes_faces(faces: Path, trained: Path, tmp_path: Path) -> None:
    path, bank = trained / "network.safetensors", tmp_path / "bank.safetensors"
    build_bank(path, open_faces([faces], resolution=128), bank, licence="made")
    photo = pytest.importorskip("skimage.data").astronaut()
    deid = Deidentifier.from_pretrained(path, bank, k=5, layer=0, seed=1, verify=False)
    assert isinstance(deid.model, FrameModel) and deid.model.network is not None
    assert deid.model.code_size == 180 + 2 + 16 and deid.model.num_layers == 10
    result = deid(photo)
    assert [one.action for one in result.faces] == ["generated"]
    again = Deidentifier.from_pretrained(path, bank, k=5, layer=0, seed=1, verify=False)(photo)
    np.testing.assert_array_equal(result.image, again.image)


@pytest.mark.parametrize("change", [pytest.param("modulation=adain", marks=pytest.mark.slow), "modulation=demodulate"])
def test_the_parts_for_use_are_the_network(change: str) -> None:
    torch.manual_seed(1)
    config = small(f"model.{change}").model
    model = FrameFICGAN(config).eval()
    encoder, generator = model.encoder, model.generator
    for layer in (*generator.to_rgb, generator.shape_head, encoder.identity_head, encoder.reader):
        torch.nn.init.normal_(layer.weight)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:  # what 8 bits can say, so that keeping it so loses nothing
                step = weight.abs().flatten(1).amax(1).clamp_min(1e-8).reshape(-1, *[1] * (weight.ndim - 1)) / 127
                weight.copy_((weight / step).round() * step)
    texture, code, moment = torch.randn(4, 3, 128, 128).tanh(), torch.randn(4, 158), torch.randn(4, 18)
    layered = torch.randn(4, 10, config.w_dim)
    with torch.no_grad():
        w, out = model.mapping(model.encode(texture, code)), model.generator(layered, moment, texture)
    read = {"texture": texture.numpy(), "code": code.numpy()}
    write = {"w": layered, "moment": moment, "linear": texture}
    given = (read, {name: value.numpy() for name, value in write.items()})
    found = []
    for part, one, names in zip(frame_to_onnx(model), given, (["w"], ["texture", "shape"]), strict=True):
        session = onnxruntime.InferenceSession(part.SerializeToString(), providers=["CPUExecutionProvider"])
        found += session.run(names, one)
    for mine, theirs in zip(found, (w, *out), strict=True):
        # Some constants are kept in 8 bits.
        np.testing.assert_allclose(mine, theirs.numpy(), atol=4e-3 * float(theirs.abs().max()))
