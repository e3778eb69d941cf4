"""Configurations of evaluations that come with the package and name no data: methods, scenarios, sizes of the split."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ficgan.errors import UsageError
from ficgan.lab.matrix_config import MatrixConfig, SplitConfig, get_scenarios
from ficgan.lab.sets import open_set

__all__ = ["scaled", "with_data"]

LEAST_BACKGROUND = 12
"""People whose faces k-same with the usual k = 10 needs, and two who may drop out because no face is found."""
TESTED = 0.25
"""Share of the people that are tested where there are too few for the whole protocol."""


def with_data(
    name: str,
    data: Path | str,
    *,
    layout: str = "auto",
    labels: Path | str | None = None,
    identity: str | None = None,
    people: int | None = None,
    size: int | None = None,
    aligned: bool = False,
    judges: Sequence[str] = (),
    detector: str | None = None,
    attributes: Path | str | None = None,
    **more: Any,
) -> MatrixConfig:
    """A packaged preset on a face set; paths count from the working folder.

    A preset is a matrix without `sets`; under `set` it may say what its set shall be like.

    Args:
        name: one of `ficgan.configs.names("eval")`.
        data: folder, zip or tar, as of `open_set`; layout, labels and identity too.
        people: at most so many, those with the most images; None: as many as the preset's split asks for.
        size: side of the crops, pixels; None: the preset's.
        aligned: the images are aligned as the default template.
        judges: recognisers; none: the preset's.
        detector: None: the preset's.
        attributes: trained attribute classifier.
        more: other values of the matrix.

    Returns:
        A checked matrix, its split scaled to the people there are.

    Raises:
        UsageError: no such preset, or a value that cannot work.
        InputError: the data cannot be read.
    """
    tree = _read(name)
    wanted: dict[str, Any] = tree.pop("set", {})
    split = SplitConfig(**wanted.pop("split", {}))
    total = split.background + split.attacker + split.test
    if people is not None and people < 2:
        raise UsageError(f"{people} people are too few to evaluate on; give at least 2")
    faces = open_set(data, layout=layout, labels=labels, identity=identity)
    limit = min(people or total, total, faces.identities)
    where = {key: None if path is None else str(path) for key, path in (("labels", labels), ("attributes", attributes))}
    tree["sets"] = [
        {
            **wanted,
            "name": faces.name,
            "path": str(data),
            "layout": layout,
            "labels": where["labels"],
            "identity": identity,
            "limit_people": max(2, limit),
            "size": size or wanted.get("size", 128),
            "aligned": aligned,
            "split": scaled(split, limit).model_dump(),
        }
    ]
    given = {"recognisers": list(judges) or None, "detector": detector, "attributes": where["attributes"], **more}
    tree.update({key: value for key, value in given.items() if value is not None})
    try:
        config = MatrixConfig.model_validate(tree)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"{'.'.join(str(part) for part in first['loc']) or name}: {first['msg']}") from None
    get_scenarios(config.scenarios)
    return config


def scaled(split: SplitConfig, people: int) -> SplitConfig:
    """The split of a protocol for fewer people than it asks for.

    All three parts shrink together, but not below what gives a figure at all: a quarter of the people, at most as many
    as the protocol has, are tested, and k-same finds its background.

    Args:
        split: of the protocol.
        people: there are.
    """
    total = split.background + split.attacker + split.test
    if people >= total:
        return split
    test = min(split.test, max(2, round(TESTED * people)))
    least = min(LEAST_BACKGROUND, split.background, people // 3)
    background = max(least, round(split.background * people / total))
    return split.model_copy(
        update={"background": background, "test": test, "attacker": max(0, people - background - test)}
    )


def _read(name: str) -> dict[str, Any]:
    from ficgan import configs

    if name not in configs.names("eval"):
        raise UsageError(f"there is no configuration {name!r}; there are {', '.join(configs.names('eval'))}")
    tree: dict[str, Any] = yaml.safe_load(configs.read(name, "eval"))
    tree.pop("paper", None)  # numbers of a paper's own protocol, which a matrix does not have
    if "sets" in tree:
        raise UsageError(f"the configuration {name} names its own sets; it takes no other data")
    return tree
