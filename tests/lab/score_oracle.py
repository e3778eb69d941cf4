"""Scores, ranks and rates by loops over a whole matrix, to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


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


def rank_odds(i: int, genuine: list[Any], impostor: list[Any], k: int, draws: int = 0) -> float:
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
