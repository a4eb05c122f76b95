"""Trains a small network with JAX: the losses to the bit, steps a second, memory.

    python train_jax.py

Batches of two sizes take turns, so that buffers of several sizes come and go.
"""

import os
import time

# One algorithm for each operation, whatever else runs on the GPU meanwhile.
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"

import jax
import jax.numpy as jnp
import numpy as np

import talk

WARM, STEPS, WIDTH, LAYERS, BATCHES = 4, 500, 1024, 4, (512, 192)

gpu = jax.devices()[0]
assert gpu.platform == "gpu", gpu
random = np.random.default_rng(37)


def draw(*shape):
    return jax.device_put(random.standard_normal(shape, np.float32))


def loss(weights, x, y):
    for w in weights:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


@jax.jit
def step(weights, moments, losses, i, x, y):
    value, gradients = jax.value_and_grad(loss)(weights, x, y)
    moments = [0.9 * m + g for m, g in zip(moments, gradients)]
    return [w - 0.5 * m for w, m in zip(weights, moments)], moments, losses.at[i].set(value)


weights = [draw(WIDTH, WIDTH) / np.float32(WIDTH**0.5) for _ in range(LAYERS)]
moments = [jnp.zeros_like(w) for w in weights]
data = [(draw(n, WIDTH), jnp.tanh(draw(n, WIDTH))) for n in BATCHES]
losses = jnp.zeros(WARM + STEPS)  # in one block, as many small ones are a page each under vmm


def train(begin, end):
    global weights, moments, losses
    for i in range(begin, end):
        weights, moments, losses = step(weights, moments, losses, i, *data[i % len(data)])
    jax.block_until_ready((weights, losses))


train(0, WARM)
talk.answer(stage="ready", version=jax.__version__)
talk.wait()
begun = time.perf_counter()
train(WARM, WARM + STEPS)
seconds = time.perf_counter() - begun
stats = gpu.memory_stats() or {}  # platform keeps none
talk.answer(
    stage="trained", losses=talk.bits(losses), steps_a_second=STEPS / seconds,
    peak_bytes=stats.get("peak_bytes_in_use", 0), held_bytes=stats.get("peak_pool_bytes", stats.get("pool_bytes", 0)),
)
talk.wait()
