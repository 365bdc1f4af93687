"""Makes one table, peers.csv and peers.json of the rows that turns.py has written. Usage: table.py ROWS OUT."""

import csv
import json
import pathlib
import statistics
import sys

MPIS = ["ompi", "mpich", "impi"]
COLUMNS = MPIS + ["heap", "ordinary"]
TITLES = {"ompi": "Open MPI", "mpich": "MPICH", "impi": "Intel MPI", "heap": "shmccl heap", "ordinary": "shmccl ordinary"}
CORES = ["near", "far"]

# A flag takes less from one hyper-thread of a core to the other, and more from core to core (nanoseconds, one way).
APART_NS = 90
# A probe that takes longer was interrupted.
INTERRUPTED_NS = 1500
# Points with fewer complete cycles tell nothing.
FEWEST_CYCLES = 3


def cores_of(probe_ns):
    if probe_ns >= INTERRUPTED_NS:
        return None
    return "near" if probe_ns < APART_NS else "far"


def collect(rows):
    """Returns {(op, ranks, bytes): {(round, pass): {column: (cores, p50_ns)}}}; a turn in which the cores changed has none."""
    found = {}
    for row in map(json.loads, rows.read_text().splitlines()):
        before, after = cores_of(row["before_ns"]), cores_of(row["after_ns"])
        turn = (before if before == after else None, row["p50_ns"])
        cycles = found.setdefault((row["op"], row["ranks"], row["bytes"]), {})
        cycles.setdefault((row["round"], row["pass"]), {})[row["column"]] = turn
    return found


def alike(cycle, cores):
    """The times of one cycle that were taken on such cores."""
    return {name: p50 for name, (found, p50) in cycle.items() if found == cores}


def summary(key, cycles, cores):
    """One row: medians over the turns on such cores, and the median of the ratios to the best MPI, each within a cycle."""
    row = dict(zip(("op", "ranks", "bytes"), key), cores=cores)
    times = {number: alike(cycle, cores) for number, cycle in sorted(cycles.items())}
    medians = {}
    for name in COLUMNS:
        taken = [cycle[name] for cycle in times.values() if name in cycle]
        medians[name] = statistics.median(taken) if taken else None
        row[f"{name}_p50_ns"], row[f"{name}_turns"] = medians[name], len(taken)
    # What was measured in fewer cycles than the others, and is slower by far, may be missing from the one or the other.
    best = min((name for name in MPIS if medians[name]), key=medians.get, default=None)
    row["best"] = best
    for name in ("heap", "ordinary"):
        ratios = {number: cycle[name] / cycle[best] for number, cycle in times.items() if name in cycle and best in cycle}
        enough = len(ratios) >= FEWEST_CYCLES
        row[f"{name}_cycles"], row[f"{name}_rounds"] = len(ratios), len({number[0] for number in ratios})
        row[f"{name}_ratio"] = statistics.median(ratios.values()) if enough else None
        deciles = statistics.quantiles(ratios.values(), n=10, method="inclusive") if enough else [None]
        row[f"{name}_ratio_p10"], row[f"{name}_ratio_p90"] = deciles[0], deciles[-1]
    return row


def summaries(key, cycles):
    """A row for near and one for far cores, as far as there were such; at least one of them."""
    rows = [summary(key, cycles, cores) for cores in CORES]
    told = [row for row in rows if row["heap_ratio"] or row["ordinary_ratio"]]
    return told or [max(rows, key=lambda row: row["heap_cycles"])]


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


def ratio(row, name):
    if row[f"{name}_ratio"] is None:
        return "-"
    return f"{row[f'{name}_ratio']:.2f} ({row[f'{name}_ratio_p10']:.2f}..{row[f'{name}_ratio_p90']:.2f})"


def lines(rows):
    head = ["ranks", "size", "cores", *TITLES.values(), "best MPI", "heap/best", "ordinary/best", "cycles", "rounds"]
    body = [
        [str(row["ranks"]), size(row["bytes"]), row["cores"], *(time(row[f"{name}_p50_ns"]) for name in COLUMNS)]
        + [TITLES.get(row["best"], "-"), ratio(row, "heap"), ratio(row, "ordinary")]
        + [str(row["heap_cycles"]), str(row["heap_rounds"])]
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(head, *body)]
    return ["  ".join(cell.rjust(width) for cell, width in zip(line, widths)) for line in [head, *body]]


def write(rows, out):
    (out / "peers.json").write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    with open(out / "peers.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def main():
    rows, out = map(pathlib.Path, sys.argv[1:3])
    found = collect(rows) if rows.exists() else {}
    if not found:
        sys.exit("peers: no turn has left a row")
    table = [row for key in sorted(found) for row in summaries(key, found[key])]
    write(table, out)
    for op in sorted({row["op"] for row in table}):
        print(f"{op}: median of the p50 of one operation over turns; ratios: median (p10..p90) over cycles; best MPI: that of the lowest median")
        print("\n".join(lines([row for row in table if row["op"] == op])))
    took_part = any(row["mpich_turns"] for row in table)
    if took_part and any(row["ordinary_turns"] and not row["mpich_turns"] for row in table):
        print("MPICH does not yield: where ranks share cores it takes part in one pass of each round, with few bytes (settings.py).")


main()
