"""gpumem.watch: the peak of a block of code, and the lines that hold it."""

from __future__ import annotations

import inspect
import sys
from contextlib import ContextDecorator
from typing import Any, Dict, List, Optional, Tuple

from . import _library, _wants
from ._live import table
from ._record import FRAMEWORKS
from ._size import size

LINES = 6  # of a table


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
    Afterwards peak_bytes has the peak of the block, as the framework counts it (with PyTorch the bytes that
    are allocated, as in torch.cuda.max_memory_allocated), None if that is not known, and live the rows.
    """

    def __init__(self, framework: Optional[str] = None):
        if callable(framework) and not isinstance(framework, type):
            raise TypeError("watch is called where it decorates: @gpumem.watch()")
        if _wants.framework("watch", framework, _WATCHED):
            raise ValueError(_wants.framework("watch", framework, _WATCHED))
        self.framework = framework
        self.peak_bytes: Optional[int] = None
        self.live: List[Dict[str, Any]] = []
        self._blocks: List[Tuple[Any, str]] = []  # that are open: what is watched, and a note

    def _recreate_cm(self) -> watch:
        return watch(self.framework)  # for each call of a function

    def __call__(self, function: Any) -> Any:
        if not callable(function):
            raise TypeError(f"watch decorates a function, not {_wants.shown(function)}")
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
    imported = [name for name in FRAMEWORKS if name in sys.modules]
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


def _plain_reason(text: str) -> str:
    """Returns why PyTorch has no history, in a line."""
    if "does not yet support" in text or "CUDAPluggableAllocator" in text:
        return "PyTorch has no history under gpumem.torch.use() or another allocator of the program; framework=\"gpumem\" watches our pool"
    return text.splitlines()[0]


# A text, of which time the rows are, the peak, the rows.
End = Tuple[str, str, Optional[int], List[Dict[str, Any]]]


def _has(peak: int, before: int, where: str) -> str:
    """Returns the words for a peak that is counted since the program began."""
    if peak > before:
        return f"peak {size(peak)} {where}"
    return f"peak at most {size(peak)} {where} (reached before this block)"


class _Torch:
    """The block's part of PyTorch's history, and PyTorch's own count of the peak."""

    def __init__(self) -> None:
        import torch

        from . import _history

        self.torch = torch
        self.lacking = ""
        self.part: Optional[_history.Use] = None
        if not torch.cuda.is_available():
            self.lacking = "PyTorch sees no GPU"
            return
        try:
            self.part = _history.Use(torch)
        except RuntimeError as e:  # a pluggable allocator, cudaMallocAsync
            self.lacking = _plain_reason(str(e))

    def end(self) -> End:
        from . import _held, _history

        if self.part is None:
            return f"torch: the peak is unknown: {self.lacking}", "", None, []
        labels: Dict[Any, str] = {}
        counts = _history.counts(self.torch)
        try:
            if self.part.is_too_long():
                return self._without_lines(counts, "there were more than a million events")
            with _held.Program(self.torch) as program:  # before there is a snapshot, which would be looked through, too
                labels = program.label()
            part, missing = self.part.end()
        finally:
            self.part.stop()
        if part is None:
            return self._without_lines(counts, "PyTorch's allocator gives no snapshot")
        if missing:
            return self._without_lines(counts, f"it has not {missing:,} of the block's allocations; something else began or ended it, or it was full")
        with _history.no_collection():
            tops = {device: self._counted(top, device, counts) for device, top in _history.peak(part).items()}
            if not tops:
                return "torch: no memory of a GPU was used", "", 0, []
            device = max(tops, key=lambda d: tops[d].bytes)
            most, sure, blocks = tops[device]
            other = "made before, or without a line of Python, as in the backward pass"
            blocks = [b._replace(bytes=b.allocated) for b in blocks]
            rows = _history.rows(blocks, lambda b: labels.get((b.device, b.address), other) if b.kept else other)
            del part, blocks
        unused = most - sum(row["bytes"] for row in rows)
        if unused > 0:
            rows.append({"pool": f"cuda:{device}", "site": "unused in PyTorch's blocks", "stack": "", "bytes": unused, "blocks": 0})
        peak = size(most) if sure else f"about {size(most)}"
        return f"torch: peak {peak} on cuda:{device}, {size(_now(counts, device))} at the end", "at the peak", most if sure else None, rows

    def _without_lines(self, counts: Dict[int, Any], why: str) -> End:
        """Returns the peak as PyTorch counts it, if that has risen in the block."""
        before = self.part.before if self.part else {}
        rose = {d: c.peak for d, c in counts.items() if c.peak > (before[d].peak if d in before else 0)}
        if not rose:
            return f"torch: the peak is unknown: PyTorch's history is not whole: {why}", "", None, []
        device = max(rose, key=lambda d: rose[d])
        text = f"torch: peak {size(rose[device])} on cuda:{device}, {size(_now(counts, device))} at the end; its lines are unknown: PyTorch's history is not whole: {why}"
        return text, "", rose[device], []

    def _counted(self, top: Any, device: int, counts: Dict[int, Any]) -> Any:
        """Returns the peak with PyTorch's own count of it, if that has risen in the block: the program may have reset it there."""
        before = self.part.before.get(device) if self.part else None
        after = counts.get(device)
        rose = after is not None and after.peak > (before.peak if before else 0) and after.peak >= top.bytes
        return top._replace(bytes=after.peak, sure=True) if rose and after else top


def _now(counts: Dict[int, Any], device: int) -> int:
    return counts[device].allocated if device in counts else 0


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


_WATCHED = {"gpumem": _Pools, "torch": _Torch, "jax": _Jax, "cupy": _Cupy}
