"""PyTorch's own record of its blocks: what lives now, and what lived at the peak.

A block is what the allocator gave out: an address, the bytes that were asked for, and the frames
of the program, where PyTorch was recording them.
"""

from __future__ import annotations

import pickle
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Set, Tuple

from ._answer import _ask

MOST = 1_000_000  # events that PyTorch keeps, as gpumem run --record asks for


class Block(NamedTuple):
    """A live block."""

    device: int
    address: int
    bytes: int  #: that were asked for
    frames: List[Dict[str, Any]]
    kept: bool = True  #: to the end of the record


def is_on(torch: Any) -> bool:
    """Reports whether PyTorch is recording. Releases that do not say so are taken not to."""
    enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    # Before PyTorch has begun to use CUDA the function ends the process.
    return bool(enabled and torch.cuda.is_initialized() and enabled())


def start(torch: Any, context: str = "alloc") -> None:
    """Begins a record of allocations, or with context "all" of frees, too, with lines of Python. For
    those of C++ PyTorch runs addr2line, and where there is none its snapshot fails ("stoi")."""
    try:
        torch.cuda.memory._record_memory_history(context=context, stacks="python", max_entries=MOST)
    except TypeError:  # PyTorch 2.0
        torch.cuda.memory._record_memory_history(True, trace_alloc_max_entries=MOST, trace_alloc_record_context=True)


def stop(torch: Any) -> None:
    """Ends it, and forgets what was recorded."""
    try:
        torch.cuda.memory._record_memory_history(enabled=None)
    except TypeError:
        torch.cuda.memory._record_memory_history(False)


def start_plain(torch: Any) -> bool:
    """Begins a short record without lines, for a step or less; False if PyTorch is recording for
    somebody else, or cannot."""
    try:
        if not hasattr(torch._C, "_cuda_isHistoryEnabled") or is_on(torch):
            return False
        torch.cuda.memory._record_memory_history(context=None, max_entries=200_000)
    except (RuntimeError, TypeError):
        return False
    return True


def stop_plain(torch: Any) -> Dict[int, Set[int]]:
    """Ends it; returns for each device the addresses of what was made before the highest point since
    it began, and was not freed before it."""
    found = {}
    for device, events in enumerate((snapshot(torch) or {}).get("device_traces") or []):
        blocks = _peak(device, events, {})[1]
        found[device] = {b.address for b in blocks}
    stop(torch)
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
                found.append(Block(segment["device"], block.get("address", at), requested, frames))
            at += block["size"]
    return found


def peak(snapshot: Dict[str, Any]) -> Dict[int, Tuple[int, List[Block]]]:
    """Returns for each device the most bytes that lived at one time since the record began, and the
    blocks that did. A block is live until the program frees it, as PyTorch counts allocated bytes."""
    at_end: Dict[int, Dict[int, Block]] = {}
    for block in live(snapshot["segments"]):
        at_end.setdefault(block.device, {})[block.address] = block
    return {
        device: _peak(device, events, at_end.get(device, {}))
        for device, events in enumerate(snapshot.get("device_traces") or [])
        if events or device in at_end
    }


def _peak(device: int, events: List[Dict[str, Any]], at_end: Dict[int, Block]) -> Tuple[int, List[Block]]:
    moves = [e for e in events if e["action"] in ("alloc", "free_requested")]
    older: Dict[int, Block] = {}  # what lived before the first event
    made = set()
    for e in moves:
        if e["action"] == "alloc":
            made.add(e["addr"])
        elif e["addr"] not in made and e["addr"] not in older:
            older[e["addr"]] = Block(device, e["addr"], e["size"], [])
    for address, block in at_end.items():
        if address not in made and address not in older:
            older[address] = block

    sizes = {address: block.bytes for address, block in older.items()}
    now = most = sum(sizes.values())
    end = 0  # of the events before the peak
    for i, e in enumerate(moves):
        if e["action"] == "alloc":
            sizes[e["addr"]] = e["size"]
            now += e["size"]
            if now > most:
                most, end = now, i + 1
        else:
            now -= sizes.pop(e["addr"], 0)

    freed = {e["addr"] for e in moves[end:] if e["action"] != "alloc"}
    blocks = dict(older)
    for e in moves[:end]:
        if e["action"] == "alloc":
            blocks[e["addr"]] = Block(device, e["addr"], e["size"], e.get("frames") or [])
        else:
            blocks.pop(e["addr"], None)
    return most, [b._replace(kept=b.address not in freed) for b in blocks.values()]


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
    return [dict(row) for row in answer["live"]]


def snapshot(torch: Any) -> Optional[Dict[str, Any]]:
    """Returns PyTorch's snapshot, None if its allocator has none."""
    try:
        return torch.cuda.memory._snapshot()  # type: ignore[no-any-return]
    except RuntimeError:  # a pluggable allocator, such as that of use()
        return None
