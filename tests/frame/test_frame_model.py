"""The embedded appearance model on a photo: new faces where a face can be read, a mask with its reason elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from frame_world import apart
from PIL import Image as Pillow
from safetensors.numpy import load_file

from ficgan import pretrained
from ficgan.arrays import Image, file_header, write_arrays
from ficgan.cli.evaluate import evaluate
from ficgan.deidentify import Deidentifier
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.face_model import ModelInfo, read_kinds
from ficgan.faces import Face, crop
from ficgan.files import file_digest
from ficgan.frame import LIDS
from ficgan.frame.file import BESIDE, FrameConfig, load_appearance, save_appearance
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.identity.kind import UNKNOWN
from ficgan.lab.papers import TITLE
from ficgan.lab.papers.ficgan import SIDE
from ficgan.policy import Attempt, Result

MODEL, BANK = pretrained.path("model"), pretrained.path("bank")


def test_a_new_face_and_nothing_else_changes(engine: Deidentifier, result: Result, photo: Image) -> None:
    kept = photo.copy()
    again = engine(photo, key="a")
    np.testing.assert_array_equal(photo, kept)
    np.testing.assert_array_equal(again.image, result.image)
    (record,) = result.faces
    assert (record.action, record.layer, record.k, record.covered, record.note) == ("generated", 0, 3000, True, "")
    assert record.psi == engine.model.auto_psi(1) > 0, "with the plain mean all faces are one"
    np.testing.assert_array_equal(result.image[result.mask == 0], photo[result.mask == 0])
    assert apart(result.image, photo, result.mask) > 10
    assert 0.05 < (result.mask > 0.5).mean() < 0.3
    assert result.audit["checkpoint"] == file_digest(MODEL) and result.audit["precision"] == "float32"
    assert result.audit["layers"]["source"] == [] and "notes" not in result.audit


@pytest.mark.parametrize(("factor", "fine"), [(1.0, True), (0.5, True), (0.3, False)])
def test_faces_of_fifty_pixels_and_more_get_fine_detail(
    engine: Deidentifier, photo: Image, face: Face, factor: float, fine: bool
) -> None:
    small = np.asarray(Pillow.fromarray(photo).resize([round(factor * side) for side in photo.shape[1::-1]]))
    reduced = replace(face, box=tuple(factor * side for side in face.box), landmarks=factor * face.landmarks)
    look = engine.face_model.see([(small, reduced)])[0].place.look
    assert (look.fine > 0, look.finest > 0) == (fine, fine) and 80 < np.ptp(face.box[::2]) < 150


def test_layers_keep_more_and_more_of_the_source(engine: Deidentifier, photo: Image) -> None:
    last = engine.model.num_layers - 1
    near = [apart((out := engine(photo, key="a", layer=i)).image, photo, out.mask) for i in (0, last // 2, last)]
    assert near[0] > near[1] > near[2] > 0
    assert engine(photo, layer=last).audit["layers"]["source"] == list(range(1, last + 1))
    with pytest.raises(UsageError, match="L = "):
        engine(photo, layer=last + 1)


def test_a_smile_stays_and_other_numbers_get_their_noise() -> None:
    config, rng = FrameConfig(), np.random.default_rng(0)
    rest = np.array(config.rest)
    own = rng.normal(0, 0.5, (4000, 6)).astype(np.float32)
    noise = 0.5 * rng.standard_normal(own.shape).astype(np.float32) * config.jitter
    published, reads = config.shown_numbers(own, noise), np.array(config.smile)
    closed = config.closing[-1]
    assert published.dtype == np.float32 and closed - 1e-3 <= published.min() and published.max() <= config.limit
    less, more = config.smile_shown
    smile = own @ reads * np.where(own @ reads > 0, more, less) + config.smile_jitter * noise @ reads
    inside = (np.abs(published).max(1) < config.limit) & (own[:, LIDS] > config.closing[0])
    np.testing.assert_allclose((published @ reads)[inside], smile[inside], atol=1e-4)
    # The smile aside, every number is damped and noisy as the config says.
    aside = np.eye(6) - np.outer(reads, config.smiling) / (reads @ np.array(config.smiling))
    damped = rest + (own - rest) * config.shown + noise
    np.testing.assert_allclose((published @ aside)[inside], (damped @ aside)[inside], atol=1e-4)
    assert np.corrcoef(published[:, 2], own[:, 2])[0, 1] < 0.97
    blink = np.zeros((9, 6), np.float32)
    blink[:, LIDS] = np.linspace(0.5, -3, 9)
    lids = config.shown_numbers(blink, np.full(6, 0.4))[:, LIDS]
    assert (np.diff(lids) <= 0).all() and lids[-1] == np.float32(closed)


@pytest.mark.slow
def test_attributes_of_the_people_averaged_show(make: Callable[..., Deidentifier], photo: Image) -> None:
    read: dict[str, float] = {}
    made: dict[str, list[Result]] = {}
    for wish in ("Male", "Female"):
        engine = make(attributes=wish, k=1000)
        made[wish] = [engine(photo, key=str(number)) for number in range(4)]
        assert made[wish][0].audit["attributes"] == wish
        model = engine.model
        assert isinstance(model, FrameModel)
        (found,) = engine.detector.detect(photo)
        readings = model.see([(each.image, found) for each in made[wish]])
        column = model.model.code_size + model.model.names.index("Male")
        read[wish] = float(np.mean([reading.z_id[column] for reading in readings]))
    for man, woman in zip(made["Male"], made["Female"], strict=True):
        assert apart(man.image, woman.image, man.mask) > 3
    assert read["Male"] > read["Female"] + 0.5


@pytest.mark.slow
def test_swap_takes_the_exemplars_own_code(make: Callable[..., Deidentifier], result: Result, photo: Image) -> None:
    swap = make(swap=True, exemplar=photo)(photo, key="a")
    (record,) = swap.faces
    assert (record.action, record.k, record.members_digest) == ("generated", None, None)
    assert swap.audit["target"] == "swap"
    half = make(exemplar=photo, alpha=0.5)(photo, key="a")
    assert half.audit["target"] == "exemplar" and half.faces[0].k == 3000
    near = [apart(each.image, photo, each.mask) for each in (result, half, swap)]
    assert near[0] > near[2] and near[1] > near[2], "the exemplar is the source itself"
    with pytest.raises(UsageError, match="exemplar"):
        make(swap=True)


def test_an_exemplar_that_cannot_be_read_is_refused(make: Callable[..., Deidentifier]) -> None:
    with pytest.raises(InputError, match="exemplar's face cannot be used: its shape cannot be read"):
        make(swap=True, exemplar=static())


def static() -> Image:
    return np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)


def test_what_is_no_face_is_masked_and_the_audit_says_why(engine: Deidentifier) -> None:
    out = engine(static())
    (record,) = out.faces
    assert (record.action, record.covered, record.k) == ("masked", True, None)
    (note,) = out.audit["notes"]
    assert note == "1 face was masked: its shape cannot be read reliably"
    assert len(np.unique(out.image[out.mask == 1], axis=0)) == 1, "something of it shows"


def test_a_head_turned_away_is_not_made(model: FrameModel, photo: Image, face: Face) -> None:
    strict = replace(model.config, most_yaw=0.0)
    frame = FrameModel(model.model, strict, model.bank, network=model.network, mesh=model.mesh, k=100)
    assert "the head is turned" in frame.see([(photo, face)])[0].problem


def test_landmarks_that_span_no_face_are_a_problem_not_an_error(model: FrameModel, photo: Image, face: Face) -> None:
    """Tracks of films have such faces; those beside them are read all the same."""
    nowhere = replace(face, landmarks=np.zeros((5, 2), np.float32))
    lost = replace(face, landmarks=np.full((5, 2), np.nan, np.float32))
    readings = model.see([(photo, nowhere), (photo, face), (photo, lost)])
    assert [bool(reading.problem) for reading in readings] == [True, False, True]
    assert readings[0].problem == "its landmarks are not those of a face"
    np.testing.assert_array_equal(readings[1].z_id, model.see([(photo, face)])[0].z_id)
    assert not model.moment(readings[0]).any() and model.moment(readings[0]).shape == model.moment(readings[1]).shape


def test_aligned_crops(model: FrameModel, engine: Deidentifier, photo: Image, face: Face) -> None:
    size = model.resolution
    noise = np.random.default_rng(1).integers(0, 256, (size, size, 3), np.uint8)
    crops = np.stack([crop(photo, engine.alignment.matrix(face.landmarks, size), size), noise])
    out, record = engine.aligned(crops, keys=["a", "b"])
    assert [each.action for each in record] == ["generated", "masked"]
    assert apart(out[0], crops[0], np.ones(out[0].shape[:2])) > 3
    assert (out[1] == 127).all()


@pytest.mark.parametrize(
    "options", [{"k": 7800}, {"k": 1500, "attributes": "Indian"}, {"k": 7800, "keep_kind": "gender"}]
)
def test_a_k_that_one_gender_does_not_have_is_refused_at_once(model: FrameModel, options: dict[str, Any]) -> None:
    def check(**options: Any) -> None:
        made = FrameModel(model.model, model.config, model.bank, network=model.network, mesh=model.mesh, **options)
        made.check_draws(Attempt(0), 1.0)

    with pytest.raises(UsageError):
        check(**options)
    check(**options | {"keep_kind": "ethnicity,age"})


def test_what_a_row_keeps_of_the_source(model: FrameModel, photo: Image, face: Face) -> None:
    """With layer 0 nothing of the source's code is left in the styles: its kind alone chooses the draw."""
    (reading,) = model.see([(photo, face)])
    attempt = Attempt(0)
    kind = read_kinds([photo], [face.landmarks])[0]
    draw = model.draw("a", attempt, 0.8, kind=kind)
    size = model.model.code_size
    other = reading.z_id.copy()
    other += 1
    other[-model.network.w_dim :] = reading.z_id[-model.network.w_dim :]  # layers that are new do not read it
    rows = [model.styles(code[None], [draw], attempt) for code in (reading.z_id, other)]
    np.testing.assert_array_equal(rows[0], rows[1])
    shown = [model.draw("a", attempt, 0.8, kind=each).w for each in (kind, UNKNOWN, None)]
    assert not any(np.array_equal(a, b) for a, b in itertools.combinations(shown, 2))
    assert model.layer_codes(reading.z_id[None], range(1, model.num_layers + 1)).shape == (1, size)


def test_a_draw_is_taken_that_the_gate_sees_apart_from_the_source(model: FrameModel) -> None:
    """By a gate that sees the first coefficient; a reading without an embedding, of an earlier project, is one, too."""
    gate, rng = np.zeros((1 + model.model.code_size, 2), np.float32), np.random.default_rng(5)
    gate[1], none = (1, 0), np.zeros((0, 2), np.float32)
    seeing = FrameModel(
        replace(model.model, gate=gate, lent_gate=none), model.config, model.bank, network=model.network, k=100, seed=1
    )
    first: dict[float | None, list[float]] = {1.0: [], -1.0: [], None: []}
    for key in "abcdefgh":
        z_id = rng.normal(0, 1, seeing.code_size).astype(np.float32)
        for side, found in first.items():
            kind = np.r_[UNKNOWN, [] if side is None else [side, 0]].astype(np.float32)
            found.append(float(seeing.draw(key, Attempt(0), 1.0, z_id, kind).w[0]))
    assert np.mean(first[1.0]) < np.mean(first[None]) < np.mean(first[-1.0])


def test_a_model_of_an_earlier_version_draws_faces_without_lent_detail(
    tmp_path: Path, model: FrameModel, photo: Image, face: Face
) -> None:
    path, header = tmp_path / "earlier.safetensors", file_header(MODEL)[1]
    kept = load_file(MODEL)
    for kind in header.pop("beside"):  # it was in one file then
        kept |= load_file(MODEL.parent / BESIDE[kind])
    del kept["detail_tones"], kept["middles"], kept["gate"], kept["lent_gate"]
    kept["lenders"] = np.zeros((len(kept["lenders"]), 2), np.float32)
    # A detail network of then made detail by itself.
    kept["detail_network"], header["schema_version"] = np.ones(9, np.uint8), 1
    write_arrays(path, kept, header, kind="appearance")
    appearance, config, _, network = load_appearance(path)
    earlier = FrameModel(appearance, config, model.bank, network=network, k=100, seed=0)
    large = np.ascontiguousarray(np.kron(photo, np.ones((3, 3, 1), np.uint8)))
    found = Face(face.box * 3, face.landmarks * 3, face.score)
    reading = earlier.see([(large, found)])[0]
    draw = earlier.draw("a", Attempt(0), 1.0, reading.z_id)
    made = earlier.render(earlier.styles(reading.z_id[None], [draw], Attempt(0)), [reading])[0]
    assert not len(appearance.details) and not appearance.detail_network.size and np.isfinite(made.texture).all()


def test_what_it_cannot_do_is_refused() -> None:
    with pytest.raises(UsageError, match="computes in float32"):
        Deidentifier.from_pretrained(precision="bfloat16").model  # noqa: B018 (made when it is first asked for)


@pytest.mark.slow
def test_a_saved_model_is_the_same(model: FrameModel, tmp_path: Path, photo: Image, face: Face) -> None:
    appearance, config, info, network = load_appearance(MODEL)
    assert network is not None
    path, other = tmp_path / "model.safetensors", replace(config, choices=5)
    save_appearance(path, appearance, other, info, network=network)
    again, config_again, info_again, network_again = load_appearance(path)
    assert network_again is not None
    assert (network_again.reader, network_again.writer) == (network.reader, network.writer)
    assert (config_again, info_again, info) == (other, info, ModelInfo.of(MODEL))
    assert file_header(path)[1]["config"] == {"choices": 5}  # only what is not as in the code
    made = (FrameModel(each, config, model.bank, network=network, k=100) for each in (appearance, again))
    readings = [each.see([(photo, face)])[0] for each in made]
    np.testing.assert_allclose(readings[0].z_id, readings[1].z_id, atol=0.02)
    with pytest.raises(InputError, match="exists"):
        save_appearance(path, appearance, config, info)


def test_a_model_wants_the_files_beside_it(tmp_path: Path) -> None:
    path, linear, lenders = (tmp_path / name for name in ("model.safetensors", *BESIDE.values()))
    appearance, config, info, network = load_appearance(MODEL)
    save_appearance(path, appearance, config, info, network=network, apart=True)
    np.testing.assert_array_equal(load_appearance(path)[0].details, appearance.details)
    assert path.stat().st_size < 0.6 * linear.stat().st_size
    arrays, header = load_file(linear), file_header(path)[1]
    del arrays["components"]
    write_arrays(linear, arrays, {}, kind="linear")
    with pytest.raises(FicganError, match=linear.name):  # another one than the header names
        load_appearance(path)
    header["beside"]["linear"] = file_digest(linear)
    write_arrays(path, load_file(path), header, kind="appearance")
    with pytest.raises(FicganError, match="components"):
        load_appearance(path)
    for beside in (linear, lenders):
        beside.unlink()
        with pytest.raises(FicganError, match=beside.name):
            load_appearance(path)
    with pytest.raises(InputError):
        save_appearance(path, appearance, config, info, apart=True)
    assert not linear.exists()  # each file or none


def test_a_bank_of_another_model_is_refused(tmp_path: Path, model: FrameModel) -> None:
    codes = np.zeros((5000, 8))
    IdentityBank.from_codes(codes, None, provenance={"checkpoint": "0" * 64}).save(tmp_path / "other.safetensors")
    with pytest.raises(UsageError, match="another model"):
        Deidentifier.from_pretrained(MODEL, tmp_path / "other.safetensors")
    IdentityBank.from_codes(codes, None).save(tmp_path / "silent.safetensors")
    with pytest.raises(UsageError, match="8 numbers"):
        Deidentifier.from_pretrained(MODEL, tmp_path / "silent.safetensors")


def test_a_blink_is_not_smoothed_away(model: FrameModel, photo: Image, face: Face) -> None:
    (mesh,) = model.find([(photo, face)])
    assert mesh is not None
    width = float(np.linalg.norm(mesh.points[33, :2] - mesh.points[133, :2]))
    lower = [(159, 145), (158, 153), (160, 144), (161, 163), (157, 154), (386, 374), (385, 380), (387, 373), (388, 390)]
    rng = np.random.default_rng(0)

    def frame(open_share: float) -> np.ndarray:
        points = mesh.points.copy() + rng.normal(0, 0.004 * width, mesh.points.shape)
        for top, bottom in lower:
            points[top] = points[bottom] + open_share * (points[top] - points[bottom])
        return points

    shares = [1.0, 1.0, 1.0, 1.0, 0.1, 1.0, 1.0, 1.0, 1.0]
    frames = [replace(mesh, points=frame(share).astype(np.float32)) for share in shares]

    def opening(points: np.ndarray) -> float:
        return float(np.linalg.norm(points[159, :2] - points[145, :2]) / width)

    found = [opening(model.smoothed(frames, at).points) for at in range(len(frames))]
    given = [opening(each.points) for each in frames]
    assert found[4] < given[4] + 0.03 and min(found[:3] + found[-3:]) > 0.85 * max(given)
    still = [replace(mesh, points=frame(1.0).astype(np.float32)) for _ in range(30)]
    trembling = [model.smoothed(still, at).points[4] for at in range(8, 22)]
    assert np.std(trembling, 0).mean() < 0.7 * np.std([each.points[4] for each in still], 0).mean()


def test_a_face_that_is_kept_stays_as_it_is_beside_a_new_one(photo: Image, face: Face) -> None:
    """The surroundings of the new face move; the box of the kept one, which reaches into them, does not."""
    head = photo[:, : round(float(face.box[2])) + 4]
    two = np.ascontiguousarray(np.concatenate([head, head[:, ::-1]], axis=1))
    plain = Deidentifier.from_pretrained(verify=False, seed=3)
    left, right = sorted((face.box for face in plain(two).faces), key=lambda box: box[0])
    wide = (left[2] - 6, 0, two.shape[1], two.shape[0])  # a box from the new face's edge on
    done = Deidentifier.from_pretrained(verify=False, seed=3, boxes=[wide])(two)
    assert sorted(face.action for face in done.faces) == ["generated", "kept"]
    x0, y0, x1, y1 = np.rint(right).astype(int).clip(0)
    assert np.array_equal(done.image[y0:y1, x0:x1], two[y0:y1, x0:x1]) and not done.mask[y0:y1, x0:x1].any()
    assert np.array_equal(done.image[done.mask == 0], two[done.mask == 0]) and (done.mask == np.float32(0.02)).any()


@pytest.mark.parametrize(("name", "columns"), [("swaps", 3), ("bands", 5)])
def test_sheets_of_the_paper(tmp_path: Path, photo: Image, name: str, columns: int) -> None:
    (file, out) = (tmp_path / "a.png", tmp_path / "sheet.png")
    Pillow.fromarray(photo).save(file)
    other = ["--exemplar", str(file)] if name == "swaps" else []
    run = CliRunner().invoke(evaluate, ["sheet", name, str(file), "-o", str(out), "--seed", "1", *other])
    assert run.exit_code == 0, run.output
    sheet = np.asarray(Pillow.open(out))
    assert sheet.shape == (TITLE + SIDE, columns * SIDE, 3)
    pictures = [sheet[TITLE:, SIDE * n : SIDE * (n + 1)].astype(int) for n in range(columns)]
    same = [np.abs(pictures[0] - picture).max() == 0 for picture in pictures]
    assert same == ([True, True, False] if name == "swaps" else [True, *[False] * 4])
