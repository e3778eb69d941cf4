"""`--files-from`, `manifest.jsonl`, and `--skip-existing` by both."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from standin import GREEN, StandIn, call, files, film, photo

import ficgan.cli.deid as command
from ficgan.records.sidecars import MANIFEST, Manifest


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / MANIFEST).read_text().splitlines()]


def test_the_manifest_tells_what_became_of_each_file(tmp_path: Path, engine: StandIn) -> None:
    source = photo(tmp_path / "in/a.png")
    photo(tmp_path / "in/deep/none.png", GREEN)
    film(tmp_path / "in/f.mp4")
    (tmp_path / "in/damaged.jpg").write_bytes(b"no photo")
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--seed", 3, code=3)
    assert (summary["written"], summary["failed"], summary["skipped"]) == (3, 1, 0)
    told = {line["output"]: line for line in lines(tmp_path / "out")}
    assert set(told) == {"a.png", "deep/none.png", "f.mp4", "damaged.jpg"}
    line = told["a.png"]
    assert line["input"] == str(source) and line["input_sha256"] == hashlib.sha256(source.read_bytes()).hexdigest()
    assert (line["state"], line["faces"], line["masked"], line["error"]) == ("written", 1, 0, None)
    assert line["seconds"] >= 0 and (line["tool"], line["schema"]) == ("ficgan-deid", 1)
    assert told["deep/none.png"]["faces"] == 0 and told["f.mp4"]["faces"] == 2
    assert told["damaged.jpg"]["state"] == "failed" and "damaged.jpg" in told["damaged.jpg"]["error"]
    assert len({line["options"] for line in told.values()}) == 1 and line["options"] != "3"


def test_an_equal_run_goes_on_and_another_does_not(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "in/a.png")
    call(tmp_path / "in", "-o", tmp_path / "out", "--seed", 3)
    photo(tmp_path / "in/b.png")
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", "--jobs", 1, "--seed", 4)
    assert (summary["written"], summary["skipped"], summary["failed"]) == (1, 1, 0)
    assert [line["output"] for line in lines(tmp_path / "out")] == ["a.png", "b.png"]
    loaded = engine.loaded
    summary, _ = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing")
    assert (summary["written"], summary["skipped"]) == (0, 2) and engine.loaded == loaded
    summary, said = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", "--mode", "blur", code=3)
    assert summary["failed"] == 2 and "other options" in said and "--overwrite" in said
    # Also where nothing else tells: a result without a side-car of its own.
    (tmp_path / "out/a.png.json").unlink()
    _, said = call(tmp_path / "in", "-o", tmp_path / "out", "--skip-existing", "--layer", 2, "--no-sidecar")
    assert "other options" not in said, "without side-cars there is no manifest to go by"


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


def test_there_is_none_beside_inputs_without_side_cars_and_in_dry_runs(tmp_path: Path, engine: StandIn) -> None:
    photo(tmp_path / "a.png")
    call(tmp_path / "a.png", "-o", tmp_path / "out", "--dry-run")
    call(tmp_path / "a.png", "-o", tmp_path / "out", "--no-sidecar")
    call(tmp_path / "a.png")
    call(tmp_path / "a.png", "-o", tmp_path / "one.png")
    assert not list(tmp_path.rglob(MANIFEST))
    Manifest().add(tmp_path / "x.png", state="written")


def test_inputs_come_from_a_list(tmp_path: Path, engine: StandIn) -> None:
    named = [photo(tmp_path / f"in/{name}.png") for name in ("a", "b b", "ü")]
    photo(tmp_path / "in/d.png")
    (tmp_path / "list.txt").write_text("\n".join(map(str, named)) + "\n\n")
    call("--files-from", tmp_path / "list.txt", "-o", tmp_path / "out")
    assert files(tmp_path / "out") == {f"{name}.png{end}" for name in ("a", "b b", "ü") for end in ("", ".json")}
    more = [str(tmp_path / "in/d.png"), "--files-from", "-", "-o", str(tmp_path / "two")]
    done = CliRunner().invoke(command.deid, more, input=f"{named[0]}\r\n")
    assert done.exit_code == 0 and json.loads(done.stdout)["written"] == 2
    _, said = call("--files-from", tmp_path / "none.txt", "-o", tmp_path / "out", code=2)
    assert "none.txt" in said
    (tmp_path / "list.txt").write_text("\n")
    _, said = call("--files-from", tmp_path / "list.txt", "-o", tmp_path / "out", code=2)
    assert "nothing to work on" in said
