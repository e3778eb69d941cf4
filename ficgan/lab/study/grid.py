"""The grid: every network trained on every variant with every seed, each evaluated on every variant. A cell is one
training; it is kept on disk and never computed twice.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import FicganError, UsageError
from ficgan.lab.study.config import StudyConfig, Variant
from ficgan.lab.study.fit import Recipe, fit, outputs, training_batches
from ficgan.lab.study.networks import load_weights, make_network
from ficgan.lab.study.scenes import Scenes
from ficgan.lab.study.scores import class_precisions, hits
from ficgan.lab.study.variants import Pictures

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Cell", "Evaluation", "Grid", "cell_name"]

TOP = 5
"""Top-5 is given where there are more classes than this."""
KIND = "study-cell"
# Where the work runs and how much memory it may take change nothing; what is trained and evaluated can be added to; the
# images themselves are in the fingerprints.
_FREE = {"device", "workers", "cache_gb", "transfer", "train_on", "evaluate_on", "seeds", "networks", "area_edges"}
_FREE |= {"images", "annotations", "objects", "train_split", "eval_split"}


@dataclass(frozen=True)
class Evaluation:
    """One trained network on one variant of N evaluation images.

    Attributes:
        top1, top5: [N] bool, hit or miss; `top5` is None for few classes.
        precisions: average precision of each class; None for a class without images.
    """

    top1: NDArray[np.bool_]
    top5: NDArray[np.bool_] | None
    precisions: tuple[float | None, ...]

    @property
    def mean_precision(self) -> float:
        """Mean over the classes that have images."""
        return float(np.mean([value for value in self.precisions if value is not None]))

    def to_dict(self) -> dict[str, Any]:
        top5 = None if self.top5 is None else float(self.top5.mean())
        return {
            "top1": float(self.top1.mean()),
            "top5": top5,
            "ap": self.mean_precision,
            "class_ap": list(self.precisions),
        }


@dataclass(frozen=True)
class Cell:
    """One trained network: where it lies and what it was worth on each variant."""

    network: str
    variant: Variant
    seed: int
    path: Path
    evaluations: dict[str, Evaluation]

    def load(self, classes: int) -> nn.Module:
        """The trained network, on the CPU, for evaluation."""
        return _load(self.path, self.network, classes)


class Grid:
    """Trains and evaluates the cells of a study.

    Args:
        config: of the study.
        train, evaluation: the images.
        out: folder; cells go to `out/cells`.
        device: resolved.
    """

    def __init__(self, config: StudyConfig, train: Scenes, evaluation: Scenes, out: Path, device: str) -> None:
        self.config, self.train, self.evaluation, self.device = config, train, evaluation, device
        self.folder = out / "cells"
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.folder} cannot be made ({error.strerror}); choose another folder") from None
        settings = {key: value for key, value in config.to_dict().items() if key not in _FREE}
        told = json.dumps([settings, train.fingerprint, evaluation.fingerprint], sort_keys=True)
        self.key = hashlib.sha256(told.encode()).hexdigest()
        variants = len(config.train_on) + len(config.evaluate_on)
        room = config.cache_gb * 2**30 / variants
        self._train = {variant: Pictures(train, variant, room, config.blur) for variant in config.train_on}
        self._evaluate = {variant: Pictures(evaluation, variant, room, config.blur) for variant in config.evaluate_on}

    def cell(self, network: str, variant: Variant, seed: int, progress: Callable[[float], None] | None = None) -> Cell:
        """One cell: read if it is there whole, else trained (going on from the last epoch kept) and evaluated.

        Args:
            network, variant, seed: which.
            progress: called with the share done.

        Raises:
            UsageError: the folder holds this cell of another configuration or of other images.
        """
        path = self.folder / f"{cell_name(network, variant, seed)}.safetensors"
        found = self._found(path, network, variant, seed)
        missing = [v for v in self.config.evaluate_on if found is None or v not in found]
        if not missing:
            return self._cell(network, variant, seed, path, found or {})
        config, state = self.config, path.with_suffix(".state")
        classes = len(self.train.classes)
        if found is None:
            model = make_network(network, classes, seed=seed, weights=config.weights).to(self.device)
            self._learn(model, network, variant, seed, state, progress)
        else:
            model = _load(path, network, classes).to(self.device)
        evaluations = dict(found or {})
        for wanted in missing:
            evaluations[wanted] = self._judge(model, wanted)
        self._keep(path, model, network, variant, seed, evaluations)
        state.unlink(missing_ok=True)
        return self._cell(network, variant, seed, path, evaluations)

    def _cell(self, network: str, variant: Variant, seed: int, path: Path, evaluations: dict[str, Evaluation]) -> Cell:
        """With what this study asks for, in its order; a file may hold more."""
        return Cell(network, variant, seed, path, {name: evaluations[name] for name in self.config.evaluate_on})

    def _learn(self, model: nn.Module, network: str, variant: Variant, seed: int, state: Path, progress: Any) -> None:
        config = self.config
        from torch.nn.functional import cross_entropy

        pictures = self._train[variant]
        pictures.fill()
        batches = training_batches(
            pictures,
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
        fit(
            model,
            batches,
            lambda net, images, labels: cross_entropy(net(images), labels),
            recipe,
            seed=seed,
            state=state,
            key=f"{self.key} {cell_name(network, variant, seed)}",
            progress=progress,
        )

    def _judge(self, model: nn.Module, variant: Variant) -> Evaluation:
        config, labels = self.config, self.evaluation.labels
        logits = outputs(
            model,
            self._evaluate[variant],
            crop=config.crop,
            resize=config.resize,
            batch=config.batch,
            device=self.device,
            workers=config.workers,
        )
        top5 = hits(logits, labels, TOP) if logits.shape[1] > TOP else None
        return Evaluation(hits(logits, labels), top5, tuple(class_precisions(logits, labels)))

    def _keep(
        self, path: Path, model: nn.Module, network: str, variant: str, seed: int, evaluations: dict[str, Evaluation]
    ) -> None:
        import torch

        from ficgan.models import save_tensors

        tensors = {f"network.{name}": tensor for name, tensor in model.state_dict().items()}
        for name, one in evaluations.items():
            tensors[f"top1.{name}"] = torch.from_numpy(one.top1)
            if one.top5 is not None:
                tensors[f"top5.{name}"] = torch.from_numpy(one.top5)
        figures = {name: one.to_dict() for name, one in evaluations.items()}
        header = {"key": self.key, "network": network, "variant": variant, "seed": seed, "figures": figures}
        save_tensors(path, tensors, header, kind=KIND)
        # The same figures for people; what is read again is the file above.
        path.with_suffix(".json").write_text(json.dumps(header, indent=1, allow_nan=False), encoding="utf-8")

    def _found(self, path: Path, network: str, variant: str, seed: int) -> dict[str, Evaluation] | None:
        from ficgan.models import load_tensors

        if not path.is_file():
            return None
        tensors, header = load_tensors(path, kind=KIND)
        if header.get("key") != self.key:
            raise UsageError(
                f"{path} was trained by another configuration or on other images; choose another output folder"
            )
        try:
            return {
                name: Evaluation(
                    tensors[f"top1.{name}"].numpy(),
                    tensors[f"top5.{name}"].numpy() if f"top5.{name}" in tensors else None,
                    tuple(figures["class_ap"]),
                )
                for name, figures in header["figures"].items()
            }
        except KeyError as error:
            raise FicganError(f"{path} is incomplete ({error}); remove it and run the study again") from None


def cell_name(network: str, variant: str, seed: int) -> str:
    """File name of a cell, without suffix."""
    return f"{network}-{variant}-seed{seed}"


def _load(path: Path, network: str, classes: int) -> nn.Module:
    from ficgan.models import load_tensors

    tensors, _ = load_tensors(path, kind=KIND)
    model = make_network(network, classes, seed=0)
    weights = {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
    load_weights(model, weights, where=str(path))
    return model.eval()
