"""What the frameworks of this process count of their memory. Nothing that is not in use begins to be."""

from __future__ import annotations

import os
import sys
from typing import Any, Iterator, List, NamedTuple, Optional

from ._answer import _ask
from ._size import size


class Reading(NamedTuple):
    """A framework's own figures of one GPU, in bytes."""

    framework: str
    device: str  #: as the framework calls it
    in_use: int
    peak: int  #: since the start of the program
    limit: Optional[int]  #: of the framework's pool, None if it does not say

    def __str__(self) -> str:
        of = f" of its limit of {size(self.limit)}" if self.limit else ""
        left = f", which left {size(max(0, self.limit - self.peak))}" if self.limit else ""
        return f"{self.framework} counts {size(self.in_use)} in use on {self.device}{of}, and {size(self.peak)} at its peak{left}"

    def log(self) -> str:
        """Returns the figures as XLA's and TensorFlow's own report of a pool has them."""
        return "".join(f"\n{name}: {n}" for name, n in (("Limit", self.limit), ("InUse", self.in_use)) if n)


def read() -> List[Reading]:
    """Returns the figures of each GPU whose memory JAX or TensorFlow has used. PyTorch and CuPy say theirs
    in the text of an error."""
    found: List[Reading] = []
    for framework in (_jax, _tensorflow):
        try:
            found += framework()
        except Exception:  # a release that has none: what is not counted is not said
            continue
    return [r for r in found if r.peak]


def _jax() -> Iterator[Reading]:
    from .jax import is_used, stats

    for device, s in (stats() if is_used() else {}).items():
        if s.bytes_in_use is not None:
            yield Reading("JAX", device, s.bytes_in_use, s.peak_bytes_in_use or 0, s.bytes_limit)


def _tensorflow() -> Iterator[Reading]:
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    tensorflow: Any = sys.modules.get("tensorflow")
    if tensorflow is None or eager is None or not eager.context()._initialized:  # to list the GPUs would begin to use them
        return
    for device in tensorflow.config.list_logical_devices("GPU"):
        name = device.name.partition("/device:")[2]
        s = tensorflow.config.experimental.get_memory_info(name)
        limit = _limit(tensorflow) if name == "GPU:0" else None
        yield Reading("TensorFlow", name, s["current"], s["peak"], limit if limit and limit >= s["peak"] else None)


def _limit(tensorflow: Any) -> Optional[int]:
    """Returns the limit of TensorFlow's first pool, which it does not say: what the program set, or else
    what the environment makes it."""
    gpu = tensorflow.config.list_physical_devices("GPU")[0]
    own = tensorflow.config.get_logical_device_configuration(gpu)
    if own and own[0].memory_limit:
        return int(own[0].memory_limit) << 20
    processes = [p for d in _ask(["ps"])["devices"] for p in d.get("processes", ()) if p.get("pid") == os.getpid()]
    return next((p["asks"]["limit_bytes"] for p in processes if p.get("asks", {}).get("framework") == "tensorflow"), None)
