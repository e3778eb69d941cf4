"""Revelio (Zhai et al.): restoring blurred faces and naming them. Settings, who is who, and the parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ficgan.anonymizers import Anonymizer, Defended, Faces, GaussianBlur, generator
from ficgan.anonymizers.basic import scaled_kernel
from ficgan.config import check, override, read_tree
from ficgan.errors import FicganError, InputError, Progress, UsageError
from ficgan.lab.attackers import Read, TrainedAttacker, TunedAttacker, Turn, unturned
from ficgan.lab.attacks import REVERSERS, reverser_of
from ficgan.lab.attacks.deconvolution import blurred, equivalent_kernel, scaled_blur, transfers
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.attacks.revelio import Revelio, choose_threshold, ood_curve, retrieve
from ficgan.lab.bench import Bench, content, known, prepared_set
from ficgan.lab.matrix_config import SetConfig
from ficgan.lab.metrics import Sample
from ficgan.lab.metrics.pictures import check_pretrained
from ficgan.lab.metrics.privacy import Scores
from ficgan.lab.papers import REVELIO, FacesSettings, attack_on, distance, identified, read_trials, transfer, treated
from ficgan.lab.readers import RETRAINED, Embeddings, Reader, get_readers, retrain_head
from ficgan.lab.results import Figure, Trial
from ficgan.lab.run import Run
from ficgan.lab.sets import Prepared, Rows, Split, written
from ficgan.registry import parse_spec

Part = Literal["base", "retrieval", "fine-tuning", "kernel", "sweep", "defences", "ood"]
BLURS: dict[str, int] = REVELIO.blurs
# Defences that an attacker may adapt to, as tables call them; "secret" is the randomised one of the paper's section 6.
Adaptable = Literal["rotation", "noise", "jpeg", "box blur", "secret"]
MOST_LINEAR = 224  # Side at which the auto-encoder works at most: its linear layer grows with the fourth power
NAMES = {"autoencoder": "Fantômas", Revelio.name: "Revelio"}  # What the paper calls them
BLURRED = "Blurred"  # The image itself, to which nothing is done


class RevelioPaper(FacesSettings):
    """What is run; the defaults are the paper's protocol."""

    identity: str | None = None
    people: int | None = Field(None, ge=2)
    # LABEL=SPEC or SPEC; the one called Revelio attacks in all parts, the others in the base alone
    attackers: tuple[str, ...] = Field(("autoencoder", "revelio"), min_length=1)
    parts: tuple[Part, ...] = get_args(Part)
    # probes, identities, outside, outsiders: as of `divide`
    probes: int = REVELIO.closed["images"]
    identities: int = REVELIO.closed["people"]
    outside: int = REVELIO.outside["images"]
    outsiders: int = REVELIO.outside["people"]
    candidates: int = Field(REVELIO.candidates, ge=1)
    sweep: int = REVELIO.sweep["images"]
    # Photos that the kernel estimator learns from, chooses by and is tested on
    estimator: tuple[int, int, int] = tuple(REVELIO.kernel_images)
    # Torchvision's EfficientNetV2 with ImageNet's weights (§4.2), from scratch, or a perceptron on spectra
    estimator_network: Literal["efficientnet_v2_l", "efficientnet_v2_s", "perceptron"] = "efficientnet_v2_l"
    estimator_pretrained: bool = True
    # Epochs for which the parrot's network is trained on with blurred faces; 0: its embeddings are re-weighted alone
    parrot_epochs: int = Field(10, ge=0)
    # fine_tuned, tune_steps: photos restored by models fine-tuned for one identity, and for how many steps
    fine_tuned: int = REVELIO.closed["images"]
    tune_steps: int = 100
    # adapted, adapt_epochs: defences that the attacker adapts to, and how long
    adapted: tuple[Adaptable, ...] = get_args(Adaptable)
    adapt_epochs: float = 100
    pictures: int = 4  # Rows of the picture strips; they show real people

    @classmethod
    def of(cls, preset: str, overrides: Sequence[str] = (), **given: Any) -> RevelioPaper:
        """The section `paper` of a packaged configuration, KEY=VALUE overrides, and `given` on top."""
        tree = read_tree(preset, kind="eval").get("paper")
        if tree is None:
            raise UsageError(f"the configuration {preset} is of another paper; give revelio or revelio64")
        return check(cls, {**override(tree, overrides, example="sweep=20"), **given}, where=f"paper {preset}")

    @property
    def named(self) -> list[tuple[str, str]]:
        """(label, specification) of each attacker, without the blurred image itself."""
        return [attacker(text, self.size) for text in self.attackers]

    @property
    def restorer(self) -> tuple[str, str]:
        """The attacker that the paper proposes: that called Revelio, else the last one."""
        return next((pair for pair in self.named if pair[0] == NAMES[Revelio.name]), self.named[-1])


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


class RevelioWorld(NamedTuple):
    """Rows of the attacker's `reference`, of other photos of its people (`closed`), and of others (`outside`)."""

    reference: Rows
    closed: Rows
    outside: Rows


def divide(
    prepared: Prepared, *, probes: int = 97, identities: int = 50, outside: int = 97, outsiders: int = 91, seed: int = 0
) -> RevelioWorld:
    """Draw the people and photos that are attacked; all others are the attacker's reference (Revelio, §5.1 and §5.5).

    At most a quarter of the people are outside; of a person of the closed world at most half of the photos are
    attacked, and no equal picture stays in the reference.
    """
    people = known(prepared.faces)
    who, counts = np.unique(people[people >= 0], return_counts=True)
    several = who[counts >= 2]
    if len(who) < 4 or not len(several):
        raise InputError(f"{len(who)} people are too few; give at least 4, some of them with several photos")
    rng = generator(seed, "revelio")
    strangers = rng.permutation(who)[: max(1, min(outsiders, len(who) // 4))]
    acquainted = rng.permutation(several[~np.isin(several, strangers)])[:identities]
    closed = _rounds(people, acquainted, probes, rng, keep_half=True)
    away = _rounds(people, strangers, outside, rng, keep_half=False)
    reference = np.flatnonzero((people >= 0) & ~np.isin(people, strangers))
    digests, attacked = np.array(prepared.digests()), np.concatenate([closed, away])
    reference = reference[~np.isin(digests[reference], digests[attacked])]  # equal pixel for pixel
    closed = closed[np.isin(people[closed], people[reference])]
    if len(reference) < 2 or not len(closed):
        raise InputError("nobody with two different photos is left for the closed world; give a larger set")
    return RevelioWorld(reference, closed, away)


def _rounds(people: NDArray[np.int64], of: Rows, total: int, rng: np.random.Generator, *, keep_half: bool) -> Rows:
    stacks = [list(rng.permutation(np.flatnonzero(people == person))) for person in of]
    if keep_half:
        stacks = [stack[: max(1, len(stack) // 2)] for stack in stacks]
    rounds = zip_longest(*(reversed(stack) for stack in stacks))
    drawn = [row for some in rounds for row in some if row is not None][:total]
    return np.array(sorted(drawn), np.int64)


@dataclass
class RevelioStudy:
    """What every part works with; attacker and gallery of the bench are the reference."""

    paper: RevelioPaper
    bench: Bench
    world: RevelioWorld
    run: Run

    def kernel(self, kernel: int) -> GaussianBlur:
        """A blur that is to the face what this kernel is to one of 256 pixels."""
        return scaled_blur(GaussianBlur(kernel=kernel), self.paper.size)

    def blur(self, level: str) -> GaussianBlur:
        """ "light" or "heavy", in the set's pixels."""
        return self.kernel(BLURS[level])

    def attack(self, label: str, spec: str, how: Anonymizer) -> TrainedAttacker:
        return attack_on(self.bench, spec, how, self.world.reference, label=label, say=self.run.say)

    def restorer(self, how: Anonymizer) -> TrainedAttacker:
        return self.attack(*self.paper.restorer, how)

    def reads(self, attack: TrainedAttacker, seen: Faces, rows: Rows, turn: Turn = unturned) -> dict[str, Read]:
        """What each judge reads in all guesses at the images at `rows`, and in the reference."""
        return attack.reads(seen, rows, self.world.reference, self.paper.candidates, turn)

    def seen(self, how: Anonymizer, rows: Rows) -> Faces:
        """Rows as the attacker sees them."""
        return treated(self.bench, how, rows)

    def judged(self, guesses: Faces, rows: Rows, method: str, attacker: str, scenario: str) -> list[Trial]:
        return read_trials(self.bench, guesses, rows, method, attacker, scenario)


def open_study(paper: RevelioPaper, out: Path, progress: Progress | None = None) -> RevelioStudy:
    """Faces made ready, divided, and judged; crops, treated images and trained attackers are kept in `out/store`."""
    for _, spec in paper.named:
        reverser_of(spec)
    if "kernel" in paper.parts and paper.estimator_pretrained and paper.estimator_network != "perceptron":
        check_pretrained(paper.estimator_network)
    readers, run = get_readers(paper.judges), Run(out, progress=progress, total=len(get_args(Part)))
    source = SetConfig(
        name=paper.data.absolute().stem,
        path=str(paper.data),
        labels=paper.labels and str(paper.labels),
        limit_people=paper.people,
        **{key: getattr(paper, key) for key in ("layout", "identity", "size", "aligned")},
    )
    run.say(f"preparing {source.name}")
    prepared = prepared_set(source, paper.detector, out / "store", run.say)
    drawn = {name: getattr(paper, name) for name in ("probes", "identities", "outside", "outsiders", "seed")}
    world = divide(prepared, **drawn)
    # The reference is attacker and gallery at once, which is the closed world's grant.
    split = Split(np.zeros(0, np.int64), world.reference, world.reference, world.closed, world.outside)
    split = written(split, known(prepared.faces), {"world": "Revelio, section 5.1"}, prepared.faces.names)
    bench = Bench(prepared, split, readers, None, run.store, seed=paper.seed, resamples=paper.resamples)
    return RevelioStudy(paper, bench, world, run)


# -- the parts ---------------------------------------------------------------------------------------------------------

# Scenarios of the trials.
BASE, VOTED, FINE = "closed world, one guess", "closed world, many guesses", "closed world, fine-tuned"
ESTIMATED, OPEN = "closed world, kernel estimated", "open world"
SWEPT, TRANSFERRED = "closed world, other kernels", "closed world, other rules and shapes"
DEFENDED, ADAPTED = "closed world, defences", "closed world, adaptive attack"
# Attackers of the trials.
PARROT, UNKNOWN_KERNEL, BARE, CHANCE = "Parrot Recognition", "Kernel estimated, not given", "not restored", "Chance"
STRANGERS, AT_PAPER = "strangers detected", "strangers detected at the paper's distance"
BOUNDS = ("clear", "blurred")  # Figure 15 lies between these
CONTROLS = ("Clear", "Mean face")  # The clear face, and the same face for everybody
APART = ("Same person, another photo", "Strangers")  # Another photo as a guess: the scale of a judge's IDD
# The paper's, with its settings, and the randomised one that its section 6 proposes: name in a table → of `DEFENCES`.
DEFENCES = {"none": "", "rotation": "rotation", "noise": "noise", "jpeg": "jpeg", "box blur": "box", "secret": "random"}
# Random keys of the defences: the publisher's is unknown to the attacker.
PUBLISHER, ATTACKER = "the publisher's", "the attacker's"
_SLOWER = 0.1  # Rate of a fine-tuning, as a share of the training's


Facts = dict[str, Any]  # What a part found besides its trials; it writes them here


def base(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Tables 1, 3 and 4: the blurred image itself, parrots, every attacker, and controls; light and heavy blur."""
    rows, trainings = study.world.closed, facts.setdefault("training", {})
    for level, width in BLURS.items():
        how = study.blur(level)
        study.run.say(f"{level} blur: the judges read the reference and the blurred faces")
        yield from study.judged(study.seen(how, rows), rows, level, BLURRED, BASE)
        yield from _controls(study, level)
        for reader in study.bench.readers:
            yield from _parrots(study, how, level, reader)
        for label, spec in study.paper.named:
            study.run.say(f"{label} against {level} blur")
            attack = study.attack(label, spec, how)
            yield from study.judged(attack.restored(study.seen(how, rows), rows), rows, level, label, BASE)
            trainings[f"{label}, K {width}"] = attack.training


def _controls(study: RevelioStudy, level: str) -> Iterator[Trial]:
    bench, world, clear = study.bench, study.world, study.bench.clear(study.world.closed)
    enrolled, people = bench.people[world.reference], bench.people[world.closed]
    share = float(np.mean(enrolled[:, None] == people))
    chance = Figure("chance", share, n=len(people), unit="images", note="any photo of the reference")
    blocks = np.array_split(world.reference, -(-len(world.reference) // 256))  # all at once may be gigabytes
    mean = sum(bench.clear(rows).images.sum(0, dtype=np.float64) for rows in blocks) / len(world.reference)
    pictures = (clear.images, np.broadcast_to(np.rint(mean).astype(np.uint8), clear.images.shape).copy())
    for name, kind, images in zip(CONTROLS, ("ceiling", "negative"), pictures, strict=True):
        for trial in study.judged(clear.with_images(images), world.closed, level, name, BASE):
            yield replace(trial, control=kind, figures=(*trial.figures, chance))
    rng = generator(study.paper.seed, "apart")
    same = [rng.choice(world.reference[enrolled == person]) for person in people]
    other = [rng.choice(world.reference[enrolled != person]) for person in people]
    for reader in bench.readers:
        ira = replace(chance, metric="IRA")
        yield Trial(bench.name, level, BASE, reader.name, CHANCE, (ira,), control="negative")
        for name, photos in zip(APART, (same, other), strict=True):
            idd = distance(bench, reader, bench.clear(np.array(photos, np.int64)), world.closed)
            yield Trial(bench.name, level, BASE, reader.name, name, (idd,), control="codes")


def _parrots(study: RevelioStudy, how: Anonymizer, level: str, reader: Reader) -> Iterator[Trial]:
    """The judge after learning blurred faces: its network trained on, where it is one, and a linear head."""
    bench, epochs, seed = study.bench, study.paper.parrot_epochs, study.paper.seed
    reference, probe = (study.seen(how, rows) for rows in (study.world.reference, study.world.closed))

    def trial(name: str, both: Sequence[Embeddings], metric: Any, note: str) -> Trial:
        scores = Scores.compare(both[1], both[0], known(probe), known(reference), metric=metric)
        ira = identified(scores, f"blurred faces enrolled{note}", bench.bootstrap)
        return Trial(bench.name, level, BASE, reader.name, name, (ira,))

    head, codes = PARROT, [bench.embed(reader, faces) for faces in (reference, probe)]
    if epochs and (path := getattr(reader.recognizer, "path", None)):
        from ficgan.lab.attacks.networks import retrained

        learn = partial(retrained, path, reference, probe, epochs=epochs, seed=seed, say=study.run.say)
        trained = bench.store.kept(["parrot", reader.digest, content(reference), content(probe), epochs, seed], learn)
        yield trial(PARROT, np.split(trained, [len(reference)]), "cosine", ". Its network trained on")
        head = f"{PARROT}, linear head"
    try:
        change = retrain_head(codes[0], known(reference))
    except FicganError as error:
        yield trial(head, codes, reader.metric, f", the judge as it is: {error}")
    else:
        yield trial(head, [change(each) for each in codes], "cosine", f". {RETRAINED}")


def retrieval(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Table 1, the attack as the paper has it: n guesses at each face of the closed world."""
    rows = study.world.closed
    for level in BLURS:
        how = study.blur(level)
        for judge, read in study.reads(study.restorer(how), study.seen(how, rows), rows).items():
            yield Trial(study.bench.name, level, VOTED, judge, study.paper.restorer[0], _vote(study, read))


def _vote(study: RevelioStudy, read: Read) -> tuple[Figure, ...]:
    note, sample = f"majority of {study.paper.candidates} guesses", Sample(read.people, study.bench.bootstrap)
    found = (("IRA", read.names(), note), ("IRA, one guess", read.names(guesses=1), ""))
    return tuple(sample.share(metric, names == read.people, note) for metric, names, note in found)


def _voted(
    study: RevelioStudy, attack: TrainedAttacker, seen: Faces, method: str, scenario: str, turn: Turn
) -> Iterator[Trial]:
    """Trials of one guess at each face, its IRA that of all guesses; judges read what `turn` makes of them."""
    rows = study.world.closed
    reads = study.reads(attack, seen, rows, turn)
    for trial in study.judged(turn(attack.restored(seen, rows), rows), rows, method, attack.title, scenario):
        rest = (figure for figure in trial.figures if figure.metric != "IRA")
        yield replace(trial, figures=(*_vote(study, reads[trial.recogniser]), *rest))


def ood(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Figure 7 and Table 5: strangers and people of the reference, by the smallest distance, heavy blur."""
    how, bench, curves = study.blur("heavy"), study.bench, facts.setdefault("curves", {})
    attack, inside, outside = study.restorer(how), study.world.closed, study.world.outside
    near, far = (study.reads(attack, study.seen(how, rows), rows) for rows in (inside, outside))
    for reader in bench.readers:
        yield from _strangers(study, reader, near[reader.name], far[reader.name], curves)
    first = curves[bench.readers[0].name]
    detected = np.array(first["outside"]) > first["threshold"]
    groups = {
        "out of distribution, detected": outside[detected],
        "out of distribution, missed": outside[~detected],
        "in distribution": inside,
    }
    for name, rows in groups.items():
        if len(rows):
            yield from study.judged(attack.restored(study.seen(how, rows), rows), rows, "heavy", name, OPEN)


def _strangers(study: RevelioStudy, reader: Reader, near: Read, far: Read, curves: Facts) -> Iterator[Trial]:
    people = np.concatenate([near.people, far.people])
    stranger = np.arange(len(people)) >= len(near.people)
    candidates = np.concatenate([near.candidates, far.candidates])
    least = retrieve(candidates, near.gallery, near.enrolled, near.metric).lowest
    curve, sample = ood_curve(least[~stranger], least[stranger]), Sample(people, study.bench.bootstrap)

    def trial(attacker: str, threshold: Any, note: str) -> Trial:
        flagged = least > threshold
        figures = (
            Figure("threshold", float(np.mean(threshold)), note=note),
            sample.share("TPR", np.where(stranger, flagged, np.nan), note),
            sample.share("FPR", np.where(stranger, np.nan, flagged), note),
            sample.share("accuracy", flagged == stranger, note),
            Figure("AUC", curve.auc, n=len(least), unit="images"),
        )
        return Trial(study.bench.name, "heavy", OPEN, reader.name, attacker, figures)

    threshold, note = thresholds_apart(least, stranger, people, study.paper.seed)
    yield trial(STRANGERS, threshold, note)
    if reader.name == "dlib":  # the paper's distance is one of dlib's embeddings, and of no others
        threshold, note = np.array(REVELIO.detection["threshold"]), "the paper's threshold"
        yield trial(AT_PAPER, threshold, note)
    arrays = {"TPR": curve.tpr, "FPR": curve.fpr, "inside": least[~stranger], "outside": least[stranger]}
    curves[reader.name] = {name: values.tolist() for name, values in arrays.items()}
    curves[reader.name] |= {"AUC": curve.auc, "threshold": float(threshold.mean()), "note": note}


def thresholds_apart(
    least: NDArray[np.float64], stranger: NDArray[np.bool_], people: Rows, seed: int
) -> tuple[NDArray[np.float64], str]:
    """[P] a threshold for each smallest distance, chosen on the other half of the people, and how it was chosen."""
    half = np.zeros(len(people), bool)
    for mask in (stranger, ~stranger):
        who = generator(seed, "threshold").permutation(np.unique(people[mask]))
        if len(who) < 4:
            chosen = choose_threshold(least[~stranger], least[stranger])
            return np.full(len(least), chosen), "chosen on these very faces: too good"
        half |= np.isin(people, who[: len(who) // 2])
    of_half, of_other = (choose_threshold(least[~part & ~stranger], least[~part & stranger]) for part in (half, ~half))
    return np.where(half, of_half, of_other), "chosen on the other half of the people"


def fine_tuning(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Table 2: the base model, and the same fine-tuned on the reference photos of the identity it has retrieved."""
    how, rows = study.blur("heavy"), study.world.closed[: study.paper.fine_tuned]
    attack = study.restorer(how)
    if not isinstance(attack.reverser, Revelio):
        return  # only the attention blocks of a diffusion are fine-tuned
    winners, tuned = fine_tuned(study, attack, how)
    for name, guesses in (("base", attack.restored(study.seen(how, rows), rows)), ("fine-tuned", tuned)):
        yield from study.judged(guesses, rows, "heavy", name, FINE)
    facts |= {"photos": len(rows), "right identity": int((study.bench.people[rows] == winners).sum())}


def fine_tuned(study: RevelioStudy, attack: TrainedAttacker, how: Anonymizer) -> tuple[Rows, Faces]:
    """The identities [N] retrieved for the first photos of the closed world, and guesses by models tuned for them."""
    bench, paper, reference = study.bench, study.paper, study.world.reference
    rows = study.world.closed[: paper.fine_tuned]
    seen = study.seen(how, rows)
    winners = study.reads(attack, seen, rows)[bench.readers[0].name].names()
    made: Any = attack.reverser
    tuning: dict[str, Any] = {"steps": paper.tune_steps, "lr": _SLOWER * made.lr, "which": "attention"}
    out = seen.images.copy()
    for index, person in enumerate(winners.tolist()):
        study.run.say(f"fine-tuning for the identities retrieved, {index} of {len(seen)} done")
        own = reference[bench.people[reference] == person]
        tuned = _tuned(study, attack, how, own, **tuning)
        out[index] = tuned.restored(seen.take([index]), rows[index : index + 1]).images[0]
    return winners, seen.with_images(out)


def _tuned(study: RevelioStudy, base: TrainedAttacker, how: Anonymizer, own: Rows, **tuning: Any) -> TunedAttacker:
    """An attacker to be trained on with the reference photos `own`, treated."""
    pairs = study.bench.pairs(own, study.seen(how, own).images)
    made = (f"{base.title}, adapted", base.reverser, pairs, study.bench, base.say)
    return TunedAttacker(*made, base=base, tuning={**tuning, "seed": study.paper.seed})


def kernel(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Figure 13: every odd kernel from 1 to 81 px of 256 on photos of people from whom nothing was learnt."""
    from ficgan.lab.attacks.networks import KernelEstimator

    size, paper = study.paper.size, study.paper
    parts = [study.bench.clear(rows) for rows in _people_apart(study)]
    learnt, chosen, tested = (part.images for part in parts)
    kernels = tuple(range(1, max(3, scaled_kernel(REVELIO.largest_kernel, size)) + 1, 2))
    estimator = KernelEstimator.train(
        learnt,
        kernels,
        validation=chosen,
        network=paper.estimator_network,
        pretrained=paper.estimator_pretrained,
        seed=paper.seed,
        progress=lambda done, total, text: study.run.say(f"{text}, {done} of {total}"),
    )
    true = np.repeat(kernels, len(tested))
    found = np.concatenate([estimator.estimate(blurred(tested, kernel)) for kernel in kernels])
    error, scale = np.abs(true - found), REVELIO.size / size
    per_photo = error.reshape(len(kernels), -1).mean(0)
    spread = 1.96 * float(per_photo.std(ddof=1)) / np.sqrt(len(tested)) if len(tested) > 1 else 0.0
    rows = [{"of": "here", "pixels of 256": f"error {error.mean() * scale:.3f} ± {spread * scale:.3f}"}]
    for label, blur in transfers(size).items():
        answer, perfect = float(estimator.regress(blur(parts[2])).mean()), equivalent_kernel(blur, kernels)
        theirs = f"; the paper's {REVELIO.transfer[label]}" if label in REVELIO.transfer else ""
        text = f"says {scale * answer:.1f}; a perfect estimator {scale * perfect:.1f}{theirs}"
        rows.append({"of": f"here, of “{label}”", "pixels of 256": text})
    confusion = [[int(((true == a) & (found == b)).sum()) for b in kernels] for a in kernels]
    facts |= {"rows": rows, "kernels": list(kernels), "error": float(error.mean()), "scale": scale}
    facts |= {"confusion": confusion, "chosen rightly": {}}
    widths, attacked = np.array([scaled_kernel(kernel, size) for kernel in BLURS.values()]), study.world.closed
    for number, level in enumerate(BLURS):
        study.run.say(f"{paper.restorer[0]} against {level} blur, kernel estimated")
        seen = study.seen(study.blur(level), attacked)
        chosen = np.abs(estimator.estimate(seen.images)[:, None] - widths).argmin(1)
        facts["chosen rightly"][level] = float(np.mean(chosen == number))
        images = seen.images.copy()
        for index in np.unique(chosen):
            some = np.flatnonzero(chosen == index)
            attack = study.restorer(study.blur(list(BLURS)[index]))
            images[some] = attack.restored(seen.take(some), attacked[some]).images
        yield from study.judged(seen.with_images(images), attacked, level, UNKNOWN_KERNEL, ESTIMATED)


def _people_apart(study: RevelioStudy) -> list[Rows]:
    """Photos of the reference to learn, choose and test on, no person in two of these."""
    rows, people = study.world.reference, study.bench.people[study.world.reference]
    who = generator(study.paper.seed, "kernel").permutation(np.unique(people))
    wanted = np.array(study.paper.estimator)
    ends = np.maximum(1, np.round(np.cumsum(wanted)[:2] / wanted.sum() * len(who))).astype(int)
    ends[0] = min(ends[0], len(who) - 2)
    ends[1] = min(max(ends[1], ends[0] + 1), len(who) - 1)
    parts = [rows[np.isin(people, some)] for some in np.split(who, ends)]
    return [part[:most] for part, most in zip(parts, wanted.tolist(), strict=True)]


def sweep(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Figure 15: the heavy model on kernels 71 to 91; Figure 16: the light one on other rules and a rectangle."""
    bench, rows = study.bench, study.world.closed[: study.paper.sweep]
    spec, trained = study.paper.restorer[1], f"K {BLURS['heavy']}"
    near = {f"K {k}": study.kernel(k) for k in range(REVELIO.sweep["from"], REVELIO.sweep["to"] + 1, 2)}
    yield from transfer(bench, spec, {trained: near[trained]}, near, probes=rows, scenario=SWEPT)
    for bound, seen in zip(BOUNDS, (bench.clear(rows), study.seen(near[trained], rows)), strict=True):
        yield from study.judged(seen, rows, trained, bound, SWEPT)
    light = {f"K {BLURS['light']}": study.blur("light")}
    yield from transfer(bench, spec, light, transfers(study.paper.size), probes=rows, scenario=TRANSFERRED)


def defences(study: RevelioStudy, facts: Facts) -> Iterator[Trial]:
    """Table 6: the light model on faces changed after the blur; Table 7: having learnt such faces, of other draws."""
    rows, attack = study.world.closed, study.restorer(study.blur("light"))
    for name in DEFENCES:
        study.run.say(f"{attack.title} against the defence {name}")
        met = defended(study, name, PUBLISHER)
        seen, turn = study.seen(met, rows), partial(upright, study, how=met)
        yield from _voted(study, attack, seen, name, DEFENDED, turn)
        yield from study.judged(turn(seen, rows), rows, name, BARE, DEFENDED)
        if name in study.paper.adapted:
            study.run.say(f"{attack.title} adapts to the defence {name}")
            # It has learnt upright faces from turned ones: nothing is turned back.
            learnt, reference, made = defended(study, name, ATTACKER), study.world.reference, attack.reverser
            adapted: TrainedAttacker = replace(study.restorer(learnt), title=f"{attack.title}, trained anew")
            if isinstance(made, Revelio):
                steps = max(1, round(study.paper.adapt_epochs * len(reference) / min(made.batch, len(reference))))
                adapted = _tuned(study, attack, learnt, reference, steps=steps, lr=made.lr, which="all")
            yield from _voted(study, adapted, seen, name, ADAPTED, unturned)


def defended(study: RevelioStudy, name: str, key: str) -> Anonymizer:
    """Light blur and a defence drawn by a key (Revelio, §6, appendix D)."""
    blur, defence = study.blur("light"), DEFENCES[name]
    return Defended(method=blur, defence=defence, key=key) if defence else blur


def upright(study: RevelioStudy, pictures: Faces, rows: Rows, how: Anonymizer) -> Faces:
    """Pictures that a treatment turned, turned upright."""
    if not isinstance(how, Defended):
        return pictures
    return study.bench.part(rows, pictures.images).anonymise(lambda inner: how.upright(inner.images, inner.names))


# Part → what runs it.
MAKE: dict[Part, Callable[[RevelioStudy, Facts], Iterable[Trial]]] = dict(
    zip(get_args(Part), (base, retrieval, fine_tuning, kernel, sweep, defences, ood), strict=True)
)
