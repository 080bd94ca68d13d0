#!/usr/bin/env python3
"""Packs recorded traces so small that they lie in the program: python3 pack.py TRACES traces.zst

What is left out, of all: the times, and so the gaps between requests (they are replayed closed-loop: the next request when the one
before is done). Of system calls also all but those on one path of EACH, by the number of the first name that a file had, and the
paths that these do not use, the others numbered anew: what is kept is whole files' histories, from all of the recording, their times in hundredths of a second.
Nothing else: requests, their order, offsets, lengths and flags are the recorded ones, and unpacked files give them again.

The archive, packed with zstd as a whole: lines of text that describe the traces, an empty line, then the columns of each, one
after the other, in variable-length integers (seven bits a byte, the lowest first; signed ones zigzag).

    REQUESTS NAME COUNT UNIT LAG KINDS     of requests; columns: kind, offset
    OP,LENGTH,FLAGS                        KINDS lines, a kind each
    CALLS NAME COUNT NAMES                 of system calls; columns: time, process, call, path, offset, length, result
    CALL                                   NAMES lines, a name each
    COPY NAME BYTES                        a file as it is

An offset is in units of UNIT bytes, and the difference to where the request before ended (LAG 0), or to the offset of the
request of the same kind LAG such requests ago. Of system calls, the time is in hundredths of a second from the call before, the
process the difference to that one's, the path that to the last one of the process, the offset that to where the last call on the
path ended, and the result is what the length is more.
"""
import math
import subprocess
import sys
import zlib

EACH = 4
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
    first = {}
    for row in rows:
        if row[2] in ("rename", "link"):
            first[row[4]] = first.get(row[3], row[3])
    rows = [row for row in rows if int(first.get(row[3], row[3])) % EACH == 0]
    used = {int(row[3]) for row in rows} | {int(row[4]) for row in rows if row[2] in ("rename", "link")}
    number = {path: number for number, path in enumerate(sorted(used))}
    names, columns = {}, [bytearray() for _ in range(7)]
    now, process, path_of, at_of = 0, 0, {}, {}
    for time, pid, call, path, offset, length, result in rows:
        time = int(float(time) * 100)
        put(columns[6], time - now)
        now = time
        pid, path, offset, length, result = map(int, (pid, path, offset, length, result))
        path, offset = number[path], number[offset] if call in ("rename", "link") else offset
        put(columns[0], pid - process)
        put(columns[1], names.setdefault(call, len(names)))
        put(columns[2], path - path_of.get(pid, 0))
        put(columns[3], offset - at_of.get(path, 0))
        put(columns[4], length)
        put(columns[5], length - result)
        process, path_of[pid] = pid, path
        at_of[path] = offset + max(result, 0)
    head.append(f"CALLS {name}.csv.zst {len(rows)} {len(names)}")
    head.extend(names)
    body.extend(map(bytes, columns[6:] + columns[:6]))
    text = [line.split(",", 1) for line in read(f"{traces}/{name}.paths.csv.zst").decode().splitlines(keepends=True)]
    kept = "".join(f"{number[int(path)]},{rest}" for path, rest in text if not path.startswith("#") and int(path) in used)
    kept = ",".join(text[0]) + kept
    copy(f"{name}.paths.csv.zst", kept.encode(), head, body)
    return f"{[len(zlib.compress(bytes(column), 9)) for column in columns]} + {len(zlib.compress(kept.encode(), 9))}"


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
    packed = subprocess.run(["zstd", "-19", "--long=27", "-cq"], input=data, capture_output=True, check=True).stdout
    print(f"one path of {EACH} of the system calls")
    with open(out, "wb") as file:
        file.write(packed)
    print(len(data), "bytes packed to", len(packed))


main()
