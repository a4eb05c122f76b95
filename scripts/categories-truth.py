#!/usr/bin/env python3
"""Records a PyTorch program's memory, and what each block of it was for, by construction.

    gpumem run --simulate 80GiB -- PYTHON scripts/categories-truth.py PROGRAM OUT [--profile] [--plain]

PROGRAM is a Python file with a function main(truth). It is ordinary code that also names its
objects: truth.model(module), truth.optimizer(optimizer), truth.inputs(tensor...),
truth.cache(object), truth.master(tensor...), truth.ema(module), and truth.step() where a step
begins. truth.begin() is where the recording begins, if later than the program.

OUT.pickle is what torch.cuda.memory._dump_snapshot writes. OUT.json has the category of every
allocation in it. With --profile, OUT.prof.json compares the categories of
torch.profiler._memory_profiler in its first steps, and OUT.pickle is not written. With --plain
there are no hooks: OUT.sizes has the requests alone, which must be the same.

How it knows: whenever an object can be looked at, the address of each storage that it holds is
noted with the allocator's count of allocations and frees. The storage is alive then, so it is
the last allocation at that address among those counted: reuse of addresses confuses nothing.

    parameters, buffers  what the module has: when named, at each step, before each forward
    optimizer state      what optimizer.state holds after each step, and master weights
    gradients            p.grad when it was accumulated, and at each step; DDP's buckets by
                         the C++ stack
    KV cache             what the named object holds after each forward
    inputs               what the program named
    workspace            what torch._C._cuda_clearCublasWorkspaces frees at the end; cuDNN's by
                         the C++ stack
    activations          what autograd saved (saved_tensors_hooks), from the allocation until
                         the graph lets go; recomputed ones of checkpoint, too, and what
                         functions in Python, compiled ones above all, keep on their context
    temporaries          the rest that is freed in its step or in the next
    unknown              the rest

A block with several roles has the first in the order of CATEGORIES. An activation that outlives
the backward pass that used it, or a graph without one, is a temporary or unknown from then on:
"changes" has the event. Events are counted from 0 as in device_traces[0]; -1 is before the
recording. Exit status 1 if the sums at the peak are not the allocator's, or the parameters not
the module's.
"""

import argparse
import bisect
import collections
import contextlib
import json
import os
import pickle
import runpy
import sys

import torch
from torch.utils.weak import WeakIdKeyDictionary

CATEGORIES = [
    "kv_cache", "parameters", "buffers", "optimizer_state", "gradients", "inputs", "workspace", "activations", "temporaries", "unknown",
]

# C++ functions of PyTorch whose own allocations are workspace. Those of cuDNN have its name, as
# has every operation on it, so they count only without a tensor made in between.
CUBLAS = ("getCUDABlasLtWorkspace", "setWorkspaceForHandle")
TENSOR = ("at::detail::empty", "empty_cuda", "empty_strided_cuda", "resize_bytes_cuda")


def storages(obj, seen=None, depth=8):
    """The addresses of the GPU storages that obj holds, through containers and attributes."""
    seen = set() if seen is None else seen
    if id(obj) in seen or depth < 0 or obj is None or isinstance(obj, (str, bytes, int, float, type)):
        return
    seen.add(id(obj))
    if isinstance(obj, torch.Tensor):
        if hasattr(obj, "__tensor_flatten__") and type(obj) not in (torch.Tensor, torch.nn.Parameter):
            for name in obj.__tensor_flatten__()[0]:
                yield from storages(getattr(obj, name), seen, depth - 1)
        elif obj.layout == torch.sparse_coo:
            yield from storages([obj._indices(), obj._values()], seen, depth - 1)
        elif obj.is_cuda:
            try:
                address = obj.untyped_storage().data_ptr()
            except (RuntimeError, NotImplementedError):  # no storage: functional or fake
                return
            if address:
                yield address
    elif isinstance(obj, dict):
        for value in list(obj.values()):
            yield from storages(value, seen, depth - 1)
    elif isinstance(obj, (list, tuple, set, frozenset, collections.deque)):
        for value in list(obj):
            yield from storages(value, seen, depth - 1)
    elif isinstance(obj, torch.nn.Module):
        yield from storages(list(obj.parameters()) + list(obj.buffers()), seen, depth - 1)
    elif hasattr(obj, "__dict__") and not callable(obj):
        yield from storages(vars(obj), seen, depth - 1)


class Saved:
    """What autograd keeps in the place of a saved tensor. Its end is the end of the activation."""

    __slots__ = ("tensor", "truth", "address")

    def __init__(self, truth, tensor):
        self.truth, self.tensor = truth, tensor
        self.address = next(storages(tensor), None)
        if self.address:
            truth.note("activations", [self.address])

    def __del__(self):
        if self.address and self.truth is not None:
            self.truth.releases.append((self.truth.count(), self.address))


class Enough(Exception):
    pass


class Truth:
    def __init__(self, hooks=True):
        self.hooks = hooks
        self.seen = []  # (count, address, category, detail)
        self.releases = []  # (count, address) when autograd let go of a saved tensor
        self.backwards = []  # (count, count) of each backward pass
        self.marks = []  # count at each step
        self.start = None  # count where the recording begins
        self.models, self.optimizers, self.caches, self.more = [], [], [], []
        self.watched = WeakIdKeyDictionary()
        self.kind = "training"
        self.profile = None  # begins with the first step
        self.enough = None  # moments after which a run that is profiled ends

    def count(self):
        """The moment: how many allocations and frees there were."""
        all_ = torch._C._cuda_memoryStats(0)["allocation"]["all"]
        return all_["allocated"] + all_["freed"]

    def note(self, category, held, detail=""):
        count = self.count()
        self.seen.extend((count, address, category, detail) for address in held)

    # What a program says.

    def model(self, module, detail="", parts=True):
        """parts=False is for a module that is compiled: hooks on its parts would break its graph."""
        if self.hooks:
            self.models.append((module, detail))
            self.look_at_model(module, detail)
            self.watch(module.parameters())
            for part in module.modules() if parts else ():
                if list(part.parameters(recurse=False)):
                    part.register_forward_pre_hook(lambda part, _: self.look_at_part(part))
        return module

    def ema(self, module):
        if self.hooks:
            self.models.append((module, "copy"))
            self.look_at_model(module, "copy")
        return module

    def optimizer(self, optimizer):
        self.optimizers.append(optimizer)
        if self.hooks and isinstance(optimizer, torch.optim.Optimizer):
            optimizer.register_step_pre_hook(lambda *_: self.look_at_gradients(optimizer))
            optimizer.register_step_post_hook(lambda *_: self.look_at_state(optimizer))
        return optimizer

    def inputs(self, *tensors):
        if self.hooks:
            self.note("inputs", storages(tensors))
            self.watch(tensors)
        return tensors[0] if len(tensors) == 1 else tensors

    def cache(self, *caches):
        self.end()
        self.caches = list(caches)
        if self.hooks:
            self.note("kv_cache", storages(self.caches))
        return caches[0]

    def master(self, *tensors):
        """Copies in higher precision that the optimizer updates."""
        self.hold("optimizer_state", list(tensors), "master weights")

    def hold(self, category, obj, detail=""):
        self.more.append((category, obj, detail))
        if self.hooks:
            self.note(category, storages(obj), detail)

    def step(self):
        self.end()
        if self.profile and not self.marks:
            self.profile.__enter__()
        self.marks.append(self.count())
        self.look()

    def end(self):
        """The profiler needs gigabytes of the host's memory for 40,000 events."""
        if self.enough and (self.count() > self.enough or len(self.marks) == 3):
            raise Enough

    def begin(self):
        self.start = self.count()
        self.look()

    # What is looked at.

    def look_at_model(self, module, detail):
        parameters = list(module.parameters())
        self.note("parameters", storages(parameters), detail)
        self.note("buffers", storages(list(module.buffers())), detail)
        self.note("gradients", storages([p.grad for p in parameters]))

    def look_at_part(self, part):
        """FSDP gathers the parameters of a part before its forward: they are others than the shards."""
        parameters = list(part.parameters(recurse=False))
        self.note("parameters", storages(parameters))
        self.watch(parameters)

    def watch(self, parameters):
        for p in parameters:
            if p.requires_grad and p.is_leaf and p not in self.watched:
                self.watched[p] = True
                p.register_post_accumulate_grad_hook(lambda p: self.note("gradients", storages(p.grad)))

    def look_at_gradients(self, optimizer):
        self.note("gradients", storages([p.grad for group in optimizer.param_groups for p in group["params"]]))

    def look_at_state(self, optimizer):
        self.note("optimizer_state", storages(dict(optimizer.state)))

    def around(self, backward):
        def look_and_go(tensors, *args, **kwargs):
            self.look_at_graph(tensors)
            start = self.count()
            try:
                return backward(tensors, *args, **kwargs)
            finally:
                self.backwards.append((start, self.count()))
        return look_and_go

    def look_at_graph(self, tensors):
        """Functions in Python, compiled ones above all, keep tensors as attributes of their context."""
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        todo, seen = [t.grad_fn for t in tensors if t.grad_fn is not None], set()
        while todo:
            node = todo.pop()
            if node in seen:
                continue
            seen.add(node)
            todo.extend(next_ for next_, _ in node.next_functions if next_ is not None)
            if hasattr(node, "__dict__"):
                self.note("activations", storages(vars(node)), "kept by a function of Python")

    def look(self):
        if not self.hooks:
            return
        for module, detail in self.models:
            self.look_at_model(module, detail)
        for optimizer in self.optimizers:
            self.look_at_state(optimizer)
        for category, obj, detail in self.more:
            self.note(category, storages(obj), detail)
        self.note("kv_cache", storages(self.caches))

    # How the program is run.

    def run(self, program):
        main = runpy.run_path(program, run_name="program")["main"]
        if not self.hooks:
            main(self)
            return
        hooks = torch.autograd.graph.saved_tensors_hooks
        # Checkpoint replaces these hooks where it recomputes; what it saves then is kept, too.
        from torch.utils import checkpoint

        recompute = checkpoint._recomputation_hook.__init__

        def init(hook, *args, **kwargs):
            recompute(hook, *args, **kwargs)
            inner = hook.pack_hook

            def pack(tensor):
                held = list(storages(tensor))
                self.note("activations", held, "recomputed")
                return inner(tensor)
            hook.pack_hook = pack
        checkpoint._recomputation_hook.__init__ = init
        torch.autograd.backward = self.around(torch.autograd.backward)
        torch.autograd.grad = self.around(torch.autograd.grad)
        with hooks(lambda tensor: Saved(self, tensor), lambda saved: saved.tensor), contextlib.suppress(Enough):
            main(self)
        self.look()


def clock(trace):
    """The events that the allocator counts, in order."""
    return [i for i, e in enumerate(trace) if e["action"] in ("alloc", "free_requested")]


def blocks(trace):
    """Every allocation with its event, and the events where it was freed."""
    live, found = {}, []
    for i, e in enumerate(trace):
        if e["action"] == "alloc":
            live[e["addr"]] = {"event": i, "addr": e["addr"], "bytes": e["size"], "freed": None}
            found.append(live[e["addr"]])
        elif e["action"] == "free_requested" and e["addr"] in live:
            live.pop(e["addr"])["freed"] = i
    return found


def by_frame(entry):
    """What the C++ stack of an allocation says that it is for."""
    names = [f["name"] for f in entry.get("frames", ()) if not f["filename"].endswith(".py")]
    has = lambda words: any(word in name for name in names for word in words)
    if has(CUBLAS):
        return "workspace", "cuBLAS"
    if has(("c10d::Reducer::initialize_buckets",)):
        return "gradients", "DDP bucket"
    if names and not has(TENSOR):
        return ("workspace", "cuDNN") if has(("cudnn", "Cudnn", "CuDNN")) else ("", "scratch of a kernel")
    return None


class Judge:
    """Joins what was noted with the trace."""

    def __init__(self, truth, trace, first, workspaces):
        self.trace, self.clock = trace, clock(trace)
        self.first = first  # allocations and frees counted before the trace
        self.found = blocks(trace)
        self.at = collections.defaultdict(list)  # the allocations at an address
        for block in self.found:
            self.at[block["addr"]].append(block)
        self.roles = collections.defaultdict(list)
        self.missed = 0
        for count, address, category, detail in truth.seen:
            self.add(count, address, category, detail)
        self.ends = {}
        for count, address in truth.releases:
            block = self.block(count, address)
            if block:
                event = self.event(max([stop for start, stop in truth.backwards if start <= count <= stop], default=count))
                self.ends[block["event"]] = max(event, self.ends.get(block["event"], 0))
        for block in self.found:
            role = by_frame(trace[block["event"]])
            if role:
                self.roles[block["event"]].append(role)
        for address in workspaces:
            self.roles[self.at[address][-1]["event"]].append(("workspace", "cuBLAS"))
        self.steps = [self.event(count) for count in truth.marks]

    def event(self, count):
        """The index of the event after the last one that is counted."""
        n = count - self.first
        return self.clock[n - 1] + 1 if n > 0 else 0

    def block(self, count, address):
        event, list_ = self.event(count), self.at.get(address, [])
        i = bisect.bisect_left(list_, event, key=lambda one: one["event"])
        alive = i and (list_[i - 1]["freed"] is None or list_[i - 1]["freed"] >= event)
        return list_[i - 1] if alive else None

    def add(self, count, address, category, detail):
        block = self.block(count, address)
        if block is None:
            self.missed += 1
            return
        self.roles[block["event"]].append((category, detail))

    def made_between(self, start, freed):
        """Whether memory was allocated between two events: only then does the order of frees matter."""
        return any(e["action"] == "alloc" for e in self.trace[start:freed])

    def step_of(self, event):
        return bisect.bisect_right(self.steps, event)

    def rest(self, block):
        freed = block["freed"]
        first, last = self.step_of(block["event"]), self.step_of(len(self.trace) if freed is None else freed)
        kept_from_before = freed is None and first == 0
        return "unknown" if last - first > 1 or kept_from_before else "temporaries"

    def judge(self):
        for block in self.found:
            roles = set(self.roles[block["event"]])
            details = [detail for category, detail in roles if not category]
            roles = sorted((r for r in roles if r[0]), key=lambda r: (CATEGORIES.index(r[0]), r[1] == ""))
            block["category"], block["detail"] = roles[0] if roles else (self.rest(block), "".join(details))
            block["roles"] = sorted({r[0] for r in roles})
            block["changes"] = []
            end = self.ends.get(block["event"])
            if block["category"] == "activations" and end is not None and self.made_between(end, block["freed"]):
                block["changes"].append([end, self.rest(block)])
        return self.found


def category_at(block, event):
    category = block["category"]
    for at, then in block["changes"]:
        if event >= at:
            category = then
    return category


def peak(found, events):
    change = [0] * (events + 1)
    for b in found:
        change[max(b["event"], 0)] += b["bytes"]
        if b["freed"] is not None:
            change[b["freed"]] -= b["bytes"]
    live = most = at = 0
    for i, c in enumerate(change):
        live += c
        if live > most:
            most, at = live, i
    sums = collections.Counter()
    for b in found:
        if b["event"] <= at and (b["freed"] is None or b["freed"] > at):
            sums[category_at(b, at)] += b["bytes"]
    return {"event": at, "bytes": most, "categories": dict(sums.most_common())}


def cut(snapshot, start):
    """The snapshot as if recording had begun at event start: blocks from before have no stack."""
    trace = snapshot["device_traces"][0]
    known = {e["addr"] for e in trace[start:] if e["action"] == "alloc"}
    for segment in snapshot["segments"]:
        for block in segment["blocks"]:
            if block["address"] not in known and "frames" in block:
                block["frames"] = []
    snapshot["device_traces"][0] = trace[start:]


def shift(found, steps, start):
    """The same blocks, with events counted from start."""
    kept = []
    for b in found:
        if b["freed"] is not None and b["freed"] < start:
            continue
        b = dict(b, event=max(b["event"] - start, -1), freed=None if b["freed"] is None else b["freed"] - start)
        b["changes"] = [[max(at - start, 0), then] for at, then in b["changes"]]
        kept.append(b)
    return kept, [s - start for s in steps]


def profiled(profile, truth, judge):
    """PyTorch's own categories beside the truth, at the truth's peak. The profiler's allocations
    are those of the trace since the first step, in their order; blocks from before go by address."""
    from torch.profiler import _memory_profiler

    found = judge.judge()
    most = peak(found, len(judge.trace))
    memory, action = profile._memory_profile(), _memory_profiler.Action
    rows = [row for row in memory.timeline if row[2][0].device.type == "cuda"]
    start = judge.event(truth.marks[0])
    later = [b for b in found if b["event"] >= start]
    created = [row for row in rows if row[1] == action.CREATE]
    same = len(created) >= len(later) and all(size >= b["bytes"] for (_, _, _, size), b in zip(created, later))
    made = sum(b["event"] <= most["event"] for b in later)
    category, number, n = {}, {}, 0  # by allocation or by address; the allocation that a key is now
    for time, what, (key, version), size in rows:
        if what == action.CREATE:
            if n == made:
                break
            number[key] = later[n]["event"] if n < len(later) else None
            n += 1
        if what == action.DESTROY:
            number.pop(key, None)
            continue
        known = memory._categories.get(key, version + (what == action.INCREMENT_VERSION))
        at = number.get(key, key.storage.ptr if hasattr(key, "storage") and what == action.PREEXISTING else None)
        if what == action.PREEXISTING:
            number[key] = at
        category[at] = known.name if known else "UNKNOWN"
    pairs = collections.Counter()
    for b in found:
        if b["event"] <= most["event"] and (b["freed"] is None or b["freed"] > most["event"]):
            theirs = category.get(b["event"] if b["event"] >= start else b["addr"], "MISSING")
            pairs[category_at(b, most["event"]) + "|" + theirs] += b["bytes"]
    return {"same_allocations": same, "peak": most, "truth_and_profiler_at_peak": dict(pairs.most_common())}


def model_bytes(truth):
    """What the modules' parameters and their copies hold, each storage once."""
    parameters = [p for module, _ in truth.models for p in module.parameters()]
    parameters += [p for category, held, _ in truth.more if category == "parameters" for p in held]
    held = {}
    for p in (getattr(p, "_local_tensor", p) for p in parameters):
        held.update((address, p.untyped_storage().nbytes()) for address in storages(p))
    return sum(held.values())


def read_trace(truth, first):
    """The snapshot, and its trace joined with what was noted."""
    snapshot = torch.cuda.memory._snapshot()
    trace = snapshot["device_traces"][0]
    torch._C._cuda_clearCublasWorkspaces()
    after = torch.cuda.memory._snapshot()["device_traces"][0][len(trace):]
    return snapshot, Judge(truth, trace, first, [e["addr"] for e in after if e["action"] == "free_requested"])


def faults(result, whole):
    """What must hold: the sums are the allocator's own, and nothing that was noted is unknown to the trace."""
    most, parameters = result["peak"], result["parameters"]
    if sum(most["categories"].values()) != most["bytes"]:
        yield "the categories at the peak are %d bytes, its blocks %d" % (sum(most["categories"].values()), most["bytes"])
    if whole and most["bytes"] != result["allocated_bytes"]:
        yield "the peak is %d bytes, the allocator's %d" % (most["bytes"], result["allocated_bytes"])
    if parameters["module_bytes"] != parameters["trace_bytes"]:
        yield "parameters are %(module_bytes)d bytes, of the trace %(trace_bytes)d" % parameters
    if result["not_in_trace"]:
        yield "%d times a storage was seen that is not in the trace" % result["not_in_trace"]


def write_truth(options, truth, snapshot, judge):
    found, steps, events = judge.judge(), judge.steps, len(judge.trace)
    if truth.start is not None:
        start = judge.event(truth.start)
        cut(snapshot, start)
        found, steps = shift(found, steps, start)
        events -= start
    result = {
        "version": 1, "program": os.path.basename(options.program), "kind": truth.kind, "torch": torch.__version__,
        "events": events, "steps": steps, "peak": peak(found, events),
        "parameters": {
            "module_bytes": model_bytes(truth),
            "trace_bytes": sum(b["bytes"] for b in found if b["freed"] is None and b["category"] == "parameters"),
        },
        "not_in_trace": judge.missed, "allocated_bytes": torch.cuda.memory_stats()["requested_bytes.all.peak"],
    }
    print(json.dumps(result))
    result["allocations"] = [{k: v for k, v in b.items() if v not in ("", [])} for b in found]
    for e in (e for list_ in snapshot["device_traces"] + [s["blocks"] for s in snapshot["segments"]] for e in list_):
        if options.stacks != "all" and "frames" in e:
            e["frames"] = [f for f in e["frames"] if f["filename"].endswith(".py")] if options.stacks == "python" else []
    with open(options.out + ".pickle", "wb") as file:
        pickle.dump(snapshot, file)
    with open(options.out + ".json", "w") as file:
        json.dump(result, file)
    wrong = list(faults(result, truth.start is None))
    if wrong:
        sys.exit("categories-truth: " + "; ".join(wrong))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("out")
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--stacks", default="all", choices=["all", "python", "none"], help="those that OUT.pickle keeps")
    options = parser.parse_args()
    sys.path.insert(0, os.path.dirname(os.path.abspath(options.program)))

    truth = Truth(hooks=not options.plain)
    torch.cuda.init()
    first = truth.count()
    stacks = "python" if options.plain else "all"  # the truth needs C++, whatever is written
    torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks=stacks, max_entries=1 << 22)
    if options.profile:
        truth.enough = 12000
        truth.profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, record_shapes=True, with_stack=True)
    truth.run(options.program)
    torch.cuda.synchronize()
    if options.plain:
        with open(options.out + ".sizes", "w") as file:
            file.writelines("%s %d\n" % (e["action"], e["size"]) for e in torch.cuda.memory._snapshot()["device_traces"][0])
        return
    if truth.profile:
        truth.profile.__exit__(None, None, None)
    snapshot, judge = read_trace(truth, first)
    if truth.profile:
        with open(options.out + ".prof.json", "w") as file:
            json.dump(profiled(truth.profile, truth, judge), file, indent=1)
        return
    write_truth(options, truth, snapshot, judge)


if __name__ == "__main__":
    main()
