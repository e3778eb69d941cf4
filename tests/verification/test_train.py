"""SphereFace-20: its loss against NumPy, its training on made-up people, resumption, the command."""

from __future__ import annotations

import colorsys
import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageDraw

from ficgan.cli.train import train_verifier
from ficgan.data import open_faces
from ficgan.errors import FicganError, InputError
from ficgan.faces.crops import Alignment
from ficgan.verification.sphereface import (
    VerifierTrainer,
    VerifierTraining,
    angular_margin_loss,
    load_verifier,
    verification_accuracy,
)


def psi(theta: np.ndarray) -> np.ndarray:
    """ψ(θ) = (−1)^k cos(4θ) − 2k on [kπ/4, (k+1)π/4]."""
    k = np.minimum(np.floor(theta * 4 / np.pi), 3)
    return (-1.0) ** k * np.cos(4 * theta) - 2 * k


def oracle(x: np.ndarray, w: np.ndarray, y: np.ndarray, lam: float) -> float:
    losses = []
    for row, person in zip(x, y, strict=True):
        logits = []
        for j, centre in enumerate(w):
            theta = np.arccos(np.clip(row @ centre / np.linalg.norm(row) / np.linalg.norm(centre), -1, 1))
            value = np.cos(theta) if j != person else (lam * np.cos(theta) + psi(theta)) / (1 + lam)
            logits.append(np.linalg.norm(row) * value)
        losses.append(np.log(np.exp(logits).sum()) - logits[person])
    return float(np.mean(losses))


@given(
    batch=st.integers(1, 6),
    people=st.integers(1, 7),
    dimensions=st.integers(2, 9),
    lam=st.floats(0, 1500),
    seed=st.integers(0, 2**31),
)
def test_equals_the_definition(batch: int, people: int, dimensions: int, lam: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, w = rng.normal(size=(batch, dimensions)), rng.normal(size=(people, dimensions))
    y = rng.integers(0, people, batch)
    got = angular_margin_loss(*map(torch.from_numpy, (x, w, y)), weight_of_softmax=lam)
    assert got.dtype == torch.float64
    assert float(got) == pytest.approx(oracle(x, w, y, lam), rel=1e-9, abs=1e-9)


def test_gradients() -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    y = torch.tensor([0, 5, 2, 2])
    assert torch.autograd.gradcheck(lambda a, b: angular_margin_loss(a, b, y, weight_of_softmax=3.0), (x, w))


SMALL = VerifierTraining(
    steps=30, batch=8, learning_rate=0.05, base=5, least=5, held_out=0.25, channels=(4, 8, 8, 8), dimensions=16
)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen people of six photos: skin and hair colours and the size of the eyes are theirs, place and light vary."""
    root = tmp_path_factory.mktemp("people")
    rng = np.random.default_rng(0)
    for person in range(16):
        skin, hair = (
            tuple(int(255 * c) for c in colorsys.hsv_to_rgb(hue % 1, 0.8, 0.9))
            for hue in (person / 16, person * 5 / 16 + 0.5)
        )
        eye = 2 + person % 4
        (root / f"p{person:02}").mkdir()
        for shot in range(6):
            dx, dy, light = rng.integers(-2, 3), rng.integers(-2, 3), rng.uniform(0.8, 1.1)
            image = Image.new("RGB", (48, 48), tuple(rng.integers(60, 120, 3).tolist()))
            draw = ImageDraw.Draw(image)
            draw.ellipse((8 + dx, 2 + dy, 40 + dx, 40 + dy), fill=hair)
            draw.ellipse((11 + dx, 8 + dy, 37 + dx, 46 + dy), fill=skin)
            for x in (15, 33):
                draw.ellipse((x - eye + dx, 15 - eye + dy, x + eye + dx, 15 + eye + dy), fill=(20, 20, 20))
            lit = np.clip(np.asarray(image) * light, 0, 255).astype(np.uint8)
            Image.fromarray(lit).save(root / f"p{person:02}" / f"{shot}.png")
    return root


def trainer(people: Path, config: VerifierTraining = SMALL) -> VerifierTrainer:
    made = VerifierTrainer(open_faces([people], resolution=48), alignment=Alignment(), config=config)
    return made


@pytest.mark.slow
def test_loss_falls_and_held_out_people_are_told_apart(people: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    run = trainer(people, replace(SMALL, steps=60))
    losses = [run.advance() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.9 * np.mean(losses[:10])  # λ is constant here
    reached = run.measure()
    assert reached.auc > 0.75 and reached.accuracy > 0.65
    run.save_verifier(tmp_path / "v.safetensors", reached)
    v = load_verifier(f"sphereface20:{tmp_path / 'v.safetensors'}", alignment=Alignment(), resolution=48)
    run.network.eval()
    x = run.images[:4].float() / 127.5 - 1
    torch.testing.assert_close(v(x), run.network(run._input(torch.arange(4)))[0], rtol=1e-4, atol=1e-5)


def test_held_out_people_are_never_trained_on(people: Path) -> None:
    run = trainer(people)
    folders = [name.split("/")[0] for name in run.data.names]
    train, test = ({folders[i] for i in rows} for rows in (run.train_rows, run.test_rows))
    assert not train & test and len(train) == 12 and len(test) == 4
    assert sorted(set(run.train_people.tolist())) == list(range(12))


def test_a_resumed_run_equals_an_uninterrupted_one(people: Path, tmp_path: Path, stop: int = 2) -> None:
    whole = trainer(people)
    losses = [whole.advance() for _ in range(4)]
    first = trainer(people)
    for _ in range(stop):
        first.advance()
    first.save_state(tmp_path / "s.safetensors")
    second = trainer(people)
    second.load_state(tmp_path / "s.safetensors")
    assert second.step == stop and [second.advance() for _ in range(4 - stop)] == losses[stop:]
    assert all(torch.equal(value, second._tensors()[name]) for name, value in whole._tensors().items())


def test_states_of_other_runs_are_refused(people: Path, tmp_path: Path) -> None:
    state = tmp_path / "s.safetensors"
    trainer(people).save_state(state)
    with pytest.raises(InputError):
        trainer(people, replace(SMALL, batch=4)).load_state(state)
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(FicganError):
        trainer(people).load_state(state)


def test_too_few_people(people: Path) -> None:
    faces = open_faces([people], resolution=48)
    for rows in (range(12), range(0, 96, 6)):  # two people; one image of each
        with pytest.raises(InputError):
            VerifierTrainer(faces.subset(rows), alignment=Alignment(), config=SMALL)


def test_accuracy_of_known_cases() -> None:
    rng = np.random.default_rng(1)
    people = np.repeat(np.arange(6), 3)
    e = torch.from_numpy(rng.normal(size=(18, 4)) + 1.5 * rng.normal(size=(6, 4))[people])
    got = verification_accuracy(e, people, pairs=10**6, seed=0)
    assert 0.5 < got.auc <= 1 and 0.5 <= got.accuracy <= 1
    perfect = verification_accuracy(torch.eye(6)[people], people, pairs=100, seed=0)
    assert perfect.auc == 1 and perfect.accuracy == 1
    constant = verification_accuracy(torch.ones(18, 4), people, pairs=100, seed=0)
    assert constant.auc == 0.5 and constant.accuracy == 0.5


def options(people: Path, out: Path, steps: int) -> list[str]:
    rest = "--resolution 48 --set batch=8 --set channels=2,4,8,16 --set learning_rate=0.01 --set held_out=0.25"
    return [str(people), "-o", str(out), "--set", f"steps={steps}", *rest.split(), "--save-every", "5"]


@pytest.mark.slow
def test_command_trains_and_says_what_it_reached(people: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(train_verifier, options(people, tmp_path / "run", 6))
    assert result.exit_code == 0, result.output
    done = json.loads(result.stdout)
    assert done["steps"] == 6 and done["people"] == 12 and 0 <= done["held_out"]["auc"] <= 1
    again = CliRunner().invoke(train_verifier, options(people, tmp_path / "run", 6))
    assert again.exit_code == 0 and json.loads(again.stdout)["trained_now"] == 0


@pytest.mark.slow
def test_an_interrupt_saves_and_exits_130(people: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    code = "from ficgan.cli.train import train_verifier; train_verifier()"
    process = subprocess.Popen([sys.executable, "-c", code, *options(people, out, 10**6)], stderr=subprocess.PIPE)
    while not (out / "state.safetensors").exists() and process.poll() is None:
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 130 and b"Traceback" not in errors
    assert [p.name for p in out.iterdir()] == ["state.safetensors"]
