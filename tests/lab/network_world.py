"""A small untrained network with eight style layers and its bank: it takes any picture for a face."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from ficgan.config import ModelConfig
from ficgan.faces import Alignment
from ficgan.files import file_digest
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN, CheckpointHeader, save_checkpoint

CONFIG = ModelConfig(
    resolution=64, id_dim=8, w_dim=8, spatial_channels=4, channel_base=256, channel_max=8, mapping_layers=1
)


def write_network(folder: Path, **header: Any) -> dict[str, str]:
    """Settings of `Ficgan` that name the two files, the bank of 60 people."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, bank = folder / "network.safetensors", folder / "bank.safetensors"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        told = {"alignment": Alignment().to_dict(), "data": {"licence": "drawn"}, **header}
        save_checkpoint(checkpoint, FICGAN(CONFIG), CheckpointHeader(model=CONFIG, **told))
    rng = np.random.default_rng(0)
    provenance = {"checkpoint": file_digest(checkpoint)}
    IdentityBank.from_codes(rng.normal(size=(60, 8)), np.arange(60), provenance=provenance).save(bank)
    return {"checkpoint": str(checkpoint), "bank": str(bank)}
