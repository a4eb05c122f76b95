"""What keeps the tensors of a program when its recording ends, for the place that leaks to name it.

The recordings of gpumem run, too, have it by this file (node/internal/hook), in programs without this package.
"""

from __future__ import annotations

import functools
import gc
import itertools
import os
import time
import types
from collections import defaultdict, deque
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import _names, _reads
from ._held import MANY, Key, Program, _children, _kept, gradient, key, parts
from ._size import plain

KEY = "gpumem_keepers"  #: in a snapshot; record/internal/torch reads it
# The time is looked at between any two things that are looked at, and between two passes of the collector over its
# objects, of which one takes 0.1 s for four million: that, and the reading of one file for its lines (half a second),
# is the most that the search can be late. Its parts have shares of the time, each with what is quickest and nearest
# first, so that a large thing hides no small one.
SECONDS = 1.5  # of the thread's own time, for all of it
WAIT = 10  # seconds at most, where other programs have the processor
OBJECTS = 4_000_000  # of the collector; a program with more is not looked at
BLOCKS = 200_000  # that are written, of the largest containers
NODES = 500_000  # of graphs
THINGS = 5000  # that are looked at in one thing of a row
NEAR, DEEP = 1, 6  # lists, records, closures and frames around a tensor

Kept = Dict[Key, int]  # storages with their bytes


class Keeper(NamedTuple):
    container: str  #: such as "list `hist`"
    line: str  #: where the program fills it, such as "rec.py:8"; "" if unknown
    kept: Kept


def keepers(torch: Any, error: Optional[BaseException] = None, seconds: float = SECONDS) -> List[Dict[str, Any]]:
    """Returns what keeps tensors on GPUs, the largest first, as a snapshot has it: container, line, device,
    blocks (their addresses), bytes. What has no name is left out, as is all where the program has too many
    objects. Where the time is over, what was found until then."""
    if len(gc.get_objects()) > OBJECTS:
        return []
    clock = _Clock(seconds)
    try:
        with _reads.no_collection(), Program(torch, error, lambda: clock.is_over(0.3)) as program:
            return _written(_Search(program, clock).found())
    except BaseException as e:  # Ctrl-C, whose traceback may be kept, as sys.last_traceback is
        _names.empty_our_frames(e)
        raise


class _Clock:
    def __init__(self, seconds: float):
        self.seconds, self.began, self.end = seconds, time.thread_time(), time.monotonic() + WAIT

    def is_over(self, part: float = 1) -> bool:
        """Reports whether a part of the time is over."""
        return time.thread_time() - self.began >= self.seconds * part or time.monotonic() > self.end


def _written(found: Iterable[Keeper]) -> List[Dict[str, Any]]:
    """Returns keepers for the snapshot, one a device."""
    answer: List[Dict[str, Any]] = []
    left = BLOCKS
    for keeper in found:
        devices: Dict[int, List[int]] = defaultdict(list)
        for device, address in itertools.islice(keeper.kept, left):
            devices[device].append(address)
            left -= 1
        for device, blocks in devices.items():
            n = sum(keeper.kept[device, address] for address in blocks)
            answer.append({"container": keeper.container, "line": keeper.line, "device": device, "blocks": blocks, "bytes": n})
    return answer


class _Search:
    """One look for all that keeps tensors. A storage counts for the first that is found to keep it."""

    def __init__(self, program: Program, clock: _Clock):
        self.p, self.is_over = program, clock.is_over
        self.taken: Set[Key] = set()
        self.ways: Dict[int, Tuple[type, Callable[[Any], Iterable[Any]]]] = {}  # into the things of a type
        self.keepers: List[Keeper] = []

    def found(self) -> List[Keeper]:
        for look in (self._optimizers, self._buffers, self._rows, self._graphs):
            look()
        return sorted(self.keepers, key=lambda k: sum(k.kept.values()), reverse=True)

    def _take(self, container: str, line: str, kept: Kept) -> None:
        left = {k: n for k, n in kept.items() if k not in self.taken}
        if left:
            self.keepers.append(Keeper(plain(container), plain(line), left))
            self.taken |= set(left)

    # Models and optimizers.

    def _optimizers(self) -> None:
        """What an optimizer has of its own: groups of parameters that no model has."""
        of_models = {id(t) for m in self.p.modules for t in _reads.values(_reads.own(m, "_parameters"))}
        for o in self.p.optimizers:
            state = _reads.field(o, "state", dict)
            groups = [g for g in list(_reads.field(o, "param_groups", list)) if issubclass(type(g), dict)]
            own = [t for g in groups for t in _children(dict.get(g, "params")) if id(t) not in of_models]
            if len(own) >= MANY and not self.is_over(0.4):
                states = {id(t): inner for t, inner in list(dict.items(state))}  # a tensor as a key is compared by the program
                kept: Kept = {}
                for t in own:
                    self._add(kept, itertools.chain([t], self._inside(states.get(id(t)))), True)
                name, line = self._name(o)
                self._take(f"param_groups of {_reads.name_of_type(type(o))}" + (f" `{name}`" if name else ""), line, kept)

    def _buffers(self) -> None:
        for m in self.p.modules:
            buffers = _reads.values(_reads.own(m, "_buffers"))
            if len(buffers) >= MANY and not self.is_over(0.5):
                kept: Kept = {}
                self._add(kept, (t for t in buffers if t is not None), True)
                name, line = self._name(m)
                if name:
                    self._take(f"buffers of {_reads.name_of_type(type(m))} `{name}`", line, kept)

    # Rows: containers of many like things.

    def _rows(self) -> None:
        left = [c for c in self.p.plain if id(c) not in self.p.own and not _names.is_module(c)]
        found: List[Any] = []
        for depth, part in ((NEAR, 0.45), (DEEP, 0.55)):
            rows: List[Any] = []
            others: List[Any] = []
            for c in left:
                if self.is_over(part):
                    break
                (rows if self._is_row(c, depth) else others).append(c)
            found, left = found + rows, others
        named = [(c, c) for c in found] + [(r, o) for r, o in ((self._results(o), o) for o in self.p.caches) if len(r) >= MANY]
        kept = [(self._row(c), c, o) for c, o in sorted(named, key=lambda r: len(r[0]))]
        for storages, c, o in sorted(kept, key=lambda r: sum(r[0].values()), reverse=True):
            if storages and not self.taken.issuperset(storages) and not self.is_over(0.85):
                self._take_row(storages, c, o)

    def _take_row(self, storages: Kept, c: Any, named: Any) -> None:
        if named is not c:
            own = _reads.fields(named)
            function, name = dict.get(own, "__wrapped__"), dict.get(own, "__qualname__")
            code = function.__code__ if type(function) is types.FunctionType else None
            line = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""
            self._take(f"lru_cache of `{name if type(name) is str else '?'}`", line, storages)
            return
        name = _names.name_of(c, self.p.frames, is_over=self.is_over)
        if name.text:
            scope = f", {name.scope}" if name.scope and name.scope != "a global" else ""
            self._take(f"{type(c).__name__} `{name.text}`{scope}", name.filled[0] if name.filled else "", storages)

    def _results(self, cache: Any) -> List[Any]:
        """Returns the results in a cache that have tensors. One without a limit has them in a dictionary."""
        results: List[Any] = []
        own = _reads.fields(cache)
        for inner in gc.get_referents(cache):
            if type(inner) is dict and inner is not own:
                results += inner.values()
            elif not _is_atom(inner) and inner is not dict.get(own, "__wrapped__"):
                results.append(inner)
        return [r for r in results if not self.is_over(0.6) and self._of(r, None)]

    def _is_row(self, c: Any, depth: int) -> bool:
        """Reports whether a container may be a row: half of some of the things in it keep something."""
        try:
            elements = list(itertools.islice(c.values() if issubclass(type(c), dict) else c, 4))
            if type(c) is list:
                elements += [c[-1], c[len(c) // 2]]
        except (RuntimeError, IndexError):  # another thread is changing it
            return False
        count = sum(bool(self._of(e, None, c, depth)) for e in elements if not _is_atom(e))
        return count > 0 and count * 2 >= len(elements)

    def _row(self, c: Any) -> Kept:
        """Returns what a row keeps: many of its things keep something, and none of them most of it. Of a long one
        it is what there is time for."""
        found: Kept = {}
        count = most = seen = 0
        nodes: Set[Any] = set()
        for e in _children(c):
            if self.is_over(0.7):
                break
            kept, seen = self._of(e, nodes, c), seen + 1
            count += bool(kept)
            most = max(most, sum(n for k, n in kept.items() if k not in found))
            found.update(kept)
        if count < MANY or count * 2 < seen or most * 2 > sum(found.values()):
            return {}
        return found

    def _of(self, element: Any, nodes: Optional[Set[Any]], row: Any = None, depth: int = DEEP) -> Kept:
        """Returns what a thing in a row keeps beside what is of a model, with what its graphs keep at nodes that
        are not in nodes, to which it adds them; without graphs if that is None. The row itself, which an
        exception's frames may have, is left out."""
        found: Kept = {}
        tensors = list(self._inside(element, row, depth))
        self._add(found, tensors, False)
        if nodes is not None:
            for t in tensors:
                self._add(found, self._saved(t, nodes), False)
        return found

    def _add(self, kept: Kept, tensors: Iterable[Any], known: bool) -> None:
        for t in tensors:
            storages = [s for s in map(key, parts(t)) if s]
            if storages and (known or storages[0][0] not in self.p.known):
                kept.update(storages)
                grad = gradient(t)
                if grad is not None:  # which only its tensor keeps
                    kept.update(s for s in map(key, parts(grad)) if s)

    def _inside(self, value: Any, outside: Any = None, depth: int = DEEP) -> Iterator[Any]:
        """Returns the tensors in a thing, the nearest first: in lists and records, closures, suspended generators,
        and in the frames of an exception."""
        left: Deque[Tuple[Any, int]] = deque([(value, depth)])
        seen = {id(value), id(outside)}
        while left and len(seen) < THINGS:
            value, depth = left.popleft()
            kind = type(value)
            if id(kind) not in self.ways:
                self.ways[id(kind)] = kind, _is_tensor if issubclass(kind, self.p.tensor) else _way(kind)
            things = self.ways[id(kind)][1]
            if things is _is_tensor:
                yield value
            elif depth:
                for inner in itertools.islice(things(value), THINGS):
                    if id(type(inner)) not in _ATOMS and id(inner) not in seen:
                        seen.add(id(inner))
                        left.append((inner, depth - 1))

    # Variables whose graphs grow.

    def _graphs(self) -> None:
        """Finds variables of the program whose graphs keep much for a backward pass, as a sum of losses does."""
        found: List[Tuple[int, Any, Set[Any], Kept]] = []
        for t in self._variables():
            nodes: Set[Any] = set()
            kept: Kept = {}
            self._add(kept, self._saved(t, nodes), False)
            if len(kept) >= MANY and not self.taken.issuperset(kept) and not self.is_over():
                found.append((sum(kept.values()), t, nodes, kept))
        found.sort(key=lambda f: f[0], reverse=True)
        for n, _, nodes, kept in found:
            if self.is_over() or self.taken.issuperset(kept):
                continue
            # What a tensor was made of is what keeps it, if that keeps as much: h, of the loss that is made of it.
            same = [f for f in found if f[0] * 5 >= n * 4 and _node(f[1]) in nodes]
            inner = [f for f in same if not any(_node(g[1]) in f[2] and _node(g[1]) is not _node(f[1]) for g in same)]
            named = [named for named in (self._name(f[1]) for f in inner[:4]) if named[0]]
            if named:
                names = ", ".join(sorted({f"`{name}`" for name, _ in named}))
                self._take(f"the graph of {names}", next((line for _, line in named if line), ""), kept)

    def _variables(self) -> List[Any]:
        """Returns the tensors with a graph that are variables of modules, of functions that run, or attributes
        of models and of objects of the program's own types."""
        of_models = {id(type(m)) for m in self.p.modules}
        own: Dict[int, bool] = {}  # by type; none of these is gone meanwhile
        found: Dict[int, Any] = {}
        for values in itertools.chain(map(_reads.variables, self.p.frames), self._attributes(own, of_models)):
            for t in list(dict.values(values)):
                if issubclass(type(t), self.p.tensor) and _node(t) is not None:
                    found[id(t)] = t
        return list(found.values())

    def _attributes(self, own: Dict[int, bool], of_models: Set[int]) -> Iterator[Dict[str, Any]]:
        for some in self.p.chunks(self.is_over):
            for o in some:
                kind = type(o)
                if kind is dict:
                    if "__builtins__" in o:
                        yield o
                    continue
                if id(kind) not in own:
                    is_model = any(id(c) in of_models for c in _reads.mro(kind))
                    own[id(kind)] = (is_model or _names.is_of_program(kind)) and not issubclass(kind, self.p.tensor)
                if own[id(kind)]:
                    yield _reads.fields(o)

    def _saved(self, tensor: Any, seen: Set[Any]) -> List[Any]:
        """Returns the tensors that the nodes of a tensor's graph keep, beside those in seen, to which it adds them."""
        saved: List[Any] = []
        ahead = [_node(tensor)]
        while ahead and len(seen) < NODES and not self.is_over():
            node = ahead.pop()
            if node is not None and node not in seen:
                seen.add(node)
                ahead += [after for after, _ in node.next_functions]
                saved += _kept(node, self.p.tensor)
        return saved

    def _name(self, o: Any) -> Tuple[str, str]:
        name = _names.name_of(o, self.p.frames, is_over=self.is_over)
        return name.text, name.filled[0] if name.filled else ""


def _node(tensor: Any) -> Any:
    return _reads.read(tensor, "grad_fn")


def _is_tensor(value: Any) -> Iterable[Any]:
    return ()


def _way(kind: type) -> Callable[[Any], Iterable[Any]]:
    """Returns the function that returns the things in a thing of a type."""
    if kind is types.FunctionType:
        return _of_function
    if kind is types.MethodType:
        return lambda method: [method.__self__]
    if kind is functools.partial:
        return lambda made: [made.func, *made.args, *made.keywords.values()]
    if id(kind) in _GENERATORS:
        return _locals
    return _of_error if issubclass(kind, BaseException) else _children


def _of_function(function: Any) -> List[Any]:
    cells = [c.cell_contents for c in function.__closure__ or () if _is_full(c)]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def _of_error(error: Any) -> List[Any]:
    own = dict.values(_reads.fields(error))
    inner = [*(_reads.read(error, name) for name in ("__cause__", "__context__")), *_reads.read(error, "args"), *own]
    trace = _reads.read(error, "__traceback__")
    while trace is not None:
        if trace.tb_frame.f_code.co_name != "<module>":
            inner += _locals(trace.tb_frame)
        trace = trace.tb_next
    return inner


def _is_full(cell: Any) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _locals(frame: Any) -> List[Any]:
    """Returns the local variables of a frame or a generator, whose own copy of them is not made."""
    found = gc.get_referents(frame)
    if type(frame) is not types.FrameType:
        found += gc.get_referents(*(o for o in found if type(o) is types.FrameType))  # of a generator, up to Python 3.10
    return [o for o in found if id(type(o)) not in _OF_FRAMES and not _names.is_module(o)]


def _is_atom(value: Any) -> bool:
    return id(type(value)) in _ATOMS


_ATOMS = _reads.ids(str, bytes, int, float, bool, complex, type(None), type, types.FrameType, types.ModuleType)
_OF_FRAMES = _reads.ids(types.FrameType, types.CodeType, types.ModuleType, types.BuiltinFunctionType)
_GENERATORS = _reads.ids(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
