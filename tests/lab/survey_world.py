"""A survey of made people, and files of answers as its page saves them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from texture_world import write_people

from ficgan.lab.matrix_config import SetConfig
from ficgan.lab.survey import ANSWERS_SCHEMA, Survey, SurveyKey, conditions_of, make_survey

SIDE = 32
REVERSED = "pixelation:size=4@ridge"


def made_people(folder: Path) -> SetConfig:
    """Seventy people, women and men in turn, three photos each."""
    write_people(folder, 70, 3, 5, noise=8, genders=True)
    return SetConfig(name="made", path=str(folder), labels=str(folder / "labels.csv"), size=SIDE, aligned=True)


def made_survey(source: SetConfig, reversed_by: str = REVERSED, seed: int = 0) -> Survey:
    """Clear, pixelated, reversed."""
    return make_survey(source, conditions_of(["pixelation:size=4"], [reversed_by]), pairs=4, seed=seed)


def hand_in(path: Path, key: SurveyKey, code: str, said: dict[str, str] | None = None, **more: Any) -> Path:
    """Answers as the page saves them: right but for what is `said` of items; "" leaves one open."""
    answers = [{"item": item.id, "answer": (said or {}).get(item.id, item.right), "seconds": 1.5} for item in key.items]
    tree = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": key.token,
        "participant": code,
        "consent": True,
        "finished": True,
        "answers": [one for one in answers if one["answer"]],
    }
    path.write_text(json.dumps({**tree, **more}))
    return path


def random_answers(folder: Path, key: SurveyKey, people: int) -> list[Path]:
    """Files of people who pass the checks and otherwise answer as it comes, oftener right than not."""
    rng, other = np.random.default_rng(0), {"yes": "no", "no": "yes"}
    out = []
    for number in range(people):
        said = {
            item.id: rng.choice([item.right, other[item.right], "unsure"], p=[0.6, 0.25, 0.15])
            for item in key.items
            if item.condition
        }
        out.append(hand_in(folder / f"a{number}.json", key, f"p{number}", said))
    return out
