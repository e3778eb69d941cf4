"""Whole runs: to the end, resumed bit for bit, streamed from disk, interrupted, stopped by a NaN, on two processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw
from small import SMALL, small_config

from ficgan import training
from ficgan.cli.train import train as command
from ficgan.config import AugmentConfig, SwapConfig
from ficgan.data import open_faces
from ficgan.errors import FicganError
from ficgan.models import load_checkpoint, load_tensors
from ficgan.training import Interrupted, crops, train
from ficgan.training.state import Augment
from ficgan.training.task import mixed_code, plan_swap

pytestmark = pytest.mark.filterwarnings("ignore:verifier.spec=untrained")


@pytest.fixture(scope="module")
def drawn_faces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 cartoons of different colours and places."""
    folder = tmp_path_factory.mktemp("faces")
    rng = np.random.default_rng(0)
    for index in range(24):
        image = Image.new("RGB", (32, 32), tuple(int(v) for v in rng.integers(0, 255, 3)))
        draw = ImageDraw.Draw(image)
        dx, dy = (int(v) for v in rng.integers(-3, 4, 2))
        draw.ellipse((6 + dx, 3 + dy, 26 + dx, 30 + dy), fill=tuple(int(v) for v in rng.integers(80, 255, 3)))
        for x in (11, 19):
            draw.ellipse((x + dx, 11 + dy, x + 3 + dx, 14 + dy), fill=(0, 0, 0))
        image.save(folder / f"{index:02d}.png")
    return folder


def run(faces: Path, out: Path, *overrides: str, **options: object) -> Path:
    return train(small_config(*overrides), [faces], out, device="cpu", progress="none", **options)  # type: ignore[arg-type]


def tensors(out: Path) -> dict[str, torch.Tensor]:
    return load_tensors(out / "state.safetensors", kind="training state")[0]


def records(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / "stats.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(drawn_faces: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of eight steps to its end; not to be changed."""
    folder = tmp_path_factory.mktemp("whole")
    with warnings.catch_warnings():  # marks of tests do not reach fixtures
        warnings.simplefilter("ignore")
        run(drawn_faces, folder)
    return folder


@pytest.fixture
def copied(whole: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be gone on with."""
    return Path(shutil.copytree(whole, tmp_path / "copied"))


def test_a_run_leaves_what_it_promises(whole: Path) -> None:
    model, header = load_checkpoint(whole / "network.safetensors")
    assert model.resolution == 16 and header.training["images_seen"] == 32 and header.data["images"] == 24
    assert header.alignment["kind"] == "template"
    assert str(whole.parent) not in json.dumps(header.model_dump())
    names = {p.name for p in whole.iterdir()}
    assert {"state.safetensors", "network.safetensors", "config.json", "reals.png", "tensorboard"} <= names
    assert not [name for name in names if "partial" in name or name.startswith("images-")]
    ticks = records(whole)
    assert [tick["kimg"] for tick in ticks] == [0.008, 0.016, 0.024, 0.032]
    assert {"rec", "neg", "pos", "adv_rec", "adv_mix", "d", "r1", "r_t"} <= set(ticks[-1])
    with Image.open(whole / "grid-000000.png") as grid:
        assert grid.size == (12 * 16, 7 * 16)  # L = 4: source, reconstruction, swap and i = 0, 1, 2, 3
    assert list((whole / "tensorboard").iterdir())


def test_snapshots_between_ticks_are_made_at_the_next(
    drawn_faces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crops.CropTask, "judge", lambda *_: {"seen": 1.0})
    run(drawn_faces, tmp_path, "schedule.tick_kimg=0.012", "schedule.snapshot_kimg=0.016")
    lines = (tmp_path / "snapshots.jsonl").read_text().splitlines()
    assert [json.loads(line)["kimg"] for line in lines] == [0.024, 0.032]


def test_resumed_runs_are_the_whole_run(drawn_faces: Path, whole: Path, tmp_path: Path) -> None:
    """Stopped by the clock after one step, then after four, then killed with records later than its state."""
    run(drawn_faces, tmp_path, max_seconds=0.0)
    assert records(tmp_path)[-1]["kimg"] == 0.004
    run(drawn_faces, tmp_path, "schedule.total_kimg=0.016")
    with (tmp_path / "stats.jsonl").open("a") as file:
        file.write('{"kimg": 0.024, "left": "by a killed process"}\n{"kimg": 0.0')
    run(drawn_faces, tmp_path)
    assert [record["kimg"] for record in records(tmp_path)] == [0.004, 0.008, 0.016, 0.024, 0.032]
    expected, found = tensors(whole), tensors(tmp_path)
    assert expected.keys() == found.keys()
    for name, tensor in expected.items():
        assert torch.equal(tensor, found[name]), name


@pytest.mark.slow
def test_a_streamed_set_trains_alike(
    drawn_faces: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images decoded to a file once: the same numbers, and the file is used again."""
    monkeypatch.setattr(crops, "RESIDENT", 0)
    monkeypatch.setattr(crops, "CHUNK", 7)
    run(drawn_faces, tmp_path, "schedule.total_kimg=0.016")
    (path,) = tmp_path.glob("images-*.npy")
    images = open_faces([drawn_faces], resolution=16).resident().numpy()
    np.testing.assert_array_equal(np.load(path), images)
    written = path.stat().st_mtime_ns
    run(drawn_faces, tmp_path)
    assert path.stat().st_mtime_ns == written
    expected, found = tensors(whole), tensors(tmp_path)
    assert all(torch.equal(tensor, found[name]) for name, tensor in expected.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra",
    [
        ("optimizer.accumulate=2",),
        ("augment.adaptive=true", "augment.target=-1", "augment.speed_kimg=0.1", "augment.interval=3"),
    ],
)
def test_resumed_between_ticks_is_the_whole_run(drawn_faces: Path, tmp_path: Path, extra: tuple[str, ...]) -> None:
    run(drawn_faces, tmp_path / "whole", *extra)
    run(drawn_faces, tmp_path / "parts", *extra, max_seconds=0.0)  # stops after one step, in the middle of everything
    run(drawn_faces, tmp_path / "parts", *extra)
    whole, parts = tensors(tmp_path / "whole"), tensors(tmp_path / "parts")
    assert all(torch.equal(tensor, parts[name]) for name, tensor in whole.items())
    assert records(tmp_path / "whole")[-1].get("augment_p", 1) > 0


@pytest.mark.parametrize("change", ["optimizer.batch=6", "seed=5", "optimizer.accumulate=2", "model.w_dim=8", "images"])
def test_a_run_does_not_resume_as_another(drawn_faces: Path, copied: Path, tmp_path: Path, change: str) -> None:
    faces = drawn_faces
    if change == "images":
        faces = Path(shutil.copytree(drawn_faces, tmp_path / "other"))
        (faces / "00.png").unlink()
    with pytest.raises(FicganError):
        run(faces, copied, *[change] * ("=" in change))


def test_a_model_that_could_not_be_written_is_written_by_the_next_run(drawn_faces: Path, copied: Path) -> None:
    """The disk was full when the run had its state, but not yet its models."""
    lost = copied / "network.safetensors"
    (whole, header), state = load_tensors(lost, kind="model"), (copied / "state.safetensors").read_bytes()
    lost.unlink()
    run(drawn_faces, copied)
    again, header_again = load_tensors(lost, kind="model")
    assert header_again == header and all(torch.equal(again[name], tensor) for name, tensor in whole.items())
    assert (copied / "state.safetensors").read_bytes() == state


@pytest.mark.slow
def test_ablations_leave_their_term_out(drawn_faces: Path, whole: Path, tmp_path: Path) -> None:
    ablations = {"loss.positive=0": "pos", "loss.negative=0": "neg", "loss.adversarial=0": "d", "loss.r1_gamma=0": "r1"}
    for override, absent in ablations.items():
        run(drawn_faces, tmp_path / absent, override, "schedule.total_kimg=0.008")
        assert absent in records(whole)[0] and absent not in records(tmp_path / absent)[-1]


@pytest.mark.slow
def test_optional_terms(drawn_faces: Path, tmp_path: Path) -> None:
    run(
        drawn_faces,
        tmp_path,
        "schedule.total_kimg=0.008",
        "loss.perceptual=1",
        "loss.structure=1",
        "loss.negative_form=hinge",
        "verifier.augment=true",
        "model.modulation=adain",
        "precision=bf16",
    )
    assert {"perceptual", "structure"} <= set(records(tmp_path)[-1])


def test_begin_from_a_snapshots_networks(drawn_faces: Path, whole: Path, tmp_path: Path) -> None:
    start = whole / "start.safetensors"
    assert start.stat().st_size < (whole / "state.safetensors").stat().st_size / 4
    run(drawn_faces, tmp_path, "schedule.total_kimg=0.004", "optimizer.lr=0", start=start)
    a, b = tensors(whole), tensors(tmp_path)
    for name in a:
        room, _, rest = name.partition(".")
        if room in ("model", "discriminator") and "w_mean" not in name:
            was = a[f"ema.{rest}"] if room == "model" else a[name]
            torch.testing.assert_close(b[name], was, rtol=1e-3, atol=1e-6)


def test_a_nan_stops_the_run_and_names_the_state(drawn_faces: Path, copied: Path) -> None:
    good = (copied / "state.safetensors").read_bytes()
    with pytest.raises(FicganError, match=r"not finite at step .* last good state is .*state\.safetensors"):
        run(drawn_faces, copied, "loss.reconstruction=.inf", "schedule.total_kimg=0.04")
    assert (copied / "state.safetensors").read_bytes() == good


def test_interrupt_saves(drawn_faces: Path, tmp_path: Path) -> None:
    def interrupt() -> None:
        while not (tmp_path / "reals.png").exists():
            time.sleep(0.02)
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted):
        run(drawn_faces, tmp_path, "schedule.total_kimg=1000", "schedule.tick_kimg=1000")
    assert load_tensors(tmp_path / "state.safetensors", kind="training state")[1]["counters"]["step"] > 0


@pytest.mark.parametrize(
    "overrides",
    [["optimizer.batch=32"], ["optimizer.batch=6", "optimizer.accumulate=4"], ["verifier.spec=onnx:nowhere.onnx"]],
)
def test_what_cannot_work_leaves_no_file(drawn_faces: Path, tmp_path: Path, overrides: list[str]) -> None:
    with pytest.raises(FicganError):
        run(drawn_faces, tmp_path / "out", *overrides)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_does_not_tell_where_v_lies() -> None:
    config = small_config("verifier.spec=onnx:/home/someone/v.onnx")
    assert training._without_paths(config)["verifier"]["spec"] == "onnx:v.onnx"


def test_command_line(drawn_faces: Path, tmp_path: Path) -> None:
    arguments = ["tiny", "--data", str(drawn_faces), "--out", str(tmp_path), "--device", "cpu", *SMALL]
    done = CliRunner().invoke(command, [*arguments, "schedule.total_kimg=0.004"])
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(tmp_path / "network.safetensors")
    assert "L = 4 style layers" in done.stderr and "sec/kimg" in done.stderr and "left" in done.stderr


@pytest.mark.slow
def test_two_processes_keep_the_same_weights(drawn_faces: Path, tmp_path: Path) -> None:
    """torchrun with gloo: the gradients are averaged, so the run is that of one process with the same whole batch but
    for what differs by rank (flips, plans, noise); both ranks hold the same weights at the end."""
    script = tmp_path / "ranks.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from ficgan.config import Config\n"
        "from ficgan.models import save_tensors\n"
        "from ficgan.training import Team, TrainingRun, crops\n"
        "crops.RESIDENT = 0\n"
        "config = Config.model_validate_json(sys.argv[1])\n"
        "run = TrainingRun(config, sys.argv[2:3], Path(sys.argv[3]), Team('cpu'))\n"
        "run.run(None)\n"
        "save_tensors(f'{sys.argv[3]}/rank{run.team.rank}', run.state.model.state_dict(), {}, kind='rank')\n"
        "run.team.leave()\n"
    )
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(
        [*launch, small_config().model_dump_json(), str(drawn_faces), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"},
        check=False,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    ranks = [load_tensors(tmp_path / "out" / f"rank{rank}", kind="rank")[0] for rank in (0, 1)]
    assert all(torch.equal(ranks[0][name], ranks[1][name]) for name in ranks[0])
    assert len(records(tmp_path / "out")) == 4  # written once, by the first process
    assert len(list((tmp_path / "out").glob("images-*.npy"))) == 1


@given(batch=st.integers(2, 12), seed=st.integers(0, 2**31), mean=st.floats(0, 1), crossover=st.floats(0, 1))
def test_a_plan_never_gives_a_face_its_own_identity(batch: int, seed: int, mean: float, crossover: float) -> None:
    config = SwapConfig(mean_fraction=mean, crossover=crossover)
    plan = plan_swap(batch, 8, config, torch.Generator().manual_seed(seed))
    assert (plan.target != torch.arange(batch)).all()
    assert sorted(plan.target.tolist()) == list(range(batch))
    assert not plan.members.diagonal().any()
    torch.testing.assert_close(plan.members.sum(1), torch.ones(batch))
    assert ((plan.kept >= 0) & (plan.kept < 8)).all()


@given(seed=st.integers(0, 2**31))
def test_mixed_codes_against_a_loop(seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    plan = plan_swap(5, 6, SwapConfig(mean_fraction=0.5, crossover=0.5), rng)
    w, centre = torch.randn(5, 3, generator=rng), torch.randn(3, generator=rng)
    mixed = mixed_code(w, centre, plan, 6)
    mixed = mixed if mixed.ndim == 3 else mixed[:, None].expand(-1, 6, -1)
    for b in range(5):
        if plan.to_mean[b]:
            small = sum(plan.members[b, j] * w[j] for j in range(5))
            new = centre + plan.pull[b] * (small - centre)
        else:
            new = w[plan.target[b]]
        for layer in range(6):
            expected = w[b] if layer < plan.kept[b] else new
            torch.testing.assert_close(mixed[b, layer], expected)


def test_augmentation_goes_on_when_its_interval_became_shorter():
    augment = Augment(AugmentConfig(adaptive=True, interval=2))
    augment.sign_sum, augment.sign_steps = torch.tensor(3.0), 3  # of four, in the run that is resumed
    augment.observe(torch.tensor(1.0), 8, 1.0)
    assert augment.p > 0 and augment.sign_steps == 0
