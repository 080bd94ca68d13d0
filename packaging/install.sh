#!/bin/sh
# Installs what `files` lists, removes it again, or lists it.
#
#   packaging/install.sh install | uninstall | list
#
# By these variables: BIMETAL, the program (that of make build); PREFIX (/usr/local); DESTDIR, before every path, for
# packages; BINDIR, SBINDIR, DATADIR, MANDIR, ZSHDIR, UNITDIR, UDEVDIR, one by one; MANIFEST, where it is written down what was installed
# and which directories were made for it (empty: nowhere). `uninstall` takes away exactly that; `install` over an older
# one takes away what the older had and this one does not. What is there and was not installed by this PREFIX (by a
# package, by another PREFIX, which shares SBINDIR) is not replaced, unless FORCE is 1; a link that leads elsewhere by
# now is not removed.
set -eu
here=$(cd "$(dirname "$0")/.." && pwd)
: "${DESTDIR:=}" "${PREFIX:=/usr/local}" "${FORCE:=0}"
[ "$PREFIX" = / ] || PREFIX=${PREFIX%/}
# In an archive of dist.sh the program is at the top.
if [ -z "${BIMETAL:-}" ]; then
    BIMETAL=$here/target/release/bimetal
    [ ! -x "$here/bimetal" ] || BIMETAL=$here/bimetal
fi
: "${BINDIR:=$PREFIX/bin}" "${DATADIR:=$PREFIX/share}" "${UNITDIR:=$PREFIX/lib/systemd/system}" "${UDEVDIR:=$PREFIX/lib/udev/rules.d}"
# mount(8) and fsck(8) look for helpers here, whatever the prefix is.
: "${SBINDIR:=/sbin}"
: "${MANDIR:=$DATADIR/man}" "${ZSHDIR:=$DATADIR/zsh/site-functions}" "${MANIFEST=$DATADIR/bimetal/installed}"

fail() { printf 'install.sh: %s\n' "$*" >&2; exit 1; }

# These stand in a unit and in a rule, and in lists of names.
for dir in "$PREFIX" "$BINDIR" "$SBINDIR" "$DATADIR" "$MANDIR" "$ZSHDIR" "$UNITDIR" "$UDEVDIR" "${MANIFEST:-/}"; do
    case $dir in
    /*) ;;
    *) fail "'$dir' is no absolute path; PREFIX and the other directories begin with /" ;;
    esac
    case $dir in
    *[!A-Za-z0-9/._+:@,~=-]*) fail "'$dir': PREFIX and the other directories are of letters, digits and / . _ + : @ , ~ = - only; DESTDIR is free" ;;
    esac
done

# The path that a place in the list means.
placed() {
    case $1 in
    BINDIR/*) echo "$BINDIR/${1#*/}" ;;
    SBINDIR/*) echo "$SBINDIR/${1#*/}" ;;
    DATADIR/*) echo "$DATADIR/${1#*/}" ;;
    MANDIR/*) echo "$MANDIR/${1#*/}" ;;
    ZSHDIR/*) echo "$ZSHDIR/${1#*/}" ;;
    UNITDIR/*) echo "$UNITDIR/${1#*/}" ;;
    UDEVDIR/*) echo "$UDEVDIR/${1#*/}" ;;
    *) fail "packaging/files: $1: no such directory" ;;
    esac
}

# Makes a directory, and writes down which of its path were not there.
directory() {
    [ -d "$DESTDIR$1" ] && return 0
    [ "$1" != / ] || { mkdir -p "$DESTDIR" && return 0; }
    directory "$(dirname "$1")"
    mkdir -m 755 "$DESTDIR$1" || fail "$DESTDIR$1 cannot be made; be root, or choose another PREFIX and SBINDIR"
    echo "d $1" >>"$made"
}

# Puts a file in its place at once: who runs or reads the one before keeps it. FILE, MODE, PATH.
put() {
    directory "$(dirname "$3")"
    install -m "$2" "$1" "$DESTDIR$3.new" && mv -f "$DESTDIR$3.new" "$DESTDIR$3" ||
        fail "$DESTDIR$3 cannot be written; be root, or choose another PREFIX and SBINDIR"
    echo "f $3" >>"$made"
}

# Where the program is, seen from a link: relative below one prefix, so that such a tree can be moved as a whole.
seen_from() {
    if [ "$(dirname "$1")" = "$(dirname "$BINDIR")" ]; then echo "../$(basename "$BINDIR")"; else echo "$BINDIR"; fi
}

# The path of each file that a line of the list means.
show() {
    case $1 in
    man)
        [ -d "$work/man" ] || "$BIMETAL" man "$work/man"
        for page in "$work"/man/*."$2"; do echo "$3/$(basename "$page")"; done
        ;;
    *) echo "$3" ;;
    esac
}

# Whether a path is a link to the program of another installation, which is there.
leads_elsewhere() {
    [ -L "$DESTDIR$1" ] || return 1
    to=$(readlink "$DESTDIR$1")
    [ "$to" != "$(seen_from "$(dirname "$1")")/bimetal" ] || return 1
    case $to in
    /*) [ -e "$DESTDIR$to" ] ;;
    *) [ -e "$DESTDIR$(dirname "$1")/$to" ] ;;
    esac
}

# An error for what must not be replaced, before anything is written: what an earlier install of this PREFIX did not put there.
check() {
    each show >"$work/paths"
    while read -r path; do
        [ ! -d "$DESTDIR$path" ] || fail "$DESTDIR$path is a directory; nothing was installed; remove it"
        [ "$FORCE" != 1 ] || continue
        if [ -L "$DESTDIR$path" ]; then
            leads_elsewhere "$path" || continue
        elif [ ! -e "$DESTDIR$path" ]; then
            continue
        elif [ -n "$MANIFEST" ] && [ -e "$DESTDIR$MANIFEST" ] && grep -qxF "f $path" "$DESTDIR$MANIFEST"; then
            continue
        fi
        fail "$DESTDIR$path is there, and is not of an installation in $PREFIX; nothing was installed; remove what it belongs to first \
(make uninstall with its PREFIX, apt remove bimetal), choose another place, or replace it with FORCE=1"
    done <"$work/paths"
}

# Writes down what there is so far, with what an earlier one made.
write_down() {
    { cat "$work/before"; sed 's/^/f /' "$work/paths"; cat "$made"; } | sort -u >"$work/down"
    install -m 644 "$work/down" "$DESTDIR$MANIFEST" || fail "$DESTDIR$MANIFEST cannot be written; be root, or choose another PREFIX"
}

# One line of the list. KIND, SOURCE, PATH.
one() {
    case $1 in
    program)
        cp "$BIMETAL" "$work/program"
        command -v "${STRIP:=strip}" >/dev/null && "$STRIP" "$work/program"
        put "$work/program" 755 "$3"
        ;;
    link)
        directory "$(dirname "$3")"
        ln -sf "$(seen_from "$(dirname "$3")")/$2" "$DESTDIR$3" || fail "$DESTDIR$3 cannot be made; be root, or choose another SBINDIR"
        echo "f $3" >>"$made"
        ;;
    man)
        [ -d "$work/man" ] || "$BIMETAL" man "$work/man"
        for page in "$work"/man/*."$2"; do put "$page" 644 "$3/$(basename "$page")"; done
        ;;
    completion)
        "$BIMETAL" completions "$2" >"$work/completion"
        put "$work/completion" 644 "$3"
        ;;
    text)
        sed "s|@BINDIR@|$BINDIR|g" "$here/$2" >"$work/text"
        put "$work/text" 644 "$3"
        ;;
    *) fail "packaging/files: $1: no such kind" ;;
    esac
}

each() {
    sed '/^#/d;/^$/d' "$here/packaging/files" >"$work/files"
    while read -r kind from to; do
        to=$(placed "$to") || exit 1
        "$1" "$kind" "$from" "$to"
    done <"$work/files"
}

# Removes what one manifest has and another has not; then the directories that were made for it, if nothing else is in them.
remove() {
    sort "$2" >"$work/kept"
    sort "$1" | comm -23 - "$work/kept" >"$work/gone"
    sed -n 's/^f //p' "$work/gone" | while read -r path; do
        if leads_elsewhere "$path"; then
            echo "install.sh: $DESTDIR$path is of another installation by now, and stays" >&2
        else
            rm -f "$DESTDIR$path"
        fi
    done
    sed -n 's/^d //p' "$work/gone" | sort -r | while read -r path; do
        rmdir "$DESTDIR$path" 2>/dev/null || true
    done
}

# Units and rules are read again where that is of use, and devices that are there looked at by the rules as they are now.
tell() {
    [ -z "$DESTDIR" ] && [ "$(id -u)" = 0 ] || return 0
    [ ! -d /run/systemd/system ] || systemctl daemon-reload || true
    [ ! -S /run/udev/control ] || { udevadm control --reload && udevadm trigger --subsystem-match=block; } || true
}

umask 022
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
made=$work/made
: >"$made"
case ${1:-} in
install)
    [ -x "$BIMETAL" ] || fail "there is no $BIMETAL; make build makes it"
    check
    if [ -n "$MANIFEST" ]; then
        if [ -e "$DESTDIR$MANIFEST" ]; then cp "$DESTDIR$MANIFEST" "$work/before"; else : >"$work/before"; fi
        # Before the first file: what ends in the middle can be uninstalled.
        directory "$(dirname "$MANIFEST")"
        echo "f $MANIFEST" >>"$made"
        write_down
        trap 'write_down; rm -rf "$work"' EXIT
    fi
    each one
    if [ -n "$MANIFEST" ]; then
        # Directories that an earlier one made are still ours to remove.
        sed -n '/^d /p' "$work/before" >>"$made"
        remove "$work/before" "$made"
        trap 'rm -rf "$work"' EXIT
        sort -u "$made" >"$work/down"
        put "$work/down" 644 "$MANIFEST"
    fi
    tell
    ;;
uninstall)
    [ -e "$DESTDIR$MANIFEST" ] || fail "$DESTDIR$MANIFEST, where it is written down what was installed, is not there"
    cp "$DESTDIR$MANIFEST" "$work/all"
    remove "$work/all" /dev/null
    tell
    ;;
list)
    [ -x "$BIMETAL" ] || fail "there is no $BIMETAL; make build makes it"
    each show
    ;;
*) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
