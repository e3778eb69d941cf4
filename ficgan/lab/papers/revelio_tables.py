"""Revelio's tables, ours and the printed rows in turn; caveats; plots, and strips of what was restored."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from ficgan.arrays import resize
from ficgan.errors import Progress
from ficgan.lab.attacks import reverser_of
from ficgan.lab.attacks.revelio import Revelio
from ficgan.lab.metrics import wilson
from ficgan.lab.papers import COLOURS, NOT_ANGULAR, REVELIO, revelio, shade, table, text, titled_columns
from ficgan.lab.papers.revelio import RevelioPaper, RevelioStudy
from ficgan.lab.report import Row, filled, save_plot, spelled
from ficgan.lab.results import Results, Trial, origin, png, without_folder
from ficgan.lab.run import Task, fingerprint, write_file


@dataclass
class PartOutcome:
    """What a part found."""

    trials: list[Trial]
    facts: dict[str, Any]


Outcomes = Mapping[str, PartOutcome]
MEASURES = ("PSNR", "SSIM", "LPIPS", "IDD", "FID")
_DETECTION = ("threshold", "TPR", "FPR", "accuracy", "AUC")
_SHOWN = 128  # Side of a picture in a strip, pixels


def revelio_caveats(paper: RevelioPaper, facts: Row, world: Row, outcomes: Outcomes) -> list[str]:
    """What is not as in the paper: sentences that stand before the tables."""
    holds = {
        "judges": "dlib" not in paper.judges,
        "scaled": paper.size != REVELIO.size,
        "few": world["closed"]["images"] < 30,
        "tuned": "fine-tuning" in outcomes and paper.fine_tuned < world["closed"]["images"],
    }
    values = {
        "name": facts["name"],
        "px": paper.size,
        "ours": world,
        "photos": paper.fine_tuned,
        "judges": ", ".join(map(without_folder, paper.judges)),
        "attackers": "; ".join(f"{label} = {spec}" for label, spec in paper.named),
    }
    return [text(REVELIO, sentence, **values) for key, sentence in REVELIO.caveats.items() if holds.get(key, True)]


def revelio_tables(paper: RevelioPaper, outcomes: Outcomes) -> list[Row]:
    """All tables, of the parts that are done; a row of the paper stands below ours of the same name."""
    facts = {part: outcome.facts for part, outcome in outcomes.items()}

    def trials(scenario: str) -> list[Trial]:
        every = (trial for outcome in outcomes.values() for trial in outcome.trials)
        return [trial for trial in every if trial.scenario == scenario]

    guessed = trials(revelio.BASE) + trials(revelio.ESTIMATED)
    named = [(trial.attacker, trial) for trial in guessed]
    named += [(f"{trial.attacker}, {paper.candidates} guesses", trial) for trial in trials(revelio.VOTED)]
    shares = [{**row, **{level: counted(row[level]) for level in revelio.BLURS}} for row in REVELIO.ira.rows]
    ira = [(name, trial.recogniser, {trial.method: cell(trial, "IRA")}) for name, trial in named]
    detecting = [t for t in trials(revelio.OPEN) if t.attacker in (revelio.STRANGERS, revelio.AT_PAPER)]
    restored = [t for t in trials(revelio.OPEN) if t not in detecting]
    likeness = (*MEASURES, "IRA")
    tables: dict[str, list[Row]] = {
        "run": [{"part": part, "": "done" if part in outcomes else "not run"} for part in revelio.MAKE],
        "ira": merged("method", ira, shares),
        "light": rows([t for t in guessed if t.method == "light"], REVELIO.light.rows, *MEASURES),
        "heavy": rows([t for t in guessed if t.method == "heavy"], REVELIO.heavy.rows, *MEASURES),
        "fine_tuning": rows(trials(revelio.FINE), REVELIO.fine_tuning.rows, *MEASURES),
        "kernel": [
            *facts.get("kernel", {}).get("rows", []),
            {"of": "paper", "pixels of 256": f"error {REVELIO.kernel_error:g}"},
        ],
        "sweep": rows(trials(revelio.SWEPT), (), *likeness, name=lambda t: f"{t.method}, {t.attacker}"),
        "transfer": rows(trials(revelio.TRANSFERRED), (), *likeness, name=by_method),
        "defences": rows(trials(revelio.DEFENDED), REVELIO.defences.rows, *likeness, name=by_method),
        "adaptive": rows(trials(revelio.ADAPTED), REVELIO.adaptive.rows, *likeness, name=by_method),
        "detection": rows(detecting, [{"name": "paper", **REVELIO.detection}], *_DETECTION),
        "open_world": rows(restored, REVELIO.open_world.rows, *MEASURES),
    }
    tuned, trainings = facts.get("fine-tuning", {}), facts.get("base", {}).get("training", {})
    values = {
        "right": f" The identity was right for {tuned['right identity']} of {tuned['photos']}." if tuned else "",
        "attackers": ", ".join(label for label, _ in paper.named),
        "trainings": "; ".join(f"{name}: {long}" for name, long in trainings.items() if long != "–") or "none",
        "adapt_epochs": paper.adapt_epochs,
    }
    return [table(REVELIO, key, some, **values) for key, some in tables.items()]


def rows(
    found: Iterable[Trial],
    printed: Sequence[Row],
    *metrics: str,
    name: Callable[[Trial], str] = lambda trial: trial.attacker,
) -> list[Row]:
    """A row for each trial, named by a function of it, with these metrics; printed rows below."""
    first = next(iter(printed[0])) if printed else "name"
    cells = [(name(trial), trial.recogniser, {metric: cell(trial, metric) for metric in metrics}) for trial in found]
    return merged(first, cells, printed)


def by_method(trial: Trial) -> str:
    return f"{trial.method}, not restored" if trial.attacker == revelio.BARE else trial.method


def merged(first: str, cells: Iterable[tuple[str, str, Row]], printed: Sequence[Row]) -> list[Row]:
    """One row for each name and judge, and one of the paper below each; a dash where there is nothing."""
    found: dict[str, dict[str, Row]] = {row[first]: {} for row in printed}
    for name, judge, row in cells:
        found.setdefault(name, {}).setdefault(judge, {}).update(row)
    for row in printed:
        found[row[first]]["paper"] = {k: v if isinstance(v, str) else f"{v:g}" for k, v in row.items() if k != first}
    return filled(
        {first: name, "judge": judge, **row} for name, judges in found.items() for judge, row in judges.items()
    )


def cell(trial: Trial, metric: str) -> str:
    """A figure as text; * marks what cannot be compared with the paper's."""
    found = trial.figure(metric)
    if found is None or found.value is None:
        return "–"
    return f"{found.value:.3g}" if metric == "threshold" else spelled(found) + "*" * (found.note == NOT_ANGULAR)


def counted(share: float) -> str:
    """A printed share with Wilson's interval of the count out of all photos that it stands for; ~ where none does."""
    photos = REVELIO.closed["images"]
    count = round(share * photos)
    low, high = wilson(count, photos)
    return f"{share:.3f} [{low:.3f}, {high:.3f}]{'' if abs(count / photos - share) < 1e-3 else ' ~'}"


# -- plots and pictures ------------------------------------------------------------------------------------------------


def draw_revelio(study: RevelioStudy, outcomes: Outcomes, out: Path) -> list[Path]:
    """Every figure there is something for, in `out/figures`, and strips and their warning in `out/pictures`."""
    plots: dict[str, tuple[str, Callable[[PartOutcome, Any], None], tuple[float, float]]] = {
        "ood": ("figure-7", _detection, (5.2, 4.4)),
        "kernel": ("figure-13", _confusion, (5.4, 4.6)),
        "sweep": ("figure-15", _sweep, (13, 4.4)),
    }
    written: list[Path] = []
    for part, (stem, draw, size) in plots.items():
        if part in outcomes:
            written += save_plot(out / "figures" / stem, partial(draw, outcomes[part]), size)
    if study.paper.pictures and "base" in outcomes:
        written += _strips(study, out / "pictures", tuned="fine-tuning" in outcomes)
    return written


def _strips(study: RevelioStudy, folder: Path, *, tuned: bool) -> list[Path]:
    written = [write_file(folder / "READ-FIRST.txt", f"{REVELIO.warning}\n")]
    rows = study.world.closed[: study.paper.pictures]
    for level in revelio.BLURS:
        how = study.blur(level)
        seen = study.seen(how, rows)
        columns: dict[str, NDArray[np.uint8]] = {"clear": study.bench.clear(rows).images, "blurred": seen.images}
        for label, spec in study.paper.named:
            attack = study.attack(label, spec, how)
            columns[label] = attack.restored(seen, rows).images
            if tuned and level == "heavy" and isinstance(attack.reverser, Revelio):
                columns["fine-tuned"] = revelio.fine_tuned(study, attack, how)[1].images
        strip = titled_columns(
            {name: [resize(one, _SHOWN) for one in some[: len(rows)]] for name, some in columns.items()}
        )
        written.append(write_file(folder / f"{level}.png", png(strip)))
    return written


def _detection(outcome: PartOutcome, canvas: Any) -> None:
    axes, theirs = canvas.subplots(), REVELIO.detection
    for number, (judge, curve) in enumerate(outcome.facts["curves"].items()):
        colour, label = COLOURS[number % len(COLOURS)], f"{judge}, AUC {curve['AUC']:.2f}"
        axes.step(curve["FPR"], curve["TPR"], where="post", color=colour, label=label)
    axes.plot(theirs["FPR"], theirs["TPR"], "k*", markersize=9, label=f"the paper at d = {theirs['threshold']:g}")
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, linestyle=":")
    axes.set(xlabel="known people called strangers (FPR)", ylabel="strangers called strangers (TPR)")
    axes.set_title("Open world: strangers detected")
    axes.legend(fontsize=8)
    axes.grid(alpha=0.3)


def _confusion(outcome: PartOutcome, canvas: Any) -> None:
    axes, counts = canvas.subplots(), np.array(outcome.facts["confusion"], np.float64)
    kernels, scale, error = (outcome.facts[name] for name in ("kernels", "scale", "error"))
    extent = (kernels[0] - 1, kernels[-1] + 1, kernels[-1] + 1, kernels[0] - 1)
    image = axes.imshow(counts / counts.sum(1, keepdims=True).clip(1), cmap="cividis", vmin=0, vmax=1, extent=extent)
    canvas.colorbar(image, ax=axes, label="share of the photos")
    axes.set(xlabel="estimated kernel, px of the crop", ylabel="kernel that blurred it")
    axes.set_title(f"mean absolute error {error:.2f} px ({error * scale:.2f} of 256)")


def _sweep(outcome: PartOutcome, canvas: Any) -> None:
    trials = [trial for trial in outcome.trials if trial.scenario == revelio.SWEPT]
    judges = list(dict.fromkeys(trial.recogniser for trial in trials))
    panels = ["IRA", *MEASURES]
    for axes, name in zip(canvas.subplots(1, len(panels)), panels, strict=True):
        by_judge = name in ("IRA", "IDD")
        for judge, colour in zip(judges if by_judge else judges[:1], COLOURS, strict=False):
            mine = [trial for trial in trials if trial.recogniser == judge and trial.attacker not in revelio.BOUNDS]
            points = {int(trial.method.removeprefix("K ")): trial.figure(name) for trial in mine}
            shade(axes, points, "o-", judge if by_judge else "restored", colour)
        for bound, style in zip(revelio.BOUNDS, ("--", ":"), strict=True):
            some = [trial for trial in trials if (trial.attacker, trial.recogniser) == (bound, judges[0])]
            if some and (value := some[0].value(name)) is not None:
                axes.axhline(value, color="0.4", linewidth=1, linestyle=style, label=bound)
        axes.axvline(REVELIO.sweep["trained"], color="0.8", linewidth=1)
        axes.set(xlabel="kernel, px of 256", title=name)
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=6)


@dataclass
class RevelioRun:
    """What was found: results for a page, tables beside the printed ones, outcomes of the parts that are done."""

    results: Results
    tables: list[Row]
    experiment: RevelioStudy
    outcomes: dict[str, PartOutcome]


def run_revelio(paper: RevelioPaper, out: Path, progress: Progress | None = None) -> RevelioRun:
    """Run the parts asked for, or resume them; kept parts of the same settings are shown, too."""
    started = time.monotonic()
    study = revelio.open_study(paper, out, progress)
    outcomes: dict[str, PartOutcome] = {}
    for part in revelio.MAKE:
        task = Task(f"part {part}", _key(study, part), _do, (study, part))
        if part in paper.parts:
            (found,) = study.run.results([task])
        else:
            found = None if task.key is None else study.run.store.find(task.key)
        if found is not None:
            outcomes[part] = TypeAdapter(PartOutcome).validate_python(found)
    study.run.check()
    people, facts = study.bench.people, study.bench.prepared.facts()
    world = {
        name: {"images": len(rows), "people": len(np.unique(people[rows]))}
        for name, rows in study.world._asdict().items()
    }
    given = paper.model_dump(mode="json", exclude={"data", "labels"})
    given |= {"attackers": [[label, without_folder(spec)] for label, spec in paper.named]}
    given["judges"] = [reader.name for reader in study.bench.readers]
    results = Results(
        "Revelio: are blurred faces restored and named?",
        revelio_caveats(paper, facts, world, outcomes),
        origin(given, time.monotonic() - started) | {"set": {**facts, "world": world}},
        trials=[trial for outcome in outcomes.values() for trial in outcome.trials],
    )
    return RevelioRun(results, revelio_tables(paper, outcomes), study, outcomes)


def _do(study: RevelioStudy, part: revelio.Part, say: Any) -> Any:
    facts: dict[str, Any] = {}
    return asdict(PartOutcome(list(revelio.MAKE[part](study, facts)), facts))


def _key(study: RevelioStudy, part: revelio.Part) -> Any:
    """All that a part depends on; None where an attacker runs a program, of which nothing is kept."""
    from ficgan import __version__

    paper, bench = study.paper, study.bench
    used = paper.named if part == "base" else [paper.restorer]  # the other parts see Revelio alone
    marks = [fingerprint(reverser_of(spec)) for _, spec in used]
    left_out = {"data", "layout", "labels", "identity", "people", "parts", "pictures", "detector", "attackers"}
    judges = [reader.digest for reader in bench.readers]
    given = paper.model_dump(mode="json", exclude=left_out)
    return None if None in marks else ["revelio", __version__, part, given, used, bench.digest, judges, marks]
