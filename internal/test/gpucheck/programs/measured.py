"""Runs another program of this folder and prints what its framework's pool says then, as a line of
JSON. It ends when its input does, so that what it holds can be looked at.

    python measured.py PROGRAM ARGUMENTS...
"""

import json
import os
import runpy
import sys


def pool():
    """The most in use, the most held, and what is held now, in bytes."""
    if "torch" in sys.modules:
        import torch

        stats = torch.cuda.memory_stats()
        return [stats[name] for name in ("allocated_bytes.all.peak", "reserved_bytes.all.peak", "reserved_bytes.all.current")]
    import jax

    stats = jax.local_devices()[0].memory_stats()
    return [stats[name] for name in ("peak_bytes_in_use", "peak_pool_bytes", "pool_bytes")]


sys.argv = sys.argv[1:]
kept = runpy.run_path(os.path.join(os.path.dirname(os.path.abspath(__file__)), sys.argv[0]), run_name="__main__")
print(json.dumps(dict(zip(("in_use_peak", "held_peak", "held"), pool()))), flush=True)
sys.stdin.read()
