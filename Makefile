# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test test-long lint setup

test: setup lint
	cargo test --quiet

# What needs the network: the miss counts of libCacheSim. Without it, the test says that it was skipped.
test-long: setup
	@target/libcachesim/bin/python -c 'import libcachesim' 2>/dev/null || { python3 -m venv target/libcachesim && \
		target/libcachesim/bin/pip install --quiet libcachesim==0.3.5; } || echo "skipped: libcachesim cannot be installed"
	cargo test --quiet --test suite cache::peer -- --nocapture

lint:
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings

setup:
	@sh tests/setup.sh
