"""The six anonymisers of point clouds with the 35 strengths (degrees) of the thesis (table 4.2), and their inverses."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import Delaunay, QhullError

from ficgan.anonymizers.base import generator
from ficgan.errors import InputError, UsageError
from ficgan.pointcloud.cloud import Cloud, Points, closest, mean_of_neighbours, sample_surface, voxels
from ficgan.pointcloud.geometry import Registration, register
from ficgan.registry import Parametrised, Registry, param

STRENGTHS = range(1, 36)  # strengths of anonymisation: 1 changes least
_VOXEL_STEP = 0.00025  # metres by which a strength widens the voxels
_DRAWN_BY_X = 0.030  # metres; above this α the thesis draws the results of PMP in the order of x, not y


@dataclass(frozen=True)
class CloudTraits:
    """What is declared of an anonymiser, for tables and for attackers."""

    title: str  # for tables
    family: str  # the thesis' category
    algorithm: int  # the thesis' number
    parameter: str  # that the strength sets
    step: float  # of that parameter, for each strength
    stochastic: bool = False  # another seed gives another cloud
    needs_target: bool = False  # a second face must be given by `with_target`

    @property
    def source(self) -> str:
        return f"point-cloud thesis, §3.2.2.{self.algorithm}, Algorithm {self.algorithm}"

    def of_strength(self, strength: int) -> float:
        """Value of the parameter at one of the 35 strengths."""
        return self.step * strength


@dataclass(frozen=True)
class CloudAnonymizer(Parametrised):
    """A cloud in the canonical frame in, an anonymised one out; the input is not changed."""

    traits: ClassVar[CloudTraits]
    reversible_by: ClassVar[str] = ""  # who can restore the cloud; "": nobody known
    # Of random draws. None: from the system's entropy, so no two results are alike. With a number results repeat, and
    # whoever knows it and the cloud's name can draw the same again.
    seed: int | None = None

    @abstractmethod
    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        """The anonymised cloud; random draws depend on the seed, the method and `name`."""

    @classmethod
    def of_strength(cls, strength: int, **given: Any) -> Self:
        """The anonymiser at one of the 35 strengths, with other parameters, such as seed, as given."""
        if strength not in STRENGTHS:
            raise UsageError(f"the strength is {strength}; give {STRENGTHS[0]} to {STRENGTHS[-1]}")
        return cls(**{cls.traits.parameter: cls.traits.of_strength(strength), **given})

    def draws(self, name: str) -> np.random.Generator:
        """The random generator of a call."""
        return np.random.default_rng() if self.seed is None else generator(self.seed, self.name, name)

    def drawn_with(self) -> dict[str, Any]:
        """What `project` is given to draw a result of this anonymiser as the thesis does (§4.3.3)."""
        return {}

    def with_target(self, target: Cloud) -> Self:
        """The same anonymiser with a second face in the canonical frame; methods that need none return themselves."""
        return self


CLOUD_ANONYMIZERS: Registry[CloudAnonymizer] = Registry("point-cloud anonymiser")


@CLOUD_ANONYMIZERS.add
class CentroidVoxel(CloudAnonymizer):
    """Each occupied voxel becomes one point at its centre, in the mean colour (thesis, §4.3.3.1)."""

    size: float = param(0.005, "side of a voxel, metres", low=1e-9)

    name: ClassVar[str] = "centroid-voxel"
    traits: ClassVar[CloudTraits] = CloudTraits("CentroidVoxel", "sampling", 1, "size", _VOXEL_STEP)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        origin = cloud.points.min(axis=0) - self.size * 0.5
        if ((cloud.points.max(axis=0) - origin) / self.size + 1).prod() >= 2.0**62:
            raise InputError(f"the cloud is too wide for voxels of {self.size} m; give its coordinates in metres")
        cubes, means = voxels(cloud.columns, self.size, origin)
        return Cloud.of_columns(np.hstack([origin + (cubes + 0.5) * self.size, means[:, 3:]]))

    def drawn_with(self) -> dict[str, Any]:
        size = 25.0 + 30.0 * (self.size / _VOXEL_STEP - 1) / 34
        return {"point_size": float(np.clip(size, 25.0, 55.0))}


@CLOUD_ANONYMIZERS.add
class UniformNoise(CloudAnonymizer):
    """Each coordinate is moved by a draw from U(0, b), less its mean; colours stay (thesis, §4.3.3.2).

    A seed and the cloud's name draw the same directions at every b, so whoever knows both can undo it.
    """

    b: float = param(0.01, "width of the noise's interval, metres", low=0.0)

    name: ClassVar[str] = "uniform-noise"
    traits: ClassVar[CloudTraits] = CloudTraits("UniformNoise", "noise", 2, "b", 0.00064, stochastic=True)
    reversible_by = "anyone with the seed, entirely; anyone, in part, by fitting a surface to the points"

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        return replace(cloud, points=(self.draws(name).random(cloud.points.shape) - 0.5) * self.b + cloud.points)


def taper_factors(z: NDArray[np.floating], r: float) -> NDArray[np.float64]:
    """F(x) = sin²x + cos x (thesis, equation 4.4) at N even steps from −r to r, taken by the rank of z [N].

    F is 1 at 0, at most 1.25 (at ±π/3), 0 at ±2.237, negative beyond; equal z are ranked in the order given.
    """
    x = np.linspace(-r, r, len(z))
    factors = np.empty(len(z))
    factors[np.argsort(z, kind="stable")] = np.sin(x) ** 2 + np.cos(x)
    return factors


@CLOUD_ANONYMIZERS.add
class Tapering(CloudAnonymizer):
    """x and y are multiplied by a function of the rank along z (thesis, §4.3.3.3); see `untaper`."""

    r: float = param(1.0, "F is taken over [−r, r]", low=0.0)

    name: ClassVar[str] = "tapering"
    traits: ClassVar[CloudTraits] = CloudTraits("Tapering", "warping", 3, "r", 0.087)
    reversible_by = "anyone: r can be guessed from the result alone"

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        points = cloud.points.copy()
        points[:, :2] *= taper_factors(points[:, 2], self.r)[:, None]
        return replace(cloud, points=points)


@CLOUD_ANONYMIZERS.add
class Merge2Faces(CloudAnonymizer):
    """Each point is drawn towards the nearest point of another face registered to it (thesis, §4.3.3.4).

    Colours are merged where both clouds have them, else left out. `unmerge` reverses every weight below 1.
    """

    weight: float = param(0.5, "weight of the target face", low=0.0, high=1.0)
    target: Cloud | None = field(default=None, repr=False, compare=False)  # given by `with_target`; no parameter

    name: ClassVar[str] = "merge-2-faces"
    traits: ClassVar[CloudTraits] = CloudTraits("Merge2Faces", "morphing", 4, "weight", 0.0285, needs_target=True)
    reversible_by = "anyone with the target face, or another's result of a high strength, unless the weight is 1"

    def with_target(self, target: Cloud) -> Self:
        return replace(self, target=target)

    def registered(self, cloud: Cloud) -> Registration:
        """How the target is moved onto a source face; the last eight pairs are cached, so 35 weights register once."""
        if self.target is None:
            raise UsageError("merge-2-faces needs a target face; give one")
        return _registered(cloud, self.target)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        transform = self.registered(cloud).transform
        assert self.target is not None
        target = self.target.moved(transform)
        other = target.take(closest(target.points, cloud.points)[1]).columns
        width = min(cloud.columns.shape[1], other.shape[1])
        return Cloud.of_columns((1 - self.weight) * cloud.columns[:, :width] + self.weight * other[:, :width])


@lru_cache(maxsize=8)
def _registered(source: Cloud, target: Cloud) -> Registration:
    return register(source, target)


@CLOUD_ANONYMIZERS.add
class SmoothKNN(CloudAnonymizer):
    """Each point becomes the mean of its k nearest, itself included, in place and colour (thesis, §4.3.3.5)."""

    k: int = param(80, "neighbours, the point itself included", low=1)

    name: ClassVar[str] = "smooth-knn"
    traits: ClassVar[CloudTraits] = CloudTraits("SmoothKNN", "smoothing", 5, "k", 8)
    reversible_by = "anyone, by half: k is found from the result, and much of the lost detail is put back"

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        return Cloud.of_columns(mean_of_neighbours(cloud.points, cloud.columns, self.k))

    def drawn_with(self) -> dict[str, Any]:
        return {"point_size": 60.0}


@CLOUD_ANONYMIZERS.add
class PMP(CloudAnonymizer):
    """Point-mesh-point: points sampled on the cloud's α-shape, with interpolated colours (thesis, §4.3.3.6).

    A small α leaves scraps, or nothing, which is an error; a huge one the convex hull. Results that are drawn in the
    order of x the thesis also resizes against swelling, by a factor that it does not give; here they keep their size.
    """

    alpha: float = param(0.02, "largest circumradius of a tetrahedron that is kept, metres", low=0.0)
    n: int = param(10_352, "points of the result", low=1)

    name: ClassVar[str] = "pmp"
    traits: ClassVar[CloudTraits] = CloudTraits("PMP", "point operations", 6, "alpha", 0.00215, stochastic=True)

    def __call__(self, cloud: Cloud, *, name: str = "") -> Cloud:
        triangles = alpha_shape(cloud, self.alpha)
        if not len(triangles):
            raise InputError(
                f"PMP with alpha = {self.alpha:g} leaves nothing of the cloud; raise alpha (the thesis starts at "
                "strength 3)"
            )
        rows, weights = sample_surface(cloud.points, triangles, self.n, self.draws(name))
        return Cloud.of_columns(np.einsum("nc,ncd->nd", weights, cloud.columns[rows]))

    def drawn_with(self) -> dict[str, Any]:
        return {"order": "x" if self.alpha > _DRAWN_BY_X else "y"}


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
    points = cloud.points - cloud.points.mean(axis=0)
    try:
        mesh = Delaunay(points)
    except QhullError as error:
        flat = f"the cloud's {len(cloud)} points lie in a plane, and have no tetrahedra between them; give a surface"
        raise InputError(flat) from error
    corners = points[mesh.simplices]
    e, f, g = (corners[:, corner] - corners[:, 0] for corner in (1, 2, 3))
    fg, ge, ef = np.cross(f, g), np.cross(g, e), np.cross(e, f)
    volume = np.abs((e * fg).sum(axis=1))
    numerator = sum((edge * edge).sum(axis=1, keepdims=True) * across for edge, across in ((e, fg), (f, ge), (g, ef)))
    with np.errstate(divide="ignore", invalid="ignore"):
        radii = np.where(volume > 0, np.linalg.norm(numerator, axis=1) / (2 * volume), np.inf)
    return mesh.simplices, mesh.neighbors, radii


# -- inverses, for whoever knows the parameter ------------------------------------------------------------------------

_ITERATIONS = 4  # of van Cittert's; with more, errors in the neighbours grow
_BESIDE = 1e-4  # metres; a point nearer to another target point than to its own by more was not brought back
_GRAIN = 20.0  # levels of noise in colours above which neighbours are averaged


def untaper(cloud: Cloud, r: float, *, floor: float = 1e-3) -> Cloud:
    """The source of a cloud, exactly what was tapered together, as ranks along z are counted (thesis, eq. 3.2).

    Where |F| is below `floor` a point stays: it was drawn so close to the z axis that nothing comes back.
    """
    factors = taper_factors(cloud.points[:, 2], r)
    lost = np.abs(factors) < floor
    points = cloud.points.copy()
    points[:, :2] /= np.where(lost, 1.0, factors)[:, None]
    return replace(cloud, points=points)


def unsmooth(cloud: Cloud, k: int) -> Cloud:
    """The source of a cloud smoothed with k, in part: van Cittert's iteration (Biemond et al. 1990, §III).

    Neighbours are those found so far, which is why the steps are few; it ends where a step leaves more missing.
    """
    points, missing = cloud.points, cloud.points - mean_of_neighbours(cloud.points, cloud.points, k)
    for _ in range(_ITERATIONS):
        further = points + missing
        still = cloud.points - mean_of_neighbours(further, further, k)
        if np.square(still).sum() >= np.square(missing).sum():
            break
        points, missing = further, still
    levels = cloud.columns[:, 3:]
    return Cloud.of_columns(np.hstack([points, 2 * levels - mean_of_neighbours(points, levels, k)]))


def unmerge(cloud: Cloud, weight: float, target: Cloud, transform: Points) -> Cloud:
    """The source of a merged cloud: thesis, Algorithm 4, line 5, solved for the source.

    A point moves straight towards its nearest target point, which is then the nearest to the result, too. Colours come
    back to ±½ / (1 − weight) levels. Points that do not come back lie where they were. `cloud` is the anonymised face
    alone, in the frame it was merged in; `transform` [4,4] laid the target on the source.
    """
    if not 0 <= weight < 1:
        raise UsageError(f"the weight to take back is {weight}; give 0 or more, below 1 (at 1 the source is gone)")
    there, more = target.moved(transform), weight / (1 - weight)
    rows = closest(there.points, cloud.points)[1]
    points = cloud.points + more * (cloud.points - there.points[rows])
    own = np.linalg.norm(points - there.points[rows], axis=1)
    lost = own > closest(there.points, points)[0] + _BESIDE
    points[lost] = cloud.points[lost]
    if cloud.colors is None or target.colors is None:
        return replace(cloud, points=points)
    levels = cloud.colors + more * (cloud.colors.astype(np.float64) - target.colors[rows])
    noise = np.sqrt(1 / 12) / (1 - weight)  # levels that rounding to whole ones has become
    count = min(int(np.ceil((noise / _GRAIN) ** 2)), len(points))
    return Cloud.of_columns(np.hstack([points, mean_of_neighbours(points, levels, count)]))
