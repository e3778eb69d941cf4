"""The attacker of Revelio: it learns, candidates are of their face and seed, fine-tuning touches what it should."""

from __future__ import annotations

import dataclasses
from functools import lru_cache

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio as psnr
from stand_ins import random_faces

from ficgan.lab.attacks.base import REVERSERS, Pairs
from ficgan.lab.attacks.diffusion import SCHEDULES, DiffusionLearner, scheduler_of
from ficgan.lab.attacks.revelio import Revelio, fine_tune

TINY = Revelio(size=16, preset="tiny", batch=4, epochs=120, lr=4e-3, samples=8, precision="float32", device="cpu")


def pairs(n: int = 4, size: int = 16, seed: int = 0) -> Pairs:
    clear = random_faces(n, size, seed, smooth=1.5)
    blurred = gaussian_filter(clear.images.astype(float), (0, 2, 2, 0)).round().astype(np.uint8)
    return Pairs(clear.with_images(blurred), clear)


@lru_cache(maxsize=2)
def trained(epochs: int = 1) -> Revelio:
    torch.set_num_threads(1)
    return dataclasses.replace(TINY, epochs=epochs).fit(pairs())


def weights(attacker: Revelio) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in attacker.trained_network().named_parameters()}


@pytest.mark.slow
def test_it_learns_four_faces_by_heart() -> None:
    known = pairs()
    guess = trained(120).guess(known.anonymised)
    assert psnr(guess, known.clear.images) > psnr(known.anonymised.images, known.clear.images) + 4


@pytest.mark.parametrize(("predicts", "expected"), [("noise", 1.0), ("clear", 0.25)])
def test_before_training_the_loss_is_the_targets_own_square(predicts: str, expected: float) -> None:
    learner = DiffusionLearner(TINY.network(), 1e-3, SCHEDULES["small"], predicts)
    clear = torch.full((64, 3, 16, 16), 0.75)  # 0.5 in [−1, 1]
    torch.manual_seed(1)
    found = float(learner.loss(clear, clear))
    assert found == pytest.approx(expected, rel=0.03)


def test_the_average_follows_the_weights() -> None:
    """Against the recursion written out, with the beginning forgotten faster."""
    network = TINY.network()
    learner = DiffusionLearner(network, 1e-2, SCHEDULES["small"], "clear", keep=0.3)
    expected = {name: tensor.detach().clone().double() for name, tensor in network.named_parameters()}
    image = torch.rand(4, 3, 16, 16)
    for step in range(5):
        learner.step(image, image, 4 * step)
        keep = min(0.3, (1 + step) / (10 + step))
        for name, tensor in network.named_parameters():
            expected[name] = keep * expected[name] + (1 - keep) * tensor.detach()
    for name, tensor in learner.result.named_parameters():
        torch.testing.assert_close(tensor.double(), expected[name], atol=1e-6, rtol=1e-5)


@pytest.mark.slow
def test_candidates_differ_and_depend_on_their_face_alone_in_full_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    faces, sizes = pairs().anonymised, []
    few = dataclasses.replace(trained(), samples=2)
    alone = np.concatenate([few.reverse(faces.take([row]), 7) for row in range(4)])
    restore = Revelio.restore
    monkeypatch.setattr(Revelio, "restore", lambda self, *given: sizes.append(len(given[1])) or restore(self, *given))
    monkeypatch.setattr(Revelio, "pass_size", lambda self, device: 10)
    several = few.reverse(faces, 7)
    assert several.shape == (4, 7, 16, 16, 3) and sizes == [10, 10, 8]
    assert np.abs(several.astype(int) - alone).max() <= 1  # float sums in another order may round otherwise
    assert not np.array_equal(several[:, 0], several[:, 1])
    assert not np.array_equal(dataclasses.replace(few, seed=5).reverse(faces, 1)[:, 0], several[:, 0])


def test_the_papers_attacker_can_be_made() -> None:
    given = {"preset": "sr3", "schedule": "sr3", "predicts": "noise", "sampler": "ancestral-beta", "samples": "2000"}
    made = REVERSERS.make("revelio", **given, lr="5e-5", size="256")
    assert isinstance(made, Revelio) and made.traits.several
    assert len(scheduler_of(made.way)[0].timesteps) == 2000
    shorter = REVERSERS.make("revelio", **given, test_schedule="palette-test")
    assert shorter.way.schedule == SCHEDULES["palette-test"]  # type: ignore[attr-defined]


# -- fine-tuning -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_fine_tuning_touches_the_attention_alone_and_repeats() -> None:
    before, other, state = weights(trained()), pairs(3, seed=9), torch.get_rng_state()
    tuned, again = (fine_tune(trained(), other.anonymised, other.clear, steps=4, lr=1e-3) for _ in range(2))
    after, network = weights(tuned), tuned.trained_network()
    of_attention = {id(weight) for module in network.attention() for weight in module.parameters()}  # type: ignore[operator]
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    own = {name for name, weight in network.named_parameters() if id(weight) in of_attention}
    assert changed and changed <= own
    assert {name.rpartition(".")[0] for name in changed} == {name.rpartition(".")[0] for name in own}
    assert all(torch.equal(tensor, before[name]) for name, tensor in weights(trained()).items())
    assert all(torch.equal(tensor, after[name]) for name, tensor in weights(again).items())
    assert torch.equal(torch.get_rng_state(), state)
    assert tuned.record["fine_tuned"][0]["which"] == "attention" and "fine_tuned" not in trained().record


@pytest.mark.slow
def test_fine_tuning_of_everything_adapts_to_a_defence() -> None:
    """A defence the attacker has not seen (a negative) breaks it; trained on with it, it is back."""
    known = pairs()
    defended = known.anonymised.with_images(255 - known.anonymised.images)
    broken = psnr(trained(120).guess(defended), known.clear.images)
    tuned = fine_tune(trained(120), defended, known.clear, steps=25, lr=4e-3, which="all")
    assert psnr(tuned.guess(defended), known.clear.images) > broken + 6
