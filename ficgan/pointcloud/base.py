"""What an anonymiser of point clouds is: a function of a cloud, with 35 degrees, that repeats with its seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.registry import Parametrised, Registry

__all__ = ["CLOUD_ANONYMIZERS", "DEGREES", "CloudAnonymizer", "CloudTraits"]

DEGREES = range(1, 36)
"""Degrees of anonymisation (point-cloud thesis, table 4.2): 1 changes least."""


@dataclass(frozen=True)
class CloudTraits:
    """What is declared of an anonymiser, for tables and for attackers.

    Args:
        title: as a table says it.
        family: the thesis' category.
        source: section and algorithm.
        strength: the parameter that the degree rules.
        of_degree: degree → value of that parameter.
        stochastic: another seed gives another cloud.
        keeps_order: point i of the result is where point i of the source went.
        invertible: whoever guesses the parameter gets the cloud back.
        needs_target: a second face must be given by `with_target`.
        point_size: degree → marker area, points², that the thesis draws results with.
    """

    title: str
    family: str
    source: str
    strength: str
    of_degree: Callable[[int], float | int]
    stochastic: bool = False
    keeps_order: bool = True
    invertible: bool = False
    needs_target: bool = False
    point_size: Callable[[int], float] = lambda degree: 25.0


@dataclass(frozen=True)
class CloudAnonymizer(Parametrised):
    """A cloud in the canonical frame in, an anonymised one out; the input is not changed.

    A subclass is a frozen dataclass with `name`, `traits`, parameters made with `ficgan.registry.param`, and
    `__call__`.
    """

    traits: ClassVar[CloudTraits]
    seed: int = 0
    """Of what is drawn; of no effect for methods that draw nothing."""

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        """The anonymised cloud.

        Args:
            cloud: in the canonical frame; the inner part of a face (`ficgan.pointcloud.segments`), or any.
            name: of the cloud; what is drawn depends on the seed and this.

        Raises:
            InputError: a cloud the method cannot work on.
            UsageError: no target was given to a method that needs one.
        """
        raise NotImplementedError

    @classmethod
    def of_degree(cls, degree: int, **given: Any) -> Self:
        """The anonymiser at one of the 35 degrees.

        Args:
            degree: 1…35.
            given: other parameters, such as seed.

        Raises:
            UsageError: another degree, or parameters that cannot work.

        Source:
            Point-cloud thesis, table 4.2.
        """
        if degree not in DEGREES:
            raise UsageError(f"the degree is {degree}; give {DEGREES[0]} to {DEGREES[-1]}")
        return cls(**{cls.traits.strength: cls.traits.of_degree(degree), **given})

    def with_target(self, target: Cloud) -> Self:
        """The same anonymiser with a second face; methods that need none return themselves.

        Args:
            target: in the canonical frame.
        """
        return self


CLOUD_ANONYMIZERS: Registry[CloudAnonymizer] = Registry("point-cloud anonymiser")
"""By name; `ficgan.pointcloud` fills it."""
