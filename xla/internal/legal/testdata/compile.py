"""Compiles programs with plans inside.

compile.py dump DIR writes each program's module as the compiler has it after scheduling, as
DIR/PROGRAM.pb. compile.py take DIR reads plans as texts, DIR/PROGRAM.*.hlo, hands each to the
compiler in place of the program's module, runs both, and prints a line for each plan: its
file, "taken" and the bytes of temporaries without and with it, or what went wrong.
"""

import glob
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import xla
from jaxlib import _hlo

N = 128


def layer(x, w):
    return jax.nn.gelu(x @ w)


def loss(ws, x):
    for w in ws:
        x = layer(x, w)
    return (x * x).sum()


def step(ws, x):
    return [w - 0.01 * g for w, g in zip(ws, jax.grad(loss)(ws, x))]


def scan_loss(ws, x):
    return lax.scan(lambda x, w: (layer(x, w), None), x, ws)[0].sum()


def scan_step(ws, x):
    return ws - 0.01 * jax.grad(scan_loss)(ws, x)


def update(p, x):
    a = jnp.exp(p)
    b = jnp.sin(a)
    d = lax.dynamic_update_slice(p, a[:1] + x[:1], (3, 0))
    y = jnp.cumsum(jnp.sort(b, axis=1), axis=0) * jnp.exp(b) * a
    return d, y


def conditional(p, x):
    a = jnp.exp(x)
    b = jnp.tanh(a @ x)
    c = lax.cond(p[0, 0] > 0, lambda v: jnp.sort(v, axis=0), lambda v: v @ v, b)
    return p + c, jnp.sin(a) * c + b


def loop(p, x):
    def body(i, s):
        a, b = s
        u = jnp.sin(a @ x)
        v = jnp.cos(u @ x)
        a = lax.dynamic_update_slice(a, v[:1], (i, 0))
        return a, b + v * u

    a, b = lax.fori_loop(0, 5, body, (p, x))
    return a, b @ jnp.exp(x)


def data(seed, *shape):
    return jnp.asarray(np.random.default_rng(seed).standard_normal(shape) * 0.1, jnp.float32)


PROGRAMS = {
    "mlp": (jax.jit(jax.grad(loss)), lambda: ([data(k, N, N) for k in range(8)], data(9, 4 * N, N))),
    "mlp_donated": (jax.jit(step, donate_argnums=0), lambda: ([data(k, N, N) for k in range(8)], data(9, 4 * N, N))),
    "scan": (jax.jit(jax.grad(scan_loss)), lambda: (data(0, 8, N, N), data(9, 4 * N, N))),
    "scan_donated": (jax.jit(scan_step, donate_argnums=0), lambda: (data(0, 8, N, N), data(9, 4 * N, N))),
    "update_donated": (jax.jit(update, donate_argnums=0), lambda: (data(0, 4 * N, N), data(1, 4 * N, N))),
    "conditional": (jax.jit(conditional), lambda: (data(0, N, N), data(1, N, N))),
    "conditional_donated": (jax.jit(conditional, donate_argnums=0), lambda: (data(0, N, N), data(1, N, N))),
    "loop_donated": (jax.jit(loop, donate_argnums=(0, 1)), lambda: (data(0, N, N), data(1, N, N))),
}

replacement = None  # text of the plan that takes the place of the next module
seen = None


def callback(module):
    global seen
    seen = module
    if replacement is not None:
        return _hlo.hlo_module_from_text(replacement).as_serialized_hlo_module_proto()


xla.register_hlo_module_transformation(callback, name="plans", stage=xla.PipelineStage.POST_SCHEDULER)


def run(f, arguments, plan=None):
    global replacement
    arguments = arguments()  # making them compiles something, too
    lowered = f.lower(*arguments)
    replacement = plan
    try:
        compiled = lowered.compile()
    finally:
        replacement = None
    module = seen
    out = [np.asarray(x) for x in jax.tree.leaves(compiled(*arguments))]
    return out, compiled.memory_analysis().temp_size_in_bytes, module


def main(mode, folder):
    for name, (f, arguments) in PROGRAMS.items():
        want, before, module = run(f, arguments)
        if mode == "dump":
            with open(os.path.join(folder, name + ".pb"), "wb") as file:
                file.write(module)
            continue
        for plan in sorted(glob.glob(os.path.join(folder, name + ".*.hlo"))):
            jax.clear_caches()
            with open(plan) as file:
                text = file.read()
            try:
                got, after, _ = run(f, arguments, text)
                same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(want, got))
                print(os.path.basename(plan), "taken" if same else "differs", before, after)
            except Exception as e:  # whatever the compiler has to say
                print(os.path.basename(plan), "refused", str(e).splitlines()[0])


main(*sys.argv[1:])
