"""What the papers' experiments share: printed numbers, settings on a face set, treatments, attackers tried on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from ficgan.anonymizers import ANONYMIZERS, Anonymizer, Faces
from ficgan.errors import UsageError
from ficgan.lab.attackers import TrainedAttacker
from ficgan.lab.attacks import REVERSERS, Pairs
from ficgan.lab.bench import Bench, anonymiser_for, known
from ficgan.lab.matrix_config import MatrixConfig, SplitConfig, get_scenarios
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import hits, rank
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.readers import Reader
from ficgan.lab.results import Figure, Trial
from ficgan.lab.run import Progress, fingerprint
from ficgan.lab.sets import open_set
from ficgan.lab.trials import fidelity_figures, identity_distance
from ficgan.registry import parse_spec


@dataclass(frozen=True)
class Printed:
    """A table as printed; the protocol tells how the numbers came about, and what the paper leaves open."""

    paper: str
    where: str
    protocol: str
    rows: tuple[dict[str, Any], ...]


def _read(name: str) -> SimpleNamespace:
    tree = yaml.safe_load(files("ficgan.lab.papers").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))

    def value(found: Any) -> Any:
        if isinstance(found, dict) and "columns" in found:
            rows = tuple(dict(zip(found["columns"], row, strict=True)) for row in found["rows"])
            return Printed(tree["paper"], found["where"], found["protocol"], rows)
        return tuple(found) if isinstance(found, list) else found

    return SimpleNamespace(**{key: value(found) for key, found in tree.items()})


def text(paper: SimpleNamespace, template: str, **values: Any) -> str:
    """A text of a paper's file with its gaps filled, from that file and from `values`."""
    return template.format(**{**vars(paper), **values})


def table(paper: SimpleNamespace, key: str, rows: Sequence[dict[str, Any]], **values: Any) -> dict[str, Any]:
    """A table for a page, with the title and the note that the paper's file has for it."""
    head = {part: text(paper, template, **values) for part, template in paper.tables[key].items()}
    return {**head, "rows": list(rows)}


FICGAN, FANTOMAS, REVELIO = map(_read, ("ficgan", "fantomas", "revelio"))
FANTOMAS_CLAIMS: dict[str, str] = FANTOMAS.reversible | FANTOMAS.irreversible


def counted(share: float, probes: int = REVELIO.closed["images"]) -> tuple[int, bool]:
    """How many of the probes a printed share stands for, and whether they give it as printed: 0.959 of 97 are 93."""
    found = round(share * probes)
    return found, abs(found / probes - share) < 1e-3


# -- running -----------------------------------------------------------------------------------------------------------

Row = dict[str, Any]
Rows = NDArray[np.int64]
LEAST_BACKGROUND = 12
"""People whose faces k-same with the usual k = 10 needs, and two who may drop out because no face is found."""
TESTED = 0.25  # Share of the people that are tested where there are too few for the whole protocol
NOT_ANGULAR = "the judge was not trained by angles"  # Note of an IDD that cannot be compared with ArcFace's
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")
"""Distinct for the colour-blind, too (Okabe and Ito 2008)."""


def with_data(
    name: str,
    data: Path | str,
    *,
    layout: str = "auto",
    labels: Path | str | None = None,
    identity: str | None = None,
    people: int | None = None,
    size: int | None = None,
    aligned: bool = False,
    judges: Sequence[str] = (),
    detector: str | None = None,
    attributes: Path | str | None = None,
    **more: Any,
) -> MatrixConfig:
    """A packaged preset on a face set; the split is scaled to the people there are.

    Under `set` a preset may say what its set shall be like. Where a value is None or empty, the preset's holds; `more`
    are other values of the matrix.
    """
    tree = _preset(name)
    wanted: dict[str, Any] = tree.pop("set", {})
    split = SplitConfig(**wanted.pop("split", {}))
    total = split.background + split.attacker + split.test
    if people is not None and people < 2:
        raise UsageError(f"{people} people are too few to evaluate on; give at least 2")
    faces = open_set(data, layout=layout, labels=labels, identity=identity)
    limit = min(people or total, total, faces.identities)
    labels, attributes = (None if path is None else str(path) for path in (labels, attributes))
    tree["sets"] = [
        wanted
        | {
            "name": faces.name,
            "path": str(data),
            "layout": layout,
            "labels": labels,
            "identity": identity,
            "limit_people": max(2, limit),
            "size": size or wanted.get("size", 128),
            "aligned": aligned,
            "split": scaled(split, limit).model_dump(),
        }
    ]
    given = {"recognisers": list(judges) or None, "detector": detector, "attributes": attributes, **more}
    tree.update({key: value for key, value in given.items() if value is not None})
    try:
        config = MatrixConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(str(part) for part in first['loc']) or name}: {first['msg']}") from None
    get_scenarios(config.scenarios)
    return config


def _preset(name: str) -> dict[str, Any]:
    from ficgan import configs

    if name not in configs.names("eval"):
        raise UsageError(f"there is no configuration {name!r}; there are {', '.join(configs.names('eval'))}")
    tree: dict[str, Any] = yaml.safe_load(configs.read(name, "eval"))
    tree.pop("paper", None)  # numbers of a paper's own protocol, which a matrix does not have
    if "sets" in tree:
        raise UsageError(f"the configuration {name} names its own sets; it takes no other data")
    return tree


def scaled(split: SplitConfig, people: int) -> SplitConfig:
    """A protocol's split for fewer people; a quarter of them are tested and k-same finds its background."""
    total = split.background + split.attacker + split.test
    if people >= total:
        return split
    test = min(split.test, max(2, round(TESTED * people)))
    least = min(LEAST_BACKGROUND, split.background, people // 3)
    background = max(least, round(split.background * people / total))
    attacker = max(0, people - background - test)
    return split.model_copy(update={"background": background, "test": test, "attacker": attacker})


@dataclass(frozen=True)
class FaceTreatment:
    """What was done to faces before an attacker sees them."""

    label: str
    anonymizer: Anonymizer

    @classmethod
    def of(cls, text: str, label: str = "") -> FaceTreatment:
        """An anonymiser as NAME or NAME:PARAMETER=VALUE,…; `label` is for tables."""
        name, parameters = parse_spec(text)
        return cls(label or text, ANONYMIZERS.make(name, **parameters))

    @property
    def mark(self) -> str:
        """Digest of the anonymiser and its parameters; `UsageError` where it runs a program."""
        if (mark := fingerprint(self.anonymizer)) is None:
            raise UsageError(
                f"{self.anonymizer.name} runs a program, whose output cannot be kept; give it a folder of images"
            )
        return mark


def treated(bench: Bench, how: FaceTreatment, rows: Rows) -> Faces:
    """Rows of the set after the treatment, the square that is replaced alone; kept in the bench's store."""
    part = bench.part(rows)
    needs_background = "background" in how.anonymizer.traits.needs  # the split decides who that is
    made_of = bench.digest if needs_background else bench.prepared.digest
    key = ["treated", made_of, list(part.region), how.mark, rows.tolist()]
    ready = anonymiser_for(bench, how.anonymizer)
    images = bench.store.array(key, lambda: part.with_regions(ready(part.regions())).images)
    return bench.prepared.faces.take(rows).with_images(images)


def attack_on(
    bench: Bench, spec: str, how: FaceTreatment, rows: Rows, *, label: str = "", progress: Progress | None = None
) -> TrainedAttacker:
    """An attacker, NAME or NAME:PARAMETER=VALUE,…, to be trained on the images at `rows` in a treatment."""
    name, parameters = parse_spec(spec)
    reverser = REVERSERS.make(name, **parameters)
    lessons = None
    if "pairs" in reverser.traits.knowledge:
        seen = bench.part(rows, treated(bench, how, rows).images)
        lessons = Pairs(seen.regions(), bench.part(rows).regions())
    report = (lambda text: None) if progress is None else (lambda text: progress(0, 1, text))
    return TrainedAttacker(label or spec, reverser, lessons, bench, report)


def transfer(
    bench: Bench,
    attacker: str,
    trained_on: Sequence[FaceTreatment],
    tested_on: Sequence[FaceTreatment],
    *,
    probes: Rows | None = None,
    scenario: str = "transfer",
    progress: Progress | None = None,
) -> list[Trial]:
    """An attacker trained on each of some treatments, tried on others (Fantômas, E4.1; Revelio, appendix C)."""
    rows = bench.split.probe if probes is None else probes
    if not len(bench.split.attacker):
        raise UsageError("the split leaves no faces to the attacker; set split.attacker")
    out: list[Trial] = []
    for number, learnt in enumerate(trained_on):
        label = f"{attacker} on {learnt.label}"
        attack = attack_on(bench, attacker, learnt, bench.split.attacker, label=label, progress=progress)
        for index, shown in enumerate(tested_on):
            if progress:
                done, total = number * len(tested_on) + index, len(trained_on) * len(tested_on)
                progress(done, total, f"{label} against {shown.label}")
            guesses = attack.restored(treated(bench, shown, rows), rows)
            out += read_trials(bench, guesses, rows, method=shown.label, attacker=learnt.label, scenario=scenario)
    return out


def read_trials(
    bench: Bench, guesses: Faces, rows: Rows, *, method: str, attacker: str, scenario: str = "transfer"
) -> list[Trial]:
    """A trial for each judge of guesses at the images at `rows`, identified against the clear gallery."""
    pixels, people = fidelity_figures(bench, rows, guesses), bench.people[rows]
    gallery = bench.prepared.faces.take(bench.split.gallery)
    out = []
    for reader in bench.readers:
        if np.isin(people, known(gallery)).any():
            seen, enrolled = (bench.embed(reader, faces) for faces in (guesses, gallery))
            scores = Scores.compare(seen, enrolled, people, known(gallery), metric=reader.metric)
            identity = [rank(scores, 1, bootstrap=bench.bootstrap)]
            identity.append(identified(scores, "one guess, nearest image", bench.bootstrap))
        else:
            identity = [Figure("IRA", None, unit="images", note="none of these people is enrolled")]
        figures = (*identity, distance(bench, reader, guesses, rows), *pixels)
        out.append(Trial(bench.name, method, scenario, reader.name, attacker, figures))
    return out


def distance(bench: Bench, reader: Reader, guesses: Faces, rows: Rows) -> Figure:
    """IDD of guesses at the images at `rows`; a note marks judges whose angles mean something else than ArcFace's."""
    seen, source = (bench.embed(reader, faces) for faces in (guesses, bench.prepared.faces.take(rows)))
    idd = identity_distance(seen, source, bench.sample(rows))
    return idd if reader.metric == "cosine" else replace(idd, note=NOT_ANGULAR)


def identified(scores: Scores, note: str, bootstrap: Bootstrap) -> Figure:
    """IRA: the share of images whose nearest person is the right one (Revelio, section 5.2); its interval by people."""
    return Sample(scores.people, bootstrap).share("IRA", hits(scores, 1), note)


def shade(axes: Any, points: Mapping[int, Figure], style: str, label: str, colour: str) -> None:
    """A line of figures, and their intervals behind it where all have one."""
    if not points:
        return
    at = sorted(points)
    axes.plot(at, [points[x].value for x in at], style, color=colour, label=label, markersize=4)
    low, high = [points[x].low for x in at], [points[x].high for x in at]
    if None not in (*low, *high):
        axes.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
