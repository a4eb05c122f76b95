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
import types

say = None  # tells of an error; gpumem_hook sets it

# Events that PyTorch keeps: the last of them. Without a limit a program that runs
# for days would fill the host's memory.
MOST = 1000000


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

    def start(self):
        try:
            memory = self.module.cuda.memory
            try:
                memory._record_memory_history("all", stacks="python", max_entries=MOST)  # since PyTorch 2.1
            except TypeError:
                memory._record_memory_history(True, trace_alloc_max_entries=MOST, trace_alloc_record_context=True)  # 2.0
            self.process = os.getpid()
            atexit.register(self.write)
            observe = getattr(self.module._C, "_cuda_attach_out_of_memory_observer", None)
            if observe:
                observe(self.refuse)
        except Exception as error:
            tell(error)

    def refuse(self, *what):
        if not self.refused:
            self.refused = True
            self.write()

    def write(self):
        if os.getpid() != self.process:
            return
        part = "%s.%d.part" % (self.name, self.process)
        kept = self.keepers()
        try:
            self.dump(part, kept)
            if self.path is None:
                self.path = self.take()
            os.replace(part, self.path)
        except Exception as error:
            tell(error)
            try:
                os.remove(part)
            except OSError:
                pass

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
            package = types.ModuleType("gpumem_keepers")  # of the files beside this one
            package.__path__ = [os.path.dirname(os.path.abspath(__file__))]
            sys.modules.setdefault(package.__name__, package)
            search = importlib.import_module("gpumem_keepers._keepers")
            found = search.keepers(self.module, sys.exc_info()[1] or getattr(sys, "last_value", None))
            return (search.KEY, found) if found else None
        except Exception:
            return None

    def take(self):
        """Makes the file, so that no other process takes its name."""
        try:
            with open(self.name, "x"):
                return self.name
        except FileExistsError:
            path = "%s.%d" % (self.name, self.process)
            with open(path, "x"):
                return path
