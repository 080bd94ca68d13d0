"""Requests in memory are played as those of a file."""

import io

import pytest

import bimetal

numpy = pytest.importorskip("numpy")

STACK = {
    "cache": {"policy": "lru", "size": "256KiB"},
    "device": {"profile": "hdd-7200"},
    "run": {"pace": "open"},
}
# What says where a trace came from.
OF_SOURCE = ("config", "trace_lines")


def stack():
    return bimetal.Stack(**STACK)


def figures(result):
    return {name: value for name, value in result.items() if name not in OF_SOURCE}


@pytest.fixture
def file(traces):
    return traces / "ext4-pm1k.bio.csv.zst"


@pytest.fixture
def table(file):
    """The file as columns, read by pyarrow."""
    pyarrow = pytest.importorskip("pyarrow")
    csv = pytest.importorskip("pyarrow.csv")
    text = pyarrow.input_stream(str(file), compression="zstd").read()
    return csv.read_csv(io.BytesIO(text.lstrip(b"#")))


def test_columns_of_every_kind_give_the_figures_of_the_file(file, table):
    of_file = figures(bimetal.replay(stack(), file))
    assert of_file["requests"] == 417 and of_file["operations"]["flush"] > 0
    columns = {name: table[name].to_numpy() for name in table.column_names}
    assert columns["time_s"].dtype == float and len(set(columns["flags"])) > 2
    nanos = numpy.rint(columns["time_s"] * 1e9).astype(numpy.int64)
    others = {
        "columns": columns,
        "bytes and nanoseconds": {
            "time_ns": nanos,
            "op": columns["op"].astype("S1"),
            "sector": columns["offset_bytes"] // 512,
            "sectors": (columns["length_bytes"] // 512).astype(numpy.uint16),
            "flags": columns["flags"].astype("U5"),
        },
        "timedelta": {**columns, "time_s": nanos.astype("m8[ns]")},
        "lists": {name: column.tolist() for name, column in columns.items()},
        "Arrow": table,
        "record batch": table.combine_chunks().to_batches()[0],
        "many batches": __import__("pyarrow").concat_tables([table.slice(0, 100), table.slice(100)]),
        "dictionary": table.set_column(1, "op", table["op"].dictionary_encode()),
    }
    assert (numpy.array(columns["offset_bytes"]) % 512 == 0).all()
    for name, trace in others.items():
        assert figures(bimetal.replay(stack(), trace)) == of_file, name


def test_data_frames_and_structured_arrays_are_traces(file, table):
    of_file = figures(bimetal.replay(stack(), file))
    pandas = pytest.importorskip("pandas")
    frame = table.to_pandas()
    assert figures(bimetal.replay(stack(), frame)) == of_file
    frame["op"] = frame["op"].astype("category")
    assert figures(bimetal.replay(stack(), frame)) == of_file
    frame["time_s"] = pandas.to_datetime(frame["time_s"] + 1_700_000_000, unit="s", utc=True).dt.tz_localize(None)
    assert bimetal.replay(stack(), frame)["requests"] == 417
    records = numpy.rec.fromarrays(
        [table[name].to_numpy() for name in ("time_s", "offset_bytes", "length_bytes")], names="time,offset,length"
    )
    with pytest.raises(bimetal.Error, match="no column 'op'"):
        bimetal.replay(stack(), records)
    fields = [("time", "f8"), ("op", "U1"), ("offset", "u8"), ("length", "u4"), ("flags", "U5")]
    structured = numpy.empty(len(table), fields)
    for (field, _), name in zip(fields, ["time_s", "op", "offset_bytes", "length_bytes", "flags"]):
        structured[field] = table[name].to_numpy()
    assert figures(bimetal.replay(stack(), structured)) == of_file


def test_polars_is_a_trace(file, table):
    polars = pytest.importorskip("polars")
    frame = polars.from_arrow(table)
    assert figures(bimetal.replay(stack(), frame)) == figures(bimetal.replay(stack(), file))


def test_units_are_devices_of_the_trace(tmp_path):
    rows = [("R", 0, 4096, "a"), ("W", 4096, 4096, "b"), ("R", 0, 4096, "b"), ("R", 8192, 512, "a")]
    names = ["op", "offset", "length", "unit"]
    columns = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    numbers = {**columns, "unit": [0, 1, 1, 0]}
    compact = bimetal.Stack(run={"fit": "compact"})
    expected = figures(bimetal.replay(compact, numbers))
    assert figures(bimetal.replay(compact, columns)) == expected
    path = tmp_path / "units.csv"
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in [names, *rows]))
    assert figures(bimetal.replay(compact, path)) == expected
    assert bimetal.replay(bimetal.Stack(trace={"unit": 1}), columns)["requests"] == 2


def test_requests_are_played_on_a_file_system_too():
    columns = {"op": ["W", "F", "R"] * 20, "offset": [n * 512 for n in range(60)], "length": [4096] * 60}
    result = bimetal.replay(bimetal.Stack(fs={"kind": "fat"}), columns)
    assert result["by_call"]["write"]["count"] == 20


def one(**columns):
    return {"op": ["R"], "offset": [0], "length": [512], **columns}


@pytest.mark.parametrize(
    ("trace", "told"),
    [
        (one(op=["Q"]), "column 'op': 'Q' is not an operation"),
        (one(op=[1]), "column 'op': operations are letters or words"),
        (one(offset=[-512]), "column 'offset': -512 in row 0 is no number from 0 on"),
        (one(offset=[2**64 - 1]), "ends past the last address"),
        (one(length=[1.5, 2.5]), "has 2 rows"),
        (one(length=[float("nan")]), "column 'length': NaN in row 0"),
        (one(length=["4k"]), "column 'length': has words where numbers are expected"),
        (one(length=[[1]]), "column 'length': has 2 dimensions"),
        (one(length=[2**33]), "4 GiB or more"),
        (one(sectors=[1]), "'length' says the same"),
        (one(flags=["Z"]), "'Z' are no flags"),
        (one(op=[None]), "column 'op': None in row 0 is no text"),
        (one(time=[-1.0]), "column 'time'"),
        (one(time=[1e12]), "no number from 0 on that fits"),
        (one(time=[1e10]), "hundred years"),
        (one(time=numpy.array(["NaT"], "m8[ns]")), "column 'time': has empty cells"),
        (one(unit=[2**32]), "no number of 32 bits"),
        ({"op": [], "offset": [], "length": []}, "there is no request in it"),
        ({"offset": [0], "length": [512]}, "there is no column 'op'"),
        ({}, "there is no column 'op'"),
        (7, "a int is no trace"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_column_and_row(trace, told):
    with pytest.raises(bimetal.Error) as why:
        bimetal.replay(bimetal.Stack(), trace)
    assert told in str(why.value)


def test_what_arrow_has_and_a_trace_has_not_is_refused():
    pyarrow = pytest.importorskip("pyarrow")
    good = pyarrow.table(one())
    for column, told in [
        (pyarrow.array([None], "int64"), "has empty cells"),
        (pyarrow.array([-1], "int64"), "-1 in row 0"),
        (pyarrow.array([[1]]), "is of type List"),
        (pyarrow.array([True]), "is of type Bool"),
        (pyarrow.array([2**62], "int64"), "4 GiB or more"),
    ]:
        with pytest.raises(bimetal.Error) as why:
            bimetal.replay(bimetal.Stack(), good.set_column(2, "length", column))
        assert told in str(why.value), told
    many = good.append_column("other", pyarrow.array([[1]]))
    assert bimetal.replay(bimetal.Stack(), many)["requests"] == 1, "other columns are passed over"


def test_a_stream_is_taken_once():
    pyarrow = pytest.importorskip("pyarrow")
    capsule = pyarrow.table(one()).__arrow_c_stream__()
    from bimetal import _bimetal

    assert len(_bimetal.Requests.of_stream(capsule)) == 1
    with pytest.raises(bimetal.Error):
        _bimetal.Requests.of_stream(capsule)
    with pytest.raises((TypeError, ValueError)):
        _bimetal.Requests.of_stream(object())
