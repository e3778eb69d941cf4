"""Privacy metrics against scikit-learn, SciPy, loops, closed forms and their equations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from score_oracle import pairs, rank_odds
from sklearn.metrics import roc_auc_score, roc_curve

from ficgan.lab.metrics import METRICS, Bootstrap, privacy, wilson
from ficgan.lab.metrics.privacy import Scores, chance, linkability, privacy_figures, reversibility
from ficgan.lab.results import Figure

FEW = Bootstrap(50)


def case(seed: int, probes: int = 60, gallery: int = 50, people: int = 12, values: int = 0, shift: float = 1.0) -> Any:
    """Matrix, people, enrolled, acquired; genuine scores are `shift` higher; `values` > 0: that many different ones."""
    rng = np.random.default_rng(seed)
    who, enrolled = rng.integers(0, people, probes), rng.integers(0, people, gallery)
    enrolled[:2] = 0, 1
    who[0] = 0
    matrix = rng.normal(size=(probes, gallery)) + shift * (who[:, None] == enrolled)
    if values:
        matrix = np.clip(np.round(matrix * values / 6), -values // 2, values // 2)
    acquired = rng.random(probes) < 0.85
    acquired[0] = True
    return matrix, who, enrolled, acquired


def labelled(made: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    genuine, impostor = pairs(*made, False)
    labels = np.r_[np.ones(len(genuine), int), np.zeros(len(impostor), int)]
    return labels, np.array([score for *_, score in genuine] + [score for *_, score in impostor])


def scores_of(made: Any, **more: Any) -> Scores:
    matrix, who, enrolled, acquired = made
    return Scores.from_matrix(matrix, who, enrolled, acquired=acquired, **more)


# -- verification -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 5, 40]), st.sampled_from([-2.0, 0.0, 1.0, 8.0]))
def test_rates_are_scikit_learns(seed: int, values: int, shift: float) -> None:
    made = case(seed, values=values, shift=shift)
    scores, (labels, scored) = scores_of(made), labelled(made)
    area = privacy.auc(scores, bootstrap=FEW)
    assert area.value == pytest.approx(roc_auc_score(labels, scored), abs=1e-12)
    assert privacy.leak(scores, bootstrap=FEW).value == pytest.approx(2 * abs(roc_auc_score(labels, scored) - 0.5))
    far, tar, _ = roc_curve(labels, scored, drop_intermediate=False)
    for wanted in (0.1, 0.25):
        if len(scores.impostors) * wanted >= 30:
            assert privacy.tar_at_far(scores, wanted).value == pytest.approx(tar[far <= wanted].max())
    x, y = privacy.vertices(scores)
    for a, b in zip(x / x[-1], y / y[-1], strict=True):  # every corner lies on scikit-learn's curve
        assert np.min(np.abs(far - a) + np.abs(tar - b)) < 1e-9 or np.any((np.abs(tar - b) < 1e-9) & (far >= a - 1e-9))
    equal = scipy.optimize.brentq(lambda at: np.interp(at, *_strict(far, tar)) - (1 - at), 0, 1)
    assert privacy.eer(scores).value == pytest.approx(equal, abs=1e-6)


def _strict(far: NDArray[Any], tar: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """A vertical piece of a curve, tilted by next to nothing, so that np.interp has a function."""
    return far + 1e-10 * np.arange(len(far)), tar


def test_a_rate_is_refused_below_thirty_expected_impostors() -> None:
    rng = np.random.default_rng(0)
    people = np.repeat(np.arange(10), 2)
    matrix = rng.normal(size=(20, 20))
    scores = Scores.from_matrix(matrix, people, people)  # 360 impostor scores
    assert privacy.tar_at_far(scores, 30 / 360).value is not None
    refused = privacy.tar_at_far(scores, 30 / 361)
    assert refused.value is None and "360 pairs of strangers, and 361 are needed" in refused.note
    within = Scores.from_matrix(matrix + matrix.T, people, people, exclude_same=True)  # the same pairs twice
    assert len(within.impostors) == 360 and privacy.tar_at_far(within, 30 / 360).value is None
    assert privacy.tar_at_far(within, 30 / 180).value is not None


def test_the_match_rates_are_counted_above_the_threshold() -> None:
    made = case(5, values=9)
    scores, (labels, scored) = scores_of(made), labelled(made)
    for threshold in (-1.0, 0.0, 1.0, 2.5, 99.0):
        above = scored > threshold
        assert privacy.match_rate(scores, threshold).value == pytest.approx(above[labels == 1].mean())
        assert privacy.false_match_rate(scores, threshold).value == pytest.approx(above[labels == 0].mean())
    nobody = privacy.false_match_rate(scores, 99.0)
    people = len(np.unique(made[1][made[3]]))
    assert nobody.low == 0 and nobody.high == pytest.approx(wilson(0, people)[1])


# -- within kind ------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from([0, 3, 9]), st.booleans())
def test_within_kind_is_scikit_learns_area_of_each_output(seed: int, values: int, known: bool) -> None:
    """The other photos of the person are its own, or the source itself; others of the kind are strangers."""
    rng = np.random.default_rng(seed)
    who, kinds = rng.integers(0, 14, 24), np.array(["", "a", "b"])[rng.integers(0, 3, 14)]
    matrix = rng.normal(size=(24, 24)) + (who[:, None] == who)
    matrix = np.round(matrix * values / 3) if values else matrix
    kind, areas, itself = kinds[who], [], 0
    for i in range(24):
        strangers = [j for j in range(24) if who[j] != who[i] and kind[j] == kind[i]]
        own = [j for j in range(24) if who[j] == who[i] and not (known and j == i)]
        if not kind[i] or len({who[j] for j in strangers}) < 3:
            continue
        itself += not own
        own = own or [i]
        areas.append(roc_auc_score([1] * len(own) + [0] * len(strangers), matrix[i, own + strangers]))
    sources = np.arange(24) if known else None
    found = privacy.within_kind(matrix, who, kind, who, kind, sources=sources, bootstrap=FEW)
    assert found.n == len(areas)
    if areas:
        assert found.value == pytest.approx(np.mean(areas)) and found.low is not None
        assert ("source itself" in found.note) == (itself > 0) and ("another photo" in found.note) == (itself < found.n)
        assert (f"{24 - found.n} of 24 left out" in found.note) == (found.n < 24)
    else:
        assert found.value is None and "3 strangers" in found.note


# -- identification ---------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 3, 20]), st.sampled_from([1, 2, 5]))
def test_rank_k_is_the_mean_of_each_identity(seed: int, values: int, k: int) -> None:
    made = case(seed, values=values)
    matrix, who, enrolled, acquired = made
    genuine, impostor = pairs(matrix, who, enrolled, acquired, False)
    odds = np.array([rank_odds(i, genuine, impostor, k) for i in range(len(who))])
    scores = scores_of(made)
    mated = acquired & np.isin(who, enrolled)
    all_mated = np.isin(who, enrolled)
    found = privacy.rank(scores, k, bootstrap=FEW)
    assert found.value == pytest.approx(np.mean([odds[mated & (who == p)].mean() for p in np.unique(who[mated])]))
    assert found.n == len(np.unique(who[mated])) and found.unit == "identities"
    missed = privacy.rank(scores, k, failures=True, bootstrap=FEW)
    expected = np.mean([odds[all_mated & (who == p)].mean() for p in np.unique(who[all_mated])])
    assert missed.value == pytest.approx(expected) and missed.metric == f"rank-{k} (failures as misses)"


@pytest.mark.parametrize("same", [False, True])
def test_constant_embeddings_are_chance(same: bool) -> None:
    people = np.repeat(np.arange(8), 3)
    constant = np.tile(np.random.default_rng(0).normal(size=128), (24, 1))
    scores = Scores.compare(constant, constant, people, people, metric="cosine", exclude_same=same)
    assert chance(scores) == 1 / 8
    assert privacy.rank(scores).value == pytest.approx(chance(scores))
    assert privacy.rank(scores, 5).value == pytest.approx(chance(scores, 5))
    assert privacy.auc(scores).value == privacy.eer(scores).value == 0.5
    assert linkability(scores).value == privacy.leak(scores).value == 0
    assert privacy.tar_at_far(scores, 0.3).value == 0  # all or none


def test_singling_out_is_one_match_and_the_right_one() -> None:
    matrix = np.array(
        [
            [0.9, 0.1, 0.1],  # the right one alone
            [0.9, 0.8, 0.1],  # two people
            [0.1, 0.9, 0.1],  # a wrong one alone
            [0.1, 0.2, 0.3],  # nobody
            [0.5, 0.1, 0.1],  # at the threshold is not above it
            [0.1, 0.9, 0.8],  # two wrong ones
        ]
    )
    who = np.zeros(6, int)
    scores = Scores.from_matrix(matrix, who, np.arange(3))
    assert privacy.singling_out(scores, 0.5).value == pytest.approx(1 / 6)
    many = Scores.from_matrix(np.array([[0.9, 0.8, 0.1], [0.1, 0.1, 0.2]]), np.array([0, 1]), np.array([0, 0, 1]))
    assert privacy.singling_out(many, 0.5).value == 0.5  # two images of one person are one match


# -- linkability and reversibility ------------------------------------------------------------------------------------


def d_sys(genuine: NDArray[Any], impostor: NDArray[Any], bins: int) -> float:
    """Equations 8 and 10, bin by bin."""
    edges = np.linspace(min(genuine.min(), impostor.min()), max(genuine.max(), impostor.max()), bins + 1)
    p = np.histogram(genuine, edges)[0] / len(genuine)
    q = np.histogram(impostor, edges)[0] / len(impostor)
    total = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0 and b == 0:
            total += a
        elif b > 0 and a / b > 1:
            ratio = a / b
            total += a * (2 * ratio / (1 + ratio) - 1)
    return total


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
def test_linkability_is_the_equation(shift: float) -> None:
    rng = np.random.default_rng(4)
    people = np.arange(1000)
    matrix = rng.normal(size=(1000, 1000)) + shift * np.eye(1000)
    scores = Scores.from_matrix(matrix, people, people)
    expected = d_sys(np.diag(matrix), matrix[~np.eye(1000, dtype=bool)], 100)
    assert linkability(scores).value == pytest.approx(expected, abs=1e-6)


def scores_with_ranks(found: list[list[int]], enrolled: int = 20) -> Scores:
    """Probes of which each 1 ranks first and each 0 does not, by identity."""
    who = np.concatenate([[person] * len(some) for person, some in enumerate(found)])
    matrix = np.zeros((len(who), enrolled))
    for row, (person, hit) in enumerate(zip(who, np.concatenate(found), strict=True)):
        matrix[row, person if hit else (person + 1) % enrolled] = 1
    return Scores.from_matrix(matrix, who, np.arange(enrolled))


def test_reversibility_against_scipys_paired_bootstrap() -> None:
    rng = np.random.default_rng(9)
    rates = [rng.integers(0, 2, (40, 5)).tolist() for _ in range(3)]
    rates[0] = np.maximum(rates[0], rng.integers(0, 2, (40, 5))).tolist()
    three = [np.mean(one, axis=1) for one in rates]
    figure = reversibility(*(scores_with_ranks(one, 50) for one in rates), bootstrap=Bootstrap(4000))  # type: ignore[misc]
    reference = scipy.stats.bootstrap(
        three,
        lambda c, n, r, axis: (r.mean(axis) - n.mean(axis)) / c.mean(axis),
        paired=True,
        vectorized=True,
        method="percentile",
        n_resamples=4000,
        rng=np.random.default_rng(1),
    ).confidence_interval
    assert figure.low == pytest.approx(reference.low, abs=0.02)
    assert figure.high == pytest.approx(reference.high, abs=0.02)


# -- all of them ------------------------------------------------------------------------------------------------------


def figures_of(scores: Scores, **more: Any) -> dict[str, Figure]:
    made = privacy_figures(scores, **{"threshold": 0.5, "resamples": 50, **more})
    assert len({figure.metric for figure in made}) == len(made)
    return {figure.metric: figure for figure in made}


def test_figures_are_those_that_are_listed() -> None:
    scores = scores_of(case(13))
    listed = list(METRICS["privacy"])
    made = list(figures_of(scores))
    others = (privacy.WITHIN_KIND, "ID distance", "reversibility", "rank-1 (failures as misses)", "failures to acquire")
    assert made == [name for name in listed if name not in others]
    assert "ID distance" in figures_of(scores_of(case(13), metric="euclidean"))
    assert reversibility(scores, scores, scores).metric == listed[-1]


@pytest.mark.parametrize("kind", ["nobody", "failed", "strangers"])
def test_nothing_to_find_gives_no_value_and_says_so(kind: str) -> None:
    matrix, who, enrolled, acquired = case(17)
    who[1:3], acquired[1:3] = 99, True
    acquired[5] = False
    scores = Scores.from_matrix(matrix, who, enrolled, acquired=acquired)
    mask = {"nobody": np.zeros(60, bool), "failed": ~acquired, "strangers": who == 99}[kind]
    group = scores.take(mask)
    made = figures_of(group)
    for name in ("rank-1", "AUC", "leak", "EER", "TAR@FAR=0.1", "ID cosine", "match rate", "D_sys"):
        assert made[name].value is None and made[name].note, name
    if kind == "failed":
        assert privacy.rank(group, failures=True).value == 0 and privacy.failures_to_acquire(group).value == 1
        assert made["rank-1"].note.startswith("None of")
