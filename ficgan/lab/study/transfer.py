"""Transfer: networks trained on original, blurred or overlaid images, or not at all, fine-tuned on another task."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError
from ficgan.lab.study.config import StudyConfig, TransferConfig
from ficgan.lab.study.detection import (
    detection_batches,
    detection_loss,
    detection_precision,
    detections,
    make_detector,
)
from ficgan.lab.study.fit import Recipe, Source, fit, outputs, training_batches
from ficgan.lab.study.grid import Cell
from ficgan.lab.study.networks import make_network, replace_head
from ficgan.lab.study.scenes import halves, open_scenes
from ficgan.lab.study.scores import average_precision, hits, spread
from ficgan.lab.study.variants import Pictures

if TYPE_CHECKING:
    from torch import nn

    from ficgan.data import FaceData

__all__ = ["Transfer"]


@dataclass(frozen=True)
class _Half:
    """Images of a task and what is asked of them: classes [N] int64, attributes [N,A] float32."""

    pictures: Source
    targets: NDArray[Any]

    def take(self, rows: NDArray[np.int64]) -> _Half:
        return _Half(_Rows(self.pictures, rows), self.targets[rows])


class _Rows:
    """Some pictures of a source."""

    def __init__(self, source: Source, rows: NDArray[np.int64]) -> None:
        self._source, self._rows = source, rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        return self._source[int(self._rows[index])]


class Transfer:
    """One downstream task.

    Args:
        task: what.
        study: what the networks were trained by; its crop, seeds and networks hold here too.
        out: folder; results go to `out/transfer/NAME`.
        device: resolved.
    """

    def __init__(self, task: TransferConfig, study: StudyConfig, out: Path, device: str) -> None:
        self.task, self.study, self.device = task, study, device
        self.folder = out / "transfer" / task.name
        self.folder.mkdir(parents=True, exist_ok=True)
        self.outputs = 1
        if task.kind == "attributes":
            self.train, self.evaluation, self.outputs, data = _attributes(task, study)
        else:
            scenes = open_scenes(task.images, task.labels)
            data = scenes.fingerprint
            if task.kind == "detection":
                # An image without a box may yet show a face that nobody marked; it would teach the wrong thing.
                scenes = scenes.take(row for row, one in enumerate(scenes.items) if len(one.boxes))
            train, evaluation = halves(scenes, task.holdout, task.train_split, task.eval_split)
            self.scenes = (train.take(_some(len(train), task)), evaluation)
            self.train, self.evaluation = (
                _Half(Pictures(one, "original", study.cache_gb * 2**29), one.labels) for one in self.scenes
            )
            self.outputs = len(scenes.classes)
        settings = [task.model_dump(mode="json"), study.crop, study.resize, study.min_scale, data]
        self.key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()

    @property
    def metric(self) -> str:
        """What the figures are."""
        return {"classification": "top1", "attributes": "mAP", "detection": "AP@.5"}[self.task.kind]

    def figure(self, network: str, seed: int, cell: Cell | None, classes: int) -> float:
        """The metric after fine-tuning one network; read where it was computed before.

        Args:
            network: its name.
            seed: of the new head and of the order of images.
            cell: what it was trained on; None: nothing.
            classes: outputs it was trained with.

        Raises:
            UsageError: the folder holds the figure of another configuration.
        """
        name = f"{network}-{cell.variant if cell else 'none'}-seed{seed}"
        path, key = self.folder / f"{name}.json", f"{self.key} {_digest(cell)}"
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["key"] != key:
                raise UsageError(f"{path} is of another configuration; choose another output folder or remove it")
            return float(kept["value"])
        model = cell.load(classes) if cell else make_network(network, classes, seed=seed)
        state = path.with_suffix(".state")
        if self.task.kind == "detection":
            value = self._detect(model.to(self.device), seed, state, key)
        else:
            value = self._classify(replace_head(model, self.outputs, seed=seed).to(self.device), seed, state, key)
        told = {"key": key, "metric": self.metric, "value": value}
        path.write_text(json.dumps(told, allow_nan=False), encoding="utf-8")
        state.unlink(missing_ok=True)
        return value

    def _recipe(self) -> Recipe:
        task = self.task
        return Recipe(task.epochs, task.drop_every, task.lr, self.study.momentum, task.weight_decay)

    def _classify(self, model: nn.Module, seed: int, state: Path, key: str) -> float:
        from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

        study, several = self.study, self.task.kind == "attributes"
        how: Callable[..., Any] = binary_cross_entropy_with_logits if several else cross_entropy
        shared: dict[str, Any] = {"crop": study.crop, "batch": self.task.batch, "device": self.device}
        shared["workers"] = study.workers
        batches = training_batches(
            self.train.pictures, self.train.targets, min_scale=study.min_scale, seed=seed, **shared
        )
        loss = lambda net, images, wanted: how(net(images), wanted)  # noqa: E731
        fit(model, batches, loss, self._recipe(), seed=seed, state=state, key=key)
        said = outputs(model, self.evaluation.pictures, resize=study.resize, **shared)
        wanted = self.evaluation.targets
        if not several:
            return float(hits(said, wanted).mean())
        values = [average_precision(said[:, a], wanted[:, a] > 0) for a in range(self.outputs)]
        if not (known := [value for value in values if value is not None]):
            raise InputError(f"no attribute of task {self.task.name} is true of any evaluation image; hold out more")
        return float(np.mean(known))

    def _detect(self, model: nn.Module, seed: int, state: Path, key: str) -> float:
        task = self.task
        detector = make_detector(model, size=task.size, anchors=task.anchors, seed=seed, proposals=task.proposals).to(
            self.device
        )
        train, evaluation = self.scenes
        batches = detection_batches(train, batch=task.batch, seed=seed, device=self.device)
        fit(detector, batches, detection_loss, self._recipe(), seed=seed, state=state, key=key)
        found = detections(detector, evaluation, device=self.device)
        value = detection_precision(found, [one.boxes for one in evaluation.items])
        assert value is not None  # only images with boxes are here
        return value

    def rows(
        self, cells: Sequence[Cell], classes: int, progress: Callable[[float], None] | None = None
    ) -> list[dict[str, Any]]:
        """A row for each network and pretraining: {"network", "pretrained", "metric", "mean", "sem", "n"}.

        Raises:
            UsageError: a pretraining was asked for that the grid does not have.
        """
        by_name = {(cell.network, cell.variant, cell.seed): cell for cell in cells}
        study, rows = self.study, []
        total = len(study.networks) * len(self.task.pretrained) * len(study.seeds)
        done = 0
        for network in study.networks:
            for pretrained in self.task.pretrained:
                values = []
                for seed in study.seeds:
                    cell = None if pretrained == "none" else by_name.get((network, pretrained, seed))
                    if pretrained != "none" and cell is None:
                        raise UsageError(f"task {self.task.name} begins from {pretrained} weights; train on them too")
                    values.append(self.figure(network, seed, cell, classes))
                    done += 1
                    if progress:
                        progress(done / total)
                row = {"network": network, "pretrained": pretrained, "metric": self.metric}
                rows.append({**row, **spread(values).to_dict(), "evaluated": len(self.evaluation.pictures)})
        return rows


class _Squares:
    """Aligned faces, decoded when asked for, kept while there is room."""

    def __init__(self, data: FaceData, room: float) -> None:
        self._data = data
        self._most = room / (3 * data.resolution**2)
        self._kept: dict[int, NDArray[np.uint8]] = {}

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        if index in self._kept:
            return self._kept[index]
        square = self._data.load(index).permute(1, 2, 0).contiguous().numpy()
        if len(self._kept) < self._most:
            self._kept[index] = square
        return square


def _attributes(task: TransferConfig, study: StudyConfig) -> tuple[_Half, _Half, int, str]:
    from ficgan.data import open_faces

    if task.labels is None:
        raise UsageError(f"task {task.name} asks for attributes; name its label file under labels")
    data = open_faces([task.images], resolution=study.resize, labels=task.labels)
    labels = data.labels
    assert labels is not None
    if not labels.attribute_names:
        raise InputError(f"{task.labels} has no column of 0 and 1; task {task.name} needs attributes")
    if task.holdout:
        # Nobody is in both halves: a face once seen would be known again by who it is.
        known = np.full(len(data), -1) if labels.people is None else labels.people
        owner = np.array([str(p) if p >= 0 else n for p, n in zip(known, data.names, strict=True)])
        people = np.unique(owner)
        held = generator(0, "holdout", task.name).permutation(people)[: max(1, round(task.holdout * len(people)))]
        later = np.isin(owner, held)
        rows = np.flatnonzero(~later), np.flatnonzero(later)
    else:
        if labels.splits is None:
            raise UsageError(f"{task.labels} has no split column; set holdout for task {task.name}")
        splits = np.array(labels.splits)
        rows = np.flatnonzero(splits == task.train_split), np.flatnonzero(splits == task.eval_split)
    if not (len(rows[0]) and len(rows[1])):
        raise UsageError(f"task {task.name} has {len(rows[0])} training and {len(rows[1])} evaluation images")
    whole = _Half(_Squares(data, study.cache_gb * 2**30), labels.attributes.astype(np.float32))
    train = rows[0][_some(len(rows[0]), task)]
    return whole.take(train), whole.take(rows[1]), len(labels.attribute_names), data.fingerprint


def _some(count: int, task: TransferConfig) -> NDArray[np.int64]:
    """Which of the training images are used, in their order."""
    if not task.train_images or task.train_images >= count:
        return np.arange(count)
    return np.sort(generator(0, "subset", task.name).permutation(count)[: task.train_images])


def _digest(cell: Cell | None) -> str:
    from ficgan.models.io import file_digest

    return file_digest(cell.path) if cell else "none"
