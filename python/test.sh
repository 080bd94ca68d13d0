#!/bin/sh
# Builds the wheel, installs it into a new Python environment, and runs its tests and notebooks there beside the command.
set -eu
cd "$(dirname "$0")/.."
venv=target/python-tests
skipped() { echo "skipped: the Python package: $1"; exit 0; }
python3 -m venv --clear "$venv" || skipped "python3 has no venv"
"$venv/bin/pip" install --quiet -r python/tests/requirements.txt || skipped "what its tests need cannot be installed"
sh python/wheel.sh
"$venv/bin/pip" install --quiet --no-deps target/wheels/bimetal-*.whl
"$venv/bin/pip" install --quiet 'ray>=2.50' || echo "skipped: Ray cannot be installed"
cargo build --quiet -p bimetal
(cd python && cargo fmt --check && CARGO_TARGET_DIR="$PWD/../target/python" cargo clippy --quiet --locked -- -D warnings)
BIMETAL="$PWD/target/debug/bimetal" "$venv/bin/python" -m pytest --quiet -p no:cacheprovider -rs python/tests
