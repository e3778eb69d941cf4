"""How clearly a new face shows its kind, and what its code is moved by so that it does.

The mean of a group shows the group weakly: averaging takes away the crease of a lid and the bridge of a nose. So a
linear map says how the embedded reader reads a face that is made of a code, and a code is moved towards one whose face
reads as an ordinary person of its kind does. It is moved along the directions in which people of that age and gender
differ: a beard makes a man look older or of another group, and must not grow on a child. It goes a part of the way:
all of it hides the same and makes neutral faces gloomy.

Source: FICGAN, "Controllability on Facial Attributes" (directions of attributes in w); the closed form is the best
linear estimate of a code of which a reading is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.identity.kind import AGES, ETHNICITIES, GENDERS, READING, Kind, KindCodes

__all__ = ["Showing"]

Floats = NDArray[np.float32]
_GROWN = 18.0
"""Years from which on people count as grown up."""
_RIDGE_READS, _RIDGE_WANTED, _RIDGE_GAINS = 400.0, 2.0, 1.5
"""Penalties of the maps: of codes in standard deviations, of kinds, and share of a reading's variance. By 80 training
portraits: .1, from means shown once as clearly, keeps looks for .857 and not .818, and gloom is larger by .07."""
_CLEAR = (1.0, 1.3, 1.4)
"""How clearly ethnic group, gender and age are shown, in those of ordinary people."""
TERMS = len(ETHNICITIES) + 6
"""Numbers by which a kind predicts how its people are read."""


@dataclass(frozen=True, eq=False)
class Showing:
    """What a code [D] is moved by.

    Args:
        reads: float32 [9,D], what a code adds to a reading, see `logits`.
        wanted: float32 [9,TERMS], how people of a kind read, less what the kind of a source alone makes of it.
        gains: float32 [3,D,9], what a code must be moved by to raise each reading by one: for children, women, men.
    """

    reads: Floats
    wanted: Floats
    gains: Floats

    def check(self, size: int) -> None:
        """A ValueError where it is not for codes of this size."""
        shapes = (READING, size), (READING, TERMS), (3, size, READING)
        for (name, array), shape in zip(vars(self).items(), shapes, strict=True):
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(f"its {name} {list(array.shape)} should be {list(shape)}, and finite")

    def moved(self, w: NDArray[Any], kind: Kind) -> Floats:
        """The code [D] of a face that shows its kind. What is not kept of a kind stays as it was drawn."""
        reading = kind.reading
        missing = self.wanted @ _terms(reading[None])[0] - self.reads @ w
        kept = [not part.all() for part in (kind.ethnicity, kind.gender, kind.age)]
        missing = missing * np.repeat(kept, (len(ETHNICITIES), 1, 1))
        male, grown = float(reading[-2]), float(reading[-1]) >= _GROWN
        gain = np.tensordot((0.0, 1 - male, male) if grown else (1.0, 0.0, 0.0), self.gains, 1)
        return np.asarray(w + gain @ missing, np.float32)

    @classmethod
    def fit(
        cls,
        codes: NDArray[Any],
        kinds: Floats,
        found: Floats,
        own_kinds: Floats,
        own: Floats,
        people: KindCodes,
        free: NDArray[np.bool_],
    ) -> Showing:
        """Learn it from faces that were made.

        Args:
            codes: float [N,D] of new faces.
            kinds: float32 [N,9], the groups that they were drawn for, in the form of a reading.
            found: float32 [N,9], how the reader reads the new faces.
            own_kinds, own: float32 [M,9], groups and readings of the clear faces in whose place they stand.
            people: codes of real people, for the directions in which they differ.
            free: bool [D], which numbers may be moved.
        """
        z, terms, y, size = codes[:, free].astype(np.float64), _terms(kinds), logits(found), int(free.sum())
        mean, scale = z.mean(0), z.std(0) + 1e-6
        x = np.concatenate([(z - mean) / scale, terms[:, 1:]], 1)
        middle = x.mean(0)
        solved = _ridge(x - middle, y - y.mean(0), _RIDGE_READS)
        reads = solved[:size] / scale[:, None]
        alone = np.vstack([y.mean(0) - middle @ solved - mean @ reads, solved[size:]])
        target, t = logits(own), _terms(own_kinds)
        slopes = _ridge(t[:, 1:], target - target.mean(0), _RIDGE_WANTED) * np.repeat(_CLEAR, (len(ETHNICITIES), 1, 1))
        wanted = np.vstack([target.mean(0), slopes]) - alone
        gains = np.zeros((3, len(free), READING))
        for gain, apart in zip(gains, _apart(people, free), strict=True):
            shared = apart.T @ (apart @ reads) / len(apart)
            spread = reads.T @ shared
            gain[free] = shared @ np.linalg.pinv(spread + _RIDGE_GAINS * np.diag(np.diag(spread)))
        whole = np.zeros((READING, len(free)))
        whole[:, free] = reads.T
        return cls(whole.astype(np.float32), wanted.T.astype(np.float32), gains.astype(np.float32))


def logits(readings: NDArray[Any]) -> NDArray[np.float64]:
    """Readings [N,9] as numbers that add up: log shares less their mean, logit of P(male), age in years."""
    groups = len(ETHNICITIES)
    shares = np.log(np.clip(readings[:, :groups].astype(np.float64), 1e-6, 1))
    male = np.clip(readings[:, groups : groups + 1].astype(np.float64), 1e-6, 1 - 1e-6)
    return np.concatenate([shares - shares.mean(1, keepdims=True), np.log(male / (1 - male)), readings[:, -1:]], 1)


def _terms(kinds: NDArray[Any]) -> NDArray[np.float64]:
    """[N,TERMS] of kinds in the form of readings [N,9]; a boy is read as a man less clearly than his father."""
    groups = len(ETHNICITIES)
    shares, male = kinds[:, :groups] - 1 / groups, kinds[:, groups : groups + 1] - 0.5
    years, young = (kinds[:, -1:] - 35) / 20, np.clip(_GROWN - kinds[:, -1:], 0, _GROWN) / _GROWN
    parts = [np.ones((len(kinds), 1)), shares, male, years, young, male * years, male * young]
    return np.concatenate(parts, 1).astype(np.float64)


def _ridge(x: NDArray[np.float64], y: NDArray[np.float64], penalty: float) -> NDArray[np.float64]:
    return np.asarray(np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y), np.float64)


def _apart(people: KindCodes, free: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """How children, women and men [M,free] differ from the mean of their own cells."""
    known = people.cell >= 0
    cell, codes = people.cell[known], people.codes[known][:, free].astype(np.float64)
    sums = np.zeros((int(cell.max()) + 1, codes.shape[1]))
    np.add.at(sums, cell, codes)
    apart = codes - (sums / np.maximum(np.bincount(cell), 1)[:, None])[cell]
    age, gender = cell % len(AGES), cell // len(AGES) % len(GENDERS)
    child = age <= AGES.index("10-19")
    return [apart[child], apart[~child & (gender == 0)], apart[~child & (gender == 1)]]
