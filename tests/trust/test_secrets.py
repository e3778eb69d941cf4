"""Nothing that leads back to a source face lies in an output or a temporary file: no pixels, no embedding, no seed.

Whatever a run writes is kept by hard links, also what it removes again, and searched afterwards.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest
from clips import make_clip
from numpy.typing import NDArray
from PIL import Image
from skimage import data

from ficgan.deidentify import Deidentifier
from ficgan.faces import Face, get_detector, get_recognizer

SEED = 0x5EC2E7_0123456789ABCDEF_0FEDCBA9
MAIN = "from ficgan.cli.main import main; main()"
SCALES = (0.25, 0.3, 0.4, 0.5, 0.63, 0.75, 0.85, 1.0, 1.25, 1.5, 2.0)
ALIKE = 0.9
"""Correlation from which a patch is the source's: smoothed by a pixel, scaled copies have .96 and more, and a new face
in the source's place has .76."""
NEAR = 0.9
"""Cosine from which an array is a source's embedding."""


@dataclass(frozen=True, eq=False)
class Secrets:
    """What must not be found."""

    patch: NDArray[np.float32]
    """Grey [h,w], inside the replaced region: eyes and nose."""
    rows: list[bytes]
    """A stretch of RGB in rows through the face."""
    embeddings: dict[str, NDArray[np.float64]]
    seed: int

    @classmethod
    def of(cls, image: NDArray[np.uint8], face: Face, seed: int) -> Secrets:
        eyes, mouth = face.landmarks[:2], face.landmarks[3:]
        left, right = int(eyes[0, 0]) - 6, int(eyes[1, 0]) + 6
        top, bottom = int(eyes[:, 1].min()) - 6, int(mouth[:, 1].mean())
        patch = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[top:bottom, left:right].astype(np.float32)
        rows = [image[y, left : left + 12].tobytes() for y in range(top, bottom, 3)]
        engine = Deidentifier.from_pretrained(seed=0)
        sight = engine.face_model.see([(image, face)])[0]
        dlib = get_recognizer("dlib").embed(image, face.landmarks[None])[0]
        return cls(patch, rows, {"dlib": dlib.astype(np.float64), "code": sight.z_id.astype(np.float64).ravel()}, seed)

    def in_picture(self, image: NDArray[np.uint8]) -> bool:
        grey = cv2.cvtColor(np.ascontiguousarray(image[..., :3]), cv2.COLOR_RGB2GRAY).astype(np.float32)
        grey = cv2.GaussianBlur(grey, (0, 0), 1.0)
        for scale in SCALES:
            patch = cv2.resize(self.patch, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA)
            fits = patch.shape[0] <= grey.shape[0] and patch.shape[1] <= grey.shape[1]
            if fits and min(patch.shape) >= 8:
                likeness = cv2.matchTemplate(grey, cv2.GaussianBlur(patch, (0, 0), 1.0), cv2.TM_CCOEFF_NORMED)
                if np.isfinite(likeness).any() and likeness[np.isfinite(likeness)].max() > ALIKE:
                    return True
        return False

    def near(self, numbers: NDArray[np.float64]) -> list[str]:
        """Embeddings that a row of numbers holds somewhere."""
        numbers = np.where(np.isfinite(numbers) & (np.abs(numbers) < 1e6), numbers, 0.0)
        found = []
        for name, secret in self.embeddings.items():
            if len(numbers) < len(secret):
                continue
            products = np.correlate(numbers, secret, "valid")
            norms = np.sqrt(np.convolve(numbers**2, np.ones(len(secret)), "valid").clip(1e-12))
            if (np.abs(products) / norms / np.linalg.norm(secret)).max() > NEAR:
                found.append(f"embedding {name}")
        return found

    def leaks(self, path: Path) -> list[str]:
        """What a file gives away."""
        content = path.read_bytes()
        found = []
        if sum(row in content for row in self.rows) > len(self.rows) // 4:
            found.append("pixels, raw")
        if any(self.in_picture(image) for image in pictures(path)):
            found.append("pixels")
        for kind in (np.float32, np.float64, np.float16):
            size = np.dtype(kind).itemsize
            for offset in range(size):
                part = content[offset : len(content) - (len(content) - offset) % size]
                found += self.near(np.frombuffer(part, kind).astype(np.float64))
        numbers = re.findall(rb"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", content) if content.isascii() else []
        found += self.near(np.array([float(number[:40]) for number in numbers]))
        lengths = (self.seed.bit_length() + 7) // 8
        for form in (str(self.seed), f"{self.seed:x}", f"{self.seed:X}"):
            if form.encode() in content:
                found.append("seed")
        if any(self.seed.to_bytes(lengths, order) in content for order in ("little", "big")):
            found.append("seed, raw")
        return sorted(set(found))


def pictures(path: Path) -> Iterator[NDArray[np.uint8]]:
    """All pictures of a file, none where it holds none."""
    try:
        with Image.open(path) as image:
            yield np.asarray(image.convert("RGB"))
        return
    except (OSError, ValueError, SyntaxError):
        pass
    try:
        with av.open(str(path)) as film:
            for frame in film.decode(video=0):
                yield frame.to_ndarray(format="rgb24")
    except (av.FFmpegError, OSError, IndexError, ValueError):
        return


class Keeper:
    """Links every file that appears below some folders, before it can be removed."""

    def __init__(self, folders: list[Path], store: Path) -> None:
        self.folders, self.store = folders, store
        self.kept: dict[tuple[int, int], tuple[Path, Path]] = {}
        """Of each file where it lay, and its link."""
        self.modes: dict[Path, int] = {}
        """Of folders."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def look(self) -> None:
        for folder in self.folders:
            for place, _, names in os.walk(folder, onerror=lambda _: None):
                try:
                    self.modes.setdefault(Path(place), stat.S_IMODE(os.stat(place).st_mode))
                except OSError:
                    continue
                for name in names:
                    path = Path(place, name)
                    try:
                        about = os.lstat(path)
                        if stat.S_ISREG(about.st_mode) and (about.st_dev, about.st_ino) not in self.kept:
                            link = self.store / str(len(self.kept))
                            os.link(path, link)
                            self.kept[about.st_dev, about.st_ino] = path, link
                    except OSError:
                        continue

    def _run(self) -> None:
        while not self._stop.wait(0.01):
            self.look()

    def __enter__(self) -> Keeper:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self.look()


@pytest.fixture(scope="module")
def face() -> tuple[NDArray[np.uint8], Face]:
    image = np.ascontiguousarray(data.astronaut()[:220, 110:330])
    return image, get_detector("auto").detect(image)[0]


@pytest.fixture(scope="module")
def secrets(face: tuple[NDArray[np.uint8], Face]) -> Secrets:
    return Secrets.of(*face, SEED)


@pytest.mark.slow
def test_the_search_finds_what_is_planted(secrets: Secrets, face: tuple[Any, Face], tmp_path: Path) -> None:
    image, code = face[0], secrets.embeddings["code"]
    plants = {
        "thumb.jpg": "pixels",
        "large.png": "pixels",
        "raw.bin": "pixels, raw",
        "film.mp4": "pixels",
        "dlib.npy": "embedding dlib",
        "odd.bin": "embedding code",
        "codes.json": "embedding code",
        "text.json": "seed",
        "seed.bin": "seed, raw",
    }
    Image.fromarray(image).resize((110, 110)).save(tmp_path / "thumb.jpg", quality=75)
    Image.fromarray(image[20:200]).resize((330, 270)).save(tmp_path / "large.png")
    (tmp_path / "raw.bin").write_bytes(b"x" + image.tobytes())
    make_clip(tmp_path / "film.mp4", 2, size=(220, 220), pictures=[np.zeros_like(image), image])
    np.save(tmp_path / "dlib.npy", secrets.embeddings["dlib"].astype(np.float32))
    noise = np.random.default_rng(0).normal(size=code.shape) * 0.02 * np.abs(code).mean()
    (tmp_path / "odd.bin").write_bytes(b"abc" + (code + noise).astype(np.float32).tobytes())
    (tmp_path / "codes.json").write_text(json.dumps({"a": 1, "b": [round(float(value), 3) for value in code]}))
    (tmp_path / "text.json").write_text(json.dumps({"seed": SEED}))
    (tmp_path / "seed.bin").write_bytes(b"12" + SEED.to_bytes((SEED.bit_length() + 7) // 8, "little"))
    for name, leak in plants.items():
        assert leak in secrets.leaks(tmp_path / name), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["photo", "film", "workers"])
def test_runs_leave_no_secret(kind: str, secrets: Secrets, face: tuple[Any, Face], tmp_path: Path) -> None:
    given, out, temporary, store = (tmp_path / name for name in ("in", "out", "tmp", "store"))
    for folder in (given, temporary, store, out):
        folder.mkdir()
    if kind == "film":
        make_clip(given / "film.mp4", 6, size=(220, 220), pictures=[face[0]] * 6)
    else:
        Image.fromarray(face[0]).save(given / "photo.png")
        Image.fromarray(face[0]).save(given / "photo.jpg", quality=90)
    command = ["deid", str(given), *(["--jobs", "2"] if kind == "workers" else [])]
    with Keeper([out, temporary], store) as keeper:
        done = subprocess.run(
            [sys.executable, "-c", MAIN, *command, "-o", str(out), "--seed", str(SEED)],
            capture_output=True,
            text=True,
            check=False,
            cwd=temporary,
            env={**os.environ, "TMPDIR": str(temporary), "HOME": str(temporary)},
        )
    assert done.returncode == 0, done.stderr
    assert str(SEED) not in done.stdout + done.stderr and f"{SEED:x}" not in (done.stdout + done.stderr).lower()
    results = [path for path in out.rglob("*") if path.is_file() and path.suffix in (".png", ".jpg", ".mp4")]
    assert len(results) == (1 if kind == "film" else 2) and not any(temporary.iterdir())
    assert list(out.rglob("*.json")) and len(keeper.kept) >= 2 * len(results)
    private = [folder for folder, mode in keeper.modes.items() if mode == 0o700 and folder not in (out, temporary)]
    leaks = {}
    for path, link in keeper.kept.values():
        inside = any(folder in path.parents for folder in private)
        assert not (inside and path.exists()), path
        if inside and not stat.S_IMODE(link.stat().st_mode) & 0o077:
            continue  # there source faces may lie while the run lasts; others cannot read it
        found = secrets.leaks(link)
        if found:
            leaks[str(path.relative_to(tmp_path))] = found
    assert not leaks


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no core dumps")
def test_a_crash_leaves_no_image_of_the_memory() -> None:
    code = """
import resource
resource.setrlimit(resource.RLIMIT_CORE, (hard := resource.getrlimit(resource.RLIMIT_CORE)[1], hard))
from ficgan.cli.main import handle_errors
handle_errors(lambda: print(resource.getrlimit(resource.RLIMIT_CORE)[0]))()
"""
    for debug, wanted in (("", True), ("1", False)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "FICGAN_DEBUG": debug},
        )
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        assert (int(done.stdout) == 0) == (wanted or hard == 0)
