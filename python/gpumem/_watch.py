"""gpumem.watch: the peak of a block of code, and the lines that hold it."""

from __future__ import annotations

import inspect
import sys
from contextlib import ContextDecorator
from typing import Any, Dict, List, Optional, Tuple

from . import _library
from ._live import table
from ._size import size

LINES = 6  # of a table

FRAMEWORKS = ("gpumem", "torch", "jax", "cupy")


class watch(ContextDecorator):
    """Prints, at the end of a block of code or of a function, its peak of GPU memory and the lines of
    the program that hold it, in a few lines on standard error; also when an exception leaves it.

    >>> with gpumem.watch():
    ...     train_step()

    >>> @gpumem.watch()
    ... def train_step(): ...

    framework: "torch" (the lines are those of the peak, by PyTorch's history), "jax" (those of the end),
    "gpumem" (the pools of this project, which know no lines) or "cupy" (its pool's size). None is what
    is imported when the block begins; of several that which has begun to use a GPU, which is said.
    Afterwards peak_bytes has the peak, None if it is not known, and live the rows.
    """

    def __init__(self, framework: Optional[str] = None):
        if callable(framework):
            raise TypeError("watch is called where it decorates: @gpumem.watch()")
        if framework is not None and framework not in FRAMEWORKS:
            raise ValueError(f"watch wants framework= one of {', '.join(FRAMEWORKS)}, not {framework!r}")
        self.framework = framework
        self.peak_bytes: Optional[int] = None
        self.live: List[Dict[str, Any]] = []
        self._blocks: List[Tuple[Any, str]] = []  # that are open: what is watched, and a note

    def _recreate_cm(self) -> watch:
        return watch(self.framework)  # for each call of a function

    def __call__(self, function: Any) -> Any:
        if any(is_kind(function) for is_kind in (inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction)):
            raise TypeError(f"watch decorates functions that are done when they return; {function.__name__} is a generator or async: put the block within it")
        return super().__call__(function)

    def __enter__(self) -> watch:
        watched, note = None, ""
        try:
            name, note = (self.framework, "") if self.framework else _choose()
            watched = _WATCHED[name]() if name else None
        except Exception as e:
            note = f"this block is not watched: {e}"
        self._blocks.append((watched, note))
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            watched, note = self._blocks.pop()
            lines = [note] if note else []
            if watched is not None:
                text, when, self.peak_bytes, self.live = watched.end()
                left = f"; {kind.__name__} left the block" if kind else ""
                rows = ["  " + line for line in table(self.live, LINES)] if self.live else []
                lines = [text + left + (f"; {when}:" if rows else ""), *rows, *lines]
            print("gpumem.watch: " + "\n".join(lines), file=sys.stderr, flush=True)
        except Exception as e:  # the block's own end must not be hidden
            print(f"gpumem.watch: the peak is unknown: {e}", file=sys.stderr, flush=True)


def _choose() -> Tuple[Optional[str], str]:
    """Returns the framework to watch, and what there is to say about that."""
    if _library.shared():
        return "gpumem", ""
    imported = [name for name in ("torch", "jax", "cupy") if name in sys.modules]
    if not imported and _library.serves():
        return "gpumem", ""  # a Pool
    if not imported:
        return None, 'no framework was imported when the block began: framework="torch" or "jax" says which will be'
    used = [name for name in imported if _is_used(name)] or imported
    others = [name for name in imported if name != used[0]]
    return used[0], f"imported, too: {', '.join(others)} (framework= says which to watch)" if others else ""


def _is_used(framework: str) -> bool:
    if framework == "torch":
        return bool(sys.modules["torch"].cuda.is_initialized())
    if framework == "jax":
        from .jax import is_used

        return is_used()
    return False


# A text, of which time the rows are, the peak, the rows.
End = Tuple[str, str, Optional[int], List[Dict[str, Any]]]


def _has(peak: int, before: int, where: str) -> str:
    """Returns the words for a peak that is counted since the program began."""
    if peak > before:
        return f"peak {size(peak)} {where}"
    return f"peak at most {size(peak)} {where}, which was reached before this block"


class _Torch:
    """The history of PyTorch: that of the block, or one that was being recorded already."""

    def __init__(self) -> None:
        import torch

        from . import _history

        self.torch = torch
        self.older = _history.is_on(torch)
        self.recorded = self.older
        self.lacking = ""
        self.before = _allocations(torch)
        if not torch.cuda.is_available():
            self.lacking = "PyTorch sees no GPU"
        elif not self.older:
            try:
                _history.start(torch)
                self.recorded = True
            except RuntimeError as e:  # a pluggable allocator, cudaMallocAsync
                self.lacking = str(e).splitlines()[0]

    def end(self) -> End:
        from . import _held, _history

        if not self.recorded:
            return f"torch: the peak is unknown: {self.lacking}", "", None, []
        try:
            snapshot = _history.snapshot(self.torch)
            peaks = _history.peak(snapshot) if snapshot else {}
        finally:
            if not self.older:
                _history.stop(self.torch)
        missing = self.missing(snapshot)
        if missing:
            text = f"torch: the peak is unknown: PyTorch's history has not {missing:,} of the block's allocations; something else began or ended it, or it was full"
            return text, "", None, []
        if not peaks:
            return "torch: no memory of a GPU was used", "", 0, []
        most, device = max((bytes, device) for device, (bytes, _) in peaks.items())
        with _held.Program(self.torch) as program:
            labels = program.label()
        other = "made before, or without a line of Python, as in the backward pass"
        rows = _history.rows(peaks[device][1], lambda b: labels.get((b.device, b.address), other) if b.kept else other)
        since = " since the record began, before this block" if self.older else ""
        now = _history.live(snapshot["segments"]) if snapshot else []
        end = sum(b.bytes for b in now if b.device == device)
        return f"torch: peak {size(most)} on cuda:{device}{since}, {size(end)} at the end", "at the peak", most, rows


    def missing(self, snapshot: Any) -> int:
        """Returns how many allocations of the block the history does not have. PyTorch counts them itself."""
        traces = (snapshot or {}).get("device_traces") or []
        missing = 0
        for device, after in _allocations(self.torch).items():
            events = traces[device] if device < len(traces) else []
            made = after - self.before.get(device, 0)
            missing += max(0, made - sum(e["action"] == "alloc" for e in events))
        return missing


def _allocations(torch: Any) -> Dict[int, int]:
    """Returns how many allocations PyTorch has made on each device since the program began."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    return {i: torch.cuda.memory_stats(i).get("allocation.all.allocated", 0) for i in range(torch.cuda.device_count())}


class _Jax:
    """JAX's figures: it counts its peak, and knows the lines of what lives at the end."""

    def __init__(self) -> None:
        from .jax import is_used

        self.before = _jax_peaks() if is_used() else {}

    def end(self) -> End:
        from .jax import is_used, live

        if not is_used():
            return "jax: not used", "", 0, []
        rows = [dict(row) for row in live()["live"]]
        after = {device: peak for device, peak in _jax_peaks().items() if peak is not None}
        now = sum(row["bytes"] for row in rows if row["pool"] != "executable")
        if not after:
            return f"jax: the peak is unknown, for JAX counts none on this device; {size(now)} at the end", "live then", None, rows
        rose = [d for d in after if after[d] > (self.before.get(d) or 0)]
        device = max(rose or after, key=lambda d: after[d])
        before = self.before.get(device) or 0
        text = f"jax: {_has(after[device], before, 'on ' + str(device))}, {size(now)} at the end"
        return text, "live then", after[device] if after[device] > before else None, rows


def _jax_peaks() -> Dict[str, Any]:
    from .jax import stats

    return {device: s.peak_bytes_in_use for device, s in stats().items()}


class _Pools:
    """The pools of this project that libraries share."""

    def __init__(self) -> None:
        self.before = {n: s.peak_bytes_in_use for n, s in _open_pools().items()}

    def end(self) -> End:
        after = _open_pools()
        if not after:
            return "gpumem: no pool was used", "", 0, []
        rose = [n for n in after if after[n].peak_bytes_in_use > self.before.get(n, 0)]
        n = max(rose or after, key=lambda n: after[n].peak_bytes_in_use)
        s, before = after[n], self.before.get(n, 0)
        pool = f"the pool on GPU {n}" if n < _library.SHARED else "a Pool"
        text = f"gpumem: {_has(s.peak_bytes_in_use, before, 'in use of ' + pool)}"
        held = f"{size(s.bytes_in_use)} in {s.live:,} block{'s' * (s.live != 1)} at the end, {size(s.pool_bytes)} held, {s.refused} refused"
        return f"{text}; {held}", "", s.peak_bytes_in_use if s.peak_bytes_in_use > before else None, []


def _open_pools() -> Dict[int, _library.Stats]:
    return {n: _library.stats(n) for n in range(_library.ALL) if _library.is_open(n)}


class _Cupy:
    """CuPy's pool, which counts no peak."""

    def __init__(self) -> None:
        import cupy

        self.pool = cupy.get_default_memory_pool()

    def end(self) -> End:
        now = f"{size(self.pool.used_bytes())} in use at the end, {size(self.pool.total_bytes())} held"
        return f"cupy: the peak is unknown, for CuPy counts none; {now}", "", None, []


_WATCHED = {"torch": _Torch, "jax": _Jax, "gpumem": _Pools, "cupy": _Cupy}
