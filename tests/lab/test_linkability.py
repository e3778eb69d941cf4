"""Linkability and reversibility against their equations, theory, and scipy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.lab.metrics import identification as ident
from ficgan.lab.metrics.intervals import Bootstrap, wilson
from ficgan.lab.metrics.linkability import linkability, local_linkability
from ficgan.lab.metrics.privacy import reversibility
from ficgan.lab.metrics.scores import Scores

FEW = Bootstrap(50)


def d_sys(genuine: NDArray[Any], impostor: NDArray[Any], bins: int, omega: float = 1.0) -> float:
    """Equations 8 and 10, bin by bin."""
    edges = np.linspace(min(genuine.min(), impostor.min()), max(genuine.max(), impostor.max()), bins + 1)
    p = np.histogram(genuine, edges)[0] / len(genuine)
    q = np.histogram(impostor, edges)[0] / len(impostor)
    total = 0.0
    for a, b in zip(p, q, strict=True):
        if a > 0 and b == 0:
            total += a
        elif b > 0 and omega * a / b > 1:
            ratio = omega * a / b
            total += a * (2 * ratio / (1 + ratio) - 1)
    return total


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0])
@pytest.mark.parametrize("omega", [1.0, 0.2])
def test_linkability_is_the_equation(shift: float, omega: float) -> None:
    rng = np.random.default_rng(4)
    people = np.arange(1000)
    matrix = rng.normal(size=(1000, 1000)) + shift * np.eye(1000)
    scores = Scores.from_matrix(matrix, people, people)
    expected = d_sys(np.diag(matrix), matrix[~np.eye(1000, dtype=bool)], 100, omega)
    assert linkability(scores, omega=omega, bootstrap=FEW).value == pytest.approx(expected, abs=1e-6)


def test_linkability_of_gaussians_is_the_integral() -> None:
    """∫ p (p − q)/(p + q) over p > q, with p and q a distance apart."""
    rng = np.random.default_rng(5)
    people = np.repeat(np.arange(60), 25)
    s = np.linspace(-8, 14, 20001)
    for shift in (0.0, 1.0, 2.0, 9.0):
        matrix = (rng.normal(size=(1500, 1500)) + shift * (people[:, None] == people)).astype("f4")
        p, q = scipy.stats.norm.pdf(s, shift), scipy.stats.norm.pdf(s)
        expected = np.trapezoid(np.where(p > q, p * (p - q) / (p + q), 0), s)
        figure = linkability(Scores.from_matrix(matrix, people, people), bootstrap=FEW)
        assert figure.value == pytest.approx(expected, abs=0.015)
        if shift == 0:
            assert figure.value < 0.02 and figure.value == pytest.approx(float(figure.note.split()[-1][:-1]), abs=0.005)


def test_linkability_of_separate_scores_is_one() -> None:
    rng = np.random.default_rng(6)
    people = np.repeat(np.arange(30), 3)
    scores = Scores.from_matrix(rng.random((90, 90)) + 5 * (people[:, None] == people), people, people)
    figure = linkability(scores)
    assert figure.value == 1 and figure.low == pytest.approx(wilson(30, 30)[0])
    local = np.array(local_linkability(scores))
    assert set(local[:, 1]) == {0.0, 1.0} and (local[local[:, 0] > 4, 1] == 1).sum() >= 1


def test_linkability_needs_scores_for_a_histogram() -> None:
    people = np.arange(19)
    few = Scores.from_matrix(np.random.default_rng(0).random((19, 19)), people, people)
    assert linkability(few).value is None and "20 are needed" in linkability(few).note
    assert local_linkability(few) == []
    with pytest.raises(UsageError, match="prior odds"):
        linkability(few, omega=0)


def with_ranks(found: list[list[int]], enrolled: int = 20) -> Scores:
    """Probes of which each 1 ranks first and each 0 does not, by identity."""
    who = np.concatenate([[person] * len(some) for person, some in enumerate(found)])
    matrix = np.zeros((len(who), enrolled))
    for row, (person, hit) in enumerate(zip(who, np.concatenate(found), strict=True)):
        matrix[row, person if hit else (person + 1) % enrolled] = 1
    return Scores.from_matrix(matrix, who, np.arange(enrolled))


def test_reversibility_is_the_regained_share() -> None:
    clear = with_ranks([[1, 1], [1, 1], [1, 1], [0, 0]])  # .75
    naive = with_ranks([[0, 0], [1, 0], [0, 0], [0, 0]])  # .125
    reverse = with_ranks([[1, 1], [1, 0], [1, 0], [0, 0]])  # .5
    figure = reversibility(clear, naive, reverse)
    assert figure.value == pytest.approx((0.5 - 0.125) / 0.75)
    assert "0.75 clear, 0.125 anonymised, 0.5 de-anonymised" in figure.note
    assert reversibility(clear, naive, naive).value == 0
    lost = reversibility(clear, reverse, naive).value
    assert lost is not None and lost < 0


def test_reversibility_resamples_the_same_people_in_all_three() -> None:
    """What is gained by every person alike has no spread, however much people differ."""
    clear = with_ranks([[1, 1, 1, 1]] * 16)
    naive = with_ranks([[1, 1, 0, 0], [1, 0, 0, 0]] * 8)
    reverse = with_ranks([[1, 1, 1, 0], [1, 1, 0, 0]] * 8)
    figure = reversibility(clear, naive, reverse)
    assert figure.value == pytest.approx(0.25)
    assert figure.low == pytest.approx(0.25) and figure.high == pytest.approx(0.25)
    spread = ident.rank(naive)
    assert spread.high is not None and spread.low is not None and spread.high - spread.low > 0.05


def test_reversibility_against_scipys_paired_bootstrap() -> None:
    rng = np.random.default_rng(9)
    rates = [rng.integers(0, 2, (40, 5)).tolist() for _ in range(3)]
    rates[0] = np.maximum(rates[0], rng.integers(0, 2, (40, 5))).tolist()
    three = [np.mean(one, axis=1) for one in rates]
    figure = reversibility(*(with_ranks(one, 50) for one in rates), bootstrap=Bootstrap(4000))  # type: ignore[misc]
    reference = scipy.stats.bootstrap(
        three, lambda c, n, r, axis: (r.mean(axis) - n.mean(axis)) / c.mean(axis),
        paired=True, vectorized=True, method="percentile", n_resamples=4000, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert figure.low == pytest.approx(reference.low, abs=0.02)
    assert figure.high == pytest.approx(reference.high, abs=0.02)


def test_reversibility_refuses_what_cannot_be_compared() -> None:
    with pytest.raises(InputError, match="different people"):
        reversibility(with_ranks([[1], [1]]), with_ranks([[1], [1]]), with_ranks([[1], [1], [1]]))
    none = with_ranks([[0], [0]])
    assert reversibility(none, none, none).value is None
    weak = with_ranks([[1], *[[0]] * 19])
    assert "by guessing" in reversibility(weak, weak, weak).note
