"""Networks, training by the paper's recipe, what a network is worth, and the grid of them all."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ficgan.anonymizers import generator
from ficgan.errors import InputError, UsageError
from ficgan.lab.attacks.training import Batches, LossLearner, TrainingLoop, TrainingPlan
from ficgan.lab.run import Store
from ficgan.lab.study.scenes import Image, Pictures, Scenes, StudyConfig, Variant, central_view, random_view
from ficgan.models import load_tensors, save_tensors
from ficgan.yaml_settings import hint

NARROW = "narrow-resnet"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def network_names() -> list[str]:
    from torchvision import models

    return [NARROW, *models.list_models(module=models)]


def make_network(name: str, classes: int, *, seed: int, weights: Path | None = None) -> nn.Module:
    """A classifier with weights drawn by the seed, or of a safetensors file; a head that does not fit is new."""
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
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
    x = images.permute(0, 3, 1, 2).float().div_(255.0).sub_(mean).div_(std)
    return x.contiguous(memory_format=torch.channels_last)


def _narrow(classes: int) -> nn.Module:
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


# -- training ----------------------------------------------------------------------------------------------------------

CELL = "study-cell"
STATE, WEIGHTS = "state.safetensors", "network.safetensors"
Share = Callable[[float], None]  # Called with the share of the work that is done, in [0, 1]
Loss = Callable[[nn.Module, Any, Any], Tensor]


@dataclass(frozen=True)
class Recipe:
    """SGD whose rate falls to a tenth every `drop_every` epochs."""

    epochs: int
    drop_every: int
    lr: float
    momentum: float = 0.9
    weight_decay: float = 1e-4


class RecipeLearner(LossLearner):
    """One network that lessens a loss by a recipe."""

    def __init__(self, network: nn.Module, loss: Loss, recipe: Recipe) -> None:
        sgd = torch.optim.SGD(
            network.parameters(), recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
        )
        super().__init__(network, recipe.lr, sgd)
        self._loss, self._every = loss, recipe.drop_every

    def loss(self, seen: Any, wanted: Any) -> Tensor:
        return self._loss(self.network, seen, wanted)

    def after_epoch(self, factor: float, done: int, epochs: int, stale: int) -> float:
        return float(0.1 ** (done // self._every))


def fit(
    network: nn.Module,
    batches: Batches,
    loss: Loss,
    recipe: Recipe,
    *,
    seed: int,
    state: Path | None = None,
    progress: Share | None = None,
) -> nn.Module:
    """Train in place, or resume the state; in evaluation mode at the end."""
    name = type(network).__name__
    loop = TrainingLoop(
        RecipeLearner(network.train(), loss, recipe), batches, TrainingPlan(name, "", recipe.epochs, seed), state
    )
    loop.run((lambda done, total, text: progress(done / total)) if progress else None)
    return network.eval()


class ViewBatches:
    """Batches (float [B,3,crop,crop], targets [N] or [N,A]) of crops drawn by (seed, epoch, image)."""

    def __init__(
        self,
        pictures: Pictures,
        targets: NDArray[Any],
        *,
        crop: int,
        min_scale: float,
        batch: int,
        seed: int,
        device: str,
        workers: int = 0,
    ) -> None:
        self.pictures, self.targets, self.crop, self.min_scale = pictures, targets, crop, min_scale
        self.batch, self.seed, self.device, self.workers = batch, seed, device, workers
        self.steps = len(pictures) // batch + (len(pictures) % batch > 1)  # one picture alone has no deviation

    def epoch(self, number: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = generator(self.seed, "order", number).permutation(len(self.pictures))
        chunks = _chunks(order, self.batch)[first : self.steps]

        def view(picture: Image, row: int) -> Image:
            return random_view(picture, self.crop, generator(self.seed, "crop", number, row), self.min_scale)

        for rows, images in zip(chunks, _views(self.pictures, view, chunks, self.workers), strict=True):
            yield to_input(images.to(self.device)), torch.from_numpy(self.targets[rows]).to(self.device)

    def held(self) -> Iterator[tuple[Tensor, Tensor]]:
        return iter(())


def outputs(
    network: nn.Module, pictures: Pictures, *, crop: int, resize: int, batch: int, device: str, workers: int = 0
) -> NDArray[np.float32]:
    """The network's outputs for the central crops: [N,C] float32, before softmax."""
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

    def to_json(self) -> Row:
        top5 = None if self.top5 is None else self.top5.astype(int).tolist()
        return {"top1": self.top1.astype(int).tolist(), "top5": top5, "precisions": list(self.precisions)}

    @classmethod
    def from_json(cls, tree: Row) -> Evaluation:
        top5 = None if tree["top5"] is None else np.array(tree["top5"], bool)
        return cls(np.array(tree["top1"], bool), top5, tuple(tree["precisions"]))


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


# Settings that change nothing, or can be added to.
_FREE = {"device", "workers", "cache_gb", "transfer", "train_on", "evaluate_on", "seeds", "networks", "area_edges"}
# The images are in the fingerprints.
_FREE |= {"images", "annotations", "objects", "train_split", "eval_split"}


class StudyGrid:
    """Every network trained on every variant with every seed, evaluated on every variant; kept in a store."""

    def __init__(self, config: StudyConfig, train: Scenes, evaluation: Scenes, store: Store, device: str) -> None:
        self.config, self.train, self.evaluation, self.store, self.device = config, train, evaluation, store, device
        settings = {key: value for key, value in config.to_dict().items() if key not in _FREE}
        self.key = ["study", settings, train.fingerprint]
        room = config.cache_gb * 2**30 / (len(config.train_on) + len(config.evaluate_on))
        self._train = {one: Pictures.of(train, one, room, config.blur) for one in config.train_on}
        self._evaluate = {one: Pictures.of(evaluation, one, room, config.blur) for one in config.evaluate_on}

    def cell(self, network: str, variant: Variant, seed: int, progress: Share | None = None) -> Cell:
        """One cell: what is kept is read, the rest trained (resumed) and evaluated."""
        config, classes, key = self.config, len(self.train.classes), [*self.key, network, variant, seed]
        with self.store.workspace(key) as folder:
            assert folder is not None
            path = folder / WEIGHTS
            if not path.exists():
                model = make_network(network, classes, seed=seed, weights=config.weights).to(self.device)
                self._learn(model, network, variant, seed, folder / STATE, progress)
                save_tensors(
                    path, model.state_dict(), {"network": network, "variant": variant, "seed": seed}, kind=CELL
                )
                (folder / STATE).unlink(missing_ok=True)
        shared: dict[str, Any] = {"crop": config.crop, "resize": config.resize, "batch": config.batch}
        shared |= {"device": self.device, "workers": config.workers}

        evaluations = {}
        for wanted in config.evaluate_on:

            def figures(pictures: Pictures = self._evaluate[wanted]) -> Any:
                model = load_cell(path, network, classes).to(self.device)
                return Evaluation.of(outputs(model, pictures, **shared), self.evaluation.labels).to_json()

            kept = self.store.json([*key, self.evaluation.fingerprint, wanted], figures)
            evaluations[str(wanted)] = Evaluation.from_json(kept)
        return Cell(network, variant, seed, path, evaluations)

    def _learn(
        self, model: nn.Module, network: str, variant: Variant, seed: int, state: Path, progress: Share | None
    ) -> None:
        config = self.config
        self._train[variant].fill()
        shared: dict[str, Any] = {"crop": config.crop, "min_scale": config.min_scale, "batch": config.batch}
        shared |= {"seed": seed, "device": self.device, "workers": config.workers}
        batches = ViewBatches(self._train[variant], self.train.labels, **shared)
        rate = config.learning_rate(network)
        recipe = Recipe(config.epochs, config.drop_every, rate, config.momentum, config.weight_decay)
        loss = lambda net, images, labels: cross_entropy(net(images), labels)  # noqa: E731
        fit(model, batches, loss, recipe, seed=seed, state=state, progress=progress)


def load_cell(path: Path, network: str, classes: int) -> nn.Module:
    """The trained network of a cell, on the CPU, for evaluation."""
    model = make_network(network, classes, seed=0)
    load_weights(model, load_tensors(path, kind=CELL)[0], where=str(path))
    return model.eval()
