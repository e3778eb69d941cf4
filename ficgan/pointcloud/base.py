"""What an anonymiser of point clouds is: a function of a cloud, with 35 degrees, that repeats if it is given a seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, TypedDict

import numpy as np

from ficgan.anonymizers.base import generator
from ficgan.errors import UsageError
from ficgan.pointcloud.cloud import Cloud
from ficgan.registry import Parametrised, Registry

__all__ = ["CLOUD_ANONYMIZERS", "DEGREES", "CloudAnonymizer", "CloudTraits", "Drawn"]

DEGREES = range(1, 36)
"""Degrees of anonymisation (point-cloud thesis, table 4.2): 1 changes least."""


class Drawn(TypedDict):
    """Settings of the projection that a result is drawn with.

    Args:
        point_size: marker area, points².
        order: what is drawn last lies on top: "y", the highest; "x", the nearest.
    """

    point_size: float
    order: Literal["y", "x"]


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
        reversible_by: who gets the cloud back from the result, such as "whoever has the target face"; "": nobody known.
        needs_target: a second face must be given by `with_target`.
        point_size: value of that parameter → marker area, points², that the thesis draws results with.
        order_of: value of that parameter → order in which it draws them.
    """

    title: str
    family: str
    source: str
    strength: str
    of_degree: Callable[[int], float | int]
    stochastic: bool = False
    keeps_order: bool = True
    reversible_by: str = ""
    needs_target: bool = False
    point_size: Callable[[float], float] = lambda value: 25.0
    order_of: Callable[[float], Literal["y", "x"]] = lambda value: "y"


@dataclass(frozen=True)
class CloudAnonymizer(Parametrised):
    """A cloud in the canonical frame in, an anonymised one out; the input is not changed.

    A subclass is a frozen dataclass with `name`, `traits`, parameters made with `ficgan.registry.param`, and
    `__call__`.
    """

    traits: ClassVar[CloudTraits]
    seed: int | None = None
    """Of what is drawn. None: nobody can know it, and no two results are alike. A number makes results repeat, and
    whoever knows it and the cloud's name can draw the same again."""

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        """The anonymised cloud.

        Args:
            cloud: in the canonical frame; the inner part of a face (`ficgan.pointcloud.segments`), or any.
            name: of the cloud; what is drawn depends on the seed, the method and this.

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

    def draws(self, name: str) -> np.random.Generator:
        """Where a call takes what it draws from: the seed, the method and the cloud's name, or the system's entropy.

        Args:
            name: of the cloud.
        """
        return np.random.default_rng() if self.seed is None else generator(self.seed, self.name, name)

    def drawn_with(self) -> Drawn:
        """How the thesis draws a result of this anonymiser (§4.3.3), by its own parameter."""
        value = getattr(self, self.traits.strength)
        return {"point_size": self.traits.point_size(value), "order": self.traits.order_of(value)}

    def with_target(self, target: Cloud) -> Self:
        """The same anonymiser with a second face; methods that need none return themselves.

        Args:
            target: in the canonical frame.
        """
        return self


CLOUD_ANONYMIZERS: Registry[CloudAnonymizer] = Registry("point-cloud anonymiser")
"""By name; `ficgan.pointcloud` fills it."""
