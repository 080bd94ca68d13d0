#!/usr/bin/env python3
"""Measures what MQSim makes of the streams of `make validation VALIDATION=mqsim`, and prints mqsim.tsv.

MQSim (Tavakkol and others, FAST 2018) is at https://github.com/CMU-SAFARI/MQSim; this was made with commit 7ec40e3:

    git clone https://github.com/CMU-SAFARI/MQSim && python3 run.py MQSim > mqsim.tsv

A line is added to its sources, which prints the latency of each request and when it was done; it has means and extremes only. All runs are
seeded: they give the same figures again.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

# One line behind what it takes the means of.
MARK = "\t\tSTAT_sum_device_response_time += device_response_time;\n"
PRINT = '\t\tfprintf(stderr, "%c %llu %llu\\n", request->Type == Host_IO_Request_Type::READ ? \'R\' : \'W\', device_response_time, Simulator->Time());\n'

# What differs from the configuration that comes with it. The flash: 8 channels of 4 chips of one die and one plane.
DEVICE = {
    "Caching_Mechanism": "SIMPLE",
    "Ideal_Mapping_Table": "true",
    "Overprovisioning_Ratio": "0.127",
    "GC_Exec_Threshold": "0.05",
    "GC_Block_Selection_Policy": "GREEDY",
    "Dynamic_Wearleveling_Enabled": "false",
    "Static_Wearleveling_Enabled": "false",
    # The other settings suspend nothing either in this commit: a case of the switch in TSU_OutofOrder.cpp has no `break`.
    "CMD_Suspension_Support": "NONE",
    "Die_No_Per_Chip": "1",
    "Plane_No_Per_Die": "1",
    "Block_No_Per_Plane": "128",
}

# name: (reads %, distribution, under way, requests, part of the space that has contents %). None makes it clean for long: this
# commit ends with `Inconsistency in the global mapping table`, or a segmentation fault, after 600,000 to 900,000 random writes.
STREAMS = {
    "read-1": (100, "RANDOM_UNIFORM", 1, 50_000, 100),
    "read-8": (100, "RANDOM_UNIFORM", 8, 200_000, 100),
    "read-32": (100, "RANDOM_UNIFORM", 32, 400_000, 100),
    "read-256": (100, "RANDOM_UNIFORM", 256, 1_000_000, 100),
    "write-1": (0, "STREAMING", 1, 20_000, 0),
    "write-32": (0, "STREAMING", 32, 200_000, 0),
    "write-256": (0, "STREAMING", 256, 200_000, 0),
    "random-64": (0, "RANDOM_UNIFORM", 64, 500_000, 50),
    "mixed-16": (70, "RANDOM_UNIFORM", 16, 200_000, 50),
}

FLOW = {
    "Device_Level_Data_Caching_Mode": "TURNED_OFF",
    "Channel_IDs": "0,1,2,3,4,5,6,7",
    "Chip_IDs": "0,1,2,3",
    "Die_IDs": "0",
    "Plane_IDs": "0",
    "Working_Set_Percentage": "100",
    "Synthetic_Generator_Type": "QUEUE_DEPTH",
    "Generated_Aligned_Addresses": "true",
    "Address_Alignment_Unit": "16",
    "Request_Size_Distribution": "FIXED",
    "Average_Request_Size": "16",
    "Stop_Time": "0",
}


def with_fields(text, fields):
    """`text` with the contents of these elements."""
    for name, value in fields.items():
        text, found = re.subn(rf"<{name}>[^<]*</{name}>", f"<{name}>{value}</{name}>", text)
        assert found, f"MQSim knows no {name}"
    return text


def built(sources):
    """Its program, made once with the line that prints latencies."""
    flow = sources / "src/host/IO_Flow_Base.cpp"
    text = flow.read_text()
    if PRINT not in text:
        assert MARK in text, "these are other sources of MQSim"
        flow.write_text("#include <cstdio>\n" + text.replace(MARK, MARK + PRINT))
    subprocess.run(["make", "-C", sources, "CC_FLAGS=-std=c++11 -O2"], check=True, stdout=subprocess.DEVNULL)
    return (sources / "MQSim").resolve()


def report(program, sources, name):
    """What it says of a stream, and of each request its kind, latency and end, ns."""
    reads, distribution, depth, requests, filled = STREAMS[name]
    ssd = with_fields((sources / "ssdconfig.xml").read_text(), DEVICE)
    one = re.search(r"<IO_Flow_Parameter_Set_Synthetic>.*?</IO_Flow_Parameter_Set_Synthetic>",
                    (sources / "workload.xml").read_text(), re.S)[0]
    flow = with_fields(one, FLOW | {
        "Initial_Occupancy_Percentage": str(filled),
        "Read_Percentage": str(reads),
        "Address_Distribution": distribution,
        "Average_No_of_Reqs_in_Queue": str(depth),
        "Total_Requests_To_Generate": str(requests),
    })
    head = '<?xml version="1.0" encoding="us-ascii"?>\n'
    scenario = f"<MQSim_IO_Scenarios><IO_Scenario>{flow}</IO_Scenario></MQSim_IO_Scenarios>"
    with tempfile.TemporaryDirectory() as at:
        at = pathlib.Path(at)
        (at / "ssd.xml").write_text(head + ssd[ssd.index("<Exec"):])
        (at / "work.xml").write_text(head + scenario)
        with open(at / "latencies", "w") as latencies:
            done = subprocess.run([program, "-i", "ssd.xml", "-w", "work.xml"], cwd=at, text=True, input="\n",
                                  stdout=subprocess.PIPE, stderr=latencies)
        assert done.returncode == 0, done.stdout[-2000:]
        lines = map(str.split, (at / "latencies").read_text().splitlines())
        said = [(line[0], int(line[1]), int(line[2])) for line in lines if len(line) == 3 and line[0] in "RW"]
        return (at / "work_scenario_1.xml").read_text(), said


def run(program, sources, name):
    """Rows: requests a second, ms of the mean, the median, of 99 and 99.9 %, and pages programmed for one written."""
    text, said = report(program, sources, name)
    programs = int(re.search(r'Issued_Flash_Program_CMD="(\d+)"', text)[1])
    # Its own rate divides by whole seconds.
    rate = len(said) * 1e9 / said[-1][2]
    writes = sum(kind == "W" for kind, *_ in said)
    rows = []
    for kind in "RW":
        of_kind = sorted(ns for is_kind, ns, _ in said if is_kind == kind)
        if not of_kind:
            continue
        at = lambda part: of_kind[min(int(len(of_kind) * part), len(of_kind) - 1)] / 1e6
        mean = sum(of_kind) / len(of_kind) / 1e6
        amplified = programs / writes if writes else 0
        rows.append(f"{name}\t{kind}\t{rate:.0f}\t{mean:.4f}\t{at(0.5):.4f}\t{at(0.99):.4f}\t{at(0.999):.4f}\t{amplified:.4f}")
    return rows


def main():
    sources = pathlib.Path(sys.argv[1])
    program = built(sources)
    print("stream\tkind\trequests_per_s\tmean_ms\tp50_ms\tp99_ms\tp999_ms\tamplification")
    for name in sys.argv[2:] or STREAMS:
        print(*run(program, sources, name), sep="\n", flush=True)


if __name__ == "__main__":
    main()
