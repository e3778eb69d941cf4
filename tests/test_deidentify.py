"""The face pipeline around a small untrained model: what is replaced, verified, retried, masked and recorded."""

from __future__ import annotations

import io
import json
import pickle
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image as Pillow
from stand_ins import Fixed, Judge, face

from ficgan.config import ModelConfig
from ficgan.deidentify import Deidentifier, refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.face_model import CropModel, ModelInfo
from ficgan.faces import DETECTORS, Alignment, Face, detector_missing, get_detector
from ficgan.identity import IdentityBank
from ficgan.models import FICGAN, CheckpointHeader
from ficgan.options import grouped
from ficgan.policy import Policy

CONFIG = ModelConfig(resolution=32, channel_base=256, channel_max=16, spatial_channels=4, mapping_layers=1)
Image = NDArray[np.uint8]


@pytest.fixture(scope="module")
def parts() -> tuple[FICGAN, CheckpointHeader, IdentityBank]:
    torch.manual_seed(0)
    model = FICGAN(CONFIG).eval().requires_grad_(False)
    rng = np.random.default_rng(0)
    attributes = np.zeros((60, 1), np.uint8)
    attributes[:20] = 1
    bank = IdentityBank.from_codes(rng.normal(size=(60, 512)), np.arange(60), attributes, ["Smiling"], {})
    return model, CheckpointHeader(model=CONFIG, alignment=Alignment().to_dict()), bank


@pytest.fixture
def photo() -> Image:
    return np.random.default_rng(1).integers(0, 256, (160, 220, 3), dtype=np.uint8)


def build(parts: tuple[FICGAN, CheckpointHeader, IdentityBank], faces: list[Face], **options: Any) -> Deidentifier:
    given = {"k": 30, "layer": 2, "seed": 0, "recognizer": Judge(), "detector": Fixed(faces), **options}
    groups = grouped({}, given)
    model, header, bank = parts
    info = ModelInfo(header.alignment, header.data, header.training)
    made = CropModel(model, info, bank, **groups["identity"].controls)
    return Deidentifier(made, groups, info)


def test_only_the_mask_changes_and_the_input_never(parts, photo) -> None:
    before = photo.copy()
    result = build(parts, [face(40, 30, 80)])(photo)
    np.testing.assert_array_equal(photo, before)
    outside = result.mask == 0
    assert outside.any() and (result.mask == 1).any()
    np.testing.assert_array_equal(result.image[outside], photo[outside])
    assert (result.image != photo)[result.mask > 0.5].mean() > 0.9
    assert result.uncovered == result.reidentified == 0 and result.faces[0].action == "generated"


def test_runs_repeat_and_keys_and_seeds_matter(parts, photo) -> None:
    faces = [face(40, 30, 80)]
    first = build(parts, faces, psi=0.6)(photo, key="a").image
    np.testing.assert_array_equal(first, build(parts, faces, psi=0.6)(photo, key="a").image)
    assert (first != build(parts, faces, psi=0.6)(photo, key="b").image).any()
    assert (first != build(parts, faces, psi=0.6, seed=1)(photo, key="a").image).any()


def test_batch_equals_single_images(parts, photo) -> None:
    deid = build(parts, [face(40, 30, 80)], recognizer=None)
    other = photo[:, ::-1].copy()
    singles = [deid(photo, key="a"), deid(other, key="b")]
    for batched, single in zip(deid.batch([photo, other], keys=["a", "b"]), singles, strict=True):
        assert np.abs(batched.image.astype(int) - single.image).max() <= 1  # float32 sums differ in the last bit


def one_colour(region: np.ndarray) -> bool:
    return np.ptp(region.reshape(-1, 3), axis=0).max() == 0


@pytest.mark.parametrize(
    ("stubborn", "action", "attempts", "layer"),
    [(0, "generated", 1, 2), (1, "retried", 2, 1), (2, "retried", 3, 0), (99, "masked", 7, None)],
)
def test_a_recognised_face_is_retried_stronger_then_masked(parts, photo, stubborn, action, attempts, layer) -> None:
    result = build(parts, [face(40, 30, 80)], recognizer=Judge(stubborn))(photo)
    (each,) = result.faces
    assert (each.action, each.attempts, each.layer) == (action, attempts, layer)
    assert not each.matched and result.reidentified == 0 and each.covered
    if action == "masked":
        assert one_colour(result.image[70:90, 70:90])


def test_what_leaves_is_what_was_verified(parts, photo) -> None:
    """A retry of one face changes the composite; a neighbour that is recognised in it is not let through."""

    class Scripted(Judge):
        script = ((False, True), (True, False), (False, False))  # by reading of the output: first face, second face

        def embed(self, image: Image, landmarks: NDArray[np.float32]) -> NDArray[np.float32]:
            self.calls.append(landmarks)
            if len(self.calls) == 1:
                return np.zeros((len(landmarks), 2), np.float32)
            matched = self.script[len(self.calls) - 2]
            return np.array([[0.0, 0.0] if each else [1.0, 1.0] for each in matched], np.float32)

    gate = Scripted()
    result = build(parts, [face(5, 30, 80), face(120, 30, 80)], recognizer=gate)(photo)
    assert [f.matched for f in result.faces] == [False, False] and result.reidentified == 0
    assert [f.action for f in result.faces] == ["retried", "retried"] and len(gate.calls) == 4


def test_a_face_the_blend_does_not_hide_is_masked(parts, photo) -> None:
    result = build(parts, [face(40, 30, 80)], mask_scale=0.3)(photo)
    assert result.faces[0].action == "masked" and result.uncovered == 0
    assert result.faces[0].k is None, "nothing k-anonymous is left to account for"


def test_aligned_crops_keep_their_size_and_follow_the_policy(parts) -> None:
    crops = np.random.default_rng(0).integers(0, 256, (3, 48, 48, 3), dtype=np.uint8)
    out, faces = build(parts, [], recognizer=None).aligned(crops)
    assert out.shape == crops.shape and len(faces) == 3
    out, faces = build(parts, [], recognizer=Judge(99)).aligned(crops[:1])
    assert faces[0].action == "masked" and (out == 127).all()


def test_controls_hold_for_films_too(parts) -> None:
    other = build(parts, [], psi=0.6).with_controls(psi=0.2, layer=1, fallback="blur")
    tools = other.video_tools(other.video_settings())
    assert (tools.psi, tools.layer) == (0.2, 1)


def test_swap_uses_the_exemplar_and_not_the_bank(parts, photo) -> None:
    target = np.random.default_rng(5).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    options = {"exemplar": target, "swap": True, "recognizer": None}
    where = [face(40, 30, 60)]
    a, b = (build(parts, where, seed=seed, **options)(photo) for seed in (0, 1))
    np.testing.assert_array_equal(a.image, b.image)
    assert a.audit["target"] == "swap" and a.audit["k"] is None
    half = build(parts, where, exemplar=target, alpha=0.5)(photo)
    assert half.audit["alpha"] == 0.5 and (half.image != a.image).any()


def test_the_audit_is_json_and_honest(parts, photo) -> None:
    audit = build(parts, [face(40, 30, 80)], seed=1234567)(photo).audit
    text = json.dumps(audit)
    assert "1234567" not in text, "the seed stays secret"
    assert audit["layers"] == {"total": 6, "k_same": [3, 4, 5, 6], "exemplar": [], "source": [1, 2]}
    assert audit["k"] == 30 and "z_non" in audit["not_covered"]


WRONG: list[dict[str, Any]] = [
    {"k": 1},
    {"k": 61},
    {"k": 30, "attributes": "Smiling"},
    {"attributes": "Smilling"},
    {"layer": 6},
    {"layer": -1},
    {"band": "0-3"},
    {"psi": -1.0},
    {"mode": "paint"},
    {"fallback": "paint"},
    {"link": "always"},
    {"mask_scale": 0},
    {"swap": True},
    {"add": ["Smiling"]},
    {"device": "tpu"},
]


@pytest.mark.parametrize("options", WRONG, ids=str)
def test_what_cannot_work_is_said_before_any_photo(parts, options) -> None:
    with pytest.raises(UsageError) as caught:
        build(parts, [], **options)
    assert "\n" not in str(caught.value)


def test_the_trainer_is_no_judge(parts, tmp_path) -> None:
    """The network the model was trained against would only flatter it."""
    network = tmp_path / "v.onnx"
    network.write_bytes(b"weights")
    header = parts[1].model_copy(update={"training": {"verifier_sha256": sha256(b"weights").hexdigest()}})
    with pytest.raises(UsageError, match="trained against"):
        refuse_trainer(header, f"onnx:{network}")
    network.write_bytes(b"other")
    refuse_trainer(header, f"onnx:{network}")
    refuse_trainer(header, "dlib")


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *((lambda deid, _, image=image: deid(image), InputError) for image in (None, np.zeros(4, np.uint8))),
        *((lambda deid, _, s=s: deid(np.zeros(s, np.uint8)), InputError) for s in ((4, 4, 2), (0, 4, 3))),
        (lambda deid, _: deid(np.zeros((4, 4, 3), np.float32)), InputError),
        (lambda deid, _: deid(io.StringIO("text")), InputError),
        (lambda deid, photo: deid.batch([photo], channel_order="BGR"), UsageError),
        *((lambda deid, photo, k=k: deid.batch([photo] * 2, keys=k), UsageError) for k in (["a"], list("abc"), "ab")),
        (lambda deid, photo: deid.aligned(np.stack([photo[:48, :48]] * 2), keys=["a"]), UsageError),
    ],
)
def test_wrong_arguments(parts, photo, call, kind) -> None:
    with pytest.raises(kind):
        call(build(parts, []), photo)


NAN = np.full((5, 2), np.nan, np.float32)


@pytest.mark.parametrize("mode", ["ficgan", "solid", "blur", "dp-pix:eps=1"])
@pytest.mark.parametrize("marks", [None, NAN])
def test_a_box_without_landmarks_is_covered(parts, photo, mode, marks) -> None:
    """Beside a face that has them; a second detector may know boxes only."""
    other = face(130, 30, 80)
    given = [Face(np.array([20, 30, 90, 110], np.float64), marks, 1.0), other]  # type: ignore[arg-type]
    result = build(parts, given, mode=mode)(photo)
    assert result.uncovered == 0 and (result.image != photo).any(-1)[45:95, 35:75].mean() > 0.9
    action = {"ficgan": "masked", "solid": "solid", "blur": "blurred"}.get(mode, "dp-pix")
    assert result.faces[0].action == action and result.faces[1].action in (action, "generated")
    json.dumps(result.audit, allow_nan=False, default=np.ndarray.tolist)


@pytest.mark.parametrize(
    "box",
    [[300, 30, 380, 110], [-90, -90, -10, -10], [0.2, 0.3, 0.6, 0.7], [50, 30, 40, 110], [np.nan] * 4, [1, 2, 50]],
)
def test_a_find_that_hides_nothing_is_an_error(parts, photo, box) -> None:
    """To say that it is covered would be false."""
    with pytest.raises(InputError):
        build(parts, [Face(np.array(box, np.float32), None, 1.0)], mode="solid")(photo)  # type: ignore[arg-type]


def test_another_process_makes_the_same(parts, photo) -> None:
    """Networks cannot be pickled; what a Deidentifier is made of can, with its seed, also a random one."""
    for options in ({"mode": "dp-pix:eps=1"}, {"mode": "dp-pix:eps=1", "seed": 3}, {"mode": "mosaic", "strict": True}):
        made = Deidentifier.from_pretrained(detector=Fixed([face(40, 30, 80)]), recognizer=None, **options)
        other = pickle.loads(pickle.dumps(made))
        np.testing.assert_array_equal(other(photo, key="a").image, made(photo, key="a").image)
    with pytest.raises(UsageError, match="from_pretrained"):
        pickle.dumps(build(parts, []))


def test_arrays_pictures_and_paths(parts, photo, tmp_path) -> None:
    deid = build(parts, [face(40, 30, 80)], recognizer=None)
    want = deid(photo, key="a").image
    clear = np.dstack([photo, np.full(photo.shape[:2], 77, np.uint8)])
    result = deid(clear, key="a").image
    np.testing.assert_array_equal(result, np.dstack([want, clear[..., 3]]))
    np.testing.assert_array_equal(deid(photo[..., ::-1], key="a", channel_order="bgr").image[..., ::-1], want)
    Pillow.fromarray(photo).save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    written = io.BytesIO()
    written.write(data)  # and so is at its end
    for given in (Pillow.fromarray(photo), tmp_path / "a.png", data, written):
        np.testing.assert_array_equal(deid(given, key="a").image, want)
    grey = deid(photo[..., 0])
    assert grey.image.shape == photo.shape[:2] and (grey.image != photo[..., 0])[grey.mask > 0.5].mean() > 0.8
    np.testing.assert_array_equal(grey.image[grey.mask == 0], photo[..., 0][grey.mask == 0])
    deep = photo.astype(np.uint16) * 257 + 1
    out = deid(deep, key="a")
    assert out.image.dtype == np.uint16 and (out.image[out.mask == 0] == deep[out.mask == 0]).all()


@dataclass
class Known(Judge):
    """A recogniser that reads the brightness at the nose, in steps of 64: who has the same is the same."""

    def embed(self, image: Image, landmarks: NDArray[np.float32]) -> NDArray[np.float32]:
        rows = [image[int(points[2, 1]), int(points[2, 0]), 0] // 64 for points in landmarks]
        return np.array(rows, np.float32)[:, None]


@pytest.mark.parametrize("mode", ["solid", "ficgan"])
def test_people_and_places_that_stay(parts, mode) -> None:
    """Faces of three people; reference photos are found at the place of the first."""
    scene = np.zeros((160, 330, 3), np.uint8)
    faces = [face(5, 30, 80), face(120, 30, 80), face(235, 30, 80)]
    for number, x in enumerate((5, 120, 235)):
        scene[30:110, x : x + 80] = 64 * number + 20
    me = np.full((160, 330, 3), 64 + 20, np.uint8)  # the second of them

    def staying(**rules: Any) -> list[bool]:
        result = build(parts, faces, mode=mode, recognizer=Known(), **rules)(scene)
        same = [bool((result.image == scene)[30:110, x : x + 80].all()) for x in (5, 120, 235)]
        assert [each.action == "kept" for each in result.faces] == same and result.uncovered == 0
        assert sum("left as found" in note for note in result.audit.get("notes", [])) == bool(sum(same))
        return same

    assert staying() == [False] * 3
    assert staying(keep={"/home/me.jpg": me}) == [False, True, False]
    assert staying(only={"me.jpg": me}) == [True, False, True]
    assert staying(boxes=[(0, 0, 100, 160)]) == [True, False, False]
    assert staying(boxes=[(110, 0, 220, 160)], only={"me.jpg": me}) == [True, False, True], "who is chosen is hidden"
    assert staying(keep={"me.jpg": me}, policy=Policy(verify=False)) == [False, True, False]
    with pytest.raises(UsageError, match="no face was found"):
        build(parts, [], mode=mode, recognizer=Known(), keep={"me.jpg": me})


@pytest.mark.parametrize("verify", [True, False])
def test_a_person_keeps_one_new_face_in_all_photos(parts, verify) -> None:
    faces = [face(5, 30, 80), face(120, 30, 80), face(235, 30, 80)]

    def shown(deid: Deidentifier, *people: int) -> list[str | None]:
        scene = np.zeros((160, 330, 3), np.uint8)
        for person, x in zip(people, (5, 120, 235), strict=True):
            scene[30:110, x : x + 80] = 64 * person + 20
        scene += np.uint8(len(drawn))  # no two photos are the same
        drawn.append([each.members_digest for each in deid(scene).faces])
        return drawn[-1]

    class Content(Known):
        def is_match(self, a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
            return False

    drawn: list[list[str | None]] = []
    options = {"recognizer": Content(), "layer": 0, "policy": Policy(verify=verify), "seed": 5}
    deid = build(parts, faces, link="job", **options)
    a, b, c = shown(deid, 0, 1, 2)
    assert len({a, b, c}) == 3
    assert shown(deid, 2, 0, 1) == [c, a, b]
    twice = shown(deid, 1, 3, 1)  # two faces of one photo are two people
    assert twice[0] == b and not {twice[1], twice[2]} & {a, b, c}
    assert not set(shown(build(parts, faces, **options), 0, 1, 2)) & {a, b, c}, "each photo on its own"


def test_fallbacks_and_doubtful_finds(parts, photo) -> None:
    cut, weak = face(-10, 30, 80), replace(face(100, 30, 80), score=0.4)
    cut = replace(cut, box=cut.box.clip(0))
    named = {"detector": Fixed([cut, weak], name="centerface")}
    result = build(parts, [], recognizer=None, **named)(photo)
    assert [each.action for each in result.faces] == ["generated"] * 2
    notes = " ".join(result.audit["notes"])
    assert "doubtful find at 0, 30, 70, 110: cut by the border" in notes and "low score 0.40" in notes
    strict = build(parts, [], recognizer=None, strict=True, **named)(photo)
    assert [each.action for each in strict.faces] == ["masked"] * 2 and strict.uncovered == 0
    assert one_colour(strict.image[60:80, 130:150]) and strict.image[70, 140].any(), "plain is the usual cover"
    black = build(parts, [], recognizer=None, strict=True, fallback="black", **named)(photo)
    assert not black.image[60:80, 130:150].any()
    fewer = build(parts, [], recognizer=None, min_score=0.5, **named)(photo)
    assert len(fewer.faces) == 1 and (fewer.image == photo)[30:110, 120:180].all()
    read = build(parts, [face(40, 30, 80)], recognizer=Judge(99), fallback="blur")(photo)
    assert read.faces[0].action == "masked" and read.reidentified == 0 and one_colour(read.image[60:80, 70:90])
    soft = build(parts, [face(40, 30, 80)], recognizer=Judge(7), fallback="blur")(photo)
    assert soft.faces[0].action == "masked" and not one_colour(soft.image[60:80, 70:90])


@pytest.mark.slow
@pytest.mark.parametrize("name", DETECTORS)
def test_detectors_find_the_same_in_threads(name) -> None:
    """Photos are worked on in several threads, and OpenCV's and dlib's networks keep state of their own."""
    if missing := detector_missing(name):
        pytest.skip(missing)
    astronaut = pytest.importorskip("skimage.data").astronaut()
    pictures = [np.ascontiguousarray(astronaut[: 200 + 24 * n, 60 : 330 - 16 * n]) for n in range(4)]
    detector = get_detector(name, scale=1.0)

    def found(picture: Image) -> list[list[float]]:
        return [[*each.box, *each.landmarks.ravel(), each.score] for each in detector.detect(picture)]

    alone = [found(picture) for picture in pictures]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(found, pictures * 3))
    assert together == alone * 3 and any(alone)
