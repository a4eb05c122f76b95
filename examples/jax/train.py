"""Trains a small network for twenty steps with JAX: python train.py [BATCH]."""

import sys

import jax
import jax.numpy as jnp

batch = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
width, layers = 4096, 12


def loss(weights, x):
    y = x
    for w in weights:
        y = jax.nn.gelu(y @ w)
    return jnp.mean((y - x) ** 2)


@jax.jit
def train_step(weights, x):
    return [w - 1e-3 * g for w, g in zip(weights, jax.grad(loss)(weights, x))]


def train(steps):
    weights = [jax.random.normal(key, (width, width)) for key in jax.random.split(jax.random.key(0), layers)]
    for step in range(steps):
        x = jax.random.normal(jax.random.key(step), (batch, width))
        weights = train_step(weights, x)
    return weights


if __name__ == "__main__":
    print("a weight:", train(20)[0][0, 0])
