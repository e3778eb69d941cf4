"""Bars: verdicts, the page and its JSON, and a whole run around a small untrained model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from bars_world import cosine, reader, seen
from PIL import Image
from shape_world import MadeMesh

from ficgan.anonymizers import Faces
from ficgan.config import ModelConfig
from ficgan.deidentify import Deidentifier, Ficgan
from ficgan.errors import InputError, UsageError
from ficgan.faces import Alignment
from ficgan.identity import IdentityBank
from ficgan.lab.bars import BarsConfig, Control, Measured, Sheet, run_bars
from ficgan.lab.bars import bench as bars_bench
from ficgan.lab.bars.table import BARS, Line
from ficgan.lab.readers import ShapeRecognizer
from ficgan.lab.results import Figure
from ficgan.models import FICGAN, CheckpointHeader, save_checkpoint


def _line(row: str, value: float | None, low: float | None = None, high: float | None = None, **more: Any) -> Line:
    return Line("set", row, "i = 0", "judge", Figure(row, value, low, high, 9, "images", "why"), **more)


@pytest.mark.parametrize(
    ("row", "value", "low", "high", "verdict", "sure", "short"),
    [
        ("id-cosine", 0.13, 0.1, 0.13, "met", True, None),
        ("id-cosine", 0.12, 0.1, 0.2, "met", False, None),
        ("id-cosine", 0.23, 0.2, 0.3, "missed", True, 0.1),
        ("id-cosine", 0.14, 0.12, 0.2, "missed", False, 0.01),
        ("detected", 0.9, 0.8, 0.95, "missed", True, 0.09),
        ("detected", 1.0, None, None, "met", False, None),
        ("sharpness-kept", 0.4, 0.3, 0.5, "missed", True, 0.2),
        ("sharpness-kept", 1.9, 1.6, 2.4, "missed", True, 0.5),
        ("sharpness-kept", 1.0, 0.4, 1.2, "met", False, None),
        ("sharpness", 0.1, 0.0, 0.2, "no bar", False, None),
        ("age-band", 0.4, 0.3, 0.5, "no bar", False, None),
        ("smile-r", None, None, None, "not measured", False, None),
        ("match", 0.1, 0.05, 0.2, "not measured", False, None),
    ],
)
def test_verdicts(
    row: str, value: float | None, low: float | None, high: float | None, verdict: str, sure: bool, short: float | None
) -> None:
    line = _line(row, value, low, high)
    assert (line.verdict, line.sure) == (verdict, sure)
    assert line.short == (None if short is None else pytest.approx(short))


def test_a_measured_bar_is_the_controls() -> None:
    control = Control("same-group strangers", Figure("strangers", 0.06))
    assert _line("match", 0.05, 0.01, 0.055, control=control).verdict == "met"
    missed = _line("match", 0.1, 0.07, 0.2, control=control, sticker=Figure("match", 0.02))
    assert (missed.verdict, missed.sure, missed.asked) == ("missed", True, "≤ 0.06 (same-group strangers)")
    assert missed.to_dict()["sticker"]["verdict"] == "met" and missed.short == pytest.approx(0.04)


def test_photos_have_bars_of_their_own() -> None:
    said = {}
    for row, value in (("gender", 0.87), ("landmarks", 0.055), ("smile-r", 0.72)):
        lines = [_line(row, value, photos=photos) for photos in (False, True)]
        said[row] = [(line.verdict, line.asked) for line in lines]
    assert said == {
        "gender": [("met", "≥ 0.85"), ("missed", "≥ 0.9")],
        "landmarks": [("met", "≤ 0.06"), ("missed", "≤ 0.05")],
        "smile-r": [("met", "≥ 0.7")] * 2,
    }
    missed = _line("landmarks", 0.055, photos=True)
    assert missed.short == pytest.approx(0.005) and missed.to_dict()["bar"]["most"] == 0.05


def test_the_page_hides_nothing(tmp_path: Path) -> None:
    sheet = Sheet(
        [
            _line("smile-r", None),
            _line("id-cosine", 0.25, 0.2, 0.3, sticker=Figure("", 0.1), control=Control("strangers", Figure("", 0.05))),
        ],
        [{"set": "set", "what": "parrot", "why": "nobody has two images"}],
        [{"set": "set", "group": "gender=Female", "n": 30, "cosine judge": [0.5, 0.4, 0.6]}],
    )
    sheet.facts = {"judges": {"judge": "had no part"}, "sets": {"set": {"faces": 9, "people": 8, "licence": "CC0"}}}
    assert [path.name for path in sheet.write(tmp_path / "new")] == ["bars.json", "bars.md"]
    page = (tmp_path / "new" / "bars.md").read_text(encoding="utf-8")
    row = next(line for line in page.splitlines() if line.startswith("| ID similarity"))
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[1:9] == [
        "≤ 0.13",
        ".14",
        "i = 0",
        "judge",
        "0.250 [0.200, 0.300]",
        "0.100 (met)",
        "0.050, strangers",
        "missed by 0.12",
    ]
    assert "not measured: why" in page and "set, parrot: nobody has two images" in page
    assert "9 faces of 8 people; CC0." in page and "| 0.500 |" in page
    assert page.index("ID similarity") < page.index("smile of output")
    told = json.loads((tmp_path / "new" / "bars.json").read_text(encoding="utf-8"))
    assert told["verdicts"] == {"not measured": 1, "missed": 1} and told["left_out"][0]["what"] == "parrot"
    assert [line["row"] for line in told["lines"]] == ["id-cosine", "smile-r"]


def test_numbers_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        Sheet([_line("id-cosine", float("nan"))]).to_json()


# A whole run

CONFIG = ModelConfig(
    resolution=16, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained model with its bank, and 24 pictures of 12 people with gender and person."""
    folder = tmp_path_factory.mktemp("bars")
    torch.manual_seed(0)
    header = CheckpointHeader(model=CONFIG, alignment=Alignment().to_dict(), data={"licence": "drawn"})
    save_checkpoint(folder / "model.safetensors", FICGAN(CONFIG), header)
    rng = np.random.default_rng(0)
    IdentityBank.from_codes(rng.normal(size=(12, 8)), np.arange(12)).save(folder / "bank.safetensors")
    faces = folder / "faces"
    faces.mkdir()
    rows = ["file,person,gender,race"]
    for person in range(12):
        texture = rng.normal(size=(4, 4, 3)).repeat(32, 0).repeat(32, 1) * 40 + 127
        for index in range(2):
            pixels = (texture + rng.normal(size=texture.shape) * 10).clip(0, 255).astype(np.uint8)
            name = f"{person:02d}-{index}.png"
            Image.fromarray(pixels).save(faces / name)
            rows.append(f"{name},{person},{'Female' if person % 2 else 'Male'},Made")
    (faces / "labels.csv").write_text("\n".join(rows))
    return folder


@pytest.fixture
def _judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FICGAN_MODELS", raising=False)
    monkeypatch.setattr(bars_bench, "get_readers", lambda names, device="cpu": [reader()])
    monkeypatch.setattr("ficgan.deidentify.pipeline.get_recognizer", lambda name, **_: reader().recognizer)
    monkeypatch.setattr(bars_bench, "detector_missing", lambda name: f"{name} is not here")
    monkeypatch.setattr("ficgan.lab.bars.ShapeRecognizer", lambda device: ShapeRecognizer(MadeMesh()))


def _config(world: Path, **more: Any) -> BarsConfig:
    files = {"checkpoint": world / "model.safetensors", "bank": world / "bank.safetensors"}
    given = {"aligned": (world / "faces",), "k": 5, "resamples": 50, "layers": (0, 5), **files, **more}
    return BarsConfig(**given)  # type: ignore[arg-type]


@pytest.mark.usefixtures("_judged")
def test_a_whole_run(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings: list[tuple[int, float, float, Faces, np.ndarray]] = []
    original = Ficgan.__call__

    def watched(self: Ficgan, faces: Faces) -> Any:
        made = original(self, faces)
        settings.append((self.layer, self.psi, self.alpha, faces, made))
        return made

    monkeypatch.setattr(Ficgan, "__call__", watched)
    guarded: list[tuple[int, np.ndarray]] = []
    aligned = Deidentifier.aligned

    def seen_through(self: Deidentifier, crops: np.ndarray, *, layer: int, **more: Any) -> Any:
        made = aligned(self, crops, layer=layer, **more)
        if self.policy.verify:
            guarded.append((layer, made[0]))
        return made

    monkeypatch.setattr(Deidentifier, "aligned", seen_through)
    monkeypatch.setattr("ficgan.lab.bars._FEW", 6)
    monkeypatch.setattr("ficgan.lab.bars.utility.LEAST_GROUP", 6)
    steps: list[tuple[int, int, str]] = []
    config = _config(world, train=(world / "faces",), layers=(0, 3))
    report = run_bars(config, lambda done, total, what: steps.append((done, total, what)))
    assert steps[-1][0] == steps[-1][1] and [one[0] for one in steps[1:]] == list(range(steps[-1][1] + 1))
    lines = {(line.row, line.setting): line for line in report.found}
    assert {row for row, _ in lines} == {*BARS}
    faces, made = next((faces, made) for layer, psi, alpha, faces, made in settings if (layer, psi, alpha) == (3, 0, 0))
    told = [cosine(seen(a), seen(b)) for a, b in zip(faces.images, made, strict=True)]
    strong = lines["id-cosine", "i = 3"]
    assert strong.value.value == pytest.approx(np.mean(told), abs=1e-5) and strong.value.n == 24
    assert strong.sticker is not None and strong.sticker.value is not None and strong.control is not None
    assert lines["detected", "i = 0"].value.note in ("yunet is not here", "centerface is not here")
    assert lines["memorised", "i = 0"].control.figure.value == pytest.approx(1, abs=1e-4)  # type: ignore[union-attr]
    assert lines["draws", "i = 0"].sticker.value == pytest.approx(1)  # type: ignore[union-attr]
    assert lines["parrot", "i = 0"].value.n == lines["naive", "i = 0"].value.n == 12
    assert "12 people enrolled" in lines["naive", "i = 0"].value.note and lines["naive", "i = 3"].sticker is not None
    shaped = [line for line in report.found if line.row == "shape" and line.setting == "i = 0"]
    assert [line.judge for line in shaped] == ["nearest", "LDA", "network"]
    assert all(line.sticker and line.control and line.control.what == "clear" for line in shaped)
    assert shaped[1].control.figure.value == 1 and "learnt on 12 others" in shaped[1].value.note  # type: ignore[union-attr]
    # With the policy on: rows of identity alone, of the pictures that its own rows were counted on.
    assert {row for row, setting in lines if setting == "i = 0, policy on"} == {
        "within-kind",
        "within-kind (region)",
        "naive",
        "id-cosine",
        "tar",
    }
    for row in ("within-kind", "within-kind (region)"):
        line = lines[row, "i = 0"]
        assert line.verdict == "no bar" and line.value.n == 24 and line.sticker is not None
        assert line.control is not None and (line.control.what, line.control.figure.value) == ("clear", 1)
    ((layer, published),) = guarded
    assert layer == 0
    told = [cosine(seen(a), seen(b)) for a, b in zip(faces.images, published, strict=True)]
    line = lines["id-cosine", "i = 0, policy on"]
    assert line.value.value == pytest.approx(np.mean(told), abs=1e-5) and line.bar.most == 0.13
    assert report.facts["settings"]["psi"] == 0  # the model's own
    assert {row["group"] for row in report.groups} == {"gender=Female", "gender=Male", "race=Made"}
    assert report.left_out == []
    assert (report.facts["L"], report.facts["settings"]["layers"]) == (4, [0, 3])
    report.write(tmp_path)
    for name in ("bars.json", "bars.md"):
        assert str(world) not in (tmp_path / name).read_text(encoding="utf-8")


@pytest.mark.usefixtures("_judged")
@pytest.mark.parametrize(("given", "psi"), [("auto", 0.4), (0.25, 0.25)])
def test_the_draws_have_the_models_own_diversity(
    world: Path, monkeypatch: pytest.MonkeyPatch, given: Any, psi: float
) -> None:
    monkeypatch.setattr("ficgan.face_model.FaceModel.AUTO_PSI", (0.4, 0.9))
    measured = Measured(_config(world, psi=given, layers=(0,)))
    shown = measured.facts(measured.sets())["settings"]["psi"]
    assert (measured.psi, measured.model.psi, measured.guarded.psi, shown) == (psi,) * 4
    assert measured.deid.psi == given and BarsConfig(aligned=(world,)).psi == "auto"


@pytest.mark.usefixtures("_judged")
@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"limit": 1}, InputError, "1 faces to measure on"),
        ({"layers": (0, 4)}, UsageError, "4"),
        ({"k": 50}, UsageError, "50"),
        ({"aligned": (Path("nowhere.tar"),)}, InputError, "nowhere.tar"),
        ({"attributes": Path("nowhere.safetensors")}, Exception, "nowhere.safetensors"),
    ],
)
def test_what_cannot_work_is_refused(world: Path, more: dict[str, Any], error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        run_bars(_config(world, **{"layers": (0,), **more}))


def test_the_trainer_is_no_judge(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(header: Any, name: str) -> None:
        assert header.data == {"licence": "drawn"}
        raise UsageError(f"{name} trained it")

    monkeypatch.setattr("ficgan.lab.bars.refuse_trainer", refuse)
    with pytest.raises(UsageError, match="onnx:v trained it"):
        run_bars(_config(world, layers=(0,), judges=("onnx:v",)))
