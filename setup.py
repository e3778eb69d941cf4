"""Where the packages live, and the CUDA kernels; everything else about the distribution stands in pyproject.toml.

`ops/`, `configs/` and `pretrained/` are folders of their own at the top of the tree and install as `ficgan.ops`,
`ficgan.configs` and `ficgan.pretrained`: a top-level `ops` in site-packages would belong to somebody else.

The CUDA kernels in ops/csrc are compiled when the environment variable FICGAN_BUILD_OPS asks for it:
- auto (the default): where torch is importable, sees a GPU, and finds nvcc; a failure is a warning.
- 1: always; a failure is an error. - 0: never.
With pip's build isolation torch is not importable: use `pip install --no-build-isolation`. Without compiled kernels the
package works all the same, and `python -m ficgan.ops build` compiles them later from the sources it brings along.
"""

import os
import shutil
import sys
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

HERE = Path(__file__).resolve().parent

MAPPED = ("ops", "configs", "pretrained")

packages = find_packages(include=["ficgan", "ficgan.*"])
for folder in MAPPED:
    packages.append(f"ficgan.{folder}")
    packages += [f"ficgan.{folder}.{name}" for name in find_packages(folder)]

WISH = os.environ.get("FICGAN_BUILD_OPS") or "auto"
if WISH not in ("auto", "0", "1"):
    raise SystemExit(f"FICGAN_BUILD_OPS is {WISH!r}; use auto, 0 or 1")


def builder() -> ModuleType:
    """ops/build.py, which compiles the kernels; ImportError where torch is missing."""
    spec = spec_from_file_location("ficgan_ops_build", HERE / "ops" / "build.py")
    assert spec and spec.loader
    module = module_from_spec(spec)
    sys.path.insert(0, str(HERE))  # it imports ficgan.errors
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(HERE))
    return module


def extensions() -> list[Extension]:
    """The compiled ops, or nothing where they are not to be built."""
    no_compiler = not (os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or shutil.which("nvcc"))
    if WISH == "0" or (WISH == "auto" and no_compiler):
        return []
    try:
        import torch

        wanted = WISH == "1" or (torch.cuda.is_available() and builder().why_not() is None)
    except (ImportError, OSError) as error:
        if WISH == "1":
            raise SystemExit(
                f"FICGAN_BUILD_OPS=1, but torch cannot be imported ({error}): install it first, and give pip "
                "--no-build-isolation"
            ) from error
        wanted = False
    # Sources are named by ops/build.py; with none here the linker's name is all that setuptools makes of it.
    return [Extension("ficgan.ops._native", sources=[], optional=WISH != "1")] if wanted else []


class BuildOps(build_ext):
    """Compile with nvcc what setuptools would give to the C compiler."""

    def build_extension(self, ext: Extension) -> None:
        module = builder()
        try:
            module.build(Path(self.get_ext_fullpath(ext.name)).resolve())
        except (module.FicganError, OSError) as error:
            if WISH == "1":
                raise SystemExit(f"FICGAN_BUILD_OPS=1: {error}") from error
            warnings.warn(f"{error} ficgan is installed without compiled ops.", stacklevel=1)


setup(
    ext_modules=extensions(),
    cmdclass={"build_ext": BuildOps},
    packages=packages,
    package_dir={f"ficgan.{folder}": folder for folder in MAPPED},
    package_data={
        "ficgan": [
            "py.typed",
            "lab/*.yaml",
            "records/*.css",
            "lab/report/*.j2",
            "lab/*/*.yaml",
            "lab/*/page.html",
            "video/*.css",
            "video/*.html",
            "video/*.js",
            "ui/page/*",
        ],
        "ficgan.ops": ["csrc/*"],
        "ficgan.configs": ["*.yaml", "attack/*.yaml", "eval/*.yaml"],
        "ficgan.pretrained": ["*.onnx", "*.safetensors", "*.json"],
    },
)
