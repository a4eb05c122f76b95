"""Asks the GPU plugins of JAX releases where they place memory.

  python3 places.py [--dir DIR] [--cuda 12|13] [--releases 0.11.2,0.12.0.1] [--only NAME]

Needs what xla.py needs. Writes one file for each program below to testdata/jax
of the project; its head says what is in it. A program is a list of allocations
and frees. Each is run by the real plugin, once for each release and setting, on
the stand-in for the driver: a PJRT buffer without contents for each allocation,
and its address read back. A refusal takes XLA ten seconds, so the programs have
few. What was already asked is kept in DIR/raw.
"""

import argparse
import concurrent.futures
import ctypes
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import zlib

import xla

RELEASES = "0.10.1 0.11.2 0.12.0.1".split()
OUT = xla.HERE.parents[3] / "testdata" / "jax"
KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

# Name, total bytes, free bytes, environment.
SETTINGS = [
    ("pool", 3 * GIB, 3 * GIB, ()),
    ("growing", 3 * GIB, 3 * GIB, (xla.PREALLOCATE + "false",)),
    ("one-end", 3 * GIB, 3 * GIB, (xla.SPATIAL + "false",)),
    # The GPU has less than the limit, so the pool backs off; what is left over
    # then serves a second region.
    ("backed-off", 3 * GIB, 2200 * MIB, (xla.FRACTION + "1",)),
    ("backed-off-one-end", 3 * GIB, 2200 * MIB, (xla.FRACTION + "1", xla.SPATIAL + "false")),
]

HEAD = """\
# A program, and where JAX placed it: the GPU plugins themselves on a stand-in for the driver,
# asked by policy/frameworks/testdata/xla/places.py. All sizes are bytes.
#
# c COLUMN RELEASE SETTING TOTAL FREE ENVIRONMENT   what a column is; settings between semicolons
# a ID BYTES PLACE...   an allocation, of collective memory if the ID begins with u, and for each column its place: REGION:OFFSET with regions in
#                       the order in which they were taken, or - where it was refused; = stands for
#                       the same as in the column before
# f ID                  a free; of what was refused, nothing
# g COLUMN BYTES...     what was taken from the driver
# s COLUMN NAME=N...    memory_stats at the end
"""


# ---------------------------------------------------------------- the programs

class Program:
    """Events, and what is live in them, as if nothing was ever refused."""

    def __init__(self, seed):
        self.random, self.events, self.live, self.n = random.Random(seed), [], {}, 0

    def alloc(self, size, collective=False):
        self.n += 1
        block = "%s%d" % ("u" if collective else "", self.n)
        self.events.append((block, int(size)))
        self.live[block] = int(size)
        return block

    def free(self, block):
        self.events.append((block, 0))
        del self.live[block]

    def free_any(self):
        self.free(self.random.choice(list(self.live)))

    def used(self):
        return sum(self.live.values())


def train():
    """Layers of a network: state that stays, steps whose batch grows until nothing fits."""
    p = Program(1)
    width, layers = 1024, 8
    for _ in range(layers):
        for size in 3 * width * width, width * width, 4 * width * width, 4 * width * width, width, width, 3 * width:
            for _ in range(3):  # weights and two moments
                p.alloc(4 * size)
    for step in range(14):
        batch = 2 + step * 3
        tokens = batch * 512 + p.random.randrange(40)
        kept, data = [], p.alloc(tokens * 4)
        for _ in range(layers):
            scratch = p.alloc(tokens * 512 * 2)
            kept += [p.alloc(tokens * width * 2), p.alloc(tokens * 4 * width * 2), p.alloc(tokens * 4)]
            p.free(scratch)
        loss = p.alloc(4)
        for _ in range(layers):
            gradient = [p.alloc(4 * width * width * 4), p.alloc(4 * width * 4)]
            for _ in range(3):
                p.free(kept.pop())
            for g in gradient:
                p.free(g)
        p.free(loss)
        p.free(data)
    return p.events


def mixed():
    """Sizes of all magnitudes, frees in any order, fuller and emptier by turns."""
    p = Program(2)
    for phase in range(8):
        full = p.random.choice([1600, 2000, 2290, 2290]) * MIB
        while p.used() < full and len(p.live) < 500:
            p.alloc(2 ** p.random.uniform(3, 27))
            if p.random.random() < .3:
                p.free_any()
        for _ in range(120):
            if p.used() > full:
                p.free_any()
            else:
                p.alloc(2 ** p.random.uniform(6, 25))
        if phase % 2:
            p.free(p.alloc(p.random.uniform(.2, 1) * GIB))
        for _ in range(p.random.randrange(len(p.live))):
            p.free_any()
    return p.events


def growing():
    """Arrays that are made anew half as large again each time, the old one freed after."""
    p = Program(3)
    arrays = [p.alloc(1000 * (i + 1)) for i in range(24)]
    for _ in range(500):
        i = p.random.randrange(len(arrays))
        size = p.live[arrays[i]] * 3 // 2 + p.random.randrange(300)
        if p.used() + size > 2500 * MIB:
            size = 2000 + p.random.randrange(100000)
        new = p.alloc(size)
        p.free(arrays[i])
        arrays[i] = new
        if p.random.random() < .2:
            p.free(p.alloc(size // 3 + 1))
    return p.events


def equal():
    """Few sizes, so that many free chunks are the same: ties."""
    p = Program(4)
    sizes = [256, 300, 4 * KIB, 5 * KIB, 70 * KIB, 1 * MIB, 3 * MIB, 3 * MIB + 256, 17 * MIB, 40 * MIB]
    for phase in range(6):
        size = lambda: p.random.choice(sizes)
        for _ in range(130):
            p.alloc(size())
        order = list(p.live)
        for block in order[::2] if phase % 2 else order[::-3]:
            p.free(block)
        for _ in range(60):
            p.alloc(size())
            p.free_any()
    while p.used() < 2330 * MIB:
        p.alloc(p.random.choice(sizes[-3:]))
    for _ in range(60):
        p.free_any()
        p.free_any()
        p.alloc(size())
    return p.events


def tight():
    """Blocks of a tenth of the pool and more, so that what is left over matters:
    a chunk less than twice the request is not cut unless 128 MiB would be lost."""
    p = Program(5)
    for _ in range(150):
        if p.used() < 2200 * MIB:
            p.alloc(p.random.uniform(30, 600) * MIB if p.random.random() < .7 else 2 ** p.random.uniform(8, 24))
        else:
            p.free_any()
    for block in list(p.live):
        p.free(block)
    for size in 700, 700, 700, 100, 60, 30, 10, 5:
        p.alloc(size * MIB)
    for size in 3 * MIB, 1 * MIB, 100 * KIB:
        p.alloc(size)
    for _ in range(80):
        p.free_any()
        for _ in range(2):
            if p.used() < 2250 * MIB:
                p.alloc(p.random.uniform(1, 130) * MIB)
    return p.events


def ends():
    """Ordinary and collective memory, which a partitioned pool serves from two ends."""
    p = Program(6)
    sizes = [1000, 70 * KIB, 3 * MIB, 2 * MIB, 5 * MIB + 300]
    for phase in range(7):
        full = p.random.choice([300, 900, 1500]) * MIB
        while p.used() < full and len(p.live) < 250:
            collective = p.random.random() < .3
            p.alloc(p.random.choice(sizes) if p.random.random() < .5 else 2 ** p.random.uniform(8, 26), collective)
        for _ in range(100):
            p.free_any()
            if p.used() < full:
                p.alloc(2 ** p.random.uniform(8, 25), p.random.random() < .4)
        if phase % 3 == 1:
            p.free(p.alloc(2100 * MIB, phase == 1))
        for _ in range(p.random.randrange(len(p.live))):
            p.free_any()
    for i in range(14):
        p.alloc(p.random.uniform(100, 300) * MIB, i % 3 == 0)
        if i % 2:
            p.free_any()
    return p.events


PROGRAMS = [train, mixed, growing, equal, tight, ends]


# ---------------------------------------------------------------- one run

COMPILE, EXECUTE, CREATE_UNINITIALIZED = 20, 55, 112  # their places in the plugin's table of functions

# The flags with which a compiled module keeps the memory space that it has.
AS_IT_IS = "--xla_gpu_autotune_level=0 --xla_disable_all_hlo_passes=true"


def collective(plugin, client, size):
    """A buffer of collective memory: what a module gives back that does nothing but
    have a result of so many bytes in memory space 1 (an HloModuleProto, by hand)."""

    def varint(n):
        low = bytes([n & 127 | (128 if n > 127 else 0)])
        return low if n < 128 else low + varint(n >> 7)

    def number(field, n):
        return varint(field << 3) + varint(n)

    def message(field, body):
        return varint(field << 3 | 2) + varint(len(body)) + body

    u8, space = 6, 1
    shape = number(2, u8) + message(3, varint(size)) + message(5, message(1, b"\0") + number(8, space))
    made = message(1, b"a") + message(2, b"custom-call") + message(3, shape) + message(28, b"AllocateBuffer") + number(35, 1)
    program = message(2, shape)
    entry = message(1, b"e") + message(2, made) + message(4, program) + number(5, 1) + number(6, 1)
    module = message(1, b"m") + message(2, b"e") + message(3, entry) + message(4, program) + number(5, 1) + number(6, 1)
    options = message(3, number(4, 1) + number(5, 1))  # one replica, one partition
    code, kind, how = (ctypes.create_string_buffer(b, len(b)) for b in (module, b"hlo", options))
    words = (ctypes.c_uint64 * 6)(48, 0, ctypes.addressof(code), len(module), ctypes.addressof(kind), 3)
    loaded = plugin.call(COMPILE, {2: client, 3: ctypes.addressof(words), 4: ctypes.addressof(how), 5: len(options)})[6]
    arguments, results, run = (ctypes.c_uint64 * 1)(), (ctypes.c_uint64 * 1)(), (ctypes.c_uint64 * 30)(240)
    lists = (ctypes.c_uint64 * 1)(ctypes.addressof(results))
    plugin.call(EXECUTE, {2: loaded, 3: ctypes.addressof(run), 4: ctypes.addressof(arguments), 5: 1, 7: ctypes.addressof(lists)})
    # A refusal comes when the result is waited for.
    plugin.call(xla.AWAIT, {2: plugin.call(xla.BUFFER_READY, {2: results[0]})[3]})
    return results[0]


def ordinary(plugin, client, device, size):
    shape, u8 = (ctypes.c_int64 * 1)(size), 6
    return plugin.call(CREATE_UNINITIALIZED, {2: client, 3: ctypes.addressof(shape), 4: 1, 5: u8, 7: device})[9]


def run(path, options, events, answer):
    """In a process of its own: one program on one client."""
    plugin = xla.Plugin(path)
    client = plugin.create(options)
    device = plugin.device(client)
    places, buffers = [], {}
    for block, size in events:
        if not size:
            if block in buffers:
                before = plugin.stats(device)["bytes_in_use"]
                plugin.call(xla.BUFFER_DESTROY, {2: buffers.pop(block)})
                while plugin.stats(device)["bytes_in_use"] == before:
                    pass  # freed on another thread
            continue
        try:
            buffers[block] = collective(plugin, client, size) if block[0] == "u" else ordinary(plugin, client, device, size)
            places.append(plugin.call(xla.BUFFER_POINTER, {2: buffers[block]})[3])
        except xla.PluginError as e:
            if e.code != 8:
                raise
            places.append(0)
    with open(answer, "w") as f:
        json.dump({"places": places, "stats": plugin.stats(device)}, f)
    os._exit(0)


def ask(asker, release, setting, name, events):
    key = "places-%s-%s-%s-%08x" % (name, setting[0], release, zlib.crc32(repr((events, setting)).encode()))
    return asker.cached(key, lambda: ask_anew(asker, release, setting, name, events))


def ask_anew(asker, release, setting, name, events):
    """One run, as places (REGION:OFFSET or -), grants and statistics."""
    _, total, free, env = setting
    options, rest = xla.jax_options(env)
    stem = str(asker.folder / "work" / ("places-%s-%s-%s" % (name, setting[0], release)))
    calls, answer, program = pathlib.Path(stem + ".calls"), pathlib.Path(stem + ".answer"), pathlib.Path(stem + ".events")
    for path in calls, answer:
        path.write_text("")
    program.write_text(json.dumps(events))
    environment = xla.clean_env()
    if any(block[0] == "u" for block, _ in events):
        rest["XLA_FLAGS"] = AS_IT_IS
    environment.update(rest, LD_LIBRARY_PATH=str(asker.folder / "lib"), STANDIN_TOTAL=str(total), STANDIN_FREE=str(free), STANDIN_LOG=str(calls))
    done = subprocess.run([sys.executable, __file__, "--run", asker.plugin(release), json.dumps(options), str(program), str(answer)],
                          env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    if done.returncode:
        return {"failed": done.returncode, "log": done.stderr.decode(errors="replace")[-2000:]}
    regions = []
    for line in calls.read_text().splitlines():
        call, size, _, code, *at = line.split() + [""] * 2
        if call in ("cuMemAlloc", "cuMemAddressReserve") and code == "0":
            regions.append((int(at[0]), int(size)))
    found = json.loads(answer.read_text())

    def place(at):
        return next("%d:%d" % (i, at - base) for i, (base, size) in enumerate(regions) if base <= at < base + size) if at else "-"

    return {"places": [place(at) for at in found["places"]], "grants": [size for _, size in regions], "stats": found["stats"]}


def write(name, events, columns):
    lines = [HEAD.rstrip()]
    for i, (release, (setting, total, free, env), _) in enumerate(columns):
        lines.append('c %d %s %s %d %d "%s"' % (i, release, setting, total, free, ";".join(env)))
    n = 0
    for block, size in events:
        if not size:
            lines.append("f " + block)
            continue
        words, last = [], None
        for _, _, answer in columns:
            words.append("=" if answer["places"][n] == last else answer["places"][n])
            last = answer["places"][n]
        lines.append("a %s %d %s" % (block, size, " ".join(words)))
        n += 1
    for i, (_, _, answer) in enumerate(columns):
        lines.append("g %d %s" % (i, " ".join(map(str, answer["grants"]))))
        lines.append("s %d %s" % (i, " ".join("%s=%d" % s for s in answer["stats"].items())))
    OUT.mkdir(parents=True, exist_ok=True)
    with open(OUT / (name + ".txt.gz"), "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as z:
        z.write(("\n".join(lines) + "\n").encode())


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--dir", type=pathlib.Path)
    p.add_argument("--cuda", default="12")
    p.add_argument("--releases", default=",".join(RELEASES))
    p.add_argument("--only")
    p.add_argument("--jobs", type=int, default=16)
    args = p.parse_args()
    asker = xla.Asker((args.dir or pathlib.Path(tempfile.mkdtemp(prefix="xla-"))).resolve(), args.cuda)
    releases = args.releases.split(",")
    for release in releases:
        asker.plugin(release)
    keys = [(release, setting) for setting in SETTINGS for release in releases]
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as threads:
        runs = {}
        for make in PROGRAMS:
            if args.only in (None, make.__name__):
                # Collective memory has a pool of its own before 0.11 and in pools of one end.
                mine = [(r, s) for r, s in keys if make is not ends or s[0] in ("pool", "backed-off") and r != "0.10.1"]
                runs[make.__name__] = make(), mine, [threads.submit(ask, asker, r, s, make.__name__, make()) for r, s in mine]
        for name, (events, mine, asked) in runs.items():
            columns = [(r, s, one.result()) for (r, s), one in zip(mine, asked)]
            for release, setting, answer in columns:
                if "failed" in answer:  # 0.10.1 does not know the flag; 0.11.2 aborts at a second region
                    print(name, release, setting[0], "failed:", answer["failed"])
            columns = [c for c in columns if "failed" not in c[2]]
            write(name, events, columns)
            print(name, len(events), "events; refused:", *("%s@%s=%d" % (s[0], r, a["places"].count("-")) for r, s, a in columns), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        with open(sys.argv[4]) as f:
            run(sys.argv[2], json.loads(sys.argv[3]), json.load(f), sys.argv[5])
    else:
        main()
