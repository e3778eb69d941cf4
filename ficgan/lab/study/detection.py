"""Detection as a downstream task: a Faster R-CNN on a backbone of the grid, and its average precision at an overlap."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import UsageError
from ficgan.lab.study.scenes import Boxes, Scenes

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["detection_batches", "detection_loss", "detection_precision", "detections", "make_detector"]

Found = tuple[NDArray[Any], NDArray[Any]]
"""Boxes [K,4] and scores [K] of one image."""


def make_detector(
    classifier: nn.Module, *, size: int, anchors: Sequence[int], seed: int, proposals: int = 1000
) -> nn.Module:
    """A Faster R-CNN with a feature pyramid for one class of objects, on a classifier's layers.

    Args:
        classifier: a ResNet of torchvision or `narrow-resnet`; its layers are shared, not copied.
        size: shorter side at which images are looked at, pixels.
        anchors: five sides of anchors, pixels at that size.
        seed: of the new layers.
        proposals: how many reach the head at most.

    Raises:
        UsageError: another kind of classifier.
    """
    import torch
    from torchvision.models.detection import FasterRCNN
    from torchvision.models.detection.anchor_utils import AnchorGenerator
    from torchvision.models.detection.backbone_utils import BackboneWithFPN

    names = ("layer1", "layer2", "layer3", "layer4")
    children = dict(classifier.named_children())
    if any(name not in children for name in names):
        raise UsageError("detection needs a ResNet (layer1 to layer4), as the paper's; choose one for this task")
    training = classifier.training
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        widths, x = [], torch.zeros(1, 3, 64, 64, device=next(classifier.parameters()).device)
        classifier.eval()
        for name, child in children.items():
            x = child(x)
            if name in names:
                widths.append(x.shape[1])
            if name == names[-1]:
                break
        classifier.train(training)
        out = min(256, widths[-1] // 2)
        backbone = BackboneWithFPN(classifier, {name: str(i) for i, name in enumerate(names)}, widths, out)
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


def detection_batches(
    scenes: Scenes, *, batch: int, seed: int, device: str
) -> Callable[[int], Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]]:
    """Epochs of whole images, mirrored half of the time, with their boxes; the same for the same (seed, epoch)."""
    import torch

    def epoch(number: int) -> Iterator[tuple[list[Tensor], list[dict[str, Tensor]]]]:
        order = generator(seed, "order", number).permutation(len(scenes))
        for begin in range(0, len(order), batch):
            images, targets = [], []
            for row in order[begin : begin + batch].tolist():
                image, boxes = scenes.items[row].load(), scenes.items[row].boxes
                if generator(seed, "mirror", number, row).random() < 0.5:
                    x0, y0, x1, y1 = boxes.T
                    image, boxes = image[:, ::-1], np.stack([image.shape[1] - x1, y0, image.shape[1] - x0, y1], 1)
                images.append(_tensor(image, device))
                labels = torch.ones(len(boxes), dtype=torch.int64, device=device)
                targets.append({"boxes": torch.from_numpy(np.array(boxes)).to(device), "labels": labels})
            yield images, targets

    return epoch


def detection_loss(detector: nn.Module, images: Any, targets: Any) -> Tensor:
    """Sum of the detector's losses; batch norms keep their statistics, which a batch of two images would ruin."""
    from torch import nn

    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
    return sum(detector(images, targets).values())


def detections(detector: nn.Module, scenes: Scenes, *, device: str) -> list[Found]:
    """What the detector finds in every image: boxes [K,4] in pixels and scores [K]."""
    import torch

    found = []
    detector.eval()
    with torch.inference_mode():
        for scene in scenes.items:
            (one,) = detector([_tensor(scene.load(), device)])
            found.append((one["boxes"].cpu().numpy(), one["scores"].cpu().numpy()))
    return found


def detection_precision(found: Sequence[Found], truths: Sequence[Boxes], overlap: float = 0.5) -> float | None:
    """Average precision of boxes as PASCAL VOC counts it since 2010: area under the precision envelope.

    From the highest score down, a box is right where the annotated box that it overlaps most has an IoU of at least
    `overlap` and was not found before.

    Args:
        found: for each image, boxes [K,4] and scores [K].
        truths: for each image, annotated boxes [M,4].
        overlap: least IoU.

    Returns:
        AP in [0, 1]; None where nothing is annotated.

    Source: Everingham et al. 2010, section 4.2.
    """
    wanted = sum(len(boxes) for boxes in truths)
    if not wanted:
        return None
    scores, right = [], []
    for (boxes, confidence), truth in zip(found, truths, strict=True):
        taken = np.zeros(len(truth), bool)
        for k in np.argsort(-np.asarray(confidence), kind="stable"):
            shared = _iou(np.asarray(boxes[k], np.float64), truth.astype(np.float64))
            best = int(shared.argmax()) if len(truth) else -1
            hit = best >= 0 and shared[best] >= overlap and not taken[best]
            if hit:
                taken[best] = True
            scores.append(float(confidence[k]))
            right.append(hit)
    if not scores:
        return 0.0
    hits = np.cumsum(np.array(right)[np.argsort(-np.array(scores), kind="stable")])
    precision = hits / np.arange(1, len(hits) + 1)
    envelope = np.maximum.accumulate(precision[::-1])[::-1]
    return float(np.sum(np.diff(hits, prepend=0) * envelope) / wanted)


def _iou(box: NDArray[np.float64], others: NDArray[np.float64]) -> NDArray[np.float64]:
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.clip(high - low, 0, None), axis=1)
    return shared / (np.prod(box[2:] - box[:2]) + np.prod(others[:, 2:] - others[:, :2], axis=1) - shared)


def _tensor(image: NDArray[np.uint8], device: str) -> Tensor:
    import torch

    return torch.from_numpy(np.ascontiguousarray(image)).to(device).permute(2, 0, 1).float().div_(255.0)
