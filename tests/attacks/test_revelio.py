"""The attacker: it learns, it is what it says, and fine-tuning touches what it should."""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
import torch
from attack_faces import psnr, random_faces
from scipy.ndimage import gaussian_filter

from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks import revelio, training
from ficgan.lab.attacks.base import REVERSERS, Pairs
from ficgan.lab.attacks.diffusion import Attention, DiffusionLearner
from ficgan.lab.attacks.learned import load_attacker, to_tensor
from ficgan.lab.attacks.revelio import SCHEDULES, Revelio, fine_tune

TINY = Revelio(
    size=16,
    base=16,
    mults="1-2",
    blocks=1,
    batch=4,
    epochs=120,
    lr=4e-3,
    predicts="clear",
    samples=8,
    precision="float32",
    device="cpu",
    flip=False,
)


def pairs(n: int = 4, size: int = 16, seed: int = 0) -> Pairs:
    clear = random_faces(n, size, seed, smooth=1.5)
    blurred = gaussian_filter(clear.images.astype(float), (0, 2, 2, 0)).round().astype(np.uint8)
    return Pairs(clear.with_images(blurred), clear)


@lru_cache(maxsize=2)
def trained(epochs: int = 10) -> Revelio:
    torch.set_num_threads(1)
    return dataclasses.replace(TINY, epochs=epochs).fit(pairs())


def weights(attacker: Revelio) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in attacker.trained_network().named_parameters()}


@pytest.mark.slow
def test_it_learns_four_faces_by_heart() -> None:
    known = pairs()
    guess = trained(120).guess(known.anonymised)
    assert psnr(guess, known.clear.images) > psnr(known.anonymised.images, known.clear.images) + 4


@pytest.mark.slow
def test_the_loss_falls_far() -> None:
    known = [to_tensor(faces.images) for faces in (pairs().anonymised, pairs().clear)]
    many = [images.repeat(8, 1, 1, 1) for images in known]  # the same faces at many levels
    torch.manual_seed(0)
    learner = TINY.learner(TINY.network(), torch.device("cpu"))
    with torch.no_grad():
        before = float(learner.loss(*many))
    for step in range(40):
        learner.step(known[0], known[1], 4 * step)
    with torch.no_grad():
        assert float(learner.loss(*many)) < 0.5 * before


@pytest.mark.parametrize("predicts", ["noise", "clear", "velocity"])
def test_before_training_the_loss_is_the_targets_own_square(predicts: str) -> None:
    network = TINY.network()
    learner = DiffusionLearner(network, 1e-3, SCHEDULES["small"], predicts)  # type: ignore[arg-type]
    clear = torch.full((64, 3, 16, 16), 0.75)  # 0.5 in [−1, 1]
    torch.manual_seed(1)
    found = float(learner.loss(clear, clear))
    roots = np.sqrt(SCHEDULES["small"].gammas)
    gamma = np.mean((roots[1:] ** 2 + roots[1:] * roots[:-1] + roots[:-1] ** 2) / 3)  # E γ for √γ uniform in each step
    expected = {"noise": 1.0, "clear": 0.25, "velocity": gamma + (1 - gamma) * 0.25}[predicts]
    assert found == pytest.approx(expected, rel=0.03)


def test_the_average_follows_the_weights() -> None:
    """Against the recursion written out, with the beginning forgotten faster."""
    network = TINY.network()
    learner = DiffusionLearner(network, 1e-2, SCHEDULES["small"], "velocity", keep=0.3)
    expected = {name: tensor.detach().clone().double() for name, tensor in network.named_parameters()}
    image = torch.rand(4, 3, 16, 16)
    for step in range(5):
        learner.step(image, image, 4 * step)
        keep = min(0.3, (1 + step) / (10 + step))
        for name, tensor in network.named_parameters():
            expected[name] = keep * expected[name] + (1 - keep) * tensor.detach()
    for name, tensor in learner.result.named_parameters():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=1e-5)


def test_candidates_differ_and_depend_on_their_face_alone() -> None:
    faces = pairs().anonymised
    several = trained().reverse(faces, 3)
    assert several.shape == (4, 3, 16, 16, 3) and several.dtype == np.uint8
    assert not np.array_equal(several[:, 0], several[:, 1])
    alone = dataclasses.replace(trained(), at_once=1).reverse(faces.take([2]), 2)
    assert np.abs(alone[0].astype(int) - several[2, :2]).max() <= 1  # float sums in another order may round otherwise
    other = dataclasses.replace(trained(), seed=5).reverse(faces.take([2]), 1)
    assert not np.array_equal(other[0, 0], several[2, 0])


def test_passes_are_full_across_faces_and_the_network_is_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven candidates of four faces, 28, in passes of ten; the same as face by face."""
    sizes: list[int] = []
    cast: list[torch.nn.Module] = []
    restore = Revelio.restore

    def watched(self: Revelio, network: torch.nn.Module, seen: torch.Tensor, seeds: list[int]) -> torch.Tensor:
        sizes.append(len(seen))
        cast.append(network)
        return restore(self, network, seen, seeds)

    faces = pairs().anonymised
    few = dataclasses.replace(trained(), samples=2)
    one_by_one = np.concatenate([few.reverse(faces.take([row]), 7) for row in range(4)])
    monkeypatch.setattr(Revelio, "restore", watched)
    several = dataclasses.replace(few, at_once=10).reverse(faces, 7)
    assert sizes == [10, 10, 8]
    assert np.abs(several.astype(int) - one_by_one).max() <= 1
    cast.clear()
    dataclasses.replace(few, at_once=10, precision="bfloat16").reverse(faces, 7)
    assert len({id(network) for network in cast}) == 1 and next(cast[0].parameters()).dtype == torch.bfloat16


def test_passes_hold_more_on_a_gpu_and_less_of_larger_faces() -> None:
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert [Revelio(size=size).pass_size(gpu) for size in (32, 64, 128, 256)] == [256, 256, 64, 16]
    assert Revelio().pass_size(cpu) == 16 and Revelio(at_once=50).pass_size(cpu) == 50


def test_it_is_registered_and_read_back_from_its_file(tmp_path: Path) -> None:
    assert REVERSERS["revelio"] is Revelio and Revelio.traits.several
    trained().save(tmp_path / "attacker.safetensors")
    again = load_attacker(tmp_path / "attacker.safetensors", device="cpu")
    faces = pairs().anonymised
    assert again == trained()
    np.testing.assert_array_equal(again.reverse(faces, 2), trained().reverse(faces, 2))


def test_crops_of_another_size_come_back_at_theirs() -> None:
    assert trained().guess(random_faces(2, 24)).shape == (2, 24, 24, 3)


def test_lower_precision_changes_little() -> None:
    faces = pairs().anonymised
    rough = dataclasses.replace(trained(), precision="bfloat16").guess(faces)
    assert psnr(rough, trained().guess(faces)) > 28


@pytest.mark.slow
def test_what_auto_came_to_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The trial may come out otherwise in the next process: a resumed training and a read attacker do as before."""
    few = dataclasses.replace(TINY, precision="auto", epochs=3)
    trial = iter(["bfloat16"])

    def resolve(name: str, device: str) -> torch.dtype:
        return getattr(torch, next(trial, "float32") if name == "auto" else name)  # type: ignore[no-any-return]

    monkeypatch.setattr(revelio, "resolve_precision", resolve)
    monkeypatch.setattr(training, "REPORT_EVERY", 0.0)

    def stop(done: int, total: int, stage: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        few.fit(pairs(), workspace=tmp_path, progress=stop)
    resumed = few.fit(pairs(), workspace=tmp_path)
    read = few.fit(pairs(), workspace=tmp_path)
    whole = dataclasses.replace(few, precision="bfloat16").fit(pairs())
    for attacker in (resumed, read):
        assert attacker.record["precision"] == "bfloat16"
        assert next(attacker.in_use(attacker.trained_network()).parameters()).dtype == torch.bfloat16
        assert all(torch.equal(tensor, weights(whole)[name]) for name, tensor in weights(attacker).items())
    asked = dataclasses.replace(read, precision="float32")
    assert next(asked.in_use(asked.trained_network()).parameters()).dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"guidance": 2.0}, "dropped"),
        ({"mults": "1-x"}, "whole numbers"),
        ({"steps": 5}, "too few"),
        ({"preset": "huge"}, "use one of"),
        ({"predicts": "score"}, "use one of"),
    ],
)
def test_settings_that_cannot_work_are_refused(given: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        REVERSERS.make("revelio", **given)


def test_the_papers_attacker_can_be_made() -> None:
    made = REVERSERS.make(
        "revelio",
        preset="sr3",
        schedule="sr3",
        predicts="noise",
        sampler="ancestral-beta",
        samples="2000",
        lr="5e-5",
        size="256",
    )
    assert isinstance(made, Revelio)
    assert len(made.way.steps()) == 2000 and made.architecture.mults == (1, 2, 4, 8, 8)


def test_unasked_no_pair_is_mirrored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a change of places the mirrored pairs are another function."""
    shown: list[torch.Tensor] = []
    loss = DiffusionLearner._loss

    def watched(self: DiffusionLearner, network: torch.nn.Module, seen: torch.Tensor, *more: torch.Tensor) -> object:
        shown.append(seen)
        return loss(self, network, seen, *more)

    monkeypatch.setattr(DiffusionLearner, "_loss", watched)
    attacker = Revelio(size=16, base=16, mults="1", blocks=1)
    image = to_tensor(pairs(1).anonymised.images).repeat(16, 1, 1, 1)
    for flip, kinds in ((attacker.flip, 1), (True, 2)):
        learner = dataclasses.replace(attacker, flip=flip).learner(attacker.network(), torch.device("cpu"))
        learner.step(image, image, 0)
        assert len(torch.unique(shown.pop(), dim=0)) == kinds


# --- fine-tuning ----------------------------------------------------------------------------------------------------


def test_fine_tuning_touches_the_attention_alone() -> None:
    before = weights(trained())
    other = pairs(3, seed=9)
    tuned = fine_tune(trained(), other.anonymised, other.clear, steps=4, lr=1e-3)
    network = tuned.trained_network()
    of_attention = {
        f"{name}.{part}"
        for name, module in network.named_modules()
        if isinstance(module, Attention)
        for part, _ in module.named_parameters()
    }
    after = weights(tuned)
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed and changed <= of_attention
    assert {name.rpartition(".")[0] for name in changed} == {name.rpartition(".")[0] for name in of_attention}
    assert all(
        torch.equal(tensor, before[name]) for name, tensor in weights(trained()).items()
    )  # the old one is as it was
    assert tuned.record["fine_tuned"][0]["which"] == "attention"
    assert "fine_tuned" not in trained().record


@pytest.mark.slow
def test_fine_tuning_of_everything_adapts_to_a_defence() -> None:
    """A defence the attacker has not seen (a negative) breaks it; trained on with it, it is back."""
    known = pairs()
    defended = known.anonymised.with_images(255 - known.anonymised.images)
    broken = psnr(trained(120).guess(defended), known.clear.images)
    tuned = fine_tune(trained(120), defended, known.clear, steps=25, lr=4e-3, which="all")
    assert psnr(tuned.guess(defended), known.clear.images) > broken + 6


def test_fine_tuning_repeats_and_leaves_the_random_state() -> None:
    known = pairs()
    state = torch.get_rng_state()
    one, two = (fine_tune(trained(), known.anonymised, known.clear, steps=2, lr=1e-3) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, weights(two)[name]) for name, tensor in weights(one).items())


def test_fine_tuning_of_nothing_is_refused() -> None:
    known = pairs()
    with pytest.raises(UsageError, match="learnt nothing"):
        fine_tune(TINY, known.anonymised, known.clear, steps=1, lr=1e-3)
    with pytest.raises(UsageError, match="at least one step"):
        fine_tune(trained(), known.anonymised, known.clear, steps=0, lr=1e-3)
    none = Faces(np.empty((0, 16, 16, 3), np.uint8), ())
    with pytest.raises(InputError, match="no pairs"):
        fine_tune(trained(), none, none, steps=1, lr=1e-3)
