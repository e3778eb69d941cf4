"""`engine`: the stand-in for the model, in place of what the commands would load."""

from __future__ import annotations

import pytest
from standin import StandIn


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    made = StandIn()
    monkeypatch.setattr("ficgan.cli.deid.make_engine", made.load)
    return made
