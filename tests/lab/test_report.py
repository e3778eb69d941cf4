"""What a report makes of results: the strongest attacker, controls, groups, nothing that was not measured."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from ficgan.lab.report import controls, headlines, ranking, risks, write_report
from ficgan.lab.results import Figure, Results, Trial, Utility, caveats, note_texts

GROUPS = {"gender=Female": (Figure("rank-1", 0.8),)}
USEFUL = (Figure("ssim", 0.8, 0.7, 0.9, 20, "images"), Figure("lpips", None, note="no weights"))


def trial(method: str, scenario: str, value: float | None, **more: Any) -> Trial:
    note = "" if value is not None else "there is no such attacker"
    low = None if value is None else max(0.0, value - 0.1)
    high = None if value is None else min(1.0, value + 0.1)
    figures = (Figure("rank-1", value, low, high, 20, note=note), Figure("chance", 0.05))
    return Trial("made", method, scenario, more.pop("judge", "b"), figures=figures, **more)


def results(*extra: Trial) -> Results:
    parts = {part: {"people": 20} for part in ("background", "attacker", "probe")}
    facts = {"faces": 80, "people": 60, "size": 64, "context": 1.0, "licence": "made", "pixels": "0" * 64}
    facts |= {"failures_to_acquire": [["x", "dark"]], "split": {"parts": parts}}
    method = dict.fromkeys(("title", "family", "source", "domain", "strength"), "made")
    method |= {"name": "blur", "settings": {"kernel": 3}, "keyed": False, "stochastic": False}
    return Results(
        "Report <script>alert(1)</script>",
        ["Read me first."],
        {"ficgan": "0"},
        {"made": facts},
        {"weak": method, "strong": {**method, "settings": {"kernel": 9}}},
        [
            trial("clear", "clear", 0.9, control="ceiling"),
            trial("clear", "constant", 0.05, control="negative"),
            trial("clear", "background-only", 0.4, control="surroundings"),
            trial("weak", "naive", 0.2),
            trial("weak", "reversed-general", 0.7, attacker="ridge", groups=GROUPS),
            trial("weak", "right-key", 0.9, control="positive"),
            trial("weak", "linkability", 0.95),
            trial("strong", "naive", 0.1),
            trial("strong", "reversed-specialised", None),
            *extra,
        ],
        [Utility("made", "weak", USEFUL)],
    )


def test_the_strongest_attacker_counts_and_controls_do_not() -> None:
    strong, weak = headlines(results())
    assert (strong.method, weak.method) == ("strong", "weak")  # the best protected first
    assert weak.trial is not None and (weak.trial.scenario, weak.trial.attacker) == ("reversed-general", "ridge")
    assert weak.figure is not None and weak.figure.value == 0.7
    assert weak.surroundings is not None and weak.surroundings.value == 0.4
    assert strong.trial is not None and strong.trial.scenario == "naive"
    assert weak.utility is not None and strong.utility is None


def test_methods_are_ranked_by_the_replaced_region() -> None:
    """A mask that leaves the surroundings comes before a cloak that leaves the face."""
    made = results(
        trial("strong", "parrot-enrol", 0.45),
        trial("strong", "parrot-inside", 0.0),
        trial("strong", "parrot-inside", 0.02, judge="dlib"),
        trial("weak", "parrot-inside", 0.6),
    )
    strong, weak = headlines(made)
    assert strong.region is not None and strong.region_trial is not None and weak.region is not None
    assert (strong.method, strong.region.value, strong.region_trial.recogniser) == ("strong", 0.02, "dlib")
    assert strong.figure is not None and strong.figure.value == 0.45  # within what the surroundings give
    assert weak.region.value == 0.7  # the reverser finds clearly more than the surroundings
    assert (strong.rank, weak.rank, strong.bound, weak.bound) == (1, 2, False, False)


def test_within_kind_orders_methods_of_one_rank() -> None:
    def naive(method: str, area: float, judge: str) -> Trial:
        first = Figure("within-kind", area, area - 0.1, area + 0.1, 30)
        return Trial("made", method, "naive", judge, figures=(first, *trial(method, "naive", 0.1).figures))

    made = results(
        trial("strong", "parrot-inside", 0.60),
        trial("weak", "parrot-inside", 0.62),
        naive("strong", 0.8, "c"),
        naive("weak", 0.6, "b"),
        naive("weak", 0.7, "c"),
    )
    weak, strong = headlines(made)
    assert (weak.method, weak.rank, strong.rank) == ("weak", 1, 1)  # who is not told apart stands by within kind
    assert ranking(headlines(made))[0]["within kind"][:2] == ("0.700 [0.600, 0.800]", "c, n = 30 images")  # The highest
    assert "first figure" in caveats(made)[0] and "does not say of what ethnicity" in caveats(results())[0]


@pytest.mark.parametrize(
    ("scenario", "control", "value", "holds"),
    [
        ("clear", "ceiling", 0.9, True),
        ("clear", "ceiling", 0.2, False),
        ("constant", "negative", 0.05, True),
        ("constant", "negative", 0.5, False),
        ("right-key", "positive", 0.9, True),
        ("right-key", "positive", 0.5, False),
    ],
)
def test_controls_hold_or_do_not(scenario: str, control: str, value: float, holds: bool) -> None:
    made = results()
    made.trials = [trial("clear", "clear", 0.9, control="ceiling")] if scenario == "right-key" else []
    made.trials.append(trial("weak" if scenario == "right-key" else "clear", scenario, value, control=control))
    assert controls(made)[-1].holds is holds


def test_risks_take_the_worst_and_say_what_was_not_measured() -> None:
    found = Trial("made", "weak", "naive", "b", figures=(Figure("singling-out", 0.1),))
    worse = Trial("made", "weak", "parrot-enrol", "b", figures=(Figure("singling-out", 0.6),))
    keyed = Trial("made", "weak", "right-key", "b", figures=(Figure("singling-out", 1.0),), control="positive")
    told = (Figure("inference of Male", 0.2), Figure("inference of Young", 0.7), Figure("inference (mean AUC)", 0.45))
    guess = Trial("made", "strong", "attribute-inference", "b", figures=told)
    row = next(row for row in risks(results(guess)) if row["method"] == "strong")
    assert row["inference"] == "0.200 (Male)"  # below ½ tells as much as above
    row = next(row for row in risks(results(keyed, found, worse)) if row["method"] == "weak")
    assert row["singling out"] == "0.600" and row["inference"] == "not measured"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    published = [{"title": "Theirs", "note": "another protocol", "rows": [{"method": "x", "rank-1": "0.1"}]}]
    return write_report(results(), tmp_path_factory.mktemp("report"), published=published)


def test_the_page_escapes_and_shows_what_is_refused(report: list[Path]) -> None:
    page = report[0].read_text()
    assert "<script>" not in page and "Report &lt;script&gt;" in page
    assert page.index("Read me first.") < page.index("Ranking by what the replaced")
    assert "there is no such attacker" in page and "Theirs" in page and "no weights" in page
    assert "made, by gender: rank-1" in page and "0.800" in page
    assert {path.name for path in report if path.suffix == ".svg"} >= {"made-attackers.svg"}
    assert all(path.is_file() for path in report) and "http" not in page.replace("http://www.w3.org", "")
    rows = list(csv.DictReader(report[0].with_name("tables").joinpath("privacy.csv").read_text().splitlines()))
    assert len(rows) == sum(len(one.figures) for one in results().trials)
    assert Results.read(report[0].with_name("report.json")).trials == results().trials


@pytest.mark.parametrize(
    ("judges", "method", "said"),
    [
        (["dlib"], "blur", set()),
        (["dlib"], "ficgan", {"gate judges"}),
        (["shape"], "ficgan", {"shape judges"}),
        (["dlib", "shape"], "k-same-appearance", {"gate judges", "shape judges"}),
    ],
)
def test_reports_say_who_judged(judges: list[str], method: str, said: set[str]) -> None:
    made = results(*(trial("clear", "clear", 0.9, control="ceiling", judge=judge) for judge in judges))
    made.methods["weak"] = {**made.methods["weak"], "name": method}
    texts = note_texts("evaluation")
    assert {name for name in ("gate judges", "shape judges") if texts[name] in caveats(made)} == said
