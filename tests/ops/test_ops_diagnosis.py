"""`python -m ficgan.ops`."""

from __future__ import annotations

import pytest
import torch

from ficgan.ops import __main__ as diagnosis
from ficgan.ops import build, library


@pytest.fixture(autouse=True)
def no_library(monkeypatch):
    monkeypatch.delenv("FICGAN_OPS", raising=False)
    monkeypatch.setattr(library, "search", lambda: library.Search(None, ()))


def test_reports_and_passes(capsys):
    assert diagnosis.main() == 0
    out = capsys.readouterr().out
    assert "back end       ref" in out and "self-check     passed" in out
    assert "library        none: none was built; `python -m ficgan.ops build` makes one" in out


def test_says_what_is_wrong_with_each_library(capsys, monkeypatch):
    monkeypatch.setattr(library, "search", lambda: library.Search(None, ("a.so does not load", "b.so is old")))
    assert diagnosis.main() == 0
    assert "library        none: a.so does not load; b.so is old" in capsys.readouterr().out


def test_native_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setenv("FICGAN_OPS", "native")
    assert diagnosis.main() == 2
    assert "FICGAN_OPS" in capsys.readouterr().err


def test_self_check_notices_a_wrong_result(capsys, monkeypatch):
    right = diagnosis.upfirdn2d
    monkeypatch.setattr(diagnosis, "upfirdn2d", lambda *a, **k: right(*a, **k) * 1.001)
    assert diagnosis.main() == 1
    assert "FAILED" in capsys.readouterr().out


def test_native_check(place, monkeypatch):
    """On the CPU it compares the operators with the reference; one wrong gradient is enough to fail."""
    if place == "cuda":
        assert diagnosis.native_check() < 1e-11
        return
    for name in ("upfirdn2d", "bias_act", "adain", "scale_bias_lrelu"):
        function = getattr(diagnosis, name)
        monkeypatch.setattr(diagnosis, name, lambda *a, impl, function=function, **k: function(*a, impl="auto", **k))
    assert diagnosis.native_check("cpu") < 1e-11
    right = diagnosis.adain
    monkeypatch.setattr(
        diagnosis, "adain", lambda x, b, s, t, impl: right(x, b, s.detach() if impl == "native" else s, t, impl=impl)
    )
    assert diagnosis.native_check("cpu") > 1e-3


def test_no_gpu_is_named(capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert diagnosis.main() == 0
    assert "back end       ref (no GPU)" in capsys.readouterr().out


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_compiler_missing(home, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", home) if home else monkeypatch.delenv("CUDA_HOME", raising=False)
    assert build.nvcc() is None
