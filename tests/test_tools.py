"""The maintainers' tools: each starts and refuses wrong input in a sentence; what some of them compute."""

from __future__ import annotations

import json
import runpy
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ficgan import pretrained
from ficgan.face_model import ModelInfo
from ficgan.files import file_digest
from ficgan.frame.file import FrameConfig, load_appearance, save_appearance
from ficgan.identity import IdentityBank

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
        "make_mesh none",
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


# -- the embedded files ------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where the embedded files go: the networks of others are there, and what was embedded before."""
    folder = tmp_path / "pretrained"
    folder.mkdir()
    for name in (
        "face_mesh.onnx",
        "gate.onnx",
        "detector.onnx",
        "yunet.onnx",
        "kind.safetensors",
        "glasses.safetensors",
        "beards.safetensors",
    ):
        (folder / name).write_bytes(name.encode())
    for name in ("appearance.safetensors", "linear.safetensors", "bank.safetensors", "manifest.json"):
        (folder / name).write_bytes(b"old")
    return folder


def test_the_embedded_files(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a fitted model, its bank and figures."""
    appearance, config, *_ = load_appearance(pretrained.path("model"))
    info = ModelInfo({"kind": "canonical"}, {"licence": "drawn"}, {"images": 5})
    save_appearance(tmp_path / "fitted.safetensors", appearance, config, info)
    codes = np.random.default_rng(0).normal(size=(4, 6))
    provenance = {"checkpoint": file_digest(tmp_path / "fitted.safetensors")}
    IdentityBank.from_codes(codes, None, np.eye(4, 1, dtype=np.uint8), ["Female"], provenance).save(tmp_path / "people")
    (tmp_path / "measured.json").write_text('{"aligned": [1, 2]}')
    monkeypatch.chdir(tmp_path)
    tool = import_module("make_embedded")
    monkeypatch.setattr(tool, "FOLDER", folder)
    words = ["make_embedded.py", "fitted.safetensors", "people", "--measured", "measured.json"]
    monkeypatch.setattr("sys.argv", words)
    tool.main()

    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert not [name for name, content in files.items() if str(tmp_path).encode() in content]
    manifest: dict[str, Any] = json.loads(files["manifest.json"])
    assert {"model", "linear", "bank", "mesh", "gate", "detector", "check", "kind", "glasses", "beards"} == {
        entry["role"] for entry in manifest["files"].values()
    }
    assert set(files) == {*manifest["files"], "manifest.json"}
    for name, entry in manifest["files"].items():
        assert entry["sha256"] == file_digest(folder / name) and entry["bytes"] == len(files[name])
    ours, given = (
        load_appearance(each) for each in (folder / "appearance.safetensors", tmp_path / "fitted.safetensors")
    )
    np.testing.assert_array_equal(ours[0].components, given[0].components)
    assert ours[1] == FrameConfig()  # numbers of the code, whatever the fitted file was made with
    bank = IdentityBank.load(folder / "bank.safetensors")
    assert manifest["bank"] == {"people": 4, "digest": bank.digest, "attributes": {"Female": 1}}
    assert bank.provenance["checkpoint"] == manifest["files"]["appearance.safetensors"]["sha256"]
    assert (manifest["data"], manifest["training"]) == ({"licence": "drawn"}, {"images": 5})
    assert manifest["measured"] == {"aligned": [1, 2]}
