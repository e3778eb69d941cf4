"""Point clouds of faces: files, the canonical frame, six anonymisers, projection, geometry (point-cloud thesis)."""

from ficgan.pointcloud.cloud import Cloud, merged, read_cloud, write_cloud
from ficgan.pointcloud.geometry import project
from ficgan.pointcloud.methods import CLOUD_ANONYMIZERS, STRENGTHS, CloudAnonymizer
from ficgan.pointcloud.scan import anonymise_scan, compare_scans

__all__ = [
    "CLOUD_ANONYMIZERS",
    "STRENGTHS",
    "Cloud",
    "CloudAnonymizer",
    "anonymise_scan",
    "compare_scans",
    "merged",
    "project",
    "read_cloud",
    "write_cloud",
]
