"""The maintainers' tools: each starts and refuses wrong input in a sentence; what some of them compute."""

from __future__ import annotations

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path

import pytest
from PIL import Image

TOOLS = Path(__file__).resolve().parent.parent / "tools"


@pytest.mark.parametrize("name", sorted(path.stem for path in TOOLS.glob("*.py")))
def test_every_tool_finds_what_it_imports(name: str) -> None:
    assert callable(import_module(name).main)


@pytest.mark.parametrize(
    "line",
    [
        "bench networks --checkpoint none",
        "bench train --config none",
        "guessing_attack none",
        "make_networks mesh none",
        "make_networks gate none",
        "make_sbom -o none/x.json",
        "training_report table none",
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


@pytest.mark.parametrize("name", sorted(path.stem for path in TOOLS.glob("*.py") if "argparse" in path.read_text()))
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


@pytest.mark.slow
def test_a_program_is_measured_and_its_face_is_covered(tmp_path: Path) -> None:
    bench = import_module("bench")
    for name in ("first", "film"):
        (tmp_path / name).mkdir()
    with Image.open(bench.ASTRONAUT) as astronaut:
        astronaut.resize((320, 320)).save(tmp_path / "first" / "a.jpg")
    seconds, processors, memory = bench.cost_of("ficgan-deid --mode blur --verify off", "first", tmp_path)
    assert seconds > 0.1 and processors > 0.1 and 50 < memory < 900
    where = bench.places(3)
    bench.make_film(tmp_path / "film" / "film.mp4", where)
    assert bench.uncovered(tmp_path / "film" / "film.mp4", tmp_path / "film" / "film.mp4", where) == 3


# --- the guessing attack, on programs that keep a share of the source -------------------------------------------------

SIDE, COUNT = 12, 30


# --- reports of trainings, the demonstration --------------------------------------------------------------------------


STAND_IN = """#!{python}
import json, pathlib, shutil, sys
inputs = [pathlib.Path(path) for path in sys.argv[1:sys.argv.index("-o")]]
out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
out.mkdir(exist_ok=True)
for path in inputs[:{written}]:
    shutil.copy(path, out / path.name)
print(json.dumps(dict(inputs=2, written={written}, failed=2 - {written}, faces=4, uncovered={uncovered},
                      reidentified=0, seconds=1.25)))
sys.exit({code})
"""


@pytest.mark.parametrize(("written", "uncovered", "code"), [(2, 0, 0), (1, 2, 3)])
def test_the_demonstration_shows_what_became_of_its_photos(
    written: int,
    uncovered: int,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With a stand-in for ficgan-deid: failures do not count as successes."""
    stand_in = tmp_path / "ficgan-deid"
    stand_in.write_text(STAND_IN.format(python=sys.executable, written=written, uncovered=uncovered, code=code))
    stand_in.chmod(0o755)
    monkeypatch.setattr("sys.argv", ["demo", "-o", str(tmp_path / "out"), "--command", str(stand_in)])
    assert import_module("demo").main() == code
    lines = capsys.readouterr().out.splitlines()
    assert json.loads(lines[-1])["faces"] == 4
    named = [Path(line.strip()) for line in lines if line.strip().endswith("before-after.png")]
    assert len(named) == written and all(path.is_file() for path in named)
    assert any("Every face found was replaced" in line for line in lines) is (code == 0)
    assert any("FAILED" in line for line in lines) is (code == 3)
