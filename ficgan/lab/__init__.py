"""What proves a de-identification and attacks it; all anonymisers are known here, those of the model, too."""

from ficgan.deidentify import anonymizer

__all__ = ["anonymizer"]
