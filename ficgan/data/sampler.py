"""Endless shuffles without state: what is drawn at a step follows from the seed and the step alone."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
import torch

from ficgan.errors import UsageError


class ResumableSampler:
    """Batches of image indices; each epoch is a permutation of all images, none repeated.

    The endless stream of indices depends on (n, seed) only; step t takes the `batch_size` positions from t·batch_size
    on, and each rank its own equal share of them. So a run resumes at any step, on any number of processes, exactly.

    Args:
        n: number of images.
        batch_size: images per step over all ranks together; divisible by `world`.
        seed: of the shuffles.
        start: the step at which iteration starts.
        rank, world: this process and how many there are.
    Raises:
        UsageError: a number is out of range, or `batch_size` does not split over `world`.
    """

    def __init__(self, n: int, batch_size: int, seed: int, start: int = 0, *, rank: int = 0, world: int = 1) -> None:
        if n < 1 or batch_size < 1 or start < 0 or seed < 0 or not 0 <= rank < world:
            raise UsageError(f"Cannot draw {batch_size} from {n} images (step {start}, rank {rank}/{world}).")
        if batch_size % world:
            raise UsageError(f"Batch size {batch_size} does not split over {world} processes; take a multiple.")
        self.n, self.batch_size, self.seed, self.start, self.rank, self.world = n, batch_size, seed, start, rank, world

    def batch(self, step: int) -> torch.Tensor:
        """Indices of this rank at `step`: int64 [batch_size / world], in 0..n−1."""
        share = self.batch_size // self.world
        first = step * self.batch_size + self.rank * share
        epochs, offsets = np.divmod(np.arange(first, first + share), self.n)
        indices = [_shuffle(self.n, self.seed, int(e))[offsets[epochs == e]] for e in np.unique(epochs)]
        return torch.from_numpy(np.concatenate(indices))

    def __iter__(self) -> Iterator[torch.Tensor]:
        step = self.start
        while True:
            yield self.batch(step)
            step += 1


@lru_cache(maxsize=4)
def _shuffle(n: int, seed: int, epoch: int) -> np.ndarray:
    # Sorting raw 64-bit draws: NumPy promises the raw stream for ever, not what Generator.permutation makes of it.
    draws = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(n)
    return np.argsort(draws, kind="stable").astype(np.int64)
