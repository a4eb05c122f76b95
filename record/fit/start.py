# The first module that Python imports at its start in a run of gpumem fit. It lets the
# frameworks find the simulated GPU, and of JAX it writes what was compiled. Once the memory of
# all processes that hold some repeats, it ends them.
#
#   GPUMEM_FIT         begins the names of the files below; PID is that of the process
#   GPUMEM_SIM_FOLDER  the folder of the simulated driver and the libraries beside it
#   GPUMEM_FIT_FULL    1: the program runs to its end
#   GPUMEM_FIT_STEPS   after how many steps it is ended, if it did not end before; 0: it is not
#   GPUMEM_FIT_DEVICE  the simulated GPUs under JAX
#   GPUMEM_FIT_TOTAL   bytes that cuDeviceTotalMem reports to JAX for each
#
#   GPUMEM_FIT.PID          what was found, as JSON; modules and PyTorch's recording beside it
#   GPUMEM_FIT.PID.begun    the process holds memory, and has not written how it ended
#   GPUMEM_FIT.PID.agrees   it may be ended, as far as it is concerned
#   GPUMEM_FIT.PID.ask      it is about to be ended by a signal, and is to write before
#   GPUMEM_FIT.stop         all agree: each ends itself
import functools
import os
import sys
import threading

import gpumem_fit_beyond as beyond
import gpumem_fit_engines as engines
import gpumem_fit_kernels as kernels
import gpumem_fit_repeats as repeating
import gpumem_fit_sizes as sizes
import gpumem_fit_tensorflow as tensorflow
import gpumem_fit_torch as pytorch
import gpumem_simulate as simulate

# How old the highest peak is, in seconds, when memory repeats, see repeats.py.
SECONDS = 5

# Signals that end a process, and how many seconds it has to write what it has before.
ENDING, ANSWER = (9, 15), 5

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


def mine(suffix=""):
    """The name of a file of this process."""
    return "%s.%d%s" % (os.environ["GPUMEM_FIT"], os.getpid(), suffix)


def touch(path):
    with open(path, "w"):
        pass


def remove(path):
    try:
        os.remove(path)
    except OSError:
        pass  # another process has, or it never was there


# The program may come to its end while its memory is seen to repeat, in another thread: one of them writes.
writing, ended = threading.RLock(), []
ends = []  # what is called when the program ends, however Python ends
again = []  # what a child does that was forked
threads = []  # that are not the program's
failed = False  # sys.exit was called with an error


def after_fork():
    """A child has no thread of its parent's, and nothing of the parent's memory."""
    global writing, failed
    started()
    writing, failed = threading.RLock(), False
    del ended[:], ends[:], threads[:], beyond.refused_at[:], beyond.found_before[:]
    for begin in again:
        begin()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=after_fork)


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
                reason = "failed" if failed or getattr(sys, "last_value", None) is not None else "end"
                write(agreed() or reason)
                remove(mine(".begun"))

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


def ask(pids):
    """Has processes write what they have before a signal ends them."""
    import time

    asked = []
    for pid in pids:
        path = "%s.%d" % (os.environ["GPUMEM_FIT"], pid)
        if pid != os.getpid() and os.path.exists(path + ".begun"):
            touch(path + ".ask")
            asked.append(path)
    until = time.monotonic() + ANSWER
    while time.monotonic() < until and any(os.path.exists(path + ".ask") and alive(path) for path in asked):
        time.sleep(0.01)


def begun():
    """The processes that hold memory, by their numbers."""
    import glob

    base = os.environ["GPUMEM_FIT"]
    return [int(path[len(base) + 1 : -len(".begun")]) for path in glob.glob(glob.escape(base) + ".*.begun")]


def path_of(pid):
    return "%s.%d" % (os.environ["GPUMEM_FIT"], pid)


def alive(path):
    """Whether the process of a file runs: one that was killed has left its files."""
    return runs(path[len(os.environ["GPUMEM_FIT"]) + 1 :].split(".")[0])


def runs(pid):
    try:
        with open("/proc/%s/stat" % pid) as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def members(group):
    """The processes of a group that hold memory."""
    for pid in begun():
        try:
            if os.getpgid(pid) == group:
                yield pid
        except OSError:
            pass  # it has ended


def kill(pid, number, kill=os.kill):
    if number in ENDING:
        ask([pid] if pid > 0 else members(-pid or os.getpgrp()))
    return kill(pid, number)


def kill_group(group, number, kill=os.killpg):
    if number in ENDING:
        ask(members(group or os.getpgrp()))
    return kill(group, number)


os.kill, os.killpg = kill, kill_group


def gone(pid):
    """Notes that a process has ended, however it did: see fit_note in front.c of the pool library."""
    import time

    try:
        if runs(pid):
            return
        file = os.open("%s.%s" % (os.environ["GPUMEM_RECORD_WHOLE"], pid), os.O_WRONLY | os.O_APPEND)
        os.write(file, b"gone %d\n" % time.time_ns())
        os.close(file)
    except (KeyError, OSError):
        pass  # it used no GPU


def all_gone():
    """What is gone when this process begins had no memory beside it."""
    import glob

    base = os.environ.get("GPUMEM_RECORD_WHOLE", "")
    for path in glob.glob(glob.escape(base) + ".[0-9]*") if base else []:
        gone(path[len(base) + 1 :])


def waits(wait):
    """Has wait, a function of os, note the child whose end it returns."""

    @functools.wraps(wait)
    def call(*args, **named):
        result = wait(*args, **named)
        if result[0]:
            gone(result[0])
        return result

    return call


for _name in ("wait", "waitpid", "wait3", "wait4"):
    if hasattr(os, _name):
        setattr(os, _name, waits(getattr(os, _name)))


class Finder(simulate.Finder):
    """Acts before and after a framework, or a module of an engine, is imported."""

    names = simulate.Finder.names + tuple(engines.MODULES) + tuple(kernels.MODULES)

    def execute(self, name, module, run):
        if name == "torch" and not engines.found():
            pytorch.before(own)
            beyond.before()
        elif name in engines.ENGINES:
            engines.before(name)
        elif name == "tensorflow":
            tensorflow.before(take)
        run(module)
        simulate.prepare(name, module)
        if name == "torch" and hasattr(module, "version"):  # else it is a file of the program's with that name
            pytorch.after(module, own, called, save, repeats, at_end, steps, agree, mine, engines.found, threads)
        elif name == "tensorflow":
            tensorflow.after(module, called, save, repeats, at_end, steps, agree)
        elif name == "jax":
            watch(module)
        elif name in engines.MODULES:
            engines.after(name, module)
        elif name in kernels.MODULES:
            kernels.MODULES[name](module)


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
            path = mine(".module%d" % len(programs))
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
    save({
        "framework": "jax", "version": sys.modules["jax"].__version__, "reason": reason, "own": own,
        "programs": list(programs.values()), "sizes": sizes.found(), "steps": ran,
    })


def known(name, version):
    """Saves which framework it is. That it is there alone shows a run without its end."""
    if not os.path.exists(mine()):
        save({"framework": name, "version": version, "reason": "begun", "own": own, "programs": []})


def name():
    """What tells this process from the others of the program; "" if there is nothing."""
    process = sys.modules.get("multiprocessing.process")
    own = process.current_process().name if process else "MainProcess"
    words = [] if own == "MainProcess" else [str(own)]
    for variable, text in (("RANK", "rank %s"), ("PYTEST_XDIST_WORKER", "%s")):
        if variable in os.environ:
            words.append(text % os.environ[variable])
    return ascii(", ".join(words))[1:-1][:60]


def save(found):
    import json
    import time

    found["time"], found["name"] = time.time_ns(), name()
    with open(mine(".part"), "w") as file:
        json.dump(found, file)
    os.replace(mine(".part"), mine())


def stop(write, reason):
    """Ends this process."""
    with writing:
        if not ended:
            write(reason)
            remove(mine(".begun"))
            sys.stdout.flush()
            engines.let_others_end()
            leave(0)


def agreed():
    """Why all processes are to end; None if they are not."""
    try:
        with open(os.environ["GPUMEM_FIT"] + ".stop") as file:
            return file.read()
    except OSError:
        return None


def agree(write, reason):
    """Ends the processes if all that hold memory have agreed to it: of a program that sends
    messages between them none may end while others go on."""
    touch(mine(".agrees"))
    base = os.environ["GPUMEM_FIT"]
    waits = lambda path: alive(path) and not os.path.exists(path + ".agrees")
    if any(waits("%s.%d" % (base, pid)) for pid in begun()):
        return
    if not agreed():
        with open(mine(".part"), "w") as file:
            file.write(reason)
        os.replace(mine(".part"), base + ".stop")
    stop(write, agreed())


def written(reason):
    """Writes what this process has."""
    for end in ends:
        end()


def steps():
    return int(os.environ.get("GPUMEM_FIT_STEPS", "0"))


ran = 0  # steps of JAX, if they are counted


def count(write):
    """Ends the program when the compiled function that takes the most memory of those that ran
    has run as often as there are to be steps."""
    from jax._src import pjit
    from jax._src.interpreters import pxla

    inner, seen = pxla.ExecuteReplicated.__call__, {}

    def call(self, *args):
        global ran
        results = inner(self, *args)
        if id(self) not in seen:
            needs = self.xla_executable.get_compiled_memory_stats()
            seen[id(self)] = [needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes, 0, self]
        function = seen[id(self)]
        function[1] += 1
        if function[0] >= max(f[0] for f in seen.values()):
            ran = function[1]
            if ran >= steps():
                agree(write, "steps")
        return results

    pxla.ExecuteReplicated.__call__ = call
    pjit._get_fastpath_data = lambda *_, **__: None  # else later runs do not come by Python


def watch(jax):
    settle()  # before the backend is made
    known("jax", jax.__version__)
    bridge = jax._src.xla_bridge

    def look():
        stats = [d.memory_stats() for d in client(bridge).local_devices()]
        return sum(s["peak_bytes_in_use"] for s in stats), sum(s["num_allocs"] for s in stats), 0

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

    def begin():
        at_end(lambda reason: write(bridge, reason))  # after jax's own, and so called before it, which ends the backend
        repeats(look, lambda reason: write(bridge, reason))

    def begin_again():
        if client(bridge) is None:  # else the child has its parent's, without the threads, and no GPU
            begin()

    begin()
    again.append(begin_again)
    try:
        sizes.watch_jax(jax)
    except (AttributeError, ImportError):
        pass  # another release: it is not known
    jax.monitoring.register_event_duration_secs_listener(compiled)
    if steps():
        count(lambda reason: write(bridge, reason))


def repeats(look, write, seconds=SECONDS, wait=None):
    """Watches memory in a thread. It ends the program when memory repeats. look returns the
    peak, how many allocations there were, and how many requests were refused. wait waits some
    seconds."""
    import time

    wait = wait or time.sleep

    full = os.environ.get("GPUMEM_FIT_FULL") == "1"

    def watch():
        seen, found = repeating.Watch(seconds), False
        while True:
            wait(0.05)
            reason = agreed()
            if reason:
                stop(write, reason)
            if os.path.exists(mine(".ask")):
                with writing:
                    if not ended:
                        write("killed")
                remove(mine(".ask"))
            try:
                peak, allocations, refused = look()
            except Exception:
                continue  # not there yet, or at its end
            now, first = time.monotonic(), not seen.peak
            if seen.is_new(now, peak, allocations, refused):
                if first and seen.peak and not ended:
                    touch(mine(".begun"))
                if found:
                    remove(mine(".agrees"))
                    found = False
            elif not full and not engines.found() and seen.repeats(now, allocations):
                found = True
                agree(write, "repeats")

    thread = threading.Thread(target=watch)
    thread.daemon = True
    threads.append(thread)
    thread.start()


engines.base = sys.modules[__name__]
all_gone()
_here = os.path.dirname(__file__)
sys.path[:] = [folder for folder in sys.path if folder != _here]
simulate.preload(os.environ["GPUMEM_SIM_FOLDER"])
simulate.Finder.loaded = True
sys.meta_path.insert(0, Finder())
sys.modules.pop("sitecustomize", None)
# The user's own, if there is one: an error of it is for Python to handle.
import sitecustomize
