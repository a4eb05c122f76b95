"""Names of objects in the running program: variables, attributes, and the lines that fill them."""

from __future__ import annotations

import ast
import functools
import gc
import os
import sys
import types
from typing import Any, Callable, Dict, Iterator, List, NamedTuple, Optional, Tuple

from . import _reads


class Name(NamedTuple):
    """A name of a container."""

    text: str  #: such as "Trainer.losses", "acts", "state['hidden']"; "" if none was found
    scope: str = ""  #: such as "a local of train"; "" for attributes
    filled: Tuple[str, ...] = ()  #: the lines of the program that put things into it


def frames(error: Optional[BaseException] = None) -> List[types.FrameType]:
    """Returns the frames of the program, the outer ones first: those that run, and those of an error and
    of what it came from."""
    found: Dict[int, types.FrameType] = {}
    for top in sys._current_frames().values():
        stack = []
        frame: Optional[types.FrameType] = top
        while frame is not None:
            if not _is_ours(frame):  # the list would keep this very call, and so itself
                stack.append(frame)
            frame = frame.f_back
        found.update((id(f), f) for f in reversed(stack))
    del top
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        trace = _reads.read(error, "__traceback__")
        while trace is not None:
            found[id(trace.tb_frame)] = trace.tb_frame
            trace = trace.tb_next
        cause = _reads.read(error, "__cause__")
        error = cause if cause is not None else _reads.read(error, "__context__")
    return [f for f in found.values() if not _is_ours(f)]


def _is_ours(frame: types.FrameType) -> bool:
    return os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__)


def empty_our_frames(error: BaseException) -> None:
    """Drops the variables of this package's functions that an error has left."""
    trace = error.__traceback__
    while trace is not None:
        if _is_ours(trace.tb_frame):
            try:
                trace.tb_frame.clear()
            except RuntimeError:  # it runs
                pass
        trace = trace.tb_next


def name_of(container: Any, frames: List[types.FrameType], depth: int = 2, is_over: Callable[[], bool] = lambda: False) -> Name:
    """Returns the name of a container: that of an attribute, a global or a closure's variable, or else its place in a
    dictionary with a name, or else that of a local variable in the outermost frame. depth is that of dictionaries in
    which it may be.

    Each round looks once through all objects, for whatever refers to one of a few: the container, then the
    dictionaries that have it, then those that have these. It ends when the time is over, or a round later."""
    ahead = [_Place(container)]
    for level in range(depth + 2):
        referrers = [] if is_over() else _referrers([p.thing for p in ahead])
        found, outer = _names_by(referrers, {id(p.thing): p for p in ahead}, frames, is_over)
        if not found and not is_over():
            found = _closures(referrers, ahead)
        if not found and level:
            found = [n for n in (_local(p.thing, frames, p.keys) for p in ahead) if n]
        if found:
            return min(found, key=lambda n: n.text.count("["))  # the first of the nearest
        ahead = outer if level <= depth else []
        if not ahead:
            break
    return _local(container, frames) or Name("")


MOST_AHEAD = 16  # dictionaries in which something is
MOST_REFERRERS = 1000  # that are looked at in a round


class _Place(NamedTuple):
    """A dictionary in which a container is, or the container itself."""

    thing: Any
    keys: Tuple[Any, ...] = ()  #: that lead to the container, the outermost first
    inner: Any = None  #: what is at the first of them


def _referrers(things: List[Any]) -> List[Any]:
    """Returns what refers to things, beside what has no names, the variables of modules first."""
    found = [r for r in gc.get_referrers(*things) if id(type(r)) not in _NAMELESS]
    found.sort(key=lambda r: not is_module(r))
    return found[:MOST_REFERRERS]


_NAMELESS = _reads.ids(list, tuple, set, frozenset, types.FrameType, types.ModuleType, _Place)


def is_module(o: Any) -> bool:
    return type(o) is dict and "__builtins__" in o


def _names_by(
    referrers: List[Any], places: Dict[int, _Place], frames: List[types.FrameType], is_over: Callable[[], bool]
) -> Tuple[List[Name], List[_Place]]:
    """Returns the names that referrers give to places, and the dictionaries in which these are."""
    names: List[Name] = []
    outer: List[_Place] = []
    for r in referrers:
        if is_over():
            break
        if issubclass(type(r), dict):
            at = next(((k, places[id(v)]) for k, v in list(dict.items(r)) if id(v) in places), None)
            if at and is_module(r) and type(at[0]) is str:
                names.append(_global(r, at[0], frames, at[1].keys))
            elif at and len(outer) < MOST_AHEAD:
                outer.append(_Place(r, (at[0], *at[1].keys), at[1].thing))
        elif type(r) is not types.CellType:
            name = _owner(r, places, frames)
            names += [name] if name else []
        if names and "[" not in names[-1].text:  # none is nearer
            break
    return names, outer


def _owner(o: Any, places: Dict[int, _Place], frames: List[types.FrameType]) -> Optional[Name]:
    """Returns the name of a place that is an attribute of an object or of a class, or the dictionary of its attributes."""
    own = _reads.fields(o)
    place = places.get(id(own))
    if place is None and issubclass(type(o), type):  # whose dictionary is behind a proxy
        has = _reads.namespace(o)
        place = next((p for p in places.values() if p.keys and type(p.keys[0]) is str and has.get(p.keys[0]) is p.inner), None)
    if place is not None and place.keys and type(place.keys[0]) is str:
        return _attribute(o, place.keys[0], frames, place.keys[1:])
    for name, value in [*dict.items(own), *_reads.slots(o)]:
        if id(value) in places and type(name) is str:
            return _attribute(o, name, frames, places[id(value)].keys)
    return None


def _closures(referrers: List[Any], ahead: List[_Place]) -> List[Name]:
    """Returns the names of places that are variables of closures."""
    cells = [r for r in referrers if type(r) is types.CellType][:MOST_AHEAD]
    closures = [t for t in gc.get_referrers(*cells) if type(t) is tuple][:MOST_AHEAD] if cells else []
    functions = [f for f in gc.get_referrers(*closures) if type(f) is types.FunctionType] if closures else []
    for f in functions[:MOST_AHEAD]:
        for name, cell in zip(f.__code__.co_freevars, f.__closure__ or ()):
            place = next((p for p in ahead if any(cell is c for c in cells) and any(o is p.thing for o in gc.get_referents(cell))), None)
            if place:
                scope = f"a variable of {f.__qualname__}"
                return [Name(name + _suffix(place.keys), scope, _filled([f.__code__.co_filename], name, False))]
    return []


def _local(container: Any, frames: List[types.FrameType], keys: Tuple[Any, ...] = ()) -> Optional[Name]:
    for frame in frames:
        for name, value in _reads.variables(frame).items():
            if value is container:
                code = frame.f_code
                return Name(name + _suffix(keys), f"a local of {code.co_name}", _filled([code.co_filename], name, False, code))
    return None


def _global(variables: Dict[str, Any], name: str, frames: List[types.FrameType], keys: Tuple[Any, ...]) -> Name:
    files = [_file(variables) or _program(variables), *(f.f_code.co_filename for f in frames if f.f_globals is variables)]
    return Name(name + _suffix(keys), "a global", _filled(files, name, False))


def _suffix(keys: Tuple[Any, ...]) -> str:
    return "".join(f"[{_reads.shown(k)}]" for k in keys)


def _file(variables: Dict[str, Any]) -> str:
    found = dict.get(variables, "__file__")
    return found if type(found) is str else ""


def _program(variables: Dict[str, Any]) -> str:
    """Returns the file of the program, from whose variables Python takes __file__ away when it has run."""
    is_main = variables is _reads.fields(sys.modules.get("__main__"))
    return os.path.abspath(sys.argv[0]) if is_main and sys.argv else ""


def _attribute(owner: Any, name: str, frames: List[types.FrameType], keys: Tuple[Any, ...]) -> Name:
    """Returns the name of an attribute of an instance or a class. What fills it stands in the file of
    its class, or else in one that is running."""
    kind = owner if issubclass(type(owner), type) else type(owner)
    modules = [_reads.fields(sys.modules.get(_reads.module_of(c))) for c in _reads.mro(kind)]
    files = [_file(m) or _program(m) for m in modules]
    filled = _filled([*files, *(f.f_code.co_filename for f in frames)], name, True)
    return Name(f"{_reads.name_of_type(kind)}.{name}{_suffix(keys)}", "", filled)


_FILLS = ("append", "appendleft", "add", "extend", "insert", "setdefault", "update", "register_buffer", "add_param_group")


def _filled(files: List[str], name: str, attribute: bool, code: Optional[types.CodeType] = None) -> Tuple[str, ...]:
    """Returns up to three lines of the first file in which something is put into a name."""
    for file in dict.fromkeys(files):
        lines = sorted({line for line, target in _targets(file) if _is(target, name, attribute)})
        if code is not None:
            last = max((line for _, _, line in code.co_lines() if line), default=0) if hasattr(code, "co_lines") else sys.maxsize
            lines = [line for line in lines if code.co_firstlineno <= line <= last]
        if lines:
            return tuple(f"{os.path.basename(file)}:{line}" for line in lines[:3])
    return ()


def is_of_program(kind: type) -> bool:
    """Reports whether a type is of a file of the program, not of a library."""
    module = _reads.fields(sys.modules.get(_reads.module_of(kind)))
    return _is_program(_file(module) or _program(module))


def _is_program(file: str) -> bool:
    return file.endswith(".py") and not any(part in file.replace("\\", "/") for part in ("/site-packages/", "/dist-packages/", "/lib/python3"))


LONGEST = 400_000  # bytes of a file that is read for its lines, half a second


@functools.lru_cache(maxsize=64)
def _targets(file: str) -> Tuple[Tuple[int, Any], ...]:
    """Returns what the program of a file puts something into, with the lines."""
    if not _is_program(file):
        return ()
    try:
        with open(file, "rb") as f:
            text = f.read(LONGEST + 1)
        return tuple(_puts(ast.parse(text))) if len(text) <= LONGEST else ()
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return ()


def _puts(tree: ast.AST) -> Iterator[Tuple[int, Any]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLS:
            yield node.lineno, node.func.value
        elif isinstance(node, ast.AugAssign):
            yield node.lineno, node.target
        elif isinstance(node, ast.Assign):
            used = {ast.dump(n) for n in ast.walk(node.value) if isinstance(n, (ast.Name, ast.Attribute))}
            for t in (t for target in node.targets for t in (target.elts if isinstance(target, ast.Tuple) else [target])):
                # total = total + loss, h, c = cell(x, (h, c))
                if isinstance(t, ast.Subscript) or ast.dump(t).replace("Store()", "Load()") in used:
                    yield node.lineno, t


def _is(target: Any, name: str, attribute: bool) -> bool:
    while isinstance(target, ast.Subscript):
        target = target.value
    if attribute:
        return isinstance(target, ast.Attribute) and target.attr == name
    return isinstance(target, ast.Name) and target.id == name
