"""One person keeps one new face in all photos of a job."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np

from ficgan.deidentify.options import Image
from ficgan.deidentify.photos import Cast, Work
from ficgan.faces import Recognizer
from ficgan.video.people import People, readable
from ficgan.video.tracks import Sighting, Tracklet

__all__ = ["STRICTNESS", "Linked"]

STRICTNESS = 0.8
"""Factor of the recogniser's match threshold below which two faces are one person. A photo shows a face once, where a
film shows it often, so it is stricter than in films."""
ANEW = "known from an earlier photo; the gate still knew it behind that new face, and it got another one here"


class Linked:
    """The people whom the photos of a job have shown, and how the new face of each was drawn.

    People are found as in films, by average linkage of embeddings; two faces of one photo are two people. The first
    photo of a person settles the new face. All of it stays in memory. The order of the photos counts.

    Args:
        recognizer: tells people apart.
        gate: checks new faces; where it is the recogniser itself, its readings are used.
    """

    def __init__(self, recognizer: Recognizer, gate: Recognizer | None) -> None:
        self._recognizer, self._read = recognizer, gate is recognizer
        self._people, self._lock = People.of(recognizer, "job", STRICTNESS), Lock()
        self._casts: dict[str, Cast] = {}

    def meet(self, image: Image, works: Sequence[Work]) -> None:
        """Name the faces of a photo, uint8 [H,W,3] RGB, by their people, and draw the known ones as before."""
        clear = [work for work in works if readable(work.face)]
        if not clear:
            return
        with self._lock:
            embeddings = [work.source for work in clear if self._read and work.source is not None]
            if len(embeddings) < len(clear):
                embeddings = list(self._recognizer.embed(image, np.stack([work.face.landmarks for work in clear])))
            seen = [
                Tracklet(number, [Sighting(0, work.face)], embeddings=embedding[None])
                for number, (work, embedding) in enumerate(zip(clear, embeddings, strict=True), start=1)
            ]
            for work, person in zip(clear, self._people.assign(seen), strict=True):
                if person:
                    work.key, work.linked = f"person {person}", True
                    work.cast = self._casts.get(work.key)

    def settle(self, works: Sequence[Work]) -> None:
        """Remember how new people were drawn, and say where a known one had to be drawn anew."""
        with self._lock:
            for work in works:
                if not work.linked or work.sight is None or work.generated is None:
                    continue
                cast = self._casts.setdefault(work.key, Cast(work.sight.z_id, work.kind, work.rung))
                if work.rung != cast.rung:
                    work.result.note = "; ".join(filter(None, [work.result.note, ANEW]))
