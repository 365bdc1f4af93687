"""Makes one table, peers.csv and peers.json of the runs that `run` has left behind. Usage: table.py RUNS OUT [NOTE]."""

import csv
import json
import pathlib
import statistics
import sys

MPIS = ["ompi", "mpich", "impi"]
COLUMNS = MPIS + ["heap", "ordinary"]
TITLES = {"ompi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "heap": "shmccl heap", "ordinary": "shmccl ordinary"}


def read_mpi(path):
    """Yields (op, ranks, bytes, p50_ns) of the lines that collective.c printed; a library may print others."""
    for line in path.read_text().splitlines():
        if line.startswith("row,"):
            _, op, ranks, size, _, _, _, p50, _ = line.split(",")
            yield op, int(ranks), int(size), float(p50)


def read_shmccl(path):
    """Yields (test, ranks, bytes, p50 over all samples) of the rows out of place that `shmccl perf --json` wrote."""
    for row in json.loads(path.read_text())["rows"]:
        if row.get("in_place"):
            continue
        if row.get("p50_all_ns") is None:
            sys.exit(f"peers: {path.name} has no median over all samples (p50_all_ns): take a newer shmccl")
        yield row["test"], int(row["ranks"]), int(row["bytes"]), float(row["p50_all_ns"])


def collect(runs):
    """Returns {(op, ranks, bytes): {column: {round: p50_ns}}}."""
    found = {}
    for path in sorted(runs.iterdir()):
        column, op, _, turn, _ = path.name.split(".")
        if column not in COLUMNS:
            continue
        read = read_mpi if column in MPIS else read_shmccl
        for test, ranks, size, p50 in read(path):
            if test == op:
                found.setdefault((op, ranks, size), {}).setdefault(column, {})[int(turn)] = p50
    return found


def summary(key, columns):
    """One row: medians over rounds, and the median over rounds of the ratio to the MPI that was best in the same round."""
    row = dict(zip(("op", "ranks", "bytes"), key))
    medians = {name: statistics.median(turns.values()) for name, turns in columns.items()}
    row.update({f"{name}_p50_ns": medians.get(name) for name in COLUMNS})
    best = min((name for name in MPIS if name in medians), key=medians.get, default=None)
    row["best"] = best
    bests = {}
    for turns in (columns[name] for name in MPIS if name in columns):
        for turn, p50 in turns.items():
            bests[turn] = min(p50, bests.get(turn, p50))
    for name in ("heap", "ordinary"):
        ratios = [p50 / bests[turn] for turn, p50 in columns.get(name, {}).items() if turn in bests]
        row[f"{name}_ratio"] = statistics.median(ratios) if ratios else None
    row["rounds"] = {name: [turns[turn] for turn in sorted(turns)] for name, turns in columns.items()}
    return row


def digits(value):
    """Three significant digits, without an exponent."""
    decimals = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{decimals}f}"


def time(nanoseconds):
    if nanoseconds is None:
        return "-"
    for unit, scale in (("ns", 1), ("us", 1e3), ("ms", 1e6)):
        if nanoseconds < 999.5 * scale:
            break
    return f"{digits(nanoseconds / scale)} {unit}"


def size(count):
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count % scale == 0:
            return f"{count // scale} {unit}"
    return f"{count} B"


def ratio(value):
    return "-" if value is None else f"{digits(value)} x"


def lines(rows):
    head = ["ranks", "size", *TITLES.values(), "best MPI", "heap/best", "ordinary/best"]
    body = [
        [str(row["ranks"]), size(row["bytes"]), *(time(row[f"{name}_p50_ns"]) for name in COLUMNS)]
        + [TITLES.get(row["best"], "-"), ratio(row["heap_ratio"]), ratio(row["ordinary_ratio"])]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *body)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in [head, *body]]


def write(rows, out):
    (out / "peers.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    names = [name for name in rows[0] if name != "rounds"]
    with open(out / "peers.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def main():
    runs, out = map(pathlib.Path, sys.argv[1:3])
    note = " ".join(sys.argv[3:])
    found = collect(runs)
    if not found:
        sys.exit("peers: no run has left a row")
    rows = [summary(key, found[key]) for key in sorted(found)]
    write(rows, out)
    for op in sorted({row["op"] for row in rows}):
        print(f"{op}: p50 of one operation, median over rounds")
        print("\n".join(lines([row for row in rows if row["op"] == op])))
    if note:
        print(note)


main()
