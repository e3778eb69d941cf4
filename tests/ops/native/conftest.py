"""The kernels of ops/csrc, compiled for the CPU once a session. That takes half a minute, so all of it is slow."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from native_kernels import LIBRARY, Native, compile_library


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def _native(made_once: Callable[[str, Callable[[Path], None]], Path]) -> Native:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile the kernels for the CPU; there is none on PATH")
    return Native(made_once("kernels", lambda folder: compile_library(folder, compiler)) / LIBRARY)


@pytest.fixture
def native(_native: Native) -> Iterator[Native]:
    """The kernels on the CPU, with the emulator's switches at rest before and after."""
    _native.set()
    yield _native
    _native.set()
