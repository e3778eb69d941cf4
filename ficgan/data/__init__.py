"""Sets of face images: folders, zips and tars in one locked order, their labels, and a sampler that resumes."""

from __future__ import annotations

from ficgan.data.dataset import (
    CELEBA_ATTRIBUTES,
    FaceData,
    Labels,
    ResumableSampler,
    alignment_name,
    check_alignment,
    check_size,
    open_faces,
)

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
