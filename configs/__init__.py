"""The configurations that come with the package: one YAML file each, read by `ficgan.config.load_config`."""

from __future__ import annotations

from importlib.resources import files

__all__ = ["names", "read"]


def names() -> list[str]:
    """Names of the configurations that come with the package, such as `tiny`, in alphabetical order."""
    entries = (entry.name for entry in files(__name__).iterdir())
    return sorted(name.removesuffix(".yaml") for name in entries if name.endswith(".yaml"))


def read(name: str) -> str:
    """Text of one configuration.

    Args:
        name: one of `names()`, without folder and without `.yaml`.
    Returns:
        The YAML text.
    Raises:
        KeyError: there is no such configuration (`load_config` turns this into a sentence that lists those there are).
    """
    if name not in names():
        raise KeyError(name)
    return files(__name__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
