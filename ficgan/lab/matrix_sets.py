"""The sets of a matrix: opened, made ready, divided and described, with the bench that trials run on."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ficgan.errors import InputError
from ficgan.lab.matrix_config import MatrixConfig, SetConfig, SplitConfig
from ficgan.lab.stored import Store, digest

if TYPE_CHECKING:
    from ficgan.faces import FaceDetector
    from ficgan.lab.bench import Bench
    from ficgan.lab.sets import FaceSet, Prepared, Split

__all__ = ["describe", "divide", "divided_set", "named_attackers", "open_bench", "opened", "prepared_set"]


@lru_cache(maxsize=2)
def _cached_bench(text: str, name: str, out: Path) -> Bench:
    from ficgan.lab.bench import Bench
    from ficgan.lab.manifest import refuse_the_known
    from ficgan.lab.metrics.geometry import quick
    from ficgan.lab.readers import get_readers

    config = MatrixConfig.model_validate_json(text)
    one = next(one for one in config.sets if one.name == name)
    prepared, split = divided_set(one, config.detector, out)
    refuse_the_known(named_attackers(config), one, prepared, split)
    return Bench(
        prepared,
        split,
        get_readers(tuple(config.recognisers)),
        quick(_detector(config.detector)),
        Store(out / "store"),
        seed=config.seed,
        resamples=config.resamples,
        general=config.general,
        specialised=config.specialised,
        retrain=config.retrain,
        columns=config.groups,
        candidates=config.candidates,
        retrieval_probes=config.retrieval_probes,
        reversal_metrics=config.reversal_metrics,
        lessons=_lessons(one, prepared, config.detector, out),
    )


def open_bench(config: MatrixConfig, one: SetConfig, out: Path) -> Bench:
    """A set of a matrix with all that its trials need: split, judges, attackers, and the set that these learn from.

    Args:
        config: checked matrix.
        one: of its sets.
        out: folder of the matrix; `out/store` keeps crops, pixels and embeddings.

    Raises:
        UsageError: a judge that is not here, or an attacker that comes trained and learnt from people who are tested.
        InputError: a set that cannot be read, or whose split cannot be.
    """
    return _cached_bench(config.model_dump_json(), one.name, out)


@lru_cache(maxsize=1)
def _detector(name: str) -> FaceDetector:
    from ficgan.faces import get_detector

    return get_detector(name)


def opened(one: SetConfig) -> FaceSet:
    """The people and photos of a set that are asked for; nothing is decoded.

    Raises:
        UsageError, InputError: as of `open_set`.
    """
    from ficgan.lab.sets import open_set

    return open_set(
        one.path, layout=one.layout, labels=one.labels, name=one.name, identity=one.identity,
        limit_people=one.limit_people, images_per_person=one.images_per_person,
    )  # fmt: skip


def prepared_set(one: SetConfig, detector: FaceDetector | None, store: Path | None) -> Prepared:
    """A set made ready, from the store where it is there.

    Args:
        one: where it lies, and its crops.
        detector: finds the faces of sets that are not aligned; None: the best one here.
        store: folder that keeps the crops; None: nothing is kept.

    Raises:
        UsageError, InputError: as of `open_set` and `prepare`.
    """
    from ficgan.lab.sets import Quick, prepare

    finder = None if one.aligned or detector is None else Quick(detector)
    return prepare(opened(one), size=one.size, context=one.context, detector=finder, cache=store, aligned=one.aligned)


def _prepared(one: SetConfig, detector: str, out: Path) -> Prepared:
    return prepared_set(one, None if one.aligned else _detector(detector), out / "store")


def _lessons(one: SetConfig, prepared: Prepared, detector: str, out: Path) -> Prepared | None:
    """The other set that attackers learn from, without pictures that are in this one; None where they learn here."""
    if one.learn_from is None:
        return None
    other = _prepared(one.learn_from, detector, out)
    if other.faces.people is None or (other.faces.people < 0).any():
        raise InputError(f"the set {one.learn_from.name} does not say who everybody is; attackers cannot learn from it")
    here = set(prepared.digests())
    rows = np.flatnonzero([mark not in here for mark in other.digests()])
    if not len(rows):
        raise InputError(f"every picture of {one.learn_from.name} is in {one.name}, too; learn from another set")
    return replace(other, faces=other.faces.take(rows), rows=other.rows[rows], attributes={}, groups={})


def divide(prepared: Prepared, sizes: SplitConfig) -> Split:
    """Who of a set is background, teaches attackers, and is tested; pictures that two parts share are left out.

    Args:
        prepared: of `prepared_set`.
        sizes: people of each part.

    Raises:
        UsageError: a split that cannot be.
        InputError: the set has too few people.
    """
    from ficgan.lab.sets import check, split

    people, names = prepared.faces.people, prepared.faces.names
    assert people is not None
    parts = split(
        people, background=sizes.background, attacker=sizes.attacker, test=sizes.test,
        enrolment=sizes.enrolment, seed=sizes.seed, names=names,
    )  # fmt: skip
    return check(parts, people, names=names, digests=prepared.digests())


def divided_set(one: SetConfig, detector: str, out: Path) -> tuple[Prepared, Split]:
    """A set made ready, and who of it is background, teaches attackers, and is tested.

    Args:
        one: where it lies, its crops and its split.
        detector: finds the faces of sets that are not aligned.
        out: `out/store` keeps the crops.

    Raises:
        UsageError: a split that cannot be.
        InputError: the set cannot be read, or has too few people.
    """
    prepared = _prepared(one, detector, out)
    return prepared, divide(prepared, one.split)


def describe(config: MatrixConfig, one: SetConfig, out: Path) -> dict[str, Any]:
    """What a report says of a set, and the digest of all in it that a trial depends on.

    Raises:
        UsageError, InputError: as of `open_bench`.
    """
    from ficgan.lab.manifest import refuse_the_known

    prepared, parts = divided_set(one, config.detector, out)
    refuse_the_known(named_attackers(config), one, prepared, parts)
    facts = prepared.facts()
    other = _lessons(one, prepared, config.detector, out)
    taught = {} if other is None or one.learn_from is None else {"learn_from": _taught(one.learn_from, other)}
    return {
        **facts,
        **taught,
        "digest": digest([facts["pixels"], parts.digest, _labels_digest(prepared), taught]),
        "licence": one.licence or facts["licence"],
        "size": one.size,
        "context": one.context,
        "split": parts.manifest,
    }


def _taught(one: SetConfig, prepared: Prepared) -> dict[str, Any]:
    """What a report says of the set that attackers learn from."""
    facts = prepared.facts()
    wanted = ("name", "faces", "people", "pixels")
    return {**{key: facts[key] for key in wanted}, "licence": one.licence or facts["licence"]}


def _labels_digest(prepared: Prepared) -> str:
    told = {name: values.tolist() for name, values in prepared.attributes.items()}
    return digest([told, {name: list(values) for name, values in prepared.groups.items()}])


def named_attackers(config: MatrixConfig) -> list[str]:
    """The attackers that are asked for by name."""
    return [text for text in (*config.general, *config.specialised) if text != "auto"]
