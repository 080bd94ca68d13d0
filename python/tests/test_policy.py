"""Policies written in Python under the page cache."""

import functools
import os
import threading

import policies
import pytest

import bimetal

GENERATED = "gen:zipf:pages=3000:requests=30000:read=60"
DISCARDS = {"op": ["W", "W", "D", "R"] * 200, "offset": [n % 97 * 4096 for n in range(800)], "length": [4096] * 800}


def stack(policy, size="1MiB", **keys):
    return bimetal.Stack(cache={"policy": policy, "size": size}, **keys)


def counted(result):
    """All figures but the names that the policy has, and what memory it takes."""
    figures = result.to_dict()
    names = figures["config"]
    assert names.pop("cache").split(":")[0] in ("lru", "python")
    names.pop("run")
    cache = figures["cache"]
    cache.pop("policy"), cache.pop("overhead_bytes", None)
    return figures


@pytest.mark.parametrize("size", ["64KiB", "1MiB"])
@pytest.mark.parametrize("device", ["none", "slc-4k"])
@pytest.mark.parametrize("trace", ["generated", "G1.dev.csv.zst", "ext2-seq16.dev.csv.zst", "discards"])
def test_lru_in_python_counts_as_the_built_in_one(trace, device, size, traces):
    pytest.importorskip("numpy")
    played = {"generated": GENERATED, "discards": DISCARDS}.get(trace, traces / trace)
    keys = {"device": {"profile": device}}
    ours = bimetal.replay(stack(policies.Lru, size, **keys), played)
    theirs = bimetal.replay(stack("lru", size, **keys), played)
    assert counted(ours) == counted(theirs)
    assert ours["config"]["cache"] == "python:Lru"
    assert ours["cache"]["policy"] == "python:Lru"


def test_another_policy_counts_otherwise():
    lru, fifo = (bimetal.replay(stack(policy), GENERATED) for policy in (policies.Lru, policies.Fifo))
    assert lru["hit_ratio"] > fifo["hit_ratio"] > 0


def test_the_policy_is_a_key_as_others_are():
    set_later = stack("clock").set("cache.policy", policies.Fifo)
    assert set_later.config()["cache"]["policy"] == "python:Fifo"
    expected = counted(bimetal.replay(stack(policies.Fifo), GENERATED))
    assert counted(bimetal.replay(set_later, GENERATED)) == expected
    assert bimetal.replay(set_later.copy().set("cache.policy", "lru"), GENERATED)["cache"]["policy"] == "lru"
    assert bimetal.replay(set_later, GENERATED)["cache"]["policy"] == "python:Fifo"
    with pytest.raises(TypeError, match="can only be cache.policy"):
        set_later.set("seed", policies.Fifo)


def test_what_is_called_with_the_capacity_makes_the_policy():
    made = []

    class Noted(policies.Lru):
        def __init__(self, capacity, note):
            super().__init__(capacity)
            made.append((capacity, note))

    result = bimetal.replay(stack(functools.partial(Noted, note="x"), "256KiB"), GENERATED)
    assert made == [(64, "x")]
    assert result["config"]["cache"] == "python:Noted"


def test_a_policy_is_told_what_becomes_of_pages():
    told = []

    class Told(policies.Lru):
        def insert(self, page, write):
            super().insert(page, write)
            told.append(("insert", page, write))

        def hit(self, page, write, was_dirty):
            super().hit(page, write, was_dirty)
            told.append(("hit", page, write, was_dirty))

        def remove(self, page, evicted):
            super().remove(page, evicted)
            told.append(("remove", page, evicted))

        def cleaned(self, page):
            told.append(("cleaned", page))

        def evict(self, coming):
            told.append(("evict", coming))
            return super().evict(coming)

    pytest.importorskip("numpy")
    ops = [("W", 0), ("R", 1), ("W", 0), ("F", 0), ("R", 2), ("D", 2)]
    columns = {"op": [op for op, _ in ops], "offset": [page * 4096 for _, page in ops], "length": [4096] * len(ops)}
    columns["length"][3] = 0
    bimetal.replay(stack(Told, "8KiB"), columns)
    assert told == [
        ("insert", 0, True),
        ("insert", 1, False),
        ("hit", 0, True, True),
        ("cleaned", 0),
        ("evict", 2),
        ("remove", 1, True),
        ("insert", 2, False),
        ("remove", 2, False),
    ]


def test_a_write_buffer_keeps_no_reads():
    class Buffer(policies.Lru):
        keeps_reads = False

    result = bimetal.replay(stack(Buffer), "gen:zipf:pages=100:requests=5000:read=100")
    assert result["hit_ratio"] == 0 and result["pages_read"] == 5000


def failing(method, why):
    """An LRU that raises when it is called for the 100th time."""

    def raising(self, *args):
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 100:
            raise why
        return getattr(policies.Lru, method)(self, *args)

    return type("Failing", (policies.Lru,), {method: raising})


@pytest.mark.parametrize("method", ["hit", "insert", "evict", "remove"])
def test_what_a_policy_raises_ends_the_run_and_is_raised(method):
    why = LookupError(method)
    with pytest.raises(LookupError) as raised:
        bimetal.replay(stack(failing(method, why), "64KiB"), "gen:zipf:pages=3000:requests=1000000000000")
    assert raised.value is why
    assert raised.traceback[-1].name == "raising"


@pytest.mark.parametrize(
    ("gives", "kind", "told"),
    [
        (lambda self, coming: coming, bimetal.Error, "python:Wrong.evict named page"),
        (lambda self, coming: None, TypeError, "gave None"),
        (lambda self, coming: -1, TypeError, "gave -1"),
        (lambda self, coming: "page", TypeError, "gave 'page'"),
        (lambda self, coming: 1 << 70, TypeError, "gave 1180591620717411303424"),
        (lambda self, coming: (1 << 63) + 5, bimetal.Error, "not in the cache"),
    ],
)
def test_a_page_that_is_not_there_ends_the_run(gives, kind, told):
    wrong = type("Wrong", (policies.Lru,), {"evict": gives})
    with pytest.raises(kind, match="Wrong") as why:
        bimetal.replay(stack(wrong, "64KiB"), "gen:zipf:pages=3000:requests=1000000000000")
    assert told in str(why.value)


def test_what_is_no_policy_is_refused():
    class Half:
        def __init__(self, capacity):
            pass

        def hit(self, *args):
            pass

    with pytest.raises(TypeError, match="Half has no method 'insert'"):
        bimetal.replay(stack(Half), GENERATED)
    with pytest.raises(TypeError, match="positional argument"):
        bimetal.replay(stack(type("NoCapacity", (), {"__init__": lambda self: None})), GENERATED)
    with pytest.raises(NotImplementedError):
        bimetal.replay(stack(bimetal.Policy), GENERATED)
    with pytest.raises(bimetal.Error, match="replays of requests"):
        bimetal.replay(stack(policies.Lru, fs={"kind": "fat"}), GENERATED)
    with pytest.raises(bimetal.Error, match="cache.policy.*cache.size|size"):
        bimetal.replay(bimetal.Stack().set("cache.policy", policies.Lru), GENERATED)


def test_runs_are_made_on_another_thread_one_at_a_time_and_policies_may_be_anywhere():
    threads = set()

    class Where(policies.Lru):
        def insert(self, page, write):
            super().insert(page, write)
            threads.add(threading.get_native_id())

    results = []
    runs = [threading.Thread(target=lambda: results.append(bimetal.replay(stack(Where), GENERATED))) for _ in range(3)]
    [run.start() for run in runs]
    [run.join() for run in runs]
    assert len(results) == 3 and all(counted(result) == counted(results[0]) for result in results)
    assert os.getpid() not in threads
