"""GPU memory: why a program ran out of it, and one pool for several libraries.

    import gpumem
    gpumem.diagnose()                # explain an out-of-memory error, once, when one leaves the program
    print(gpumem.doctor(text))       # what a log or an exception means, and what to set
    gpumem.torch.use()               # PyTorch on this project's pool; also cupy.use, rmm.resource
    with gpumem.watch(): step()      # the peak of a block, and the lines that hold it
    print(gpumem.torch.live())       # what lives by line, or by purpose; also gpumem.jax.live
    gpumem.stats().bytes_in_use

Importing this module imports nothing: each function imports what it needs when it is called. It
looks whether PyPI's other gpumem is installed beside it, which has a command of the same name, and
says so. See docs/python.md.
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, whose import would cost as much as all of this
if TYPE_CHECKING:
    from typing import Any

    from . import cupy as cupy
    from . import jax as jax
    from . import rmm as rmm
    from . import torch as torch
    from ._answer import Answer as Answer
    from ._command import command as command
    from ._explain import diagnose as diagnose
    from ._explain import doctor as doctor
    from ._explain import explain as explain
    from ._library import Error as Error
    from ._library import OutOfMemoryError as OutOfMemoryError
    from ._library import Pool as Pool
    from ._library import Stats as Stats
    from ._library import configure as configure
    from ._library import report as report
    from ._library import reset_peaks as reset_peaks
    from ._library import stats as stats
    from ._library import trim as trim
    from ._magic import load_ipython_extension as load_ipython_extension
    from ._record import record as record
    from ._watch import watch as watch

    __version__: str

_WHERE = {
    "command": "_command",
    "Answer": "_answer",
    "diagnose": "_explain",
    "doctor": "_explain",
    "explain": "_explain",
    "Error": "_library",
    "OutOfMemoryError": "_library",
    "Pool": "_library",
    "Stats": "_library",
    "configure": "_library",
    "report": "_library",
    "reset_peaks": "_library",
    "stats": "_library",
    "trim": "_library",
    "load_ipython_extension": "_magic",
    "record": "_record",
    "watch": "_watch",
}
_MODULES = ("cupy", "jax", "rmm", "torch")

__all__ = [*_WHERE, *_MODULES, "__version__"]


def _warn_of_stranger() -> None:
    """PyPI's gpumem is somebody else's. This distribution is gpumem-tools. (node/pip says the same.)"""
    import os
    import sys

    if sys.argv[:1] == ["-m"] or os.path.basename(sys.argv[0] if sys.argv else "") == "gpumem":
        return  # the command, which says it where it helps
    for name in os.listdir(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))):
        if name.startswith("gpumem-") and name.endswith((".dist-info", ".egg-info")):
            sys.stderr.write(
                f"gpumem: another distribution, gpumem {name[7:].partition('-py')[0].replace('.dist-info', '').replace('.egg-info', '')}, is installed beside gpumem-tools and has a command of the same name; "
                "uninstall both (pip uninstall gpumem gpumem-tools) and install gpumem-tools again from where it came\n"
            )


try:
    _warn_of_stranger()
except OSError:
    pass  # in an archive


def __getattr__(name: str) -> Any:
    if name in _WHERE or name in _MODULES:
        from importlib import import_module

        module = import_module("." + _WHERE.get(name, name), __name__)
        value = getattr(module, name) if name in _WHERE else module
    elif name == "__version__":
        from importlib.metadata import version

        value = version("gpumem-tools")
    else:
        raise AttributeError(f"module 'gpumem' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
