"""Point clouds of faces: files, the canonical frame, six anonymisers, projection to images, geometry.

Source:
    The point-cloud thesis, "Privacy-Preserving Face Detection: A Comprehensive Analysis of Face Anonymization Techniques".
"""

from ficgan.pointcloud.base import CLOUD_ANONYMIZERS, DEGREES, CloudAnonymizer, CloudTraits
from ficgan.pointcloud.cloud import Cloud, merged

__all__ = ["CLOUD_ANONYMIZERS", "DEGREES", "Cloud", "CloudAnonymizer", "CloudTraits", "merged"]
