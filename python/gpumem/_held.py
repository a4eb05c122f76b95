"""PyTorch's tensors as Python sees them: what each is for, and which container keeps it.

Only the collector knows all tensors of a program. It is asked once (gc.get_objects), and nothing
is changed: no tensor is made, read or freed.
"""

from __future__ import annotations

import functools
import gc
import itertools
import threading
import types
from collections import Counter, OrderedDict, defaultdict, deque
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from . import _names
from ._size import plain, size

Key = Tuple[int, int]  # a storage: its device and its address

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
        if not tensor.is_cuda:
            return None
        storage = tensor.untyped_storage()
        address = storage.data_ptr()
        return ((tensor.device.index, address), storage.nbytes()) if address else None
    except (AttributeError, RuntimeError, NotImplementedError):  # no storage: sparse, fake, a wrapper
        return None


def parts(tensor: Any) -> Iterator[Any]:
    """Returns the tensors that have the memory of one: its own shard, a sparse one's parts."""
    local = getattr(tensor, "_local_tensor", None)
    if local is not None:
        yield local
    elif getattr(tensor, "is_sparse", False):
        yield tensor._indices()
        yield tensor._values()
    else:
        yield tensor


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
    if kind in (set, frozenset, deque):
        return list(value)
    if kind.__module__ in _SKIPPED or issubclass(kind, (type, types.ModuleType, types.FunctionType)):
        return []
    return list(_names.fields(value).values())


_SKIPPED = ("builtins", "torch", "torch.nn.parameter", "numpy")
_PLAIN = (list, dict, set, deque, OrderedDict, defaultdict)


class Program:
    """The tensors of the program at one moment. It keeps them until it is left: with Program(torch) as p.
    One thread looks at a time, or it would find what another keeps meanwhile."""

    _looking = threading.Lock()

    def __init__(self, torch: Any, error: Optional[BaseException] = None):
        self._looking.acquire()
        try:
            self._collect(torch, error)
        except BaseException:
            self._looking.release()
            raise

    def _collect(self, torch: Any, error: Optional[BaseException]) -> None:
        self.frames = _names.frames(error)
        self.tensor: type = torch.Tensor
        objects = gc.get_objects()
        self.tensors = [o for o in objects if issubclass(type(o), torch.Tensor)]
        self.modules = [o for o in objects if issubclass(type(o), torch.nn.Module)]
        self.optimizers = [o for o in objects if issubclass(type(o), torch.optim.Optimizer)]
        self.plain = [o for o in objects if type(o) in _PLAIN and len(o) >= MANY]
        self.own = {id(objects), id(self.plain), *(id(v) for v in vars(self).values()), id(vars(self))}
        del objects
        self.labels: Dict[Key, str] = {}  # of the storages whose purpose is known
        self.known: Dict[Key, int] = {}
        self.sizes = storages(self.tensors)
        self._label_models()
        self.named = dict(self.known)

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *exception: object) -> None:
        vars(self).clear()  # with the frames, of which one has this object
        self._looking.release()

    def _add(self, label: str, tensors: Iterable[Any]) -> None:
        for found, n in storages(tensors).items():
            self.sizes.setdefault(found, n)
            self.labels.setdefault(found, label)
            self.known.setdefault(found, n)

    def _label_models(self) -> None:
        inner = {id(child) for m in self.modules for child in (getattr(m, "_modules", None) or {}).values()}
        roots = [m for m in self.modules if id(m) not in inner and getattr(m, "_parameters", None) is not None]
        for m in roots:
            name, parameters = type(m).__name__, list(m.parameters())
            self._add(f"parameters of {name}", parameters)
            self._add(f"gradients of {name}", (p.grad for p in parameters if p.grad is not None))
            self._add(f"buffers of {name}", m.buffers())
        for o in self.optimizers:
            state = _names.fields(o).get("state") or {}
            self._add(f"state of {type(o).__name__}", (t for s in list(state.values()) for t in nested(s, self.tensor)))
        leaves = [t for t in self.tensors if t.is_leaf and t.requires_grad]
        self._add("gradients of other tensors", (t.grad for t in leaves if t.grad is not None))

    def saved(self) -> Dict[Key, int]:
        """Returns what autograd keeps for a backward pass, beside what has another purpose."""
        return self._graphs(self.tensors)

    def _graphs(self, tensors: Iterable[Any]) -> Dict[Key, int]:
        found: Dict[Key, int] = {}
        seen: Set[Any] = set()
        ahead = [t.grad_fn for t in tensors]
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
                labels.setdefault(found[0], f"{type(t).__name__} {describe(t)}")
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
                if isinstance(data, tensor):
                    yield data
        except (AttributeError, RuntimeError):  # it is freed already
            pass


@functools.lru_cache(maxsize=1024)
def _saved_names(kind: type) -> Tuple[str, ...]:
    return tuple(name for name in dir(kind) if name.startswith("_raw_saved_"))


def describe(tensor: Any) -> str:
    """Returns a tensor's type and shape: float32[256, 1024]."""
    return f"{str(tensor.dtype).replace('torch.', '')}{list(tensor.shape)}"
