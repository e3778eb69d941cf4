"""Side-cars against their schema, the report and the boxes made from them; credentials, read by c2pa."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from page_reader import Page
from PIL import Image
from stand_ins import certificate, invoke

from ficgan.cli.deid import deid
from ficgan.cli.review import export, report
from ficgan.errors import UsageError
from ficgan.records import Folder, Record
from ficgan.records.exports import Credentials, of_project
from ficgan.records.report import STYLE, page
from ficgan.records.risks import at_risk, verdict
from ficgan.video.project import Project, Source
from ficgan.video.tracks import Track

ROOT = Path(__file__).resolve().parents[2]
ASTRONAUT = ROOT / "tools" / "astronaut.jpg"
SCHEMA = json.loads((ROOT / "docs" / "sidecar.schema.json").read_text())
HOSTILE = "<img src=x onerror=alert(1)>&\"'.jpg"


def call(command: Any, *arguments: Any, code: int = 0) -> dict[str, Any]:
    found, said, err = invoke(command, *arguments)
    assert found == code, err
    return json.loads(said) if said else {"said": err}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the command: two photos in a tree, one of them without a face."""
    source, out = tmp_path_factory.mktemp("in"), tmp_path_factory.mktemp("out")
    (source / "trip" / "day 1").mkdir(parents=True)
    shutil.copy(ASTRONAUT, source / "trip" / "day 1" / HOSTILE)
    Image.new("RGB", (64, 48), (40, 90, 60)).save(source / "field.png")
    call(deid, source, "-o", out, "--mode", "blur", "--seed", "7", "--quiet")
    return out


@pytest.fixture
def folder(results: Path, tmp_path: Path) -> Path:
    """A copy of the results that a test may spoil."""
    return Path(shutil.copytree(results, tmp_path / "out"))


def sidecar(folder: Path) -> tuple[Path, dict[str, Any]]:
    path = folder / "trip" / "day 1" / f"{HOSTILE}.json"
    return path, json.loads(path.read_text())


def test_side_cars_are_as_the_schema_says(results: Path) -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    _, record = sidecar(results)
    jsonschema.validate(record, SCHEMA)
    jsonschema.validate(json.loads((results / "field.png.json").read_text()), SCHEMA)
    assert record["schema"] == "ficgan-sidecar/2" and record["kind"] == "photo" and record["size"] == [512, 512]
    assert record["path"] == f"trip/day 1/{HOSTILE}"
    options = record["options"]
    assert options["mode"] == "blur" and options["seed"] is True and options["k"] == 3000
    assert "7" not in json.dumps(options).replace("0.7", "") and "/" not in json.dumps(options)  # no seed, no folder


@pytest.mark.slow
def test_the_side_car_of_a_film_is_as_the_schema_says(tmp_path: Path) -> None:
    from clips import make_clip

    photo = np.asarray(Image.open(ASTRONAUT).convert("RGB"))[:256, 64:320]
    film = tmp_path / "film.mp4"
    make_clip(film, 8, size=(256, 256), pictures=[photo] * 8)
    call(deid, film, "-o", tmp_path / "out", "--mode", "solid", "--quiet")
    record = json.loads((tmp_path / "out" / "film.mp4.json").read_text())
    jsonschema.validate(record, SCHEMA)
    assert record["size"] == [256, 256] and record["kind"] == "film" and record["path"] == "film.mp4"
    # A finding of the check is shown as a picture of the result, and the page says what it means.
    record["check"]["findings"] = [{"frame": 3, "time": 0.1, "box": [117, 58, 206, 178], "distance": 0.1}]
    (tmp_path / "out" / "film.mp4.json").write_text(json.dumps(record))
    summary = call(report, tmp_path / "out", code=3)
    assert summary["unsafe"] == 1 and summary["records"] == 1
    page = (tmp_path / "out" / "report.html").read_text()
    (made,) = pictures(page)
    assert "0:00.10" in page and "Still recognised" in page
    assert np.asarray(made)[70:120, 70:120].std() < 30  # the cover, not the face
    # Nor is a page fit to sign without a word where a rule kept faces.
    call(deid, film, "-o", tmp_path / "kept", "--mode", "solid", "--keep-span", "0-9", "--quiet")
    assert call(report, tmp_path / "kept")["fit"] == "if"
    assert "8 of 8 sightings of faces in 1 film left as found" in (tmp_path / "kept" / "report.html").read_text()


def pictures(page: str) -> list[Image.Image]:
    found = re.findall(r'src="data:image/jpeg;base64,([^"]+)"', page)
    return [Image.open(io.BytesIO(base64.b64decode(data))) for data in found]


def test_the_report(folder: Path) -> None:
    (folder / "manifest.jsonl").write_text(
        '{"input": "trip/a.jpg", "state": "failed", "error": "damaged"}\n'
        '{"input": "trip/b.jpg", "state": "failed", "error": "busy"}\n'
        '{"input": "trip/b.jpg", "state": "written"}\n{"inp'
    )
    summary = call(report, folder, code=3)
    assert (summary["records"], summary["faces"], summary["at_risk"], summary["undone"]) == (2, 1, 1, 1)
    assert summary["fit"] == "no"
    page = (folder / "report.html").read_text()
    seen = Page(page)
    # Nothing runs, nothing is loaded, names are text.
    assert not {"script", "a", "iframe", "form", "link", "object"} & {tag for tag, _ in seen.elements}
    assert all(attrs.get("src", "data:").startswith("data:image/jpeg") for tag, attrs in seen.elements if tag == "img")
    assert not any(name.startswith("on") for _, attrs in seen.elements for name in attrs)
    assert HOSTILE in seen.words
    policy = next(
        attrs["content"] for tag, attrs in seen.elements if attrs.get("http-equiv") == "Content-Security-Policy"
    )
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    assert policy is not None and "default-src 'none'" in policy and f"'sha256-{digest}'" in policy
    assert "unsafe" not in policy
    counts = ["Photos2", "without any face found1", "Faces in photos1", "blurred1"]
    answer = [
        "can be undone in part",
        "detector centerface",
        "trip/a.jpg (failed): damaged",
        "field.png",
        "keep it secret",
    ]
    assert [words for words in (*counts, *answer) if words not in seen.words] == []
    assert "1 input without a result" in seen.words.rpartition("Signature")[2]  # the last line
    assert "trip/b.jpg" not in seen.words  # done at last
    assert "@media print" in STYLE and "@page" in STYLE
    # The picture is of the result: the blurred face, which is not the source's.
    (face,) = pictures(page)
    x0, y0, x1, y1 = sidecar(folder)[1]["faces"][0]["box"]
    margin = 0.35 * max(x1 - x0, y1 - y0)
    place = tuple(int(v) for v in (x0 - margin, y0 - margin, x1 + margin + 1, y1 + margin + 1))
    away = []
    for file in (folder / "trip" / "day 1" / HOSTILE, ASTRONAUT):
        crop = Image.open(file).convert("RGB").crop(place)
        crop.thumbnail((192, 192))
        away.append(np.abs(np.asarray(face, float) - np.asarray(crop, float))[60:130, 60:130].mean())
    assert away[0] < 6 < 12 < away[1]
    # It is made once, unless asked otherwise.
    assert "--overwrite" in call(report, folder, code=2)["said"]
    path, record = sidecar(folder)
    outside = [{**record["faces"][0], "box": box} for box in ([900, 900, 950, 950], [-90, -90, -80, -80])]
    path.write_text(json.dumps({**record, "faces": outside}))
    call(report, folder, "--overwrite", code=3)
    assert pictures((folder / "report.html").read_text()) == []


def test_faces_at_risk_are_ordered_and_named() -> None:
    changes: list[dict[str, Any]] = [
        {"distance": 0.61},
        {"action": "masked", "distance": None},
        {"doubt": "an animal", "distance": 1.0},
        {"action": "kept", "covered": False, "note": "in --keep"},
        {"covered": False},
        {"matched": True, "distance": 0.2},
    ]
    found = at_risk([Record(Path("o/a"), "a", photo_of(*changes))])
    assert [risk.why for risk in found] == ["matched", "uncovered", "kept", "close", "doubt"]
    wanted = ["in --keep", "distance 0.610, recognised below 0.600", "replaced; an animal"]
    assert [risk.detail for risk in found][2:] == wanted


FACE = {"box": [4, 4, 20, 20], "action": "generated", "matched": False, "covered": True, "distance": 0.9, "score": 0.9}
PHOTO = {
    "kind": "photo",
    "options": {},
    "mode": "ficgan",
    "gate": "dlib",
    "gate_threshold": 0.6,
    "detector": "centerface",
}
FILM = {
    "kind": "film",
    "options": {},
    "mode": "ficgan",
    "detector": "centerface",
    "frames": 41,
    "tracks": 3,
    "people": 3,
    "faces_by_action": {"generated": 123},
    "check": {"checked": True, "detector": "centerface", "recognizer": "dlib", "findings": []},
}
KEPT = {"rule": "span on everybody", "reason": "given time", "start": 0.0, "end": 2.0, "people": [1, 2], "rows": 72}


def photo_of(*faces: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {**PHOTO, "faces": [{**FACE, **face} for face in faces], **more}


@pytest.mark.parametrize(
    ("data", "fit", "named"),
    [
        (photo_of({}), "yes", []),
        (FILM, "yes", []),
        (
            {**FILM, "faces_by_action": {"kept": 72, "generated": 51}, "exemptions": [KEPT]},
            "if",
            ["72 of 123 sightings", "everybody from 0 s to 2 s", "given time", "people 1, 2"],
        ),
        ({**FILM, "edits": ["Person 2 is hidden, mode black."]}, "if", ["decided on by hand", "Person 2 is hidden"]),
        ({**FILM, "review": [{"time": 1.0, "box": [1, 2, 9, 9], "reason": "left"}]}, "if", ["a face was lost"]),
        ({**FILM, "check": {**FILM["check"], "checked": False}}, "if", ["no recogniser checked"]),  # type: ignore[dict-item]
        ({**FILM, "faces_by_action": {"blur": 9}}, "if", ["blurred"]),
        ({**FILM, "damage": ["it ends early"]}, "if", ["damaged", "it ends early"]),
        ({**FILM, "tracks": 0, "faces_by_action": {}}, "if", ["without any face found"]),
        (
            photo_of({}, {"action": "kept", "covered": False, "note": "it matches me.jpg"}),
            "if",
            ["1 face of 1 photo left", "it matches me.jpg"],
        ),
        (photo_of({}, possible_faces=[{"box": [30, 3, 40, 9], "score": 0.3}]), "if", ["1 place with a possible face"]),
        (photo_of({"score": 0, "action": "plain"}), "if", ["decided on by hand", "1 area drawn"]),
        (photo_of({"action": "blurred"}), "if", ["blurred"]),
        (photo_of({"action": "masked"}, options={"fallback": "mosaic"}), "if", ["pixelated"]),
        (photo_of({}, gate=None), "if", ["no recogniser checked"]),
        (photo_of(), "if", ["without any face found"]),
        (photo_of({"matched": True}), "no", ["still recognised"]),
        (photo_of({"covered": False}, {"action": "kept", "covered": False}), "no", ["not covered", "left as found"]),
    ],
)
def test_a_page_is_fit_to_sign_only_where_it_names_what_was_left(
    data: dict[str, Any], fit: str, named: list[str]
) -> None:
    folder = Folder(Path("out"), [Record(Path("out/x"), "the file", data)], manifests=1)
    found = verdict(folder)
    seen = Page(page(folder, title="set", made=datetime(2026, 1, 1), version="1")).words
    assert found.fit == fit and seen.rstrip().endswith(found.line) and "the file" in seen
    assert all(words in seen for words in named), seen
    # The same where something else keeps it from being signed.
    folder.undone.append(("in/lost.jpg", "failed", "in/lost.jpg: damaged"))
    folder.undone.append(("in/raw.NEF", "failed", "in/raw.NEF: .nef files are not read"))
    seen = Page(page(folder, title="set", made=datetime(2026, 1, 1), version="1")).words
    assert verdict(folder).fit == "no" and "2 inputs without a result" in verdict(folder).line
    assert all(words in seen for words in [*named, "in/lost.jpg: damaged", "formats that are not read", "in/raw.NEF"])


def test_what_is_signed_can_be_checked(folder: Path) -> None:
    digest = call(report, folder)["sha256"]
    kept = (folder / "report.html").read_bytes()
    assert digest.encode() in kept
    assert call(report, folder, "--signed", digest[:16].upper())["same"] is True
    for wrong in ("", digest[:15], "g" * 64, digest + "0"):
        call(report, folder, "--signed", wrong, code=2)
    assert call(report, folder, "--signed", "0" * 64, code=3)["same"] is False
    field, lost, manifest = (folder / name for name in ("field.png", "stray.png", "manifest.jsonl"))
    before, entries = field.read_bytes(), manifest.read_bytes()
    failed = b'{"input": "b.jpg", "output": "b.jpg", "state": "failed"}\n'
    # A result that was changed, a file that came, an input that failed.
    field.write_bytes(before + b" ")
    assert call(report, folder, "--signed", digest, code=3)["changed"] == 1
    field.write_bytes(before)
    lost.write_bytes(before)
    assert call(report, folder, "--signed", digest, code=3)["same"] is False
    lost.unlink()
    manifest.write_bytes(entries + failed)
    assert call(report, folder, "--signed", digest, code=3)["same"] is False
    made = b'{"input": "./b.jpg", "output": "b.jpg", "state": "written"}\n'  # by another run, from another name
    manifest.write_bytes(entries + failed + made)
    assert call(report, folder, "--signed", digest)["same"] is True
    path, record = sidecar(folder)
    path.write_text(json.dumps({**record, "notes": [], "k": 2}))
    assert call(report, folder, "--signed", digest, code=3)["same"] is False
    assert (folder / "report.html").read_bytes() == kept


def test_what_cannot_be_vouched_for_is_told(folder: Path) -> None:
    path, record = sidecar(folder)
    result = path.with_suffix("")
    Image.open(result).transpose(Image.Transpose.ROTATE_90).save(result, format="JPEG")  # edited afterwards
    Image.new("RGB", (8, 8)).save(folder / "stray.png")
    (folder / "broken.jpg.json").write_text("{")
    (folder / "newer.jpg.json").write_text(json.dumps({**record, "schema": "ficgan-sidecar/9"}))
    (folder / "other.jpg.json").write_text('{"tool": "another"}')
    face, film = record["faces"][0], {**record, **FILM, "size": None}
    boxes = [[{**face, "box": box}] for box in ([9, 9, 2, 2], [0, 0, 9, float("nan")])]
    spoilt = [{**record, "faces": faces} for faces in ("abc", [{"box": face["box"]}], *boxes)]
    spoilt += [{**record, **change} for change in ({"options": "x"}, {"options": None}, {"size": None}, {"size": [1]})]
    spoilt += [{**film, **change} for change in ({"frames": "9"}, {"check": {"findings": [{}]}}, {"objects": []})]
    for number, each in enumerate(spoilt):
        (folder / f"spoilt{number}.jpg.json").write_text(json.dumps(each))
    (folder / "field.png").unlink()
    (folder / "manifest.jsonl").unlink()
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.jpg").write_bytes(b"")
    summary = call(report, folder, code=3)
    assert (summary["changed"], summary["unrecorded"], summary["damaged"], summary["records"]) == (2, 1, 13, 2)
    seen = Page((folder / "report.html").read_text())
    answer = ["Not fit to sign", "changed after it was made", "the result is not there", "stray.png", "broken.jpg.json"]
    answer += ["schema ficgan-sidecar/9", "There is no manifest here", "spoilt10.jpg.json", "landmarks: Field required"]
    assert call(export, folder, "-o", folder / "boxes.json", code=3)["left_out"] == 13
    assert [words for words in answer if words not in seen.words] == []
    assert pictures((folder / "report.html").read_text()) == []  # none of a picture that is not the one recorded


def test_coco(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "boxes.json"
    assert call(export, folder, "-o", out)["boxes"] == 1
    tree = json.loads(out.read_text())
    assert [image["file_name"] for image in tree["images"]] == ["field.png", f"trip/day 1/{HOSTILE}"]
    assert (tree["images"][0]["width"], tree["images"][0]["height"]) == (64, 48)
    (box,), face = tree["annotations"], sidecar(folder)[1]["faces"][0]
    assert box["image_id"] == tree["images"][1]["id"] and box["category_id"] == tree["categories"][0]["id"]
    x0, y0, x1, y1 = face["box"]
    assert box["bbox"] == pytest.approx([x0 + 0.5, y0 + 0.5, x1 - x0, y1 - y0])
    assert box["area"] == pytest.approx((x1 - x0) * (y1 - y0), abs=0.01)
    assert box["num_keypoints"] == 5 and len(box["keypoints"]) == 15 and box["iscrowd"] == 0
    assert box["keypoints"][:3] == [face["landmarks"][0][0] + 0.5, face["landmarks"][0][1] + 0.5, 2]
    assert box["attributes"] == {"action": "blurred"}
    assert "exists" in call(export, folder, "-o", out, code=2)["said"]


def project(folder: Path, name: str = "film.mp4") -> Project:
    """Two tracks in five frames; one begins late and leaves the picture."""
    marks = np.tile(np.array([[4, 4], [8, 4], [6, 6], [4, 8], [8, 8]], np.float32), (5, 1, 1))
    boxes = np.array([[2 + n, 2, 10 + n, 12] for n in range(5)], np.float32)
    out = np.array([[30, 20, 36, 28], [38, 20, 44, 28], [50, 20, 56, 28]], np.float32)
    tracks = [
        Track(1, 0, boxes, marks, np.full(5, 0.9, np.float32), np.array([0, 1, 0, 1, 2], np.uint8), 1),
        Track(2, 1, out, marks[:3], np.full(3, 0.5, np.float32), np.zeros(3, np.uint8), 2),
    ]
    made = Project(Source(name=name, width=40, height=30, time_base="1/25"), np.arange(5), tracks)
    made.save(folder)
    return made


def test_coco_of_a_film(folder: Path, tmp_path: Path) -> None:
    made = project(tmp_path / "project")
    call(export, tmp_path / "project", "-o", tmp_path / "film.json")
    tree = json.loads((tmp_path / "film.json").read_text())
    assert len(tree["images"]) == 5 and [box["track_id"] for box in tree["annotations"]] == [1, 1, 2, 1, 2, 1, 1]
    assert [box["id"] for box in tree["annotations"]] == list(range(1, 8))
    assert tree["images"][3]["file_name"] == "film/frame_000003.png"
    assert [len(picture.boxes) for picture in of_project(made)] == [1, 2, 2, 1, 1]
    origins = [box["attributes"]["origin"] for box in tree["annotations"] if box["track_id"] == 1]
    assert origins == ["seen", "filled", "seen", "filled", "padded"]
    assert sum(tree["annotations"][4]["bbox"][::2]) == 40  # cut at the border
    assert call(export, folder, tmp_path / "project", "-o", tmp_path / "all.json")["images"] == 7


# -- content credentials -----------------------------------------------------------------------------------------------


def actions_of(format_: str, data: bytes) -> tuple[str, list[dict[str, Any]]]:
    """c2pa's verdict, and the actions of the manifest."""
    reader = pytest.importorskip("c2pa").Reader(format_, io.BytesIO(data))
    (assertion,) = [each for each in reader.get_active_manifest()["assertions"] if each["label"] == "c2pa.actions.v2"]
    return reader.get_validation_state(), assertion["data"]["actions"]


@pytest.fixture(scope="module")
def credentials(tmp_path_factory: pytest.TempPathFactory) -> Credentials:
    pytest.importorskip("c2pa")
    return Credentials(*certificate(tmp_path_factory.mktemp("keys")))


@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF", "GIF"])
def test_a_photo_tells_what_was_done_and_changes_no_pixel(format_: str, credentials: Credentials) -> None:
    noise = np.random.default_rng(1).integers(0, 256, (48, 64, 3), dtype=np.uint8)
    data = io.BytesIO()
    Image.fromarray(noise).save(data, format_)
    signed = credentials.photo(data.getvalue(), f".{format_.lower()}", ["generated", "masked", "retried", "kept"])
    before, after = (np.asarray(Image.open(io.BytesIO(each)).convert("RGB")) for each in (data.getvalue(), signed))
    np.testing.assert_array_equal(before, after)
    state, actions = actions_of(format_.lower(), signed)
    assert state == "Valid"
    assert [each["action"] for each in actions] == ["c2pa.created", *["c2pa.edited"] * 4]
    assert actions[0]["digitalSourceType"].endswith("/compositeWithTrainedAlgorithmicMedia")
    covered = credentials.photo(data.getvalue(), f".{format_.lower()}", ["masked"])
    assert actions_of(format_.lower(), covered)[1][0]["digitalSourceType"].endswith("/humanEdits")


def test_a_film_is_signed_in_place(credentials: Credentials, tmp_path: Path) -> None:
    import av

    path = tmp_path / "film.mp4"
    with av.open(str(path), "w") as file:
        stream = file.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for level in range(5):
            frame = av.VideoFrame.from_ndarray(np.full((48, 64, 3), 40 * level, np.uint8), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    credentials.film(path, {"generated": 12, "solid": 3, "blurred": 0})
    state, actions = actions_of("mp4", path.read_bytes())
    assert state == "Valid" and [each["action"] for each in actions] == ["c2pa.created", "c2pa.edited", "c2pa.edited"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["film.mp4"]
    with av.open(str(path)) as file:
        assert sum(1 for _ in file.decode(video=0)) == 5


@pytest.mark.parametrize("wrong", ["absent", "swapped", "not PEM", "another key", "encrypted", "a curve of its own"])
def test_what_cannot_sign_is_one_sentence(wrong: str, tmp_path: Path) -> None:
    pytest.importorskip("c2pa")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    cert, key = certificate(tmp_path)
    secret = serialization.BestAvailableEncryption(b"x") if wrong == "encrypted" else serialization.NoEncryption()
    if wrong == "absent":
        key.unlink()
    elif wrong == "swapped":
        cert, key = key, cert
    elif wrong == "not PEM":
        cert.write_bytes(b"x")
    else:
        curve = ec.SECP256K1() if wrong == "a curve of its own" else ec.SECP256R1()
        other = ec.generate_private_key(curve)
        key.write_bytes(other.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, secret))
    with pytest.raises(UsageError) as error:
        Credentials(cert, key)
    no_key = f"{key}: is no private key in PEM that is not encrypted; convert it"
    said = {"absent": f"{key}: cannot be read (No such file", "swapped": no_key, "encrypted": no_key}
    assert said.get(wrong, "these cannot sign (") in str(error.value) and "\n" not in str(error.value)
