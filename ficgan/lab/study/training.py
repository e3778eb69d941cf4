"""Training by the paper's recipe, resumable from epoch to epoch; what a network is worth; and the grid of them all."""

from __future__ import annotations

import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.lab.run import digest
from ficgan.lab.study.scenes import Image, Pictures, Scenes, StudyConfig, Variant, central_view, random_view
from ficgan.yaml_settings import hint

if TYPE_CHECKING:
    from torch import Tensor, nn

NARROW = "narrow-resnet"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def network_names() -> list[str]:
    from torchvision import models

    return [NARROW, *models.list_models(module=models)]


def make_network(name: str, classes: int, *, seed: int, weights: Path | None = None) -> nn.Module:
    """A classifier with weights drawn by the seed, or of a safetensors file; a head that does not fit is new."""
    import torch
    from torchvision import models

    if name not in network_names():
        raise UsageError(f"there is no network {name!r}; {hint(name, network_names())}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name == NARROW:
            network = _narrow(classes)
        else:
            # The auxiliary heads of the Inception family would make a tuple of the output when training.
            more = {"aux_logits": False, "init_weights": True} if name in ("googlenet", "inception_v3") else {}
            network = models.get_model(name, weights=None, num_classes=classes, **more)
    if weights is not None:
        load_weights(network, _tensors(weights), where=str(weights))
    return network


def load_weights(network: nn.Module, tensors: dict[str, Tensor], *, where: str) -> None:
    """Put weights into a network but for a head of another size; `InputError` if anything else does not fit."""
    own = network.state_dict()
    head = {f"{_head(network)}.weight", f"{_head(network)}.bias"}
    other = [key for key in own if key not in tensors or tensors[key].shape != own[key].shape]
    if wrong := [key for key in other if key not in head]:
        raise InputError(
            f"the weights of {where} are of another network: {wrong[0]} and {len(wrong) - 1} others do not fit"
        )
    network.load_state_dict({key: own[key] if key in other else tensors[key] for key in own})


def replace_head(network: nn.Module, outputs: int, *, seed: int) -> nn.Module:
    """The same network (changed in place) whose last layer is new and has `outputs` outputs."""
    import torch
    from torch import nn

    name = _head(network)
    old = network.get_submodule(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        new: nn.Module
        if isinstance(old, nn.Linear):
            new = nn.Linear(old.in_features, outputs)
        else:
            assert isinstance(old, nn.Conv2d)
            new = nn.Conv2d(old.in_channels, outputs, 1)
    setattr(network.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2], new)
    return network


def to_input(images: Tensor) -> Tensor:
    """[B,S,S,3] uint8 RGB → float [B,3,S,S], channels last in memory, normalised by ImageNet's mean and deviation."""
    import torch

    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
    x = images.permute(0, 3, 1, 2).float().div_(255.0).sub_(mean).div_(std)
    return x.contiguous(memory_format=torch.channels_last)


def _narrow(classes: int) -> nn.Module:
    from torch import nn
    from torchvision.models.resnet import BasicBlock

    def stage(inside: int, outside: int, stride: int) -> nn.Module:
        shortcut = None
        if stride != 1 or inside != outside:
            shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        return nn.Sequential(BasicBlock(inside, outside, stride, shortcut))

    parts: OrderedDict[str, nn.Module] = OrderedDict(
        conv1=nn.Conv2d(3, 16, 5, 2, 2, bias=False),
        bn1=nn.BatchNorm2d(16),
        relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, 1),
        layer1=stage(16, 16, 1),
        layer2=stage(16, 32, 2),
        layer3=stage(32, 64, 2),
        layer4=stage(64, 128, 2),
        avgpool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        fc=nn.Linear(128, classes),
    )
    return nn.Sequential(parts)


def _head(network: nn.Module) -> str:
    from torch import nn

    for kind in (nn.Linear, nn.Conv2d):
        if names := [name for name, module in network.named_modules() if isinstance(module, kind)]:
            return names[-1]
    raise UsageError("this network has no linear or convolutional layer that could be its head")


def _tensors(path: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"weights {path} cannot be read ({error}); give a .safetensors file of the network's state "
            "(pickled .pth files are not read: save them with safetensors.torch.save_file)"
        ) from error


Share = Callable[[float], None]  # Called with the share of the work that is done, in [0, 1]
CELL, STATE = "study-cell", "study-state"
_FREE = {
    "device",
    "workers",
    "cache_gb",  # where the work runs and how much memory it may take change nothing
    "transfer",
    "train_on",
    "evaluate_on",
    "seeds",
    "networks",
    "area_edges",  # these can be added to
    "images",
    "annotations",
    "objects",
    "train_split",
    "eval_split",  # the images are in the fingerprints
}


@dataclass(frozen=True)
class Recipe:
    """SGD whose rate falls to a tenth every `drop_every` epochs."""

    epochs: int
    drop_every: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 1e-4


def fit(
    network: nn.Module,
    epoch: Callable[[int], Iterable[tuple[Any, Any]]],
    loss: Callable[[nn.Module, Any, Any], Tensor],
    recipe: Recipe,
    *,
    seed: int,
    state: Path | None = None,
    key: str = "",
    save_seconds: float = 60.0,
    progress: Share | None = None,
) -> nn.Module:
    """Train in place, or resume a state of the same key; `epoch` gives an epoch's batches, always the same."""
    import torch

    from ficgan.models import save_tensors
    from ficgan.training.state import packed

    optimiser = torch.optim.SGD(
        network.parameters(), recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    first = _resume(network, optimiser, state, key)
    saved = time.monotonic()
    devices = sorted({p.device.index or 0 for p in network.parameters() if p.device.type == "cuda"})
    for number in range(first, recipe.epochs):
        for group in optimiser.param_groups:
            group["lr"] = recipe.lr * 0.1 ** (number // recipe.drop_every)
        network.train()
        with torch.random.fork_rng(devices=devices):
            torch.manual_seed(int(generator(seed, "epoch", number).integers(2**62)))
            for inputs, targets in epoch(number):
                value = loss(network, inputs, targets)
                optimiser.zero_grad(set_to_none=True)
                value.backward()
                optimiser.step()
            # Looked at once an epoch: a look waits for the device.
            if not math.isfinite(float(value.detach())):
                raise FicganError(
                    f"training has diverged in epoch {number + 1} at learning rate {recipe.lr}; set a lower lr"
                )
        if state is not None and number + 1 < recipe.epochs and time.monotonic() - saved >= save_seconds:
            tensors = packed({"network": network}, {"momentum": optimiser})
            save_tensors(state, tensors, {"key": key, "epochs": number + 1}, kind=STATE)
            saved = time.monotonic()
        if progress:
            progress((number + 1) / recipe.epochs)
    return network.eval()


def _resume(network: nn.Module, optimiser: Any, path: Path | None, key: str) -> int:
    from ficgan.models import load_tensors
    from ficgan.training.state import unpack

    if path is None or not path.is_file():
        return 0
    tensors, header = load_tensors(path, kind=STATE)
    if header.get("key") != key:
        raise UsageError(f"{path} is the state of another training; choose another output folder or remove it")
    unpack(tensors, {"network": network}, {"momentum": optimiser})
    return int(header["epochs"])


def training_batches(
    pictures: Pictures,
    targets: NDArray[Any],
    *,
    crop: int,
    min_scale: float,
    batch: int,
    seed: int,
    device: str,
    workers: int = 0,
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """Epoch → batches (float [B,3,crop,crop], targets [N] or [N,A]) of crops drawn by (seed, epoch, image)."""
    import torch

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = generator(seed, "order", number).permutation(len(pictures))

        def view(picture: Image, row: int) -> Image:
            return random_view(picture, crop, generator(seed, "crop", number, row), min_scale)

        chunks = [rows for rows in _chunks(order, batch) if len(rows) > 1]
        for rows, images in zip(chunks, _views(pictures, view, chunks, workers), strict=True):
            yield to_input(images.to(device)), torch.from_numpy(targets[rows]).to(device)

    return epoch


def outputs(
    network: nn.Module, pictures: Pictures, *, crop: int, resize: int, batch: int, device: str, workers: int = 0
) -> NDArray[np.float32]:
    """The network's outputs for the central crops: [N,C] float32, before softmax."""
    import torch

    chunks = _chunks(np.arange(len(pictures)), batch)
    views = _views(pictures, lambda picture, _: central_view(picture, crop, resize), chunks, workers)
    network.eval()
    with torch.inference_mode():
        return torch.cat([network(to_input(images.to(device))).float().cpu() for images in views]).numpy()


def _chunks(order: NDArray[np.int64], batch: int) -> list[list[int]]:
    return [order[begin : begin + batch].tolist() for begin in range(0, len(order), batch)]


class _Views:
    def __init__(self, pictures: Pictures, view: Callable[[Image, int], Image]) -> None:
        self._pictures, self._view = pictures, view

    def __getitem__(self, rows: list[int]) -> NDArray[np.uint8]:
        return np.stack([self._view(self._pictures[row], row) for row in rows])


def _views(
    pictures: Pictures, view: Callable[[Image, int], Image], chunks: list[list[int]], workers: int
) -> Iterator[Tensor]:
    import torch

    loader: Any = torch.utils.data.DataLoader(
        _Views(pictures, view),  # type: ignore[arg-type]
        batch_size=None,
        sampler=chunks,
        collate_fn=torch.from_numpy,
        num_workers=workers,
        # Forked, so that pictures already in memory are shared and nothing need be sent.
        multiprocessing_context="fork" if workers else None,
        generator=torch.Generator().manual_seed(0),  # else it would draw from the network's own
    )
    yield from loader


# -- what a trained network is worth -----------------------------------------------------------------------------------

TOP = 5  # Top-5 is given where there are more classes than this
Row = dict[str, Any]


def hits(logits: NDArray[np.float32], labels: NDArray[np.int64], k: int = 1) -> NDArray[np.bool_]:
    """[N] whether the class of an image is among the k highest of its outputs [N,C]; ties count against it."""
    if not np.isfinite(logits).all():
        raise InputError("a network's output is not finite; its training has diverged, or its weights are damaged")
    return (logits >= np.take_along_axis(logits, labels[:, None], 1)).sum(1) <= k


def average_precision(scores: NDArray[Any], positive: NDArray[Any]) -> float | None:
    """Area under the precision–recall steps of scores [N], see scikit-learn; None where nothing is positive."""
    from sklearn.metrics import average_precision_score

    if not np.isfinite(scores).all():
        raise InputError("average precision needs finite scores")
    return float(average_precision_score(positive, scores)) if np.any(positive) else None


def class_precisions(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> list[float | None]:
    """Average precision of every class against all others, by softmax: C values, None for a class without images."""
    from scipy.special import softmax

    chance = softmax(logits.astype(np.float64), axis=1)
    return [average_precision(chance[:, c], labels == c) for c in range(logits.shape[1])]


def spread(values: Sequence[float] | NDArray[Any]) -> Row:
    """Mean over seeds and its standard error as {"mean", "sem", "n"}; the authors' errors are √2 times these."""
    x = np.asarray(values, np.float64)
    if not len(x) or not np.isfinite(x).all():
        raise InputError(f"a mean over seeds needs finite values, not {x.tolist()}")
    sem = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None
    return {"mean": float(x.mean()), "sem": sem, "n": len(x)}


@dataclass(frozen=True)
class Evaluation:
    """One trained network on N evaluation images of a variant: hits [N], no top-5 of few classes; AP by class."""

    top1: NDArray[np.bool_]
    top5: NDArray[np.bool_] | None
    precisions: tuple[float | None, ...]

    @classmethod
    def of(cls, logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Evaluation:
        top5 = hits(logits, labels, TOP) if logits.shape[1] > TOP else None
        return cls(hits(logits, labels), top5, tuple(class_precisions(logits, labels)))

    def hits(self, metric: str) -> NDArray[np.bool_] | None:
        return self.top1 if metric == "top1" else self.top5


METRICS: dict[str, Callable[[Evaluation], float | None]] = {
    "top1": lambda one: float(one.top1.mean()),
    "top5": lambda one: None if one.top5 is None else float(one.top5.mean()),
    "ap": lambda one: float(np.mean([value for value in one.precisions if value is not None])),
}
"""Name → the figure of an evaluation; "ap" is the mean over the classes that have images."""


class Cell(NamedTuple):
    """One trained network: the file it is kept in, and what it was worth on each variant."""

    network: str
    variant: str
    seed: int
    path: Path
    evaluations: dict[str, Evaluation]


class Grid:
    """Every network trained on every variant with every seed, evaluated on every variant; kept in `out/cells`."""

    def __init__(self, config: StudyConfig, train: Scenes, evaluation: Scenes, out: Path, device: str) -> None:
        self.config, self.train, self.evaluation, self.device = config, train, evaluation, device
        self.folder = out / "cells"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be made ({error.strerror}); choose another folder") from None
        settings = {key: value for key, value in config.to_dict().items() if key not in _FREE}
        self.key = digest([settings, train.fingerprint, evaluation.fingerprint])
        room = config.cache_gb * 2**30 / (len(config.train_on) + len(config.evaluate_on))
        self._train = {one: Pictures.of(train, one, room, config.blur) for one in config.train_on}
        self._evaluate = {one: Pictures.of(evaluation, one, room, config.blur) for one in config.evaluate_on}

    def cell(self, network: str, variant: Variant, seed: int, progress: Share | None = None) -> Cell:
        """One cell: read if it is whole, else trained (resumed) and evaluated."""
        config, name = self.config, f"{network}-{variant}-seed{seed}"
        path, state = self.folder / f"{name}.safetensors", self.folder / f"{name}.state"
        evaluations = self._found(path)
        missing = [wanted for wanted in config.evaluate_on if wanted not in evaluations]
        if missing:
            classes = len(self.train.classes)
            if path.is_file():
                model = load_cell(path, network, classes).to(self.device)
            else:
                model = make_network(network, classes, seed=seed, weights=config.weights).to(self.device)
                self._learn(model, network, variant, seed, state, f"{self.key} {name}", progress)
            shared: dict[str, Any] = {"crop": config.crop, "resize": config.resize, "batch": config.batch}
            shared |= {"device": self.device, "workers": config.workers}
            for wanted in missing:
                logits = outputs(model, self._evaluate[wanted], **shared)
                evaluations[wanted] = Evaluation.of(logits, self.evaluation.labels)
            header = {"key": self.key, "network": network, "variant": variant, "seed": seed}
            _keep(path, model, header, evaluations)
            state.unlink(missing_ok=True)
        # What this study asks for, in its order; a file may hold more.
        return Cell(network, variant, seed, path, {wanted: evaluations[wanted] for wanted in config.evaluate_on})

    def _learn(
        self, model: nn.Module, network: str, variant: Variant, seed: int, state: Path, key: str, progress: Share | None
    ) -> None:
        from torch.nn.functional import cross_entropy

        config = self.config
        self._train[variant].fill()
        batches = training_batches(
            self._train[variant],
            self.train.labels,
            crop=config.crop,
            min_scale=config.min_scale,
            batch=config.batch,
            seed=seed,
            device=self.device,
            workers=config.workers,
        )
        rate = config.learning_rate(network)
        recipe = Recipe(config.epochs, config.drop_every, rate, config.momentum, config.weight_decay)
        loss = lambda net, images, labels: cross_entropy(net(images), labels)  # noqa: E731
        fit(model, batches, loss, recipe, seed=seed, state=state, key=key, progress=progress)

    def _found(self, path: Path) -> dict[str, Evaluation]:
        from ficgan.models import load_tensors

        if not path.is_file():
            return {}
        tensors, header = load_tensors(path, kind=CELL)
        if header.get("key") != self.key:
            raise UsageError(
                f"{path} was trained by another configuration or on other images; choose another output folder"
            )
        try:
            found = {}
            for name, figures in header["figures"].items():
                top5 = tensors[f"top5.{name}"].numpy() if f"top5.{name}" in tensors else None
                found[name] = Evaluation(tensors[f"top1.{name}"].numpy(), top5, tuple(figures["class_ap"]))
            return found
        except KeyError as error:
            raise FicganError(f"{path} is incomplete ({error}); remove it and run the study again") from None


def _keep(path: Path, model: nn.Module, header: dict[str, Any], evaluations: dict[str, Evaluation]) -> None:
    import torch

    from ficgan.models import save_tensors

    tensors = {f"network.{name}": tensor for name, tensor in model.state_dict().items()}
    figures: dict[str, Any] = {}
    for name, one in evaluations.items():
        for top in ("top1", "top5"):
            if (hit := one.hits(top)) is not None:
                tensors[f"{top}.{name}"] = torch.from_numpy(hit)
        figures[name] = {metric: of(one) for metric, of in METRICS.items()} | {"class_ap": list(one.precisions)}
    header = {**header, "figures": figures}
    save_tensors(path, tensors, header, kind=CELL)
    # The same figures for people; what is read again is the file above.
    path.with_suffix(".json").write_text(json.dumps(header, indent=1, allow_nan=False), encoding="utf-8")


def load_cell(path: Path, network: str, classes: int) -> nn.Module:
    """The trained network of a cell, on the CPU, for evaluation."""
    from ficgan.models import load_tensors
    from ficgan.training.state import below

    model = make_network(network, classes, seed=0)
    load_weights(model, below(load_tensors(path, kind=CELL)[0], "network"), where=str(path))
    return model.eval()
