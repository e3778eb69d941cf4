"""`--data` takes all paths that follow it."""

from __future__ import annotations

import pytest

from ficgan.cli._data import spread


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("tiny --data a b c --out d", "tiny --data a --data b --data c --out d"),
        ("tiny --data a --data b --out d loss.positive=0", "tiny --data a --data b --out d loss.positive=0"),
        ("tiny --data a b seed=3 --out d", "tiny --data a --data b seed=3 --out d"),
        ("tiny seed=3 --out d --data a", "tiny seed=3 --out d --data a"),
        ("--data a --out d tiny seed=3", "--data a --out d tiny seed=3"),
        ("tiny --out d --data a ./x=y", "tiny --out d --data a --data ./x=y"),
        ("tiny --data", "tiny --data"),
    ],
)
def test_spread(given: str, expected: str) -> None:
    assert spread(given.split()) == expected.split()
