"""The networks arranged for use: constants folded, styles apart from synthesis, one precision, optional compilation."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ficgan.errors import UsageError
from ficgan.models.ficgan import FICGAN, Codes, StyleLayer
from ficgan.models.layers import Conv2d, Linear

__all__ = ["BATCHES", "InferenceModel"]

BATCHES = (1, 2, 4, 8, 16, 32)
"""Batch sizes a compiled model is made for; another size is filled up to the next, larger ones are cut."""


class InferenceModel(nn.Module):
    """A trained model for use only: no gradients, no training state.

    What is constant is computed once: the gains of weights, activations and residual sums, the kernel norms of
    demodulation. What depends on w alone (`styles`) is apart from what depends on the picture (`synthesise`), so a
    face which keeps its w over a film has its styles computed once. The mapping network and the styles stay in float32.

    Args:
        model: the trained networks; not changed.
        dtype: of features and convolution weights: float32, bfloat16 or float16.
        compile: let torch.compile fuse what is left; on a GPU its graphs are replayed (CUDA graphs). The first call
            of each batch size takes up to a minute; on a CPU a C++ compiler must be installed.
    """

    def __init__(
        self, model: FICGAN, *, device: str = "cpu", dtype: torch.dtype = torch.float32, compile: bool = False
    ) -> None:
        super().__init__()
        self.config, self.device, self.dtype, self.compiled = model.config, device, dtype, compile
        self.num_layers, self.resolution = model.num_layers, model.resolution
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        with torch.no_grad():
            for module in self.model.modules():
                if isinstance(module, Conv2d | StyleLayer):
                    module.fold(dtype)
                elif isinstance(module, Linear):
                    module.fold()
        self.to(device)
        layers = [layer for layer in self.model.generator.layers if isinstance(layer, StyleLayer)]
        self._widths = [layer.affine.bias.numel() for layer in layers]
        parts: tuple[Callable[..., Any], ...] = (self.model.encoder, self._rows, self._images)
        if compile:
            mode = "reduce-overhead" if device.startswith("cuda") else "default"
            parts = tuple(torch.compile(part, mode=mode, dynamic=False) for part in parts)
        self._parts = parts

    def _rows(self, w: Tensor) -> Tensor:
        return torch.cat(self.model.generator.styles(w), dim=1)

    def _images(self, styles: Tensor, z_non: Tensor) -> Tensor:
        return self.model.generator.synthesise(list(styles.split(self._widths, dim=1)), z_non)

    @torch.inference_mode()
    def encode(self, x: Tensor) -> Codes:
        """Codes of images [B,3,R,R] in [−1, 1], any floating type; z_id is float32, z_non of the model's type."""
        x = x.to(device=self.device, dtype=self.dtype).contiguous(memory_format=torch.channels_last)
        return Codes(*self._run(self._parts[0], x))

    @torch.inference_mode()
    def map(self, z_id: Tensor) -> Tensor:
        """Intermediate latent w [B,w_dim], float32, of identity codes [B,id_dim]."""
        return self.model.map(z_id.float())

    @torch.inference_mode()
    def styles(self, w: Tensor) -> Tensor:
        """All that the style layers need of w, [B,w_dim] or [B,L,w_dim]: [B,S] float32, one row a face."""
        w = w if w.ndim == 3 else w.unsqueeze(1).expand(-1, self.num_layers, -1)
        return self._run(self._parts[1], w.to(device=self.device, dtype=torch.float32).contiguous())[0]

    @torch.inference_mode()
    def synthesise(self, styles: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from rows of `styles` [B,S] and spatial codes [B,C,4,4]."""
        return self._run(self._parts[2], styles, z_non.to(self.dtype))[0]

    def generate(self, w: Tensor, z_non: Tensor) -> Tensor:
        """Images [B,3,R,R] in about [−1, 1] from w [B,w_dim] or [B,L,w_dim] and z_non [B,C,4,4]."""
        return self.synthesise(self.styles(w), z_non)

    def forward(self, x: Tensor) -> Tensor:
        """Reconstruction G(E(x)) of images [B,3,R,R]."""
        codes = self.encode(x)
        return self.generate(self.map(codes.z_id), codes.z_non)

    def digest(self) -> str:
        """Short hash of the weights."""
        total = hashlib.sha256()
        for name, value in self.model.named_parameters():
            total.update(f"{name} {value.double().sum().item()!r} {value.double().square().sum().item()!r}".encode())
        return total.hexdigest()[:16]

    def _run(self, part: Callable[..., Any], *inputs: Tensor) -> tuple[Tensor, ...]:
        if not self.compiled:
            return _tuple(part(*inputs))
        # Few sizes, each compiled once. A replayed graph writes where it wrote before, so results are copied out.
        count, outputs = len(inputs[0]), []
        for begin in range(0, max(count, 1), BATCHES[-1]):
            chunk = [x[begin : begin + BATCHES[-1]] for x in inputs]
            size = len(chunk[0])
            filled = next(batch for batch in BATCHES if batch >= size)
            chunk = [F.pad(x, [0, 0] * (x.ndim - 1) + [0, filled - size]) if filled > size else x for x in chunk]
            outputs.append(tuple(y[:size].clone() for y in self._call(part, chunk)))
        return tuple(torch.cat(ys) for ys in zip(*outputs, strict=True)) if len(outputs) > 1 else outputs[0]

    def _call(self, part: Callable[..., Any], inputs: list[Tensor]) -> tuple[Tensor, ...]:
        try:
            return _tuple(part(*inputs))
        except Exception as error:  # the compiler's own errors come in many classes
            if "compiler" not in str(error).lower():
                raise
            reason = str(error).splitlines()[0]
            raise UsageError(f"the model cannot be compiled here ({reason}); leave compile out") from error


def _tuple(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)
