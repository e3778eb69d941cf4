"""What the papers print, as data: only numbers and statements of their tables and text, nothing read off a plot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Printed:
    """A table as printed; the protocol tells how the numbers came about, and what the paper leaves open."""

    paper: str
    where: str
    protocol: str
    rows: tuple[dict[str, Any], ...]


def _table(paper: str, where: str, protocol: str, columns: str, *rows: tuple[Any, ...]) -> Printed:
    return Printed(paper, where, protocol, tuple(dict(zip(columns.split(", "), row, strict=True)) for row in rows))


_FICGAN = "FICGAN (Jeong et al. 2021)"
FICGAN_COMPARISON = _table(
    _FICGAN, "Table 1",
    "256×256 images of FFHQ (10,000 not trained on) and CelebA-HQ; FID to real images; cosine of ArcFace's "
    "embeddings of source and output; attributes by a classifier of CelebA-HQ's forty (27,000 images to train, 3,000 "
    "to test, 90 % accurate), per cent; k = 3,000. The paper does not say which layer index, nor whether attributes "
    "are compared with labels or with what is read in the source.",
    "method, FID, ID similarity, attributes",
    ("FSGAN", 45.62, 0.21, 79.92),
    ("IDDis", 46.48, 0.01, 74.31),
    ("FICGAN", 20.45, 0.09, 81.35),
    ("FSGAN + k-same", 63.24, 0.33, 83.56),
    ("IDDis + k-same", 131.23, 0.01, 78.06),
    ("FICGAN + manifold k-same", 22.25, 0.14, 85.44),
)  # fmt: skip
FICGAN_ABLATIONS = _table(
    _FICGAN, "Table 2", "As Table 1, on the CelebA-HQ test set.", "method, ID similarity, attributes",
    ("FICGAN", 0.091, 81.35),
    ("without spatial code", 0.008, 74.49),
    ("without positive loss", 0.192, 85.76),
    ("without negative loss", 0.312, 89.02),
    ("FICGAN + k-same", 0.142, 85.44),
    ("without spatial code + k-same", 0.001, 78.09),
    ("without positive loss + k-same", 0.189, 87.01),
    ("without negative loss + k-same", 0.313, 89.05),
)  # fmt: skip
FICGAN_RECONSTRUCTION = _table(
    _FICGAN, "Table A",
    "Source against its reconstruction; the range of pixels behind MSE and the backbone of LPIPS are not said.",
    "method, MSE, LPIPS, ID similarity",
    ("ALAE", 0.15, 0.32, 0.06),
    ("IDInvert", 0.06, 0.22, 0.18),
    ("pSp", 0.04, 0.19, 0.58),
    ("FICGAN", 0.02, 0.15, 0.30),
)  # fmt: skip
FICGAN_FIGURE_4 = (
    "Figure 4 of the paper shows curves over i of (a) ID similarity and (b) attribute accuracy, for the k-same code "
    "w_m and an arbitrary person's w_t, and (c) accuracy of single attributes; it prints no numbers. Its text: the "
    "stronger the de-identification (the smaller i), the lower both; at strong de-identification glasses are removed "
    "and bangs kept."
)
_RELATED = "controllable, though seemingly unrelated to identity (supplement, Controllable Attributes)"
FICGAN_CONTROLLABLE: dict[str, str] = {
    **dict.fromkeys(("Smiling", "Wearing_Earrings", "Wearing_Lipstick"), _RELATED),
    "Eyeglasses": "removed at strong de-identification (Figures 3 and 4c)",
}
"""Attributes that the paper's text calls controllable, or lost with the identity. Figure B itself is a picture; of its
two groups the text names only these. "Most attributes are controllable"."""
_ACCESSORY = "uncontrollable, accessory (supplement, Controllable Attributes)"
_HAIR = "uncontrollable if it counts as the text's “age-related hairstyle” (supplement)"
FICGAN_UNCONTROLLABLE: dict[str, str] = {
    **dict.fromkeys(("Wearing_Hat", "Wearing_Necklace"), _ACCESSORY),
    **dict.fromkeys(("Receding_Hairline", "Bald", "Gray_Hair"), _HAIR),
    "Bangs": "preserved at strong de-identification (Figure 3)",
}
"""Attributes that the text calls uncontrollable, or kept; of hair it says "regarding hair and accessories, such as
age-related hairstyle, hat and necklaces"."""

FANTOMAS_SPLIT = {"people": 5000, "background": 200, "attacker": 4500, "test": 300, "size": 224, "enrolment": 0.75}
"""Sections 7.3 and 7.4; the share of enrolled images is the released program's."""
FANTOMAS_PARAMETERS: dict[str, dict[str, Any]] = {
    "Block Permutation": {"block size": 32}, "Pixel Relocation": {"steps": 50}, "Gaussian Noise": {"σ": 200},
    "Gaussian Blur": {"kernel size": 29}, "Pixelation": {"size": 16}, "Fawkes": {"mode": "high"},
    "DP Pix": {"ε": 5, "b": 12, "m": 16}, "DP Snow": {"δ": 0.5}, "DP Samp": {"ε": 25, "k": 24, "m": 12},
    "k-Same-Pixel": {"k": 10}, "k-Same-Eigen": {"k": 10},
}  # fmt: skip
"""Table 3; methods without parameters are not in it (Eye Mask, k-RTIO, DeepPrivacy, CIAGAN)."""
FANTOMAS_REVERSIBLE = {
    "Eye Mask": "reversible, but parrots do better than their model (7.5.2, E3.1; 7.6.2)",
    "Block Permutation": "almost at the clear baseline (7.5.2, E1.1); the positive control (6.1.1)",
    "Pixel Relocation": "almost at the clear baseline (7.5.2, E1.1)",
    "Gaussian Noise": "partially (7.5.2, E1.3); not every pixel is changed (7.6.2)",
    "Gaussian Blur": "partially (7.6.1)", "Pixelation": "partially (7.6.1)", "Fawkes": "highly reversible (8)",
    "k-RTIO": "partially (7.5.2, E1.3)", "DP Pix": "partially (7.6.3)", "DP Snow": "close to perfect (7.5.2)",
    "DP Samp": "very little improvement (7.5.2)",
}  # fmt: skip
"""“11 out of 15” (abstract, 11), and the text's own words in short; accuracies by method stand in plots only."""
FANTOMAS_IRREVERSIBLE = dict.fromkeys(
    ("k-Same-Pixel", "k-Same-Eigen", "DeepPrivacy", "CIAGAN"),
    "no accuracy of their model exceeds 15 % for synthesis and k-anonymity (7.5.2, E1.2)",
)
"""Which four are not follows from 7.5.2."""
FANTOMAS_CLAIMS = FANTOMAS_REVERSIBLE | FANTOMAS_IRREVERSIBLE
FANTOMAS_BY_ENROLMENT = {"clear": 0.492, "anonymised": 0.271}
"""Section 4.3: mean accuracy on images reversed by their model, all fifteen methods, mean of Facenet, VGG-Face2 and
ArcFace, with clear and with anonymised images enrolled."""

_REVELIO = "Revelio (Zhai et al.)"
REVELIO_SIZE, REVELIO_EPOCHS, REVELIO_CANDIDATES = 256, 1000, 50  # Section 5.1, and 4.3 for the number of candidates.
REVELIO_REFERENCE = {"images": 28000, "people": 6084}
REVELIO_CLOSED = {"images": 97, "people": 50}
REVELIO_OUTSIDE = {"images": 97, "people": 91}
REVELIO_RECOGNISER = "face_recognition (dlib, 128 numbers)"
BLURS = {"light": 37, "heavy": 81}
"""Kernels in pixels of 256 (section 5.1); σ = 0.3·((K − 1)/2 − 1) + 0.8, that of PyTorch and OpenCV (section 2.1)."""
_QUALITY = (
    "97 images of 50 people whose other photos the model was trained on; LPIPS's backbone, FID's second set and its "
    "features are not said; IDD is the angle between ArcFace's embeddings, radians."
)
_COLUMNS = "PSNR, SSIM, LPIPS, IDD, FID"
REVELIO_IRA = _table(
    _REVELIO, "Table 1",
    "97 images of 50 people; identity retrieval among 28,000 images of 6,084 people, which are the training set. The "
    "text gives the parrot's two values the other way round (“60.8 % and 51.5 % under the heavy and light blur”).",
    "method, light, heavy",
    ("Blurred", 0.381, 0.0),
    ("Parrot Recognition", 0.608, 0.515),
    ("Fantômas", 0.35, 0.08),
    ("GFP-GAN", 0.268, 0.01),
    ("PULSE", 0.0, 0.0),
    ("DiffFace", 0.371, 0.01),
    ("Revelio", 1.0, 0.959),
)  # fmt: skip
REVELIO_FINE_TUNING = _table(
    _REVELIO, "Table 2", f"K = 81. {_QUALITY}", f"model, {_COLUMNS}",
    ("base", 24.75, 0.68, 0.24, 0.71, 41.84),
    ("fine-tuned", 24.94, 0.69, 0.23, 0.64, 39.97),
)  # fmt: skip
REVELIO_LIGHT = _table(
    _REVELIO, "Table 3", f"K = 37, Revelio without fine-tuning. {_QUALITY}", f"method, {_COLUMNS}",
    ("Blurred", 22.87, 0.66, 0.61, 1.32, 148.19),
    ("Fantômas", 23.65, 0.66, 0.44, 0.98, 120.79),
    ("GFP-GAN", 24.08, 0.69, 0.29, 0.90, 94.80),
    ("PULSE", 18.78, 0.54, 0.43, 1.37, 104.72),
    ("DiffFace", 25.30, 0.70, 0.29, 0.88, 78.07),
    ("Revelio", 28.04, 0.78, 0.17, 0.37, 27.16),
)  # fmt: skip
REVELIO_HEAVY = _table(
    _REVELIO, "Table 4", f"K = 81, Revelio fine-tuned. {_QUALITY}", f"method, {_COLUMNS}",
    ("Blurred", 19.38, 0.56, 0.61, 1.50, 290.51),
    ("Fantômas", 22.06, 0.61, 0.49, 1.16, 134.61),
    ("GFP-GAN", 19.89, 0.57, 0.38, 1.28, 123.68),
    ("PULSE", 17.25, 0.50, 0.46, 1.42, 116.78),
    ("DiffFace", 20.49, 0.57, 0.38, 1.26, 99.94),
    ("Revelio", 24.94, 0.69, 0.23, 0.64, 39.97),
)  # fmt: skip
REVELIO_OPEN_WORLD = _table(
    _REVELIO, "Table 5",
    "K = 81, base model; 97 images of 91 people who are not in the reference: 57 images of 51 of CelebA-HQ, 40 of "
    "FFHQ. Detected: the smallest distance of 50 candidates to the reference is above 0.43.",
    f"faces, {_COLUMNS}",
    ("out of distribution, detected", 24.92, 0.70, 0.25, 0.86, 51.87),
    ("out of distribution, missed", 26.12, 0.74, 0.23, 0.78, 56.58),
    ("in distribution", 24.75, 0.68, 0.24, 0.71, 41.84),
)  # fmt: skip
REVELIO_DETECTION = {"threshold": 0.43, "TPR": 0.92, "FPR": 0.12, "accuracy": 0.90}
"""Section 5.5: the one point of Figure 7 that the text states; distances of dlib's embeddings."""
REVELIO_DEFENCES = _table(
    _REVELIO, "Table 6",
    "K = 37, base model, not adapted; box blur takes the Gaussian blur's place (appendix D).",
    "defence, PSNR, SSIM, LPIPS, FID, IRA",
    ("rotation", 27.39, 0.76, 0.23, 51.69, 0.8762),
    ("noise", 11.30, 0.07, 0.74, 425.54, 0.0),
    ("jpeg", 17.15, 0.25, 0.63, 376.37, 0.0),
    ("box blur", 14.62, 0.23, 0.59, 420.76, 0.0),
    ("none", 28.04, 0.78, 0.17, 27.16, 1.0),
)  # fmt: skip
REVELIO_ADAPTIVE = _table(
    _REVELIO, "Table 7",
    "K = 37, the base model fine-tuned for 100 epochs on blurred and compressed images.",
    "defence, PSNR, SSIM, LPIPS, FID, IRA",
    ("jpeg", 25.71, 0.73, 0.22, 25.71, 0.8866),
)  # fmt: skip
REVELIO_KERNEL_ERROR, REVELIO_KERNEL_IMAGES, REVELIO_LARGEST_KERNEL = 0.934, (800, 100, 100), 81
"""Section 5.4: mean absolute error; images to train, validate and test on, each blurred by every odd kernel from 1."""
REVELIO_SWEEP = {"trained": 81, "from": 71, "to": 91, "images": 50, "tolerated offset": 6}
"""Section 5.4, appendix C, Figures 14 and 15; the figures print no numbers."""
REVELIO_TRANSFER = {"same rule": None, "fixed deviation": 39, "rectangle": 37}
"""Appendix C, Figure 16 (a: K 37, σ by the rule), (c: K 27, σ 6) and (d: K (37, 31), σ (5.9, 5)): the kernel that the
paper's estimator gave, if any; of (b) the text gives no numbers. What is restored is shown in pictures alone. Keys: of
`ficgan.lab.attacks.kernel.TRANSFERS`."""


def counted(share: float, probes: int = REVELIO_CLOSED["images"]) -> tuple[int, bool]:
    """How many of the probes a printed share stands for, and whether they give it as printed: 0.959 of 97 are 93."""
    found = round(share * probes)
    return found, abs(found / probes - share) < 1e-3
