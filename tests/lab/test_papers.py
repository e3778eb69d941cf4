"""The papers' numbers as printed, their protocols, the rule for "reversible", and both experiments on made people."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from network_world import write_network
from texture_world import Textures, judged_by_textures, write_people

from ficgan import configs
from ficgan.cli.evaluate import paper
from ficgan.deidentify import Ficgan
from ficgan.errors import InputError, UsageError
from ficgan.lab import papers as published
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.matrix_config import SplitConfig
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.papers import ficgan as experiment
from ficgan.lab.papers import scaled, with_data
from ficgan.lab.papers.fantomas import fantomas_caveats, fantomas_matrix, fantomas_tables, verdicts
from ficgan.lab.papers.ficgan import FicganPaper, draw_figure_4, ficgan_tables, run_ficgan
from ficgan.lab.results import Figure, Results, Trial
from ficgan.lab.study import StudyResult, obfuscation_tables

PEOPLE, EACH, SIDE = 48, 4, 64


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("people"), PEOPLE, EACH, cells=16, light=10)


@pytest.fixture
def _judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = judged_by_textures(monkeypatch, 16)
    monkeypatch.setattr(experiment, "get_readers", lambda names, device="cpu": [judge])


# What is printed


def _text(shared_data: Path, name: str) -> str:
    path = shared_data.parent / "papers" / name
    if not path.is_file():
        pytest.skip(f"needs the paper {name} beside the shared data")
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("table", "first", "last"),
    [
        (published.FICGAN.comparison, "downarrow$ FID", "#### Table 1"),
        (published.FICGAN.ablations, "↓ Similarity", "Table 2: Ablation"),
        (published.FICGAN.reconstruction, "downarrow \\text{LPIPS}", "Table A:"),
    ],
)
def test_ficgans_tables_are_the_papers(shared_data: Path, table: published.Printed, first: str, last: str) -> None:
    text = _text(shared_data, "ficgan.md")
    body = text[text.index(first) : text.index(last)].splitlines()
    printed = [[float(cell) for cell in line.split("\t")[1:]] for line in body[1:] if "\t" in line]
    assert [[value for key, value in row.items() if key != "method"] for row in table.rows] == printed


def test_ficgans_numbers_by_heart() -> None:
    rows = {row["method"]: row for row in published.FICGAN.comparison.rows}
    assert rows["FICGAN"] == {"method": "FICGAN", "FID": 20.45, "ID similarity": 0.09, "attributes": 81.35}
    assert rows["FICGAN + manifold k-same"]["attributes"] == 85.44
    assert published.FICGAN.ablations.rows[1]["ID similarity"] == 0.008
    assert published.FICGAN.reconstruction.rows[-1]["LPIPS"] == 0.15
    assert not set(published.FICGAN.controllable) & set(published.FICGAN.uncontrollable)


def test_fantomas_says_what_the_claims_say(shared_data: Path) -> None:
    text = _text(shared_data, "fantomas.md")
    assert "11 out of 15 tested face anonymizations are at least partially reversible" in text
    assert "identification accuracy of our model exceed 15%" in text
    assert "49.2% with clear data and 27.1% with anonymized data" in text
    table = text[text.index("Table 3: Parameters") : text.index("B DE-ANONYMIZATION")]
    for method, parameters in published.FANTOMAS.parameters.items():
        line = next(line for line in table.splitlines() if line.replace(" -", "-").startswith(method))
        assert [str(value) for value in parameters.values()] == re.findall(r"[\d.]+$|(?<= )[\d.]+(?=,)|high", line)


def test_eleven_of_fifteen() -> None:
    assert (len(published.FANTOMAS_CLAIMS), len(published.FANTOMAS.reversible)) == (15, 11)
    assert set(published.FANTOMAS.irreversible) == {"k-Same-Pixel", "k-Same-Eigen", "DeepPrivacy", "CIAGAN"}


# Protocols


def test_the_full_protocol_is_the_papers() -> None:
    whole = SplitConfig()
    assert scaled(whole, 5000) == scaled(whole, 10_177) == whole
    assert (whole.background, whole.attacker, whole.test, whole.enrolment) == (200, 4500, 300, 0.75)


@given(st.integers(3, 4999))
def test_a_scaled_split_uses_everybody_once(total: int) -> None:
    parts = scaled(SplitConfig(), total)
    assert parts.background + parts.attacker + parts.test == total
    assert 2 <= parts.test <= 300
    assert parts.attacker >= 0
    assert parts.background >= min(12, total // 3)


def test_fantomas_on_few_people(people: Path) -> None:
    config = fantomas_matrix(people, aligned=True, size=112)
    (one,) = config.sets
    assert (one.limit_people, one.split.background, one.split.test, one.split.attacker) == (48, 12, 12, 24)
    known = {method.label: method for method in config.methods}
    assert set(known) == set(published.FANTOMAS_CLAIMS) - {"Fawkes", "DeepPrivacy", "CIAGAN"}
    assert known["Block Permutation"].parameters["block"] == 16
    # DP-Pix's noise, 255·m/(b²·ε), stays what it is at 224 px.
    small = known["DP Pix"].parameters
    assert 255 * small["m"] / (small["block"] ** 2 * small["eps"]) == pytest.approx(255 * 16 / (12**2 * 5))


def test_fantomas_at_full_size_has_table_3(people: Path) -> None:
    names = {"block": "b", "eps": "ε", "delta": "δ", "sigma": "σ", "kernel": "kernel size"}
    config = fantomas_matrix(people, aligned=True)
    assert config.sets[0].size == 224
    for method in config.methods:
        wanted = dict(published.FANTOMAS.parameters.get(str(method.label), {}))
        if "block size" in wanted:
            wanted["b"] = wanted.pop("block size")
        given_ = {names.get(key, key): value for key, value in method.parameters.items() if key != "variant"}
        if wanted:
            assert given_ == wanted
        made: Any = method.make()
        assert getattr(made, "variant", "as_released") == "as_released"


def test_methods_are_chosen_and_added(people: Path) -> None:
    config = fantomas_matrix(people, aligned=True, only=["pixelation", "CIAGAN"], extra=["CIAGAN=external:folder=made"])
    assert [method.title for method in config.methods] == ["Block Permutation", "Pixelation", "CIAGAN"]
    assert config.methods[-1].parameters == {"folder": "made"}


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"only": ["pixelatoin"]}, "no method 'pixelatoin'"),
        ({"extra": ["external:folder=x"]}, "not of the form LABEL=NAME"),
        ({"extra": ["CIAGAN=externall:folder=x"]}, "did you mean external"),
        ({"extra": ["Pixelation=solid"]}, "two methods are called 'Pixelation'"),
        ({"extra": ["Fawkes=fawkes:verifier=onnx:a.onnx"], "judges": ["onnx:a.onnx"]}, "cannot judge it too"),
        ({"people": 1}, "too few"),
        ({"size": 8}, "size"),
    ],
)
def test_what_cannot_work_is_one_sentence(people: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        fantomas_matrix(people, aligned=True, **more)
    assert "\n" not in str(caught.value)


def test_presets_name_no_data_and_take_some(people: Path) -> None:
    for name in configs.names("eval"):
        assert configs.read(name, "eval").startswith("# ")
    config = with_data("quick", people, aligned=True, judges=["onnx:x.onnx"], people=30)
    assert config.sets[0].limit_people == 30
    assert config.recognisers == ["onnx:x.onnx"]
    assert all(method.make() for method in config.methods)
    with pytest.raises(UsageError, match="no configuration 'quik'"):
        with_data("quik", people)
    with pytest.raises(InputError):
        with_data("quick", people / "nowhere")


# The rule


def _results(naive: tuple[float, float], best: tuple[float, float] | None, **more: Any) -> Results:
    """Trials of one method and of the controls; intervals are given, values lie in their middle."""

    def trial(method: str, scenario: str, span: Any, attacker: str = "", control: str = "") -> Trial:
        figures = [Figure("rank-1", None, note="refused")]
        if span is not None:
            figures = [Figure("rank-1", sum(span) / 2, *span), Figure("chance", 0.05)]
            figures += [Figure("reversibility", sum(span))] if scenario.startswith("reversed") else []
        return Trial("s", method, scenario, "judge", attacker, tuple(figures), control=control)

    trials = [
        trial("clear", "clear", more.get("clear", (0.9, 1.0)), control="ceiling"),
        trial("clear", "constant", more.get("constant", (0.0, 0.1)), control="negative"),
        trial("permuted", "naive", (0.0, 0.1)),
        trial("permuted", "reversed-specialised", more.get("positive", (0.85, 0.95)), "learn-permutation"),
        trial("m", "naive", naive),
        trial("m", "parrot-enrol", (0.2, 0.4)),
        trial("m", "reversed-general", (0.0, 0.02), "ridge"),
        trial("m", "reversed-specialised", best, "made for it"),
        trial("m", "background-known", more.get("known"), "subtraction"),
    ]
    methods = {
        "permuted": {"name": more.get("control", "block-permutation"), "settings": {}, "family": "basic"},
        "m": {"name": "m", "settings": {"k": 10}, "family": "basic"},
    }
    parts = {part: {"people": 20} for part in ("background", "attacker", "probe")}
    facts = {"split": {"parts": parts}, "size": 64, "failures_to_acquire": [], "faces": 1}
    return Results("t", sets={"s": facts}, methods=methods, trials=trials)


@pytest.mark.parametrize(
    ("naive", "best", "wanted"),
    [
        ((0.1, 0.2), (0.21, 0.4), True),
        ((0.1, 0.2), (0.2, 0.4), False),  # touching is not above
        ((0.1, 0.3), (0.25, 0.5), False),
        ((0.5, 0.6), (0.1, 0.2), False),
        ((0.1, 0.2), None, False),  # what is left is the general attacker
    ],
)
def test_reversible_means_intervals_apart(
    naive: tuple[float, float], best: tuple[float, float] | None, wanted: bool
) -> None:
    verdict = verdicts(_results(naive, best))[1]
    assert (verdict.method, verdict.reversible, verdict.why) == ("m", wanted, "")
    assert verdict.attacker == ("made for it" if best else "ridge")
    assert verdict.gain == Figure("reversibility", sum(best or (0.0, 0.02)))
    assert verdict.parrot is not None
    assert verdict.parrot.value == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"positive": (0.05, 0.3)}, "positive control, permuted, was not reversed"),
        ({"positive": None}, "positive control, permuted, was not reversed"),
        ({"control": "pixelation"}, "positive control, block permutation, was not run"),
        ({"clear": (0.1, 0.3)}, "'clear' does not hold"),
        ({"clear": None}, "'clear' was not run"),
        ({"constant": (0.3, 0.5)}, "'constant' does not hold"),
    ],
)
def test_nothing_is_decided_without_controls(more: dict[str, Any], why: str) -> None:
    for verdict in verdicts(_results((0.1, 0.2), (0.8, 0.9), **more)):
        assert verdict.reversible is None
        assert why in verdict.why


def test_a_known_background_is_a_matter_of_its_own() -> None:
    verdict = verdicts(_results((0.1, 0.2), (0.1, 0.2), known=(0.9, 1.0)))[1]
    assert (verdict.reversible, verdict.reversible_known) == (False, True)


def test_fantomas_table_has_the_claim_beside_the_verdict() -> None:
    results = _results((0.1, 0.2), (0.8, 0.9))
    results.methods = {"Block Permutation": results.methods["permuted"], "k-Same-Pixel": results.methods["m"]}
    names = {"permuted": "Block Permutation", "m": "k-Same-Pixel"}
    results.trials = [replace(trial, method=names.get(trial.method, trial.method)) for trial in results.trials]
    claims, counts, parameters = fantomas_tables(results)
    assert [(row["reversible?"], row["paper"]) for row in claims["rows"]] == [
        ("yes", "reversible"),
        ("yes", "not reversible"),
    ]
    assert claims["rows"][1]["best reversal"] == "0.850 [0.800, 0.900]"
    assert counts["rows"] == [
        {"": "paper", "decided": 15, "reversible": 11, "agrees with the paper": "–"},
        {"": "here", "decided": 2, "reversible": 2, "agrees with the paper": "1 of 2"},
    ]
    assert parameters["rows"][1] == {"method": "k-Same-Pixel", "here": "k 10", "paper": "k 10"}
    said = " ".join(fantomas_caveats(results))
    assert "13 of the fifteen methods were not run" in said
    assert "20, 20 and 20 people at 64 px; the paper has 200, 4500 and 300 at 224 px" in said


# On made people


def _invoke(*arguments: object) -> Any:
    return CliRunner().invoke(paper, [str(one) for one in arguments])


@pytest.mark.usefixtures("_judge")
def test_fantomas_from_end_to_end(people: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ficgan.lab.report.write_report", lambda *_, **__: [tmp_path / "report.html"])
    monkeypatch.setattr("ficgan.lab.papers.fantomas.draw_fantomas", lambda *_: [])
    command = (
        "fantomas",
        "--data",
        people,
        "--labels",
        people / "labels.csv",
        "--aligned",
        "--size",
        SIDE,
        "-o",
        tmp_path,
        "--only",
        "Solid",
        "--method",
        "Solid=solid",
        "--jobs",
        1,
        "--resamples",
        50,
        "--quiet",
    )
    done = _invoke(*command)
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["paper"] == "paper.json"
    tables = json.loads((tmp_path / "paper.json").read_text())["tables"]
    rows = {row["method"]: row for row in tables[0]["rows"]}
    permuted = rows["Block Permutation"]
    assert (permuted["reversible?"], permuted["attacker"]) == ("yes", "learn-permutation")
    assert rows["Solid"]["reversible?"] == "no"  # one colour: nothing is left to reverse
    assert rows["Solid"]["paper"] == "–"
    tasks = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").glob("*.json")}
    assert _invoke(*command).exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").glob("*.json")} == tasks


def _classifier(folder: Path) -> Path:
    """One that has learnt nothing: what it reads is arbitrary, and changes with the pixels."""
    import torch

    from ficgan.lab.attributes import AttributeNetwork

    torch.manual_seed(1)
    path = folder / "attributes.safetensors"
    AttributeClassifier(("Eyeglasses", "Bangs", "Smiling"), AttributeNetwork(3).eval()).save(path)
    return path


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return write_network(tmp_path_factory.mktemp("network"))


def _paper(people: Path, **more: Any) -> FicganPaper:
    given_ = {"labels": people / "labels.csv", "size": SIDE, "aligned": True, "limit": 8, "layers": (0, 7), "k": 50}
    return FicganPaper(people, **{**given_, "resamples": 50, **more})


@pytest.mark.usefixtures("_judge")
def test_ficgan_sweep_tables_and_resumption(
    people: Path, network: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    torch.set_num_threads(1)
    monkeypatch.delenv("published.FICGAN.models", raising=False)
    seen: list[tuple[Any, ...]] = []
    original = Ficgan.__call__

    def watched(self: Ficgan, faces: Any) -> Any:
        made = original(self, faces)
        seen.append((self.layer, self.alpha, faces, made))
        return made

    monkeypatch.setattr(Ficgan, "__call__", watched)
    monkeypatch.setattr("ficgan.lab.papers.ficgan.LEAST", 1)
    run = run_ficgan(_paper(people, attributes=_classifier(tmp_path), **network), tmp_path)
    assert [(layer, alpha) for layer, alpha, *_ in seen] == [(0, 0.0), (7, 0.0), (0, 1.0), (7, 1.0)]
    assert (run.num_layers, run.layers) == (8, (0, 7))
    reader = AttributeClassifier.load(tmp_path / "attributes.safetensors")
    for (_, _, faces, made), found in zip(seen, run.found.values(), strict=True):
        cosines, errors = [], []
        for before, after in zip(faces.images, made, strict=True):
            a, b = (Textures(16).embed(one, np.zeros((5, 2)))[0].astype(np.float64) for one in (before, after))
            cosines.append(a @ b / np.sqrt((a @ a) * (b @ b)))
            errors.append(np.mean((before.astype(np.float64) / 127.5 - after.astype(np.float64) / 127.5) ** 2))
        cosine, match = found.judges["textures"]
        assert cosine.value == pytest.approx(np.mean(cosines), abs=1e-6)
        assert match.value == np.mean(np.array(cosines) > 0.5)
        mse = found.figure("mse")
        assert mse is not None
        assert mse.value == pytest.approx(np.mean(errors), rel=1e-5)
        before, after = (reader.predict(one) >= 0.5 for one in (faces, faces.with_images(made)))
        for column, name in enumerate(reader.names):
            had = before[:, column]
            assert found.attributes[name].images == had.sum()
            assert found.attributes[name].there == (after[had, column].mean() if had.any() else None)
            assert found.attributes[name].lacking == ((~after[~had, column]).mean() if (~had).any() else None)
    assert list(seen[0][2].names) != sorted(seen[0][2].names)  # neighbours in the files are often one person

    tables = {table["title"]: table["rows"] for table in ficgan_tables(run)}
    first = tables["De-identification (Table 1)"]
    ours = [row for row in first if row["from"] == "here"]
    assert [(row["method"][:13], row["i"]) for row in ours[1:]] == [
        ("FICGAN (w_t, ", 0),
        ("FICGAN (w_t, ", 7),
        ("FICGAN + mani", 0),
        ("FICGAN + mani", 7),
    ]
    published_row = next(row for row in first if row["method"] == "FICGAN + manifold k-same")
    assert (published_row["FID"], published_row["attributes, paper"]) == (22.25, 85.44)
    by_name = {row["attribute"]: row for row in tables["Controllable attributes (Figure B)"]}
    assert set(by_name) == set(reader.names)
    assert "removed at strong de-identification" in by_name["Eyeglasses"]["paper"]
    strong = next(one for setting, one in run.found.items() if (setting.code, setting.layer) == ("w_m", 0))
    for name, row in by_name.items():
        share = strong.attributes[name].there
        assert row["kept where there, i = 0"] == ("–" if share is None else f"{100 * share:.1f}")
    assert len(tables["By layer index (Figure 4)"]) == 4
    assert [path.name for path in draw_figure_4(run, tmp_path / "figures")] == ["figure-4.png", "figure-4.svg"]
    assert str(tmp_path) not in run.results.to_json()

    seen.clear()
    again = run_ficgan(_paper(people, attributes=tmp_path / "attributes.safetensors", **network), tmp_path)
    assert not seen
    assert list(again.found.values()) == list(run.found.values())


@pytest.mark.parametrize(
    ("more", "error", "said"),
    [
        ({"checkpoint": "m.safetensors"}, UsageError, "belong together"),
        ({"limit": 1}, UsageError, "too few"),
        ({"skip": PEOPLE * EACH - 1}, InputError, "leave at least 2"),
        ({"layers": (0, 8)}, UsageError, "layers 1…8"),
        ({"part": "test"}, InputError, "no part 'test'"),
    ],
)
@pytest.mark.usefixtures("_judge")
def test_ficgan_refuses(
    people: Path, network: dict[str, str], tmp_path: Path, more: dict[str, Any], error: type[Exception], said: str
) -> None:
    files = {} if "checkpoint" in more else network
    with pytest.raises(error, match=said):
        run_ficgan(_paper(people, **more, **files), tmp_path)


def test_the_trainer_is_no_judge(people: Path, tmp_path: Path) -> None:
    trainer = tmp_path / "v.onnx"
    trainer.write_bytes(b"v")
    files = write_network(tmp_path / "model", training={"verifier_sha256": hashlib.sha256(b"v").hexdigest()})
    with pytest.raises(UsageError, match="trained against"):
        run_ficgan(_paper(people, judges=(f"onnx:{trainer}",), **files), tmp_path)


def test_a_mean_over_people_has_their_interval() -> None:
    rng = np.random.default_rng(3)
    people = np.repeat(np.arange(400), 5)
    values = rng.normal(size=400)[people] + 0.01 * rng.normal(size=2000)
    found = Sample(people, Bootstrap(2000, 0)).mean("x", values)
    assert found.value == pytest.approx(values.mean())
    # Five images of a person tell hardly more than one: σ/√400, not σ/√2000.
    assert found.low is not None
    assert found.high is not None
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * values.std() / 20, rel=0.1)


def test_obfuscation_tables_put_losses_beside_losses() -> None:
    def row(kind: str, train: str, evaluate: str, top1: float, top5: float | None) -> dict[str, Any]:
        spread = None if top5 is None else {"mean": top5, "sem": None, "n": 1}
        sides = {"network": "n", "after": {"train": train, "evaluate": evaluate}}
        return {"kind": kind, **sides, "top1": {"mean": top1, "sem": None, "n": 1}, "top5": spread}

    study = StudyResult({}, {}, tables=[{"title": "T", "columns": ["a", "b"], "rows": [{"a": 1}]}])
    study.drops = [
        row("matched", "blurred", "blurred", 0.02, None),
        row("matched", "blurred", "blurred", 0.04, 0.01),
        row("shifted", "original", "red", 0.3, 0.1),
        row("deployed", "blurred", "original", -0.005, 0.0),
    ]
    r = {"r": 0.25, "low": None, "high": None, "p": None, "n": 3}
    area = {"classes": {"top1": r, "top5": None}}
    study.correlations = [{"kind": "matched", "after": {"train": "blurred"}, "area": area, "object": None}]
    own, averages, correlations = obfuscation_tables(study)
    assert own["rows"] == [{"a": 1, "b": "–"}]
    here = {(one["drop"].split()[0], one["of"]): (one["here"], one["paper"]) for one in averages["rows"]}
    assert here["matched", "top1, blurred"] == ("3.0", "0.7")
    assert here["matched", "top5, blurred"] == ("1.0", "0.4")
    assert here["matched", "top1, overlaid"] == ("–", "0.9")
    assert here["shifted", "top5, red"] == ("10.0", "1.4")
    assert here["deployed", "top1, blurred"] == ("-0.5", "0.9")
    assert [one["here"] for one in correlations["rows"]] == ["0.25", "–", "–", "–"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("fantomas", "--data", "nowhere"), 3, "nowhere"),
        (("ficgan", "--data", "nowhere"), 3, "nowhere"),
        (("ficgan", "--data", "x", "--ablation", "no-L_neg=m.safetensors"), 2, "NAME=CHECKPOINT:BANK"),
        (("obfuscation",), 2, "--annotations"),
        (("obfuscation", "--images", "a", "--annotations", "b", "--set", "epochs"), 2, "key=value"),
        (("obfuscation", "--images", "a", "--annotations", "b", "--set", "seeds=[1"), 2, "not valid YAML"),
        (("obfuscation", "--images", "a", "--annotations", "b", "--set", "epoch=3"), 2, "did you mean 'epochs'"),
    ],
)
def test_commands_end_with_a_sentence(tmp_path: Path, arguments: tuple[str, ...], code: int, said: str) -> None:
    done = _invoke(*arguments, "-o", tmp_path)
    assert done.exit_code == code
    assert said in done.stderr
    assert "Traceback" not in done.stderr
