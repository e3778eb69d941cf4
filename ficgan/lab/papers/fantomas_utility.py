"""Fantômas on utility: people's ratings beside reversibility (section 8), and measures by computer (appendix E)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.arrays import resize
from ficgan.errors import InputError
from ficgan.faces import MediaPipeMesh, find_meshes
from ficgan.faces.models import model_folders, onnx_session
from ficgan.identity.kind import ETHNICITIES, kind_reader
from ficgan.lab.bench import Subject, anonymiser_for, content, open_bench
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.pages import read_json
from ficgan.lab.papers import FANTOMAS, Row, table
from ficgan.lab.papers.fantomas import MethodVerdict
from ficgan.lab.readers import get_readers
from ficgan.lab.report import save_plot
from ficgan.lab.report.tables import spelled
from ficgan.lab.results import Figure
from ficgan.lab.run import Progress

Rated = dict[str, dict[str, Figure]]  # Label of a condition → statement → agreement
STATEMENTS = ("visual appeal", "naturalness", "use")
MEASURES = ("perceptual", "attributes", "landmarks")
# The six points of MediaPipe's face detector in the mesh: eyes, nose tip, mouth, tragions. Means of these vertices.
_SIX_POINTS = ((33, 133), (362, 263), (1,), (13, 14), (234,), (454,))

# -- people's ratings --------------------------------------------------------------------------------------------------


def read_ratings(path: Path) -> Rated:
    """What `ficgan-eval survey score -o FILE` wrote of a survey of the kind likert."""
    tree = read_json(path)
    try:
        if tree["kind"] == "likert":
            return {row["label"]: {name: Figure(**row[name]) for name in STATEMENTS} for row in tree["conditions"]}
    except (TypeError, LookupError) as error:
        raise InputError(f"{path} is damaged ({error!r}); score the survey again with -o") from error
    raise InputError(f"{path} has the scores of pairs, not of ratings; give those of a survey of --kind likert")


def ratings_table(found: Sequence[MethodVerdict], rated: Rated) -> dict[str, Any]:
    """Reversibility beside what people say of a method (Figures 13 and 14)."""
    clear = {name: spelled(figure) for name, figure in rated.get("clear", {}).items()}
    rows: list[Row] = [{"method": "clear", "judge": "–", "reversibility": "–", **clear}] if clear else []
    for verdict in found:
        if verdict.method in rated:
            said = {name: spelled(figure) or "–" for name, figure in rated[verdict.method].items()}
            head = {"method": verdict.method, "judge": verdict.judge, "reversibility": spelled(verdict.gain) or "–"}
            rows.append(head | said)
    without = "not run: ask people with `ficgan-eval survey make --kind likert`, and give the scores with --survey"
    return table(FANTOMAS, "ratings", rows or [{"": without}])


def draw_figure_14(found: Sequence[MethodVerdict], rated: Rated, folder: Path) -> list[Path]:
    """Reversibility over naturalness, for each set and judge that has both."""
    out: list[Path] = []
    for where in dict.fromkeys((verdict.set, verdict.judge) for verdict in found):
        mine = [v for v in found if (v.set, v.judge) == where and v.method in rated]
        stem = folder / f"figure-14-{'-'.join(where)}"
        out += save_plot(stem, partial(_naturalness, {v.method: v.gain for v in mine}, rated), (7, 5))
    return out


def _naturalness(gains: Mapping[str, Figure | None], rated: Rated, canvas: Any) -> bool:
    axes, seen = canvas.subplots(), []
    for method, gain in gains.items():
        natural = rated[method]["naturalness"]
        if gain is None or gain.value is None or natural.value is None:
            continue
        seen.append(natural.value)
        across, along = (_away(figure) for figure in (natural, gain))
        axes.errorbar(natural.value, gain.value, along, across, fmt="o", color="#0072B2", elinewidth=0.6)
        axes.annotate(method, (natural.value, gain.value), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.axvline(np.mean(seen) if seen else 0, color="0.7", linewidth=1, linestyle="--")
    axes.set(xlabel="naturalness, as people rate it", ylabel="reversibility", xlim=(0, 1))
    axes.grid(alpha=0.3)
    return bool(seen)


def _away(figure: Figure) -> list[list[float]] | None:
    if figure.value is None or figure.low is None or figure.high is None:
        return None
    return [[figure.value - figure.low], [figure.high - figure.value]]


# -- measures by computer (appendix E) ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Similarities:
    """Figure 16: `figures` by method and measure; `measured` says by what."""

    figures: dict[str, dict[str, Figure]] = field(default_factory=dict)
    measured: str = "Not measured"


def similarities(config: MatrixConfig, out: Path, progress: Progress | None = None) -> Similarities:
    """Perceptual, attribute and landmark similarity of each method on the probes of the first set (Figure 16).

    A distance becomes a similarity by the least and the largest one of any image under any method.
    """
    report = progress or (lambda done, total, text: None)
    bench = open_bench(config, config.sets[0], out)
    rows, distances = bench.split.probe, {}
    clear, read = bench.prepared.faces.take(rows), Appearance()
    for done, method in enumerate(config.methods):
        report(done, len(config.methods), f"Figure 16: {method.title}")
        shown = Subject(bench, anonymiser_for(bench, method.make())).anonymised(rows)
        key = ["figure 16", content(shown), content(clear), read.key]
        distances[method.title] = bench.store.kept(key, partial(read.distances, clear, shown))
    found: dict[str, dict[str, Figure]] = {title: {} for title in distances}
    for name in MEASURES:
        every = np.concatenate([some[name] for some in distances.values()])
        least, most = (float(end(every)) if np.isfinite(every).any() else 0.0 for end in (np.nanmin, np.nanmax))
        for title, some in distances.items():
            alike = (most - some[name]) / ((most - least) or 1.0)
            found[title][name] = bench.sample(rows).mean(name, alike)
    return Similarities(found, "; ".join(f"{name}: {note}" for name, note in read.notes.items()))


class Appearance:
    """What appendix E compares in a clear and an anonymised face, by what is there of the networks."""

    def __init__(self) -> None:
        judges = Judges.find()
        self.lpips, self.squeezenet = judges.lpips, judges.squeezenet
        self.mesh, (self.reader,) = MediaPipeMesh(), get_readers(["dlib"])
        files = (path for folder in model_folders() for path in sorted(folder.glob("emotion*.onnx")))
        self.emotion_file = next(files, None)
        self.emotion = None if self.emotion_file is None else onnx_session(self.emotion_file)
        measured = "LPIPS" if self.lpips else "SqueezeNet's distance in place of LPIPS" if self.squeezenet else ""
        self.notes = {
            "perceptual": measured or judges.missing["lpips"],
            "attributes": "ethnic group, sex and age" + ", emotion" * (self.emotion is not None),
            "landmarks": "six points of the mesh; faces in which it finds none are left out",
        }

    @property
    def key(self) -> list[Any]:
        """JSON-ready: all that distances depend on."""
        return [*self.notes.values(), self.reader.digest, str(self.emotion_file and self.emotion_file.stat().st_size)]

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
        out = np.full((len(faces), len(_SIX_POINTS), 2), np.nan)
        for row, (image, marks) in enumerate(zip(faces.images, faces.landmarks, strict=True)):
            (mesh,) = find_meshes(self.mesh, image, np.asarray(marks, np.float64)[None])
            if mesh.presence >= 0:
                out[row] = [mesh.points[list(some), :2].mean(0) for some in _SIX_POINTS]
        return out

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


def similarity_table(alike: Similarities) -> dict[str, Any]:
    """Figure 16 as a table; what was measured stands in its note."""
    cells = {title: {name: spelled(some[name]) or "–" for name in MEASURES} for title, some in alike.figures.items()}
    rows = [{"method": title, **row} for title, row in cells.items()]
    without = [{"": "not run: ask for it with --set utility=true"}]
    return table(FANTOMAS, "similarities", rows or without, measured=alike.measured)


def draw_figure_16(alike: Similarities, folder: Path) -> list[Path]:
    """Bars of the three similarities by method."""
    from ficgan.lab.survey.scores import draw_agreement

    drawn = {title: {name: vars(figure) for name, figure in some.items()} for title, some in alike.figures.items()}
    rows = [{"label": title, **some} for title, some in drawn.items()]
    draw: Callable[[Any], None] = partial(draw_agreement, rows, MEASURES, says="similarity")
    return save_plot(folder / "figure-16", draw, (2 + 0.8 * len(rows), 4.5)) if rows else []
