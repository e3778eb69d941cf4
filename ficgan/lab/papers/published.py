"""What the papers print, as data: only numbers and statements of their tables and text, nothing read off a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ficgan.lab.study.published import PUBLISHED, PUBLISHED_AVERAGES, PUBLISHED_CORRELATIONS

__all__ = [
    "FANTOMAS_BY_ENROLMENT",
    "FANTOMAS_CLAIMS",
    "FANTOMAS_PARAMETERS",
    "FANTOMAS_SPLIT",
    "FICGAN_ABLATIONS",
    "FICGAN_COMPARISON",
    "FICGAN_CONTROLLABLE",
    "FICGAN_FIGURE_4",
    "FICGAN_RECONSTRUCTION",
    "FICGAN_UNCONTROLLABLE",
    "PUBLISHED",
    "PUBLISHED_AVERAGES",
    "PUBLISHED_CORRELATIONS",
    "Claim",
    "Printed",
]


@dataclass(frozen=True)
class Printed:
    """A table as printed.

    Args:
        paper: short name.
        where: table, figure or section.
        protocol: how the numbers came about, in words; what the paper leaves open is said.
        rows: a dictionary for each row.
    """

    paper: str
    where: str
    protocol: str
    rows: tuple[dict[str, Any], ...]


@dataclass(frozen=True)
class Claim:
    """What Fantômas says of a method.

    Args:
        reversible: whether it is one of the eleven.
        said: the text's own words in short, with their section; "" where only a plot shows this method.
    """

    reversible: bool
    said: str = ""


_FICGAN = "FICGAN (Jeong et al. 2021)"
_MEASURES = (
    "256×256 images of FFHQ (10,000 not trained on) and CelebA-HQ; FID to real images; cosine of ArcFace's "
    "embeddings of source and output; attributes by a classifier of CelebA-HQ's forty (27,000 images to train, 3,000 "
    "to test, 90 % accurate), per cent; k = 3,000. The paper does not say which layer index, nor whether attributes "
    "are compared with labels or with what is read in the source."
)

FICGAN_COMPARISON = Printed(
    _FICGAN,
    "Table 1",
    _MEASURES,
    (
        {"method": "FSGAN", "FID": 45.62, "ID similarity": 0.21, "attributes": 79.92},
        {"method": "IDDis", "FID": 46.48, "ID similarity": 0.01, "attributes": 74.31},
        {"method": "FICGAN", "FID": 20.45, "ID similarity": 0.09, "attributes": 81.35},
        {"method": "FSGAN + k-same", "FID": 63.24, "ID similarity": 0.33, "attributes": 83.56},
        {"method": "IDDis + k-same", "FID": 131.23, "ID similarity": 0.01, "attributes": 78.06},
        {"method": "FICGAN + manifold k-same", "FID": 22.25, "ID similarity": 0.14, "attributes": 85.44},
    ),
)

FICGAN_ABLATIONS = Printed(
    _FICGAN,
    "Table 2",
    "As Table 1, on the CelebA-HQ test set.",
    (
        {"method": "FICGAN", "ID similarity": 0.091, "attributes": 81.35},
        {"method": "without spatial code", "ID similarity": 0.008, "attributes": 74.49},
        {"method": "without positive loss", "ID similarity": 0.192, "attributes": 85.76},
        {"method": "without negative loss", "ID similarity": 0.312, "attributes": 89.02},
        {"method": "FICGAN + k-same", "ID similarity": 0.142, "attributes": 85.44},
        {"method": "without spatial code + k-same", "ID similarity": 0.001, "attributes": 78.09},
        {"method": "without positive loss + k-same", "ID similarity": 0.189, "attributes": 87.01},
        {"method": "without negative loss + k-same", "ID similarity": 0.313, "attributes": 89.05},
    ),
)

FICGAN_RECONSTRUCTION = Printed(
    _FICGAN,
    "Table A",
    "Source against its reconstruction; the range of pixels behind MSE and the backbone of LPIPS are not said.",
    (
        {"method": "ALAE", "MSE": 0.15, "LPIPS": 0.32, "ID similarity": 0.06},
        {"method": "IDInvert", "MSE": 0.06, "LPIPS": 0.22, "ID similarity": 0.18},
        {"method": "pSp", "MSE": 0.04, "LPIPS": 0.19, "ID similarity": 0.58},
        {"method": "FICGAN", "MSE": 0.02, "LPIPS": 0.15, "ID similarity": 0.30},
    ),
)

FICGAN_FIGURE_4 = (
    "Figure 4 of the paper shows curves over i of (a) ID similarity and (b) attribute accuracy, for the k-same code "
    "w_m and an arbitrary person's w_t, and (c) accuracy of single attributes; it prints no numbers. Its text: the "
    "stronger the de-identification (the smaller i), the lower both; at strong de-identification glasses are removed "
    "and bangs kept."
)

FICGAN_CONTROLLABLE: dict[str, str] = {
    "Smiling": "controllable, though seemingly unrelated to identity (supplement, Controllable Attributes)",
    "Wearing_Earrings": "controllable, though seemingly unrelated to identity (supplement, Controllable Attributes)",
    "Wearing_Lipstick": "controllable, though seemingly unrelated to identity (supplement, Controllable Attributes)",
    "Eyeglasses": "removed at strong de-identification (Figures 3 and 4c)",
}
"""Attributes that the paper's text calls controllable, or lost with the identity. Figure B itself is a picture; of its
two groups the text names only these. "Most attributes are controllable"."""

FICGAN_UNCONTROLLABLE: dict[str, str] = {
    "Wearing_Hat": "uncontrollable, accessory (supplement, Controllable Attributes)",
    "Wearing_Necklace": "uncontrollable, accessory (supplement, Controllable Attributes)",
    "Receding_Hairline": "uncontrollable if it counts as the text's “age-related hairstyle” (supplement)",
    "Bald": "uncontrollable if it counts as the text's “age-related hairstyle” (supplement)",
    "Gray_Hair": "uncontrollable if it counts as the text's “age-related hairstyle” (supplement)",
    "Bangs": "preserved at strong de-identification (Figure 3)",
}
"""Attributes that the text calls uncontrollable, or kept; of hair it says "regarding hair and accessories, such as
age-related hairstyle, hat and necklaces"."""

FANTOMAS_SPLIT = {"people": 5000, "background": 200, "attacker": 4500, "test": 300, "size": 224, "enrolment": 0.75}
"""Sections 7.3 and 7.4; the share of enrolled images is the released program's."""

FANTOMAS_PARAMETERS: dict[str, dict[str, Any]] = {
    "Block Permutation": {"block size": 32},
    "Pixel Relocation": {"steps": 50},
    "Gaussian Noise": {"σ": 200},
    "Gaussian Blur": {"kernel size": 29},
    "Pixelation": {"size": 16},
    "Fawkes": {"mode": "high"},
    "DP Pix": {"ε": 5, "b": 12, "m": 16},
    "DP Snow": {"δ": 0.5},
    "DP Samp": {"ε": 25, "k": 24, "m": 12},
    "k-Same-Pixel": {"k": 10},
    "k-Same-Eigen": {"k": 10},
}
"""Table 3; methods without parameters are not in it (Eye Mask, k-RTIO, DeepPrivacy, CIAGAN)."""

_AT_MOST = "no accuracy of their model exceeds 15 % for synthesis and k-anonymity (7.5.2, E1.2)"
FANTOMAS_CLAIMS: dict[str, Claim] = {
    "Eye Mask": Claim(True, "reversible, but parrots do better than their model (7.5.2, E3.1; 7.6.2)"),
    "Block Permutation": Claim(True, "almost at the clear baseline (7.5.2, E1.1); the positive control (6.1.1)"),
    "Pixel Relocation": Claim(True, "almost at the clear baseline (7.5.2, E1.1)"),
    "Gaussian Noise": Claim(True, "partially (7.5.2, E1.3); not every pixel is changed (7.6.2)"),
    "Gaussian Blur": Claim(True, "partially (7.6.1)"),
    "Pixelation": Claim(True, "partially (7.6.1)"),
    "Fawkes": Claim(True, "highly reversible (8)"),
    "k-RTIO": Claim(True, "partially (7.5.2, E1.3)"),
    "DP Pix": Claim(True, "partially (7.6.3)"),
    "DP Snow": Claim(True, "close to perfect (7.5.2)"),
    "DP Samp": Claim(True, "very little improvement (7.5.2)"),
    "k-Same-Pixel": Claim(False, _AT_MOST),
    "k-Same-Eigen": Claim(False, _AT_MOST),
    "DeepPrivacy": Claim(False, _AT_MOST),
    "CIAGAN": Claim(False, _AT_MOST),
}
"""“11 out of 15” (abstract, 11); which four are not follows from 7.5.2. Accuracies by method stand in plots only."""

FANTOMAS_BY_ENROLMENT = {"clear": 0.492, "anonymised": 0.271}
"""Section 4.3: mean accuracy on images reversed by their model, all fifteen methods, mean of Facenet, VGG-Face2 and
ArcFace, with clear and with anonymised images enrolled."""
