"""Merge2Faces: each point is drawn towards the nearest point of another face that was registered to it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ficgan.errors import UsageError
from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud
from ficgan.pointcloud.methods.colours import rounded_colors
from ficgan.registry import param

if TYPE_CHECKING:
    from ficgan.pointcloud.registration import Registration

__all__ = ["Merge2Faces"]


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class Merge2Faces(CloudAnonymizer):
    """Morphing towards a target face: weight 0 changes nothing, at weight 1 every point lies on the target.

    Colours are merged where both clouds have them; else the result has none, for those of the source alone would be
    its photo, untouched.

    At every weight below 1 it is taken back by whoever has the target (`ficgan.pointcloud.attack.unmerge`): points move
    towards the target in a straight line, so the target point nearest to the result was the nearest to the source.

    Source:
        Point-cloud thesis, §3.2.2.4, Algorithm 4, and §4.3.3.4: the clouds were aligned already, and needed no global
        registration before point-to-plane ICP; fitness and RMSE are taken at 5 mm.
    """

    name: ClassVar[str] = "merge-2-faces"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="Merge2Faces",
        family="morphing",
        source="point-cloud thesis, §3.2.2.4, Algorithm 4",
        strength="weight",
        of_degree=lambda degree: 0.0285 * degree,
        needs_target=True,
        reversible_by="whoever has the target face, or what others became with it at a high degree, below weight 1",
    )
    weight: float = param(0.5, "weight of the target face", low=0.0, high=1.0)
    coarse: Literal["auto", "always", "never"] = param(
        "auto",
        "global registration before ICP: where the clouds are not roughly aligned, always or never",
        choices=("auto", "always", "never"),
    )
    target: Cloud | None = field(default=None, repr=False, compare=False)
    """Given by `with_target`; no parameter."""

    def with_target(self, target: Cloud) -> Self:
        target.need(1, "the target of Merge2Faces")
        return replace(self, target=target)

    def registered(self, cloud: Cloud) -> Registration:
        """How the target is moved onto a cloud; the last eight pairs are remembered, so that 35 weights register once.

        Args:
            cloud: the source face.

        Raises:
            UsageError: there is no target.
            InputError: clouds that cannot be registered.
        """
        if self.target is None:
            raise UsageError("merge-2-faces needs a target face; give one")
        cloud.need(1, "Merge2Faces")
        return _registered(_Pair((_bytes(cloud), _bytes(self.target)), self.coarse, cloud, self.target))

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        from ficgan.pointcloud.neighbours import search

        target = (self.target or cloud).moved(self.registered(cloud).transform)
        nearest = search(target.points, cloud.points)[1][:, 0]
        points = (1 - self.weight) * cloud.points + self.weight * target.points[nearest]
        if cloud.colors is None or target.colors is None:
            return Cloud(points)
        mixed = (1 - self.weight) * cloud.colors + self.weight * target.colors[nearest]
        return cloud.with_points(points, rounded_colors(mixed))


@dataclass(frozen=True)
class _Pair:
    """What is registered, known again by its bytes alone."""

    key: tuple[bytes, bytes]
    coarse: Literal["auto", "always", "never"]
    source: Cloud = field(compare=False)
    target: Cloud = field(compare=False)


def _bytes(cloud: Cloud) -> bytes:
    normals = b"" if cloud.normals is None else cloud.normals.tobytes()
    return cloud.points.tobytes() + normals


@lru_cache(maxsize=8)
def _registered(pair: _Pair) -> Registration:
    from ficgan.pointcloud.registration import register

    return register(pair.source, pair.target, coarse=pair.coarse)
