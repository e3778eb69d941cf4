"""Revelio's printed numbers against its text, who is in which world, and the parts on made people."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ficgan import configs
from ficgan.anonymizers import Faces, GaussianBlur
from ficgan.cli.evaluate import paper
from ficgan.errors import InputError, UsageError
from ficgan.lab import papers as printed
from ficgan.lab import readers, reversal
from ficgan.lab.attackers import Opponent
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers import revelio, with_data
from ficgan.lab.papers.revelio import RevelioPaper, RevelioRun, attacker, divide, run_revelio, settings
from ficgan.lab.papers.revelio_tables import _plotted, draw_revelio, revelio_caveats
from ficgan.lab.readers import Reader
from ficgan.lab.report.tables import controls
from ficgan.lab.results import Figure, Trial
from ficgan.lab.sets import Prepared

SIDE, PEOPLE, EACH = 32, 16, 4


# What is printed


def _text(shared_data: Path) -> str:
    path = shared_data.parent / "papers" / "revelio.md"
    if not path.is_file():
        pytest.skip("needs the paper beside the shared data")
    return re.sub(r"</?b>|\*\*| *\$\\(up|down)arrow\$", "", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("table", "first", "last"),
    [
        (printed.REVELIO.fine_tuning, "Model\tPSNR", "TABLE 2"),
        (printed.REVELIO.light, "Methods\tPSNR", "GT\t"),
        (printed.REVELIO.open_world, "Setting\tPSNR", "TABLE 5"),
        (printed.REVELIO.defences, "Defense\tPSNR", "TABLE 6"),
        (printed.REVELIO.adaptive, "Attack\tPSNR", "TABLE 7"),
    ],
)
def test_tables_are_the_papers(shared_data: Path, table: printed.Printed, first: str, last: str) -> None:
    text = _text(shared_data)
    body = text[text.index(first) :]
    assert _numbers(body[: body.index(last)]) == [_of(row) for row in table.rows]


def test_table_4_is_the_papers(shared_data: Path) -> None:
    text = _text(shared_data)
    body = text[: text.index("TABLE 4: ")]
    body = body[body.rindex("Methods\tPSNR") :]
    assert _numbers(body[: body.index("GT\t")]) == [_of(row) for row in printed.REVELIO.heavy.rows]


def test_table_1_and_the_text_are_the_papers(shared_data: Path) -> None:
    text = _text(shared_data)
    body = text[text.index("Kernel Size\tK = 37") : text.index("TABLE 1")]
    assert _numbers(body) == [_of(row) for row in printed.REVELIO.ira.rows]
    told = printed.REVELIO.detection
    assert f"$d = {told['threshold']}$" in text
    assert f"a TPR of {told['TPR']}, an FPR of {told['FPR']}, and an overall detection accuracy of 90%" in text
    assert f"The mean absolute error (MAE) is only {printed.REVELIO.kernel_error}" in text
    assert "mismatches within the mean absolute error (MAE) of 6" in text


def _numbers(body: str) -> list[list[float]]:
    rows = [line.split("\t")[1:] for line in body.splitlines()[1:] if "\t" in line]
    return [[float(cell.rstrip("%")) / (100 if "%" in cell else 1) for cell in row] for row in rows]


def _of(row: dict[str, Any]) -> list[Any]:
    return [pytest.approx(value) for value in row.values() if not isinstance(value, str)]


def test_printed_shares_as_counts() -> None:
    assert printed.counted(0.959) == (93, True)
    assert printed.counted(0.8866) == (86, True)
    assert printed.counted(0.08) == (8, False)  # 7 of 97 are 7.2 %, 8 are 8.2 %


# Who is in which world


def _made(counts: list[int]) -> Prepared:
    people = np.repeat(np.arange(len(counts)), counts)
    images = np.random.default_rng(1).integers(0, 255, (len(people), 8, 8, 3)).astype(np.uint8)
    names = tuple(map(str, range(len(people))))
    return Prepared(Faces(images, names, people=people), (0, 0, 8, 8), np.arange(len(people)))


@given(st.lists(st.integers(1, 6), min_size=8, max_size=30), st.integers(1, 30), st.integers(0, 3))
def test_nobody_is_on_both_sides(counts: list[int], probes: int, seed: int) -> None:
    counts = [2, 2, 2, 2, *counts]
    prepared = _made(counts)
    people = prepared.faces.people
    assert people is not None
    world = divide(prepared, probes=probes, identities=5, outside=7, outsiders=4, seed=seed)
    parts = [set(rows.tolist()) for rows in (world.reference, world.closed, world.outside)]
    assert not (parts[0] & parts[1] or parts[0] & parts[2] or parts[1] & parts[2])
    known = set(people[world.reference])
    assert set(people[world.closed]) <= known
    assert not set(people[world.outside]) & known
    assert 1 <= len(world.closed) <= probes
    assert len(world.outside) <= 7
    assert len(set(people[world.closed])) <= 5
    for person in set(people[world.closed]):  # half of the photos stay with the attacker
        assert (people[world.closed] == person).sum() <= max(1, counts[person] // 2)


def test_the_same_picture_is_not_in_the_reference() -> None:
    prepared = _made([3] * 8)
    first = divide(prepared, probes=4, identities=4, outside=2, outsiders=2)
    twin = prepared.faces.images.copy()
    who = prepared.faces.people
    assert who is not None
    other = next(row for row in first.reference if who[row] not in who[first.closed])
    twin[other] = twin[first.closed[0]]
    again = divide(
        dataclasses.replace(prepared, faces=prepared.faces.with_images(twin)),
        probes=4,
        identities=4,
        outside=2,
        outsiders=2,
    )
    assert set(again.reference) == set(first.reference) - {other}
    with pytest.raises(InputError, match="at least 4 people"):
        divide(_made([2, 2]))


# Settings


def test_attackers_work_at_the_size_of_the_crops() -> None:
    assert attacker("autoencoder:epochs=3", 256) == ("Fantômas", "autoencoder:epochs=3,size=224")
    assert attacker("autoencoder", 64) == ("Fantômas", "autoencoder:size=64")
    assert attacker("Mine=autoencoder:size=32", 64) == ("Mine", "autoencoder:size=32")
    assert attacker("GFP-GAN=ridge", 64) == ("GFP-GAN", "ridge")
    assert RevelioPaper(Path("x"), attackers=("ridge", "Revelio=ridge", "bicubic")).restorer == ("Revelio", "ridge")
    assert RevelioPaper(Path("x"), attackers=("ridge", "bicubic")).restorer == ("bicubic", "bicubic")


def test_what_cannot_work_is_one_sentence() -> None:
    for given_, said in (
        ({"parts": ("bases",)}, "no part 'bases'"),
        ({"candidates": 0}, "0 candidates"),
        ({"adapted": ("box",)}, "no defence 'box'"),
        ({"attackers": ("Revelio=ridge", "Revelio=bicubic")}, "one label"),
    ):
        with pytest.raises(UsageError, match=said):
            RevelioPaper(Path("x"), **given_)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="did you mean candidates"):
        settings("revelio", ["candidate=3"])
    with pytest.raises(UsageError, match="not valid YAML"):
        settings("revelio", ["adapted=[jpeg"])
    with pytest.raises(UsageError, match="there are revelio"):
        settings("quick")
    assert settings("revelio", ["sweep=7", "adapted=[jpeg]"]) | {"attackers": ()} == {
        "size": 256,
        "attackers": (),
        "probes": 97,
        "identities": 50,
        "outside": 97,
        "outsiders": 91,
        "candidates": 50,
        "adapt_epochs": 100,
        "sweep": 7,
        "adapted": ("jpeg",),
    }


# The parts


class Coarse:
    """Reads a coarse copy of the crop."""

    name, metric, match_threshold = "coarse", "euclidean", 0.6

    def embed_each(self, images: np.ndarray, landmarks: np.ndarray) -> np.ndarray:
        return images.reshape(len(images), 4, 8, 4, 8, 3).mean((2, 4)).reshape(len(images), -1).astype(np.float32)


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("revelio")
    rng = np.random.default_rng(3)
    lines = ["file,person"]
    for person in range(PEOPLE):
        texture = rng.integers(30, 225, (8, 8, 3)).repeat(4, 0).repeat(4, 1)
        for index in range(EACH):
            pixels = texture + rng.normal(size=texture.shape) * 8
            name = f"{person:02d}-{index}.png"
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
            lines.append(f"{name},{person}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def _judge() -> Iterator[None]:
    judge = Reader(Coarse(), "coarse", "coarse", "coarse-1")  # type: ignore[arg-type]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(revelio, "get_readers", lambda names: [judge])
        patch.setattr(readers, "get_readers", lambda names, device="cpu": [judge])
        patch.setattr(reversal, "_judges", lambda: Judges(missing={"squeezenet": "not here"}))
        yield


def _paper(people: Path, **more: Any) -> RevelioPaper:
    given_ = {
        "size": SIDE,
        "aligned": True,
        "attackers": ("bicubic", "Revelio=ridge"),
        "probes": 6,
        "identities": 4,
        "outside": 4,
        "outsiders": 3,
        "candidates": 2,
        "sweep": 3,
        "resamples": 30,
        "estimator": (8, 4, 4),
        "pictures": 2,
    }
    return RevelioPaper(people, **{**given_, **more})  # type: ignore[arg-type]


def _value(trial: Trial, metric: str) -> float | None:
    return next(one.value for one in trial.figures if one.metric == metric)


def _rows(run: RevelioRun, title: str) -> list[dict[str, Any]]:
    return next(table["rows"] for table in run.tables if title in table["title"])


DONE = ("base", "retrieval", "sweep", "defences", "ood")
ASKED = {
    "parts": DONE,
    "adapted": ("jpeg", "rotation"),
    "control_epochs": 1,
    "attackers": ("bicubic", "autoencoder:size=32,linear=none,epochs=1", "Revelio=ridge"),
}


@pytest.fixture(scope="module")
def run(people: Path, tmp_path_factory: pytest.TempPathFactory, _judge: None) -> RevelioRun:
    return run_revelio(_paper(people, **ASKED), tmp_path_factory.mktemp("out"))


def test_parts_fill_their_tables_and_others_are_marked_as_not_run(run: RevelioRun) -> None:
    done = {row["part"]: row[""] for row in _rows(run, "What was run")}
    assert done == dict.fromkeys(DONE, "done") | {
        part: f"not run: part {part} was not asked for" for part in ("fine-tuning", "kernel")
    }
    first = {row["method"]: row for row in _rows(run, "Table 1")}
    beside = {"Clear", "Constant grey", "Mean face", "Chance", "Block permutation, undone"}
    beside |= {"Kernel estimated, not told"}
    assert set(first) == {"bicubic", *beside, *(row["method"] for row in printed.REVELIO.ira.rows)}
    assert first["Revelio"]["heavy: paper"] == "0.959 [0.899, 0.984]"
    assert "majority of 2 guesses" in first["Revelio"]["heavy: here"]
    assert first["PULSE"]["light: here"] == "not run: no attacker called PULSE was given"
    assert first["Fantômas"]["heavy: paper"].endswith("~")
    for table in run.tables:  # no cell is empty, and all rows have the columns of the first
        for row in table["rows"]:
            assert list(row) == list(table["rows"][0]), table["title"]
            assert all(str(value) for key, value in row.items()), (table["title"], row)
    assert all("not run" in row["PSNR"] for row in _rows(run, "Table 2"))
    kernels = [row["kernel at 256 px"] for row in _rows(run, "Figure 15")]
    assert kernels[:11] == [f"K {kernel}" for kernel in range(71, 92, 2)]
    world = run.results.provenance["set"]["world"]
    assert world["closed"]["images"] == 6
    assert world["outside"]["people"] == 3
    assert any("too few" in caveat for caveat in run.results.caveats)
    scenarios = {trial.scenario.partition(",")[0] for trial in run.results.trials}
    assert scenarios == {"closed world", "open world"}
    json.dumps(run.tables, allow_nan=False)
    third = {row["method"]: row for row in _rows(run, "Table 3")}
    assert first["Fantômas"]["training"] == third["Fantômas"]["training"] == "1 epochs"
    assert first["Blurred"]["training"] == third["Blurred"]["training"] == "–"
    record = {"epochs": 3, "ended": "2 minutes were over"}
    stopped: Any = SimpleNamespace(fitted=SimpleNamespace(epochs=9, record=record))
    assert Opponent.training.fget(stopped) == "3 epochs of 9: 2 minutes were over"  # type: ignore[attr-defined]


@pytest.mark.slow
def test_plots_and_strips_are_drawn(run: RevelioRun, tmp_path: Path) -> None:
    names = {path.name for path in draw_revelio(run.experiment, run.outcomes, tmp_path)}
    assert {"figure-7.svg", "figure-7.png", "figure-15.svg", "heavy.png", "light.png", "READ-FIRST.txt"} <= names
    with Image.open(tmp_path / "pictures" / "heavy.png") as strip:
        assert strip.size == (5 * 132 - 4, 2 * 132 - 4)


def test_retrieval_is_that_of_a_slow_loop(run: RevelioRun) -> None:
    lab = run.experiment
    how, rows = lab.blur("heavy"), lab.world.closed
    guesses = lab.restorer(how).restored(lab.seen(how, rows), rows)
    reference = lab.clear(lab.world.reference).images.reshape(-1, 4, 8, 4, 8, 3).mean((2, 4))
    hits, lowest = 0, []
    for image, person in zip(guesses.images, lab.bench.people[rows], strict=True):
        code = image.reshape(4, 8, 4, 8, 3).mean((1, 3))
        away = [float(np.sqrt(((code - other) ** 2).sum())) for other in reference]
        hits += int(lab.bench.people[lab.world.reference[int(np.argmin(away))]] == person)
        lowest.append(min(away))
    trial = next(one for one in run.outcomes["retrieval"].trials if one.method == "heavy")
    assert trial.figures[0].value == pytest.approx(hits / len(rows))  # one guess repeated votes as it does alone
    curve = run.outcomes["ood"].facts["curves"]["coarse"]
    np.testing.assert_allclose(curve["inside"], lowest, rtol=1e-4)
    mine, theirs = np.array(curve["inside"]), np.array(curve["outside"])
    greater = np.mean([(b > a) + 0.5 * (b == a) for a in mine for b in theirs])
    assert curve["AUC"] == pytest.approx(greater)
    assert "too good" in curve["note"]


def test_what_is_done_is_kept_and_what_failed_is_tried_again(
    run: RevelioRun, people: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    real, out = revelio._run_part, run.experiment.out
    monkeypatch.setattr(revelio, "_run_part", lambda lab, part: asked.append(part) or real(lab, part))
    again = run_revelio(_paper(people, **{**ASKED, "parts": ("defences", "fine-tuning"), "pictures": 0}), out)
    assert asked == ["fine-tuning"]
    assert {part: again.outcomes[part].trials for part in DONE} == {p: run.outcomes[p].trials for p in DONE}
    assert "no diffusion" in _rows(again, "Table 2")[1]["PSNR"]
    run_revelio(_paper(people, **{**ASKED, "parts": ("retrieval",), "seed": 1}), out)
    assert asked == ["fine-tuning", "retrieval"]  # other settings, another run
    attackers = (f"Mine=external:folder={out / 'none'}", "Revelio=ridge")
    for _ in range(2):
        failed = run_revelio(_paper(people, parts=("base",), attackers=attackers), out)
        rows = {row["method"]: row for row in _rows(failed, "Table 1")}
        assert rows["Mine"]["light: here"].startswith("not run: ")
        assert rows["Block permutation, undone"]["light: here"] == "not run: control_epochs is 0"
    assert asked[2:] == ["base", "base"]
    program = _paper(people, parts=("retrieval",), attackers=("external:command=cp -r {input}/. {output}",))
    for _ in range(2):
        assert all("not run" in row["PSNR"] for row in _rows(run_revelio(program, out), "Table 6"))
    assert asked[4:] == ["retrieval", "retrieval"]


def test_defences_met_and_learnt(run: RevelioRun) -> None:
    rows = {row["defence"]: row for row in _rows(run, "Table 6")}
    assert {"rotation", "noise", "jpeg", "box blur", "none", "secret"} <= set(rows)
    assert rows["jpeg"]["IRA"].endswith("| 0")
    learnt = {row["defence"]: row["PSNR"] for row in _rows(run, "Table 7")}
    assert list(learnt) == ["jpeg", "rotation", "noise", "box blur", "secret"]
    assert all(text.startswith("not run") == (name not in ("jpeg", "rotation")) for name, text in learnt.items())

    def likeness(scenario: str, method: str) -> float:
        (trial,) = [
            one
            for one in run.outcomes["defences"].trials
            if (one.scenario, one.method) == (scenario, method) and one.attacker != "not restored"
        ]
        return _value(trial, "PSNR") or 0.0

    # What has learnt turned faces gives upright ones.
    assert likeness("closed world, adaptive attack", "rotation") > likeness("closed world, defences", "none") - 2


def test_controls_stand_beside_the_attackers(run: RevelioRun) -> None:
    lab, trials = run.experiment, [one for one in run.outcomes["base"].trials if one.method == "heavy"]
    found = {one.attacker: one for one in trials}
    assert _value(found["Clear"], "IRA") == 1.0
    assert (_value(found["Block permutation, undone"], "IRA") or 0) > (_value(found["Constant grey"], "IRA") or 0)
    enrolled, tested = (lab.bench.people[rows] for rows in (lab.world.reference, lab.world.closed))
    share = np.mean([(enrolled == person).sum() / len(enrolled) for person in tested])
    assert _value(found["Chance"], "IRA") == pytest.approx(share)
    checks = [one for one in controls(run.results) if one.name.startswith("closed world")]
    assert len(checks) == 6
    assert all(one.holds for one in checks)
    same, other = (_value(found[name], "IDD") or 0 for name in ("Same person, another photo", "Strangers"))
    assert 0 < same < other
    clear = lab.bench.prepared.faces.take(lab.world.closed).images.astype(float)
    mean = lab.bench.prepared.faces.take(lab.world.reference).images.astype(float).mean(0)
    ratio = 10 * np.log10(255**2 / ((clear - mean) ** 2).mean((1, 2, 3)))
    assert _value(found["Mean face"], "PSNR") == pytest.approx(ratio.mean(), abs=0.01)
    rows = {row["method"]: row for row in _rows(run, "Table 4")}
    assert rows["Strangers"]["IDD"].endswith("*")  # the judge was not trained by angles
    assert rows["Strangers"]["PSNR"] == "–"
    assert "* | 1.5" in rows["Blurred"]["IDD"]


@pytest.mark.usefixtures("_judge")
def test_the_kernel_estimator_is_told_of(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ficgan.lab.attacks import networks as kernel

    class Oracle:
        """Says one size too large of the smallest kernel alone."""

        network = "oracle"

        @classmethod
        def train(cls, images: np.ndarray, kernels: tuple[int, ...], **more: Any) -> Oracle:
            cls.kernels, cls.calls = kernels, 0
            assert len(images) <= 8
            assert len(more["validation"]) <= 4
            return cls()

        def estimate(self, images: np.ndarray) -> np.ndarray:
            index = type(self).calls
            type(self).calls += 1
            if index >= len(self.kernels):  # asked which model to take: always says that of the light blur
                return np.full(len(images), 5)
            return np.full(len(images), self.kernels[index] + (2 if index == 0 else 0))

        def regress(self, images: np.ndarray) -> np.ndarray:
            return np.full(len(images), 4.625)

    monkeypatch.setattr(kernel, "KernelEstimator", Oracle)
    run = run_revelio(_paper(people, parts=("kernel",)), tmp_path)
    facts = run.outcomes["kernel"].facts
    count = len(facts["kernels"])  # 1, 3, … 11 of 32 pixels
    assert facts["kernels"] == [1, 3, 5, 7, 9, 11]
    assert facts["error"] == pytest.approx(2 / count)
    rows = _rows(run, "Figure 13")
    assert rows[0]["mean absolute error, pixels of 256"].startswith(f"{16 / count:.3f} ")
    assert "says 37.0" in rows[2]["mean absolute error, pixels of 256"]
    assert draw_revelio(run.experiment, run.outcomes, tmp_path)[0].name == "figure-13.png"
    assert facts["chosen rightly"] == {"light": 1.0, "heavy": 0.0}
    lab = run.experiment
    guesses = lab.restorer(lab.blur("light")).restored(lab.seen(lab.blur("heavy"), lab.world.closed), lab.world.closed)
    clear = lab.bench.prepared.faces.take(lab.world.closed).images
    error = ((guesses.images.astype(float) - clear) ** 2).mean((1, 2, 3))
    heavy = run.outcomes["kernel"].trials[1]
    assert heavy.method == "heavy"
    assert _value(heavy, "PSNR") == pytest.approx(np.mean(10 * np.log10(255**2 / error)), rel=1e-5)
    table = {row["method"]: row for row in _rows(run, "Table 1")}
    assert "not run" not in table["Kernel estimated, not told"]["heavy: here"]


@pytest.mark.usefixtures("_judge")
def test_thresholds_are_chosen_on_other_people(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    judge = Reader(Coarse(), "dlib", "dlib", "coarse-1")  # type: ignore[arg-type]
    monkeypatch.setattr(revelio, "get_readers", lambda names: [judge])
    run = run_revelio(_paper(people, parts=("ood",), identities=6, outside=8, outsiders=4), tmp_path)
    rows = [row for row in _rows(run, "Figure 7") if row[""].startswith("here")]
    assert len(rows) == 2
    assert "the mean of" in rows[0]["threshold"]
    assert rows[1]["threshold"] == "0.43 (the paper's threshold)"
    first, second = (one for one in run.outcomes["ood"].trials if one.attacker.startswith("strangers"))
    assert "other half" in next(one.note for one in first.figures if one.metric == "TPR")
    outside = np.array(run.outcomes["ood"].facts["curves"]["dlib"]["outside"])
    assert _value(second, "TPR") == pytest.approx(np.mean(outside > 0.43))


def test_the_papers_attacker_learns_as_long_as_the_papers() -> None:
    for name in ("revelio256", "revelio256-palette"):
        text = configs.read(name, "attack")
        assert yaml.safe_load(text)["attacker"]["epochs"] == printed.REVELIO.epochs
        assert "Zhang" not in text


@pytest.mark.usefixtures("_judge")
def test_the_command_writes_tables_and_figures(people: Path, tmp_path: Path) -> None:
    asked = [
        "revelio",
        "--data",
        str(people),
        "-o",
        str(tmp_path),
        "--aligned",
        "--size",
        str(SIDE),
        "--parts",
        "retrieval",
        "--attacker",
        "Revelio=ridge",
        "--candidates",
        "1",
        "--probes",
        "4",
        "--set",
        "outsiders=3",
        "--set",
        "identities=3",
        "--resamples",
        "20",
        "--quiet",
    ]
    done = CliRunner().invoke(paper, asked, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    told = json.loads((tmp_path / "paper.json").read_text())
    assert told["provenance"]["settings"]["candidates"] == 1
    assert len(told["tables"]) == 12
    assert "Revelio, Table 1" in (tmp_path / "report.html").read_text()


def test_the_small_preset_has_both_blurs_in_its_pixels(people: Path) -> None:
    for light, heavy in ([method.make() for method in with_data("revelio64", people, aligned=True).methods],):
        assert isinstance(light, GaussianBlur) and isinstance(heavy, GaussianBlur)
        assert light.axes()[0][1] == pytest.approx(5.9 / 4)
        assert heavy.axes()[0][1] == pytest.approx(12.5 / 4)


def test_caveats_name_no_folder_and_plots_name_the_stand_in() -> None:
    world = {part: {"images": 9, "people": 3} for part in ("reference", "closed", "outside")}
    protocol = RevelioPaper(Path("faces"), judges=("onnx:/somewhere/private/judge.onnx",))
    told = " ".join(revelio_caveats(protocol, {"name": "faces"}, world, {}))
    assert "onnx:judge.onnx" in told and "private" not in told
    trial = Trial("set", "K 81", "sweep", "judge", figures=(Figure("FD-like (SqueezeNet)", 3.0), Figure("LPIPS", 0.1)))
    assert _plotted([trial], "FID") == "FD-like (SqueezeNet)" and _plotted([trial], "LPIPS") == "LPIPS"
