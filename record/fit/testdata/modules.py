"""Compiles programs with JAX, runs none, and writes of each into a folder

    NAME.hlo         the compiled module, as text
    NAME.before.hlo  the module before XLA's passes
    NAME.json        what XLA's statistics say of it
    NAME.pb          XLA's buffer assignment, where it is handed out

    python modules.py FOLDER [NAME...]
"""

import functools
import json
import os
import sys

import jax
import jax.numpy as jnp

f32, bf16, i32 = jnp.float32, jnp.bfloat16, jnp.int32
lax = jax.lax


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

# Programs of other kinds.

def gelu_scan(p, x, remat):
    f = lambda x, w: (x + jax.nn.gelu(x @ w[0]) @ w[1], None)
    return (lax.scan(jax.checkpoint(f) if remat else f, x, p)[0] ** 2).mean()

def gru(p, x):
    def f(h, x):
        z, r = jnp.split(jax.nn.sigmoid(x @ p["x"] + h @ p["h"]), 2, -1)
        n = jnp.tanh(x @ p["n"] + r * (h @ p["m"]))
        h = (1 - z) * n + z * h
        return h, h
    return (lax.scan(f, jnp.zeros((x.shape[1], p["m"].shape[0])), x)[1] ** 2).mean()

def conv(x, w, s=1):
    return lax.conv_general_dilated(x, w, (s, s), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

def bn(x):
    return (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)

def resnet(p, x):
    for w in p:
        x = x + jax.nn.relu(bn(conv(jax.nn.relu(bn(conv(x, w[0]))), w[1])))
    return (x * x).mean()

def unet(p, x):
    kept = []
    for w in p["down"]:
        kept.append(x)
        x = jax.nn.silu(conv(x, w, 2))
    for w in p["up"]:
        b, h, v, c = x.shape
        x = jax.image.resize(x, (b, h * 2, v * 2, c), "nearest")
        x = jax.nn.silu(conv(jnp.concatenate([x, kept.pop()], -1), w))
    return (x * x).mean()

def moe(p, x):
    gate = jax.nn.softmax(x @ p["gate"])
    v, i = lax.top_k(gate, 2)
    d = (jax.nn.one_hot(i, 8) * v[..., None]).sum(1)
    e = jnp.einsum("te,td->etd", (d > 0).astype(f32), x)
    h = jax.nn.relu(jnp.einsum("etd,edf->etf", e, p["up"]))
    y = jnp.einsum("etf,efd->etd", h, p["down"])
    return (jnp.einsum("te,etd->td", d, y) ** 2).mean()

def decode(p, cache, token):
    def body(i, s):
        cache, x = s
        k = x @ p["k"]
        cache = lax.dynamic_update_slice(cache, k[None], (i, 0, 0))
        a = jax.nn.softmax(jnp.einsum("bd,tbd->bt", x @ p["q"], cache))
        return cache, jnp.tanh(jnp.einsum("bt,tbd->bd", a, cache) @ p["o"])
    return lax.fori_loop(0, 128, body, (cache, token))

def segments(p, x, ids):
    y = jnp.tanh(x @ p)
    s = jax.ops.segment_sum(y, ids, 1000)
    m = jax.ops.segment_max(y, ids, 1000)
    return ((s - m) ** 2).sum()

def nested(x):
    def inner(s):
        y, k = s
        return jnp.tanh(y @ y), k + 1
    def outer(c, k):
        y, _ = lax.while_loop(lambda s: s[1] < k, inner, (c, 0))
        return y + c, y.sum()
    return lax.scan(outer, x, jnp.arange(8))

def branches(x, p):
    def f(c, w):
        return lax.cond(c.sum() > 0, lambda: jnp.sin(c @ w), lambda: jnp.cos(c) * 2), c.mean()
    return lax.scan(f, x, p)

def dropout(p, x, key):
    key = jax.random.wrap_key_data(key)
    for n, w in enumerate(p):
        k = jax.random.fold_in(key, n)
        x = jax.nn.relu(x @ w)
        x = jnp.where(jax.random.bernoulli(k, .9, x.shape), x / .9, 0)
    return (x * x).mean()

def mixed(p, x):
    for w in p:
        x = jax.nn.silu(x.astype(bf16) @ w.astype(bf16))
    return (x.astype(f32) ** 2).mean()

def chunked(p, x, y):
    def f(s, c):
        h, t = c
        logits = (h @ p).astype(f32)
        return s - jnp.take_along_axis(jax.nn.log_softmax(logits), t[:, None], -1).sum(), None
    return lax.scan(jax.checkpoint(f), 0., (x.reshape(16, -1, x.shape[-1]), y.reshape(16, -1)))[0]

def policy(p, x):
    f = jax.checkpoint(lambda x, w: (block(x, w), None), policy=jax.checkpoint_policies.dots_saveable)
    return lax.scan(f, x, p)[0].sum()

def attention_window(q, k, v):
    def one(i):
        ks = lax.dynamic_slice(k, (i * 64, 0), (128, 64))
        vs = lax.dynamic_slice(v, (i * 64, 0), (128, 64))
        qs = lax.dynamic_slice(q, (i * 64, 0), (64, 64))
        return jax.nn.softmax(qs @ ks.T) @ vs
    return lax.map(one, jnp.arange(30))

def many(a, b, c, d):
    def body(s):
        a, b, c, d, n = s
        return b + 1, c * a, d - b, a, n + 1
    return lax.while_loop(lambda s: s[4] < 10, body, (a, b, c, d, 0))

def heat(x):
    def f(c, _):
        c = c + .1 * (jnp.roll(c, 1, 0) + jnp.roll(c, -1, 0) + jnp.roll(c, 1, 1) + jnp.roll(c, -1, 1) - 4 * c)
        return c, c[::8, ::8]
    return lax.scan(f, x, None, 50)

six = shape(6, 1024, 4096), shape(6, 4096, 1024)
small = jax.tree.map(lambda s: shape(4, *s.shape), weights(1, 256)[0])

PROGRAMS |= {
    "gelu_scan": (step(functools.partial(gelu_scan, remat=False)), six, shape(2048, 1024)),
    "gelu_scan_remat": (step(functools.partial(gelu_scan, remat=True), True), six, shape(2048, 1024)),
    "gru": (adam(gru), *[{"x": shape(256, 1024), "h": shape(512, 1024), "n": shape(256, 512), "m": shape(512, 512)}] * 3, shape(100, 64, 256)),
    "resnet": (step(resnet, True), [(shape(3, 3, 64, 64), shape(3, 3, 64, 64))] * 3, shape(16, 56, 56, 64)),
    "unet": (adam(unet), *[{"down": [shape(3, 3, 16, 32), shape(3, 3, 32, 64)], "up": [shape(3, 3, 96, 32), shape(3, 3, 48, 16)]}] * 3, shape(8, 64, 64, 16)),
    "moe": (step(moe), {"gate": shape(512, 8), "up": shape(8, 512, 1024), "down": shape(8, 1024, 512)}, shape(1024, 512)),
    "decode": (jax.jit(decode, donate_argnums=(1,)), {k: shape(512, 512) for k in "kqo"}, shape(1024, 8, 512), shape(8, 512)),
    "decode_kept": (jax.jit(decode), {k: shape(512, 512) for k in "kqo"}, shape(1024, 8, 512), shape(8, 512)),
    "segments": (step(segments), shape(256, 256), shape(50000, 256), shape(50000, dtype=i32)),
    "nested": (jax.jit(nested), shape(1024, 1024)),
    "branches": (jax.jit(branches), shape(1024, 1024), shape(5, 1024, 1024)),
    "branches_grad": (jax.jit(jax.grad(lambda x, p: branches(x, p)[0].sum(), argnums=(0, 1))), shape(1024, 1024), shape(5, 1024, 1024)),
    "dropout": (step(dropout), [shape(1024, 1024)] * 4, shape(4096, 1024), shape(2, dtype=jnp.uint32)),
    "mixed": (adam(mixed), *[[shape(1024, 1024)] * 4] * 3, shape(4096, 1024)),
    "chunked": (step(chunked, True), shape(512, 32000), shape(4096, 512), shape(4096, dtype=i32)),
    "policy": (step(policy, True), small, shape(4, 256, 256)),
    "window": (jax.jit(attention_window), *[shape(2048, 64)] * 3),
    "many": (jax.jit(many), *[shape(1 << 20)] * 4),
    "many_donated": (jax.jit(many, donate_argnums=(0, 2)), *[shape(1 << 20)] * 4),
    "heat": (jax.jit(heat), shape(1024, 1024)),
    "hvp": (jax.jit(lambda p, v, x: jax.jvp(jax.grad(lambda p: dense(p, x)), (p,), (v,))[1]), [shape(512, 512)] * 3, [shape(512, 512)] * 3, shape(2048, 512)),
    "per_sample": (jax.jit(jax.vmap(jax.grad(lambda p, x: dense(p, x[None])), (None, 0))), [shape(128, 128)] * 3, shape(256, 128)),
    "int8": (jax.jit(lambda x, w: (lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=i32).astype(f32) * .1).astype(jnp.int8)), shape(4096, 1024, dtype=jnp.int8), shape(1024, 4096, dtype=jnp.int8)),
    "assoc": (jax.jit(lambda a, b: lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b))), shape(4096, 256), shape(4096, 256)),
    "complex": (jax.jit(lambda x, k: jnp.abs(jnp.fft.ifft(jnp.fft.fft(x) * jnp.fft.fft(k, x.shape[-1])))), shape(64, 8192), shape(129)),
    "layernorm": (step(lambda p, x: (norm(x) * p["g"] + p["b"]).astype(f32).std()), {"g": shape(1024), "b": shape(1024)}, shape(8192, 1024, dtype=bf16)),
    "transposes": (jax.jit(lambda x: (x.T + 1, jnp.sin(x), x.sum(0), jnp.exp(x).sum(1))), shape(2048, 1024)),
    "tops": (jax.jit(lambda x: (lax.top_k(x, 5), jnp.median(x, -1), jnp.unique(x[0], size=10))), shape(512, 4096)),
    "scatters": (jax.jit(lambda x, i, u: x.at[i].set(u).at[i + 1].add(u).at[::2].multiply(2), donate_argnums=(0,)), shape(100000, 64), shape(5000, dtype=i32), shape(5000, 64)),
    "scatters_kept": (jax.jit(lambda x, i, u: (jnp.sin(x).at[i].set(u), x.at[i].add(u).sum())), shape(100000, 64), shape(5000, dtype=i32), shape(5000, 64)),
    "pooling": (jax.jit(jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME") ** 2).sum())), shape(16, 64, 64, 32)),
    "gelu_mlp": (step(lambda p, x: (functools.reduce(lambda x, w: jax.nn.gelu(x @ w), p, x) ** 2).mean()), [shape(1024, 1024)] * 8, shape(8192, 1024)),
    "mlp12": (step(lambda p, x: (functools.reduce(lambda x, w: jnp.tanh(x @ w[0] + w[1]), p, x) ** 2).mean(), True), [(shape(256, 256), shape(256))] * 12, shape(1024, 256)),
    "tuples": (jax.jit(lambda x: ((x + 1, (x * 2, x - 1)), {"a": jnp.tanh(x), "b": (x.sum(), (x @ x,))})), shape(512, 512)),
    "cholesky": (jax.jit(lambda x: jax.scipy.linalg.cholesky(x @ x.T + jnp.eye(512), lower=True)), shape(512, 512)),
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
        assignment = getattr(s, "serialized_buffer_assignment_proto", b"")
        if assignment:
            with open(os.path.join(folder, name + ".pb"), "wb") as file:
                file.write(assignment)
        print(name, open(os.path.join(folder, name + ".json")).read(), flush=True)
