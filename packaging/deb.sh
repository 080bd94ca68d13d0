#!/bin/sh
# Makes a Debian package of what `files` lists, with dpkg-deb: packaging/deb.sh [DIRECTORY], by default target/. BIMETAL is the
# program, COMPRESS how it is compressed (xz). Prints the package's path.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${BIMETAL:=$here/target/release/bimetal}"
out=${1:-$here/target}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
umask 022
root=$work/root
docs=$root/usr/share/doc/bimetal
BIMETAL=$BIMETAL DESTDIR=$root PREFIX=/usr SBINDIR=/usr/sbin ZSHDIR=/usr/share/zsh/vendor-completions MANIFEST= \
    sh "$here/packaging/install.sh" install
version=${VERSION:-$("$BIMETAL" --version | cut -d' ' -f2)}

# As Debian's policy has them.
find "$root/usr/share/man" -type f -exec gzip -9n {} +
gzip -9nf "$docs/CHANGELOG.md" && mv "$docs/CHANGELOG.md.gz" "$docs/changelog.gz"
{
    echo "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/"
    echo "Upstream-Name: bimetal"
    echo
    echo "Files: *"
    echo "Copyright: $(sed -n 's/^Copyright *(c) *//p' "$here/LICENSE-MIT" | head -n 1)"
    echo "License: Expat or Apache-2.0"
    echo
    echo "License: Expat"
    sed '1,/^Copyright/d;/^$/s/^/./;s/^/ /' "$here/LICENSE-MIT" | sed '1{/^ \.$/d}'
    echo
    echo "License: Apache-2.0"
    echo " On Debian systems the text is in /usr/share/common-licenses/Apache-2.0."
} >"$docs/copyright"
rm -f "$docs/LICENSE-MIT" "$docs/LICENSE-APACHE"

# What the program is linked with: nothing, or the C library from the newest version whose symbols it uses.
glibc=$(readelf -V "$root/usr/bin/bimetal" | grep -o 'GLIBC_[0-9.]*' | cut -d_ -f2 | sort -uV | tail -n 1)
libraries=${glibc:+"libc6 (>= $glibc), libgcc-s1, "}

mkdir "$root/DEBIAN"
cat >"$root/DEBIAN/control" <<END
Package: bimetal
Version: $version
Architecture: $(dpkg --print-architecture)
Maintainer: ${MAINTAINER:-The bimetal authors <bimetal@localhost>}
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Depends: ${libraries}e2fsprogs, mount
Recommends: fuse3
Section: admin
Priority: optional
Description: file system over one small SSD and one large disk
 SSD speed for what is hot and for every fsync, the disk's size for the rest,
 a rule per directory. The disk half is a standard ext4 that is at every moment,
 by itself, the whole file system as of a few seconds ago.
 .
 With it comes a laboratory: flash translation, page cache policies, raw NAND
 and traces, on simulated devices.
END
for when in postinst postrm; do
    cat >"$root/DEBIAN/$when" <<'END'
#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload || true
fi
# Devices that are there are looked at by the rules as they are now.
if [ -S /run/udev/control ]; then
    udevadm control --reload || true
    udevadm trigger --subsystem-match=block || true
fi
END
    chmod 755 "$root/DEBIAN/$when"
done
(cd "$root" && find usr -type f -exec md5sum {} +) >"$root/DEBIAN/md5sums"
mkdir -p "$out"
package=$out/bimetal_${version}_$(dpkg --print-architecture).deb
dpkg-deb --build "-Z${COMPRESS:-xz}" --root-owner-group "$root" "$package" >/dev/null
echo "$package"
