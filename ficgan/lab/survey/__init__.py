"""A blinded survey that asks people whether two pictures, one of them anonymised or reversed, show one person.

`make_survey` draws pairs and makes pictures, `write_survey` writes a page for each questionnaire, `collect` reads
answers, `judge` has recognisers look at the same pictures, and `score_survey` gives the figures.

Source: Fantômas, appendix D.
"""

from ficgan.lab.survey.answers import Collected, Participant, collect
from ficgan.lab.survey.design import Design, Pair, Rules, draw, people_needed
from ficgan.lab.survey.judges import Judged, judge
from ficgan.lab.survey.key import Condition, Item, Key, Questionnaire, read_key
from ficgan.lab.survey.page import page_html, write_survey
from ficgan.lab.survey.pictures import Change, Survey, changes_of, make_survey
from ficgan.lab.survey.score import krippendorff, score_survey, score_text

__all__ = [
    "Change",
    "Collected",
    "Condition",
    "Design",
    "Item",
    "Judged",
    "Key",
    "Pair",
    "Participant",
    "Questionnaire",
    "Rules",
    "Survey",
    "changes_of",
    "collect",
    "draw",
    "judge",
    "krippendorff",
    "make_survey",
    "page_html",
    "people_needed",
    "read_key",
    "score_survey",
    "score_text",
    "write_survey",
]
