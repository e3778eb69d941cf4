"""A survey of made people, and files of answers as its pages save them."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from texture_world import write_people

from ficgan.lab.matrix_config import MethodConfig, SetConfig
from ficgan.lab.survey import ANSWERS_SCHEMA, Questionnaire, Survey, SurveyKey, SurveyRules, conditions_of, make_survey

SIDE = 32


def made_people(folder: Path) -> SetConfig:
    """Seventy people, women and men in turn, three photos each."""
    write_people(folder, 70, 3, 5, noise=8, genders=True)
    return SetConfig(name="made", path=str(folder), labels=str(folder / "labels.csv"), size=SIDE, aligned=True)


def made_survey(source: SetConfig, **rules: int) -> Survey:
    """Clear, pixelated, reversed."""
    methods = [MethodConfig.model_validate("pixelation:size=4")]
    return make_survey(
        source, conditions_of(methods, ["pixelation:size=4@ridge"]), SurveyRules(**{"pairs": 4, **rules})
    )


def hand_in(path: Path, asked: Questionnaire, code: str, said: dict[str, str] | None = None, **more: object) -> Path:
    """Answers as the page saves them: right but for what is `said` of items; "" leaves one open."""
    answers = [
        {"item": item.id, "answer": (said or {}).get(item.id, item.right), "seconds": 1.5} for item in asked.items
    ]
    tree = {
        "schema": ANSWERS_SCHEMA,
        "questionnaire": asked.token,
        "participant": code,
        "consent": True,
        "finished": True,
        "answers": [one for one in answers if one["answer"]],
    }
    path.write_text(json.dumps({**tree, **more}))
    return path


def random_answers(folder: Path, key: SurveyKey, people: int) -> list[Path]:
    """Files of people who pass the checks and otherwise answer as it comes, oftener right than not."""
    rng = np.random.default_rng(0)
    out = []
    for number in range(people):
        asked = key.questionnaires[number % len(key.questionnaires)]
        other = {"yes": "no", "no": "yes"}
        said = {
            item.id: rng.choice([item.right, other[item.right], "unsure"], p=[0.6, 0.25, 0.15])
            for item in asked.items
            if not item.check
        }
        out.append(hand_in(folder / f"a{number}.json", asked, f"p{number}", said))
    return out
