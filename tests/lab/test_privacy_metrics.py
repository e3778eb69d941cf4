"""Privacy metrics against scikit-learn, SciPy, closed forms and their equations; scores against loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score, roc_curve

from ficgan.errors import InputError
from ficgan.lab.metrics import METRICS, Bootstrap, privacy, wilson
from ficgan.lab.metrics.privacy import Scores, hits, linkability, privacy_figures, reversibility
from ficgan.lab.results import Figure


def pairs(
    matrix: NDArray[Any], people: NDArray[Any], enrolled: NDArray[Any], acquired: NDArray[Any], same: bool
) -> tuple[list[tuple[int, float]], list[tuple[int, int, float]]]:
    """Genuine (probe, score) and impostor (probe, person, score) of a matrix [P,G]."""
    genuine, impostor = [], []
    for i in range(matrix.shape[0]):
        for j in range(matrix.shape[1]):
            if not acquired[i] or (same and (i == j or not acquired[j])):
                continue
            if people[i] == enrolled[j]:
                genuine.append((i, float(matrix[i, j])))
            else:
                impostor.append((i, int(enrolled[j]), float(matrix[i, j])))
    return genuine, impostor


def rank_odds(i: int, genuine: list[Any], impostor: list[Any], k: int) -> float:
    """Probability that probe i's person is among the k first, by writing out every order of the tied."""
    own = [score for probe, score in genuine if probe == i]
    if not own:
        return 0.0
    others: dict[int, float] = {}
    for probe, person, score in impostor:
        if probe == i:
            others[person] = max(score, others.get(person, -np.inf))
    better = sum(score > max(own) for score in others.values())
    tied = sum(score == max(own) for score in others.values())
    places = [better + 1 + before for before in range(tied + 1)]  # equally likely
    return float(np.mean([place <= k for place in places]))


FEW = Bootstrap(50)


def case(seed: int, values: int = 0, shift: float = 1.0) -> Any:
    """Matrix, people, enrolled, acquired; genuine scores are `shift` higher; `values` > 0: that many different ones."""
    rng = np.random.default_rng(seed)
    who, enrolled = rng.integers(0, 12, 60), rng.integers(0, 12, 50)
    enrolled[:2] = 0, 1
    who[0] = 0
    matrix = rng.normal(size=(60, 50)) + shift * (who[:, None] == enrolled)
    if values:
        matrix = np.clip(np.round(matrix * values / 6), -values // 2, values // 2)
    acquired = rng.random(60) < 0.85
    acquired[0] = True
    return matrix, who, enrolled, acquired


def labelled(made: Any) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    genuine, impostor = pairs(*made, False)
    labels = np.r_[np.ones(len(genuine), int), np.zeros(len(impostor), int)]
    return labels, np.array([score for *_, score in genuine] + [score for *_, score in impostor])


def scores_of(made: Any, **more: Any) -> Scores:
    matrix, who, enrolled, acquired = made
    return Scores.from_matrix(matrix, who, enrolled, acquired=acquired, **more)


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


def figures_of(scores: Scores, **more: Any) -> dict[str, Figure]:
    made = privacy_figures(scores, **{"threshold": 0.5, "bootstrap": FEW, **more})
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


People = NDArray[np.int64]


@st.composite
def cases(draw: Any) -> tuple[NDArray[np.float64], People, People, NDArray[np.bool_], bool]:
    """Few values, so that many scores are equal."""
    some_people = st.lists(st.integers(0, 4), min_size=1, max_size=9).map(np.array)
    same = draw(st.booleans())
    people = draw(some_people)
    enrolled = people if same else draw(some_people)
    acquired = np.array(draw(st.lists(st.booleans(), min_size=len(people), max_size=len(people))))
    seed = draw(st.integers(0, 2**16))
    matrix = np.random.default_rng(seed).integers(0, draw(st.sampled_from([1, 3, 50])), (len(people), len(enrolled)))
    return matrix.astype(np.float64), people, enrolled, acquired, same


@given(st.lists(cases(), min_size=12, max_size=12))
def test_everything_read_off_a_matrix_is_what_loops_find(many: list[Any]) -> None:
    for matrix, people, enrolled, acquired, same in many:
        count = {person: int((enrolled == person).sum()) for person in enrolled}
        findable = [count.get(person, 0) > same for person in people]
        if len(count) < 2 or not any(findable):
            with pytest.raises(InputError):
                Scores.from_matrix(matrix, people, enrolled, acquired=acquired, exclude_same=same)
            continue
        scores = Scores.from_matrix(matrix, people, enrolled, acquired=acquired, exclude_same=same)
        genuine, impostor = pairs(matrix, people, enrolled, acquired, same)
        values = np.array([score for *_, score in impostor])
        assert sorted(zip(np.nonzero(scores.genuine_at)[0], scores.genuine, strict=True)) == sorted(genuine)
        assert scores.impostors.tolist() == sorted(values)
        assert scores.enrolled == len(np.unique(enrolled[acquired] if same else enrolled))
        for i, person in enumerate(people):
            check_probe(scores, i, person, genuine, impostor)


def check_probe(scores: Scores, i: int, person: int, genuine: list[Any], impostor: list[Any]) -> None:
    """One probe's figures, from lists of all pairs."""
    own = [score for probe, score in genuine if probe == i]
    others: dict[int, float] = {}
    for probe, other, score in impostor:
        if probe == i:
            others[other] = max(score, others.get(other, -np.inf))
    assert bool(scores.mated[i]) == bool(own)
    assert scores.best_genuine[i] == max(own) if own else np.isnan(scores.best_genuine[i])
    assert scores.impostor_pairs[i].sum() == sum(probe == i for probe, *_ in impostor)
    for k in (1, 2, 3):
        assert hits(scores, k)[i] == pytest.approx(rank_odds(i, genuine, impostor, k))
    for threshold in (-1.0, 1.0, 7.5):
        above, at = scores.strangers(np.full(len(scores), threshold))
        assert above[i] == sum(score > threshold for score in others.values())
        assert at[i] == sum(score == threshold for score in others.values())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_embeddings_are_compared_as_the_formula_says(rng: np.random.Generator, metric: Any) -> None:
    people, enrolled = rng.integers(0, 30, 90), np.concatenate([np.arange(30), rng.integers(0, 30, 47)])
    probe, gallery = rng.normal(2, 3, (90, 24)), rng.normal(2, 3, (77, 24))
    if metric == "cosine":
        unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probe, gallery)]
        matrix = unit[0] @ unit[1].T
    else:
        matrix = -np.sqrt(((probe[:, None] - gallery[None]) ** 2).sum(2))
    whole = Scores.from_matrix(matrix, people, enrolled, metric=metric)
    scores = Scores.compare(probe, gallery, people, enrolled, metric=metric)
    assert (scores.rivals[0] == whole.rivals[0]).all() and (scores.rivals[1] == 0).all()
    for name in ("similarity", "best_genuine", "impostors"):
        np.testing.assert_allclose(getattr(scores, name), getattr(whole, name), atol=3e-6 * np.abs(matrix).max())


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
@pytest.mark.parametrize("size", [3, 128, 512])
def test_constant_embeddings_tie_exactly(rng: np.random.Generator, metric: Any, size: int) -> None:
    """A matrix product alone gives equal rows unequal scores: BLAS adds up the edges of a matrix in another order."""
    people = np.arange(101)
    probe = np.tile(rng.normal(size=size), (101, 1))
    for gallery in (probe, np.tile(rng.normal(size=size), (101, 1))):
        scores = Scores.compare(probe, gallery, people, people, metric=metric)
        assert (scores.rivals[0] == 0).all() and (scores.rivals[1] == 100).all()
        assert len(np.unique(scores.genuine)) == 1 and (scores.impostors == scores.genuine[0]).sum() == 101 * 100
    many = Scores.compare(
        np.tile(rng.normal(size=(3, 40)), (19, 1)), rng.normal(size=(57, 40)), people[:57], people[:57], metric=metric
    )
    for first in range(3):
        assert (many.similarity[first::3] == many.similarity[first]).all()


@pytest.mark.parametrize("same", [False, True])
def test_some_probes_are_what_they_would_be_alone(rng: np.random.Generator, same: bool) -> None:
    people = rng.integers(0, 12, 60)
    matrix = rng.integers(0, 40, (60, 60)).astype(float)
    acquired = rng.random(60) < 0.9
    scores = Scores.from_matrix(matrix, people, people, acquired=acquired, exclude_same=same)
    mask = rng.random(60) < 0.5
    some = scores.take(mask)
    seen = [(i, j) for i in np.flatnonzero(acquired & mask) for j in range(60) if not same or (i != j and acquired[j])]
    assert sorted(some.genuine) == sorted(matrix[i, j] for i, j in seen if people[i] == people[j])
    assert some.impostors.tolist() == sorted(matrix[i, j] for i, j in seen if people[i] != people[j])
    assert (some.rivals[0] == scores.rivals[0][mask]).all() and (some.people == people[mask]).all()
    inner = rng.random(mask.sum()) < 0.5
    again = some.take(inner)
    assert (again.rivals[0] == some.rivals[0][inner]).all() and len(again) == inner.sum()
    assert len(scores.take(np.zeros(60, bool))) == 0


GOOD = np.eye(4)
WHO = np.array([0, 0, 1, 1])


@pytest.mark.parametrize(
    "change",
    [
        {"probe": np.where(GOOD > 0, np.nan, 0)},
        {"gallery_people": np.zeros(4, int)},
        {"gallery_people": WHO + 7},
        {"exclude_same": True, "probe_people": np.arange(4), "gallery_people": np.arange(4)},
    ],
)
def test_bad_input_is_refused(change: dict[str, Any]) -> None:
    arguments: dict[str, Any] = {"probe": GOOD, "gallery": GOOD, "probe_people": WHO, "gallery_people": WHO}
    with pytest.raises(InputError):
        Scores.compare(**{**arguments, "metric": "cosine", **change})
