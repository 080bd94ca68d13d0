"""Rows of a grid are those of the command."""

import json
import pathlib

import policies
import pytest

import bimetal

STACK = """
[trace]
file = "{file}"

[cache]
policy = "lru"
size = "1MiB"

[device]
profile = "slc-4k"
ftl = "page"
"""

GRID = {"cache.policy": ["lru", "cflru:window=0.5"], "cache.size": ["64KiB", "1MiB"], "seed": [1, 2]}


@pytest.fixture
def grid(stack_file, traces, command, tmp_path):
    """A stack file and the folder that the command makes of it."""
    path = stack_file(STACK.replace("{file}", str(traces / "xfs-pm1k.dev.csv.zst")))
    out = tmp_path / "out"
    sets = [word for key, values in GRID.items() for word in ("--set", f"{key}={','.join(map(str, values))}")]
    command("replay", "--stack", path, *sets, "--out", out)
    return path, out


def test_rows_are_those_of_the_command_to_the_byte(grid):
    path, out = grid
    rows = bimetal.sweep(bimetal.Stack(path), GRID)
    expected = (out / "rows.jsonl").read_text()
    assert len(rows) == 8 and rows.to_jsonl() == expected
    assert [row["set"]["seed"] for row in rows] == ["1", "2"] * 4
    assert list(rows) == [json.loads(line) for line in expected.splitlines()]
    one = bimetal.sweep(bimetal.Stack(path), GRID, jobs=1)
    assert one.to_jsonl() == expected


def test_the_table_is_that_of_the_command(grid):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path, out = grid
    rows = bimetal.sweep(bimetal.Stack(path), GRID)
    of_command = parquet.read_table(out / "rows.parquet")
    assert rows.to_arrow().equals(of_command)
    assert rows.columns == of_command.column_names
    frame = rows.to_pandas()
    assert frame.groupby("set.cache.policy").size().to_dict() == {"lru": 4, "cflru:window=0.5": 4}
    assert pyarrow.table(rows).num_rows == 8


def test_polars_takes_a_table():
    polars = pytest.importorskip("polars")
    rows = bimetal.sweep(bimetal.Stack(), {"seed": [1, 2]}, "gen:zipf:requests=100")
    assert polars.DataFrame(rows)["seed"].to_list() == [1, 2]


def test_what_is_set_on_the_stack_counts_as_set(grid, command, tmp_path):
    path, _ = grid
    out = tmp_path / "other"
    command("replay", "--stack", path, "--set", "cache.size=64KiB", "--set", 'run.absorb="0-4KiB"', "--set", "seed=1,2", "--out", out)
    stack = bimetal.Stack(path).set("cache.size", "64KiB").set("run.absorb", '"0-4KiB"')
    assert bimetal.sweep(stack, {"seed": [1, 2]}).to_jsonl() == (out / "rows.jsonl").read_text()
    with pytest.raises(bimetal.Error, match="cache.size was set on the stack before"):
        bimetal.sweep(stack, {"cache.size": ["1MiB"]})


def test_a_run_that_fails_is_a_row_with_its_error(grid):
    path, _ = grid
    rows = bimetal.sweep(bimetal.Stack(path), {"device.size": ["64KiB", "4GiB"]})
    assert [row["error"] is None for row in rows] == [False, True]
    assert "larger device.size" in rows[0]["error"] or "larger --device-size" in rows[0]["error"]
    assert rows[0]["result"]["ended"]["how"] == "refused" and "1 of them failed" in repr(rows)
    assert rows[1]["result"]["requests"] == 90


def test_columns_and_policies_go_through_a_sweep():
    pytest.importorskip("numpy")
    columns = {"op": ["R"] * 5000, "offset": [n * n % 611 * 4096 for n in range(5000)], "length": [4096] * 5000}
    sizes = {"cache.size": ["64KiB", "1MiB", "2MiB"]}
    stack = bimetal.Stack(cache={"policy": policies.Lru, "size": "1MiB"})
    rows = bimetal.sweep(stack, sizes, columns)
    built_in = bimetal.sweep(bimetal.Stack(cache={"policy": "lru", "size": "1MiB"}), sizes, columns)
    ratios = [row["result"]["hit_ratio"] for row in rows]
    assert ratios == [row["result"]["hit_ratio"] for row in built_in] and len(set(ratios)) > 1
    assert {row["config"]["cache"]["policy"] for row in rows} == {"python:Lru"}
    assert {row["config"]["trace"]["file"] for row in rows} == {"<columns>"}

    class Broken(policies.Lru):
        def insert(self, page, write):
            raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        bimetal.sweep(stack.set("cache.policy", Broken), sizes, columns)


def test_what_cannot_be_is_told_before_anything_is_run(grid):
    path, _ = grid
    stack = bimetal.Stack(path)
    for refused, told in [
        ({"cache.sise": ["1MiB"]}, "there is no key 'sise'"),
        ({"cache.size": ["1MiB", 64]}, "a size has a unit"),
        ({"seed": [1, 1]}, "1 is there twice"),
        ({"seed": []}, "a value is missing"),
        ({"seed": range(2_000), "run.queue-depth": range(1, 1_001)}, "more than 1000000 runs"),
    ]:
        with pytest.raises(bimetal.Error, match=told):
            bimetal.sweep(stack, refused)
    with pytest.raises(bimetal.Error, match="there is no 'spark'"):
        bimetal.sweep(stack, {"seed": [1]}, engine="spark")
    with pytest.raises(bimetal.Error, match="at least 1"):
        bimetal.sweep(stack, {"seed": [1]}, jobs=0)
    with pytest.raises(TypeError, match="is set on the stack"):
        bimetal.sweep(stack, {"cache.policy": ["lru", policies.Lru]})
    with pytest.raises(TypeError, match="seed: a value is"):
        bimetal.sweep(stack, {"seed": [{}]})


def test_ray_gives_the_same_rows(grid):
    ray = pytest.importorskip("ray")
    path, out = grid
    here = str(pathlib.Path(__file__).parent)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": here}})
    try:
        stack = bimetal.Stack(path)
        for jobs in (None, 3):
            assert bimetal.sweep(stack, GRID, engine="ray", jobs=jobs).to_jsonl() == (out / "rows.jsonl").read_text()
        pytest.importorskip("numpy")
        columns = {"op": ["R"] * 500, "offset": [n * n % 61 * 4096 for n in range(500)], "length": [4096] * 500}
        stack = bimetal.Stack(cache={"policy": policies.Lru, "size": "64KiB"})
        rows = [bimetal.sweep(stack, {"seed": [1, 2]}, columns, engine=engine) for engine in ("ray", "threads")]
        assert rows[0].to_jsonl() == rows[1].to_jsonl()
        stack.set("cache.policy", policies.Broken)
        with pytest.raises(LookupError, match="broken"):
            bimetal.sweep(stack, {"seed": [1, 2]}, columns, engine="ray")
    finally:
        ray.shutdown()
