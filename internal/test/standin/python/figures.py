"""Prints the line of scripts/frameworks-on-sim for one run.

    python figures.py NAME CALLS LOG [--calls] <LINE

LINE is the JSON of a train step, CALLS and LOG are the files of GPUMEM_SIM_CALLS
and GPUMEM_SIM_LOG. With --calls the calls for memory follow by name.
"""

import json
import sys

name, calls, log = sys.argv[1:4]
figures = json.loads(sys.stdin.read())
counts = {}
for line in open(calls):
    function, count = line.split()
    counts[function] = counts.get(function, 0) + int(count)
memory = {f: n for f, n in counts.items() if f.startswith("cuMem") and not f.startswith(("cuMemcpy", "cuMemset", "cuMemGet"))}
lines = open(log).read().splitlines()
peak = figures["peak_bytes_in_use"]
hazards = sum("hazard:" in line for line in lines)
print(
    f"{name}: {figures['framework']}, {figures['steps']} steps, peak in use {'unknown' if peak is None else peak},"
    f" {sum(counts.values())} driver calls, {sum(memory.values())} for memory, {hazards} hazards"
)
for line in lines:
    print("  log:", line)
if "--calls" in sys.argv:
    print("  " + ", ".join(f"{f} {n}" for f, n in sorted(memory.items())))
