"""What keeps the tensors of a recorded program, with a stand-in for PyTorch; test_torch.py has it with the real one."""

import functools
import gc
import itertools
import types
import unittest
import unittest.mock
import weakref

from gpumem import _keepers, _names
from gpumem._held import Program
from test_held import Gpu, Module, Optimizer, Tensor, fake_torch

MODULE_LIST = []


class Node:
    """A node of a graph, which keeps a tensor."""

    _raw_saved_self = None

    def __init__(self, tensor=None, *before):
        self.next_functions = [(node, 0) for node in before]
        if tensor is not None:
            self._raw_saved_self = types.SimpleNamespace(data=tensor)


class Buffers(Module):
    def __init__(self):
        super().__init__()
        self._buffers = {}

    def register_buffer(self, name, tensor):
        self._buffers[name] = tensor

    def buffers(self):
        return iter(self._buffers.values())


class Keepers(unittest.TestCase):
    def setUp(self):
        self.gpu = Gpu()
        self.torch = fake_torch(self.gpu)

    def tensor(self, n=1000, **more):
        return Tensor(self.gpu, n, **more)

    def found(self, *tensors):
        """Returns the containers that keep some of these tensors, with how many."""
        addresses = {t.address for t in tensors}
        rows = [(k["container"], len(addresses & set(k["blocks"]))) for k in _keepers.keepers(self.torch)]
        return [row for row in rows if row[1]]

    def test_rows(self):
        tensors = tuple(self.tensor() for _ in range(12))
        for name, make in {
            "list": list, "deque": __import__("collections").deque, "set": set,
            "dict": lambda ts: dict(enumerate(ts)), "of records": lambda ts: [{"step": i, "out": (t, None)} for i, t in enumerate(ts)],
            "of closures": lambda ts: [(lambda t: lambda: t)(t) for t in ts],
            "of partial functions": lambda ts: [functools.partial(print, t) for t in ts],
        }.items():
            with self.subTest(name):
                kept = make(tensors)
                kind = type(kept).__name__
                self.assertEqual(self.found(*tensors), [(f"{kind} `kept`, a local of test_rows", 12)])
                del kept

    def test_generators_and_exceptions(self):
        def stream(t):
            yield 1
            print(t)

        def fail(t):
            raise ValueError("no")

        tensors = tuple(self.tensor() for _ in range(10))
        streams = [stream(t) for t in tensors]
        for s in streams:
            next(s)
        self.assertEqual(self.found(*tensors), [("list `streams`, a local of test_generators_and_exceptions", 10)])
        del streams, s
        errors = []
        for t in tensors:
            try:
                fail(t)
            except ValueError as e:
                errors.append(e.with_traceback(e.__traceback__.tb_next))
        del t
        self.assertEqual(self.found(*tensors), [("list `errors`, a local of test_generators_and_exceptions", 10)])

    def test_exceptions_whose_frames_have_their_list(self):
        def train():
            errors = []
            for _ in range(10):
                try:
                    fail(self.tensor())
                except ValueError as e:
                    errors.append(e)
            raise KeyError

        def fail(t):
            addresses.add(t.address)
            raise ValueError("no")

        addresses = set()
        try:
            train()
        except KeyError as e:
            error = e
        names = [k["container"] for k in _keepers.keepers(self.torch, error) if addresses & set(k["blocks"])]
        self.assertEqual(names, ["list `errors`, a local of train"])

    def test_cache_of_a_function(self):
        for size in (None, 64):
            with self.subTest(size):

                @functools.lru_cache(maxsize=size)
                def mask(i):
                    return self.tensor()

                tensors = tuple(mask(i) for i in range(10))
                self.assertEqual([c.rpartition(".")[2] for c, n in self.found(*tensors) if n == 10], ["mask`"])

    def test_line(self):
        MODULE_LIST.extend(self.tensor() for _ in range(10))
        try:
            with open(__file__) as f:
                number = next(n for n, code in enumerate(f, 1) if "MODULE_LIST.extend" in code)
            self.assertIn(("list `MODULE_LIST`", f"test_keepers.py:{number}"), [(k["container"], k["line"]) for k in _keepers.keepers(self.torch)])
        finally:
            MODULE_LIST.clear()

    def test_optimizer_and_buffers(self):
        model = Module([self.tensor() for _ in range(10)])
        optimizer = Optimizer()
        prompts = tuple(self.tensor() for _ in range(10))
        state = tuple(self.tensor() for _ in range(10))
        optimizer.param_groups = [{"params": list(model.parameters())}, *({"params": [p]} for p in prompts)]
        optimizer.state = dict(zip(prompts, ({"exp_avg": s} for s in state)))
        # Nothing keeps the model's own.
        self.assertEqual(self.found(*prompts, *state, *model.parameters()), [("param_groups of Optimizer `optimizer`", 20)])
        self.stats = Buffers()
        for i in range(10):
            self.stats.register_buffer(str(i), self.tensor())
        self.assertEqual(self.found(*self.stats.buffers()), [("buffers of Buffers `Keepers.stats`", 10)])

    def test_graphs(self):
        """Of a loss and what it is made of, the latter keeps them: it is what goes on to the next step."""
        saved = tuple(self.tensor(1 << 20) for _ in range(20))
        node = None
        for t in saved:
            node = Node(t, *[n for n in (node,) if n])
        hidden, loss = self.tensor(), self.tensor()
        hidden.grad_fn, loss.grad_fn = node, Node(self.tensor(), node)
        hidden.is_leaf = loss.is_leaf = False
        self.assertEqual(self.found(*saved), [("the graph of `hidden`", 20)])

    def test_most_in_one_thing_is_no_row(self):
        """A table of parts, of which one has a list, does not keep what is in the list."""
        losses = tuple(self.tensor() for _ in range(50))
        parts = {str(i): [self.tensor()] for i in range(9)}
        parts["log"] = list(losses)
        self.assertEqual(self.found(*losses), [("list `parts['log']`, a local of test_most_in_one_thing_is_no_row", 50)])

    def test_none(self):
        few, model = [self.tensor() for _ in range(7)], Module([self.tensor() for _ in range(20)])
        copies = list(model.parameters())
        self.assertEqual(self.found(*few, *copies), [])

    def test_bounds(self):
        kept = [self.tensor() for _ in range(100)]
        addresses = {t.address for t in kept}
        self.assertEqual(_keepers.keepers(self.torch, seconds=0), [])
        with unittest.mock.patch.object(_keepers, "BLOCKS", 30):
            self.assertEqual(sum(len(k["blocks"]) for k in _keepers.keepers(self.torch)), 30)
        with unittest.mock.patch.object(_keepers, "OBJECTS", 1000):
            self.assertEqual(_keepers.keepers(self.torch), [])
        found = [k for k in _keepers.keepers(self.torch) if addresses & set(k["blocks"])]
        self.assertEqual([(k["device"], k["bytes"], len(k["blocks"])) for k in found], [(0, 100_000, 100)])

    def test_a_long_row_hides_no_short_one(self):
        """Where the clock goes on by a hundred thousandth of a second each time that somebody looks at it."""
        one = self.tensor(1 << 30)
        long = [one] * 1_000_000
        short = [self.tensor() for _ in range(10)]
        with unittest.mock.patch.object(_keepers, "time", types.SimpleNamespace(thread_time=itertools.count(0, 0.00001).__next__, monotonic=lambda: 0)):
            self.assertEqual(self.found(*short), [("list `short`, a local of test_a_long_row_hides_no_short_one", 10)])
        del long

    def test_a_list_in_many_records(self):
        """To look for its name takes a few looks through all objects, not one a record."""

        def make():
            history = [self.tensor() for _ in range(10)]
            return [{"history": history, "step": i} for i in range(2000)]

        records = make()
        with unittest.mock.patch.object(gc, "get_referrers", wraps=gc.get_referrers) as looks:
            _names.name_of(records[0]["history"], _names.frames())
        self.assertLess(looks.call_count, 8)
        over = [False]
        with unittest.mock.patch.object(gc, "get_referrers", side_effect=lambda *of: over.insert(0, True) or []) as looks:
            _names.name_of(records[0]["history"], _names.frames(), is_over=lambda: over[0])
        self.assertEqual(looks.call_count, 1)

    def test_what_the_program_deletes_is_gone(self):
        """A frame keeps no variables for the search, beside those that the program has asked for itself."""
        for asks in (False, True):
            with self.subTest(asks):
                mine = locals() if asks else None
                acts = [self.tensor() for _ in range(10)]
                kept = weakref.ref(acts[0])
                self.assertEqual(len(self.found(*acts)), 1)
                del acts
                if asks:
                    self.assertTrue(mine)
                    del mine
                    locals()
                self.assertIsNone(kept())

    def test_what_interrupts_it_keeps_nothing(self):
        def interrupt(*of):
            del of  # this function's frame is the test's
            raise KeyboardInterrupt

        for where in ((_names, "frames"), (Program, "_label_models"), (_keepers._Search, "_rows"), (_keepers._Search, "_row")):
            with self.subTest(where[1]):
                acts = [self.tensor() for _ in range(10)]
                kept = weakref.ref(acts[0])
                error = None
                try:
                    with unittest.mock.patch.object(*where, interrupt):
                        _keepers.keepers(self.torch)
                except KeyboardInterrupt as e:
                    error = e
                del acts
                self.assertIsNone(kept())
                self.assertIsNotNone(error)

    def test_nothing_of_the_program_is_run(self):
        ran = []

        def runs(name):
            return lambda *a, **k: ran.append(name) or NotImplemented

        METHODS = ("__getattribute__", "__getattr__", "__eq__", "__bool__", "__len__", "__iter__", "__repr__", "__str__", "values", "items", "get", "copy", "parameters", "buffers")
        hostile = {**{name: runs(name) for name in METHODS}, "__hash__": object.__hash__, "__class__": property(runs("__class__"))}
        of_type = {name: runs("type " + name) for name in ("__getattribute__", "__eq__", "__instancecheck__", "__subclasscheck__", "__repr__")}
        Meta = type("Meta", (type,), {**of_type, "__hash__": type.__hash__, "__mro__": property(runs("type mro"))})

        class WithSlot:
            __slots__ = ("kept", "__dict__", "__weakref__")

        kinds = [
            Meta("Attribute", (), dict(hostile)),
            Meta("Slot", (WithSlot,), {**hostile, "kept": property(runs("a property over a slot"))}),
            Meta("Hidden", (WithSlot,), {**hostile, "__dict__": property(runs("__dict__"))}),
            Meta("Model", (Module,), dict(hostile)),
            Meta("Optimizer", (Optimizer,), dict(hostile)),
        ]
        lists = tuple([self.tensor() for _ in range(10)] for _ in range(10))
        owners = [object.__new__(kind) for kind in kinds]
        object.__setattr__(owners[0], "kept", lists[0])
        WithSlot.kept.__set__(owners[1], lists[1])
        WithSlot.kept.__set__(owners[2], lists[2])
        object.__setattr__(owners[3], "_modules", dict(enumerate(owners)))
        object.__setattr__(owners[3], "_parameters", owners[0])
        object.__setattr__(owners[4], "state", owners[0])
        object.__setattr__(owners[4], "param_groups", [owners[0], {"params": owners[0]}])
        by_key = {owners[0]: lists[3], (1, owners[0]): lists[4], "s" * 1000: lists[5], 10**5000: lists[6]}
        cells = [(lambda o: lambda: o)(o) for o in owners]
        add = (lambda hist: lambda t: hist.append(t))(lists[7])
        error = type("Error", (Exception,), {"__cause__": property(runs("__cause__")), "__traceback__": property(runs("__traceback__"))})()
        error.inner = lists[8]
        rows = [owners[0]] * 10  # things that are no rows
        ran.clear()
        with unittest.mock.patch.object(_names, "is_of_program", return_value=True):
            found = dict(self.found(*(t for ts in lists for t in ts)))
        self.assertEqual(ran, [])
        for name in ("Attribute.kept", "Slot.kept", "Hidden.kept", "by_key[...]", "by_key[(1, ...)]", "hist", "Error.inner"):
            self.assertTrue(any(f"`{name}`" in container for container in found), (name, found))
        del cells, add, rows

    def test_error(self):
        def train():
            history = [self.tensor() for _ in range(10)]
            raise ValueError([t.address for t in history])

        try:
            train()
        except ValueError as e:
            error = e
        names = [k["container"] for k in _keepers.keepers(self.torch, error) if set(k["blocks"]) & set(error.args[0])]
        self.assertEqual(names, ["list `history`, a local of train"])
