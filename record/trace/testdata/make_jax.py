#!/usr/bin/env python3
"""Writes jax092.memdump, jax092.pprof, jax092.log.gz and jax092.xplane.pb.gz beside itself.

JAX 0.9.2 with its GPU plugin, both real and unchanged, on a machine without a
GPU: policy/frameworks/testdata/xla/libcuda.c stands in for the driver. To do it again:

    pip install jax==0.9.2 && pip install --no-deps jax-cuda12-plugin==0.9.2 jax-cuda12-pjrt==0.9.2
    gcc -O1 -shared -fPIC -fvisibility=hidden -o lib/libcuda.so.1 libcuda.c -lpthread
    cp lib/libcuda.so.1 lib/libcudart.so.12; cp lib/libcuda.so.1 lib/libnvidia-ml.so.1
    LD_LIBRARY_PATH=lib STANDIN_TOTAL=1000000000 STANDIN_FREE=1000000000 STANDIN_CC=80 \\
        STANDIN_LOG=calls JAX_SKIP_CUDA_CONSTRAINTS_CHECK=1 python3 make_jax.py

The profiler also wants lib/libcupti.so.12: one in which every cupti function that
the plugin names returns 0, cuptiSubscribe fills its first argument, and
cuptiActivityGetNextRecord returns 12, "no more".

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


def program(folder):
    """Fills the pool, with every third array freed on the way, until one does not fit."""
    import jax
    import numpy as np
    from jax._src import hardware_utils

    hardware_utils.has_visible_nvidia_gpu = lambda: True  # it looks for /dev/nvidia0
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0
    keep = []
    for i in range(1, 100):
        if i == 5:
            jax.profiler.start_trace(folder, profiler_options=options)
        keep.append(jax.device_put(np.zeros(i * 100000, np.uint8)).block_until_ready())
        if i % 3 == 0:
            keep[i // 3].delete()
        if i == 9:
            jax.profiler.stop_trace()
            jax.profiler.save_device_memory_profile(folder + "/prof")


def main():
    with tempfile.TemporaryDirectory() as tmp:
        env = dict(os.environ, JAX_PLATFORMS="cuda", XLA_PYTHON_CLIENT_MEM_FRACTION=".02", TF_BFC_MEMORY_DUMP=tmp + "/dump",
                   TF_CPP_MIN_LOG_LEVEL="0", TF_CPP_VMODULE="bfc_allocator=4")
        with open(tmp + "/log", "wb") as log:
            subprocess.run([sys.executable, __file__, tmp], env=env, stderr=log)
        for pattern, name in ("dump_GPU_0_bfc.*", "memdump"), ("prof", "pprof"), ("log", "log.gz"), ("plugins/profile/*/*.xplane.pb", "xplane.pb.gz"):
            data = pathlib.Path(sorted(glob.glob(tmp + "/" + pattern))[-1]).read_bytes()
            (HERE / ("jax092." + name)).write_bytes(gzip.compress(data, 9, mtime=0) if name.endswith(".gz") else data)


if __name__ == "__main__":
    program(sys.argv[1]) if len(sys.argv) > 1 else main()
