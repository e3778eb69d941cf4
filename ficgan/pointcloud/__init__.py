"""Point clouds of faces: files, the canonical frame, six anonymisers, projection, geometry (point-cloud thesis)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ficgan.pointcloud import methods
from ficgan.pointcloud.cloud import Cloud, merged
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, DEGREES, CloudAnonymizer, CloudTraits

if TYPE_CHECKING:
    from ficgan.pointcloud.files import read_cloud, write_cloud
    from ficgan.pointcloud.projection import project
    from ficgan.pointcloud.scan import anonymise_scan, compare_scans

__all__ = [
    "CLOUD_ANONYMIZERS", "DEGREES", "Cloud", "CloudAnonymizer", "CloudTraits", "anonymise_scan", "compare_scans",
    "merged", "methods", "project", "read_cloud", "write_cloud",
]  # fmt: skip

_LAZY = {
    "anonymise_scan": "scan", "compare_scans": "scan", "project": "projection", "read_cloud": "files",
    "write_cloud": "files",
}  # fmt: skip
"""Names whose modules load SciPy, so they are imported when first used."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
