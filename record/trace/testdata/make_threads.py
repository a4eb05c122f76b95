#!/usr/bin/env python3
"""Writes jax012.log.gz beside itself.

Three threads put arrays on the GPU and delete them, in JAX 0.10.2 with the GPU plugin
of 0.12.0, on the stand-in of make_jax.py, whose variables this wants, too, and
XLA_PYTHON_CLIENT_PREALLOCATE=false TF_CPP_MIN_LOG_LEVEL=0 TF_CPP_VMODULE=bfc_allocator=4.
The plugin's library takes the place of that of jax-cuda12-pjrt 0.10.2.

Kept are the allocator's lines of each allocation and free and those that it writes under
its lock, as docs/recording.md says. The order of the lines is another in each run.
"""

import gzip
import os
import pathlib
import random
import re
import subprocess
import sys
import threading

HERE = pathlib.Path(os.path.abspath(__file__)).parent
KEPT = re.compile(rb"mem-debug|\] (Returning|F): ")


def work(seed):
    import jax
    import numpy as np

    r, keep = random.Random(seed), []
    for _ in range(60):
        size = r.choice([r.randrange(1, 2000), r.randrange(1, 200000), r.randrange(1, 2000000), 4096 * r.randrange(1, 20)])
        keep.append(jax.device_put(np.zeros(size, np.uint8)))
        while len(keep) > 20 or (keep and r.random() < 0.45):
            keep.pop(r.randrange(len(keep))).delete()
    for x in keep:
        x.delete()


def program():
    import jax
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for /dev/nvidia0
    jax.devices()
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


def main():
    log = subprocess.run([sys.executable, __file__, "run"], stderr=subprocess.PIPE).stderr
    kept = b"".join(line for line in log.splitlines(keepends=True) if KEPT.search(line))
    (HERE / "jax012.log.gz").write_bytes(gzip.compress(kept, 9, mtime=0))


if __name__ == "__main__":
    program() if len(sys.argv) > 1 else main()
