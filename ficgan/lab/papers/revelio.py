"""Revelio (Zhai et al.): restoring blurred faces and naming them. Settings, who is who, and running the parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Faces, GaussianBlur, generator
from ficgan.errors import InputError, UsageError
from ficgan.lab.attackers import TrainedAttacker
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.deconvolution import scaled_blur
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.attacks.revelio import Revelio
from ficgan.lab.bench import Bench
from ficgan.lab.papers import REVELIO, FaceTreatment, Rows, attack_on, treated
from ficgan.lab.readers import get_readers
from ficgan.lab.results import Trial
from ficgan.lab.run import Progress, Run
from ficgan.lab.sets import Prepared
from ficgan.lab.sets.faceset import Split, written
from ficgan.registry import parse_spec
from ficgan.yaml_settings import hint, override, read_tree

# Part → the settings that it alone depends on.
PARTS: dict[str, tuple[str, ...]] = {
    "base": ("control_epochs",),  # Tables 1, 3 and 4 with one guess
    "retrieval": ("candidates",),  # Table 1 with many
    "fine-tuning": ("candidates", "fine_tuned", "tune_steps", "tune_rate"),  # Table 2
    "kernel": ("estimator",),  # Figure 13
    "sweep": ("sweep",),  # Figures 15 and 16
    "defences": ("adapted", "adapt_epochs"),  # Tables 6 and 7
    "ood": ("candidates",),  # Figure 7 and Table 5
}
BLURS: dict[str, int] = REVELIO.blurs
ADAPTABLE = ("rotation", "noise", "jpeg", "box blur", "secret")  # Defences that there are, as tables call them
MOST_LINEAR = 224  # Side at which the auto-encoder works at most: its linear layer grows with the fourth power
NAMES = {"identity": "Blurred", "autoencoder": "Fantômas", Revelio.name: "Revelio"}  # What the paper calls them


@dataclass(frozen=True)
class RevelioPaper:
    """What is run; the defaults are the paper's protocol.

    Args:
        attackers: LABEL=SPEC or SPEC; the one called Revelio attacks in all parts, the others in the base alone.
        probes, identities, outside, outsiders: as of `divide`.
        estimator: photos that the kernel estimator learns from, chooses by and is tested on.
        fine_tuned: at most so many photos of the closed world are restored by models fine-tuned for them.
        tune_steps, tune_rate: of the fine-tuning for one identity; a rate of 0 is a tenth of the attacker's.
        adapted, adapt_epochs: defences that the attacker adapts to ("secret" is the randomised one), and how long.
        control_epochs: of the attacker's training on permuted blocks, the positive control; 0: none.
        pictures: rows of the picture strips; they show real people.
    """

    data: Path
    layout: str = "auto"
    labels: Path | None = None
    identity: str | None = None
    people: int | None = None
    size: int = REVELIO.size
    aligned: bool = False
    judges: tuple[str, ...] = ("dlib",)
    attackers: tuple[str, ...] = ("autoencoder", "revelio")
    parts: tuple[str, ...] = tuple(PARTS)
    probes: int = REVELIO.closed["images"]
    identities: int = REVELIO.closed["people"]
    outside: int = REVELIO.outside["images"]
    outsiders: int = REVELIO.outside["people"]
    candidates: int = REVELIO.candidates
    sweep: int = REVELIO.sweep["images"]
    estimator: tuple[int, int, int] = REVELIO.kernel_images
    fine_tuned: int = REVELIO.closed["images"]
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
        for what, some, known in (("part", self.parts, PARTS), ("defence", self.adapted, ADAPTABLE)):
            if unknown := [name for name in some if name not in known]:
                raise UsageError(f"there is no {what} {unknown[0]!r} in this paper; {hint(unknown[0], list(known))}")
        if self.candidates < 1 or self.size < 32 or not self.attackers:
            raise UsageError("give at least 1 candidate, 32 px, and one attacker, such as revelio")
        if len(dict(self.named)) < len(self.attackers):
            raise UsageError("two attackers have one label; write LABEL=NAME:PARAMETER=VALUE,… to tell them apart")

    @property
    def named(self) -> list[tuple[str, str]]:
        """(label, specification) of each attacker, without the blurred image itself."""
        return [attacker(text, self.size) for text in self.attackers]

    @property
    def restorer(self) -> tuple[str, str]:
        """The attacker that the paper proposes: that called Revelio, else the last one."""
        return next((one for one in self.named if one[0] == NAMES[Revelio.name]), self.named[-1])


def attacker(text: str, size: int) -> tuple[str, str]:
    """Label and specification of LABEL=SPEC or SPEC; one that trains a network works at the size of the crops."""
    label, equals, spec = text.partition("=")
    if not equals or ":" in label:
        label, spec = "", text
    name, parameters = parse_spec(spec)
    label = label.strip() or NAMES.get(name, spec)
    cls: Any = REVERSERS[name]
    if issubclass(cls, Learned) and "size" not in parameters:
        side = min(size, MOST_LINEAR) if name == "autoencoder" else size
        spec += f"{',' if parameters else ':'}size={side}"
    return label, spec


def settings(preset: str, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Numbers of a packaged configuration with a section `paper`, and KEY=VALUE overrides: fields of `RevelioPaper`."""
    from ficgan import configs

    trees = {name: read_tree(name, kind="eval") for name in configs.names("eval")}
    ours = {name: tree["paper"] for name, tree in trees.items() if "paper" in tree}
    if preset not in ours:
        raise UsageError(f"there is no configuration {preset!r} of this paper; there are {', '.join(ours)}")
    tree = override(ours[preset], overrides, example="sweep=20")
    known = list(RevelioPaper.__dataclass_fields__)
    for key, value in tree.items():
        if key not in known:
            raise UsageError(f"this paper has no setting {key!r}; {hint(key, known)}")
        sample = getattr(RevelioPaper, key, None)
        if isinstance(sample, tuple):
            tree[key] = tuple(value) if isinstance(value, list) else (value,)
        elif isinstance(sample, (int, float)) and not isinstance(value, (int, float)):
            raise UsageError(f"the setting {key} is {value!r}; give a number")
    return tree


@dataclass(frozen=True)
class RevelioWorld:
    """Rows of the attacker's `reference`, of other photos of its people (`closed`), and of others (`outside`)."""

    reference: Rows
    closed: Rows
    outside: Rows

    def split(self, faces: Faces) -> Split:
        """As a bench takes it: reference is attacker and gallery at once, which is the closed world's grant."""
        assert faces.people is not None
        made = Split(np.zeros(0, np.int64), self.reference, self.reference, self.closed, self.outside)
        return written(made, faces.people, {"world": "Revelio, section 5.1"}, faces.names)

    def facts(self, people: NDArray[np.int64]) -> dict[str, Any]:
        parts = {"reference": self.reference, "closed": self.closed, "outside": self.outside}
        return {name: {"images": len(rows), "people": len(np.unique(people[rows]))} for name, rows in parts.items()}


def divide(
    prepared: Prepared, *, probes: int = 97, identities: int = 50, outside: int = 97, outsiders: int = 91, seed: int = 0
) -> RevelioWorld:
    """Draw the people and photos that are attacked; all others are the attacker's reference (Revelio, §5.1 and §5.5).

    At most a quarter of the people are outside; of a person of the closed world at most half of the photos are
    attacked, and no equal picture stays in the reference.
    """
    people = prepared.faces.people
    assert people is not None
    who, counts = np.unique(people[people >= 0], return_counts=True)
    several = who[counts >= 2]
    if len(who) < 4 or not len(several):
        raise InputError(
            f"{len(who)} people, {len(several)} of them with two photos, make no closed world and no open one; give a "
            "set of at least 4 people, some with several photos"
        )
    rng = generator(seed, "revelio")
    strangers = rng.permutation(who)[: max(1, min(outsiders, len(who) // 4))]
    known = rng.permutation(several[~np.isin(several, strangers)])[:identities]
    if not len(known):
        raise InputError("nobody with two photos is left for the closed world; give a larger set")
    closed = _rounds(people, known, probes, rng, keep_half=True)
    away = _rounds(people, strangers, outside, rng, keep_half=False)
    reference = np.flatnonzero((people >= 0) & ~np.isin(people, strangers))
    digests, attacked = np.array(prepared.digests()), np.concatenate([closed, away])
    reference = reference[~np.isin(digests[reference], digests[attacked])]  # equal pixel for pixel
    closed = closed[np.isin(people[closed], people[reference])]
    if len(reference) < 2 or not len(closed):
        raise InputError("every photo of the people of the closed world is in the set twice; give another set")
    return RevelioWorld(reference, closed, away)


def _rounds(people: NDArray[np.int64], of: Rows, total: int, rng: np.random.Generator, *, keep_half: bool) -> Rows:
    stacks = [list(rng.permutation(np.flatnonzero(people == person))) for person in of]
    if keep_half:
        stacks = [stack[: max(1, len(stack) // 2)] for stack in stacks]
    drawn: list[int] = []
    while len(drawn) < total and any(stacks):
        for stack in stacks:
            if stack and len(drawn) < total:
                drawn.append(int(stack.pop()))
    return np.array(sorted(drawn), np.int64)


@dataclass
class RevelioStudy:
    """What every part works with. The bench's attacker and gallery are the reference: the closed world."""

    paper: RevelioPaper
    bench: Bench
    world: RevelioWorld
    run: Run

    def say(self, text: str) -> None:
        self.run.say(text)

    def blur(self, level: str) -> FaceTreatment:
        """ "light" or "heavy", in the set's pixels."""
        return self.kernel(BLURS[level])

    def kernel(self, kernel: int) -> FaceTreatment:
        """A blur that is to the face what this kernel is to one of 256 pixels."""
        return FaceTreatment(f"K {kernel}", scaled_blur(GaussianBlur(kernel=kernel), self.paper.size))

    def attack(self, label: str, spec: str, how: FaceTreatment) -> TrainedAttacker:
        say = lambda done, total, text: self.say(text)  # noqa: E731
        return attack_on(self.bench, spec, how, self.world.reference, label=label, progress=say)

    def restorer(self, how: FaceTreatment) -> TrainedAttacker:
        return self.attack(*self.paper.restorer, how)

    def seen(self, how: FaceTreatment, rows: Rows) -> Faces:
        """Rows as the attacker sees them."""
        return treated(self.bench, how, rows)

    def clear(self, rows: Rows) -> Faces:
        return self.bench.prepared.faces.take(rows)


def open_study(paper: RevelioPaper, out: Path, progress: Progress | None = None) -> RevelioStudy:
    """Faces made ready, divided, and judged; crops, treated images and trained attackers are kept in `out/store`."""
    from ficgan.faces import get_detector
    from ficgan.lab.sets import Quick, open_set, prepare

    for _, spec in paper.named:
        name, parameters = parse_spec(spec)
        REVERSERS.make(name, **parameters)
    readers, run = get_readers(paper.judges), Run(out, progress=progress, total=len(PARTS))
    faces = open_set(
        paper.data, layout=paper.layout, labels=paper.labels, identity=paper.identity, limit_people=paper.people
    )
    finder = None if paper.aligned else Quick(get_detector(paper.detector))
    run.say(f"preparing {faces.name}")
    prepared = prepare(faces, size=paper.size, detector=finder, cache=out / "store", aligned=paper.aligned)
    drawn = {name: getattr(paper, name) for name in ("probes", "identities", "outside", "outsiders", "seed")}
    world = divide(prepared, **drawn)
    split = world.split(prepared.faces)
    bench = Bench(prepared, split, readers, None, run.store, seed=paper.seed, resamples=paper.resamples)
    return RevelioStudy(paper, bench, world, run)


@dataclass
class PartOutcome:
    """What a part found; where something failed that may go well another time it is not `whole`, and not kept."""

    trials: list[Trial] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    whole: bool = True
