# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test lint setup bench man

test: setup lint
	cargo test --quiet

lint:
	cargo fmt --all --check
	cargo clippy --quiet --all-targets -- -D warnings

setup:
	@sh tests/setup.sh

# Paired measurements against the kernel's file systems; needs root. BENCH="--rounds 3 --work metadata" narrows it.
bench: setup
	cargo bench --quiet --bench paired -- $(BENCH)

man:
	cargo run --quiet --release -- man target/man
