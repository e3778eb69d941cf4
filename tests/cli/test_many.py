"""Many files: worker processes, Ray actors, stores; exactly one result for each, whoever dies and whenever."""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from PIL import Image
from standin import BLUE, Result, StandIn, call, film, photo

from ficgan.deidentify.review import read_decisions
from ficgan.errors import InputError

ROOT = Path(__file__).resolve().parents[2]
PHOTOS = int(os.environ.get("FICGAN_MANY_PHOTOS", "120"))
"""Of the test with a killed worker; 2000 on a quiet machine."""


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def last_words(path: Path) -> Counter[str]:
    """How many inputs ended in which state."""
    return Counter({line["input"]: line["state"] for line in lines(path)}.values())


# -- interrupted runs, with a stand-in for the model -------------------------------------------------------------------


@pytest.mark.parametrize("stop", range(1, 5))
def test_an_interrupted_run_goes_on(tmp_path: Path, engine: StandIn, stop: int) -> None:
    for number in range(5):
        photo(tmp_path / f"in/{number}.png", (number, *BLUE[1:]))

    def interrupt(_: Result) -> None:
        if len(engine.keys) == stop:
            raise KeyboardInterrupt

    engine._change = interrupt
    run = (tmp_path / "in", "-o", tmp_path / "out", "--jobs", 1, "--skip-existing")
    summary, said = call(*run, code=130)
    assert summary["written"] == stop - 1 and "--skip-existing does the rest" in said
    with (tmp_path / "out/manifest.jsonl").open("ab") if stop > 1 else open(os.devnull, "ab") as file:
        file.write(b'{"tool": "ficgan-deid", "inp')  # as a power cut leaves it
    engine._change = lambda result: None
    assert call(*run)[0]["written"] == 6 - stop
    whole = [line for line in (tmp_path / "out/manifest.jsonl").read_bytes().splitlines() if line.endswith(b"}")]
    assert Counter(json.loads(line)["output"] for line in whole) == Counter(f"{n}.png" for n in range(5))


def test_a_run_that_died_between_two_files_is_mended(tmp_path: Path, engine: StandIn) -> None:
    """Before the line of the manifest: the result is taken as it is. Before the result: the side-car alone is there."""
    for name in ("a", "b", "c"):
        photo(tmp_path / f"in/{name}.png")
    call(tmp_path / "in", "-o", tmp_path / "out")
    manifest, before = tmp_path / "out/manifest.jsonl", (tmp_path / "out/a.png").stat().st_mtime_ns
    manifest.write_bytes(manifest.read_bytes().splitlines(keepends=True)[2])
    (tmp_path / "out/b.png").unlink()
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    assert (summary["written"], summary["skipped"]) == (1, 2)
    assert (tmp_path / "out/a.png").stat().st_mtime_ns == before
    told = lines(manifest)
    assert sorted(line["output"] for line in told) == ["a.png", "b.png", "c.png"]
    assert all(line["state"] == "written" and len(line["input_sha256"]) == 64 for line in told)


# -- stores ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def store() -> Any:
    """fsspec's store in memory has no folders, no renames that matter, and addresses like those of S3."""
    made = fsspec.filesystem("memory")
    yield made
    if made.exists("/bucket"):
        made.rm("/bucket", recursive=True)


def test_photos_and_films_of_a_store(tmp_path: Path, engine: StandIn, store: Any) -> None:
    photo(tmp_path / "a.png")
    store.pipe_file("/bucket/in/deep/a.png", (tmp_path / "a.png").read_bytes())
    store.pipe_file("/bucket/in/f.mp4", b"a film's bytes")
    store.pipe_file("/bucket/in/notes.txt", b"x")
    store.pipe_file("/bucket/in/raw.nef", b"x")
    run = ("memory://bucket/in", "-o", "memory://bucket/out")
    summary, said = call(*run, code=3)
    assert (summary["written"], summary["failed"], summary["skipped"]) == (2, 1, 1) and ".nef" in said
    made = store.cat_file("/bucket/out/deep/a.png")
    assert (np.asarray(Image.open(io.BytesIO(made)))[8:20, 8:20] == (255, 0, 0)).all()
    record = json.loads(store.cat_file("/bucket/out/deep/a.png.json"))
    assert record["path"] == "deep/a.png" and record["sha256"] == hashlib.sha256(made).hexdigest()
    assert store.cat_file("/bucket/out/f.mp4") == b"a film"
    assert json.loads(store.cat_file("/bucket/out/f.mp4.json"))["input_sha256"]
    told = [json.loads(line) for line in store.cat_file("/bucket/out/manifest.jsonl").splitlines()]
    assert Counter(line["state"] for line in told) == {"written": 2, "failed": 1}
    assert call(*run, code=3)[0]["failed"] == 3  # nothing is overwritten
    store.rm_file("/bucket/out/f.mp4")
    summary, _ = call(*run, "--skip-existing", code=3)
    assert (summary["written"], summary["skipped"]) == (1, 2)
    _, said = call("memory://bucket/in", code=2)
    assert "-o" in said
    call("memory://bucket/in", "-o", tmp_path / "here", code=3)
    assert (tmp_path / "here/deep/a.png").read_bytes() == made
    call(tmp_path / "a.png", "-o", "memory://bucket/one.png")
    assert store.cat_file("/bucket/one.png") == made


@pytest.mark.parametrize("words", [["nowhere://x", "-o", "out"], ["a.png", "-o", "nowhere://x"]])
def test_stores_that_cannot_be_opened(
    tmp_path: Path, engine: StandIn, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    photo(tmp_path / "a.png")
    assert "cannot be opened" in call(*words, code=2)[1] and engine.loaded == 0


# -- decisions ---------------------------------------------------------------------------------------------------------


def test_decisions_are_read_strictly(tmp_path: Path, engine: StandIn) -> None:
    """What they do to a photo is tested with the review, which exports them."""
    marks = [[205, 105], [240, 105], [222, 125], [208, 145], [238, 145]]
    face = {"box": [1, 2, 3, 4], "landmarks": marks, "score": 0.9}
    one = {"name": "me.png", "analysis": "0" * 32, "faces": [face]}
    tree, file = {"schema": "ficgan-photo-decisions/1", "photos": [one]}, tmp_path / "decisions.json"
    for wrong in (
        {**tree, "schema": "ficgan-photo-decisions/2"},
        {**tree, "photos": [{**one, "tracks": {}}]},
        {**tree, "photos": [{**one, "default": "keep"}]},
        {**tree, "photos": [{**one, "faces": [{**face, "mode": "dp-pix"}]}]},
        {**tree, "photos": [one, {**one, "default": "blur"}]},
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(InputError):
            read_decisions(file)
    file.write_text(json.dumps(tree))
    run = (photo(tmp_path / "a.png"), "-o", tmp_path / "out", "--decisions", file)
    call(*run, "--mode", "solid", code=2)
    summary, said = call(*run, code=3)
    assert summary["failed"] == 1 and "nothing was decided" in said and not (tmp_path / "out").exists()


# -- real processes ----------------------------------------------------------------------------------------------------


def crops(folder: Path, count: int) -> None:
    """Small photos, every one another cut of the astronaut; a tenth show no face."""
    image = Image.open(ROOT / "tools" / "astronaut.jpg").convert("RGB")
    for number in range(count):
        left, top = (150 + number % 20, 20 + number // 20 % 20) if number % 10 else (300 + number % 150, 300)
        path = folder / f"{number % 7}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.crop((left, top, left + 160, top + 180)).save(path, quality=90)


def command(source: Path, out: Path, *words: str) -> list[str]:
    line = [sys.executable, "-m", "ficgan.cli.main", "deid", str(source), "-o", str(out), "--skip-existing"]
    return [*line, "--mode", "solid", "--scale", "160x180", "--detector", "yunet", "--no-verify", *words]


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_worker_processes_do_what_one_process_does(tmp_path: Path) -> None:
    crops(tmp_path / "in", 3)
    (tmp_path / "in/0/broken.jpg").write_bytes(b"\xff\xd8\xff no photo")
    film(tmp_path / "in/0/broken.mp4", b"no film")
    found = []
    for jobs in ("1", "2"):
        done = subprocess.run(
            command(tmp_path / "in", tmp_path / jobs, "--jobs", jobs), capture_output=True, text=True, env=ENVIRONMENT
        )
        summary = json.loads(done.stdout)
        assert done.returncode == 3 and done.stderr.count("broken.") == done.stderr.count("Error: ") == 2, done.stderr
        results = {path.name: path.read_bytes() for path in (tmp_path / jobs).rglob("*.jpg*")}
        assert last_words(tmp_path / jobs / "manifest.jsonl") == {"written": 3, "failed": 2}
        found.append(({name: value for name, value in summary.items() if name != "seconds"}, results))
    assert found[0] == found[1]


def descendants(pid: int) -> dict[int, str]:
    """Processes below one, and their command lines."""
    parents, names = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                names[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except (OSError, IndexError, ValueError):
                continue
    found, front = {}, {pid}
    while front:
        front = {child for child, parent in parents.items() if parent in front}
        found |= {child: names[child] for child in front}
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "worker", "sent"),
    [
        (("--jobs", "2"), "ficgan.workers", signal.SIGTERM),
        (("--jobs", "2"), "ficgan.workers", signal.SIGKILL),
        (("--jobs", "2", "--cluster", "local"), "_Actor", signal.SIGTERM),
    ],
)
def test_a_killed_worker_and_a_killed_run_lose_nothing(
    words: tuple[str, ...], worker: str, sent: signal.Signals, tmp_path: Path
) -> None:
    """A worker is killed early, the whole run later; the second run does the rest."""
    if "--cluster" in words:
        pytest.importorskip("ray")
    source, out, manifest = tmp_path / "in", tmp_path / "out", tmp_path / "out" / "manifest.jsonl"
    crops(source, PHOTOS)
    line = command(source, out, *words)

    def until(least: int, process: subprocess.Popen[str]) -> None:
        while not manifest.exists() or manifest.read_bytes().count(b"\n") < least:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)

    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
    try:
        until(PHOTOS // 10, process)
        os.kill(next(pid for pid, name in descendants(process.pid).items() if worker in name), signal.SIGKILL)
        until(PHOTOS // 2, process)
        process.send_signal(sent)  # shells ignore SIGINT for what runs in the background
        _, told = process.communicate(timeout=240)
        assert sent == signal.SIGKILL or (process.returncode == 130 and "--skip-existing does the rest" in told), told
    finally:
        process.kill()
    half = sum(one["state"] == "written" for one in lines(manifest))
    assert PHOTOS // 3 <= half < PHOTOS
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")}
    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert summary["failed"] == 0 and summary["written"] + summary["skipped"] == PHOTOS
    written = [one for one in lines(manifest) if one["state"] == "written"]
    assert len(written) == len({one["input"] for one in written}) == PHOTOS and last_words(manifest) == {
        "written": PHOTOS
    }
    assert sum(one["faces"] for one in written) >= 0.85 * PHOTOS
    assert all(path.stat().st_mtime_ns == at for path, at in before.items()), "nothing is made twice"
    for one in written:
        record = json.loads((out / f"{one['output']}.json").read_bytes())
        assert record["sha256"] == hashlib.sha256((out / one["output"]).read_bytes()).hexdigest()
        assert record["input_sha256"] == one["input_sha256"]
    assert not [path for path in out.rglob("*") if path.name.startswith(".")], "no temporary file stays"
