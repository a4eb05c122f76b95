"""Turns the raw answers of xla.py into the lines of options.txt and pools.txt.

Used by xla.py; says nothing of its own accord.
"""

import json
import re

DEVICE_CALLS = "cuMemAlloc cuMemFree cuMemAllocManaged cuMemCreate cuMemRelease cuMemAllocFromPoolAsync cuMemFreeAsync".split()
CODES = {3: "INVALID_ARGUMENT", 5: "NOT_FOUND", 8: "RESOURCE_EXHAUSTED", 9: "FAILED_PRECONDITION", 12: "UNIMPLEMENTED",
         13: "INTERNAL", 14: "UNAVAILABLE"}
# Log lines about memory; all others are about the rest of the stand-in's device.
TELLING = re.compile(r"XLA backend|Using .* allocator|VMM|[Oo]ut of memory|[Ff]ailed to alloc|cuMemAllocAsync|memory_fraction|memory fraction|"
                     r"Unable to read|Failed to parse|collective|Overriding|partitioning|env-var|mem_size|XLA_FLAGS|Check failed|growth|pool")
DULL = re.compile(r"Creating (new BFC|bin)|CUDNN|BFCAllocator dump|Chunk|Next region|InUse at|Sum Total|Stats:|garbage|MemoryDump|"
                  r"Limit:|Bin |fragmentation|current alloc|Total bytes|Extending allocation|Extended allocation|Total size in pool")


OPTIONS_HEAD = """\
# What XLA's GPU plugin says to the options of a new client (PJRT_Client_Create), before it
# looks for a GPU. Asked of the plugins themselves by xla.py.
#
# A line: first and last release of those asked in a row with the same answer, kind, name, type
# given, answer. The answer is a Go string: the error, or empty where the option is taken. The
# kinds: unknown (a name that no release knows), option (a value of that type, see TYPES in
# xla.py), allocator and policy (a text for allocator or for memory_fraction_policy, as a Go
# string; blanks in it are \\x20). No line for a release means that it does not know the option.
#
"""

POOLS_HEAD = """\
# What XLA's GPU plugin does with a device's memory: the plugins themselves with a stand-in for
# the driver, asked by xla.py. Sizes are bytes.
#
# A line is of fields between blanks; only the last one has blanks in it:
#  1 first and
#  2 last release of those asked in a row with the same answer
#  3 the device's total memory
#  4 what is free of it
#  5 its compute capability, 80 for 8.0
#  6 environment, a Go string, settings between semicolons
#  7 ok; or error, where making the client or one of the two puts failed; or abort, timeout
#  8 bytes_limit of memory_stats when the client is made; none where there are no statistics
#  9 pool_bytes after the first put
# 10 largest_free_block_bytes after the first put
# 11 bytes_in_use after the second put
# 12 the driver's calls while the client is made, between commas: name:bytes, with a ! at the end
#    where the device had not so much. threshold is cuMemPoolSetAttribute, release threshold.
#    Calls for address ranges (cuMemAddressReserve) and host memory are left out; of more than 40,
#    ... stands for all but the first 20 and the last 5.
# 13 those of a first put, 1024 bytes
# 14 those of a second put, 10000000 bytes
# 15 those when both are freed
# 16 where the two arrays are, from the start of what the driver gave
# 17 the arenas made, by name (the host's, xla_gpu_host_bfc, left out)
# 18 error and log lines about memory, a Go string, the letter of severity first
#
# A - stands for nothing.
#
"""


def quoted(text):
    """A text as a Go string literal."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\x7f")


def fraction_error(e):
    return "%s: %s" % (CODES.get(e[0], e[0]), e[1])


def runs(releases, answers):
    """Joins consecutive releases with the same answer: (first, last, answer)."""
    joined = []
    for release, answer in zip(releases, answers):
        if answer is None:
            continue
        if joined and joined[-1][2] == answer and joined[-1][3] == releases.index(release) - 1:
            joined[-1][1], joined[-1][3] = release, releases.index(release)
        else:
            joined.append([release, release, answer, releases.index(release)])
    return [j[:3] for j in joined]


def option_lines(releases, answers):
    """Lines 'first last kind name type text'; text is empty where it is accepted."""
    keys = []
    for a in answers:
        for name, types in a["options"].items():
            keys += [("option", name, t) for t in types]
        keys += [("allocator", name, "string") for name in a["allocators"]]
        keys += [("policy", name, "string") for name in a.get("policies", {})]
    lines = ["%s %s unknown no_such_option string %s" % (first, last, quoted(text))
             for first, last, text in runs(releases, [fraction_error(a["unknown"]) for a in answers])]
    for key in sorted(set(keys)):
        kind, name, t = key
        texts = []
        for a in answers:
            if kind == "option":
                e = a["options"].get(name, {}).get(t, "absent")
            else:
                e = a.get({"allocator": "allocators", "policy": "policies"}[kind], {}).get(name, "absent")
            if e == "absent":
                texts.append(None)
            else:  # the missing GPU is met only after the options
                texts.append("" if e is None or e[1] == "No visible GPU devices." else fraction_error(e))
        for first, last, text in runs(releases, texts):
            lines.append(" ".join([first, last, kind, name if kind == "option" else quoted(name).replace(" ", "\\x20"), t, quoted(text)]))
    return lines


def stages(calls):
    """The driver's calls on device memory, by stage: create, put, put, free."""
    found, bases, log = [], [], []
    for line in calls.splitlines():
        words = line.split()
        if words[0] == "#":
            log = []
            found.append(log)
        elif words[0] == "cuMemPoolSetAttribute" and words[1] == "4":
            log.append("threshold:" + words[2])
        elif words[0] in DEVICE_CALLS:
            ok = words[3] == "0"
            log.append("%s:%s%s" % (words[0], words[1], "" if ok else "!"))
        if words[0] in ("cuMemAlloc", "cuMemAllocManaged", "cuMemAddressReserve", "cuMemAllocFromPoolAsync") and words[3] == "0":
            bases.append((int(words[4]), int(words[1])))
    for stage in found:
        if len(stage) > 40:  # a long way down
            stage[20:-5] = ["..."]
    return [",".join(stage) or "-" for stage in found], bases


def memory_log(log):
    lines = []
    for line in log.splitlines():
        m = re.match(r"(?:[\d-]+ [\d:.]+: )?([IWEF])(?:\d{4} [\d:.]+ +\d+)? ?[\w/.+-]+:\d+\] (.*)", line)
        if not m or DULL.search(m.group(2)) or not TELLING.search(m.group(2)):
            continue
        text = re.sub(r"0x[0-9a-f]{6,}|\b7f[0-9a-f]{8,}", "ADDRESS", "%s %s" % m.groups()).rstrip()
        if text not in lines:
            lines.append(text)
    if len(lines) > 6:  # a refusal for each step of a long way down
        lines[3:-2] = ["... %d more" % (len(lines) - 5)]
    return "\n".join(lines)


def pool_answer(raw):
    """Everything after the question in a line of pools.txt."""
    steps, (calls, bases) = raw["steps"], stages(raw["calls"])
    puts, errors = [s for s in steps if s["step"] == "put"], [s for s in steps if s["step"] == "error"]
    end = "ok" if raw["code"] == 0 else "timeout" if raw["code"] == "timeout" else "abort"
    text = memory_log(raw["log"])
    if errors:
        end = "error"
        text = "\n".join(filter(None, [fraction_error([errors[0]["code"], errors[0]["text"]]), text]))

    def number(step, name):
        if not step:
            return "-"
        return str(step[0]["stats"].get(name, "none"))

    created = [s for s in steps if s["step"] == "create"]
    places = []
    for p in puts:
        base = [b for b in bases if b[0] <= p["at"] < b[0] + max(b[1], 1)]
        places.append(str(p["at"] - base[-1][0]) if base else "?")
    arenas = []
    for name in re.findall(r"Creating new BFCAllocator named: (\S+)", raw["log"]):
        if name not in arenas and name != "xla_gpu_host_bfc":
            arenas.append(name)
    calls += ["-"] * 4
    return " ".join([end, number(created, "bytes_limit"), number(puts[:1], "pool_bytes"), number(puts[:1], "largest_free_block_bytes"), number(puts[1:], "bytes_in_use")] + calls[:4] +
                    [",".join(places) or "-", ",".join(arenas) or "-", quoted(text)])


def pool_lines(releases, question, raws):
    total, free, cc, settings = question
    env = quoted(";".join(settings)).replace(" ", "\\x20")
    return ["%s %s %d %d %d %s %s" % (first, last, total, free, cc, env, answer)
            for first, last, answer in runs(releases, [pool_answer(r) for r in raws])]


FLAGS_HEAD = """# The flags that XLA's GPU plugins take in XLA_FLAGS, asked of the plugins themselves by
# testdata/xla/flags.py. A line: flag, then for each run of releases first, last and what values
# it takes: bool, int32, int64, float, text (any), or word (only certain ones; which, after a
# colon where they are known).
# Releases asked: %s
"""


def flag_lines(releases, kinds):
    return [" ".join([flag] + [word for run in runs(releases, [k.get(flag) for k in kinds]) for word in run])
            for flag in sorted(set().union(*kinds))]


ENVIRONMENTS_HEAD = """# What whole JAX releases make of random environments: made by environments.py, seed %s.
#
# "env": the device's total and free bytes, 1 if it has virtual memory management, and the environment,
# values as Go strings. Then lines: first and last release with the same answer, and the answer:
#   gpu LIMIT POOL CALLS   the first device is the GPU: bytes_limit and, after a first put, pool_bytes of memory_stats
#                          (none where it has no such number), and the driver's calls on device memory up to then
#   cpu [CALLS]            the first device is the CPU
#   raise STAGE TEXT       an exception, while the devices are listed (create) or at a put; its text is a Go string
#   end STAGE N TEXT       the process ended itself, N its status, or -N the signal; the log line that says why
# Releases asked: %s
"""


def environment_answer(raw):
    steps, (calls, _) = raw["steps"], stages(raw["calls"])
    stage = "import" if not steps else {"import": "create", "create": "put", "put": "put"}.get(steps[-1]["step"], "")
    calls += ["-"] * 3
    if raw["code"] != 0:
        fatal = [m.group(1) for m in re.finditer(r"(?m)^F\d{4} [\d:.]+ +\d+ [\w./+-]+:\d+\] (.*)", raw["log"])]
        reason = [m.group(1) for m in re.finditer(r"(?m)^E\d{4} [\d:.]+ +\d+ [\w./+-]+:\d+\] (Couldn't interpret .*|Illegal value .*)", raw["log"])]
        return "end %s %s %s" % (stage, raw["code"], quoted("\n".join(reason[:1] + fatal[:1])))
    errors = [s for s in steps if s["step"] == "error"]
    if errors:
        stage = {1: "import", 2: "create"}.get(len(steps), "put")
        return "raise %s %s" % (stage, quoted(errors[0]["type"] + ": " + errors[0]["text"].split("\n")[0]))
    created, put = steps[1], steps[2]
    if created["platform"] != "gpu":
        return "cpu" + ("" if calls[0] == "-" else " " + calls[0])
    number = lambda s, name: str((s["stats"] or {}).get(name, "none"))
    together = ",".join(c for c in calls[:2] if c != "-")
    return "gpu %s %s %s" % (number(created, "bytes_limit"), number(put, "pool_bytes"), together or "-")
