"""Pictures of point clouds: the thesis' projection, turned views, a camera, light for clouds without colour.

Source:
    Point-cloud thesis, §4.3.2.
"""

from ficgan.pointcloud.projection.drawing import turned
from ficgan.pointcloud.projection.orthographic import ANGLES, ProjectionConfig, project, project_parts, views
from ficgan.pointcloud.projection.perspective import Camera, perspective
from ficgan.pointcloud.projection.shading import ShadingConfig, shaded
from ficgan.pointcloud.projection.splat import splat
from ficgan.pointcloud.projection.strip import strip

__all__ = [
    "ANGLES",
    "Camera",
    "ProjectionConfig",
    "ShadingConfig",
    "perspective",
    "project",
    "project_parts",
    "shaded",
    "splat",
    "strip",
    "turned",
    "views",
]
