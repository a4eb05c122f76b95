"""Fits a matrix with CuPy, by products and elementwise operations: the losses to the bit, steps a
second, memory.

    python train_cupy.py
"""

import time

import cupy
import numpy as np

import talk

WARM, STEPS, WIDTH, BATCHES = 4, 500, 1024, (512, 192)

random = np.random.default_rng(37)
data = [tuple(cupy.asarray(random.standard_normal((n, WIDTH), np.float32)) for _ in range(2)) for n in BATCHES]
weights = cupy.zeros((WIDTH, WIDTH), cupy.float32)
losses = cupy.zeros(WARM + STEPS, cupy.float32)


def train(begin, end):
    global weights
    for i in range(begin, end):
        x, y = data[i % len(data)]
        error = cupy.tanh(x @ weights) - y
        losses[i] = (error * error).mean()
        weights = weights - np.float32(1e-4) * (x.T @ error)
    cupy.cuda.get_current_stream().synchronize()


train(0, WARM)
talk.answer(stage="ready", version=cupy.__version__)
talk.wait()
begun = time.perf_counter()
train(WARM, WARM + STEPS)
seconds = time.perf_counter() - begun
pool = cupy.get_default_memory_pool()
talk.answer(
    stage="trained", losses=talk.bits(losses), steps_a_second=STEPS / seconds,
    peak_bytes=0, held_bytes=pool.total_bytes(),  # it keeps no peak of what is in use, and all that it took
)
talk.wait()
