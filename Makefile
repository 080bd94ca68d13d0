# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test lint setup demo bench build

test: setup lint
	cargo test --quiet

lint:
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings

setup:
	@sh tests/setup.sh

build:
	cargo build --quiet --release

demo: setup build
	@sh tests/demo.sh

bench: setup build
	cargo bench --bench paired
