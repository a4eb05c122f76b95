"""Callbacks for the training loops of Lightning and transformers, on one meter.

Their base classes are imported when a callback is made. Whatever goes wrong in one is said once, in
the log of the module logging under the name gpumem, and ends the callback, not the training.
"""

from __future__ import annotations

import functools
import importlib
import logging
import os
import sys
from contextlib import ExitStack
from typing import Any, Callable, Dict, List, Optional, Union

from . import _held, _meter
from ._size import size

log = logging.getLogger("gpumem")

BETWEEN = 8  # steps between two looks at what grows
LOOKS = 3  # at what grows, at most


def check(history: Union[str, os.PathLike[str], None]) -> None:
    """Raises an OSError if a recording could not be written to history. Nothing is made."""
    if history is None:
        return
    from ._record import check_new

    check_new(os.fspath(history))


class Training:
    """What both callbacks do."""

    def __init__(self, history: Union[str, os.PathLike[str], None]):
        self.history = history
        self.broken = False
        self.meter: Optional[_meter.Meter] = None
        self.cleanup = ExitStack()
        self.looks: List[Dict[int, _held.Container]] = []
        self.next_look = 0
        self.told = False

    def start(self, module: Any, optimizers: List[Any]) -> None:
        torch = sys.modules["torch"]

        self.stop()
        if not torch.cuda.is_initialized():
            return
        self.meter = _meter.Meter(torch, module, optimizers)
        self.cleanup.callback(self.meter.close)
        self.looks, self.next_look, self.told = [], 0, False
        if self.history is not None:
            from ._record import record

            try:
                self.cleanup.enter_context(record(self.history, "torch"))
            except (OSError, RuntimeError) as e:  # a second training with the same file, cudaMallocAsync
                log.warning("gpumem: no history of this training is recorded: %s", e)

    def stop(self) -> None:
        """Ends what start began; the meter's figures stay."""
        self.cleanup.close()

    def end_step(self) -> None:
        if self.meter is not None:
            self.meter.end()
            self.look_at_growth(self.meter)

    def look_at_growth(self, meter: _meter.Meter) -> None:
        """Says once which container grows. It is looked at twice, because one that is large may not
        be one that grows."""
        peak = meter.largest()
        if self.told or peak is None or meter.step < self.next_look:
            return
        growth = meter.growth(peak.device)
        if growth == 0:
            self.looks = []
            return
        with _held.Program(meter.torch) as program:
            self.looks.append({c.identity: c for c in program.containers(growth * BETWEEN // 2)})
        self.next_look = meter.step + BETWEEN
        if len(self.looks) > 1:
            found = _grown(self.looks[-2], self.looks[-1], growth * BETWEEN)
            if found or len(self.looks) > LOOKS:
                self.told = True
                log.warning("%s", _growth_text(meter, peak.device, growth, found))


def _grown(before: Dict[int, _held.Container], after: Dict[int, _held.Container], growth: int) -> Optional[_held.Container]:
    """Returns the container that has at least half of a growth."""
    more = {i: c.bytes - before[i].bytes if i in before else 0 for i, c in after.items()}
    largest = max(more, key=lambda i: more[i], default=None)
    return after[largest] if largest is not None and more[largest] * 2 >= growth else None


def _growth_text(meter: _meter.Meter, device: int, growth: int, found: Optional[_held.Container]) -> str:
    torch = meter.torch
    left = torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    text = f"gpumem: cuda:{device} has {size(growth)} more after each step, and room for about {left // growth:,} more steps"
    return f"{text}; what grows: {found}" if found else f"{text}; what keeps it is unknown"


def _safely(method: Callable[..., None]) -> Callable[..., None]:
    """Makes an error in a callback's method the end of the callback."""

    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> None:
        training: Training = self._training
        if training.broken:
            return
        try:
            method(self, *arguments, **named)
        except Exception as e:
            training.broken = True
            log.warning("gpumem: the callback has ended, and the training goes on: %s: %s", type(e).__name__, e)
            try:
                training.stop()
            except Exception:
                pass

    return call


class _Measured:
    """The part of a callback that programs may use."""

    _training: Training

    @property
    def peaks(self) -> Dict[int, _meter.Peak]:
        """The peak of each GPU, by its number, and what it is made of."""
        meter = self._training.meter
        return dict(meter.peaks) if meter else {}

    def metrics(self) -> Dict[str, int]:
        """Returns the figures that are logged."""
        meter = self._training.meter
        return meter.metrics() if meter else {}


def lightning(history: Union[str, os.PathLike[str], None]) -> Any:
    names = [n for n in ("lightning.pytorch", "pytorch_lightning") if n in sys.modules]
    if not names:
        names = [n for n in ("lightning.pytorch", "pytorch_lightning") if _is_there(n)][:1]
    if not names:
        raise ImportError("gpumem.torch.LightningCallback() is for lightning or pytorch_lightning, and neither is installed")
    bases = [importlib.import_module(n).Callback for n in names]

    class LightningCallback(_Measured, *bases):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._training = Training(history)

        def __reduce__(self) -> Any:  # the class has no name that a pickle could find it by
            return lightning, (history,)

        @_safely
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self._training.start(pl_module, trainer.optimizers)

        @_safely
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, *rest: Any) -> None:
            if self._training.meter:
                self._training.meter.begin(batch)

        @_safely
        def on_before_zero_grad(self, *_: Any) -> None:
            self._at("forward")

        @_safely
        def on_before_backward(self, *_: Any) -> None:
            self._at("forward")

        @_safely
        def on_after_backward(self, *_: Any) -> None:
            self._at("backward")

        @_safely
        def on_before_optimizer_step(self, *_: Any) -> None:
            if self._training.meter:
                self._training.meter.before_update()

        def _at(self, place: str) -> None:
            if self._training.meter:
                self._training.meter.at(place)

        @_safely
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            self._training.end_step()
            if getattr(trainer._logger_connector, "should_update_logs", True):
                import torch

                # As a tensor of the host: a number would become one of the GPU, in float32.
                for name, n in self.metrics().items():
                    pl_module.log(name, torch.tensor(n, dtype=torch.float64), on_step=True, on_epoch=False, batch_size=1)

        @_safely
        def on_train_end(self, *_: Any) -> None:
            self._training.stop()

        @_safely
        def on_exception(self, *_: Any) -> None:
            self._training.stop()

    return LightningCallback()


def _is_there(name: str) -> bool:
    from importlib.util import find_spec

    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def transformers(history: Union[str, os.PathLike[str], None]) -> Any:
    base: Any = importlib.import_module("transformers").TrainerCallback

    class TrainerCallback(_Measured, base):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self._training = Training(history)

        def __reduce__(self) -> Any:
            return transformers, (history,)

        @_safely
        def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **rest: Any) -> None:
            _go_first(self)
            self._training.start(model, [optimizer] if optimizer is not None else [])

        @_safely
        def on_step_begin(self, *_: Any, **rest: Any) -> None:
            if self._training.meter:
                self._training.meter.begin()

        def _at(self, place: str) -> None:
            if self._training.meter:
                self._training.meter.at(place)

        @_safely
        def on_substep_end(self, *_: Any, **rest: Any) -> None:
            self._at("backward")

        @_safely
        def on_pre_optimizer_step(self, *_: Any, **rest: Any) -> None:
            if self._training.meter:
                self._training.meter.before_update()

        @_safely
        def on_optimizer_step(self, *_: Any, **rest: Any) -> None:
            self._at("optimizer step")

        @_safely
        def on_step_end(self, *_: Any, **rest: Any) -> None:
            self._training.end_step()

        @_safely
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
            if logs and not any(name.startswith(("eval_", "test_")) for name in logs):
                logs.update(self.metrics())
                if state.log_history:  # which has a copy
                    state.log_history[-1].update(self.metrics())

        @_safely
        def on_train_end(self, *_: Any, **rest: Any) -> None:
            self._training.stop()

    return TrainerCallback()


def _go_first(callback: Any) -> None:
    """Moves a callback to the head of the Trainer's list, whose reporters (TensorBoard and others)
    stand before it and would not see what it adds to the log. The list is that of the handler that
    is calling. Callbacks behind this one keep their places, so that none is left out of this event."""
    frame = sys._getframe(1)
    while frame is not None:
        callbacks = getattr(frame.f_locals.get("self"), "callbacks", None)
        if isinstance(callbacks, list) and any(c is callback for c in callbacks):
            callbacks.insert(0, callbacks.pop(next(i for i, c in enumerate(callbacks) if c is callback)))
            return
        frame = frame.f_back  # type: ignore[assignment]
