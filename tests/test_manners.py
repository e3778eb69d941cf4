"""What a library owes its users: logs instead of prints, spellings, documents that build, examples that run."""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ficgan

ROOT = Path(__file__).resolve().parent.parent
LIBRARY = sorted(path for path in (ROOT / "ficgan").rglob("*.py") if "cli" not in path.relative_to(ROOT).parts)


def test_loggers_are_below_that_of_ficgan() -> None:
    found = 0
    for path in LIBRARY:
        for name in re.findall(r"getLogger\(([^)]*)\)", path.read_text("utf-8")):
            assert name == "__name__" or name.strip("\"'").startswith("ficgan"), path
            found += 1
    assert found >= 1
    logger = logging.getLogger(ficgan.__name__)
    assert any(isinstance(handler, logging.NullHandler) for handler in logger.handlers)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocstrings_handlers") is None, reason="needs ficgan[docs]")
def test_the_documents_build(tmp_path: Path) -> None:
    """Strictly: every name of the API page is found. The pages load nothing from elsewhere."""
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "site" / "api.html").read_text()
    for name in ("Deidentifier.from_pretrained", "Result.uncovered", "get_detector", "VideoSettings", "make_app"):
        assert name in page
    assert not re.findall(r"<(?:script|img|iframe)[^>]+src=[\"']?https?:", page)
    assert not re.findall(r"<link[^>]+rel=[\"']?stylesheet[\"']?[^>]+https?:", page)


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    assert {path.name for path in (ROOT / "docs").glob("*.md")} == set(re.findall(r": ([\w-]+\.md)$", text, re.M))


NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("nbclient") is None, reason="needs ficgan[notebook]")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_notebook_runs_from_top_to_bottom(path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(path.parent)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not any(output.output_type == "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert any("still recognised: False" in output.get("text", "") for output in outputs)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebooks_hold_no_output_and_one_photo(path: Path) -> None:
    notebook = json.loads(path.read_text())
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    assert set(re.findall(r"[\w-]+\.(?:jpe?g|png)", path.read_text())) == {"astronaut.jpg"}
