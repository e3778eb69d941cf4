"""Revelio's parts: one guess, many, fine-tuning, the kernel, other kernels, defences, strangers; and the controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Defended, Faces, generator
from ficgan.anonymizers.basic import scaled_kernel
from ficgan.errors import FicganError
from ficgan.lab.attackers import Opponent, Read
from ficgan.lab.attacks import REVERSERS
from ficgan.lab.attacks.deconvolution import blurred, equivalent_kernel, transfers
from ficgan.lab.attacks.learned import Learned
from ficgan.lab.attacks.revelio import Revelio, Which, choose_threshold, fine_tune, ood_curve, retrieve
from ficgan.lab.bench import content, known
from ficgan.lab.metrics import Sample
from ficgan.lab.metrics.scores import Scores
from ficgan.lab.papers import REVELIO, Rows, Treatment, distance, identified, transfer
from ficgan.lab.papers.revelio import BLURS, NAMES, Experiment, Outcome
from ficgan.lab.readers import Reader, retrain_head
from ficgan.lab.results import Figure, Trial
from ficgan.lab.reversal import stranger_figures
from ficgan.registry import parse_spec

BASE, VOTED, FINE = "closed world, one guess", "closed world, many guesses", "closed world, fine-tuned"
ESTIMATED = "closed world, kernel estimated"
SWEPT, TRANSFERRED = "closed world, other kernels", "closed world, other rules and shapes"
DEFENDED, ADAPTED = "closed world, defences", "closed world, adaptive attack"
OPEN = "open world"  # Scenarios of the trials
PARROT, NOT_TOLD, BARE = "Parrot Recognition", "Kernel estimated, not told", "not restored"
STRANGERS, AT_PAPER = "strangers detected", "strangers detected at the paper's distance"
BOUNDS = ("clear", "blurred")  # Attackers of the two trials between which Figure 15 lies
CHANCE = "Chance"
CONTROLS = ("Clear", "Constant grey", "Mean face")
"""Attackers that give back the clear face, and twice the same picture of nobody for everybody."""
APART = ("Same person, another photo", "Strangers")
"""Attackers that give back a photo of the reference: between their IDD lies every judge's scale."""
POSITIVE = "Block permutation, undone"  # The attacker against what it must be able to undo
DEFENCES: dict[str, str] = {
    "none": "",
    "rotation": "rotation",
    "noise": "noise",
    "jpeg": "jpeg",
    "box blur": "box",
    "secret": "random",
}
"""The paper's, with its settings, and the randomised one that its section 6 proposes: in a table → of
`ficgan.anonymizers.DEFENCES`."""
PUBLISHER, ATTACKER = "the publisher's", "the attacker's"
"""Keys of what a defence draws: nobody who attacks knows the one that what is attacked was published with."""
_SLOWER = 0.1  # Rate of a fine-tuning, as a share of the training's


def base(experiment: Experiment) -> Outcome:
    """Tables 1, 3 and 4: the blurred image itself, parrots, every attacker, and controls; light and heavy blur."""
    paper, rows = experiment.paper, experiment.world.closed
    out = Outcome(facts={"training": {}})
    _positive(experiment, out)
    for level in BLURS:
        how = experiment.blur(level)
        experiment.report(0, len(paper.named), f"{level} blur: the judges read the reference and the blurred faces")
        seen = experiment.seen(how, rows)
        out.trials += experiment.judged(seen, rows, level, NAMES["identity"], BASE)
        out.trials += _controls(experiment, level)
        out.trials += [_parrot(experiment, how, level, reader) for reader in experiment.bench.readers]
        for number, (label, spec) in enumerate(paper.named):
            experiment.report(number, len(paper.named), f"{label} against {level} blur")
            guess = partial(_trained_guesses, experiment, out, label, spec, how, [level])
            _attempt(experiment, out, [level], label, guess)
    return out


def _attempt(
    experiment: Experiment,
    out: Outcome,
    methods: Sequence[str],
    attacker: str,
    guess: Callable[[], Faces],
    scenario: str = BASE,
) -> None:
    """Judge what an attacker gives back; where it fails, that is a line in the table, and the others go on."""
    rows = experiment.world.closed
    try:
        guesses = guess()
    except FicganError as error:
        out.whole = False
        for method in methods:
            out.trials += _refused(experiment, method, attacker, str(error), scenario)
        return
    for method in methods:
        out.trials += experiment.judged(guesses, rows, method, attacker, scenario)


def _trained_guesses(
    experiment: Experiment, out: Outcome, label: str, spec: str, how: Treatment, levels: Sequence[str]
) -> Faces:
    rows = experiment.world.closed
    attack = experiment.attack(label, spec, how)
    guesses = attack.restored(experiment.seen(how, rows), rows)
    out.facts["training"] |= {f"{label}, {level}": attack.training for level in levels}
    return guesses


def _refused(experiment: Experiment, method: str, attacker: str, why: str, scenario: str = BASE) -> list[Trial]:
    figures = (Figure("IRA", None, note=why),)
    bench = experiment.bench
    return [Trial(bench.name, method, scenario, reader.name, attacker, figures) for reader in bench.readers]


def _positive(experiment: Experiment, out: Outcome) -> None:
    paper, levels = experiment.paper, list(BLURS)
    if not paper.control_epochs:
        out.trials += [one for level in levels for one in _refused(experiment, level, POSITIVE, "control_epochs is 0")]
        return
    experiment.report(0, 1, "the positive control: permuted blocks")
    name, given = parse_spec(paper.restorer[1])
    if issubclass(REVERSERS[name], Learned):
        given = {key: value for key, value in given.items() if key != "minutes"} | {"epochs": str(paper.control_epochs)}
    spec = ":".join(filter(None, [name, ",".join(f"{key}={value}" for key, value in given.items())]))
    how = Treatment.of(f"block-permutation:block={paper.size // 8}")
    _attempt(experiment, out, levels, POSITIVE, partial(_trained_guesses, experiment, out, POSITIVE, spec, how, levels))


def _controls(experiment: Experiment, level: str) -> list[Trial]:
    bench, world = experiment.bench, experiment.world
    clear = experiment.clear(world.closed)
    enrolled, people = bench.people[world.reference], bench.people[world.closed]
    share, note = float(np.mean(enrolled[:, None] == people)), "any photo of the reference"
    grey = np.full_like(clear.images, 127)
    blocks = np.array_split(world.reference, -(-len(world.reference) // 256))  # all at once may be gigabytes
    total = sum(experiment.clear(rows).images.sum(0, dtype=np.float64) for rows in blocks)
    mean = np.rint(total / len(world.reference)).astype(np.uint8)
    pictures = (clear.images, grey, np.broadcast_to(mean, grey.shape).copy())
    chance = Figure("chance", share, n=len(people), unit="images", note=note)
    out: list[Trial] = []
    for name, kind, images in zip(CONTROLS, ("ceiling", "negative", "negative"), pictures, strict=True):
        found = experiment.judged(clear.with_images(images), world.closed, level, name, BASE)
        out += [replace(one, control=kind, figures=(*one.figures, chance)) for one in found]
    rng = generator(experiment.paper.seed, "apart")
    same = [rng.choice(world.reference[enrolled == person]) for person in people]
    other = [rng.choice(world.reference[enrolled != person]) for person in people]
    for reader in bench.readers:
        ira = replace(chance, metric="IRA")
        out.append(Trial(bench.name, level, BASE, reader.name, CHANCE, (ira,), control="negative"))
        for name, photos in zip(APART, (same, other), strict=True):
            guesses = experiment.clear(np.array(photos, np.int64))
            idd = distance(bench, reader, guesses, world.closed)
            out.append(Trial(bench.name, level, BASE, reader.name, name, (idd,), control="codes"))
    return out


def _parrot(experiment: Experiment, how: Treatment, level: str, reader: Reader) -> Trial:
    bench, world = experiment.bench, experiment.world
    reference, probe = (experiment.seen(how, rows) for rows in (world.reference, world.closed))
    enrolled, seen = (bench.embed(reader, faces) for faces in (reference, probe))
    note, metric = "blurred faces enrolled, the judge as it is", reader.metric
    try:
        change, learnt = retrain_head(enrolled, known(reference))
        enrolled, seen, metric = change(enrolled), change(seen), "cosine"
        note = f"blurred faces enrolled. {learnt}"
    except FicganError as error:
        note = f"{note}: {error}"
    scores = Scores.compare(seen, enrolled, known(probe), known(reference), metric=metric)
    figures = (identified(scores, note, experiment.bench.bootstrap),)
    return Trial(bench.name, level, BASE, reader.name, PARROT, figures)


def _reads(experiment: Experiment, attack: Opponent, seen: Faces, rows: Rows) -> dict[str, Read]:
    return attack.reads(seen, rows, experiment.world.reference, experiment.paper.candidates)


def retrieval(experiment: Experiment) -> Outcome:
    """Table 1, the attack as the paper has it: n guesses at each face of the closed world."""
    out, rows, n = Outcome(), experiment.world.closed, experiment.paper.candidates
    for level in BLURS:
        how = experiment.blur(level)
        for name, one in _reads(experiment, experiment.restorer(how), experiment.seen(how, rows), rows).items():
            found = (
                ("IRA", one.names(), f"majority of {n} guesses"),
                ("IRA, one guess", one.names(guesses=1), ""),
                ("IRA, nearest of all guesses", one.names("shortest"), ""),
            )
            sample = Sample(one.people, experiment.bench.bootstrap)
            figures = tuple(sample.share(metric, names == one.people, note) for metric, names, note in found)
            label = experiment.paper.restorer[0]
            out.trials.append(Trial(experiment.bench.name, level, VOTED, name, label, figures))
    out.facts = {"candidates": n, "enrolled images": len(experiment.world.reference)}
    return out


def ood(experiment: Experiment) -> Outcome:
    """Figure 7 and Table 5: strangers told from people of the reference by the smallest distance, heavy blur."""
    out, how, bench = Outcome(), experiment.blur("heavy"), experiment.bench
    attack, inside, outside = experiment.restorer(how), experiment.world.closed, experiment.world.outside
    near, far = (_reads(experiment, attack, experiment.seen(how, rows), rows) for rows in (inside, outside))
    curves: dict[str, Any] = {}
    for reader in bench.readers:
        trials, curves[reader.name] = _strangers(experiment, reader, near[reader.name], far[reader.name])
        out.trials += trials
    judge = bench.readers[0].name
    detected = np.array(curves[judge]["outside"]) > curves[judge]["threshold"]
    groups = {
        "out of distribution, detected": outside[detected],
        "out of distribution, missed": outside[~detected],
        "in distribution": inside,
    }
    for name, rows in groups.items():
        if len(rows):
            guesses = attack.restored(experiment.seen(how, rows), rows)
            out.trials += experiment.judged(guesses, rows, "heavy", name, OPEN)
        else:
            nobody = Figure("PSNR", None, unit="images", note="there is no such face here")
            out.trials.append(Trial(bench.name, "heavy", OPEN, judge, name, (nobody,)))
    out.facts = {"curves": curves, "judge": judge}
    return out


def _strangers(experiment: Experiment, reader: Reader, near: Read, far: Read) -> tuple[list[Trial], dict[str, Any]]:
    both = replace(
        near,
        candidates=np.concatenate([near.candidates, far.candidates]),
        people=np.concatenate([near.people, far.people]),
    )
    least = retrieve(both.candidates, both.gallery, both.enrolled, both.metric).lowest
    mine, theirs = least[: len(near.people)], least[len(near.people) :]
    curve, bootstrap = ood_curve(mine, theirs), experiment.bench.bootstrap
    found, _ = stranger_figures(both, np.unique(both.enrolled), bootstrap)
    figures = {name: replace(one, metric=name) for one in found if (name := one.metric.removeprefix("stranger "))}
    figures["AUC"] = Figure("AUC", curve.auc, n=len(least), unit="images")
    head = (experiment.bench.name, "heavy", OPEN, reader.name)
    trials = [Trial(*head, STRANGERS, tuple(figures.values()))]
    limit = figures.get("threshold")
    threshold, note = (None, "") if limit is None else (limit.value, "chosen on the other half of the people")
    if threshold is None:
        threshold, note = choose_threshold(mine, theirs), "threshold chosen on these very faces: too good"
    if reader.name == "dlib":  # the paper's distance is one of dlib's embeddings, and of no others
        threshold, note = REVELIO.detection["threshold"], "the paper's threshold"
        right = (least > threshold) == (np.arange(len(least)) >= len(mine))
        trials.append(
            Trial(
                *head,
                AT_PAPER,
                (
                    Figure("threshold", threshold, note=note),
                    Sample(far.people, bootstrap).share("TPR", theirs > threshold, note),
                    Sample(near.people, bootstrap).share("FPR", mine > threshold, note),
                    Sample(both.people, bootstrap).share("accuracy", right, note),
                    figures["AUC"],
                ),
            )
        )
    return trials, {
        "TPR": curve.tpr.tolist(),
        "FPR": curve.fpr.tolist(),
        "AUC": curve.auc,
        "threshold": threshold,
        "note": note,
        "inside": mine.tolist(),
        "outside": theirs.tolist(),
    }


def fine_tuning(experiment: Experiment) -> Outcome:
    """Table 2: the base model, and the same fine-tuned on the reference photos of the identity it has retrieved."""
    out, how, rows, bench = Outcome(), experiment.blur("heavy"), _tuned_rows(experiment), experiment.bench
    attack = experiment.restorer(how)
    if not isinstance(attack.reverser, Revelio):
        why = f"{attack.title} is no diffusion: only the attention blocks of one are fine-tuned"
        out.trials += _refused(experiment, "heavy", "fine-tuned", why, FINE)
        return out
    winners, tuned = _fine_tuned(experiment, attack, how)
    for name, guesses in (("base", attack.restored(experiment.seen(how, rows), rows)), ("fine-tuned", tuned)):
        out.trials += experiment.judged(guesses, rows, "heavy", name, FINE)
    right = int((bench.people[rows] == winners).sum())
    out.facts = {"judge": bench.readers[0].name, "photos": len(rows), "right identity": right}
    return out


def fine_tuned_guesses(experiment: Experiment) -> NDArray[np.uint8] | None:
    """The fine-tuned guesses [N,S,S,3] at the first photos of the closed world; None where there are none."""
    how = experiment.blur("heavy")
    attack = experiment.restorer(how)
    tunable = isinstance(attack.reverser, Revelio)
    return _fine_tuned(experiment, attack, how)[1].images if tunable else None


def _tuned_rows(experiment: Experiment) -> Rows:
    return experiment.world.closed[: experiment.paper.fine_tuned]


def _fine_tuned(experiment: Experiment, attack: Opponent, how: Treatment) -> tuple[Rows, Faces]:
    bench, paper, rows = experiment.bench, experiment.paper, _tuned_rows(experiment)
    seen, reference = experiment.seen(how, rows), experiment.world.reference
    winners = _reads(experiment, attack, seen, rows)[bench.readers[0].name].names()
    rate = paper.tune_rate or _SLOWER * attack.reverser.lr  # type: ignore[attr-defined]
    out = seen.images.copy()
    for index, person in enumerate(winners.tolist()):
        experiment.report(index, len(seen), "fine-tuning for the identities retrieved")
        own, this = reference[bench.people[reference] == person], rows[index : index + 1]
        shown = seen.take([index])
        guess = _trained_on(experiment, attack, how, own, shown, this, paper.tune_steps, rate, "attention")
        out[index] = guess.images[0]
    return winners, seen.with_images(out)


def _trained_on(
    experiment: Experiment,
    attack: Opponent,
    how: Treatment,
    learnt: Rows,
    seen: Faces,
    rows: Rows,
    steps: int,
    lr: float,
    which: Which,
) -> Faces:
    bench = experiment.bench
    key = ["trained on", *attack.mark, how.mark, learnt.tolist(), steps, lr, which, content(seen)]

    def make() -> Any:
        shown, clear = bench.part(learnt, experiment.seen(how, learnt).images), bench.part(learnt)
        made: Any = attack.fitted
        seed = experiment.paper.seed
        tuned = fine_tune(made, shown.regions(), clear.regions(), steps=steps, lr=lr, which=which, seed=seed)
        part = bench.part(rows, seen.images)
        return part.with_regions(tuned.guess(part.regions())).images

    return seen.with_images(bench.store.array(key, make))


def kernel(experiment: Experiment) -> Outcome:
    """Figure 13: every odd kernel from 1 to 81 px of 256 on photos of people from whom nothing was learnt."""
    from ficgan.lab.attacks.networks import KernelEstimator

    size, paper = experiment.paper.size, experiment.paper
    parts = [experiment.clear(rows) for rows in _people_apart(experiment)]
    learnt, chosen, tested = (part.images for part in parts)
    kernels = tuple(range(1, max(3, scaled_kernel(REVELIO.largest_kernel, size)) + 1, 2))
    estimator = KernelEstimator.train(
        learnt,
        kernels,
        validation=chosen,
        seed=paper.seed,
        progress=experiment.progress,
        network=paper.estimator_network,
        weights=paper.estimator_weights or None,
    )
    true = np.repeat(kernels, len(tested))
    found = np.concatenate([estimator.estimate(blurred(tested, one)) for one in kernels])
    error, scale = float(np.abs(true - found).mean()), REVELIO.size / size
    per_photo = np.abs(true - found).reshape(len(kernels), -1).mean(0)
    spread = 1.96 * float(per_photo.std(ddof=1)) / np.sqrt(len(tested)) if len(tested) > 1 else 0.0
    column = "mean absolute error, pixels of 256"
    text = f"{error * scale:.3f} ± {spread * scale:.3f}"
    text += "" if size == REVELIO.size else f" ({error:.3f} of {size})"
    photos = f"{len(learnt)} to learn, {len(chosen)} to choose, {len(tested)} to test"
    more = []
    for label, blur in transfers(size).items():
        answer = scale * float(estimator.regress(blur(parts[2])).mean())
        theirs = REVELIO.transfer.get(label)
        answered = f"says {answer:.1f}; a perfect estimator {scale * equivalent_kernel(blur, kernels):.1f}"
        answered += f"; the paper's {theirs}" if theirs else ""
        more.append(
            {"": f"here, of “{label}”", column: answered, "photos": str(len(tested)), "estimator": estimator.network}
        )
    out = Outcome(
        facts={
            "row": {column: text, "photos": photos, "estimator": estimator.network},
            "more": more,
            "kernels": list(kernels),
            "error": error,
            "scale": scale,
            "confusion": [[int(((true == a) & (found == b)).sum()) for b in kernels] for a in kernels],
            "chosen rightly": {},
        }
    )
    for number, level in enumerate(BLURS):
        experiment.report(number, len(BLURS), f"{paper.restorer[0]} against {level} blur, kernel estimated")
        _not_told(experiment, estimator, level, out)
    return out


def _not_told(experiment: Experiment, estimator: Any, level: str, out: Outcome) -> None:
    rows, levels = experiment.world.closed, list(BLURS)
    widths = np.array([scaled_kernel(one, experiment.paper.size) for one in BLURS.values()])
    seen = experiment.seen(experiment.blur(level), rows)
    chosen = np.abs(estimator.estimate(seen.images)[:, None] - widths).argmin(1)
    out.facts["chosen rightly"][level] = float(np.mean(chosen == levels.index(level)))

    def guess() -> Faces:
        images = seen.images.copy()
        for index in np.unique(chosen):
            some = np.flatnonzero(chosen == index)
            attack = experiment.restorer(experiment.blur(levels[index]))
            images[some] = attack.restored(seen.take(some), rows[some]).images
        return seen.with_images(images)

    _attempt(experiment, out, [level], NOT_TOLD, guess, ESTIMATED)


def _people_apart(experiment: Experiment) -> list[Rows]:
    rows, people = experiment.world.reference, experiment.bench.people[experiment.world.reference]
    who = generator(experiment.paper.seed, "kernel").permutation(np.unique(people))
    if len(who) < 3:
        raise FicganError(f"{len(who)} people in the reference are too few to estimate kernels on; give at least 3")
    wanted = np.array(experiment.paper.estimator)
    ends = np.maximum(1, np.round(np.cumsum(wanted)[:2] / wanted.sum() * len(who))).astype(int)
    ends[0] = min(ends[0], len(who) - 2)
    ends[1] = min(max(ends[1], ends[0] + 1), len(who) - 1)
    parts = [rows[np.isin(people, some)] for some in np.split(who, ends)]
    return [part[:most] for part, most in zip(parts, wanted.tolist(), strict=True)]


def sweep(experiment: Experiment) -> Outcome:
    """Figure 15: the heavy model on kernels 71 to 91; Figure 16: the light one on other rules and a rectangle."""
    bench, rows = experiment.bench, experiment.world.closed[: experiment.paper.sweep]
    spec, heavy = experiment.paper.restorer[1], experiment.blur("heavy")
    kernels = range(REVELIO.sweep["from"], REVELIO.sweep["to"] + 1, 2)
    near = [experiment.kernel(one) for one in kernels]
    others = [Treatment(label, blur) for label, blur in transfers(experiment.paper.size).items()]
    shared: dict[str, Any] = {"probes": rows, "progress": experiment.progress}
    trials = transfer(bench, spec, [heavy], near, scenario=SWEPT, **shared)
    for bound, seen in zip(BOUNDS, (experiment.clear(rows), experiment.seen(heavy, rows)), strict=True):
        trials += experiment.judged(seen, rows, heavy.label, bound, SWEPT)
    trials += transfer(bench, spec, [experiment.blur("light")], others, scenario=TRANSFERRED, **shared)
    return Outcome(trials, {"kernels": list(kernels), "photos": len(rows)})


def defences(experiment: Experiment) -> Outcome:
    """Table 6: the light model on faces changed after the blur; Table 7: having learnt such faces, of other draws."""
    out, rows, paper = Outcome(), experiment.world.closed, experiment.paper
    attack = experiment.restorer(experiment.blur("light"))
    for number, name in enumerate(DEFENCES):
        experiment.report(number, len(DEFENCES), f"{attack.title} against the defence {name}")
        met = defended(experiment, name, key=PUBLISHER)
        seen = experiment.seen(met, rows)
        restored = turned_back(experiment, attack.restored(seen, rows), rows, met)
        out.trials += experiment.judged(restored, rows, name, attack.title, DEFENDED)
        out.trials += experiment.judged(turned_back(experiment, seen, rows, met), rows, name, BARE, DEFENDED)
        if name in paper.adapted:
            experiment.report(number, len(DEFENCES), f"{attack.title} adapts to the defence {name}")
            how, guesses = _adapted(experiment, attack, defended(experiment, name, key=ATTACKER), seen, rows)
            # It has learnt upright faces from turned ones: nothing is turned back.
            out.trials += experiment.judged(guesses, rows, name, how, ADAPTED)
    return out


def defended(experiment: Experiment, name: str, *, key: str) -> Treatment:
    """Light blur and a defence drawn by the key of `PUBLISHER` or `ATTACKER` (Revelio, §6, appendix D)."""
    blur, defence = experiment.blur("light").anonymizer, DEFENCES[name]
    return Treatment(name, Defended(method=blur, defence=defence, key=key) if defence else blur)


def turned_back(experiment: Experiment, pictures: Faces, rows: Rows, how: Treatment) -> Faces:
    """Pictures that a treatment turned, turned upright; not for attackers that give upright ones."""
    step = how.anonymizer
    if not isinstance(step, Defended):
        return pictures
    part = experiment.bench.part(rows, pictures.images)
    inner = part.regions()
    return part.with_regions(step.upright(inner.images, inner.names))


def _adapted(experiment: Experiment, attack: Opponent, learnt: Treatment, seen: Faces, rows: Rows) -> tuple[str, Faces]:
    reference, reverser = experiment.world.reference, attack.reverser
    if not isinstance(reverser, Revelio):
        anew = experiment.attack(*experiment.paper.restorer, learnt)
        return f"{attack.title}, trained anew", anew.restored(seen, rows)
    batch = min(reverser.batch, len(reference))
    steps = max(1, round(experiment.paper.adapt_epochs * len(reference) / batch))
    guesses = _trained_on(experiment, attack, learnt, reference, seen, rows, steps, reverser.lr, "all")
    return f"{attack.title}, adapted", guesses


MAKE: dict[str, Callable[[Experiment], Outcome]] = {
    "base": base,
    "retrieval": retrieval,
    "fine-tuning": fine_tuning,
    "kernel": kernel,
    "sweep": sweep,
    "defences": defences,
    "ood": ood,
}
"""Part of `ficgan.lab.papers.revelio.PARTS` → what runs it."""
