#!/bin/sh
# Makes an archive with a program that needs no library: packaging/dist.sh [DIRECTORY], by default target/. It holds what
# install.sh installs, so that `./packaging/install.sh install` in it does the same. BIMETAL is the program, linked
# statically. Prints the archive's path.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${BIMETAL:=$here/target/x86_64-unknown-linux-musl/release/bimetal}"
out=${1:-$here/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
if readelf -d "$BIMETAL" 2>/dev/null | grep -q NEEDED; then
    echo "dist.sh: $BIMETAL needs libraries; make dist makes one that needs none" >&2
    exit 1
fi
name=bimetal-$("$BIMETAL" --version | cut -d' ' -f2)-$(uname -m)-linux
top=$work/$name
mkdir -p "$top" "$out"
cp "$BIMETAL" "$top/bimetal"
strip "$top/bimetal"
"$BIMETAL" man "$top/man"
cp -R "$here/packaging" "$here/docs" "$here/README.md" "$here/CHANGELOG.md" "$here/LICENSE-MIT" "$here/LICENSE-APACHE" "$top"
tar --owner=0 --group=0 --sort=name -C "$work" -czf "$out/$name.tar.gz" "$name"
echo "$out/$name.tar.gz"
