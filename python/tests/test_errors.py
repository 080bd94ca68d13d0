"""Errors say what, where and the remedy, as those of the command do."""

import os
import pathlib
import socket
import threading

import pytest

import bimetal

BAD = """
[cache]
policy = "lru"
size = 64
"""


def test_a_file_is_refused_in_the_words_of_the_command(stack_file, command):
    path = stack_file(BAD)
    with pytest.raises(bimetal.Error) as why:
        bimetal.Stack(path)
    assert f"{path}:4: 'size = 64' in [cache]: a size has a unit" in str(why.value)
    told = command("replay", "--stack", path, check=False)
    assert told.returncode != 0 and str(why.value) in told.stderr


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"cache": {"policy": "lru", "size": 64}}, "write \"64B\", \"64KiB\" or \"64MiB\""),
        ({"cache": {"policy": "lruu", "size": "1MiB"}}, "did you mean"),
        ({"cash": {"policy": "lru"}}, "cash"),
        ({"cache": {"policy": "lru"}}, "the key 'size' is missing"),
        ({"run": {"queue_depth": 4}}, "queue-depth"),
        ({"run": {"speed": float("nan")}, "trace": {"generator": "zipf"}}, "--speed|speed"),
        ({"seed": object()}, "object"),
        ({"device": {"profile": "slc-5k"}}, "slc-5k"),
        ({"trace": {"file": "a", "generator": "zipf"}}, "exclude each other"),
        ({"about": "quotes \" and \\ and \x7f and \n ends", "cache": 3}, "cache"),
    ],
)
def test_arguments_are_refused_in_the_same_words(keys, told):
    with pytest.raises(bimetal.Error, match=told):
        bimetal.replay(bimetal.Stack(**keys))


def test_text_of_any_kind_is_kept():
    about = "quotes \" and \\ and \x7f and \n ends, ü and \U0001f600"
    assert bimetal.Stack(about=about).config()["about"] == about


def test_a_setting_that_is_refused_changes_nothing():
    stack = bimetal.Stack(cache={"policy": "lru", "size": "1MiB"})
    before = stack.config()
    for key, value in [("cache.size", 64), ("cache.sise", "1MiB"), ("cache.policy", "lruu"), ("", 1), ("seed", "a,b")]:
        with pytest.raises(bimetal.Error):
            stack.set(key, value)
        assert stack.config() == before
    with pytest.raises(TypeError):
        stack.set("seed", None)
    with pytest.raises(TypeError, match="a file or a text, or keys"):
        bimetal.Stack(BAD, seed=1)


def test_what_the_system_says_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere.toml"):
        bimetal.Stack(tmp_path / "nowhere.toml")
    with pytest.raises(bimetal.Error, match="is a directory; name a file"):
        bimetal.Stack(tmp_path)
    with pytest.raises((bimetal.Error, OSError), match="nowhere.csv"):
        bimetal.replay(bimetal.Stack(), tmp_path / "nowhere.csv")


def test_runs_that_cannot_be_are_refused(tmp_path):
    with pytest.raises(bimetal.Error, match="nothing to play"):
        bimetal.replay(bimetal.Stack())
    with pytest.raises(bimetal.Error, match="zipff"):
        bimetal.replay(bimetal.Stack(), "gen:zipff")
    path = tmp_path / "bad.csv"
    path.write_text("time_s,op,offset_bytes,length_bytes\n0,R,0,512\n0,R,zero,512\n")
    with pytest.raises(bimetal.Error, match=r"bad.csv.*field 3 \(offset\) is 'zero'.*line 3"):
        bimetal.replay(bimetal.Stack(), path)
    with pytest.raises(bimetal.Error, match="ends past the device's .* or a larger device.size"):
        bimetal.replay(bimetal.Stack(device={"profile": "slc-4k", "size": "1MiB"}), "gen:iometer:size=64MiB")
    with pytest.raises(AttributeError):
        bimetal.replay("stack.toml")


def test_a_run_that_its_device_ended_is_a_result():
    stack = bimetal.Stack(device={"profile": "slc-4k", "ftl": "page", "size": "16MiB"})
    result = bimetal.replay(stack, "gen:zipf:pages=100:requests=100")
    assert result["ended"]["how"] == "complete"


def test_status_of_what_is_not_ours(tmp_path):
    with pytest.raises(bimetal.Error, match="nothing of bimetal is mounted here"):
        bimetal.status(tmp_path)
    with pytest.raises(FileNotFoundError):
        bimetal.status(tmp_path / "nowhere")


def test_status_is_asked_of_the_socket_beside_a_device(tmp_path):
    device, answer = tmp_path / "nbd", b'{"ftl": {"erases": 7}}\n'
    served = socket.socket(socket.AF_UNIX)
    served.bind(str(device))
    told = socket.socket(socket.AF_UNIX)
    told.bind(f"{device}.status")
    told.listen()

    def serve():
        peer, _ = told.accept()
        peer.sendall(answer)
        peer.close()

    server = threading.Thread(target=serve)
    server.start()
    assert bimetal.status(str(device)) == {"ftl": {"erases": 7}}
    server.join()


def test_status_of_a_mount_is_that_of_the_command(tmp_path, command):
    import json

    if not pathlib.Path("/dev/fuse").exists() or os.geteuid() != 0:
        pytest.skip("no FUSE")
    ssd, disk, mnt = tmp_path / "ssd.img", tmp_path / "disk.img", tmp_path / "mnt"
    mnt.mkdir()
    for path, size in [(ssd, 64 << 20), (disk, 256 << 20)]:
        with open(path, "wb") as image:
            image.truncate(size)
    command("mkfs", "nfhybrid", "--ssd", ssd, "--disk", disk)
    command("mount", "--ssd", ssd, "--disk", disk, mnt)
    try:
        (mnt / "file").write_bytes(b"x" * 100_000)
        ours, theirs = bimetal.status(mnt), json.loads(command("status", "--json", mnt))
        assert ours.keys() == theirs.keys()
        assert ours["front"].keys() == theirs["front"].keys()
        with pytest.raises(bimetal.Error, match="nothing of bimetal"):
            bimetal.status(mnt / "file")
    finally:
        command("umount", mnt)
