"""upfirdn2d and its relatives against a loop, and the derivatives against finite differences."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ficgan import ops
from ficgan.errors import UsageError

sys.path.insert(0, str(Path(__file__).parent))
from oracle import upfirdn2d_loop  # noqa: E402

FILTERS = {
    "1331": [1.0, 3.0, 3.0, 1.0],
    "odd": [1.0, -2.0, 4.0],
    "one": [2.0],
    "long": [1.0, 2.0, 5.0, 3.0, 2.0, 1.0],
    "2d": [[1.0, 2.0, 3.0], [0.5, -1.0, 4.0]],
}
PADDINGS = [(0, 0, 0, 0), (2, 1, 2, 1), (3, 5, 0, 4), (-1, 2, 1, -1), (-1, -1, -2, 0)]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize("name", FILTERS)
@pytest.mark.parametrize(("up", "down"), [(1, 1), (2, 1), (1, 2), (3, 1), (1, 3), (2, 3), (3, 2), ((2, 1), (1, 3))])
def test_equals_loop(name, up, down):
    f = torch.tensor(FILTERS[name], dtype=torch.float64)
    for padding, flip in itertools.product(PADDINGS, (False, True)):
        x = random(2, 2, 7, 6)
        expected = upfirdn2d_loop(x, f, up, down, padding, flip, 1.5)
        if not expected.size:
            with pytest.raises(UsageError, match="does not fit"):
                ops.upfirdn2d(x, f, up=up, down=down, padding=padding, flip_filter=flip, gain=1.5)
            continue
        actual = ops.upfirdn2d(x, f, up=up, down=down, padding=padding, flip_filter=flip, gain=1.5)
        np.testing.assert_allclose(actual.numpy(), expected, rtol=1e-12, atol=1e-12)
