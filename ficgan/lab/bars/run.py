"""Every row of the table for one model on given sets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import AverageFace, Faces
from ficgan.deidentify import Deidentifier, Ficgan, refuse_trainer
from ficgan.errors import InputError, UsageError
from ficgan.faces import RECOGNIZERS, recognizer_missing
from ficgan.lab.bars import appearance, beyond, draws, identity, likeness, naming
from ficgan.lab.bars.config import BarsConfig, Clip
from ficgan.lab.bars.lab import Eyes, Lab, Look, mean_of, who_is_who
from ficgan.lab.bars.lines import Control, Controls, Figures, Sheet
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.sets import Prepared, Quick, open_set, prepare
from ficgan.lab.shape import ShapeRecognizer
from ficgan.lab.shape_attack import several

__all__ = ["Report", "run_bars"]

Progress = Callable[[int, int, str], None]
Step = tuple[str, Callable[[], None]]
_SIDE = 128
"""Least side of aligned crops, px, as of `ficgan measure`."""
_PHOTO = 384
"""Side of crops cut from photos, px; the replaced square is half of it."""
_GUARDED = ("id-cosine", "tar", "naive")
"""Rows that there are with the policy on, too."""
_FEW = 64
"""Sources of swaps and of several draws, and outputs that are looked for in the training set."""


@dataclass(frozen=True)
class Report:
    """What was found.

    Args:
        sheet: lines, groups and what was left out.
        facts: model, judges, sets and settings, JSON-ready, without folders of this machine.
    """

    sheet: Sheet
    facts: dict[str, Any] = field(default_factory=dict)


def run_bars(config: BarsConfig, progress: Progress | None = None) -> Report:
    """Measure every row; what cannot be had is said in its place.

    Args:
        config: what to measure.
        progress: called as progress(done, total, what).

    Raises:
        UsageError: a value that cannot work, or a judge that trained the model.
        InputError: data or a model that cannot be read.
    """
    began, say = time.monotonic(), progress or (lambda done, total, what: None)
    bench = _Run(config)
    say(0, 1, "preparing faces")
    labs = bench.labs()
    steps = [step for lab, aligned in labs for step in _SetRun(bench, lab, aligned).steps()]
    steps += bench.clip_steps()
    for number, (what, do) in enumerate(steps):
        say(number, len(steps), what)
        do()
    say(len(steps), len(steps), "")
    facts = bench.facts([lab for lab, _ in labs])
    return Report(bench.sheet, {**facts, "seconds": round(time.monotonic() - began, 1)})


class _Run:
    """The model, the judges and what all sets share."""

    def __init__(self, config: BarsConfig) -> None:
        self.config, self.sheet = config, Sheet()
        self.deid = self._engine(config.psi, verify=False)
        self.psi = self.deid.face_model.auto_psi(1) if config.psi == "auto" else config.psi
        """ψ of all outputs but those of `draws.drawn`."""
        for name in config.judges:
            refuse_trainer(self.deid.header, name)
        last = self.deid.model.num_layers - 1
        self.layers = tuple(sorted(set(config.layers or (0, min(4, last), last))))
        for layer in self.layers:
            self.deid.face_model.check_layer(layer)
        self.main = tuple(layer for layer in self.layers if layer < last) or self.layers
        """Layers of the rows that take many outputs."""
        self.eyes = Eyes.find(config.judges, config.attributes, config.device)
        self.model = Ficgan(
            k=config.k, layer=self.main[0], psi=self.psi, seed=config.seed, device=config.device,
            checkpoint=str(config.checkpoint or ""), bank=str(config.bank or ""),
        )  # fmt: skip

        self.shapes = ShapeRecognizer(device=config.device)

    def _engine(self, psi: Any, **more: Any) -> Deidentifier:
        config = self.config
        return Deidentifier.from_pretrained(
            config.checkpoint, config.bank, k=config.k, layer=0, psi=psi, seed=config.seed,
            detector=config.detector, device=config.device, **more,
        )  # fmt: skip

    @cached_property
    def guarded(self) -> Deidentifier:
        """The same with the policy on."""
        return self._engine(self.psi, verify=True)

    @property
    def side(self) -> int:
        """Of aligned crops, px."""
        return max(_SIDE, self.deid.model.resolution)

    def labs(self) -> list[tuple[Lab, bool]]:
        """Every set, and whether it came aligned."""
        config = self.config
        out = [(self._lab(self._prepared(path)), True) for path in config.aligned]
        detector = Quick(self.deid.detector) if config.photos else None
        for path in config.photos:
            size = max(_PHOTO, 2 * self.side)
            photos = self._opened(path)
            out.append((self._lab(prepare(
                photos, size=size, context=2, detector=detector, alignment=self.deid.alignment
            )), False))  # fmt: skip
        self.first = out[0][0].inner.faces
        return out

    @cached_property
    def train(self) -> Faces | None:
        """Training faces; None where none were given."""
        if not self.config.train:
            return None
        parts = [self._prepared(path, limit=None).faces for path in self.config.train]
        names = tuple(f"{number}/{name}" for number, one in enumerate(parts) for name in one.names)
        landmarks = np.concatenate([one.landmarks for one in parts])
        people, after = [], 0
        for one in parts:  # numbers of one file say nothing in another
            people.append(after + np.unique(who_is_who(one), return_inverse=True)[1].reshape(-1))
            after = int(people[-1].max()) + 1
        return Faces(np.concatenate([one.images for one in parts]), names, landmarks, np.concatenate(people))

    @cached_property
    def lessons(self) -> naming.Lessons | None:
        """Shapes of the training people with two photos, from whom one learns to tell others apart."""
        if self.train is None or self.train.people is None:
            return None
        faces = self.train.take(np.flatnonzero(np.isin(self.train.people, several(self.train.people))))
        return self.shapes.read(faces.images, faces.landmarks), who_is_who(faces)

    @property
    def background(self) -> Faces:
        """Whose mean face the sticker is: training faces, else those of the first set."""
        return self.first if self.train is None else self.train

    @cached_property
    def held(self) -> NDArray[np.float32]:
        """Embeddings of the training faces by the first recogniser."""
        assert self.train is not None
        return self.eyes.readers[0].embed(self.train)

    def clip_steps(self) -> list[Step]:
        """One for each clip and layer."""
        out: list[Step] = []
        for clip in self.config.clips:
            out += [(f"{clip.name}, i = {layer}", partial(self._clip, clip, layer)) for layer in self.main]
        if not out:
            self.sheet.leave_out("", "stability", "no clip was given")
        return out

    def facts(self, labs: Sequence[Lab]) -> dict[str, Any]:
        """What was measured, with what, on what."""
        from ficgan import __version__

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
            "settings": {"k": config.k, "psi": self.psi, "layers": list(self.layers), "limit": config.limit,
                         "seed": config.seed, "resamples": config.resamples, "detector": self.deid.detector.name},
            "judges": {one.name: roles[one.recognizer.name == gate] for one in self.eyes.readers},
            "training_faces": None if self.train is None else len(self.train),
            "sticker": f"mean of {len(self.background)} faces, {'the first set' if self.train is None else 'training'}",
            "sets": {lab.name: _facts(lab) for lab in labs},
        }  # fmt: skip

    def _clip(self, clip: Clip, layer: int) -> None:
        figures, controls = beyond.steadiness(clip.frames, self.deid, layer, self.eyes, clip.rate)
        self.sheet.put(clip.name, f"i = {layer}", figures, None, controls)

    def _lab(self, prepared: Prepared) -> Lab:
        if len(prepared) < 2:
            raise InputError(f"{prepared.source['name']} gives {len(prepared)} faces to measure on; give at least 2")
        bootstrap = Bootstrap(self.config.resamples, self.config.seed)
        name, resolution = str(prepared.source["name"]), self.deid.model.resolution
        return Lab(name, prepared, self.eyes, bootstrap, self.deid.alignment, resolution, self.model)

    def _prepared(self, path: Path, **more: Any) -> Prepared:
        return prepare(self._opened(path, **more), size=self.side, aligned=True, alignment=self.deid.alignment)

    def _opened(self, path: Path, **more: Any) -> Any:
        limit = more.get("limit", self.config.limit)
        faces = open_set(path)
        return faces if limit is None else faces.take(range(min(limit, len(faces))))


class _SetRun:
    """One set's part of the table."""

    def __init__(self, bench: _Run, lab: Lab, aligned: bool) -> None:
        self.bench, self.lab, self.sheet = bench, lab, bench.sheet
        self.aligned = aligned
        self.controls: Controls = {}

    def steps(self) -> Iterator[Step]:
        """What is to be done, in order."""
        name = self.lab.name
        yield f"{name}: clear faces", self._clear
        yield f"{name}: sticker", self._sticker
        yield f"{name}: reconstruction", self._reconstruction
        for layer in self.bench.layers:
            yield f"{name}: i = {layer}", partial(self._outputs, layer)
        for layer in self.bench.main:
            at = f"{name}: i = {layer}"
            yield f"{at}, swaps", partial(self._try, "swap and exemplar", self._towards, layer)
            yield f"{at}, draws", partial(self._draws, layer)
            yield f"{at}, parrot", partial(self._try, "parrot", self._parrot, layer)
            yield f"{at}, policy", partial(self._try, "retried and masked", self._policy, layer)
            if self.aligned:
                yield f"{at}, training faces", partial(self._nearest, layer)

    @cached_property
    def sticker(self) -> AverageFace:
        """One mean face for everybody."""
        return AverageFace().fit(self.bench.background)

    @cached_property
    def known(self) -> dict[str, identity.Strangers]:
        """What each recogniser says of strangers."""
        return {reader.name: identity.strangers(self.lab, reader) for reader in self.lab.eyes.readers}

    @cached_property
    def cut(self) -> dict[str, identity.Strangers]:
        """The same of the replaced squares alone, which are read with their edge pixels repeated."""
        inner = self.lab.inner
        if inner is self.lab:
            return self.known
        return {reader.name: identity.strangers(inner, reader) for reader in inner.eyes.readers}

    @cached_property
    def real(self) -> appearance.RealFaces:
        """What outputs' distance to real faces is taken from."""
        # Photos of another kind are as far from the training faces as from outputs: that would flatter these.
        return appearance.RealFaces(self.lab, self.bench.train if self.aligned else None)

    @cached_property
    def beside(self) -> Figures:
        """The sticker's figures."""
        return self._figures(self.lab.look(self.lab.composed(self.sticker)))

    @cached_property
    def few(self) -> Lab:
        """Some faces of different people."""
        return self.lab.one_each(_FEW)

    @cached_property
    def targets(self) -> draws.Targets:
        """Of swaps."""
        return draws.targets(self.few)

    @cached_property
    def untargeted(self) -> Figures:
        """How like a target the sticker is, which knows none."""
        return draws.towards(self.few, self.sticker, "swap", self.targets)

    def _sticker(self) -> None:
        assert self.beside

    def _clear(self) -> None:
        self.controls = {
            **identity.identity_controls(self.lab, self.known),
            **likeness.likeness_controls(self.lab),
            **appearance.appearance_controls(self.lab, self.real),
            **{key: Control("clear", figure) for key, figure in self._named(self.lab.clear).items()},
        }

    def _figures(self, look: Look) -> Figures:
        return {
            **identity.identity(self.lab, look.embeddings, self.known),
            **self._named(look),
            **likeness.likeness(self.lab, look),
            **appearance.appearance(self.lab, look, self.real),
        }

    def _named(self, look: Look) -> Figures:
        out: Figures = {}
        if self.linked:
            out |= naming.naive(self.lab, look.embeddings)
        if self.by_shape is not None:
            out |= self.by_shape.figures(look.faces)
        return out

    @cached_property
    def linked(self) -> bool:
        """Whether anybody could be named: some people have two images."""
        try:
            self.lab.enrolment()
        except InputError as error:
            self.sheet.leave_out(self.lab.name, "naive", str(error))
            return False
        return True

    @cached_property
    def by_shape(self) -> naming.ByShape | None:
        """Who names people by their shape; None where nobody can learn to."""
        try:
            return naming.ByShape(self.lab, self.bench.shapes, self.bench.lessons, self.bench.config.seed)
        except (InputError, UsageError) as error:
            self.sheet.leave_out(self.lab.name, "shape", str(error))
            return None

    def _reconstruction(self) -> None:
        inner = self.lab.inner
        sticker = appearance.fidelity(inner, inner.look(inner.composed(self.sticker)))
        figures = appearance.fidelity(inner, appearance.rebuilt(inner, self.bench.deid))
        self._put("reconstruction", figures, sticker, identity.strangers_beside(self.cut, "rec-cosine"))

    def _outputs(self, layer: int) -> None:
        look = self.lab.look(self.lab.composed(replace(self.bench.model, layer=layer)))
        self._put(f"i = {layer}", self._figures(look), self.beside, self.controls)
        self._put(f"i = {layer}", self._bare(layer), None, identity.strangers_beside(self.cut, "id-cosine-bare"))
        self.sheet.groups += beyond.by_group(self.lab, f"i = {layer}", look)

    def _bare(self, layer: int) -> Figures:
        """Row id-cosine-bare: the network's crops as they are, as the paper has them."""
        inner, row = self.lab.inner, "id-cosine-bare"
        made = self.bench.deid.aligned(inner.faces.images, keys=inner.faces.names, layer=layer)[0]
        return {
            (row, reader.name): mean_of(inner, row, identity.cosines(
                inner.clear.embeddings[reader.name], inner.embed(reader, made)
            ))
            for reader in inner.eyes.readers
        }  # fmt: skip

    def _towards(self, layer: int) -> None:
        controls = identity.strangers_beside(self.known, "swap", "exemplar")
        for row, alpha in (("swap", 1.0), ("exemplar", 0.5)):
            model = replace(self.bench.model, layer=layer, alpha=alpha)
            figures = draws.towards(self.few, model, row, self.targets)
            beside = {(row, name): figure for (_, name), figure in self.untargeted.items()}
            self._put(f"i = {layer}", figures, beside, controls)

    def _draws(self, layer: int) -> None:
        figures = draws.pairwise(self.few, draws.drawn(self.bench.model, layer))
        sticker = draws.pairwise(self.few.take(range(min(8, len(self.few.faces)))), lambda seed: self.sticker, 2)
        self._put(f"i = {layer}", figures, sticker, identity.strangers_beside(self.known, "draws"))

    def _parrot(self, layer: int) -> None:
        figures = draws.parrot(self.lab, draws.drawn(self.bench.model, layer)(self.bench.config.seed))
        self._put(f"i = {layer}", figures, self._parroted, self._surroundings)

    @cached_property
    def _parroted(self) -> Figures:
        return draws.parrot(self.lab, self.sticker)

    @cached_property
    def _surroundings(self) -> Mapping[tuple[str, str], Any]:
        return draws.surroundings(self.lab)

    def _policy(self, layer: int) -> None:
        shares, published = draws.policy(self.lab, self.bench.guarded, layer)
        self._put(f"i = {layer}", shares)
        seen = self.lab.recognised(published)
        figures = identity.identity(self.lab, seen, self.known) | (naming.naive(self.lab, seen) if self.linked else {})
        kept = {key: figure for key, figure in figures.items() if key[0] in _GUARDED}
        self._put(f"i = {layer}, policy on", kept, None, self.controls)

    def _nearest(self, layer: int) -> None:
        if self.bench.train is None:
            if layer == self.bench.main[0]:
                self.sheet.leave_out(self.lab.name, "memorised", "no training faces were given")
            return
        outputs = draws.drawn(self.bench.model, layer)(self.bench.config.seed)
        reader = self.lab.eyes.readers[0]
        found = beyond.nearest(self.few, self.bench.train, reader, outputs, self.sticker, self.bench.held)
        self._put(f"i = {layer}", *found)

    def _try(self, what: str, do: Callable[[int], None], layer: int) -> None:
        """What a set may not allow is left out, and said once."""
        try:
            do(layer)
        except (InputError, UsageError) as error:
            if layer == self.bench.main[0]:
                self.sheet.leave_out(self.lab.name, what, str(error))

    def _put(self, setting: str, figures: Figures, sticker: Any = None, controls: Any = None) -> None:
        self.sheet.put(self.lab.name, setting, figures, sticker, controls, photos=not self.aligned)


def _facts(lab: Lab) -> dict[str, Any]:
    told = lab.prepared.facts()
    kept = ("faces", "people", "licence", "digest", "size", "region", "detector", "alignment", "pixels")
    out = {key: told.get(key) for key in kept}
    return {**out, "failures_to_acquire": len(lab.prepared.missed)}
