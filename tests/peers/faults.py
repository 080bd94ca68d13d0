#!/usr/bin/env python3
"""littlefs and ext4 under single faults, beside what `cargo test -p cmfs-core faults` does to cmfs.

    python3 tests/peers/faults.py --littlefs FOLDER [--every N]

FOLDER holds littlefs' own lfs.c, lfs.h, lfs_util.c and lfs_util.h (github.com/littlefs-project/littlefs). ext4 is an image
that mke2fs fills, with metadata checksums, read by debugfs: each used block of 1 KiB as noise (what cannot be read), and each
with one wrong bit, one at a time; every Nth block. What is not there is said and passed over.
"""
import argparse
import os
import pathlib
import random
import shutil
import subprocess
import tempfile

BLOCK = 1024
FILES = 22


def littlefs(folder, work):
    here = pathlib.Path(__file__).parent / "littlefs.c"
    sources = [here, folder / "lfs.c", folder / "lfs_util.c"]
    flags = ["-O1", "-w", "-DLFS_NO_DEBUG", "-DLFS_NO_WARN", "-DLFS_NO_ERROR", "-DLFS_NO_ASSERT"]
    program = work / "littlefs"
    subprocess.run(["cc", *flags, f"-I{folder}", "-o", program, *sources], check=True)
    print(subprocess.run([program], check=True, capture_output=True, text=True).stdout, end="")


def contents(number):
    return bytes((number * 37 + at // 7 + at) % 256 for at in range(100 + number * 531 % 12000))


def run(*command):
    return subprocess.run(command, capture_output=True, timeout=60)


def struck(image, files, out):
    """How many files are not as they were: with an error or missing, and wrong without a word."""
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    commands = "".join(f"dump {name} {out / name.replace('/', '_')}\n" for name in files)
    script = out / "script"
    script.write_text(commands)
    said = run("debugfs", "-f", script, image).stderr.decode(errors="replace")
    errors = silent = 0
    for name, expected in files.items():
        found = out / name.replace("/", "_")
        if not found.exists() or name in said and found.read_bytes() != expected:
            errors += 1
        elif found.read_bytes() != expected:
            silent += 1
    return errors, silent


def ext4(work, every):
    tree, image, out = work / "tree", work / "ext4", work / "out"
    files = {}
    for number in range(FILES):
        name = f"d{number % 2}/f{number}"
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(contents(number))
        files[name] = contents(number)
    options = ["-q", "-N", "64", "-t", "ext4", "-b", str(BLOCK), "-O", "metadata_csum,^resize_inode", "-J", "size=1", "-d", tree]
    subprocess.run(["mke2fs", *options, image, "4M"], check=True)
    whole = image.read_bytes()
    assert struck(image, files, out) == (0, 0)
    used = [at for at in range(0, len(whole), BLOCK) if any(whole[at : at + BLOCK])]
    rng = random.Random(1)
    for what in ["unreadable blocks (noise)", "one wrong bit"]:
        faults = closed = strikes = errors = silent = most = unseen = left = 0
        for at in used[::every]:
            bad = bytearray(whole)
            if what == "one wrong bit":
                bad[at + rng.randrange(BLOCK)] ^= 1 << rng.randrange(8)
            else:
                bad[at : at + BLOCK] = rng.randbytes(BLOCK)
            image.write_bytes(bad)
            faults += 1
            opened = run("dumpe2fs", "-h", image).returncode == 0
            closed += not opened
            one = struck(image, files, out)
            strikes += sum(one) > 0
            most = max(most, sum(one))
            errors, silent = errors + one[0], silent + one[1]
            checked = run("e2fsck", "-fn", image).returncode
            unseen += checked == 0 and sum(one) > 0
            run("e2fsck", "-fy", image)
            left += sum(struck(image, files, out)) > 0
        print(
            f"ext4, {what}: {faults} faults, {closed} without a superblock, {strikes} that struck files (the most: {most}); "
            f"{errors} files with an error, {silent} wrong without a word; {unseen} times e2fsck saw nothing; "
            f"{left} times files were struck after e2fsck -y"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--littlefs", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1)
    args = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if args.littlefs is None or shutil.which("cc") is None:
            print("skipped: littlefs needs its sources (--littlefs FOLDER) and a C compiler")
        else:
            littlefs(args.littlefs, work)
        if shutil.which("mke2fs") is None or shutil.which("debugfs") is None:
            print("skipped: ext4 needs e2fsprogs")
        else:
            ext4(work, args.every)


if __name__ == "__main__":
    main()
