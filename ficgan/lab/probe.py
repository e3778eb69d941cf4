"""How much of an identity k-same leaves in FICGAN's codes: probes that learn on other people to tell people by them.

Only w of the replaced layers is averaged over k people. The spatial code z_non, and with i > 0 the source's own w in
layers 1…i, go into the generator as they are: that they carry no identity is a hope of the training, and tested here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, content
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.privacy import auc, chance, eer, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.results import Figure, Trial
from ficgan.lab.retrain import retrain_head

if TYPE_CHECKING:
    from ficgan.deidentify.anonymizer import Ficgan
    from ficgan.lab.scenarios import Scenario

__all__ = [
    "PROBES", "SCENARIO", "Change", "Kind", "Probe", "fit_probe", "identity_probe", "run_identity_probe", "whitening",
]  # fmt: skip

SCENARIO = "identity-probe"
Rows = NDArray[np.int64]
Blocks = tuple[NDArray[np.float32], ...]
"""Codes [N,D] that are whitened apart and then stand beside one another."""
Kind = Literal["cosine", "linear", "network"]
Probe = Callable[[Blocks], NDArray[np.float32]]
"""Blocks → embeddings [N,D], compared by cosine."""
Change = Callable[[NDArray[np.floating]], NDArray[np.float32]]
"""Codes [M,D] → whitened ones [M,K]."""
Whiten = Callable[[NDArray[np.floating]], Change]
PROBES: tuple[Kind, ...] = ("cosine", "linear", "network")
_TITLES: Mapping[Kind, str] = {
    "cosine": "whitened cosine", "linear": "linear probe", "network": "network probe",
}  # fmt: skip
_WIDTH = 128
"""Principal components kept of one code at most; of held-out people of the attacker twice as many told less (AUC)."""
_FEW = 8
"""Where fewer than one in so many components is kept, Lanczos finds them sooner than a whole decomposition."""
_IMAGES_EACH = 8
"""Images that each kept component needs."""


@dataclass(frozen=True)
class _View:
    """Where codes are read from.

    Args:
        name: for the table.
        control: as in `Trial`; what is given to the generator is seen by nobody outside.
        taught, gallery, probe: whether each is read from the de-identified image, not from the clear one.
    """

    name: str
    control: str
    taught: bool
    gallery: bool
    probe: bool


_GIVEN = _View("as the generator is given it", "codes", False, False, False)
_VIEWS = (
    _GIVEN,
    _View("read from the published image", "", False, False, True),
    _View("read from published images, parrot", "", True, True, True),
)


def identity_probe(
    bench: Bench, anonymizer: Anonymizer, *, label: str = "", seed: int = 0, published: bool = True
) -> list[Trial]:
    """Identity left in the codes of FICGAN, code by code and probe by probe.

    Args:
        bench: set, split and judges; probes are trained on the split's attacker and tested on gallery and probe.
        anonymizer: a `Ficgan`.
        label: of the method; its name if not given.
        seed: of the network probe.
        published: also read the codes back from the de-identified images.

    Returns:
        Trials whose `attacker` says which code from which image, `recogniser` which probe; rank-1, AUC and EER with
        their intervals, and chance. Control "codes" marks what nobody sees outside: the codes as the generator is given
        them, and beside them, as ceilings, z_id and every judge's embedding through the same probes. Every figure is a
        lower bound: where two codes together tell less than one of them, the probe had too little to learn from.

    Raises:
        NotApplicable: another method.
        Refused: no attacker in the split.
    """
    return _trials(bench, Subject(bench, anonymizer), label or anonymizer.name, SCENARIO, seed, published)


def run_identity_probe(bench: Bench, subject: Subject, label: str, scenario: Scenario) -> list[Trial]:
    """`identity_probe` as a scenario."""
    return _trials(bench, subject, label, scenario.name, bench.seed, True)


def _trials(bench: Bench, subject: Subject, label: str, scenario: str, seed: int, published: bool) -> list[Trial]:
    from ficgan.deidentify.anonymizer import Ficgan

    method = subject.anonymizer
    if not isinstance(method, Ficgan):
        raise NotApplicable("only FICGAN has an identity code that could be averaged and a spatial code that is not")
    if not len(bench.split.attacker):
        raise Refused("the split leaves no faces to train a probe on; set split.attacker")
    trials = []
    for view in _VIEWS if published else (_GIVEN,):
        split = bench.split
        places = ((split.attacker, view.taught), (split.gallery, view.gallery), (split.probe, view.probe))
        taught, gallery, seen = (
            _codes(bench, subject, method, rows, anonymised, ceilings=view is _GIVEN) for rows, anonymised in places
        )
        whiten = _once(whitening)
        for code in taught:
            for kind in PROBES:
                probe = fit_probe(kind, taught[code], bench.people[split.attacker], seed=seed, whiten=whiten)
                figures = _figures(bench, probe(seen[code]), probe(gallery[code]))
                attacker = f"{code}, {view.name}"
                trials.append(
                    Trial(bench.name, label, scenario, _TITLES[kind], attacker, figures, control=view.control)
                )
    return trials


def _figures(bench: Bench, probe: NDArray[np.float32], gallery: NDArray[np.float32]) -> tuple[Figure, ...]:
    who, enrolled = bench.people[bench.split.probe], bench.people[bench.split.gallery]
    scores = Scores.compare(probe, gallery, who, enrolled, metric="cosine")
    drawn = Bootstrap(bench.resamples, bench.seed)
    return (
        rank(scores, 1, bootstrap=drawn), auc(scores, bootstrap=drawn), eer(scores, bootstrap=drawn),
        Figure("chance", chance(scores), n=scores.enrolled),
    )  # fmt: skip


# -- codes ----------------------------------------------------------------------------------------------------------


def _codes(
    bench: Bench, subject: Subject, method: Ficgan, rows: Rows, anonymised: bool, *, ceilings: bool
) -> dict[str, Blocks]:
    """Name → blocks of what can carry an identity, of some rows of the set."""
    whole = subject.anonymised(rows) if anonymised else subject.clear(rows)
    faces = bench.part(rows, whole.images).regions()
    z_id, z_non = (_read(bench, method, faces, index) for index in range(2))
    out: dict[str, Blocks] = {"z_non": (z_non,)}
    kept = _kept_layers(method)
    if kept:
        w = _styles(method, z_id, kept)
        out |= {f"w of layers {_spans(kept)}": (w,), f"z_non + w of layers {_spans(kept)}": (z_non, w)}
    if ceilings:
        out["z_id"] = (z_id,)
        out |= {reader.name: (bench.embed(reader, whole),) for reader in bench.readers}
    return out


def _read(bench: Bench, method: Ficgan, faces: Faces, index: int) -> NDArray[np.float32]:
    """z_id (0) or z_non (1) of faces, [N,D]; kept in the store."""
    model, name = method.face_model, ("z_id", "z_non")[index]
    key = ["codes", model.digest(), index, content(faces)]
    return bench.store.array(key, lambda: model.codes(method.sights(faces))[name])


def _kept_layers(method: Ficgan) -> list[int]:
    """Style layers, numbered from 1, that keep the source's w."""
    from ficgan.identity.mixing import k_same_layers

    model = method.face_model
    first, last = k_same_layers(model.num_layers, None if model.band else method.layer, model.band)
    return [layer for layer in range(1, model.num_layers + 1) if not first <= layer <= last]


def _spans(layers: list[int]) -> str:
    """ "1–2, 7–8" for 1, 2, 7, 8."""
    starts = [layers[0], *(b for a, b in pairwise(layers) if b > a + 1)]
    ends = [*(a for a, b in pairwise(layers) if b > a + 1), layers[-1]]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))


def _styles(method: Ficgan, z_id: NDArray[np.float32], layers: list[int]) -> NDArray[np.float32]:
    """What these layers take of the source's w: its image under their affine maps [N,S]."""
    return method.face_model.layer_codes(z_id, layers)


# -- probes ---------------------------------------------------------------------------------------------------------


def _once(whiten: Whiten) -> Whiten:
    """The same, worked out once for each block: z_non stands in two codes, and every code is probed three times."""
    known: dict[int, tuple[NDArray[np.floating], Change]] = {}

    def remembered(codes: NDArray[np.floating]) -> Change:
        if id(codes) not in known:
            known[id(codes)] = codes, whiten(codes)
        return known[id(codes)][1]

    return remembered


def fit_probe(
    kind: Kind, blocks: Blocks, people: NDArray[np.integer], *, seed: int = 0, whiten: Whiten | None = None
) -> Probe:
    """A function of codes under which one person's are alike, learnt on other people than it is tested on.

    Args:
        kind: "cosine" learns nothing but the whitening; "linear" is Fisher's discriminant after it; "network" a small
            perceptron after it, trained to classify the people by the cosine with a centre each, without a margin.
        blocks: one or more codes [N,D]; each is standardised and whitened by itself.
        people: [N] who they are.
        seed: of the network's weights and order.
        whiten: `whitening`, or what remembers its results.

    Raises:
        UsageError: "linear", and too few people with two images.
    """
    changes = [(whiten or whitening)(block) for block in blocks]

    def white(given: Blocks) -> NDArray[np.float32]:
        return np.concatenate([change(block) for change, block in zip(changes, given, strict=True)], axis=1)

    if kind == "cosine":
        return white
    taught = white(blocks)
    head = retrain_head(taught, people)[0] if kind == "linear" else _network(taught, people, seed)
    return lambda given: head(white(given))


def whitening(codes: NDArray[np.floating], *, each: int = _IMAGES_EACH) -> Change:
    """Standardises, then turns to as many principal components as the images bear, each of unit variance.

    Args:
        codes: [N,D] of the attacker's people.
        each: images that each component needs.

    Returns:
        A function [M,D] → [M,K] float32; columns that never vary count for nothing.
    """
    mean, spread = codes.mean(0, dtype=np.float64), codes.std(0, dtype=np.float64)
    scale = np.divide(1, spread, out=np.zeros_like(spread), where=spread > 1e-6 * spread.max(initial=0))
    x = (codes - mean) * scale
    values, vectors = _largest(x, max(1, min(_WIDTH, len(codes) // each)))
    kept = (values > 1e-6 * values[-1]) | (np.arange(len(values)) == len(values) - 1)
    matrix = vectors[:, kept] / np.sqrt(values[kept].clip(1e-12)) * scale[:, None]
    return lambda given: ((given - mean) @ matrix).astype(np.float32)


def _largest(x: NDArray[np.float64], count: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The largest eigenvalues of the covariance of x [N,D], ascending [K], and their vectors [D,K]."""
    wide = x.astype(np.float32)
    covariance = (wide.T @ wide / np.float32(len(x))).astype(np.float64)
    if count * _FEW > len(covariance) or not covariance.any():
        values, vectors = np.linalg.eigh(covariance)
        return values[-count:], vectors[:, -count:]
    from scipy.sparse.linalg import eigsh

    return eigsh(covariance, count, v0=np.ones(len(covariance)))  # of 4096, a quarter of the time


def _network(
    codes: NDArray[np.float32], people: NDArray[np.integer], seed: int, *, width: int = 512, out: int = 128,
    epochs: int = 30, batch: int = 128, rate: float = 2e-3, noise: float = 0.3, scale: float = 16.0,
) -> Callable[[NDArray[np.float32]], NDArray[np.float32]]:  # fmt: skip
    """Perceptron of one hidden layer [N,D] → [N,out] under a softmax over scaled cosines with the people's centres."""
    import torch
    from torch import nn
    from torch.nn import functional as F

    who = torch.from_numpy(np.unique(people, return_inverse=True)[1].reshape(-1))
    x = torch.from_numpy(codes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = nn.Sequential(nn.Linear(x.shape[1], width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, out))
        centres = nn.Parameter(torch.randn(int(who.max()) + 1, out))
        optimiser = torch.optim.AdamW([*network.parameters(), centres], rate, weight_decay=1e-3)
        steps = epochs * -(-len(x) // batch)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(batch):
                seen = x[rows] + noise * torch.randn(len(rows), x.shape[1])
                cosine = F.normalize(network(seen)) @ F.normalize(centres).T
                loss = F.cross_entropy(scale * cosine, who[rows])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                schedule.step()
    network.eval().requires_grad_(False)
    return lambda given: network(torch.from_numpy(given)).numpy()
