"""The configurations that come with the package, one YAML file each: of training here, of evaluations in `eval/`, of
attackers in `attack/`.
"""

from __future__ import annotations

from importlib.resources import files

__all__ = ["names", "read"]


def names(kind: str = "") -> list[str]:
    """Names of the configurations that come with the package, such as `tiny`, in alphabetical order.

    Args:
        kind: "" for training, "eval" for evaluations, "attack" for attackers to train.
    """
    folder = files(__name__).joinpath(kind) if kind else files(__name__)
    entries = (entry.name for entry in folder.iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))


def read(name: str, kind: str = "") -> str:
    """Text of one configuration.

    Args:
        name: one of `names(kind)`, without folder and without `.yaml`.
        kind: "" for training, "eval" for evaluations, "attack" for attackers to train.
    Returns:
        The YAML text.
    Raises:
        KeyError: there is no such configuration (`load_config` turns this into a sentence that lists those there are).
    """
    if name not in names(kind):
        raise KeyError(name)
    folder = files(__name__).joinpath(kind) if kind else files(__name__)
    return folder.joinpath(f"{name}.yaml").read_text(encoding="utf-8")
