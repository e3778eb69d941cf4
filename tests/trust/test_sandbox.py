"""Photos and films decoded in a child: the same pixels, and limits that hold against hostile files and decoders."""

from __future__ import annotations

import io
import os
import resource
import socket
import struct
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from clips import make_clip
from made_files import HEIF, Case, make
from PIL import Image

from ficgan import sandbox
from ficgan.errors import InputError
from ficgan.images import encode_image, read_image
from ficgan.images.photo import Photo
from ficgan.video.media import SandboxedSource
from ficgan.video.read import open_video

pytestmark = pytest.mark.skipif(not sandbox.SUPPORTED, reason="needs Linux or macOS")
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Landlock or RLIMIT_AS")


@pytest.fixture
def in_a_child() -> Iterator[None]:
    with sandbox.used():
        yield
    assert not sandbox.is_on()


def photos(folder: Path) -> Iterator[Path]:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 32, 4), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, "a photo"
    for name, mode, options in (
        ("a.jpg", "RGB", {"exif": exif, "quality": 70}),
        ("b.jpg", "CMYK", {}),
        ("c.png", "RGBA", {}),
        ("d.png", "L", {}),
        ("e.webp", "RGB", {"lossless": True}),
        ("f.tif", "RGB", {"compression": "tiff_lzw"}),
    ):
        Image.fromarray(pixels).convert("RGB" if mode == "CMYK" else mode).convert(mode).save(folder / name, **options)
        yield folder / name
    for case in (("JPEG", "P3", 8, 6, "XMP"), ("AVIF", "P3 by name", 8, 6, "none"), ("HEIC", "PQ", 10, 6, "EXIF")):
        if case[0] != "HEIC" or HEIF:
            data, suffix = make(Case(*case))
            (folder / f"case{suffix}").write_bytes(data)
            yield folder / f"case{suffix}"
    import cv2

    cv2.imwrite(str(folder / "deep.png"), rng.integers(0, 65536, (24, 32, 3), dtype=np.uint16))
    yield folder / "deep.png"


def test_a_photo_is_the_same(tmp_path: Path) -> None:
    for path in photos(tmp_path):
        plain = read_image(path)
        with sandbox.used():
            other = read_image(path)
        for name in Photo.__dataclass_fields__:
            a, b = getattr(plain, name), getattr(other, name)
            if name == "pixels":
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype and not b.flags.writeable
            else:
                assert a == b, (path, name)
        np.testing.assert_array_equal(plain.rgb, other.rgb)


@pytest.mark.skipif(not HEIF, reason="needs pillow-heif")
def test_a_heic_is_written_where_the_child_alone_has_read_one(
    tmp_path: Path, in_a_child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for registry in (Image.SAVE, Image.OPEN):
        monkeypatch.delitem(registry, "HEIF", raising=False)
    for name, path in {path.name: path for path in photos(tmp_path) if path.name in ("a.jpg", "case.heic")}.items():
        photo = read_image(path)
        data = encode_image("b.heic", photo, photo.rgb)
        assert read_image("b.heic", data=data).rgb.shape == photo.rgb.shape, name


def test_errors_are_the_same(tmp_path: Path, in_a_child: None) -> None:
    (tmp_path / "not.jpg").write_text("no photo")
    with pytest.raises(InputError, match=r"not\.jpg: not an image that ficgan reads"):
        read_image(tmp_path / "not.jpg")
    with pytest.raises(InputError, match="no such file"):
        read_image(tmp_path / "none.jpg")
    (tmp_path / "not.mp4").write_text("no film")
    with pytest.raises(InputError, match=r"not\.mp4: is no video that FFmpeg can read"):
        open_video(tmp_path / "not.mp4")
    with pytest.raises(InputError, match="none"):
        open_video(tmp_path / "none.mp4")


def test_a_film_is_the_same(tmp_path: Path) -> None:
    clip, animation = tmp_path / "a.mp4", tmp_path / "a.gif"
    make_clip(clip, 40, turn=(90.0, False, False))
    images = [Image.fromarray(np.full((20, 30, 3), 40 * n, np.uint8)) for n in range(4)]
    images[0].save(animation, save_all=True, append_images=images[1:], duration=[50, 70, 50, 90])
    (tmp_path / "frames").mkdir()
    for number in range(3):
        images[number].save(tmp_path / "frames" / f"{number:03}.png")
    whole = (tmp_path / "cut.mkv", {})
    make_clip(whole[0], 30)
    whole[0].write_bytes(whole[0].read_bytes()[:-1500])
    for source, more in (
        (clip, {}),
        (clip, {"start": 0.4, "end": 1.0}),
        (animation, {}),
        (tmp_path / "frames" / "%03d.png", {"rate": 5}),
        whole,
    ):
        seen = []
        for where in (False, True):
            with sandbox.used() if where else nullcontext(), open_video(source, **more) as film:
                assert isinstance(film, SandboxedSource) == where
                rounds = [
                    [(f.index, f.pts, f.time, f.duration, f.image.tobytes()) for f in film.frames(**how)]
                    for how in ({}, {"first": 2, "wanted": lambda n: n % 3 == 0})
                ]
                about = film.info, film.name, film.path, film.live, film.notes, film.damage, film.end_pts
                seen.append((about, rounds))
        assert seen[0] == seen[1], source
        assert len(seen[0][-1][0]) > 1


# -- files made to do harm ---------------------------------------------------------------------------------------------


def bomb(width: int, height: int) -> bytes:
    """A grey PNG of zeros, a thousandth of its pixels in size."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    packer, packed = zlib.compressobj(9), io.BytesIO()
    for _ in range(height):
        packed.write(packer.compress(bytes(1 + 3 * width)))
    packed.write(packer.flush())
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", header) + chunk(b"IDAT", packed.getvalue()) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@LINUX
def test_a_bomb_takes_the_childs_memory_and_not_ours(
    tmp_path: Path, in_a_child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "LIMITS", replace(sandbox.LIMITS, memory=64 << 20))
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(9000, 6000))  # 162 MB of pixels in 160 kB
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError, match=r"needs more than 64 MB of memory|damaged"):
        read_image(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 << 10  # kB
    film = tmp_path / "bomb.avi"
    black = np.zeros((4000, 6000, 3), np.uint8)
    make_clip(film, 2, size=(6000, 4000), codec="mjpeg", pixel_format="yuvj420p", pictures=[black] * 2)
    with pytest.raises(InputError), open_video(film) as source:
        list(source.frames())


def test_a_film_that_hangs_is_given_up(tmp_path: Path, in_a_child: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "LIMITS", replace(sandbox.LIMITS, answer=3.0))
    os.mkfifo(tmp_path / "pipe.mp4")  # opening it waits for a writer, for ever
    began = time.monotonic()
    with pytest.raises(InputError, match=r"pipe\.mp4: its decoder gave no answer in 3 s"):
        open_video(tmp_path / "pipe.mp4")
    assert time.monotonic() - began < 60


# -- a decoder that was taken over -------------------------------------------------------------------------------------

HOSTILE = """
import os, socket, subprocess, sys, time
from ficgan import sandbox
from ficgan.sandbox import _send
import numpy as np
def main():
    server = sandbox.Server()
    request, data = server.receive()
    what = request["do"]
    def tried(action):
        try:
            action()
        except BaseException as error:
            return type(error).__name__
        return "done"
    with server.step():
        if what == "spin":
            while True: pass
        elif what == "sleep": time.sleep(600)
        elif what == "eat": np.ones(1 << 30, np.uint8)
        elif what == "crash": os.abort()
        elif what == "noise": server._out.write(b"\\xff" * 4096); server._out.flush()
        elif what == "deep":
            server._out.write(__import__("struct").pack("<QQ", 200000, 0) + b"[" * 200000)
            server._out.flush()
        elif what == "huge": _send(server._out, {"shape": [1 << 20, 1 << 20, 3], "dtype": "uint8"}, b"x")
        elif what == "short": _send(server._out, {"shape": [2, 2, 3], "dtype": "uint8"}, b"x")
        elif what == "object": _send(server._out, {"shape": [1], "dtype": "object"}, b"12345678")
        elif what == "negative": _send(server._out, {"shape": [-1, -1], "dtype": "uint8"}, b"x")
        elif what == "write":
            where = request["where"]
            server.send({
                "file": tried(lambda: open(where + "/made", "wb").write(b"x")),
                "old": tried(lambda: open(where + "/old", "r+b").write(b"y")),
                "folder": tried(lambda: os.mkdir(where + "/folder")),
                "remove": tried(lambda: os.unlink(where + "/old")),
                "rename": tried(lambda: os.rename(where + "/old", where + "/new")),
                "link": tried(lambda: os.symlink("/", where + "/link")),
                "run": tried(lambda: subprocess.run(["/bin/true"], check=True)),
                "connect": tried(lambda: socket.create_connection(("127.0.0.1", request["port"]), 2)),
            })
        elif what == "secrets":
            server.send({"environment": sorted(os.environ), "modules": sorted(sys.modules)})
"""


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[sandbox.Child]:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "hostile_decoder.py").write_text(HOSTILE)
    (tmp_path / "code" / "json.py").write_text("raise SystemExit(9)")  # must not replace Python's own
    monkeypatch.syspath_prepend(str(tmp_path / "code"))
    monkeypatch.setenv("FICGAN_TOKEN", "secret")
    child = sandbox.Child("hostile_decoder", "a.jpg", sandbox.Limits(memory=256 << 20, cpu=1, answer=120.0))
    yield child
    child.close()
    assert child._process.returncode is not None


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("spin", "takes more than 1 s to decode"),
        ("eat", "needs more than 256 MB"),
        ("crash", "its decoder crashed"),
        ("noise", "nonsense"),
        ("deep", "nonsense"),
        ("huge", "nonsense"),
        ("short", "nonsense"),
        ("object", "nonsense"),
        ("negative", "nonsense"),
    ],
)
def test_what_a_decoder_may_do_ends_in_a_sentence(does: str, said: str, hostile: sandbox.Child) -> None:
    with pytest.raises(InputError, match=said):
        hostile.ask({"do": does}, most=1 << 24)


def test_a_decoder_that_sleeps_is_ended(hostile: sandbox.Child) -> None:
    hostile._limits = replace(hostile._limits, answer=2.0)
    with pytest.raises(InputError, match="gave no answer in 2 s"):
        hostile.ask({"do": "sleep"})


class Liar:
    """A child that keeps to the protocol and says what it is told to, to whatever it is asked."""

    def __init__(self, answers: list[tuple[dict[str, Any], Any]]) -> None:
        self._answers = iter(answers)

    def ask(self, request: Any, data: bytes = b"", *, most: int = 0) -> tuple[dict[str, Any], Any]:
        return next(self._answers)

    def close(self) -> None:
        pass


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


PHOTO = {
    "format": "PNG",
    "mode": "RGB",
    "options": {"table": []},
    "icc": None,
    "exif": None,
    "xmp": None,
    "chunks": {"tuple": []},
    "notes": {"tuple": []},
}
FILM = {"width": 8, "height": 8, "time_base": "1/25", "rate": "25", "frames": 2, "duration": 0.08}


def tell(value: Any) -> Any:
    return {"table": [[key, entry] for key, entry in value.items()]}


@pytest.mark.parametrize(
    "more",
    [
        {"mode": "L"},
        {"mode": "RGBA"},
        {"mode": []},
        {"mode": None},
        {"format": 3},
        {"icc": "text"},
        {"exif": [1]},
        {"notes": "text"},
        {"notes": {"tuple": [1]}},
        {"chunks": {"tuple": [1]}},
        {"chunks": {"tuple": [{"tuple": []}]}},
        {"options": []},
        {"options": {"table": [[{"tuple": []}, 1]]}},
        {"options": {"table": [[{"table": []}, 1]]}},
        {"cicp": "text"},
        {"cicp": [1, 13]},
        {"cicp": {"tuple": [1]}},
        {"cicp": {"tuple": [3, 13]}},
        {"path": "/etc/passwd"},
        {"pixels": 1},
        {"more": 1},
        {"notes": nested(5000)},
    ],
)
def test_what_a_child_says_of_a_photo_is_checked(
    more: dict[str, Any], tmp_path: Path, in_a_child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")

    def say(photo: dict[str, Any]) -> None:
        answer = {"photo": tell(photo)}, np.zeros((8, 8, 3), np.uint8)
        monkeypatch.setattr(sandbox, "Child", lambda *_: Liar([answer]))

    say(PHOTO)
    assert read_image(tmp_path / "a.png").mode == "RGB"
    say({**PHOTO, **more})
    with pytest.raises(InputError, match=r"a\.png: its decoder gave no picture"):
        read_image(tmp_path / "a.png")


@pytest.mark.parametrize(
    "more",
    [
        {"time_base": "1e99999999"},
        {"time_base": "1/0"},
        {"time_base": "-1/25"},
        {"time_base": 1},
        {"rate": "0/1"},
        {"rate": "nan"},
        {"width": 8.5},
        {"width": -8, "height": -8},
        {"width": 1 << 30, "height": 1 << 30},
        {"width": "8"},
        {"frames": "2"},
        {"duration": "long"},
        {"duration": float("inf")},
        {"pixel_format": 1},
        {"notes": "text"},
        {"notes": {"tuple": [1]}},
        {"rotation": None},
        {"codec": None},
        {"sample_aspect_ratio": "0/1"},
        {"sample_aspect_ratio": None},
        {"more": 1},
        {"notes": nested(5000)},
    ],
)
def test_what_a_child_says_of_a_film_is_checked(
    more: dict[str, Any], in_a_child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def say(info: dict[str, Any], *answers: Any) -> None:
        about = {"info": tell({"sample_aspect_ratio": "1/1", **info}), "name": "a", "file": True, "live": False}
        monkeypatch.setattr("ficgan.video.media.sandbox.Child", lambda *_: Liar([(about, None), *answers]))

    say({**FILM, **more})
    with pytest.raises(InputError, match=r"a\.mp4: its decoder told nonsense of it"):
        open_video("a.mp4")


@pytest.mark.parametrize(
    ("answer", "picture", "frames"),
    [
        ({}, np.zeros((8, 8, 3), np.uint8), 1),
        ({"pts": "1"}, np.zeros((8, 8, 3), np.uint8), 1),
        ({"pts": 1 << 70}, np.zeros((8, 8, 3), np.uint8), 1),
        ({"pts": 0}, None, 0),
        ({"pts": 0}, np.zeros((8, 8), np.uint8), 0),
        ({"pts": 0}, np.zeros((8, 8, 3), np.uint16), 0),
        ({"damage": 3}, None, 0),
        ({"damage": [], "end": "x"}, None, 0),
        ({"damage": [3], "end": 1 << 70}, None, 0),
    ],
)
def test_what_a_child_says_of_frames_is_checked(
    answer: dict[str, Any], picture: Any, frames: int, in_a_child: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A frame without its time has another one's; anything else that is no frame is a sentence."""
    about = {"info": tell({**FILM, "sample_aspect_ratio": "1/1"}), "name": "a", "file": True, "live": False}
    rest = [({"origin": "x"}, None), ({}, None), (answer, None), ({}, picture), ({"damage": [], "end": None}, None)]
    if "damage" in answer:
        rest = rest[:3]
    monkeypatch.setattr("ficgan.video.media.sandbox.Child", lambda *_: Liar([(about, None), *rest]))
    seen = 0
    with suppress(InputError), open_video("a.mp4") as film:
        for frame in film.frames():
            assert frame.image.shape == (8, 8, 3) and abs(frame.pts) < 1 << 62
            seen += 1
    assert seen == frames


@LINUX
def test_a_decoder_makes_no_file_and_no_connection(hostile: sandbox.Child, tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    (place / "old").write_text("x")
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer, _ = hostile.ask({"do": "write", "where": str(place), "port": server.getsockname()[1]})
    assert [path.name for path in place.iterdir() if path.stat().st_size] == ["old"]
    assert (place / "old").read_text() == "x"
    import ctypes

    if ctypes.CDLL(None).syscall(444, None, 0, 1) >= 4:  # Landlock with TCP
        answer.pop("bytes")
        assert set(answer.values()) <= {"PermissionError", "OSError", "CalledProcessError"}, answer
        assert [path.name for path in place.iterdir()] == ["old"]


def test_a_decoder_holds_no_secret(hostile: sandbox.Child) -> None:
    answer, _ = hostile.ask({"do": "secrets"})
    assert "FICGAN_TOKEN" not in answer["environment"]
    assert not {"ficgan.deidentify", "ficgan.identity", "onnxruntime", "torch"} & set(answer["modules"])


def test_who_decodes_in_a_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`serve` and `ui` unless told otherwise, `deid` where it is asked for, everything with FICGAN_SANDBOX=1."""
    from ficgan.cli.deid import deid
    from ficgan.cli.serve import serve, ui

    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    seen: list[bool] = []
    for command, usual in ((deid, False), (serve, True), (ui, True)):
        options = {option.name: option for option in command.params}
        assert options["sandbox"].default is usual, command.name
        seen.clear()
        words = [str(tmp_path / "a.png"), "-o", str(tmp_path / "out")] if command is deid else []
        for given in ([], ["--sandbox"], ["--no-sandbox"]):
            probe = click.Command("probe", params=command.params, callback=lambda **_: seen.append(sandbox.is_on()))
            assert CliRunner().invoke(probe, [*words, *given]).exit_code == 0
        assert seen == [usual, True, False] and not sandbox.is_on()
    monkeypatch.setattr(sandbox, "Child", lambda *_: pytest.fail("a child was asked"))
    read_image(tmp_path / "a.png")
    monkeypatch.setenv("FICGAN_SANDBOX", "1")
    with pytest.raises(pytest.fail.Exception, match="asked"):
        read_image(tmp_path / "a.png")
    monkeypatch.setenv("FICGAN_SANDBOX", "0")
    with sandbox.used():
        assert sandbox.is_on()
    assert not sandbox.is_on()


def test_children_end_with_us(tmp_path: Path) -> None:
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with sandbox.used():
        threads = [threading.Thread(target=read_image, args=(tmp_path / "a.png",)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    child = sandbox.Child("ficgan.images.read", "a.png")
    assert child._process.stdin is not None
    child._process.stdin.close()  # as when this process dies
    assert child._process.wait(240) == 0
    child.close()
