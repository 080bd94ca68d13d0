#!/bin/sh
# Builds the Python package into target/wheels, with maturin in a Python environment of its own.
set -eu
cd "$(dirname "$0")/.."
venv=target/maturin
if ! "$venv/bin/maturin" --version >/dev/null 2>&1; then
    python3 -m venv --clear "$venv"
    "$venv/bin/pip" install --quiet 'maturin>=1.9,<2' || {
        rm -rf "$venv"
        echo "wheel: maturin cannot be installed; it needs the network once" >&2
        exit 1
    }
fi
mkdir -p target/wheels
rm -f target/wheels/bimetal-*.whl
echo "Building the wheel: some minutes the first time."
CARGO_TARGET_DIR="$PWD/target/python" "$venv/bin/maturin" build --quiet --release --locked \
    --manifest-path python/Cargo.toml --out target/wheels
ls target/wheels/bimetal-*.whl
