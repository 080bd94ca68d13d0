"""The wheel's promises; `python -m unittest` runs it where the wheel is installed."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from bimetal_cmfs import CMFS, GONE, Nand, NandError, Nvram


def small():
    return Nand(blocks=32), Nvram(16384)


def again(fs, **config):
    return CMFS(Nand.of(fs.nand.image()), Nvram.of(fs.nvram.image()), format=False, **config)


class Files(unittest.TestCase):
    def test_what_is_written_is_read_back_after_a_mount_of_the_images(self):
        fs = CMFS(*small())
        fs.mkdir("/log")
        with fs.open("/log/today", "w") as file:
            file.write("grüße\n" * 3000)
        with fs.open("/log/bytes", "wb") as file:
            file.write(bytes(range(256)) * 100)
        with fs.open("/log/bytes", "r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"0123456789ab")
            self.assertEqual(file.tell(), 25602)
        with fs.open("/log/today", "a") as file:
            file.write("end")
        fs.unmount()
        fs = again(fs)
        self.assertEqual(fs.mounted_how, "clean")
        self.assertEqual(fs.open("/log/today").read(), "grüße\n" * 3000 + "end")
        data = fs.open("/log/bytes", "rb").read()
        self.assertEqual(data, (bytes(range(256)) * 100)[:-10] + b"0123456789ab")
        self.assertEqual(sorted(fs.listdir("/log")), ["bytes", "today"])
        self.assertEqual(fs.check(), 0)
        fs.unmount()

    def test_errors_are_those_of_the_operating_system(self):
        with CMFS(*small()) as fs:
            with self.assertRaises(FileNotFoundError) as caught:
                fs.open("/none")
            self.assertEqual(caught.exception.filename, "/none")
            fs.mkdir("/d")
            self.assertRaises(FileExistsError, fs.mkdir, "/d")
            self.assertRaises(IsADirectoryError, lambda: fs.open("/d", "rb").read())
            self.assertRaises(FileExistsError, fs.open, "/d", "x")
            self.assertRaises(ValueError, fs.open, "/x", "rw")
            self.assertRaises(ValueError, fs.mkdir, "/a\0b")
            with fs.open("/d/f", "wb"):
                pass
            self.assertRaises(OSError, fs.remove, "/d")
            self.assertRaises(NotADirectoryError, fs.mkdir, "/d/f/x")
        self.assertRaises(ValueError, fs.listdir)
        self.assertRaises(TypeError, CMFS, *small(), speed=5)
        self.assertRaises(ValueError, Nand.of, b"123")
        with self.assertRaises(OSError):
            CMFS(Nand(blocks=32), format=False)

    def test_names_links_and_attributes(self):
        with CMFS(*small()) as fs:
            fs.set_time(1_700_000_000)
            fs.makedirs("/a/b/c")
            with fs.open("/a/f", "wb") as file:
                file.write(b"x" * 5000)
            fs.link("/a/f", "/a/b/g")
            fs.symlink("../f", "/a/b/s")
            self.assertEqual(fs.readlink("/a/b/s"), "../f")
            self.assertEqual((fs.stat("/a/f").links, fs.stat("/a/f").size, fs.stat("/a/f").mtime), (2, 5000, 1_700_000_000))
            fs.rename("/a/f", "/f")
            fs.exchange("/f", "/a/b/s")
            self.assertEqual(fs.readlink("/f"), "../f")
            self.assertEqual(
                [(top, sorted(dirs), sorted(files)) for top, dirs, files in fs.walk()],
                [("/", ["a"], ["f"]), ("/a", ["b"], []), ("/a/b", ["c"], ["g", "s"]), ("/a/b/c", [], [])],
            )
            fs.chmod("/a/b/g", 0o600)
            fs.chown("/a/b/g", 7, 8)
            fs.utime("/a/b/g", 1, 2)
            found = fs.stat("/a/b/s")
            self.assertEqual((found.mode & 0o7777, found.uid, found.gid, found.atime, found.mtime), (0o600, 7, 8, 1, 2))
            fs.setxattr("/a", "user.x", b"value")
            self.assertEqual((fs.listxattr("/a"), fs.getxattr("/a", "user.x")), (["user.x"], b"value"))
            fs.removexattr("/a", "user.x")
            self.assertEqual(fs.listxattr("/a"), [])
            self.assertFalse(fs.exists("/a/none") or fs.exists("/f/none"))

    def test_a_lost_nvram_a_cut_and_bounded_memory_lose_nothing(self):
        fs = CMFS(*small(), memory_bytes=32 << 10, cache_pages=2)
        for number in range(200):
            with fs.open(f"/file{number}", "wb") as file:
                file.write(bytes([number]) * 100)
        self.assertLessEqual(fs.statfs().memory_bytes, 32 << 10)
        # No unmount: as if the power had gone.
        cut = CMFS(Nand.of(fs.nand.image()), Nvram.of(fs.nvram.image()), format=False, memory_bytes=32 << 10)
        self.assertEqual(cut.mounted_how, "recovered")
        lost = CMFS(Nand.of(fs.nand.image()), Nvram(16384), format=False)
        self.assertEqual(lost.mounted_how, "scanned")
        for other in (cut, lost):
            self.assertEqual(len(other.listdir()), 200)
            for number in range(200):
                self.assertEqual(other.open(f"/file{number}", "rb").read(), bytes([number]) * 100)
            other.unmount()

    def test_what_a_part_raises_comes_out_of_the_call(self):
        class Broken(Nand):
            broken = False

            def program(self, page, data, spare):
                if self.broken:
                    raise KeyError("no such wire")
                super().program(page, data, spare)

        fs = CMFS(Broken(blocks=32), Nvram(16384))
        fs.nand.broken = True
        with self.assertRaises(KeyError):
            with fs.open("/f", "wb", 0) as file:
                file.write(b"x" * 100_000)

        class Gone(Nand):
            def read(self, page):
                raise NandError(GONE)

        nand = Gone.of(fs.nand.image())
        with self.assertRaises(OSError):
            CMFS(nand, Nvram.of(fs.nvram.image()), format=False)

    def test_a_tree_of_the_host_makes_the_same_image_twice(self):
        with tempfile.TemporaryDirectory() as place:
            root = Path(place) / "root"
            (root / "etc").mkdir(parents=True)
            (root / "etc" / "conf").write_text("a=1\n")
            (root / "big").write_bytes(bytes(300_000))
            (root / "link").symlink_to("etc/conf")
            images = []
            for _ in range(2):
                with CMFS(*small(), identity=b"0123456789abcdef") as fs:
                    fs.add_tree(root)
                images.append((fs.nand.image(), fs.nvram.image()))
            self.assertEqual(images[0], images[1])
            fs = again(fs)
            self.assertEqual(fs.open("/etc/conf").read(), "a=1\n")
            self.assertEqual(fs.readlink("/link"), "etc/conf")
            self.assertEqual(fs.open("/big", "rb").read(), bytes(300_000))
            fs.unmount()

    @unittest.skipUnless(os.environ.get("BIMETAL"), "BIMETAL names no command")
    def test_the_command_reads_what_is_made_here_and_the_other_way_round(self):
        bimetal = os.environ["BIMETAL"]
        with tempfile.TemporaryDirectory() as place:
            nand, nvram = Path(place) / "nand.img", Path(place) / "nvram.img"
            with CMFS(*small()) as fs, fs.open("/hello", "w") as file:
                file.write("from Python")
            nand.write_bytes(fs.nand.image())
            nvram.write_bytes(fs.nvram.image())
            on = ["--nand", str(nand), "--nvram", str(nvram)]
            got = subprocess.run([bimetal, "cat", *on, "/hello"], check=True, capture_output=True)
            self.assertEqual(got.stdout, b"from Python")
            (Path(place) / "root").mkdir()
            (Path(place) / "root" / "hi").write_text("from the command")
            made = [bimetal, "mkimage", str(Path(place) / "root"), "--size", "4MiB", "--force", *on]
            subprocess.run(made, check=True, capture_output=True)
            fs = CMFS(Nand.of(nand.read_bytes()), Nvram.of(nvram.read_bytes()), format=False, correct=True)
            self.assertEqual((fs.mounted_how, fs.open("/hi").read()), ("clean", "from the command"))
            fs.unmount()


if __name__ == "__main__":
    unittest.main()
