"""Reads of the program's objects that run none of its code.

An attribute may be a property, a type may answer for another (__class__, __subclasshook__), keys and cells are
compared and shown by methods of their types, and a frame's dictionary of variables outlives them. So types are asked
by the slots of type itself, attributes by the descriptors that are C's, and things are compared by identity.
"""

from __future__ import annotations

import functools
import gc
import sys
import types
from contextlib import contextmanager
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Optional, Tuple

_mro: Callable[[type], Optional[Tuple[type, ...]]] = type.__dict__["__mro__"].__get__
namespace: Callable[[type], Any] = type.__dict__["__dict__"].__get__
name_of_type: Callable[[type], str] = type.__dict__["__qualname__"].__get__
_module: Callable[[type], Any] = type.__dict__["__module__"].__get__

_OPTIMIZED = 1  # CO_OPTIMIZED: a function's code, whose variables lie in the frame


def mro(kind: type) -> Tuple[type, ...]:
    return _mro(kind) or ()  # a type of C that was not made ready, as an element of a cache, has none


def module_of(kind: type) -> str:
    found = _module(kind)
    return found if type(found) is str else ""


def ids(*kinds: type) -> FrozenSet[int]:
    """Returns the identities of types that last, by which a type is looked for: == would be that of a metaclass."""
    return frozenset(map(id, kinds))


_OF_C = ids(types.GetSetDescriptorType, types.MemberDescriptorType, types.MethodDescriptorType)
_TEXTS, _WORDS = ids(str, bytes), ids(bool, float, type(None))


def reader(kind: type, name: str) -> Optional[Callable[[Any], Any]]:
    """Returns the function that reads an attribute of a type's instances, as C has it: a property or a method of
    the program's in its place is passed over. None if there is none."""
    known = _readers.get((id(kind), name))
    if known is None:
        found = (namespace(c).get(name) for c in mro(kind))
        known = kind, next((d.__get__ for d in found if id(type(d)) in _OF_C), None)
        if module_of(kind) in _LASTING:
            _readers[id(kind), name] = known
    return known[1]


_readers: Dict[Tuple[int, str], Tuple[type, Optional[Callable[[Any], Any]]]] = {}  # with the type, whose identity is its own then
_LASTING = ("builtins", "collections", "torch", "torch.nn.parameter")  # a type of the program's is not kept


def read(o: Any, name: str, default: Any = None) -> Any:
    get = reader(type(o), name)
    try:
        return default if get is None else get(o)
    except AttributeError:  # an empty slot
        return default


def fields(o: Any) -> Dict[str, Any]:
    """Returns the dictionary of an object's own attributes, an empty one if it has none."""
    found = read(o, "__dict__")
    return found if issubclass(type(found), dict) else {}


def own(o: Any, name: str) -> Any:
    """Returns an attribute from an object's dictionary, None if it has none."""
    return dict.get(fields(o), name)


def field(o: Any, name: str, kind: type) -> Any:
    """Returns an object's own attribute if it is of a type, else an empty thing of that type."""
    found = own(o, name)
    return found if issubclass(type(found), kind) else kind()


def slots(o: Any) -> Iterator[Tuple[str, Any]]:
    """Returns the attributes that lie in slots."""
    for c in mro(type(o)):
        for name, d in list(namespace(c).items()):
            if type(d) is types.MemberDescriptorType:
                try:
                    yield name, d.__get__(o)
                except AttributeError:  # an empty one
                    pass


def values(mapping: Any) -> List[Any]:
    """Returns the values of a dictionary, or of PyTorch's own kind of one; a subclass's may load something."""
    kind = type(mapping)
    if issubclass(kind, dict):
        return list(dict.values(mapping))
    if module_of(kind).startswith("torch."):  # a ScriptModule's
        try:
            return list(mapping.values())
        except Exception:
            pass
    return []


def shown(key: Any, depth: int = 2) -> str:
    """Returns a key of a dictionary as a program writes it, "..." where the key would say it itself, or at length."""
    kind = type(key)
    if kind is tuple and depth and len(key) <= 4:
        inner = ", ".join(shown(k, depth - 1) for k in key)
        return f"({inner},)" if len(key) == 1 else f"({inner})"
    is_short = kind is int and key.bit_length() <= 64 or id(kind) in _TEXTS and len(key) <= 60
    return repr(key) if is_short or id(kind) in _WORDS else "..."


def variables(frame: types.FrameType) -> Dict[str, Any]:
    """Returns the variables of a function that runs or has run; none of a module's or a class's, which are in its
    dictionary. The frame keeps no more than before.

    f_locals is a view since Python 3.13. Before, it makes a dictionary that stays in the frame, and keeps what it
    has after the function has deleted it. Python 3.12 can be asked for one variable at a time. Of an older one the
    dictionary is emptied, which the next look at it fills again; not if somebody else has it (locals()), and not
    while a debugger is there, for which Python writes it back into the variables."""
    code = frame.f_code
    if not code.co_flags & _OPTIMIZED:
        return {}
    if sys.version_info >= (3, 13):
        return dict(frame.f_locals)
    if sys.version_info >= (3, 12):
        return _each_variable(frame)
    made = frame.f_locals
    found = dict(made)
    is_traced = frame.f_trace is not None or sys.gettrace() is not None or sys.getprofile() is not None
    if not is_traced and sys.getrefcount(made) == 3:  # the frame's, ours, and the argument
        made.clear()
    return found


def _each_variable(frame: types.FrameType) -> Dict[str, Any]:
    get, found = _get_variable(), {}
    for name in dict.fromkeys((*frame.f_code.co_varnames, *frame.f_code.co_cellvars, *frame.f_code.co_freevars)):
        try:
            found[name] = get(frame, name)
        except NameError:  # it has no value
            pass
    return found


@functools.lru_cache(maxsize=None)
def _get_variable() -> Callable[[types.FrameType, str], Any]:
    import ctypes

    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object)
    return kind(("PyFrame_GetVar", ctypes.pythonapi))  # type: ignore[no-any-return]


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps the collector from running, which would look again and again at millions of objects."""
    was_on = gc.isenabled()
    try:
        gc.disable()
        yield
    finally:
        if was_on:
            gc.enable()
