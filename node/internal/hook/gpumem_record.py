# Records what PyTorch does with its memory, in a program that knows nothing of
# it: to the file that GPUMEM_RECORD names, or, where that is there already, to
# one whose name has the process number behind it. So a program that starts others
# has a file for each that uses a GPU.
#
# PyTorch keeps the events itself, with the lines of Python that caused them; here
# they are only asked for, once the program has started CUDA, and written when
# memory runs out for the first time and again when the program ends. No error of
# it reaches the program: it is reported in one line on stderr.
import atexit
import importlib
import os
import sys
import time
import types

say = None  # tells of an error

# Events that PyTorch keeps: the last of them. Without a limit a program that runs
# for days would fill the host's memory.
MOST = 1000000

# Looks at what keeps tensors before the program ends take no more seconds than this, or one of them more.
MOST_SPENT = 3.0
MAIN = getattr(sys.modules.get("__main__"), "__dict__", {})
TOOL = 4  # of sys.monitoring: debuggers, coverage and profilers have others


used = {}  # the GPUs that each process has used
recorders = []


def begin(tell_of, using):
    """Is called by gpumem_hook, before a framework is imported."""
    global say, used
    say, used = tell_of, using
    atexit.register(say_what_is_missing)


def say_what_is_missing():
    """Says why there is no recording of a framework that keeps none, and what makes one."""
    names = [name for module, name in (("jax", "JAX"), ("tensorflow", "TensorFlow")) if module in sys.modules]
    file = os.environ.get("GPUMEM_RECORD", "")
    if not names or not used.get(os.getpid()) or any(r.process == os.getpid() for r in recorders):
        return
    folder, name = os.path.split(file)
    try:
        if any(f == name or f.startswith(name + "_") for f in os.listdir(folder)):
            return
    except OSError:
        return
    or_jax = ", and in the program gpumem.record(FILE, \"jax\") has the profiler's events" if "JAX" in names else ""
    sys.stderr.write(
        "gpumem: nothing is recorded to %s: %s keeps no record of its own, and no pool was out of memory; "
        "gpumem run --pool elastic --record FILE records every allocation%s\n" % (file, " and ".join(names), or_jax)
    )


def torch(module):
    try:
        recorder = Torch(module, os.environ["GPUMEM_RECORD"])
        module.cuda._lazy_call(recorder.start)  # once CUDA is started, which it does not start
    except Exception as error:
        tell(error)


def tell(error):
    say("torch", error, "nothing is recorded")


class Torch(object):
    def __init__(self, module, name):
        self.module, self.name = module, name
        self.path = None  # the file that is ours
        self.refused = False  # memory has run out once
        self.process = None  # which records: one that it forks has no CUDA
        self.before = None  # what kept tensors when main() returned, and how many allocations there had been
        self.spent = 0.0  # seconds, on that

    def start(self):
        try:
            memory = self.module.cuda.memory
            try:
                memory._record_memory_history("all", stacks="python", max_entries=MOST)  # since PyTorch 2.1
            except TypeError:
                memory._record_memory_history(True, trace_alloc_max_entries=MOST, trace_alloc_record_context=True)  # 2.0
            self.process = os.getpid()
            recorders.append(self)
            atexit.register(self.end)
            self.await_ends()
            observe = getattr(self.module._C, "_cuda_attach_out_of_memory_observer", None)
            if observe:
                observe(self.refuse)
        except Exception as error:
            tell(error)

    def end(self):
        self.write()
        keep_status()

    def refuse(self, *what):
        if not self.refused:
            self.refused = True
            self.write()

    def write(self):
        if os.getpid() != self.process:
            return
        try:
            kept = self.keepers()
        except BaseException:  # Ctrl-C ends the search; the recording is whole without it
            self.put(None)
            raise
        self.put(kept)

    def put(self, kept):
        part = "%s.%d.part" % (self.name, self.process)
        try:
            self.dump(part, kept)
            if self.path is None:
                self.path = self.take()
            os.replace(part, self.path)
        except BaseException as error:
            try:
                os.remove(part)
            except OSError:
                pass
            if not isinstance(error, Exception):
                raise
            tell(error)

    def dump(self, name, kept):
        memory = self.module.cuda.memory
        if not kept and hasattr(memory, "_dump_snapshot"):
            return memory._dump_snapshot(name)
        import pickle  # which _dump_snapshot does, too, where there is one: not in 2.0

        snapshot = memory._snapshot()
        if kept:
            snapshot[kept[0]] = kept[1]
        with open(name, "wb") as file:
            pickle.dump(snapshot, file)

    def keepers(self):
        """Returns the key of a snapshot and, for it, the containers that keep the program's tensors; None if
        that fails or there are none, for the recording is whole without them."""
        try:
            search = self.search()
            found = search.keepers(self.module, sys.exc_info()[1] or getattr(sys, "last_value", None))
            if self.before and self.before[0] == self.allocations():  # what was freed since is the end's, too
                found = self.before[1] + [keeper for keeper in found if keeper not in self.before[1]]
            return (search.KEY, found) if found else None
        except Exception as error:
            say("torch", error, "no container is named")
            return None

    def search(self):
        package = types.ModuleType("gpumem_keepers")  # of the files beside this one
        package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
        sys.modules.setdefault(package.__name__, package)
        return importlib.import_module("gpumem_keepers._keepers")

    def allocations(self):
        cuda = self.module.cuda
        return [cuda.memory_stats(i).get("allocation.all.allocated") for i in range(cuda.device_count())]

    def await_ends(self):
        """Has a look before the program's outermost functions, such as main(), return for the first time: what
        their variables keep is freed then. Only Python 3.12 and later say when a function returns at no cost to others."""
        try:
            functions = [unwrapped(o) for o in list(MAIN.values()) if isinstance(o, types.FunctionType)]
            codes = [f.__code__ for f in functions if f.__globals__ is MAIN]
            frame = sys._getframe()
            while frame:
                if is_of_program(frame):
                    codes.append(frame.f_code)
                frame = frame.f_back
            watch = sys.monitoring
            watch.use_tool_id(TOOL, "gpumem")
            watch.register_callback(TOOL, watch.events.PY_RETURN, self.returns)
            for code in codes:
                watch.set_local_events(TOOL, code, watch.events.PY_RETURN)
        except Exception:
            pass  # an older Python, another tool

    def returns(self, code, offset, value):
        frame, functions = sys._getframe(1), 0
        while frame:
            functions += is_of_program(frame)
            frame = frame.f_back
        if functions == 1 and self.spent < MOST_SPENT and os.getpid() == self.process:
            began = time.time()
            try:
                found = self.search().keepers(self.module)
                self.before = self.allocations(), found
            except Exception:
                pass
            finally:
                self.spent += time.time() - began
        return sys.monitoring.DISABLE

    def take(self):
        """Makes the file, so that no other process takes its name."""
        try:
            with open(self.name, "x"):
                return self.name
        except FileExistsError:
            path = "%s.%d" % (self.name, self.process)
            with open(path, "x"):
                return path


def keep_status():
    """Has Python end by SIGINT a program that Ctrl-C has ended, as without this file: it forgets that with the next
    text that it evaluates, as each namedtuple does, and learns it from one that a KeyboardInterrupt leaves."""
    is_session = hasattr(sys, "ps1") or sys.flags.interactive or "IPython" in sys.modules
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not is_session:
        try:
            eval("interrupt()", {"interrupt": interrupt})
        except KeyboardInterrupt:
            pass


def interrupt():
    raise KeyboardInterrupt


def unwrapped(function):
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


def is_of_program(frame):
    """Reports whether a frame is of a function of the file that Python was started with."""
    return frame.f_globals is MAIN and frame.f_code.co_name != "<module>"
