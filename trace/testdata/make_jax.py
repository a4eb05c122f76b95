#!/usr/bin/env python3
"""Writes jax092.memdump, jax092.prof and jax092.log.gz beside itself.

JAX 0.9.2 with its GPU plugin, both real and unchanged, on a machine without a
GPU: policy/testdata/xla/libcuda.c stands in for the driver. To do it again:

    pip install jax==0.9.2 && pip install --no-deps jax-cuda12-plugin==0.9.2 jax-cuda12-pjrt==0.9.2
    gcc -O1 -shared -fPIC -fvisibility=hidden -o lib/libcuda.so.1 libcuda.c -lpthread
    cp lib/libcuda.so.1 lib/libcudart.so.12; cp lib/libcuda.so.1 lib/libnvidia-ml.so.1
    LD_LIBRARY_PATH=lib STANDIN_TOTAL=1000000000 STANDIN_FREE=1000000000 STANDIN_CC=80 \\
        STANDIN_LOG=calls JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python3 make_jax.py

Addresses and times differ from run to run, so tests must not know them.
"""

import glob
import gzip
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(os.path.abspath(__file__)).parent


def program(profile):
    """Fills the pool, with every third array freed on the way, until one does not fit."""
    import jax
    import numpy as np
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for /dev/nvidia0
    keep = []
    for i in range(1, 100):
        keep.append(jax.device_put(np.zeros(i * 100000, np.uint8)).block_until_ready())
        if i % 3 == 0:
            keep[i // 3].delete()
        if i == 9:
            jax.profiler.save_device_memory_profile(profile)


def main():
    with tempfile.TemporaryDirectory() as tmp:
        env = dict(os.environ, JAX_PLATFORMS="cuda", XLA_PYTHON_CLIENT_MEM_FRACTION=".02", TF_BFC_MEMORY_DUMP=tmp + "/dump",
                   TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="bfc_allocator=4")
        with open(tmp + "/log", "wb") as log:
            subprocess.run([sys.executable, __file__, str(HERE / "jax092.prof")], env=env, stderr=log)
        with open(HERE / "jax092.log.gz", "wb") as f, gzip.GzipFile("", "wb", 9, f, 0) as z:
            z.write(pathlib.Path(tmp, "log").read_bytes())
        last = sorted(glob.glob(tmp + "/dump_GPU_0_bfc.*"))[-1]
        (HERE / "jax092.memdump").write_bytes(pathlib.Path(last).read_bytes())


if __name__ == "__main__":
    program(sys.argv[1]) if len(sys.argv) > 1 else main()
