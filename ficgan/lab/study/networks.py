"""Classifiers by name: torchvision's, without weights, and a small one."""

from __future__ import annotations

import difflib
from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING

from ficgan.errors import InputError, UsageError

if TYPE_CHECKING:
    from torch import Tensor, nn

__all__ = ["load_weights", "make_network", "network_names", "replace_head", "to_input"]

NARROW = "narrow-resnet"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def network_names() -> list[str]:
    from torchvision import models

    return [NARROW, *models.list_models(module=models)]


def make_network(name: str, classes: int, *, seed: int, weights: Path | None = None) -> nn.Module:
    """A classifier with weights drawn by the seed, or of a safetensors file, whose head is left out if it does not fit.
    """
    import torch
    from torchvision import models

    if name not in network_names():
        near = difflib.get_close_matches(name, network_names(), n=1)
        help_ = f"did you mean {near[0]}?" if near else "see torchvision.models"
        raise UsageError(f"there is no network {name!r}; {help_}")
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
        conv1=nn.Conv2d(3, 16, 5, 2, 2, bias=False), bn1=nn.BatchNorm2d(16), relu=nn.ReLU(inplace=True),
        maxpool=nn.MaxPool2d(3, 2, 1), layer1=stage(16, 16, 1), layer2=stage(16, 32, 2), layer3=stage(32, 64, 2),
        layer4=stage(64, 128, 2), avgpool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten(), fc=nn.Linear(128, classes),
    )  # fmt: skip
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
