"""Transfer: pretrained networks fine-tuned on classification, attributes, or detection of faces."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError
from ficgan.faces.detection import overlaps
from ficgan.lab.run import Store
from ficgan.lab.study.scenes import Boxes, Image, Pictures, Scenes, StudyConfig, TransferConfig, halves, open_scenes
from ficgan.lab.study.training import (
    STATE,
    Cell,
    Recipe,
    Share,
    ViewBatches,
    average_precision,
    fit,
    hits,
    load_cell,
    make_network,
    outputs,
    replace_head,
    spread,
)

Found = tuple[NDArray[Any], NDArray[Any]]  # Boxes [K,4] and scores [K] of one image


class _Half(NamedTuple):
    """One side of a task: N pictures, and what is to be read in them [N] or [N,A]."""

    pictures: Pictures
    targets: NDArray[Any]


class Transfer:
    """One downstream task of a study; results are kept in the store."""

    def __init__(self, task: TransferConfig, study: StudyConfig, store: Store, device: str) -> None:
        self.task, self.study, self.store, self.device = task, study, store, device
        self.metric = {"classification": "top1", "attributes": "mAP", "detection": "AP@.5"}[task.kind]
        if task.kind == "attributes":
            self.train, self.evaluation, self.outputs, data = _attributes(task, study)
        else:
            scenes = open_scenes(task.images, task.labels)
            data = scenes.fingerprint
            if task.kind == "detection":
                # An image without a box may yet show a face that nobody marked; it would teach the wrong thing.
                scenes = scenes.take(np.flatnonzero(scenes.faced))
            train, evaluation = halves(scenes, task.holdout, task.train_split, task.eval_split)
            self.scenes = (train.take(_some(len(train), task)), evaluation)
            self.train, self.evaluation = (
                _Half(Pictures.of(scene, "original", study.cache_gb * 2**29), scene.labels) for scene in self.scenes
            )
            self.outputs = len(scenes.classes)
        settings = task.model_dump(mode="json", exclude={"images", "labels"})
        self.key = ["transfer", settings, study.crop, study.resize, study.min_scale, study.momentum, data]

    def rows(self, cells: Sequence[Cell], classes: int, progress: Share | None = None) -> list[dict[str, Any]]:
        """A row for each network and pretraining: {"network", "pretrained", "metric", "mean", "sem", "n"}."""
        by_name = {(cell.network, cell.variant, cell.seed): cell for cell in cells}
        pairs = [(network, pretrained) for network in self.study.networks for pretrained in self.task.pretrained]
        rows = []
        for number, (network, pretrained) in enumerate(pairs):
            values = []
            for seed in self.study.seeds:
                cell = None if pretrained == "none" else by_name.get((network, pretrained, seed))
                if pretrained != "none" and cell is None:
                    raise UsageError(f"task {self.task.name} begins from {pretrained} weights; train on them too")
                values.append(self.figure(network, seed, cell, classes))
                if progress:
                    progress((number + len(values) / len(self.study.seeds)) / len(pairs))
            row = {"network": network, "pretrained": pretrained, "metric": self.metric, **spread(values)}
            rows.append({**row, "evaluated": len(self.evaluation.targets)})
        return rows

    def figure(self, network: str, seed: int, cell: Cell | None, classes: int) -> float:
        """The metric after fine-tuning a cell's network, or an untrained one; kept."""
        from ficgan.files import file_digest

        key = [*self.key, network, seed, file_digest(cell.path) if cell else None]

        def make() -> float:
            model = load_cell(cell.path, network, classes) if cell else make_network(network, classes, seed=seed)
            with self.store.workspace(key) as folder:
                assert folder is not None
                state = folder / STATE
                value = (self._detect if self.task.kind == "detection" else self._classify)(model, seed, state)
                state.unlink(missing_ok=True)
            return value

        return float(self.store.kept(key, make))

    def _recipe(self) -> Recipe:
        task = self.task
        return Recipe(task.epochs, task.drop_every, task.lr, self.study.momentum, task.weight_decay)

    def _classify(self, model: nn.Module, seed: int, state: Path) -> float:
        study, several = self.study, self.task.kind == "attributes"
        model = replace_head(model, self.outputs, seed=seed).to(self.device)
        how: Callable[..., Any] = binary_cross_entropy_with_logits if several else cross_entropy
        shared: dict[str, Any] = {"crop": study.crop, "batch": self.task.batch, "device": self.device}
        shared["workers"] = study.workers
        batches = ViewBatches(*self.train, min_scale=study.min_scale, seed=seed, **shared)
        loss = lambda net, images, wanted: how(net(images), wanted)  # noqa: E731
        fit(model, batches, loss, self._recipe(), seed=seed, state=state)
        pictures, wanted = self.evaluation
        logits = outputs(model, pictures, resize=study.resize, **shared)
        if not several:
            return float(hits(logits, wanted).mean())
        values = [average_precision(logits[:, a], wanted[:, a] > 0) for a in range(self.outputs)]
        if not (known := [value for value in values if value is not None]):
            raise InputError(f"no attribute of task {self.task.name} is true of any evaluation image; hold out more")
        return float(np.mean(known))

    def _detect(self, model: nn.Module, seed: int, state: Path) -> float:
        task, (train, evaluation) = self.task, self.scenes
        detector = make_detector(model, size=task.size, anchors=task.anchors, seed=seed, proposals=task.proposals)
        detector.to(self.device)
        batches = DetectionBatches(train, batch=task.batch, seed=seed, device=self.device)
        fit(detector, batches, _detection_loss, self._recipe(), seed=seed, state=state)
        found = []
        with torch.inference_mode():
            for scene in evaluation.items:
                (one,) = detector([_tensor(scene.load(), self.device)])
                found.append((one["boxes"].cpu().numpy(), one["scores"].cpu().numpy()))
        value = detection_precision(found, [scene.boxes for scene in evaluation.items])
        assert value is not None  # only images with boxes are here
        return value


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

    def square(row: int) -> Image:
        return data.load(row).permute(1, 2, 0).contiguous().numpy()

    source = Pictures(square, len(data), study.cache_gb * 2**30)
    targets = labels.attributes.astype(np.float32)
    chosen = rows[0][_some(len(rows[0]), task)], rows[1]
    train, evaluation = (_Half(source.take(some), targets[some]) for some in chosen)
    return train, evaluation, len(labels.attribute_names), data.fingerprint


def _some(count: int, task: TransferConfig) -> NDArray[np.int64]:
    if not task.train_images or task.train_images >= count:
        return np.arange(count)
    return np.sort(generator(0, "subset", task.name).permutation(count)[: task.train_images])


def make_detector(
    classifier: nn.Module, *, size: int, anchors: Sequence[int], seed: int, proposals: int = 1000
) -> nn.Module:
    """A Faster R-CNN with a feature pyramid for one class on a ResNet classifier's layers, which are shared.

    `size` is the shorter side, pixels, and `anchors` five sides at that size.
    """
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN
    from torchvision.models.feature_extraction import create_feature_extractor

    names = ("layer1", "layer2", "layer3", "layer4")
    if any(name not in dict(classifier.named_children()) for name in names):
        raise UsageError("detection needs a ResNet (layer1 to layer4), as the paper's; choose one for this task")
    probe = torch.zeros(1, 3, 64, 64, device=next(classifier.parameters()).device)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        maps = create_feature_extractor(classifier.eval(), list(names))(probe)
        widths = [maps[name].shape[1] for name in names]
        layers = {name: str(index) for index, name in enumerate(names)}
        backbone = BackboneWithFPN(classifier, layers, widths, min(256, widths[-1] // 2))
        ratios = ((0.5, 1.0, 2.0),) * len(anchors)
        return FasterRCNN(
            backbone,
            num_classes=2,
            min_size=size,
            max_size=round(size * 5 / 3),
            rpn_anchor_generator=AnchorGenerator(tuple((side,) for side in anchors), ratios),
            rpn_pre_nms_top_n_train=2 * proposals,
            rpn_post_nms_top_n_train=proposals,
            rpn_pre_nms_top_n_test=proposals,
            rpn_post_nms_top_n_test=proposals,
        )


class DetectionBatches:
    """Whole images, mirrored half of the time, with their boxes; the same for the same (seed, epoch)."""

    def __init__(self, scenes: Scenes, *, batch: int, seed: int, device: str) -> None:
        self.scenes, self.batch, self.seed, self.device = scenes, batch, seed, device
        self.steps = -(-len(scenes) // batch)

    def epoch(self, number: int, first: int) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
        order = generator(self.seed, "order", number).permutation(len(self.scenes))
        for begin in range(first * self.batch, len(order), self.batch):
            images, targets = [], []
            for row in order[begin : begin + self.batch].tolist():
                image, boxes = self.scenes.items[row].load(), self.scenes.items[row].boxes
                if generator(self.seed, "mirror", number, row).random() < 0.5:
                    x0, y0, x1, y1 = boxes.T
                    image, boxes = image[:, ::-1], np.stack([image.shape[1] - x1, y0, image.shape[1] - x0, y1], 1)
                images.append(_tensor(image, self.device))
                labels = torch.ones(len(boxes), dtype=torch.int64, device=self.device)
                targets.append({"boxes": torch.from_numpy(np.array(boxes)).to(self.device), "labels": labels})
            yield images, targets

    def held(self) -> Iterator[tuple[Any, Any]]:
        return iter(())


def _detection_loss(detector: nn.Module, images: Any, targets: Any) -> Tensor:
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return sum(detector(images, targets).values())


def _tensor(image: Image, device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1).float().div_(255.0)


def detection_precision(found: Sequence[Found], truths: Sequence[Boxes], overlap: float = 0.5) -> float | None:
    """Average precision of boxes [K,4] with scores [K] against truths [M,4] (PASCAL VOC since 2010)."""
    wanted = sum(len(boxes) for boxes in truths)
    if not wanted:
        return None
    scores, right = [], []
    for (boxes, confidence), truth in zip(found, truths, strict=True):
        shared = overlaps(boxes, truth)
        taken: set[int] = set()
        for k in np.argsort(-np.asarray(confidence), kind="stable"):
            best = int(shared[k].argmax()) if len(truth) else -1
            hit = best >= 0 and shared[k, best] >= overlap and best not in taken
            taken |= {best} if hit else set()
            scores.append(float(confidence[k]))
            right.append(hit)
    hit_counts = np.cumsum(np.array(right, bool)[np.argsort(-np.array(scores), kind="stable")])
    precision = hit_counts / np.arange(1, len(hit_counts) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(hit_counts, prepend=0) * envelope) / wanted)
