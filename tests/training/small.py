"""A configuration that trains in seconds."""

from __future__ import annotations

from ficgan.config import Config, load_config

SMALL = [
    "model.resolution=16",
    "model.channel_base=128",
    "model.channel_max=8",
    "model.id_dim=16",
    "model.w_dim=16",
    "model.spatial_channels=4",
    "model.spatial_norm=true",
    "model.spatial_noise=0.1",
    "discriminator.channel_base=128",
    "discriminator.channel_max=8",
    "optimizer.batch=4",
    "loss.r1_interval=2",
    "swap.mean_fraction=0.5",
    "swap.crossover=0.3",
    "schedule.total_kimg=0.032",
    "schedule.tick_kimg=0.008",
    "schedule.snapshot_kimg=0.032",
    "schedule.checkpoint_kimg=1000",
]


def small_config(*overrides: str) -> Config:
    return load_config("tiny", [*SMALL, *overrides])
