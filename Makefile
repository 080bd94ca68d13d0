# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test lint setup

test: setup lint
	cargo test --quiet

lint:
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings

setup:
	@sh tests/setup.sh
