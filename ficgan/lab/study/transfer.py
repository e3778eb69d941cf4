"""Transfer: pretrained networks fine-tuned on classification, attributes, or detection."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy

from ficgan.anonymizers import generator
from ficgan.data import Blob, open_faces
from ficgan.device import resolve_precision
from ficgan.errors import InputError, UsageError
from ficgan.faces.detection import overlaps
from ficgan.files import file_digest
from ficgan.lab.attacks.training import Batches
from ficgan.lab.run import Say, Store
from ficgan.lab.study.scenes import (
    Boxes,
    Image,
    Pictures,
    Scene,
    Scenes,
    StudyConfig,
    TransferConfig,
    obfuscated,
    open_scenes,
    voc_objects,
)
from ficgan.lab.study.training import STATE, ViewBatches, average_precisions, fit, hits, make_network, outputs

Figures = dict[str, float]  # By metric, shares


class _Half(NamedTuple):
    """N pictures of a task, and what is to be read in them [N] or [N,A]."""

    pictures: Pictures
    targets: NDArray[Any]


class Transfer:
    """A downstream task of a study; results are kept in the store."""

    def __init__(self, name: str, task: TransferConfig, study: StudyConfig, store: Store, device: str) -> None:
        self.name, self.task, self.study, self.store, self.device = name, task, study, store, device
        assert task.images is not None
        if task.kind == "attributes":
            self.train, self.judged, self.outputs, data = _attributes(name, task.images, task, study)
        else:
            detects, splits = task.kind == "detection", (task.train_split, task.eval_split)
            scenes = open_voc(task.images, splits) if detects else open_scenes(task.images, task.labels)
            data = scenes.fingerprint
            train, judged = scenes.halves(task)
            self.scenes = train.take(_some(len(train), name, task)), judged
            self.train, self.judged = (
                _Half(obfuscated(part, "original", room=study.cache_gb * 2**29), part.labels) for part in self.scenes
            )
            self.outputs = 1 if detects else len(scenes.classes)
        settings = task.model_dump(mode="json", exclude={"images", "labels", "networks", "pretrained", "lr"})
        seen = [study.crop, study.resize, study.min_scale, study.precision]
        self.key = ["transfer", name, settings, *seen, data]

    def figures(self, network: str, seed: int, weights: Path | None, say: Say) -> Figures:
        """The metrics after fine-tuning a network from a cell's weights, or begun untrained; kept."""
        rate = self.task.lr[network] if isinstance(self.task.lr, dict) else self.task.lr
        key = [*self.key, network, seed, rate, file_digest(weights) if weights else None]

        def make(state: Path) -> Figures:
            model = make_network(network, self.outputs, seed=seed, weights=weights, head=False)
            dtype = resolve_precision(self.study.precision, self.device)
            train = partial(fit, task=self.task, lr=rate, seed=seed, dtype=dtype, state=state, say=say)
            how = self._detect if self.task.kind == "detection" else self._classify
            found = how(model, seed, train)
            state.unlink(missing_ok=True)
            return found

        with self.store.workspace(key) as folder:
            assert folder is not None
            kept: Figures = self.store.kept(key, lambda: make(folder / STATE))
        return kept

    def _classify(self, model: nn.Module, seed: int, train: Callable[..., None]) -> Figures:
        several = self.task.kind == "attributes"
        how: Callable[..., Any] = binary_cross_entropy_with_logits if several else cross_entropy
        batches = ViewBatches(*self.train, self.study, batch=self.task.batch, seed=seed, device=self.device)
        loss = lambda net, images, wanted: how(net(images), wanted)  # noqa: E731
        train(model.to(self.device), batches, loss)
        logits = outputs(model, self.judged.pictures, self.study, self.task.batch, self.device)
        if not several:
            return {"top1": float(hits(logits, self.judged.targets, 1).mean())}
        if not (self.judged.targets > 0).any():
            raise InputError(f"no attribute of task {self.name} is true of any evaluation image; hold out more")
        return {"mAP": float(np.nanmean(average_precisions(logits, self.judged.targets > 0)))}

    def _detect(self, model: nn.Module, seed: int, train: Callable[..., None]) -> Figures:
        task, (taught, judged) = self.task, self.scenes
        detector = make_detector(model, len(judged.classes), task, seed).to(self.device)
        batches = DetectionBatches(taught.items, batch=task.batch, seed=seed, device=self.device)
        train(detector, batches, detection_loss)
        answers = []
        with torch.inference_mode():
            for scene in judged.items:
                (answer,) = detector([image_tensor(scene.load(), self.device)])
                answers.append({name: value.cpu().numpy() for name, value in answer.items()})
        precise = {}
        for number, name in enumerate(judged.classes):
            found = [(one["boxes"][k], one["scores"][k]) for one in answers for k in [one["labels"] == number + 1]]
            truths = [scene.boxes[scene.kinds == number] for scene in judged.items]
            hard = [scene.difficult[scene.kinds == number] for scene in judged.items]
            precise[name] = detection_precision(found, truths, hard)
        person = {"person AP": precise["person"]} if "person" in precise else {}  # as section 5
        return {"mAP": float(np.nanmean(list(precise.values()))), **person}


def _attributes(name: str, images: Path, task: TransferConfig, study: StudyConfig) -> tuple[_Half, _Half, int, str]:
    data = open_faces([images], resolution=study.resize, labels=task.labels)
    labels = data.labels
    if labels is None or not labels.attribute_names:
        raise UsageError(f"task {name} needs a label file with columns of 0 and 1; name it under labels")
    splits = np.array(labels.splits)
    if task.holdout:
        # Nobody is in both halves: a face once seen would be known again by who it is.
        known = np.full(len(data), -1) if labels.people is None else labels.people
        owner = np.array([str(p) if p >= 0 else n for p, n in zip(known, data.names, strict=True)])
        people = np.unique(owner)
        chosen = generator(0, "holdout", name).permutation(people)[: max(1, round(task.holdout * len(people)))]
        splits = np.where(np.isin(owner, chosen), task.eval_split, task.train_split)
    taught, judged = (np.flatnonzero(splits == part) for part in (task.train_split, task.eval_split))
    if not (len(taught) and len(judged)):
        raise UsageError(f"task {name} has {len(taught)} training and {len(judged)} evaluation images")
    targets, room = labels.attributes.astype(np.float32), study.cache_gb * 2**29

    def half(some: NDArray[np.int64]) -> _Half:
        def square(index: int) -> Image:
            return data.load(int(some[index])).permute(1, 2, 0).contiguous().numpy()

        return _Half(Pictures(square, len(some), room), targets[some])

    taught = taught[_some(len(taught), name, task)]
    return half(taught), half(judged), len(labels.attribute_names), data.fingerprint


def _some(count: int, name: str, task: TransferConfig) -> NDArray[np.int64]:
    """The images that are trained on, of so many."""
    return np.sort(generator(0, "subset", name).permutation(count)[: task.train_images or None])


def open_voc(root: Path, splits: Sequence[str]) -> Scenes:
    """VOC's folders below `root` (VOC2007, VOC2012), as `splits`; the lists of all years are joined by their names."""
    found = []
    for split in splits:
        lists = sorted(root.glob(f"**/ImageSets/Main/{split}.txt"))
        if not lists:
            raise InputError(f"{root} has no ImageSets/Main/{split}.txt; unpack VOCdevkit there, or name other splits")
        for year, stem in ((file.parents[2], stem) for file in lists for stem in file.read_text("utf-8").split()):
            path = year / "JPEGImages" / f"{stem}.jpg"
            if not path.is_file():
                raise InputError(f"{path} is missing, and a list of VOC names it; unpack the images again")
            blob = Blob(str(path.relative_to(root)), path, path.stat().st_size)
            found.append((split, blob, *voc_objects(year / "Annotations" / f"{stem}.xml")))
    kinds = tuple(sorted({name for _, _, names, *_ in found for name in names}))
    scenes = []
    for split, blob, names, difficult, boxes in found:
        numbers = np.array([kinds.index(name) for name in names], np.int64)
        half_open = boxes - np.array([1, 1, 0, 0], np.float32)  # VOC counts pixels from 1 and includes the last
        scenes.append(Scene(blob.name, blob, 0, split, half_open, kinds=numbers, difficult=difficult))
    return Scenes(tuple(scenes), kinds)


def make_detector(classifier: nn.Module, kinds: int, task: TransferConfig, seed: int) -> nn.Module:
    """A Faster R-CNN with a feature pyramid on a ResNet classifier's layers, which are shared."""
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    children, names = dict(classifier.named_children()), ("layer1", "layer2", "layer3", "layer4")
    if not children.keys() >= {*names}:
        raise UsageError("detection needs a ResNet (layer1 to layer4), as the paper's; choose one for this task")
    norms = [[part for part in children[name].modules() if isinstance(part, nn.BatchNorm2d)] for name in names]
    widths = [some[-1].num_features for some in norms]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = {name: str(index) for index, name in enumerate(names)}
        backbone = BackboneWithFPN(classifier, layers, widths, min(256, widths[-1] // 2))
        ratios = ((0.5, 1.0, 2.0),) * len(task.anchors)
        return FasterRCNN(
            backbone,
            num_classes=1 + kinds,
            min_size=task.size,
            max_size=round(task.size * 5 / 3),
            rpn_anchor_generator=AnchorGenerator(tuple((side,) for side in task.anchors), ratios),
            rpn_pre_nms_top_n_train=2 * task.proposals,
            rpn_post_nms_top_n_train=task.proposals,
            rpn_pre_nms_top_n_test=task.proposals,
            rpn_post_nms_top_n_test=task.proposals,
        )


class DetectionBatches(Batches):
    """Whole images, mirrored half of the time, with the boxes that are not difficult; seeded by (seed, epoch)."""

    def __init__(self, scenes: Sequence[Scene], *, batch: int, seed: int, device: str) -> None:
        self.batch, self.seed, self.device = batch, seed, device
        self.scenes = [scene for scene in scenes if not scene.difficult.all()]
        self.steps = -(-len(self.scenes) // batch)

    def epoch(self, number: int, first: int) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
        order = generator(self.seed, "order", number).permutation(len(self.scenes))
        for begin in range(first * self.batch, len(order), self.batch):
            images, targets = [], []
            for row in order[begin : begin + self.batch].tolist():
                scene, image = self.scenes[row], self.scenes[row].load()
                boxes, kinds = scene.boxes[~scene.difficult], scene.kinds[~scene.difficult]
                if generator(self.seed, "mirror", number, row).random() < 0.5:
                    x0, y0, x1, y1 = boxes.T
                    image, boxes = image[:, ::-1], np.stack([image.shape[1] - x1, y0, image.shape[1] - x0, y1], 1)
                images.append(image_tensor(image, self.device))
                target = {"boxes": torch.from_numpy(boxes), "labels": torch.from_numpy(kinds + 1)}
                targets.append({name: value.to(self.device) for name, value in target.items()})
            yield images, targets


def detection_loss(detector: nn.Module, images: Any, targets: Any) -> Tensor:
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return sum(detector(images, targets).values())


def image_tensor(image: Image, device: str) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1).float().div_(255.0)


Found = tuple[NDArray[Any], NDArray[Any]]  # Boxes [K,4] and scores [K] of an image


def detection_precision(
    found: Sequence[Found], truths: Sequence[Boxes], difficult: Sequence[NDArray[np.bool_]]
) -> float:
    """Average precision at eleven recalls, as of PASCAL VOC 2007, of boxes with an IoU of ½ or more; NaN without truth.

    Of each image: what was found, the truth, boxes [M,4], and which of it [M] does not count, whether found or not.
    """
    scores, right = [], []
    for (boxes, confidence), truth, left_out in zip(found, truths, difficult, strict=True):
        shared = overlaps(boxes, truth)
        taken: set[int] = set()
        for k in np.argsort(-np.asarray(confidence), kind="stable"):
            best = int(shared[k].argmax()) if len(truth) else -1
            near = best >= 0 and shared[k, best] >= 0.5
            if near and left_out[best]:
                continue
            hit = near and best not in taken
            taken |= {best} if hit else set()
            scores.append(float(confidence[k]))
            right.append(hit)
    count = sum(int((~left_out).sum()) for left_out in difficult)
    if not count:
        return float("nan")
    hit_counts = np.cumsum(np.array(right, bool)[np.argsort(-np.array(scores), kind="stable")])
    precision = hit_counts / np.arange(1, len(hit_counts) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    # The first place where a recall is reached; a rounding below it counts as reached.
    places = np.searchsorted(hit_counts, np.arange(11) / 10 * count - 1e-9)
    return float(np.mean(np.append(envelope, 0.0)[places]))
