# Requests beyond the card, in a run of gpumem fit under PyTorch. The simulated GPU grants them, so
# that what the program needs is known from one run. Those whose refusal the program would catch,
# as it does to find a batch size, are refused as on the card: then the program goes on as it
# would there. start.py has the rest.
#
#   GPUMEM_SIM_BEYOND  1: the simulated GPU grants what it has no memory for
#   GPUMEM_FIT_BEYOND  1: it grants all, since the program has failed for a refusal before
import ast
import os
import sys
import sysconfig
import threading

# The statements "with NAME(errors):" that end an error.
SUPPRESSING = ("suppress", "raises", "assertRaises")

# Calls that end the program.
LEAVING = ("exit", "quit", "_exit", "abort")

refused_at = []  # where the refusals were caught: "train.py:12", each once
found_before = []  # the newest place that would catch a request that cannot wait: see refusals


def before():
    os.environ["GPUMEM_SIM_BEYOND"] = "1"


def strict():
    """Has the simulated GPU refuse what the card would. An engine fills the card that it finds."""
    if not always():
        os.environ.pop("GPUMEM_SIM_BEYOND", None)


def always():
    return os.environ.get("GPUMEM_FIT_BEYOND") == "1"


def listening():
    return not always() and os.environ.get("GPUMEM_SIM_BEYOND") == "1"


def waiting(error, ours):
    """Returns a function that waits some seconds, and answers meanwhile for each request beyond the
    card whether the program would catch its error. ours are the threads of fit. The caller's own
    thread, which goes on to ask PyTorch's allocator, must be the one that answers: the allocator
    keeps its lock during the request, and Python's lock is kept by who waits for that one. What
    was found just before counts then."""
    import ctypes
    import time

    if not listening():
        return time.sleep
    path, driver = os.path.join(os.environ["GPUMEM_SIM_FOLDER"], "libcuda.so.1"), None

    def wait(seconds):
        nonlocal driver
        if driver is None:
            try:
                driver = ctypes.CDLL(path, os.RTLD_NOLOAD | os.RTLD_NOW)
            except OSError:  # yet: the pool library loads it, and has to be the first of that name
                return time.sleep(seconds)
            driver.gpumemSimBeyond.restype = ctypes.c_uint64
            driver.gpumemSimRefuse.argtypes = (ctypes.c_uint64, ctypes.c_int)
        asking, until, number = ctypes.c_uint64(), time.monotonic() + seconds, 1
        while number:
            left = max(0, int(1000 * (until - time.monotonic())))
            number = driver.gpumemSimBeyond(left, ctypes.byref(asking))
            try:
                where = catching(asking.value, error, ours)
            except Exception:
                where = None  # of a thread that has ended, or a file that is being written
            # Before the program goes on, which may end.
            if where and not number:
                found_before[:] = [where]
            elif where and where not in refused_at:
                refused_at.append(where)
            driver.gpumemSimRefuse(number, where is not None)

    return wait


def refusals(all):
    """How many of PyTorch's refusals were caught. Where there is no place of one, it was a request that could
    not wait, and what was found before had it refused."""
    if all and not refused_at:
        refused_at.extend(found_before)
    return all if refused_at else 0


def catching(asking, error, ours):
    """Where the error of a request would be caught: in the thread that asks, or in the main thread,
    which may wait for it. A thread without Python works for any other."""
    known = len(_local)
    for function in running(asking, ours):
        where = caught_in(*function, error)
        if where:
            return where
    return catching(asking, error, ours) if len(_local) > known else None


def running(asking, ours):
    """The functions that run, the innermost first: code, line, global names, and of the local ones
    those that name errors. Frames are not kept: they keep what the functions have, such as gradients,
    while the program goes on, and its peak would be higher where this thread waits for a processor."""
    stacks = sys._current_frames()
    for thread in ours:
        stacks.pop(thread.ident, None)
    main = threading.main_thread().ident
    if not asking or asking in stacks:
        stacks = {ident: stacks[ident] for ident in (asking, main) if ident in stacks}
    found = []
    for frame in stacks.values():
        while frame is not None:
            names = _local.get(frame.f_code, ())
            own = {name: frame.f_locals[name] for name in names if name in frame.f_locals} if names else {}
            found.append((frame.f_code, frame.f_lineno, frame.f_globals, own))
            frame = frame.f_back
    stacks.clear()  # of the main thread it may have this function's own
    return found


_local = {}  # by function: the local names by which it catches errors


def caught_in(code, at, names, own, error):
    """Where a function that is at a line catches an error and goes on; None if it does not."""
    if not handles(code) or in_library(code.co_filename):
        return None
    left = None  # the statement whose handler raises the error again
    for part, types, line, goes_on in tries(code, names):
        note_local(code, types)
        if part != left and part[0] <= at <= part[1] and isinstance_of(types, error, names, own):
            if goes_on:
                return "%s:%d" % (os.path.basename(code.co_filename), line)
            left = part
    return None


def note_local(code, types):
    local = set(types.co_names if types else ()) & set(code.co_varnames + code.co_cellvars + code.co_freevars)
    if local:
        _local[code] = local | _local.get(code, set())


def handles(code):
    """Whether a function has handlers of errors at all."""
    import dis

    if hasattr(code, "co_exceptiontable"):
        return bool(code.co_exceptiontable)
    return any(dis.opmap[name] in code.co_code[::2] for name in ("SETUP_FINALLY", "SETUP_WITH"))  # Python 3.8 to 3.10


_library = os.path.join(sysconfig.get_paths()["stdlib"], "")


def in_library(path):
    """Whether a file is of Python's library, which passes errors on to another thread or process, or of fit."""
    apart = "site-packages" in path or "dist-packages" in path
    return path.startswith("<frozen") or path.startswith(_library) and not apart or os.path.dirname(path) == os.path.dirname(__file__)


_tries = {}  # by file


def tries(code, names):
    """The parts of a function whose errors are caught: their lines, the types as code (None: all), the line
    of the handler, and whether the program goes on behind it. The inner ones come first."""
    path = code.co_filename
    if path not in _tries:
        import linecache

        found = _tries[path] = {}
        try:
            tree = ast.parse("".join(linecache.getlines(path, names)))
        except (SyntaxError, ValueError):
            return ()
        collect(tree, ("<module>", 0), found)
    first = 0 if code.co_name == "<module>" else code.co_firstlineno
    return _tries[path].get((code.co_name, first), ())


def collect(node, function, found):
    for child in ast.iter_child_nodes(node):
        inside = function
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inside = (child.name, min([child.lineno] + [d.lineno for d in child.decorator_list]))
        elif isinstance(child, ast.Lambda):
            inside = ("<lambda>", child.lineno)
        collect(child, inside, found)
        for handler in handlers(child):
            found.setdefault(inside, []).append(((child.body[0].lineno, child.body[-1].end_lineno),) + handler)


def handlers(node):
    """The types and the line of each handler of a statement, and whether the program goes on behind it."""
    if isinstance(node, ast.Try):
        for handler in node.handlers:
            yield of_types(handler.type), handler.lineno, not leaves(handler.body)
    elif isinstance(node, (ast.With, ast.AsyncWith)):
        for item in node.items:
            call = item.context_expr
            if isinstance(call, ast.Call) and name_of(call.func) in SUPPRESSING and call.args:
                yield of_types(ast.Tuple(call.args, ast.Load())), node.lineno, True


def name_of(node):
    return getattr(node, "id", getattr(node, "attr", ""))


def leaves(statements):
    """Whether statements always end by an error, or end the program."""
    for s in statements:
        if isinstance(s, ast.Raise):
            return True
        if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call) and name_of(s.value.func) in LEAVING:
            return True
        if isinstance(s, ast.If) and leaves(s.body) and leaves(s.orelse):
            return True
        if isinstance(s, (ast.With, ast.AsyncWith)) and leaves(s.body):
            return True
        if isinstance(s, ast.Try) and (leaves(s.finalbody) or leaves(s.body) and all(leaves(h.body) for h in s.handlers)):
            return True
        if any(isinstance(n, (ast.Return, ast.Continue, ast.Break)) for n in ast.walk(s)):
            return False
    return False


def of_types(node):
    """The code that gives the types of a handler; None for all. What is no name has none."""
    if node is None:
        return None
    simple = (ast.Name, ast.Attribute, ast.Tuple, ast.Load)
    if not all(isinstance(n, simple) for n in ast.walk(node)):
        node = ast.Tuple([], ast.Load())
    return compile(ast.fix_missing_locations(ast.Expression(node)), "<types>", "eval")


def isinstance_of(types, error, names, own):
    if types is None:
        return True
    try:
        return issubclass(error, eval(types, names, own))
    except Exception:
        return False  # a name that is not there yet
