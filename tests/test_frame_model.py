"""The embedded appearance model on a photo: new faces where a face can be read, a mask with its reason elsewhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from ficgan import pretrained
from ficgan.arrays import LUMA, file_header, luminance, write_arrays
from ficgan.deidentify import Deidentifier
from ficgan.errors import FicganError, InputError, UsageError
from ficgan.face_model import ModelInfo, read_kinds
from ficgan.faces import Face, get_detector
from ficgan.faces.mesh import FACE_OVAL, LEFT_BROW
from ficgan.files import file_digest
from ficgan.frame import HI, LIDS, LO
from ficgan.frame.file import BESIDE, FrameConfig, FrameNetwork, load_appearance, save_appearance
from ficgan.frame.lent import lender_like, lender_of, middle_of, with_middle
from ficgan.frame.render import FaceRenderer
from ficgan.frame_model import FrameModel
from ficgan.identity import IdentityBank
from ficgan.identity.kind import AGE, MALE, UNKNOWN
from ficgan.policy import Attempt, Result

Image = NDArray[np.uint8]
MODEL, BANK = pretrained.path("model"), pretrained.path("bank")


class Found:
    """Faces that were found before: what a photo of this width has."""

    name = "found"

    def __init__(self, faces: dict[int, list[Face]]) -> None:
        self.faces = faces

    def detect(self, image: Image) -> list[Face]:
        return self.faces[image.shape[1]]


@pytest.fixture(scope="module")
def photo() -> Image:
    return np.ascontiguousarray(pytest.importorskip("skimage.data").astronaut()[:256, 80:400])


@pytest.fixture(scope="module")
def face(photo: Image) -> Face:
    return get_detector("auto").detect(photo)[0]


@pytest.fixture(scope="module")
def make(photo: Image, face: Face) -> Callable[..., Deidentifier]:
    """An engine that finds the photo's face there, and in two copies side by side both."""
    side = photo.shape[1]
    aside = np.float32([side, 0])
    other = Face(face.box + np.tile(aside, 2), face.landmarks + aside, face.score)
    noise = Face(np.float32([20, 20, 80, 80]), np.float32([[35, 40], [65, 40], [50, 55], [38, 68], [62, 68]]), 0.9)
    detector = Found({side: [face], 2 * side: [face, other], 100: [noise]})

    def made(**options: Any) -> Deidentifier:
        usual = {"k": 3000, "layer": 0, "seed": 7, "verify": False, "detector": detector}
        return Deidentifier.from_pretrained(**{**usual, **options})

    return made


@pytest.fixture(scope="module")
def engine(make: Callable[..., Deidentifier]) -> Deidentifier:
    return make()


@pytest.fixture(scope="module")
def model(engine: Deidentifier) -> FrameModel:
    assert isinstance(engine.model, FrameModel)
    return engine.model


@pytest.fixture(scope="module")
def result(engine: Deidentifier, photo: Image) -> Result:
    return engine(photo, key="a")


def apart(each: Image, other: Image, mask: NDArray[np.float32]) -> float:
    """Mean absolute difference where the mask is full."""
    return float(np.abs(each.astype(int) - other)[mask > 0.9].mean())


def test_a_dark_fringe_is_not_light(engine: Deidentifier, photo: Image, face: Face) -> None:
    model, dark = engine.photos.model, photo.copy()
    assert isinstance(model, FrameModel)
    left, right = face.landmarks[0], face.landmarks[1]
    low = round(float(left[1] - 0.42 * (right[0] - left[0])))
    dark[round(float(face.box[1])) - 20 : low, round(float(face.box[0])) : round(float(face.box[2]))] = (20, 15, 12)
    found = model.find([(photo, face)]) * 2  # the mesh does not move
    readings = model.see([(photo, face), (dark, face)], found)
    bare, fringed = (one.place.moment.light[0] for one in readings)
    np.testing.assert_allclose(fringed[:5], bare[:5], atol=0.1)  # mean colour, contrast, slope across


@pytest.mark.parametrize("colour", [(70, 120, 170), (25, 25, 30)])
def test_a_mask_over_nose_and_mouth_is_worn_again(
    make: Callable[..., Deidentifier], model: FrameModel, photo: Image, face: Face, colour: tuple[int, ...]
) -> None:
    """Eyes are new, cloth stays, and the check reads the face without it."""
    import cv2

    mesh, masked = model.find([(photo, face)])[0], photo.copy()
    assert mesh is not None
    oval, marks = mesh.points[FACE_OVAL, :2], mesh.points[[205, 425, 33, 133, 159, 145], :2].astype(int)
    low = cv2.convexHull(oval[oval[:, 1] > mesh.points[5, 1]])
    cv2.fillPoly(masked, [np.rint(low).astype(np.int32)], colour)
    out = make(verify=True)(masked)
    change = np.abs(out.image.astype(int) - masked).mean(2)
    cloth = np.median(change[marks[0, 1] : marks[0, 1] + 12, marks[0, 0] : marks[1, 0]])
    assert cloth < 6 < 10 < change[marks[4, 1] - 4 : marks[5, 1] + 4, marks[2, 0] : marks[3, 0]].mean()
    assert out.faces[0].note.startswith("cloth") and out.faces[0].attempts < 6 and out.faces[0].covered


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


def test_layers_keep_more_and_more_of_the_source(engine: Deidentifier, photo: Image) -> None:
    last = engine.model.num_layers - 1
    near = [apart((out := engine(photo, key="a", layer=i)).image, photo, out.mask) for i in (0, last // 2, last)]
    assert near[0] > near[1] > near[2] > 0
    assert engine(photo, layer=last).audit["layers"]["source"] == list(range(1, last + 1))
    with pytest.raises(UsageError, match="L = "):
        engine(photo, layer=last + 1)


def test_what_lies_over_a_face_is_drawn_over_and_said(engine: Deidentifier, photo: Image, face: Face) -> None:
    """A violet bar over the mouth; of one that is made in its place nothing is violet."""
    barred = photo.copy()
    (x0, y0), (x1, y1) = (face.landmarks[3:] + np.array([[-12, -8], [12, 8]])).astype(int)
    barred[y0:y1, x0:x1] = (200, 0, 255)
    result = engine(barred, key="a")
    (record,) = result.faces
    assert record.action == "generated" and "lies over the face" in record.note
    assert "lies over the face" in result.audit["notes"][0] and "lies over" in result.audit["faces"][0]["note"]

    def violet(image: Image) -> float:
        inside = image[y0:y1, x0:x1].astype(int)
        return float((inside[..., 2] - inside[..., 1] > 60).mean())

    assert violet(barred) == 1 and violet(result.image) < 0.05


def other_styles(model: FrameModel, reading: Any, key: str = "a") -> NDArray[np.float32]:
    """A row of styles of another identity: [1,S]."""
    code = model.draw(key, Attempt(layer=0), 1.0, reading.z_id)
    return model.mixed(reading.z_id[None], model.wanted(code.w[None]), Attempt(layer=0))


def test_a_smile_shows_teeth_and_a_closed_mouth_none(model: FrameModel, photo: Image, face: Face) -> None:
    """The astronaut smiles. Some draws have teeth of their own, which are drawn over."""
    reading = model.see([(photo, face)])[0]
    bare = replace(model.model, teeth=model.model.teeth[:0])
    plain = FrameModel(bare, model.config, model.bank, network=model.network, k=3000)
    closed = replace(reading, place=replace(reading.place, mouth=reading.place.mouth * [1, 1, 1, 1, 0, 0]))
    outer = [61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291, 375, 321, 405, 314, 17, 84, 181, 91, 146]
    lips, gaps = model.model.shape.front[outer], list[float]()
    for key in "abcdef":
        styles = other_styles(model, reading, key)
        with_them, without, shut = (
            maker.render(styles, [each])[0].texture
            for maker, each in ((model, reading), (plain, reading), (model, closed))
        )
        np.testing.assert_array_equal(shut, without)
        changed = np.abs(with_them - without).max(2) > 0.02
        assert changed.any()
        places = np.argwhere(changed) / (len(changed) - 1) * (np.subtract(HI, LO)[::-1]) + LO[::-1]
        assert (places.min(0) > lips.min(0)[::-1]).all() and (places.max(0) < lips.max(0)[::-1]).all()
        now = with_them[changed] @ LUMA
        gaps.append(np.quantile(now, 0.05) / np.quantile(now, 0.8))
        assert np.quantile(now, 0.8) == pytest.approx(float(reading.place.mouth[:3] @ LUMA), abs=0.05)
    assert 0.05 < np.mean(gaps) < 0.6, "teeth, and gaps beside them"


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
    from ficgan.faces import crop

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


def test_somebody_of_the_kind_lends_who_is_unlike_the_source(model: FrameModel, photo: Image, face: Face) -> None:
    """Lenders are of the kind; wrinkles go to the old, and none to children. Of some the one least like a source."""
    appearance = model.model
    for reading in appearance.lenders[::7]:
        chosen = appearance.lenders[lender_of(appearance, reading)]
        assert abs(chosen[AGE] - reading[AGE]) < 12 + 0.2 * reading[AGE]
        assert abs(chosen[MALE] - reading[MALE]) < 0.75 or reading[AGE] < 15  # children's gender is hard to read

    def strength(years: float) -> float:
        kinds = [np.r_[reading[:-1], np.float32(years)] for reading in appearance.lenders[::7]]
        lent = [appearance.details[lender_of(appearance, kind)].astype(float) for kind in kinds]
        return float(np.mean([np.median(np.abs(one)) for one in lent]))  # of skin, not of lashes

    assert strength(70) > 1.3 * strength(25) > 1.1 * strength(5)
    (reading,) = model.see([(photo, face)])
    code, moment, kind = reading.z_id[: appearance.code_size], reading.place.moment, appearance.lenders[0]
    own = middle_of(appearance.seen(reading.place.texture[None])[0], appearance, moment).ravel()[appearance.pixels]
    likeness = np.array([np.corrcoef(own, one)[0, 1] for one in appearance.middles])
    seen = np.arange(2, dtype=np.float32)  # a gate whose second number is how like the source a lender is
    seeing = replace(appearance, gate=np.zeros((1, 2), np.float32), lent_gate=np.column_stack([likeness, likeness]))
    lots = np.linspace(0, 0.99, 40)
    unlike, random = ([lender_of(seeing, kind, of, lot) for lot in lots] for of in (seen, None))
    assert likeness[unlike].mean() + 0.05 < likeness[random].mean() < likeness[lender_like(appearance, kind, code)]
    assert len(set(random)) > 8


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


def test_light_and_shade_of_a_lender_are_drawn_in_the_light_of_the_source(
    model: FrameModel, photo: Image, face: Face
) -> None:
    """Its own lender changes nothing; of another's spot .45 are drawn, by the contrast, and a brow wholly."""
    appearance, reading = model.model, model.see([(photo, face)])[0]
    moment, texture = reading.place.moment, np.full((appearance.size, appearance.size, 3), 0.5, np.float32)
    own = middle_of(texture.reshape(-1, 3)[appearance.pixels], appearance, moment)
    np.testing.assert_allclose(with_middle(texture, own, appearance, moment), texture, atol=1e-6)
    hair, beside = texture.copy(), np.rint((appearance.shape.front[70] - LO) / appearance.warp.step).astype(int)
    hair[:, : beside[0] - 4] = 0.01  # no lighter is what lies beside it
    near = middle_of(hair.reshape(-1, 3)[appearance.pixels], appearance, moment)[beside[1], beside[0] :]
    np.testing.assert_allclose(near[:9], own[beside[1], beside[0] :][:9], atol=0.1)
    y, x = np.mgrid[: appearance.size, : appearance.size]
    contrast = float(np.exp((moment.light * appearance.light_sd + appearance.light_mean)[0, 3]))
    brow = np.rint((appearance.shape.front[LEFT_BROW].mean(0) - LO) / appearance.warp.step)
    for at, size, share in (((40, 70), 3.0, 0.45), (brow, 1.0, 1.0)):
        spot = np.exp(-np.square([x - at[0], y - at[1]]).sum(0) / (2 * size**2)).astype(np.float32)
        change = luminance(with_middle(texture, own + 0.1 * spot, appearance, moment)) - 0.5
        calm = change.ravel()[appearance.pixels] / np.maximum(appearance.calm[:, 0], 0.1)
        np.testing.assert_allclose(calm, 0.1 * share * contrast * spot.ravel()[appearance.pixels], atol=0.01 * contrast)


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
    from click.testing import CliRunner
    from PIL import Image as Pillow

    from ficgan.cli.evaluate import evaluate
    from ficgan.lab.papers import TITLE
    from ficgan.lab.papers.ficgan import SIDE

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


def with_painted_glasses(photo: Image, face: Face, colour: tuple[int, int, int]) -> tuple[Image, list[int]]:
    """A photo with round glasses and their arms, and the rows of the left and the right arm."""
    import cv2

    out, (left, right) = photo.copy(), face.landmarks[:2].astype(int)
    apart = int(right[0] - left[0])
    axes = int(0.4 * apart), int(0.29 * apart)
    for eye, side in ((left, -1), (right, 1)):
        rim = int(eye[0]) + side * axes[0], int(eye[1])
        cv2.ellipse(out, (int(eye[0]), int(eye[1])), axes, 0, 0, 360, colour, 2, cv2.LINE_AA)
        cv2.line(out, rim, (rim[0] + side * int(0.5 * apart), rim[1]), colour, 2, cv2.LINE_AA)
    cv2.line(out, (int(left[0]) + axes[0], int(left[1])), (int(right[0]) - axes[0], int(right[1])), colour, 2)
    return out, [int(left[1]), int(right[1])]


@pytest.mark.parametrize("colour", [(20, 20, 20), (250, 240, 200)])
def test_glasses_stay_and_their_arms_do_not_hang_in_the_air(
    engine: Deidentifier, photo: Image, face: Face, colour: tuple[int, int, int]
) -> None:
    """From an arm outside the new face to the new rim a line of its colour leads, and none without glasses."""
    worn, rows = with_painted_glasses(photo, face, colour)
    (left, right), apart = face.landmarks[:2, 0].astype(int), int(face.landmarks[1, 0] - face.landmarks[0, 0])
    results = [engine(one, key="a") for one in (photo, worn)]
    for row, begin in zip(rows, (left - 3 * apart // 4, right + apart // 2), strict=True):
        strip = np.s_[row - apart // 4 : row + apart // 4, begin : begin + apart // 4 - 1]
        away = [np.abs(one.image[strip].astype(int) - colour).mean(2).min(0) for one in results]
        assert (away[1] < 60).mean() > 0.9 and np.median(away[1]) < np.median(away[0]) / 2


def test_a_man_with_a_moustache_keeps_one_and_nobody_else_gets_one(model: FrameModel, photo: Image, face: Face) -> None:
    """A dark lip stays dark on a grown man, and becomes clean on a woman and a boy; a clean one stays clean."""
    import cv2

    nose, left, right = face.landmarks[2:].astype(int)
    lip = int(left[0] + right[0]) // 2, int(0.45 * nose[1] + 0.55 * (left[1] + right[1]) / 2)
    width = int(right[0] - left[0])
    wearing = photo.copy()
    cv2.ellipse(wearing, lip, (width // 2, width // 7), 0, 0, 360, (30, 22, 18), -1, cv2.LINE_AA)
    readings = [model.see([(one, face)])[0] for one in (photo, wearing)]
    assert readings[1].place.moustache < -0.9 < 0 < readings[0].place.moustache
    man, woman, boy = (UNKNOWN.copy() for _ in range(3))
    for kind, whose in zip((man, woman, boy), ((0.9, 40), (0.1, 40), (0.9, 8)), strict=True):
        kind[[MALE, AGE]] = whose

    def read(reading: Any, kind: NDArray[np.float32]) -> float:
        row = model._unpacked(other_styles(model, reading)[0])
        moment = model.renderer.moment(row, reading.place)
        made = model.renderer.plain(replace(row, kind=kind), reading.place).texture
        rest = model.model.unpredicted(made.reshape(-1, 3)[model.model.pixels], moment)
        return float(model.model.moustache[0] @ rest)

    for kind in (woman, boy):
        assert read(readings[1], man) < read(readings[1], kind) - 0.5 and read(readings[1], kind) > -0.3
    assert min(read(readings[0], kind) for kind in (man, woman, boy)) > -0.3


def test_of_plain_skin_the_network_draws_nothing_fine(model: FrameModel, photo: Image, face: Face) -> None:
    """Elsewhere it does, and in reconstructions, too."""
    noise = np.random.default_rng(3).normal(0, 0.2, (1, *[model.model.size] * 2, 3)).astype(np.float32)

    class Noise(FrameNetwork):
        def write(self, *inputs: Any) -> Any:
            added, moved = super().write(*inputs)
            return added + noise, moved

    assert model.network is not None
    noisy = FaceRenderer(model.model, model.config, Noise(*astuple(model.network)))
    (reading,) = model.see([(photo, face)])
    skin = model.model.skin_parts[:-1].sum(0) > 0.99
    for row, least, most in ((other_styles(model, reading), 0.0, 0.3), (model.own_styles([reading]), 0.7, 1.3)):
        made = [one.plain(model._unpacked(row[0]), reading.place).texture for one in (model.renderer, noisy)]
        change = np.abs(made[1] - made[0]).mean(2)
        assert least <= np.median(change[skin]) / np.median(change[model.model.lips > 0.9]) <= most


def test_brows_are_of_hairs_and_bare_skin_is_not(model: FrameModel) -> None:
    side, on_brows = 2 * model.model.size, model.model.fine_places.on_brows
    skin = np.full((side, side, 3), (0.6, 0.45, 0.35), np.float32)
    np.testing.assert_allclose(model.renderer._hairs_of(skin, 0.03), 0, atol=1e-3)
    hairs = np.abs(model.renderer._hairs_of(skin * (1 - 0.6 * on_brows[..., None]), 0.03))
    assert hairs[on_brows > 0.9].mean() > 0.01 > 1e-6 > hairs[on_brows == 0].max()


def test_spots_and_pores_are_bounded(model: FrameModel, photo: Image, face: Face) -> None:
    """A face of 2,000 pixels is no pattern of blots, and in a photo without colours nothing is coloured."""
    import cv2

    grey = np.repeat(cv2.cvtColor(photo, cv2.COLOR_RGB2GRAY)[..., None], 3, 2)
    for scale, least in ((3, 1.0), (12, 0.0)):
        large = np.asarray(cv2.resize(grey, None, fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC), np.uint8)
        where = Face(face.box * scale, face.landmarks * scale, face.score)
        (reading,) = model.see([(large, where)])
        assert reading.place.look.pores * 255 >= least * 0.1
        (made,) = model.render(other_styles(model, reading), [reading])
        out = model.paste(large, reading, made).image.astype(int)
        assert np.ptp(out, axis=2).max() <= 2
        fine = out[..., 0] - cv2.GaussianBlur(out[..., 0].astype(np.float32), (0, 0), 2.0)
        x0, y0, x1, y1 = where.box.astype(int)
        assert fine[y0:y1, x0:x1].std() < 12
