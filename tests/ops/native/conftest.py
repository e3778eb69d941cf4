"""The emulated kernels, compiled once a session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from native_kernels import Native, compile_library


@pytest.fixture(scope="session")
def _native(tmp_path_factory: pytest.TempPathFactory) -> Native:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("needs g++ to compile the kernels for the CPU; there is none on PATH")
    return Native(compile_library(tmp_path_factory.mktemp("kernels"), compiler))


@pytest.fixture
def native(_native: Native) -> Iterator[Native]:
    """The kernels on the CPU, with the emulator's switches at rest before and after."""
    _native.set()
    yield _native
    _native.set()
