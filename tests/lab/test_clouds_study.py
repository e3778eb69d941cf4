"""A whole study of clouds on people made of formulas, with a detector and a recogniser made for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import clouds_world
import numpy as np
import pytest
from PIL import Image

from ficgan.errors import InputError
from ficgan.lab.clouds import CloudStudyConfig, report, run_cloud_study
from ficgan.lab.clouds.report import correlations, write_cloud_report
from ficgan.lab.clouds.study import CloudStudy, Template, open_study
from ficgan.lab.clouds.tables import METRICS, controls, mu_privacy, needs_cloud, points, strongest, summary, value_of
from ficgan.lab.clouds.treatments import INVERSES, inverses
from ficgan.lab.results import Figure, Results, Trial
from ficgan.pointcloud import Cloud, read_cloud, write_cloud

METHODS = ["uniform-noise", "tapering", "merge-2-faces"]
ATTACK = {
    "epochs": 2,
    "degrees": [12],
    "views": 2,
    "size": 16,
    "device": "cpu",
    "methods": ["uniform-noise", "tapering"],
}


def study(folder: Path, **more: Any) -> CloudStudyConfig:
    tree = {
        "clouds": str(folder),
        "prepared": True,
        "methods": METHODS,
        "degrees": [1, 12, 30],
        "timed": 1,
        "costly": [12],
        "geometry": {"recognisers": ["depth"]},
        "pictures": 1,
        "resamples": 50,
        **more,
    }
    return CloudStudyConfig.parse(tree)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("clouds")
    clouds_world.write_people(root / "people", 4, 700)
    with pytest.MonkeyPatch.context() as patch:
        clouds_world.install(patch)
        told: list[tuple[int, int, str]] = []
        results = run_cloud_study(
            study(root / "people", attack=ATTACK), root / "out", progress=lambda *one: told.append(one)
        )
        yield root, results, told


def test_every_method_at_every_degree_is_judged(ran: Any) -> None:
    _, results, told = ran
    assert len(results.methods) == len(METHODS) * 3
    assert results.methods_without_a_figure() == {}
    for row in points(results):
        assert 0 <= row["AUC"] <= 1 and 0 <= row["rank-1"] <= 1
        assert row["mu-privacy"] == pytest.approx(mu_privacy(row["AUC"], row["rank-1"]))
        assert (row["chamfer"] is not None) if row["degree"] == 12 else row.get("chamfer") is None
    assert told[-1][0] == told[-1][1]
    assert {one.metric for use in results.utilities for one in use.figures} <= set(METRICS)


def test_controls_come_out_as_they_must(ran: Any) -> None:
    rows = controls(ran[1])
    assert {row["control"] for row in rows} == {
        "clear",
        "constant",
        "what lies around the face",
        "tapering 12",
        "merge-2-faces 12",
    }
    assert all(row["holds"] for row in rows if row["judge"].endswith("thumb") and row["holds"] is not None)
    around = [row for row in rows if row["holds"] is None]
    assert [row["judge"] for row in around] == ["thumb", "parrot + thumb"]


def test_parrots_enrol_what_the_method_makes_of_the_gallery(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root, results, _ = ran
    tried = {(t.method, t.attacker, t.recogniser) for t in results.trials if t.scenario == "parrot"}
    whose = {(f"{method} 12", "parrot") for method in METHODS} | {("uniform-noise 12", "parrot, denoise")}
    assert tried == {(*one, reader) for one in whose for reader in ("thumb", "depth (3D)")}
    clouds_world.install(monkeypatch)
    opened = open_study(study(root / "people"), root / "out")
    rows, found = opened.clouds.gallery, []
    for probe in opened.clouds.probes:
        seen = [
            opened.picture_of(r, next(iter(opened.swept(r, "uniform-noise", [12])))[1], "uniform-noise", 12)
            for r in (probe, *rows)
        ]
        mine, *others = [clouds_world.Thumb().embed(one, np.zeros((1, 5, 2)))[0].astype(float) for one in seen]
        alike = [mine @ one / np.linalg.norm(mine) / np.linalg.norm(one) for one in others]
        found.append(opened.clouds.scans[rows[int(np.argmax(alike))]].person == opened.clouds.scans[probe].person)
    one = next(t for t in results.trials if (t.method, t.attacker) == ("uniform-noise 12", "parrot"))
    assert value_of(one.figures, "rank-1") == pytest.approx(np.mean(found))


def test_who_needs_the_cloud_attacks_no_picture() -> None:
    def one(attacker: str, reader: str = "r") -> Trial:
        return Trial("s", "m 1", "inverse", reader, attacker)

    assert not any(needs_cloud(one(name)) for name in ("", "parrot", "thesis-autoencoder"))
    assert all(needs_cloud(one(name)) for name in (*INVERSES, "parrot, denoise"))
    assert needs_cloud(one("", "depth (3D)"))


def test_noise_hides_more_with_the_degree(ran: Any) -> None:
    noise = [row for row in points(ran[1]) if row["method"] == "uniform-noise"]
    assert noise[0]["ssim"] > noise[1]["ssim"] > noise[2]["ssim"]
    assert noise[0]["mu-privacy"] <= noise[2]["mu-privacy"]


def test_tapering_is_read_after_its_inverse(ran: Any) -> None:
    results = ran[1]
    inverse = [one for one in results.trials if one.attacker == "untaper"]
    assert {one.method for one in inverse} >= {"tapering 1", "tapering 12", "tapering 30"}
    clear = next(value_of(t.figures, "rank-1") for t in results.trials if t.control == "ceiling")
    assert (
        value_of(next(t for t in inverse if t.method == "tapering 12" and t.recogniser == "thumb").figures, "rank-1")
        == clear
    )


def test_tapering_is_read_after_a_guess_too(ran: Any) -> None:
    guessed = {one.method for one in ran[1].trials if one.attacker == "guess_taper"}
    assert guessed == {"tapering 1", "tapering 12", "tapering 30"}


def test_who_has_the_target_reads_merged_faces_like_clear_ones(ran: Any) -> None:
    results = ran[1]
    ceiling = {t.recogniser: t for t in results.trials if t.control == "ceiling"}
    back = [one for one in results.trials if one.attacker == "unmerge"]
    assert {one.method for one in back} == {"merge-2-faces 1", "merge-2-faces 12", "merge-2-faces 30"}
    for one in back:
        for metric in ("AUC", "rank-1"):
            clear = value_of(ceiling[one.recogniser].figures, metric)
            assert value_of(one.figures, metric) == pytest.approx(clear, abs=0.02)
    alone = {t.method: t for t in results.trials if t.scenario == "naive" and t.recogniser == "thumb"}
    read = {t.method: t for t in back if t.recogniser == "thumb"}
    name = "merge-2-faces 30"
    assert value_of(alone[name].figures, "mu-privacy") > value_of(read[name].figures, "mu-privacy")
    worst = next(row for row in points(results) if (row["method"], row["degree"]) == ("merge-2-faces", 30))
    assert worst["mu-privacy (cloud)"] <= value_of(read[name].figures, "mu-privacy")
    assert worst["mu-privacy"] == value_of(alone[name].figures, "mu-privacy")
    assert worst["mu-privacy low"] <= worst["mu-privacy"] <= worst["mu-privacy high"]


def test_guesses_are_tried_on_the_others_against_everybody(ran: Any) -> None:
    results = ran[1]
    found = [one for one in results.trials if one.attacker == "thesis-autoencoder"]
    assert {one.method for one in found} == {"uniform-noise 12", "tapering 12"}
    record = results.provenance["thesis_autoencoder"]
    assert record["people"] == {"learnt from or watched on": 2, "tried on": 1}
    assert record["pairs"] == 2 * 2 * 2
    assert all(any(f.metric == "ssim of the guess" for f in one.figures) for one in found)
    assert any("did not learn from" in line for line in results.caveats)


def test_inverses_are_for_whom_they_are_asked() -> None:
    assert inverses(study(Path("x"))) == ["untaper", "guess_taper", "unmerge", "denoise"]
    assert inverses(study(Path("x")), "tapering") == ["untaper", "guess_taper"]
    assert inverses(study(Path("x")), alike=True) == ["denoise"]
    assert inverses(study(Path("x"), inverses=False)) == []
    assert inverses(study(Path("x"), methods=["pmp", "merge-2-faces"])) == ["unmerge"]


def test_what_is_there_is_not_computed_again(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root, results, _ = ran
    # The guesses of the auto-encoder are not kept, but it is: clouds are read for them.
    kept, reads = CloudStudy.prepared, []
    monkeypatch.setattr(CloudStudy, "prepared", lambda self, row: reads.append(row) or kept(self, row))
    monkeypatch.setattr("ficgan.lab.clouds._pictures", lambda opened, out: results.pictures)
    again = run_cloud_study(study(root / "people", attack=ATTACK), root / "out")
    assert again.trials == results.trials and again.utilities == results.utilities
    clouds = open_study(study(root / "people", attack=ATTACK), root / "out").clouds
    tried = {one.n for t in again.trials if t.scenario == "reversed" for one in t.figures if one.metric == "rank-1"}
    assert len({clouds.scans[row].person for row in reads}) == 1 and tried == {1}
    trained = "thesis_autoencoder"
    assert again.provenance[trained]["seconds"] == results.provenance[trained]["seconds"]  # read, not trained again


def test_every_plot_is_drawn(ran: Any) -> None:
    from matplotlib.figure import Figure as Canvas

    rows = points(ran[1])
    assert [stem for stem, (_, size, draw) in report.PLOTS.items() if not draw(ran[1], rows, Canvas(size))] == []
    nothing = Results("t")
    assert [stem for stem, (_, size, draw) in report.PLOTS.items() if draw(nothing, [], Canvas(size))] == []


def test_the_page_stands_alone(ran: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, results, _ = ran
    few = {"correlations": report.PLOTS["correlations"]}
    monkeypatch.setattr(report, "PLOTS", few)  # to draw all of them takes ten seconds
    read = Results.read(root / "out" / "results.json")
    assert read.trials == results.trials
    page = write_cloud_report(read, tmp_path, pictures=root / "out")[0].read_text()
    assert "http" not in page.replace("http://www.w3.org", "")
    assert str(root) not in page and all(line in page for line in ("Read first", "Controls", "smoke test"))
    assert page.count("data:image/png") == len(few) + len(METHODS)
    for name in ("points", "summary", "attackers", "space", "controls", "figures"):
        assert (tmp_path / "tables" / f"{name}.csv").stat().st_size
    with pytest.raises(InputError, match="not beside"):
        write_cloud_report(read, tmp_path / "other")


def test_the_headline_is_the_strongest_attacker() -> None:
    def one(attacker: str, mean: float, name: str = "s", control: str = "", people: int = 40) -> Trial:
        figures = (Figure("mu-privacy", mean), Figure("AUC", 0.5), Figure("rank-1", 0.5, n=people))
        return Trial(name, "pmp 1", "naive", "r", attacker, figures, control=control)

    results = Results("t", sets={"s": {"probe_people": 40}, "part": {"probe_people": 3}})
    results.trials = [
        one("", 0.9),
        one("a", 0.4),
        one("b", 0.6),
        one("c", 0.1, "part"),
        one("d", 0.0, control="ceiling"),
    ]
    results.trials.append(replace(one("lucky", 0.0, people=2), scenario="reversed"))
    found = strongest(results, "pmp 1")
    assert found is not None and found.attacker == "a"
    assert strongest(results, "pmp 2") is None


def test_correlations_are_pearsons() -> None:
    rng = np.random.default_rng(0)
    table = rng.standard_normal((20, 2))
    rows = [{"AUC": a, "ssim": a + b, "rank-1": None, "delta-detection": 1.0} for a, b in table]
    names, matrix = correlations(rows)
    assert names == ["AUC", "ssim"]
    assert matrix[0, 1] == pytest.approx(np.corrcoef(table[:, 0], table.sum(1))[0, 1])
    assert correlations([])[0] == []


def test_methods_are_summed_up_where_they_hide_enough(ran: Any) -> None:
    rows = summary(ran[1])
    assert [row["method"] for row in rows] == METHODS


def test_an_image_without_a_face_is_read_where_faces_are() -> None:
    config = study(Path("x"))
    box, marks = np.array([10, 10, 50, 60], np.float32), np.full((5, 2), 20, np.float32)
    looked = clouds_world.judges(config)
    record = looked.read([np.full((515, 389, 3), 255, np.uint8)], template=Template(box, marks))
    assert not record["found"][0] and record["made"][0]
    assert (looked.where_lost(np.zeros((515, 389, 3), np.uint8), Template(box, marks)) == 20).all()
    whole = clouds_world.judges(study(Path("x"), undetected="whole"))
    place = whole.where_lost(np.zeros((515, 389, 3), np.uint8), Template(box, marks))
    assert place[:, 1].max() > 300 and place[:, 0].mean() == pytest.approx(389 / 2, abs=5)


def test_a_broken_scan_fails_the_study_and_is_named(tmp_path: Path) -> None:
    folder = clouds_world.write_people(tmp_path / "people", 3, 400)
    broken = folder / "p0_smile.ply"
    broken.write_bytes(b"ply\nformat ascii 1.0\nend_header\n")
    with pytest.MonkeyPatch.context() as patch:
        clouds_world.install(patch)
        with pytest.raises(Exception, match="p0"):
            run_cloud_study(study(folder, methods=["tapering"], geometry=None), tmp_path / "out")


@pytest.mark.parametrize(
    ("names", "right"), [(("p0", "p1", "p2"), 1.0), pytest.param(("p1", "p2", "p0"), 0.0, marks=pytest.mark.slow)]
)
def test_photos_are_enrolled_in_place_of_projections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], right: float
) -> None:
    clouds_world.install(monkeypatch)
    monkeypatch.setattr("ficgan.faces.get_detector", lambda name: clouds_world.Box())
    folder = clouds_world.write_people(tmp_path / "people", 3, 700)
    config = study(folder, methods=["uniform-noise"], degrees=[1], geometry=None, pictures=0)
    drawn = open_study(config, tmp_path / "drawn")
    for row, person in zip(drawn.clouds.gallery, names, strict=True):
        (tmp_path / "photos" / person).mkdir(parents=True)
        Image.fromarray(drawn.picture(row)).save(tmp_path / "photos" / person / "a.png")
    results = run_cloud_study(config.model_copy(update={"photos": tmp_path / "photos"}), tmp_path / "out")
    facts = results.sets["people"]
    assert facts["gallery_kind"] == "photos" and (facts["gallery"], facts["probes"]) == (3, 6)
    for found in results.trials:
        if found.recogniser == "thumb" and found.scenario in ("clear", "naive"):
            assert value_of(found.figures, "rank-1") == right


@pytest.mark.parametrize("shade", ["before", "after"])
def test_light_is_of_the_clear_shape_or_of_what_is_left(
    tmp_path: Path, shade: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clouds_world.install(monkeypatch)
    folder = clouds_world.write_people(tmp_path, 2, 700)
    for path in folder.iterdir():
        plain = Cloud(read_cloud(path).points)
        path.unlink()
        write_cloud(path, plain)
    opened = open_study(study(folder, methods=["uniform-noise"], shade=shade, geometry=None), tmp_path / "out")
    row = opened.clouds.probes[0]
    (_, made), (_, more) = opened.swept(row, "uniform-noise", [1, 35])
    assert made is not None and more is not None
    if shade == "before":  # noise moves points, not what they look like
        assert made.colors is not None and more.colors is not None
        np.testing.assert_array_equal(made.colors, more.colors)
    else:
        assert made.colors is None and more.colors is None
        assert opened.picture(row, more).min() < 200  # and yet it is drawn, with light
