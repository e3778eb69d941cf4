"""What two clouds have in common, in 3D: distances, normals, curvature, and who it is by shape alone."""

from ficgan.pointcloud.geometry.curvature import Curvature, curvature, curvature_error
from ficgan.pointcloud.geometry.distances import (
    CloudDistances,
    chamfer,
    cloud_distances,
    hausdorff,
    normal_error,
)
from ficgan.pointcloud.geometry.recognition import (
    GEOMETRIC_RECOGNISERS,
    DepthRecogniser,
    FpfhRecogniser,
    GeometricRecogniser,
    IcpRecogniser,
    NormalRecogniser,
)

__all__ = [
    "GEOMETRIC_RECOGNISERS",
    "CloudDistances",
    "Curvature",
    "DepthRecogniser",
    "FpfhRecogniser",
    "GeometricRecogniser",
    "IcpRecogniser",
    "NormalRecogniser",
    "chamfer",
    "cloud_distances",
    "curvature",
    "curvature_error",
    "hausdorff",
    "normal_error",
]
