"""Makes jax0102.pprof: python make_profile.py jax0102.pprof

JAX 0.10.2 on two devices of the CPU. The first has four weights of 262,144 bytes after
three steps and a batch of 32,768 bytes, the second 1,000 bytes.
"""
import os, sys
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
os.environ["JAX_PLATFORMS"] = "cpu"
import jax, jax.numpy as jnp
import jax.profiler

def make(key, device):
    return jax.device_put([jax.random.normal(k, (256, 256)) for k in jax.random.split(key, 4)], device)

@jax.jit
def step(weights, x):
    def loss(weights):
        h = x
        for w in weights:
            h = jnp.tanh(h @ w)
        return jnp.mean(h * h)
    return [w - 0.1 * g for w, g in zip(weights, jax.grad(loss)(weights))]

one, two = jax.devices()
weights = make(jax.random.key(0), one)       # four blocks of 262,144 bytes
batch = jax.device_put(jnp.ones((32, 256)), one)   # 32,768 bytes
other = jax.device_put(jnp.ones((1000,), jnp.int8), two)
for _ in range(3):
    weights = step(weights, batch)
jax.block_until_ready(weights)
jax.profiler.save_device_memory_profile(sys.argv[1])
