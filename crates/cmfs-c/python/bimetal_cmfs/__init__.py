"""cmfs images of raw NAND and NVRAM: made, read and changed from Python, by the library that firmware uses."""

import ctypes
import io
import os
import stat as stat_module
from ctypes import CFUNCTYPE, POINTER, Structure, byref, c_char, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint8
from ctypes import c_uint32, c_uint64, c_void_p
from pathlib import Path

__all__ = ["CMFS", "Nand", "Nvram", "Stat", "FsStat", "DirEntry", "NandError"]

FILE, SYMLINK, DIR, SPECIAL = 1, 2, 3, 5
_CREATE, _EXCLUSIVE, _TRUNCATE = 1, 2, 4
_NO_NAMES, _NO_SUMMARIES, _PAPER, _PLAIN, _CORRECT = 1, 2, 4, 8, 16
UNREADABLE, FAILED, GONE = -1, -2, -3


class NandError(Exception):
    """What a method of a part raises: `code` is UNREADABLE, FAILED or GONE."""

    def __init__(self, code=GONE):
        super().__init__(code)
        self.code = code


class Nand:
    """A NAND part in memory: pages with their spare areas, and which blocks are bad."""

    def __init__(self, page_bytes=2048, spare_bytes=64, pages_per_block=64, blocks=1024):
        self.page_bytes, self.spare_bytes = page_bytes, spare_bytes
        self.pages_per_block, self.blocks = pages_per_block, blocks
        self._step = page_bytes + spare_bytes
        self._bytes = bytearray(b"\xff") * (self._step * pages_per_block * blocks)
        self._bad = set()

    @classmethod
    def of(cls, image, page_bytes=2048, spare_bytes=64, pages_per_block=64):
        """The part that an image holds; pages of zeros are erased ones."""
        step = page_bytes + spare_bytes
        blocks, rest = divmod(len(image), step * pages_per_block)
        if rest or not blocks:
            raise ValueError(f"{len(image)} bytes are no whole number of blocks of this part")
        nand = cls(page_bytes, spare_bytes, pages_per_block, blocks)
        zeros = bytes(step)
        for at in range(0, len(image), step):
            page = image[at : at + step]
            if page != zeros:
                nand._bytes[at : at + step] = page
        for block in range(blocks):
            mark = nand._bytes[block * pages_per_block * step + page_bytes]
            if bin(mark).count("1") < 7:
                nand._bad.add(block)
        return nand

    def image(self):
        """Page, spare area, page, …, as `nanddump --oob` writes them and `nandwrite --oob` takes them."""
        return bytes(self._bytes)

    def is_bad(self, block):
        return block in self._bad

    def mark_bad(self, block):
        self._bad.add(block)
        self._bytes[block * self.pages_per_block * self._step + self.page_bytes] = 0

    def read(self, page):
        """Data and spare area of a page."""
        at = page * self._step
        return self._bytes[at : at + self.page_bytes], self._bytes[at + self.page_bytes : at + self._step]

    def read_spare(self, page):
        return self.read(page)[1]

    def program(self, page, data, spare):
        at = page * self._step
        self._bytes[at : at + self._step] = data + spare

    def erase(self, block):
        size = self.pages_per_block * self._step
        self._bytes[block * size : (block + 1) * size] = b"\xff" * size

    def sync(self):
        pass


class Nvram:
    """A byte-addressable memory that keeps its contents."""

    def __init__(self, size=131072):
        self._bytes = bytearray(size)

    @classmethod
    def of(cls, image):
        nvram = cls(len(image))
        nvram._bytes[:] = image
        return nvram

    def __len__(self):
        return len(self._bytes)

    def image(self):
        return bytes(self._bytes)

    def read(self, offset, size):
        return self._bytes[offset : offset + size]

    def write(self, offset, data):
        self._bytes[offset : offset + len(data)] = data

    def persist(self):
        pass


_U8 = POINTER(c_uint8)
_BLOCK = CFUNCTYPE(c_int, c_void_p, c_uint32)
_READ = CFUNCTYPE(c_int, c_void_p, c_uint32, _U8, _U8)
_SPARE = CFUNCTYPE(c_int, c_void_p, c_uint32, _U8)
_SYNC = CFUNCTYPE(c_int, c_void_p)
_MEMORY = CFUNCTYPE(c_int, c_void_p, c_size_t, _U8, c_size_t)


class _CNand(Structure):
    _fields_ = [
        ("context", c_void_p),
        ("page_bytes", c_uint32),
        ("spare_bytes", c_uint32),
        ("pages_per_block", c_uint32),
        ("blocks", c_uint32),
        ("is_bad", _BLOCK),
        ("mark_bad", _BLOCK),
        ("read", _READ),
        ("read_spare", _SPARE),
        ("program", _READ),
        ("erase", _BLOCK),
        ("sync", _SYNC),
        ("correctable", c_uint32),
        ("cell_bits", c_uint32),
    ]


class _CNvram(Structure):
    _fields_ = [
        ("context", c_void_p),
        ("size_bytes", c_size_t),
        ("read", _MEMORY),
        ("write", _MEMORY),
        ("persist", _SYNC),
    ]


_CONFIG = ["cache_pages", "update_ms", "reserve_blocks", "copies_max", "wear_limit", "refresh_reads", "refresh_copies"]


class _CConfig(Structure):
    _fields_ = [("memory_bytes", c_size_t)] + [(name, c_uint32) for name in _CONFIG] + [("flags", c_uint32)]


class _CEntry(Structure):
    _fields_ = [("position", c_uint64), ("object", c_uint32), ("kind", c_uint32), ("name", c_char * 256)]


class _Fields:
    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)}' for name, _ in self._fields_)})"


class Stat(_Fields, Structure):
    """What an object is like; times are seconds since 1970."""

    _fields_ = (
        [("size", c_uint64), ("pages", c_uint64)]
        + [(name, c_int64) for name in ("atime", "mtime", "ctime", "crtime")]
        + [(name, c_uint32) for name in ("atime_ns", "mtime_ns", "ctime_ns", "crtime_ns")]
        + [(name, c_uint32) for name in ("object", "kind", "mode", "uid", "gid", "links", "rdev", "reserved")]
    )


class FsStat(_Fields, Structure):
    """Room and counts of a volume."""

    _fields_ = (
        [("page_bytes", c_uint32), ("objects", c_uint32)]
        + [(name, c_uint64) for name in ("pages", "pages_free", "nvram_bytes", "nvram_used", "memory_bytes")]
        + [("session", c_uint32), ("nvram_overflows", c_uint32)]
        + [(name, c_uint64) for name in ("programs", "erases", "copies", "corrected_bits", "failures", "lost_pages")]
        + [("fetched", c_uint64)]
    )


class DirEntry:
    """A name in a directory."""

    def __init__(self, name, object, kind):
        self.name, self.object, self.kind = name, object, kind

    def is_dir(self):
        return self.kind == DIR

    def is_file(self):
        return self.kind == FILE

    def is_symlink(self):
        return self.kind == SYMLINK

    def __repr__(self):
        return f"DirEntry({self.name!r})"


def _load():
    place = os.environ.get("CMFS_LIBRARY") or str(Path(__file__).with_name("libcmfs.so"))
    library = ctypes.CDLL(place)
    path, volume, number = c_char_p, c_void_p, c_uint32
    for name, result, *arguments in [
        ("config_default", c_int, POINTER(_CConfig)),
        ("format", c_int, POINTER(_CNand), POINTER(_CNvram), POINTER(_CConfig), c_char_p),
        ("mount", c_int, POINTER(_CNand), POINTER(_CNvram), POINTER(_CConfig), POINTER(c_void_p)),
        ("mounted_how", c_int, volume),
        ("unmount", c_int, volume),
        ("sync_all", c_int, volume),
        ("check", c_int, volume, c_int),
        ("repair", c_int, volume),
        ("set_time", c_int, volume, c_int64, c_uint32),
        ("statfs", c_int, volume, POINTER(FsStat)),
        ("open", c_int, volume, path, c_int, POINTER(c_uint32)),
        ("close", c_int, volume, number),
        ("size", c_int64, volume, number),
        ("read", c_int32, volume, number, c_uint64, _U8, c_size_t),
        ("write", c_int32, volume, number, c_uint64, c_char_p, c_size_t),
        ("truncate", c_int, volume, number, c_uint64),
        ("sync", c_int, volume, number),
        ("mkdir", c_int, volume, path),
        ("remove", c_int, volume, path),
        ("rename", c_int, volume, path, path),
        ("exchange", c_int, volume, path, path),
        ("link", c_int, volume, path, path),
        ("symlink", c_int, volume, path, path),
        ("readlink", c_int, volume, path, _U8, c_size_t),
        ("readdir", c_int, volume, number, POINTER(_CEntry)),
        ("stat", c_int, volume, path, POINTER(Stat)),
        ("chmod", c_int, volume, number, number),
        ("chown", c_int, volume, number, number, number),
        ("utime", c_int, volume, number, c_int64, c_int64),
        ("getxattr", c_int, volume, number, path, _U8, c_size_t),
        ("setxattr", c_int, volume, number, path, c_char_p, c_size_t),
        ("removexattr", c_int, volume, number, path),
        ("listxattr", c_int, volume, number, _U8, c_size_t),
        ("error_text", c_char_p, c_int),
        ("version", c_char_p),
    ]:
        function = getattr(library, "cmfs_" + name)
        function.restype, function.argtypes = result, arguments
    return library


_LIBRARY = _load()
__version__ = _LIBRARY.cmfs_version().decode()


def _name(path):
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise ValueError("a path holds no NUL")
    return encoded


def _guarded(errors, work):
    """What a callback returns; what it raised is kept, to be raised where the call began."""
    try:
        done = work()
        return int(done or 0)
    except NandError as error:
        return error.code
    except BaseException as error:  # noqa: BLE001: nothing may go through C
        errors.append(error)
        return GONE


def _put(pointer, data):
    ctypes.memmove(pointer, bytes(data), len(data))


def _c_nand(nand, errors):
    page_bytes, spare_bytes = nand.page_bytes, nand.spare_bytes

    def read(_, page, data, spare):
        def work():
            read_data, read_spare = nand.read(page)
            _put(data, read_data)
            _put(spare, read_spare)

        return _guarded(errors, work)

    def read_spare(_, page, spare):
        return _guarded(errors, lambda: _put(spare, nand.read_spare(page)))

    def program(_, page, data, spare):
        held = ctypes.string_at(data, page_bytes), ctypes.string_at(spare, spare_bytes)
        return _guarded(errors, lambda: nand.program(page, *held))

    return _CNand(
        None,
        page_bytes,
        spare_bytes,
        nand.pages_per_block,
        nand.blocks,
        _BLOCK(lambda _, block: _guarded(errors, lambda: nand.is_bad(block))),
        _BLOCK(lambda _, block: _guarded(errors, lambda: nand.mark_bad(block))),
        _READ(read),
        _SPARE(read_spare),
        _READ(program),
        _BLOCK(lambda _, block: _guarded(errors, lambda: nand.erase(block))),
        _SYNC(lambda _: _guarded(errors, nand.sync)),
        0,
        1,
    )


def _c_nvram(nvram, errors):
    def read(_, offset, data, size):
        return _guarded(errors, lambda: _put(data, nvram.read(offset, size)))

    def write(_, offset, data, size):
        held = ctypes.string_at(data, size)
        return _guarded(errors, lambda: nvram.write(offset, held))

    return _CNvram(None, len(nvram), _MEMORY(read), _MEMORY(write), _SYNC(lambda _: _guarded(errors, nvram.persist)))


class _Raw(io.RawIOBase):
    """An open file."""

    def __init__(self, fs, path, mode):
        super().__init__()
        kinds = set(mode) & set("rwxa")
        if len(kinds) != 1 or set(mode) - set("rwxabt+"):
            raise ValueError(f"invalid mode: {mode!r}")
        self._fs, self.name, self.mode = fs, path, mode
        self._reads, self._writes = "r" in mode or "+" in mode, "r" not in mode or "+" in mode
        flags = {"r": 0, "w": _CREATE | _TRUNCATE, "x": _CREATE | _EXCLUSIVE, "a": _CREATE}[kinds.pop()]
        number = c_uint32()
        fs._call("open", _name(path), flags, byref(number), path=path)
        self._object, self._at = number.value, 0
        fs._files.add(self)
        if "a" in mode:
            self.seek(0, io.SEEK_END)

    def readable(self):
        return self._reads

    def writable(self):
        return self._writes

    def seekable(self):
        return True

    def readinto(self, buffer):
        view = memoryview(buffer).cast("B")
        part = (c_uint8 * len(view))()
        count = self._fs._call("read", self._object, self._at, part, len(view), path=self.name)
        view[:count] = bytes(part)[:count]
        self._at += count
        return count

    def write(self, data):
        data = bytes(data)
        count = self._fs._call("write", self._object, self._at, data, len(data), path=self.name)
        self._at += count
        return count

    def seek(self, offset, whence=io.SEEK_SET):
        begin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at}.get(whence)
        if begin is None:
            begin = self._fs._call("size", self._object, path=self.name)
        if begin + offset < 0:
            raise ValueError("negative seek position")
        self._at = begin + offset
        return self._at

    def tell(self):
        return self._at

    def truncate(self, size=None):
        size = self._at if size is None else size
        self._fs._call("truncate", self._object, size, path=self.name)
        return size

    def close(self):
        if not self.closed:
            super().close()
            self._fs._files.discard(self)
            if self._fs._volume:
                self._fs._call("close", self._object, path=self.name)


class CMFS:
    """A cmfs on a part and a memory. Without `format=False` it is made anew, unless `mount=False` asks for neither."""

    def __init__(
        self,
        nand=None,
        nvram=None,
        *,
        format=True,
        mount=True,
        identity=None,
        names=True,
        summaries=True,
        layout="compact",
        plain=False,
        correct=False,
        **config,
    ):
        self.nand = Nand() if nand is None else nand
        self.nvram = nvram
        self._errors, self._files, self._volume = [], set(), None
        self._c_nand = _c_nand(self.nand, self._errors)
        self._c_nvram = None if nvram is None else _c_nvram(nvram, self._errors)
        self._config = _CConfig()
        _LIBRARY.cmfs_config_default(byref(self._config))
        if layout not in ("compact", "paper"):
            raise ValueError(f"layout {layout!r}: there are compact and paper")
        flags = [(not names, _NO_NAMES), (not summaries, _NO_SUMMARIES), (layout == "paper", _PAPER)]
        flags += [(plain, _PLAIN), (correct, _CORRECT)]
        self._config.flags |= sum(flag for wanted, flag in flags if wanted)
        for name, value in config.items():
            if name not in _CONFIG + ["memory_bytes"]:
                raise TypeError(f"no such choice: {name}")
            setattr(self._config, name, value)
        if format and mount:
            self.format(identity)
        if mount:
            self.mount()

    def _media(self):
        nvram = None if self._c_nvram is None else byref(self._c_nvram)
        return byref(self._c_nand), nvram, byref(self._config)

    def _check(self, code, path=None):
        if self._errors:
            error = self._errors[0]
            self._errors.clear()
            raise error
        if code < 0:
            text = _LIBRARY.cmfs_error_text(int(code)).decode()
            raise OSError(-code, text, path) if path is not None else OSError(-code, text)
        return code

    def _call(self, function, *arguments, path=None):
        if not self._volume:
            raise ValueError("not mounted")
        return self._check(getattr(_LIBRARY, "cmfs_" + function)(self._volume, *arguments), path)

    def format(self, identity=None):
        """Makes an empty file system; `identity` are 16 bytes, random where they are not given."""
        if self._volume:
            raise ValueError("mounted")
        identity = os.urandom(16) if identity is None else bytes(identity)
        if len(identity) != 16:
            raise ValueError("an identity is 16 bytes")
        self._check(_LIBRARY.cmfs_format(*self._media(), identity))

    def mount(self):
        if self._volume:
            raise ValueError("mounted")
        volume = c_void_p()
        self._check(_LIBRARY.cmfs_mount(*self._media(), byref(volume)))
        self._volume = volume

    def unmount(self):
        """Closes what is open, and ends cleanly."""
        for file in list(self._files):
            file.close()
        if not self._volume:
            raise ValueError("not mounted")
        volume, self._volume = self._volume, None
        self._check(_LIBRARY.cmfs_unmount(volume))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self._volume:
            self.unmount()

    def __del__(self):
        if getattr(self, "_volume", None):
            # Not cleanly: what was not synced is as after a power cut.
            self._volume = None

    @property
    def mounted_how(self):
        """clean, recovered, scanned, or checkpoint."""
        return ("clean", "recovered", "scanned", "checkpoint")[self._call("mounted_how")]

    def sync(self):
        self._call("sync_all")

    def check(self, data=True):
        """How many things are wrong."""
        return self._call("check", int(data))

    def repair(self):
        return self._call("repair")

    def set_time(self, seconds, nanoseconds=0):
        """What is changed from now on is stamped with this."""
        self._call("set_time", seconds, nanoseconds)

    def statfs(self):
        found = FsStat()
        self._call("statfs", byref(found))
        return found

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None):
        """Opens a file as the built-in open() does."""
        raw = _Raw(self, path, mode)
        if buffering == 0:
            if "b" not in mode:
                raw.close()
                raise ValueError("text is buffered")
            return raw
        size = io.DEFAULT_BUFFER_SIZE if buffering < 0 else max(buffering, 1)
        if "+" in mode:
            file = io.BufferedRandom(raw, size)
        elif raw.readable():
            file = io.BufferedReader(raw, size)
        else:
            file = io.BufferedWriter(raw, size)
        # Where the file system is unmounted, what waits here is written first.
        self._files.discard(raw)
        self._files.add(file)
        return file if "b" in mode else io.TextIOWrapper(file, encoding or "utf-8", errors, newline)

    def _object(self, path):
        found = Stat()
        self._call("stat", _name(path), byref(found), path=path)
        return found.object

    def stat(self, path):
        found = Stat()
        self._call("stat", _name(path), byref(found), path=path)
        return found

    def exists(self, path):
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def scandir(self, path="/"):
        number, entry = c_uint32(), _CEntry()
        self._call("open", _name(path), 0, byref(number), path=path)
        try:
            while self._call("readdir", number, byref(entry), path=path):
                yield DirEntry(os.fsdecode(entry.name), entry.object, entry.kind)
        finally:
            if self._volume:
                self._call("close", number)

    def listdir(self, path="/"):
        return [entry.name for entry in self.scandir(path)]

    def walk(self, top="/"):
        """As os.walk(), from the top down."""
        dirs, files = [], []
        for entry in self.scandir(top):
            (dirs if entry.is_dir() else files).append(entry.name)
        yield top, dirs, files
        for name in dirs:
            yield from self.walk(top.rstrip("/") + "/" + name)

    def mkdir(self, path):
        self._call("mkdir", _name(path), path=path)

    def makedirs(self, path, exist_ok=False):
        parts = [part for part in path.split("/") if part]
        for end in range(1, len(parts) + 1):
            try:
                self.mkdir("/" + "/".join(parts[:end]))
            except FileExistsError:
                if end == len(parts) and not exist_ok:
                    raise

    def remove(self, path):
        """Removes a file, or a directory that is empty."""
        self._call("remove", _name(path), path=path)

    unlink = remove
    rmdir = remove

    def rename(self, old, new):
        self._call("rename", _name(old), _name(new), path=old)

    def exchange(self, one, two):
        self._call("exchange", _name(one), _name(two), path=one)

    def link(self, old, new):
        self._call("link", _name(old), _name(new), path=old)

    def symlink(self, target, path):
        self._call("symlink", _name(target), _name(path), path=path)

    def readlink(self, path):
        target = (c_uint8 * 256)()
        count = self._call("readlink", _name(path), target, len(target), path=path)
        return os.fsdecode(bytes(target)[:count])

    def chmod(self, path, mode):
        self._call("chmod", self._object(path), mode, path=path)

    def chown(self, path, uid, gid):
        self._call("chown", self._object(path), uid, gid, path=path)

    def utime(self, path, atime, mtime):
        self._call("utime", self._object(path), int(atime), int(mtime), path=path)

    def getxattr(self, path, name):
        value = (c_uint8 * 65536)()
        count = self._call("getxattr", self._object(path), _name(name), value, len(value), path=path)
        return bytes(value)[:count]

    def setxattr(self, path, name, value):
        self._call("setxattr", self._object(path), _name(name), bytes(value), len(value), path=path)

    def removexattr(self, path, name):
        self._call("removexattr", self._object(path), _name(name), path=path)

    def listxattr(self, path):
        names = (c_uint8 * 65536)()
        count = self._call("listxattr", self._object(path), names, len(names), path=path)
        return [os.fsdecode(name) for name in bytes(names)[:count].split(b"\0")[:-1]]

    def add_tree(self, source, to="/"):
        """Puts what is in a directory of the host into one here, by name; files, directories and symbolic links."""
        for entry in sorted(os.scandir(source), key=lambda entry: os.fsencode(entry.name)):
            path = to.rstrip("/") + "/" + entry.name
            found = entry.stat(follow_symlinks=False)
            if entry.is_symlink():
                self.symlink(os.readlink(entry.path), path)
            elif entry.is_dir():
                self.makedirs(path, exist_ok=True)
                self.add_tree(entry.path, path)
            elif entry.is_file():
                with open(entry.path, "rb") as file, self.open(path, "wb", 1 << 16) as copy:
                    while part := file.read(1 << 16):
                        copy.write(part)
            else:
                raise ValueError(f"{entry.path}: neither a file, a directory nor a symbolic link")
            self.chmod(path, stat_module.S_IMODE(found.st_mode))
            self.utime(path, found.st_mtime, found.st_mtime)
