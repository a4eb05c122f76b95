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
from collections import defaultdict
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import _names
from ._held import MANY, Key, Program, _children, _kept, key, parts
from ._size import plain

KEY = "gpumem_keepers"  #: in a snapshot; record/internal/torch reads it
SECONDS = 1.5  # of the thread's own time, for all of it
WAIT = 10  # seconds at most, where other programs have the processor
OBJECTS = 4_000_000  # of the collector; a program with more is not looked at
BLOCKS = 200_000  # that are written, of the largest containers
NODES = 500_000  # of graphs
DEEP = 6  # lists, records, closures and frames around a tensor

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
    with Program(torch, error) as program:
        return _written(_Search(program, seconds).found())


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

    def __init__(self, program: Program, seconds: float):
        self.p, self.seconds = program, seconds
        self.began, self.end = time.thread_time(), time.monotonic() + WAIT
        self.taken: Set[Key] = set()
        self.keepers: List[Keeper] = []

    def is_over(self, part: float = 1) -> bool:
        """Reports whether a part of the time is over."""
        return time.thread_time() - self.began > self.seconds * part or time.monotonic() > self.end

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
        of_models = {id(t) for m in self.p.modules for t in (_names.fields(m).get("_parameters") or {}).values()}
        for o in self.p.optimizers:
            fields = _names.fields(o)
            state = fields.get("state") or {}
            groups = [g for g in fields.get("param_groups") or [] if isinstance(g, dict)]
            own = [t for g in groups for t in g.get("params") or [] if id(t) not in of_models]
            if len(own) >= MANY and not self.is_over():
                kept: Kept = {}
                for t in own:
                    self._add(kept, itertools.chain([t], self._inside(state.get(t))), True)
                name, line = self._name(o)
                self._take(f"param_groups of {type(o).__name__}" + (f" `{name}`" if name else ""), line, kept)

    def _buffers(self) -> None:
        for m in self.p.modules:
            buffers = _names.fields(m).get("_buffers") or {}
            if len(buffers) >= MANY and not self.is_over():
                kept: Kept = {}
                self._add(kept, (t for t in list(buffers.values()) if t is not None), True)
                name, line = self._name(m)
                if name:
                    self._take(f"buffers of {type(m).__name__} `{name}`", line, kept)

    # Rows: containers of many like things.

    def _rows(self) -> None:
        rows: List[Tuple[int, Any, Any]] = []  # what it may keep, the row, what has its name
        for c in self.p.plain:
            if self.is_over(0.5):
                break
            if id(c) not in self.p.own and not (isinstance(c, dict) and "__builtins__" in c):
                rows.append((self._estimate(c), c, c))
        for o in self._caches():
            results = self._results(o)
            if len(results) >= MANY:
                rows.append((self._estimate(results), results, o))
        rows = sorted((r for r in rows if r[0]), key=lambda r: r[0], reverse=True)
        kept = [(self._row(c), c, named) for _, c, named in rows]
        for storages, c, named in sorted(kept, key=lambda r: sum(r[0].values()), reverse=True):
            if storages and not self.taken.issuperset(storages) and not self.is_over():
                self._take_row(storages, c, named)

    def _take_row(self, storages: Kept, c: Any, named: Any) -> None:
        if named is not c:
            code = getattr(getattr(named, "__wrapped__", None), "__code__", None)
            line = f"{os.path.basename(code.co_filename)}:{code.co_firstlineno}" if code else ""
            self._take(f"lru_cache of `{getattr(named, '__qualname__', '?')}`", line, storages)
            return
        name = _names.name_of(c, self.p.frames)
        if name.text:
            scope = f", {name.scope}" if name.scope and name.scope != "a global" else ""
            self._take(f"{type(c).__name__} `{name.text}`{scope}", name.filled[0] if name.filled else "", storages)

    def _caches(self) -> List[Any]:
        return [o for o in gc.get_objects() if type(o) is functools._lru_cache_wrapper]

    def _results(self, cache: Any) -> List[Any]:
        """Returns the results in a cache that have tensors. One without a limit has them in a dictionary."""
        results: List[Any] = []
        for inner in gc.get_referents(cache):
            if type(inner) is dict and inner is not _names.fields(cache):
                results += inner.values()
            elif type(inner) not in _ATOMS and inner is not cache.__wrapped__:
                results.append(inner)
        return [r for r in results if not self.is_over(0.5) and self._of(r, None)]

    def _estimate(self, c: Any) -> int:
        """Returns how many bytes a row may keep, by some of the things in it; 0 if it is none."""
        try:
            elements = list(itertools.islice(c.values() if isinstance(c, dict) else c, 4))
            if isinstance(c, list):
                elements += [c[-1], c[len(c) // 2]]
        except (RuntimeError, IndexError):  # another thread is changing it
            return 0
        kept = [sum(self._of(e, None, c).values()) for e in elements if type(e) not in _ATOMS]
        kept += [0] * (len(elements) - len(kept))
        return sum(kept) * len(c) // len(kept) if sum(n > 0 for n in kept) * 2 >= len(kept) else 0

    def _row(self, c: Any) -> Kept:
        """Returns what a row keeps: many of its things keep something, and none of them most of it."""
        found: Kept = {}
        count = most = 0
        elements = _children(c)
        nodes: Set[Any] = set()
        for e in elements:
            if self.is_over():
                break
            kept = self._of(e, nodes, c)
            count += bool(kept)
            most = max(most, sum(n for k, n in kept.items() if k not in found))
            found.update(kept)
        if count < MANY or count * 2 < len(elements) or most * 2 > sum(found.values()):
            return {}
        return found

    def _of(self, element: Any, nodes: Optional[Set[Any]], row: Any = None) -> Kept:
        """Returns what a thing in a row keeps beside what is of a model, with what its graphs keep at nodes that
        are not in nodes, to which it adds them; without graphs if that is None. The row itself, which an
        exception's frames may have, is left out."""
        found: Kept = {}
        tensors = list(self._inside(element, row))
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
                if t.is_leaf and t.grad is not None:  # which only its tensor keeps
                    kept.update(s for s in map(key, parts(t.grad)) if s)

    def _inside(self, value: Any, outside: Any = None) -> Iterator[Any]:
        """Returns the tensors in a thing: in lists and records, closures, suspended generators, and in the
        frames of an exception."""
        left, seen = [(value, DEEP)], {id(value), id(outside)}
        while left and len(seen) < 5000:
            value, depth = left.pop()
            if issubclass(type(value), self.p.tensor):
                yield value
            elif depth:
                for inner in _things(value):
                    if id(inner) not in seen:
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
            same = [f for f in found if f[0] * 5 >= n * 4 and f[1].grad_fn in nodes]
            inner = [f for f in same if not any(g[1].grad_fn in f[2] and g[1].grad_fn is not f[1].grad_fn for g in same)]
            named = [named for named in (self._name(f[1]) for f in inner[:4]) if named[0]]
            if named:
                names = ", ".join(sorted({f"`{name}`" for name, _ in named}))
                self._take(f"the graph of {names}", next((line for _, line in named if line), ""), kept)

    def _variables(self) -> List[Any]:
        """Returns the tensors with a graph that are variables of modules, of functions that run, or attributes
        of models and of objects of the program's own types."""
        own: Dict[type, bool] = {}
        found: Dict[int, Any] = {}
        for o in [*gc.get_objects(), *self.p.frames]:
            kind = type(o)
            if kind is dict:
                values = o if "__builtins__" in o else None
            elif kind is types.FrameType:
                values = o.f_locals if o in self.p.frames and o.f_code.co_name != "<module>" else None
            else:
                if kind not in own:
                    own[kind] = _names.is_of_program(kind) or issubclass(kind, tuple(type(m) for m in self.p.modules))
                values = _names.fields(o) if own[kind] and not issubclass(kind, self.p.tensor) else None
            for t in list(values.values()) if values else ():
                if issubclass(type(t), self.p.tensor) and t.grad_fn is not None:
                    found[id(t)] = t
        return list(found.values())

    def _saved(self, tensor: Any, seen: Set[Any]) -> List[Any]:
        """Returns the tensors that the nodes of a tensor's graph keep, beside those in seen, to which it adds them."""
        saved: List[Any] = []
        ahead = [tensor.grad_fn]
        while ahead and len(seen) < NODES and not self.is_over():
            node = ahead.pop()
            if node is not None and node not in seen:
                seen.add(node)
                ahead += [after for after, _ in node.next_functions]
                saved += _kept(node, self.p.tensor)
        return saved

    def _name(self, o: Any) -> Tuple[str, str]:
        name = _names.name_of(o, self.p.frames)
        return name.text, name.filled[0] if name.filled else ""


def _things(value: Any) -> List[Any]:
    """Returns the things in a thing."""
    kind = type(value)
    if kind is types.FunctionType:
        cells = [c.cell_contents for c in value.__closure__ or () if _is_full(c)]
        return [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    if kind is types.MethodType:
        return [value.__self__]
    if kind is functools.partial:
        return [value.func, *value.args, *value.keywords.values()]
    if kind in (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType):
        return _locals(value)
    if issubclass(kind, BaseException):
        inner = [value.__cause__, value.__context__, *BaseException.args.__get__(value), *_names.fields(value).values()]
        trace = value.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_name != "<module>":
                inner += _locals(trace.tb_frame)
            trace = trace.tb_next
        return inner
    return _children(value)


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
    return [o for o in found if type(o) not in _OF_FRAMES and not (type(o) is dict and "__builtins__" in o)]


_ATOMS = (str, bytes, int, float, bool, complex, type(None), type, types.FrameType, types.ModuleType)
_OF_FRAMES = (types.FrameType, types.CodeType, types.ModuleType, types.BuiltinFunctionType)
