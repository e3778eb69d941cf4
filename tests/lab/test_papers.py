"""The papers' numbers as printed, their protocols, the rule for "reversible", and both experiments on made people."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from network_world import write_network
from PIL import Image
from texture_world import Textures, judged_by_textures, write_people

from ficgan.anonymizers import Faces
from ficgan.errors import InputError, UsageError
from ficgan.faces import get_detector
from ficgan.faces.crops import Alignment, crop
from ficgan.lab import Ficgan
from ficgan.lab import papers as published
from ficgan.lab.attributes import AttributeClassifier
from ficgan.lab.papers import fantomas, with_data
from ficgan.lab.papers import ficgan as experiment
from ficgan.lab.papers.fantomas import MethodVerdict, attacker_tables, fantomas_matrix, fantomas_tables, verdicts
from ficgan.lab.papers.ficgan import FicganPaper, draw_figure_4, ficgan_tables, run_ficgan
from ficgan.lab.readers import Reader
from ficgan.lab.results import Figure, Results, Trial

PEOPLE, EACH, SIDE = 48, 4, 64


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_people(tmp_path_factory.mktemp("people"), PEOPLE, EACH, cells=16, light=10)


@pytest.fixture
def _judge(monkeypatch: pytest.MonkeyPatch) -> None:
    judge = judged_by_textures(monkeypatch, 16)
    monkeypatch.setattr(experiment, "get_readers", lambda names, device="cpu": [judge])


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


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"metods": ["solid"]}, "did you mean 'methods'"),
        ({"extra": ["CIAGAN=externall:folder=x"]}, "did you mean external"),
        ({"extra": ["Pixelation=solid"]}, "two methods are called 'Pixelation'"),
        ({"size": 8}, "size"),
    ],
)
def test_what_cannot_work_is_one_sentence(people: Path, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said) as caught:
        fantomas_matrix(people, aligned=True, **more)
    assert "\n" not in str(caught.value)


def _trial(method: str, scenario: str, span: Any, attacker: str = "", control: str = "") -> Trial:
    """A trial whose rank-1 has this interval, and lies in its middle; None: it was refused."""
    figures = [Figure("rank-1", None, note="refused")]
    if span is not None:
        figures = [Figure("rank-1", sum(span) / 2, *span), Figure("chance", 0.05)]
        figures += [Figure("reversibility", sum(span))] if scenario.startswith("reversed") else []
    return Trial("s", method, scenario, "judge", attacker, tuple(figures), control=control)


def _results(naive: tuple[float, float], best: tuple[float, float] | None, **more: Any) -> Results:
    """Trials of one method and of the controls."""
    trials = [
        _trial("clear", "clear", more.get("clear", (0.9, 1.0)), control="ceiling"),
        _trial("clear", "constant", more.get("constant", (0.0, 0.1)), control="negative"),
        _trial("permuted", "naive", (0.0, 0.1)),
        _trial("permuted", "reversed-specialised", more.get("positive", (0.85, 0.95)), "learn-permutation"),
        _trial("m", "naive", naive),
        _trial("m", "parrot-enrol", (0.2, 0.4)),
        _trial("m", "reversed-general", (0.0, 0.02), "ridge"),
        _trial("m", "reversed-specialised", best, "made for it"),
    ]
    methods = {name: {"name": name, "settings": {}, "family": "basic"} for name in ("permuted", "m")}
    methods["permuted"]["name"] = more.get("control", "block-permutation")
    return Results("t", sets={"s": {}}, methods=methods, trials=trials)


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


def test_fantomas_table_has_the_claim_beside_the_verdict() -> None:
    results = _results((0.1, 0.2), (0.8, 0.9))
    names = {"permuted": "Block Permutation", "m": "k-Same-Pixel"}
    results.methods = {label: results.methods[name] for name, label in names.items()}
    results.trials = [replace(trial, method=names.get(trial.method, trial.method)) for trial in results.trials]
    claims, counts, _ = fantomas_tables(results)
    rows = [(row["reversible?"], row["paper"]) for row in claims["rows"]]
    assert rows == [("yes", "reversible"), ("yes", "not reversible")]
    printed, here = (list(row.values())[1:] for row in counts["rows"])
    assert (printed, here) == ([15, 11, "–"], [2, 2, "1 of 2"])


def test_each_attacker_has_its_column_and_questions_their_answers() -> None:
    results = _results((0.2, 0.4), None)
    results.trials = [
        *results.trials[:3],
        _trial("permuted", "reversed-general", (0.8, 0.9), "autoencoder:minutes=3,size=64"),
        _trial("permuted", "reversed-general", (0.1, 0.3), "autoencoder:size=64,linear=none"),
        _trial("permuted", "reversed-general", (0.2, 0.85), "pix2pix"),
        _trial("m", "naive", (0.2, 0.4)),
        _trial("m", "parrot-enrol", (0.5, 0.7)),
        _trial("m", "reversed-general", (0.3, 0.5), "pix2pix"),
        _trial("m", "reversed-specialised", (0.6, 0.8), "wiener"),
    ]
    every, layer, parrots, special = (table["rows"] for table in attacker_tables(results, verdicts(results)))
    cells = [[row[name][:4] for name in ("auto-encoder", "conv AE", "(wiener)", "parrot")] for row in every]
    assert cells == [["0.85", "0.20", "not ", "not "], ["not ", "not ", "0.70", "0.60"]]
    columns = ("moves pixels far", "auto-encoder better than conv AE?", "auto-encoder better than Pix2Pix?")
    assert [[row[name] for name in columns] for row in layer] == [["yes", "yes", "no"], ["no", *["undecided"] * 2]]
    answers = [(row["above naive?"], row["above the parrot?"]) for row in parrots]
    assert answers == [("yes", "undecided"), ("yes", "no")]
    assert [row["made for it is better?"] for row in special] == ["yes"]


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
    given_ = {"labels": people / "labels.csv", "size": SIDE, "aligned": True, "limit": 4, "layers": (0, 7), "k": 50}
    return FicganPaper(data=people, **{**given_, "resamples": 20, **more})


@pytest.mark.slow
@pytest.mark.usefixtures("_judge")
def test_ficgan_sweep_tables_and_resumption(
    people: Path, network: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, ...]] = []
    original = Ficgan.__call__

    def watched(self: Ficgan, faces: Any) -> Any:
        made = original(self, faces)
        seen.append((self.layer, self.alpha, self.psi, faces, made))
        return made

    monkeypatch.setattr(Ficgan, "__call__", watched)
    run = run_ficgan(_paper(people, attributes=_classifier(tmp_path), **network), tmp_path)
    assert [each[:3] for each in seen] == [
        (layer, *code) for code in ((0.0, 0.0), (0.0, 1.0), (1.0, 0.0)) for layer in (0, 7)
    ]
    assert (run.num_layers, run.layers) == (8, (0, 7))
    reader = AttributeClassifier.load(tmp_path / "attributes.safetensors")
    for (_, _, _, faces, made), found in zip(seen, run.found.values(), strict=True):
        a, b = (np.stack([Textures(16).embed(one, np.zeros(0))[0] for one in some]) for some in (faces.images, made))
        cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        cosine, match = found.judges["textures"]
        assert cosine.value == pytest.approx(cosines.mean(), abs=1e-6) and match.value == np.mean(cosines > 0.5)
        mse = found.figure("mse")
        error = np.mean((faces.images.astype(np.float64) - made) ** 2) / 127.5**2
        assert mse is not None and mse.value == pytest.approx(error, rel=1e-5)
        before, after = (reader.predict(one) >= 0.5 for one in (faces, faces.with_images(made)))
        for had, has, name in zip(before.T, after.T, reader.names, strict=True):
            kept = found.attributes[name]
            assert (kept.images, kept.there) == (had.sum(), has[had].mean() if had.any() else None)
            assert kept.lacking == ((~has[~had]).mean() if (~had).any() else None)

    rows = next(table["rows"] for table in ficgan_tables(run) if "Table 1" in table["title"])
    raw, scaled = (
        [float(row[name].split()[0]) for row in rows if row["from"] == "here"]
        for name in ("ID similarity", "the same, strangers at 0")
    )
    assert scaled[0] == 0 and scaled == pytest.approx([(one - raw[0]) / (1 - raw[0]) for one in raw], abs=0.01)
    assert [path.name for path in draw_figure_4(run, tmp_path / "figures")] == ["figure-4.png", "figure-4.svg"]
    assert str(tmp_path) not in run.results.to_json()
    seen.clear()
    again = run_ficgan(_paper(people, attributes=tmp_path / "attributes.safetensors", **network), tmp_path)
    assert not seen and list(again.found.values()) == list(run.found.values())


def test_the_trainer_is_no_judge(people: Path, tmp_path: Path) -> None:
    trainer = tmp_path / "v.onnx"
    trainer.write_bytes(b"v")
    files = write_network(tmp_path / "model", training={"verifier_sha256": hashlib.sha256(b"v").hexdigest()})
    with pytest.raises(UsageError, match="trained against"):
        run_ficgan(_paper(people, judges=(f"onnx:{trainer}",), **files), tmp_path)


# -- people's ratings beside reversibility, and the similarities of appendix E -----------------------------------------


ASTRONAUT = Path(__file__).parents[2] / "docs" / "astronaut.jpg"


def score(**more: Any) -> dict[str, Any]:
    figure = vars(Figure("naturalness", 0.4, 0.3, 0.5, 9, "votes"))
    rows = [{"label": label, **dict.fromkeys(fantomas.STATEMENTS, figure)} for label in ("clear", "Pixelation")]
    return {"kind": "likert", "conditions": rows, **more}


def test_ratings_stand_beside_reversibility(tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(score()))
    rated = fantomas.read_ratings(tmp_path / "s.json")
    found = [
        MethodVerdict("s", name, "judge", gain=Figure("reversibility", 0.7, 0.6, 0.8))
        for name in ("Pixelation", "Other")
    ]
    rows = fantomas.ratings_table(found, rated)["rows"]
    assert [row["method"] for row in rows] == ["clear", "Pixelation"]
    assert rows[1]["reversibility"].startswith("0.700") and rows[1]["naturalness"].startswith("0.400")
    assert [path.suffix for path in fantomas.draw_figure_14(found, rated, tmp_path)] == [".png", ".svg"]
    assert fantomas.draw_figure_14(found, {}, tmp_path) == [] and len(fantomas.ratings_table(found, {})["rows"]) == 1


@pytest.mark.parametrize(
    "tree", [[], {"kind": "same person"}, {"kind": "likert"}, score(conditions=[{"label": "x"}]), {}], ids=str
)
def test_other_files_are_no_ratings(tree: Any, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(tree))
    with pytest.raises(InputError):
        fantomas.read_ratings(tmp_path / "s.json")


def test_similarities_are_scaled_over_all_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1 − (d − least)/(most − least) of distances that the test makes up: the mean grey level under each method."""

    class Levels:
        description, reader = "made up", Reader(Textures(), "levels", "1")  # type: ignore[arg-type]

        def distances(self, clear: Faces, shown: Faces) -> dict[str, Any]:
            level = shown.images.mean(axis=(1, 2, 3))
            return {"perceptual": level, "attributes": 2 * level, "landmarks": np.full(len(level), np.nan)}

    monkeypatch.setattr(fantomas, "AppearanceReader", Levels)
    people = write_people(tmp_path / "people", 16, 4, cells=8)
    config = with_data("fantomas", people, aligned=True, size=32, judges=["dlib"])
    config = config.model_copy(update={"methods": [m for m in config.methods if m.label in ("Eye Mask", "Pixelation")]})
    alike, description = fantomas.similarities(config, tmp_path / "out")
    means = {title: row["perceptual"].value for title, row in alike.items()}
    assert all(row["attributes"].value == pytest.approx(row["perceptual"].value) for row in alike.values())
    assert 0 < means["Pixelation"] < means["Eye Mask"] < 1  # a black bar is darker: "nearer" here
    assert all(row["landmarks"].value is None for row in alike.values())
    shown = fantomas.similarity_table(alike, description)
    assert [row["method"] for row in shown["rows"]] == ["Eye Mask", "Pixelation"] and "made up" in shown["note"]


def test_points_and_attributes_of_a_face(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Moved by (4, 3) pixels its six points are 5 away; a user's reader of emotions joins the other attributes."""
    ones = onnx.numpy_helper.from_array(np.eye(64, 7, dtype=np.float32), "w")
    info = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [1, 1, 8, 8]), ("y", [1, 7]))]
    nodes = [onnx.helper.make_node("Flatten", ["x"], ["f"]), onnx.helper.make_node("MatMul", ["f", "w"], ["y"])]
    graph = onnx.helper.make_graph(nodes, "g", info[:1], info[1:], [ones])
    opset = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opset, ir_version=9), str(tmp_path / "emotion.onnx"))
    photo = np.asarray(Image.open(ASTRONAUT).convert("RGB"))
    face = get_detector("auto").detect(photo)[0]
    placed = Alignment()
    image = crop(photo, placed.matrix(face.landmarks, 160), 160)
    marks = placed.points(160).astype(np.float32)[None]
    clear = Faces(image[None], ("a",), marks)
    moved = clear.with_images(np.roll(image, (3, 4), (0, 1))[None])
    plain = fantomas.AppearanceReader()
    monkeypatch.setenv("FICGAN_MODELS", str(tmp_path))
    read = fantomas.AppearanceReader()
    assert read.distances(clear, clear)["landmarks"] == 0 == read.distances(clear, clear)["attributes"]
    assert read.distances(clear, moved)["landmarks"] == pytest.approx(5, abs=0.5)
    assert read.description != plain.description
    ethnic, sex, age, emotion = read.attributes(clear)
    assert ethnic.shape == (1, 7) and emotion.shape == (1, 7) and age.shape == (1, 1)
    assert ethnic.sum() == pytest.approx(100, abs=0.1) and (sex.sum(), emotion.sum()) == pytest.approx((100, 100))
