#!/bin/sh
# Installs the programs the tests drive, where they are missing (Debian, Ubuntu). Rust itself is assumed.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ] || [ -x "/sbin/$1" ] || missing="$missing $2"; }
need mke2fs e2fsprogs
need fusermount3 fuse3
need fio fio
need postmark postmark
need bonnie++ bonnie++
need sqlite3 sqlite3
need git git
need setfacl acl
need setfattr attr
need mkfs.xfs xfsprogs
need fsck.fat dosfstools
need mcopy mtools
need nbdcopy libnbd-bin
need blkparse blktrace
need fls sleuthkit
need unyaffs unyaffs
need make make
need cmake cmake
need ninja ninja-build
need debootstrap debootstrap
need udevadm udev
need cc gcc
[ -z "$missing" ] && exit 0
as_root=""
[ "$(id -u)" = 0 ] || as_root=sudo
echo "installing:$missing"
$as_root apt-get update -qq
DEBIAN_FRONTEND=noninteractive $as_root apt-get install -y -qq --no-install-recommends $missing >/dev/null
