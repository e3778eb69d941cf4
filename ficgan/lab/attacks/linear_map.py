"""The general linear attacker, and two controls: one mean face for everybody, and the picture as it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks.base import REVERSERS, Pairs, Reverser, ReverserTraits
from ficgan.lab.attacks.similarity import to_uint8
from ficgan.registry import param

__all__ = ["Identity", "MeanFace", "Ridge"]

Float = NDArray[np.float32]


@REVERSERS.add
@dataclass(frozen=True)
class Ridge(Reverser):
    """The linear map from anonymised to clear pixels of the least squared error, learnt between principal components.

    Scores A = U·S of the anonymised pixels, targets C of the clear ones: with orthogonal scores the ridge solution is
    Aᵀ·C divided, row by row, by s² + λ. So every λ, every number of components on either side, is tried at the price of
    one: on the people held out, of whom no face was learnt from. Then all pairs are learnt with what was best.

    It inverts whatever is linear and leaves its trace in the leading components (overlays, blur, pixelation; mixing
    and permutation of all pixels, given enough pairs), in milliseconds; what it cannot tell stays at the mean face.

    Attributes:
        ridge: λ chosen, as a share of the mean variance of the anonymised components.
        inputs, outputs: numbers of components chosen.

    Source:
        Hoerl and Kennard 1970, eq. 2.3; Turk and Pentland 1991 for components by way of the Gram matrix.
    """

    name: ClassVar[str] = "ridge"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Ridge regression", source="this work; Hoerl and Kennard 1970", knowledge=frozenset({"pairs"})
    )

    components: int = param(1024, "most principal components on either side", low=1)
    pairs: int = param(3000, "most pairs to learn from; memory and time grow with its square", low=2)
    held: float = param(0.2, "share of the people held out to choose on", low=0.01, high=0.9)

    ridge: float = 0.0
    inputs: int = 0
    outputs: int = 0
    _encode: Float | None = field(default=None, repr=False, compare=False)
    _decode: Float | None = field(default=None, repr=False, compare=False)
    _seen_mean: Float | None = field(default=None, repr=False, compare=False)
    _clear_mean: Float | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> Ridge:
        """With the map between the pairs; λ and the numbers of components are chosen on people held out.

        Raises:
            InputError: fewer than two people (or, where nobody is known, two pairs).
        """
        rows = np.linspace(0, len(pairs.clear) - 1, min(self.pairs, len(pairs.clear))).round().astype(np.int64)
        seen, clear = _flat(pairs.anonymised.images[rows]), _flat(pairs.clear.images[rows])
        people = np.arange(len(rows)) if pairs.clear.people is None else pairs.clear.people[rows]
        people = np.where(people < 0, -1 - np.arange(len(rows)), people)  # strangers are people of their own
        out = _held_out(people, self.held)
        seen_gram, clear_gram = _gram(seen), _gram(clear)

        choice = _choose(seen_gram, clear_gram, ~out, self.components)
        everyone = np.ones(len(rows), bool)
        inputs, outputs = _components(seen_gram, everyone), _components(clear_gram, everyone)
        n, m = min(choice.inputs, len(inputs.lengths)), min(choice.outputs, len(outputs.lengths))
        scores, targets = inputs.scores(n), outputs.scores(m)
        weights = (scores.T @ targets) / (inputs.lengths[:n, None] ** 2 + choice.ridge * inputs.variance)
        # Directions in pixels are weighted sums of the centred images; the regression goes into the encoding side.
        seen_mean, clear_mean = _mean(seen), _mean(clear)
        encode = _directions(seen, seen_mean, inputs.weights(n) @ weights)
        decode = _directions(clear, clear_mean, outputs.weights(m))
        return replace(
            self,
            ridge=choice.ridge,
            inputs=n,
            outputs=m,
            _encode=encode,
            _decode=decode,
            _seen_mean=seen_mean,
            _clear_mean=clear_mean,
        )

    def guess(self, faces: Faces) -> Images:
        if self._encode is None or self._decode is None or self._seen_mean is None or self._clear_mean is None:
            raise UsageError(f"{self.name} has learnt nothing yet; fit it on pairs")
        flat = _flat(faces.images)
        if flat.shape[1] != len(self._seen_mean):
            raise InputError(f"{self.name} was fitted on crops of another size; give crops of the fitted size")
        out = np.empty(flat.shape, np.uint8)
        for start in range(0, len(flat), 256):
            part = slice(start, start + 256)
            code = (flat[part].astype(np.float32) - self._seen_mean) @ self._encode.T
            out[part] = to_uint8(code @ self._decode + self._clear_mean)
        return out.reshape(faces.images.shape)


@dataclass(frozen=True)
class _Components:
    """Principal components of some rows, known by the Gram matrix alone.

    Args:
        vectors: [n,r] orthonormal; component j of the rows is vectors[:, j]·lengths[j].
        lengths: [r] singular values, falling.
    """

    vectors: NDArray[np.float64]
    lengths: NDArray[np.float64]

    @property
    def variance(self) -> float:
        return float(np.mean(self.lengths**2))

    def scores(self, count: int) -> NDArray[np.float64]:
        return self.vectors[:, :count] * self.lengths[:count]

    def weights(self, count: int) -> NDArray[np.float64]:
        """Direction j in pixels is Σ_i weights[i,j]·(row i − mean), of length 1."""
        return self.vectors[:, :count] / self.lengths[:count]


@dataclass(frozen=True)
class _Choice:
    ridge: float
    inputs: int
    outputs: int


def _choose(
    seen_gram: NDArray[np.float64], clear_gram: NDArray[np.float64], learnt: NDArray[np.bool_], most: int
) -> _Choice:
    """λ and numbers of components with the least squared error on the people held out.

    The error in clear pixels is, by orthogonality, a sum over clear components: it is known for every number of them.
    """
    inputs, outputs = _components(seen_gram, learnt), _components(clear_gram, learnt)
    held_inputs, held_outputs = _project(seen_gram, learnt, inputs), _project(clear_gram, learnt, outputs)
    counts = [int(n) for n in np.unique(np.geomspace(1, min(most, len(inputs.lengths)), 12).round())]
    m = min(most, len(outputs.lengths))
    cross = inputs.scores(counts[-1]).T @ outputs.scores(m)
    best = (np.inf, _Choice(1.0, 1, 1))
    for ridge in 10.0 ** np.arange(-6, 2.1, 0.5):
        weights = cross / (inputs.lengths[: counts[-1], None] ** 2 + ridge * inputs.variance)
        predicted, done = np.zeros((len(held_inputs), m)), 0
        for n in counts:
            predicted += held_inputs[:, done:n] @ weights[done:n]
            done = n
            truth = held_outputs[:, :m]
            # What another clear component gains over leaving it at its mean; then all so many first ones together.
            gains = np.cumsum(np.sum((truth - predicted) ** 2 - truth**2, axis=0))
            k = int(np.argmin(gains))
            if gains[k] < best[0]:
                best = (float(gains[k]), _Choice(float(ridge), n, k + 1))
    return best[1]


def _gram(rows: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Products of all rows, about the middle grey so that float32 is enough for a block."""
    out = np.zeros((len(rows), len(rows)))
    for part in _blocks(rows.shape[1]):
        block = rows[:, part].astype(np.float32) - 127.5
        out += block @ block.T
    return out


def _components(gram: NDArray[np.float64], learnt: NDArray[np.bool_]) -> _Components:
    """Of the rows that are learnt from, about their mean."""
    part = gram[np.ix_(learnt, learnt)]
    centred = part - part.mean(0) - part.mean(1)[:, None] + part.mean()
    values, vectors = np.linalg.eigh(centred)
    kept = np.flatnonzero(values > 1e-6 * max(float(values[-1]), 1e-9))[::-1]
    if not len(kept):  # all images alike: one component, of no length to speak of
        kept = np.array([len(values) - 1])
    return _Components(vectors[:, kept], np.sqrt(np.maximum(values[kept], 1.0)))


def _project(gram: NDArray[np.float64], learnt: NDArray[np.bool_], onto: _Components) -> NDArray[np.float64]:
    """Scores of the rows that are not learnt from."""
    own, cross = gram[np.ix_(learnt, learnt)], gram[np.ix_(~learnt, learnt)]
    centred = cross - cross.mean(1)[:, None] - own.mean(0) + own.mean()
    return centred @ onto.weights(len(onto.lengths))


def _held_out(people: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    """Every so-manieth person, at least one and not all."""
    known = np.unique(people)
    if len(known) < 2:
        raise InputError(f"ridge was given pairs of {len(known)} person; give pairs of at least two people")
    count = min(max(1, round(share * len(known))), len(known) - 1)
    return np.isin(people, known[np.linspace(0, len(known) - 1, count).round().astype(int)])


def _directions(rows: NDArray[np.uint8], mean: Float, weights: NDArray[np.float64]) -> Float:
    """Weighted sums [r,D] of the centred rows [N,D]."""
    out = np.empty((weights.shape[1], rows.shape[1]), np.float32)
    across = np.ascontiguousarray(weights.T, np.float32)
    for part in _blocks(rows.shape[1]):
        out[:, part] = across @ (rows[:, part].astype(np.float32) - mean[part])
    return out


def _mean(rows: NDArray[np.uint8]) -> Float:
    return rows.mean(axis=0, dtype=np.float64).astype(np.float32)


def _flat(images: Images) -> NDArray[np.uint8]:
    return images.reshape(len(images), math.prod(images.shape[1:]))


def _blocks(width: int, step: int = 8192) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, width, step))


@REVERSERS.add
@dataclass(frozen=True)
class MeanFace(Reverser):
    """The attacker's mean clear face, whatever is shown: the control that carries nothing of the source."""

    name: ClassVar[str] = "mean-face"
    traits: ClassVar[ReverserTraits] = ReverserTraits(
        title="Mean face (negative control)", source="this work", knowledge=frozenset({"pairs"})
    )

    mean: Images | None = field(default=None, repr=False, compare=False)

    def fit(self, pairs: Pairs) -> MeanFace:
        """With the mean of the clear faces."""
        if not len(pairs.clear):
            raise InputError(f"{self.name} was given no pairs; give at least one")
        return replace(self, mean=to_uint8(pairs.clear.images.mean(axis=0)))

    def guess(self, faces: Faces) -> Images:
        if self.mean is None:
            raise UsageError(f"{self.name} has no mean yet; fit it on pairs")
        if self.mean.shape != faces.images.shape[1:]:
            raise InputError(f"{self.name} was fitted on crops of another size; give crops of the fitted size")
        return np.repeat(self.mean[None], len(faces), axis=0)


@REVERSERS.add
@dataclass(frozen=True)
class Identity(Reverser):
    """The anonymised face as it is: naive recognition."""

    name: ClassVar[str] = "identity"
    traits: ClassVar[ReverserTraits] = ReverserTraits(title="Nothing done", source="Fantômas, §7.2 (naive)")

    def guess(self, faces: Faces) -> Images:
        return faces.images.copy()
