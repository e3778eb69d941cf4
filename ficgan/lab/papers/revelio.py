"""Revelio (Zhai et al.): restoring blurred faces and naming them; part after part, each kept when it is done."""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from ficgan.errors import FicganError
from ficgan.images import atomic_write
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.matrix_config import MatrixConfig, without_folder
from ficgan.lab.papers.preset import with_data
from ficgan.lab.papers.revelio_base import Outcome
from ficgan.lab.papers.revelio_caveats import revelio_caveats
from ficgan.lab.papers.revelio_lab import PARTS, Lab, RevelioPaper, attacker, open_lab
from ficgan.lab.papers.revelio_tables import revelio_tables
from ficgan.lab.results import Results, Trial, from_json
from ficgan.lab.stored import VERSION, digest, files_digest, fingerprint
from ficgan.registry import parse_spec

__all__ = ["PARTS", "RevelioPaper", "RevelioRun", "revelio_matrix", "run_revelio"]

Told = Callable[[int, int, str], None]
_ROOM = "ficgan.lab.papers"
_REVISION = 2
"""Raised where a part comes to say something else of the same settings."""
_MADE_BY = {
    "base": ("revelio_base", "base"), "retrieval": ("revelio_open", "retrieval"),
    "fine-tuning": ("revelio_tuned", "fine_tuning"), "kernel": ("revelio_kernel", "kernel"),
    "sweep": ("revelio_swept", "sweep"), "defences": ("revelio_swept", "defences"), "ood": ("revelio_open", "ood"),
}  # fmt: skip


def revelio_matrix(data: Path | str, *, size: int = 256, **more: Any) -> MatrixConfig:
    """The two blurs as a matrix, attackers that learn from people who are in no gallery: the open world's view.

    Args:
        data: faces with identities.
        size: side of the crops, pixels; blurs are scaled from 256 to it.
        more: as of `with_data`.

    Raises:
        UsageError: a value that cannot work.
    """
    from ficgan.anonymizers import GaussianBlur
    from ficgan.lab.attacks.blurs import scaled_blur

    config = with_data("revelio", data, size=size, **more)
    general = [re.sub(r"size=\d+,?", "", text).rstrip(":,") for text in config.general]
    methods = []
    for method in config.methods:
        made = method.make()
        if isinstance(made, GaussianBlur):
            method = method.model_copy(update={"parameters": scaled_blur(made, size).settings()})
        methods.append(method.model_dump())
    sized = [attacker(text, size)[1] for text in general]
    return MatrixConfig.model_validate({**config.model_dump(), "methods": methods, "general": sized})


@dataclass
class RevelioRun:
    """What was found.

    Attributes:
        results: for a page.
        tables: beside the printed ones.
        lab: set, people, attackers.
        outcomes: part → what it found; of the parts that are done.
    """

    results: Results
    tables: list[dict[str, Any]]
    lab: Lab
    outcomes: dict[str, Outcome]


def run_revelio(paper: RevelioPaper, out: Path, progress: Told | None = None) -> RevelioRun:
    """Run the parts asked for, or go on with them.

    Args:
        paper: settings.
        out: folder for the parts that are done, and the store of all that is computed.
        progress: called as progress(done, total, what).

    Returns:
        Results and tables. Of parts that were not asked for, the kept ones of
        the same settings are shown, too; the others say that they were not run.

    Raises:
        UsageError, InputError: settings or data that cannot work.
        FicganError: a part failed; the finished ones are kept.
    """
    started = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    lab = open_lab(paper, out, progress)
    outcomes: dict[str, Outcome] = {}
    seconds: dict[str, float] = {}
    for number, part in enumerate(PARTS):
        entry = _read(lab, part)
        if entry is None and part in paper.parts:
            began = time.monotonic()
            if progress:
                progress(number, len(PARTS), f"part {part}")
            entry = _keep(lab, part, _with_training(lab, part, _made(lab, part)), time.monotonic() - began)
        if entry is not None:
            outcomes[part] = Outcome([Trial(**from_json(one)) for one in entry["trials"]], entry["facts"])
            seconds[part] = entry["seconds"]
    results = _results(lab, outcomes, seconds, time.monotonic() - started)
    return RevelioRun(results, revelio_tables(paper, outcomes), lab, outcomes)


def _made(lab: Lab, part: str) -> Outcome:
    module, function = _MADE_BY[part]
    make: Callable[[Lab], Outcome] = getattr(import_module(f"{_ROOM}.{module}"), function)
    try:
        return make(lab)
    except FicganError as error:
        raise FicganError(f"part {part}: {error}; what is done is kept in {lab.out}, mend it and run again") from error


_LEARNT = {"retrieval": ("light", "heavy"), "fine-tuning": ("heavy",), "sweep": ("light", "heavy"),
           "defences": ("light",), "ood": ("heavy",)}  # fmt: skip
"""Blurs that the attacker has learnt for a part."""


def _with_training(lab: Lab, part: str, made: Outcome) -> Outcome:
    """With how long the attacker has learnt."""
    if made.whole and part in _LEARNT:
        label = lab.paper.restorer[0]
        told = {f"{label}, {level}": lab.restorer(lab.blur(level)).training for level in _LEARNT[part]}
        made.facts = {**made.facts, "training": told}
    return made


def _marks(lab: Lab, part: str) -> list[str | None]:
    """Fingerprints of the attackers of a part; None for a program, of which nobody knows what it does next time."""
    specs = [spec for _, spec in (lab.paper.named if part == "base" else [lab.paper.restorer])]
    return [fingerprint(REVERSERS.make(name, **given)) for name, given in map(parse_spec, specs)]


def _key(lab: Lab, part: str) -> str:
    """Of everything a part's outcome depends on."""
    from ficgan import __version__

    paper = lab.paper
    told = asdict(paper)
    for name in ("data", "layout", "labels", "identity", "people", "parts", "pictures", "detector"):
        del told[name]
    if part != "base":  # the others see Revelio alone
        told["attackers"] = list(paper.restorer)
    for name, needed in _NEEDED.items():
        if part not in needed:
            del told[name]
    if "estimator_weights" in told:
        told["estimator_weights"] = [paper.estimator_weights, files_digest(paper.estimator_weights)]
    judges = [reader.digest for reader in lab.bench.readers]
    return digest([VERSION, _REVISION, __version__, part, told, lab.bench.digest, judges, _marks(lab, part)])


_NEEDED: dict[str, tuple[str, ...]] = {
    "candidates": ("retrieval", "fine-tuning", "ood"), "sweep": ("sweep",), "estimator": ("kernel",),
    "fine_tuned": ("fine-tuning",), "tune_steps": ("fine-tuning",), "tune_rate": ("fine-tuning",),
    "adapted": ("defences",), "adapt_epochs": ("defences",), "control_epochs": ("base",),
    "estimator_network": ("kernel",), "estimator_weights": ("kernel",),
}  # fmt: skip
"""Settings that only some parts depend on."""


def _file(lab: Lab, part: str) -> Path:
    return lab.out / "parts" / f"{part}-{_key(lab, part)}.json"


def _read(lab: Lab, part: str) -> dict[str, Any] | None:
    if None in _marks(lab, part):
        return None
    try:
        entry: dict[str, Any] = json.loads(_file(lab, part).read_text(encoding="utf-8"))
        return entry
    except (OSError, ValueError):
        return None


def _keep(lab: Lab, part: str, outcome: Outcome, seconds: float) -> dict[str, Any]:
    entry = {"trials": [asdict(one) for one in outcome.trials], "facts": outcome.facts, "seconds": round(seconds, 1)}
    if outcome.whole and None not in _marks(lab, part):
        path = _file(lab, part)
        path.parent.mkdir(exist_ok=True)
        with atomic_write(path, overwrite=True) as file:
            file.write(json.dumps(entry, allow_nan=False).encode())
    loaded: dict[str, Any] = json.loads(json.dumps(entry))
    return loaded


def _results(lab: Lab, outcomes: dict[str, Outcome], seconds: dict[str, float], total: float) -> Results:
    from ficgan import __version__

    paper, bench = lab.paper, lab.bench
    facts = bench.prepared.facts()
    told = {key: value for key, value in asdict(paper).items() if key not in ("data", "labels")}
    told |= {"attackers": [[label, without_folder(spec)] for label, spec in paper.named]}
    told["judges"] = [reader.name for reader in bench.readers]
    world = lab.world.facts(bench.people)
    results = Results(
        "Revelio: are blurred faces restored and named?",
        provenance={
            "ficgan": __version__, "python": platform.python_version(), "machine": platform.machine(),
            "settings": told, "set": {**facts, "world": world}, "part_seconds": seconds, "seconds": round(total, 1),
        },
        trials=[trial for one in outcomes.values() for trial in one.trials],
    )  # fmt: skip
    results.caveats = revelio_caveats(paper, facts, world, outcomes)
    return results
