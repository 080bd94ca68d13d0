"""Builds the library with cargo; CMFS_LIBRARY names one that is built already."""

import os
import shutil
import subprocess
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

HERE = Path(__file__).resolve().parent
WORKSPACE = HERE.parents[2]


def library() -> Path:
    built = os.environ.get("CMFS_LIBRARY")
    if built:
        return Path(built)
    subprocess.run(["cargo", "build", "--release", "-p", "cmfs-c"], cwd=WORKSPACE, check=True)
    target = Path(os.environ.get("CARGO_TARGET_DIR", WORKSPACE / "target"))
    return target / "release" / "libcmfs.so"


class Build(build_py):
    def run(self) -> None:
        super().run()
        to = Path(self.build_lib) / "bimetal_cmfs"
        to.mkdir(parents=True, exist_ok=True)
        shutil.copy(library(), to / "libcmfs.so")


class Wheel(bdist_wheel):
    """Any Python 3 of this machine's platform: the library is no extension module."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


class Binary(Distribution):
    def has_ext_modules(self) -> bool:
        return True


setup(cmdclass={"build_py": Build, "bdist_wheel": Wheel}, distclass=Binary)
