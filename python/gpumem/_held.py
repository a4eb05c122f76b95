"""PyTorch's tensors as Python sees them: what each is for, and which container keeps it.

Only the collector knows all tensors of a program. It is asked once (gc.get_objects), and nothing
is changed: no tensor is made, read or freed. Nothing of the program's own code is run (_reads).
"""

from __future__ import annotations

import functools
import gc
import itertools
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from contextlib import ExitStack, nullcontext
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import _names, _reads
from ._size import plain, size

Key = Tuple[int, int]  # a storage: its device and its address

CHUNK = 1 << 16  # objects between two looks at the time
MANY = 8  # equal tensors that a container must have to be named


class Container(NamedTuple):
    """A plain container that keeps tensors."""

    name: str  #: such as "Trainer.losses", "acts", "state['hidden']"; "" if none was found
    kind: str  #: such as "list"
    scope: str  #: such as "a local of train"; "" for attributes
    filled: Tuple[str, ...]  #: where the program puts things into it, such as "train.py:8"
    device: int
    tensors: int
    bytes: int  #: of their storages, and of what their graphs keep
    graphs: int  #: of what their graphs keep for a backward pass
    what: str  #: the commonest type and shape, such as "float32[256, 1024]"
    equal: int  #: how many have it
    identity: int

    def __str__(self) -> str:
        return self.text()

    def text(self, of: int = 0) -> str:
        """Returns a sentence about it. of: the bytes of which it keeps a part."""
        name = f"the {self.kind} `{self.name}`" if self.name else f"a {self.kind} whose name is unknown"
        scope = f", {self.scope}," if self.scope else ""
        part = f" of {size(of)}" if of else ""
        equal = "" if self.equal == self.tensors else f", {self.equal:,} of them"
        what = f"{self.tensors:,} tensors{equal} {self.what}"
        graphs = f", whose graphs keep {size(self.graphs)} of it for a backward pass" if self.graphs else ""
        filled = "; filled at " + ", ".join(self.filled) if self.filled else ""
        return plain(f"{name}{scope} keeps {size(self.bytes)}{part} on cuda:{self.device}: {what}{graphs}{filled}")


def key(tensor: Any) -> Optional[Tuple[Key, int]]:
    """Returns the storage of a tensor on a GPU with its bytes; None for other tensors."""
    try:
        storage = _reads.read(tensor, "untyped_storage", _none)()
        device = storage and storage.device  # a tensor may ask the program for its own
        if not device or device.type != "cuda":
            return None
        address = storage.data_ptr()
        return ((device.index, address), storage.nbytes()) if address else None
    except (AttributeError, RuntimeError, NotImplementedError):  # no storage: sparse, fake, a wrapper
        return None


def _none() -> None:
    return None


def parts(tensor: Any) -> Iterator[Any]:
    """Returns the tensors that have the memory of one: its own shard, a sparse one's parts."""
    local = _reads.read(tensor, "_local_tensor")
    if local is not None:
        yield local
    elif _reads.read(tensor, "is_sparse"):
        yield _reads.read(tensor, "_indices")()
        yield _reads.read(tensor, "_values")()
    else:
        yield tensor


def gradient(tensor: Any) -> Any:
    """Returns the gradient of a tensor that is no result of others, None if there is none."""
    return _reads.read(tensor, "grad") if _reads.read(tensor, "is_leaf") else None


def storages(tensors: Iterable[Any]) -> Dict[Key, int]:
    """Returns the storages on GPUs of tensors, each once."""
    return dict(found for tensor in tensors for part in parts(tensor) for found in [key(part)] if found)


def nested(value: Any, tensor: type, depth: int = 3) -> Iterator[Any]:
    """Returns the tensors in lists, tuples, dictionaries and plain objects."""
    if issubclass(type(value), tensor):
        yield value
    elif depth:
        for inner in _children(value):
            yield from nested(inner, tensor, depth - 1)


def _children(value: Any) -> List[Any]:
    kind = type(value)  # not isinstance, for which proxies answer with what they stand for
    if issubclass(kind, dict):
        return list(dict.values(value))  # a subclass's own may load or compute something
    if issubclass(kind, list):
        return list.copy(value)
    if issubclass(kind, tuple):
        return list(tuple.__iter__(value))
    if id(kind) in _SETS:
        return list(value)
    if _reads.module_of(kind) in _SKIPPED or issubclass(kind, (type, types.ModuleType, types.FunctionType)):
        return []
    return list(dict.values(_reads.fields(value)))


_SKIPPED = ("builtins", "torch", "torch.nn.parameter", "numpy")
_SETS = _reads.ids(set, frozenset, deque)
_PLAIN = (list, dict, set, deque, OrderedDict, defaultdict)


class Program:
    """The tensors of the program at one moment. It keeps them until it is left: with Program(torch) as p.
    One thread looks at a time, or it would find what another keeps meanwhile."""

    _looking = threading.Lock()

    def __init__(self, torch: Any, error: Optional[BaseException] = None, is_over: Callable[[], bool] = lambda: False):
        self._looking.acquire()
        self._guards = ExitStack()
        try:
            # Not of a subclass of the program, or a mode that it has set: __torch_function__, __torch_dispatch__.
            for name in ("DisableTorchFunction", "_DisableTorchDispatch"):
                self._guards.enter_context(getattr(torch._C, name, nullcontext)())
            self._collect(torch, error, is_over)
        except BaseException:
            self.__exit__()
            raise

    def _collect(self, torch: Any, error: Optional[BaseException], is_over: Callable[[], bool]) -> None:
        """Sorts the collector's objects, as many as there is time for."""
        self.frames = _names.frames(error)
        self.tensor: type = torch.Tensor
        self.objects = gc.get_objects()
        self.tensors, self.modules, self.optimizers, self.plain, self.caches = lists = [[] for _ in range(5)]  # type: List[List[Any]]
        kinds = (torch.Tensor, torch.nn.Module, torch.optim.Optimizer)
        sorts: Dict[int, Any] = {id(kind): self.plain for kind in _PLAIN}  # by type; none of these is gone meanwhile
        sorts[id(functools._lru_cache_wrapper)] = self.caches
        for some in self.chunks(is_over):
            for o in some:
                to = sorts.get(id(type(o)), kinds)
                if to is None:
                    continue
                if to is kinds:
                    to = sorts[id(type(o))] = next((found for k, found in zip(kinds, lists) if issubclass(type(o), k)), None)
                if to is not None and (to is not self.plain or len(o) >= MANY):
                    to.append(o)
        self.own = {id(v) for v in (lists, sorts, vars(self), *vars(self).values())}
        self.labels: Dict[Key, str] = {}  # of the storages whose purpose is known
        self.known: Dict[Key, int] = {}
        self._label_models(is_over)
        self.named = dict(self.known)

    def chunks(self, is_over: Callable[[], bool]) -> Iterator[List[Any]]:
        """Returns the collector's objects in parts, the youngest first, until the time is over."""
        for at in range(0, len(self.objects), CHUNK):
            if is_over():
                break
            yield self.objects[at : at + CHUNK]

    @functools.cached_property
    def sizes(self) -> Dict[Key, int]:
        """The bytes of all storages on GPUs."""
        return {**self.known, **storages(self.tensors)}

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        guards = self._guards
        vars(self).clear()  # with the frames, of which one has this object
        guards.close()
        self._looking.release()

    def _add(self, label: str, tensors: Iterable[Any]) -> None:
        for found, n in storages(tensors).items():
            self.labels.setdefault(found, label)
            self.known.setdefault(found, n)

    def _label_models(self, is_over: Callable[[], bool]) -> None:
        inner = {id(child) for m in self.modules for child in _reads.values(_reads.own(m, "_modules"))}
        for m in (m for m in self.modules if id(m) not in inner):
            name, below = _reads.name_of_type(type(m)), list(self._below(m))
            parameters = [p for each in below for p in _reads.values(_reads.own(each, "_parameters")) if p is not None]
            self._add(f"parameters of {name}", parameters)
            self._add(f"gradients of {name}", (g for g in map(gradient, parameters) if g is not None))
            self._add(f"buffers of {name}", (b for each in below for b in _reads.values(_reads.own(each, "_buffers")) if b is not None))
        for o in self.optimizers:
            states = _reads.values(_reads.own(o, "state"))
            self._add(f"state of {_reads.name_of_type(type(o))}", (t for s in states for t in nested(s, self.tensor)))
        self._add("gradients of other tensors", self._other_gradients(is_over))

    def _below(self, module: Any) -> Iterator[Any]:
        """Returns a module and those in it."""
        ahead, seen = [module], {id(module)}
        while ahead:
            m = ahead.pop()
            yield m
            inner = [c for c in _reads.values(_reads.own(m, "_modules")) if c is not None and id(c) not in seen]
            seen.update(map(id, inner))
            ahead += reversed(inner)

    def _other_gradients(self, is_over: Callable[[], bool]) -> Iterator[Any]:
        for n, t in enumerate(self.tensors):
            if n % 1024 == 0 and is_over():
                break
            if _reads.read(t, "requires_grad"):
                grad = gradient(t)
                if grad is not None:
                    yield grad

    def saved(self) -> Dict[Key, int]:
        """Returns what autograd keeps for a backward pass, beside what has another purpose."""
        return self._graphs(self.tensors)

    def _graphs(self, tensors: Iterable[Any]) -> Dict[Key, int]:
        found: Dict[Key, int] = {}
        seen: Set[Any] = set()
        ahead = [_reads.read(t, "grad_fn") for t in tensors]
        while ahead and len(seen) < 500_000:
            node = ahead.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            ahead += [after for after, _ in node.next_functions]
            found.update(storages(_kept(node, self.tensor)))
        return {k: n for k, n in found.items() if k not in self.known}

    def containers(self, least: int) -> List[Container]:
        """Returns the plain containers that keep many equal tensors for no known purpose, least bytes
        or more, the largest first. Of those that keep the same it is one with a name."""
        found: Dict[frozenset[Key], List[Any]] = {}
        totals: Dict[frozenset[Key], Tuple[int, int]] = {}  # of all, of graphs
        for c in self.plain:
            kept = self._kept_by(c) if id(c) not in self.own and self._is_candidate(c) else None
            if not kept:
                continue
            if kept not in totals:
                graphs = {k: n for k, n in self._graphs(nested(c, self.tensor)).items() if k not in kept}
                totals[kept] = sum(self.sizes.get(k, 0) for k in kept) + sum(graphs.values()), sum(graphs.values())
            if totals[kept][0] >= max(least, 1):
                found.setdefault(kept, []).append(c)
        answer: List[Container] = []
        taken: Set[Key] = set()
        for keys in sorted(found, key=lambda keys: totals[keys], reverse=True):
            if not keys & taken:
                described = [d for d in (self._describe(c, keys, totals[keys]) for c in found[keys]) if d]
                answer += sorted(described, key=lambda d: not d.name)[:1]
                taken |= keys if described else set()
        return answer

    def _kept_by(self, c: Any) -> frozenset[Key]:
        """Returns the storages that a container keeps for no known purpose, if it is a row of tensors or
        of records with some, not a few large things among others, as the attributes of an object."""
        elements = _children(c)
        kept = [{k for k in storages(nested(e, self.tensor, 2)) if k not in self.known} for e in elements]
        count = sum(1 for keys in kept if keys)
        return frozenset().union(*kept) if count >= MANY and count * 2 >= len(elements) else frozenset()

    def _is_candidate(self, c: Any) -> bool:
        """Reports whether some of the first and last things in it have tensors on a GPU."""
        try:
            some = list(itertools.islice(c.values() if isinstance(c, dict) else c, 4))
            if isinstance(c, (list, deque)):
                some += [c[-1], c[len(c) // 2]]
        except (RuntimeError, IndexError):  # another thread is changing it
            return False
        return any(key(t) for value in some for t in nested(value, self.tensor, 2))

    def _describe(self, c: Any, keys: frozenset[Key], totals: Tuple[int, int]) -> Optional[Container]:
        shapes: Counter[str] = Counter()
        devices: Counter[int] = Counter()
        seen: Set[Key] = set()
        for t in nested(c, self.tensor):
            found = key(t)
            if found and found[0] in keys and found[0] not in seen:
                seen.add(found[0])
                shapes[describe(t)] += 1
                devices[found[0][0]] += found[1]
        if not shapes:
            return None
        what, count = shapes.most_common(1)[0]
        if count < MANY or len(shapes) > len(seen) / 4:
            return None
        name = _names.name_of(c, self.frames)
        device = devices.most_common(1)[0][0]
        return Container(name.text, type(c).__name__, name.scope, name.filled, device, len(seen), *totals, what, count, id(c))

    def label(self) -> Dict[Key, str]:
        """Returns a name for the storage of each tensor: what it is for, the container that keeps it,
        or its type."""
        labels = dict(self.labels)
        for c in self.containers(1):
            for k in storages(nested(_by_id(self.plain, c.identity), self.tensor)):
                labels.setdefault(k, f"{c.kind} {c.name or 'without a name'}" + (f" ({c.filled[0]})" if c.filled else ""))
        for k in self.saved():
            labels.setdefault(k, "kept for the backward pass")
        for t in self.tensors:
            found = key(t)
            if found:
                labels.setdefault(found[0], f"{_reads.name_of_type(type(t))} {describe(t)}")
        return labels


def _by_id(objects: List[Any], identity: int) -> Any:
    return next((o for o in objects if id(o) == identity), ())


def _kept(node: Any, tensor: type) -> Iterator[Any]:
    """Returns the tensors that a node of the graph keeps, without unpacking any: a hook of the
    program, such as a checkpoint's, would compute it again."""
    for name in _saved_names(type(node)):
        try:
            raw = getattr(node, name)
            for saved in raw if isinstance(raw, (list, tuple)) else [raw]:
                data = getattr(saved, "data", None)
                if issubclass(type(data), tensor):
                    yield data
        except (AttributeError, RuntimeError):  # it is freed already
            pass


@functools.lru_cache(maxsize=1024)
def _saved_names(kind: type) -> Tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def describe(tensor: Any) -> str:
    """Returns a tensor's type and shape: float32[256, 1024]."""
    return f"{str(_reads.read(tensor, 'dtype')).replace('torch.', '')}{list(_reads.read(tensor, 'shape'))}"
