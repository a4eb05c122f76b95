"""Compiles programs with JAX for the GPU, runs none, and writes of each into a folder

    NAME.hlo         the compiled module, as text
    NAME.before.hlo  the module before XLA's passes
    NAME.json        what XLA's statistics say of it

    python compile.py FOLDER [NAME...]
"""

import functools
import json
import os
import sys

import jax
import jax.numpy as jnp

f32, bf16 = jnp.float32, jnp.bfloat16


def shape(*dims, dtype=f32):
    return jax.ShapeDtypeStruct(dims, dtype)


def sgd(loss, p, g):
    return jax.tree.map(lambda a, b: a - 1e-3 * b.astype(a.dtype), p, g)


def step(loss, donate=False):
    def f(p, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        return sgd(loss, p, g), value
    return jax.jit(f, donate_argnums=(0,) if donate else ())


def adam(loss):
    def f(p, m, v, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        m = jax.tree.map(lambda a, b: .9 * a + .1 * b.astype(a.dtype), m, g)
        v = jax.tree.map(lambda a, b: .999 * a + .001 * (b * b).astype(a.dtype), v, g)
        p = jax.tree.map(lambda a, m, v: a - (1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(a.dtype), p, m, v)
        return p, m, v, value
    return jax.jit(f, donate_argnums=(0, 1, 2))


def dense(p, x):
    for w in p:
        x = jnp.tanh(x @ w)
    return (x * x).sum()


def norm(x):
    y = x.astype(f32)
    return ((y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def block(x, w, heads=8):
    b, t, d = x.shape
    q, k, v = (norm(x) @ w["qkv"]).reshape(b, t, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
    a = jax.nn.softmax((q @ k.swapaxes(-1, -2)).astype(f32) / (d // heads) ** .5).astype(x.dtype)
    x = x + (a @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ w["out"]
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def weights(layers, d, dtype=f32):
    return [{"qkv": shape(d, 3 * d, dtype=dtype), "out": shape(d, d, dtype=dtype), "up": shape(d, 4 * d, dtype=dtype), "down": shape(4 * d, d, dtype=dtype)} for _ in range(layers)]


def transformer(p, ids, remat=False):
    f = jax.checkpoint(block) if remat else block
    x = p["embed"][ids]
    for w in p["blocks"]:
        x = f(x, w)
    logits = (norm(x) @ p["embed"].T).astype(f32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits[:, :-1]), ids[:, 1:, None], -1).mean()


def stack(p, x, remat):
    f = lambda x, w: (block(x, w), None)
    return jax.lax.scan(jax.checkpoint(f) if remat else f, x, p)[0].astype(f32).sum()


def convolutions(p, x):
    for i, w in enumerate(p):
        x = jax.nn.relu(jax.lax.conv_general_dilated(x, w, (1 + i % 2,) * 2, "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")))
    return (x * x).mean()


def lstm(p, x):
    def f(state, x):
        h, c = state
        i, g, o, u = jnp.split(jnp.concatenate([x, h], -1) @ p, 4, -1)
        c = jax.nn.sigmoid(g) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None
    zero = jnp.zeros((x.shape[1], p.shape[1] // 4))
    return jax.lax.scan(f, (zero, zero), x)[0][0].sum()


ids = shape(8, 512, dtype=jnp.int32)
model = {"embed": shape(16000, 512), "blocks": weights(4, 512)}
half = jax.tree.map(lambda s: shape(*s.shape, dtype=bf16), model)
stacked = jax.tree.map(lambda s: shape(6, *s.shape), weights(1, 512)[0])
table = jnp.arange(1 << 20, dtype=f32)

PROGRAMS = {
    "mlp": (step(dense), [shape(2048, 2048)] * 6, shape(4096, 2048)),
    "mlp_donated": (step(dense, True), [shape(2048, 2048)] * 6, shape(4096, 2048)),
    "mlp_adam": (adam(dense), *[[shape(2048, 2048)] * 4] * 3, shape(1024, 2048)),
    "transformer_adam": (adam(transformer), model, model, model, ids),
    "transformer_bf16": (step(transformer, True), half, ids),
    "transformer_remat": (adam(functools.partial(transformer, remat=True)), model, model, model, ids),
    "transformer_forward": (jax.jit(transformer), model, ids),
    "scan": (step(functools.partial(stack, remat=False), True), stacked, shape(4, 512, 512)),
    "scan_remat": (step(functools.partial(stack, remat=True), True), stacked, shape(4, 512, 512)),
    "convolutions": (step(convolutions), [shape(3, 3, 32, 32)] * 5, shape(32, 96, 96, 32)),
    "lstm": (step(lstm), shape(1024, 2048), shape(128, 64, 512)),
    "long_attention": (jax.jit(lambda x, w: block(x, w)), shape(1, 4096, 512, dtype=bf16), weights(1, 512, bf16)[0]),
    "embedding": (step(lambda p, i: (p["table"][i] @ p["out"]).sum(), True), {"table": shape(200000, 128), "out": shape(128, 10)}, shape(65536, dtype=jnp.int32)),
    "sort": (jax.jit(lambda x: (jnp.sort(x, -1), jnp.argsort(x, -1), jnp.cumsum(x, -1))), shape(64, 65536)),
    "fft": (jax.jit(lambda x: jnp.fft.irfft2(jnp.fft.rfft2(x) * 2)), shape(32, 512, 512)),
    "while": (jax.jit(lambda x, n: jax.lax.while_loop(lambda s: s[1] < n, lambda s: (jnp.tanh(s[0] @ s[0]), s[1] + 1), (x, 0))), shape(2048, 2048), shape(dtype=jnp.int32)),
    "conditional": (jax.jit(lambda p, x: jax.lax.cond(p, lambda x: x @ x.T @ x, lambda x: jnp.sin(x) + x, x)), shape(dtype=jnp.bool_), shape(4096, 1024)),
    "random": (jax.jit(lambda k: jax.random.normal(jax.random.wrap_key_data(k), (4096, 4096)).sum(0)), shape(2, dtype=jnp.uint32)),
    "constant": (jax.jit(lambda x: jnp.outer(x, x)[:4] + table[:x.shape[0]]), shape(1 << 20)),
    "jacobian": (jax.jit(jax.jacrev(lambda x: jnp.tanh(x @ x.T)[:8, :8].ravel())), shape(128, 256)),
    "identity": (jax.jit(lambda x, y: (x, y, x + 1), donate_argnums=(0,)), shape(1 << 20), shape(1 << 22)),
}

if __name__ == "__main__":
    folder = sys.argv[1]
    for name in sys.argv[2:] or PROGRAMS:
        f, *args = PROGRAMS[name]
        lowered = f.lower(*args)
        try:
            compiled = lowered.compile()
        except Exception as error:
            print(name, "FAILED:", str(error).splitlines()[0], flush=True)
            continue
        s = compiled.memory_analysis()
        with open(os.path.join(folder, name + ".hlo"), "w") as file:
            file.write(compiled.as_text())
        with open(os.path.join(folder, name + ".before.hlo"), "w") as file:
            file.write(lowered.as_text("hlo"))
        with open(os.path.join(folder, name + ".json"), "w") as file:
            json.dump({k: getattr(s, k + "_size_in_bytes") for k in ("argument", "output", "alias", "temp", "generated_code")} | {"peak": getattr(s, "peak_memory_in_bytes", 0)}, file)
        print(name, open(os.path.join(folder, name + ".json")).read(), flush=True)
