"""Fixtures that every room may use: the shared data and judge models (or a visible skip), a seeded generator."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # shells start background jobs so, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("few", max_examples=10, deadline=None)
settings.load_profile("few")


def _data_folder() -> Path:
    """$FICGAN_DATA, else ../shared/data beside the repository."""
    return Path(os.environ["FICGAN_DATA"]) if os.environ.get("FICGAN_DATA") else ROOT.parent / "shared" / "data"


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Folder of the shared data sets; the test is skipped where there is none."""
    folder = _data_folder()
    if not folder.is_dir():
        pytest.skip(f"needs the shared data; there is none at {folder} (set FICGAN_DATA to its folder)")
    return folder


@pytest.fixture(scope="session")
def shared_models() -> Path:
    """Folder of the judge and helper networks, beside the shared data; the test is skipped where there is none."""
    folder = _data_folder().parent / "models"
    if not folder.is_dir():
        pytest.skip(f"needs the shared models; there are none at {folder} (FICGAN_DATA: the data folder beside it)")
    return folder


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed, fresh for every test."""
    return np.random.default_rng(20211)
