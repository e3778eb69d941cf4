"""The maintainers' tools: each starts and refuses wrong input in a sentence; what some of them compute."""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from ficgan.config import load_config

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


def test_the_floor_of_a_network_is_its_convolutions() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    from ficgan.models import FICGAN

    model = FICGAN(load_config("tiny").model).eval()
    x = torch.zeros(1, 3, 32, 32)
    flops = []
    with torch.inference_mode():
        for work in (import_module("bench").floor_of(model, x), lambda: model(x)):
            with FlopCounterMode(display=False) as counter:
                work()
            flops.append(counter.get_total_flops())
    assert 0.5 < flops[0] / flops[1] <= 1  # resampling filters are convolutions, too


def test_bars_of_the_comparison_with_deface() -> None:
    bench = import_module("bench")
    ours, unverified, blurred = bench.OPTIONS
    costs = {"deface": (10.0, 9.0, 200.0), ours: (15.0, 4.0, 480.0), unverified: (10.1, 1, 1), blurred: (1, 1, 1)}
    found = bench.bars({"folder": costs, "film": costs})
    assert [value for _, value, _ in found] == [1.5, 1.01, 480, 1.5, 480]
    assert [value <= most for _, value, most in found] == [True, False, False, False, True]


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


def leaky(share: float) -> Callable[[np.ndarray, int], np.ndarray]:
    """Puts noise of the seed into the middle, and this share of the source; the surroundings stay."""

    def run(images: np.ndarray, seed: int) -> np.ndarray:
        out, noise = images.copy(), np.random.default_rng(seed).integers(0, 256, (len(images), 6, 6, 3))
        out[:, 3:9, 3:9] = (share * images[:, 3:9, 3:9] + (1 - share) * noise).astype(np.uint8)
        return out

    return run


def test_averaging_draws_confirms_what_a_program_keeps(rng: np.random.Generator) -> None:
    attack, faces = import_module("guessing_attack"), rng.integers(0, 256, (COUNT, SIDE, SIDE, 3), dtype=np.uint8)
    order, weight = rng.permutation(COUNT), np.zeros((SIDE, SIDE), np.float32)
    weight[3:9, 3:9] = 1
    found = {}
    for share in (0.0, 0.4):
        published = leaky(share)(faces[order], 999)
        scores = attack.repeated(published, faces, leaky(share), seeds=range(8), weight=weight)
        found[share] = attack.confirmation(scores, order)
    assert found[0.4].rank1[0] > 0.9 and found[0.4].auc[0] > 0.98
    assert found[0.0].rank1[1] <= 1 / COUNT + 0.1 and found[0.0].auc[1] < 0.5 < found[0.0].auc[2]
    told = attack.confirmation(np.zeros((20, 10)), np.arange(20) % 10)
    assert told.rank1[0] == pytest.approx(0.1) and told.auc[0] == 0.5 and told.confirmed[0] == 0.0


# --- reports of trainings, the demonstration --------------------------------------------------------------------------


def training_run(folder: Path, *overrides: str, match: float) -> str:
    """What a run of three ticks and two snapshots leaves, the last line cut short."""
    folder.mkdir()
    config = load_config("ablation64", overrides).model_dump(mode="json")
    (folder / "config.json").write_text(json.dumps(config))
    ticks = [{"kimg": n, "sec_per_kimg": 80 + 10 * n, "rec": 0.1 / n, "neg": 0.2, "keep": 0.3} for n in (1, 2, 3)]
    (folder / "stats.jsonl").write_text("".join(json.dumps(one) + "\n" for one in ticks) + '{"kimg": 4, "re')
    shots = [{"kimg": n, "match": match / n, "match_linear": 0.4, "mse": 0.01, "mse_linear": 0.02} for n in (1, 2)]
    (folder / "snapshots.jsonl").write_text("".join(json.dumps(one) + "\n" for one in shots))
    return str(folder)


@pytest.mark.slow
def test_curves_and_a_table_of_trainings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = import_module("training_report")
    runs = [
        training_run(tmp_path / "full", match=0.2),
        training_run(tmp_path / "adain", "model.modulation=adain", "seed=3", match=0.6),
    ]
    report.main(["table", *runs])
    text = capsys.readouterr().out
    assert cells(text, "linear model")[0][4:6] == ["0.4", "0.02"]
    assert cells(text, "full")[0][2:6] == ["2", "100", "0.1", "0.01"]
    assert cells(text, "adain")[0][1] == "model.modulation=adain, seed=3"
    report.main(["curves", *runs, "-o", str(tmp_path / "curves.png")])
    with Image.open(tmp_path / "curves.png") as picture:
        assert picture.size[0] > 1000 and len(np.unique(np.asarray(picture.convert("L")))) > 20


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
    """With a stand-in for ficgan-deid: failures are not told as successes."""
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
