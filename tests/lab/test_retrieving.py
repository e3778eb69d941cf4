"""Several guesses at each probe: against slow loops over candidates and photos."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ficgan.lab.attackers import Read
from ficgan.lab.attacks.revelio import ood_curve
from ficgan.lab.papers.revelio import thresholds_apart


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


def test_thresholds_do_not_flatter_where_there_is_nothing_to_tell() -> None:
    """Distances that say nothing: whoever chooses the threshold on the tested people themselves tells some apart."""
    balanced, flattered = [], []
    people, stranger = np.arange(32), np.arange(32) >= 16
    for seed in range(40):
        least = np.random.default_rng(seed).normal(size=32)
        thresholds, note = thresholds_apart(least, stranger, people, 0)
        flagged = least > thresholds
        balanced.append((flagged[stranger].mean() - flagged[~stranger].mean() + 1) / 2)
        curve = ood_curve(least[~stranger], least[stranger])
        flattered.append(((curve.tpr - curve.fpr).max() + 1) / 2)
        assert "other half" in note and len(np.unique(thresholds)) <= 2
    assert np.mean(balanced) == pytest.approx(0.5, abs=0.04) and np.mean(flattered) > 0.56
    assert "too good" in thresholds_apart(least[13:19], stranger[13:19], people[13:19], 0)[1]
