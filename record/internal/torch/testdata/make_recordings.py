"""Records random programs with PyTorch's own allocator on the simulated GPU, for tests.

    python make_recordings.py GPUMEM PYTHON

GPUMEM is a gpumem with the simulated GPU (that of the wheel), PYTHON one with PyTorch for
CUDA. Each recording is NAME.pickle.gz, and NAME.txt beside it has PyTorch's own counters at
100 moments: how many allocations, frees and refusals came before, and what was allocated,
active and reserved then. With a name's arguments the script is itself the program.
"""

import gzip
import os
import pickle
import random
import subprocess
import sys

# name: GPU, PYTORCH_CUDA_ALLOC_CONF, features
RECORDINGS = {
    "middle": ("24GiB", "", "middle empty"),
    "split": ("24GiB", "max_split_size_mb:32", "middle huge"),
    "collect": ("4GiB", "garbage_collection_threshold:0.6", "middle huge fraction"),
    "rounded": ("24GiB", "roundup_power2_divisions:[1:2,4:4,>:8]", "middle"),
    "pages": ("2GiB", "expandable_segments:True", "middle huge empty"),
    "streams": ("24GiB", "", "middle streams"),
    "graphs": ("24GiB", "", "graphs keep empty"),
    "pool": ("24GiB", "", "pool keep"),
    "retries": ("2GiB", "", "huge bare empty"),
    "destroyed": ("24GiB", "", "graphs empty"),
}
STEPS = 400


def program(out, seed, features):
    import torch

    rng = random.Random(seed)
    memory = torch.cuda.memory
    if "fraction" in features:
        torch.cuda.set_per_process_memory_fraction(0.9)
    streams = [torch.cuda.current_stream()] + [torch.cuda.Stream() for _ in range(3 if "streams" in features else 0)]
    live, kept, notes = [], [], []
    pool = torch.cuda.MemPool() if "pool" in features else None

    def size():
        kind = rng.random()
        if kind < 0.35:
            return rng.randrange(1, 4096)
        if kind < 0.6:
            return rng.randrange(4096, 1 << 20)
        if kind < 0.85:
            return rng.randrange(1 << 20, 10 << 20)
        if kind < 0.95 or "huge" not in features:
            return rng.randrange(10 << 20, 60 << 20)
        return rng.randrange(200 << 20, 700 << 20)

    def allocate():
        try:
            live.append(torch.empty(size(), dtype=torch.uint8, device="cuda"))
        except torch.cuda.OutOfMemoryError:
            pass

    def record():
        if "bare" in features:
            memory._record_memory_history(context=None, max_entries=1_000_000)
        else:
            memory._record_memory_history(stacks="python", max_entries=1_000_000)

    def capture():
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(8):
                allocate()
        kept.append(graph)
        if "keep" not in features and len(kept) > 2:
            kept.pop(0)

    begin = STEPS // 4 if "middle" in features else 0
    for step in range(STEPS):
        if step == begin:
            record()
        with torch.cuda.stream(rng.choice(streams)):
            kind = rng.random()
            if kind < 0.5 or not live:
                if len(live) > 60:
                    live.pop(rng.randrange(len(live)))
                allocate()
            elif kind < 0.92:
                at = rng.randrange(len(live))
                if len(streams) > 1:
                    live[at].record_stream(rng.choice(streams))
                live[at] = live[-1]
                live.pop()
            elif kind < 0.94 and "empty" in features:
                torch.cuda.empty_cache()
            elif kind < 0.96 and "graphs" in features and len(kept) < 6:
                capture()
            elif kind < 0.99 and pool:
                with torch.cuda.use_mem_pool(pool):
                    for _ in range(4):
                        allocate()
        if step >= begin and step % 2 == 0:
            memory._snapshot()  # an event marks the moment
            stats = torch.cuda.memory_stats()
            notes.append([stats[f"{name}_bytes.all.current"] for name in ("allocated", "active", "reserved")])
    snapshot = memory._snapshot()
    snapshot.pop("external_annotations", None)
    for event in snapshot["device_traces"][0] + [b for s in snapshot["segments"] for b in s["blocks"]] + snapshot["segments"]:
        for frame in event.get("frames", ()):
            frame["filename"] = os.path.basename(frame["filename"])
    with gzip.GzipFile(out + ".pickle.gz", "wb", mtime=0) as file:
        pickle.dump(snapshot, file, protocol=4)
    # What was released or only asked to be freed shows with the next event, so such moments are left out.
    events, last, lines, notes = 0, "", [], iter(notes)
    for event in snapshot["device_traces"][0]:
        action = event["action"]
        events += action in ("alloc", "free_completed", "oom")
        if action != "snapshot":
            last = action
            continue
        line = f"{events} " + " ".join(map(str, next(notes, ())))
        if not last.startswith("segment_") and last != "free_requested" and line.count(" ") == 3:
            lines.append(line + "\n")
    with open(out + ".txt", "w") as file:
        file.writelines(lines[i * len(lines) // 100] for i in range(min(100, len(lines))))


def main():
    if len(sys.argv) == 5 and sys.argv[1] == "program":
        return program(sys.argv[2], int(sys.argv[3]), sys.argv[4].split())
    gpumem, python = sys.argv[1:]
    here = os.path.dirname(os.path.abspath(__file__))
    for seed, (name, (gpu, conf, features)) in enumerate(RECORDINGS.items()):
        env = dict(os.environ, PYTORCH_CUDA_ALLOC_CONF=conf)
        subprocess.run(
            [gpumem, "run", "--simulate", gpu, "--", python, __file__, "program", os.path.join(here, name), str(seed), features],
            env=env, check=True,
        )


if __name__ == "__main__":
    main()
