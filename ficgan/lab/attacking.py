"""Training an attacker on a set, and judging it on people it never saw; its workspace says whom it learnt from."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer
from ficgan.arrays import content_key
from ficgan.errors import FicganError, UsageError
from ficgan.images import atomic_write
from ficgan.lab.attack_config import AttackConfig, AttackSet
from ficgan.lab.attackers import titles
from ficgan.lab.attacks import Pairs
from ficgan.lab.attacks.learned import Learned, read_header
from ficgan.lab.bench import Bench, Subject, anonymiser_for
from ficgan.lab.manifest import MANIFEST, Manifest, photo_keys
from ficgan.lab.matrix import run_matrix
from ficgan.lab.matrix_config import MatrixConfig, MethodConfig, SetConfig
from ficgan.lab.matrix_sets import divided_set, opened
from ficgan.lab.papers.preset import scaled
from ficgan.lab.results import Results
from ficgan.lab.scenarios import get_scenarios
from ficgan.lab.sets import open_set
from ficgan.lab.stored import Store, digest, files_digest

__all__ = ["WEIGHTS", "Job", "evaluate_attacker", "make_job", "train_attacker"]

WEIGHTS = "attacker.safetensors"
EVALUATION = "evaluation.json"
Told = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Job:
    """A configuration on its set.

    Args:
        config: checked.
        one: the set, its split scaled to the people there are.
    """

    config: AttackConfig
    one: SetConfig


def make_job(config: AttackConfig, data: Path, **given: Any) -> Job:
    """A configuration on the set at `data`.

    Args:
        config: checked.
        data: folder, zip or tar.
        given: layout, labels, limit_people, aligned, licence from the command line; None: the configuration's.

    Raises:
        UsageError, InputError: the set cannot be opened.
    """
    given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
    one = config.set.placed(data, Path(data).name or str(data), **given)
    faces = open_set(one.path, layout=one.layout, labels=one.labels, identity=one.identity)
    wanted = one.split
    total = wanted.background + wanted.attacker + wanted.test
    people = max(2, min(one.limit_people or total, total, faces.identities))
    change = {"name": faces.name, "limit_people": people, "split": scaled(wanted, people)}
    return Job(config, one.model_copy(update=change))


def train_attacker(job: Job, out: Path, *, device: str = "auto", told: Told | None = None) -> Learned:
    """Train, or go on with a training that was interrupted.

    Args:
        job: of `make_job`.
        out: folder of the run: manifest, statistics, state, weights; `store` holds the crops.
        device: of the network.
        told: progress.

    Raises:
        UsageError: the split leaves nobody to learn from, or the folder holds another run.
        FicganError: of the training.
    """
    config = job.config
    attacker = dataclasses.replace(config.learner(), device=device)
    out.mkdir(parents=True, exist_ok=True)
    if told:
        told(0, 1, "preparing faces")
    bench = _bench(job.one, config.detector, out)
    if not len(bench.split.attacker):
        raise UsageError("the split leaves nobody to learn from; set set.split.attacker, or give a set of more people")
    manifest = _manifest(job, bench)
    if (out / MANIFEST).exists():
        before = Manifest.read(out / MANIFEST)
        _same_run(before, manifest, out)
        manifest = dataclasses.replace(manifest, photos=before.photos)
    elif (out / WEIGHTS).exists():
        raise UsageError(f"{out} holds an attacker of which nothing is known; use another folder")
    if not manifest.photos:
        manifest = dataclasses.replace(manifest, photos=photo_keys(job.one, _names(bench)))
    manifest.write(out / MANIFEST)
    if told:
        told(0, 1, "anonymising faces")
    pairs = _pairs(bench, anonymiser_for(bench, config.anonymizer.make()))
    trained = attacker.fit(pairs, workspace=out, told=told)
    about = _about(config, manifest)
    if not (out / WEIGHTS).exists() or read_header(out / WEIGHTS).get("about") != about:
        trained.save(out / WEIGHTS, about)
    return trained


def evaluate_attacker(
    file: Path, data: Path, out: Path, *, methods: Sequence[str] = (), judges: Sequence[str] = ("dlib",),
    scenarios: Sequence[str] = (), resamples: int = 1000, pictures: int = 0, jobs: int = 1, seed: int = 0,
    device: str = "auto", progress: Told | None = None, **given: Any,
) -> Results:  # fmt: skip
    """Figures of one trained attacker on people it never saw, beside what everybody sees and the controls.

    Args:
        file: weights; the manifest lies beside them.
        data: the set it was trained on, whose tested people were kept from it, or another set.
        out: folder of the results.
        methods: anonymisers that are attacked; none: the one it was trained against.
        judges: recognisers.
        scenarios: beside the controls, naive reading and the attack, such as retrieval.
        resamples, seed: of the bootstrap.
        pictures: examples written; they show faces.
        jobs: processes.
        device: of the attacker's network.
        progress: called with each task.
        given: layout, labels, limit_people, aligned from the command line; None: as in the training.

    Raises:
        UsageError: it learnt from people who would be tested, there is no manifest, or `out` holds something else.
    """
    if not file.is_file():
        raise UsageError(f"there is no attacker {file}; give attacker.safetensors of `ficgan-attack train`")
    if "," in str(file):
        raise UsageError(f"{file} has a comma in its path, which a reverser's parameter cannot hold; rename it")
    manifest, header = Manifest.read(file.parent / MANIFEST), read_header(file)
    asked = AttackSet(**manifest.config["set"])
    limit = {"limit_people": given.pop("limit_people", None)}
    given = {key: str(value) if isinstance(value, Path) else value for key, value in {**given, **limit}.items()}
    spec = f"trained:file={file}" + ("" if device == "auto" else f",device={device}")
    config = MatrixConfig(
        title=f"{header['attacker']} against {', '.join(methods) or manifest.config['anonymizer']['method']}",
        sets=[asked.placed(data, data.absolute().stem, **given)],
        methods=[_method(one) for one in methods] or [_attacked(manifest)],
        scenarios=["clear", "constant", "naive", "reversed-general", *scenarios],
        recognisers=list(judges),
        detector=manifest.config["detector"],
        general=[spec, "mean-face"],
        utility=False,
        resamples=resamples,
        pictures=pictures,
        seed=seed,
    )
    get_scenarios(config.scenarios)
    for method in config.methods:
        method.make()
    _claim(out, _mark(file, config))
    results = run_matrix(config, out, jobs=jobs, progress=progress)
    return _finished(results, out, spec, header)


def _bench(one: SetConfig, detector: str, folder: Path) -> Bench:
    prepared, parts = divided_set(one, detector, folder)
    return Bench(prepared, parts, (), None, Store(folder / "store"))


def _pairs(bench: Bench, anonymizer: Anonymizer) -> Pairs:
    """The attacker's people, as an evaluation anonymises them."""
    rows = bench.split.attacker
    anonymised = Subject(bench, anonymizer).anonymised(rows).images
    return Pairs(bench.part(rows, anonymised).regions(), bench.part(rows).regions(), bench.background)


def _manifest(job: Job, bench: Bench) -> Manifest:
    from ficgan import __version__

    facts, split = bench.prepared.facts(), bench.split
    shown = ("name", "layout", "digest", "pixels", "faces", "people", "detector", "alignment")
    data = {**{key: facts.get(key) for key in shown}, "licence": job.one.licence or facts["licence"]}
    learnt = sorted({content_key(image) for image in bench.prepared.faces.images[_given(bench)]})
    placed = AttackSet(**job.one.model_dump(exclude={"path", "name", "labels"}))
    config = job.config.model_copy(update={"set": placed}).shareable()
    config["set"]["identity"] = job.one.identity
    told, asked = job.config.anonymizer.shown, job.config.anonymizer.parameters
    withheld = sorted(key for key, value in asked.items() if told.get(key) != value)
    return Manifest(config, data, split.manifest, tuple(learnt), withheld=tuple(withheld), version=__version__)


def _given(bench: Bench) -> NDArray[np.int64]:
    """Rows that the attacker or the anonymiser's background is given."""
    return np.sort(np.concatenate([bench.split.attacker, bench.split.background]))


def _names(bench: Bench) -> set[str]:
    return {bench.prepared.faces.names[row] for row in _given(bench)}


def _same_run(before: Manifest, now: Manifest, out: Path) -> None:
    old, new = (json.loads(json.dumps([one.config, one.split["sha256"], one.data["pixels"]])) for one in (before, now))
    if old == new:
        return
    changed = sorted(key for key in new[0] if old[0].get(key) != new[0][key]) or ["data"]
    raise UsageError(f"{out} holds a run with other settings or data ({', '.join(changed)}); use another --out")


def _about(config: AttackConfig, manifest: Manifest) -> dict[str, Any]:
    """What stands in the header of the weights: of what was attacked and of whom was learnt from."""
    data = {key: manifest.data[key] for key in ("name", "licence", "digest", "faces", "people")}
    tree = {"anonymizer": manifest.config["anonymizer"], "set": manifest.config["set"], "data": data}
    about = {**tree, "split_sha256": manifest.split["sha256"], "ficgan": manifest.version, "title": config.title}
    return dict(json.loads(json.dumps(about)))


def _attacked(manifest: Manifest) -> MethodConfig:
    """The anonymiser of the training.

    Raises:
        UsageError: it had a key or named files, of which the manifest holds nothing.
    """
    if manifest.withheld:
        name, told = manifest.config["anonymizer"]["method"], ", ".join(manifest.withheld)
        raise UsageError(f"the attacker was trained against {name} with {told} given; repeat it: --method {name}:…")
    return _method(manifest.config["anonymizer"])


def _method(given: str | dict[str, Any]) -> MethodConfig:
    return MethodConfig.model_validate(given)


def _mark(file: Path, config: MatrixConfig) -> dict[str, Any]:
    """What tells one evaluation from another; digests, for methods may have keys."""
    one = config.sets[0]
    asked = one.model_dump(mode="json", exclude={"name", "path", "labels", "licence"})
    faces = opened(one)
    groups = {name: list(values) for name, values in faces.groups.items()}
    methods = [(one.model_dump(mode="json"), [files_digest(str(v)) for v in one.parameters.values()])
               for one in config.methods]  # fmt: skip
    with file.open("rb") as weights:
        attacker = hashlib.file_digest(weights, "sha256").hexdigest()
    return {
        "attacker_sha256": attacker,
        "data": digest([faces.digest, faces.people.tolist(), groups, asked]),
        "methods": digest(methods),
        "scenarios": list(config.scenarios),
        "judges": digest([(name, files_digest(name)) for name in config.recognisers]),
        "bootstrap": [config.resamples, config.seed],
    }


def _claim(out: Path, mark: dict[str, Any]) -> None:
    """Results of another evaluation, or of anything else, are not overwritten."""
    path = out / EVALUATION
    if (out / "results.json").exists():
        try:
            before = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            before = {}
        other = [key.removesuffix("_sha256") for key in mark if before.get(key) != mark[key]]
        if other:
            raise UsageError(
                f"{out} holds the results of another evaluation (other {', '.join(other)}); use another folder"
            )
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FicganError(f"{out} cannot be made ({error.strerror}); choose another folder") from None
    with atomic_write(path, overwrite=True) as kept:
        kept.write(json.dumps(mark).encode())


def _finished(results: Results, out: Path, spec: str, header: dict[str, Any]) -> Results:
    """Tables say the attacker's name, not where its file lies."""
    called, title = f"{header['attacker']} (trained)", titles([spec, "mean-face"])[spec]
    results.trials = [
        dataclasses.replace(trial, attacker=trial.attacker.replace(title, called)) for trial in results.trials
    ]
    settings = results.provenance["settings"]
    settings["general"] = [called, *settings["general"][1:]]
    results.provenance["attacker"] = {key: header[key] for key in ("attacker", "settings", "training", "about")}
    licence = header["about"]["data"]["licence"]
    results.caveats = [
        f"The attacker learnt from {header['about']['data']['name']} ({licence or 'licence not known'}); "
        "that it fails does not show that another attacker, or this one with more data, would.",
        *results.caveats,
    ]
    with atomic_write(out / "results.json", overwrite=True) as file:
        file.write(results.to_json().encode())
    return results
