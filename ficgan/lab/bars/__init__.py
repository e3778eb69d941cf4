"""`ficgan measure`: every row of `bars.yaml` for one model on given sets, as a table of met and missed bars."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from ficgan import __version__
from ficgan.anonymizers import AverageFace, Faces
from ficgan.deidentify import Deidentifier, refuse_trainer
from ficgan.deidentify.anonymizer import Ficgan
from ficgan.errors import InputError, UsageError
from ficgan.faces import RECOGNIZERS, recognizer_missing
from ficgan.lab.bars import rows
from ficgan.lab.bars.rows import Controls, Figures, MeasuredSet
from ficgan.lab.bench import reconstruct
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.pages import write_file
from ficgan.lab.readers import get_readers
from ficgan.lab.report.tables import spelled, to_markdown
from ficgan.lab.results import Figure, note_texts
from ficgan.lab.run import Progress
from ficgan.lab.sets import Quick, open_set, prepare

SCHEMA = 1
Verdict = Literal["met", "missed", "no bar", "not measured"]
Step = tuple[str, Callable[[], None]]
LEAST_SIDE = 128  # Of aligned crops that judges see, px; models of more see and are judged at their own size
_PHOTO = 384  # Side of crops cut from photos, px; the replaced square is half of it
_FEW = 64  # Sources of swaps and of several draws
_PSI = 0.6  # Diversity at which draws are compared: what photos of several people and films have
_ROLES = {
    True: "gate: decides about retries, and may tune",
    False: "judge: no part in gating; not the trainer that the checkpoint names, if it names one",
}

# -- the table --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bar:
    """One row of `bars.yaml`."""

    title: str
    least: float | None = None
    most: float | None = None
    least_photos: float | None = None
    most_photos: float | None = None
    measured: bool = False
    paper: str = ""


_TEXT = files("ficgan.lab.bars").joinpath("bars.yaml").read_text("utf-8")
BARS: dict[str, Bar] = {row: Bar(**limits) for row, limits in yaml.safe_load(_TEXT).items()}


@dataclass(frozen=True)
class Line:
    """One figure of one setting on one set, with the average-face sticker's and a control: its name and figure."""

    set: str
    row: str
    setting: str
    judge: str
    value: Figure
    sticker: Figure | None = None
    control: tuple[str, Figure] | None = None
    photos: bool = False

    @property
    def limits(self) -> tuple[float | None, float | None]:
        """Least and most; a measured bar whose control was not measured allows anything."""
        bar = BARS[self.row]
        if bar.measured:
            return None, None if self.control is None else self.control[1].value
        least = bar.least_photos if self.photos and bar.least_photos is not None else bar.least
        return least, bar.most_photos if self.photos and bar.most_photos is not None else bar.most

    def judged(self, figure: Figure | None) -> Verdict:
        """The verdict that any figure, such as the sticker's, would have here."""
        if figure is None or figure.value is None:
            return "not measured"
        if self.limits == (None, None):
            return "not measured" if BARS[self.row].measured else "no bar"
        return "missed" if self._excess(figure.value) else "met"

    @property
    def verdict(self) -> Verdict:
        """By the value alone; `sure` looks at the interval."""
        return self.judged(self.value)

    @property
    def sure(self) -> bool:
        """Whether the whole interval lies on the verdict's side; false where there is no interval."""
        low, high = self.value.low, self.value.high
        if self.verdict not in ("met", "missed") or low is None or high is None:
            return False
        sides = {np.sign(self._excess(value)) for value in (low, high)}
        return sides == {0.0} if self.verdict == "met" else sides in ({1.0}, {-1.0})

    @property
    def short(self) -> float | None:
        """By how much the bar is missed, in the figure's own unit; None where it is not."""
        return abs(self._excess(self.value.value or 0.0)) if self.verdict == "missed" else None

    def to_dict(self) -> dict[str, Any]:
        bar, (least, most) = BARS[self.row], self.limits
        sticker, control = self.sticker, self.control
        return {
            **{key: getattr(self, key) for key in ("set", "row", "setting", "judge", "verdict", "sure", "short")},
            "title": bar.title,
            "bar": {"least": least, "most": most, "measured": bar.measured, "paper": bar.paper},
            **_plain(self.value),
            "sticker": None if sticker is None else {**_plain(sticker), "verdict": self.judged(sticker)},
            "control": None if control is None else {"what": control[0], **_plain(control[1])},
        }

    def cells(self) -> dict[str, str]:
        """The line of a page."""
        (least, most), bar = self.limits, BARS[self.row]
        asked = [f"≥ {least:g}"] if least is not None else []
        asked += [f"≤ {most:.3g}"] if most is not None else []
        verdict, sticker = self.verdict, self.judged(self.sticker)
        doubt = "?" if verdict in ("met", "missed") and not self.sure else ""
        short = "" if self.short is None else f" by {self.short:.3g}"
        measured = self.value.value is not None
        return {
            "row": bar.title,
            "bar": ", ".join(asked) + (" (same-group strangers)" if bar.measured else ""),
            "paper": bar.paper,
            "setting": self.setting,
            "judge": self.judge,
            "value": spelled(self.value) if measured else f"not measured: {self.value.note}",
            "sticker": _value(self.sticker) + (f" ({sticker})" if sticker in ("met", "missed") else ""),
            "control": f"{_value(self.control[1])}, {self.control[0]}" if self.control and measured else "",
            "verdict": "" if verdict == "no bar" else f"{verdict}{short}{doubt}",
            "note": self.value.note if measured else "",
        }

    def _excess(self, value: float) -> float:
        least, most = self.limits
        if least is not None and value < least:
            return value - least
        return max(0.0, value - most) if most is not None else 0.0


@dataclass
class Sheet:
    """What was found: lines as they came, what was left out and why, and facts."""

    found: list[Line] = field(default_factory=list)
    left_out: list[dict[str, str]] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[Line]:
        """By set and in the order of the rows."""
        sets, order = list(dict.fromkeys(line.set for line in self.found)), list(BARS)
        return sorted(self.found, key=lambda line: (sets.index(line.set), order.index(line.row)))

    @property
    def verdicts(self) -> dict[str, int]:
        return dict(Counter(line.verdict for line in self.found))

    @property
    def missed(self) -> list[str]:
        parts = ((line.set, line.setting, line.row, line.judge) for line in self.lines if line.verdict == "missed")
        return [", ".join(filter(None, part)) for part in parts]

    def write(self, folder: Path) -> list[Path]:
        """Write `bars.json` for machines, `bars.md` for readers."""
        tree = {
            "schema": SCHEMA,
            **self.facts,
            "verdicts": self.verdicts,
            "lines": [line.to_dict() for line in self.lines],
            "left_out": self.left_out,
        }
        text = json.dumps(tree, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        return [write_file(folder / "bars.json", text), write_file(folder / "bars.md", self._page())]

    def _page(self) -> str:
        counted = ", ".join(f"{name} {number}" for name, number in sorted(self.verdicts.items()))
        out = ["# The model against its bars", "", note_texts("bars")["how to read"], "", f"Lines: {counted}.", ""]
        out += [f"- {name}: {role}" for name, role in self.facts.get("judges", {}).items()]
        for name in dict.fromkeys(line.set for line in self.found):
            out += ["", f"## {name}", ""]
            if (about := self.facts.get("sets", {}).get(name)) is not None:
                licence = about.get("licence") or "no licence is stated beside it"
                out.append(f"{about['faces']} faces of {about['people']} people; {licence}.")
            out += ["", to_markdown([line.cells() for line in self.lines if line.set == name])]
        if self.left_out:
            out += ["## Left out", "", *(f"- {each['set']}, {each['what']}: {each['why']}" for each in self.left_out)]
        return "\n".join(out).rstrip() + "\n"


def _value(figure: Figure | None) -> str:
    return "" if figure is None or figure.value is None else spelled(figure, interval=False)


def _plain(figure: Figure) -> dict[str, Any]:
    return {key: value for key, value in asdict(figure).items() if key != "metric"}


# -- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BarsConfig:
    """What is measured.

    Args:
        judges: recognisers that had no part in training.
        attributes: a trained classifier, which reads smiles.
        whole: every row, with sticker and controls; else outputs and reconstruction alone.
    """

    aligned: tuple[Path, ...] = ()
    photos: Path | None = None
    judges: tuple[str, ...] = ("dlib",)
    attributes: Path | None = None
    checkpoint: Path | None = None
    bank: Path | None = None
    layers: tuple[int, ...] = ()
    k: int = 3000
    psi: float | Literal["auto"] = "auto"
    limit: int | None = None
    detector: str = "auto"
    device: str = "cpu"
    resamples: int = 1000
    seed: int = 0
    whole: bool = True


def run_bars(config: BarsConfig, progress: Progress | None = None) -> Sheet:
    """Measure every row; the sheet says why where a row cannot be measured."""
    began, report = time.monotonic(), progress or (lambda done, total, text: None)
    model = Measured(config)
    report(0, 1, "preparing faces")
    sets = model.sets()
    sticker = AverageFace().fit(sets[0].inner.faces)
    steps = [step for each in sets for step in SetMeasurement(model, each, sticker).steps()]
    for number, (what, measure) in enumerate(steps):
        report(number, len(steps), what)
        measure()
    report(len(steps), len(steps), "")
    model.sheet.facts = {**model.facts(sets), "seconds": round(time.monotonic() - began, 1)}
    return model.sheet


class Measured:
    """The model that is measured, and the judges."""

    def __init__(self, config: BarsConfig) -> None:
        self.config, self.sheet = config, Sheet()
        self.deid = self._engine(config.psi, verify=False)
        self.psi = self.deid.face_model.auto_psi(1) if config.psi == "auto" else config.psi
        for name in config.judges:
            refuse_trainer(self.deid.header, name)
        last = self.deid.model.num_layers - 1
        self.layers = tuple(sorted(set(config.layers or (0, min(4, last), last))))
        for layer in self.layers:
            self.deid.face_model.check_layer(layer)
        self.readers = get_readers(config.judges, config.device)
        self.judges = Judges.find(attributes=config.attributes)
        self.judges.lpips = self.judges.inception = None  # The bars are set for SqueezeNet's

    def _engine(self, psi: Any, *, verify: bool) -> Deidentifier:
        same = {key: getattr(self.config, key) for key in ("checkpoint", "bank", "k", "seed", "detector", "device")}
        return Deidentifier.from_pretrained(layer=0, psi=psi, verify=verify, **same)

    @cached_property
    def guarded(self) -> Deidentifier:
        return self._engine(self.psi, verify=True)

    def output(self, layer: int, **more: Any) -> Ficgan:
        """The model as an anonymiser of crops."""
        config = self.config
        files = {"checkpoint": str(config.checkpoint or ""), "bank": str(config.bank or "")}
        given = {"k": config.k, "psi": self.psi, "seed": config.seed, "device": config.device, **files}
        return Ficgan(layer=layer, **{**given, **more})

    def sets(self) -> list[MeasuredSet]:
        """The sets with their faces cut, aligned ones first."""
        config, side = self.config, max(LEAST_SIDE, self.deid.model.resolution)
        how: dict[str, Any] = {"alignment": self.deid.alignment}
        out = [self._set(path, size=side, aligned=True, **how) for path in config.aligned]
        if config.photos is not None:
            how |= {"size": max(_PHOTO, 2 * side), "context": 2, "detector": Quick(self.deid.detector)}
            out.append(self._set(config.photos, **how))
        return out

    def _set(self, path: Path, **how: Any) -> MeasuredSet:
        faces, limit = open_set(path), self.config.limit
        prepared = prepare(faces if limit is None else faces.take(range(min(limit, len(faces)))), **how)
        if len(prepared) < 2:
            raise InputError(f"{faces.name} gives {len(prepared)} faces to measure on; give at least 2")
        return MeasuredSet(prepared, self.readers, self.judges, Bootstrap(self.config.resamples, self.config.seed))

    def facts(self, sets: Sequence[MeasuredSet]) -> dict[str, Any]:
        gate = next((name for name in RECOGNIZERS if recognizer_missing(name) is None), "")
        config, deid = self.config, self.deid
        return {
            "ficgan": __version__,
            "checkpoint": deid.digests.get("checkpoint"),
            "bank": deid.face_model.bank.digest,
            "data_licence": None if deid.header is None else deid.header.data.get("licence"),
            "settings": {
                **{key: getattr(config, key) for key in ("k", "limit", "seed", "resamples")},
                "psi": self.psi,
                "layers": list(self.layers),
                "detector": deid.detector.name,
            },
            "judges": {reader.name: _ROLES[reader.recognizer.name == gate] for reader in self.readers},
            "sets": {each.name: each.prepared.facts() for each in sets},
        }


class SetMeasurement:
    """All rows of one set."""

    def __init__(self, model: Measured, faces: MeasuredSet, sticker: AverageFace) -> None:
        self.model, self.set, self.sticker = model, faces, sticker
        self.few = faces.one_each(_FEW)
        self.of_sticker: Figures = {}  # The rows of an output, of the sticker
        self.controls: Controls = {}  # And of clear faces

    def steps(self) -> Iterator[Step]:
        name, whole = self.set.name, self.model.config.whole
        if whole:
            yield f"{name}: clear faces and sticker", self.measure_controls
        yield f"{name}: reconstruction", self.measure_reconstruction
        for layer in self.model.layers:
            yield f"{name}: i = {layer}", partial(self.measure_outputs, layer)
            if whole:
                yield f"{name}: i = {layer}, swap and draws", partial(self.measure_draws, layer)
                yield f"{name}: i = {layer}, policy", partial(self.measure_policy, layer)

    @cached_property
    def known(self) -> dict[str, rows.Strangers]:
        return {reader.name: rows.strangers(self.set, reader) for reader in self.set.readers}

    def measure_controls(self) -> None:
        clear = {key: ("clear", figure) for key, figure in self._rows(self.set.faces).items()}
        self.controls = {**clear, **rows.beside_strangers(self.known, "swap", "draws")}
        self.of_sticker = self._rows(self.set.composed(self.sticker))
        if self.set.prepared.kinds is None:
            self._leave_out("within-kind", f"{self.set.name} does not say of what ethnicity and gender people are")

    def measure_reconstruction(self) -> None:
        """G(E(x)) of the inner squares, which lie as the model's own crops do; nothing is blended."""
        inner = self.set.inner
        rebuilt = inner.faces.with_images(reconstruct(self.model.deid, inner.faces.images))
        known = {reader.name: rows.strangers(inner, reader) for reader in inner.readers}
        sticker = rows.fidelity(inner, inner.composed(self.sticker)) if self.model.config.whole else {}
        controls = rows.beside_strangers(known, "rec-cosine")
        self._put("reconstruction", rows.fidelity(inner, rebuilt), sticker, controls)

    def measure_outputs(self, layer: int) -> None:
        self._put(f"i = {layer}", self._rows(self.set.composed(self.model.output(layer))), self.of_sticker)

    def measure_draws(self, layer: int) -> None:
        figures = rows.swap(self.few, self.model.output(layer, alpha=1.0))
        figures |= rows.draws(self.few, lambda seed: self.model.output(layer, psi=_PSI, seed=seed))
        self._put(f"i = {layer}", figures)

    def measure_policy(self, layer: int) -> None:
        """What leaves the program: shares retried and masked, and the rows of identity that stay."""
        try:
            shares, published = rows.policy(self.set, self.model.guarded, layer)
        except (InputError, UsageError) as error:
            self._leave_out("policy", str(error))
            return
        seen = self.set.recognised(published)
        figures = rows.identity(self.set, seen, self.known) | rows.within_kinds(self.set, published, seen)
        self._put(f"i = {layer}", shares)
        self._put(f"i = {layer}, policy on", {key: each for key, each in figures.items() if key[0] != "match"})

    def _rows(self, faces: Faces) -> Figures:
        seen = self.set.recognised(faces)
        out = rows.identity(self.set, seen, self.known) | rows.within_kinds(self.set, faces, seen)
        return out | rows.likeness(self.set, faces)

    def _leave_out(self, row: str, why: str) -> None:
        left_out = {"set": self.set.name, "what": row, "why": why}
        if left_out not in self.model.sheet.left_out:
            self.model.sheet.left_out.append(left_out)

    def _put(
        self, setting: str, figures: Figures, sticker: Figures | None = None, controls: Controls | None = None
    ) -> None:
        photos, controls = not self.set.prepared.whole, self.controls if controls is None else controls
        for key, value in figures.items():
            beside = (sticker or {}).get(key), controls.get(key)
            self.model.sheet.found.append(Line(self.set.name, key[0], setting, key[1], value, *beside, photos))
