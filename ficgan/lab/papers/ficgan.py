"""FICGAN (Jeong et al. 2021) on a face set: every layer index, for the k-same code and for swaps, each setting in a
file.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, Images, generator
from ficgan.arrays import content_key
from ficgan.deidentify import Deidentifier, Ficgan, refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.faces import crop, get_detector, transform_points
from ficgan.lab.basics import reconstruct
from ficgan.lab.bench import anonymised
from ficgan.lab.metrics.intervals import Bootstrap, Sample, one_each_unknown
from ficgan.lab.metrics.utility import Judges, Readings, compare, kept
from ficgan.lab.pages import write_file
from ficgan.lab.papers.bench import Rows
from ficgan.lab.readers import Embeddings, Reader, cosines, get_readers, paired
from ficgan.lab.results import FICGAN_LEAK, NOT_HANDLED, Figure, Results, Trial, Utility, origin
from ficgan.lab.sets import Prepared, Quick, open_set, prepare
from ficgan.lab.stored import VERSION, Progress, digest, fingerprint

__all__ = ["SAME_PHOTO", "FicganPaper", "Found", "Kept", "Run", "Setting", "Stage", "run_ficgan"]

SAME_PHOTO = "same-photo"  # Name of the comparison: the output against its own source, as the paper's ID similarity
FEW = 3000  # Images of CelebA-HQ's test part; Fréchet distances of fewer are biased upwards
CODES = {"w_m": 0.0, "w_t": 1.0}  # The k-same code and an arbitrary person's: the alpha of `Ficgan` that gives them
_SHOWN = frozenset({
    "attributes", "attributes-balanced", "attributes-accuracy", "fid", "fd-squeezenet", "lpips", "lpips-squeezenet",
    "ssim",
})  # fmt: skip


@dataclass(frozen=True)
class FicganPaper:
    """What is measured; the options of `ficgan eval paper ficgan`. `skip` leaves out the first images by name;
    `ablations` are (name, checkpoint, bank).
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

    def shareable(self) -> dict[str, Any]:
        """The settings without folders of this machine."""
        tree = asdict(self)
        for key in ("data", "labels", "attributes", "checkpoint", "bank"):
            tree[key] = Path(tree[key]).name if tree[key] else None
        tree["judges"] = [f"onnx:{Path(one[5:]).name}" if one.startswith("onnx:") else one for one in self.judges]
        tree["ablations"] = [[one[0], *(Path(file).name for file in one[1:])] for one in self.ablations]
        return {**tree, "digest": digest(tree)}


@dataclass(frozen=True)
class Setting:
    """One way to run the model ("FICGAN", or an ablation): a code of `CODES` and the layer index i."""

    label: str
    code: str
    layer: int
    model: str
    anonymizer: Ficgan


@dataclass(frozen=True)
class Kept:
    """Shares of images with an attribute, and without, as read in the source, where it is still so; None: of none."""

    there: float | None
    lacking: float | None
    images: int


@dataclass(frozen=True)
class Found:
    """What was measured of one setting: figures by judge, utility figures and "mse", and how attributes fared."""

    judges: dict[str, tuple[Figure, ...]]
    figures: tuple[Figure, ...]
    attributes: dict[str, Kept] = field(default_factory=dict)

    def figure(self, metric: str) -> Figure | None:
        return next((one for one in self.figures if one.metric == metric and one.value is not None), None)

    @classmethod
    def read(cls, raw: dict[str, Any]) -> Found:
        return cls(
            {name: tuple(Figure(**one) for one in some) for name, some in raw["judges"].items()},
            tuple(Figure(**one) for one in raw["figures"]),
            {name: Kept(**one) for name, one in raw["attributes"].items()},
        )


@dataclass(frozen=True)
class Run:
    """What `run_ficgan` found: figures by setting, and of `strangers` (each photo against another person's); L is
    `num_layers`.
    """

    results: Results
    found: dict[Setting, Found]
    strangers: Found
    reconstruction: Found
    layers: tuple[int, ...]
    num_layers: int
    classifier: dict[str, Any] | None

    @property
    def main(self) -> dict[Setting, Found]:
        return {setting: one for setting, one in self.found.items() if setting.model == "FICGAN"}

    def by_layer(self, code: str) -> dict[int, Found]:
        """i → figures of the model itself with a code."""
        return {setting.layer: one for setting, one in self.main.items() if setting.code == code}


@dataclass
class Stage:
    """Clear crops and their judges; what is found is kept in `folder`, a file for each setting.

    `labels` [N,A] are 0 or 1 in the classifier's order; `context` is what else the outcome depends on, JSON-ready.
    """

    faces: Faces
    readers: Sequence[Reader]
    judges: Judges
    folder: Path
    labels: NDArray[np.uint8] | None = None
    context: Any = None
    bootstrap: Bootstrap = field(default_factory=Bootstrap)

    @cached_property
    def clear(self) -> Readings:
        return self.judges.read(self.faces)

    @cached_property
    def source(self) -> dict[str, Embeddings]:
        return {reader.name: reader.embed(self.faces) for reader in self.readers}

    @cached_property
    def sample(self) -> Sample:
        return Sample(one_each_unknown(self.faces.people, len(self.faces)), self.bootstrap)

    @cached_property
    def digest(self) -> str:
        """Of the pixels, the people, the readers and the context."""
        pixels = [content_key(image) for image in self.faces.images]
        people = None if self.faces.people is None else self.faces.people.tolist()
        others = [reader.digest for reader in self.readers], asdict(self.bootstrap), self.context
        return digest([VERSION, pixels, list(self.faces.names), people, self.judges.missing, others])

    def measure(self, key: Any, make: Callable[[], Images]) -> Found:
        """Figures of the output [N,S,S,3] that `make` gives; kept under `key`, all it depends on besides the faces."""
        path = self.folder / f"{digest([self.digest, key])}.json"
        try:
            return Found.read(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError):
            found = self._measured(self.faces.with_images(make()))
        write_file(path, json.dumps(asdict(found), allow_nan=False))
        return found

    def _measured(self, output: Faces) -> Found:
        seen = self.judges.read(output, against=self.clear)
        figures = compare(self.clear, seen, labels=self.labels, bootstrap=self.bootstrap)
        pairs = zip(self.faces.images, output.images, strict=True)
        error = [((a.astype(np.float32) - b) ** 2).mean(dtype=np.float64) / 127.5**2 for a, b in pairs]
        attributes = {}
        if seen.attributes is not None and self.clear.attributes is not None:
            having = (self.clear.attributes >= 0.5).sum(0)
            shares = kept(self.clear.attributes, seen.attributes, seen.attribute_names)
            attributes = {
                name: Kept(there, lacking, int(images))
                for (name, (there, lacking, _)), images in zip(shares.items(), having, strict=True)
            }
        mse = self.sample.mean("mse", error, "of pixels on [−1, 1]")
        judges = {reader.name: self._read(reader, output) for reader in self.readers}
        return Found(judges, (*(one for one in figures if one.metric in _SHOWN), mse), attributes)

    def _read(self, reader: Reader, output: Faces) -> tuple[Figure, ...]:
        source, made = self.source[reader.name], reader.embed(output)
        note = "" if reader.metric == "cosine" else "cosine of embeddings that are compared by distance"
        return (
            self.sample.mean("ID cosine", cosines(source, made), note),
            self.sample.share("match rate", paired(reader, source, made) > reader.threshold),
        )


def run_ficgan(config: FicganPaper, out: Path, progress: Progress | None = None) -> Run:
    """Measure every setting, or resume: what was measured before is read from `out/tasks`."""
    from ficgan.models.io import file_digest

    began = time.monotonic()
    report = progress or (lambda done, total, what: None)
    report(0, 1, "preparing faces")
    _refuse_trainers(config)
    prepared, rows = _faces(config, out)
    faces = prepared.faces.take(rows)
    judges = Judges.find(attributes=config.attributes)
    judges.detector = judges.age_gender = None  # the paper has no figures of them
    context = [None if config.attributes is None else file_digest(config.attributes), judges.attributes is not None]
    bootstrap = Bootstrap(config.resamples, config.seed)
    readers = get_readers(config.judges)
    stage = Stage(faces, readers, judges, out / "tasks", _labels(prepared, rows, judges), context, bootstrap)
    deid = Deidentifier.from_pretrained(
        config.checkpoint or None, config.bank or None, verify=False, k=config.k, layer=0, psi=0, seed=config.seed,
        detector=config.detector, device=config.device,
    )  # fmt: skip
    count = deid.model.num_layers
    layers = tuple(sorted(set(config.layers))) or tuple(range(count))
    if layers[-1] >= count:
        raise UsageError(f"layer {layers[-1]} cannot be i: this model has layers 1…{count}")
    settings = list(_settings(config, layers))
    total = len(settings) + 2
    report(0, total, "strangers")
    strangers = stage.measure("strangers", lambda: np.roll(faces.images, 1, axis=0))
    report(1, total, "reconstruction")
    rebuilt = _reconstruction(stage, deid)
    found = {}
    for number, setting in enumerate(settings):
        report(number + 2, total, setting.label)
        key = fingerprint(setting.anonymizer)
        found[setting] = stage.measure(key, lambda one=setting: anonymised(one.anonymizer, faces))  # type: ignore[misc]
    report(total, total, "")
    classifier = None if judges.attributes is None else judges.attributes.training
    results = _results(config, prepared, faces, found, time.monotonic() - began)
    return Run(results, found, strangers, rebuilt, layers, count, classifier)


def _faces(config: FicganPaper, out: Path) -> tuple[Prepared, Rows]:
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


def _labels(prepared: Prepared, rows: Rows, judges: Judges) -> NDArray[np.uint8] | None:
    names = () if judges.attributes is None else judges.attributes.names
    if not names or any(name not in prepared.attributes for name in names):
        return None
    return np.stack([prepared.attributes[name][rows] for name in names], 1).astype(np.uint8)


def _settings(config: FicganPaper, layers: Sequence[int]) -> Iterator[Setting]:
    base = Ficgan(
        k=config.k, seed=config.seed, device=config.device, psi=0.0, checkpoint=config.checkpoint, bank=config.bank
    )
    for code, alpha in CODES.items():
        for layer in layers:
            yield Setting(f"FICGAN {code}, i = {layer}", code, layer, "FICGAN", replace(base, layer=layer, alpha=alpha))
    for name, checkpoint, bank in config.ablations:
        for code, alpha in CODES.items():
            model = replace(base, checkpoint=checkpoint, bank=bank, layer=0, alpha=alpha)
            yield Setting(f"{name} {code}, i = 0", code, 0, name, model)


def _reconstruction(stage: Stage, deid: Deidentifier) -> Found:
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
    facts = prepared.facts()
    name = str(facts["name"])
    nobody = {"people": 0, "images": 0}
    tested = {"people": facts["people"] or len(faces), "images": len(faces)}
    parts = {"background": nobody, "attacker": nobody, "probe": tested}
    results = Results(
        "FICGAN: tables and figures of the paper",
        sets={name: {**facts, "size": config.size, "context": 1.0, "split": {"parts": parts}}},
        provenance=origin(config.shareable(), seconds),
    )
    for setting, one in found.items():
        traits = asdict(setting.anonymizer.traits)
        traits["needs"] = sorted(traits["needs"])
        results.methods[setting.label] = {"name": "ficgan", **traits, "settings": setting.anonymizer.settings()}
        results.trials += [
            Trial(name, setting.label, SAME_PHOTO, judge, figures=some) for judge, some in one.judges.items()
        ]
        results.utilities.append(Utility(name, setting.label, one.figures))
    if len(faces) < FEW:
        results.caveats.append(
            f"{name}: {len(faces)} images are measured; the paper has {FEW:,} of CelebA-HQ and 10,000 of FFHQ. Figures "
            "on so few show how the software behaves."
        )
    if missed := len(facts["failures_to_acquire"]):
        results.caveats.append(
            f"{name}: in {missed} of {missed + len(faces)} images no face was found; they are left out."
        )
    results.caveats += [
        "ID similarity here is of source and output of one photo; it says nothing of how well a person is found among "
        "others, for which there are the attacks of `ficgan-eval run`.",
        "Outputs are finished crops with the generated face blended in; the paper judges the network's whole images, "
        "at 256 px.",
        FICGAN_LEAK,
        NOT_HANDLED,
    ]
    return results
