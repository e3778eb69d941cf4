"""What obfuscated faces cost a classifier: the study of "A Study of Face Obfuscation in ImageNet" (Yang et al.)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, lru_cache
from pathlib import Path

import numpy as np

from ficgan.device import resolve_device
from ficgan.errors import InputError, Progress
from ficgan.lab.results import Results, notes, origin, write_json
from ficgan.lab.run import Run, Say, Store, Task
from ficgan.lab.study.costs import by_category, grid_rows, lost_images
from ficgan.lab.study.scenes import Scenes, StudyConfig, Variant, open_scenes
from ficgan.lab.study.tables import StudyRun, study_tables
from ficgan.lab.study.training import Cell, Row, StudyGrid, check_network, spread
from ficgan.lab.study.transfer import Transfer

_FEW_CLASSES = 30
_FULL_EPOCHS = 90  # Section 4


class Study:
    """A study's images, opened, and its grid of networks, kept in a store; each process has its own."""

    def __init__(self, config: StudyConfig, out: Path) -> None:
        self.config, self.store, self.device = config, Store(out / "store"), resolve_device(config.device)
        self.whole = open_scenes(config.images, config.annotations, config.objects)
        if not self.whole.counts.any():
            raise InputError(f"no record of {config.annotations} has a box; a record holds the faces under bboxes")
        self.train, self.judged = self.whole.halves(config)

    @cached_property
    def grid(self) -> StudyGrid:
        return StudyGrid(self.config, self.train, self.judged, self.store, self.device)

    @cached_property
    def tasks(self) -> dict[str, Transfer]:
        """The downstream tasks by name, opened."""
        some = self.config.tasks.items()
        return {name: Transfer(name, task, self.config, self.store, self.device) for name, task in some}

    @property
    def begun(self) -> list[tuple[str, str, str, int]]:
        """Task, network, pretraining and seed of everything that is fine-tuned."""
        config = self.config
        some = [(name, task, task.networks or config.networks) for name, task in config.tasks.items()]
        every = [(name, network, begun) for name, task, nets in some for network in nets for begun in task.pretrained]
        return [(*one, seed) for seed in config.seeds for one in every]


# A process opens a study once. The settings are JSON, which any process can read.
@lru_cache(maxsize=1)
def _opened(settings: str, out: Path) -> Study:
    return Study(StudyConfig.model_validate_json(settings), out)


def _train(settings: str, out: Path, network: str, variant: Variant, seed: int, say: Say) -> None:
    _opened(settings, out).grid.cell(network, variant, seed, lambda text: say(f"{network} on {variant}: {text}"))


def _tune(
    settings: str, out: Path, name: str, network: str, seed: int, weights: Path | None, say: Say
) -> dict[str, float]:
    return _opened(settings, out).tasks[name].figures(network, seed, weights, say)


def run_obfuscation(
    config: StudyConfig,
    out: Path,
    progress: Progress | None = None,
    *,
    jobs: int = 1,
    cluster: str | None = None,
    merge: Sequence[Path] = (),
) -> StudyRun:
    """Run or resume a study; all figures are also in `out/study.json`.

    Args:
        jobs: networks that are trained at the same time, in processes or, with `cluster`, by workers of that Ray
            cluster, which need the same paths.
        merge: folders of other runs of this study, whose finished networks are taken over.
    """
    start, run = time.monotonic(), Run(out, jobs=jobs, cluster=cluster, progress=progress)
    for other in merge:
        run.say(f"{run.store.take_over(other)} results of {other.name} taken over")
    for network in config.networks:
        check_network(network)
        config.weights_of(network)
    run.say("reading annotations")
    here = config.model_dump_json(), out.resolve()
    _opened.cache_clear()  # files may have changed since another run in this process
    study = _opened(*here)
    # Seeds outermost: an interrupted study has whole pairs of few seeds, not all seeds of one variant.
    wanted = [(n, v, s) for s in config.seeds for n in config.networks for v in config.train_on]
    run.total = len(wanted) + len(study.begun)
    run.results([Task(f"{n} on {v}, seed {s}", None, _train, (*here, n, v, s)) for n, v, s in wanted])
    run.check()
    cells = [study.grid.cell(*one, run.say) for one in wanted]
    found = {
        "faces": faces(study.whole, config),
        "grid": grid_rows(cells),
        **by_category(cells, study.judged),
        "transfer": _transferred(study, cells, run, here),
    }
    write_json(out / "study.json", found)
    return StudyRun(_results(study, start), found, study_tables(found), lost_images(cells, study.grid))


def _transferred(study: Study, cells: Sequence[Cell], run: Run, here: tuple[str, Path]) -> dict[str, list[Row]]:
    """By task, a row for each network, pretraining and metric."""
    place = {(cell.network, cell.variant, cell.seed): cell.path for cell in cells}
    tasks = []
    for name, network, begun, seed in study.begun:
        title = f"{network} for {name}, begun {begun}, seed {seed}"
        arguments = (*here, name, network, seed, place.get((network, begun, seed)))
        tasks.append(Task(title, None, _tune, arguments))
    made = run.results(tasks)
    run.check()
    values: dict[tuple[str, str, str, str], list[float]] = {}
    for (name, network, begun, _), figures in zip(study.begun, made, strict=True):
        for metric, value in figures.items():
            values.setdefault((name, network, begun, metric), []).append(value)
    out: dict[str, list[Row]] = {name: [] for name in study.config.transfer}
    for (name, network, begun, metric), some in values.items():
        row = {"network": network, "pretrained": begun, "metric": metric, **spread(some)}
        out[name].append({**row, "evaluated": len(study.tasks[name].judged.targets)})
    return out


def faces(scenes: Scenes, config: StudyConfig) -> Row:
    """Where faces are: "classes" and "supercategories" (Table 2), "images" by their number of faces (Figure 2)."""

    def row(labels: Sequence[int]) -> Row:
        found = counts[np.isin(of, labels)]
        return {"images": len(found), "with_faces": float((found > 0).mean()), "faces": int(found.sum())}

    counts, of = scenes.counts, scenes.labels
    groups = scenes.below(config.supercategories, config.hierarchy)
    return {
        "all": row(range(len(scenes.classes))),
        "classes": {title: row([label]) for label, title in enumerate(scenes.classes)},
        "supercategories": {k: {"categories": len(some), **row(some)} if some else None for k, some in groups.items()},
        "images": {int(n): int(count) for n, count in zip(*np.unique(counts, return_counts=True), strict=True)},
    }


def _results(study: Study, start: float) -> Results:
    config, whole = study.config, study.whole
    settings = config.model_dump() | {"transfer": list(config.tasks)}
    sizes = {"images": len(whole), "train": len(study.train), "evaluation": len(study.judged)}
    facts = {"classes": list(whole.classes), **sizes, "fingerprint": whole.fingerprint}
    provenance = origin(settings, time.monotonic() - start) | {"set": facts}
    title = "Face obfuscation: what it costs a classifier"
    return Results(title, _caveats(config, whole, study.judged), provenance)


def _caveats(config: StudyConfig, whole: Scenes, judged: Scenes) -> list[str]:
    classes, faced = len(whole.classes), {scene.label for scene in whole.items if len(scene.boxes)}
    few = classes < _FEW_CLASSES
    holds = {
        "seeds": len(config.seeds) > 1,
        "one seed": len(config.seeds) == 1,
        "mark": len(faced) < classes and few,
        "few classes": few,
        "epochs": 0 < config.epochs < _FULL_EPOCHS,
        "precision": config.precision != "float32",
        "not ImageNet": classes != 1000,
        "transfer": config.tasks,
    }
    return notes(
        "study",
        holds,
        seeds=len(config.seeds),
        images=len(judged),
        point=100 / len(judged),
        classes=classes,
        faced=", ".join(whole.classes[label] for label in sorted(faced)),
        epochs=config.epochs,
        precision=config.precision,
    )
