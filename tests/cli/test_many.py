"""Many files: lists of inputs, the manifest, runs that go on, stores, worker processes and Ray actors; exactly one
result for each, whoever dies and whenever.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import signal
import subprocess
import time
from collections import Counter
from html import unescape
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from standin import BLUE, GREEN, ROOT, Result, StandIn, call, files, film, photo, started

import ficgan.cli.deid as deid
from ficgan.cli.review import report
from ficgan.deidentify.review import read_decisions
from ficgan.errors import InputError
from ficgan.records import MANIFEST

# Of the test with a killed worker; 2000 on a quiet machine.
PHOTOS = int(os.environ.get("FICGAN_MANY_PHOTOS", "120"))


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]


def last_words(folder: Path) -> Counter[str]:
    """How many inputs ended in which state."""
    return Counter({line["input"]: line["state"] for line in lines(folder)}.values())


# -- the manifest -----------------------------------------------------------------------------------------------------


def test_the_manifest_tells_what_became_of_each_file(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/deep/none.png", GREEN)
    film(tmp_path / "in/f.mp4")
    (tmp_path / "in/damaged.jpg").write_bytes(b"no photo")
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--seed", 3, code=3)
    assert (summary["written"], summary["failed"], summary["skipped"]) == (3, 1, 0)
    answer = {line["output"]: line for line in lines(tmp_path / "out")}
    assert set(answer) == {"a.png", "deep/none.png", "f.mp4", "damaged.jpg"}
    line = answer["a.png"]
    assert line["input"] == str(source) and line["input_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert (line["state"], line["faces"], line["masked"], line["error"]) == ("written", 1, 0, None)
    assert line["seconds"] >= 0 and (line["tool"], line["schema"]) == ("ficgan-deid", 1)
    assert answer["deep/none.png"]["faces"] == 0 and answer["f.mp4"]["faces"] == 2
    assert answer["damaged.jpg"]["state"] == "failed" and "damaged.jpg" in answer["damaged.jpg"]["error"]
    assert len({line["options"] for line in answer.values()}) == 1 and line["options"] != "3"


def test_an_equal_run_goes_on_and_another_does_not(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    run = (tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    call(*run[:3], "--seed", 3)
    photo(tmp_path / "in/b.png")
    summary, _ = call(*run, "--jobs", 1, "--seed", 3)
    assert (summary["written"], summary["skipped"], summary["failed"]) == (1, 1, 0)
    assert [line["output"] for line in lines(tmp_path / "out")] == ["a.png", "b.png"]
    loaded = engine.loaded
    summary, _ = call(*run)  # any seed will do
    assert (summary["written"], summary["skipped"]) == (0, 2) and engine.loaded == loaded
    summary, said = call(*run, "--mode", "blur", code=3)
    assert summary["failed"] == 2 and "other options" in said and "--overwrite" in said
    call(*run[:3], "--overwrite")
    assert call(*run, "--seed", 3, code=3)[1].count("other options (seed)") == 2
    # Also where nothing else tells: a result without a side-car of its own.
    (tmp_path / "out/a.png.json").unlink()
    _, said = call(*run, "--layer", 2, "--no-sidecar")
    assert "other options" not in said, "without side-cars there is no manifest to go by"


def test_what_no_work_begins_on_is_told_and_written_down(tmp_path: Path, engine: StandIn) -> None:
    folder, out, long = tmp_path / "in", tmp_path / "out", "x" * 247 + ".png"
    photo(folder / "a.png")
    photo(folder / "same.bmp")
    photo(folder / "same.gif")
    photo(folder / long)
    photo(tmp_path / "some.jpg").rename(folder / "photo.mp4")
    photo(tmp_path / "two.gif", save_all=True, append_images=[Image.new("RGB", (48, 32))]).rename(folder / "moves.mov")
    for name, head in {
        "film.jpg": b"\0\0\0\x20ftypisom",
        "film.webp": b"RIFF\0\0\0\0AVI ",
        "raw.NEF": b"II*\0",
        "deep/scan.pdf": b"%PDF",
        "notes.txt": b"x",
        "._raw.nef": b"",
        "stream.mjpeg": b"\xff\xd8\xff",
    }.items():
        film(folder / name, head + bytes(200))
    (folder / "link.jpg").symlink_to("nowhere")
    os.mkfifo(folder / "pipe.jpg")
    said = {"same.bmp": "both become", "same.gif": "both become", long: "name too long", "photo.mp4": "is a photo"}
    said |= {"film.jpg": "is a film", "film.webp": "is a film", "raw.NEF": ".nef files are not read"}
    said |= {"deep/scan.pdf": ".pdf files are not read", "link.jpg": "a link to nothing", "pipe.jpg": "not a file"}
    for words in ([], ["--skip-existing"]):
        summary, heard = call(folder, "-o", out, *words, code=3)
        assert summary["failed"] == len(said) and summary["inputs"] == len(said) + 3 and engine.loaded == 1
        answer = {line["input"]: line for line in lines(out)}
        for name, why in said.items():
            line = answer[str(folder / name)]
            assert line["state"] == "failed" and why in line["error"] and line["error"] in heard
    assert files(out) == {f"{name}{end}" for name in ("a.png", "moves.mov", "stream.mp4") for end in ("", ".json")}
    shown = CliRunner().invoke(report, [str(out)])
    assert shown.exit_code == 3 and json.loads(shown.stdout)["undone"] == len(said), shown.output
    page = unescape((out / "report.html").read_text())
    assert all(str(folder / name) in page for name in said)
    for name in ("same.bmp", "film.jpg"):  # what is mended is no longer named
        (folder / name).unlink()
    photo(folder / "film.jpg")
    call(folder, "-o", out, "--skip-existing", code=3)
    again = CliRunner().invoke(report, [str(out), "--overwrite"])
    assert json.loads(again.stdout)["undone"] == len(said) - 3


def test_a_manifest_that_was_cut_off_is_continued_and_a_strangers_stays(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    call(tmp_path / "in", "-o", tmp_path / "out")
    with (tmp_path / "out" / MANIFEST).open("ab") as file:
        file.write(b'{"tool": "ficg')
    photo(tmp_path / "in/b.png")
    call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    whole = (tmp_path / "out" / MANIFEST).read_bytes().splitlines()
    assert [json.loads(line)["output"] for line in (whole[0], whole[2])] == ["a.png", "b.png"] and len(whole) == 3
    (tmp_path / "other").mkdir()
    strange = tmp_path / "other" / MANIFEST
    for data in (b"a list of mine\n", b'{"tool": "mine"}\n', b"[1]\n"):
        strange.write_bytes(data)
        _, said = call(tmp_path / "in", "-o", tmp_path / "other", "--overwrite")
        assert strange.read_bytes() == data and "another program's" in said
    strange.unlink()
    strange.symlink_to(tmp_path / "elsewhere")
    call(tmp_path / "in", "-o", tmp_path / "other", "--overwrite")
    assert not (tmp_path / "elsewhere").exists()
    for words in (["--dry-run"], ["--no-sidecar"]):
        call(tmp_path / "in/a.png", "-o", tmp_path / "none", *words)
    assert not (tmp_path / "none" / MANIFEST).exists()


def test_inputs_come_from_a_list(tmp_path: Path, engine: StandIn) -> None:
    listed = [photo(tmp_path / f"in/{name}.png") for name in ("a", "b b", "ü")]
    photo(tmp_path / "in/d.png")
    (tmp_path / "list.txt").write_text("\n".join(map(str, listed)) + "\n\n")
    call("--files-from", tmp_path / "list.txt", "-o", tmp_path / "out")
    assert files(tmp_path / "out") == {f"{name}.png{end}" for name in ("a", "b b", "ü") for end in ("", ".json")}
    more = [str(tmp_path / "in/d.png"), "--files-from", "-", "-o", str(tmp_path / "two")]
    done = CliRunner().invoke(deid.deid, more, input=f"{listed[0]}\r\n")
    assert done.exit_code == 0 and json.loads(done.stdout)["written"] == 2
    assert "none.txt" in call("--files-from", tmp_path / "none.txt", "-o", tmp_path / "out", code=2)[1]


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
    with (tmp_path / "out" / MANIFEST).open("ab") if stop > 1 else open(os.devnull, "ab") as file:
        file.write(b'{"tool": "ficgan-deid", "inp')  # as a power cut leaves it
    engine._change = lambda result: None
    assert call(*run)[0]["written"] == 6 - stop
    whole = [line for line in (tmp_path / "out" / MANIFEST).read_bytes().splitlines() if line.endswith(b"}")]
    assert Counter(json.loads(line)["output"] for line in whole) == Counter(f"{n}.png" for n in range(5))


def test_a_run_that_died_between_two_files_is_mended(tmp_path: Path, engine: StandIn) -> None:
    """Before the line of the manifest: the result is taken as it is. Before the result: the side-car alone is there."""
    for name in ("a", "b"):
        photo(tmp_path / f"in/{name}.png")
    call(tmp_path / "in", "-o", tmp_path / "out")
    before = (tmp_path / "out/a.png").stat().st_mtime_ns
    (tmp_path / "out" / MANIFEST).unlink()
    (tmp_path / "out/b.png").unlink()
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    assert (summary["written"], summary["skipped"]) == (1, 1)
    assert (tmp_path / "out/a.png").stat().st_mtime_ns == before
    lines = [json.loads(line) for line in (tmp_path / "out" / MANIFEST).read_bytes().splitlines()]
    assert Counter(line["output"] for line in lines) == {"a.png": 1, "b.png": 1}
    assert all(line["state"] == "written" and line["input_sha256"] for line in lines)


# -- stores -----------------------------------------------------------------------------------------------------------


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
    answer = [json.loads(line) for line in store.cat_file("/bucket/out/manifest.jsonl").splitlines()]
    assert Counter(line["state"] for line in answer) == {"written": 2, "failed": 1}
    assert call(*run, code=3)[0]["failed"] == 3  # nothing is overwritten
    store.rm_file("/bucket/out/f.mp4")
    summary, _ = call(*run, "--skip-existing", code=3)
    assert (summary["written"], summary["skipped"]) == (1, 2)
    assert "-o" in call("memory://bucket/in", code=2)[1]
    call("memory://bucket/in", "-o", tmp_path / "here", code=3)
    assert (tmp_path / "here/deep/a.png").read_bytes() == made
    call(tmp_path / "a.png", "-o", "memory://bucket/one.png")
    assert store.cat_file("/bucket/one.png") == made
    loaded = engine.loaded
    for words in (["nowhere://x", "-o", tmp_path / "x"], [tmp_path / "a.png", "-o", "nowhere://x"]):
        assert "cannot be opened" in call(*words, code=2)[1] and engine.loaded == loaded


# -- decisions --------------------------------------------------------------------------------------------------------


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


# -- real processes ---------------------------------------------------------------------------------------------------


def crops(folder: Path, count: int) -> None:
    """Small photos, every one another cut of the astronaut; a tenth show no face."""
    image = Image.open(ROOT / "tools" / "astronaut.jpg").convert("RGB")
    for number in range(count):
        left, top = (150 + number % 20, 20 + number // 20 % 20) if number % 10 else (300 + number % 150, 300)
        path = folder / f"{number % 7}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.crop((left, top, left + 160, top + 180)).save(path, quality=90)


def start(source: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    line = (
        "-m",
        "ficgan.cli.main",
        "deid",
        source,
        "-o",
        out,
        "--skip-existing",
        "--mode",
        "solid",
        "--scale",
        "160x180",
    )
    return started(*line, "--detector", "yunet", "--verify", "off", *words)


@pytest.mark.slow
def test_worker_processes_do_what_one_process_does(tmp_path: Path) -> None:
    crops(tmp_path / "in", 3)
    (tmp_path / "in/0/broken.jpg").write_bytes(b"\xff\xd8\xff no photo")
    film(tmp_path / "in/0/broken.mp4", b"no film")
    found = []
    for jobs in ("1", "2"):
        process = start(tmp_path / "in", tmp_path / jobs, "--jobs", jobs)
        told, said = process.communicate()
        summary = json.loads(told)
        assert process.returncode == 3 and said.count("broken.") == said.count("Error: ") == 2, said
        results = {path.name: path.read_bytes() for path in (tmp_path / jobs).rglob("*.jpg*")}
        assert last_words(tmp_path / jobs) == {"written": 3, "failed": 2}
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
    source, out = tmp_path / "in", tmp_path / "out"
    crops(source, PHOTOS)

    def until(least: int, process: subprocess.Popen[str]) -> None:
        while not (out / MANIFEST).exists() or (out / MANIFEST).read_bytes().count(b"\n") < least:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)

    process = start(source, out, *words)
    try:
        until(PHOTOS // 10, process)
        os.kill(next(pid for pid, name in descendants(process.pid).items() if worker in name), signal.SIGKILL)
        until(PHOTOS // 2, process)
        process.send_signal(sent)  # shells ignore SIGINT for what runs in the background
        _, said = process.communicate(timeout=240)
        assert sent == signal.SIGKILL or (process.returncode == 130 and "--skip-existing does the rest" in said), said
    finally:
        process.kill()
    assert PHOTOS // 3 <= sum(line["state"] == "written" for line in lines(out)) < PHOTOS
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.jpg")}
    process = start(source, out, *words)
    told, said = process.communicate()
    assert process.returncode == 0, said
    summary = json.loads(told)
    assert summary["failed"] == 0 and summary["written"] + summary["skipped"] == PHOTOS
    written = [line for line in lines(out) if line["state"] == "written"]
    assert len({line["input"] for line in written}) == len(written) >= PHOTOS - 1  # killed before its line
    assert sum(line["faces"] for line in written) >= 0.85 * PHOTOS
    assert all(path.stat().st_mtime_ns == at for path, at in before.items()), "nothing is made twice"
    for line in written:
        record = json.loads((out / f"{line['output']}.json").read_bytes())
        assert record["sha256"] == hashlib.sha256((out / line["output"]).read_bytes()).hexdigest()
        assert record["input_sha256"] == line["input_sha256"]
    assert not [path for path in out.rglob("*") if path.name.startswith(".")], "no temporary file stays"
