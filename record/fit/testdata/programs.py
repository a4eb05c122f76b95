"""Training programs of many kinds in plain JAX, for scripts/fit-check.

    python programs.py NAME SCALE STEPS

SCALE is the size of the batch, or of the sequence. At the end it prints the statistics of
XLA's pools, of each GPU, as JSON. Programs that begin with "gpus" use all GPUs.
"""

import functools
import json
import sys

import jax
import jax.numpy as jnp
import numpy as np

key = jax.random.key(0)


def normal(*shape, dtype=jnp.float32):
    return jax.device_put((np.ones(shape, np.float32) * 0.02).astype(dtype))


def sgd(params, grads, state):
    return jax.tree.map(lambda p, g: p - 1e-3 * g.astype(p.dtype), params, grads), state


def momentum(params, grads, state):
    state = jax.tree.map(lambda m, g: 0.9 * m + g.astype(m.dtype), state, grads)
    return jax.tree.map(lambda p, m: p - 1e-3 * m, params, state), state


def adam(params, grads, state):
    m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["m"], grads)
    v = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["v"], grads)
    params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-8), params, m, v)
    return params, {"m": m, "v": v}


def zeros(params):
    return jax.tree.map(jnp.zeros_like, params)


def moments(params):
    return {"m": zeros(params), "v": zeros(params)}


def train(loss, params, state, update, batch, donate=True):
    """Steps of a function (params, state, batch)."""

    @functools.partial(jax.jit, donate_argnums=(0, 1) if donate else ())
    def step(params, state, batch):
        value, grads = jax.value_and_grad(loss)(params, batch)
        params, state = update(params, grads, state)
        return params, state, value

    for i in range(steps):
        params, state, value = step(params, state, batch() if callable(batch) else batch)
    return params, value


def mlp(width=2048, layers=6):
    def loss(params, x):
        for w in params:
            x = jnp.tanh(x @ w)
        return jnp.mean(x * x)

    return loss, [normal(width, width) for _ in range(layers)]


def attention(x, w, heads, causal=True):
    b, t, d = x.shape
    q, k, v = (jnp.reshape(x @ w[i], (b, t, heads, d // heads)) for i in range(3))
    scores = jnp.einsum("bqhc,bkhc->bhqk", q, k) / np.sqrt(d // heads)
    if causal:
        scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    p = jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype)
    return jnp.reshape(jnp.einsum("bhqk,bkhc->bqhc", p, v), (b, t, d)) @ w[3]


def transformer(layers=4, width=512, heads=8, vocabulary=8192, dtype=jnp.float32, remat=False, looped=False):
    def layer(x, w):
        x = x + attention(x / (1e-6 + jnp.std(x, axis=-1, keepdims=True)), w["attention"].astype(dtype), heads)
        h = jax.nn.gelu(x / (1e-6 + jnp.std(x, axis=-1, keepdims=True)) @ w["in"].astype(dtype))
        return x + h @ w["out"].astype(dtype)

    if remat:
        layer = jax.checkpoint(layer)

    def loss(params, tokens):
        x = params["embedding"].astype(dtype)[tokens]
        if looped:
            x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), x, params["layers"])
        else:
            for w in params["layers"]:
                x = layer(x, w)
        logits = (x @ params["embedding"].astype(dtype).T).astype(jnp.float32)
        return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1))

    n = (layers,) if looped else ()
    one = lambda: {"attention": normal(*n, 4, width, width), "in": normal(*n, width, 4 * width), "out": normal(*n, 4 * width, width)}
    return loss, {"embedding": normal(vocabulary, width), "layers": one() if looped else [one() for _ in range(layers)]}


def tokens(batch, length=256):
    return jax.device_put(np.zeros((batch, length), np.int32))


def conv(x, w, stride=1):
    return jax.lax.conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def network(remat=False):
    def block(x, w):
        return jax.nn.relu(x + conv(jax.nn.relu(conv(x, w[0])), w[1]))

    if remat:
        block = jax.checkpoint(block)

    def loss(params, x):
        x = conv(x, params["stem"])
        for stage in params["stages"]:
            for w in stage["blocks"]:
                x = block(x, w)
            x = conv(x, stage["down"], 2)
        return jnp.mean(x)

    stages, c = [], 32
    for _ in range(3):
        stages.append({"blocks": [[normal(3, 3, c, c), normal(3, 3, c, c)] for _ in range(2)], "down": normal(3, 3, c, 2 * c)})
        c *= 2
    return loss, {"stem": normal(3, 3, 3, 32), "stages": stages}


def unet():
    def loss(params, x):
        kept = []
        for w in params["down"]:
            x = jax.nn.relu(conv(x, w))
            kept.append(x)
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        for w, k in zip(params["up"], reversed(kept)):
            x = jnp.concatenate([jnp.repeat(jnp.repeat(x, 2, 1), 2, 2), k], -1)
            x = jax.nn.relu(conv(x, w))
        return jnp.mean(x)

    down, up, c = [], [], 3
    for width in (32, 64, 128):
        down.append(normal(3, 3, c, width))
        c = width
    for width in (128, 64, 32):
        up.append(normal(3, 3, c + width, width))
        c = width
    return loss, {"down": down, "up": up}


def lstm(width=512):
    def loss(params, x):
        def cell(state, x):
            h, c = state
            i, f, g, o = jnp.split(x @ params["x"] + h @ params["h"], 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((x.shape[1], width))
        return jnp.mean(jax.lax.scan(cell, (zero, zero), x)[1])

    return loss, {"x": normal(width, 4 * width), "h": normal(width, 4 * width)}


def run(name, n):
    if name == "mlp":
        loss, params = mlp()
        return train(loss, params, (), sgd, normal(64 * n, 2048), donate=False)
    if name == "mlp-donated":
        loss, params = mlp()
        return train(loss, params, (), sgd, normal(64 * n, 2048))
    if name == "mlp-host-batches":  # each step's comes from the host
        loss, params = mlp()
        return train(loss, params, zeros(params), momentum, lambda: jax.device_put(np.ones((64 * n, 2048), np.float32)))
    if name == "wide-adam":
        params = [normal(4096, 1024 * n)]
        return train(lambda p, x: jnp.mean(jnp.tanh(x @ p[0])), params, moments(params), adam, normal(256, 4096))
    if name == "wide-adam-kept":
        params = [normal(4096, 1024 * n)]
        return train(lambda p, x: jnp.mean(jnp.tanh(x @ p[0])), params, moments(params), adam, normal(256, 4096), donate=False)
    if name == "scan":
        return train(lambda p, x: jnp.mean(jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, p)[0]), normal(12, 1024, 1024), (), sgd, normal(128 * n, 1024), donate=False)
    if name == "scan-remat":
        layer = jax.checkpoint(lambda x, w: (jnp.tanh(jnp.tanh(x @ w) @ w.T), None))
        return train(lambda p, x: jnp.mean(jax.lax.scan(layer, x, p)[0]), normal(12, 1024, 1024), (), sgd, normal(128 * n, 1024), donate=False)
    if name.startswith("transformer"):
        loss, params = transformer(remat="remat" in name, looped="scan" in name, dtype=jnp.bfloat16 if "bf16" in name else jnp.float32)
        return train(loss, params, moments(params), adam, tokens(n), donate="kept" not in name)
    if name == "attention":  # of a long sequence
        params = normal(4, 256, 256, dtype=jnp.bfloat16)
        return train(lambda p, x: jnp.mean(attention(x, p, 4).astype(jnp.float32)), params, (), sgd, normal(1, 256 * n, 256, dtype=jnp.bfloat16))
    if name == "attention-blocks":  # the same, block by block of the keys
        def loss(p, x):
            q, k, v = x @ p[0], x @ p[1], x @ p[2]

            @jax.checkpoint
            def block(state, kv):
                top, total, out = state
                s = q @ kv[0].T
                new = jnp.maximum(top, jnp.max(s, -1, keepdims=True))
                e = jnp.exp(s - new)
                return (new, total * jnp.exp(top - new) + jnp.sum(e, -1, keepdims=True), out * jnp.exp(top - new) + e @ kv[1]), None

            t = x.shape[0]
            first = (jnp.full((t, 1), -1e9), jnp.zeros((t, 1)), jnp.zeros_like(q))
            split = lambda a: jnp.reshape(a, (t // 256, 256, -1))
            _, total, out = jax.lax.scan(block, first, (split(k), split(v)))[0]
            return jnp.mean(out / total)

        return train(loss, normal(3, 256, 256), (), sgd, normal(256 * n, 256))
    if name == "embedding":
        params = [normal(50000 * n, 128), normal(128, 16)]
        return train(lambda p, x: jnp.mean(p[0][x] @ p[1]), params, (), sgd, jax.device_put(np.arange(4096, dtype=np.int32)))
    if name.startswith("conv"):
        loss, params = network(remat="remat" in name)
        return train(loss, params, zeros(params), momentum, normal(n, 128, 128, 3))
    if name == "unet":
        loss, params = unet()
        return train(loss, params, moments(params), adam, normal(n, 128, 128, 3))
    if name == "lstm":
        loss, params = lstm()
        return train(loss, params, (), sgd, normal(64, 4 * n, 512))
    if name == "ensemble":
        loss, params = mlp(512, 4)
        params = jax.tree.map(lambda w: jnp.stack([w] * 16), params)
        return train(lambda p, x: jnp.sum(jax.vmap(loss, (0, None))(p, x)), params, zeros(params), momentum, normal(32 * n, 512))
    if name == "accumulate":  # gradients of small batches are added up
        loss, params = mlp()

        def many(p, batches):
            return jnp.mean(jax.lax.map(lambda x: jax.checkpoint(loss)(p, x), batches))

        return train(many, params, moments(params), adam, normal(8, 32 * n, 2048))
    if name == "decode":  # with a cache of keys and values
        width, heads = 1024, 8
        weights = normal(4, width, width, dtype=jnp.bfloat16)

        @functools.partial(jax.jit, donate_argnums=(0,))
        def step(cache, x, at):
            q, k, v = (x @ weights[i] for i in range(3))
            cache = jax.lax.dynamic_update_slice(cache, jnp.stack([k, v])[:, :, None], (0, 0, at, 0))
            split = lambda a: jnp.reshape(a, a.shape[:-1] + (heads, width // heads))
            p = jax.nn.softmax(jnp.einsum("bhc,bthc->bht", split(q), split(cache[0])).astype(jnp.float32)).astype(x.dtype)
            return cache, jnp.reshape(jnp.einsum("bht,bthc->bhc", p, split(cache[1])), x.shape) @ weights[3]

        cache, x = jnp.zeros((2, 8, 256 * n, width), jnp.bfloat16), normal(8, width, dtype=jnp.bfloat16)
        for i in range(steps):
            cache, x = step(cache, x, i)
        return x
    if name == "train-and-evaluate":  # two functions, the second with a larger batch
        loss, params = mlp()
        params, _ = train(loss, params, moments(params), adam, normal(32 * n, 2048))
        evaluate = jax.jit(lambda p, x: loss(p, x))
        return [evaluate(params, normal(256 * n, 2048)) for _ in range(2)]
    if name.startswith("gpus"):  # an MLP on all GPUs
        from jax.sharding import Mesh, NamedSharding, PartitionSpec

        loss, params = mlp(1024, 8)
        mesh = Mesh(np.array(jax.devices()), ("d",))
        put = lambda a, *spec: jax.device_put(np.asarray(a), NamedSharding(mesh, PartitionSpec(*spec)))
        whole = put(np.ones((64 * n, 1024), np.float32), None)
        if name == "gpus-data":
            return train(loss, [put(w, None) for w in params], (), sgd, put(whole, "d"))
        if name == "gpus-fsdp":
            return train(loss, [put(w, "d") for w in params], (), sgd, put(whole, "d"))
        if name == "gpus-tensor":
            return train(loss, [put(w, *((None, "d") if i % 2 else ("d", None))) for i, w in enumerate(params)], (), sgd, whole)
        if name == "gpus-pmap":
            k = len(jax.devices())
            step = jax.pmap(lambda p, x: sgd(p, jax.lax.pmean(jax.grad(loss)(p, x), "d"), ())[0], axis_name="d", donate_argnums=(0,))
            params = [np.ones((k, 1024, 1024), np.float32) for _ in params]
            batch = np.ones((k, 64 * n // k, 1024), np.float32)
            for _ in range(steps):
                params = step(params, batch)
            return params
    if name == "eager":  # each operation is compiled and run by itself
        x = normal(1024 * n, 1024)
        for _ in range(steps):
            x = jnp.tanh(x @ normal(1024, 1024)) + 0.5 * x - jnp.mean(x, axis=0)
        return x
    sys.exit("no program " + name)


if __name__ == "__main__":
    name, scale, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.block_until_ready(run(name, scale))
    print(json.dumps([device.memory_stats() for device in jax.devices()]))
