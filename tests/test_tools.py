"""The maintainers' tools: each starts and refuses wrong input in a sentence; what some of them compute."""

from __future__ import annotations

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.mark.parametrize(
    "line",
    [
        "bench networks --checkpoint none",
        "bench train --config none",
        "guessing_attack none",
        "make_networks mesh none",
        "make_networks gate none",
        "make_sbom -o none/x.json",
    ],
)
def test_wrong_input_ends_a_tool_in_a_sentence(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name, *arguments = line.split()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", [name, *arguments])
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(TOOLS / f"{name}.py"), run_name="__main__")
    said = capsys.readouterr().err
    assert stopped.value.code in (1, 2, 3) and "none" in said and "Traceback" not in said
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", sorted(path.stem for path in TOOLS.glob("*.py")))
def test_every_tool_says_how_it_is_used(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--help"])
    with pytest.raises(SystemExit) as stopped:
        import_module(name).main()
    assert stopped.value.code == 0 and f"usage: {name}.py" in capsys.readouterr().out


def cells(text: str, first: str) -> list[list[str]]:
    """Cells of the rows of Markdown tables whose first cell this is."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    return [row for row in rows if row[0] == first]


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("networks --config tiny --batch 2", "float32"),
        ("ops --size 0.1", "upfirdn2d up 2"),
        pytest.param("train optimizer.batch=4 loss.r1_interval=4", "tiny", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:verifier.spec=untrained")
def test_bench_times_what_it_names(line: str, first: str, capsys: pytest.CaptureFixture[str]) -> None:
    command, *rest = line.split()
    import_module("bench").main([command, "--seconds", "0", *rest])
    (row,) = cells(capsys.readouterr().out, first)
    assert all(float(cell) > 0 for cell in row[1:] if cell.replace(".", "").isdigit())


STAND_IN = """#!{python}
import json, pathlib, shutil, sys
first, second = sys.argv[1:3]
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
out.mkdir()
shutil.copy(first, out)
print(json.dumps(dict(inputs=2, written=1, failed=1, faces=4, uncovered=2, reidentified=0, seconds=1.25)))
sys.exit(3)
"""


def test_the_demonstration_counts_no_failure_as_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a stand-in for ficgan-deid."""
    stand_in = tmp_path / "ficgan-deid"
    stand_in.write_text(STAND_IN.format(python=sys.executable))
    stand_in.chmod(0o755)
    monkeypatch.setattr("sys.argv", ["demo", "-o", str(tmp_path / "out"), "--command", str(stand_in)])
    assert import_module("demo").main() == 3
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["faces"] == 4
    (named,) = [Path(line.strip()) for line in lines if line.strip().endswith("before-after.png")]
    assert named.is_file() and not any("Every face found was replaced" in line for line in lines)
    assert any("FAILED" in line for line in lines)
