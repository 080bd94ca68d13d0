# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test lint setup build demo bench man

test: setup lint
	cargo test --quiet

lint:
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings

setup:
	@sh tests/setup.sh

build:
	cargo build --quiet --release

# Two image files, a real tree, and what the disk half alone is afterwards.
demo: setup build
	@sh tests/demo.sh

# Paired measurements against the kernel's file systems; needs root. BENCH="--rounds 3 --work metadata" narrows it.
bench: setup
	cargo bench --quiet --bench paired -- $(BENCH)

man:
	cargo run --quiet --release -- man target/man
