"""Networks, training by the paper's recipe, what a network is worth, and the grid of them all."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ficgan.anonymizers import generator
from ficgan.config import hint
from ficgan.device import cpus, resolve_device, resolve_precision
from ficgan.errors import InputError, UsageError
from ficgan.files import file_digest
from ficgan.lab.attacks.training import Batches, LossLearner, TrainingLoop
from ficgan.lab.run import Say, Store
from ficgan.lab.study.scenes import (
    Image,
    Pictures,
    Scenes,
    StudyConfig,
    StudyTask,
    Variant,
    central_view,
    obfuscated,
    open_scenes,
    random_view,
)
from ficgan.models import save_tensors

NARROW = "narrow-resnet"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def check_network(name: str) -> None:
    """Raise `UsageError` where torchvision has no classifier of this name."""
    from torchvision import models

    names = [NARROW, *models.list_models(module=models)]
    if name not in names:
        raise UsageError(f"there is no network {name!r}; {hint(name, names)}")


def make_network(
    name: str, classes: int, *, seed: int = 0, weights: Path | None = None, head: bool = True
) -> nn.Module:
    """A classifier of torchvision, or the narrow one, drawn by the seed; weights as of `load_weights`."""
    from torchvision import models

    # The auxiliary heads of the Inception family would make a tuple of the output when training. Its published weights
    # expect inputs in [−1, 1].
    inception = {"aux_logits": False, "init_weights": True, "transform_input": True}
    more = inception if name in ("googlenet", "inception_v3") else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network: nn.Module = _narrow(classes) if name == NARROW else models.get_model(name, num_classes=classes, **more)
    if weights is not None:
        load_weights(network, weights, head=head)
    return network


def load_weights(network: nn.Module, path: Path, *, head: bool = True) -> None:
    """Put a file's weights into a network, but for a head of another size; `head`: into its last layer, too."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise InputError(f"weights {path} cannot be read ({error}); give a network's state as .safetensors") from error
    own, kinds = network.state_dict(), (nn.Linear, nn.Conv2d)
    layers = [[name for name, module in network.named_modules() if isinstance(module, kind)] for kind in kinds]
    last = {f"{(layers[0] or layers[1])[-1]}.{part}" for part in ("weight", "bias")}
    fits = {key: value for key, value in tensors.items() if key in own and value.shape == own[key].shape}
    if wrong := [key for key in own if key not in fits and key not in last]:
        raise InputError(f"the weights of {path} are of another network: {wrong[0]} does not fit")
    network.load_state_dict({key: fits[key] for key in fits if head or key not in last}, strict=False)


def _narrow(classes: int) -> nn.Module:
    from torchvision.models.resnet import BasicBlock

    def stage(inside: int, outside: int, stride: int) -> nn.Module:
        shortcut = None
        if stride != 1:
            shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))
        return nn.Sequential(BasicBlock(inside, outside, stride, shortcut))

    parts = OrderedDict[str, nn.Module](
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


# -- training ----------------------------------------------------------------------------------------------------------

CELL = "study-cell"
STATE, WEIGHTS = "state.safetensors", "network.safetensors"


def fit(
    network: nn.Module,
    batches: Batches,
    loss: Callable[[nn.Module, Any, Any], Tensor],
    task: StudyTask,
    lr: float,
    *,
    seed: int,
    dtype: torch.dtype = torch.float32,
    state: Path | None = None,
    say: Say = lambda text: None,
) -> None:
    """Train in place by SGD, or resume the state; the rate falls to a tenth every `drop_every` epochs of the task."""
    sgd = torch.optim.SGD(network.parameters(), lr, momentum=0.9, weight_decay=task.weight_decay)
    rate = lambda factor, done, stale: 0.1 ** (done // task.drop_every)  # noqa: E731
    learner = LossLearner(network.train(), loss, lr, sgd, rate)
    learner.precision = str(dtype).removeprefix("torch.")
    loop = TrainingLoop(learner, batches, type(network).__name__, "", task.epochs, state, seed=seed)

    def report(done: int, total: int | None, text: str) -> None:
        say(text)

    loop.run(report)
    network.eval()


class ViewBatches(Batches):
    """Batches (float [B,3,crop,crop], targets [N] or [N,A]) of crops drawn by (seed, epoch, image)."""

    def __init__(
        self, pictures: Pictures, targets: NDArray[Any], config: StudyConfig, *, batch: int, seed: int, device: str
    ) -> None:
        self.pictures, self.targets, self.config = pictures, targets, config
        self.batch, self.seed, self.device = batch, seed, device
        self.steps = len(pictures) // batch + (len(pictures) % batch > 1)  # a single picture has no deviation

    def epoch(self, number: int, first: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = generator(self.seed, "order", number).permutation(len(self.pictures))
        chunks = np.split(order, range(self.batch, len(order), self.batch))[first : self.steps]

        def view(picture: Image, row: int) -> Image:
            drawn = generator(self.seed, "crop", number, row)
            return random_view(picture, self.config.crop, drawn, self.config.min_scale)

        for rows, images in zip(chunks, _views(self.pictures, view, chunks, self.config, self.device), strict=True):
            yield to_input(images), torch.from_numpy(self.targets[rows]).to(self.device)


def outputs(
    network: nn.Module, pictures: Pictures, config: StudyConfig, batch: int, device: str
) -> NDArray[np.float32]:
    """The network's outputs for the central crops: [N,C] float32, before softmax."""
    chunks = np.split(np.arange(len(pictures)), range(batch, len(pictures), batch))
    views = _views(pictures, lambda one, _: central_view(one, config.crop, config.resize), chunks, config, device)
    with torch.inference_mode():
        found = torch.cat([network.eval()(to_input(images)).float().cpu() for images in views]).numpy()
    if not np.isfinite(found).all():
        raise InputError("a network's output is not finite; its training has diverged, or its weights are damaged")
    return found


def to_input(images: Tensor) -> Tensor:
    """[B,S,S,3] uint8 RGB → float [B,3,S,S], channels last in memory, normalised by ImageNet's mean and deviation."""
    mean, std = (torch.tensor(values, device=images.device).view(1, 3, 1, 1) for values in (_MEAN, _STD))
    x = images.permute(0, 3, 1, 2).float().div_(255.0).sub_(mean).div_(std)
    return x.contiguous(memory_format=torch.channels_last)


def _views(
    pictures: Pictures, view: Callable[[Image, int], Image], chunks: Sequence[Any], config: StudyConfig, device: str
) -> Iterator[Tensor]:
    workers = config.workers if config.workers is not None else cpus() if device.startswith("cuda") else 0
    loader: Any = torch.utils.data.DataLoader(
        chunks,  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=lambda rows: torch.from_numpy(np.stack([view(pictures[row], row) for row in map(int, rows)])),
        num_workers=workers,
        # Forked, so that pictures already in memory are shared and nothing need be sent.
        multiprocessing_context="fork" if workers else None,
        generator=torch.Generator().manual_seed(0),  # else it would draw from the network's own
    )
    for images in loader:
        yield images.to(device)


# -- what a trained network is worth -----------------------------------------------------------------------------------

METRICS = ("top1", "top5", "ap")
TOP = 5  # Top-5 is given where there are more classes than this
Row = dict[str, Any]
# By metric: "top1" and "top5" [N] whether an image's class is among the highest, "ap" [C] precision of each class. A
# figure is the mean of those that are known (not NaN). "guess" [N] is the class of the highest output.
Evaluation = dict[str, NDArray[Any]]
_FORM = 2  # Of what is kept of an evaluation


def evaluation(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> Evaluation:
    """Outputs [N,C] judged by the classes [N]."""
    found = {"top1": hits(logits, labels, 1), "guess": logits.argmax(1).astype(np.int32)}
    if logits.shape[1] > TOP:
        found["top5"] = hits(logits, labels, TOP)
    # Images are ranked by their outputs before softmax, as the authors' program does.
    return found | {"ap": average_precisions(logits, labels[:, None] == np.arange(logits.shape[1]))}


def hits(logits: NDArray[np.float32], labels: NDArray[np.int64], k: int) -> NDArray[np.bool_]:
    """[N] whether the class of an image is among the k highest of its outputs [N,C]; ties count against it."""
    return (logits >= np.take_along_axis(logits, labels[:, None], 1)).sum(1) <= k


def average_precisions(scores: NDArray[Any], positive: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Area under the precision–recall steps of each column [N,C]; NaN where nothing is positive."""
    from sklearn.metrics import average_precision_score

    columns = zip(positive.T, scores.T, strict=True)
    return np.array([average_precision_score(some, values) if some.any() else np.nan for some, values in columns])


def spread(values: Sequence[float] | NDArray[Any]) -> Row:
    """Mean over seeds and its standard error as {"mean", "sem", "n"}; the authors' errors are √2 times these."""
    x = np.asarray(values, np.float64)
    sem = float(x.std(ddof=1) / math.sqrt(len(x))) if len(x) > 1 else None
    return {"mean": float(x.mean()), "sem": sem, "n": len(x)}


def by_label(values: NDArray[Any], scenes: Scenes) -> NDArray[np.float64]:
    """Mean of values [N] over the images of each category [C], without those that are NaN; NaN where there is none."""
    known = np.isfinite(values.astype(float))
    labels, count = scenes.labels[known], len(scenes.classes)
    with np.errstate(invalid="ignore"):
        return np.bincount(labels, values[known], count) / np.bincount(labels, minlength=count)


class Cell(NamedTuple):
    """A trained network: the file it is kept in, and what it was worth on each variant."""

    network: str
    variant: str
    seed: int
    path: Path
    evaluations: dict[str, Evaluation]


# Settings that change nothing, that can be added to, or that are in the fingerprints of the images.
_FREE = {"device", "workers", "cache_gb", "transfer", "train_on", "evaluate_on", "seeds", "networks", "weights"}
_FREE |= {"images", "annotations", "objects", "train_split", "eval_split", "supercategories", "hierarchy", "pictures"}


class Study:
    """A study's images, opened, and its networks, trained on every variant and kept in a store; one a process."""

    def __init__(self, config: StudyConfig, out: Path) -> None:
        self.config, self.store, self.device = config, Store(out / "store"), resolve_device(config.device)
        self.whole = open_scenes(config.images, config.annotations, config.objects)
        if not self.whole.counts.any():
            raise InputError(f"no record of {config.annotations} has a box in {config.images}; are they of one set?")
        self.train, self.judged = self.whole.halves(config)
        self.key = ["study", config.model_dump(mode="json", exclude=_FREE), self.train.fingerprint]
        room = config.cache_gb * 2**30 / (len(config.train_on) + len(config.evaluate_on))
        self._train, self.pictures = (
            {variant: obfuscated(scenes, variant, config.blur, room) for variant in variants}
            for scenes, variants in ((self.train, config.train_on), (self.judged, config.evaluate_on))
        )

    def cell(self, network: str, variant: Variant, seed: int, say: Say) -> Cell:
        """What is kept is read, the rest trained (resumed) and evaluated."""
        classes, begun = len(self.train.classes), self.config.weights_of(network)
        key = [*self.key, begun and file_digest(begun), network, variant, seed]
        with self.store.workspace(key) as folder:
            assert folder is not None
            path = folder / WEIGHTS
            if not path.exists():
                model = self._learn(network, variant, seed, folder / STATE, say)
                header = {"network": network, "variant": variant, "seed": seed}
                save_tensors(path, model.state_dict(), header, kind=CELL)
                (folder / STATE).unlink(missing_ok=True)

        def judge(wanted: Variant) -> Any:
            model = make_network(network, classes, weights=path)
            logits = outputs(model.to(self.device), self.pictures[wanted], self.config, self.config.batch, self.device)
            return evaluation(logits, self.judged.labels)

        kept = {one: [*key, self.judged.fingerprint, one, _FORM] for one in self.config.evaluate_on}
        evaluations = {str(one): self.store.kept(place, partial(judge, one)) for one, place in kept.items()}
        return Cell(network, variant, seed, path, evaluations)

    def _learn(self, network: str, variant: Variant, seed: int, state: Path, say: Say) -> nn.Module:
        config, pictures = self.config, self._train[variant]
        model = make_network(network, len(self.train.classes), seed=seed, weights=config.weights_of(network))
        pictures.fill()
        batches = ViewBatches(pictures, self.train.labels, config, batch=config.batch, seed=seed, device=self.device)
        loss = lambda net, images, labels: cross_entropy(net(images), labels)  # noqa: E731
        more: dict[str, Any] = {"dtype": resolve_precision(config.precision, self.device), "state": state, "say": say}
        fit(model.to(self.device), batches, loss, config, config.learning_rate(network), seed=seed, **more)
        return model


# -- where a network looks ---------------------------------------------------------------------------------------------

_SIDES: tuple[Variant, ...] = ("original", "blurred")


class Gaze(NamedTuple):
    """What a network saw: the picture, where it looked for the right class [h,w] in 0…1, and what it called it."""

    seen: Image
    heat: NDArray[np.float32]
    called: str


def grad_cam(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor | None:
    """Where a network looks for a class: Grad-CAM's weighted map (eqs. 1 and 2) [N,h,w] in 0…1, None without positions.

    Of images [N,3,H,W], normalised, and the class of each [N]; the map is the last one that a module gives.
    """
    maps = list[Tensor]()

    def keep(module: nn.Module, inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4 and min(output.shape[2:]) > 1:
            maps[:] = [output]

    hooks = [module.register_forward_hook(keep) for module in network.modules()]
    try:
        scores = network.eval()(images)
    finally:
        for hook in hooks:
            hook.remove()
    if not maps:
        return None
    (slopes,) = torch.autograd.grad(scores.gather(1, labels[:, None]).sum(), maps[0])
    heat = (slopes.mean((2, 3), keepdim=True) * maps[0]).sum(1).relu().detach()
    return heat / heat.amax((1, 2), keepdim=True).clamp_min(torch.finfo(heat.dtype).tiny)


def lost_images(cells: Sequence[Cell], study: Study) -> list[tuple[str, Gaze, Gaze]]:
    """Images with a face that the last network gets right in the original and wrong when trained on blurred ones."""
    config, scenes = study.config, study.judged
    mine = {c.variant: c for c in cells if (c.network, c.seed) == (config.networks[-1], config.seeds[0])}
    if not {*_SIDES} <= mine.keys() & {*config.evaluate_on} or not config.pictures:
        return []
    clear, blurred = (mine[variant].evaluations[variant] for variant in _SIDES)
    metric = "top5" if "top5" in clear else "top1"
    drop = by_label(clear[metric].astype(float) - blurred[metric], scenes)
    wanted = clear["top1"] & ~blurred["top1"] & (scenes.counts > 0)
    rows = list[int]()
    for label in np.argsort(-np.nan_to_num(drop, nan=-1.0), kind="stable"):
        rows += np.flatnonzero(wanted & (scenes.labels == label))[:2].tolist()
    rows = rows[: config.pictures]
    looks = [_looks(mine[variant], variant, rows, study) for variant in _SIDES] if rows else []
    titles = [scenes.classes[scenes.labels[row]] for row in rows]
    return list(zip(titles, *looks, strict=True)) if rows and all(looks) else []


def _looks(cell: Cell, variant: Variant, rows: Sequence[int], study: Study) -> list[Gaze]:
    config, scenes = study.config, study.judged
    network = make_network(cell.network, len(scenes.classes), weights=cell.path)
    seen = np.stack([central_view(study.pictures[variant][row], config.crop, config.resize) for row in rows])
    labels = torch.from_numpy(scenes.labels[list(rows)]).to(study.device)
    heat = grad_cam(network.to(study.device), to_input(torch.from_numpy(seen).to(study.device)), labels)
    if heat is None:
        return []
    called = [scenes.classes[cell.evaluations[variant]["guess"][row]] for row in rows]
    return [Gaze(*one) for one in zip(seen, heat.cpu().numpy(), called, strict=True)]
