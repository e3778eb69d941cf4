"""A whole study of clouds on made people, with judges made for it; its configuration, sets, sweeps and figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.lib.recfunctions import repack_fields
from numpy.typing import NDArray
from PIL import Image
from sklearn.metrics import roc_auc_score

from ficgan import configs
from ficgan.config import check
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.faces import Face
from ficgan.lab.clouds import report as room
from ficgan.lab.clouds import run_cloud_study
from ficgan.lab.clouds import study as room_study
from ficgan.lab.clouds.report import METRICS, mu_privacy, needs_cloud, points, privacy, strongest, summary
from ficgan.lab.clouds.sets import CloudStudyConfig, open_clouds, person_of
from ficgan.lab.clouds.study import INVERSES, CloudStudy, PictureJudges, open_study, sweep
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import Scores
from ficgan.lab.readers import Reader
from ficgan.lab.results import Figure, Results, Trial
from ficgan.pointcloud import segmented, write_cloud
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.face import made_head
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS

FIVE = np.array([[0.3, 0.4], [0.7, 0.4], [0.5, 0.6], [0.35, 0.75], [0.65, 0.75]])


def write_people(folder: Path, people: int = 3, points: int = 1200) -> Path:
    """Two scans of each, in the canonical frame; the last has one more, called neutral."""
    folder.mkdir(parents=True, exist_ok=True)
    for person in range(people):
        for scan, mood in enumerate(("neutral", "smile")):
            head = made_head(person, points=points, scan=scan)
            write_cloud(folder / f"p{person}_{mood}.ply", head.cloud)
    return folder


class Box:
    """Finds whatever is not white, if there is enough of it."""

    name = "box"

    def detect(self, image: NDArray[np.uint8]) -> list[Face]:
        rows, columns = np.nonzero((image < 250).any(axis=2))
        if len(rows) < 200:
            return []
        box = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1], np.float32)
        size = box[2:] - box[:2]
        return [Face(box, (box[:2] + FIVE * size).astype(np.float32), 1.0)]


class Thumb:
    """Knows people by a thumbnail of the whole picture."""

    name, metric, match_threshold = "thumb", "cosine", 0.5

    def embed(self, image: NDArray[np.uint8], landmarks: Any) -> NDArray[np.float32]:
        small = cv2.resize(image, (12, 16), interpolation=cv2.INTER_AREA).astype(np.float32)
        return np.repeat((small - 200).reshape(1, -1), len(landmarks), axis=0)


def judges() -> PictureJudges:
    return PictureJudges([Reader(Thumb(), "thumb", "thumb-1")], Box())  # type: ignore[arg-type]


def install(patch: Any) -> None:
    """These judges in place of whatever a configuration names."""
    patch.setattr(PictureJudges, "open", classmethod(lambda cls, config: judges()))


def parsed(tree: dict[str, Any]) -> CloudStudyConfig:
    return check(CloudStudyConfig, tree, where="here")


METHODS = ["uniform-noise", "tapering", "merge-2-faces"]
ATTACK = {"epochs": 2, "strengths": [12], "views": 2, "size": 16, "device": "cpu"}


def study(folder: Path, **more: Any) -> CloudStudyConfig:
    tree = {"clouds": str(folder), "prepared": True, "methods": METHODS, "strengths": [1, 12], "timed": 1}
    return parsed(tree | {"costly": [12], "resamples": 50, **more})


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Any:
    root = tmp_path_factory.mktemp("clouds")
    write_people(root / "people", 4, 1500)
    with pytest.MonkeyPatch.context() as patch:
        install(patch)
        said: list[tuple[int, int, str]] = []
        config = study(root / "people", attack=ATTACK)
        yield root, run_cloud_study(config, root / "out", progress=lambda *now: said.append(now)), said


def test_every_method_at_every_strength_is_judged(ran: Any) -> None:
    _, results, said = ran
    assert len(results.methods) == len(METHODS) * 2 and results.methods_without_a_figure() == {}
    for row in points(results):
        assert 0 <= row["AUC"] <= 1 and 0 <= row["rank-1"] <= 1
        assert row["mu-privacy"] == pytest.approx(mu_privacy(row["AUC"], row["rank-1"]))
    assert said[-1][0] == said[-1][1]
    assert {figure.metric for use in results.utilities for figure in use.figures} <= set(METRICS)
    assert [row["method"] for row in summary(results)] == METHODS
    noise = [row for row in points(results) if row["method"] == "uniform-noise"]
    assert noise[0]["ssim"] > noise[1]["ssim"]


@pytest.mark.parametrize("attacker", ["untaper", "unmerge"])
def test_exact_inverses_are_read_like_clear_faces(ran: Any, attacker: str) -> None:
    results = ran[1]
    ceiling = {t.recogniser: t for t in results.trials if t.control == "ceiling"}
    back = [t for t in results.trials if t.attacker == attacker]
    assert {t.method.split()[1] for t in back} == {"1", "12"}
    for trial in back:
        clear = value_of(ceiling[trial.recogniser].figures, "rank-1")
        assert value_of(trial.figures, "rank-1") == pytest.approx(clear, abs=0.02)


def test_guesses_are_tried_on_the_others_against_everybody(ran: Any) -> None:
    results = ran[1]
    found = [trial for trial in results.trials if trial.attacker == "thesis-autoencoder"]
    assert {trial.method for trial in found} == {f"{method} 12" for method in METHODS}
    record = results.provenance["thesis_autoencoder"]
    assert record["people"] == {"learnt from or watched on": 2, "tried on": 1} and record["pairs"] == 2 * 2 * 3
    assert all(any(f.metric == "ssim of the guess" for f in trial.figures) for trial in found)


def test_what_is_there_is_not_computed_again(ran: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root, results, _ = ran
    assert Results.read(root / "out" / "results.json").trials == results.trials
    # The guesses of the auto-encoder are not kept, but it is: clouds are read for them.
    prepared, reads = CloudStudy.prepared, []
    monkeypatch.setattr(CloudStudy, "prepared", lambda self, row: reads.append(row) or prepared(self, row))
    config = study(root / "people", attack=ATTACK)
    again = run_cloud_study(config, root / "out")
    assert again.trials == results.trials and again.utilities == results.utilities
    assert len({open_study(config).clouds.scans[row].person for row in reads}) == 2  # who is guessed at, the target
    trained = "thesis_autoencoder"
    assert again.provenance[trained]["seconds"] == results.provenance[trained]["seconds"]  # read, not trained again


def test_an_image_without_a_face_is_read_where_the_clear_face_is(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, places = judges(), []
    embed = Thumb.embed
    monkeypatch.setattr(Thumb, "embed", lambda self, image, at: places.append(at) or embed(self, image, at))
    blank = np.full((515, 389, 3), 255, np.uint8)
    clear = blank.copy()
    clear[100:300, 100:300] = 0
    seen = looking.read([clear])
    record = looking.read([blank], (clear, seen))
    assert seen["found"][0] and not record["found"][0] and record["made"][0]
    np.testing.assert_allclose(places[-1][0], seen["marks"][0])
    looking.read([blank])
    assert places[-1][0][:, 1].max() > 300  # the whole image


def test_a_broken_scan_fails_the_study_and_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_people(tmp_path / "people", 3, 400)
    (folder / "p0_smile.ply").write_bytes(b"ply\nformat ascii 1.0\nend_header\n")
    install(monkeypatch)
    with pytest.raises(FicganError, match="p0"):
        run_cloud_study(study(folder, methods=["tapering"]), tmp_path / "out")


@pytest.mark.slow
def test_photos_are_enrolled_in_place_of_projections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch)
    monkeypatch.setattr("ficgan.lab.clouds.study.get_detector", lambda name: Box())
    folder = write_people(tmp_path / "people", 3, 2500)
    config = study(folder, methods=["uniform-noise"], strengths=[1])
    drawn = open_study(config)
    ranks = []
    for number, names in enumerate((("p0", "p1", "p2"), ("p1", "p2", "p0"))):
        photos = tmp_path / str(number)
        for row, person in zip(drawn.clouds.gallery, names, strict=True):
            (photos / person).mkdir(parents=True)
            Image.fromarray(drawn.picture(row)).save(photos / person / "a.png")
        results = run_cloud_study(config.model_copy(update={"photos": photos}), tmp_path / f"out{number}")
        facts = results.sets["people"]
        assert facts["gallery_kind"] == "photos" and (facts["gallery"], facts["probes"]) == (3, 6)
        found = (t for t in results.trials if t.recogniser == "thumb" and t.scenario in ("clear", "naive"))
        ranks.append([value_of(trial.figures, "rank-1") for trial in found])
    assert min(ranks[0]) > 0.8 and max(ranks[1]) < 0.2


# -- whose clouds are in a study ---------------------------------------------------------------------------------------


def prepared_set(folder: Path, **more: object) -> CloudStudyConfig:
    return parsed({"clouds": str(folder), "prepared": True, **more})


def test_the_thesis_protocol_is_packaged() -> None:
    config = CloudStudyConfig.read("pointcloud")
    assert config.synthetic is not None and config.synthetic.people == 200
    assert len(config.methods) * len(config.strengths) == 210
    assert "pointcloud-small" in configs.names("eval") and CloudStudyConfig.read("pointcloud-small").title


@pytest.mark.parametrize(
    ("tree", "key"),
    [
        ({}, "clouds"),
        ({"clouds": "a", "synthetic": {}}, "clouds"),
        ({"clouds": "a", "degres": [1]}, "strengths"),
        ({"synthetic": {"peopel": 3}}, "synthetic.people"),
        ({"clouds": "a", "strengths": [0]}, "strengths"),
        ({"clouds": "a", "strengths": [3, 3]}, "strengths"),
        ({"clouds": "a", "methods": ["smooth-kn"]}, "smooth-knn"),
        ({"clouds": "a", "strengths": [2], "attack": {"strengths": [3]}}, "attack.strengths"),
    ],
)
def test_what_cannot_work_is_one_sentence(tree: dict[str, Any], key: str) -> None:
    with pytest.raises(UsageError, match=key) as caught:
        parsed(tree)
    assert "\n" not in str(caught.value)


def test_names_tell_people_and_expressions() -> None:
    names = {"f1_eyes_closed": ("f1", "eyes_closed"), "set/anna/neutral": ("anna", "neutral"), "anna": ("anna", "")}
    assert {name: person_of(name) for name in names} == names


def test_nobody_is_compared_with_their_own_scan(tmp_path: Path) -> None:
    clouds = open_clouds(prepared_set(write_people(tmp_path, 4, 100)))
    assert clouds.target is not None and not set(clouds.gallery) & set(clouds.probes)
    away = clouds.scans[clouds.target].person
    assert away not in clouds.people and len(clouds.people) == 3
    enrolled = [clouds.scans[row].person for row in clouds.gallery]
    assert enrolled == sorted(set(enrolled)) and all(clouds.scans[r].expression == "neutral" for r in clouds.gallery)
    assert {clouds.scans[row].person for row in clouds.probes} <= set(enrolled)


def test_the_target_is_whom_one_can_spare(tmp_path: Path) -> None:
    write_people(tmp_path, 3, 100)
    (tmp_path / "p1_smile.ply").unlink()
    clouds = open_clouds(prepared_set(tmp_path))
    assert clouds.target is not None and clouds.scans[clouds.target].person == "p1"
    assert open_clouds(prepared_set(tmp_path, methods=["pmp"])).target is None


def test_made_people_have_two_scans_each_and_one_is_to_spare() -> None:
    first, again, other = (open_clouds(parsed({"synthetic": {"people": 3, "seed": seed}})) for seed in (0, 0, 1))
    assert len(first.scans) == 8 and len(first.people) == 3 and len(first.probes) == 3
    assert first.facts() == again.facts() != other.facts() and first.facts()["kind"] == "made heads"


# -- figures -----------------------------------------------------------------------------------------------------------


FIELDS = "made:?, found:?, box:4f4, marks:(5,2)f4, ssim:f4, features:6f2"
DTYPE: Any = np.dtype([tuple(one.split(":")) for one in FIELDS.split(", ")])  # type: ignore[misc]
FEW = Bootstrap(200, 0)


def value_of(figures: tuple[Figure, ...], metric: str) -> float | None:
    return next((figure.value for figure in figures if figure.metric == metric), None)


def records(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    out = np.zeros(count, DTYPE)
    out["made"] = out["found"] = True
    out["box"] = [100, 120, 200, 260]
    out["marks"] = rng.uniform(100, 200, (5, 2))
    out["ssim"] = 1
    out["features"] = rng.standard_normal((count, 6))
    return out


def utility(clear: Any, made: Any, seconds: Any = 0.5) -> Any:
    times = np.broadcast_to(np.asarray(seconds, float), len(clear))
    return room.utility(clear, made, times, Sample(np.arange(len(clear)), FEW, "clouds"))


@pytest.mark.parametrize(
    ("area", "first", "expected"),
    [(1.0, 1.0, 0.0), (0.5, 0.0, 1.0), (0.75, 0.5, 0.5), (0.4, 0.0, 1.0), (0.6, 0.1, 0.85)],
)
def test_mean_privacy_is_equation_5_1(area: float, first: float, expected: float) -> None:
    assert mu_privacy(area, first) == pytest.approx(expected)


@settings(max_examples=6)
@given(st.integers(3, 12), st.integers(0, 1000))
def test_privacy_is_that_of_all_pairs(people: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    gallery, noise = rng.standard_normal((2, people, 8))
    probes, who = gallery + 1.5 * noise, np.arange(people)
    figures = privacy(Scores.compare(probes, gallery, who, who, metric="cosine"), None, FEW)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (probes, gallery)]
    matrix = unit[0] @ unit[1].T
    area = roc_auc_score(np.eye(people).ravel(), matrix.ravel())
    first = float(np.mean([row.argmax() == i for i, row in enumerate(matrix)]))
    assert value_of(figures, "AUC") == pytest.approx(area) and value_of(figures, "rank-1") == pytest.approx(first)
    assert value_of(figures, "mu-privacy") == pytest.approx(1 - (max(0, 2 * (area - 0.5)) + first) / 2)


def test_detection_asks_for_the_place() -> None:
    clear, made = records(8), records(8)
    made["found"][0] = False  # lost
    made["box"][0] = np.nan
    made["box"][1] = [150, 120, 250, 260]  # half beside: IoU 1/3
    made["box"][2] = [110, 120, 210, 260]  # a tenth beside: IoU 9/11
    clear["found"][3] = False  # nothing to compare with
    left = utility(clear, made)
    assert value_of(left, "delta-detection") == pytest.approx(5 / 8)
    assert value_of(left, "detection-drop") == pytest.approx(7 / 8 - 5 / 8)
    assert value_of(left, "box-iou") == pytest.approx((0 + 1 / 3 + 9 / 11 + 4) / 7)
    assert value_of(left, "mu-utility") == pytest.approx((5 / 8 + 1) / 2)


def test_a_lost_face_is_forty_pixels_away() -> None:
    clear, made = records(5), records(5)
    made["marks"] = clear["marks"] + np.array([3, 4], np.float32)
    made["found"][:2] = False
    made["marks"][:2] = np.nan
    clear["found"][4] = False
    assert value_of(utility(clear, made), "landmark-distance") == pytest.approx((5 + 40) / 2)


def test_equal_projections_are_no_distance_apart_and_times_are_of_some() -> None:
    clear = records(6)
    left = utility(clear, clear, [0.1, 0.3, *[np.nan] * 4])
    assert value_of(left, "fid") == pytest.approx(0, abs=1e-4)
    assert value_of(left, "delta-detection") == value_of(left, "mu-utility") == 1
    assert value_of(left, "seconds") == pytest.approx(0.2) and value_of(left, "seconds-sd") == pytest.approx(0.1)
    assert value_of(utility(clear, clear, np.nan), "seconds") is None
    assert {one.metric for one in left} <= set(METRICS)
    bare = repack_fields(clear[["made", "found", "box", "marks", "ssim"]])
    assert value_of(utility(bare, bare), "fid") is None
    squeezed = np.zeros(6, [*bare.dtype.descr, ("features", "f2", (512,))])
    assert value_of(utility(squeezed, squeezed), "fd-squeezenet") == 0


def test_the_headline_is_the_strongest_attacker() -> None:
    def trial(attacker: str, mean: float, control: str = "", people: int = 40) -> Trial:
        figures = (Figure("mu-privacy", mean), Figure("AUC", 0.5), Figure("rank-1", 0.5, n=people))
        return Trial("s", "pmp 1", "naive", "r", attacker, figures, control=control)

    results = Results("t", sets={"s": {"probe_people": 40}})
    results.trials = [trial("", 0.9), trial("a", 0.4), trial("d", 0.0, control="ceiling")]
    results.trials.append(replace(trial("lucky", 0.0, people=2), scenario="reversed"))
    found = strongest(results, "pmp 1")
    assert found is not None and found.attacker == "a" and strongest(results, "pmp 2") is None
    cloud = [Trial("s", "m 1", "inverse", "r", attacker) for attacker in INVERSES]
    assert all(map(needs_cloud, [*cloud, Trial("s", "m 1", "naive", "depth (3D)")])) and not needs_cloud(found)


# -- treatments -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def faces() -> tuple[Cloud, Cloud]:
    first, other = (segmented(made_head(seed, points=1500).cloud)[0] for seed in (1, 2))
    return first, other


@pytest.mark.parametrize("method", list(CLOUD_ANONYMIZERS))
def test_a_sweep_is_the_method_strength_by_strength(method: str, faces: tuple[Cloud, Cloud]) -> None:
    cloud, other = faces
    strengths = (1, 9, 20)
    every = [CLOUD_ANONYMIZERS[method].of_strength(strength, seed=3).with_target(other) for strength in strengths]
    for one, made in sweep(every, cloud, "a"):
        try:
            plain = one(cloud, name="a")
        except InputError:
            assert made is None
            continue
        assert made is not None and made.colors is not None and plain.colors is not None
        np.testing.assert_allclose(made.points, plain.points, atol=1e-12)
        assert np.abs(made.colors.astype(int) - plain.colors).max() <= 1
    smoothers = [CLOUD_ANONYMIZERS["smooth-knn"].of_strength(strength) for strength in (35, 1)]
    assert sweep(smoothers, cloud.take(np.arange(100)), "a")[0][1] is None


# -- the auto-encoder -------------------------------------------------------------------------------------------------


def test_nobody_is_learnt_from_and_tried() -> None:
    people = np.repeat(np.arange(200), 2)
    taught, tried = room_study.split(people, 0)
    assert len(taught) == 180 and len(tried) == 20 and not set(taught) & set(tried)
    assert list(room_study.split(people, 1)[1]) != list(tried)
    with pytest.raises(UsageError):
        room_study.split(np.array([0, 0, 1]), 0)
