"""Training by the paper's recipe, from epoch to epoch resumable, and what a trained network says of a set."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import generator
from ficgan.errors import FicganError, UsageError
from ficgan.lab.study.networks import to_input
from ficgan.lab.study.variants import central_view, random_view

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["Progress", "Recipe", "Source", "fit", "outputs", "training_batches"]

Progress = Callable[[str, float], None]
"""Called as progress(what is being done, share of it that is done in [0, 1])."""
KIND = "study-state"


class Source(Protocol):
    """Pictures [H,W,3] uint8 RGB by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NDArray[np.uint8]: ...


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
    progress: Callable[[float], None] | None = None,
) -> nn.Module:
    """Train in place; where a state of the same key lies, go on from it.

    Args:
        network: on its device.
        epoch: number of an epoch → its batches, the same whenever it is asked for.
        loss: of (network, inputs, targets), a scalar.
        recipe: how.
        seed: of what the network itself draws (dropout).
        state: file for the state after an epoch; None keeps none.
        key: what the state belongs to; a state of another key is refused.
        save_seconds: the state is written after the first epoch that ends so many seconds after the last writing.
        progress: called with the share done after each epoch.

    Raises:
        UsageError: the state belongs to something else.
        FicganError: the loss is not finite.
    """
    import torch

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
            _save(network, optimiser, state, key, number + 1)
            saved = time.monotonic()
        if progress:
            progress((number + 1) / recipe.epochs)
    return network.eval()


def training_batches(
    pictures: Source,
    targets: NDArray[Any],
    *,
    crop: int,
    min_scale: float,
    batch: int,
    seed: int,
    device: str,
    workers: int = 0,
) -> Callable[[int], Iterator[tuple[Tensor, Tensor]]]:
    """Epochs of random crops; order and crops depend on (seed, epoch, image) alone, so variants see the same ones.

    Args:
        pictures: N of them.
        targets: [N] int64 classes or [N,A] float32 attributes.
        crop, min_scale: as `random_view`.
        batch: images in a batch; a last batch of one image is left out, which no batch norm can learn from.
        seed: of order and crops.
        device: where batches go.
        workers: processes that prepare images.

    Returns:
        Number of an epoch → batches (float [B,3,crop,crop] normalised, targets).
    """
    import torch

    def epoch(number: int) -> Iterator[tuple[Tensor, Tensor]]:
        order = generator(seed, "order", number).permutation(len(pictures))
        chunks = [order[begin : begin + batch].tolist() for begin in range(0, len(order), batch)]
        views = _Views(pictures, crop, lambda p, i: random_view(p, crop, generator(seed, "crop", number, i), min_scale))
        for rows, images in _loaded(views, [rows for rows in chunks if len(rows) > 1], workers):
            yield to_input(images.to(device)), torch.from_numpy(targets[rows]).to(device)

    return epoch


def outputs(
    network: nn.Module, pictures: Source, *, crop: int, resize: int, batch: int, device: str, workers: int = 0
) -> NDArray[np.float32]:
    """What a network says of the central crops: [N,C] float32, before softmax."""
    import torch

    views = _Views(pictures, crop, lambda picture, _: central_view(picture, crop, resize))
    rows = list(range(len(pictures)))
    chunks = [rows[begin : begin + batch] for begin in range(0, len(rows), batch)]
    network.eval()
    with torch.inference_mode():
        parts = [network(to_input(images.to(device))).float().cpu() for _, images in _loaded(views, chunks, workers)]
    return torch.cat(parts).numpy()


class _Views:
    """Views of pictures as a data set of torch's loader: index → [crop,crop,3] uint8."""

    def __init__(self, pictures: Source, crop: int, view: Callable[[Any, int], NDArray[np.uint8]]) -> None:
        self._pictures, self._crop, self._view = pictures, crop, view

    def batch(self, rows: list[int]) -> NDArray[np.uint8]:
        out = np.empty((len(rows), self._crop, self._crop, 3), np.uint8)
        for place, row in enumerate(rows):
            out[place] = self._view(self._pictures[row], row)
        return out


def _loaded(views: _Views, chunks: list[list[int]], workers: int) -> Iterator[tuple[list[int], Tensor]]:
    import torch

    if not workers:
        for rows in chunks:
            yield rows, torch.from_numpy(views.batch(rows))
        return
    # Forked, so that pictures already in memory are shared and nothing need be sent.
    loader: Iterable[Any] = torch.utils.data.DataLoader(
        [(views, rows) for rows in chunks],  # type: ignore[arg-type]
        batch_size=None,
        collate_fn=_collate,  # type: ignore[arg-type]
        num_workers=workers,
        multiprocessing_context="fork",
        generator=torch.Generator().manual_seed(0),
    )
    yield from loader


def _collate(item: tuple[_Views, list[int]]) -> tuple[list[int], Tensor]:
    import torch

    views, rows = item
    return rows, torch.from_numpy(views.batch(rows))


def _save(network: nn.Module, optimiser: Any, path: Path, key: str, epochs: int) -> None:
    from ficgan.models import save_tensors

    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    for number, parameter in enumerate(network.parameters()):
        if (momentum := optimiser.state[parameter].get("momentum_buffer")) is not None:
            tensors[f"momentum.{number}"] = momentum
    save_tensors(path, tensors, {"key": key, "epochs": epochs}, kind=KIND)


def _resume(network: nn.Module, optimiser: Any, path: Path | None, key: str) -> int:
    from ficgan.models import load_tensors

    if path is None or not path.is_file():
        return 0
    tensors, header = load_tensors(path, kind=KIND)
    if header.get("key") != key:
        raise UsageError(f"{path} is the state of another training; choose another output folder or remove it")
    network.load_state_dict(
        {name.removeprefix("network."): value for name, value in tensors.items() if name.startswith("network.")}
    )
    for number, parameter in enumerate(network.parameters()):
        if f"momentum.{number}" in tensors:
            optimiser.state[parameter]["momentum_buffer"] = tensors[f"momentum.{number}"].to(parameter.device)
    return int(header["epochs"])
