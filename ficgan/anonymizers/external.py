"""Other people's anonymisers: a program that turns a folder of crops into another, or images it made before."""

from __future__ import annotations

from dataclasses import dataclass

from ficgan.anonymizers.base import ANONYMIZERS, Anonymizer, Faces, Images, Traits
from ficgan.anonymizers.programs import Program, read_same_size

__all__ = ["External"]


@ANONYMIZERS.add
@dataclass(frozen=True)
class External(Program, Anonymizer):
    """Crops by a program that is not ours, all in one run, or by images that it made in a folder; see `Program`."""

    name = "external"
    traits = Traits(title="external program", family="external", source="the program's own")

    def __call__(self, faces: Faces) -> Images:
        """Anonymised crops [N,S,S,3] uint8 RGB.

        Raises:
            UsageError: neither command nor folder, or no such program or folder.
            FicganError: the program failed, or ran out of time.
            InputError: an image is missing, damaged, ambiguous, or of another size.
        """
        return self.made_of(faces, read_same_size)
