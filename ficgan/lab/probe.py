"""Probes that learn on other people to recognise people by FICGAN's codes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.identity.ksame import k_same_layers
from ficgan.lab import Ficgan
from ficgan.lab.bench import Bench, NotApplicable, Refused, Subject, content
from ficgan.lab.matrix_config import Scenario
from ficgan.lab.metrics.privacy import Scores, auc, chance, eer, rank
from ficgan.lab.readers import retrain_head
from ficgan.lab.results import Figure, Trial

Rows = NDArray[np.int64]
Blocks = tuple[NDArray[np.float32], ...]  # Codes [N,D] that are whitened apart and then stand beside one another
Kind = Literal["cosine", "linear"]
Probe = Callable[[Blocks], NDArray[np.float32]]  # Blocks → embeddings [N,D], compared by cosine
# With their names in tables.
PROBES: dict[Kind, str] = {"cosine": "whitened cosine", "linear": "linear probe"}
_WIDTH = 128  # Principal components kept of one code at most; twice as many revealed less of held-out people (AUC)
_IMAGES_EACH = 8  # Images that each kept component needs
# Name, control as in `Trial` ("codes": nobody outside sees it), and whether the attacker's, the gallery's and the
# probes' codes are read from the de-identified image.
_VIEWS = (
    ("as the generator is given it", "codes", False, False, False),
    ("read from the published image", "", False, False, True),
    ("read from published images, parrot", "", True, True, True),
)


def run_identity_probe(subject: Subject, scenario: Scenario) -> list[Trial]:
    """Identity left in the codes of FICGAN, code by code and probe by probe; trained on the attacker's people."""
    bench, method, split = subject.bench, subject.anonymizer, subject.bench.split
    if not isinstance(method, Ficgan):
        raise NotApplicable("only FICGAN has an identity code that could be averaged and a spatial code that is not")
    if not len(split.attacker):
        raise Refused("the split leaves no faces to train a probe on; set split.attacker")
    trials = []
    for view, control, *published in _VIEWS:
        ceilings = control == "codes"
        places = zip((split.attacker, split.gallery, split.probe), published, strict=True)
        learnt, gallery, seen = (_codes(subject, method, rows, out, ceilings) for rows, out in places)
        for code in learnt:
            for kind, title in PROBES.items():
                probe = fit_probe(kind, learnt[code], bench.people[split.attacker])
                figures = _figures(bench, probe(seen[code]), probe(gallery[code]))
                trials.append(subject.trial(scenario, title, figures, f"{code}, {view}", control=control))
    return trials


def _figures(bench: Bench, probe: NDArray[np.float32], gallery: NDArray[np.float32]) -> tuple[Figure, ...]:
    who, enrolled = bench.people[bench.split.probe], bench.people[bench.split.gallery]
    scores, drawn = Scores.compare(probe, gallery, who, enrolled, metric="cosine"), bench.bootstrap
    return (
        rank(scores, 1, bootstrap=drawn),
        auc(scores, bootstrap=drawn),
        eer(scores),
        Figure("chance", chance(scores), n=scores.enrolled),
    )


def _codes(subject: Subject, method: Ficgan, rows: Rows, published: bool, ceilings: bool) -> dict[str, Blocks]:
    """Name → blocks of what can carry an identity, of some rows of the set."""
    bench = subject.bench
    whole = subject.anonymised(rows) if published else bench.clear(rows)
    faces = bench.part(rows, whole.images).regions()
    model = method.face_model
    z_id, z_non = (_read(bench, method, faces, index) for index in range(2))
    out: dict[str, Blocks] = {"z_non": (z_non,)}
    first, last = k_same_layers(model.num_layers, None if model.band else method.layer, model.band)
    kept = [layer for layer in range(1, model.num_layers + 1) if not first <= layer <= last]
    if kept:  # layers, numbered from 1, that keep the source's w: what their affine maps make of it
        w, spans = model.layer_codes(z_id, kept), _spans(kept)
        out |= {f"w of layers {spans}": (w,), f"z_non + w of layers {spans}": (z_non, w)}
    if ceilings:
        out["z_id"] = (z_id,)
        out |= {reader.name: (bench.embed(reader, whole),) for reader in bench.readers}
    return out


def _read(bench: Bench, method: Ficgan, faces: Faces, index: int) -> NDArray[np.float32]:
    """z_id (0) or z_non (1) of faces, [N,D]; kept in the store."""
    model, name = method.face_model, ("z_id", "z_non")[index]
    key = ["codes", model.digest(), index, content(faces)]
    return bench.store.array(key, lambda: model.codes(method.readings(faces))[name])


def _spans(layers: list[int]) -> str:
    starts = [layers[0], *(b for a, b in pairwise(layers) if b > a + 1)]
    ends = [*(a for a, b in pairwise(layers) if b > a + 1), layers[-1]]
    return ", ".join(str(a) if a == b else f"{a}–{b}" for a, b in zip(starts, ends, strict=True))


# -- probes -----------------------------------------------------------------------------------------------------------


def fit_probe(kind: Kind, blocks: Blocks, people: NDArray[np.integer]) -> Probe:
    """A function of codes under which one person's are alike, learnt on other people than it is tested on.

    Each block of codes [N,D] is standardised and whitened by itself; "linear" is Fisher's discriminant after that.
    """
    changes = [whitening(block) for block in blocks]

    def white(given: Blocks) -> NDArray[np.float32]:
        return np.concatenate([change(block) for change, block in zip(changes, given, strict=True)], axis=1)

    if kind == "cosine":
        return white
    head = retrain_head(white(blocks), people)
    return lambda given: head(white(given))


def whitening(codes: NDArray[np.floating]) -> Callable[[NDArray[np.floating]], NDArray[np.float32]]:
    """Standardises [M,D], then turns to as many whitened principal components [M,K] as the images bear."""
    from sklearn.decomposition import PCA
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    count = min(codes.shape[1], max(1, min(_WIDTH, len(codes) // _IMAGES_EACH)))
    made = make_pipeline(StandardScaler(), PCA(count, svd_solver="covariance_eigh")).fit(codes.astype(np.float64))
    spread = np.sqrt(made[-1].explained_variance_)
    kept = spread > 1e-3 * spread[0]
    return lambda given: (made.transform(given)[:, kept] / spread[kept]).astype(np.float32)
