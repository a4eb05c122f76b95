"""%gpumem and %%gpumem: what a statement or a cell of a notebook takes of the GPU's memory.

    %load_ext gpumem

    %%gpumem
    y = step(x)
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from contextlib import nullcontext
from typing import Any, Optional

from . import _library, _wants
from ._answer import _ask, _run
from ._record import FRAMEWORKS, _guess, record
from ._size import size

# The policy under which a framework's recording is drawn, and how the framework is called.
_DRAWN = {"gpumem": "elastic", "torch": "pytorch", "jax": "jax:preallocate=false", "cupy": "platform"}


def load_ipython_extension(shell: Any) -> None:
    """Defines %gpumem and %%gpumem; IPython calls it for %load_ext gpumem."""

    if not hasattr(shell, "register_magic_function"):
        raise TypeError(f"load_ipython_extension is called by IPython, for %load_ext gpumem, not with {_wants.shown(shell)}")

    def gpumem(line: str, cell: Optional[str] = None) -> Any:
        """Measures the GPU memory of a statement or a cell: growth, peak and a picture.

        %gpumem               what is in use now
        %gpumem STATEMENT
        %%gpumem [FRAMEWORK]  gpumem, torch, jax or cupy; the one that is there unless given
        """
        __tracebackhide__ = True  # IPython leaves this frame out of a traceback
        if cell is None and not line:
            print(in_use())
            return None
        if cell is None:
            return _measure(shell, line, None)
        return _measure(shell, "\n" + cell, line.strip() or None)  # the line of %%gpumem

    shell.register_magic_function(gpumem, "line_cell")


def in_use() -> str:
    """Returns a text on the memory in use now: of the pools, and of what is imported."""
    parts = [_library.report(n) for n in range(_library.ALL) if _library.is_open(n)]
    for framework in FRAMEWORKS:
        if framework in sys.modules:
            if framework == "jax":
                from .jax import is_used, live

                parts.append(f"jax: {live() if is_used() else 'not used yet'}")
            else:
                parts.append(f"{framework}: {size(_bytes(framework))} in use")
    return "\n".join(parts) or "no pool is open, and no framework imported"


def _bytes(framework: str) -> int:
    """Returns the bytes in use of all devices."""
    if framework == "gpumem":
        return sum(_library.stats(n).bytes_in_use for n in range(_library.ALL) if _library.is_open(n))
    if framework == "torch":
        import torch

        return sum(torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())) if torch.cuda.is_initialized() else 0
    if framework == "jax":
        from .jax import is_used, live

        return 0 if not is_used() else sum(row["bytes"] for row in live()["live"] if row["pool"] != "executable")
    import cupy

    return int(cupy.get_default_memory_pool().used_bytes()) if cupy.cuda.is_available() else 0


def _not_recorded(framework: str) -> str:
    """Returns why a framework keeps no record here, "" if it does."""
    if framework == "torch":
        import torch

        return "" if torch.cuda.is_available() else "PyTorch sees no GPU"
    if framework == "jax":
        import jax

        return "" if any(d.platform != "cpu" for d in jax.local_devices()) else "JAX records none on a CPU"
    if framework == "cupy":
        import cupy

        return "" if cupy.cuda.is_available() else "CuPy sees no GPU"
    return ""


def _measure(shell: Any, code: str, framework: Optional[str]) -> Any:
    __tracebackhide__ = True
    from IPython.core.error import UsageError

    if framework is None:
        try:
            framework = _guess()
        except ValueError as e:
            if "no framework" not in str(e):
                raise UsageError("several frameworks are imported: name one, as in %%gpumem torch") from None
            framework = "gpumem"
    if framework not in _DRAWN:
        raise UsageError(f"%%gpumem: no framework {framework}; there are {', '.join(_DRAWN)}")
    before = _bytes(framework)
    lacking = _not_recorded(framework)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "cell")
        try:
            with nullcontext() if lacking else record(path, framework):
                return _execute(shell, code)
        finally:
            trace, svg = ({}, "") if lacking else _draw(path, _DRAWN[framework])
            if framework == "jax" and not trace:  # without CUPTI it has no events, whatever happened
                lacking = lacking or "JAX's profiler recorded none"
            after = _bytes(framework)
            text = f"{framework}: {'-' if after < before else '+'}{size(abs(after - before))} to {size(after)} in use"
            if lacking:
                print(f"{text}; no peak and no picture: {lacking}")
            else:
                refused = f", {trace['refused']} refused" if trace.get("refused") else ""
                print(f"{text}, peak {size(max(trace.get('peak_live_bytes', 0), before, after))} requested{refused}")
            if svg and "terminal" not in type(shell).__module__:
                from IPython.display import SVG, display

                display(SVG(data=svg))


def _execute(shell: Any, code: str) -> Any:
    """Runs code as a cell; returns the value of its last expression."""
    __tracebackhide__ = True
    # IPython removes empty lines at the head; with them, lines keep their numbers.
    code = "\n" * code[: len(code) - len(code.lstrip())].count("\n") + shell.transform_cell(code)
    # The cell that is running was the last to get a number.
    name = shell.compile.cache(code, max(getattr(shell.compile, "_filename_map", {}).values(), default=shell.execution_count))
    tree = shell.transform_ast(shell.compile.ast_parse(code, filename=name))
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), shell.user_ns)
    return eval(compile(ast.Expression(last.value), name, "eval"), shell.user_ns) if last else None


def _draw(path: str, policy: str) -> tuple[dict[str, Any], str]:
    """Returns what a recording has, and the picture of its largest pool; nothing if it has no
    events."""
    arguments = ["replay", path, "--device", "sim:16TiB", "--policy", policy]
    try:
        answer = _ask(arguments)
    except ValueError:
        return {}, ""
    largest = max(answer["results"], key=lambda r: r["lower_bound_bytes"])
    out = path + ".svg"
    _run([*arguments, "--svg", out, *(["--pool", largest["pool"]] if len(answer["results"]) > 1 else [])], None, None)
    with open(out, encoding="utf-8") as f:
        return answer["trace"], f.read()
