"""Point clouds in and out: PLY, OBJ with its materials, PCD, tables of numbers, NumPy files.

The parsers are ours because trimesh 5.2, measured against them, is written for meshes: of a PLY cloud it loses the
normals and answers a cut header with IndexError; of an OBJ it loses the vertices that no face names, reads
`f 1/1/1 2//1 3` as one vertex, and is no faster. Tests hold it and Open3D against what is here.
"""

from ficgan.pointcloud.files.door import FORMATS, Format, check_writable, read_cloud, write_cloud
from ficgan.pointcloud.files.limits import MAX_BYTES, MAX_POINTS
from ficgan.pointcloud.files.units import UNITS, check_size

__all__ = [
    "FORMATS",
    "MAX_BYTES",
    "MAX_POINTS",
    "UNITS",
    "Format",
    "check_size",
    "check_writable",
    "read_cloud",
    "write_cloud",
]
