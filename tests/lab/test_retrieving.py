"""Several guesses at each probe: against slow loops over candidates and photos."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score

from ficgan.lab.attackers import Read, stranger_figures
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.results import Figure

BOOTSTRAP = Bootstrap(100, 0)


def by_name(figures: tuple[Figure, ...]) -> dict[str, Figure]:
    return {one.metric: one for one in figures}


def made(seed: int, probes: int = 12, guesses: int = 5, people: int = 8, photos: int = 2, noise: float = 1.2) -> Read:
    """People are directions; guesses are noisy; the judge is Euclidean."""
    rng = np.random.default_rng(seed)
    who = rng.normal(size=(people, 6))
    enrolled = np.repeat(np.arange(people), photos)
    gallery = who[enrolled] + rng.normal(size=(len(enrolled), 6)) * 0.3
    shown = np.arange(probes) % people
    seen = who[shown][:, None] + rng.normal(size=(probes, guesses, 6)) * noise
    return Read(seen.astype(np.float32), shown, gallery.astype(np.float32), enrolled, "euclidean")


def slow(read: Read, guesses: int | None = None) -> list[int]:
    """Each guess names the person of its nearest photo; most win, of several the nearest."""
    found = []
    for probe in read.candidates[:, :guesses]:
        named: list[tuple[float, int]] = []
        for guess in probe:
            named.append(
                min(
                    (float(np.linalg.norm(guess - photo)), int(who))
                    for photo, who in zip(read.gallery, read.enrolled, strict=True)
                )
            )
        votes = Counter(who for _, who in named)
        most = max(votes.values())
        found.append(min((far, who) for far, who in named if votes[who] == most)[1])
    return found


@given(st.integers(0, 10**6))
def test_names_are_those_of_a_slow_vote(seed: int) -> None:
    read = made(seed)
    assert read.names().tolist() == slow(read) and read.names(1).tolist() == slow(read, 1)


@given(st.integers(0, 10**6), st.floats(0.1, 3))
def test_strangers_are_told_by_thresholds_of_other_people(seed: int, noise: float) -> None:
    read = made(seed, probes=24, noise=noise)
    known = np.arange(0, 8, 2)
    figures, curve = stranger_figures(read, known, BOOTSTRAP)
    found = by_name(figures)
    stranger = ~np.isin(read.people, known)
    least = [
        min(
            np.linalg.norm(guess - photo)
            for guess in probe
            for photo, who in zip(read.gallery, read.enrolled, strict=True)
            if who in known
        )
        for probe in read.candidates
    ]
    assert found["stranger AUC"].value == pytest.approx(roc_auc_score(stranger, least), abs=1e-6)
    tpr, fpr = found["stranger TPR"], found["stranger FPR"]
    share = (tpr.value * tpr.n + (1 - fpr.value) * fpr.n) / 24  # type: ignore[operator]
    assert found["stranger accuracy"].value == pytest.approx(share)
    assert curve[0] == [0.0, 0.0] and curve[-1] == [1.0, 1.0]
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(curve))


def test_thresholds_do_not_flatter_where_there_is_nothing_to_tell() -> None:
    """Guesses that show nobody: whoever chooses the threshold on the tested people themselves tells some apart."""
    balanced, flattered = [], []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        seen, gallery = rng.normal(size=(32, 1, 2)), rng.normal(size=(16, 2)) * 0.1
        shown = np.arange(32) % 16
        read = Read(seen.astype(np.float32), shown, gallery.astype(np.float32), np.arange(16), "euclidean")
        figures, curve = stranger_figures(read, np.arange(8), Bootstrap(2, 0))
        found = by_name(figures)
        balanced.append((found["stranger TPR"].value - found["stranger FPR"].value + 1) / 2)  # type: ignore[operator]
        flattered.append(max((tpr - fpr + 1) / 2 for fpr, tpr in curve))
    assert np.mean(balanced) == pytest.approx(0.5, abs=0.04) and np.mean(flattered) > 0.56
