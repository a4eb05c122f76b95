#!/usr/bin/env python3
"""Writes the profiles and dumps of real frameworks beside this file.

    python3 make_profiles.py tensorflow    tensorflow.xplane.pb, tensorflow.memdump
    python3 make_profiles.py jax           jax.pprof

Made with tensorflow-cpu 2.21.0 and jax 0.10.2 on Python 3.11, without a GPU:
TensorFlow can use its GPU allocator for the CPU's memory. Addresses and times
differ from run to run, so the tests must not know them.
"""

import glob
import os
import shutil
import sys
import tempfile


def tensorflow():
    tmp = tempfile.mkdtemp(prefix="profile")
    os.environ.update(
        TF_CPU_ALLOCATOR_USE_BFC="1",
        TF_CPU_BFC_MEM_LIMIT_IN_MB="300",
        TF_BFC_MEMORY_DUMP=tmp + "/dump",
    )
    import tensorflow as tf

    # The profile: five blocks are older, and two of them are freed in it.
    a = tf.random.uniform((100, 1000))
    old = [tf.random.uniform((10 * n, 1000)) for n in range(1, 6)]
    tf.profiler.experimental.start(tmp)
    for _ in range(3):
        b = tf.matmul(a, a, transpose_b=True)
        c = tf.nn.relu(b)
    old = old[::2]
    tf.profiler.experimental.stop()
    (name,) = glob.glob(tmp + "/plugins/profile/*/*.xplane.pb")
    shutil.copy(name, "tensorflow.xplane.pb")

    # The dump: every second block is freed, then one is asked for that is
    # larger than any hole.
    del a, b, c, old
    keep = [tf.random.uniform((100 * n, 1000)) for n in range(1, 20)]
    keep = keep[::2]
    try:
        for _ in range(3):
            keep.append(tf.random.uniform((60000, 1000)))
        sys.exit("no request was refused")
    except tf.errors.ResourceExhaustedError:
        pass
    shutil.copy(sorted(glob.glob(tmp + "/dump_*"))[-1], "tensorflow.memdump")
    shutil.rmtree(tmp)


def jax():
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
    import jax
    import jax.numpy as jnp

    first, second = jax.devices()

    def batch(n):
        return jnp.zeros((n, 1000), jnp.float32, device=second)

    step = jax.jit(lambda x: x @ x.T)
    weights = [jax.device_put(jnp.ones((100, 1000), jnp.float32), first) for _ in range(3)]
    batches = [batch(10), batch(20)]
    out = step(weights[0])
    jax.profiler.save_device_memory_profile("jax.pprof")


{"tensorflow": tensorflow, "jax": jax}[sys.argv[1]]()
