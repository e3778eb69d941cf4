"""A classifier of face attributes, such as CelebA's forty: trained by the user, kept as safetensors.

FICGAN measures with one that was trained on CelebA-HQ (27,000 images, 3,000 to test, 90 % accurate) and does not say
how it is built. No trained weights come with this package: CelebA's terms do not allow it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment, crop, similarity

if TYPE_CHECKING:
    from ficgan.lab.attribute_network import AttributeNetwork

__all__ = ["AttributeClassifier", "split_people", "train_attributes"]

SCHEMA = 1
_KIND = "attributes"
_LEAST = 10  # people; fewer cannot be split

Progress = Callable[[int, int], None]


@dataclass
class AttributeClassifier:
    """Reads attributes from faces.

    Args:
        names: A attributes.
        network: A logits of a face of 64×64 pixels at the default alignment.
        training: how it was made, and its figures on people it has not seen; JSON-ready.
    """

    names: tuple[str, ...]
    network: AttributeNetwork
    training: dict[str, Any] = field(default_factory=dict)

    def predict(self, faces: Faces) -> NDArray[np.float32]:
        """Probability of each attribute: float32 [N,A]; faces are taken at the landmarks they came with."""
        from ficgan.lab.attribute_network import probabilities

        return probabilities(self.network, _inputs(faces, 0))

    def save(self, path: Path) -> None:
        """Write weights and a JSON header, whole or not at all.

        Raises:
            FicganError: the file cannot be written.
        """
        from ficgan.models.io import save_tensors

        header = {"schema": SCHEMA, "names": list(self.names), "training": self.training}
        save_tensors(path, self.network.state_dict(), header, kind=_KIND)

    @classmethod
    def load(cls, path: Path, device: str = "cpu") -> AttributeClassifier:
        """Read a file of `save`.

        Raises:
            FicganError: missing, damaged, or of another kind.
            InputError: of another schema, or weights that do not fit.
        """
        from ficgan.lab.attribute_network import AttributeNetwork
        from ficgan.models.io import load_tensors

        tensors, header = load_tensors(path, kind=_KIND)
        if header.get("schema") != SCHEMA:
            raise InputError(f"{path} has schema {header.get('schema')}, this version reads {SCHEMA}; train it again")
        try:
            names = tuple(str(name) for name in header["names"])
            network = AttributeNetwork(len(names))
            network.load_state_dict(tensors)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"{path} is damaged: its weights do not fit its header; train it again") from error
        if not all(bool(value.isfinite().all()) for value in tensors.values()):
            raise InputError(f"{path} holds weights that are not finite; train it again")
        return cls(names, network.eval().to(device), dict(header.get("training", {})))


def train_attributes(
    faces: Faces,
    attributes: Mapping[str, NDArray[np.uint8]],
    out: Path,
    *,
    source: Mapping[str, Any] | None = None,
    epochs: int = 25,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Train a classifier and measure it on people it has not seen.

    People are split: 70 % to train, 10 % to choose the epoch, 20 % to measure.

    Args:
        faces: N crops with landmarks and people, as `ficgan.lab.sets.prepare` gives them.
        attributes: name → [N], 0 or 1.
        out: safetensors file to write.
        source: what is said of the data (name, licence, digest); kept in the file.
        epochs: passes over the training images.
        seed: of the split and of training.
        device: of torch.
        progress: called as progress(done, total) with steps.

    Returns:
        What stands in the file's header: data, splits, and under "test" accuracy, that of always saying the commoner
        answer, mean AUC, and the same by attribute. AUC is None where the test has one answer only.

    Raises:
        UsageError: no epochs, or no attributes.
        InputError: people unknown or too few; lengths that differ.

    Source: FICGAN, section 4.2.
    """
    from ficgan.lab.attribute_network import MARGIN, SIZE, AttributeNetwork, fit, probabilities

    if epochs < 1 or not attributes:
        raise UsageError(f"{epochs} epochs on {len(attributes)} attributes train nothing; give at least one of each")
    wrong = [name for name, values in attributes.items() if len(values) != len(faces)]
    if wrong:
        raise InputError(f"attribute {wrong[0]} has not one value for each of {len(faces)} faces; match them")
    if faces.people is None or (faces.people < 0).any():
        raise InputError("some faces have no person, so the split cannot keep people apart; give identities")
    names = tuple(attributes)
    labels = np.stack([np.asarray(attributes[name]) > 0 for name in names], 1).astype(np.uint8)
    train, held, test = split_people(faces.people, (0.7, 0.1, 0.2), seed=seed)

    import torch

    torch.manual_seed(seed)
    network = AttributeNetwork(len(names)).to(device)
    epoch, error = fit(
        network,
        _inputs(faces.take(train), MARGIN),
        labels[train],
        (_inputs(faces.take(held), 0), labels[held]),
        epochs=epochs,
        seed=seed,
        progress=progress,
    )
    read = probabilities(network, _inputs(faces.take(test), 0))
    training = {
        "source": dict(source or {}),
        "images": [len(train), len(held), len(test)],
        "people": [len(np.unique(faces.people[rows])) for rows in (train, held, test)],
        "size": SIZE,
        "epochs": epochs,
        "kept_epoch": epoch,
        "held_cross_entropy": round(error, 4),
        "seed": seed,
        "test": _measure(read, labels[test], labels[train], names),
    }
    AttributeClassifier(names, network, training).save(out)
    return training


def split_people(
    people: NDArray[np.int64], shares: tuple[float, ...], *, seed: int = 0
) -> tuple[NDArray[np.int64], ...]:
    """Rows of images for each share of the people; nobody is in two.

    Args:
        people: [N], one number per person.
        shares: of the people, summing to 1.
        seed: of the draw.

    Raises:
        InputError: fewer than ten people.
    """
    known = np.unique(people)
    if len(known) < _LEAST:
        raise InputError(f"{len(known)} people are too few to train on some and measure on others; give {_LEAST}")
    order = np.random.default_rng(seed).permutation(known)
    ends = np.maximum(np.round(np.cumsum(shares)[:-1] * len(known)).astype(int), 1)
    return tuple(np.flatnonzero(np.isin(people, part)) for part in np.split(order, ends))


def auc(scores: NDArray[np.floating[Any]], labels: NDArray[np.uint8]) -> float | None:
    """Probability that an image with the attribute scores above one without, ties counted half; None without both."""
    from scipy.stats import rankdata

    having = int((labels > 0).sum())
    lacking = len(labels) - having
    if not having or not lacking:
        return None
    return float((rankdata(scores)[labels > 0].sum() - having * (having + 1) / 2) / (having * lacking))


def _measure(
    read: NDArray[np.float32], labels: NDArray[np.uint8], known: NDArray[np.uint8], names: tuple[str, ...]
) -> dict[str, Any]:
    right = ((read >= 0.5) == (labels > 0)).mean(0)
    commoner = ((known.mean(0) >= 0.5) == (labels > 0)).mean(0)  # the answer is the training set's, not the test's
    areas = [auc(read[:, column], labels[:, column]) for column in range(len(names))]
    told = [area for area in areas if area is not None]
    return {
        "accuracy": round(float(right.mean()), 4),
        "commoner_answer": round(float(commoner.mean()), 4),
        "mean_auc": round(float(np.mean(told)), 4) if told else None,
        "attributes": {
            name: {
                "accuracy": round(float(right[column]), 4),
                "commoner_answer": round(float(commoner[column]), 4),
                "auc": None if area is None else round(area, 4),
            }
            for column, (name, area) in enumerate(zip(names, areas, strict=True))
        },
    }


def _inputs(faces: Faces, margin: int) -> NDArray[np.uint8]:
    """Faces at the default alignment of the network's size, with so many pixels around: [N,S,S,3]."""
    from ficgan.lab.attribute_network import SIZE

    side = SIZE + 2 * margin
    points = Alignment().points(SIZE) + margin
    out = np.empty((len(faces), side, side, 3), np.uint8)
    for index, (image, marks) in enumerate(zip(faces.images, faces.landmarks, strict=True)):
        out[index] = crop(image, similarity(marks, points), side)
    return out
