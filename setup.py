"""Where the packages live; everything else about the distribution stands in pyproject.toml.

`ops/`, `configs/` and `pretrained/` are folders of their own at the top of the tree and install as `ficgan.ops`,
`ficgan.configs` and `ficgan.pretrained`: a top-level `ops` in site-packages would belong to somebody else. The CUDA
kernels in ops/csrc are compiled after installing, by `python -m ficgan.ops build`.
"""

from setuptools import find_packages, setup

MAPPED = ("ops", "configs", "pretrained")

packages = find_packages(include=["ficgan", "ficgan.*"])
for folder in MAPPED:
    packages += [f"ficgan.{folder}", *(f"ficgan.{folder}.{name}" for name in find_packages(folder))]

setup(
    packages=packages,
    package_dir={f"ficgan.{folder}": folder for folder in MAPPED},
    package_data={
        "ficgan": [
            "py.typed",
            "lab/*.yaml",
            "records/*.css",
            "records/*.html",
            "lab/report/*.j2",
            "lab/*/*.yaml",
            "lab/*/page.html",
            "ui/page/*",
        ],
        "ficgan.ops": ["csrc/*"],
        "ficgan.configs": ["*.yaml", "attack/*.yaml", "eval/*.yaml"],
        "ficgan.pretrained": ["*.onnx", "*.safetensors", "*.json"],
    },
)
