"""Trains with JAX, and keeps the output of each step by mistake."""

import jax
import jax.numpy as jnp

history = []


@jax.jit
def train_step(weights, x):
    y = jnp.tanh(x @ weights)
    return weights - 1e-3 * (x.T @ (y - x)), y


def train(steps):
    weights = jax.random.normal(jax.random.key(0), (1024, 1024))
    for step in range(steps):
        x = jax.random.normal(jax.random.key(step), (4096, 1024))
        weights, y = train_step(weights, x)
        history.append(y)
    return weights


if __name__ == "__main__":
    print("a weight:", train(100)[0, 0])
