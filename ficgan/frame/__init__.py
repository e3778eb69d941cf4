"""Faces in a canonical frame: head pose, a few numbers of expression, and the warp between frame and photo.

The frame is the mean face, seen from the front. Its unit is a 128th of the side of the five-point template's crop, so
that a frame coordinate is a pixel of a 128² crop. A photo is brought to *upright* coordinates first: the head's roll,
size and place are taken out by a similarity, and yaw and pitch stay. Everything here is pure NumPy and batched;
`ficgan.training.frame_faces` holds the same warp with gradients.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from ficgan.faces.mesh import FACE_OVAL, MESH_POINTS

Floats = NDArray[np.float32]

Doubles = NDArray[np.float64]
# Corners of the part of the template's crop that the frame covers.
LO, HI = (4.0, 1.0), (124.0, 127.0)

# What a published face says of the moment besides yaw and pitch.
NUMBERS = ("mouth opening", "mouth width", "mouth corners", "lids", "brows", "frown")
LIDS = NUMBERS.index("lids")

# Pixels of the frame whose spline is computed at once; all of them would take 180 MiB.
_STRIP = 512
# Of Newton's method.
_STEPS = 5
# How far a warp may miss the points of a mesh, against its own noise.
_SMOOTH = 10.0
# Frame units over which the source's own outline gives way to the published shape.
_RIM = 7.0


@dataclass(frozen=True, eq=False)
class Pose:
    """Similarity in space that brings the mean face onto each mesh: point = scale · R · mean + shift.

    Args: scale float64 [B], photo pixels per frame unit; rotation [B,3,3]; shift [B,3].
    """

    scale: Doubles
    rotation: Doubles
    shift: Doubles

    # Yaw, then pitch, then roll, each about the camera's axis: a photo that is turned changes roll and nothing else.
    @property
    def yaw(self) -> Doubles:
        """Turn about the upright axis, radians [B]."""
        return np.arctan2(-self.rotation[:, 2, 0], self.rotation[:, 2, 2])

    @property
    def pitch(self) -> Doubles:
        """Nod, radians [B]."""
        r = self.rotation
        return np.arctan2(r[:, 2, 1], np.hypot(r[:, 2, 0], r[:, 2, 2]))

    @property
    def roll(self) -> Doubles:
        """Turn in the image plane, radians [B]."""
        return np.arctan2(-self.rotation[:, 0, 1], self.rotation[:, 1, 1])

    def unposed(self, points: NDArray[Any]) -> Doubles:
        """Meshes [B,N,3] brought back into the mean face's place."""
        return np.einsum("bij,bni->bnj", self.rotation, points - self.shift[:, None]) / self.scale[:, None, None]

    def posed(self, points: NDArray[Any]) -> Doubles:
        """Meshes [B,N,3] in the mean face's place, brought where this pose has them."""
        return self.scale[:, None, None] * np.einsum("bij,bnj->bni", self.rotation, points) + self.shift[:, None]


def rigid_fit(mean: NDArray[Any], points: NDArray[Any]) -> Pose:
    """The least-squares similarity from one mesh [N,3] to each of several [B,N,3] (Umeyama 1991, eqs. 40-42)."""
    a = np.asarray(mean, np.float64)
    b = np.asarray(points, np.float64)
    a0, b0 = a.mean(0), b.mean(1)
    u, s, vt = np.linalg.svd(np.einsum("bnk,nj->bkj", b - b0[:, None], a - a0))
    sign = np.ones_like(s)
    sign[:, 2] = np.sign(np.linalg.det(u @ vt))
    rotation = np.einsum("bik,bk,bkj->bij", u, sign, vt)
    scale = (s * sign).sum(1) / ((a - a0) ** 2).sum()
    return Pose(scale, rotation, b0 - scale[:, None] * np.einsum("bij,j->bi", rotation, a0))


def expression_numbers(mesh: NDArray[Any]) -> Doubles:
    """Numbers of expression (see NUMBERS) of meshes [B,N,3] without their pose: [B,6], frame units."""

    def x(*at: int) -> Doubles:
        return mesh[:, at, 0].mean(1)

    def y(*at: int) -> Doubles:
        return mesh[:, at, 1].mean(1)

    left = y(145, 153, 144) - y(159, 158, 160)
    right = y(374, 380, 373) - y(386, 385, 387)
    return np.stack(
        [
            y(14) - y(13),
            np.linalg.norm(mesh[:, 291] - mesh[:, 61], axis=1),
            y(13, 14) - y(61, 291),
            (left + right) / 2,
            y(33, 133, 362, 263) - y(105, 334),
            x(285) - x(55),
        ],
        1,
    )


@dataclass(frozen=True, eq=False)
class Readings:
    """Readings of the shape of B faces.

    Args:
        upright: float64 [B,2,3], photo → upright frame units.
        points: float64 [B,468,3] the mesh in upright units.
        numbers, identity: float32 [B,6] of NUMBERS, [B,I] what is left of the shape; in standard deviations.
    """

    pose: Pose
    upright: Doubles
    points: Doubles
    numbers: Floats
    identity: Floats

    def take(self, rows: Any) -> Readings:
        """The same of some faces."""
        pose = Pose(self.pose.scale[rows], self.pose.rotation[rows], self.pose.shift[rows])
        return Readings(pose, self.upright[rows], self.points[rows], self.numbers[rows], self.identity[rows])


@dataclass(frozen=True, eq=False)
class FaceShape:
    """Constants of the geometry of faces, kept in a model's file; all float32.

    Args:
        mean, front: [468,3], the mean mesh; [468,2], where its points lie in the frame.
        number_mean, number_sd, pose_sd: [6] of `expression_numbers`; [2], of yaw and pitch, radians.
        moves: [1+6+4,468,3], what 1, each number and each pose term adds to the mean mesh.
        basis: [I,468,3], what one standard deviation of each identity coefficient adds.
    """

    mean: Floats
    front: Floats
    number_mean: Floats
    number_sd: Floats
    pose_sd: Floats
    moves: Floats
    basis: Floats

    @classmethod
    def from_arrays(cls, arrays: dict[str, NDArray[Any]]) -> FaceShape:
        """The shape whose fields are the arrays `shape.NAME`."""
        return cls(**{field.name: np.asarray(arrays[f"shape.{field.name}"], np.float32) for field in fields(cls)})

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """Read back by `from_arrays`."""
        return {f"shape.{field.name}": getattr(self, field.name) for field in fields(self)}

    def read(self, points: NDArray[Any]) -> Readings:
        """Pose, numbers of expression and identity of meshes [B,≥468,3] in photo pixels."""
        mesh = np.asarray(points, np.float64)[:, :MESH_POINTS]
        pose = rigid_fit(self.mean, mesh)
        upright = self._upright(pose)
        own = pose.unposed(mesh)
        numbers = (expression_numbers(own) - self.number_mean) / self.number_sd
        rest = (own - self._moved(pose, numbers)).reshape(len(own), -1)
        identity = rest @ self._reader
        points = _brought_upright(mesh, upright, pose.scale)
        return Readings(pose, upright, points, numbers.astype(np.float32), identity.astype(np.float32))

    def publish(self, read: Readings, numbers: NDArray[Any], identity: NDArray[Any], *, rim: float = 1.0) -> Any:
        """The mesh that is published, float64 [B,468,3] in upright units: the mean face posed as the source.

        It is moved by `numbers` [B,6] and `identity` [B,I]; `rim` is how far the outline stays the source's, 0 … 1.
        """
        mesh = self._moved(read.pose, numbers)
        mesh = mesh + np.einsum("bi,inj->bnj", np.asarray(identity, np.float64), self.basis)
        placed = _brought_upright(read.pose.posed(mesh), read.upright, read.pose.scale)
        return placed + rim * self.rim[None, :, None] * (read.points - placed)

    @cached_property
    def rim(self) -> Floats:
        """float32 [468]: 1 on the outline of the face, 0 well inside."""
        outline = self.front[FACE_OVAL].reshape(-1, 1, 2)
        distance = np.array([cv2.pointPolygonTest(outline, (float(x), float(y)), True) for x, y in self.front])
        distance[FACE_OVAL] = 0
        return np.exp(-np.square(np.maximum(distance, 0) / _RIM)).astype(np.float32)

    @cached_property
    def _reader(self) -> Doubles:
        return np.linalg.pinv(self.basis.reshape(len(self.basis), -1).astype(np.float64))

    def _moved(self, pose: Pose, numbers: NDArray[Any]) -> Doubles:
        return self.mean + np.einsum("bf,fnj->bnj", self.terms(pose, numbers), self.moves.astype(np.float64))

    def terms(self, pose: Pose, numbers: NDArray[Any]) -> Doubles:
        """[B,1+6+4], what `moves` is multiplied by."""
        turn = self.turn(pose)
        return np.concatenate([np.ones((len(turn), 1)), np.asarray(numbers, np.float64), turn, turn**2], 1)

    def turn(self, pose: Pose) -> Doubles:
        """[B,2], yaw and pitch in standard deviations."""
        return np.stack([pose.yaw, pose.pitch], 1) / self.pose_sd

    def _upright(self, pose: Pose) -> Doubles:
        c, s = np.cos(pose.roll) / pose.scale, np.sin(pose.roll) / pose.scale
        out = np.empty((len(c), 2, 3))
        out[:, 0, 0], out[:, 0, 1], out[:, 1, 0], out[:, 1, 1] = c, s, -s, c
        middle = self.mean.astype(np.float64).mean(0)
        centre = pose.scale[:, None] * np.einsum("bij,j->bi", pose.rotation, middle) + pose.shift
        out[:, :, 2] = middle[:2] - np.einsum("bij,bj->bi", out[:, :, :2], centre[:, :2])
        return out


def _brought_upright(mesh: Doubles, upright: Doubles, scale: Doubles) -> Doubles:
    """Meshes [B,N,3] of a photo in upright units."""
    flat = np.einsum("bij,bnj->bni", upright[:, :, :2], mesh[..., :2]) + upright[:, None, :, 2]
    return np.concatenate([flat, mesh[..., 2:] / scale[:, None, None]], 2)


class Warp:
    """Thin-plate spline between frame and upright coordinates, as a matrix: grid + W (points − front) (Bookstein 1989).

    Centres are every second point of the mesh and all of its outline; anchors around the frame stay where they are.
    `front` [468,2] is where the mean mesh lies in the frame, and `size` R the side of its textures.
    """

    def __init__(self, front: NDArray[Any], size: int) -> None:
        self.size = size
        self.front, self.rows = front, np.unique(np.concatenate([np.arange(0, MESH_POINTS, 2), FACE_OVAL]))
        self.known = np.asarray(front, np.float64)[self.rows]
        side = np.linspace(-24, 151, 11)
        anchors = np.array([(x, y) for x in side for y in side if x in side[[0, -1]] or y in side[[0, -1]]])
        centres = np.concatenate([self.known, anchors])
        n = len(centres)
        affine = np.concatenate([np.ones((n, 1)), centres], 1)
        system = np.zeros((n + 3, n + 3))
        system[:n, :n] = _spline(centres, centres) + _SMOOTH * np.eye(n)
        system[:n, n:], system[n:, :n] = affine, affine.T
        solve = np.linalg.inv(system)[:, : len(self.known)]
        self.step = (np.array(HI) - LO) / (size - 1)
        x, y = np.meshgrid(np.linspace(LO[0], HI[0], size), np.linspace(LO[1], HI[1], size))
        self.grid = np.stack([x, y], -1).astype(np.float32)
        points = self.grid.reshape(-1, 2).astype(np.float64)
        self.matrix = np.empty((len(points), len(self.known)), np.float32)
        for first in range(0, len(points), _STRIP):
            some = points[first : first + _STRIP]
            kernel = np.concatenate([_spline(some, centres), np.ones((len(some), 1)), some], 1)
            self.matrix[first : first + _STRIP] = kernel @ solve

    def step_of(self, side: int) -> Doubles:
        """Frame units a pixel of a texture with another side."""
        return self.step * (self.size - 1) / (side - 1)

    def to_upright(self, points: NDArray[Any]) -> Floats:
        """Positions of the frame's pixels: upright coordinates [B,R,R,2] of meshes [B,468,≥2]."""
        moved = (np.asarray(points)[:, self.rows, :2] - self.known).astype(np.float32)
        flat = self._spread(moved.transpose(1, 0, 2).reshape(len(self.rows), -1))
        return self.grid + flat.reshape(self.size, self.size, -1, 2).transpose(2, 0, 1, 3)

    def depth(self, points: NDArray[Any]) -> Floats:
        """Depth of the frame's pixels [R,R] of one mesh [468,3]; smaller is nearer. Good enough to order by."""
        return self._spread(np.asarray(points)[self.rows, 2:3].astype(np.float32))[..., 0]

    def _spread(self, values: Floats) -> Floats:
        """Numbers [centres,n] spread over the frame: [R,R,n]; row by row it takes half the time of one product."""
        return self.matrix.reshape(self.size, self.size, -1) @ values

    def to_frame(self, upright: Floats, wanted: Floats, points: NDArray[Any] | None = None) -> tuple[Floats, Floats]:
        """The inverse of `to_upright` for one face, by Newton's method.

        Of upright coordinates `wanted` [h,w,2] on a regular grid: pixels [h,w,2] of the frame; and [h,w], 1 where it
        has such a pixel, falling to 0 a unit away. With its mesh [468,3], the nearer part is seen where the turned face
        covers itself.
        """
        jacobian = _jacobian(upright)  # of frame pixels
        place = None if points is None else self._seen_first(upright, jacobian, wanted, points)
        p = ((wanted - LO) / self.step).astype(np.float32) if place is None else place
        field = np.concatenate([upright, jacobian], 2)
        last = np.float32(self.size - 1)
        for _ in range(_STEPS):
            now = cv2.remap(field, p[..., 0], p[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
            ex, ey = wanted[..., 0] - now[..., 0], wanted[..., 1] - now[..., 1]
            a, b, c, d = (now[..., i] for i in (2, 3, 4, 5))
            det = np.maximum(a * d - b * c, 0.15 * float(self.step.prod()))
            move = np.stack([(d * ex - b * ey) / det, (a * ey - c * ex) / det], -1)
            p = np.clip(p + np.clip(move, -12, 12), -last, 2 * last)
        now = cv2.remap(upright, p[..., 0], p[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        residual = np.linalg.norm(wanted - now, axis=-1)
        return p, np.clip(2 - residual / 0.5, 0, 1).astype(np.float32)

    def area(self, upright: Floats) -> Floats:
        """Area of each pixel of the frame [R,R] in a photo, of that in the frame; negative where it is turned over."""
        j = _jacobian(upright)
        return np.divide(j[..., 0] * j[..., 3] - j[..., 1] * j[..., 2], self.step.prod(), dtype=np.float32)

    def folded(self, upright: Floats, weight: Floats) -> float:
        """Share of a mask [R,R] that the warp [R,R,2] turns over or squeezes to nothing."""
        return float(weight[self.area(upright) < 0.05].sum() / max(float(weight.sum()), 1e-9))

    def seen(self, upright: Floats) -> Floats:
        """Visibility of each pixel of the frame [R,R] in a photo: 0 hidden, 1 from half of its area on."""
        area = self.area(upright)
        return cv2.GaussianBlur(np.clip((area - 0.2) / 0.3, 0, 1).astype(np.float32), (0, 0), self.size / 48)

    def _seen_first(self, upright: Floats, jacobian: Floats, wanted: Floats, points: NDArray[Any]) -> Floats | None:
        """A first guess of the inverse where the face covers itself; None where it does not."""
        if (jacobian[..., 0] * jacobian[..., 3] - jacobian[..., 1] * jacobian[..., 2] > 0).all():
            return None
        depth = self.depth(points)
        height, width = wanted.shape[:2]
        # The grid may be turned: a photo's pixels are where a head is tilted.
        first = wanted[0, 0].astype(np.float64)
        across, down = (wanted[0, -1] - first) / max(width - 1, 1), (wanted[-1, 0] - first) / max(height - 1, 1)
        cell = np.column_stack([across, down])
        if abs(np.linalg.det(cell)) < 1e-9:  # a single row or column
            return None
        at = np.rint((upright.reshape(-1, 2) - first) @ np.linalg.inv(cell).T).astype(int)
        inside = ((at >= 0) & (at < (width, height))).all(1)
        order = np.flatnonzero(inside)[np.argsort(-depth.ravel()[inside], kind="stable")]
        guess = ((wanted - LO) / self.step).astype(np.float32)
        pixels = np.stack(np.meshgrid(np.arange(self.size), np.arange(self.size)), -1).reshape(-1, 2)
        seen = np.zeros((height, width), np.uint8)
        guess[at[order, 1], at[order, 0]] = pixels[order]  # of several the last stays: the nearest
        seen[at[order, 1], at[order, 0]] = 1
        # Pixels between two that were hit take the guess of the nearest one that was.
        _, label = cv2.distanceTransformWithLabels(1 - seen, cv2.DIST_L2, 3, labelType=cv2.DIST_LABEL_PIXEL)
        hit = np.flatnonzero(seen.ravel())
        table = np.zeros(int(label.max()) + 1, np.int64)
        table[label.ravel()[hit]] = hit
        near = cv2.dilate(seen, np.ones((5, 5), np.uint8)) > 0
        filled = guess.reshape(-1, 2)[table[label]]
        return np.where(near[..., None], filled, guess).astype(np.float32)


def _spline(a: Doubles, b: Doubles) -> Doubles:
    squared = np.square(a[:, None, 0] - b[:, 0]) + np.square(a[:, None, 1] - b[:, 1])
    return squared * np.log(squared + 1e-6)


def _jacobian(field: Floats) -> Floats:
    """Derivatives [R,R,4] of [R,R,2] by pixel: dx/dcolumn, dx/drow, dy/dcolumn, dy/drow."""
    out = np.empty((*field.shape[:2], 4), np.float32)
    for number in range(4):  # as np.gradient does, which takes six times as long
        rows, slope = field[..., number // 2], out[..., number]
        if number % 2 == 0:
            rows, slope = rows.T, slope.T
        slope[1:-1], slope[0], slope[-1] = (rows[2:] - rows[:-2]) / 2, rows[1] - rows[0], rows[-1] - rows[-2]
    return out
