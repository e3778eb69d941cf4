"""FICGAN (Jeong et al. 2021), on a face set: every layer index, for the k-same code and for swaps."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, generator
from ficgan.deidentify import Deidentifier, Ficgan, refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.faces import crop, get_detector, transform_points
from ficgan.lab.basics import reconstruct
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.metrics.utility import Judges
from ficgan.lab.papers.sweep import Found, Stage, anonymised
from ficgan.lab.readers import get_readers
from ficgan.lab.results import FICGAN_LEAK, NOT_HANDLED, Results, Trial, Utility
from ficgan.lab.sets import Prepared, Quick, open_set, prepare
from ficgan.lab.stored import digest, fingerprint

__all__ = ["SAME_PHOTO", "FicganPaper", "Progress", "Run", "Setting", "run_ficgan"]

Progress = Callable[[int, int, str], None]
SAME_PHOTO = "same-photo"
"""Name of the comparison: the output against its own source, as the paper's ID similarity."""
FEW = 3000
"""Images of CelebA-HQ's test part; Fréchet distances of fewer are biased upwards."""


@dataclass(frozen=True)
class FicganPaper:
    """What is measured.

    Args:
        data: faces, as of `open_set`; FFHQ or CelebA-HQ in the paper.
        layout, labels: as of `open_set`.
        part: only this part of the set's own division, such as "test".
        skip: leave out so many images, the first by name: 60,000 leaves what the paper tests on of FFHQ.
        limit: at most so many images, drawn with the seed.
        size: side of the crops, pixels.
        aligned: the images are aligned as the default template.
        judges: recognisers that had no part in training.
        attributes: trained attribute classifier; without one there are no attribute figures.
        checkpoint, bank: of the model; the embedded ones if empty.
        k: people averaged.
        layers: values of i; none: all from 0 to L − 1.
        ablations: (name, checkpoint, bank) of Table 2.
        detector: of faces.
        device: of the model.
        resamples: of the bootstrap.
        seed: of the k-same draws, of the images drawn and of the bootstrap.
    """

    data: Path
    layout: str = "auto"
    labels: Path | None = None
    part: str | None = None
    skip: int = 0
    limit: int | None = None
    size: int = 256
    aligned: bool = False
    judges: tuple[str, ...] = ("dlib",)
    attributes: Path | None = None
    checkpoint: str = ""
    bank: str = ""
    k: int = 3000
    layers: tuple[int, ...] = ()
    ablations: tuple[tuple[str, str, str], ...] = ()
    detector: str = "auto"
    device: str = "cpu"
    resamples: int = 1000
    seed: int = 0

    def __post_init__(self) -> None:
        if bool(self.checkpoint) != bool(self.bank):
            raise UsageError("a checkpoint and the bank built with it belong together; give both or neither")
        if self.limit is not None and self.limit < 2:
            raise UsageError(f"{self.limit} images are too few to measure on; give at least 2")
        if self.skip < 0 or self.size < 32:
            raise UsageError(f"skip is {self.skip} and size {self.size}; give at least 0 and 32")


@dataclass(frozen=True)
class Setting:
    """One way to run the model.

    Args:
        label: as tables say it.
        code: "w_m", the k-same code, or "w_t", another person's.
        layer: i.
        model: "FICGAN", or the name of an ablation.
        anonymizer: ready to use.
    """

    label: str
    code: str
    layer: int
    model: str
    anonymizer: Ficgan


@dataclass(frozen=True)
class Run:
    """What `run_ficgan` found.

    Args:
        results: for a report.
        found: setting → figures, in the order they were run.
        strangers: every photo against another person's: what chance gives.
        reconstruction: G(E(x)).
        layers: values of i that were run.
        num_layers: L.
        classifier: what stands in the attribute classifier's header; None without one.
    """

    results: Results
    found: dict[Setting, Found]
    strangers: Found
    reconstruction: Found
    layers: tuple[int, ...]
    num_layers: int
    classifier: dict[str, Any] | None

    def by_layer(self, code: str) -> dict[int, Found]:
        """i → figures of the model itself with "w_m" or "w_t"."""
        return {one.layer: what for one, what in self.found.items() if (one.model, one.code) == ("FICGAN", code)}


def run_ficgan(config: FicganPaper, out: Path, progress: Progress | None = None) -> Run:
    """Measure every setting, or go on: what was measured before is read from `out/tasks`.

    Args:
        config: what to run.
        out: folder for what is found and for the prepared crops.
        progress: called as progress(done, total, what).

    Raises:
        UsageError: a value that cannot work, or a judge that trained the model.
        InputError: data or model that cannot be read.
    """
    began = time.monotonic()
    say = progress or (lambda done, total, what: None)
    say(0, 1, "preparing faces")
    _refuse_trainers(config)
    prepared, rows = _faces(config, out)
    faces = prepared.faces.take(rows)
    judges = Judges.find(attributes=config.attributes)
    judges.detector = judges.age_gender = None  # the paper has no figures of them
    stage = Stage(
        faces,
        get_readers(config.judges),
        judges,
        out / "tasks",
        _labels(prepared, rows, judges),
        _context(config, judges),
        Bootstrap(config.resamples, config.seed),
    )
    deid = Deidentifier.from_pretrained(
        config.checkpoint or None, config.bank or None, verify=False, k=config.k, layer=0, psi=0, seed=config.seed,
        detector=config.detector, device=config.device,
    )  # fmt: skip
    total_layers = deid.model.num_layers
    layers = tuple(sorted(set(config.layers))) or tuple(range(total_layers))
    if layers[-1] >= total_layers:
        raise UsageError(f"layer {layers[-1]} cannot be i: this model has layers 1…{total_layers}")
    settings = list(_settings(config, layers))
    total = len(settings) + 2
    say(0, total, "strangers")
    strangers = stage.measure("strangers", lambda: np.roll(faces.images, 1, axis=0))
    say(1, total, "reconstruction")
    rebuilt = _reconstruction(stage, deid)
    found = {}
    for number, setting in enumerate(settings):
        say(number + 2, total, setting.label)
        key = fingerprint(setting.anonymizer)
        found[setting] = stage.measure(key, lambda one=setting: anonymised(one.anonymizer, faces))  # type: ignore[misc]
    say(total, total, "")
    classifier = None if judges.attributes is None else judges.attributes.training
    results = _results(config, prepared, faces, found, time.monotonic() - began)
    return Run(results, found, strangers, rebuilt, layers, total_layers, classifier)


def _faces(config: FicganPaper, out: Path) -> tuple[Prepared, NDArray[np.int64]]:
    """Prepared crops, and the rows that are measured in an order in which neighbours are strangers."""
    whole = open_set(config.data, layout=config.layout, labels=config.labels)
    whole = whole.only(config.part) if config.part else whole
    order = np.arange(config.skip, len(whole))
    if len(order) < 2:
        raise InputError(
            f"{config.data} has {len(whole)} such images, {config.skip} of them left out; leave at least 2"
        )
    drawn = generator(config.seed, "paper ficgan").permutation(order)[: config.limit]
    detector = None if config.aligned else Quick(get_detector(config.detector))
    prepared = prepare(
        whole.take(np.sort(drawn)), size=config.size, detector=detector, aligned=config.aligned, cache=out / "store"
    )
    if len(prepared) < 2:
        raise InputError(f"a face was acquired in {len(prepared)} images of {whole.name}; give at least 2 with one")
    return prepared, generator(config.seed, "order").permutation(len(prepared))


def _labels(prepared: Prepared, rows: NDArray[np.int64], judges: Judges) -> NDArray[np.uint8] | None:
    names = () if judges.attributes is None else judges.attributes.names
    if not names or any(name not in prepared.attributes for name in names):
        return None
    return np.stack([prepared.attributes[name][rows] for name in names], 1).astype(np.uint8)


def _context(config: FicganPaper, judges: Judges) -> Any:
    from ficgan.models.io import file_digest

    return [None if config.attributes is None else file_digest(config.attributes), judges.attributes is not None]


def _settings(config: FicganPaper, layers: Sequence[int]) -> Iterator[Setting]:
    common = {"k": config.k, "seed": config.seed, "device": config.device, "psi": 0.0}
    base = Ficgan(**common, checkpoint=config.checkpoint, bank=config.bank)  # type: ignore[arg-type]
    codes = (("w_m", 0.0), ("w_t", 1.0))
    for code, alpha in codes:
        for layer in layers:
            yield Setting(f"FICGAN {code}, i = {layer}", code, layer, "FICGAN", replace(base, layer=layer, alpha=alpha))
    for name, checkpoint, bank in config.ablations:
        for code, alpha in codes:
            model = Ficgan(**common, checkpoint=checkpoint, bank=bank, layer=0, alpha=alpha)  # type: ignore[arg-type]
            yield Setting(f"{name} {code}, i = 0", code, 0, name, model)


def _reconstruction(stage: Stage, deid: Deidentifier) -> Found:
    """At the model's own alignment, at the size of the crops; nothing is pasted back."""
    faces, size = stage.faces, stage.faces.images.shape[1]
    matrices = [deid.alignment.matrix(marks, size) for marks in faces.landmarks]
    images = np.stack([crop(image, m, size) for image, m in zip(faces.images, matrices, strict=True)])
    marks = np.stack([transform_points(m, p) for m, p in zip(matrices, faces.landmarks, strict=True)])
    own = replace(stage, faces=Faces(images, faces.names, marks.astype(np.float32), faces.people))
    return own.measure(["reconstruction", deid.digests.get("checkpoint")], lambda: reconstruct(deid, images))


def _refuse_trainers(config: FicganPaper) -> None:
    from ficgan import pretrained
    from ficgan.face_model import ModelInfo

    for file in (config.checkpoint or pretrained.path("model"), *(one[1] for one in config.ablations)):
        header = ModelInfo.of(file)
        for name in config.judges:
            refuse_trainer(header, name)


def _results(
    config: FicganPaper, prepared: Prepared, faces: Faces, found: dict[Setting, Found], seconds: float
) -> Results:
    from ficgan import __version__

    facts = prepared.facts()
    name = str(facts["name"])
    nobody = {"people": 0, "images": 0}
    tested = {"people": facts["people"] or len(faces), "images": len(faces)}
    parts = {"background": nobody, "attacker": nobody, "probe": tested}
    results = Results(
        "FICGAN: tables and figures of the paper",
        sets={name: {**facts, "size": config.size, "context": 1.0, "split": {"parts": parts}}},
        provenance={
            "ficgan": __version__,
            "python": platform.python_version(),
            "machine": platform.machine(),
            "settings": _shareable(config),
            "seconds": round(seconds, 1),
        },
    )
    for setting, one in found.items():
        traits = asdict(setting.anonymizer.traits)
        traits["needs"] = sorted(traits["needs"])
        results.methods[setting.label] = {"name": "ficgan", **traits, "settings": setting.anonymizer.settings()}
        results.trials += [
            Trial(name, setting.label, SAME_PHOTO, judge, figures=some) for judge, some in one.judges.items()
        ]
        results.utilities.append(Utility(name, setting.label, one.figures))
    results.caveats = [*_caveats(name, len(faces), facts), FICGAN_LEAK, NOT_HANDLED]
    return results


def _caveats(name: str, count: int, facts: dict[str, Any]) -> list[str]:
    out = []
    if count < FEW:
        out.append(
            f"{name}: {count} images are measured; the paper has {FEW:,} of CelebA-HQ and 10,000 of FFHQ. Figures on "
            "so few show how the software behaves."
        )
    if missed := len(facts["failures_to_acquire"]):
        out.append(f"{name}: in {missed} of {missed + count} images no face was found; they are left out.")
    out.append(
        "ID similarity here is of source and output of one photo; it says nothing of how well a person is found among "
        "others, for which there are the attacks of `ficgan-eval run`."
    )
    out.append(
        "Outputs are finished crops with the generated face blended in; the paper judges the network's whole images, "
        "at 256 px."
    )
    return out


def _shareable(config: FicganPaper) -> dict[str, Any]:
    """The settings without folders of this machine."""
    tree = asdict(config)
    for key in ("data", "labels", "attributes", "checkpoint", "bank"):
        tree[key] = Path(tree[key]).name if tree[key] else None
    tree["judges"] = [f"onnx:{Path(one[5:]).name}" if one.startswith("onnx:") else one for one in config.judges]
    tree["ablations"] = [[one[0], *(Path(file).name for file in one[1:])] for one in config.ablations]
    return {**tree, "digest": digest(tree)}
