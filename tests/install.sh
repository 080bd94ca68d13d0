#!/bin/sh
# Installs the package in a Debian that is made for it, and boots that Debian again and again, in namespaces, with the systemd it
# has: a file system made, mounted by /etc/fstab, written, shut down, killed, checked, recovered; the package upgraded
# under the mount, then removed; nothing is left. The same with `make install`, and with the archive of `make dist`, if its program is built: that is tried in a root
# without anything else, too. The halves are image files: in namespaces systemd is told of
# no devices, so what it makes of devices in fstab is read, not run. Needs root, FUSE, and once the network; where one of
# them is missing, it says so and ends well.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
bimetal=${BIMETAL:-$here/target/release/bimetal}
PATH=$PATH:/usr/sbin:/sbin
skip() { echo "skipped: the package in a Debian of its own: $*"; exit 0; }
[ "$(id -u)" = 0 ] || skip "not root"
[ -w /dev/fuse ] || skip "no /dev/fuse"
[ -e /sys/fs/cgroup ] || skip "no control groups"
command -v debootstrap >/dev/null || skip "no debootstrap"
[ -x "$bimetal" ] || { echo "there is no $bimetal; make build makes it" >&2; exit 1; }

work=$(mktemp -d "${TMPDIR:-/var/tmp}/bimetal-install.XXXXXX")
root=$work/root
init=""
cleanup() {
    status=$?
    [ -z "$init" ] || kill -9 "$init" 2>/dev/null || true
    rm -rf "$work"
    exit $status
}
trap cleanup EXIT
trap 'exit 130' INT TERM
say() { printf '%s\n' "$*"; }
fail() {
    say "FAILED: $*" >&2
    tail -n 40 "$root/out" "$work/console" >&2 2>/dev/null || true
    exit 1
}

# A Debian, made once. Its packages are what the steps below look at.
made=${ROOTS:-$here/target/install}/bookworm.tar
if [ ! -s "$made" ]; then
    mkdir -p "$(dirname "$made")"
    say "making a Debian; once, some minutes"
    debootstrap --variant=minbase --include=fuse3,e2fsprogs,mount,man-db,udev,systemd,bash-completion bookworm "$work/new" \
        >"$work/debootstrap" 2>&1 || skip "debootstrap: $(tail -n 1 "$work/debootstrap")"
    tar -C "$work/new" -cf "$made.new" . && mv "$made.new" "$made"
    rm -rf "$work/new"
fi
mkdir "$root"
tar -C "$root" -xf "$made"

# Everything in it but what Debian's own programs write down whenever they run.
listing() {
    (cd "$root" && find . -xdev \( -path ./var/log -o -path ./var/lib/dpkg -o -path ./var/cache -o -path ./var/lib/systemd \
        -o -path ./run -o -path ./tmp -o -path ./dev -o -path ./var/tmp \) -prune -o -print | sort)
}

truncate -s 256M "$root/ssd.img"
truncate -s 1G "$root/disk.img"

# What becomes the first process of the Debian.
cat >"$work/init" <<'END'
set -eu
root=$1
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
# The kernel is not this Debian's.
mount --bind "$root/proc/sys" "$root/proc/sys"
mount -o remount,bind,ro "$root/proc/sys"
mount -t sysfs -o ro sys "$root/sys"
mount --rbind /sys/fs/cgroup "$root/sys/fs/cgroup"
mount -t tmpfs -o mode=755 dev "$root/dev"
for device in null zero full random urandom tty fuse; do
    cp -a "/dev/$device" "$root/dev/$device"
done
mkdir "$root/dev/pts" "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 pts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
mount -t tmpfs run "$root/run"
cd "$root"
mkdir run/old
pivot_root . run/old
umount -l /run/old
exec env -i container=bimetal PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --show-status=no
END

# What is done in it, each time it has come up: /step, whose last line says how it went.
cat >"$root/etc/systemd/system/step.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
TimeoutStartSec=infinity
StandardOutput=append:/out
StandardError=inherit
ExecStart=-/bin/sh -c '/bin/sh -eux /step && echo ok > /done; sync'
ExecStart=-/bin/sh -c '[ -e /stay ] || systemctl poweroff --no-block'
END
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -s ../step.service "$root/etc/systemd/system/default.target.wants/step.service"
# Were it not to come up, it would wait for somebody at a console.
for unit in emergency.service rescue.service; do
    mkdir -p "$root/etc/systemd/system/$unit.d"
    printf '[Service]\nExecStart=\nExecStart=-/bin/sh -c "(findmnt; systemctl --failed; journalctl -b | tail -n 60) > /out; systemctl poweroff --no-block"\n' \
        >"$root/etc/systemd/system/$unit.d/out.conf"
done

# Boots, does what standard input says, and shuts down; with `killed` after it, ends it without a word to anybody.
boot() {
    say "- $1"
    cat >"$root/step"
    rm -f "$root/done" "$root/stay" "$root/out"
    [ "${2:-}" != killed ] || touch "$root/stay"
    unshare --fork --kill-child --pid --mount --uts --ipc --cgroup \
        sh "$work/init" "$root" >"$work/console" 2>&1 </dev/null &
    init=$!
    waited=0
    while kill -0 "$init" 2>/dev/null; do
        [ -z "${2:-}" ] || [ ! -e "$root/done" ] || break
        waited=$((waited + 1))
        [ "$waited" -lt 1500 ] || fail "$1: it does not end"
        sleep 0.2
    done
    [ -z "${2:-}" ] || kill -9 "$init" 2>/dev/null || true
    wait "$init" 2>/dev/null || true
    init=""
    [ -e "$root/done" ] || fail "$1"
}

# Both halves in order after a shutdown: nothing was left to the SSD's log, and the disk half alone has everything.
in_order() {
    "$bimetal" fsck -n --ssd "$root/ssd.img" --disk "$root/disk.img" >"$work/fsck" 2>&1 || fail "$1: $(cat "$work/fsck")"
    ! grep -q "log" "$work/fsck" || fail "$1: $(cat "$work/fsck")"
    e2fsck -fn "$root/disk.img" >"$work/fsck" 2>&1 || fail "$1: $(cat "$work/fsck")"
}

mkdir "$root/packages" "$root/data"
package() { COMPRESS=gzip VERSION=$1 BIMETAL=$bimetal sh "$here/packaging/deb.sh" "$work/packages"; }
version=$("$bimetal" --version | cut -d' ' -f2)
cp "$(package "$version")" "$root/packages/older.deb"
cp "$(package "$version+1")" "$root/packages/newer.deb"
: >"$root/etc/fstab"
boot "nothing is installed" <<'END'
true
END
listing >"$work/before"

boot "the package is installed, a file system is made" <<'END'
dpkg -i /packages/older.deb
for page in bimetal bimetal-mount bimetal-mkfs-nfhybrid; do man -w $page; done
bash -c '. /usr/share/bash-completion/bash_completion; _completion_loader bimetal; complete -p bimetal'
systemd-analyze verify bimetal@data.service
bimetal mkfs nfhybrid --ssd /ssd.img --disk /disk.img
# The rules of the package ask the program of the package.
grep -o '"/usr/bin/bimetal probe --udev' /usr/lib/udev/rules.d/64-bimetal.rules
bimetal probe --udev /ssd.img | grep '^BIMETAL_ROLE=ssd$'
echo "/disk.img  /data  bimetal  ssd=/ssd.img  0  2" > /etc/fstab
# What systemd makes of devices: checked before it is mounted, when the SSD is there, and before local-fs.target.
echo "/dev/sda1  /data  bimetal  ssd=/dev/sdb1,x-systemd.requires=/dev/sdb1  0  2" > /tmp/fstab
mkdir /tmp/units
mount -o remount,rw /sys
SYSTEMD_FSTAB=/tmp/fstab /lib/systemd/system-generators/systemd-fstab-generator /tmp/units /tmp/units /tmp/units
grep "^After=systemd-fsck@dev-sda1.service" /tmp/units/data.mount
grep "^Requires=dev-sdb1.device" /tmp/units/data.mount
grep "^Before=local-fs.target" /tmp/units/data.mount
rm -r /tmp/units /tmp/fstab
END

boot "/etc/fstab mounts it before local-fs.target" <<'END'
[ "$(findmnt -no FSTYPE,SOURCE /data | tr -s ' ')" = "fuse.bimetal /disk.img" ]
at() { systemctl show -P ActiveEnterTimestampMonotonic "$1"; }
[ "$(at data.mount)" -le "$(at local-fs.target)" ]
journalctl -b -t bimetal | grep "is mounted on /data"
# It is known to be mounted.
mount -a
[ "$(grep -c ' /data ' /proc/mounts)" = 1 ]
cp -a /usr/share/doc /data/doc
# Not with the services: to be unmounted by the shutdown, which has to wait until everything is written.
cp -a /usr/share/bash-completion /data/later
END
in_order "after a shutdown"

boot "what was written is there; the power fails" killed <<'END'
diff -r --no-dereference /usr/share/doc /data/doc
diff -r --no-dereference /usr/share/bash-completion /data/later
dd if=/dev/urandom of=/data/synced bs=64k count=20 conv=fsync
sha256sum /data/synced > /sum
END

boot "a mount recovers, and says so in the journal" <<'END'
sha256sum -c /sum
journalctl -b -t bimetal | grep "recovered"
sed -i 's/ssd=/noauto,ssd=/' /etc/fstab
END
in_order "after a recovery"

boot "it fails again" killed <<'END'
mount /data
dd if=/dev/urandom of=/data/synced bs=64k count=20 conv=fsync
sha256sum /data/synced > /sum
END

boot "fsck(8) finds the SSD half by fstab, and brings what was synced to the disk" <<'END'
fsck -a -T /disk.img
bimetal cat --disk /disk.img /synced | sha256sum | cut -d' ' -f1 | grep "$(cut -d' ' -f1 /sum)"
sed -i 's/noauto,//' /etc/fstab
END
in_order "after the check"

boot "the package is upgraded under the mount" <<'END'
exec 3< /data/synced
dpkg -i /packages/newer.deb
dpkg -s bimetal | grep '^Version: .*+1$'
sha256sum -c /sum
exec 3<&-
# umount(8) returns when the server is gone: the halves can be claimed at once.
umount /data
bimetal fsck -n --ssd /ssd.img --disk /disk.img
mount /data
sha256sum -c /sum
# By the type that findmnt shows, too.
umount /data
mount -t fuse.bimetal /disk.img /data -o ssd=/ssd.img
sha256sum -c /sum
umount /data
mount -f /data
! findmnt /data
: > /etc/fstab
mkdir /etc/bimetal
printf 'BIMETAL_SSD=/ssd.img\nBIMETAL_DISK=/disk.img\nBIMETAL_OPTIONS=noatime\n' > /etc/bimetal/data.conf
systemctl enable bimetal@data
END
in_order "after an upgrade"

boot "the unit mounts it, too" <<'END'
findmnt -no OPTIONS /data | grep noatime
sha256sum -c /sum
at() { systemctl show -P "$1" "$2"; }
journalctl -b -u bimetal@data | grep "The file system is clean"
[ "$(at ActiveEnterTimestampMonotonic bimetal@data.service)" -le "$(at ActiveEnterTimestampMonotonic local-fs.target)" ]
echo by the unit > /data/unit
END
in_order "after the unit"

boot "the package is removed" <<'END'
systemctl disable --now bimetal@data
! findmnt /data
rm -r /etc/bimetal
dpkg -P bimetal
END
listing >"$work/after"
files='^./\(step\|done\|out\|sum\|stay\)$'
left() { grep -v "$files" "$work/after" | diff - "$work/kept" >"$work/left" || fail "left: $(cat "$work/left")"; }
grep -v "$files" "$work/before" >"$work/kept"
left

say "- make install, and make uninstall"
make -s -C "$here" install BIMETAL="$bimetal" DESTDIR="$root"
# An older one that had a page more.
echo "f /usr/local/share/man/man1/bimetal-older.1" >>"$root/usr/local/share/bimetal/installed"
touch "$root/usr/local/share/man/man1/bimetal-older.1"
make -s -C "$here" install BIMETAL="$bimetal" DESTDIR="$root"
[ ! -e "$root/usr/local/share/man/man1/bimetal-older.1" ] || fail "an upgrade leaves what the new one does not have"
echo "/disk.img  /data  bimetal  ssd=/ssd.img  0  2" >"$root/etc/fstab"
boot "what make install installed mounts it" <<'END'
grep "by the unit" /data/unit
umount /data
fsck -a -T /disk.img | grep "The file system is clean"
man -w bimetal-fsck
: > /etc/fstab
END
in_order "after make install"
make -s -C "$here" uninstall DESTDIR="$root"
listing >"$work/after"
left

# The archive: its program where there is nothing but it, and what it installs.
static=${STATIC:-$here/target/x86_64-unknown-linux-musl/release/bimetal}
if [ ! -x "$static" ]; then
    say "The package and make install work, and leave nothing. skipped: the archive: no $static; make dist makes it"
    exit 0
fi
say "- the archive: its program in a root with nothing else"
alone=$work/alone
mkdir "$alone"
tar -C "$alone" --strip-components=1 -xzf "$(BIMETAL=$static sh "$here/packaging/dist.sh" "$work/packages")"
mkdir "$alone/dev" "$alone/proc" "$alone/mnt" "$alone/tmp"
cp --sparse=always "$root/ssd.img" "$root/disk.img" "$alone"
cat >"$work/archive" <<'END'
set -eux
mount --make-rprivate /
mount -t proc proc "$1/proc"
mount -t tmpfs dev "$1/dev"
for device in null zero urandom fuse; do
    cp -a "/dev/$device" "$1/dev/$device"
done
halves="--ssd /ssd.img --disk /disk.img"
chroot "$1" /bimetal mount $halves /mnt
grep "by the unit" "$1/mnt/unit"
cp -r "$1/docs" "$1/mnt/docs"
chroot "$1" /bimetal status --json /mnt | grep at_risk
chroot "$1" /bimetal umount /mnt
chroot "$1" /bimetal put $halves /packaging /
chroot "$1" /bimetal get $halves /docs /packaging /tmp/
diff -r "$1/docs" "$1/tmp/docs"
diff -r "$1/packaging" "$1/tmp/packaging"
chroot "$1" /bimetal mkfs cmfs --nand /nand.img --nvram /nvram.img
chroot "$1" /bimetal put --nand /nand.img --nvram /nvram.img /docs /
chroot "$1" /bimetal fsck --nand /nand.img --nvram /nvram.img
END
unshare --mount sh "$work/archive" "$alone" >"$root/out" 2>&1 || fail "the archive's program"
cp --sparse=always "$alone/ssd.img" "$alone/disk.img" "$root"
in_order "after the archive's program"
DESTDIR=$root sh "$alone/packaging/install.sh" install
echo "/disk.img  /data  bimetal  ssd=/ssd.img  0  2" >"$root/etc/fstab"
boot "what the archive installed mounts it" <<'END'
diff -r /usr/local/share/doc/bimetal/examples /data/packaging/examples
umount /data
: > /etc/fstab
END
in_order "after the archive is installed"
DESTDIR=$root sh "$alone/packaging/install.sh" uninstall
listing >"$work/after"
left
say "The package, make install and the archive work, and leave nothing."
