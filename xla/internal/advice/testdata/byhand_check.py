"""Compiles training steps of numbered layers in JAX, as they are and with jax.checkpoint around
each layer, and prints a line of JSON for each: the temporaries by XLA's own statistics, and the
file of the module as it is. Nothing runs.

    python byhand_check.py FOLDER [NAME...]

FOLDER gets the modules. Programs whose library is missing are left out.
"""

import functools
import json
import os
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("USE_TORCH", "0")

import jax
import jax.numpy as jnp

f32, bf16 = jnp.float32, jnp.bfloat16


def array(*dims, dtype=f32):
    return jax.ShapeDtypeStruct(dims, dtype)


def tokens(*dims):
    return array(*dims, dtype=jnp.int32)


def layers(f, wrap, p, x):
    """Calls f once for each layer, each under its number and wrapped by wrap."""
    for k, w in enumerate(p):
        with jax.named_scope(f"layer_{k}"):
            x = wrap(f)(x, w)
    return x


def sgd(loss, p, *x):
    def step(p, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        return jax.tree.map(lambda a, b: a - 1e-3 * b.astype(a.dtype), p, g), value

    return jax.jit(step, donate_argnums=0), (p, *x)


def adam(loss, p, *x):
    def step(p, m, v, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        m = jax.tree.map(lambda a, b: 0.9 * a + 0.1 * b, m, g)
        v = jax.tree.map(lambda a, b: 0.999 * a + 0.001 * b * b, v, g)
        return jax.tree.map(lambda a, m, v: a - 1e-3 * m / (jnp.sqrt(v) + 1e-8), p, m, v), m, v, value

    return jax.jit(step, donate_argnums=(0, 1, 2)), (p, p, p, *x)


def norm(x):
    y = x.astype(f32)
    return ((y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)).astype(x.dtype)


def attention(x, w, heads):
    b, t, d = x.shape
    q, k, v = (x @ w).reshape(b, t, 3, heads, d // heads).transpose(2, 0, 3, 1, 4)
    s = (q @ k.swapaxes(-1, -2)).astype(f32) / (d // heads) ** 0.5
    a = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9)).astype(x.dtype)
    return (a @ v).transpose(0, 2, 1, 3).reshape(b, t, d)


def block(x, w, heads=4):
    x = x + attention(norm(x), w["qkv"], heads) @ w["out"]
    return x + jax.nn.gelu(norm(x) @ w["up"]) @ w["down"]


def transformer(n, d, *ids, words=512, dtype=f32, step=sgd, heads=4):
    p = {"table": array(words, d, dtype=dtype), "layers": [{"qkv": array(d, 3 * d, dtype=dtype), "out": array(d, d, dtype=dtype), "up": array(d, 4 * d, dtype=dtype), "down": array(4 * d, d, dtype=dtype)} for _ in range(n)]}

    def program(wrap):
        def loss(p, ids):
            x = layers(functools.partial(block, heads=heads), wrap, p["layers"], p["table"][ids])
            logits = (norm(x) @ p["table"].T).astype(f32)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.roll(ids, -1, -1)[..., None], -1).mean()

        return step(loss, p, tokens(*ids))

    return program


def llama(n, d, *ids, words=1024):
    def rms(x):
        y = x.astype(f32)
        return (y * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)

    def rotated(x):
        t, d = x.shape[-2:]
        a = jnp.arange(t)[:, None] / 10000 ** (jnp.arange(d // 2) / (d // 2))
        l, r = jnp.split(x.astype(f32), 2, -1)
        return jnp.concatenate([l * jnp.cos(a) - r * jnp.sin(a), r * jnp.cos(a) + l * jnp.sin(a)], -1).astype(x.dtype)

    def one(x, w, heads=8):
        b, t, d = x.shape
        q, k, v = [(rms(x) @ w[n]).reshape(b, t, heads, d // heads).swapaxes(1, 2) for n in "qkv"]
        s = (rotated(q) @ rotated(k).swapaxes(-1, -2)).astype(f32) / (d // heads) ** 0.5
        a = jax.nn.softmax(jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9)).astype(x.dtype)
        x = x + (a @ v).swapaxes(1, 2).reshape(b, t, d) @ w["o"]
        return x + (jax.nn.silu(rms(x) @ w["gate"]) * (rms(x) @ w["up"])) @ w["down"]

    p = {"table": array(words, d), "layers": [{**{n: array(d, d) for n in "qkvo"}, "gate": array(d, 3 * d), "up": array(d, 3 * d), "down": array(3 * d, d)} for _ in range(n)]}

    def program(wrap):
        def loss(p, ids):
            x = layers(one, wrap, p["layers"], p["table"][ids])
            return (jax.nn.logsumexp(rms(x) @ p["table"].T, -1)).mean()

        return sgd(loss, p, tokens(*ids))

    return program


def simple(f, p, x, step=sgd):
    return lambda wrap: step(lambda p, x: (layers(f, wrap, p, x).astype(f32) ** 2).mean(), p, x)


def dense(x, w):
    return jnp.tanh(x @ w) * 2 + 1


def gelu(x, w):
    return x + jax.nn.gelu(x @ w[0]) @ w[1]


def swiglu(x, w):
    return x + (jax.nn.silu(norm(x) @ w[0]) * (norm(x) @ w[1])) @ w[2]


def mixer(x, w):
    y = jax.nn.gelu(norm(x).swapaxes(1, 2) @ w[0]) @ w[1]
    x = x + y.swapaxes(1, 2)
    return x + jax.nn.gelu(norm(x) @ w[2]) @ w[3]


def cross(x, w):
    """Two sequences, each of which attends to the other."""
    a, b = x
    s = jax.nn.softmax((norm(a) @ w[0]) @ norm(b).swapaxes(1, 2) / 16)
    a, b = a + s @ (b @ w[1]), b + s.swapaxes(1, 2) @ (a @ w[1])
    return a + jax.nn.relu(norm(a) @ w[2]) @ w[3], b + jax.nn.relu(norm(b) @ w[2]) @ w[3]


def recurrent(x, w):
    """A gated recurrence by an associative scan."""
    y = norm(x)
    a, v = jax.nn.sigmoid(y @ w[0]), y @ w[1]
    h = jax.lax.associative_scan(lambda l, r: (l[0] * r[0], l[1] * r[0] + r[1]), (a, (1 - a) * v), axis=1)[1]
    return x + (jax.nn.silu(y @ w[2]) * h) @ w[3]


def after(x, w):
    """The normalization behind the sum, and dropout by a fixed mask."""
    x = norm(x + attention(x, w[0], 8) @ w[1])
    y = jax.nn.relu(x @ w[2])
    y = jnp.where(jax.random.bernoulli(jax.random.key(1), 0.9, y.shape), y, 0)
    return norm(x + y @ w[3])


def conv(x, w, **more):
    return jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), **more)


def normed(x, w):
    return x + jax.nn.relu(conv(norm(x), w))


def batched(x):
    return (x - x.mean((0, 1, 2))) * jax.lax.rsqrt(x.var((0, 1, 2)) + 1e-5)


def residual(x, w):
    y = jax.nn.relu(batched(conv(x, w[0])))
    return jax.nn.relu(x + batched(conv(y, w[1])))


def convnext(x, w):
    y = norm(conv(x, w[0], feature_group_count=x.shape[-1]))
    return x + jax.nn.gelu(y @ w[1]) @ w[2]


def mnist(wrap):
    """Layers whose activations get smaller."""
    p = [array(3, 3, 8 * 2**k if k else 3, 16 * 2**k) for k in range(4)]

    def one(x, w):
        return jax.nn.silu(batched(conv(x, w)))[:, ::2, ::2]

    return sgd(lambda p, x: (layers(one, wrap, p, x) ** 2).mean(), p, array(16, 64, 64, 3))


def linen(n, d, b, t):
    import flax.linen as nn

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            y = nn.LayerNorm()(x)
            x = x + nn.MultiHeadDotProductAttention(4)(y, y)
            y = nn.Dense(4 * d)(nn.LayerNorm()(x))
            return x + nn.Dense(d)(nn.gelu(y))

    def program(wrap):
        cls = Block if wrap is plain else nn.remat(Block, policy=wrap.keywords["policy"])

        class Net(nn.Module):
            @nn.compact
            def __call__(self, x):
                for k in range(n):
                    x = cls(name=f"block_{k}")(x)
                return nn.Dense(10)(x.mean(1))

        net, x = Net(), array(b, t, d)
        p = jax.eval_shape(net.init, jax.random.key(0), x)
        return sgd(lambda p, x: (jax.nn.logsumexp(net.apply(p, x), -1)).mean(), p, x)

    return program


def gpt2(wrap):
    from transformers.models.gpt2 import configuration_gpt2, modeling_flax_gpt2 as g
    import flax.linen as nn

    block = g.FlaxGPT2Block
    if wrap is not plain:
        g.FlaxGPT2Block = nn.remat(block, static_argnums=(5, 6, 7), policy=wrap.keywords["policy"])
        call = g.FlaxGPT2Block.__call__
        # The model passes its flags by name, which nn.remat does not take.
        g.FlaxGPT2Block.__call__ = lambda self, x, mask=None, encoder_hidden_states=None, encoder_attention_mask=None, deterministic=True, init_cache=False, output_attentions=False: call(self, x, mask, None, None, deterministic, init_cache, output_attentions)
    try:
        c = configuration_gpt2.GPT2Config(n_embd=256, n_layer=4, n_head=4, vocab_size=1000, n_positions=128)
        net = g.FlaxGPT2LMHeadModel(c, _do_init=False)
        ids = tokens(8, 128)
        p = jax.eval_shape(lambda: net.init_weights(jax.random.key(0), (8, 128)))
        f, x = sgd(lambda p, ids: jax.nn.logsumexp(net(ids, params=p).logits, -1).mean(), p, ids)
        return f.lower(*x)
    finally:
        g.FlaxGPT2Block = block


def bert(wrap):
    from transformers.models.bert import configuration_bert, modeling_flax_bert as b

    if wrap is not plain and wrap.keywords["policy"] is not nothing:
        return None
    c = configuration_bert.BertConfig(hidden_size=256, num_hidden_layers=4, num_attention_heads=4, intermediate_size=1024, vocab_size=1000, max_position_embeddings=128)
    net = b.FlaxBertForMaskedLM(c, _do_init=False, gradient_checkpointing=wrap is not plain)
    ids = tokens(8, 128)
    p = jax.eval_shape(lambda: net.init_weights(jax.random.key(0), (8, 128)))
    return sgd(lambda p, ids: jax.nn.logsumexp(net(ids, params=p).logits, -1).mean(), p, ids)


def haiku(wrap):
    import haiku as hk

    class Block(hk.Module):
        def __call__(self, x):
            y = hk.LayerNorm(-1, True, True)(x)
            y = hk.Linear(1024)(y)
            return x + hk.Linear(256)(jax.nn.gelu(y))

    def net(x):
        for k in range(6):
            one = Block(name=f"block_{k}")
            x = (one if wrap is plain else hk.remat(one, policy=wrap.keywords["policy"]))(x)
        return (x**2).mean()

    f, x = hk.without_apply_rng(hk.transform(net)), array(1024, 256)
    return sgd(f.apply, jax.eval_shape(f.init, jax.random.key(0), x), x)


programs = {
    "transformer": transformer(4, 256, 8, 128),
    "transformer_deep": transformer(10, 128, 8, 128),
    "transformer_long": transformer(4, 128, 2, 512),
    "transformer_short": transformer(3, 512, 16, 32),
    "transformer_words": transformer(4, 128, 8, 128, words=16384),
    "transformer_bf16": transformer(4, 256, 8, 128, dtype=bf16),
    "transformer_adam": transformer(3, 256, 8, 128, step=adam),
    "llama": llama(4, 256, 4, 256),
    "mlp": simple(dense, [array(512, 512)] * 12, array(1024, 512)),
    "gelu_mlp": simple(gelu, [(array(512, 2048), array(2048, 512))] * 6, array(1024, 512)),
    "gelu_bf16": simple(gelu, [(array(512, 2048, dtype=bf16), array(2048, 512, dtype=bf16))] * 6, array(1024, 512, dtype=bf16)),
    "swiglu": simple(swiglu, [(array(256, 1024), array(256, 1024), array(1024, 256))] * 8, array(1024, 256), step=adam),
    "mixer": simple(mixer, [(array(128, 512), array(512, 128), array(256, 1024), array(1024, 256))] * 4, array(8, 128, 256)),
    "conv": simple(normed, [array(3, 3, 32, 32)] * 6, array(16, 48, 48, 32)),
    "resnet": simple(residual, [(array(3, 3, 32, 32), array(3, 3, 32, 32))] * 4, array(16, 32, 32, 32)),
    "convnext": simple(convnext, [(array(7, 7, 1, 32), array(32, 128), array(128, 32))] * 4, array(8, 32, 32, 32)),
    "conv_down": mnist,
    "conv_glu": simple(lambda x, w: x + conv(x, w[0]) * jax.nn.sigmoid(conv(norm(x), w[1])), [(array(3, 3, 48, 48), array(3, 3, 48, 48))] * 5, array(8, 32, 32, 48), step=adam),
    "cross": lambda wrap: sgd(lambda p, a, b: sum((y**2).mean() for y in layers(cross, wrap, p, (a, b))), [(array(256, 256), array(256, 256), array(256, 1024), array(1024, 256))] * 4, array(8, 128, 256), array(8, 64, 256)),
    "recurrent": simple(recurrent, [(array(256, 256),) * 4] * 5, array(8, 128, 256)),
    "post_norm": simple(after, [(array(256, 768), array(256, 256), array(256, 1024), array(1024, 256))] * 5, array(4, 256, 256)),
    "vit": simple(block, [{"qkv": array(384, 1152), "out": array(384, 384), "up": array(384, 1536), "down": array(1536, 384)}] * 6, array(8, 196, 384)),
    "flax": linen(4, 256, 8, 128),
    "flax_gpt2": gpt2,
    "flax_bert": bert,
    "haiku": haiku,
}


def plain(f):
    return f


nothing = jax.checkpoint_policies.nothing_saveable


def compiled(program, wrap):
    jax.clear_caches()
    p = program(wrap)
    if p is None:
        return None
    return (p if hasattr(p, "compile") else p[0].lower(*p[1])).compile()


def main():
    folder, names = sys.argv[1], sys.argv[2:]
    for name, program in programs.items():
        if names and name not in names:
            continue
        try:
            c = compiled(program, plain)
        except ImportError as e:
            print(f"{name}: left out: {e}", file=sys.stderr)
            continue
        file = os.path.join(folder, name + ".hlo")
        with open(file, "w") as f:
            f.write(c.as_text())
        out = {"name": name, "module": file, "temp_bytes": c.memory_analysis().temp_size_in_bytes}
        for policy in "nothing_saveable", "dots_saveable":
            c = compiled(program, functools.partial(jax.checkpoint, policy=getattr(jax.checkpoint_policies, policy)))
            if c is not None:
                out[policy] = c.memory_analysis().temp_size_in_bytes
                if os.environ.get("BYHAND_KEEP"):
                    with open(os.path.join(folder, f"{name}.{policy}.hlo"), "w") as f:
                        f.write(c.as_text())
        print(json.dumps(out), flush=True)


main()
