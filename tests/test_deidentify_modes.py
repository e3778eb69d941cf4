"""Anonymisers as modes of `Deidentifier` and of films: names, needs, accounts, what is fixed over a film."""

from __future__ import annotations

import json

import numpy as np
import pytest
from stand_ins import Fixed, Judge, face, noise, photo

from ficgan.anonymizers import ANONYMIZERS, Faces
from ficgan.anonymizers.modes import Methods, caution, check_mode, mode_of, shown
from ficgan.deidentify import Deidentifier
from ficgan.errors import InputError, UsageError
from ficgan.faces import get_detector
from ficgan.options import grouped
from ficgan.video import VideoSettings, VideoTools
from ficgan.video.decided import Appearance, FrameJob
from ficgan.video.rendered import Renderer
from ficgan.video.source import Frame

Image = np.ndarray


def build(mode: object, faces: list | None = None, **options: object) -> Deidentifier:  # type: ignore[type-arg]
    faces = [face(40, 30, 80)] if faces is None else faces
    given = {"recognizer": Judge(), "detector": Fixed(faces), "mode": mode, **options}
    return Deidentifier(None, grouped({}, given))


def test_an_anonymiser_takes_the_faces_place_and_the_gate_reads_it() -> None:
    deid = build("block-permutation:block=8,key=hush", seed=3)
    result = deid(photo(), key="a")
    (each,) = result.faces
    assert (each.action, each.covered, each.matched) == ("block-permutation", True, False) and each.distance is not None
    assert (result.image[result.mask == 0] == photo()[result.mask == 0]).all()
    record = json.dumps(result.audit)
    assert "hush" not in record and result.audit["mode"] == "block-permutation:block=8"
    assert result.audit["methods"][0]["settings"] == {"block": 8}
    # What the side-car says is enough for whoever has the key.
    x0, y0, side = result.audit["faces"][0]["square"]
    part = result.image[y0 : y0 + side, x0 : x0 + side]
    method = ANONYMIZERS.make("block-permutation", block=8, key="hush")
    part[:] = method.invert(Faces(part[None].copy(), (result.audit["faces"][0]["name"],)))[0]
    np.testing.assert_array_equal(result.image, photo())


def test_draws_repeat_with_the_seed_only_and_differ_by_face() -> None:
    first = build("gaussian-noise", seed=1)(photo(), key="a").image
    np.testing.assert_array_equal(first, build("gaussian-noise", seed=1)(photo(), key="a").image)
    assert (first != build("gaussian-noise", seed=2)(photo(), key="a").image).any()
    assert (build("gaussian-noise")(photo(), key="a").image != build("gaussian-noise")(photo(), key="a").image).any()
    flat = np.full((160, 300, 3), 127, np.uint8)
    out = build("gaussian-noise", [face(20, 40, 60), face(180, 40, 60)])(flat)
    (a, b) = ((x, y, s) for x, y, s in (each.square for each in out.faces))
    cut = [out.image[y : y + s, x : x + s] for x, y, s in (a, b)]
    assert (cut[0] != cut[1]).any()


def test_an_instance_is_taken_as_it_is() -> None:
    method = ANONYMIZERS.make("solid", colour="red")
    result = build(method)(photo())
    assert (result.image[result.mask == 1] == (255, 0, 0)).all() and result.audit["mode"] == "solid:colour=red"
    assert mode_of(ANONYMIZERS.make("block-permutation", key="k", block=4)) == "block-permutation:block=4"


@pytest.mark.parametrize("detector", ["yunet", get_detector("yunet"), Fixed([])], ids=["name", "ours", "other"])
@pytest.mark.parametrize("mode", ["solid", "pixelation:size=4"])
def test_a_method_is_known_whatever_finds_the_faces(detector: object, mode: str) -> None:
    assert (build(mode, detector=detector).method is None) == (mode == "solid")


def test_a_face_that_the_method_cannot_do_gets_a_plain_cover() -> None:
    result = build("pixelation:size=64", [face(20, 40, 20), face(120, 40, 80)])(photo())
    small, large = result.faces
    assert (small.action, large.action) == ("masked", "pixelation") and small.square is None and small.covered
    assert np.ptp(result.image[45:55, 25:35].reshape(-1, 3), axis=0).max() == 0
    assert "size is 64" in result.audit["notes"][0]


def test_small_faces_in_a_scene_are_hidden_too() -> None:
    result = build("obfuscation-blur", [face(10, 10, 140), face(190, 100, 14)])(photo())
    assert result.uncovered == 0 and {each.action for each in result.faces} == {"obfuscation-blur"}


def test_backgrounds() -> None:
    with pytest.raises(UsageError, match="needs other people's aligned faces"):
        build("k-same-pixel:k=3")
    result = build("k-same-pixel:k=3", background=noise(12))(photo())
    assert result.faces[0].action == "k-same-pixel" and result.faces[0].square is None
    assert result.audit["background"]["faces"] == 12
    with pytest.raises(UsageError, match="background has 12 people"):
        build("k-same-pixel:k=30", background=noise(12))


@pytest.mark.parametrize(
    "mode",
    [*("dp-pxi", "keep", "dp-pix:esp=1", "ficgan:k=3", "blur:x=1", "external"), *("external:folder=x", "fawkes")],
)
def test_what_cannot_be_is_refused_before_any_photo(mode: str) -> None:
    with pytest.raises(UsageError):
        build(mode)


def test_cautions() -> None:
    for mode in ("blur", "eye-mask", "block-permutation", "block-permutation:key=a", "k-same-pixel"):
        assert caution(mode), mode
    for mode in ("solid", "solid:colour=red", "ficgan", "obfuscation-overlay"):
        assert caution(mode) is None, mode


def test_others_read_no_keys_and_no_folders() -> None:
    assert shown("block-permutation:key=hush,block=4") == "block-permutation:block=4"
    assert shown("fawkes:verifier=onnx:/home/me/r.onnx") == "fawkes:verifier=onnx:r.onnx"
    assert VideoSettings(mode="block-permutation:key=hush").to_dict()["mode"] == "block-permutation"


# -- films -------------------------------------------------------------------------------------------------------------


def job(index: int, x: float, size: float, mode: str, person: str = "p", image: Image | None = None) -> FrameJob:
    image = np.full((160, 220, 3), 127, np.uint8) if image is None else image
    return FrameJob(Frame(index, index, index / 25, image), [Appearance(1, person, face(x, 40, size), mode)])


def renderer(mode: str, **more: object) -> Renderer:
    return Renderer(VideoTools(Fixed(), methods=Methods(trusted={mode}, **more)), VideoSettings(mode=mode))  # type: ignore[arg-type]


def test_noise_stays_the_same_over_the_frames_of_a_person() -> None:
    """Or it would average out: the mean of many frames would be the face."""
    mode = "gaussian-noise:sigma=30"
    each = renderer(mode)
    images = each([job(0, 40, 50, mode), job(1, 41, 50, mode), job(2, 40, 50.4, mode)])
    patches = [image[(image != 127).any(-1)] for image in images]
    assert len(patches[0]) > 1000
    for patch in patches[1:]:
        np.testing.assert_array_equal(patch, patches[0])
    assert each.counts == {"gaussian-noise": 3}
    other = renderer(mode)([job(0, 40, 50, mode, "q")])[0]
    assert (other != images[0]).any()


def test_what_a_method_cannot_do_in_a_film_falls_back() -> None:
    mode = "pixelation:size=100"
    each = renderer(mode)
    image = each([job(0, 40, 50, mode)])[0]
    assert each.counts == {"plain": 1} and np.ptp(image[60:70, 60:70].reshape(-1, 3), axis=0).max() == 0


def test_a_file_may_not_run_programs() -> None:
    mode = "external:command=true {input} {output}"
    assert check_mode(mode) and Methods(trusted={mode})(mode).name == "external"
    with pytest.raises(InputError, match="only an option may"):
        Methods()(mode)
