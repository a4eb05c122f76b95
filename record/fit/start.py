# The first module that Python imports at its start in a run of gpumem fit. It lets the
# frameworks find the simulated GPU, and of JAX it writes what was compiled, to the file
# that GPUMEM_FIT names. Once memory repeats it ends the program.
#
#   GPUMEM_FIT         the file for what was found, as JSON; modules beside it
#   GPUMEM_SIM_FOLDER  the folder of the simulated driver and the libraries beside it
#   GPUMEM_FIT_FULL    1: the program runs to its end
#   GPUMEM_FIT_STEPS   after how many steps it is ended, if it did not end before; 0: it is not
#   GPUMEM_FIT_DEVICE  the simulated GPUs under JAX
#   GPUMEM_FIT_TOTAL   bytes that cuDeviceTotalMem reports to JAX for each
import os
import sys
import threading

import gpumem_fit_tensorflow as tensorflow
import gpumem_fit_torch as pytorch
import gpumem_simulate as simulate

# Memory repeats if the peak is as old as this many times the allocations before it, and
# as this many seconds.
TIMES, SECONDS = 3, 5

# The compiled functions, the largest ones, that are written as a whole.
MODULES = 8

# Settings of the run, by all names of each. What the program sets itself is reported, and
# does not count: with a pool of JAX's own the requests would not be seen.
SETTINGS = {
    "XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async",
    "XLA_CLIENT_ALLOCATOR": None,
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_CLIENT_PREALLOCATE": None,
    "XLA_PYTHON_CLIENT_MEM_FRACTION": None,
    "XLA_CLIENT_MEM_FRACTION": None,
}
CLIENT_OPTIONS = ("allocator", "memory_fraction", "preallocate", "collective_memory_size")
own = {}


def take(settings, own):
    """Sets the environment to settings, of which None is no value. What else the program has
    there is reported. A child process has what its parent has set here."""
    taken = os.environ.get("GPUMEM_FIT_TAKEN", "").split()
    for name, value in settings.items():
        found = os.environ.pop(name, None)
        if found is not None and not (found == value and name in taken):
            own[name] = found
        if value is not None:
            os.environ[name] = value
    os.environ["GPUMEM_FIT_TAKEN"] = " ".join(taken + list(settings))


def called(own, function, *args, **named):
    """Reports a call that does what settings do. start.py leaves the call out, or its limit."""
    simple = (bool, int, float, str, list, dict)
    words = [repr(a) if isinstance(a, simple) else "..." for a in args]
    words += ["%s=%r" % pair for pair in named.items()]
    own["%s(%s)" % (function, ", ".join(words))] = None

# Modules that have been imported know that this file is there: see front.c of the pool
# library, which notes a Python without it.
def started():
    os.environ["GPUMEM_FIT_STARTED"] = str(os.getpid())


started()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=started)

# The program may come to its end while its memory is seen to repeat, in another thread: one of them writes.
writing, ended = threading.RLock(), []
ends = []  # what is called when the program ends, however Python ends
failed = False  # sys.exit was called with an error


def at_end(write):
    """Has write called with the reason when this process ends: by Python's end, or by os._exit."""
    import atexit

    me, done = os.getpid(), []

    def end():
        if os.getpid() != me:
            return
        with writing:
            if not done:
                done.append(True)
                ended.append(True)
                # last_value is set for an exception that nothing caught.
                write("failed" if failed or getattr(sys, "last_value", None) is not None else "end")

    atexit.register(end)
    ends.append(end)


def exit_at_once(status, leave=os._exit):
    for end in ends:
        try:
            end()
        except Exception:
            pass  # the file keeps that the end was not reached
    leave(status)


def exit_with(status=None, leave=sys.exit):
    global failed
    failed = status not in (None, 0)
    leave(status)


leave = os._exit
os._exit, sys.exit = exit_at_once, exit_with


class Finder(simulate.Finder):
    """Acts before and after a framework is imported."""

    def execute(self, name, module, run):
        if name == "torch":
            pytorch.before(own)
        elif name == "tensorflow":
            tensorflow.before(take)
        run(module)
        simulate.prepare(name, module)
        if name == "torch":
            pytorch.after(module, own, called, save, repeats, at_end, steps, stop)
        elif name == "tensorflow":
            tensorflow.after(module, called, save)
        elif name == "jax":
            watch(module)


def settle():
    take(SETTINGS, own)
    # Programs replace this variable as a whole. The last of a flag counts.
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_autotune_level=0"
    # Nothing is refused, and XLA's compiler sees the card: see compilerTotal in fit.go.
    os.environ["GPUMEM_DEVICE"] = os.environ["GPUMEM_FIT_DEVICE"]
    os.environ["GPUMEM_DEVICE_TOTAL"] = os.environ["GPUMEM_FIT_TOTAL"]


def client(bridge):
    # Asks for no backend: that would make it.
    for name, backend in list(getattr(bridge, "_backends", {}).items()):
        if name in ("cuda", "gpu"):
            return backend
    return None


programs = {}  # by name and sizes


def note(executable):
    """Keeps the sizes of a compiled function, and its module if it is a large one."""
    try:
        needs = executable.get_compiled_memory_stats()
        module = executable.hlo_modules()[0]
        found = {
            "name": module.name,
            "argument_bytes": needs.argument_size_in_bytes,
            "output_bytes": needs.output_size_in_bytes,
            "alias_bytes": needs.alias_size_in_bytes,
            "temp_bytes": needs.temp_size_in_bytes,
            "code_bytes": needs.generated_code_size_in_bytes,
        }
        key = tuple(sorted(found.items(), key=str))
        if key in programs:
            return
        size = lambda f: f["argument_bytes"] + f["output_bytes"] + f["temp_bytes"]
        larger = sum(size(f) >= size(found) for f in list(programs.values()))
        programs[key] = found
        if larger < MODULES:
            path = "%s.%d" % (os.environ["GPUMEM_FIT"], len(programs))
            with open(path, "wb") as file:
                file.write(module.as_serialized_hlo_module_proto())
            found["module"] = path
    except Exception:
        pass  # of another release


def write(bridge, reason):
    backend = client(bridge)
    if backend is None:
        return
    for executable in backend.live_executables():  # compiled by an earlier run, and kept in a cache
        note(executable)
    save({"framework": "jax", "version": sys.modules["jax"].__version__, "reason": reason, "own": own, "programs": list(programs.values())})


def begun(name, version):
    """Saves which framework it is. That it is there alone shows a run without its end."""
    if not os.path.exists(os.environ["GPUMEM_FIT"]):
        save({"framework": name, "version": version, "reason": "begun", "own": own, "programs": []})


def save(found):
    import json

    path = os.environ["GPUMEM_FIT"]
    with open(path + ".part", "w") as file:
        json.dump(found, file)
    os.replace(path + ".part", path)


def stop(write, reason):
    with writing:
        if not ended:
            write(reason)
            sys.stdout.flush()
            leave(0)


def steps():
    return int(os.environ.get("GPUMEM_FIT_STEPS", "0"))


def count(write):
    """Ends the program when the compiled function that takes the most memory of those that ran
    has run as often as there are to be steps."""
    from jax._src import pjit
    from jax._src.interpreters import pxla

    inner, seen = pxla.ExecuteReplicated.__call__, {}

    def call(self, *args):
        results = inner(self, *args)
        if id(self) not in seen:
            needs = self.xla_executable.get_compiled_memory_stats()
            seen[id(self)] = [needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes, 0, self]
        function = seen[id(self)]
        function[1] += 1
        if function[1] >= steps() and function[0] >= max(f[0] for f in seen.values()):
            stop(write, "steps")
        return results

    pxla.ExecuteReplicated.__call__ = call
    pjit._get_fastpath_data = lambda *_, **__: None  # else later runs do not come by Python


def watch(jax):
    settle()  # before the backend is made
    begun("jax", jax.__version__)
    bridge = jax._src.xla_bridge

    def look():
        stats = [d.memory_stats() for d in client(bridge).local_devices()]
        return sum(s["peak_bytes_in_use"] for s in stats), sum(s["num_allocs"] for s in stats)

    def compiled(event, *_, **__):
        backend = client(bridge)
        if backend is not None and event.endswith("backend_compile_duration"):
            for executable in backend.live_executables()[:1]:  # the newest is the first
                note(executable)

    if hasattr(bridge, "_options_from_jax_configs"):
        options = bridge._options_from_jax_configs

        def without_memory(*args):
            """The options of jax_pjrt_client_create_options, which go before variables."""
            given = options(*args)
            for name in CLIENT_OPTIONS:
                if name in given:
                    called(own, "jax.config.update", "jax_pjrt_client_create_options", {name: given.pop(name)})
            return given

        bridge._options_from_jax_configs = without_memory

    at_end(lambda reason: write(bridge, reason))  # after jax's own, and so called before it, which ends the backend
    jax.monitoring.register_event_duration_secs_listener(compiled)
    repeats(look, lambda reason: write(bridge, reason))
    if steps():
        count(lambda reason: write(bridge, reason))


def repeats(look, write, seconds=SECONDS):
    """Ends the program when its memory repeats. look returns the peak, and how many
    allocations there were."""
    import time

    def watch():
        peak, before, since = 0, 0, time.monotonic()
        while True:
            time.sleep(0.05)
            try:
                top, count = look()
            except Exception:
                continue  # not there yet, or at its end
            now = time.monotonic()
            if top > peak:
                peak, before, since = top, count, now
            elif peak and count >= (1 + TIMES) * before and now - since > seconds:
                stop(write, "repeats")

    if os.environ.get("GPUMEM_FIT_FULL") != "1":
        thread = threading.Thread(target=watch)
        thread.daemon = True
        thread.start()


_here = os.path.dirname(__file__)
sys.path[:] = [folder for folder in sys.path if folder != _here]
simulate.preload(os.environ["GPUMEM_SIM_FOLDER"])
simulate.Finder.loaded = True
sys.meta_path.insert(0, Finder())
sys.modules.pop("sitecustomize", None)
# The user's own, if there is one: an error of it is for Python to handle.
import sitecustomize
