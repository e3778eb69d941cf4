"""Face attributes, such as CelebA's forty: a classifier to be trained, and what anonymised faces reveal of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from ficgan.anonymizers import Faces
from ficgan.arrays import blocks, ridge
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import Alignment
from ficgan.lab.attacks.base import to_tensor, upright
from ficgan.lab.attacks.training import minimise
from ficgan.lab.metrics import Bootstrap, Sample, percentiles
from ficgan.lab.results import Figure
from ficgan.models import load_tensors, save_tensors

SCHEMA = 1
SIZE = 64  # Side of the network's input
MARGIN = 4  # Pixels that a training image has around it, so that it can be shifted
LEAST = 10  # People that a split needs, and with and without an attribute for its inference
RIDGE = 1.0  # Penalty of attribute inference relative to the mean variance of the embeddings
_KIND = "attributes"
_BATCH = 64
_RATE, _WARM = 2e-3, 50
_JITTER = 0.1  # of contrast, and of each channel's brightness, in units of the range −1..1


class AttributeNetwork(nn.Module):
    """Residual network: [B,3,64,64] in [−1, 1] → one logit for each attribute."""

    def __init__(self, attributes: int, width: int = 24) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*(_Block(width << level) for level in range(3)))
        self.drop = nn.Dropout(0.3)
        # Positions are kept: a hat is above and a necktie below.
        self.head = nn.Linear((width << 3) * (SIZE // 16) ** 2, attributes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(F.relu(self.norm(self.stem(x))))
        return self.head(self.drop(x.flatten(1)))


class _Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.first, self.first_norm = nn.Conv2d(channels, wide, 3, 2, 1, bias=False), nn.BatchNorm2d(wide)
        self.second, self.second_norm = nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide)
        self.skip = nn.Conv2d(channels, wide, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        inner = F.relu(self.first_norm(self.first(x)))
        return F.relu(self.second_norm(self.second(inner)) + self.skip(F.avg_pool2d(x, 2)))


def probabilities(network: AttributeNetwork, images: NDArray[np.uint8]) -> NDArray[np.float32]:
    """[N,A] of images [N,64,64,3] uint8 RGB."""
    out = [np.zeros((0, network.head.out_features), np.float32)]
    network.eval()
    with torch.inference_mode():
        for rows in blocks(len(images), _BATCH):
            batch = to_tensor(images[rows], network.head.weight.device) * 2 - 1
            out.append(network(batch).sigmoid().cpu().numpy())
    return np.concatenate(out)


def _varied(x: Tensor) -> Tensor:
    """[B,3,72,72] in [0, 1] → [B,3,64,64] in about [−1, 1]: shifted and mirrored, in other light."""
    top, left = torch.randint(0, 2 * MARGIN + 1, (2, len(x))).tolist()
    cut = torch.stack([one[:, t : t + SIZE, e : e + SIZE] for one, t, e in zip(x, top, left, strict=True)])
    turned = (torch.rand(len(x), 1, 1, 1) < 0.5).to(x.device)
    contrast = 1 + _JITTER * (2 * torch.rand(len(x), 1, 1, 1) - 1)
    brightness = _JITTER * (2 * torch.rand(len(x), 3, 1, 1) - 1)
    out = (2 * torch.where(turned, cut.flip(3), cut) - 1) * contrast.to(x.device) + brightness.to(x.device)
    return out.contiguous(memory_format=torch.channels_last)


@dataclass
class AttributeClassifier:
    """Reads attributes from faces of 64×64 pixels at the default alignment."""

    names: tuple[str, ...]
    network: AttributeNetwork
    training: dict[str, Any] = field(default_factory=dict)

    def predict(self, faces: Faces) -> NDArray[np.float32]:
        """Probability of each attribute: float32 [N,A]; faces are taken at the landmarks they came with."""
        return probabilities(self.network, _inputs(faces, 0))

    def save(self, path: Path) -> None:
        """Write weights and a JSON header."""
        header = {"schema": SCHEMA, "names": list(self.names), "training": self.training}
        save_tensors(path, self.network.state_dict(), header, kind=_KIND)

    @classmethod
    def load(cls, path: Path) -> AttributeClassifier:
        """Read a file of `save`."""
        tensors, header = load_tensors(path, kind=_KIND)
        try:
            if header["schema"] != SCHEMA:
                raise KeyError(f"schema {SCHEMA}")
            names = tuple(str(name) for name in header["names"])
            network = AttributeNetwork(len(names))
            network.load_state_dict(tensors)
        except (KeyError, TypeError, RuntimeError) as error:
            raise InputError(f"{path} does not hold what this version reads ({error}); train it again") from error
        return cls(names, network.eval(), dict(header.get("training", {})))


def train_attributes(
    faces: Faces,
    attributes: Mapping[str, NDArray[np.uint8]],
    out: Path,
    *,
    source: Mapping[str, Any] | None = None,
    epochs: int = 25,
    seed: int = 0,
    device: str = "cpu",
    progress: Progress = unheard,
) -> dict[str, Any]:
    """Train a classifier on 70 % of the people, choose the epoch on 10 %, measure on 20 % (FICGAN, §4.2).

    Returns the file's header: data, splits, and under "test" accuracy, the commoner answer's accuracy and AUC (None
    where the test has one answer).
    """
    if not attributes:
        raise UsageError("the set has no attributes; give a set that has, or --labels")
    if faces.people is None or (faces.people < 0).any():
        raise InputError("some faces have no person, so the split cannot keep people apart; give identities")
    names = tuple(attributes)
    labels = np.stack([np.asarray(attributes[name]) > 0 for name in names], 1).astype(np.uint8)
    train, validation, test = split_people(faces.people, (0.7, 0.1, 0.2), seed=seed)

    torch.manual_seed(seed)
    network = AttributeNetwork(len(names)).to(device).to(memory_format=torch.channels_last)
    place, learnt = network.head.weight.device, labels[train]
    images, held = _inputs(faces.take(train), MARGIN), _inputs(faces.take(validation), 0)
    optimiser = torch.optim.AdamW(network.parameters(), _RATE, weight_decay=1e-2)
    total = epochs * math.ceil(len(images) / _BATCH)

    def rate(done: int) -> float:
        return min(1.0, (done + 1) / _WARM) * (1 + math.cos(math.pi * done / total)) / 2

    def loss(rows: Tensor) -> Tensor:
        wanted = torch.from_numpy(learnt[rows]).float().to(place)
        return F.binary_cross_entropy_with_logits(network(_varied(to_tensor(images[rows], place))), wanted)

    def error() -> float:
        read = probabilities(network, held).astype(np.float64).clip(1e-7, 1 - 1e-7)
        return float(-np.where(labels[validation] > 0, np.log(read), np.log(1 - read)).mean())

    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    torch.manual_seed(seed)
    order, tell = partial(torch.randperm, len(images)), lambda done: progress(done, epochs, "training")
    epoch, least = minimise(network, loss, order, _BATCH, schedule, epochs, error, tell)
    read = probabilities(network, _inputs(faces.take(test), 0))
    training = {
        "source": dict(source or {}),
        "images": [len(train), len(validation), len(test)],
        "people": [len(np.unique(faces.people[rows])) for rows in (train, validation, test)],
        "size": SIZE,
        "epochs": epochs,
        "kept_epoch": epoch,
        "held_cross_entropy": round(math.inf if least is None else least, 4),
        "seed": seed,
        "test": _measure(read, labels[test], labels[train], names),
    }
    AttributeClassifier(names, network, training).save(out)
    return training


def split_people(people: NDArray[np.int64], shares: tuple[float, ...], seed: int = 0) -> tuple[NDArray[np.int64], ...]:
    """Rows of images for each share of the people [N]; nobody is in two."""
    known = np.unique(people)
    if len(known) < LEAST:
        raise InputError(f"{len(known)} people are too few to train on some and measure on others; give {LEAST}")
    order = np.random.default_rng(seed).permutation(known)
    ends = np.maximum(np.round(np.cumsum(shares)[:-1] * len(known)).astype(int), 1)
    return tuple(np.flatnonzero(np.isin(people, part)) for part in np.split(order, ends))


def _measure(
    read: NDArray[np.float32], labels: NDArray[np.uint8], known: NDArray[np.uint8], names: tuple[str, ...]
) -> dict[str, Any]:
    right = ((read >= 0.5) == (labels > 0)).mean(0)
    commoner = ((known.mean(0) >= 0.5) == (labels > 0)).mean(0)  # the answer is the training set's, not the test's
    areas = np.array([auc(*columns) for columns in zip(read.T, labels.T, strict=True)], np.float64)

    def facts(*values: float) -> dict[str, float | None]:
        rounded = (None if np.isnan(value) else round(float(value), 4) for value in values)
        return dict(zip(("accuracy", "commoner_answer", "auc"), rounded, strict=True))

    measured = areas[np.isfinite(areas)]
    whole = facts(right.mean(), commoner.mean(), measured.mean() if len(measured) else np.nan)
    each = {name: facts(*some) for name, *some in zip(names, right, commoner, areas, strict=True)}
    return {"mean_auc": whole.pop("auc"), **whole, "attributes": each}


def _inputs(faces: Faces, margin: int) -> NDArray[np.uint8]:
    """Faces at the default alignment of the network's size, with so many pixels around: [N,S,S,3]."""
    return upright(faces, Alignment().points(SIZE) + margin, SIZE + 2 * margin)


def binary_labels(
    attributes: Mapping[str, NDArray[np.uint8]], groups: Mapping[str, tuple[str, ...]]
) -> dict[str, NDArray[np.int8]]:
    """Everything known about the images as yes-or-no questions: name → int8 [N]: 1, 0, or −1 where unknown."""
    out = {name: (np.asarray(values) > 0).astype(np.int8) for name, values in attributes.items()}
    for column, values in groups.items():
        labels = np.array(values, dtype=object)
        known = sorted({value for value in values if value})
        for value in known[:1] if len(known) == 2 else known:
            out[f"{column}={value}"] = np.where(labels == "", -1, labels == value).astype(np.int8)
    return out


def label_matrix(names: tuple[str, ...], known: Mapping[str, NDArray[np.uint8]]) -> NDArray[np.uint8] | None:
    """[N,A], 0 or 1, of the attributes `names`; None where there are none, or where one of them is not known."""
    if not names or not {*names} <= {*known}:
        return None
    return np.stack([known[name] for name in names], 1).astype(np.uint8)


# Embeddings [N,D] of anonymised faces, what is known as of `binary_labels`, and people [N]
Answered = tuple[NDArray[np.floating], Mapping[str, NDArray[np.int8]], NDArray[np.int64]]


def infer(learnt: Answered, asked: Answered, bootstrap: Bootstrap) -> tuple[Figure, ...]:
    """AUC with which a classifier, trained on anonymised faces of other people, predicts each attribute.

    Returns "inference of NAME" for each attribute that ten people on both sides have, and ten have not (.5 is chance),
    and last their mean.
    """
    (train, train_labels, train_people), (test, test_labels, people) = learnt, asked
    mean, spread = train.mean(0), train.std(0).mean() + 1e-12
    x, t = (train - mean) / spread, (test - mean) / spread
    sample = Sample(people, bootstrap)
    count, weights = sample.drawn.shape[1], sample.drawn[:, sample.person]
    out, drawn = [], []
    for name, wanted in train_labels.items():
        truth = test_labels.get(name)
        if truth is None or min(_people(wanted, train_people) + _people(truth, people)) < LEAST:
            continue
        known, rows = wanted >= 0, truth >= 0
        has = wanted[known] > 0
        target = np.where(has, 0.5 / has.mean(), -0.5 / (1 - has.mean()))  # so that both answers weigh alike
        score = t[rows] @ ridge(x[known].astype(np.float64), target, RIDGE * known.sum())
        yes = truth[rows] > 0
        areas = np.array([auc(score, yes, draw) for draw in weights[:, rows]], np.float64)
        out.append(Figure(f"inference of {name}", auc(score, yes), *percentiles(areas), count))
        drawn.append(areas)
    if out:
        total = float(np.mean([figure.value for figure in out if figure.value is not None]))
        out.append(Figure("inference (mean AUC)", total, *percentiles(np.mean(drawn, axis=0)), count))
    return tuple(out)


def _people(labels: NDArray[np.int8], people: NDArray[np.integer]) -> list[int]:
    return [len(np.unique(people[labels == value])) for value in (1, 0)]


def auc(scores: NDArray[Any], labels: NDArray[Any], weights: NDArray[Any] | None = None) -> float | None:
    """Area under the ROC, each image counting `weights` times; None where one answer has no weight."""
    truth = labels > 0
    counted = np.ones(len(truth)) if weights is None else weights
    if not counted[truth].any() or not counted[~truth].any():
        return None
    return float(roc_auc_score(truth, scores, sample_weight=counted))
