# PyTorch in a run of gpumem fit: its allocator's own recorder writes a snapshot, for each process
# that uses a GPU. start.py has the rest.
import os
import sys
from types import SimpleNamespace

import gpumem_fit_beyond as beyond
import gpumem_fit_sizes as sizes

# Settings that would change what is recorded. What the program has is reported.
SETTINGS = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING")

# Functions that do what SETTINGS do, by their names in torch._C, with those by which programs
# call them. They do nothing.
FUNCTIONS = {
    "_accelerator_setAllocatorSettings": "torch.cuda.memory._set_allocator_settings",
    "_cuda_changeCurrentAllocator": "torch.cuda.memory.change_current_allocator",
    "_cuda_cudaCachingAllocator_enable": "torch.cuda.memory.caching_allocator_enable",
    "_cuda_cudaCachingAllocator_set_allocator_settings": "torch.cuda.memory._set_allocator_settings",
    "_cuda_setMemoryFraction": "torch.cuda.set_per_process_memory_fraction",
}

# The events that are kept, the newest. A step of a transformer has a thousand; each takes up
# to a kilobyte with its stack.
EVENTS = 1 << 20

# How long PyTorch's thread that watches NCCL may take to look again, in seconds: it does each 0.1.
WATCH = 0.5

# Without kernels a step takes milliseconds, so that memory repeats sooner than under JAX,
# which compiles in between.
SECONDS = 2


def before(own):
    for name in SETTINGS:
        if name in os.environ:
            own[name] = os.environ.pop(name)


def settle_buckets(torch):
    """Has DistributedDataParallel wait twice, before and after it makes its buckets anew in the
    second step: the thread that watches NCCL keeps the first ones until it next looks. On a card a
    step takes longer than that, and here it takes no time. Returns how many bytes the buckets have,
    of all models."""
    import functools
    import time

    reducer = getattr(getattr(torch._C, "_distributed_c10d", None), "Reducer", None)
    parallel = getattr(getattr(getattr(torch, "nn", None), "parallel", None), "DistributedDataParallel", None)
    if not hasattr(reducer, "_rebuild_buckets") or parallel is None:
        return lambda: 0
    rebuild, begin, calls, sizes = reducer._rebuild_buckets, parallel.__init__, {}, []

    @getattr(torch, "_disable_dynamo", lambda f: f)
    def rebuild_buckets(self):
        calls[id(self)] = calls.get(id(self), 0) + 1
        if calls[id(self)] != 2:
            return rebuild(self)
        time.sleep(WATCH)
        rebuilt = rebuild(self)
        time.sleep(WATCH)
        return rebuilt

    @functools.wraps(begin)
    def init(self, *args, **named):
        begin(self, *args, **named)
        sizes.append(sum(p.numel() * p.element_size() for p in self.module.parameters() if p.requires_grad and p.is_cuda))

    reducer._rebuild_buckets, parallel.__init__ = rebuild_buckets, init
    return lambda: sum(sizes)


def without_compiler(torch, take):
    """Calls take without PyTorch's compiler, which a snapshot would import to look for lines of
    compiled code where the program has not: seconds, in which the program goes on."""
    if "torch._inductor" in sys.modules:
        return take()
    none = SimpleNamespace(stack_frames_for_code=lambda *_: None)
    torch._inductor = compiler = SimpleNamespace(codecache=SimpleNamespace(PyCodeCache=none))
    try:
        return take()
    finally:
        if torch._inductor is compiler:  # else it was imported in the meantime
            del torch._inductor


def after(torch, own, called, save, repeats, at_end, steps, agree, mine, engine, threads):
    """Begins when the program has its first GPU memory. save writes what was found, repeats
    ends the program when its memory does, at_end calls write when the program ends, agree
    ends it after as many steps of its optimizers as steps returns, mine names files, engine
    returns the name of an engine, whose own settings are a part of what it measures, and threads
    are those of fit."""
    import pickle

    if not torch.version.cuda:
        save({"framework": "pytorch", "version": torch.__version__, "reason": "no cuda", "programs": []})
        return

    def leave_out(function, inner):
        return lambda *args: inner(*args) if engine() else called(own, function, *args)

    for name, function in FUNCTIONS.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, leave_out(function, getattr(torch._C, name)))

    buckets = settle_buckets(torch)

    def write(reason):
        path, top = mine(".torch"), look()[0]  # before the snapshot: the program goes on
        with open(path + ".part", "wb") as file:
            pickle.dump(dict(snapshot(), num_alloc_retries=retries()), file)
        os.replace(path + ".part", path)
        found(reason, top)

    def found(reason, peak):
        version = torch.__version__.split("+")[0]
        save({
            "framework": "pytorch", "version": version, "reason": reason, "own": own, "programs": [],
            "peak_bytes": peak, "steps": max(done.values(), default=0), "sizes": sizes.found(),
            "beyond": beyond.listening(), "caught": caught(), "caught_at": beyond.refused_at, "buckets": buckets(),
        })

    def caught():
        """How often it was refused memory, and caught the error."""
        return beyond.refusals(sum(torch.cuda.memory_stats(i).get("num_ooms", 0) for i in range(torch.cuda.device_count())))

    def snapshot():
        """PyTorch's, without the requests whose refusal the program has caught."""
        whole = without_compiler(torch, torch.cuda.memory._snapshot)
        if beyond.refused_at:
            whole["device_traces"] = [[e for e in trace if e["action"] != "oom"] for trace in whole["device_traces"]]
        return whole

    def retries():
        # Without any, segments that were released are an emptied cache: see trim.go.
        return sum(torch.cuda.memory_stats(i)["num_alloc_retries"] for i in range(torch.cuda.device_count()))

    peak = 0

    def look():
        nonlocal peak
        stats = [torch.cuda.memory_stats(i) for i in range(torch.cuda.device_count())]
        peak = max(peak, sum(s["requested_bytes.all.peak"] for s in stats))
        return peak, sum(s["allocation.all.allocated"] for s in stats), caught()

    # A program may record for itself, and ends that or begins anew: it gets the events of
    # this recording. torch.cuda.memory calls these two by their names.
    record = torch._C._cuda_record_memory_history
    for name in ("_cuda_record_memory_history", "_cuda_record_memory_history_legacy"):
        if hasattr(torch._C, name):
            setattr(torch._C, name, lambda *_, **__: None)

    def begin():
        torch._C._cuda_record_memory_history, ours = record, torch._C._cuda_record_memory_history
        torch.cuda.memory._record_memory_history(enabled="all", context="alloc", stacks="python", max_entries=EVENTS)
        torch._C._cuda_record_memory_history = ours
        open(mine(".open"), "w").close()  # there is to be a snapshot
        found("begun", 0)
        at_end(write)
        repeats(look, write, SECONDS, beyond.waiting(getattr(torch.cuda, "OutOfMemoryError", RuntimeError), threads))
        optimizer = sys.modules.get("torch.optim.optimizer")
        if optimizer:
            optimizer.register_optimizer_step_post_hook(count)
        if not engine():
            sizes.watch(torch)

    done = {}  # how many steps, by optimizer

    def count(optimizer, *_):
        done[id(optimizer)] = done.get(id(optimizer), 0) + 1
        if steps() and done[id(optimizer)] >= steps():
            agree(write, "steps")

    torch.cuda._lazy_call(begin)
