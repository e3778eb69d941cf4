"""What methods and controls are called in the results of a study of clouds."""

__all__ = ["CLEAR", "CLOUD", "CONSTANT", "IN_SPACE", "label"]

CLEAR, CONSTANT = "clear", "constant"
IN_SPACE = " (3D)"
"""What the names of recognisers of shape end with, who need the cloud itself."""
CLOUD = " (cloud)"
"""What the names of figures end with that hold where the cloud itself is given away, not its projection alone."""


def label(method: str, degree: int) -> str:
    """Of a method at a degree."""
    return f"{method} {degree}"
