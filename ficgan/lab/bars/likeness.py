"""What of the face is kept: found again, landmarks, smile, yaw, gender, age, race, glasses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.lab.bars.lab import DETECTORS, Lab, Look, mean_of
from ficgan.lab.bars.lines import Control, Controls, Figures
from ficgan.lab.metrics.utility import compare
from ficgan.lab.results import Figure
from ficgan.lab.sets.formats import AGE_BANDS, age_band

__all__ = ["likeness", "likeness_controls"]

GLASSES = "Eyeglasses"
_TOLD = {"landmarks": "landmarks", "yaw-r": "yaw-r", "smile-r": "smile-r", "gender": "gender-kept"}
"""Row → metric of `metrics.utility`."""
_COMMON = {"gender": "gender", "age-band": "age", "race": "race"}
"""Row → the set's column of labels."""


def likeness(lab: Lab, look: Look) -> Figures:
    """Rows detected, landmarks, smile-r, yaw-r, gender, age-band, race and glasses of outputs against clear faces.

    A row without a judge has a figure without a value, whose note says what is missing.
    """
    told = {one.metric: one for one in compare(lab.clear.readings, look.readings, bootstrap=lab.bootstrap)}
    out: Figures = {}
    for name in DETECTORS:
        if name in look.detections:
            out["detected", name] = mean_of(lab, "detected", look.detections[name].found)
        else:
            out["detected", name] = Figure("detected", None, note=lab.eyes.missing.get(name, "it is not here"))
    judges = _judges(lab)
    for row, metric in _TOLD.items():
        out[row, judges[row]] = replace(told[metric], metric=row)
    if told["smile-r"].value is None and told["mouth-r"].value is not None:
        note = f"by the width of the mouth, a weak sign, for {told['smile-r'].note}"
        del out["smile-r", judges["smile-r"]]
        out["smile-r", "mouth width"] = replace(told["mouth-r"], metric="smile-r", note=note)
    out["age-band", judges["age-band"]] = _same(lab, "age-band", _ages(lab.clear), _ages(look))
    out["race", judges["race"]] = _same(lab, "race", _races(lab, lab.clear), _races(lab, look))
    out["glasses", judges["glasses"]] = _glasses(lab, look)
    return out


def likeness_controls(lab: Lab) -> Controls:
    """The clear faces at the model's resolution, and how the judge does on clear faces where there are labels."""
    out = {}
    soft = lab.softened is lab.clear
    what = "clear, read twice" if soft else f"clear at {lab.resolution} px"
    for (row, judge), figure in likeness(lab, lab.softened).items():
        out[row, judge] = Control(what, figure)
        if row in _COMMON and figure.value is not None and (said := _competence(lab, row)):
            out[row, judge] = Control(f"{what}; {said}", figure)
    return out


def _judges(lab: Lab) -> dict[str, str]:
    """Row → who reads it."""
    judges = lab.eyes.judges
    detector = next(iter(lab.eyes.detectors), "no detector")
    learnt = None if judges.attributes is None else judges.attributes.training.get("source", {}).get("name")
    classifier = "attribute classifier" + (f" ({learnt})" if learnt else "")
    return {
        "landmarks": detector, "yaw-r": detector, "smile-r": f"{classifier}: Smiling", "gender": "age_gender",
        "age-band": "age_gender", "race": classifier, "glasses": f"{classifier}: {GLASSES}",
    }  # fmt: skip


def _same(lab: Lab, row: str, before: NDArray[Any] | None, after: NDArray[Any] | None) -> Figure:
    if before is None or after is None:
        missing = lab.eyes.judges.missing
        why = missing.get("age_gender", "") if row == "age-band" else "no judge here reads race"
        return Figure(row, None, unit="images", note=why or "it was not read")
    return mean_of(lab, row, before == after, f"majority {_majority(before)} of clear faces")


def _ages(look: Look) -> NDArray[np.str_] | None:
    if look.readings.ages is None:
        return None
    return np.array([age_band(max(0.0, float(years))) for years in look.readings.ages])


def _genders(look: Look) -> NDArray[np.str_] | None:
    return None if look.readings.males is None else np.where(look.readings.males >= 0.5, "Male", "Female")


def _races(lab: Lab, look: Look) -> NDArray[np.str_] | None:
    """By a classifier that has an attribute for each race of the set's labels; the likeliest one."""
    known = sorted(set(lab.prepared.groups.get("race", ())) - {""})
    names, read = look.readings.attribute_names, look.readings.attributes
    if read is None or len(known) < 2 or any(name not in names for name in known):
        return None
    return np.array(known)[read[:, [names.index(name) for name in known]].argmax(1)]


def _glasses(lab: Lab, look: Look) -> Figure:
    before, after = lab.clear.readings, look.readings
    if before.attributes is None or after.attributes is None or GLASSES not in after.attribute_names:
        note = lab.eyes.judges.missing.get("attributes", f"the attribute classifier does not know {GLASSES}")
        return Figure("glasses", None, unit="images", note=note)
    column = after.attribute_names.index(GLASSES)
    wore, wears = (one[:, column] >= 0.5 for one in (before.attributes, after.attributes))
    count, kept = int(wore.sum()), int((wore & wears).sum())
    note = f"{kept} of {count} pairs kept, {int((~wore & wears).sum())} new; majority {_majority(wore)}"
    return mean_of(lab, "glasses", wore == wears, note)


def _competence(lab: Lab, row: str) -> str:
    """How often the judge reads in clear faces what the labels say."""
    labels = np.array(lab.prepared.groups.get(_COMMON[row], ()))
    read = {"gender": _genders, "age-band": _ages, "race": lambda look: _races(lab, look)}[row](lab.clear)
    known = labels != ""
    if read is None or not len(labels) or not known.any():
        return ""
    if row == "age-band" and not set(labels[known]) <= set(AGE_BANDS):
        return ""
    share = float(np.mean(read[known] == labels[known]))
    return f"clear against its label {share:.3f}, majority {_majority(labels[known])}"


def _majority(values: NDArray[Any]) -> str:
    counts = np.unique(values, return_counts=True)[1]
    return f"{counts.max() / counts.sum():.3f}"
