"""A survey of made people, shared by the files that test it."""

from __future__ import annotations

from pathlib import Path

import pytest
from survey_world import made_people, made_survey

from ficgan.lab.matrix_config import SetConfig
from ficgan.lab.survey import Survey, write_survey


@pytest.fixture(scope="session")
def source(tmp_path_factory: pytest.TempPathFactory) -> SetConfig:
    return made_people(tmp_path_factory.mktemp("world") / "people")


@pytest.fixture(scope="session")
def survey(source: SetConfig) -> Survey:
    return made_survey(source)


@pytest.fixture(scope="session")
def folder(survey: Survey, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "survey"
    write_survey(out, survey)
    return out
