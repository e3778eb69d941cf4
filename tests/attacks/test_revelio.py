"""The attacker of Revelio: what it learns and guesses, fine-tuning, retrieval, parrots, its diffusion."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter
from skimage.metrics import peak_signal_noise_ratio as psnr
from sklearn import metrics
from stand_ins import cosine, random_faces, random_network
from torch import Tensor

from ficgan.anonymizers import Faces
from ficgan.errors import UsageError
from ficgan.faces.crops import ARCFACE_POINTS
from ficgan.lab.attacks.base import REVERSERS, Pairs
from ficgan.lab.attacks.networks import additive_margin_loss, retrained
from ficgan.lab.attacks.revelio import (
    PRESETS,
    SCHEDULES,
    Architecture,
    DiffusionLearner,
    Revelio,
    Sampler,
    Schedule,
    UNet,
    choose_threshold,
    fine_tune,
    levels,
    ood_curve,
    retrieve,
    sample,
    scheduler_of,
)
from ficgan.lab.readers import get_readers

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
    learner = DiffusionLearner(network, 1e-2, SCHEDULES["small"], "clear")
    learner.keep = 0.3
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


@pytest.mark.slow
def test_fine_tuning_touches_the_attention_alone_and_repeats() -> None:
    before, other, state = weights(trained()), pairs(3, seed=9), torch.get_rng_state()
    tuned, again = (fine_tune(trained(), other, steps=4, lr=1e-3) for _ in range(2))
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
    tuned = fine_tune(trained(120), Pairs(defended, known.clear), steps=25, lr=4e-3, which="all")
    assert psnr(tuned.guess(defended), known.clear.images) > broken + 6


def distance(a: np.ndarray, b: np.ndarray, metric: str) -> float:
    if metric == "euclidean":
        return float(np.sqrt(((a - b) ** 2).sum()))
    return 1 - cosine(a, b)


def slow(candidates: np.ndarray, gallery: np.ndarray, people: np.ndarray, metric: str) -> list[int]:
    found = []
    for several in candidates:
        table = [[distance(c, g, metric) for g in gallery] for c in several if np.isfinite(c).all()]
        nearest = [(people[int(np.argmin(row))], min(row)) for row in table]
        if not nearest:
            found.append(-1)
        else:
            counts = Counter(person for person, _ in nearest)
            found.append(min((-counts[person], gap, person) for person, gap in nearest)[2])
    return [int(one) for one in found]


@given(
    probes=st.integers(1, 5),
    n=st.integers(1, 7),
    size=st.integers(1, 12),
    names=st.integers(1, 4),
    metric=st.sampled_from(["euclidean", "cosine"]),
    seed=st.integers(0, 99),
    unread=st.floats(0, 0.6),
)
def test_retrieval_is_the_slow_loop(
    probes: int, n: int, size: int, names: int, metric: str, seed: int, unread: float
) -> None:
    rng = np.random.default_rng(seed)
    candidates, gallery = rng.normal(size=(probes, n, 6)), rng.normal(size=(size, 6))
    candidates[rng.random((probes, n)) < unread] = np.nan
    people = rng.integers(0, names, size) * 7
    got = retrieve(candidates, gallery, people, metric)
    assert got.found.tolist() == slow(candidates, gallery, people, metric)
    for several, lowest in zip(candidates, got.lowest, strict=True):
        gaps = [distance(one, other, metric) for one in several if np.isfinite(one).all() for other in gallery]
        assert lowest == pytest.approx(min(gaps, default=np.inf), abs=1e-5)


def test_a_tied_vote_goes_to_the_nearest() -> None:
    gallery, people = np.eye(3), np.array([5, 6, 7])
    candidates = np.array([[[0.7, 0, 0], [0, 0.8, 0], [0, 0, 0.6], [0, 0.7, 0], [0.99, 0, 0]]])
    assert retrieve(candidates, gallery, people).found.tolist() == [5]  # 5 and 6 twice, 5 came nearer
    assert retrieve(candidates[:, :4], gallery, people).found.tolist() == [6]
    assert retrieve(candidates[:, 2], gallery, people).found.tolist() == [7]  # [N,D]: one candidate each


@given(st.lists(st.integers(0, 9), min_size=1, max_size=30), st.lists(st.integers(0, 9), min_size=1, max_size=30))
def test_the_curve_is_scikit_learn_s(known: list[int], unknown: list[int]) -> None:
    curve = ood_curve(np.array(known, float), np.array(unknown, float))
    truth, scores = np.repeat([0, 1], [len(known), len(unknown)]), np.array(known + unknown, float)
    assert curve.auc == pytest.approx(metrics.roc_auc_score(truth, scores))
    fpr, tpr, _ = metrics.roc_curve(truth, scores, drop_intermediate=False)
    assert np.allclose(np.sort(curve.tpr), tpr) and np.allclose(np.sort(curve.fpr), fpr)
    for d, t, f in zip(curve.thresholds, curve.tpr, curve.fpr, strict=True):
        flagged = scores > d
        assert t == pytest.approx(flagged[truth == 1].mean()) and f == pytest.approx(flagged[truth == 0].mean())


def test_the_chosen_threshold_is_the_best_and_between_distances() -> None:
    rng = np.random.default_rng(1)
    known, unknown = rng.normal(0.35, 0.05, 200), rng.normal(0.5, 0.05, 100)
    d = choose_threshold(known, unknown)
    assert 0.4 < d < 0.45 and d not in np.concatenate([known, unknown])
    curve = ood_curve(known, unknown)
    assert np.mean(unknown > d) - np.mean(known > d) == pytest.approx(np.max(curve.tpr - curve.fpr))
    assert choose_threshold(np.array([1.0, 2.0]), np.array([3.0, np.inf])) == 2.5
    assert choose_threshold(np.array([1.0]), np.array([np.inf])) >= 1.0


def test_the_loss_is_arcfaces() -> None:
    rng = np.random.default_rng(0)
    x, w, people = rng.normal(size=(5, 8)), rng.normal(size=(3, 8)), np.array([0, 2, 1, 1, 0])
    losses = []
    for row, person in zip(x, people, strict=True):
        cosines = [float(row @ c / np.linalg.norm(row) / np.linalg.norm(c)) for c in w]
        logits = [64 * (math.cos(math.acos(c) + 0.5) if k == person else c) for k, c in enumerate(cosines)]
        losses.append(-logits[person] + math.log(sum(math.exp(each) for each in logits)))
    found = additive_margin_loss(*(torch.from_numpy(each).float() for each in (x, w)), torch.from_numpy(people))
    assert float(found) == pytest.approx(np.mean(losses), rel=1e-4)


def test_a_network_trained_on_brings_a_persons_pictures_together(tmp_path: Path) -> None:
    """Pictures of noise, which nothing but learning can join; the nearest other picture is the person's then."""
    rng, people = np.random.default_rng(1), np.arange(5).repeat(4)
    images = rng.integers(0, 256, (20, 7, 7, 3), dtype=np.uint8).repeat(16, 1).repeat(16, 2)
    marks = np.broadcast_to(np.asarray(ARCFACE_POINTS, np.float32), (20, 5, 2))
    training = Faces(images, tuple(map(str, range(20))), marks, people)
    path, said = random_network(tmp_path / "judge.onnx"), list[str]()
    (reader,) = get_readers([f"onnx:{path}"])

    def right(codes: np.ndarray) -> float:
        units = codes / np.linalg.norm(codes, axis=1, keepdims=True)
        return float(np.mean(people[(units @ units.T - 2 * np.eye(20)).argmax(1)] == people))

    codes = retrained(path, training, training.take([3]), epochs=60, seed=0, say=said.append)
    assert codes.shape == (21, 16) and np.allclose(codes[20], codes[3], atol=1e-3) and len(said) == 60
    assert right(reader.embed(training)) < 0.5 and right(codes[:20]) > 0.9


LINEAR = Schedule(50, 1e-3, 0.2)


def test_schedules_are_those_of_the_papers() -> None:
    product = 1.0
    for t in range(1, LINEAR.steps + 1):
        product *= 1 - (LINEAR.first + (t - 1) / (LINEAR.steps - 1) * (LINEAR.last - LINEAR.first))
        assert LINEAR.gammas[t] == pytest.approx(product, rel=1e-12)
    assert LINEAR.gammas[0] == 1
    assert SCHEDULES["sr3"] == Schedule(2000, 1e-6, 1e-2)
    assert SCHEDULES["palette-test"] == Schedule(1000, 1e-4, 0.09)
    assert SCHEDULES["small"] == Schedule(200, 1e-5, 0.1)  # as little is left of the image: Σβ = 10


def test_levels_lie_within_their_steps_and_cover_all() -> None:
    spots = torch.rand(20_000, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    roots = np.sqrt(LINEAR.gammas)
    found = levels(LINEAR, spots).numpy()
    # Every step is as likely, and within it √γ is uniform: its distribution function is linear between the steps.
    for t in range(1, LINEAR.steps + 1):
        middle = (roots[t] + roots[t - 1]) / 2
        assert (found >= roots[t]).mean() == pytest.approx(t / LINEAR.steps, abs=0.015)
        assert (found >= middle).mean() == pytest.approx((t - 0.5) / LINEAR.steps, abs=0.015)
    assert levels(LINEAR, torch.tensor([0.0, 1.0])).tolist() == pytest.approx([1.0, roots[-1]])


@given(count=st.integers(1, 80))
def test_times_fall_from_the_end_to_zero(count: int) -> None:
    times = LINEAR.times(count)
    assert times[0] == LINEAR.steps and times[-1] == 0 and (np.diff(times) < 0).all()
    assert len(times) == min(count, LINEAR.steps) + 1 and np.ptp(np.diff(times)) <= 1


# -- the U-Net ---------------------------------------------------------------------------------------------------------

LITTLE = Architecture(8, (1, 2), blocks=1)  # attention lies at 16 pixels


def awake(network: torch.nn.Module) -> torch.nn.Module:
    """With random weights in the layers that begin at zero."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weights in network.parameters():
            if not weights.any():
                weights.normal_(0, 0.2, generator=generator)
    return network.eval()


@pytest.mark.parametrize(
    ("architecture", "size"), [(LITTLE, 16), pytest.param(PRESETS["patched"], 16, marks=pytest.mark.slow)]
)
def test_an_answer_has_the_shape_of_its_image(architecture: Architecture, size: int) -> None:
    noisy, seen = torch.randn(2, 2, 3, size, size)
    with torch.no_grad():
        assert UNet(architecture, size)(noisy, seen, torch.rand(2)).shape == noisy.shape
    with pytest.raises(UsageError, match="multiple of 16"):
        UNet(PRESETS["sr3"], 40)


def test_sr3_has_the_layers_of_the_paper() -> None:
    with torch.device("meta"):
        network = UNet(PRESETS["sr3"], 256)
    assert max(m.in_channels for m in network.modules() if isinstance(m, torch.nn.Conv2d)) == 1024
    assert len(network.attention()) == 2 + 1 + 3  # at 16, on the way down, in the middle, on the way up
    assert 90e6 < sum(weights.numel() for weights in network.parameters()) < 110e6


def test_every_weight_is_used_and_the_level_enters_as_sines_of_5000_times_it() -> None:
    network: Any = awake(UNet(LITTLE, 16)).train()
    entered: list[Tensor] = []
    network.unet.time_embedding.register_forward_pre_hook(lambda module, inputs: entered.append(inputs[0]))
    root = torch.tensor([0.25, 0.9])
    network(*torch.randn(2, 2, 3, 16, 16), root).square().mean().backward()
    assert not [name for name, one in network.named_parameters() if one.grad is None or not one.grad.any()]
    for row, level in enumerate(root.tolist()):
        angles = [5000 * level * 1e4 ** (-i / 4) for i in range(4)]
        expected = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
        np.testing.assert_allclose(entered[0][row], expected, atol=2e-3)


# -- sampling ----------------------------------------------------------------------------------------------------------

MEAN, DEVIATION = 0.3, 0.2
FULL = SCHEDULES["small"]


def exact(predicts: str) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """What a perfect network answers where every pixel is N(MEAN, DEVIATION²), apart from what it is shown."""

    def answer(noisy: Tensor, seen: Tensor, root: Tensor) -> Tensor:
        root = root.reshape(-1, 1, 1, 1).double()
        gamma = root**2
        variance = gamma * DEVIATION**2 + 1 - gamma
        clear = MEAN + root * DEVIATION**2 / variance * (noisy - root * MEAN)
        return (clear if predicts == "clear" else (noisy - root * clear) / (1 - gamma).sqrt()).float()

    return answer


@pytest.mark.parametrize(("kind", "predicts"), [("ddim", "clear"), ("ddim", "noise"), ("ancestral-beta", "noise")])
def test_sampling_arrives_at_the_distribution(kind: str, predicts: str) -> None:
    sampler = Sampler(FULL, kind, FULL.steps, predicts, clip=False)
    images = sample(exact(predicts), torch.zeros(4, 3, 32, 32), sampler, range(4))
    assert float(images.mean()) == pytest.approx(MEAN, abs=0.02)
    assert float(images.std()) == pytest.approx(DEVIATION, rel=0.15)


@pytest.mark.parametrize("count", [7, 50])
def test_steps_are_those_of_the_papers(count: int) -> None:
    """Against Bayes' posterior (eq. 3) with its own variance, and with the larger one of eq. 5."""
    gammas = LINEAR.gammas[LINEAR.times(count)]
    y, clear = torch.randn(2, 1, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    made = {kind: scheduler_of(Sampler(LINEAR, kind, count, "clear")) for kind in ("ddim", "ancestral-beta")}
    for t, (gamma, before) in enumerate(pairwise(gammas)):
        alpha = gamma / before
        mean = before**0.5 * (1 - alpha) / (1 - gamma) * clear.clamp(-1, 1)
        mean = mean + alpha**0.5 * (1 - before) / (1 - gamma) * y
        small = (1 - before) * (1 - alpha) / (1 - gamma)
        for kind, variance in (("ddim", small), ("ancestral-beta", (1 - alpha) * (before < 1))):
            scheduler, more = made[kind]
            noise = torch.randn(y.shape, generator=torch.Generator().manual_seed(5))
            found = scheduler.step(
                clear, len(gammas) - 2 - t, y, generator=[torch.Generator().manual_seed(5)], **more
            ).prev_sample
            torch.testing.assert_close(found, mean + variance**0.5 * noise, atol=2e-4, rtol=1e-3)
