"""What methods and controls are called in the results of a study of clouds."""

__all__ = ["CLEAR", "CONSTANT", "label"]

CLEAR, CONSTANT = "clear", "constant"


def label(method: str, degree: int) -> str:
    """Of a method at a degree."""
    return f"{method} {degree}"
