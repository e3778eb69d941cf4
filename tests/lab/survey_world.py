"""Made people for surveys: a texture each, women and men, two age bands, three photos."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
from PIL import Image

from ficgan.lab.matrix_config import MethodConfig, SetConfig
from ficgan.lab.survey import ANSWERS_SCHEMA, Key, Questionnaire, Rules, Survey, changes_of, make_survey

SIDE = 32


def made_people(folder: Path, people: int = 70, *, gender: bool = True, every: int = 2) -> SetConfig:
    """A set on disk, labels beside it; names of people are in file names. One in `every` is a man."""
    folder.mkdir()
    rng = np.random.default_rng(5)
    with (folder / "labels.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["file", "person", "age", *["gender"] * gender])
        for person in range(people):
            texture = rng.normal(size=(8, 8, 3)).repeat(SIDE // 8, 0).repeat(SIDE // 8, 1) * 45
            for index in range(3):
                pixels = 128 + texture + rng.normal(size=(SIDE, SIDE, 3)) * 8
                name = f"zaphod{person:03d}-{index}.png"
                Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(folder / name)
                sex = ["Female" if person % every else "Male"] * gender
                table.writerow([name, f"zaphod{person:03d}", 25 + 30 * (person // 2 % 2), *sex])
    return SetConfig(name="zaphods", path=str(folder), labels=str(folder / "labels.csv"), size=SIDE, aligned=True)


def made_survey(source: SetConfig, **rules: object) -> Survey:
    """Clear, pixelated, reversed."""
    methods = [MethodConfig.model_validate("pixelation:size=4")]
    return make_survey(source, changes_of(methods, ["pixelation:size=4@ridge"]), Rules(**{"pairs": 4, **rules}))  # type: ignore[arg-type]


def hand_in(
    path: Path,
    asked: Questionnaire,
    code: str,
    wrong: set[str] | None = None,
    *,
    unsure: set[str] | None = None,
    leave: int = 0,
) -> Path:
    """Answers as the page saves them: right but for the items in `wrong` and `unsure`; the last `leave` are open."""
    rows = []
    for item in asked.items[: len(asked.items) - leave]:
        right = item.same != (item.id in (wrong or set()))
        word = "unsure" if item.id in (unsure or set()) else "yes" if right else "no"
        rows.append({"item": item.id, "answer": word, "seconds": 1.5})
    tree = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": asked.token,
        "participant": code,
        "consent": True,
        "finished": leave == 0,
        "answers": rows,
    }
    path.write_text(json.dumps(tree))
    return path


def random_answers(folder: Path, key: Key, people: int, seed: int = 0) -> list[Path]:
    """Files of people who pass the checks and otherwise answer as it comes, oftener right than not."""
    rng = np.random.default_rng(seed)
    out = []
    for number in range(people):
        asked = key.questionnaires[number % len(key.questionnaires)]
        real = [item.id for item in asked.items if not item.check]
        drawn = rng.choice(3, len(real), p=[0.6, 0.25, 0.15])
        wrong, unsure = ({one for one, kind in zip(real, drawn, strict=True) if kind == k} for k in (1, 2))
        out.append(hand_in(folder / f"a{number}.json", asked, f"p{number}", wrong, unsure=unsure))
    return out
