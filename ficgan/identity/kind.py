"""The kind of a person, which a new identity keeps: ethnic group, gender and decade of age, read once and quantised.

A kind is a set of cells of the table ethnic group × gender × decade. A k-same draw takes its members from them, or from
neighbouring ones where k asks for more, each moved by the difference of the cells' mean codes. So the group is all that
a new identity knows of its source. As averaging shows a group weakly, `Showing` moves a code a part of the way to one
that is read as an ordinary person of its kind (all of it makes neutral faces gloomy), along the directions in which
people of that age and gender differ: a beard must not grow on a child.

Source: FICGAN, "Controllability on Facial Attributes"; the groups are those of FairFace (Kärkkäinen & Joo 2021). The
closed form of `Showing` is the best linear estimate of a code of which a reading is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import read_arrays, ridge, write_arrays
from ficgan.errors import FicganError, UsageError
from ficgan.identity.ksame import CAP_PERCENTILE, CHUNK, mean_of

Floats = NDArray[np.float32]
Array = NDArray[Any]
Mask = NDArray[np.bool_]

ETHNICITIES = ("Black", "East Asian", "Indian", "Latino_Hispanic", "Middle Eastern", "Southeast Asian", "White")
GENDERS = ("Female", "Male")
AGES = ("0-2", "3-9", "10-19", "20-29", "30-39", "40-49", "50-59", "60-69", "70+")
PARTS = ("ethnicity", "gender", "age")  # parts of a kind that can be kept; in this order a kind's cells are counted
YEARS = np.array([1, 6, 15, 25, 35, 45, 55, 65, 75], np.float32)  # middle of each age band
_SHAPE = (len(ETHNICITIES), len(GENDERS), len(AGES))
CELLS = int(np.prod(_SHAPE))
READING = len(ETHNICITIES) + 2  # numbers of a reading: the share of each ethnic group, P(male), age in years
MALE, AGE = READING - 2, READING - 1  # columns of a reading that are no ethnic group's
# The reading of somebody of no known kind.
UNKNOWN = np.array([*[1 / len(ETHNICITIES)] * len(ETHNICITIES), 0.5, 35.0], np.float32)
TERMS = len(ETHNICITIES) + 6  # numbers by which a kind predicts how its people are read
# Ages, years, and the shares of recognisers' thresholds that count there. Of strangers .55 are one person to dlib below
# 4 years, .45 below 7, .21 below 12, .13 below 18, and .06 to .07 of grown-ups of one gender. With .67 of the threshold
# it would be about as few of babies; .75 is stricter.
_ALIKE = (6.0, 10.0, 15.0, 20.0), (0.75, 0.87, 0.92, 1.0)
_CHILDHOOD = 2  # how many of the AGES are small children's
_GROWN = 18.0  # years from which on people count as grown up
# Ethnic groups by how often FairFace's labels and readers take one for the other: the order of widening.
_NEIGHBOURS = {
    "Black": ("Latino_Hispanic", "Indian", "Middle Eastern", "Southeast Asian", "White", "East Asian"),
    "East Asian": ("Southeast Asian", "Latino_Hispanic", "Indian", "White", "Middle Eastern", "Black"),
    "Indian": ("Middle Eastern", "Latino_Hispanic", "Southeast Asian", "Black", "White", "East Asian"),
    "Latino_Hispanic": ("Middle Eastern", "White", "Indian", "Southeast Asian", "East Asian", "Black"),
    "Middle Eastern": ("Latino_Hispanic", "White", "Indian", "Southeast Asian", "Black", "East Asian"),
    "Southeast Asian": ("East Asian", "Latino_Hispanic", "Indian", "Middle Eastern", "White", "Black"),
    "White": ("Middle Eastern", "Latino_Hispanic", "Indian", "East Asian", "Southeast Asian", "Black"),
}
# The same as numbers [7,6].
_NEAR = np.array([[ETHNICITIES.index(name) for name in _NEIGHBOURS[group]] for group in ETHNICITIES])

# Share of the first ethnic group below which the second one counts, too, and how far P(male) may lie from one half for
# the person to be of both genders.
_UNSURE_ETHNICITY, _UNSURE_GENDER = 0.5, 0.1
CLEAR = 2.0  # how clearly a new face shows its kind, in differences of the mean codes
_SHOWN = (1.0, 1.3, 1.4)  # how clearly `Showing` shows ethnic group, gender and age, in differences of ordinary people
# Ages, and how much older they are shown than the reader asks for: it learnt from small faces, which have no wrinkles.
_AGED = (35.0, 60.0), (0.0, 18.0)
_RIDGE = 20.0  # penalty of the map from cells to mean codes, people
# Penalties of the maps of `Showing`: of codes in standard deviations, of kinds, and share of a reading's variance. By
# 80 portraits: gains .1, from means shown once as clearly, keeps looks for .857 and not .818; gloom is larger by .07.
_READS, _WANTED, _GAINS = 400.0, 2.0, 1.5


@dataclass(frozen=True, eq=False)
class Kind:
    """A group of people: bool [7], [2], [9], which belong to it; all where a part is not kept."""

    ethnicity: Mask
    gender: Mask
    age: Mask

    @classmethod
    def of(cls, reading: Floats, parts: Sequence[str] = PARTS) -> Kind:
        """The group of a reading [9] of `KindReader`: two ethnic groups, or both genders, where it is unsure."""
        shares, male, years = reading[: len(ETHNICITIES)], float(reading[MALE]), float(reading[AGE])
        first, second = np.argsort(shares)[::-1][:2]
        ethnicity = np.arange(len(ETHNICITIES)) == first
        if shares[first] < _UNSURE_ETHNICITY:
            ethnicity[second] = True
        gender = np.array([male < 0.5 + _UNSURE_GENDER, male > 0.5 - _UNSURE_GENDER])
        age = np.arange(len(AGES)) == np.abs(YEARS - years).argmin()
        masks = zip(PARTS, (ethnicity, gender, age), strict=True)
        return cls(*(mask if part in parts else np.ones_like(mask) for part, mask in masks))

    @classmethod
    def of_cell(cls, cell: int) -> Kind:
        return cls(*(np.arange(size) == at for size, at in zip(_SHAPE, np.unravel_index(cell, _SHAPE), strict=True)))

    @classmethod
    def everybody(cls) -> Kind:
        return cls(*(np.ones(size, bool) for size in _SHAPE))

    @property
    def masks(self) -> tuple[Mask, Mask, Mask]:
        return self.ethnicity, self.gender, self.age

    @property
    def cells(self) -> Mask:
        """bool [126], which cells belong to it."""
        return np.asarray((self.ethnicity[:, None, None] & self.gender[:, None] & self.age).ravel())

    @property
    def reading(self) -> Floats:
        """float32 [9], the group in the form of a reading, as input of a network."""
        shares = self.ethnicity / self.ethnicity.sum()
        return np.array([*shares, self.gender[1] / self.gender.sum(), YEARS[self.age].mean()], np.float32)

    @property
    def name(self) -> str:
        """Tells one kind from another, for the key of a draw."""
        return "/".join("".join(map(str, np.flatnonzero(mask))) for mask in self.masks)

    def within(self, wanted: Mapping[str, bool]) -> Kind:
        """The kind with what attributes ask for (True) and exclude (False); what they name replaces the source's."""
        parts = []
        for names, mask in zip((ETHNICITIES, GENDERS, AGES), self.masks, strict=True):
            asked = np.array([wanted.get(name) is True for name in names])
            allowed = asked if asked.any() else np.array([wanted.get(name) is not False for name in names])
            parts.append(mask & allowed if (mask & allowed).any() else allowed)
        return Kind(*parts)

    def loosened(self, decades: int, neighbours: int = 0) -> Kind:
        """The same with so many decades more on either side, and so many neighbours of each ethnic group.

        A small child never becomes a grown-up, but may get the face of a girl or a boy: they differ less.
        """
        age, ethnicity, gender = self.age, self.ethnicity.copy(), self.gender
        for _ in range(decades):
            age = _wider(age)
        if decades and not self.age[_CHILDHOOD:].any():
            age, gender = age & (np.arange(len(age)) < _CHILDHOOD), np.ones_like(gender)
        for group in np.flatnonzero(self.ethnicity):
            ethnicity[_NEAR[group, :neighbours]] = True
        return Kind(ethnicity, gender, age)

    def widenings(self) -> list[tuple[str, Kind]]:
        """Larger and larger kinds, each with what was widened last: decades one by one, then ethnic groups."""
        found, ethnicity = [("", self)], self.ethnicity
        while not found[-1][1].age.all():
            found.append(("decades", Kind(ethnicity, self.gender, _wider(found[-1][1].age))))
        for group in dict.fromkeys(_NEAR[ethnicity].T.ravel()):
            if not ethnicity[group]:
                ethnicity = ethnicity | (np.arange(len(ethnicity)) == group)
                found.append(("ethnic groups", Kind(ethnicity, self.gender, found[-1][1].age)))
        return found

    @cached_property
    def moves(self) -> Floats:
        """float32 [126,126], to which cells of the kind, in equal shares, a person of each cell is moved."""
        parts = [np.where(mask[:, None], np.eye(len(mask)), mask / mask.sum()) for mask in self.masks]
        return np.asarray(np.kron(np.kron(parts[0], parts[1]), parts[2]), np.float32)


def _wider(age: Mask) -> Mask:
    """The decades, and those beside them."""
    return age | np.r_[age[1:], False] | np.r_[False, age[:-1]]


def cells_of(attributes: NDArray[np.uint8], names: Sequence[str]) -> NDArray[np.int64] | None:
    """Cells int64 [N] of people of an attribute table [N,A], −1 where a label is missing; None without the names."""
    column = {name: index for index, name in enumerate(names)}
    parts = []
    for group in (ETHNICITIES, GENDERS, AGES):
        if any(name not in column for name in group):
            return None
        has = attributes[:, [column[name] for name in group]] != 0
        parts.append(np.where(has.sum(1) == 1, has.argmax(1), -1))
    cell = np.ravel_multi_index(tuple(np.maximum(part, 0) for part in parts), _SHAPE)
    return np.where(np.min(parts, 0) < 0, -1, cell)


@dataclass(frozen=True, eq=False)
class KindCodes:
    """Codes [N,D] of people of known kinds (cell [N] of `cells_of`), from which the members of a kind are drawn."""

    codes: Array
    cell: NDArray[np.int64]

    def members(self, kind: Kind, eligible: NDArray[np.int64] | None = None) -> NDArray[np.int64]:
        """int64 [M], ascending, who belongs to a kind, of all or of the eligible ones."""
        inside = np.append(kind.cells, kind.cells.all())[self.cell]  # −1 is the last: of no kind but everybody's
        return np.flatnonzero(inside) if eligible is None else eligible[inside[eligible]]

    def group(self, kind: Kind, least: int, eligible: NDArray[np.int64] | None = None) -> KindGroup:
        """The people of a kind, or of the least widened one that has so many; all that there are where none has."""
        people = len(self.members(kind, eligible))
        steps = [(widened, self.members(larger, eligible)) for widened, larger in kind.widenings()]
        widened, index = next((step for step in steps if len(step[1]) >= least), steps[-1])
        return KindGroup(self, kind, index, people, widened)

    @cached_property
    def sums(self) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Sum of the codes of each cell [126,D], and how many people it has [126]."""
        known = np.flatnonzero(self.cell >= 0)
        known = known[np.argsort(self.cell[known], kind="stable")]
        sums, people = np.zeros((CELLS, self.codes.shape[1])), np.bincount(self.cell[known], minlength=CELLS)
        starts = np.cumsum(people) - people
        sums[people > 0] = np.add.reduceat(self.codes[known], starts[people > 0], axis=0, dtype=np.float64)
        return sums, people

    @cached_property
    def means(self) -> NDArray[np.float64]:
        """Mean codes [126,D] of the cells, smoothed: ethnic group × gender, and age by each of the two."""
        sums, people = self.sums
        features = _features()
        penalty = np.diag([1e-9, *[_RIDGE] * (features.shape[1] - 1)])
        square = features.T @ (people[:, None] * features) + penalty
        return np.asarray(features @ np.linalg.solve(square, features.T @ sums))

    def apart(self, free: Mask) -> list[NDArray[np.float64]]:
        """Differences [M,free] of children, women and men from the mean of their own cells."""
        sums, people = self.sums
        means = (sums / np.maximum(people, 1)[:, None])[:, free]
        known = self.cell >= 0
        cell = self.cell[known]
        apart = self.codes[known][:, free].astype(np.float64) - means[cell]
        _, gender, age = np.unravel_index(cell, _SHAPE)
        child = age <= AGES.index("10-19")
        return [apart[child], apart[~child & (gender == 0)], apart[~child & (gender == 1)]]

    def usual(self, kind: Kind) -> NDArray[np.float64]:
        """Mean code [D] of a kind."""
        return np.asarray(self.means[kind.cells].mean(0))

    def mean(self, kind: Kind) -> NDArray[np.float64]:
        """The same as clear as a new identity shows it."""
        middle = self.means.mean(0)
        return np.asarray(middle + CLEAR * (self.usual(kind) - middle))


@dataclass(frozen=True, eq=False)
class KindGroup:
    """The people that a new identity of a kind is drawn from, each moved to the kind."""

    known: KindCodes
    kind: Kind
    index: NDArray[np.int64]  # [M], ascending
    people: int  # of them that belong to the kind itself
    widened: str  # the part that was widened last, see `Kind.widenings`

    @property
    def record(self) -> dict[str, Any]:
        """For a record: the power of two below the number of people, as the number itself would name the group."""
        return {"people_at_least": 1 << max(self.people.bit_length() - 1, 0), "widened": self.widened}

    @cached_property
    def moves(self) -> NDArray[np.float64]:
        """[127,D], what the code of a person of each cell is moved by, and last that of an unknown one."""
        means = self.known.means
        clearer = self.known.mean(self.kind) - self.known.usual(self.kind)
        return np.vstack([self.kind.moves @ means - means + clearer, clearer])

    def moved(self, chosen: NDArray[np.int64]) -> NDArray[np.float64]:
        """Move [D] of the mean code of the chosen people to the kind."""
        share = np.bincount(self.known.cell[chosen] % (CELLS + 1), minlength=CELLS + 1) / len(chosen)
        return np.asarray(share @ self.moves)

    @cached_property
    def spread(self) -> tuple[NDArray[np.float64], float]:
        """Centre [D] of their moved codes, and the distance within which CAP_PERCENTILE per cent of some lie."""
        known, index = self.known, self.index
        centre = mean_of(known.codes, index) + self.moved(index)
        some = index[:: max(1, len(index) // CHUNK)]
        away = np.linalg.norm(known.codes[some] + self.moves[known.cell[some]] - centre, axis=1)
        return centre, float(np.percentile(away, CAP_PERCENTILE))


def _features() -> NDArray[np.float64]:
    """[126,F], what the mean code of a cell depends on."""
    ethnicity, gender, age = (part.ravel() for part in np.indices(_SHAPE))
    groups = np.eye(len(ETHNICITIES))[ethnicity]
    sides = np.eye(len(GENDERS))[gender]
    grown = (YEARS[age, None] - 35) / 30
    curve = np.concatenate([grown, grown**2 - 0.4, grown**3 - grown, (YEARS[age, None] < 12).astype(float)], 1)
    both = (groups[:, :, None] * sides[:, None]).reshape(CELLS, -1)
    by = np.concatenate([np.ones((CELLS, 1)), sides, groups], 1)
    return np.concatenate([np.ones((CELLS, 1)), both, (by[:, :, None] * curve[:, None]).reshape(CELLS, -1)], 1)


@dataclass(frozen=True, eq=False)
class KindReader:
    """Reads the kind of a person from the gate's embedding: three layers, the last of 7 + 1 + 9 outputs."""

    mean: Floats
    scale: Floats
    weights: tuple[Floats, ...]
    biases: tuple[Floats, ...]

    def read(self, embeddings: Floats) -> Floats:
        """float32 [B,9]: shares of the ethnic groups, P(male), age in years; embeddings [B,E] are dlib's."""
        x = (embeddings - self.mean) / self.scale
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            x = x @ weight + bias
            x = x / (1 + np.exp(-np.clip(x, -30, 30)))
        shares, male, age = np.split(x @ self.weights[-1] + self.biases[-1], [MALE, AGE], 1)
        male = 1 / (1 + np.exp(-np.clip(male, -30, 30)))
        return np.concatenate([_softmax(shares), male, _softmax(age) @ YEARS[:, None]], 1).astype(np.float32)

    def save(self, path: str | Path) -> None:
        arrays = {f"weight.{n}": weight for n, weight in enumerate(self.weights)}
        arrays |= {f"bias.{n}": bias for n, bias in enumerate(self.biases)} | {"mean": self.mean, "scale": self.scale}
        write_arrays(path, {name: array.astype(np.float16) for name, array in arrays.items()}, {}, kind="kind-reader")

    @classmethod
    def load(cls, path: str | Path) -> KindReader:
        arrays = {name: a.astype(np.float32) for name, a in read_arrays(path, kind="kind-reader")[0].items()}
        try:
            layers = [(arrays[f"weight.{n}"], arrays[f"bias.{n}"]) for n in range(3)]
            return cls(arrays["mean"], arrays["scale"], *zip(*layers, strict=True))
        except KeyError as error:
            raise FicganError(f"{path} is damaged: it lacks {error}; install ficgan again") from None


@lru_cache(maxsize=1)
def kind_reader() -> KindReader:
    import ficgan.pretrained as pretrained

    return KindReader.load(pretrained.path("kind"))


def match_share(reading: Floats | None) -> float:
    """Share of a recogniser's threshold that counts for a reading [9] of a source: small children are alike to it."""
    return 1.0 if reading is None else float(np.interp(reading[AGE], *_ALIKE))


@dataclass(frozen=True, eq=False)
class Showing:
    """Moves a code [D] towards one whose face shows its kind."""

    reads: Floats  # [9,D], what a code adds to a reading, see `logits`
    wanted: Floats  # [9,TERMS], how people of a kind read, less what the kind of a source alone makes of it
    gains: Floats  # [3,D,9], what a code must be moved by to raise each reading by one: for children, women, men

    def check(self, size: int) -> None:
        """A ValueError where it is not for codes of this size."""
        shapes = (READING, size), (READING, TERMS), (3, size, READING)
        for (name, array), shape in zip(vars(self).items(), shapes, strict=True):
            if array.shape != shape or not np.isfinite(array).all():
                raise ValueError(f"its {name} {list(array.shape)} should be {list(shape)}, and finite")

    def moved(self, w: Array, kind: Kind) -> Floats:
        """Codes [N,D] or [D] of faces that show their kind. What is not kept of a kind stays as it was drawn."""
        reading = kind.reading
        missing = self.wanted @ _terms(reading[None])[0] - w @ self.reads.T
        missing[..., AGE] += np.interp(reading[AGE], *_AGED)
        kept = [not mask.all() for mask in kind.masks]
        missing = missing * np.repeat(kept, (len(ETHNICITIES), 1, 1))
        male, grown = float(reading[MALE]), float(reading[AGE]) >= _GROWN
        gain = np.tensordot((0.0, 1 - male, male) if grown else (1.0, 0.0, 0.0), self.gains, 1)
        return np.asarray(w + missing @ gain.T, np.float32)

    @classmethod
    def fit(
        cls, codes: Array, kinds: Floats, found: Floats, own_kinds: Floats, own: Floats, people: KindCodes, free: Mask
    ) -> Showing:
        """Learn it from N faces that were made.

        Args:
            codes, kinds, found: [N,D] of the new faces, [N,9] the groups they were drawn for and how they are read.
            own_kinds, own: float32 [M,9], groups and readings of the clear faces in whose place they stand.
            people: codes of real people, for the directions in which they differ.
            free: bool [D], which numbers may be moved.
        """
        z, terms, y, size = codes[:, free].astype(np.float64), _terms(kinds), logits(found), int(free.sum())
        mean, scale = z.mean(0), z.std(0) + 1e-6
        x = np.concatenate([(z - mean) / scale, terms[:, 1:]], 1)
        middle = x.mean(0)
        solved = ridge(x - middle, y - y.mean(0), _READS)
        reads = solved[:size] / scale[:, None]
        alone = np.vstack([y.mean(0) - middle @ solved - mean @ reads, solved[size:]])
        target, t = logits(own), _terms(own_kinds)
        shown = np.repeat(_SHOWN, (len(ETHNICITIES), 1, 1))
        slopes = ridge(t[:, 1:], target - target.mean(0), _WANTED) * shown
        wanted = np.vstack([target.mean(0), slopes]) - alone
        gains = np.zeros((3, len(free), READING))
        for gain, apart in zip(gains, people.apart(free), strict=True):
            shared = apart.T @ (apart @ reads) / len(apart)
            spread = reads.T @ shared
            gain[free] = shared @ np.linalg.pinv(spread + _GAINS * np.diag(np.diag(spread)))
        whole = np.zeros((READING, len(free)))
        whole[:, free] = reads.T
        return cls(whole.astype(np.float32), wanted.T.astype(np.float32), gains.astype(np.float32))


def logits(readings: Array) -> NDArray[np.float64]:
    """Readings [N,9] as numbers that add up: log shares less their mean, logit of P(male), age in years."""
    shares, male, age = np.split(readings.astype(np.float64), [MALE, AGE], 1)
    shares, male = np.log(np.clip(shares, 1e-6, 1)), np.clip(male, 1e-6, 1 - 1e-6)
    return np.concatenate([shares - shares.mean(1, keepdims=True), np.log(male / (1 - male)), age], 1)


def _terms(kinds: Array) -> NDArray[np.float64]:
    """[N,TERMS] of kinds in the form of readings [N,9]; a boy is read as a man less clearly than his father."""
    shares, male, age = np.split(kinds, [MALE, AGE], 1)
    shares, male = shares - 1 / len(ETHNICITIES), male - 0.5
    years, young = (age - 35) / 20, np.clip(_GROWN - age, 0, _GROWN) / _GROWN
    parts = [np.ones((len(kinds), 1)), shares, male, years, young, male * years, male * young]
    return np.concatenate(parts, 1).astype(np.float64)


def _softmax(x: Array) -> Array:
    y = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(y / y.sum(1, keepdims=True))


def parse_parts(text: str | Sequence[str]) -> tuple[str, ...]:
    """Parts of a kind from "ethnicity,gender,age", a subset, or "none"."""
    words = [word.strip() for word in text.split(",")] if isinstance(text, str) else list(text)
    if words in (["none"], []):
        return ()
    if unknown := [word for word in words if word not in PARTS]:
        raise UsageError(f"keep-kind {','.join(unknown)!r} is unknown; use {', '.join(PARTS)} with commas, or none")
    return tuple(part for part in PARTS if part in words)
