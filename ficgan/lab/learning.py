"""What attackers learn from, and attackers that learn: once for all scenarios and runs that share a store."""

from __future__ import annotations

import dataclasses
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ficgan.anonymizers import Anonymizer, Faces, Images, generator
from ficgan.lab.attacks import Pairs, Reverser
from ficgan.lab.attacks.learned import Learned, Trained
from ficgan.lab.bench import Bench, Refused, Subject, content, known
from ficgan.lab.sets import Prepared
from ficgan.lab.stored import fingerprint

__all__ = ["Lessons", "Opponent", "halves", "joined", "lessons"]

_BLOCK = 8
"""Probes whose candidates are drawn together and kept: what an interrupted run does not draw again."""
_EVERY = 2.0
"""Seconds between two words about a training."""


@dataclass(frozen=True)
class Lessons:
    """Pairs, and what they are known by.

    Args:
        pairs: without a background set.
        background: the anonymiser's, for attackers that are granted it.
    """

    pairs: Pairs
    background: Faces

    def granted(self, reverser: Reverser) -> Pairs:
        """The pairs as this attacker gets them."""
        if "background" not in reverser.traits.knowledge:
            return self.pairs
        return dataclasses.replace(self.pairs, background=self.background)

    @cached_property
    def digest(self) -> list[Any]:
        """Of pixels, landmarks and people."""
        who = hashlib.sha256(np.ascontiguousarray(known(self.pairs.clear)).data).hexdigest()
        enrolled = [] if self.pairs.enrolled is None else [self.pairs.enrolled.tolist()]
        return [content(self.pairs.anonymised), content(self.pairs.clear), who, self.pairs.same, *enrolled]


@dataclass(frozen=True)
class Opponent:
    """A reverser and what it may learn from; what it is asked is the replaced square alone.

    A network is trained when it is first needed, in a folder of the store, and its guesses are kept there too.

    Args:
        title: for tables.
        reverser: as the configuration has it.
        lessons: None where it learns nothing.
        bench: its store.
        say: called with how far a training is.
    """

    title: str
    reverser: Reverser
    lessons: Lessons | None
    bench: Bench
    say: Callable[[str], None]

    @cached_property
    def fitted(self) -> Reverser:
        """It, having learnt."""
        if self.lessons is None:
            return self.reverser
        pairs = self.lessons.granted(self.reverser)
        if not isinstance(self.reverser, Learned):
            return self.reverser.fit(pairs)
        waiting = f"{self.title}: waiting for another process that trains it"
        with self.bench.store.workspace(["attacker", *self._mark], waiting=lambda: self.say(waiting)) as folder:
            return self.reverser.fit(pairs, workspace=folder, told=_seldom(self.title, self.say))

    def guess(self, faces: Faces) -> Images:
        """Its best guesses [N,S,S,3] uint8 RGB."""
        if not self._kept:
            return self.fitted.guess(faces)
        key = ["guess", *self._mark, content(faces), list(faces.names)]
        return self.bench.store.array(key, lambda: self.fitted.guess(faces))

    def candidates(self, faces: Faces, count: int) -> NDArray[np.uint8]:
        """Guesses [N,count,S,S,3] uint8 RGB at each face."""
        if not self._kept:
            return self.fitted.reverse(faces, count)
        out = np.empty((len(faces), count, *faces.images.shape[1:]), np.uint8)
        for begin in range(0, len(faces), _BLOCK):
            rows = np.arange(begin, min(begin + _BLOCK, len(faces)))
            part = faces.take(rows)
            self.say(f"{self.title}: {count} guesses at each of {len(faces)} faces, {begin} done")
            key = ["candidates", *self._mark, content(part), list(part.names), count]
            out[rows] = self.bench.store.array(key, partial(self._draw, part, count))
        return out

    def _draw(self, faces: Faces, count: int) -> NDArray[np.uint8]:
        return self.fitted.reverse(faces, count)

    @property
    def _kept(self) -> bool:
        """Whether guesses are worth keeping; those of linear attackers are sooner made than read."""
        return isinstance(self.reverser, (Learned, Trained))

    @cached_property
    def _mark(self) -> list[Any]:
        return [fingerprint(self.reverser), None if self.lessons is None else self.lessons.digest]


def lessons(
    bench: Bench,
    subject: Subject,
    maker: Anonymizer,
    *,
    same: bool = True,
    victims: bool = False,
    change: Callable[[Faces], Faces] = lambda faces: faces,
) -> Lessons:
    """Pairs of the attacker's people, or of the other set that it learns from; no probe is ever among them.

    Args:
        bench: set, split, and perhaps the other set.
        subject: whose pixels are kept.
        maker: by which they are anonymised.
        same: False where that is not quite the attacked method.
        victims: the enrolled photos of the known half of the people are added, see `halves`.
        change: what befalls the anonymised crops before they are learnt from.

    Raises:
        Refused: there is nobody to learn from.
    """
    parts = []
    if bench.lessons is not None:
        parts.append((subject.lessons(maker), bench.lessons))
    elif len(bench.split.attacker):
        parts.append((subject.anonymised(bench.split.attacker, maker), bench.part(bench.split.attacker)))
    enrolled = halves(bench)[0] if victims else None
    if enrolled is not None:
        rows = bench.split.gallery[np.isin(bench.people[bench.split.gallery], enrolled)]
        parts.append((subject.anonymised(rows, maker), bench.part(rows)))
    if not parts:
        raise Refused("the split leaves no faces to the attacker; set split.attacker")
    seen = [dataclasses.replace(part, faces=change(faces)).regions() for faces, part in parts]
    clear = joined([_apart(bench, part).regions() for _, part in parts])
    return Lessons(Pairs(joined(seen), clear, same=same, enrolled=enrolled), bench.background)


def halves(bench: Bench) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """People of the evaluation whom a closed-world attacker knows, and whom it does not; drawn by the bench's seed."""
    who = np.unique(bench.people[bench.split.probe])
    order = generator(bench.seed, "closed world").permutation(who)
    return np.sort(order[: (len(who) + 1) // 2]), np.sort(order[(len(who) + 1) // 2 :])


def joined(several: list[Faces]) -> Faces:
    """Faces of several sets as one."""
    if len(several) == 1:
        return several[0]
    return Faces(
        np.concatenate([one.images for one in several]),
        tuple(name for one in several for name in one.names),
        np.concatenate([one.landmarks for one in several]),
        np.concatenate([known(one) for one in several]),
    )


def _apart(bench: Bench, part: Prepared) -> Prepared:
    """People of another set get numbers that nobody here has."""
    if part is not bench.lessons:
        return part
    people = known(part.faces) + 1 + int(bench.people.max())
    return dataclasses.replace(part, faces=dataclasses.replace(part.faces, people=people))


def _seldom(title: str, say: Callable[[str], None]) -> Callable[[int, int, str], None]:
    """Progress of a training in words, every few seconds."""
    last = -_EVERY

    def told(done: int, total: int, stage: str) -> None:
        nonlocal last
        if time.monotonic() - last >= _EVERY or done >= total:
            last = time.monotonic()
            say(f"{title}: {stage}, {done} of {total}")

    return told
