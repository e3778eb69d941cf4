"""Revelio's experiments on one face set: settings, who is who, blurs in the set's pixels, attackers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, GaussianBlur
from ficgan.errors import UsageError
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.blurs import scaled_blur
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.attacks.revelio import Revelio
from ficgan.lab.bench import Bench
from ficgan.lab.metrics.intervals import Bootstrap
from ficgan.lab.papers.revelio_published import BLURS, PROTOCOL
from ficgan.lab.papers.revelio_world import World, divide
from ficgan.lab.papers.transfer import Attack, attack_on
from ficgan.lab.papers.treatment import Treatment, treated
from ficgan.lab.readers import get_readers
from ficgan.lab.stored import Store
from ficgan.registry import parse_spec
from ficgan.yaml_settings import hint, override, read_tree

__all__ = ["ADAPTABLE", "OF_256", "PARTS", "Lab", "RevelioPaper", "attacker", "open_lab", "settings"]

Rows = NDArray[np.int64]
Told = Callable[[int, int, str], None]
PARTS = ("base", "retrieval", "fine-tuning", "kernel", "sweep", "defences", "ood")
"""Tables 1, 3 and 4 with one guess; Table 1 with many; Table 2; Figure 13; Figures 15 and 16; Tables 6 and 7; Figure 7
and Table 5."""
OF_256 = 256
ADAPTABLE = ("rotation", "noise", "jpeg", "box blur", "secret")
"""Defences that there are, as tables call them."""
MOST_LINEAR = 224
"""Side at which the auto-encoder works at most: its linear layer grows with the fourth power."""
NAMES = {"identity": "Blurred", "autoencoder": "Fantômas", Revelio.name: "Revelio"}
"""What the paper calls them."""


@dataclass(frozen=True)
class RevelioPaper:
    """What is run; the defaults are the paper's protocol.

    Args:
        data, layout, labels, identity: as of `open_set`.
        people: at most so many, those with the most photos.
        size: side S of the crops, pixels; blurs are scaled from 256 to it.
        aligned: the images are aligned squares already.
        judges: recognisers; dlib is the paper's for retrieval.
        attackers: LABEL=SPEC or SPEC, reversers; the one called Revelio is attacked with in all parts but the base.
        parts: of `PARTS`.
        probes, identities, outside, outsiders: as of `divide`.
        candidates: guesses at each face.
        sweep: photos on which other kernels are tried.
        estimator: photos that the kernel estimator learns from, chooses by and is tested on.
        estimator_network, estimator_weights: its network, and the file of a pretrained one; as of `KernelEstimator`.
        fine_tuned: at most so many photos of the closed world are restored by models fine-tuned for them.
        tune_steps, tune_rate: of the fine-tuning for one identity, which the paper leaves open; a rate of 0 is a tenth
            of the attacker's.
        adapted: defences that the attacker adapts to; "secret" is the randomised one.
        adapt_epochs: of the adaptation to a defence.
        control_epochs: of the attacker's training on permuted blocks, which it must undo; 0: no such control.
        detector: finds the faces.
        resamples, seed: of the bootstrap; the seed of the draws, too.
        pictures: rows of the picture strips; they show real people.
    """

    data: Path
    layout: str = "auto"
    labels: Path | None = None
    identity: str | None = None
    people: int | None = None
    size: int = OF_256
    aligned: bool = False
    judges: tuple[str, ...] = ("dlib",)
    attackers: tuple[str, ...] = ("autoencoder", "revelio")
    parts: tuple[str, ...] = PARTS
    probes: int = PROTOCOL["closed-world probes"]  # type: ignore[assignment]
    identities: int = PROTOCOL["closed-world people"]  # type: ignore[assignment]
    outside: int = PROTOCOL["out-of-distribution probes"]  # type: ignore[assignment]
    outsiders: int = PROTOCOL["out-of-distribution people"]  # type: ignore[assignment]
    candidates: int = PROTOCOL["candidates"]  # type: ignore[assignment]
    sweep: int = 50
    estimator: tuple[int, int, int] = (800, 100, 100)
    estimator_network: str = "windowed"
    estimator_weights: str = ""
    fine_tuned: int = PROTOCOL["closed-world probes"]  # type: ignore[assignment]
    tune_steps: int = 100
    tune_rate: float = 0.0
    adapted: tuple[str, ...] = ADAPTABLE
    adapt_epochs: float = 100
    control_epochs: int = 0
    detector: str = "auto"
    resamples: int = 1000
    seed: int = 0
    pictures: int = 4

    def __post_init__(self) -> None:
        for part in self.parts:
            if part not in PARTS:
                raise UsageError(f"there is no part {part!r} of this paper; there are {', '.join(PARTS)}")
        for name in self.adapted:
            if name not in ADAPTABLE:
                raise UsageError(f"there is no defence {name!r} to adapt to; there are {', '.join(ADAPTABLE)}")
        if self.candidates < 1 or self.size < 32:
            raise UsageError(f"{self.candidates} candidates at {self.size} px cannot be; give at least 1, and 32 px")
        labels = [label for label, _ in self.named]
        if len(set(labels)) < len(labels):
            raise UsageError("two attackers have one label; write LABEL=NAME:PARAMETER=VALUE,… to tell them apart")

    @property
    def named(self) -> list[tuple[str, str]]:
        """(label, specification) of each attacker, without the blurred image itself."""
        return [attacker(text, self.size) for text in self.attackers]

    @property
    def restorer(self) -> tuple[str, str]:
        """The attacker that the paper proposes: that called Revelio, else the last one.

        Raises:
            UsageError: there is no attacker.
        """
        if not self.attackers:
            raise UsageError("no attacker was named; give at least one, such as revelio")
        return next((one for one in self.named if one[0] == NAMES[Revelio.name]), self.named[-1])


@dataclass
class Lab:
    """What every part works with.

    Args:
        paper: settings.
        bench: closed world: the reference is what attackers learn from and what judges know.
        world: rows.
        out: folder.
        told: progress.
    """

    paper: RevelioPaper
    bench: Bench
    world: World
    out: Path
    told: Told | None = None

    @property
    def bootstrap(self) -> Bootstrap:
        """Over people."""
        return Bootstrap(max(1, self.paper.resamples), self.paper.seed)

    def blur(self, level: str) -> Treatment:
        """ "light" or "heavy", in the set's pixels."""
        return self.kernel(BLURS[level])

    def kernel(self, kernel: int) -> Treatment:
        """A blur that is to the face what this kernel is to one of 256 pixels."""
        return Treatment(f"K {kernel}", (scaled_blur(GaussianBlur(kernel=kernel), self.paper.size),))

    def attack(self, label: str, spec: str, how: Treatment) -> Attack:
        """An attacker that learns from the reference in a treatment."""
        return attack_on(self.bench, spec, how, self.world.reference, label=label, told=self.told)

    def restorer(self, how: Treatment) -> Attack:
        """Revelio, trained on a treatment."""
        return self.attack(*self.paper.restorer, how)

    def seen(self, how: Treatment, rows: Rows) -> Faces:
        """Rows as the attacker sees them."""
        return treated(self.bench, how, rows)

    def tell(self, done: int, total: int, what: str) -> None:
        """Tell how far a part is."""
        if self.told:
            self.told(done, total, what)


def open_lab(paper: RevelioPaper, out: Path, told: Told | None = None) -> Lab:
    """Faces made ready, divided, and judged.

    Args:
        paper: settings.
        out: folder; its store keeps crops, treated images, trained attackers and what judges read.
        told: called as told(done, total, what).

    Raises:
        UsageError: a judge or an attacker that is not there.
        InputError: the data cannot be read, or is too little.
    """
    from ficgan.faces import get_detector
    from ficgan.lab.sets import Quick, open_set, prepare

    for _, spec in paper.named:
        name, parameters = parse_spec(spec)
        REVERSERS.make(name, **parameters)
    readers = get_readers(paper.judges)
    faces = open_set(
        paper.data, layout=paper.layout, labels=paper.labels, identity=paper.identity, limit_people=paper.people
    )
    finder = None if paper.aligned else Quick(get_detector(paper.detector))
    if told:
        told(0, 1, f"preparing {faces.name}")
    prepared = prepare(faces, size=paper.size, detector=finder, cache=out / "store", aligned=paper.aligned)
    world = divide(
        prepared, probes=paper.probes, identities=paper.identities, outside=paper.outside,
        outsiders=paper.outsiders, seed=paper.seed,
    )  # fmt: skip
    bench = Bench(
        prepared, world.split(prepared), readers, None, Store(out / "store"), seed=paper.seed,
        resamples=paper.resamples,
    )  # fmt: skip
    return Lab(paper, bench, world, out, told)


def settings(preset: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Numbers of a packaged configuration and what is given in their place, as `RevelioPaper` takes them.

    Args:
        preset: one of `ficgan.configs.names("eval")` with a section `paper`.
        overrides: KEY=VALUE, values as in YAML.

    Raises:
        UsageError: no such configuration, or an unknown key.
    """
    from ficgan import configs

    trees = {name: read_tree(name, kind="eval") for name in configs.names("eval")}
    ours = {name: tree["paper"] for name, tree in trees.items() if "paper" in tree}
    if preset not in ours:
        raise UsageError(f"there is no configuration {preset!r} of this paper; there are {', '.join(ours)}")
    tree = override(ours[preset], overrides, example="sweep=20")
    known = [field.name for field in fields(RevelioPaper)]
    for key, value in tree.items():
        if key not in known:
            raise UsageError(f"this paper has no setting {key!r}; {hint(key, known)}")
        sample = getattr(RevelioPaper, key, None)
        if isinstance(sample, tuple):
            tree[key] = tuple(value) if isinstance(value, list) else (value,)
        elif isinstance(sample, (int, float)) and not isinstance(value, (int, float)):
            raise UsageError(f"the setting {key} is {value!r}; give a number")
    return tree


def attacker(text: str, size: int) -> tuple[str, str]:
    """The label and the specification of an attacker; one that trains a network works at the size of the crops.

    Args:
        text: LABEL=SPEC or SPEC.
        size: side of the crops, pixels.

    Raises:
        UsageError: no such reverser.
    """
    label, equals, spec = text.partition("=")
    if not equals or ":" in label:
        label, spec = "", text
    name, parameters = parse_spec(spec)
    label = label.strip() or (NAMES.get(name, spec) if not parameters or name in NAMES else spec)
    cls: Any = REVERSERS[name]
    if issubclass(cls, Learned) and "size" not in parameters:
        side = min(size, MOST_LINEAR) if name == "autoencoder" else size
        spec += f"{',' if parameters else ':'}size={side}"
    return label, spec
