"""What JAX holds on its devices: by device, by line of the program, by compiled program.

    print(gpumem.jax.live())         # live arrays, by the line that made them
    gpumem.jax.stats()["cuda:0"].bytes_in_use
    for program in gpumem.jax.programs():
        print(program)

    gpumem.jax.remat("60%")    # functions compiled from now on take less memory

Only remat() changes JAX, which has no interface for another allocator.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple, Optional, Union

from . import _wants
from ._answer import Answer, _ask
from ._command import command
from ._live import Live as Live
from ._live import name_cells
from ._size import size


class Stats(NamedTuple):
    """JAX's figures of a device, by JAX's names; None where it reports none, as on a CPU.
    Sizes are in bytes."""

    bytes_in_use: Optional[int]
    peak_bytes_in_use: Optional[int]  #: since the start of the program
    bytes_limit: Optional[int]  #: the most that the pool may hold
    pool_bytes: Optional[int]  #: held from the device
    peak_pool_bytes: Optional[int]
    largest_free_block_bytes: Optional[int]  #: in the pool
    num_allocs: Optional[int]  #: so far


def stats() -> dict[str, Stats]:
    """Returns the statistics of each device of this process, by its name, such as "cuda:0"."""
    import jax

    reported = {str(d): d.memory_stats() or {} for d in jax.local_devices()}
    return {name: Stats(*(r.get(field) for field in Stats._fields)) for name, r in reported.items()}


def live() -> Live:
    """Returns the live arrays by the line of the program that made them, the largest first.

    The answer has live, a list with pool (the device), site (the line; a cell of a notebook
    is In[3]), stack, bytes and blocks. It is JAX's device memory profile, read by gpumem
    leaks --live; the code of compiled programs is the pool "executable", where JAX knows its
    size.
    """
    import jax

    try:
        found = Live(_ask(["leaks", "--live", "-"], jax.profiler.device_memory_profile()))
    except ValueError as e:
        if "no live buffers" not in str(e):
            raise
        return Live(live=[])
    name_cells(found["live"])
    return found


class Program:
    """A compiled program and the memory that it takes on one device, in bytes.

    argument_bytes, output_bytes and temp_bytes are needed while it runs; alias_bytes of the
    outputs lie in arguments (donated ones); code_bytes stay while the program is kept.
    """

    def __init__(self, executable: Any):
        self._executable = executable
        sizes = executable.get_compiled_memory_stats()
        self.name: str = executable.hlo_modules()[0].name
        self.argument_bytes: int = sizes.argument_size_in_bytes
        self.output_bytes: int = sizes.output_size_in_bytes
        self.alias_bytes: int = sizes.alias_size_in_bytes
        self.temp_bytes: int = sizes.temp_size_in_bytes
        self.code_bytes: int = max(0, sizes.generated_code_size_in_bytes)

    @property
    def bytes(self) -> int:
        """What it takes while it runs."""
        return self.argument_bytes + self.output_bytes - self.alias_bytes + self.temp_bytes + self.code_bytes

    def hlo(self) -> Answer:
        """Returns what the program holds at its peak, by value: gpumem hlo on its text."""
        return _ask(["hlo", "-"], self._executable.hlo_modules()[0].to_string())

    def __repr__(self) -> str:
        parts = {"arguments": self.argument_bytes, "outputs": self.output_bytes, "temporaries": self.temp_bytes, "code": self.code_bytes, "aliased": -self.alias_bytes}
        return f"{self.name}: {size(self.bytes)}: " + ", ".join(f"{what} {size(abs(n))}" for what, n in parts.items() if n)


def remat(limit: Union[str, int, None], seconds: float = 60) -> None:
    """Has XLA compile with plans for less memory from now on: values are computed again where
    that fits a limit for the temporaries of each function. Functions that were compiled before
    stay as they are.

    limit: "60%" of what each function takes, bytes such as 12 << 30 or "12GiB", or "auto": what
    the device's pool leaves beside the arrays that live when the function is compiled; without
    such a limit, as on a CPU, it does nothing but say so. None ends it.
    seconds: the most that planning may take for a function, which is else compiled as it is.

    Results stay the same to the bit where XLA computes an operation in the same way twice.
    For each function that changes a line on standard error says what it takes. RuntimeError for
    a JAX before 0.10.2, which cannot do it.

    >>> gpumem.jax.remat("auto")
    """
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)):
        raise TypeError(f"seconds= wants a number, not {_wants.shown(seconds)}")
    if limit is not None and not isinstance(limit, (str, int, float)):
        raise ValueError(f"limit={_wants.shown(limit)}: want bytes such as '12GiB', '60%' of what each function takes, or 'auto'")
    from . import _remat  # type: ignore[attr-defined]  # in the wheel only

    if limit is None:
        _remat.remove()
    else:
        _remat.install(limit, command(), seconds)


def is_used() -> bool:
    """Reports whether JAX has begun to use its devices. To ask JAX for what lives would begin
    it, and take most of a GPU."""
    return bool(getattr(sys.modules.get("jax._src.xla_bridge"), "backends_are_initialized", bool)())


def program(compiled: Any) -> Program:
    """Returns the memory of one program.

    >>> gpumem.jax.program(jax.jit(step).lower(x).compile())
    """
    if not hasattr(compiled, "runtime_executable"):
        raise TypeError(f"program wants what jax.jit(f).lower(arguments).compile() returns, not {_wants.shown(compiled)}")
    return Program(compiled.runtime_executable())


def programs() -> list[Program]:
    """Returns the programs that JAX has compiled and keeps, the one that takes most first.
    Operations outside of jax.jit are small programs, too."""
    import jax

    clients = {id(d.client): d.client for d in jax.local_devices()}
    return sorted((Program(e) for c in clients.values() for e in c.live_executables()), key=lambda p: -p.bytes)
