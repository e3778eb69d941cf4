"""What the papers' experiments share: printed numbers, settings on a face set, treatments, attackers tried on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ficgan.anonymizers import Anonymizer, Faces
from ficgan.config import check, read_tree
from ficgan.errors import Progress, unheard
from ficgan.lab.attackers import TrainedAttacker, trained_on
from ficgan.lab.attacks import reverser_of
from ficgan.lab.bench import Bench, Subject, known, sized
from ficgan.lab.matrix import angles, fidelity_figures
from ficgan.lab.matrix_config import MatrixConfig, SetConfig
from ficgan.lab.metrics import Bootstrap, Sample
from ficgan.lab.metrics.privacy import Scores, hits, rank
from ficgan.lab.readers import Reader
from ficgan.lab.report import Row
from ficgan.lab.results import Figure, Trial
from ficgan.lab.sets import Rows


def _read(name: str) -> SimpleNamespace:
    """What a paper prints; of a table `rows`, `where`, and the `protocol`: how the numbers came about."""
    tree = yaml.safe_load(files("ficgan.lab.papers").joinpath(f"{name}.yaml").read_text(encoding="utf-8"))
    for key, found in tree.items():
        if isinstance(found, dict) and "columns" in found:
            rows = [dict(zip(found["columns"], row, strict=True)) for row in found["rows"]]
            tree[key] = SimpleNamespace(where=found["where"], protocol=found["protocol"], rows=rows)
    return SimpleNamespace(**tree)


def text(paper: SimpleNamespace, template: str, **values: Any) -> str:
    """A text of a paper's file with its gaps filled, from that file and from `values`."""
    return template.format(**{**vars(paper), **values})


def table(paper: SimpleNamespace, key: str, rows: Sequence[Row], **values: Any) -> Row:
    """A table for a page, with the title and the note of the paper's file, and without rows its sentence `empty`."""
    head = {part: text(paper, template, **values) for part, template in paper.tables[key].items()}
    empty = [{"": head.pop("empty")}] if "empty" in head else []
    return {**head, "rows": list(rows) or empty}


FICGAN, FANTOMAS, REVELIO = map(_read, ("ficgan", "fantomas", "revelio"))
FANTOMAS_CLAIMS: dict[str, str] = FANTOMAS.reversible | FANTOMAS.irreversible


class FacesSettings(BaseModel, frozen=True, extra="forbid"):
    """What experiments on one set of faces have in common."""

    data: Path
    layout: str = "auto"
    labels: Path | None = None
    size: int = Field(256, ge=32)  # Side of the crops, pixels
    aligned: bool = False
    detector: str = "auto"
    judges: tuple[str, ...] = ("dlib",)
    resamples: int = 1000
    seed: int = Field(0, ge=0)


# -- running -----------------------------------------------------------------------------------------------------------

TITLE = 22  # Height of the titles over pictures, pixels
NOT_ANGULAR = "the judge was not trained by angles"  # Note of an IDD that cannot be compared with ArcFace's
# Distinct for the colour-blind, too (Okabe and Ito 2008).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#000000")


def with_data(
    name: str, data: Path | str, *, people: int | None = None, judges: Sequence[str] = (), **given: Any
) -> MatrixConfig:
    """A packaged preset on a face set; the split is scaled to the people there are.

    Under `set` a preset may say what its set shall be like. `given` are values of the set and of the matrix; where one
    is None, the preset's holds.
    """
    tree = read_tree(name, kind="eval")
    tree.pop("paper", None)  # numbers of a paper's own protocol, which a matrix does not have
    given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items() if value is not None}
    wanted = tree.pop("set", {}) | {key: given.pop(key) for key in list(given) if key in SetConfig.model_fields}
    source = check(SetConfig, {**wanted, "name": "", "path": str(data), "limit_people": people}, where=name)
    given |= {"recognisers": list(judges)} if judges else {}
    return check(MatrixConfig, {**tree, "sets": [sized(source).model_dump()], **given}, where=name)


def treated(bench: Bench, anonymizer: Anonymizer, rows: Rows) -> Faces:
    """Rows of the set, anonymised by themselves, the square that is replaced alone; kept in the bench's store."""
    needs_background = "background" in anonymizer.traits.needs  # the split decides who that is
    origin = bench.digest if needs_background else bench.prepared.digest
    images = Subject(bench, anonymizer).made(bench.part(rows), origin)
    return bench.clear(rows).with_images(images)


def attack_on(
    bench: Bench, spec: str, anonymizer: Anonymizer, rows: Rows, *, label: str, say: Callable[[str], None]
) -> TrainedAttacker:
    """An attacker, NAME or NAME:PARAMETER=VALUE,…, to be trained on the images at `rows`, anonymised."""
    return trained_on(
        lambda: bench.pairs(rows, treated(bench, anonymizer, rows).images), label, reverser_of(spec), bench, say
    )


def transfer(
    bench: Bench,
    attacker: str,
    trained_on: Mapping[str, Anonymizer],
    tested_on: Mapping[str, Anonymizer],
    *,
    probes: Rows | None = None,
    scenario: str = "transfer",
    progress: Progress = unheard,
) -> list[Trial]:
    """An attacker trained on each of some methods by name, tried on others (Fantômas, E4.1; Revelio, appendix C)."""
    rows = bench.split.probe if probes is None else probes
    out = list[Trial]()
    for number, (learnt, anonymizer) in enumerate(trained_on.items()):
        say, label = partial(progress, number, len(trained_on)), f"{attacker} on {learnt}"
        attack = attack_on(bench, attacker, anonymizer, bench.learners, label=label, say=say)
        for met, other in tested_on.items():
            say(f"{label} against {met}")
            out += read_trials(bench, attack.restored(treated(bench, other, rows), rows), rows, met, learnt, scenario)
    return out


def read_trials(
    bench: Bench, guesses: Faces, rows: Rows, method: str, attacker: str, scenario: str = "transfer"
) -> list[Trial]:
    """A trial for each judge of guesses at the images at `rows`, identified against the clear gallery."""
    pixels, people = fidelity_figures(bench, rows, guesses), bench.people[rows]
    gallery = bench.clear(bench.split.gallery)
    out = []
    for reader in bench.readers:
        identity = [Figure("IRA", None, unit="images", note="none of these people is enrolled")]
        if np.isin(people, known(gallery)).any():
            seen, enrolled = (bench.embed(reader, faces) for faces in (guesses, gallery))
            scores = Scores.compare(seen, enrolled, people, known(gallery), metric=reader.metric)
            ira = identified(scores, "one guess, nearest image", bench.bootstrap)
            identity = [rank(scores, 1, bootstrap=bench.bootstrap), ira]
        figures = (*identity, distance(bench, reader, guesses, rows), *pixels)
        out.append(Trial(bench.name, method, scenario, reader.name, attacker, figures))
    return out


def distance(bench: Bench, reader: Reader, guesses: Faces, rows: Rows) -> Figure:
    """IDD of guesses at the images at `rows`; a note marks judges whose angles mean something else than ArcFace's."""
    seen, source = (bench.embed(reader, faces) for faces in (guesses, bench.clear(rows)))
    idd = bench.sample(rows).mean("IDD", angles(seen, source))
    return idd if reader.metric == "cosine" else replace(idd, note=NOT_ANGULAR)


def identified(scores: Scores, note: str, bootstrap: Bootstrap) -> Figure:
    """IRA: the share of images whose nearest person is the right one (Revelio, section 5.2); its interval by people."""
    return Sample(scores.people, bootstrap).share("IRA", hits(scores, 1), note)


def shade(axes: Any, points: Mapping[int, Figure | None], style: str, label: str, colour: str) -> None:
    """A line of the figures that have a value, and their intervals behind it where all have one."""
    known = sorted((x, found) for x, found in points.items() if found is not None and found.value is not None)
    if not known:
        return
    at = [x for x, _ in known]
    axes.plot(at, [found.value for _, found in known], style, color=colour, label=label, markersize=4)
    low, high = [found.low for _, found in known], [found.high for _, found in known]
    if None not in (*low, *high):
        axes.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)


def titled_columns(columns: Mapping[str, Sequence[NDArray[np.uint8]]]) -> NDArray[np.uint8]:
    """Columns of pictures [S,S,3] uint8 RGB, all of one side, beside one another under their titles."""
    from PIL import Image, ImageDraw, ImageFont

    side, rows = len(next(iter(columns.values()))[0]), max(map(len, columns.values()))
    sheet = Image.new("RGB", (side * len(columns), TITLE + side * rows), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=14)
    for number, (title, images) in enumerate(columns.items()):
        draw.text((side * number + side // 2, TITLE // 2), title, "black", font, anchor="mm")
        for row, image in enumerate(images):
            sheet.paste(Image.fromarray(image), (side * number, TITLE + side * row))
    return np.asarray(sheet)
