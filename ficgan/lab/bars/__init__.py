"""The bars of a default model: every row of the table for one model on given sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ficgan import __version__
from ficgan.anonymizers import AverageFace, Faces
from ficgan.deidentify import Deidentifier, Ficgan, refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.faces import RECOGNIZERS, recognizer_missing
from ficgan.lab.bars import privacy, utility
from ficgan.lab.bars.bench import MeasuredSet, Observation, Panel
from ficgan.lab.bars.table import BarControl, Controls, Figures, Sheet
from ficgan.lab.bench import reconstruct
from ficgan.lab.metrics import Bootstrap
from ficgan.lab.readers import Embeddings, ProbeData, ShapeRecognizer, cosines, several
from ficgan.lab.run import Progress
from ficgan.lab.sets import FaceSet, Prepared, Quick, open_set, prepare

Step = tuple[str, Callable[[], None]]
Seen = Mapping[str, Embeddings]  # Name of a recogniser → [N,D]
Measure = Callable[[Faces, Seen], Figures]
LEAST_SIDE = 128  # Of aligned crops that judges see, px; models of more see and are judged at their own size
_PHOTO = 384  # Side of crops cut from photos, px; the replaced square is half of it
_GUARDED = ("id-cosine", "tar")  # Rows of identity that there are with the policy on, too
_FEW = 64  # Sources of swaps and of several draws, and outputs that are looked for in the training set


@dataclass(frozen=True)
class BarsConfig:
    """What is measured.

    Args:
        train: faces it learnt from, for memorisation.
        judges: recognisers that had no part in training.
        whole: every row; else identity, detection and reconstruction alone.
    """

    aligned: tuple[Path, ...] = ()
    photos: tuple[Path, ...] = ()
    train: tuple[Path, ...] = ()
    judges: tuple[str, ...] = ("dlib",)
    attributes: Path | None = None
    checkpoint: Path | None = None
    bank: Path | None = None
    layers: tuple[int, ...] = ()
    k: int = 3000
    psi: float | Literal["auto"] = "auto"
    limit: int | None = None
    detector: str = "auto"
    device: str = "cpu"
    resamples: int = 1000
    seed: int = 0
    whole: bool = True


def run_bars(config: BarsConfig, progress: Progress | None = None) -> Sheet:
    """Measure every row; the sheet says why where a row cannot be measured."""
    began, report = time.monotonic(), progress or (lambda done, total, text: None)
    model = Measured(config)
    report(0, 1, "preparing faces")
    sets = model.sets()
    sticker = AverageFace().fit(model.background)
    measured = [SetMeasurement(model, one, sticker) for one in sets]
    steps = [step for one in measured for step in (one.steps() if config.whole else one.first_steps())]
    for number, (what, measure) in enumerate(steps):
        report(number, len(steps), what)
        measure()
    report(len(steps), len(steps), "")
    model.sheet.facts = {**model.facts(sets), "seconds": round(time.monotonic() - began, 1)}
    return model.sheet


class Measured:
    """The model that is measured, the judges and what all sets share."""

    def __init__(self, config: BarsConfig) -> None:
        self.config, self.sheet = config, Sheet()
        self.deid = self._engine(config.psi, verify=False)
        self.psi = self.deid.face_model.auto_psi(1) if config.psi == "auto" else config.psi
        """ψ of all outputs but those of `privacy.drawn`."""
        for name in config.judges:
            refuse_trainer(self.deid.header, name)
        last = self.deid.model.num_layers - 1
        self.layers = tuple(sorted(set(config.layers or (0, min(4, last), last))))
        for layer in self.layers:
            self.deid.face_model.check_layer(layer)
        self.main = tuple(layer for layer in self.layers if layer < last) or self.layers
        """Layers of the rows that take many outputs."""
        self.panel = Panel.find(config.judges, config.attributes, config.device)
        self.shapes = ShapeRecognizer(device=config.device)
        self.side = max(LEAST_SIDE, self.deid.model.resolution)
        self.model = Ficgan(
            k=config.k,
            layer=self.main[0],
            psi=self.psi,
            seed=config.seed,
            device=config.device,
            checkpoint=str(config.checkpoint or ""),
            bank=str(config.bank or ""),
        )

    def _engine(self, psi: Any, *, verify: bool) -> Deidentifier:
        config = self.config
        return Deidentifier.from_pretrained(
            config.checkpoint,
            config.bank,
            k=config.k,
            layer=0,
            psi=psi,
            seed=config.seed,
            detector=config.detector,
            device=config.device,
            verify=verify,
        )

    @cached_property
    def guarded(self) -> Deidentifier:
        return self._engine(self.psi, verify=True)

    def sets(self) -> list[MeasuredSet]:
        config, alignment = self.config, self.deid.alignment
        # Photos of another kind are as far from the training faces as from outputs: that would flatter these.
        out = [self._set(self._aligned(path, config.limit), train=self.train) for path in config.aligned]
        finder = Quick(self.deid.detector) if config.photos else None
        size = max(_PHOTO, 2 * self.side)
        for path in config.photos:
            faces = _opened(path, config.limit)
            out.append(self._set(prepare(faces, size=size, context=2, detector=finder, alignment=alignment)))
        self.background = out[0].inner.faces if self.train is None else self.train
        """Whose mean face the sticker is: training faces, else those of the first set."""
        return out

    def _set(self, prepared: Prepared, train: Faces | None = None) -> MeasuredSet:
        if len(prepared) < 2:
            raise InputError(f"{prepared.source['name']} gives {len(prepared)} faces to measure on; give at least 2")
        bootstrap = Bootstrap(max(1, self.config.resamples), self.config.seed)
        size = self.deid.model.resolution
        return MeasuredSet(prepared, self.panel, self.shapes, self.model, size, train, self.lessons, bootstrap)

    def _aligned(self, path: Path, limit: int | None) -> Prepared:
        return prepare(_opened(path, limit), size=self.side, aligned=True, alignment=self.deid.alignment)

    @cached_property
    def train(self) -> Faces | None:
        """Training faces; None where none were given."""
        if not self.config.train:
            return None
        parts = [self._aligned(path, None) for path in self.config.train]
        names = tuple(f"{number}/{name}" for number, one in enumerate(parts) for name in one.faces.names)
        people, after = [], 0
        for one in parts:  # numbers of one file say nothing in another
            people.append(after + np.unique(one.people, return_inverse=True)[1].reshape(-1))
            after = int(people[-1].max()) + 1
        images, landmarks = (
            np.concatenate([getattr(part.faces, key) for part in parts]) for key in ("images", "landmarks")
        )
        return Faces(images, names, landmarks, np.concatenate(people))

    @cached_property
    def lessons(self) -> ProbeData | None:
        """Shapes of the training people with two photos, from whom one learns to tell others apart."""
        if self.train is None or self.train.people is None:
            return None
        faces = self.train.take(np.flatnonzero(np.isin(self.train.people, several(self.train.people))))
        assert faces.people is not None
        return self.shapes.read(faces.images, faces.landmarks), faces.people

    @cached_property
    def learnt(self) -> NDArray[np.float32]:
        if self.train is None:
            raise UsageError("no training faces were given")
        return self.panel.readers[0].embed(self.train)

    def facts(self, sets: Sequence[MeasuredSet]) -> dict[str, Any]:
        gate = next((one for one in RECOGNIZERS if recognizer_missing(one) is None), "")
        roles = {
            True: "gate: decides about retries, and may tune",
            False: "judge: no part in gating; not the trainer that the checkpoint names, if it names one",
        }
        config = self.config
        return {
            "ficgan": __version__,
            "checkpoint": self.deid.digests.get("checkpoint"),
            "bank": self.deid.face_model.bank.digest,
            "data_licence": None if self.deid.header is None else self.deid.header.data.get("licence"),
            "resolution": self.deid.model.resolution,
            "L": self.deid.model.num_layers,
            "settings": {
                "k": config.k,
                "psi": self.psi,
                "layers": list(self.layers),
                "limit": config.limit,
                "seed": config.seed,
                "resamples": config.resamples,
                "detector": self.deid.detector.name,
            },
            "judges": {reader.name: roles[reader.recognizer.name == gate] for reader in self.panel.readers},
            "training_faces": None if self.train is None else len(self.train),
            "sticker": f"mean of {len(self.background)} faces, {'the first set' if self.train is None else 'training'}",
            "sets": {one.name: _facts(one.prepared) for one in sets},
        }


class SetMeasurement:
    """All rows of one set; `controls` are read beside those of every output."""

    def __init__(self, model: Measured, faces: MeasuredSet, sticker: AverageFace) -> None:
        self.model, self.set, self.sticker = model, faces, sticker
        self.photos = not faces.prepared.whole
        self.few = faces.one_each(_FEW)
        self.measures: dict[str, Measure] = {
            "within-kind": lambda made, seen: privacy.within_kinds(faces, made, seen),
            "naive": lambda made, seen: privacy.naive(faces, seen),
            "shape": lambda made, seen: privacy.shape(faces, made),
        }
        """Rows that a set may not allow."""
        self.of_sticker: Figures = {}
        self.controls: Controls = {}

    def steps(self) -> Iterator[Step]:
        name = self.set.name
        yield f"{name}: clear faces", self.measure_clear
        yield f"{name}: sticker", self.measure_sticker
        yield f"{name}: reconstruction", self.measure_reconstruction
        for layer in self.model.layers:
            yield f"{name}: i = {layer}", partial(self.measure_outputs, layer)
        many: list[tuple[str, str, Callable[[int], None]]] = [
            ("swaps", "swap and exemplar", self.measure_targets),
            ("draws", "draws", self.measure_draws),
            ("parrot", "parrot", self.measure_parrot),
            ("policy", "retried and masked", self.measure_policy),
        ]
        many += [] if self.photos else [("training faces", "memorised", self.measure_nearest)]
        for layer in self.model.main:
            for what, rows, measure in many:
                yield f"{name}: i = {layer}, {what}", partial(self._unless_refused, rows, measure, layer)

    def first_steps(self) -> Iterator[Step]:
        """Identity, detection and reconstruction alone."""
        yield f"{self.set.name}: reconstruction", self.measure_reconstruction
        for layer in self.model.layers:
            yield f"{self.set.name}: i = {layer}", partial(self.measure_first, layer)

    @cached_property
    def known(self) -> dict[str, privacy.Strangers]:
        return {reader.name: privacy.strangers(self.set, reader) for reader in self.set.readers}

    @cached_property
    def known_inside(self) -> dict[str, privacy.Strangers]:
        """The same of the replaced squares alone, which are read with their edge pixels repeated."""
        inner = self.set.inner
        if inner is self.set:
            return self.known
        return {reader.name: privacy.strangers(inner, reader) for reader in inner.readers}

    @cached_property
    def real(self) -> utility.RealFaces:
        return utility.RealFaces(self.set)

    @cached_property
    def targets(self) -> privacy.Targets:
        return privacy.targets(self.few)

    @cached_property
    def untargeted(self) -> Figures:
        """How like a target the sticker is, which knows none."""
        return privacy.towards(self.few, self.sticker, "swap", self.targets)

    @cached_property
    def parroted(self) -> tuple[Figures, Controls]:
        """Row parrot of the sticker, and the surroundings alone."""
        return privacy.parrot(self.set, self.sticker), privacy.surroundings(self.set)

    def measure_clear(self) -> None:
        """The controls; what cannot be measured of clear faces is left out of the whole set."""
        faces, figures = self.set.faces, Figures()
        for row, measure in list(self.measures.items()):
            try:
                figures |= measure(faces, self.set.clear.embeddings)
            except (InputError, UsageError) as error:
                self.model.sheet.leave_out(self.set.name, row, str(error))
                del self.measures[row]
        figures |= utility.appearance(self.set, faces, self.real)
        clear = {key: BarControl("clear", figure) for key, figure in figures.items()}
        self.controls = {**privacy.identity_controls(self.known), **clear, **utility.likeness_controls(self.set)}

    def measure_sticker(self) -> None:
        self.of_sticker = self._all(self.set.observe(self.set.composed(self.sticker)))

    def measure_reconstruction(self) -> None:
        """G(E(x)) of the inner squares, which lie as the model's own crops do; nothing is blended."""
        inner = self.set.inner
        sticker = utility.fidelity(inner, inner.observe(inner.composed(self.sticker)))
        rebuilt = inner.faces.with_images(reconstruct(self.model.deid, inner.faces.images))
        figures = utility.fidelity(inner, inner.observe(rebuilt))
        self._put("reconstruction", figures, sticker, privacy.strangers_beside(self.known_inside, "rec-cosine"))

    def measure_first(self, layer: int) -> None:
        seen = self.set.observe(self.set.composed(replace(self.model.model, layer=layer)))
        figures = privacy.identity(self.set, seen.embeddings, self.known) | utility.detected(self.set, seen)
        self._put(f"i = {layer}", figures, None, privacy.identity_controls(self.known))

    def measure_outputs(self, layer: int) -> None:
        setting, row, inner = f"i = {layer}", "id-cosine-bare", self.set.inner
        seen = self.set.observe(self.set.composed(replace(self.model.model, layer=layer)))
        self._put(setting, self._all(seen), self.of_sticker, self.controls)
        # The network's crops as they are, as the paper has them.
        made = self.model.deid.aligned(inner.faces.images, keys=inner.faces.names, layer=layer)[0]
        codes, clear = inner.recognised(inner.faces.with_images(made)), inner.clear.embeddings
        bare = {(row, name): inner.mean(row, cosines(clear[name], some)) for name, some in codes.items()}
        self._put(setting, bare, None, privacy.strangers_beside(self.known_inside, row))
        self.model.sheet.groups += utility.by_group(self.set, setting, seen)

    def measure_targets(self, layer: int) -> None:
        controls = privacy.strangers_beside(self.known, "swap", "exemplar")
        for row, alpha in (("swap", 1.0), ("exemplar", 0.5)):
            model = replace(self.model.model, layer=layer, alpha=alpha)
            figures = privacy.towards(self.few, model, row, self.targets)
            sticker = {(row, name): figure for (_, name), figure in self.untargeted.items()}
            self._put(f"i = {layer}", figures, sticker, controls)

    def measure_draws(self, layer: int) -> None:
        figures = privacy.draws(self.few, privacy.drawn(self.model.model, layer))
        sticker = privacy.draws(self.few.take(range(min(8, len(self.few.faces)))), lambda seed: self.sticker, 2)
        self._put(f"i = {layer}", figures, sticker, privacy.strangers_beside(self.known, "draws"))

    def measure_parrot(self, layer: int) -> None:
        figures = privacy.parrot(self.set, privacy.drawn(self.model.model, layer)(self.model.config.seed))
        self._put(f"i = {layer}", figures, *self.parroted)

    def measure_policy(self, layer: int) -> None:
        shares, published = privacy.policy(self.set, self.model.guarded, layer)
        self._put(f"i = {layer}", shares)
        seen = self.set.recognised(published)
        figures = privacy.identity(self.set, seen, self.known)
        kept = {key: figure for key, figure in figures.items() if key[0] in _GUARDED}
        for row, measure in self.measures.items():
            kept |= {} if row == "shape" else measure(published, seen)
        self._put(f"i = {layer}, policy on", kept, None, self.controls)

    def measure_nearest(self, layer: int) -> None:
        outputs = privacy.drawn(self.model.model, layer)(self.model.config.seed)
        reader = self.set.readers[0]
        self._put(f"i = {layer}", *privacy.nearest(self.few, self.model.learnt, reader, outputs, self.sticker))

    def _all(self, seen: Observation) -> Figures:
        """The rows of an output, in the order of its lines."""
        out = privacy.identity(self.set, seen.embeddings, self.known)
        for measure in self.measures.values():
            out |= measure(seen.faces, seen.embeddings)
        return out | utility.likeness(self.set, seen) | utility.appearance(self.set, seen.faces, self.real)

    def _unless_refused(self, rows: str, measure: Callable[[int], None], layer: int) -> None:
        try:
            measure(layer)
        except (InputError, UsageError) as error:
            if layer == self.model.main[0]:
                self.model.sheet.leave_out(self.set.name, rows, str(error))

    def _put(
        self, setting: str, figures: Figures, sticker: Figures | None = None, controls: Controls | None = None
    ) -> None:
        self.model.sheet.put(self.set.name, setting, figures, sticker, controls, photos=self.photos)


def _opened(path: Path, limit: int | None) -> FaceSet:
    faces = open_set(path)
    return faces if limit is None else faces.take(range(min(limit, len(faces))))


def _facts(prepared: Prepared) -> Mapping[str, Any]:
    facts = prepared.facts()
    kept = ("faces", "people", "licence", "digest", "size", "region", "detector", "alignment", "pixels")
    return {**{key: facts.get(key) for key in kept}, "failures_to_acquire": len(prepared.missed)}
