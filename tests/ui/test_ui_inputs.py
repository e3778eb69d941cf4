"""Files and folders that a review is given: broken, too large, oddly named, many at once."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from desks import Desk
from PIL import Image

from ficgan.errors import InputError
from ficgan.ui import Review, free_name, server
from ficgan.ui.tasks import PictureTasks


def test_bad_uploads_get_a_sentence_and_leave_nothing(idle: Desk, png: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    def left() -> list[str]:
        return sorted(path.name for path in idle.review.folder.iterdir())

    clean = left()
    for data, name, words in (
        (png[: len(png) // 2], "half.png", "half.png: damaged or truncated"),
        (b"no picture", "words.jpg", "words.jpg"),
        (b"", "empty.png", "empty.png: is empty"),
        (b"no film", "film.mp4", "film.mp4"),
        (png, "letter.docx", "neither a photo nor a film"),
        (png, "", "neither a photo nor a film"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "<img src=x onerror=alert(1)>.png", "<img src=x onerror=alert(1)>.png"),
    ):
        error = idle.upload(data, name, code=422)["error"]
        assert words in error and str(idle.review.folder) not in error and "source-" not in error, error
        assert left() == clean, name
    monkeypatch.setitem(server.LIMITS, "photo", 1000)
    assert "is larger than" in idle.upload(png, code=422)["error"]
    pieces = idle.web.post("/api/upload", params={"name": "photo.png"}, content=iter([png[:900], png[900:]]))
    assert pieces.status_code == 422 and left() == clean  # without a stated length, too
    for body in ("[]", "{", '"text"', "[" * 10000):
        assert idle.web.post("/api/controls", content=body).status_code == 422


def test_names_of_uploads() -> None:
    names = ("../../etc/passwd.png", "C:\\Users\\me\\a.png", ".hidden.png", "a\0b\n.png", "x" * 400 + ".png", "ß💡.png")
    kept = ["passwd.png", "a.png", "hidden.png", "ab.png", "x" * 180 + ".png", "ß💡.png"]
    assert [server._file_name(name) for name in names] == kept


def test_an_opened_folder_lists_its_own_files_only(tmp_path: Path) -> None:
    root, outside = tmp_path / "photos", tmp_path / "secret.png"
    for place in ("a.png", "inner/b.PNG", ".hidden/c.png", "notes.txt", "project/d.png"):
        (root / place).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(root / place, "PNG")
    (root / "project" / ".ficgan-folder").write_text("{}")
    Image.new("RGB", (8, 8), "blue").save(outside)
    (root / "link.png").symlink_to(outside)
    (root / "twin.png").symlink_to(root / "a.png")
    found = PictureTasks().files(root)
    assert found == [("a.png", False), ("inner/b.PNG", False), ("twin.png", False)]
    review = Review(root / ".ficgan-ui", root, tmp_path / "out")
    review.add_folder(found)
    first = review.items()[0]
    assert review.source(first) == root / "a.png"
    (root / "a.png").unlink()
    (root / "a.png").symlink_to(outside)  # exchanged behind our back
    with pytest.raises(InputError, match="leads out of the opened folder"):
        review.source(first)
    with pytest.raises(InputError, match="stays in the list"):
        review.remove(first.id)
    review.close()
    assert free_name(tmp_path, "secret.png", ".png") == tmp_path / "secret-2.png"


def test_a_review_of_an_earlier_version_is_read(tmp_path: Path) -> None:
    Review(tmp_path / "review", None, tmp_path / "out").close()
    face = {"box": [1, 2, 9, 9], "landmarks": [[1, 1]] * 5, "score": 0.9, "mode": "keep", "draw": 2}
    old = {"draws": [0, 1, 2], "drawing": None, "person": 1}
    step = {"number": 1, "drop": 1, "faces": [face | old]}
    item = {"schema": "ficgan-ui-item/1", "id": "0123456789", "kind": "photo", "name": "a.png", "draws": {"1": [0]}}
    text = json.dumps(item | {"faces": [face | old], "past": [step]})
    (tmp_path / "review" / "item-0123456789.json").write_text(text)
    review = Review(tmp_path / "review", None, tmp_path / "out")
    read = review["0123456789"]
    assert (read.faces[0].mode, read.faces[0].draw, read.past[0].faces[0].mode) == ("keep", 2, "keep")
    review.close()


def test_many_files_at_once_wait_in_a_queue(idle: Desk) -> None:
    """None of them waits for the model, and all have a thumbnail."""
    small = io.BytesIO()
    Image.new("RGB", (40, 30), "green").save(small, "PNG")
    ids = {idle.upload(small.getvalue(), f"{n}.png")["id"] for n in range(25)}
    told = idle.ask("GET", "state")
    assert set(told["ids"]) == ids and told["model"] == "loading"
    assert all(item["thumb"] and item["state"] == "waiting" for item in told["items"])
    assert idle.ask("GET", f"state?since={told['revision']}")["items"] == []  # later only what changes is told
    assert "was not looked at yet" in idle.ask("PATCH", f"items/{told['ids'][0]}/faces/0", {}, code=422)["error"]
    idle.ask("DELETE", f"items/{told['ids'][0]}")
    assert len(idle.ask("GET", "state")["ids"]) == 24
    assert not list(idle.review.folder.glob(f"*{told['ids'][0]}*"))


def test_a_model_that_cannot_be_loaded_is_told(tmp_path: Path, png: bytes) -> None:
    def fail(seed: int) -> Any:
        raise InputError("the bank is of another model")

    desk = Desk(tmp_path, fail)
    item = desk.wait(desk.upload(png)["id"])
    assert item["state"] == "failed" and item["error"] == "the bank is of another model"
    assert desk.ask("GET", "state")["model"] == "the bank is of another model"
    desk.session.close()
