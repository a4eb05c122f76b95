"""What PyTorch's peak is made of, measured beside a training loop.

PyTorch counts its peak. A meter looks at that count at a few places of a step: its begin, in the
backward pass, around the optimizer's step, its end. Where the count has risen between two places,
the peak lies between them, and what is there at both was there at the peak: parameters, gradients,
the optimizer's state. What came between, less those, are inputs, activations and what operations
need for a moment. A gradient or a state that came between the two places may have been there at the
peak or not: it counts as other, as does what was there before the step for no known purpose.

The state is made in the first step of an optimizer, which often has the peak: PyTorch's history of
that one call, without lines, shows what of the state was there.

Nothing is computed on the GPU, and no memory is taken. A look costs some 10 microseconds, and one at
all gradients 100 for a thousand parameters.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any, Deque, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from . import _held, _history

PLACES = 32  # in the backward pass, at most
WINDOW = 40  # steps whose memory is compared
QUARTERS = 4
WARM = 3  # first steps, which make workspaces and the optimizer's state

Bytes = Dict[int, int]  # by device


class Peak(NamedTuple):
    """The most that PyTorch had allocated on one GPU, and what for. The parts add up to bytes."""

    device: int
    bytes: int  #: allocated, as PyTorch rounds it
    parameters: int  #: and buffers
    gradients: int
    optimizer: int  #: the state of optimizers
    activations: int  #: inputs, activations and temporaries: what the step made itself
    other: int  #: what is not known, with the bytes by which PyTorch rounds
    rounding: int  #: by which PyTorch rounded, when the peak was seen
    place: str  #: of the step: "forward", "backward", "optimizer step", "between steps", "before training"
    step: int  #: from 0


class Meter:
    """Measures the steps of one training loop, of a module and its optimizers."""

    def __init__(self, torch: Any, module: Any, optimizers: Iterable[Any]):
        self.torch, self.module = torch, module
        self.optimizers = list(optimizers)
        trained = [p for p in module.parameters() if p.requires_grad and p.is_cuda]
        self.segments = list(_segments(trained))
        self.sharded = any(hasattr(p, "_local_tensor") for p in trained)
        self.devices = sorted({t.device.index for t in module.parameters() if t.is_cuda})
        self.peaks: Dict[int, Peak] = {}
        self.step = 0
        self.after: Dict[int, Deque[int]] = {d: deque(maxlen=WINDOW) for d in self.devices}
        self.held = [0] * len(self.segments)  # gradients at the last place
        self.parameters: Bytes = {}
        self.state: Bytes = {}
        self.states = -1
        self.base: Bytes = {}  # at the step's begin, for no known purpose
        self.in_step = self.in_backward = False
        self.recording: Optional[_history.Use] = None
        self._look_at_state()
        for device, s in self._stats().items():
            self.peaks[device] = Peak(device, s[0], 0, 0, 0, 0, s[0], s[1] - s[2], "before training", 0)
        self.handles = [h for i, s in enumerate(self.segments) for h in [self._watch(i, s[0])] if h is not None]

    def _watch(self, i: int, parameter: Any) -> Any:
        """Looks at the count whenever a gradient is there; releases before 2.1 have no such hook."""
        try:
            return parameter.register_post_accumulate_grad_hook(lambda _: self._in_backward(i))
        except (AttributeError, RuntimeError):
            return None

    def close(self) -> None:
        """Ends it: nothing of the module refers to the meter any more."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        if self.recording:
            self.recording.stop()
            self.recording = None

    # Places.

    def begin(self, inputs: Any = None) -> None:
        """Is called before a step. inputs: what it works on, if that is on the GPU already."""
        self._look("between steps")
        if self.step % 50 == 0:
            self.parameters = self._parameters()
        inside = _sums(_held.storages(_held.nested(inputs, self.torch.Tensor))) if inputs is not None else {}
        gradients = self._by_device()
        for device, (_, allocated, _) in self._stats().items():
            known = self.parameters.get(device, 0) + gradients.get(device, 0) + self.state.get(device, 0)
            self.base[device] = max(0, allocated - known - inside.get(device, 0))
        self.in_step = True

    def at(self, place: str) -> None:
        """Is called at a place of a step; place is what lies before it."""
        self._look(place)

    def before_update(self) -> None:
        """Is called before the optimizer's step, in place of at."""
        self._look("backward")
        if self.optimizers and self.states == 0 and self.step < 8 and not self.recording:
            self.recording = _history.start_plain(self.torch)

    def end(self) -> None:
        """Is called after a step."""
        self._look("optimizer step")
        self.in_step = False
        if self.step >= WARM:
            for device, (_, allocated, _) in self._stats().items():
                self.after[device].append(allocated)
        self.step += 1

    def _in_backward(self, i: int) -> None:
        try:
            self._look("backward", i)
        except Exception:  # training goes on
            self.close()

    def _look(self, place: str, segment: Optional[int] = None) -> None:
        """Compares the count with that of the last place."""
        before = self._by_device(), self.state
        if segment is None or not self.in_backward:
            self._look_at_gradients()
            if segment is not None and _are_new(before[0], self._by_device(), len(self.segments)):
                before = {}, self.state
        else:
            self.held[segment] = self._gradient_bytes(self.segments[segment])
        self.in_backward = segment is not None
        self._look_at_state()
        seen = _history.stop_plain(self.recording) if self.recording else {}
        self.recording = None

        stats = self._stats()
        risen = [device for device in stats if stats[device][0] > self.peaks[device].bytes]
        if risen:
            self._look_at_gradients()
            self._look_at_state(again=True)
        for device in risen:
            peak, allocated, requested = stats[device]
            gradients, state = (_both(pair, device) for pair in zip(before, (self._by_device(), self.state)))
            if device in seen:
                made = sum(n for (d, address), n in self._state().items() if d == device and address in seen[device])
                state = state[0] + made, 0
            self._rise(Peak(device, peak, 0, 0, 0, 0, peak, allocated - requested, place, self.step), gradients, state)

    def _rise(self, peak: Peak, gradients: Tuple[int, int], state: Tuple[int, int]) -> None:
        """Notes a peak. gradients, state: the bytes at both places, and those at only one."""
        self.parameters = self._parameters()
        parameters = self.parameters.get(peak.device, 0)
        known = parameters + gradients[0] + state[0]
        unknown = self.base.get(peak.device, 0) + gradients[1] + state[1]
        activations = max(0, peak.bytes - known - unknown) if self.in_step else 0
        peak = peak._replace(parameters=parameters, gradients=gradients[0], optimizer=state[0])
        self.peaks[peak.device] = peak._replace(activations=activations, other=peak.bytes - known - activations)

    # Figures.

    def _stats(self) -> Dict[int, Tuple[int, int, int]]:
        """Returns the peak, what is allocated now, and what of it was requested."""
        found = {}
        for device in self.devices:
            s = self.torch.cuda.memory_stats_as_nested_dict(device)
            allocated = s["allocated_bytes"]["all"]
            requested = s.get("requested_bytes", {}).get("all", allocated)
            found[device] = allocated["peak"], allocated["current"], requested["current"]
        return found

    def _parameters(self) -> Bytes:
        return _sums(_held.storages(itertools.chain(self.module.parameters(), self.module.buffers())))

    def _look_at_gradients(self) -> None:
        self.held = [self._gradient_bytes(s) for s in self.segments]

    def _gradient_bytes(self, parameters: List[Any]) -> int:
        gradients = [g for p in parameters for g in [p.grad] if g is not None]
        try:
            if not self.sharded:  # a DTensor's nbytes are those of all ranks
                return sum([g.nbytes for g in gradients])
        except (AttributeError, RuntimeError, NotImplementedError):  # sparse
            pass
        return sum(_held.storages(gradients).values())

    def _by_device(self) -> Bytes:
        sums: Bytes = {}
        for s, n in zip(self.segments, self.held):
            sums[s[0].device.index] = sums.get(s[0].device.index, 0) + n
        return sums

    def _look_at_state(self, again: bool = False) -> None:
        """Sums the state of the optimizers, if it is of more parameters than before, or again."""
        states = [getattr(o, "state", None) or {} for o in self.optimizers]
        count = sum(len(s) for s in states)
        if again or count != self.states:
            self.state, self.states = _sums(self._state()), count

    def _state(self) -> Dict[_held.Key, int]:
        states = [getattr(o, "state", None) or {} for o in self.optimizers]
        return _held.storages(t for s in states for each in list(s.values()) for t in _held.nested(each, self.torch.Tensor))

    def growth(self, device: int) -> int:
        """Returns by how many bytes a step what is left after it grows; 0 if that is not so for all of
        the last steps. The least of each quarter of them is compared, so that a step that leaves more,
        such as one with a longer input, is no growth."""
        after = list(self.after[device])
        quarter = len(after) // QUARTERS
        if quarter < 4:
            return 0
        floors = [min(after[i * quarter : (i + 1) * quarter]) for i in range(QUARTERS)]
        return max(0, min(b - a for a, b in zip(floors, floors[1:])) // quarter)

    def largest(self) -> Optional[Peak]:
        """Returns the peak of the GPU that has the highest; None without a GPU."""
        return max(self.peaks.values(), key=lambda p: p.bytes, default=None)

    def metrics(self) -> Dict[str, int]:
        """Returns the figures for a log, of the GPU that has the highest peak."""
        peak = self.largest()
        if peak is None:
            return {}
        reserved = self.torch.cuda.max_memory_reserved(peak.device)
        return {
            "gpumem/peak_bytes": peak.bytes,
            "gpumem/peak_parameters_bytes": peak.parameters,
            "gpumem/peak_gradients_bytes": peak.gradients,
            "gpumem/peak_optimizer_bytes": peak.optimizer,
            "gpumem/peak_activations_bytes": peak.activations,
            "gpumem/peak_other_bytes": peak.other,
            "gpumem/rounding_bytes": peak.rounding,
            "gpumem/peak_reserved_bytes": reserved,
            "gpumem/growth_bytes_per_step": self.growth(peak.device),
        }


def _segments(parameters: List[Any]) -> Iterator[List[Any]]:
    """Cuts parameters into runs of similar size, each on one device. The gradients of a run come, as
    a rule, one after another, that of the first parameter last."""
    total = sum(p.nbytes for p in parameters)
    run: List[Any] = []
    size = 0
    for p in parameters:
        if run and (size + p.nbytes > total / (PLACES - 1) or p.device != run[0].device):
            yield run
            run, size = [], 0
        run.append(p)
        size += p.nbytes
    if run:
        yield run


def _are_new(before: Bytes, now: Bytes, segments: int) -> bool:
    """Reports whether gradients at the first place of a backward pass may not be those at the place
    before it: they were dropped between the two."""
    return segments == 1 or any(now.get(device, 0) < n for device, n in before.items())


def _sums(storages: Dict[_held.Key, int]) -> Bytes:
    sums: Bytes = {}
    for (device, _), n in storages.items():
        sums[device] = sums.get(device, 0) + n
    return sums


def _both(pair: Tuple[Bytes, Bytes], device: int) -> Tuple[int, int]:
    """Returns what is there at both of two places, and what only at one."""
    a, b = (sums.get(device, 0) for sums in pair)
    return min(a, b), abs(a - b)
