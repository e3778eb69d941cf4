"""The bars that a default model is held to: what is asked of each figure, and the paper's own at full scale."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BARS", "Bar", "bar_of"]

STRANGERS = "same-group strangers"
"""What a measured bar is the figure of."""


@dataclass(frozen=True)
class Bar:
    """One row of the table.

    Args:
        row: its key.
        title: as a table says it.
        least, most: what a value must reach, and must not pass; None: no such limit. Without either there is no bar.
        least_photos, most_photos: the same for sets of photos; None: as for aligned sets.
        measured: the bar is no number but the control's own figure, which a value must not pass.
        paper: FICGAN's figure at full scale, "" where it has none.
    """

    row: str
    title: str
    least: float | None = None
    most: float | None = None
    least_photos: float | None = None
    most_photos: float | None = None
    measured: bool = False
    paper: str = ""

    @property
    def exists(self) -> bool:
        """Whether there is anything to meet."""
        return self.measured or self.least is not None or self.most is not None

    def limits(self, control: float | None, photos: bool = False) -> tuple[float | None, float | None]:
        """Least and most that is allowed; a measured bar that was not measured allows anything.

        Args:
            control: the control's figure.
            photos: of a set of photos.
        """
        if self.measured:
            return None, control
        least = self.least if self.least_photos is None or not photos else self.least_photos
        most = self.most if self.most_photos is None or not photos else self.most_photos
        return least, most

    def spelled(self, control: float | None, photos: bool = False) -> str:
        """As a table says it."""
        least, most = self.limits(control, photos)
        if least is not None and most is not None:
            return f"{least:g}–{most:g}"
        if least is not None:
            return f"≥ {least:g}"
        if most is not None:
            return f"≤ {most:.3g}" + (f" ({STRANGERS})" if self.measured else "")
        return f"≤ {STRANGERS}" if self.measured else ""


BARS: tuple[Bar, ...] = (
    Bar("id-cosine", "ID similarity: mean cosine of source and output", most=0.13, paper=".14"),
    Bar("id-cosine-bare", "the same of the network's crop alone, not blended in", paper=".14"),
    Bar("match", "taken for the source at the recogniser's own threshold", measured=True),
    Bar("tar", "taken for the source at FAR 1e-3 of clear strangers", most=0.02),
    Bar("naive", "named: rank-1 of outputs against a clear photo of everybody", most=0.12),
    Bar("shape", "named by the shape of the face alone: rank-1 against a clear photo of everybody", most=0.15),
    Bar("shape-informed", "the same, by who has learnt from other people's outputs, too"),
    Bar("auc-gap", "distance of the AUC from .5: is the source nearer than same-group strangers?", measured=True),
    Bar("detected", "detection rate of the outputs", least=0.99),
    Bar("landmarks", "drift of five landmarks, of the inter-eye distance", most=0.06, most_photos=0.05),
    Bar("smile-r", "smile of output against source, r", least=0.7),
    Bar("yaw-r", "yaw of output against source, r", least=0.85),
    Bar("gender", "gender agreement", least=0.85, least_photos=0.9, paper="85 % (all attributes)"),
    Bar("age-band", "same age band"),
    Bar("race", "same race"),
    Bar("glasses", "glasses agreement"),
    Bar("rec-mse", "reconstruction: MSE on [−1, 1]", most=0.02, paper=".02"),
    Bar("rec-cosine", "reconstruction: cosine to the source", least=0.4, paper=".30"),
    Bar("rec-lpips", "reconstruction: LPIPS-like (SqueezeNet)", most=0.2, paper=".15 (LPIPS)"),
    Bar("swap", "identity swap: cosine to the target", least=0.3),
    Bar("exemplar", "halfway to an exemplar (α = .5): cosine to it"),
    Bar("sharpness", "sharpness: Laplacian variance inside / around the mask"),
    Bar("sharpness-kept", "Laplacian variance inside the mask, of the clear image's", least=0.6, most=1.4),
    Bar("border", "gradient on the blend border, of the clear image's", most=1.1),
    Bar("fd", "FD-SqueezeNet to real faces, of real–real at the same n", most=5),
    Bar("draws", "same source, different draws (ψ = .6): pairwise cosine", most=0.6),
    Bar("parrot", "parrot: rank-1 of faces alone, a fresh draw (ψ = .6) per image", most=0.55),
    Bar("retried", "policy on: share retried, masked ones among them", most=0.1),
    Bar("masked", "policy on: share masked", most=0.01),
    Bar("memorised", "64 outputs (ψ = .6): mean cosine to the nearest training face"),
    Bar("stability", "neighbouring frames of a clip: cosine between outputs"),
)
"""In the order of the table; those without a limit are reported and not judged."""


def bar_of(row: str) -> Bar:
    """The bar of a row.

    Raises:
        KeyError: there is no such row.
    """
    return _BY_ROW[row]


_BY_ROW = {bar.row: bar for bar in BARS}
