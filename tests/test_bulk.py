"""`ficgan bulk`: exactly one result and one settled line for every photo, whoever dies and whenever."""

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
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import fsspec
import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

import ficgan.cli.bulk as command
from ficgan.bulk import DIED, Job, Manifest, Place, Task, Worker, plan, run
from ficgan.deidentify.decided import read_decisions
from ficgan.errors import InputError, UsageError
from ficgan.policy import FaceResult, Result
from ficgan.video import EncodeOptions, VideoResult, VideoSettings

ROOT = Path(__file__).resolve().parent.parent
PHOTOS = int(os.environ.get("FICGAN_BULK_PHOTOS", "200"))
"""Of the test with a killed worker; 2000 on a quiet machine."""


def engine(image: np.ndarray, *, key: str = "") -> Result:
    """Paints a red box, as if it had found a face there."""
    out = image.copy()
    out[:4, :4] = (255, 0, 0)
    face = FaceResult(np.array([0, 0, 4, 4], np.float32), np.zeros((5, 2), np.float32), np.float32(0.9))
    audit = {"mode": "ficgan", "detector": "none", "gate": None, "faces": [face.to_dict()], "psi": np.float32(1)}
    return Result(out, [face], audit, np.ones(image.shape[:2], np.float32))


def photo(number: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (16, 12), (number % 256, number // 256, 90)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Six photos in two folders, and three files that are none."""
    folder = tmp_path / "in"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    for number in range(6):
        (folder / ("a/b" if number % 2 else "a") / f"{number}.png").write_bytes(photo(number))
    (folder / "notes.txt").write_text("x")
    (folder / "letter.odt").write_bytes(b"x")
    (folder / ".hidden" / "x.png").write_bytes(photo(9))
    return folder


class Inline:
    """An engine without processes. Workers die at some jobs, and answer twice at others."""

    def __init__(self, *, dies: Sequence[str] = (), twice: Sequence[str] = (), stop: int | None = None) -> None:
        self.dies, self.twice, self.stop = Counter(dies), twice, stop
        self.worked: Counter[str] = Counter()

    def __call__(self, task: Task, todo: Sequence[Job]) -> Iterator[dict[str, Any]]:
        worker = Worker(task, engine)
        for job in todo:
            if self.stop is not None and sum(self.worked.values()) >= self.stop:
                raise KeyboardInterrupt
            self.worked[job.input] += 1
            line = worker(job)  # the result may be there though the worker died before its answer
            if self.dies[job.input] > 0:
                self.dies[job.input] -= 1
                continue
            yield line
            if job.input in self.twice:
                yield worker(job)


def settle(source: Path | str, out: Path | str, workers: Inline, manifest: Path, **task: Any) -> dict[str, Any]:
    here = Place(str(source))
    jobs, _ = plan(here, Place(str(out)))
    with Manifest(manifest, {"out": str(out)}) as settled:
        run(Task(str(source), str(out), **task), jobs, settled, workers)
    return {line["input"]: line for line in lines(manifest)[1:]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_photo_gets_one_result_one_side_car_and_one_line(source: Path, tmp_path: Path) -> None:
    out, workers = tmp_path / "out", Inline(dies=["a/0.png", "a/b/3.png", "a/b/3.png"], twice=["a/2.png"])
    settle(source, out, workers, out / "manifest.jsonl")
    names = {"a/0.png", "a/2.png", "a/4.png", "a/b/1.png", "a/b/3.png", "a/b/5.png"}
    found = lines(out / "manifest.jsonl")
    assert found[0]["schema"] == "ficgan-manifest/1"
    assert sorted(line["input"] for line in found[1:]) == sorted(names)  # one line each
    for line in found[1:]:
        data = (source / line["input"]).read_bytes()
        assert line["state"] == "done" and line["faces"] == 1
        assert line["input_sha256"] == hashlib.sha256(data).hexdigest()
        assert line["attempts"] == {"a/0.png": 2, "a/b/3.png": 3}.get(line["input"], 1)
        pixels = np.asarray(Image.open(out / line["output"]))
        before = np.asarray(Image.open(io.BytesIO(data)))
        assert (pixels[:4, :4] == (255, 0, 0)).all() and (pixels[8, 8] == before[8, 8]).all()
        record = json.loads((out / f"{line['output']}.json").read_text())
        assert record["sha256"] == hashlib.sha256((out / line["output"]).read_bytes()).hexdigest()
    files = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert files == names | {f"{name}.json" for name in names} | {"manifest.jsonl"}


def test_side_cars_are_as_the_schema_says(source: Path, tmp_path: Path) -> None:
    schema = json.loads((ROOT / "docs" / "sidecar.schema.json").read_text())
    options = {"mode": "ficgan", "recognizer": "auto"}
    settle(source, tmp_path / "out", Inline(), tmp_path / "m.jsonl", options=options)
    jsonschema.validate(json.loads((tmp_path / "out" / "a" / "b" / "1.png.json").read_text()), schema)


@pytest.mark.parametrize("stop", range(6))
def test_an_interrupted_run_goes_on(source: Path, tmp_path: Path, stop: int) -> None:
    out, manifest = tmp_path / "out", tmp_path / "out" / "manifest.jsonl"
    with pytest.raises(KeyboardInterrupt):
        settle(source, out, Inline(stop=stop), manifest)
    with manifest.open("ab") as file:
        file.write(b'{"input": "a/4.p')  # as a power cut leaves it
    workers = Inline()
    settle(source, out, workers, manifest)
    assert sum(workers.worked.values()) == 6 - stop
    assert Counter(line["input"] for line in lines(manifest)[1:]) == Counter(
        ["a/0.png", "a/2.png", "a/4.png", "a/b/1.png", "a/b/3.png", "a/b/5.png"]
    )


def test_a_result_whose_line_is_missing_is_not_made_again(source: Path, tmp_path: Path) -> None:
    """The worker died, or the run, after the side-car was written."""
    out = tmp_path / "out"
    settle(source, out, Inline(), tmp_path / "first.jsonl")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*.png")}
    settled = settle(source, out, Inline(), tmp_path / "second.jsonl")
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*.png")} == before
    assert all(line["state"] == "done" and line["faces"] == 1 for line in settled.values())


def test_what_fails_is_listed_and_the_rest_is_done(source: Path, tmp_path: Path) -> None:
    (source / "a" / "0.png").write_bytes(photo(0)[:40])
    out, manifest = tmp_path / "out", tmp_path / "out" / "manifest.jsonl"
    settled = settle(source, out, Inline(dies=["a/2.png"] * 3), manifest)
    assert {name: line["state"] for name, line in settled.items() if line["state"] != "done"} == {
        "a/0.png": "failed",
        "a/2.png": "failed",
    }
    assert "damaged" in settled["a/0.png"]["error"] and settled["a/0.png"]["attempts"] == 1
    assert settled["a/2.png"]["error"] == DIED and settled["a/2.png"]["attempts"] == 3
    assert not (out / "a" / "0.png").exists()
    # The next run tries them again, and only them.
    (source / "a" / "0.png").write_bytes(photo(0))
    workers = Inline()
    assert {line["state"] for line in settle(source, out, workers, manifest).values()} == {"done"}
    assert set(workers.worked) == {"a/0.png", "a/2.png"}


def test_a_store_that_stutters_is_asked_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read, calls = Place.read, Counter[str]()

    def stutters(self: Place, name: str) -> bytes:
        calls[name] += 1
        if name == "a/2.png" and calls[name] < 3:
            raise TimeoutError("no answer")
        return read(self, name)

    monkeypatch.setattr(Place, "read", stutters)
    settled = settle(source, tmp_path / "out", Inline(), tmp_path / "m.jsonl")
    assert settled["a/2.png"]["state"] == "done" and settled["a/2.png"]["attempts"] == 3


def test_photos_of_a_store(source: Path, tmp_path: Path) -> None:
    """fsspec's store in memory has no folders, no renames that matter, and addresses like those of S3."""
    store = fsspec.filesystem("memory")
    for path in source.rglob("*.png"):
        store.pipe_file(f"/bucket/photos/{path.relative_to(source).as_posix()}", path.read_bytes())
    try:
        settled = settle("memory://bucket/photos", "memory://bucket/out", Inline(), tmp_path / "m.jsonl")
        assert len(settled) == 6 and {line["state"] for line in settled.values()} == {"done"}
        made = store.cat_file("/bucket/out/a/b/1.png")
        assert (np.asarray(Image.open(io.BytesIO(made)))[:4, :4] == (255, 0, 0)).all()
        assert json.loads(store.cat_file("/bucket/out/a/b/1.png.json"))["path"] == "a/b/1.png"
    finally:
        store.rm("/bucket", recursive=True)


class Filming:
    """An engine for films: "redacts" by copying; the first attempts at a film die in the middle."""

    def __init__(self, dies: int = 0) -> None:
        self.dies, self.calls = dies, 0

    def process_video(self, source: Path, output: Path, *, settings: Any, encode: Any, overwrite: bool) -> VideoResult:
        self.calls += 1
        if self.calls <= self.dies:
            raise MemoryError("killed")
        assert overwrite and settings.stride == 3 and encode.audio == "drop"
        output.write_bytes(source.read_bytes())
        return VideoResult(output, 12, 1.2, 2, 1, {"generated": 12}, account={"mode": "ficgan"})


@pytest.mark.parametrize("store", [False, True])
def test_a_film_is_one_unit(store: bool, tmp_path: Path) -> None:
    """It is taken before the photos, made again where it failed, and taken as it is where its side-car proves it."""
    make_film(tmp_path / "in" / "b" / "film.mp4")
    (tmp_path / "in" / "a.png").write_bytes(photo(1))
    (tmp_path / "in" / "b" / "film.mkv").write_bytes(b"not asked for")
    source, out = str(tmp_path / "in"), str(tmp_path / "out")
    if store:
        fs = fsspec.filesystem("memory")
        fs.put(f"{source}/", "/bucket/films/", recursive=True)
        source, out = "memory://bucket/films", "memory://bucket/redacted"
    jobs, others = plan(Place(source), Place(out))
    assert [job.input for job in jobs] == ["b/film.mkv", "b/film.mp4", "a.png"] and others == 0
    assert [job.input for job in plan(Place(source), Place(out), films=False)[0]] == ["a.png"]
    task = Task(
        source,
        out,
        options={"mode": "ficgan", "recognizer": "auto"},
        video=VideoSettings(stride=3),
        encode=EncodeOptions(audio="drop"),
    )
    filming = Filming(dies=1)
    worker = Worker(task, filming)
    first = worker(jobs[1])
    assert first["state"] == "failed" and first["retry"]
    line = worker(jobs[1])
    assert (line["state"], line["faces"], line["frames"], line["reidentified"]) == ("done", 2, 12, 0)
    record = json.loads(Place(out).read("b/film.mp4.json"))
    jsonschema.validate(record, json.loads((ROOT / "docs" / "sidecar.schema.json").read_text()))
    assert record["size"] == [64, 48] and record["input_sha256"] == line["input_sha256"] == record["sha256"]
    assert worker(jobs[1])["state"] == "done" and filming.calls == 2
    assert worker(jobs[0])["state"] == "failed"  # what comes out is looked at
    if store:
        fs.rm("/bucket", recursive=True)


def make_film(path: Path) -> None:
    import av

    path.parent.mkdir(parents=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("libx264", rate=10, width=64, height=48)
        stream.pix_fmt = "yuv420p"
        for n in range(12):
            out.mux(stream.encode(av.VideoFrame.from_ndarray(np.full((48, 64, 3), 9 * n, np.uint8), format="rgb24")))
        out.mux(stream.encode(None))


def test_decisions_are_read_strictly(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What they do to a photo is tested with the review, which exports them."""
    marks = [[205, 105], [240, 105], [222, 125], [208, 145], [238, 145]]
    one = {
        "name": "me.png",
        "analysis": "0" * 32,
        "faces": [{"id": 1, "box": [1, 2, 3, 4], "landmarks": marks, "score": 0.9}],
    }
    tree, file = {"schema": "ficgan-photo-decisions/1", "photos": [one]}, tmp_path / "decisions.json"
    for wrong, words in (
        ({**tree, "schema": "ficgan-photo-decisions/2"}, "newer ficgan"),
        ({**tree, "photos": [{**one, "tracks": {"7": "keep"}}]}, "no face number 7"),
        ({**tree, "photos": [{**one, "default": "keep"}]}, "default"),
        ({**tree, "photos": [{**one, "tracks": {"1": "dp-pix:eps=1"}}]}, "cannot be given"),
        ({**tree, "photos": [one, {**one, "default": "blur"}]}, "different decisions"),
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(InputError, match=words):
            read_decisions(file)
    file.write_text(json.dumps(tree))
    call = [str(source), "-o", str(tmp_path / "out"), "--decisions", str(file)]
    outcome = CliRunner().invoke(command.bulk, [*call, "--mode", "solid"])
    assert outcome.exit_code == 2 and "leave --mode out" in outcome.stderr
    worker = Worker(Task(str(source), str(tmp_path / "out"), decisions=read_decisions(file)), engine)
    line = worker(Job("a/0.png", "a/0.png"))
    assert "nothing was decided on this photo" in line["error"] and "retry" not in line
    assert not (tmp_path / "out").exists()
    monkeypatch.setattr("ficgan.bulk.local_engine", lambda jobs: Inline())
    outcome = CliRunner().invoke(command.bulk, call)
    assert outcome.exit_code == 3 and "a/0.png: nothing was decided on this photo" in outcome.stderr
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["manifest.jsonl"]


def test_results_of_others_are_not_overwritten(source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    settle(source, out, Inline(), tmp_path / "1.jsonl", options={"k": 2})
    kept = (out / "a" / "0.png.json").read_bytes()
    settled = settle(source, out, Inline(), tmp_path / "2.jsonl", options={"k": 3})
    assert all("--overwrite" in line["error"] for line in settled.values())
    assert (out / "a" / "0.png.json").read_bytes() == kept
    settled = settle(source, out, Inline(), tmp_path / "3.jsonl", options={"k": 3}, overwrite=True)
    assert {line["state"] for line in settled.values()} == {"done"}


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("link.png", None, "a link to nothing"),
        ("pipe.png", "fifo", "not a file"),
        ("x" * 247 + ".png", photo(1), "1 bytes too long"),
        ("x" * 239 + ".mp4", b"film", "1 bytes too long"),
        ("film.jpg", b"\0\0\0\x20ftypisom", "is a film"),
        ("photo.mkv", photo(1), "is a photo"),
        ("raw.NEF", b"II*\0", ".nef files are not read"),
    ],
)
def test_inputs_that_could_be_lost_in_silence(
    name: str, content: Any, said: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = source / "a" / name
    if content is None:
        path.symlink_to("nowhere")
    elif content == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(content)
    (source / "a" / "linked.png").symlink_to("0.png")
    monkeypatch.setattr("ficgan.bulk.local_engine", lambda jobs: Inline())
    outcome = CliRunner().invoke(command.bulk, [str(source), "-o", str(tmp_path / "out"), "--mode", "solid"])
    assert outcome.exit_code == 3 and f"a/{name}: " in outcome.stderr and said in outcome.stderr, outcome.output
    summary = json.loads(outcome.stdout)
    assert (summary["inputs"], summary["done"], summary["failed"]) == (8, 7, 1)
    (line,) = (line for line in lines(tmp_path / "out" / "manifest.jsonl")[1:] if line["state"] == "failed")
    assert line["input"] == f"a/{name}" and said in line["error"] and line["attempts"] == 1


def test_results_of_another_seed_are_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seeded:
        """Draws by its seed, and commits itself to a long one."""

        def __init__(self, seed: int, commitment: str | None = None) -> None:
            self.seed, self.seed_commitment = seed, commitment

        def __call__(self, image: np.ndarray, *, key: str = "") -> Result:
            result = engine(image, key=key)
            result.audit["faces"][0]["members_digest"] = f"of {self.seed}"
            return result

    seeds = [3]

    def inline(jobs: int) -> Any:
        return lambda task, todo: map(Worker(task, Seeded(seeds[0])), todo)

    def invoke(*more: str) -> Any:
        monkeypatch.setattr("ficgan.deidentify.Deidentifier.from_pretrained", lambda **_: Seeded(seeds[0]))
        monkeypatch.setattr("ficgan.bulk.local_engine", inline)
        return CliRunner().invoke(
            command.bulk, [str(source), "-o", str(tmp_path / "out"), "--seed", str(seeds[0]), *more]
        )

    assert invoke().exit_code == 0 and invoke().exit_code == 0
    seeds[0] = 4
    outcome = invoke()
    assert outcome.exit_code == 2 and "another seed" in outcome.stderr
    other = ["--manifest", str(tmp_path / "other.jsonl")]  # without the line, the side-cars are all there is
    outcome = invoke(*other)
    assert outcome.exit_code == 3 and outcome.stderr.count("another seed") == 6
    assert invoke(*other, "--overwrite").exit_code == 0
    digests = {json.loads(path.read_text())["faces"][0]["members_digest"] for path in tmp_path.glob("out/a/**/*.json")}
    assert digests == {"of 4"}
    film = Worker(Task(str(source), str(tmp_path), options={"seed": True}), Seeded(1, "long"))
    job = Job("a.mp4", "a.mp4")
    told = [film.has_seed_of(job, {"seed_commitment": promise}) for promise in ("long", "other", None)]
    assert told == [True, False, True]


def test_a_manifest_belongs_to_one_run_and_one_process(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    with Manifest(path, {"k": 2}) as first:
        first.add({"input": "a", "output": "a", "state": "done", "faces": 2})
        with pytest.raises(UsageError, match="another run writes it"):
            Manifest(path, {"k": 2}).__enter__()
    with pytest.raises(UsageError, match="other options"):
        Manifest(path, {"k": 3}).__enter__()
    with Manifest(path, {"k": 2}) as again:
        assert again.done == {"a"} and again.sums["faces"] == 2
    with Manifest(path, {"k": 2}, present=["b"]) as again:  # its result is gone
        assert again.done == set() and again.sums["faces"] == 0
    path.write_bytes(path.read_bytes() + b"nonsense\n")
    with pytest.raises(UsageError, match="line 3 is damaged"):
        Manifest(path, {"k": 2}).__enter__()


def test_plans_that_cannot_be(source: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="lies in the folder"):
        plan(Place(str(source)), Place(str(source / "out")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no photo"):
        plan(Place(str(tmp_path / "empty")), Place(str(tmp_path / "out")))
    (source / "x.bmp").write_bytes(b"")
    (source / "x.png").write_bytes(b"")
    with pytest.raises(UsageError, match=r"x\.bmp and x\.png would both become x\.png"):
        plan(Place(str(source)), Place(str(tmp_path / "out")))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nowhere://x", "-o", "out"], "cannot be opened"),
        (["in", "-o", "memory://bucket/out"], "--manifest FILE"),
        (["in", "-o", "out", "--address", "auto"], "--engine ray"),
        (["empty", "-o", "out"], "holds no photo"),
        (["none", "-o", "out"], "none: is no folder"),
        (["in/a/0.png", "-o", "out"], "in/a/0.png: is no folder"),
    ],
)
def test_usage(arguments: list[str], said: str, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    outcome = CliRunner().invoke(command.bulk, arguments)
    assert outcome.exit_code == 2 and said in outcome.stderr and "Traceback" not in outcome.stderr


def test_the_command_sums_up(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (source / "a" / "4.png").write_bytes(b"no photo")
    monkeypatch.setattr("ficgan.bulk.local_engine", lambda jobs: Inline())
    outcome = CliRunner().invoke(command.bulk, [str(source), "-o", str(tmp_path / "out"), "--mode", "solid"])
    assert outcome.exit_code == 3 and "a/4.png" in outcome.stderr
    summary = json.loads(outcome.stdout)
    assert {name: summary[name] for name in ("inputs", "done", "failed", "before", "faces", "skipped")} == {
        "inputs": 6,
        "done": 5,
        "failed": 1,
        "before": 0,
        "faces": 5,
        "skipped": 2,
    }
    (source / "a" / "4.png").write_bytes(photo(4))
    (tmp_path / "out" / "a" / "0.png").unlink()  # a result that is gone is made again
    outcome = CliRunner().invoke(command.bulk, [str(source), "-o", str(tmp_path / "out"), "--mode", "solid"])
    assert outcome.exit_code == 0 and json.loads(outcome.stdout)["before"] == 4
    assert (tmp_path / "out" / "a" / "0.png").exists()


# -- real processes --------------------------------------------------------------------------------------------------


def crops(folder: Path, count: int) -> None:
    """Small photos, every one another cut of the astronaut; a tenth show no face."""
    image = Image.open(ROOT / "tools" / "astronaut.jpg").convert("RGB")
    for number in range(count):
        left, top = (150 + number % 20, 20 + number // 20 % 20) if number % 10 else (300 + number % 150, 300)
        path = folder / f"{number % 7}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image.crop((left, top, left + 160, top + 180)).save(path, quality=90)


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


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("local", "spawn_main"), ("ray", "ray::")])
def test_a_killed_worker_and_a_killed_run_lose_nothing(kind: str, name: str, tmp_path: Path) -> None:
    """A worker is killed early, the whole run later; the second run does the rest."""
    if kind == "ray":
        pytest.importorskip("ray")
    source, out, manifest = tmp_path / "in", tmp_path / "out", tmp_path / "out" / "manifest.jsonl"
    crops(source, PHOTOS)
    call = [
        sys.executable,
        "-m",
        "ficgan.cli.main",
        "bulk",
        str(source),
        "-o",
        str(out),
        "--engine",
        kind,
        "--jobs",
        "2",
        "--mode",
        "solid",
        "--scale",
        "160x180",
        "--batch",
        "4",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def until(least: int, process: subprocess.Popen[str]) -> None:
        while count_lines(manifest) < least:
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)

    process = subprocess.Popen(call, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        until(PHOTOS // 10, process)
        workers = [
            pid
            for pid, line in descendants(process.pid).items()
            if name in line and (kind == "local" or "MapWorker" in line or "_Actor" in line)
        ]
        assert workers
        os.kill(workers[0], signal.SIGKILL)
        until(PHOTOS // 2, process)
        process.send_signal(signal.SIGTERM)  # shells ignore SIGINT for what runs in the background
        _, told = process.communicate(timeout=240)
        assert process.returncode == 130, told
        assert "the same command does the rest" in told
    finally:
        process.kill()
    half = count_lines(manifest)
    assert PHOTOS // 2 <= half < PHOTOS
    done = subprocess.run(call, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    found = lines(manifest)[1:]
    print(
        f"{kind}: {PHOTOS} photos, {half} before the interruption,",
        Counter(line["state"] for line in found),
        Counter(line["attempts"] for line in found),
        summary,
    )
    assert (summary["done"], summary["failed"], summary["before"]) == (PHOTOS, 0, half)
    assert Counter(line["input"] for line in found).most_common(1)[0][1] == 1 and len(found) == PHOTOS
    assert summary["faces"] >= 0.85 * PHOTOS
    for line in found:
        record = json.loads((out / f"{line['output']}.json").read_bytes())
        assert record["sha256"] == hashlib.sha256((out / line["output"]).read_bytes()).hexdigest()
        assert record["input_sha256"] == line["input_sha256"]
    assert not [path for path in out.rglob("*") if path.name.startswith(".")]  # no temporary file stays
