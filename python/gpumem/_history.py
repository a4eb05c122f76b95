"""PyTorch's own record of its blocks: what lives now, and what lived at the peak.

A block is what the allocator gave out: an address, the bytes that were asked for, and the frames
of the program, where PyTorch was recording them.
"""

from __future__ import annotations

import pickle
import threading
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ._answer import _ask
from ._live import name_cells
from ._reads import no_collection

MOST = 1_000_000  # events that PyTorch keeps, as gpumem run --record asks for


class Block(NamedTuple):
    """A live block."""

    device: int
    address: int
    bytes: int  #: that were asked for
    frames: List[Dict[str, Any]]
    kept: bool = True  #: to the end of the record
    allocated: int = 0  #: bytes, as PyTorch rounds them
    sure: bool = True  #: allocated is known; else it is the least that it can be


def is_on(torch: Any) -> bool:
    """Reports whether PyTorch is recording. Releases that do not say so are taken not to."""
    # Before PyTorch has begun to use CUDA the function ends the process.
    return _says(torch) and torch.cuda.is_initialized() and bool(torch._C._cuda_isHistoryEnabled())


def _says(torch: Any) -> bool:
    return hasattr(torch._C, "_cuda_isHistoryEnabled")


# PyTorch has one history, which record, watch and a meter share: the first of them begins it and the last
# ends it, unless the program had begun it. Each knows its own part by PyTorch's counts of allocations.
_lock = threading.Lock()
_users: List[Use] = []
_of_program = False  # the program was recording before the first of _users
_level = 0

_LEVELS = {None: 0, "alloc": 1, "all": 2}  # of context: lines for nothing, for allocations, and for frees


class Use:
    """A part of PyTorch's history, from now to end. context "alloc" has lines of allocations, "all" those
    of frees, too, None no lines. RuntimeError where PyTorch cannot record."""

    def __init__(self, torch: Any, context: Optional[str] = "alloc"):
        global _of_program, _level
        self.torch = torch
        with _lock:
            on = is_on(torch) or bool(_users) and not _says(torch)
            if not _users:
                _of_program, _level = on, int(on)
            # A watch takes a history of the program's as it is; a recording needs all of it.
            wanted = max(_level, _LEVELS[context])
            try:
                if not on or wanted > _level:
                    _level = wanted
                    _start(torch, next(c for c, level in _LEVELS.items() if level == wanted))
                self.before = counts(torch)
                _users.append(self)
            except BaseException:
                if self in _users:
                    _users.remove(self)
                if not on:
                    _stop(torch)
                raise

    def end(self) -> Tuple[Optional[Dict[str, Any]], int]:
        """Returns PyTorch's snapshot with the events since this began, and how many allocations since
        then it has not: somebody ended the history, or it was full."""
        try:
            with no_collection():
                after = counts(self.torch)
                whole = snapshot(self.torch)
                return (whole, 0) if whole is None else self._cut(whole, after)
        finally:
            self.stop()

    def is_too_long(self) -> bool:
        """Reports whether more has happened since it began than a history can have."""
        sums = [(now, self.before.get(device, Counts())) for device, now in counts(self.torch).items()]
        return any(now.allocations - was.allocations + now.frees - was.frees > MOST for now, was in sums)

    def stop(self) -> None:
        """Ends it, and forgets what was recorded if nobody else records."""
        with _lock:
            if self in _users:
                if len(_users) == 1 and not _of_program:
                    _stop(self.torch)
                _users.remove(self)  # last: where Ctrl-C comes before, the next call does it

    def _cut(self, whole: Dict[str, Any], after: Dict[int, Counts]) -> Tuple[Dict[str, Any], int]:
        traces, missing = list(whole.get("device_traces") or []), 0
        for device, now in after.items():
            before = self.before.get(device, Counts())
            made, freed = now.allocations - before.allocations, now.frees - before.frees
            events = traces[device] if device < len(traces) else []
            missing += max(0, made - sum(e["action"] == "alloc" for e in events))
            if events:
                traces[device] = events[_first(events, made, freed) :]
        return {**whole, "device_traces": traces}, missing


def _first(events: List[Dict[str, Any]], made: int, freed: int) -> int:
    """Returns the place of the first event of a part that has made allocations and freed frees, to the end."""
    for i in range(len(events) - 1, -1, -1):
        action = events[i]["action"]
        made -= action == "alloc"
        freed -= action == "free_requested"
        if made < 0 or freed < 0:
            return i + 1
    return 0


class Counts(NamedTuple):
    """What PyTorch counts of one GPU since the start of the program."""

    allocations: int = 0
    frees: int = 0
    allocated: int = 0  #: bytes, now
    peak: int = 0  #: bytes, since then or since the program reset it


def counts(torch: Any) -> Dict[int, Counts]:
    """Returns PyTorch's counts of each GPU, nothing where it has not begun to use CUDA."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return {}
    names = ("allocation.all.allocated", "allocation.all.freed", "allocated_bytes.all.current", "allocated_bytes.all.peak")
    stats = {i: torch.cuda.memory_stats(i) for i in range(torch.cuda.device_count())}
    return {i: Counts(*(s.get(name, 0) for name in names)) for i, s in stats.items()}


def _start(torch: Any, context: Optional[str]) -> None:
    """Begins it, with lines of Python. For those of C++ PyTorch runs addr2line, and where there is none its
    snapshot fails ("stoi"). One that is on goes on, with these settings."""
    try:
        torch.cuda.memory._record_memory_history(context=context, stacks="python", max_entries=MOST)
    except TypeError:  # PyTorch 2.0
        torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=MOST, trace_alloc_record_context=True)


def _stop(torch: Any) -> None:
    """Ends it, and forgets what was recorded."""
    try:
        torch.cuda.memory._record_memory_history(enabled=None)
    except TypeError:
        torch.cuda.memory._record_memory_history(False)


def start_plain(torch: Any) -> Optional[Use]:
    """Begins a short part without lines, for a step or less; None if PyTorch cannot record."""
    try:
        return Use(torch, None) if _says(torch) else None
    except (RuntimeError, TypeError):
        return None


def stop_plain(use: Use) -> Dict[int, Set[int]]:
    """Ends it; returns for each device the addresses of what was made before the highest point since
    it began, and was not freed before it."""
    found = {}
    part, missing = use.end()
    for device, events in enumerate((part or {}).get("device_traces") or [] if not missing else []):
        found[device] = {b.address for b in _peak(device, events, {}).blocks}
    return found


def live(segments: Iterable[Dict[str, Any]]) -> List[Block]:
    """Returns the blocks that live when a snapshot is taken."""
    found = []
    for segment in segments:
        at = segment["address"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                history = block.get("history") or [{}]  # as PyTorch 2.0 has it
                frames = block.get("frames") or history[-1].get("frames") or []
                requested = block.get("requested_size") or history[-1].get("real_size") or block["size"]
                found.append(Block(segment["device"], block.get("address", at), requested, frames, True, block["size"]))
            at += block["size"]
    return found


UNIT = 512  # PyTorch's blocks are multiples of it
SMALL = 1 << 20  # of a block for more than that PyTorch may leave up to as much again unused


def _made(device: int, event: Dict[str, Any]) -> Block:
    n = event["size"]
    return Block(device, event["addr"], n, event.get("frames") or [], True, max(1, -(-n // UNIT)) * UNIT, n <= SMALL)


class Top(NamedTuple):
    """The most that lived at one time on one GPU."""

    bytes: int  #: allocated, as PyTorch counts; the least that it can have been if not sure
    sure: bool
    blocks: List[Block]  #: that lived then


def peak(part: Dict[str, Any]) -> Dict[int, Top]:
    """Returns for each device the most bytes that lived at one time in a part of the history, and the
    blocks that did. A block is live until the program frees it, as PyTorch counts allocated bytes."""
    at_end: Dict[int, Dict[int, Block]] = {}
    for block in live(part["segments"]):
        at_end.setdefault(block.device, {})[block.address] = block
    return {
        device: _peak(device, events, at_end.get(device, {}))
        for device, events in enumerate(part.get("device_traces") or [])
        if events or device in at_end
    }


def _peak(device: int, events: List[Dict[str, Any]], at_end: Dict[int, Block]) -> Top:
    moves = [e for e in events if e["action"] in ("alloc", "free_requested")]
    older: Dict[int, Block] = {}  # what lived before the first event
    last: Dict[int, int] = {}  # by address, the last event that made a block there
    for i, e in enumerate(moves):
        if e["action"] == "alloc":
            last[e["addr"]] = i
        elif e["addr"] not in last and e["addr"] not in older:
            older[e["addr"]] = _made(device, e)._replace(frames=[])
    for address, block in at_end.items():
        if address not in last and address not in older:
            older[address] = block

    def block_of(i: int, e: Dict[str, Any]) -> Block:
        made = _made(device, e)
        end = at_end.get(made.address) if last[made.address] == i else None
        return made._replace(allocated=end.allocated, sure=True) if end else made

    sizes = {address: (block.allocated, block.sure) for address, block in older.items()}
    now = most = sum(n for n, _ in sizes.values())
    unsure = sum(not known for _, known in sizes.values())
    possible = now + unsure * SMALL  # at any time
    end = 0  # of the events before the peak
    for i, e in enumerate(moves):
        if e["action"] == "alloc":
            made = block_of(i, e)
            sizes[made.address] = made.allocated, made.sure
            now, unsure = now + made.allocated, unsure + (not made.sure)
            possible = max(possible, now + unsure * SMALL)
            if now > most:
                most, end = now, i + 1
        else:
            n, known = sizes.pop(e["addr"], (0, True))
            now, unsure = now - n, unsure - (not known)

    freed = {e["addr"] for e in moves[end:] if e["action"] != "alloc"}
    blocks = dict(older)
    for i, e in enumerate(moves[:end]):
        if e["action"] == "alloc":
            blocks[e["addr"]] = block_of(i, e)
        else:
            blocks.pop(e["addr"], None)
    return Top(most, possible == most, [b._replace(kept=b.address not in freed) for b in blocks.values()])


def rows(blocks: List[Block], label: Callable[[Block], str]) -> List[Dict[str, Any]]:
    """Returns rows as of Live: the blocks by the line of the program that made them, and those
    without one by label, the largest first."""
    lined: List[Block] = []
    others: Dict[Tuple[str, str], Tuple[int, int]] = {}
    for block in blocks:
        frames = [f for f in block.frames if _is_python(f)]
        if frames:
            lined.append(block._replace(frames=frames))
        else:
            key = f"cuda:{block.device}", label(block)
            count, total = others.get(key, (0, 0))
            others[key] = count + 1, total + block.bytes
    found = _by_line(lined)
    found += [{"pool": pool, "site": site, "stack": "", "bytes": total, "blocks": count} for (pool, site), (count, total) in others.items()]
    return sorted(found, key=lambda row: (-row["bytes"], row["pool"], row["site"]))


def _is_python(frame: Dict[str, Any]) -> bool:
    name = frame["filename"]
    return bool(name.endswith(".py") or name.startswith("<"))


def _by_line(blocks: List[Block]) -> List[Dict[str, Any]]:
    """Returns the rows of gpumem leaks --live, which knows the program's own line of a stack."""
    if not blocks:
        return []
    segments: List[Dict[str, Any]] = []
    for b in blocks:  # a snapshot in which each block is a segment
        block = {"size": b.bytes, "requested_size": b.bytes, "address": b.address, "state": "active_allocated", "frames": b.frames}
        segment = {"device": b.device, "address": b.address, "total_size": b.bytes, "stream": 0, "segment_type": "large"}
        segments.append({**segment, "blocks": [block]})
    answer = _ask(["leaks", "--live", "-"], pickle.dumps({"segments": segments, "device_traces": []}, protocol=4))
    found = [dict(row) for row in answer["live"]]
    name_cells(found)
    return found


def snapshot(torch: Any) -> Optional[Dict[str, Any]]:
    """Returns PyTorch's snapshot, None if its allocator has none."""
    try:
        return torch.cuda.memory._snapshot()  # type: ignore[no-any-return]
    except RuntimeError:  # a pluggable allocator, such as that of use()
        return None
