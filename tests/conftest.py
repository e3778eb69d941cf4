"""Fixtures for every test file: shared data and judge models (or a visible skip), photos, tools, a seeded generator."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

# Processes of pytest-xdist share the cores. This must come before NumPy, torch and onnxruntime start their threads.
if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for library in ("OMP_NUM_THREADS", "OPENCV_FOR_THREADS_NUM"):
        os.environ.setdefault(library, str(max(1, cores // int(workers))))

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # shells start background jobs so, and commands inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Machines may be busy, and most fixtures are only read; `make test-all` draws more examples.
for profile, examples in (("few", 10), ("many", 40)):
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile(profile, max_examples=examples, deadline=None, suppress_health_check=slow)
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


@pytest.fixture(scope="session")
def astronaut() -> np.ndarray:
    """Eileen Collins (NASA, public domain), who looks into the camera: uint8 [512,512,3]."""
    return pytest.importorskip("skimage.data").astronaut()


@pytest.fixture(scope="session")
def node() -> str:
    """Node, for the scripts of pages."""
    found = shutil.which("node")
    if found is None:
        pytest.skip("needs node to run the page's script")
    return found


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, Callable[[Path], None]], Path]:
    """Make a folder once for all processes that run tests; for what takes seconds and is used by several files."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def folder_of(name: str, make: Callable[[Path], None]) -> Path:
        folder = root / f"once-{name}"
        with open(root / f"once-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not (folder / ".complete").exists():
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                make(folder)
                (folder / ".complete").touch()
        return folder

    return folder_of


@pytest.fixture
def rng() -> np.random.Generator:
    """A generator with a fixed seed, fresh for every test."""
    return np.random.default_rng(20211)
