"""Fantômas (Todt et al. 2024): its matrix (`ficgan.lab.matrix` runs it), verdicts, tables, and utility."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.arrays import resize
from ficgan.config import check
from ficgan.device import model_folders, onnx_session
from ficgan.errors import InputError, Progress, UsageError, unheard
from ficgan.faces import MediaPipeMesh
from ficgan.identity.kind import ETHNICITIES, kind_reader
from ficgan.lab.attacks import reverser_of
from ficgan.lab.bench import Subject, content, open_bench
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, SetConfig
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers import FANTOMAS, FANTOMAS_CLAIMS, table, text, transfer, with_data
from ficgan.lab.readers import get_readers, read_meshes
from ficgan.lab.report import Row, above, controls, rank_of, save_plot, spelled, strongest
from ficgan.lab.results import Figure, Results, Trial, read_json

# Configuration → the side that its parameters in pixels are meant for
PRESETS = {"fantomas": 224, "fantomas64": 64, "fantomas-full": 224}
# The positive control: the anonymiser that every competent attacker reverses (6.1.1)
POSITIVE = "block-permutation"
MET = "Gaussian Blur 29"  # What attackers of E4 meet, whatever they have learnt
GENERAL, SPECIALISED = "reversed-general", "reversed-specialised"
REVERSED = (GENERAL, SPECIALISED)
_MODEL, _CONV, _PIX2PIX = "autoencoder", "autoencoder:linear=none", "pix2pix"
NAMES = {_MODEL: "auto-encoder", _CONV: "conv AE", _PIX2PIX: "Pix2Pix"}  # What the paper calls its general attackers


def fantomas_matrix(
    data: Path | str,
    *,
    preset: str = "fantomas",
    people: int | None = None,
    size: int | None = None,
    extra: Sequence[str] = (),
    judges: Sequence[str] = ("dlib",),
    general: Sequence[str] = (),
    **more: Any,
) -> MatrixConfig:
    """The protocol on a face set: 200 + 4,500 + 300 people, 224 px, parameters of Table 3 as the program has them.

    With fewer people the split shrinks, with smaller crops parameters in pixels do. Block permutation, the positive
    control, is always run. `extra` are NAME:PARAMETER=VALUE,… or LABEL=NAME:….
    """
    if preset not in PRESETS:
        raise UsageError(f"there is no configuration {preset!r} of this paper; there are {', '.join(PRESETS)}")
    config = with_data(preset, data, people=people, size=size, judges=judges, general=list(general) or None, **more)
    factor, methods = config.sets[0].size / PRESETS[preset], list[MethodConfig]()
    for method in config.methods:
        powers, given = FANTOMAS.pixels.get(method.method, {}), dict(method.parameters)
        given |= {key: max(1, round(given[key] * factor**power)) for key, power in powers.items()}
        methods.append(method.model_copy(update={"parameters": given}))
    methods += map(MethodConfig.model_validate, extra)
    tree = config.model_dump() | {"methods": [method.model_dump() for method in methods]}
    return check(MatrixConfig, tree, where=preset)


def learnt_on(config: MatrixConfig, other: Path) -> MatrixConfig:
    """The same matrix, its general attackers trained on another set of faces with identities (E4.2)."""
    source = SetConfig(name=other.absolute().stem, path=str(other)).model_dump(exclude_unset=True)
    sets = [SetConfig.model_validate({**faces.model_dump(), "learn_from": source}) for faces in config.sets]
    return config.model_copy(update={"sets": sets, "scenarios": ["clear", "naive", GENERAL], "utility": False})


def fantomas_transfer(config: MatrixConfig, out: Path, progress: Progress = unheard) -> list[Trial]:
    """E4.1: general attackers trained eight times and tried on Gaussian Blur 29 (Fantômas, Figures 12, 17)."""
    bench = open_bench(config, config.sets[0], out)
    learnt = {label: MethodConfig.model_validate(spec).make() for label, spec in FANTOMAS.learnt.items()}
    trials: list[Trial] = []
    for spec in config.general:
        if "pairs" in reverser_of(spec).traits.knowledge:
            trials += transfer(bench, spec, learnt, {MET: learnt[MET]}, scenario=f"transfer: {spec}", progress=progress)
    return trials


@dataclass(frozen=True)
class MethodVerdict:
    """Whether a method is reversible on a set, by one judge; figures are rank-1, None where there is none."""

    set: str
    method: str
    judge: str
    clear: Figure | None = None
    naive: Figure | None = None
    parrot: Figure | None = None
    # best, attacker: the strongest reversal, and whose it is
    best: Figure | None = None
    attacker: str = ""
    # Reversibility of that attack, (best − naive) / clear, its interval of the same people in all three
    gain: Figure | None = None
    reversible: bool | None = None  # Of `best`, by the rule above the tables; None: undecided, `why`
    why: str = ""


def verdicts(results: Results) -> list[MethodVerdict]:
    """One for each set, method and judge of a matrix with Fantômas's scenarios."""
    out = []
    for name in results.sets:
        here = [trial for trial in results.trials if trial.set == name]
        for judge in dict.fromkeys(trial.recogniser for trial in here if trial.recogniser):
            mine = [trial for trial in here if trial.recogniser == judge]
            lacking = _lacking(results, name, judge, mine)
            out += [_verdict(name, method, judge, mine, lacking) for method in results.methods]
    return out


def _verdict(name: str, method: str, judge: str, trials: list[Trial], lacking: str) -> MethodVerdict:
    own = [trial for trial in trials if trial.method == method]
    clear, naive = rank_of(_best(trials, "clear")), rank_of(_best(own, "naive"))
    parrot, best = rank_of(_best(own, "parrot-enrol")), _best(own, *REVERSED)
    reversible, why = None if lacking else above(rank_of(best), naive), lacking
    if not lacking and reversible is None:
        why = "no reversal was measured" if best is None else "too few people for an interval"
    attack = (best.attacker, best.figure("reversibility")) if best else ("", None)
    return MethodVerdict(name, method, judge, clear, naive, parrot, rank_of(best), *attack, reversible, why)


def _lacking(results: Results, name: str, judge: str, trials: list[Trial]) -> str:
    outcomes = {each.name: each for each in controls(results) if (each.set, each.judge) == (name, judge)}
    for control in ("clear", "constant"):
        if control not in outcomes:
            return f"the control {control!r} was not run"
        found = outcomes[control]
        if not found.holds:
            return f"the control {control!r} does not hold: {found.value:.3f} is not {found.expected}"
    method = next((label for label, facts in results.methods.items() if facts["name"] == POSITIVE), None)
    if method is None:
        return "the positive control, block permutation, was not run"
    own = [trial for trial in trials if trial.method == method]
    if above(rank_of(_best(own, *REVERSED)), rank_of(_best(own, "naive"))):
        return ""
    return f"the positive control, {method}, was not reversed: these attackers prove nothing here"


def _best(trials: Iterable[Trial], *scenarios: str) -> Trial | None:
    return strongest([trial for trial in trials if trial.scenario in scenarios])


def _yes(value: bool | None, unknown: str = "undecided") -> str:
    return unknown if value is None else "yes" if value else "no"


def fantomas_tables(results: Results) -> list[dict[str, Any]]:
    """What was reversed beside the paper's claim, how many are reversible, the parameters of Table 3 beside ours."""
    found, rows = verdicts(results), []
    for verdict in found:
        claim = FANTOMAS_CLAIMS.get(verdict.method, "")
        says = "reversible" if verdict.method in FANTOMAS.reversible else "not reversible"
        row = _head(verdict) | {name: spelled(getattr(verdict, name)) for name in ("clear", "naive", "parrot")}
        row |= {"best reversal": spelled(verdict.best), "attacker": verdict.attacker}
        row |= {"reversibility, paired": spelled(verdict.gain)}
        row["reversible?"] = _yes(verdict.reversible, f"undecided: {verdict.why}")
        rows.append(row | {"paper": says if claim else "–", "paper says": claim})
    parameters = []
    for label, facts in results.methods.items():
        theirs = _listed(FANTOMAS.parameters.get(label, {})) or "–"
        parameters.append({"method": label, "here": _listed(facts["settings"]), "paper": theirs})
    parts = {"claims": rows, "counts": _counts(found), "parameters": parameters}
    return [table(FANTOMAS, key, some) for key, some in parts.items()]


def _head(verdict: MethodVerdict) -> Row:
    return {"set": verdict.set, "method": verdict.method, "judge": verdict.judge}


def _listed(parameters: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in parameters.items())


def _counts(found: Sequence[MethodVerdict]) -> list[Row]:
    decided: dict[str, bool] = {}
    for verdict in found:
        if verdict.method in FANTOMAS_CLAIMS and verdict.reversible is not None:
            decided[verdict.method] = decided.get(verdict.method, False) or verdict.reversible
    agree = f"{sum((label in FANTOMAS.reversible) == value for label, value in decided.items())} of {len(decided)}"
    paper: Row = {"decided": len(FANTOMAS_CLAIMS), "reversible": len(FANTOMAS.reversible), "agrees with the paper": "–"}
    here: Row = {"decided": len(decided), "reversible": sum(decided.values()), "agrees with the paper": agree}
    return [{"": "paper", **paper}, {"": "here", **here}]


def fantomas_caveats(results: Results) -> list[str]:
    """What must be read with these tables, besides the results' own caveats."""
    texts, caveats = FANTOMAS.caveats, list[str]()
    if missing := [label for label in FANTOMAS_CLAIMS if label not in results.methods]:
        caveats.append(text(FANTOMAS, texts["missing"], count=len(missing), names=", ".join(missing)))
    for name, facts in results.sets.items():
        here = [facts["split"]["parts"][part]["people"] for part in ("background", "attacker", "probe")]
        asked = [FANTOMAS.split[part] for part in ("background", "attacker", "test")]
        if here != asked or facts["size"] != FANTOMAS.split["size"]:
            caveats.append(text(FANTOMAS, texts["split"], name=name, here=here, px=facts["size"]))
    if any(facts["name"] == "k-rtio" for facts in results.methods.values()):
        caveats.append(text(FANTOMAS, texts["overlays"]))
    judges = sorted({trial.recogniser for trial in results.trials if trial.recogniser})
    return [*caveats, text(FANTOMAS, texts["judges"], judges=", ".join(judges))]


def attacker_tables(results: Results, found: Sequence[MethodVerdict]) -> list[dict[str, Any]]:
    """Every attacker by method, and E2.2, E3.1 and E3.2."""
    columns = dict.fromkeys(_column(trial) for trial in results.trials if trial.scenario in REVERSED and trial.attacker)
    missing = {column: "not made for it" if column.startswith("(") else "not run" for column in columns}
    tables: dict[str, list[Row]] = {key: [] for key in ("attackers", "layer", "parrots", "special")}
    for verdict in found:
        head, whose = _head(verdict), (verdict.set, verdict.method, verdict.judge)
        own = [trial for trial in results.trials if (trial.set, trial.method, trial.recogniser) == whose]
        cells = {_column(trial): spelled(rank_of(trial)) for trial in own if trial.scenario in REVERSED}
        seen = {"naive": spelled(verdict.naive) or "not run", "parrot": spelled(verdict.parrot) or "not run"}
        tables["attackers"].append(head | seen | missing | cells)

        ranks = {_column(trial): rank_of(trial) for trial in own if trial.scenario == GENERAL}
        far = results.methods[verdict.method]["name"] in (POSITIVE, "pixel-relocation")
        layer: Row = {"moves pixels far": _yes(far)}
        layer |= {name: spelled(ranks.get(name)) or "not run" for name in NAMES.values()}
        for name in (NAMES[_PIX2PIX], NAMES[_CONV]):
            layer[f"auto-encoder better than {name}?"] = _yes(above(ranks.get(NAMES[_MODEL]), ranks.get(name)))
        tables["layer"].append(head | layer)

        parrots = {"best reversal": spelled(verdict.best), "by": verdict.attacker}
        parrots["above naive?"] = _yes(above(verdict.best, verdict.naive))
        parrots["above the parrot?"] = _yes(above(verdict.best, verdict.parrot))
        tables["parrots"].append(head | seen | parrots)

        made, general = _best(own, SPECIALISED), _best(own, GENERAL)
        if made is not None:
            a, b = rank_of(made), rank_of(general)
            special = {"best made for it": spelled(a), "which": made.attacker}
            special |= {"best general": spelled(b) or "not run", "which general": general.attacker if general else "–"}
            answers = {"made for it is better?": _yes(above(a, b)), "general is better?": _yes(above(b, a))}
            tables["special"].append(head | special | answers)
    tables["layer"].sort(key=lambda row: row["moves pixels far"] != "yes")
    return [table(FANTOMAS, key, rows) for key, rows in tables.items()]


def _column(trial: Trial) -> str:
    """A learned attacker by its name in the paper, any other as it is; in brackets where it is a specialised one."""
    kind = trial.attacker.partition(":")[0]
    kind = _CONV if kind == _MODEL and "linear=none" in trial.attacker else kind
    name = NAMES.get(kind, trial.attacker)
    return name if trial.scenario == GENERAL else f"({name})"


def transfer_table(trials: Iterable[Trial]) -> dict[str, Any]:
    """E4.1: attackers that have learnt other parameters or methods than those they meet; of `fantomas_transfer`."""
    rows = []
    for trial in trials:
        attacker = trial.scenario.partition(": ")[2]
        head = {"attacker": attacker, "learnt": trial.attacker, "met": trial.method, "judge": trial.recogniser}
        rows.append(head | {name: spelled(trial.figure(name)) for name in ("rank-1", "IDD", "SSIM")})
    return table(FANTOMAS, "transfer", rows)


def elsewhere_table(results: Results, elsewhere: Results | None) -> dict[str, Any]:
    """E4.2: general attackers that have learnt another set (`learnt_on`), beside the same that have learnt this one."""
    general = [trial for trial in results.trials if trial.scenario == GENERAL]
    at_home = {(one.set, one.method, one.recogniser, one.attacker): rank_of(one) for one in general}
    rows = []
    for trial in [] if elsewhere is None else elsewhere.trials:
        attacker, learnt, source = trial.attacker.partition(": learnt on ")
        if trial.scenario != GENERAL or not learnt:
            continue
        here, there = at_home.get((trial.set, trial.method, trial.recogniser, attacker)), rank_of(trial)
        values = [found.value for found in (here, there) if found is not None and found.value is not None]
        lost = f"{values[0] - values[1]:+.3f}" if len(values) == 2 else "–"
        row = {"method": trial.method, "attacker": attacker, "judge": trial.recogniser}
        row |= {"learnt here": spelled(here) or "not run", "learnt elsewhere": spelled(there)}
        rows.append({**row, "on": source, "lost": lost})
    return table(FANTOMAS, "elsewhere", rows)


Rated = dict[str, dict[str, Figure]]  # Label of a condition, or of a method → what is said or measured
STATEMENTS = ("visual appeal", "naturalness", "use")
MEASURES = ("perceptual", "attributes", "landmarks")
# The six points of MediaPipe's face detector in the mesh: eyes, nose tip, mouth, tragions. Means of these vertices.
_SIX_POINTS = ((33, 133), (362, 263), (1,), (13, 14), (234,), (454,))


def read_ratings(path: Path) -> Rated:
    """What `ficgan-eval survey score -o FILE` wrote of a survey of the kind likert."""
    tree = read_json(path)
    try:
        return {row["label"]: {name: Figure(**row[name]) for name in STATEMENTS} for row in tree["conditions"]}
    except (TypeError, LookupError) as error:
        raise InputError(f"{path} has no scores of a survey of --kind likert ({error!r}); score one with -o") from error


def ratings_table(found: Sequence[MethodVerdict], rated: Rated) -> dict[str, Any]:
    """Reversibility beside what people say of a method (Figures 13 and 14)."""
    rows: list[Row] = [
        {"method": verdict.method, "judge": verdict.judge, "reversibility": spelled(verdict.gain) or "–"}
        | {name: spelled(figure) for name, figure in rated[verdict.method].items()}
        for verdict in (MethodVerdict("", "clear", ""), *found)
        if verdict.method in rated
    ]
    return table(FANTOMAS, "ratings", rows)


def draw_figure_14(found: Sequence[MethodVerdict], rated: Rated, folder: Path) -> list[Path]:
    """Reversibility over naturalness, for each judge that has both."""
    points: dict[tuple[str, str], dict[str, NDArray[np.float64]]] = {}
    for verdict in found:
        both = [rated.get(verdict.method, {}).get("naturalness"), verdict.gain]
        known = [one for one in both if one is not None and one.value is not None]
        if len(known) == 2:  # where there is no interval, its ends are the value
            ends = [[one.value if end is None else end for end in (one.low, one.value, one.high)] for one in known]
            points.setdefault((verdict.set, verdict.judge), {})[verdict.method] = np.array(ends, np.float64)
    plots = [
        save_plot(folder / f"figure-14-{'-'.join(k)}", partial(_over_naturalness, p), (7, 5)) for k, p in points.items()
    ]
    return [path for both in plots for path in both]


def _over_naturalness(points: Mapping[str, NDArray[np.float64]], canvas: Any) -> None:
    axes = canvas.subplots()
    for method, ((left, x, right), (low, y, high)) in points.items():
        away = {"xerr": [[x - left], [right - x]], "yerr": [[y - low], [high - y]]}
        axes.errorbar(x, y, **away, fmt="o", color="#0072B2", elinewidth=0.6)
        axes.annotate(method, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="naturalness, as people rate it", ylabel="reversibility", xlim=(0, 1))
    axes.grid(alpha=0.3)


# -- measures by computer (appendix E) ---------------------------------------------------------------------------------


def similarities(config: MatrixConfig, out: Path, progress: Progress = unheard) -> tuple[Rated, str]:
    """Similarities of each method on the probes of the first set (Figure 16), and a sentence that says by what.

    A distance becomes a similarity by the least and the largest one of any image under any method.
    """
    bench = open_bench(config, config.sets[0], out)
    rows, distances = bench.split.probe, {}
    clear, read = bench.clear(rows), AppearanceReader()
    for done, method in enumerate(config.methods):
        progress(done, len(config.methods), f"Figure 16: {method.title}")
        shown = Subject(bench, method.make()).anonymised(rows)
        key = ["figure 16", content(shown), content(clear), read.description, read.reader.digest]
        distances[method.title] = bench.store.kept(key, partial(read.distances, clear, shown))
    found: Rated = {title: {} for title in distances}
    for name in MEASURES:
        every = np.concatenate([some[name] for some in distances.values()])
        least, most = (float(end(every)) if np.isfinite(every).any() else 0.0 for end in (np.nanmin, np.nanmax))
        for title, some in distances.items():
            found[title][name] = bench.sample(rows).mean(name, (most - some[name]) / ((most - least) or 1.0))
    return found, read.description


class AppearanceReader:
    """What appendix E compares in a clear and an anonymised face, by what is there of the networks."""

    def __init__(self) -> None:
        judges = Judges.find()
        self.lpips, self.squeezenet, self.emotion = judges.lpips, judges.squeezenet, None
        self.mesh, (self.reader,) = MediaPipeMesh(), get_readers(["dlib"])
        for path in (path for folder in model_folders() for path in sorted(folder.glob("emotion*.onnx"))[:1]):
            self.emotion = onnx_session(path)
        perceptual = "LPIPS" if self.lpips else "SqueezeNet's distance" if self.squeezenet else "no network is here"
        self.description = (
            f"Here: {perceptual}; ethnic group, sex{', emotion' * bool(self.emotion)} and age by the embedded reader; "
            "six points of the mesh, of faces in which it finds them"
        )

    def distances(self, clear: Faces, shown: Faces) -> dict[str, NDArray[np.float64]]:
        """Measure → [N] distances of the faces `shown` to the clear ones."""
        perceptual: Any = np.full(len(clear), np.nan)
        if self.lpips is not None:
            perceptual = self.lpips.distance(clear.images, shown.images)
        elif self.squeezenet is not None:
            perceptual = self.squeezenet.read(shown.images, clear=clear.images)[1]
        apart = np.linalg.norm(self.points(shown) - self.points(clear), axis=2).mean(1)
        parts = zip(self.attributes(clear), self.attributes(shown), strict=True)
        roots = [np.sqrt(np.square(a - b).mean(1)) for a, b in parts]
        return {"perceptual": perceptual, "attributes": np.mean(roots, axis=0), "landmarks": apart}

    def points(self, faces: Faces) -> NDArray[np.float64]:
        """[N,6,2] pixels, NaN without a mesh."""
        mesh = read_meshes(self.mesh, faces.images, faces.landmarks)
        return np.stack([mesh[:, list(some), :2].mean(1) for some in _SIX_POINTS], axis=1)

    def attributes(self, faces: Faces) -> list[NDArray[np.float64]]:
        """Shares of ethnic groups and of sexes, percent; age, years; shares of emotions, percent: [N,K] each."""
        read = kind_reader().read(self.reader.embed(faces)).astype(np.float64)
        male = read[:, [len(ETHNICITIES)]]
        out = [100 * read[:, : len(ETHNICITIES)], 100 * np.hstack([male, 1 - male]), read[:, -1:]]
        if self.emotion is None:
            return out
        network = self.emotion.get_inputs()[0]
        grey = [resize(image, network.shape[-1]).mean(axis=2, dtype=np.float32) for image in faces.images]
        logits = [self.emotion.run(None, {network.name: each[None, None]})[0].ravel() for each in grey]
        raised = np.exp(np.array(logits, np.float64) - np.max(logits, axis=1, keepdims=True))
        return [*out, 100 * raised / raised.sum(1, keepdims=True)]


def similarity_table(found: Mapping[str, Mapping[str, Figure]], description: str) -> dict[str, Any]:
    """Figure 16 as a table."""
    rows = [{"method": title, **{name: spelled(one) for name, one in some.items()}} for title, some in found.items()]
    return table(FANTOMAS, "similarities", rows, description=description)
