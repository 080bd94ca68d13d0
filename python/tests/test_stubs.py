"""The stubs agree with the native half, and the package with its types."""

import pathlib
import subprocess
import sys

import pytest

import bimetal


def run(*words):
    done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_stubs_agree_with_the_native_half():
    pytest.importorskip("mypy")
    run("mypy.stubtest", "bimetal._bimetal")


def test_the_package_is_typed():
    pytest.importorskip("mypy")
    where = pathlib.Path(bimetal.__file__).parent
    assert (where / "py.typed").exists() and (where / "_bimetal.pyi").exists()
    run("mypy", "--strict", "--ignore-missing-imports", "-p", "bimetal")


def test_everything_public_is_there_and_documented():
    for name in bimetal.__all__:
        assert getattr(bimetal, name).__doc__, name
    public = [bimetal.Stack, bimetal.Policy, bimetal.Result, bimetal.Rows, bimetal.Table]
    for kind in public:
        for name, member in vars(kind).items():
            if callable(member) and not name.startswith("_"):
                assert member.__doc__, f"{kind.__name__}.{name}"


def test_the_example_of_the_package_runs():
    import doctest

    failed, tried = doctest.testmod(bimetal)
    assert (failed, tried) == (0, 4)
