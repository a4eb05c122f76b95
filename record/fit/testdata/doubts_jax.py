"""Programs of JAX with sizes that depend on values of the GPU, as in doubts.py.

    python doubts_jax.py NAME

Printed is what its rows and those that are kept are in bytes.
"""

import json
import sys

import jax
import jax.numpy as jnp

ROWS, WIDTH = 4096, 256


def mask(x):
    return [x[x[:, 0] > 5] for _ in range(2)]  # nonzero 2


def nonzero(x):
    return [jnp.nonzero(x[:, 0] > 5)[0] for _ in range(2)]  # item 2


def item(x):
    return [jnp.ones((int((x[:, 0] > 5).sum()), WIDTH)) for _ in range(2)]  # item 2


def repeated(x):
    counts = jnp.zeros(4, int) + 3
    return [jnp.repeat(jnp.ones(4), counts) for _ in range(2)]  # item 2


def written(x):
    """Integers of the program's own are as they are, also when kernels ran."""
    lengths = jnp.array([5, 7])
    kept = [x + 1]
    return kept + [jnp.ones((n, WIDTH)) for n in lengths.tolist()]


def compiled(x):
    """Under jit sizes are known."""
    function = jax.jit(lambda x: jnp.nonzero(x[:, 0] > 5, size=100)[0])
    return [function(x) for _ in range(2)]


if __name__ == "__main__":
    x = jnp.ones((ROWS, WIDTH))
    kept = jax.block_until_ready(globals()[sys.argv[1]](x))
    print(json.dumps([k.shape[0] for k in kept]))
