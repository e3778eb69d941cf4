"""Strips of the faces of a film's tracks, before and after, for people who review it."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ficgan.errors import InputError, UsageError
from ficgan.files import atomic_write
from ficgan.video.read import VideoSource
from ficgan.video.tracks import SEEN, Track

__all__ = ["faces_of_tracks", "save_thumbnails", "thumbnail"]

Image = NDArray[np.uint8]
THUMBNAIL_HEIGHT = 96
MOST_THUMBNAILS = 6


def save_thumbnails(
    folder: str | os.PathLike[str], track: int, images: Sequence[Image], *, after: bool = False
) -> Path:
    """Write a strip of up to six faces of a track, uint8 [h,w,3] RGB, to `thumbs/track-0001.jpg` or `…-after.jpg`."""
    from PIL import Image as Picture

    strips = []
    for image in images[:MOST_THUMBNAILS]:
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or 0 in image.shape:
            raise UsageError(f"A thumbnail of track {track} is {image.dtype} {image.shape}: give uint8 [h,w,3].")
        width = max(1, min(4 * THUMBNAIL_HEIGHT, round(image.shape[1] * THUMBNAIL_HEIGHT / image.shape[0])))
        small = Picture.fromarray(np.ascontiguousarray(image)).resize(
            (width, THUMBNAIL_HEIGHT), Picture.Resampling.LANCZOS
        )
        strips.append(np.asarray(small))
    if not strips:
        raise UsageError(f"Track {track} has no thumbnail: give at least one image.")
    buffer = io.BytesIO()
    Picture.fromarray(np.concatenate(strips, axis=1)).save(buffer, "JPEG", quality=85)
    path = thumbnail(Path(folder), track, after)
    if path.parent.is_symlink():
        raise InputError(f"{path.parent}: is a link, and would lead pictures of faces elsewhere; remove it")
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.parent.chmod(0o700)
    with atomic_write(path, overwrite=True, mode=0o600) as file:
        file.write(buffer.getvalue())
    return path


def faces_of_tracks(tracks: Iterable[Track], source: VideoSource, rows: int = 3) -> dict[int, list[Image]]:
    """Up to `rows` faces of each track, cut from the film with a margin."""
    wanted: dict[int, list[Track]] = {}
    for track in tracks:
        seen = np.flatnonzero(track.origin == SEEN)
        for row in seen[np.unique(np.linspace(0, len(seen) - 1, rows).round().astype(int))] if len(seen) else ():
            wanted.setdefault(track.first + int(row), []).append(track)
    images: dict[int, list[Image]] = {}
    for frame in source.frames(wanted=wanted.__contains__) if wanted else ():
        for track in wanted[frame.index]:
            images.setdefault(track.id, []).append(_cut(frame.image, track.boxes[frame.index - track.first]))
    return images


def _cut(image: Image, box: NDArray[np.float32]) -> Image:
    height, width = image.shape[:2]
    margin = 0.25 * (box[2:] - box[:2])
    x0, y0 = (int(v) for v in np.clip(np.floor(box[:2] - margin), 0, (width - 1, height - 1)))
    x1, y1 = (int(v) for v in np.clip(np.ceil(box[2:] + margin), (x0 + 1, y0 + 1), (width, height)))
    return image[y0:y1, x0:x1].copy()


def thumbnail(folder: Path, track: int, after: bool) -> Path:
    """Where the strip of a track is."""
    return folder / "thumbs" / f"track-{track:04d}{'-after' if after else ''}.jpg"
