"""The six anonymisers of point clouds, by name, with the 35 degrees of the point-cloud thesis (table 4.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Literal, Self, TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import Delaunay, QhullError

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud, closest, mean_of_neighbours, rounded_colors, sample_surface
from ficgan.pointcloud.geometry import Coarse, Registration, register
from ficgan.registry import Parametrised, Registry, param

DEGREES = range(1, 36)  # degrees of anonymisation: 1 changes least
_VOXEL_STEP = 0.00025  # metres by which a degree widens the voxels
_DRAWN_BY_X = 0.030  # metres; above this α the thesis draws the results of PMP in the order of x, not y
_FLATTEST = 1e-7  # ratio of the smallest to the largest extent of a cloud below which it has no inside


class Drawn(TypedDict):
    """How the projection draws a result."""

    point_size: float  # marker area, points²
    order: Literal["y", "x"]  # what is drawn last lies on top: "y", the highest; "x", the nearest


@dataclass(frozen=True)
class CloudTraits:
    """What is declared of an anonymiser, for tables and for attackers."""

    title: str  # for tables
    family: str  # the thesis' category
    source: str  # section and algorithm
    strength: str  # the parameter that the degree sets
    of_degree: Callable[[int], float | int]  # degree → value of that parameter
    stochastic: bool = False  # another seed gives another cloud
    keeps_order: bool = True  # point i of the result is where point i of the source went
    reversible_by: str = ""  # who can restore the cloud, such as "whoever has the target face"; "": nobody known
    needs_target: bool = False  # a second face must be given by `with_target`
    # value of that parameter → marker area, points², that the thesis draws results with (§4.3.3)
    point_size: Callable[[float], float] = lambda value: 25.0
    # value of that parameter → order in which it draws them
    order_of: Callable[[float], Literal["y", "x"]] = lambda value: "y"


@dataclass(frozen=True)
class CloudAnonymizer(Parametrised):
    """A cloud in the canonical frame in, an anonymised one out; the input is not changed."""

    traits: ClassVar[CloudTraits]
    seed: int | None = None
    """Of random draws. None: from the system's entropy, so no two results are alike. With a number results repeat, and
    whoever knows it and the cloud's name can draw the same again."""

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        """The anonymised cloud; random draws depend on the seed, the method and `name`."""
        raise NotImplementedError

    @classmethod
    def of_degree(cls, degree: int, **given: Any) -> Self:
        """The anonymiser at one of the 35 degrees, with other parameters, such as seed, as given."""
        if degree not in DEGREES:
            raise UsageError(f"the degree is {degree}; give {DEGREES[0]} to {DEGREES[-1]}")
        return cls(**{cls.traits.strength: cls.traits.of_degree(degree), **given})

    def draws(self, name: str) -> np.random.Generator:
        """The random generator of a call."""
        return np.random.default_rng() if self.seed is None else generator(self.seed, self.name, name)

    def drawn_with(self) -> Drawn:
        """How the thesis draws a result of this anonymiser (§4.3.3)."""
        value = getattr(self, self.traits.strength)
        return {"point_size": self.traits.point_size(value), "order": self.traits.order_of(value)}

    def with_target(self, target: Cloud) -> Self:
        """The same anonymiser with a second face in the canonical frame; methods that need none return themselves."""
        return self


CLOUD_ANONYMIZERS: Registry[CloudAnonymizer] = Registry("point-cloud anonymiser")


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class CentroidVoxel(CloudAnonymizer):
    """Each occupied voxel becomes one point at its centre, in the mean colour (thesis, §4.3.3.1)."""

    name: ClassVar[str] = "centroid-voxel"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="CentroidVoxel",
        family="sampling",
        source="point-cloud thesis, §3.2.2.1, Algorithm 1",
        strength="size",
        of_degree=lambda degree: _VOXEL_STEP * degree,
        keeps_order=False,
        point_size=lambda size: float(np.clip(25.0 + 30.0 * (size / _VOXEL_STEP - 1) / 34, 25.0, 55.0)),
    )
    size: float = param(0.005, "side of a voxel, metres", low=1e-9)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(1, "CentroidVoxel")
        origin = cloud.points.min(axis=0) - self.size * 0.5
        cells = np.floor((cloud.points - origin) / self.size)
        extent = cells.max(axis=0) + 1
        if extent.prod() >= 2.0**62:
            raise InputError(
                f"the cloud is {np.ptp(cloud.points, axis=0).max():.3g} m wide, too wide for voxels of {self.size} m; "
                "give its coordinates in metres, or a larger size"
            )
        shape = tuple(extent.astype(int).tolist())
        numbers = np.ravel_multi_index(tuple(cells.astype(np.int64).T), shape)
        voxels, voxel_of, counts = np.unique(numbers, return_inverse=True, return_counts=True)
        points = origin + (np.stack(np.unravel_index(voxels, shape), axis=1) + 0.5) * self.size
        if cloud.colors is None:
            return Cloud(points)
        sums = np.stack([np.bincount(voxel_of, weights=channel) for channel in cloud.colors.T], axis=1)
        return Cloud(points, rounded_colors(sums / counts[:, None]))


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class UniformNoise(CloudAnonymizer):
    """Each coordinate is moved by a draw from U(0, b), less its mean; colours stay (thesis, §4.3.3.2).

    A seed and the cloud's name draw the same directions at every b, so whoever knows both can undo it.
    """

    name: ClassVar[str] = "uniform-noise"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="UniformNoise",
        family="noise",
        source="point-cloud thesis, §3.2.2.2, Algorithm 2",
        strength="b",
        of_degree=lambda degree: 0.00064 * degree,
        stochastic=True,
        reversible_by="anyone with the seed, entirely; anyone, in part, by fitting a surface to the points",
    )
    b: float = param(0.01, "width of the noise's interval, metres", low=0.0)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(1, "UniformNoise")
        return cloud.with_points((self.draws(name).random(cloud.points.shape) - 0.5) * self.b + cloud.points)


def taper_function(x: NDArray[np.floating]) -> NDArray[np.float64]:
    """F(x) = sin²x + cos x (thesis, equation 4.4): 1 at 0, at most 1.25 (at ±π/3), 0 at ±2.237, negative beyond."""
    return np.asarray(np.sin(x) ** 2 + np.cos(x), np.float64)


def taper_factors(z: NDArray[np.floating], r: float) -> NDArray[np.float64]:
    """F at N evenly spaced values from −r to r, taken by the rank of z [N]; equal z are ranked in the order given."""
    factors = np.empty(len(z))
    factors[np.argsort(z, kind="stable")] = taper_function(np.linspace(-r, r, len(z)))
    return factors


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class Tapering(CloudAnonymizer):
    """x and y are multiplied by a function of the rank along z (thesis, §4.3.3.3); see `attack.untaper`."""

    name: ClassVar[str] = "tapering"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="Tapering",
        family="warping",
        source="point-cloud thesis, §3.2.2.3, Algorithm 3",
        strength="r",
        of_degree=lambda degree: 0.087 * degree,
        reversible_by="anyone: r can be guessed from the result alone",
    )
    r: float = param(1.0, "F is taken over [−r, r]", low=0.0)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(1, "Tapering")
        points = cloud.points.copy()
        points[:, :2] *= taper_factors(points[:, 2], self.r)[:, None]
        return cloud.with_points(points)


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class Merge2Faces(CloudAnonymizer):
    """Each point is drawn towards the nearest point of another face registered to it (thesis, §4.3.3.4).

    Colours are merged where both clouds have them, else left out. `attack.unmerge` reverses every weight below 1.
    """

    name: ClassVar[str] = "merge-2-faces"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="Merge2Faces",
        family="morphing",
        source="point-cloud thesis, §3.2.2.4, Algorithm 4",
        strength="weight",
        of_degree=lambda degree: 0.0285 * degree,
        needs_target=True,
        reversible_by="anyone with the target face, or with another's result of a high degree, unless the weight is 1",
    )
    weight: float = param(0.5, "weight of the target face", low=0.0, high=1.0)
    coarse: Literal["auto", "always", "never"] = param(
        "auto",
        "look for both faces before ICP: where they are not roughly aligned, always or never",
        choices=("auto", "always", "never"),
    )
    target: Cloud | None = field(default=None, repr=False, compare=False)  # given by `with_target`; no parameter

    def with_target(self, target: Cloud) -> Self:
        target.need(1, "the target of Merge2Faces")
        return replace(self, target=target)

    def registered(self, cloud: Cloud) -> Registration:
        """How the target is moved onto a source face; the last eight pairs are cached, so 35 weights register once."""
        if self.target is None:
            raise UsageError("merge-2-faces needs a target face; give one")
        cloud.need(1, "Merge2Faces")
        return _registered(cloud, self.target, self.coarse)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        transform = self.registered(cloud).transform
        assert self.target is not None
        target = self.target.moved(transform)
        rows = closest(target.points, cloud.points)[1]
        points = (1 - self.weight) * cloud.points + self.weight * target.points[rows]
        if cloud.colors is None or target.colors is None:
            return Cloud(points)
        mixed = (1 - self.weight) * cloud.colors + self.weight * target.colors[rows]
        return cloud.with_points(points, rounded_colors(mixed))


@lru_cache(maxsize=8)
def _registered(source: Cloud, target: Cloud, coarse: Coarse) -> Registration:
    return register(source, target, coarse=coarse)


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class SmoothKNN(CloudAnonymizer):
    """Each point becomes the mean of its k nearest, itself included, in place and colour (thesis, §4.3.3.5)."""

    name: ClassVar[str] = "smooth-knn"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="SmoothKNN",
        family="smoothing",
        source="point-cloud thesis, §3.2.2.5, Algorithm 5",
        strength="k",
        of_degree=lambda degree: 8 * degree,
        point_size=lambda k: 60.0,
        reversible_by="anyone, by half: k is found from the result, and much of the lost detail is put back",
    )
    k: int = param(80, "neighbours, the point itself included", low=1)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        cloud.need(self.k, f"SmoothKNN with k = {self.k}")
        if self.k == 1:
            return cloud.with_points(cloud.points.copy())
        if cloud.colors is None:
            return cloud.with_points(mean_of_neighbours(cloud.points, cloud.points, self.k))
        means = mean_of_neighbours(cloud.points, np.hstack([cloud.points, cloud.colors]), self.k)
        return cloud.with_points(means[:, :3], rounded_colors(means[:, 3:]))


@CLOUD_ANONYMIZERS.add
@dataclass(frozen=True)
class PMP(CloudAnonymizer):
    """Point-mesh-point: points sampled on the cloud's α-shape, with interpolated colours (thesis, §4.3.3.6).

    A small α leaves scraps, or nothing, which is an error; a huge one the convex hull.
    """

    name: ClassVar[str] = "pmp"
    traits: ClassVar[CloudTraits] = CloudTraits(
        title="PMP",
        family="point operations",
        source="point-cloud thesis, §3.2.2.6, Algorithm 6",
        strength="alpha",
        of_degree=lambda degree: 0.00215 * degree,
        stochastic=True,
        keeps_order=False,
        order_of=lambda alpha: "x" if alpha > _DRAWN_BY_X else "y",
    )
    alpha: float = param(0.02, "largest circumradius of a tetrahedron that is kept, metres", low=0.0)
    n: int = param(10_352, "points of the result", low=1)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        triangles = alpha_shape(cloud, self.alpha)
        if not len(triangles):
            raise InputError(
                f"PMP with alpha = {self.alpha:g} leaves nothing of the cloud: every tetrahedron of its points has "
                "a larger circumradius; raise alpha (the thesis starts at degree 3)"
            )
        rows, weights = sample_surface(cloud.points, triangles, self.n, self.draws(name))
        points = np.einsum("nc,ncd->nd", weights, cloud.points[rows])
        if cloud.colors is None:
            return Cloud(points)
        return Cloud(points, rounded_colors(np.einsum("nc,ncd->nd", weights, cloud.colors[rows])))


def alpha_shape(cloud: Cloud, alpha: float) -> NDArray[np.int32]:
    """Triangles [F,3], rows of the points, of the α-shape; none where α is too small, the convex hull at ∞.

    They bound the Delaunay tetrahedra with a circumradius of at most α (Edelsbrunner and Mücke 1994), as in Open3D.
    """
    corners, neighbours, radii = _tetrahedra(cloud)
    kept = radii <= alpha
    ours = np.flatnonzero(kept)
    beyond = neighbours[ours]
    row, opposite = np.nonzero((beyond < 0) | ~kept[beyond])
    sides = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])
    return np.sort(np.take_along_axis(corners[ours[row]], sides[opposite], axis=1), axis=1)


@lru_cache(maxsize=4)
def _tetrahedra(cloud: Cloud) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.float64]]:
    """Delaunay tetrahedra: corners [T,4]; the tetrahedron opposite each, −1 outside; radii."""
    cloud.need(4, "a tetrahedron")
    points = cloud.points
    spread = points - points[0]
    widths = np.sqrt(np.linalg.svd(spread.T @ spread, compute_uv=False))
    rank = int((widths > _FLATTEST * widths[0]).sum())
    if rank < 3:
        shape = ("are all the same", "lie on a line", "lie in a plane")[rank]
        raise InputError(
            f"the cloud's {len(points)} points {shape}: there are no tetrahedra between them; give a surface"
        )
    points = points - points.mean(axis=0)
    try:
        mesh = Delaunay(points)
    except QhullError as error:
        raise InputError(f"the cloud's {len(points)} points lie too nearly in a plane for tetrahedra") from error
    corners = points[mesh.simplices]
    e, f, g = (corners[:, corner] - corners[:, 0] for corner in (1, 2, 3))
    fg, ge, ef = np.cross(f, g), np.cross(g, e), np.cross(e, f)
    volume = np.abs((e * fg).sum(axis=1))
    numerator = sum((edge * edge).sum(axis=1, keepdims=True) * across for edge, across in ((e, fg), (f, ge), (g, ef)))
    with np.errstate(divide="ignore", invalid="ignore"):
        radii = np.where(volume > 0, np.linalg.norm(numerator, axis=1) / (2 * volume), np.inf)
    return mesh.simplices, mesh.neighbors, radii
