"""Fantômas on utility: people's ratings beside reversibility (section 8), and measures by computer (appendix E)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces
from ficgan.arrays import resize
from ficgan.device import model_folders, onnx_session
from ficgan.errors import InputError, Progress
from ficgan.faces import MediaPipeMesh, find_meshes
from ficgan.identity.kind import ETHNICITIES, kind_reader
from ficgan.lab.bench import Subject, content, open_bench
from ficgan.lab.matrix_config import MatrixConfig
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers import FANTOMAS, Row, table
from ficgan.lab.papers.fantomas import MethodVerdict
from ficgan.lab.readers import get_readers
from ficgan.lab.report import save_plot
from ficgan.lab.report.tables import spelled
from ficgan.lab.results import Figure, read_json

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
    clear = [MethodVerdict("", "clear", "")] if rated else []
    rows: list[Row] = [
        {"method": verdict.method, "judge": verdict.judge, "reversibility": spelled(verdict.gain) or "–"}
        | {name: spelled(figure) for name, figure in rated[verdict.method].items()}
        for verdict in (*clear, *found)
        if verdict.method in rated
    ]
    return table(FANTOMAS, "ratings", rows)


def draw_figure_14(found: Sequence[MethodVerdict], rated: Rated, folder: Path) -> list[Path]:
    """Reversibility over naturalness, for each judge that has both."""
    known = [v for v in found if v.gain and v.gain.value is not None and v.method in rated]
    known = [v for v in known if rated[v.method]["naturalness"].value is not None]
    out: list[Path] = []
    for where in dict.fromkeys((verdict.set, verdict.judge) for verdict in known):
        mine = [verdict for verdict in known if (verdict.set, verdict.judge) == where]
        out += save_plot(folder / f"figure-14-{'-'.join(where)}", partial(_over_naturalness, mine, rated), (7, 5))
    return out


def _over_naturalness(found: Sequence[MethodVerdict], rated: Rated, canvas: Any) -> None:
    axes = canvas.subplots()
    for verdict in found:
        both = rated[verdict.method]["naturalness"], verdict.gain
        ends = [[one.value if end is None else end for end in (one.low, one.value, one.high)] for one in both if one]
        (left, x, right), (low, y, high) = np.array(ends, np.float64)
        axes.errorbar(
            x, y, [[y - low], [high - y]], [[x - left], [right - x]], fmt="o", color="#0072B2", elinewidth=0.6
        )
        axes.annotate(verdict.method, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=8)
    axes.set(xlabel="naturalness, as people rate it", ylabel="reversibility", xlim=(0, 1))
    axes.grid(alpha=0.3)


# -- measures by computer (appendix E) ---------------------------------------------------------------------------------


def similarities(config: MatrixConfig, out: Path, progress: Progress | None = None) -> tuple[Rated, str]:
    """Similarities of each method on the probes of the first set (Figure 16), and a sentence that says by what.

    A distance becomes a similarity by the least and the largest one of any image under any method.
    """
    bench = open_bench(config, config.sets[0], out)
    rows, distances = bench.split.probe, {}
    clear, read = bench.clear(rows), AppearanceReader()
    for done, method in enumerate(config.methods):
        if progress:
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


def similarity_table(found: Mapping[str, Mapping[str, Figure]], description: str) -> dict[str, Any]:
    """Figure 16 as a table."""
    rows = [{"method": title, **{name: spelled(one) for name, one in some.items()}} for title, some in found.items()]
    return table(FANTOMAS, "similarities", rows, description=description)
