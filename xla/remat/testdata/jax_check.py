"""Compiles and runs programs in JAX on the CPU, with and without plans of gpumem remat, and
prints a line of JSON for each: the temporaries by XLA's own statistics and as they were
predicted, whether the results are equal to the bit, and what compiling took. With
JAX_PLATFORMS=cuda it compiles them for a GPU, which may be a simulated one, and runs none.

    python jax_check.py COMMAND HOOKS [--limit 60%]... [NAME...]

COMMAND is the command gpumem, HOOKS the folder of gpumem_remat.py.
"""

import hashlib
import json
import os
import sys
import time

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
command, hooks = sys.argv[1:3]
sys.path.insert(0, hooks)
import gpumem_remat

import jax
import jax.numpy as jnp
import numpy as np

f32, bf16 = jnp.float32, jnp.bfloat16


def array(seed, *dims, dtype=f32, scale=0.05):
    return jnp.asarray(np.random.RandomState(seed).randn(*dims).astype("f") * scale, dtype)


def tokens(seed, *dims, top=512):
    return jnp.asarray(np.random.RandomState(seed).randint(0, top, dims), jnp.int32)


def sgd(loss, donate=()):
    def step(p, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        return jax.tree.map(lambda a, b: a - 1e-3 * b.astype(a.dtype), p, g), value

    return jax.jit(step, donate_argnums=donate)


def adam(loss):
    def step(p, m, v, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b.astype(a.dtype), m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * (b * b).astype(a.dtype), v, g)
        return jax.tree.map(lambda a, m, v: a - (1e-3 * m / (jnp.sqrt(v) + 1e-8)).astype(a.dtype), p, m, v), m, v, value

    return jax.jit(step, donate_argnums=(0, 1, 2))


def dense(p, x, act=jnp.tanh):
    for w in p:
        x = act(x @ w) * 2 + 1
    return (x * x).mean()


def gelu(p, x):
    for a, b in p:
        x = x + jax.nn.gelu(x @ a) @ b
    return (x * x).mean()


def norm(x):
    y = x.astype(f32)
    return ((y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def block(x, w, heads=4):
    b, t, d = x.shape
    q, k, v = (norm(x) @ w["qkv"]).reshape(b, t, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
    s = (q @ k.swapaxes(-1, -2)).astype(f32) / (d // heads) ** 0.5
    a = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9)).astype(x.dtype)
    x = x + (a @ v).transpose(0, 2, 1, 3).reshape(b, t, d) @ w["out"]
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def layer(seed, d, dtype=f32):
    return {"qkv": array(seed, d, 3 * d, dtype=dtype), "out": array(seed + 1, d, d, dtype=dtype), "up": array(seed + 2, d, 4 * d, dtype=dtype), "down": array(seed + 3, 4 * d, d, dtype=dtype)}


def model(layers, d, dtype=f32, words=512):
    return {"table": array(99, words, d, dtype=dtype), "layers": [layer(10 * k, d, dtype) for k in range(layers)]}


def transformer(p, ids):
    x = p["table"][ids]
    for w in p["layers"]:
        x = block(x, w)
    logits = (norm(x) @ p["table"].T).astype(f32)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(ids, -1, -1)[..., None], -1).mean()


def scanned(p, ids):
    x, _ = jax.lax.scan(lambda x, w: (block(x, w), None), p["table"][ids], p["layers"])
    return (norm(x) @ p["table"].T).astype(f32).var()


def stacked(layers, d):
    return {"table": array(99, 512, d), "layers": jax.tree.map(lambda *w: jnp.stack(w), *[layer(10 * k, d) for k in range(layers)])}


def conv(x, w, stride=1):
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def convolutions(p, x):
    for w in p:
        x = x + jax.nn.relu(conv(norm(x), w))
    return (x * x).mean()


def unet(p, x):
    kept = []
    for w in p["down"]:
        x = jax.nn.silu(conv(x, w))
        kept.append(x)
        x = x[:, ::2, ::2]
    for w, k in zip(p["up"], reversed(kept)):
        x = jax.nn.silu(conv(jnp.repeat(jnp.repeat(x, 2, 1), 2, 2) + k, w))
    return (x * x).mean()


def lstm(w, xs):
    d = w.shape[1] // 4

    def cell(s, x):
        c, h = s
        i, f, g, o = jnp.split(jnp.concatenate([x, h], -1) @ w, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (c, h), h

    zero = jnp.zeros((xs.shape[1], d))
    return (jax.lax.scan(cell, (zero, zero), xs)[1] ** 2).mean()


def accumulate(p, xs):
    def one(g, x):
        return jax.tree.map(jnp.add, g, jax.grad(dense)(p, x)), None

    g, _ = jax.lax.scan(one, jax.tree.map(jnp.zeros_like, p), xs)
    return jax.tree.map(lambda a, b: a - 1e-3 * b, p, g)


def dropout(p, x, key):
    for k, w in enumerate(p):
        x = jax.nn.relu(x @ w)
        x = jnp.where(jax.random.bernoulli(jax.random.fold_in(key, k), 0.9, x.shape), x, 0)
    return (x * x).mean()


def sharded():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4), ("data",))
    put = lambda x, *spec: jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
    return sgd(gelu), [(put(array(k, 256, 1024)), put(array(k + 50, 1024, 256))) for k in range(6)], put(array(7, 2048, 256), "data")


def programs():
    yield "mlp12", sgd(dense), [array(k, 512, 512) for k in range(12)], array(50, 1024, 512)
    yield "mlp12_donated", sgd(dense, (0,)), [array(k, 512, 512) for k in range(12)], array(50, 1024, 512)
    yield "gelu_mlp", sgd(gelu), [(array(k, 512, 2048), array(k + 50, 2048, 512)) for k in range(6)], array(7, 1024, 512)
    yield "transformer", sgd(transformer), model(4, 256), tokens(1, 8, 128)
    yield "transformer_adam", adam(transformer), *[model(3, 256) for _ in range(3)], tokens(1, 8, 128)
    yield "transformer_bf16", sgd(transformer, (0,)), model(4, 256, bf16), tokens(1, 8, 128)
    yield "long_attention", jax.jit(jax.grad(lambda w, x: (block(block(x, w), w) ** 2).mean())), layer(3, 128), array(5, 1, 1024, 128)
    yield "scan", sgd(scanned, (0,)), stacked(4, 256), tokens(1, 8, 128)
    yield "convolutions", sgd(convolutions), [array(k, 3, 3, 32, 32) for k in range(6)], array(9, 16, 48, 48, 32)
    yield "unet", sgd(unet), {"down": [array(k, 3, 3, 16, 16) for k in range(4)], "up": [array(k + 9, 3, 3, 16, 16) for k in range(4)]}, array(9, 8, 64, 64, 16)
    yield "lstm", sgd(lstm), array(1, 256, 512), array(2, 32, 64, 128)
    yield "accumulate", jax.jit(accumulate), [array(k, 256, 256) for k in range(6)], array(9, 4, 1024, 256)
    yield "dropout", sgd(dropout), [array(k, 512, 512) for k in range(8)], array(9, 1024, 512), jax.random.key(0)
    yield "ensemble", jax.jit(jax.vmap(jax.grad(dense))), [array(k, 4, 256, 256) for k in range(6)], array(9, 4, 512, 256)
    yield "hessian_vector", jax.jit(lambda p, x, v: jax.jvp(lambda p: jax.grad(dense)(p, x), (p,), (v,))[1]), [array(k, 256, 256) for k in range(6)], array(9, 1024, 256), [array(k + 70, 256, 256) for k in range(6)]
    yield "sharded", *sharded()


def copies(arguments):
    return jax.tree.map(lambda x: x if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else jax.device_put(np.asarray(x), x.sharding), arguments)


def compiled(f, arguments):
    jax.clear_caches()
    begin = time.monotonic()
    c = f.lower(*arguments).compile()
    took = time.monotonic() - begin
    if jax.default_backend() != "cpu":
        return c.memory_analysis().temp_size_in_bytes, None, took
    results = jax.block_until_ready(c(*copies(arguments)))
    sums = [hashlib.sha256(np.asarray(x).tobytes()).hexdigest() for x in jax.tree.leaves(results)]
    return c.memory_analysis().temp_size_in_bytes, sums, took


def main():
    limits, names, rest = [], [], sys.argv[3:]
    while rest:
        word = rest.pop(0)
        if word == "--limit":
            limits.append(rest.pop(0))
        else:
            names.append(word)
    planned = []
    plan = gpumem_remat._plan

    def keep(module, *a):
        answer = plan(module, *a)
        planned.append(answer)
        return answer

    gpumem_remat._plan = keep
    for name, f, *arguments in programs():
        if names and name not in names:
            continue
        gpumem_remat.remove()
        temp, sums, took = compiled(f, arguments)
        for limit in limits or ["80%", "60%", "50%", "40%"]:
            said, planned[:] = [], []
            gpumem_remat.install(limit, command, say=said.append)
            try:
                now, mine, longer = compiled(f, arguments)
            except Exception as error:
                print(json.dumps({"name": name, "limit": limit, "failed": str(error).split("\n")[0]}), flush=True)
                continue
            answer, module = max(planned, key=lambda p: p[0]["heap_before_bytes"]) if planned else ({}, None)
            print(json.dumps({
                "name": name, "limit": limit, "temp_bytes": temp, "temp_after_bytes": now, "equal": None if sums is None else mine == sums,
                "predicted_bytes": answer.get("heap_after_bytes", 0) if module else answer.get("heap_before_bytes", 0), "predicted_before_bytes": answer.get("heap_before_bytes", 0),
                "limit_bytes": answer.get("limit_bytes", 0), "more_compute_percent": answer.get("extra_compute_percent"), "compile_seconds": round(took, 3), "with_plan_seconds": round(longer, 3),
                "said": said,
            }), flush=True)


main()
