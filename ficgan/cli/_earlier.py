"""What earlier runs left: which files may begin, which are finished, and whether this run's seed made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ficgan.cli._plan import FileJob, obstacle
from ficgan.errors import InputError, TakenError
from ficgan.files import alone_in, unreadable
from ficgan.images import disguised
from ficgan.records.sidecars import RunManifest, as_json, long_name, own_sidecar, sidecar_path
from ficgan.stores import Place, digest_of

if TYPE_CHECKING:
    from ficgan.deidentify.publish import NewPhoto
    from ficgan.records.credentials import Credentials

__all__ = ["Earlier", "together"]


def together(folder: Place) -> AbstractContextManager[None]:
    """A block in which no other run comes between a result and its side-car, in a folder of this machine."""
    return alone_in(folder) if isinstance(folder, Path) else nullcontext()


@dataclass
class Earlier:
    """Looks at inputs and outputs before any work.

    Args:
        manifest: of the output folder.
        sidecar: whether results have side-cars.
        overwrite: whether results are made again.
        skip_existing: whether finished ones are left, and are no failures.
        recorded: options as side-cars tell them.
        credentials: sign results, which not every kind of file can hold.
    """

    manifest: RunManifest
    sidecar: bool = True
    overwrite: bool = False
    skip_existing: bool = False
    recorded: Mapping[str, Any] = field(default_factory=dict)
    credentials: Credentials | None = None
    seeded: list[tuple[FileJob, Mapping[str, Any]]] = field(default_factory=list)
    """Finished results, and their side-cars, where this run has a seed."""

    def is_finished(self, job: FileJob) -> bool:
        """Whether a file needs no work, since its result is there; nothing is loaded.

        Raises:
            InputError: it cannot begin: the input is no such file, or another file is in the way.
        """
        if not job.address and isinstance(job.source, Path) and (why := self._misfit(job, job.source)):
            raise InputError(why)
        if self.skip_existing and self.is_made(job):
            return True
        self.check_free(job)
        if (found := obstacle(job.output.parent)) is not None:
            raise InputError(f"{found}: cannot be written to; choose another output folder")
        return False

    def _misfit(self, job: FileJob, source: Path) -> str:
        """Why a file cannot become its result, by its name and first bytes; "" where it may."""
        if why := unreadable(source):
            return f"{source}: {why}"
        if self.credentials is not None and not self.credentials.takes(job.output.suffix):
            return f"{job.output}: this kind of file holds no content credentials; choose another, or leave --sign out"
        with source.open("rb") as file:
            return disguised(job.name, file, film=job.film) or long_name(
                job.name, job.output.name, film=job.film, sidecar=self.sidecar
            )

    def check_free(self, job: FileJob) -> None:
        """An InputError where a file is in the way of a result."""
        if self.overwrite:
            return
        ways = [job.output]
        if self.sidecar and not (self.skip_existing and own_sidecar(job.output) is not None):
            ways.append(sidecar_path(job.output))
        for path in ways:
            if path.is_symlink() or path.exists():
                raise TakenError(
                    f"{job.name}: {path} exists already; use --skip-existing to do the rest, --overwrite to replace it"
                )

    def replaces_sidecar(self, job: FileJob) -> bool:
        """Whether a side-car may be written over: who goes on replaces that of a result which is gone."""
        gone = job.film or not job.output.exists()  # a film itself is written by now
        return self.overwrite or (self.skip_existing and gone and own_sidecar(job.output) is not None)

    def is_made(self, job: FileJob) -> bool:
        """Whether an earlier run made this result, of this very input where its side-car tells."""
        if not job.output.is_file():
            return False
        with together(job.output.parent):
            why = self._other(job)
        if why:
            raise InputError(f"{job.name}: {job.output} {why}; use --overwrite to replace it")
        return True

    def _other(self, job: FileJob) -> str:
        """What is wrong with a result that is there; "" where it is this run's."""
        if self.manifest.is_of_other_options(job.output):
            return "was made with other options"
        if not self.sidecar:
            return ""
        record = own_sidecar(job.output)
        if record is None:
            return "exists and its side-car does not"
        here = isinstance(job.output, Path) or not self.manifest.tells_of(job.output)  # reading a store takes its time
        if here and record.get("sha256") not in (None, digest_of(job.output)):
            return "is not the file that its side-car tells of"
        if here and not job.address and record.get("input_sha256") not in (None, digest_of(job.source)):
            return "was made of another file"
        told, before = json.loads(as_json(self.recorded)), record.get("options")
        before = before if isinstance(before, dict) else {}
        if other := [name for name in told.keys() & before.keys() - {"seed", "device"} if told[name] != before[name]]:
            return f"was made with other options ({', '.join(sorted(other))})"
        if told.get("seed"):
            if before.get("seed") is False:
                return "was made without a seed"
            self.seeded.append((job, record))
        return ""

    def of_another_seed(
        self, draw: Callable[[FileJob], NewPhoto], before: list[FileJob], seed: str | None
    ) -> set[FileJob]:
        """Finished files that another seed made. A short seed is recorded nowhere, so one photo is drawn again.

        Args:
            draw: makes a photo.
            before: linked photos in their order; whose face somebody has depends on those drawn before.
            seed: the commitment of this run's seed; None: a short one.
        """
        photo = next((one for one in self.seeded if not one[0].film and shows_seed(one[1])), None)
        if photo is not None and photo[0] in before:
            for job in before[: before.index(photo[0])]:
                with suppress(Exception):
                    draw(job)
        if photo is not None and not same_draws(draw(photo[0]), photo[1]):
            return {job for job, _ in self.seeded}
        promises = ((job, record.get("seed_commitment")) for job, record in self.seeded if job.film)
        return {job for job, promise in promises if promise not in (None, seed)}


_UNSEEDED = frozenset({"masked", "plain", "black", "solid", "kept", "blurred", "mosaic"})


def shows_seed(record: Mapping[str, Any]) -> bool:
    """Whether a photo has faces that may depend on the seed, by its side-car."""
    return any(face.get("action") not in _UNSEEDED for face in record.get("faces") or ())


def same_draws(made: NewPhoto, record: Mapping[str, Any]) -> bool:
    """Whether a photo that was made again has the faces that its side-car tells of, so that the seed is the same."""
    mine, theirs = ({face.get("members_digest") for face in tree["faces"]} - {None} for tree in (made.audit, record))
    return bool(mine & theirs) if theirs else hashlib.sha256(made.data).hexdigest() == record.get("sha256")
