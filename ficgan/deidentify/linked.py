"""One person keeps one new face in all photos of a job."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock

import numpy as np

from ficgan.deidentify.options import Image
from ficgan.deidentify.photos import FaceJob, NewIdentity
from ficgan.faces import Recognizer
from ficgan.video.people import People, readable
from ficgan.video.tracks import Sighting, Tracklet

__all__ = ["STRICTNESS", "Linked"]

# Factor of the recogniser's match threshold below which two faces are one person. A photo shows a face once, where a
# film shows it often, so it is stricter than in films.
STRICTNESS = 0.8
_ANEW = "known from an earlier photo; the gate still knew it behind that new face, and it got another one here"


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
        self._identities: dict[str, NewIdentity] = {}

    def meet(self, image: Image, jobs: Sequence[FaceJob]) -> None:
        """Name the faces of a photo, uint8 [H,W,3] RGB, by their people, and draw the known ones as before."""
        clear = [job for job in jobs if readable(job.face)]
        if not clear:
            return
        with self._lock:
            embeddings = [job.source for job in clear if self._read and job.source is not None]
            if len(embeddings) < len(clear):
                embeddings = list(self._recognizer.embed(image, np.stack([job.face.landmarks for job in clear])))
            seen = [
                Tracklet(number, [Sighting(0, job.face)], embeddings=embedding[None])
                for number, (job, embedding) in enumerate(zip(clear, embeddings, strict=True), start=1)
            ]
            for job, person in zip(clear, self._people.assign(seen), strict=True):
                if person:
                    job.key, job.linked = f"person {person}", True
                    job.identity = self._identities.get(job.key)

    def settle(self, jobs: Sequence[FaceJob]) -> None:
        """Remember how new people were drawn, and note where a known person had to be drawn anew."""
        with self._lock:
            for job in jobs:
                if not job.linked or job.reading is None or job.generated is None:
                    continue
                identity = self._identities.setdefault(job.key, NewIdentity(job.reading.z_id, job.kind, job.step))
                if job.step != identity.step:
                    job.result.note = "; ".join(filter(None, [job.result.note, _ANEW]))
