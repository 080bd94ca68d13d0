#!/bin/sh
# Makes a volume from two image files, puts a real tree on it through the mount, and shows that the disk half
# alone is the whole file system: e2fsck finds nothing, the kernel's ext4 mounts it, every byte is there.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bimetal=${BIMETAL:-$here/target/release/bimetal}
work=$(mktemp -d "${TMPDIR:-/tmp}/bimetal-demo.XXXXXX")
as_root=""
[ "$(id -u)" = 0 ] || as_root=sudo
PATH=$PATH:/usr/sbin:/sbin

cleanup() {
    status=$?
    mountpoint -q "$work/mnt" && "$bimetal" umount "$work/mnt"
    mountpoint -q "$work/kernel" && $as_root umount "$work/kernel"
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM

say() { printf '\n\033[1m%s\033[0m\n' "$*"; }
run() { printf '  $ %s\n' "$*"; "$@"; }

cd "$work"
mkdir mnt kernel
say "1. A small SSD and a large disk: two image files"
tree=/usr/share
need=$(du -sm "$tree" | cut -f1)
truncate -s 256M ssd.img
truncate -s "$((need * 2 + 1024))M" disk.img
ls -lh ssd.img disk.img | awk '{print "  " $9 "  " $5}'

say "2. One file system over both"
run "$bimetal" mkfs nfhybrid --ssd ssd.img --disk disk.img \
    --section small=extent:16KiB --section large=extent:512KiB --map /media=large --bypass /backup
run "$bimetal" mount --ssd ssd.img --disk disk.img mnt

say "3. A real tree, through the mount"
run cp -a "$tree" mnt/tree
printf '  %s files, %s\n' "$(find mnt/tree -type f | wc -l)" "$(du -sh mnt/tree | cut -f1)"
run "$bimetal" umount mnt

say "4. Mounted again and read: what the SSD has comes from there"
run "$bimetal" mount --ssd ssd.img --disk disk.img mnt
run diff -r --no-dereference "$tree" mnt/tree
run "$bimetal" status mnt
run "$bimetal" umount mnt

say "5. The disk half, alone, for tools that never heard of bimetal"
run e2fsck -fn disk.img
run $as_root mount -o loop,ro disk.img kernel
run diff -r --no-dereference "$tree" kernel/tree
echo "  every byte is the same"
$as_root umount kernel
say "That was one SSD and one disk. README.md goes on from here."
