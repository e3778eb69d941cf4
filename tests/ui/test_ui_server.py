"""The review behind the page: who is let in, what is kept on disk, what a file becomes. One model for all tests."""

from __future__ import annotations

import errno
import io
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from desks import HOST, PHOTO, ROOT, TOKEN, Desk, pixels
from PIL import Image
from starlette.testclient import TestClient

from ficgan.cli.main import main
from ficgan.deidentify import Deidentifier
from ficgan.deidentify.review import Drawing, Retouch, ReviewedFace, deciding, read_decisions
from ficgan.errors import InputError
from ficgan.faces import Face
from ficgan.files import content_key
from ficgan.records import read_folder
from ficgan.ui import Review

# -- who is let in ----------------------------------------------------------------------------------------------------


def test_only_the_page_itself_is_answered(idle: Desk) -> None:
    web = TestClient(idle.web.app, base_url=f"http://{HOST}")
    for path in ("/", "/app.js", "/style.css", "/api/state", "/api/items/0123456789", "/nowhere"):
        assert web.get(path).status_code == 403, path
    assert web.get("/", params={"token": "wrong"}).status_code == 403
    first = web.get("/", params={"token": TOKEN}, follow_redirects=False)
    assert first.status_code == 303 and first.headers["location"] == "/"
    assert "HttpOnly" in first.headers["set-cookie"] and "SameSite=strict" in first.headers["set-cookie"]
    page = web.get("/")  # the cookie is set now
    assert page.status_code == 200 and "<script src=" in page.text and "token" not in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    for headers in (
        {"host": "evil.example"},
        {"host": "localhost:4321"},
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        answer = web.get("/api/state", headers=headers)
        assert answer.status_code == 403 and answer.text.endswith((".", "it.", "refused.")), headers
    # A change needs an origin, which no foreign page can forge, or the token in a header.
    assert web.post("/api/save").status_code == 403
    assert web.post("/api/save", headers={"origin": f"http://{HOST}"}).status_code == 200
    assert "too large" in web.post("/api/save", headers={"origin": f"http://{HOST}"}, content=b" " * (1 << 21)).text
    assert web.get("/api/items/..%2f..%2fetc%2fpasswd/video").status_code == 404


def test_the_page_loads_nothing_from_elsewhere_and_sets_no_markup() -> None:
    page = ROOT / "ficgan" / "ui" / "page"
    for path in page.iterdir():
        text = path.read_text()
        assert "://" not in text and "@import" not in text, path
        assert "innerHTML" not in text and "insertAdjacentHTML" not in text and "eval(" not in text, path
    html = (page / "index.html").read_text()
    assert "style=" not in html and "onclick" not in html and html.count("<script") == 1


# -- photos -----------------------------------------------------------------------------------------------------------


def test_a_photo_from_drop_to_result(desk: Desk, engine: Deidentifier, png: bytes) -> None:
    number = desk.upload(png)["id"]
    item = desk.wait(number)
    assert item["state"] == "ready" and item["faces"] == 1 and (item["width"], item["height"]) == (512, 512)
    found = item["list"][0]
    assert found["action"] == "generated" and found["score"] > 0.8 and not found["drawn"]
    for kind in ("thumb", "before", "after"):
        picture = desk.web.get(f"/api/items/{number}/picture/{kind}")
        assert picture.status_code == 200 and picture.headers["content-type"] == "image/jpeg"
    assert desk.web.get(f"/api/items/{number}/picture/secret").status_code == 404
    one = f"items/{number}"

    out = desk.review.output
    assert desk.ask("POST", f"{one}/save")["saved"] == "photo.png"
    source = np.asarray(Image.open(io.BytesIO(png)))
    replaced = pixels(out / "photo.png")
    direct = engine(source)
    assert np.array_equal(replaced, direct.image)
    account = json.loads((out / "photo.png.json").read_text())
    assert account["faces"][0]["action"] == "generated" and account["output"] == "photo.png"
    assert str(desk.review.folder) not in json.dumps(account)

    # Another draw, then kept, with a box over a missed face.
    again = desk.ask("PATCH", f"{one}/faces/0", {"draw": 1})
    assert again["changed"] and again["list"][0]["draw"] == 1
    assert desk.ask("PATCH", f"{one}/faces/0", {"mode": "keep"})["list"][0]["action"] == "kept"
    drawn = desk.ask("POST", f"{one}/faces", {"box": [300, 300, 360, 380]})
    assert [(face["drawn"], face["action"]) for face in drawn["list"]] == [(False, "kept"), (True, "masked")]
    assert desk.ask("POST", f"{one}/save")["saved"] == "photo-2.png"  # nothing is overwritten
    assert np.array_equal(pixels(out / "photo.png"), replaced)
    edited = pixels(out / "photo-2.png")
    assert np.ptp(edited[300:380, 300:360].reshape(-1, 3), axis=0).max() == 0
    x0, y0, x1, y1 = (int(value) for value in found["box"])
    assert np.array_equal(edited[y0:y1, x0:x1], source[y0:y1, x0:x1])

    side = json.loads((out / "photo-2.png.json").read_text())
    jsonschema.validate(side, json.loads((ROOT / "docs" / "sidecar.schema.json").read_text()))
    found = read_folder(out)
    assert len(found.records) == 2 and found.manifests == 1 and not found.undone  # `ficgan report` reads them

    # The box goes again; a found face cannot be removed.
    assert len(desk.ask("DELETE", f"{one}/faces/1")["list"]) == 1
    assert desk.ask("PATCH", f"{one}/faces", {"mode": "blur"})["list"][0]["action"] == "blurred"
    for method, place, wrong in (
        ("DELETE", "faces/0", None),
        ("PATCH", "faces/0", {"mode": "pixie dust"}),
        ("PATCH", "faces/9", {"mode": "keep"}),
        ("PATCH", "faces/0", {"path": "/etc/passwd"}),
        ("POST", "faces", {"box": [1, 2, 3]}),
    ):
        assert desk.ask(method, f"{one}/{place}", wrong, code=422)["error"]


def decided(item: dict[str, Any]) -> list[tuple[Any, ...]]:
    return [(face["box"], face["mode"], face["draw"]) for face in item["list"]]


@pytest.mark.slow
def test_everything_can_be_undone_and_redone_after_a_restart_too(
    tmp_path: Path, engine: Deidentifier, png: bytes
) -> None:
    desk = Desk(tmp_path, lambda seed: engine)
    number = desk.upload(png)["id"]
    one, states = f"items/{number}", [desk.wait(number)]
    picture = f"/api/{one}/picture/after"
    first = desk.web.get(picture).content
    controls = {**states[0]["controls"], "k": 200}
    for method, place, body in (
        ("PATCH", "faces/0", {"draw": 1}),
        ("PATCH", "faces/0", {"mode": "keep"}),
        ("POST", "faces", {"box": [300, 300, 360, 380]}),
        ("PATCH", "faces", {"mode": "blur"}),
        ("DELETE", "faces/1", None),
        ("POST", "controls", controls),
    ):
        states.append(desk.ask(method, f"{one}/{place}", body))
    desk.ask("POST", "items", {"ids": [number], "reviewed": True})
    states.append(desk.ask("GET", one))
    desk.ask("POST", f"{one}/undo")
    desk.ask("POST", f"{one}/undo")
    assert desk.web.get(f"/api/{one}/draws/0/0").headers["content-type"] == "image/jpeg"
    assert desk.web.get(f"/api/{one}/draws/9/0").status_code == 404
    desk.ask("POST", f"{one}/undo?redo")
    desk.ask("POST", f"{one}/undo?redo")
    desk.session.close()
    desk = Desk(tmp_path, lambda seed: engine)
    told = ("reviewed", "controls", "own_controls")
    for state in states[-2::-1]:
        now = desk.ask("POST", f"{one}/undo")
        assert decided(now) == decided(state) and {n: now[n] for n in told} == {n: state[n] for n in told}
    assert desk.web.get(picture).content == first and now["redo"] == len(states) - 1
    assert now["list"][0]["draws"] == [0, 1]  # what was drawn stays at hand
    assert "nothing to undo" in desk.ask("POST", f"{one}/undo", code=422)["error"]
    for state in states[1:]:
        assert decided(desk.ask("POST", f"{one}/undo?redo")) == decided(state)
    for _ in range(3):
        desk.ask("POST", f"{one}/undo")
    desk.ask("PATCH", f"{one}/faces/0", {"mode": "black"})
    assert "nothing to redo" in desk.ask("POST", f"{one}/undo?redo", code=422)["error"]  # another way was taken
    desk.session.close()


def test_an_action_on_several_files_is_one_step(desk: Desk, png: bytes) -> None:
    ids = [desk.upload(png, f"{n}.png")["id"] for n in range(3)]
    for number in ids:
        desk.wait(number)

    def modes() -> list[list[str]]:
        return [[face["mode"] for face in desk.wait(number)["list"]] for number in ids]

    before = desk.ask("GET", "state")["controls"]
    desk.ask("POST", "items", {"ids": ids[:2], "mode": "plain"})
    desk.ask("PATCH", f"items/{ids[2]}/faces/0", {"mode": "keep"})
    desk.ask("POST", "controls", {**before, "k": 100})
    assert modes() == [["plain"], ["plain"], ["keep"]]
    assert desk.ask("POST", "undo")["changed"] == [""]  # the settings
    assert desk.ask("GET", "state")["controls"] == before
    assert desk.ask("POST", "undo")["changed"] == [ids[2]]
    assert set(desk.ask("POST", "undo")["changed"]) == set(ids[:2]) and modes() == [[""]] * 3
    assert "nothing to undo" in desk.ask("POST", "undo", code=422)["error"]
    assert set(desk.ask("POST", "undo?redo")["changed"]) == set(ids[:2]) and modes() == [["plain"], ["plain"], [""]]
    desk.ask("POST", "items", {"ids": ids[:1], "reviewed": True})
    assert not desk.ask("GET", "state")["redo"]  # what followed is another way now
    for wrong in ({"ids": "all"}, {"ids": ids, "mode": "pixie"}, {"ids": ids, "speed": 1}):
        assert desk.ask("POST", "items", wrong, code=422)["error"]


@pytest.mark.slow
def test_one_person_over_a_folder_is_one_person(tmp_path: Path, engine: Deidentifier, png: bytes) -> None:
    """Two photos of one face and one of none: linked, decided on once, undone, and the same face after a restart."""
    desk, photo = Desk(tmp_path, lambda seed: engine), Image.open(io.BytesIO(png))
    pictures = {"a": photo, "b": photo.resize((420, 420)), "c": photo.crop((0, 300, 512, 512))}
    ids = {}
    for name, image in pictures.items():
        buffer = io.BytesIO()
        image.save(buffer, "PNG")
        ids[name] = desk.upload(buffer.getvalue(), f"{name}.png")["id"]
    for number in ids.values():
        desk.wait(number)
    assert desk.web.get("/api/people").json() == []
    assert desk.ask("POST", "people", {})["people"] == 1
    a, b, c = (desk.wait(ids[name]) for name in "abc")
    assert [face["person"] for item in (a, b) for face in item["list"]] == [1, 1] and not c["linked"]
    (row,) = desk.web.get("/api/people").json()
    assert [face["id"] for face in row["faces"]] == [ids["a"], ids["b"]]
    for face in row["faces"]:
        answer = desk.web.get(f"/api/items/{face['id']}/faces/{face['face']}/picture")
        assert answer.headers["content-type"] == "image/jpeg"
    # What is decided in one photo counts in both, and is one step.
    desk.ask("PATCH", f"items/{ids['a']}/faces/0", {"draw": 1})
    desk.ask("PATCH", f"items/{ids['b']}/faces/0", {"mode": "black"})
    assert [desk.wait(ids[name])["list"][0][key] for name in "ab" for key in ("mode", "draw")] == ["black", 1] * 2
    desk.ask("POST", f"items/{ids['a']}/undo")
    assert [desk.wait(ids[name])["list"][0]["mode"] for name in "ab"] == ["", ""]
    # The new face is one face, nearer than to that of another draw, and the same after a restart.
    for name in "ab":
        desk.session.photos.redraw(ids[name]).result(60)

    def shown(desk: Desk, name: str) -> np.ndarray:
        data = desk.web.get(f"/api/items/{ids[name]}/picture/after").content
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB").resize((420, 420))).astype(int)

    x0, y0, x1, y1 = (int(value * 420 / 512) for value in a["list"][0]["box"])
    first, second = (shown(desk, name)[y0:y1, x0:x1] for name in "ab")
    apart = np.abs(first - second).mean()
    desk.session.close()
    desk = Desk(tmp_path, lambda seed: engine)
    desk.ask("PATCH", f"items/{ids['b']}/faces/0", {"mode": "keep"})
    desk.ask("POST", f"items/{ids['b']}/undo")
    assert np.abs(shown(desk, "b")[y0:y1, x0:x1] - second).mean() < 1
    desk.ask("PATCH", f"items/{ids['a']}/faces/0", {"draw": 2})
    assert apart < np.abs(shown(desk, "a")[y0:y1, x0:x1] - second).mean() / 1.5
    desk.session.close()
    outcome = CliRunner().invoke(main, ["purge", str(desk.review.folder)])  # identity codes go, too
    assert outcome.exit_code == 0 and not desk.review.folder.exists(), outcome.output


@pytest.mark.slow
def test_possible_faces_are_named_and_covered(desk: Desk, png: bytes) -> None:
    """A small face among noise is too weak for a find; covering it leaves none open, and undo opens it again."""
    source = np.asarray(Image.open(io.BytesIO(png)))
    rng = np.random.default_rng(3)
    canvas = np.full((400, 900, 3), 128, np.uint8)
    for n, side in enumerate((9, 11, 13, 15, 17, 19)):
        face = Image.fromarray(source[40:200, 150:310]).resize((side, side))
        noisy = np.asarray(face, np.int16) + rng.integers(-100, 100, (side, side, 3))
        canvas[180 : 180 + side, 60 + 140 * n : 60 + 140 * n + side] = noisy.clip(0, 255)
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, "PNG")
    number = desk.upload(buffer.getvalue())["id"]
    item = desk.wait(number)
    found, places = item["faces"], [place for place in item["places"] if place["open"]]
    assert len(places) == item["possible"] > 0
    covered = desk.ask("POST", f"items/{number}/possible", {"mode": "plain"})
    assert covered["possible"] == 0 and covered["faces"] == found + len(places)
    saved = pixels(desk.review.output / desk.ask("POST", f"items/{number}/save")["saved"])
    for place in places:
        x0, y0, x1, y1 = (round(value) for value in place["box"])
        assert (saved[y0 + 1 : y1 - 1, x0 + 1 : x1 - 1] != canvas[y0 + 1 : y1 - 1, x0 + 1 : x1 - 1]).any()
    assert desk.ask("POST", f"items/{number}/undo")["possible"] == len(places)


def reviewed(face: Face) -> ReviewedFace:
    return ReviewedFace(box=face.box.tolist(), landmarks=face.landmarks.tolist(), score=face.score)


@pytest.mark.slow
def test_controls(desk: Desk, engine: Deidentifier, png: bytes) -> None:
    number = desk.upload(png)["id"]
    item = desk.wait(number)
    one, usual = f"items/{number}", desk.web.get(f"/api/items/{number}/picture/after").content
    state = desk.ask("GET", "state")
    assert state["layers"] == 10 and {"Female", "Male"} <= set(state["attributes"])
    changed = {**item["controls"], "k": 200, "layer": 2, "psi": 0.3, "attributes": "Male"}
    own = desk.ask("POST", f"{one}/controls", changed)
    assert own["own_controls"] and own["controls"]["k"] == 200
    assert desk.web.get(f"/api/items/{number}/picture/after").content != usual
    wrong = {"k": 10**9, "layer": 99, "psi": "much", "attributes": "Purple", "mode": "keep", "fallback": "x", "none": 1}
    for name, value in wrong.items():
        assert desk.ask("POST", f"{one}/controls", {**changed, name: value}, code=422)["error"]
    assert desk.ask("GET", one)["controls"] == changed
    # A face has controls of its own, and goes back to those of the photo.
    photo = desk.web.get(f"/api/{one}/picture/after").content
    kind = {name: changed[name] for name in ("psi", "fallback")} | {"k": 50, "layer": 0, "keep_kind": "none"}
    assert desk.ask("PATCH", f"{one}/faces/0", {"drawing": kind})["list"][0]["drawing"]["k"] == 50
    alone = desk.web.get(f"/api/{one}/picture/after").content
    assert alone != photo and desk.ask("PATCH", f"{one}/faces/0", {"drawing": {"k": 10**9}}, code=422)["error"]
    source = np.asarray(Image.open(io.BytesIO(png)))
    faces = [reviewed(face) for face in engine.detector.detect(source)]
    direct = Retouch(engine, source).render(faces, Drawing(**kind).applied(engine))
    shown = np.asarray(Image.open(io.BytesIO(alone))).astype(int)
    assert np.abs(shown - direct.image).mean() < 2  # as if the photo had them
    desk.ask("POST", f"{one}/undo")
    assert desk.web.get(f"/api/{one}/picture/after").content == photo
    # What is exported holds the controls and the number of the draw: with the same seed the pixels are the same.
    desk.ask("PATCH", f"{one}/faces/0", {"draw": 2})
    saved = pixels(desk.review.output / desk.ask("POST", f"{one}/save")["saved"])
    file = desk.review.folder.parent / "decisions.json"
    file.write_bytes(desk.web.get(f"/api/{one}/decisions.json").content)
    applied = deciding(engine, read_decisions(file))(source, key=content_key(source))
    assert np.array_equal(applied.image, saved) and not np.array_equal(saved, engine(source).image)
    with pytest.raises(InputError, match="nothing was decided on this photo"):
        deciding(engine, read_decisions(file))(source[::-1], key=content_key(source[::-1]))
    desk.ask("PATCH", f"{one}/faces/0", {"draw": 0})
    # For all files: those of its own go, and the same picture as at first comes back.
    desk.ask("POST", "controls", item["controls"])
    desk.session.photos.redraw(number).result(60)
    assert not desk.ask("GET", one)["own_controls"]
    assert desk.web.get(f"/api/items/{number}/picture/after").content == usual


@pytest.mark.slow
def test_a_box_over_a_face_finds_it_on_a_closer_look_and_an_empty_one_can_only_be_covered(engine: Deidentifier) -> None:
    photo = np.asarray(Image.open(PHOTO).convert("RGB"))
    retouch = Retouch(engine, photo, key="a photo")
    (found,) = (reviewed(face) for face in engine.detector.detect(photo))
    assert np.array_equal(retouch.render([found]).image, engine(photo, key="a photo").image)
    assert retouch.closer(found.box).score > 0.5
    empty = reviewed(retouch.closer((10, 400, 60, 460)))
    done = retouch.render([found.model_copy(update={"mode": "keep"}), empty])
    assert empty.score == 0 and done.faces[1].action == "masked" and done.uncovered == 0
    for box in ((600, 600, 700, 700), (5, 5, 6, 6)):
        with pytest.raises(InputError):
            retouch.closer(box)


# -- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_everything_outlives_the_program_and_purge_removes_it(tmp_path: Path, engine: Deidentifier, png: bytes) -> None:
    first = Desk(tmp_path, lambda seed: engine)
    number = first.upload(png, "<b>me<b>.png")["id"]
    first.wait(number)
    first.ask("PATCH", f"items/{number}/faces/0", {"mode": "keep"})
    first.ask("POST", f"items/{number}/faces", {"box": [300, 300, 360, 380]})
    before = first.ask("GET", f"items/{number}")
    with pytest.raises(InputError, match="is in use by another ficgan"):
        Review(first.review.folder, None, tmp_path / "out")
    first.session.close()
    for path in (first.review.folder, *first.review.folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path

    class Blind:
        name = "blind"

        def detect(self, image: Any) -> list[Any]:
            raise AssertionError("the faces are known")

    blind = engine.with_controls()
    blind.detector = Blind()
    second = Desk(tmp_path, lambda seed: blind)
    again = second.ask("GET", f"items/{number}")
    same = ("name", "state", "list", "changed", "width", "height", "controls")
    assert {name: again[name] for name in same} == {name: before[name] for name in same}
    assert again["name"] == "<b>me<b>.png"
    assert second.ask("PATCH", f"items/{number}/faces/0", {"mode": ""})["list"][0]["action"] == "generated"
    assert second.review.settings.seed == first.review.settings.seed
    second.session.close()

    third = Desk(tmp_path, lambda seed: blind)
    lost = third.upload(png, "lost.bmp")["id"]
    assert third.ask("POST", f"items/{number}/save")["saved"]
    third.session.close()
    assert [name for name, _, _ in read_folder(tmp_path / "out").undone] == [
        "lost.bmp"
    ]  # the page of a report names it
    assert lost != number

    outcome = CliRunner().invoke(main, ["purge", str(first.review.folder)])
    assert outcome.exit_code == 0, outcome.output
    assert not first.review.folder.exists()


@pytest.mark.slow
def test_a_file_that_was_touched_keeps_what_was_decided(tmp_path: Path, engine: Deidentifier, png: bytes) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    path = root / "me.png"
    path.write_bytes(png)

    def again() -> tuple[Desk, dict[str, Any]]:
        desk = Desk(tmp_path, lambda seed: engine, root)
        while not (ids := desk.ask("GET", "state")["ids"]):
            time.sleep(0.05)
        return desk, desk.wait(ids[0])

    desk, item = again()
    desk.ask("PATCH", f"items/{item['id']}/faces/0", {"mode": "keep"})
    desk.ask("POST", f"items/{item['id']}/faces", {"box": [300, 300, 360, 380]})
    desk.session.close()
    os.utime(path, ns=(1, 1))
    desk, item = again()
    assert [(face["mode"], face["drawn"]) for face in item["list"]] == [("keep", False), ("", True)]
    assert item["state"] == "ready" and not item["notes"]
    desk.session.close()
    Image.open(io.BytesIO(png)).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(path)
    desk, item = again()
    assert [face["mode"] for face in item["list"]] == [""] and item["notes"] == ["The file has changed."]
    desk.session.close()


def test_projects_of_other_versions_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    place, out = tmp_path / "review", tmp_path / "out"
    Review(place, None, out).close()
    whole = (place / "ui.json").read_text()
    for text in (whole.replace("project/1", "project/2"), whole[:-20], whole.replace('"seed"', '"sed"')):
        (place / "ui.json").write_text(text)
        with pytest.raises(InputError):
            Review(place, None, out)
        assert (place / "ui.json").read_text() == text  # refused, not repaired
    (place / "ui.json").write_text(whole)
    Review(place, None, out).close()  # the lock is free after a refusal
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "letter.txt").write_text("dear")
    for folder, root in ((place, tmp_path), (tmp_path / "theirs", None)):
        with pytest.raises(InputError):
            Review(folder, root, out)


def test_a_full_disk_loses_nothing(desk: Desk, png: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    number = desk.upload(png)["id"]
    before = desk.wait(number)
    entry = (desk.review.folder / f"item-{number}.json").read_bytes()

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("ficgan.files.os.fsync", full)
        for method, path, body in (
            ("PATCH", f"items/{number}/faces/0", {"mode": "keep"}),
            ("POST", f"items/{number}/faces", {"box": [300, 300, 360, 380]}),
            ("POST", f"items/{number}/save", None),
        ):
            answer = desk.web.request(method, f"/api/{path}", json=body)
            assert answer.status_code in (422, 507) and "No space left on device" in answer.json()["error"], path
        assert "No space left" in desk.upload(png, code=422)["error"]
    now = desk.ask("GET", f"items/{number}")
    assert [face["mode"] for face in now["list"]] == [face["mode"] for face in before["list"]]
    assert (desk.review.folder / f"item-{number}.json").read_bytes() == entry
    assert not list(desk.review.output.rglob("*.png")) and not list(desk.review.folder.glob(".ficgan-*.tmp"))
    assert len(desk.ask("GET", "state")["ids"]) == 1
    assert desk.ask("POST", f"items/{number}/save")["saved"] == "photo.png"
