"""docs/contributing.md does what it says: its code is put where it says, and its commands are run there."""

from __future__ import annotations

import csv
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
DOCUMENT = (ROOT / "docs" / "contributing.md").read_text("utf-8")
PHOTO = ROOT / "tools" / "astronaut.jpg"


def section(title: str) -> tuple[str, dict[str, list[str]]]:
    """The text of a section, and its code blocks by language ("" for commands)."""
    text = DOCUMENT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    blocks: dict[str, list[str]] = {"": [], "python": [], "yaml": []}
    for language, code in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        blocks[language].append(code)
    return text, blocks


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package, in which both sections are done."""
    source = tmp_path_factory.mktemp("checkout")
    shutil.copytree(ROOT / "ficgan", source / "ficgan", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("ops", "configs", "pretrained"):  # as installed: setup.py
        (source / "ficgan" / name).symlink_to(ROOT / name)
    for title in ("A new anonymiser", "A new attacker"):
        text, blocks = section(title)
        path, room = re.search(r"[Pp]ut this into `(\S+\.py)`.*?[Ii]mport it in `(\S+\.py)`", text, re.S).groups()  # type: ignore[union-attr]
        (code,) = blocks["python"]
        (name,) = re.findall(r"^class (\w+)", code, re.M)
        assert not (source / path).exists()
        (source / path).write_text(code, encoding="utf-8")
        with (source / room).open("a", encoding="utf-8") as file:
            file.write(f"\nfrom {path[:-3].replace('/', '.')} import {name}\n")
    return source


def run(source: Path, line: str, folder: Path, code: int = 0) -> str:
    """Run a command of the document in a folder, with the package of `source`; returns what it printed."""
    program, *arguments = shlex.split(line)
    script = f"from ficgan.cli.main import {program.replace('ficgan-', '')}_main as main; main()"
    environment = {**os.environ, "PYTHONPATH": str(source), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def write_relatives(folder: Path, people: int) -> None:
    """A folder a person: four photos of a face whose colours and width are the person's own."""
    photo = Image.open(PHOTO)
    photo = photo.crop((0, 0, min(photo.size), min(photo.size))).resize((384, 384))
    rng = np.random.default_rng(0)
    for person in range(people):
        (folder / f"{person:02d}").mkdir(parents=True)
        width, gain, offset = 384 + 6 * person, rng.uniform(0.6, 1.2, 3), rng.uniform(0, 50, 3)
        for index in range(4):
            pixels = np.asarray(photo.resize((width, 384)), float) * gain + offset + rng.normal(0, 3)
            Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / f"{person:02d}" / f"{index}.png")


@pytest.mark.slow
def test_a_new_anonymiser(checkout: Path, tmp_path: Path) -> None:
    text, blocks = section("A new anonymiser")
    listing, photo = blocks[""][0].splitlines()
    assert "posterise" in run(checkout, listing, tmp_path)
    shutil.copy(PHOTO, tmp_path / "photo.jpg")
    assert "exit code 3" in text
    summary = json.loads(run(checkout, photo, tmp_path, code=3))
    assert summary["written"] == summary["faces"] == summary["reidentified"] == 1
    before, after = (np.asarray(Image.open(tmp_path / path)) for path in ("photo.jpg", "out/photo.jpg"))
    changed = np.abs(before.astype(int) - after).max(axis=2) > 30
    assert 0.005 < changed.mean() < 0.1
    levels = after[changed] / 127.5
    assert np.abs(levels - np.rint(levels)).mean() < 0.1  # three levels, but for the border and JPEG


@pytest.mark.slow
def test_a_new_attacker(checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("dlib")  # the recogniser where none is named
    text, blocks = section("A new attacker")
    (tmp_path / "matrix.yaml").write_text(blocks["yaml"][0])
    write_relatives(tmp_path / "people", 16)
    (command,) = re.findall(r"`(ficgan-eval run [^`]+)`", text)
    run(checkout, command, tmp_path)
    with (tmp_path / "out" / "tables" / "given-back.csv").open(newline="") as file:
        near = {row["attacker"]: float(row["PSNR"].split()[0]) for row in csv.DictReader(file)}
    assert set(near) == {"", "ridge", "level-table"}
    assert near["level-table"] > near[""]  # nearer to the clear faces than what it was given
