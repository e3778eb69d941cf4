"""Fit the geometry and the linear appearance model from aligned faces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.arrays import blocks, ridge
from ficgan.errors import InputError, Progress, unheard
from ficgan.frame import HI, LO, Doubles, FaceShape, Floats, Readings, expression_numbers, rigid_fit
from ficgan.frame.appearance import LIGHT, AppearanceModel, layer_bands, look_features
from ficgan.frame.parts import frame_mask

# Penalties of what draws and lenders add to an embedding, of the mean variance; on held-out portraits .03 to .3 differ
# little for draws, and .3 was the best of four for lenders.
_DRAWN, _LENT = 0.1, 0.3
_ROWS = 512  # faces at a time


@dataclass(frozen=True)
class FitConfig:
    """Numbers of the fit.

    Args:
        size: side R of the textures.
        shapes, textures, lights: coefficients of shape, of texture, and of its smooth part, which is shadows.
        layers: L, bands of coefficients: first the light, then shape and texture from coarse to fine.
        ridge: penalty of the map that predicts the texture.
        trim: share of the faces, within each group and brightness, that components do not learn from: the worst
            explained.
        presence: least score of a mesh.
        sample, seed: most faces that the appearance is fitted to, by chance; more change it little.
        smooth: standard deviation of the blur that tells light from detail, frame units.
    """

    size: int = 128
    shapes: int = 20
    lights: int = 24
    textures: int = 136
    layers: int = 8
    ridge: float = 30.0
    trim: float = 0.3
    presence: float = 8.0
    sample: int = 10000
    smooth: float = 8.0
    seed: int = 0


def fit_shape(points: NDArray[Any], config: FitConfig) -> FaceShape:
    """The geometry of faces, from meshes [N,≥468,3] of clear faces in pixels of aligned 128² crops."""
    mesh = np.asarray(points, np.float64)[:, :468]
    mean = mesh.mean(0)
    for _ in range(4):
        mean = rigid_fit(mean, mesh).unposed(mesh).mean(0)
    pose = rigid_fit(mean, mesh)
    own = pose.unposed(mesh)
    numbers = expression_numbers(own)
    center, spread = numbers.mean(0), numbers.std(0)
    sd = np.array([pose.yaw.std(), pose.pitch.std()])
    none = np.zeros((1 + len(center) + 4, 468, 3), np.float32)
    half = FaceShape(*(np.asarray(a, np.float32) for a in (mean, mean[:, :2], center, spread, sd, none, none[:1])))
    ahead = np.abs(pose.yaw) < 0.25
    placed = half.read(mesh[ahead]).points[..., :2]
    terms = half.terms(pose, (numbers - center) / spread)
    rest = (own - mean).reshape(len(own), -1)
    moves = ridge(terms, rest, 5)
    rest = rest - terms @ moves
    _, _, vt = np.linalg.svd(rest[:: max(1, len(rest) // 6000)], full_matrices=False)
    deviation = (rest @ vt[: config.shapes].T).std(0)
    basis = deviation[:, None] * vt[: config.shapes]
    arrays = (mean, placed.mean(0), center, spread, sd, moves.reshape(-1, 468, 3), basis.reshape(-1, 468, 3))
    return FaceShape(*(np.asarray(a, np.float32) for a in arrays))


def fit_appearance(
    shape: FaceShape,
    read: Readings,
    textures: NDArray[np.uint8],
    groups: Sequence[str],
    kept: NDArray[Any],
    names: Sequence[str],
    config: FitConfig,
    progress: Progress = unheard,
) -> AppearanceModel:
    """The appearance model.

    Args:
        read: of the N faces.
        textures: uint8 [N,R,R,3].
        groups: N names; every group is trimmed by the same share, so that none is left out.
        kept: float [N,A], attributes that shall stay, by label; NaN where unknown.
    """
    count, wanted = len(textures), config.lights + config.textures
    if count < 4 * wanted:
        raise InputError(f"{count} faces are too few for {wanted} components: give at least four times as many.")
    looks = _looks(look_features(textures, read), kept)
    rng = np.random.default_rng(config.seed)
    sample = np.sort(rng.permutation(count)[: config.sample])
    read, textures, kept, count = read.take(sample), textures[sample], kept[sample], len(sample)
    zero, empty = np.zeros(LIGHT, np.float32), np.zeros((0, 0), np.float32)
    unknown: dict[str, Any] = dict.fromkeys(("predict", "components", "reader", "attributes", "give"), empty)
    unknown["bands"] = np.ones((1, 1), np.int64)  # reads textures and light; what it predicts comes with the fit
    half = AppearanceModel(shape, config.size, zero, zero + 1, looks=looks, **unknown)
    light = np.empty((count, LIGHT), np.float32)
    weight = np.sqrt(np.repeat(frame_mask(shape.front, config.size).ravel()[half.pixels], 3))
    weighted = np.empty((count, len(weight)), np.float32)
    for rows in blocks(count, _ROWS):
        seen = half.seen(textures[rows])
        light[rows] = half.read_light(seen)
        np.multiply(half.normalised(seen, light[rows]), weight, out=weighted[rows])
    light_mean, light_sd = light.mean(0), light.std(0)
    features = half.features(read.numbers, shape.turn(read.pose), (light - light_mean) / light_sd)
    strata = _strata([groups[row] for row in sample], light[:, :3].mean(1))
    predict, axes, coefficients, use = _explained(half, features, weighted, weight, strata, config, rng, progress)
    del weighted
    spread = coefficients.std(0)
    read, textures = read.take(use), textures[use]
    codes = np.concatenate([read.identity, coefficients / spread], 1).astype(np.float32)
    lights = slice(config.shapes, config.shapes + config.lights)
    reads, give = _attributes(codes, look_features(textures, read) @ looks.T, lights)
    model = replace(
        half,
        light_mean=light_mean,
        light_sd=light_sd,
        predict=(predict / weight).astype(np.float32),
        components=((axes / weight[:, None]).T * spread[:, None]).astype(np.float32),
        reader=(weight[:, None] * axes / spread).astype(np.float32),
        attributes=reads,
        give=give,
        bands=layer_bands(config.layers, config.shapes, config.lights, config.textures),
        names=tuple(names),
        lights=config.lights,
    )
    some = np.arange(0, len(codes), max(1, len(codes) // 2000))
    square: Any = 0.0
    for part in blocks(len(some), _ROWS):
        code, moment = model.encode(textures[some[part]], read.take(some[part]))
        square = square + np.square(model.residuals(textures[some[part]], code, moment)[0]).sum(0)
    return replace(model, usual=np.sqrt(square / len(some)).clip(0.02).astype(np.float32))


def _explained(
    half: AppearanceModel,
    features: Floats,
    weighted: Floats,
    weight: Floats,
    strata: NDArray[np.int64],
    config: FitConfig,
    rng: np.random.Generator,
    progress: Progress,
) -> tuple[Floats, Floats, Floats, NDArray[np.bool_]]:
    """The regression [F,3P] of weighted pixels [N,3P], axes [3P,T] of what it leaves, coefficients [M,T] of rows.

    And which M rows count: in each round but the last the worst explained faces of every stratum are left out.
    """
    use, rest = np.ones(len(weighted), bool), np.empty_like(weighted)
    rounds = 3 if config.trim else 1
    penalty = np.r_[0, np.full(features.shape[1] - 1, config.ridge)]  # the mean face is not to shrink
    for number in range(1, rounds + 1):
        progress(number - 1, rounds, "fitting")
        predict = ridge(features * use[:, None], weighted, penalty).astype(np.float32)
        for rows in blocks(len(weighted), _ROWS):  # in place, since each of these arrays has gigabytes
            np.subtract(weighted[rows], features[rows] @ predict, out=rest[rows])
        axes = _components(half, rest[use], weight, config, config.textures if number == rounds else 40, rng)
        coefficients = rest @ axes
        if number < rounds:
            error = np.einsum("ij,ij->i", rest, rest) - np.einsum("ij,ij->i", coefficients, coefficients)
            use = _kept(error, strata, 1 - config.trim)
    progress(rounds, rounds, "fitting")
    return predict, axes, coefficients[use], use


def _components(
    half: AppearanceModel, rest: Floats, weight: Floats, config: FitConfig, number: int, rng: np.random.Generator
) -> Floats:
    """Axes [3P,lights+number] of what is not predicted, [N,3P]: of its smooth part, then of what these leave in it."""
    some = rest[:: max(1, len(rest) // 3000)]
    light = _principal(_smoothed(half, some, weight, config), config.lights, rng)
    rest -= (rest @ light) @ light.T
    return np.concatenate([light, _principal(rest, number, rng)], 1)


def _smoothed(half: AppearanceModel, data: Floats, weight: Floats, config: FitConfig) -> Floats:
    """Rows [N,3P] of weighted pixels, blurred under the weight."""
    sigma = config.smooth * (config.size - 1) / float((HI[0] - LO[0] + HI[1] - LO[1]) / 2)
    plane = np.zeros((config.size * config.size, 3), np.float32)
    plane[half.pixels] = weight.reshape(-1, 3)
    below = cv2.GaussianBlur(plane.reshape(config.size, config.size, 3), (0, 0), sigma).reshape(-1, 3)[half.pixels]
    out = np.empty_like(data)
    for row, one in enumerate(data):
        plane[half.pixels] = one.reshape(-1, 3)
        blurred = cv2.GaussianBlur(plane.reshape(config.size, config.size, 3), (0, 0), sigma).reshape(-1, 3)
        out[row] = (blurred[half.pixels] / np.maximum(below, 1e-3)).ravel() * weight
    return out


def _principal(data: Floats, number: int, rng: np.random.Generator) -> Floats:
    """Principal axes [M,T] of rows [N,M]; Halko, Martinsson & Tropp 2011, algorithm 4.4 with two power iterations."""
    probe = rng.standard_normal((min(number + 30, len(data)), len(data))).astype(np.float32) @ data
    for _ in range(2):
        basis, _r = np.linalg.qr(probe.T)
        probe = (data @ basis).T @ data
    basis, _r = np.linalg.qr(probe.T)
    _, _, vt = np.linalg.svd(data @ basis, full_matrices=False)
    return basis @ vt[:number].T


def _looks(x: Floats, kept: NDArray[Any]) -> Floats:
    """Map that reads attributes, in standard deviations of its own readings, from `look_features`."""
    known = np.isfinite(kept).all(1)
    seen, wanted = x[known], (kept[known] - kept[known].mean(0)).astype(np.float32)
    maps = ridge(seen, wanted, 300).T
    return (maps / (seen @ maps.T).std(0)[:, None]).astype(np.float32)


def _attributes(codes: Floats, kept: NDArray[Any], lights: slice) -> tuple[Floats, Floats]:
    """Maps that read attributes from codes, and that give them to codes, whose light stays as it is."""
    x, y = codes.astype(np.float64), kept.astype(np.float64)
    x0, y0 = x.mean(0), y.mean(0)
    spread = (x - x0).T @ (x - x0) / len(x)
    reads = np.linalg.solve(spread + 0.01 * np.eye(x.shape[1]), (x - x0).T @ (y - y0) / len(x)).T
    reads = reads / (x @ reads.T).std(0)[:, None]
    cross = spread @ reads.T
    cross[lights] = 0
    return reads.astype(np.float32), np.linalg.solve(reads @ cross, cross.T).T.astype(np.float32)


def _strata(groups: Sequence[str], brightness: Floats) -> NDArray[np.int64]:
    """Number of the stratum of each face: its group, and which fifth of the brightness."""
    _, who = np.unique(np.asarray(groups), return_inverse=True)
    fifth = np.searchsorted(np.quantile(brightness, (0.2, 0.4, 0.6, 0.8)), brightness)
    return who * 5 + fifth


def _kept(error: NDArray[Any], strata: NDArray[np.int64], share: float) -> NDArray[np.bool_]:
    keep = np.zeros(len(error), bool)
    for one in np.unique(strata):
        rows = np.flatnonzero(strata == one)
        keep[rows] = error[rows] <= np.quantile(error[rows], share)
    return keep


def telling_map(codes: Floats, embeddings: Floats, lights: slice, gain: float, penalty: float = 0.01) -> Floats:
    """Map [D,D] to the part of a code that tells people apart, strengthened: M = g·C^½ Σ^−½.

    Σ is the covariance of the codes [N,D], C that of the part of them that a recogniser's embedding [N,E] explains.
    Codes drawn with covariance Σ then have g²·C: they vary as people do in what a recogniser sees, and in nothing else.
    Each half of the faces is regressed on the embedding, and C is the covariance between what the two maps explain:
    without chance.

    Args:
        lights: coefficients that stay as they are.
        gain: g.
        penalty: of the regressions and of the root, of the mean variance.
    """
    kept = np.delete(np.arange(codes.shape[1]), lights)
    x, seen = codes[:, kept].astype(np.float64), embeddings.astype(np.float64)
    seen /= np.linalg.norm(seen, axis=1, keepdims=True)
    x, seen = x - x.mean(0), seen - seen.mean(0)

    def explained(half: slice) -> Doubles:
        return seen @ ridge_map(seen[half], x[half], penalty)

    shared = explained(np.s_[::2]).T @ explained(np.s_[1::2]) / len(x)
    square = x.T @ x / len(x)
    covariance = square + penalty * np.trace(square) / len(square) * np.eye(len(square))
    out = np.eye(codes.shape[1])
    out[np.ix_(kept, kept)] = gain * _power((shared + shared.T) / 2, 0.5) @ _power(covariance, -0.5)
    return out.astype(np.float32)


def gate_map(
    codes: Floats, lenders: NDArray[np.int64], embeddings: Floats, sources: Floats, lights: slice, count: int
) -> tuple[Floats, Floats]:
    """What the gate sees of new faces: a usual embedding and what codes add to it [1+D,E]; what lenders add [S,E].

    Draws for one source share its hair, expression and light, so only their differences count.

    Args:
        codes: [N,M,D], of M draws for each of N sources; lenders: [N,M], who lends to them, of `count`.
        embeddings: [N,M,E], of the finished faces; sources: [N,E], of the sources.
        lights: coefficients that add nothing.
    """
    lend = lenders[..., None] == np.arange(count)
    own, lent, seen = (
        (rows - rows.mean(1, keepdims=True, dtype=np.float64)).reshape(-1, rows.shape[-1])
        for rows in (codes, lend, embeddings)
    )
    own[:, lights] = 0
    effect = ridge_map(own, seen, _DRAWN)
    lender = ridge_map(lent, seen - own @ effect, _LENT)
    return np.vstack([sources.mean(0), effect]).astype(np.float32), lender.astype(np.float32)


def ridge_map(x: Doubles, y: Doubles, penalty: float) -> Doubles:
    """`ridge` whose penalty is a share of x's mean square."""
    return ridge(x, y, penalty * float(np.square(x).sum()) / x.shape[1])


def _power(symmetric: Doubles, exponent: float) -> Doubles:
    """Power of a symmetric matrix; negative eigenvalues count as 0."""
    values, vectors = np.linalg.eigh(symmetric)
    return (vectors * np.maximum(values, 0) ** exponent) @ vectors.T
