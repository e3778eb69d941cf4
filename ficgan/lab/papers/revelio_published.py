"""What the Revelio paper prints, as data: numbers of its tables and text alone, nothing read off a plot."""

from __future__ import annotations

from ficgan.lab.papers.published import Printed

__all__ = [
    "ADAPTIVE",
    "BLURS",
    "DEFENCES",
    "FINE_TUNING",
    "HEAVY",
    "IRA",
    "KERNEL",
    "LIGHT",
    "OPEN_WORLD",
    "OUT_OF_DISTRIBUTION",
    "PROBES",
    "PROTOCOL",
    "SWEEP",
    "TRANSFER",
    "counted",
]

_REVELIO = "Revelio (Zhai et al.)"

PROTOCOL = {
    "size": 256, "reference images": 28000, "reference people": 6084, "closed-world probes": 97,
    "closed-world people": 50, "out-of-distribution probes": 97, "out-of-distribution people": 91, "candidates": 50,
    "epochs": 1000, "recogniser": "face_recognition (dlib, 128 numbers)",
}  # fmt: skip
"""Section 5.1, and 4.3 for the number of candidates."""
PROBES = 97
BLURS = {"light": 37, "heavy": 81}
"""Kernels in pixels of 256 (section 5.1); σ = 0.3·((K − 1)/2 − 1) + 0.8, that of PyTorch and OpenCV (section 2.1)."""
_QUALITY = (
    "97 images of 50 people whose other photos the model was trained on; LPIPS's backbone, FID's second set and its "
    "features are not said; IDD is the angle between ArcFace's embeddings, radians."
)

IRA = Printed(
    _REVELIO,
    "Table 1",
    "97 images of 50 people; identity retrieval among 28,000 images of 6,084 people, which are the training set. The "
    "text gives the parrot's two values the other way round (“60.8 % and 51.5 % under the heavy and light blur”).",
    (
        {"method": "Blurred", "light": 0.381, "heavy": 0.0},
        {"method": "Parrot Recognition", "light": 0.608, "heavy": 0.515},
        {"method": "Fantômas", "light": 0.35, "heavy": 0.08},
        {"method": "GFP-GAN", "light": 0.268, "heavy": 0.01},
        {"method": "PULSE", "light": 0.0, "heavy": 0.0},
        {"method": "DiffFace", "light": 0.371, "heavy": 0.01},
        {"method": "Revelio", "light": 1.0, "heavy": 0.959},
    ),
)

FINE_TUNING = Printed(
    _REVELIO,
    "Table 2",
    f"K = 81. {_QUALITY}",
    (
        {"model": "base", "PSNR": 24.75, "SSIM": 0.68, "LPIPS": 0.24, "IDD": 0.71, "FID": 41.84},
        {"model": "fine-tuned", "PSNR": 24.94, "SSIM": 0.69, "LPIPS": 0.23, "IDD": 0.64, "FID": 39.97},
    ),
)

LIGHT = Printed(
    _REVELIO,
    "Table 3",
    f"K = 37, Revelio without fine-tuning. {_QUALITY}",
    (
        {"method": "Blurred", "PSNR": 22.87, "SSIM": 0.66, "LPIPS": 0.61, "IDD": 1.32, "FID": 148.19},
        {"method": "Fantômas", "PSNR": 23.65, "SSIM": 0.66, "LPIPS": 0.44, "IDD": 0.98, "FID": 120.79},
        {"method": "GFP-GAN", "PSNR": 24.08, "SSIM": 0.69, "LPIPS": 0.29, "IDD": 0.90, "FID": 94.80},
        {"method": "PULSE", "PSNR": 18.78, "SSIM": 0.54, "LPIPS": 0.43, "IDD": 1.37, "FID": 104.72},
        {"method": "DiffFace", "PSNR": 25.30, "SSIM": 0.70, "LPIPS": 0.29, "IDD": 0.88, "FID": 78.07},
        {"method": "Revelio", "PSNR": 28.04, "SSIM": 0.78, "LPIPS": 0.17, "IDD": 0.37, "FID": 27.16},
    ),
)

HEAVY = Printed(
    _REVELIO,
    "Table 4",
    f"K = 81, Revelio fine-tuned. {_QUALITY}",
    (
        {"method": "Blurred", "PSNR": 19.38, "SSIM": 0.56, "LPIPS": 0.61, "IDD": 1.50, "FID": 290.51},
        {"method": "Fantômas", "PSNR": 22.06, "SSIM": 0.61, "LPIPS": 0.49, "IDD": 1.16, "FID": 134.61},
        {"method": "GFP-GAN", "PSNR": 19.89, "SSIM": 0.57, "LPIPS": 0.38, "IDD": 1.28, "FID": 123.68},
        {"method": "PULSE", "PSNR": 17.25, "SSIM": 0.50, "LPIPS": 0.46, "IDD": 1.42, "FID": 116.78},
        {"method": "DiffFace", "PSNR": 20.49, "SSIM": 0.57, "LPIPS": 0.38, "IDD": 1.26, "FID": 99.94},
        {"method": "Revelio", "PSNR": 24.94, "SSIM": 0.69, "LPIPS": 0.23, "IDD": 0.64, "FID": 39.97},
    ),
)

OPEN_WORLD = Printed(
    _REVELIO,
    "Table 5",
    "K = 81, base model; 97 images of 91 people who are not in the reference: 57 images of 51 of CelebA-HQ, 40 of "
    "FFHQ. Detected: the smallest distance of 50 candidates to the reference is above 0.43.",
    (
        {"faces": "out of distribution, detected", "PSNR": 24.92, "SSIM": 0.70, "LPIPS": 0.25, "IDD": 0.86,
         "FID": 51.87},
        {"faces": "out of distribution, missed", "PSNR": 26.12, "SSIM": 0.74, "LPIPS": 0.23, "IDD": 0.78,
         "FID": 56.58},
        {"faces": "in distribution", "PSNR": 24.75, "SSIM": 0.68, "LPIPS": 0.24, "IDD": 0.71, "FID": 41.84},
    ),
)  # fmt: skip

OUT_OF_DISTRIBUTION = {"threshold": 0.43, "TPR": 0.92, "FPR": 0.12, "accuracy": 0.90}
"""Section 5.5: the one point of Figure 7 that the text states; distances of dlib's embeddings."""

DEFENCES = Printed(
    _REVELIO,
    "Table 6",
    "K = 37, base model, not adapted; box blur takes the Gaussian blur's place (appendix D).",
    (
        {"defence": "rotation", "PSNR": 27.39, "SSIM": 0.76, "LPIPS": 0.23, "FID": 51.69, "IRA": 0.8762},
        {"defence": "noise", "PSNR": 11.30, "SSIM": 0.07, "LPIPS": 0.74, "FID": 425.54, "IRA": 0.0},
        {"defence": "jpeg", "PSNR": 17.15, "SSIM": 0.25, "LPIPS": 0.63, "FID": 376.37, "IRA": 0.0},
        {"defence": "box blur", "PSNR": 14.62, "SSIM": 0.23, "LPIPS": 0.59, "FID": 420.76, "IRA": 0.0},
        {"defence": "none", "PSNR": 28.04, "SSIM": 0.78, "LPIPS": 0.17, "FID": 27.16, "IRA": 1.0},
    ),
)

ADAPTIVE = Printed(
    _REVELIO,
    "Table 7",
    "K = 37, the base model fine-tuned for 100 epochs on blurred and compressed images.",
    ({"defence": "jpeg", "PSNR": 25.71, "SSIM": 0.73, "LPIPS": 0.22, "FID": 25.71, "IRA": 0.8866},),
)

KERNEL = {"mean absolute error": 0.934, "images": (800, 100, 100), "kernels": (1, 81)}
"""Section 5.4: images to train, validate and test on, each blurred by every odd kernel."""

SWEEP = {"trained": 81, "from": 71, "to": 91, "images": 50, "candidates": 1, "tolerated offset": 6}
"""Section 5.4, appendix C, Figures 14 and 15; the figures print no numbers."""

TRANSFER = (
    {"blur": "K 37, σ by the rule", "kernel": 37, "σ": 5.9, "estimated": None},
    {"blur": "K 27, σ 6", "kernel": 27, "σ": 6.0, "estimated": 39},
    {"blur": "K (37, 31), σ (5.9, 5)", "kernel": (37, 31), "σ": (5.9, 5.0), "estimated": 37},
)
"""Appendix C, Figure 16 (a), (c) and (d), the model of K = 37; of (b) the text gives no numbers. What is restored is
shown in pictures alone."""


def counted(share: float, probes: int = PROBES) -> tuple[int, bool]:
    """How many of the probes a printed share stands for, and whether it is one: 0.959 of 97 are 93.

    Args:
        share: as printed, rounded or cut to a tenth or a hundredth of a per cent.
        probes: of how many.

    Returns:
        The nearest whole number, and False where no number of probes gives the share as printed.
    """
    found = round(share * probes)
    return found, abs(found / probes - share) < 1e-3
