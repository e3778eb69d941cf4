"""`python -m ficgan.ops`."""

from __future__ import annotations

import pytest

from ficgan.ops import __main__ as diagnosis


def test_reports_and_passes(capsys, monkeypatch):
    monkeypatch.delenv("FICGAN_OPS", raising=False)
    assert diagnosis.main() == 0
    out = capsys.readouterr().out
    assert "back end       ref" in out and "self-check     passed" in out


def test_native_that_is_not_there(capsys, monkeypatch):
    monkeypatch.setenv("FICGAN_OPS", "native")
    assert diagnosis.main() == 2
    assert "FICGAN_OPS" in capsys.readouterr().err


def test_self_check_notices_a_wrong_result(capsys, monkeypatch):
    monkeypatch.delenv("FICGAN_OPS", raising=False)
    right = diagnosis.upfirdn2d
    monkeypatch.setattr(diagnosis, "upfirdn2d", lambda *a, **k: right(*a, **k) * 1.001)
    assert diagnosis.main() == 1
    assert "FAILED" in capsys.readouterr().out


@pytest.mark.parametrize("home", [None, "/nowhere"])
def test_compiler_missing(home, monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setenv("CUDA_HOME", home) if home else monkeypatch.delenv("CUDA_HOME", raising=False)
    assert diagnosis.nvcc() is None
