"""What gpumem says of PyTorch's memory, with a stand-in for PyTorch: names of containers, peaks of a
history, the parts of a peak. test_torch.py has the same with the real one."""

import contextlib
import errno
import gc
import io
import itertools
import os
import pickle
import sys
import tempfile
import threading
import types
import unittest
import weakref
from unittest import mock

import gpumem
from gpumem import _callbacks, _explain, _held, _history, _meter, _names, _watch
from test_gpumem import LOG, only, python

MIB = 1 << 20


class Gpu:
    """Counts as PyTorch's allocator does."""

    addresses = itertools.count(4096)  # of all tests: the collector finds tensors of any

    def __init__(self):
        self.allocated = self.peak = 0

    def take(self, n):
        self.allocated += n
        self.peak = max(self.peak, self.allocated)
        return next(self.addresses)

    def free(self, tensor):
        self.allocated -= tensor.nbytes


class Tensor:
    """A tensor of a GPU, or of the host without one. As PyTorch's, its attributes are not in its dictionary."""

    __slots__ = ("is_cuda", "device", "nbytes", "shape", "dtype", "requires_grad", "is_leaf", "grad", "grad_fn", "address", "hooks", "untyped_storage", "__dict__", "__weakref__")

    def __init__(self, gpu, nbytes, shape=(1,), requires_grad=False):
        self.is_cuda, self.device, self.nbytes = gpu is not None, types.SimpleNamespace(index=0), nbytes
        self.shape, self.dtype, self.requires_grad = shape, "torch.float32", requires_grad
        self.is_leaf, self.grad, self.grad_fn = True, None, None
        self.address = gpu.take(nbytes) if gpu else 1
        self.hooks = []
        address, device = self.address, types.SimpleNamespace(index=0, type="cuda" if gpu else "cpu")
        self.untyped_storage = lambda: types.SimpleNamespace(data_ptr=lambda: address, nbytes=lambda: nbytes, device=device)

    def register_post_accumulate_grad_hook(self, hook):
        self.hooks.append(hook)
        return types.SimpleNamespace(remove=lambda: self.hooks.remove(hook))


class Module:
    def __init__(self, parameters=()):
        self._parameters, self._modules = dict(enumerate(parameters)), {}

    def parameters(self):
        return iter(self._parameters.values())

    def buffers(self):
        return iter(())


class Optimizer:
    def __init__(self):
        self.state = {}


def fake_torch(gpu):
    """Returns a module torch with what gpumem asks of it."""
    stats = lambda device: {"allocated_bytes": {"all": {"current": gpu.allocated, "peak": gpu.peak}}}
    cuda = types.SimpleNamespace(
        is_initialized=lambda: True, memory_stats_as_nested_dict=stats, max_memory_reserved=lambda d: gpu.peak, device_count=lambda: 1,
        memory_allocated=lambda d=0: gpu.allocated, memory_reserved=lambda d=0: gpu.peak, mem_get_info=lambda d=0: (100 * MIB, 1 << 30),
    )
    return types.SimpleNamespace(
        Tensor=Tensor, nn=types.SimpleNamespace(Module=Module), optim=types.SimpleNamespace(Optimizer=Optimizer), cuda=cuda, _C=types.SimpleNamespace(),
        __version__="2.15.0",
    )


GLOBAL = []


class Owner:
    shared = []

    def __init__(self):
        self.losses = []
        self.by_name = {"hidden": []}

    def put(self, thing):
        self.losses.append(thing)


class Slots:
    __slots__ = ("kept",)


def line(text):
    """Returns this file's lines with a text, as a name has them."""
    with open(__file__) as f:
        return tuple(f"test_held.py:{n}" for n, code in enumerate(f, 1) if text in code and "line(" not in code)


class Names(unittest.TestCase):
    def name(self, container):
        return _names.name_of(container, _names.frames())

    def test_attribute(self):
        owner = Owner()
        self.assertEqual(self.name(owner.losses), ("Owner.losses", "", line("self.losses.append")))

    def test_attribute_in_slots(self):
        owner = Slots()
        owner.kept = [object()]
        self.assertEqual(self.name(owner.kept).text, "Slots.kept")

    def test_attribute_of_the_class(self):
        self.assertEqual(self.name(Owner.shared).text, "Owner.shared")

    def test_local(self):
        acts = []
        acts.append(1)
        self.assertEqual(self.name(acts), ("acts", "a local of test_local", line("acts.append(1)")))

    def test_global(self):
        self.assertEqual(self.name(GLOBAL)[:2], ("GLOBAL", "a global"))

    def test_variable_of_a_closure(self):
        def make():
            seen = [object()]
            return lambda: seen

        keep = make()
        self.assertEqual(self.name(keep())[:2], ("seen", "a variable of Names.test_variable_of_a_closure.<locals>.make.<locals>.<lambda>"))

    def test_in_a_dictionary(self):
        owner = Owner()
        self.assertEqual(self.name(owner.by_name["hidden"]).text, "Owner.by_name['hidden']")

    def test_local_of_an_error(self):
        def fail():
            held = [object()]
            raise KeyError(len(held))

        try:
            fail()
        except KeyError as e:
            held = e.__traceback__.tb_next.tb_frame.f_locals["held"]
            self.assertEqual(_names.name_of(held, _names.frames(e)).text, "held")

    def test_without_a_name(self):
        self.assertEqual(_names.name_of([object()], _names.frames()), ("", "", ()))


class Containers(unittest.TestCase):
    def found(self, least=1):
        with _held.Program(fake_torch(self.gpu)) as program:
            return [(c.kind, c.name, c.tensors, c.bytes) for c in program.containers(least)]

    def setUp(self):
        gc.collect()  # of what other tests left
        self.gpu = Gpu()

    def test_list_dictionary_and_records(self):
        owner, other = Owner(), {}
        for i in range(20):
            owner.put(Tensor(self.gpu, 3 * MIB))
            other[i] = Tensor(self.gpu, 2 * MIB)
            GLOBAL.append((i, {"loss": Tensor(self.gpu, MIB)}))
        self.addCleanup(GLOBAL.clear)
        self.assertEqual(self.found(), [("list", "Owner.losses", 20, 60 * MIB), ("dict", "other", 20, 40 * MIB), ("list", "GLOBAL", 20, 20 * MIB)])
        self.assertEqual(len(self.found(30 * MIB)), 2)

    def test_what_has_a_purpose_is_no_candidate(self):
        parameters = [Tensor(self.gpu, MIB, requires_grad=True) for _ in range(20)]
        module, optimizer = Module(parameters), Optimizer()
        gradients, states = [], []
        for p in parameters:
            p.grad = Tensor(self.gpu, MIB)
            gradients.append(p.grad)
            optimizer.state[p] = {"momentum": Tensor(self.gpu, MIB)}
            states.append(optimizer.state[p]["momentum"])
        self.assertEqual(self.found(), [])
        del module

    def test_few_unequal_or_host_tensors_are_no_candidate(self):
        few = [Tensor(self.gpu, MIB) for _ in range(7)]
        unequal = [Tensor(self.gpu, MIB, (i,)) for i in range(20)]
        host = [Tensor(None, MIB) for _ in range(20)]
        attributes = types.SimpleNamespace(**{f"a{i}": i for i in range(20)}, big=[Tensor(self.gpu, MIB) for _ in range(7)])
        self.assertEqual(self.found(), [])
        del few, unequal, host, attributes

    def test_proxies_are_not_woken(self):
        class Lazy(dict):
            def values(self):
                raise AssertionError("loaded")

            items = keys = __iter__ = values

        lazy, strange = [Lazy(a=1) for _ in range(20)], [mock.NonCallableMagicMock() for _ in range(20)]
        self.assertEqual(self.found(), [])
        del lazy, strange

    def test_no_tensor_is_kept(self):
        """With a cycle that only the collector ends a look would keep memory of the GPU."""
        acts = [Tensor(self.gpu, MIB) for _ in range(20)]
        kept = weakref.ref(acts[0])
        gc.collect()
        gc.disable()
        self.addCleanup(gc.enable)
        self.assertEqual(self.found(), [("list", "acts", 20, 20 * MIB)])
        try:
            raise KeyError
        except KeyError as e:
            with _held.Program(fake_torch(self.gpu), e) as program:
                program.label()
        acts.clear()
        self.assertIsNone(kept())

    def test_what_another_look_keeps_is_not_named(self):
        loose = weakref.WeakSet()
        cycle = [Tensor(self.gpu, MIB) for _ in range(20)]
        for t in cycle:  # nothing but a look has all of them
            t.self = t
            loose.add(t)
        del cycle, t
        found = []
        other = threading.Thread(target=lambda: found.append(self.found()))
        with _held.Program(fake_torch(self.gpu)):
            other.start()
            other.join(0.2)  # it waits, or finds the list of this one
        other.join()
        self.assertEqual(found, [[]])
        for t in loose:
            del t.self

    def test_one_sentence(self):
        c = _held.Container("Trainer.losses", "list", "", ("train.py:8",), 0, 40, 40 * MIB, 0, "float32[1024]", 40, 1)
        self.assertEqual(str(c), "the list `Trainer.losses` keeps 40 MiB on cuda:0: 40 tensors float32[1024]; filled at train.py:8")
        c = c._replace(name="", tensors=80, graphs=30 * MIB, filled=())
        self.assertEqual(
            c.text(50 * MIB),
            "a list whose name is unknown keeps 40 MiB of 50 MiB on cuda:0: 80 tensors, 40 of them float32[1024], whose graphs keep 30 MiB of it for a backward pass",
        )


class History(unittest.TestCase):
    def test_peak_with_blocks_from_before(self):
        event = lambda action, addr, size: {"action": action, "addr": addr, "size": size, "frames": [{"name": "f", "filename": "a.py", "line": addr}]}
        block = lambda addr, size, state="active_allocated": {"address": addr, "size": 512, "requested_size": size, "state": state, "frames": []}
        events = [
            event("alloc", 1, 100), event("free_requested", 9, 50), event("free_completed", 9, 50), event("alloc", 2, 30),
            event("segment_alloc", 7, 1000), event("free_requested", 2, 30), event("alloc", 3, 10),
        ]
        segments = [{"device": 0, "address": 512, "blocks": [block(512, 500), block(1024, 0, "inactive"), block(3, 10), block(1, 100)]}]
        most, sure, blocks = _history.peak({"segments": segments, "device_traces": [events]})[0]
        # 500 and 50 lived before; with 100 that is the most, though 30 and 10 come later. Each takes 512.
        self.assertEqual((most, sure), (3 * 512, True))
        self.assertEqual(sorted((b.bytes, b.kept) for b in blocks), [(50, False), (100, True), (500, True)])

    def test_bytes_are_those_that_are_allocated(self):
        """What PyTorch left unused in a block is known where the block still lives. Of one that was freed
        it is not, and the peak is not sure where it may have been there."""
        event = lambda action, addr, size: {"action": action, "addr": addr, "size": size, "frames": []}
        block = {"address": 1, "size": 12 * MIB, "requested_size": 11 * MIB + 1, "state": "active_allocated", "frames": []}
        kept = {"segments": [{"device": 0, "address": 1, "blocks": [block]}], "device_traces": [[event("alloc", 1, 11 * MIB + 1)]]}
        self.assertEqual(_history.peak(kept)[0][:2], (12 * MIB, True))
        freed = {"segments": [], "device_traces": [kept["device_traces"][0] + [event("free_requested", 1, 11 * MIB + 1)]]}
        self.assertEqual(_history.peak(freed)[0][:2], (11 * MIB + 512, False))
        # What lies at its address now was made later.
        again = {**kept, "device_traces": [[event("alloc", 1, 3 * MIB), event("free_requested", 1, 3 * MIB), *kept["device_traces"][0], event("alloc", 2, 1)]]}
        self.assertEqual(_history.peak(again)[0][:2], (12 * MIB + 512, True))
        smaller = [event("alloc", 1, 20 * MIB), event("alloc", 3, 9 * MIB), event("free_requested", 1, 20 * MIB), *kept["device_traces"][0]]
        self.assertEqual(_history.peak({**kept, "device_traces": [smaller]})[0].bytes, 29 * MIB)
        # It was gone when the peak came, which was higher by more than could be unused.
        later = [event("free_requested", 1, 11 * MIB + 1), event("alloc", 2, 100 * MIB)]
        other = {**block, "address": 2, "size": 100 * MIB, "requested_size": 100 * MIB}
        both = {"segments": [{"device": 0, "address": 2, "blocks": [other]}], "device_traces": [kept["device_traces"][0] + later]}
        self.assertEqual(_history.peak(both)[0][:2], (100 * MIB, True))

    def test_rows_by_line_and_by_label(self):
        frames = lambda file: [{"name": "g", "filename": "/v/site-packages/torch/x.py", "line": 1}, {"name": "f", "filename": file, "line": 3}]
        blocks = [_history.Block(0, 1, 10, frames("/home/me/train.py")), _history.Block(0, 2, 20, []), _history.Block(1, 3, 5, frames("x.cpp")[1:])]
        rows = _history.rows(blocks, lambda b: f"made by {b.address}")
        self.assertEqual([(r["pool"], r["site"], r["bytes"]) for r in rows], [("cuda:0", "made by 2", 20), ("cuda:0", "f (train.py:3)", 10), ("cuda:1", "made by 3", 5)])


class Notebook(unittest.TestCase):
    def test_lines_are_those_of_the_cells(self):
        shell = types.SimpleNamespace(compile=types.SimpleNamespace(_filename_map={"/tmp/ipykernel_1/123.py": 4}))
        block = _history.Block(0, 1, 10, [{"name": "<module>", "filename": "/tmp/ipykernel_1/123.py", "line": 2}])
        with mock.patch.dict(sys.modules, IPython=types.SimpleNamespace(get_ipython=lambda: shell)):
            self.assertEqual(_history.rows([block], str)[0]["site"], "<module> (In[4]:2)")


class Recorder:
    """PyTorch with its history and its counts."""

    def __init__(self, on=False):
        self.on, self.events, self.allocations, self.frees, self.settings = on, [], 0, 0, []
        memory = types.SimpleNamespace(_record_memory_history=self.record, _snapshot=lambda: {"segments": [], "device_traces": [list(self.events)]})
        self.cuda = types.SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: 1, memory_stats=self.stats, memory=memory)
        self._C = types.SimpleNamespace(_cuda_isHistoryEnabled=lambda: self.on)

    def record(self, enabled="all", context="all", **settings):
        self.on = enabled is not None
        if not self.on:
            self.events.clear()
        self.settings.append(context if self.on else "end")

    def stats(self, device):
        return {"allocation.all.allocated": self.allocations, "allocation.all.freed": self.frees}

    def work(self, name):
        """Allocates and frees a block."""
        self.allocations, self.frees = self.allocations + 1, self.frees + 1
        if self.on:
            self.events += [{"action": action, "addr": name, "size": 1} for action in ("alloc", "free_requested", "free_completed")]


class Uses(unittest.TestCase):
    """What several share of one history."""

    def names(self, use):
        part, missing = use.end()
        self.assertEqual([e["action"] for e in part["device_traces"][0] if e["action"] != "free_completed"][:1], ["alloc"])
        return "".join(e["addr"] for e in part["device_traces"][0] if e["action"] == "alloc"), missing

    def test_each_has_its_own_part_and_the_last_ends_it(self):
        torch = Recorder()
        torch.work("x")
        outer = _history.Use(torch)
        torch.work("a")
        inner = _history.Use(torch, None)
        torch.work("b")
        self.assertEqual(self.names(inner), ("b", 0))
        torch.work("c")
        overlaps = _history.Use(torch, "all")  # which wants more lines, and forgets nothing
        torch.work("d")
        self.assertEqual(self.names(outer), ("abcd", 0))
        torch.work("e")
        self.assertEqual((self.names(overlaps), torch.on), (("de", 0), False))
        self.assertEqual(torch.settings, ["alloc", "all", "end"])

    def test_a_release_that_does_not_say_whether_it_records(self):
        torch = Recorder()
        torch._C = types.SimpleNamespace()
        uses = [_history.Use(torch, "all"), _history.Use(torch)]  # the second needs nothing more
        for use in uses:
            use.stop()
        self.assertEqual(torch.settings, ["all", "end"])

    def test_one_that_begins_again_loses_no_lines(self):
        torch = Recorder()
        uses = [_history.Use(torch, "all")]
        torch.record(None)
        uses.append(_history.Use(torch))
        self.assertEqual(torch.settings, ["all", "end", "all"])
        for use in uses:
            use.stop()

    def test_what_the_program_records_goes_on(self):
        torch = Recorder(on=True)
        torch.work("a")
        use = _history.Use(torch)
        torch.work("b")
        self.assertEqual((self.names(use), torch.on, torch.settings), (("b", 0), True, []))
        use = _history.Use(torch, "all")  # a recording needs all of it
        use.stop()
        use.stop()
        self.assertEqual((torch.on, torch.settings), (True, ["all"]))

    def test_what_somebody_else_ended_is_missing(self):
        torch = Recorder()
        use = _history.Use(torch)
        torch.work("a")
        torch.record(None)
        torch.work("b")
        again = _history.Use(torch)
        torch.work("c")
        self.assertEqual(self.names(use), ("c", 2))
        self.assertEqual((self.names(again), torch.on), (("c", 0), False))

    def test_more_than_a_history_can_have(self):
        torch = Recorder()
        use = _history.Use(torch)
        torch.allocations, torch.frees = 600_000, 400_000
        self.assertFalse(use.is_too_long())
        torch.frees += 1
        self.assertTrue(use.is_too_long())
        use.stop()


class Recordings(unittest.TestCase):
    """gpumem.record of PyTorch's history, whose end puts everything back, whatever is raised in it."""

    def setUp(self):
        self.torch = Recorder()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = os.path.join(folder.name, "run.rec")

    def record(self, path, ends=lambda: None):
        with only({"torch": self.torch}), gpumem.record(path, "torch"):
            self.torch.work("a")
            ends()

    def left(self):
        """Returns what a recording has left: the history, who uses it, and the events in the file, None if there is no file."""
        events = None
        if os.path.exists(self.path):
            with open(self.path, "rb") as f:
                events = len(pickle.load(f)["device_traces"][0])
        return self.torch.on, _history._users, events

    def test_interrupted_in_the_search_it_is_whole(self):
        with mock.patch("gpumem._keepers.keepers", side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
            self.record(self.path)
        self.assertEqual(self.left(), (False, [], 3))

    def test_a_search_that_fails_is_said_and_the_recording_is_whole(self):
        said = io.StringIO()
        with mock.patch("gpumem._keepers.keepers", side_effect=TypeError("no such frame")), contextlib.redirect_stderr(said):
            self.record(self.path)
        self.assertEqual(said.getvalue(), "gpumem.record: what keeps the tensors is not in the recording: TypeError: no such frame\n")
        self.assertEqual(self.left(), (False, [], 3))

    @unittest.skipIf(sys.version_info < (3, 11), "where a generator goes on, an older Python's profile cannot raise within it")
    def test_interrupted_anywhere_at_its_end_the_history_ends_and_the_file_is_whole_or_gone(self):
        """Python looks for a Ctrl-C where a function begins and after one of C; here one arrives at the nth such place, for every n."""
        ours, seen = os.path.dirname(_history.__file__), set()
        for n in itertools.count(1):
            self.torch, places = Recorder(), itertools.count(1)

            def arrives(frame, event, argument):
                if os.path.dirname(frame.f_code.co_filename) == ours and event in ("call", "c_return") and next(places) == n:
                    sys.setprofile(None)
                    raise KeyboardInterrupt

            try:
                with mock.patch("gpumem._keepers.keepers", return_value=[]):
                    self.record(self.path, lambda: sys.setprofile(arrives))
                break
            except KeyboardInterrupt:
                pass
            finally:
                sys.setprofile(None)
            left = self.left()
            self.assertEqual(left[:2], (False, []), n)
            self.assertIn(left[2], (None, 3), n)
            seen.add(left[2])
            if left[2]:
                os.remove(self.path)
        self.assertEqual(seen, {None, 3})
        self.assertGreater(n, 30)

    def test_interrupted_at_its_begin_nothing_is_left(self):
        for where in ("_start", "counts"):
            with mock.patch.object(_history, where, side_effect=KeyboardInterrupt), self.assertRaises(KeyboardInterrupt):
                self.record(self.path)
            self.assertEqual(self.left(), (False, [], None))

    @unittest.skipUnless(os.path.exists("/dev/full"), "Linux has such a device")
    def test_a_full_disk_is_named_with_the_file(self):
        with self.assertRaisesRegex(OSError, "the recording could not be written: No space left on device: '/dev/full'") as raised:
            self.record("/dev/full")
        self.assertEqual((raised.exception.errno, self.left()), (errno.ENOSPC, (False, [], None)))
        self.assertTrue(os.path.exists("/dev/full"))


class Meter(unittest.TestCase):
    """Steps of a training, with each byte known."""

    def setUp(self):
        self.gpu = Gpu()
        self.parameters = [Tensor(self.gpu, 4 * MIB, requires_grad=True) for _ in range(5)]
        self.optimizer = Optimizer()
        self.meter = _meter.Meter(fake_torch(self.gpu), Module(self.parameters), [self.optimizer])
        self.addCleanup(self.meter.close)

    def step(self, activations=10 * MIB, update=0, kept=0):
        self.meter.begin()
        for p in self.parameters:
            if p.grad:
                self.gpu.free(p.grad)
                p.grad = None
        made = [Tensor(self.gpu, activations) for _ in self.parameters]
        self.meter.at("forward")
        for p in reversed(self.parameters):
            p.grad = Tensor(self.gpu, p.nbytes)
            self.gpu.free(made.pop())
            for hook in p.hooks:
                hook(p)
        self.meter.before_update()
        for p in self.parameters:
            if p not in self.optimizer.state:
                self.optimizer.state[p] = {"step": 1, "momentum": Tensor(self.gpu, p.nbytes)}
        self.gpu.free(Tensor(self.gpu, update))
        self.gpu.take(kept)
        self.meter.end()

    def parts(self):
        p = self.meter.peaks[0]
        self.assertEqual(p.bytes, p.parameters + p.gradients + p.optimizer + p.activations + p.other)
        self.assertEqual(p.bytes, self.gpu.peak)
        return [n // MIB for n in p[2:7]], p.place

    def test_peak_in_the_backward_pass(self):
        self.step()
        self.step()
        # The last parameter's gradient is there with all 50 MiB of activations, or not yet: other.
        self.assertEqual(self.parts(), ([20, 0, 20, 50, 4], "backward"))

    def test_peak_in_the_optimizer(self):
        self.step(activations=MIB)
        self.step(activations=MIB, update=30 * MIB)
        self.assertEqual(self.parts(), ([20, 20, 20, 30, 0], "optimizer step"))

    def test_state_that_came_with_the_peak_is_not_claimed(self):
        self.step(activations=MIB, update=30 * MIB)
        self.assertEqual(self.parts(), ([20, 20, 0, 30, 20], "optimizer step"))

    def test_what_was_there_before_is_other(self):
        self.gpu.take(7 * MIB)
        self.step()
        self.step()
        self.assertEqual(self.parts()[0], [20, 0, 20, 50, 11])

    def test_peak_before_the_training(self):
        self.gpu.peak = 1000 * MIB
        meter = _meter.Meter(fake_torch(self.gpu), Module(self.parameters), [])
        self.assertEqual((meter.peaks[0].other, meter.peaks[0].place), (1000 * MIB, "before training"))
        meter.close()

    def test_growth(self):
        for _ in range(30):
            self.step(kept=3 * MIB)
        self.assertEqual(self.meter.growth(0), 3 * MIB)
        self.assertEqual(self.meter.metrics()["gpumem/growth_bytes_per_step"], 3 * MIB)

    def test_steps_that_differ_are_no_growth(self):
        for i in range(40):
            self.meter.begin()
            extra = Tensor(self.gpu, (i % 7) * MIB)
            self.meter.end()
            self.gpu.free(extra)
        self.assertEqual(self.meter.growth(0), 0)

    def test_hooks_are_removed(self):
        self.meter.close()
        self.assertEqual([p.hooks for p in self.parameters], [[]] * 5)

    def test_hooks_are_few(self):
        parameters = [Tensor(self.gpu, 1 + i % 5, requires_grad=True) for i in range(3000)]
        meter = _meter.Meter(fake_torch(self.gpu), Module(parameters), [])
        self.assertLessEqual(len(meter.handles), _meter.PLACES)
        self.assertEqual(sum(len(s) for s in meter.segments), 3000)
        meter.close()


class Growing(unittest.TestCase):
    def test_container_is_named_once_it_has_grown(self):
        gpu, owner, large = Gpu(), Owner(), []
        for _ in range(100):
            large.append(Tensor(gpu, MIB))  # large, and does not grow
        training = _callbacks.Training(None)
        with mock.patch.dict(sys.modules, torch=fake_torch(gpu)), self.assertLogs("gpumem", "WARNING") as logged:
            training.start(Module([Tensor(gpu, MIB, requires_grad=True)]), [])
            for _ in range(60):
                training.meter.begin()
                owner.put(Tensor(gpu, 2 * MIB))
                training.end_step()
            training.stop()
        self.assertEqual(len(logged.output), 1)
        self.assertRegex(logged.output[0], r"cuda:0 has 2 MiB more after each step, and room for about 50 more steps; what grows: the list `Owner.losses` keeps")

    def test_errors_stay_in_the_callback(self):
        class Callback:
            _training = _callbacks.Training(None)
            called = 0

            @_callbacks._safely
            def method(self):
                self.called += 1
                raise ZeroDivisionError("x")

        callback = Callback()
        with self.assertLogs("gpumem", "WARNING") as logged:
            callback.method()
            callback.method()
        self.assertEqual((callback.called, len(logged.output)), (1, 1))
        self.assertIn("ZeroDivisionError: x", logged.output[0])


class Diagnose(unittest.TestCase):
    def test_container_and_next_command(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "train 1.py")
            with open(path, "w") as f:
                f.write(
                    "import sys; sys.path.insert(0, sys.argv[1])\nimport gpumem, test_held\n"
                    "gpu = test_held.Gpu(); sys.modules['torch'] = test_held.fake_torch(gpu)\n"
                    "def train():\n    acts = []\n    for _ in range(50):\n        acts.append(test_held.Tensor(gpu, 1 << 20))\n"
                    f"    raise RuntimeError({LOG!r})\n"
                    "try: train()\nexcept RuntimeError as e: gpumem.diagnose(e); gpumem.diagnose(e)\n"
                )
            import subprocess

            done = subprocess.run([sys.executable, path, os.path.dirname(__file__), "--lr", "a b"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        err = done.stderr.decode()
        self.assertEqual((done.returncode, done.stdout), (0, b""), err)
        self.assertIn("What keeps it: the list `acts`, a local of train, keeps 50 MiB of 50 MiB on cuda:0: 50 tensors float32[1]; filled at train 1.py:7", err.replace("(1,)", "1"))
        # The surest comes first, and a card that has room for what is kept is no help.
        self.assertEqual([err.index("What keeps it"), err.index("By the text of the error alone"), err.index("Next:")], sorted([err.index("What keeps it"), err.index("By the text"), err.index("Next:")]))
        self.assertLess(len(err.split("By the text of the error alone")[1].split("\n\n")[0].splitlines()), 2, err)
        self.assertRegex(err, r"gpumem run --record run.pickle -- .*python\S* '.*train 1.py' \S+ --lr 'a b'")
        self.assertNotIn("gpumem fit", err)

    def test_only_half_of_the_memory_or_more_comes_first(self):
        gpu = Gpu()
        kept = [Tensor(gpu, MIB) for _ in range(40)]
        for rest, first in ((40 * MIB, True), (41 * MIB, False)):
            gpu.allocated = 40 * MIB + rest
            with only({"torch": fake_torch(gpu)}):
                lines, most = _explain._held_by(MemoryError())
            self.assertIn("What keeps it: the list `kept`", lines[0])
            self.assertEqual(most, first)
        del kept

    def test_no_command_where_it_would_not_run(self):
        with only({"torch": types.SimpleNamespace()}), mock.patch.dict(os.environ, WORLD_SIZE="4"):
            self.assertEqual(_explain._next(False), [])
        with only({}):
            self.assertEqual(_explain._next(False), [])
        with only({"torch": types.SimpleNamespace()}), mock.patch.object(sys, "orig_argv", ["python", "-c", "train()"], create=True):
            self.assertEqual(_explain._next(False), [])
        with only({"tensorflow": types.SimpleNamespace()}), mock.patch.object(sys, "orig_argv", ["python", "train.py"], create=True):
            self.assertEqual(_explain._next(False), ["Next:", "  gpumem fit -- python train.py    # the card and the settings that it needs; runs without a GPU"])

    def test_error_that_is_not_of_memory(self):
        with mock.patch("sys.stderr", io.StringIO()) as err:
            gpumem.diagnose(ValueError("x"))
        self.assertNotIn("What keeps it", err.getvalue())
        self.assertNotIn("Next", err.getvalue())
        self.assertTrue(err.getvalue().strip())


class Watch(unittest.TestCase):
    def watch(self, body, framework=None, fails=False):
        with mock.patch("sys.stderr", io.StringIO()) as err, contextlib.ExitStack() as stack:
            if fails:
                stack.enter_context(self.assertRaises(KeyError))
            with gpumem.watch(framework) as w:
                body()
        return w, err.getvalue()

    def test_pools(self):
        status, out, err = python(
            "import gpumem\n"
            "gpumem.configure(device='sim:1GiB')\n"
            "from gpumem import _library\n"
            "a = _library.alloc(0, 5 << 20)\n"
            "with gpumem.watch() as w: b = _library.alloc(0, 3 << 20); _library.free(0, b)\n"
            "with gpumem.watch() as v: pass\n"
            "print(w.peak_bytes, v.peak_bytes)"
        )
        self.assertEqual((status, out), (0, "8388608 None\n"), err)
        self.assertRegex(err, r"^gpumem.watch: gpumem: peak 8 MiB in use of the pool on GPU 0; 5 MiB in 1 block at the end, .* held, 0 refused\n")
        self.assertIn("peak at most 8 MiB in use of the pool on GPU 0 (reached before this block)", err)

    def test_pool_that_rose_and_a_pool_apart(self):
        status, out, err = python(
            "import gpumem\n"
            "from gpumem import _library\n"
            "apart = gpumem.Pool('sim:1GiB')\n"
            "with gpumem.watch() as u: apart.free(apart.alloc(7 << 20))\n"
            "for n in (0, 1): gpumem.configure(device='sim:1GiB', gpu=n)\n"
            "_library.free(0, _library.alloc(0, 100 << 20))\n"
            "with gpumem.watch() as w: _library.alloc(1, 50 << 20)\n"
            "print(u.peak_bytes, w.peak_bytes)"
        )
        self.assertEqual((status, out), (0, f"{7 << 20} {50 << 20}\n"), err)
        self.assertIn("peak 7 MiB in use of a Pool", err)
        self.assertIn("peak 50 MiB in use of the pool on GPU 1", err)

    def test_exception_goes_on(self):
        def fail():
            raise KeyError

        with only({}):
            _, err = self.watch(fail, "gpumem", fails=True)
        self.assertIn("gpumem.watch: ", err)

    def test_nothing_imported(self):
        with only({}):
            _, err = self.watch(lambda: None)
        self.assertIn("no framework was imported when the block began", err)

    def test_several_imported(self):
        cuda = lambda used: types.SimpleNamespace(is_initialized=lambda: used)
        from gpumem import _watch

        with only({"torch": types.SimpleNamespace(cuda=cuda(True)), "jax": types.SimpleNamespace()}):
            self.assertEqual(_watch._choose(), ("torch", "imported, too: jax (framework= says which to watch)"))
        with only({"torch": types.SimpleNamespace(cuda=cuda(False))}):
            self.assertEqual(_watch._choose(), ("torch", ""))

    def test_what_fails_within_does_not_leave(self):
        with only({"torch": types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: False), _C=types.SimpleNamespace())}):
            ran = []
            _, err = self.watch(lambda: ran.append(1))
        self.assertEqual(ran, [1])
        self.assertIn("this block is not watched", err)

    def test_decorated_function_in_two_threads(self):
        """Each call has its own block, though the first to begin is the first to end."""
        ends, both, first_is_done = [], threading.Barrier(2), threading.Event()

        class Watched:
            def __init__(self):
                self.thread = threading.get_ident()

            def end(self):
                ends.append(self.thread == threading.get_ident())
                return "x", "", None, []

        @gpumem.watch("gpumem")
        def f(first):
            both.wait()
            if not first:
                first_is_done.wait()

        def run(first):
            f(first)
            if first:
                first_is_done.set()

        with mock.patch.dict(_watch._WATCHED, gpumem=Watched), mock.patch("sys.stderr", io.StringIO()):
            threads = [threading.Thread(target=run, args=(first,)) for first in (True, False)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
        self.assertEqual(ends, [True, True])

    def jax(self, before, after, used=True, rows=()):
        stats = [{d: types.SimpleNamespace(peak_bytes_in_use=n) for d, n in peaks.items()} for peaks in (before, after)]
        with mock.patch.multiple("gpumem.jax", is_used=lambda: used, stats=mock.Mock(side_effect=stats), live=lambda: {"live": list(rows)}):
            return self.watch(lambda: None, "jax")

    def test_jax_peak_of_the_device_that_rose(self):
        row = {"pool": "cuda:1", "site": "f (a.py:1)", "stack": "", "bytes": MIB, "blocks": 1}
        code = {**row, "pool": "executable", "bytes": 50 * MIB}
        w, err = self.jax({"cuda:0": 9 * MIB, "cuda:1": MIB}, {"cuda:0": 9 * MIB, "cuda:1": 3 * MIB}, rows=[row, code])
        self.assertEqual(w.peak_bytes, 3 * MIB)
        self.assertIn("jax: peak 3 MiB on cuda:1, 1 MiB at the end; live then:\n", err)  # code is not live

    def test_jax_peak_of_before_is_not_the_blocks(self):
        w, err = self.jax({"cuda:0": 9 * MIB}, {"cuda:0": 9 * MIB})
        self.assertIsNone(w.peak_bytes)
        self.assertIn("jax: peak at most 9 MiB on cuda:0 (reached before this block), 0 B at the end", err)

    def test_jax_that_is_not_used(self):
        w, err = self.jax({}, {}, used=False)
        self.assertEqual((w.peak_bytes, err), (0, "gpumem.watch: jax: not used\n"))

    def test_torch_peak_that_the_program_reset_is_taken_from_the_history(self):
        watched = _watch._Torch.__new__(_watch._Torch)
        watched.part = types.SimpleNamespace(before={0: _history.Counts(peak=MIB)})
        counted = lambda top, peak: watched._counted(_history.Top(top, False, []), 0, {0: _history.Counts(peak=peak)})[:2]
        self.assertEqual(counted(5 * MIB, 6 * MIB), (6 * MIB, True))
        self.assertEqual(counted(5 * MIB, MIB), (5 * MIB, False))
        self.assertEqual(counted(5 * MIB, 2 * MIB), (5 * MIB, False))

    def test_torch_without_a_gpu(self):
        torch = types.SimpleNamespace(cuda=types.SimpleNamespace(is_available=lambda: False, is_initialized=lambda: False), _C=None)
        with only({"torch": torch}):
            self.assertIn("torch: the peak is unknown: PyTorch sees no GPU\n", self.watch(lambda: None)[1])

    def test_torch_of_two_gpus_shows_the_higher_peak(self):
        torch = Recorder()
        event = lambda action, address, n: {"action": action, "addr": address, "size": n, "frames": []}
        traces = [[event("alloc", 1, 2 * MIB)], [event("alloc", 7, 5 * MIB), event("free_requested", 7, 5 * MIB), event("alloc", 7, MIB)]]
        blocks = [{"address": a, "size": n, "requested_size": n, "state": "active_allocated", "frames": []} for a, n in ((1, 2 * MIB), (7, MIB))]
        segments = [{"device": d, "address": b["address"], "blocks": [b]} for d, b in enumerate(blocks)]
        torch.cuda.memory._snapshot = lambda: {"segments": segments, "device_traces": traces}
        figures = {0: (1, 0, 2 * MIB, 2 * MIB), 1: (2, 1, MIB, 5 * MIB)}
        names = ("allocation.all.allocated", "allocation.all.freed", "allocated_bytes.all.current", "allocated_bytes.all.peak")
        torch.cuda.memory_stats = lambda d: dict(zip(names, figures[d] if torch.used else (0, 0, 0, 0)))
        torch.cuda.device_count = lambda: 2
        # What lives at 7 now is not what lived there at the peak.
        program = types.SimpleNamespace(label=lambda: {(0, 1): "list a", (1, 7): "list b"})
        with only({"torch": torch}), mock.patch("gpumem._held.Program", lambda torch: contextlib.nullcontext(program)):
            torch.used = False
            w, err = self.watch(lambda: setattr(torch, "used", True))
        self.assertEqual(w.peak_bytes, 5 * MIB)
        self.assertIn("torch: peak 5 MiB on cuda:1, 1 MiB at the end; at the peak:", err)
        self.assertNotIn("list b", err)

    def test_decorator(self):
        @gpumem.watch("gpumem")
        def f(x, y=1):
            """Adds."""
            return x + y

        with mock.patch("sys.stderr", io.StringIO()) as err:
            self.assertEqual((f(1, y=2), f(3)), (3, 4))
        self.assertEqual((f.__name__, f.__doc__), ("f", "Adds."))
        self.assertEqual(err.getvalue().count("gpumem.watch:"), 2)

    def test_bad_framework(self):
        with self.assertRaisesRegex(ValueError, "watch wants framework= one of gpumem, torch, jax, cupy, not 'x'"):
            gpumem.watch("x")


class Torch(unittest.TestCase):
    def test_nothing_is_begun_by_looking(self):
        for modules in ({}, {"torch": types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: False))}):
            with only(modules):
                self.assertEqual((gpumem.torch.stats(), gpumem.torch.live()["live"], list(gpumem.torch.programs())), ({}, [], []))
                self.assertEqual(str(gpumem.torch.live()), "no live tensors")
                self.assertIn("does not say what a function of torch.compile takes", repr(gpumem.torch.programs()))

    def test_callbacks_without_their_library(self):
        with mock.patch.dict(sys.modules, {"lightning": None, "lightning.pytorch": None, "pytorch_lightning": None, "transformers": None}):
            for name in ("LightningCallback", "TrainerCallback"):
                with self.assertRaises(ImportError):
                    getattr(gpumem.torch, name)()


if __name__ == "__main__":
    unittest.main()
