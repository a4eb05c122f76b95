"""Names of objects in the running program: variables, attributes, and the lines that fill them."""

from __future__ import annotations

import ast
import functools
import gc
import os
import sys
import types
from collections import OrderedDict, defaultdict
from typing import Any, Dict, Iterator, List, NamedTuple, Optional, Tuple


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
        trace = error.__traceback__
        while trace is not None:
            found[id(trace.tb_frame)] = trace.tb_frame
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return [f for f in found.values() if not _is_ours(f)]


def _is_ours(frame: types.FrameType) -> bool:
    return os.path.dirname(frame.f_code.co_filename) == os.path.dirname(__file__)


def name_of(container: Any, frames: List[types.FrameType], depth: int = 2) -> Name:
    """Returns the name of a container: that of an attribute or a global variable, or else its place in a
    dictionary with a name, or else that of a local variable in the outermost frame. depth is that of dictionaries in which it may be."""
    referrers = gc.get_referrers(container)
    for r in referrers:
        name = _named_by(r, container, frames)
        if name:
            return name
    for r in referrers if depth else ():
        if type(r) in (dict, defaultdict, OrderedDict):
            for k, v in list(r.items()):
                outer = name_of(r, frames, depth - 1) if v is container else Name("")
                if outer.text:
                    return outer._replace(text=f"{outer.text}[{k!r}]")
    return _local(container, frames) or Name("")


def _local(container: Any, frames: List[types.FrameType]) -> Optional[Name]:
    for frame in frames:
        code = frame.f_code
        if code.co_name != "<module>":
            for name, value in list(frame.f_locals.items()):
                if value is container:
                    return Name(name, f"a local of {code.co_name}", _filled([code.co_filename], name, False, code))
    return None


def _named_by(referrer: Any, container: Any, frames: List[types.FrameType]) -> Optional[Name]:
    """Returns the name that one of its referrers gives a container, None if it gives none."""
    if isinstance(referrer, dict):
        names = [k for k, v in list(dict.items(referrer)) if v is container and isinstance(k, str)]
        if not names:
            return None
        if "__builtins__" in referrer:  # a module's
            files = [referrer.get("__file__") or _program(referrer), *(f.f_code.co_filename for f in frames if f.f_globals is referrer)]
            return Name(names[0], "a global", _filled(files, names[0], False))
        for o in gc.get_referrers(referrer):
            of_class = isinstance(o, type) and vars(o).get(names[0]) is container  # which is behind a proxy
            if of_class or fields(o) is referrer:
                return _attribute(o, names[0], frames)
        return None
    if isinstance(referrer, types.CellType):
        functions = (f for f in gc.get_objects() if type(f) is types.FunctionType and referrer in (f.__closure__ or ()))
        for f in functions:
            name = f.__code__.co_freevars[(f.__closure__ or ()).index(referrer)]
            return Name(name, f"a variable of {f.__qualname__}", _filled([f.__code__.co_filename], name, False))
        return None
    if isinstance(referrer, (list, tuple, set, frozenset, types.FrameType, types.ModuleType)):
        return None
    slots = {n: getattr(referrer, n, None) for c in type(referrer).__mro__ for n in getattr(c, "__slots__", ()) if isinstance(n, str)}
    for name, value in [*fields(referrer).items(), *slots.items()]:
        if value is container:
            return _attribute(referrer, name, frames)
    return None


def _program(variables: Dict[str, Any]) -> str:
    """Returns the file of the program, from whose variables Python takes __file__ away when it has run."""
    is_main = variables is vars(sys.modules.get("__main__", types))
    return os.path.abspath(sys.argv[0]) if is_main and sys.argv else ""


def fields(o: Any) -> Dict[str, Any]:
    """Returns the attributes that are in an object itself; nothing of its code is run."""
    try:
        found = object.__getattribute__(o, "__dict__")
    except AttributeError:
        return {}
    return found if isinstance(found, dict) else {}


def _attribute(owner: Any, name: str, frames: List[types.FrameType]) -> Name:
    """Returns the name of an attribute of an instance or a class. What fills it stands in the file of
    its class, or else in one that is running."""
    kind = owner if isinstance(owner, type) else type(owner)
    modules = [vars(sys.modules.get(c.__module__, types)) for c in kind.__mro__]
    files = [m.get("__file__") or _program(m) for m in modules]
    return Name(f"{kind.__qualname__}.{name}", "", _filled([*files, *(f.f_code.co_filename for f in frames)], name, True))


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
    module = vars(sys.modules.get(kind.__module__, types))
    return _is_program(module.get("__file__") or _program(module))


def _is_program(file: str) -> bool:
    return file.endswith(".py") and not any(part in file.replace("\\", "/") for part in ("/site-packages/", "/dist-packages/", "/lib/python3"))


@functools.lru_cache(maxsize=64)
def _targets(file: str) -> Tuple[Tuple[int, Any], ...]:
    """Returns what the program of a file puts something into, with the lines."""
    if not _is_program(file):
        return ()
    try:
        with open(file, "rb") as f:
            return tuple(_puts(ast.parse(f.read())))
    except (OSError, SyntaxError, ValueError):
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
