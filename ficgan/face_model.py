"""The networks with the user's controls: from aligned source crops and a name to new crops."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import to_pixels, to_tensor
from ficgan.device import resolve_device
from ficgan.faces import Alignment
from ficgan.identity import IdentityBank, KSameCode, audit, mix_layers, parse_band
from ficgan.identity import exemplar as towards_exemplar
from ficgan.identity.ksame import check_psi
from ficgan.identity.mixing import k_same_layers
from ficgan.policy import Attempt
from ficgan.precision import resolve_precision

if TYPE_CHECKING:
    import torch

    from ficgan.models import FICGAN, CheckpointHeader, Codes

__all__ = ["FaceModel"]

Crops = NDArray[np.uint8]
CHUNK = 32
"""Faces computed at once: bounds the memory of a crowd."""


class FaceModel:
    """Encoder, k-same draw, layer mixing and generator, with settings that hold for a whole job.

    Args:
        model: the trained networks.
        header: of the checkpoint; its alignment is used.
        bank: identities to average.
        k, band, seed, alpha, attributes, add, swap, device, precision, compile: as of `Deidentifier`.

    Raises:
        UsageError: a value that cannot work with this checkpoint and bank.
    """

    def __init__(
        self,
        model: FICGAN,
        header: CheckpointHeader,
        bank: IdentityBank,
        *,
        k: int,
        band: str | None = None,
        seed: int | None = None,
        alpha: float = 0.5,
        attributes: str | None = None,
        add: Sequence[str] = (),
        swap: bool = False,
        device: str = "cpu",
        precision: str = "auto",
        compile: bool = False,
    ) -> None:
        from ficgan.models import InferenceModel

        self.device = resolve_device(device)
        self.networks = InferenceModel(
            model, device=self.device, dtype=resolve_precision(precision, self.device), compile=compile
        )
        self.num_layers, self.resolution = model.num_layers, model.resolution
        self.alignment = Alignment.from_dict(header.alignment)
        self.bank, self.k, self.alpha, self.attributes, self.swap = bank, k, alpha, attributes, swap
        self.add = tuple(add)
        self.seed, self.seeded = (secrets.randbits(64), False) if seed is None else (seed, True)
        self.band = parse_band(band, model.num_layers) if band else None
        self.shift = sum((_direction(bank, text) for text in add), np.zeros(model.config.w_dim, np.float32))
        self.w_target: torch.Tensor | None = None
        """[1,w_dim] code of the exemplar, see `aim_at`."""

    def aim_at(self, crop: Crops) -> None:
        """Take a face as the exemplar: [R,R,3] uint8 aligned crop."""
        self.w_target = self.networks.map(self.encode(crop[None]).z_id)

    def check_layer(self, layer: int) -> int:
        """`layer`, or a UsageError that states L."""
        k_same_layers(self.num_layers, layer, None)
        return layer

    def identity(self) -> list[Any]:
        """What results depend on, but for the seed: two jobs with the same may go on from one another."""
        band = None if self.band is None else list(self.band)
        target = None if self.w_target is None else self.w_target.double().sum().item()
        return [
            self.bank.digest, self.k, band, self.alpha, self.attributes, list(self.add), self.swap, target,
            str(self.networks.dtype), self.networks.digest(),
        ]  # fmt: skip

    def encode(self, crops: Crops) -> Codes:
        """Codes of aligned source crops [B,R,R,3] uint8 RGB."""
        import torch

        from ficgan.models import Codes

        parts = [
            self.networks.encode(to_tensor(crops[begin : begin + CHUNK], self.device))
            for begin in range(0, max(len(crops), 1), CHUNK)
        ]
        return parts[0] if len(parts) == 1 else Codes(*(torch.cat(part) for part in zip(*parts, strict=True)))

    def draw(self, key: str, attempt: Attempt, psi: float) -> KSameCode:
        """The k-same draw of one face or person.

        Args:
            key: whom it is for; the same key gives the same draw.
            attempt: setting tried; its own diversity is the least.
            psi: diversity ψ.
        """
        key = key if attempt.draw == 0 else f"{key}#{attempt.draw}"
        return self.bank.k_same(
            self.k, key, seed=self.seed, attributes=self.attributes, psi=max(check_psi(psi), attempt.psi)
        )

    def styles(self, z_id: torch.Tensor, draws: Sequence[KSameCode], attempt: Attempt) -> torch.Tensor:
        """What the style layers need, one row a face; to be kept for as long as a face keeps its identity.

        Args:
            z_id: [B,id_dim] identity codes of the sources.
            draws: one per face.
            attempt: which layers take the new code.

        Returns:
            [B,S] float32.
        """
        import torch

        with torch.inference_mode():
            w_new = torch.from_numpy(np.stack([draw.w for draw in draws]) + self.shift).float().to(self.device)
            if self.w_target is not None:
                target = self.w_target.expand_as(w_new)
                w_new = target if self.swap else towards_exemplar(w_new, target, self.alpha)
            return self.mixed(z_id, w_new, attempt)

    def mixed(self, z_id: torch.Tensor, w_new: torch.Tensor, attempt: Attempt) -> torch.Tensor:
        """Rows of styles [B,S] from the sources' identity codes [B,id_dim] and the codes [B,w_dim] in their place."""
        where: dict[str, Any] = {"band": attempt.band} if attempt.band else {"layer": attempt.layer}
        return self.networks.styles(mix_layers(self.networks.map(z_id), w_new, num_layers=self.num_layers, **where))

    def render(self, styles: torch.Tensor, z_non: torch.Tensor) -> Crops:
        """New crops [B,R,R,3] uint8 RGB from rows of styles [B,S] and spatial codes [B,C,4,4]."""
        parts = [
            to_pixels(self.networks.synthesise(styles[begin : begin + CHUNK], z_non[begin : begin + CHUNK]))
            for begin in range(0, max(len(styles), 1), CHUNK)
        ]
        return np.concatenate(parts)

    def account(self, *, layer: int, psi: Sequence[float]) -> dict[str, Any]:
        """JSON-ready account of the k-same draws, see `audit`."""
        return audit(
            self.bank,
            k=self.k,
            psi=sorted(set(psi)),
            alpha=self.alpha if self.w_target is not None else None,
            num_layers=self.num_layers,
            layer=None if self.band else layer,
            band=self.band,
            seed=self.seed,
            attributes=None if self.swap else self.attributes,
            directions=() if self.swap else self.add,
            target="swap" if self.swap else "exemplar" if self.w_target is not None else "bank",
        )


def _direction(bank: IdentityBank, text: str) -> NDArray[np.float32]:
    from ficgan.identity import parse_direction

    name, amount = parse_direction(text)
    return (bank.direction(name) * amount).astype(np.float32)
