"""Properties of the sampler."""

from __future__ import annotations

from itertools import islice

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan.data import ResumableSampler
from ficgan.errors import UsageError

LOCKED = [6, 3, 4, 9, 0, 2, 8, 7, 5, 1]
numbers = {"n": st.integers(1, 40), "size": st.integers(1, 12), "seed": st.integers(0, 2**32)}


@settings(deadline=None)
@given(**numbers)
def test_each_epoch_is_a_permutation(n: int, size: int, seed: int) -> None:
    stream = torch.cat(list(islice(ResumableSampler(n, size, seed), -(-3 * n // size))))[: 3 * n]
    for epoch in stream.view(3, n):
        assert epoch.sort().values.tolist() == list(range(n))


@settings(deadline=None)
@given(**numbers, start=st.integers(0, 50))
def test_starting_at_t_equals_continuing(n: int, size: int, seed: int, start: int) -> None:
    continued = list(islice(ResumableSampler(n, size, seed), start, start + 3))
    restarted = list(islice(ResumableSampler(n, size, seed, start), 3))
    assert all(torch.equal(a, b) for a, b in zip(continued, restarted, strict=True))


@settings(deadline=None)
@given(n=st.integers(1, 40), share=st.integers(1, 4), world=st.integers(1, 4), step=st.integers(0, 50))
def test_ranks_share_the_batch_of_one_process(n: int, share: int, world: int, step: int) -> None:
    whole = ResumableSampler(n, share * world, 3).batch(step)
    parts = [ResumableSampler(n, share * world, 3, rank=rank, world=world).batch(step) for rank in range(world)]
    assert torch.equal(torch.cat(parts), whole)


def test_seeds_and_epochs_differ() -> None:
    def epoch(seed: int, step: int) -> list[int]:
        return ResumableSampler(50, 50, seed).batch(step).tolist()

    assert epoch(0, 0) != epoch(1, 0) and epoch(0, 0) != epoch(0, 1) and epoch(0, 0) != list(range(50))


def test_the_order_is_the_same_on_every_machine() -> None:
    assert ResumableSampler(10, 10, 7).batch(0).tolist() == LOCKED


def test_positions_are_uniform() -> None:
    first = torch.stack([ResumableSampler(5, 5, seed).batch(0) for seed in range(2000)])[:, 0]
    counts = torch.bincount(first, minlength=5).double()
    assert ((counts - 400) ** 2 / 400).sum() < 23.5  # chi-square, 4 degrees of freedom, p = 1e-4


@pytest.mark.parametrize(
    "arguments",
    [(0, 1, 0), (1, 0, 0), (1, 1, -1), (1, 1, 0, -1)],
)
def test_numbers_out_of_range(arguments: tuple[int, ...]) -> None:
    with pytest.raises(UsageError):
        ResumableSampler(*arguments)


def test_batches_that_do_not_split() -> None:
    with pytest.raises(UsageError, match="does not split"):
        ResumableSampler(10, 3, 0, world=2)
    with pytest.raises(UsageError):
        ResumableSampler(10, 4, 0, rank=2, world=2)
