"""Kinds of files that ficgan reads, for `fuzz.py`: small sound ones made by code, and how the program reads each."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from pathlib import Path

import numpy as np
from PIL import Image

FILMS = ("mp4", "mkv", "mov", "webm", "avi", "ts", "gif", "apng", "flv", "ogv")
CLOUDS = ("ply", "pcd", "obj", "xyz", "csv", "npy", "npz")
COMPANIONS = {"project.json", "tracks.jsonl", "a.png", "a.png.json", "b.mp4", "b.mp4.json", "manifest.jsonl"}
"""Files that the readers here put beside a damaged one."""
Reader = Callable[[Path, Path], None]
"""Of a file and the output folder."""

# -- sound files -------------------------------------------------------------------------------------------------------


def picture(rng: np.random.Generator, side: int = 40, channels: int = 3) -> np.ndarray:
    coarse = rng.integers(0, 256, (5, 5, channels), dtype=np.uint8)
    fine = np.kron(coarse, np.ones((side // 5, side // 5, 1), np.uint8))
    return fine if channels > 1 else fine[..., 0]


def photos(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    colour, alpha = Image.fromarray(picture(rng)), Image.fromarray(picture(rng, channels=4))
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a photo"
    saves: list[tuple[str, Image.Image, dict[str, object]]] = [
        ("a.jpg", colour, {"exif": exif, "quality": 80}),
        ("b.jpg", colour, {"progressive": True, "quality": 60}),
        ("c.jpg", colour.convert("CMYK"), {}),
        ("d.jpg", colour.convert("L"), {}),
        ("a.png", colour, {"exif": exif}),
        ("b.png", alpha, {}),
        ("c.png", colour.quantize(16), {}),
        ("d.png", Image.fromarray(picture(rng, channels=1).astype(np.uint16) * 257), {}),
        ("a.webp", colour, {"quality": 70, "exif": exif}),
        ("b.webp", alpha, {"lossless": True}),
        ("a.tif", colour, {"exif": exif}),
        ("b.tif", colour, {"compression": "tiff_lzw"}),
        ("c.tif", alpha, {"compression": "tiff_adobe_deflate"}),
        ("d.tif", colour, {"compression": "jpeg"}),
        ("e.tif", colour.convert("1"), {"compression": "group4"}),
        ("a.bmp", colour, {}),
        ("b.bmp", colour.quantize(8), {}),
        ("a.gif", colour.quantize(32), {}),
        ("a.avif", colour, {"quality": 60}),
    ]
    for name, image, options in saves:
        buffer = io.BytesIO()
        with contextlib.suppress(KeyError, OSError):  # a format that this Pillow cannot write
            image.save(buffer, {"jpg": "JPEG", "tif": "TIFF"}.get(name[2:], name[2:].upper()), **options)
            yield name, buffer.getvalue()
    import cv2

    deep = cv2.imencode(".png", (picture(rng).astype(np.uint16) * 257))[1]
    yield "e.png", deep.tobytes()


def films(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    import av

    codecs = {"webm": "libvpx", "avi": "mjpeg", "gif": "gif", "apng": "apng", "ogv": "libtheora", "flv": "flv1"}
    formats = {"gif": "rgb8", "apng": "rgb24", "avi": "yuvj420p"}
    containers = {"mkv": "matroska", "ts": "mpegts", "ogv": "ogg"}
    for ending in FILMS:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, f"a.{ending}")
            try:
                with av.open(str(path), "w", format=containers.get(ending, ending)) as out:
                    stream = out.add_stream(codecs.get(ending, "libx264"), rate=Fraction(10))
                    stream.width = stream.height = 40
                    stream.pix_fmt = formats.get(ending, "yuv420p")
                    for _ in range(4):
                        frame = av.VideoFrame.from_ndarray(picture(rng), format="rgb24")
                        out.mux(stream.encode(frame.reformat(format=stream.pix_fmt)))
                    out.mux(stream.encode(None))
            except (OSError, ValueError):  # a codec that this FFmpeg has not
                continue
            yield path.name, path.read_bytes()


def networks(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    from onnx import TensorProto, helper, numpy_helper

    weights = {"w": rng.normal(size=(4, 3, 8, 8)).astype(np.float32), "d": rng.normal(size=(4, 8)).astype(np.float32)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], strides=[8, 8]),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "d"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "gate",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 112, 112])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    yield "gate.onnx", model.SerializeToString()


def models(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    from ficgan.config import ModelConfig
    from ficgan.faces import Alignment
    from ficgan.identity import IdentityBank
    from ficgan.models import FICGAN, CheckpointHeader, save_checkpoint

    sizes = ModelConfig(
        resolution=16, id_dim=8, w_dim=8, spatial_channels=4, channel_base=64, channel_max=8, mapping_layers=1
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "m.safetensors")
        save_checkpoint(path, FICGAN(sizes), CheckpointHeader(model=sizes, alignment=Alignment().to_dict()))
        yield "model.safetensors", path.read_bytes()
        codes = rng.normal(size=(12, 8))
        IdentityBank.from_codes(codes, range(12), np.ones((12, 1)), ("Female",)).save(path)
        yield "bank.safetensors", path.read_bytes()


def archives(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    members = []
    for name in ("p/a.png", "p/b.jpg", "q/c.png"):
        buffer = io.BytesIO()
        Image.fromarray(picture(rng, 20)).save(buffer, "PNG" if name.endswith("png") else "JPEG")
        members.append((name, buffer.getvalue()))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name, data in members:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    yield "a.tar", packed.getvalue()
    for number, method in enumerate((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)):
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", method) as archive:
            for name, data in members:
                archive.writestr(name, data)
        yield f"{number}.zip", packed.getvalue()


def tables(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    text = io.StringIO()
    rows = [[f"{n}.png", n // 2, ("Female", "Male")[n % 2], 20 + n, "train"] for n in range(8)]
    csv.writer(text).writerows([["file", "person", "gender", "age", "split"], *rows])
    yield "labels.csv", text.getvalue().encode()
    lines = ["8", "Male Smiling", *(f"{n}.png {(-1) ** n} {(-1) ** (n // 2)}" for n in range(8))]
    yield "list_attr_celeba.txt", "\n".join(lines).encode()


def settings(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    for path in sorted((Path(__file__).resolve().parents[1] / "configs").glob("*.yaml")):
        yield path.name, path.read_bytes()


def projects(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    from ficgan.video.media import VideoInfo
    from ficgan.video.project import Project, Source
    from ficgan.video.tracks import Track

    boxes = np.array([[1, 2, 13, 14], [2, 2, 14, 14]], np.float32)
    track = Track(1, 0, boxes, np.zeros((2, 5, 2), np.float32), np.ones(2, np.float32), np.zeros(2, np.uint8), 1)
    source = Source.of("film.mp4", VideoInfo(64, 48, Fraction(1, 25), None, 2, None))
    made = Project(source, np.arange(2), [track], analysis="0123456789abcdef")
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder, "p"))
        for name in ("project.json", "tracks.jsonl"):
            yield name, Path(folder, "p", name).read_bytes()


def decisions(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """On photos and on a film: as `ficgan ui` and the review page export them."""
    face = {
        "id": 1,
        "box": [10.0, 12.0, 30.0, 36.0],
        "score": 0.9,
        "draw": 2,
        "landmarks": [[14.0, 20.0], [24.0, 20.0], [19.0, 26.0], [15.0, 31.0], [23.0, 31.0]],
    }
    photo = {
        "name": "a.png",
        "analysis": "0123456789abcdef" * 2,
        "default": "ficgan",
        "faces": [face],
        "drawing": {"k": 3000, "layer": 0, "psi": "auto", "attributes": "", "fallback": "solid"},
        "tracks": {"1": {"mode": "blur"}},
        "boxes": [{"box": [0, 0, 20, 20], "mode": "solid"}],
        "regions": [{"mode": "solid", "first": 0, "last": 0, "box": [1.0, 2.0, 9.0, 9.0]}],
    }
    yield "photos.json", json.dumps({"schema": "ficgan-photo-decisions/1", "photos": [photo]}, indent=1).encode()
    film = {
        "schema": "ficgan-video-decisions/1",
        "analysis": "0123456789abcdef",
        "default": "ficgan",
        "only": None,
        "tracks": {"1": "solid"},
        "people": {"1": {"mode": "keep", "reason": "agreed"}},
        "link": {"1": 1},
        "spans": [{"from": 0.0, "to": 0.04, "mode": "keep", "track": 1}],
        "boxes": [{"box": [0, 0, 20, 20], "mode": "keep"}],
        "regions": [{"first": 0, "last": 1, "keys": [{"frame": 0, "box": [1.0, 2.0, 9.0, 9.0]}]}],
    }
    yield "film.json", json.dumps(film, indent=1).encode()


def matrices(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """What `ficgan eval` and `ficgan attack` read."""
    configs = Path(__file__).resolve().parents[1] / "configs"
    for name in ("autoencoder64", "pix2pix64"):
        yield f"attack-{name}.yaml", (configs / "attack" / f"{name}.yaml").read_bytes()
    preset = (configs / "eval" / "quick.yaml").read_text()
    of_sets = preset.replace("set:\n  size", "sets:\n- name: a\n  path: faces\n  size")
    yield "eval-quick.yaml", of_sets.encode()
    matrix = {
        "title": "made",
        "sets": [{"name": "a", "path": "faces", "split": {"background": 4, "test": 16}}],
        "methods": ["solid", {"method": "pixelation", "size": 6}],
        "scenarios": ["clear", "naive"],
        "recognisers": ["dlib"],
        "resamples": 50,
    }
    yield "eval-made.yaml", json.dumps(matrix, indent=1).encode()


def sidecars(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    """A photo's and a film's, and the manifest beside them."""
    from ficgan.policy import FaceResult
    from ficgan.records.sidecars import as_json, record_of

    sha256 = hashlib.sha256(_side_picture()).hexdigest()
    mark, box = np.array([[9, 12], [19, 12], [14, 18], [10, 24], [18, 24]], np.float32), np.array([4, 5, 24, 30.5])
    faces = [
        FaceResult(box.astype(np.float32), mark, 0.9, k=3000, psi=1.0, distance=0.7),
        FaceResult(box.astype(np.float32), mark, 0.6, "masked", matched=True, matched_by=["dlib"]),
    ]
    about = {"mode": "ficgan", "detector": "centerface", "gate": "dlib", "gate_threshold": 0.6, "notes": ["a note"]}
    photo = {**about, "faces": [face.to_dict() for face in faces], "reidentified": 0, "uncovered": 0}
    yield "a.png.json", as_json(record_of("photo", photo, "a.png", (40, 40), {"k": 3000}, sha256))
    film = {
        **about,
        "frames": 56,
        "duration": 4.66,
        "tracks": 2,
        "people": 2,
        "faces_by_action": {"generated": 112},
        "fallbacks": {},
        "masked_people": 0,
        "faces_by_origin": {"seen": 24, "filled": 88, "padded": 0},
        "check": {
            "detector": "dlib",
            "recognizer": "dlib",
            "frames": 5,
            "faces": 2,
            "exempt": 0,
            "findings": [{"frame": 3, "time": 0.2, "box": [1, 2, 20, 30], "distance": 0.3, "by": ["dlib"]}],
        },
        "damage": ["cut off"],
        "settings": {"stride": 5, "mode": "ficgan"},
        "exemptions": [],
        "edits": [],
    }
    yield "b.mp4.json", as_json(record_of("film", film, "b.mp4", (40, 40), {}, sha256))
    line = {"tool": "ficgan-deid", "schema": 1, "output": "a.png", "options": "7c25", "input": "a.png", "faces": 2}
    lines = [{**line, "state": "written"}, {**line, "input": "c.png", "state": "failed", "error": "damaged"}]
    yield "manifest.jsonl", b"".join(json.dumps(one).encode() + b"\n" for one in lines)


def _side_picture() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(picture(np.random.default_rng(0))).save(buffer, "PNG")
    return buffer.getvalue()


def clouds(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    from ficgan.pointcloud.cloud import Cloud
    from ficgan.pointcloud.files import write_cloud

    away = rng.normal(size=(60, 3))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    cloud = Cloud(away * [0.09, 0.12, 0.1], rng.integers(0, 256, (60, 3)).astype(np.uint8), away)
    with tempfile.TemporaryDirectory() as folder:
        for ending in CLOUDS:
            for binary in (True, False):
                path = Path(folder, f"{'b' if binary else 'a'}.{ending}")
                plain = cloud if ending in ("ply", "pcd", "npz") else Cloud(cloud.points)
                with contextlib.suppress(Exception):  # a format that has not both
                    write_cloud(path, plain, binary=binary)
                    yield path.name, path.read_bytes()


# -- how they are read -------------------------------------------------------------------------------------------------


def read_photo(path: Path, out: Path) -> None:
    from ficgan.images import encode_image, read_image

    photo = read_image(path)
    for name in ("a.png", "a.jpg"):
        with contextlib.suppress(own_errors()):
            (out / name).write_bytes(encode_image(out / name, photo, photo.rgb.copy(), synthetic=True))


def read_film(path: Path, out: Path) -> None:
    from ficgan.video.read import open_video

    with open_video(path) as source:
        for number, frame in enumerate(source.frames()):
            assert frame.image.dtype == np.uint8
            if number > 200:
                break


def read_network(path: Path, out: Path) -> None:
    from ficgan.faces import get_recognizer

    gate = get_recognizer(f"onnx:{path}")
    gate.embed_aligned(np.zeros((1, 112, 112, 3), np.uint8))  # type: ignore[attr-defined]


def read_model(path: Path, out: Path) -> None:
    if path.name.startswith("bank"):
        from ficgan.identity import IdentityBank

        IdentityBank.load(path).k_same(4, "key", seed=1 << 70)
    else:
        from ficgan.models import load_checkpoint

        load_checkpoint(path)


def read_archive(path: Path, out: Path) -> None:
    from ficgan.data import open_faces

    faces = open_faces([path], resolution=8)
    for index in range(min(len(faces), 8)):
        faces.load(index)


def read_table(path: Path, out: Path) -> None:
    from ficgan.data.labels import Labels

    Labels.read(path).match([f"{n}.png" for n in range(8)], source="the table")


def read_settings(path: Path, out: Path) -> None:
    from ficgan.config import load_config

    load_config(path)


def _beside(path: Path, files: Iterable[tuple[str, bytes]]) -> None:
    """Sound files of what the damaged one belongs to."""
    for name, data in files:
        if not path.with_name(name).exists():
            path.with_name(name).write_bytes(data)


def read_project(path: Path, out: Path) -> None:
    from ficgan.video.project import Project

    _beside(path, projects(np.random.default_rng(0)))
    project = Project.load(path.parent)
    project.decider().exemptions(project.tracks)


def read_decisions(path: Path, out: Path) -> None:
    from ficgan.deidentify import decided
    from ficgan.video.project import Project

    if path.name == "photos.json":
        for photo in decided.read_decisions(path).values():
            photo.modes((40, 40))
            [region.box_at(0) for region in photo.regions]
        return
    _beside(path, projects(np.random.default_rng(0)))
    project = Project.load(path.parent).apply_decisions(path)
    project.decider().exemptions(project.tracks)
    project.save(out / "p")


def read_matrix(path: Path, out: Path) -> None:
    from ficgan.lab.matrix_config import load_attack, load_matrix

    (load_attack if path.name.startswith("attack") else load_matrix)(path)


def read_sidecar(path: Path, out: Path) -> None:
    import datetime

    from ficgan.records import boxes, report
    from ficgan.records.sidecars import Manifest, own_sidecar, read_folder

    _beside(path, [("a.png", _side_picture()), ("b.mp4", _side_picture()), *sidecars(np.random.default_rng(0))])
    for name in ("a.png", "b.mp4"):
        own_sidecar(path.with_name(name))
    Manifest(path.parent, "7c25").is_of_other_options(path.with_name("a.png"))
    for check in (True, False):
        folder = read_folder(path.parent, check=check)
        made = report.page(folder, title="made", made=datetime.datetime(2026, 1, 1), version="1")
        (out / "report.html").write_text(made, encoding="utf-8")
        pictures, _ = boxes.of_records(folder.records)
        (out / "coco.json").write_bytes(boxes.coco(pictures))
        (out / "cvat.xml").write_bytes(boxes.cvat_images(pictures))


def read_cloud(path: Path, out: Path) -> None:
    from ficgan.pointcloud.files import read_cloud as read

    notes: list[str] = []
    read(path, notes=notes, check=False)


KINDS: dict[str, tuple[Callable[[np.random.Generator], Iterator[tuple[str, bytes]]], Reader]] = {
    "photo": (photos, read_photo),
    "film": (films, read_film),
    "onnx": (networks, read_network),
    "model": (models, read_model),
    "archive": (archives, read_archive),
    "table": (tables, read_table),
    "settings": (settings, read_settings),
    "project": (projects, read_project),
    "cloud": (clouds, read_cloud),
    "decisions": (decisions, read_decisions),
    "matrix": (matrices, read_matrix),
    "sidecar": (sidecars, read_sidecar),
}


def own_errors() -> type[Exception]:
    from ficgan.errors import FicganError

    return FicganError
