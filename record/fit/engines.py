# Engines that serve models, in a run of gpumem fit: what they need on the simulated GPU is set,
# what they measure at their start is noted, and they are ended when they are ready to serve.
# start.py has the rest. What is common to them is here; each has a file of its own, with
#
#   SETTINGS   the variables that are set before it is imported
#   prepare()  sets what else it needs then
#   MODULES    its modules that are changed when they are imported, with the function that does it
#
#   GPUMEM_FIT_ENGINE      options of the engine in place of the program's own, as JSON
#   GPUMEM_FIT_SERVES      the engine that this process, or one that started it, has begun to start
#   GPUMEM_FIT.PID.engine  what a process of an engine has noted, as JSON
#
# The figures are those of the engine's own objects. Beside each stands what PyTorch's allocator
# and the driver say at that moment, so that they can be compared.
import json
import os

import gpumem_fit_sglang as sglang
import gpumem_fit_vllm as vllm

ENGINES = {"sglang": sglang, "vllm": vllm}

# The engines' modules that are changed when they are imported, and the engine of each.
MODULES = {module: name for name, engine in ENGINES.items() for module in list(engine.MODULES) + [name]}

# How long an engine that has ended keeps its process, in seconds, so that its clients end first.
WAIT = 0.5

# How long a reason is at most, in characters.
REASON = 600

noted = {}  # of this process
base = None  # start.py


def found():
    """The engine of this process; None if there is none. A program that only imports an engine's package, as
    some that train do, is none."""
    return os.environ.get("GPUMEM_FIT_SERVES")


def before(name):
    """Sets what the engine needs, before it is imported."""
    noted["engine"], noted["set"] = name, []
    for variable, value in ENGINES[name].SETTINGS.items():
        if os.environ.get(variable) != value:
            os.environ[variable] = value
        noted["set"].append("%s=%s" % (variable, value))
    ENGINES[name].prepare()
    if found():
        begin()


begun = False


def begin():
    """Begins when an engine is made, or in a process that one has started. It fills the card that it finds. The
    settings of PyTorch's allocator that start.py has taken out are an engine's own: they belong to what it measures."""
    global begun
    if begun:
        return
    begun, os.environ["GPUMEM_FIT_SERVES"] = True, noted["engine"]
    base.beyond.strict()
    for variable in base.pytorch.SETTINGS:
        if base.own.get(variable) is not None:
            os.environ[variable] = base.own.pop(variable)
    follow()
    base.again.append(follow)


def let_others_end():
    """Waits until a process that is a client of this one has ended: it would report that it has lost its engine."""
    import time

    if found():
        time.sleep(WAIT)


def follow():
    """Ends a process that holds no memory when those that hold some have written what they have."""
    import threading
    import time

    def watch():
        while not base.agreed() or any(base.alive(base.path_of(pid)) for pid in base.begun()):
            time.sleep(WAIT / 10)
        if not base.ends:
            base.leave(0)

    threading.Thread(target=watch, daemon=True).start()


def save():
    with open(base.mine(".engine.part"), "w") as file:
        json.dump(noted, file)
    os.replace(base.mine(".engine.part"), base.mine(".engine"))


def memory():
    """What PyTorch's allocator and the driver say now, in bytes."""
    import torch

    stats, (free, total) = torch.cuda.memory_stats(), torch.cuda.mem_get_info()
    return {
        "allocated": stats.get("allocated_bytes.all.current", 0),
        "requested": stats.get("requested_bytes.all.current", 0),
        "reserved": stats.get("reserved_bytes.all.current", 0),
        "peak": stats.get("allocated_bytes.all.peak", 0),
        "free": free,
        "total": total,
    }


def graphs():
    """The bytes that PyTorch has taken for the pools of graphs, or of others that are apart from its
    own; None if it does not say which segments are whose."""
    import torch

    try:
        return sum(s["total_size"] for s in torch.cuda.memory_snapshot() if tuple(s["segment_pool_id"]) != (0, 0))
    except (AttributeError, KeyError):
        return None  # of an old release


# The functions of PyTorch in which a compiler times kernels with tensors of its own, once: what it has found
# is read from its cache afterwards.
TIMING = {"generate_and_run_autotune_block", "benchmark_all_configs"}


def events():
    """The events of PyTorch's recording on this GPU so far."""
    import torch

    try:
        return torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()]
    except (AttributeError, KeyError, IndexError):
        return []


def once(trace, first):
    """By how much the peak of the requests since an event would be lower without the tensors with which
    a compiler times kernels."""
    sizes, timed = {}, set()
    live, most = [0, 0], [0, 0]
    for i, event in enumerate(trace):
        at = event["addr"]
        if event["action"] == "alloc":
            sizes[at] = grows = event["size"]
            if any(f["name"] in TIMING for f in event.get("frames") or ()):
                timed.add(at)
            else:
                timed.discard(at)
        elif event["action"] == "free_completed" and at in sizes:
            grows = -sizes.pop(at)
        else:
            continue
        if i >= first:
            live = [live[0] + grows, live[1] if at in timed else live[1] + grows]
            most = [max(most[0], live[0]), max(most[1], live[1])]
    return most[0] - most[1]


def stage(kind, name, after=None, before=lambda _: [memory()], step=None):
    """Notes memory before and after a method, the first time that it is called, as that of a step: its
    own name, or the one that note.go has for it. What is called after it has the method's result and arguments."""
    inner, step = getattr(kind, name, None), step or name
    if inner is None:
        return

    def call(self, *args, **named):
        begin()
        stages = noted.setdefault("stages", {})
        if step in stages:
            return inner(self, *args, **named)
        stages[step] = before(self)
        with Refusal():
            result = inner(self, *args, **named)
        stages[step].append(memory())
        if after is not None:
            after(self, result, *args)
        save()
        return result

    setattr(kind, name, call)


def after(name, module):
    """Changes a module of an engine that was imported."""
    if name in ENGINES and not hasattr(module, "__path__"):
        noted.clear()  # a file of the program's with that name
        return
    if name in ENGINES:
        noted["version"] = getattr(module, "__version__", "")
    change = ENGINES[MODULES[name]].MODULES.get(name)
    if change is not None:
        change(module)


def attributes(of, *names):
    """The numbers and words among an object's attributes."""
    values = {}
    for name in names:
        value = getattr(of, name, None)
        if value is not None:
            values[name] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return values


def has_tokenizer(folder):
    return not os.path.isdir(folder) or any("token" in name for name in os.listdir(folder))


def vary(arguments):
    """Has options that fit varies take the place of the program's."""
    for name, value in json.loads(os.environ.get("GPUMEM_FIT_ENGINE") or "{}").items():
        if not hasattr(arguments, name):
            raise ValueError("%s has no option --%s" % (found(), name.replace("_", "-")))
        setattr(arguments, name, like(getattr(arguments, name), value))


def given(of, *names):
    """Those of an engine's options that it was given, by the program or by what fit varies: not those that it
    chose for the card asked about, and is to have on a larger one."""
    chosen = (os.environ.get("GPUMEM_FIT_OF_CARD") or "").split(",")
    return attributes(of, *(name for name in names if name not in chosen))


class Refusal:
    """Notes the error that ends its block, as why the engine is not ready."""

    def __enter__(self):
        pass

    def __exit__(self, kind, error, _):
        if error is None:
            return
        details = getattr(error, "errors", None)  # of pydantic, whose text is of several lines
        try:
            text = "; ".join(": ".join(list(map(str, d["loc"])) + [d["msg"].replace("Value error, ", "")]) for d in details())
        except Exception:
            text = str(error)
        if len(text) > REASON:
            text = text[:REASON] + "..."  # some list all that they know
        noted["error"] = "%s: %s" % (kind.__name__, text)
        save()


def like(old, value):
    """A word as a value of the kind of another one."""
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            pass
    return {"true": True, "false": False}.get(value.lower(), value)


def parameters(find):
    """The bytes of the parameters and buffers on GPUs of the model that is found; 0 if they are not known."""
    try:
        model = find()
        return storages(list(model.parameters()) + list(model.buffers()))
    except Exception:
        return 0  # of another release


def storages(tensors):
    """The bytes on GPUs of tensors, and of lists of some, of which several may lie in the same memory."""

    def each(of):
        for t in of:
            if isinstance(t, (list, tuple)):
                yield from each(t)
            elif getattr(t, "is_cuda", False):
                yield t.untyped_storage()

    return sum({s.data_ptr(): s.nbytes() for s in each(tensors)}.values())


def end():
    """Ends this process when all that hold memory are ready."""
    import time

    while True:
        base.agree(base.written, "ready")
        time.sleep(0.05)
