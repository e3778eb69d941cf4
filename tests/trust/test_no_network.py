"""No command opens a socket; the embedded networks are what was shipped; the bill of materials names everything."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import lock
import make_sbom
import numpy as np
import pytest
from clips import make_clip, picture
from PIL import Image
from skimage import data

from ficgan import pretrained
from ficgan.deidentify import load_face_model
from ficgan.errors import FicganError

ROOT = Path(__file__).resolve().parents[2]
FORBID = """
import os, socket, sys
def forbidden(*given, **more):
    os.write(2, b"SOCKET\\n")
    os._exit(99)
class Forbidden(socket.socket):
    def __init__(self, *given, **more): forbidden()
socket.socket = Forbidden
socket.create_connection = socket.getaddrinfo = socket.gethostbyname = forbidden
sys.addaudithook(lambda event, given: forbidden() if event in (
    "socket.connect", "socket.bind", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto") else None)
"""
OUTGOING = """
import os, sys
HERE = ("127.0.0.1", "::1", "localhost")
def look(event, given):
    if event == "socket.bind" and given[1][0] in HERE or event == "socket.getaddrinfo" and given[0] in HERE:
        return
    if event in ("socket.bind", "socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        os.write(2, f"SOCKET {event} {given[1:]}\\n".encode())
        os._exit(99)
sys.addaudithook(look)
"""
"""Of a program that listens at this machine's own address: it may, but asks nobody anything."""


def environment(folder: Path, rules: str = FORBID) -> dict[str, str]:
    """Of a process whose sockets are watched from its first line on."""
    (folder / "site").mkdir(exist_ok=True)
    (folder / "site" / "sitecustomize.py").write_text(rules)
    paths = [str(folder / "site"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


def run(folder: Path, code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
        env=environment(folder),
    )


MAIN = "from ficgan.cli.main import {0}; {0}()"


def test_sockets_are_indeed_forbidden(tmp_path: Path) -> None:
    for code in ("import socket; socket.socket()", "import urllib.request as u; u.urlopen('http://localhost:9')"):
        assert run(tmp_path, code).returncode == 99


@pytest.mark.slow
def test_onnxruntime_keeps_no_account_of_what_is_run(tmp_path: Path) -> None:
    """Its own telemetry is below Python, where no forbidden socket would stop it: a device number, and a data base."""
    code = "from ficgan.faces import get_recognizer; get_recognizer('dlib'); import os; print(os.environ[{0!r}])"
    done = subprocess.run(
        [sys.executable, "-c", code.format("ORT_DISABLE_TELEMETRY")],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={
            **{name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"},
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
        },
    )
    assert done.stdout == "1\n", done.stderr
    assert not list(tmp_path.rglob("*"))


@pytest.mark.slow
def test_photos_and_films_need_no_network(tmp_path: Path) -> None:
    Image.fromarray(data.astronaut()[:220, 120:330]).save(tmp_path / "a.png")
    made = run(tmp_path, MAIN.format("deid_main"), tmp_path / "a.png", "-o", tmp_path / "out")
    assert made.returncode == 0 and json.loads(made.stdout)["faces"] == 1, made.stderr
    make_clip(tmp_path / "b.mp4", 6, pictures=[picture(number) for number in range(6)])
    made = run(tmp_path, MAIN.format("deid_main"), tmp_path / "b.mp4", "-o", tmp_path / "out", "--mode", "solid")
    assert made.returncode == 0 and (tmp_path / "out" / "b.mp4").is_file(), made.stderr


@pytest.mark.slow
@pytest.mark.parametrize("command", ["serve", "ui"])
def test_what_listens_asks_nobody(command: str, tmp_path: Path) -> None:
    """A page, and a photo with a token, over a real socket; a connection of the program's own would end it with 99."""
    asks = "import socket; socket.create_connection(('127.0.0.1', 9))"
    watched = environment(tmp_path, OUTGOING)
    assert subprocess.run([sys.executable, "-c", asks], env=watched, check=False).returncode == 99
    (tmp_path / "photos").mkdir()
    photo = (ROOT / "tools" / "astronaut.jpg").read_bytes()
    (tmp_path / "photos" / "a.jpg").write_bytes(photo)
    token = "a-token-of-twenty-letters"
    (tmp_path / "token").write_text(token + "\n")
    words = ["ui", "photos", "--no-browser"]
    if command == "serve":
        words = ["serve", "--port", "0", "--mode", "solid", "--token-file", "token"]
    process = subprocess.Popen(
        [sys.executable, "-c", MAIN.format("main"), *words],
        env=watched,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        said = process.stderr if command == "serve" else process.stdout
        address = said.readline().split()[-1]
        headers = {"Content-Type": "image/jpeg", "Authorization": f"Bearer {token}"}
        request = urllib.request.Request(address, photo if command == "serve" else None, headers)
        with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(request, timeout=300) as answer:
            assert answer.status == 200
            if command == "serve":
                made = np.asarray(Image.open(io.BytesIO(answer.read())).convert("RGB"))
                assert answer.headers["Ficgan-Faces"] == "1" and made[90:150, 200:250].std() < 5  # the cover
        if command == "ui":  # the photo is looked at, the model loaded
            began = time.monotonic()
            while time.monotonic() - began < 10 and process.poll() is None:
                time.sleep(0.2)
    finally:
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and "SOCKET" not in err and "Traceback" not in err, err


@pytest.mark.parametrize(("role", "harm"), [("model", "damaged"), ("bank", "missing")])
def test_an_embedded_model_or_bank_that_was_changed_is_refused(
    role: str, harm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in pretrained.FOLDER.iterdir():
        if path.is_file():
            (tmp_path / path.name).symlink_to(path)
    name = pretrained.path(role).name
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).unlink()
    if harm == "damaged":
        (tmp_path / name).write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    monkeypatch.setattr(pretrained, "FOLDER", tmp_path)
    with pytest.raises(FicganError, match=f"{name} is {harm}: install ficgan again"):
        load_face_model()


def test_every_pinned_version_has_its_hashes() -> None:
    lines = re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)
    assert len(lines) > 100
    pins = lock.read()
    assert {lock.normal(name): version for name, version in lines}.items() <= {
        name: pin.version for name, pin in pins.items()
    }.items()
    unpinned = set(pins) - {lock.normal(name) for name, _ in lines}
    elsewhere = r"nvidia-|cuda-|triton$|opencv-python$|cffi$|pycparser$|appnope$|httpx2-jsfetch$"
    assert all(re.match(elsewhere, name) for name in unpinned)
    assert all(pin.hashes for pin in pins.values())
    assert lock.LIGHT.read_text().endswith("--update\n" + lock.subset(()))


def test_the_bill_of_materials_names_everything() -> None:
    whole, light = make_sbom.bill(), make_sbom.bill(light=True)
    listed = {(part["name"], part.get("version")) for part in whole["components"] if part["type"] == "library"}
    assert listed == {(name, pin.version) for name, pin in lock.read().items()}
    networks = [part for part in light["components"] if part["type"] == "machine-learning-model"]
    files = json.loads((ROOT / "pretrained" / "manifest.json").read_text())["files"]
    assert {part["hashes"][0]["content"] for part in networks} == {entry["sha256"] for entry in files.values()}
    names = {part["name"] for part in light["components"]}
    assert {"numpy", "onnxruntime", "av", "pydantic-core"} <= names and "torch" not in names
    known = {part["bom-ref"] for part in whole["components"]} | {whole["metadata"]["component"]["bom-ref"]}
    assert {ref for entry in whole["dependencies"] for ref in (entry["ref"], *entry["dependsOn"])} <= known
    assert make_sbom.bill(light=True) == light and whole["serialNumber"] != light["serialNumber"]
