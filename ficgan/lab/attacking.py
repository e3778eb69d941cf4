"""Training an attacker on a set, judging it on people it never saw, and trying it on images."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ficgan import __version__
from ficgan.anonymizers import Faces
from ficgan.config import check
from ficgan.device import first_process
from ficgan.errors import FicganError, InputError, Progress, UsageError, unheard
from ficgan.files import content_key, file_digest
from ficgan.images.read import read_image
from ficgan.lab.attackers import titles, training_pairs
from ficgan.lab.attacks import Learned, Reverser, load_attacker, reverser_of
from ficgan.lab.attacks.learned import WEIGHTS, read_header
from ficgan.lab.bench import MANIFEST, SCHEMA, AttackerManifest, Bench, Subject, divided, everybody, photo_keys, sized
from ficgan.lab.matrix import run_matrix
from ficgan.lab.matrix_config import AttackConfig, AttackSet, MatrixConfig, SetConfig
from ficgan.lab.results import Results, png, read_json, write_json
from ficgan.lab.run import digest, write_file

EVALUATION = "evaluation.json"


def train_attacker(
    config: AttackConfig, data: Path, out: Path, *, device: str = "auto", progress: Progress = unheard, **given: Any
) -> Learned:
    """Train, or resume, an attacker in the folder `out`; `given` overrides the configuration."""
    source = sized(config.set.placed(data, "", **given))
    attacker = dataclasses.replace(config.learner(), device=device)
    out.mkdir(parents=True, exist_ok=True)
    say = partial(progress, 0, 1)
    say("preparing faces")
    bench = divided(source, config.detector, out, say)
    assert len(bench.learners)  # else a UsageError
    manifest = _manifest(config, source, bench)
    if (out / MANIFEST).exists():
        old, new = (
            {**each.config, "data": [each.split["sha256"], each.data["pixels"]]}
            for each in (AttackerManifest.read(out / MANIFEST), manifest)
        )
        if changed := sorted(key for key in new if old.get(key) != new[key]):
            raise UsageError(f"{out} holds a run with another {' and '.join(changed)}; use another --out")
    write_json(out / MANIFEST, {"schema": SCHEMA, **dataclasses.asdict(manifest)})
    pairs = training_pairs(Subject(bench, config.anonymizer.make(), say=say))
    trained = attacker.fit(pairs, workspace=out, progress=progress)
    facts = {key: manifest.data[key] for key in ("name", "licence", "digest", "faces", "people")}
    about = {"anonymizer": manifest.config["anonymizer"], "set": manifest.config["set"], "data": facts}
    about |= {"split_sha256": manifest.split["sha256"], "ficgan": manifest.version, "title": config.title}
    if first_process() and (not (out / WEIGHTS).exists() or read_header(out / WEIGHTS).get("about") != about):
        trained.save(out / WEIGHTS, about)
    return trained


def evaluate_attacker(
    file: Path,
    data: Path,
    out: Path,
    *,
    methods: Sequence[str] = (),
    judges: Sequence[str] = ("dlib",),
    resamples: int = 1000,
    jobs: int = 1,
    device: str = "auto",
    progress: Progress | None = None,
    **given: Any,
) -> Results:
    """Figures of a trained attacker on people it never saw, beside the controls; default: its own anonymiser."""
    if not file.is_file():
        raise UsageError(f"there is no attacker {file}; give attacker.safetensors of `ficgan-attack train`")
    manifest, header = AttackerManifest.read(file.parent / MANIFEST), read_header(file)
    if manifest.withheld and not methods:
        name, withheld = manifest.config["anonymizer"]["method"], ", ".join(manifest.withheld)
        raise UsageError(f"the attacker was trained against {name} with {withheld} given; repeat it: --method {name}:…")
    asked = AttackSet(**manifest.config["set"])
    spec = f"trained:file={file}" + ("" if device == "auto" else f",device={device}")
    tree: dict[str, Any] = {
        "title": f"{header['attacker']} against {', '.join(methods) or manifest.config['anonymizer']['method']}",
        "sets": [asked.placed(data, data.absolute().stem, **given)],
        "methods": [*methods] or [manifest.config["anonymizer"]],
        "scenarios": ["clear", "constant", "naive", "reversed-general"],
        "recognisers": list(judges),
        "detector": manifest.config["detector"],
        "general": [spec, "mean-face"],
        "utility": False,
        "resamples": resamples,
    }
    config = check(MatrixConfig, tree, where=str(file))
    # The folder holds results of no other attacker, set, method, scenario or judge.
    mark = digest([file_digest(file), config.model_dump(mode="json", exclude={"title", "general"})])
    path = out / EVALUATION
    if (out / "results.json").exists() and (not path.exists() or read_json(path) != mark):
        raise UsageError(f"{out} holds the results of another evaluation; use another folder")
    write_json(path, mark)
    results = run_matrix(config, out, jobs=jobs, progress=progress)
    called, title = f"{header['attacker']} (trained)", titles([spec, "mean-face"])[spec]
    renamed = (dataclasses.replace(trial, attacker=trial.attacker.replace(title, called)) for trial in results.trials)
    results.trials = list(renamed)
    results.provenance["settings"]["general"][0] = called
    results.provenance["attacker"] = {key: header[key] for key in ("attacker", "settings", "training", "about")}
    learnt = header["about"]["data"]
    first = f"The attacker learnt from {learnt['name']} ({learnt['licence'] or 'licence not known'}); that it fails "
    results.caveats.insert(0, f"{first}does not show that another attacker, or this one with more data, would.")
    results.write(out / "results.json")
    return results


def _manifest(config: AttackConfig, source: SetConfig, bench: Bench) -> AttackerManifest:
    facts, split = bench.prepared.facts(), bench.split
    rows = np.sort(np.concatenate([split.attacker, split.background]))
    shown = ("name", "layout", "digest", "pixels", "faces", "people", "detector", "alignment")
    data = {**{key: facts.get(key) for key in shown}, "licence": source.licence or facts["licence"]}
    learnt = sorted({content_key(image) for image in bench.prepared.faces.images[rows]})
    placed = AttackSet(**source.model_dump(exclude={"path", "name", "labels"}))
    tree = config.model_copy(update={"set": placed}).shareable()
    public, asked = config.anonymizer.shown, config.anonymizer.parameters
    withheld = sorted(key for key, value in asked.items() if public.get(key) != value)
    photos = sorted(photo_keys(everybody(source), {bench.prepared.faces.names[row] for row in rows}))
    return AttackerManifest(tree, data, split.manifest, tuple(learnt), tuple(photos), tuple(withheld), __version__)


def attacker_of(text: str, *, device: str = "auto") -> Reverser:
    """A trained attacker from its file, or by name one that learns nothing, such as `wiener:radius=4`."""
    if text.endswith(".safetensors") or Path(text).is_file():
        return load_attacker(text, device=device)
    made = reverser_of(text)
    if isinstance(made, Learned):
        raise UsageError(f"{made.name} must be trained: `ficgan attack train`, then give its attacker.safetensors")
    if "pairs" in made.traits.knowledge:
        raise UsageError(f"{made.name} needs pairs and keeps no file; `ficgan eval run` applies it")
    return made


def guess_all(
    attacker: Reverser, files: Sequence[tuple[Path, Path]], out: Path, candidates: int = 1, progress: Progress = unheard
) -> tuple[int, list[str]]:
    """Guess at crops, given with the names of their guesses below `out`; how many were written, and each failure."""
    names = [place.with_suffix("") for _, place in files]
    for name, count in Counter(names).items():
        if count > 1 or (out / f"{name}.png").exists():
            reason = f"{out / name}.png exists, or the guesses at {count} images would have this one name"
            raise UsageError(f"{reason}; choose another output folder, or give the images in two commands")
    written, failed = 0, list[str]()
    for number, ((path, _), name) in enumerate(zip(files, names, strict=True)):
        progress(number, len(files), str(path))
        try:
            crop = read_image(path).rgb
            height, width = crop.shape[:2]
            if height != width:
                raise InputError(f"{path} has {width}×{height} pixels; give square crops, as `ficgan align` makes them")
            guesses = attacker.reverse(Faces(crop[None], (str(name),)), candidates)[0]
            for place, guess in enumerate(guesses, 1):
                mark = "" if len(guesses) == 1 else f"-{place:02d}"
                write_file(out / name.with_name(f"{name.name}{mark}.png"), png(guess))
            written += len(guesses)
        except UsageError:
            raise
        except FicganError as error:
            failed.append(str(error) if str(path) in str(error) else f"{path}: {error}")
    return written, failed
