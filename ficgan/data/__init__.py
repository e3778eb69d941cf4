"""Sets of face images: folders, zips and tars in one locked order, their labels, and a sampler that resumes."""

from __future__ import annotations

from ficgan.data.dataset import FaceData, ResumableSampler, alignment_name, check_alignment, check_size, open_faces
from ficgan.data.labels import CELEBA_ATTRIBUTES, Labels

__all__ = [
    "CELEBA_ATTRIBUTES",
    "FaceData",
    "Labels",
    "ResumableSampler",
    "alignment_name",
    "check_alignment",
    "check_size",
    "open_faces",
]
