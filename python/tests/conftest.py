"""What the tests share: the repository, the command beside which the package is held, and traces."""

import json
import os
import pathlib
import subprocess

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
TRACES = REPOSITORY / "tests" / "data" / "traces"
TIMEOUT_S = 300


@pytest.fixture(scope="session")
def command():
    """Runs the command ``bimetal`` with some words and gives what it prints; BIMETAL names it."""
    named = os.environ.get("BIMETAL")
    built = [REPOSITORY / "target" / kind / "bimetal" for kind in ("release", "debug")]
    program = named or next((str(path) for path in built if path.exists()), None)
    if program is None:
        pytest.skip("the command is not built: cargo build")

    def run(*words, check=True):
        done = subprocess.run([program, *map(str, words)], capture_output=True, text=True, timeout=TIMEOUT_S)
        assert not check or done.returncode == 0, done.stderr
        return done.stdout if check else done

    return run


@pytest.fixture
def stack_file(tmp_path):
    """Writes a stack file and gives its path."""

    def write(text):
        path = tmp_path / "stack.toml"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def replayed(command):
    """The figures of the command for a stack file and settings."""

    def run(path, *settings):
        sets = [word for setting in settings for word in ("--set", setting)]
        return json.loads(command("replay", "--stack", path, *sets, "--json"))

    return run


@pytest.fixture
def traces():
    return TRACES
