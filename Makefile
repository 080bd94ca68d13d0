# Everything a developer or CI runs. Each target installs what it needs.

.PHONY: test test-long test-python wheel lint setup site build install uninstall deb dist demo bench bench-cache validation miri deny man

test: setup lint
	cargo test --workspace --no-run
	cargo test --workspace --quiet

# What takes long or needs the network: fifty kills, all crash workloads, real work in full measure, long crash runs,
# the miss counts of libCacheSim, the package in a Debian made for it, the Python package. Without the network the last three say that they were skipped.
test-long: setup
	BIMETAL_KILLS=50 cargo test --quiet --test suite nfhybrid_kill -- --nocapture
	BIMETAL_MATRIX=all cargo test --quiet --release --test suite fault_matrix -- --nocapture
	SEEDS=200 cargo test --quiet --test suite nfhybrid_crash::many_more_power_cuts -- --ignored --nocapture
	SEEDS=20 cargo test --quiet --release --test suite nfhybrid_crash::many_more_cuts -- --ignored --nocapture
	cargo test --quiet --release -p bimetal-nfhybrid --lib tests::misses -- --ignored --nocapture
	SEEDS=0..10000 cargo test --quiet --test sim -- --nocapture
	FULL=0..3000 cargo test --quiet --release -p bimetal-nfhybrid --lib tests::full -- --nocapture
	TABLE=0..200 cargo test --quiet --release -p bimetal-nfhybrid --lib tests::table -- --nocapture
	TREES=0..800 cargo test --quiet --release -p bimetal-nfhybrid --lib tests::trees -- --nocapture
	cargo test --quiet --release -p bimetal-nfhybrid --lib ten_million_one_block -- --ignored --nocapture
	FTL_CASES=1000 cargo test --quiet --release -p bimetal-ftl
	cargo run --quiet --release -p bimetal-ftl --example validation
	BIMETAL_ACE=all cargo test --quiet --release --test suite nfhybrid_ace -- --nocapture --include-ignored
	BIMETAL_FULL=1 cargo test --quiet --release --test suite nfhybrid_real -- --nocapture --include-ignored
	CUTS=20000 cargo test --quiet --release -p bimetal-nfhybrid --lib ssd::tests::crash -- --include-ignored
	CUTS=all cargo test --quiet --release -p cmfs-core cuts -- --nocapture
	FAULTS=all cargo test --quiet --release -p cmfs-core faults -- --nocapture
	WALKS=50000 cargo test --quiet --release -p cmfs-core walks -- --nocapture
	FORGED=100000 cargo test --quiet --release -p cmfs-core fuzz
	CUTS=10 cargo test --quiet --release -p bimetal-osd-core -p bimetal-osdfs
	CUTS=40 cargo test --quiet --release -p bimetal-osd-core --lib faults -- --nocapture
	TROUBLES=1500 cargo test --quiet --release -p bimetal-osd-core --lib troubles -- --nocapture
	CUTS=20 cargo test --quiet --release -p bimetal-osd-core --lib rebuild -- --nocapture
	cargo test --quiet --release -p bimetal-osdfs 16_gib -- --ignored
	WALKS=60000 cargo test --quiet --release -p bimetal-osd-core --lib walks -- --nocapture
	cargo test --quiet --release -p osd-c
	@rustup target list --installed 2>/dev/null | grep -q thumbv7em-none-eabi \
		&& which arm-none-eabi-gcc qemu-system-arm >/dev/null || { echo "skipped: no thumbv7em-none-eabi, GCC or QEMU for it"; exit 0; }; \
		CORTEX_M=1 cargo test --quiet -p cmfs-c --test cortex_m -- --nocapture
	cargo test --quiet --test suite newcomer -- --include-ignored
	cargo test --quiet --test suite programs -- --include-ignored
	@$(LIBCACHESIM)
	cargo test --quiet --test suite cache::peer -- --nocapture
	@sh tests/install.sh
	@$(MAKE) --no-print-directory test-python

# libCacheSim in a Python environment of its own; without the network, a word about it.
LIBCACHESIM = target/libcachesim/bin/python -c 'import libcachesim' 2>/dev/null || { python3 -m venv target/libcachesim && \
	target/libcachesim/bin/pip install --quiet libcachesim==0.3.5; } || echo "skipped: libcachesim cannot be installed"

lint:
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --quiet --workspace --no-deps

setup:
	@sh tests/setup.sh

build:
	@echo "Building bimetal: some minutes the first time."
	@cargo build --release

# What is installed is in packaging/files; PREFIX, DESTDIR and the other directories are explained in packaging/install.sh.
# `make build` as oneself and `make install` as root: where root has no cargo, what was built is taken. BIMETAL=FILE is another program.
install: $(if $(BIMETAL),,$(if $(shell command -v cargo),build))
	@sh packaging/install.sh install

uninstall:
	@sh packaging/install.sh uninstall

# A Debian package in target/, and an archive with a program that needs no library (with musl; C sources want musl-gcc).
deb: $(if $(BIMETAL),,build)
	@sh packaging/deb.sh

MUSL = x86_64-unknown-linux-musl
dist:
	@rustup target list --installed 2>/dev/null | grep -q $(MUSL) || rustup target add $(MUSL)
	@command -v musl-gcc >/dev/null || { echo "musl-gcc is needed: apt-get install musl-tools" >&2; exit 1; }
	CC_x86_64_unknown_linux_musl=musl-gcc cargo build --release -p bimetal --target $(MUSL)
	@sh packaging/dist.sh

# Two image files, a real tree, and what the disk half alone is afterwards.
demo: setup build
	@sh tests/demo.sh

# Paired measurements against the kernel's file systems, on a loop device for an SSD and on a simulated disk that seeks and turns in
# real time; needs root, 10 GiB in /var/tmp, room in /dev/shm for what the disks hold, and some minutes. BENCH="--disk image --rounds 1 --work metadata" narrows it.
# Before it the page cache beside libCacheSim (CACHE_BENCH="--rounds 1 lru cswlru" narrows that), the translation
# layers' speed and memory, and the object store's (OSD_BENCH=10000000 is the most objects it makes).
bench: setup bench-cache
	cargo bench --quiet --bench ftl
	cargo bench --quiet --bench osd -- $(OSD_BENCH)
	cargo bench --quiet --bench paired -- $(BENCH)

bench-cache:
	@$(LIBCACHESIM)
	cargo bench --quiet --bench cache -- --python target/libcachesim/bin/python $(CACHE_BENCH)

# The models of flash and disk against theory, arithmetic and their own figures (docs/validation.md). VALIDATION="tail disk" makes
# some of the tables; sizes and whole, which take minutes and half an hour, and datasheet, which is not met, are only made when they are named.
validation:
	cargo run --quiet --release -p bimetal-ftl --example validation -- $(VALIDATION)

# What is unsafe, and what is read and written by the bit, under Miri; needs a nightly tool chain with it.
miri:
	@rustup +nightly component add miri rust-src >/dev/null 2>&1 || { echo "skipped: no nightly tool chain with Miri"; exit 0; }; \
	export MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=4; \
	cargo +nightly miri test -p cmfs-core --lib -- bits:: ecc:: header:: tags:: record:: && \
	cargo +nightly miri test -p bimetal-media --lib -- buffer:: && \
	cargo +nightly miri test -p bimetal-nfhybrid --lib -- ssd::pages:: ssd::bits::

# Licences, known faults, yanked versions and sources of what this project stands on (deny.toml); needs the network.
deny:
	@cargo deny --version >/dev/null 2>&1 || cargo install --locked --quiet cargo-deny || \
		{ echo "skipped: cargo-deny cannot be installed"; exit 0; }; cargo deny --workspace check bans licenses sources && \
		if cargo deny fetch db >/dev/null 2>&1; then cargo deny --workspace check advisories; \
		else echo "skipped: known faults: their list cannot be fetched"; fi

# The Python package (docs/python.md): a wheel in target/wheels; tested in a Python environment made for it. Without the network
# the test says that it was skipped.
wheel:
	@sh python/wheel.sh

test-python:
	@sh python/test.sh

# The site (docs/book.toml) in target/book. mdbook, which makes it, is installed where it is missing.
site:
	@mdbook --version >/dev/null 2>&1 || cargo install --quiet --locked --no-default-features --features search mdbook || \
		{ echo "skipped: mdbook cannot be installed"; exit 0; }; mdbook build docs

man:
	cargo run --quiet --release -- man target/man
