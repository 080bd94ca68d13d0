"""Runs have the figures of the command."""

import functools
import pickle

import pytest

import bimetal

CACHED = """
about = "a page cache over a page map"
seed = 3

[trace]
generator = { name = "zipf", pages = 4000, requests = 20000, read = 50 }

[cache]
policy = "cflru:window=0.5"
size = "1MiB"

[device]
profile = "slc-4k"
size = "32MiB"
ftl = "fast"
"""

RECORDED = """
[trace]
file = "{file}"

[run]
queue-depth = 8

[device]
profile = "hdd-7200"
"""

HYBRID = """
[trace]
generator = { name = "postmark", files = 40, transactions = 150 }

[fs]
kind = "nfhybrid"
options = { lag = "1s,4MiB" }

[ssd]
profile = "ssd-slc"
size = "32MiB"

[disk]
profile = "hdd-7200"
size = "128MiB"
"""


@pytest.fixture(params=["cached", "recorded", "hybrid"])
def text(request, traces):
    recorded = RECORDED.replace("{file}", str(traces / "ext2-seq16.dev.csv.zst"))
    return {"cached": CACHED, "recorded": recorded, "hybrid": HYBRID}[request.param]


def test_figures_are_those_of_the_command(text, stack_file, replayed):
    path = stack_file(text)
    of_command = replayed(path)
    for stack in [bimetal.Stack(path), bimetal.Stack(str(path)), bimetal.Stack(text)]:
        result = bimetal.replay(stack)
        assert result.to_dict() == of_command
    assert dict(result) == of_command and len(result) == len(of_command)


def test_keywords_say_the_same_as_a_file(stack_file, replayed):
    stack = bimetal.Stack(
        about="a page cache over a page map",
        seed=3,
        trace={"generator": {"name": "zipf", "pages": 4000, "requests": 20000, "read": 50}},
        cache={"policy": "cflru:window=0.5", "size": "1MiB"},
        device={"profile": "slc-4k", "size": "32MiB", "ftl": "fast"},
    )
    path = stack_file(CACHED)
    assert stack.config() == bimetal.Stack(path).config()
    assert dict(bimetal.replay(stack)) == replayed(path)


def test_single_keys_and_set_say_the_same_as_dash_dash_set(stack_file, replayed):
    path = stack_file(CACHED)
    settings = {"cache.size": "2MiB", "run.flush": False, "seed": 5, "run.queue-depth": 4, "cache.policy.window": 0.25}
    stack = functools.reduce(lambda stack, setting: stack.set(*setting), settings.items(), bimetal.Stack(path))
    of_command = replayed(
        path, "cache.size=2MiB", "run.flush=false", "seed=5", "run.queue-depth=4", "cache.policy.window=0.25"
    )
    assert dict(bimetal.replay(stack)) == of_command
    assert of_command["cache"]["policy"] == "cflru:window=0.25:adapt=no:period=1:step=1/16:ratio=8"
    keys = bimetal.Stack(cache={"policy": "lru", "size": "1MiB"}, **{"cache.size": "2MiB", "seed": 7}).config()
    assert (keys["cache"]["size"], keys["seed"]) == (2 << 20, 7)


def test_a_trace_goes_before_the_one_of_the_stack(text, command, traces):
    stack = bimetal.Stack(text)
    generator = "gen:iometer:size=4MiB:requests=500"
    result = bimetal.replay(stack, generator)
    assert result["config"]["trace"].startswith("gen:iometer:")
    if "fs" not in result:
        file = traces / "xfs-pm1k.dev.csv.zst"
        stack.set("run.fit", "wrap")
        assert bimetal.replay(stack, file)["config"]["trace"] == str(file)
        assert bimetal.replay(bimetal.Stack(), file)["requests"] == 90


def test_a_stack_without_anything_counts(command):
    import json

    generator = "gen:iometer:size=4MiB:requests=500"
    of_command = json.loads(command("replay", generator, "--json"))
    assert dict(bimetal.replay(bimetal.Stack(), generator)) == of_command


def test_a_copy_and_a_pickle_say_the_same_and_are_ones_own():
    stack = bimetal.Stack(CACHED).set("seed", 9)
    for other in [stack.copy(), pickle.loads(pickle.dumps(stack))]:
        assert other.config() == stack.config()
        other.set("cache.size", "4MiB")
        assert stack.config()["cache"]["size"] == 1 << 20


def test_a_result_is_a_table_of_one_row():
    pyarrow = pytest.importorskip("pyarrow")
    result = bimetal.replay(bimetal.Stack(CACHED))
    table = pyarrow.table(result)
    assert table.num_rows == 1 and table.equals(result.to_arrow())
    (row,) = table.to_pylist()
    assert row["hit_ratio"] == result["hit_ratio"]
    assert row["latency_ns.p99"] == result["latency_ns"]["p99"]
    assert row["config.cache_bytes"] == 1 << 20
    pytest.importorskip("pandas")
    frame = result.to_pandas()
    assert frame["erases"][0] == result["erases"] and frame.shape == (1, table.num_columns)
