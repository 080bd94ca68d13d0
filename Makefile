# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test test-long lint setup build demo bench man

test: setup lint
	cargo test --quiet

# What takes long or needs the network: fifty kills, long crash runs, the miss counts of libCacheSim. Without the
# network the last says that it was skipped.
test-long: setup
	BIMETAL_KILLS=50 cargo test --quiet --test suite nfhybrid_kill -- --nocapture
	CUTS=20000 cargo test --quiet --release --lib ssd::tests::crash -- --include-ignored
	CUTS=all cargo test --quiet --release -p cmfs-core cuts -- --nocapture
	@rustup target list --installed 2>/dev/null | grep -q thumbv7em-none-eabi \
		&& cargo build --quiet --release -p cmfs-c --target thumbv7em-none-eabi || echo "skipped: no thumbv7em-none-eabi"
	@target/libcachesim/bin/python -c 'import libcachesim' 2>/dev/null || { python3 -m venv target/libcachesim && \
		target/libcachesim/bin/pip install --quiet libcachesim==0.3.5; } || echo "skipped: libcachesim cannot be installed"
	cargo test --quiet --test suite cache::peer -- --nocapture

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
