"""The six anonymisers of point clouds, by name, with the 35 degrees of the point-cloud thesis (table 4.2)."""

from ficgan.pointcloud.methods.centroid_voxel import CentroidVoxel
from ficgan.pointcloud.methods.merge_faces import Merge2Faces
from ficgan.pointcloud.methods.pmp import PMP
from ficgan.pointcloud.methods.smooth_knn import SmoothKNN
from ficgan.pointcloud.methods.tapering import Tapering
from ficgan.pointcloud.methods.uniform_noise import UniformNoise

__all__ = ["PMP", "CentroidVoxel", "Merge2Faces", "SmoothKNN", "Tapering", "UniformNoise"]
