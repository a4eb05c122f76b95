"""A few training steps under JAX, and a line of JSON with what they took.

    python jax_step.py [STEPS [WIDTH]]
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
width = int(sys.argv[2]) if len(sys.argv) > 2 else 1024

gpu = jax.devices()[0]
assert gpu.platform == "gpu", gpu


@jax.jit
def train(weights, batch):
    def loss(w):
        hidden = jnp.tanh(batch @ w)
        return jnp.sum(hidden * hidden)

    return weights - 1e-3 * jax.grad(loss)(weights)


batch = jax.device_put(np.ones((width, width), np.float32))
weights = batch
needs = train.lower(weights, batch).compile().memory_analysis()
for _ in range(steps):
    weights = train(weights, batch)
weights.block_until_ready()
stats = gpu.memory_stats() or {}  # platform keeps none
print(json.dumps({
    "framework": "jax " + jax.__version__,
    "steps": steps,
    "temp_bytes": needs.temp_size_in_bytes if needs else None,
    "peak_bytes_in_use": stats.get("peak_bytes_in_use"),
}))
