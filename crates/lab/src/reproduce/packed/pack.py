#!/usr/bin/env python3
"""Packs recorded traces so small that they lie in the program: python3 pack.py TRACES traces.zst

What is left out, of requests: the times, and so the gaps between them (they are replayed closed-loop: the next request when the one
before is done). Of system calls: those that ask an object for nothing (that failed, moved no byte, or only looked), who called, and
names: a directory's is a number and a file's is '-', so that what lies in which directory is as it was. Their times are in hundredths of a
second. Nothing else: requests and calls, their order, offsets, lengths and flags are the recorded ones.

The archive, packed with zstd as a whole: lines of text that describe the traces, an empty line, then the columns of each, one
after the other, in variable-length integers (seven bits a byte, the lowest first; signed ones zigzag).

    REQUESTS NAME COUNT UNIT LAG KINDS     of requests; columns: kind, offset
    OP,LENGTH,FLAGS                        KINDS lines, a kind each
    CALLS NAME COUNT NAMES                 of system calls; columns: time, call, path, offset, length
    CALL                                   NAMES lines, a name each
    COPY NAME BYTES                        a file as it is

An offset is in units of UNIT bytes, and the difference to where the request before ended (LAG 0), or to the offset of the
request of the same kind LAG such requests ago. Of system calls, the time is in hundredths of a second from the call before, the path the
difference to that of the call before, the offset that to where the last call on the path ended, and the length is the result, too.
"""
import math
import subprocess
import sys
import zlib

# Calls that ask for something if they succeed, and those that do if they moved a byte.
ASK = {"fsync", "fdatasync", "create", "mkdir", "symlink", "opentrunc", "truncate", "unlink", "rmdir", "rename", "link",
       "setattr", "exec", "mmap", "mmapw", "readlink"}
MOVE = {"read", "write", "getdents"}
# Of these the length is asked for, of all others the result.
LONG = {"symlink", "truncate"}
KERNEL = [f"block/{fs}-{program}.dev" for fs in ("ext2", "xfs")
          for program in ("seq16", "seq64", "chunkf", "rnd", "rndre", "pm1k", "pm20k")]
KERNEL += [f"block/{fs}-{program}.bio" for fs in ("ext2", "ext4", "xfs") for program in ("seq16", "seq64")]
KERNEL += [f"block/{fs}-{program}.dev" for fs in ("ext2", "ext4", "xfs") for program in ("bonnieb", "pm1kd")]
KERNEL += ["block/ext4-pm20kd.bio", "block/ext4-chunkf.bio", "block/ext4-rnd.bio", "block/ext2-pm20kd.bio"]
REQUESTS = KERNEL + ["block/vfat-camera500.dev", "p2p/G4.file", "p2p/hostC.file", "fio/f0.dev"]
SYSCALLS = ["syscall/readheavy", "syscall/writeheavy"]
COPIES = ["public/mqsim-tpcc-small.trace.zst", "public/msr-hm_0-sample.csv"]


def read(path):
    if path.endswith(".zst"):
        return subprocess.run(["zstd", "-dcq", path], capture_output=True, check=True).stdout
    with open(path, "rb") as file:
        return file.read()


def lines(path):
    return [line.split(",") for line in read(path).decode().splitlines() if line and not line.startswith("#")]


def put(column, value):
    value = value << 1 if value >= 0 else (-value << 1) - 1
    while value > 127:
        column.append(value & 127 | 128)
        value >>= 7
    column.append(value)


def offsets(requests, kinds, unit, lag):
    column, end, before = bytearray(), 0, {}
    for request, kind in zip(requests, kinds):
        if request[1] == "F":
            continue
        at, seen = int(request[2]) // unit, before.setdefault(kind, [])
        put(column, at - (end if lag == 0 else seen[-lag] if len(seen) >= lag else 0))
        seen.append(at)
        end = at + int(request[3]) // unit
    return bytes(column)


def requests(traces, name, head, body):
    rows = lines(f"{traces}/{name}.csv.zst")
    unit = math.gcd(*(int(row[at]) for row in rows if row[1] != "F" for at in (2, 3))) or 1
    known, kinds, column = {}, [], bytearray()
    for row in rows:
        kind = known.setdefault(",".join([row[1], row[3], row[4] if len(row) > 4 else ""]), len(known))
        kinds.append(kind)
        put(column, kind)
    tried = [offsets(rows, kinds, unit, lag) for lag in range(5)]
    lag = min(range(5), key=lambda lag: len(zlib.compress(tried[lag], 6)))
    head.append(f"REQUESTS {name}.csv.zst {len(rows)} {unit} {lag} {len(known)}")
    head.extend(known)
    body.extend([bytes(column), tried[lag]])
    return f"{len(zlib.compress(bytes(column), 9))} + {len(zlib.compress(tried[lag], 9))}, lag {lag}"


def calls(traces, name, head, body):
    rows = lines(f"{traces}/{name}.csv.zst")
    rows = [row for row in rows if int(row[6]) >= 0 and row[2] in ASK or int(row[6]) > 0 and row[2] in MOVE]
    names, columns = {}, [bytearray() for _ in range(5)]
    now, path_before, at_of = 0, 0, {}
    for time, _, call, path, offset, length, result in rows:
        time, path, offset = int(float(time) * 100), int(path), int(offset)
        length = int(length if call in LONG else result)
        put(columns[0], time - now)
        put(columns[1], names.setdefault(call, len(names)))
        put(columns[2], path - path_before)
        put(columns[3], offset - at_of.get(path, 0))
        put(columns[4], length)
        now, path_before, at_of[path] = time, path, offset + length
    head.append(f"CALLS {name}.csv.zst {len(rows)} {len(names)}")
    head.extend(names)
    body.extend(map(bytes, columns))
    kept = nameless(read(f"{traces}/{name}.paths.csv.zst").decode().splitlines())
    copy(f"{name}.paths.csv.zst", kept.encode(), head, body)
    return f"{len(rows)}: {[len(zlib.compress(bytes(column), 9)) for column in columns]} + {len(zlib.compress(kept.encode(), 9))}"


def nameless(paths):
    """The list of paths, without names."""
    rows = [path.split(",", 3) for path in paths[1:]]
    above = {text.rpartition("/")[0] for _, _, _, text in rows}
    known, out = {"": ""}, [paths[0]]

    def folder(text):
        if text not in known:
            known[text] = f"{folder(text.rpartition('/')[0])}/{len(known):x}"
        return known[text]

    for number, kind, size, text in rows:
        is_folder = kind == "d" or text in above
        name = folder(text) if is_folder else folder(text.rpartition("/")[0]) + "/-"
        out.append(f"{number},{kind},{size},{name}")
    return "\n".join(out) + "\n"


def copy(name, data, head, body):
    head.append(f"COPY {name} {len(data)}")
    body.append(data)


def main():
    traces, out = sys.argv[1:]
    head, body = [], []
    for name in REQUESTS:
        print(name, requests(traces, name, head, body), flush=True)
    for name in SYSCALLS:
        print(name, calls(traces, name, head, body), flush=True)
    for name in COPIES:
        copy(name, read(f"{traces}/{name}"), head, body)
    data = "".join(line + "\n" for line in head + [""]).encode() + b"".join(body)
    packed = subprocess.run(["zstd", "-22", "--ultra", "--long=27", "-cq"], input=data, capture_output=True, check=True).stdout
    with open(out, "wb") as file:
        file.write(packed)
    print(len(data), "bytes packed to", len(packed))


main()
