"""Compiles programs for a GPU under limits that make XLA's pass rematerialization act, and runs
none. It prints a line of JSON for each program and limit: the files of the module before and
after the pass, the figures of the pass's log, and what the limit is made of.

    python gpu_check.py FOLDER [--part .7]... [NAME...]

FOLDER gets the files. Limits are parts of the peak that the pass counts; XLA takes them in steps
of 1 % of its pool (--xla_gpu_memory_limit_slop_factor), so that a small pool has the finer ones.
The plugin needs TF_CPP_VMODULE=hlo_rematerialization=1, which makes the pass write its log.
"""

import functools
import json
import os
import re
import sys
import tempfile

os.environ.setdefault("USE_TORCH", "0")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../../../record/fit/testdata"))

import jax
import jax.numpy as jnp
import modules
import numpy as np
from modules import PROGRAMS, adam, bn, conv, shape, step

lax, nn = jax.lax, jax.nn
f32, bf16, f16, i32 = jnp.float32, jnp.bfloat16, jnp.float16, jnp.int32


def rms(x):
    y = x.astype(f32)
    return (y * lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6)).astype(x.dtype)


def attend(x, w, heads, causal=True, groups=1):
    b, t, d = x.shape
    h = d // heads
    q = (x @ w["q"]).reshape(b, t, heads, h)
    k, v = ((x @ w[n]).reshape(b, t, heads // groups, h).repeat(groups, 2) for n in "kv")
    s = jnp.einsum("bthd,bshd->bhts", q, k).astype(f32) / h**0.5
    if causal:
        s = jnp.where(jnp.tril(jnp.ones((t, t), bool)), s, -1e9)
    return jnp.einsum("bhts,bshd->bthd", nn.softmax(s).astype(x.dtype), v).reshape(b, t, d) @ w["o"]


def heads(d, dtype=f32, groups=1):
    return {n: shape(d, d // groups if n in "kv" else d, dtype=dtype) for n in "qkvo"}


def llama(p, ids, tied=False, groups=2):
    x = p["table"][ids]
    for w in p["layers"]:
        x = x + attend(rms(x), w, 4, groups=groups)
        x = x + (nn.silu(rms(x) @ w["gate"]) * (rms(x) @ w["up"])) @ w["down"]
    logits = (rms(x) @ (p["table"].T if tied else p["head"])).astype(f32)
    return (nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, jnp.roll(ids, -1, -1)[..., None], -1)[..., 0]).mean()


def llamas(n, d, words, dtype=f32, groups=2):
    layer = {**heads(d, dtype, groups), "gate": shape(d, 3 * d, dtype=dtype), "up": shape(d, 3 * d, dtype=dtype), "down": shape(3 * d, d, dtype=dtype)}
    return {"table": shape(words, d, dtype=dtype), "head": shape(d, words, dtype=dtype), "layers": [layer] * n}


def mixer(p, x):
    for a, b, c, d in p:
        x = x + (nn.gelu(rms(x).swapaxes(1, 2) @ a) @ b).swapaxes(1, 2)
        x = x + nn.gelu(rms(x) @ c) @ d
    return (x.astype(f32) ** 2).mean()


def square(f):
    return lambda p, x: (functools.reduce(f, p, x).astype(f32) ** 2).mean()


def momentum(loss):
    def f(p, m, *x):
        g = jax.grad(loss)(p, *x)
        size = jnp.sqrt(sum((a.astype(f32) ** 2).sum() for a in jax.tree.leaves(g)))
        m = jax.tree.map(lambda m, g: 0.9 * m + g / jnp.maximum(size, 1).astype(g.dtype), m, g)
        return jax.tree.map(lambda p, m: p - 1e-2 * m, p, m), m

    return jax.jit(f, donate_argnums=(0, 1))


def bidirectional(p, xs):
    """An LSTM in both directions, one above the other."""

    def run(w, xs, reverse):
        d = w.shape[1] // 4

        def cell(s, x):
            i, f, g, o = jnp.split(jnp.concatenate([x, s[1]], -1) @ w, 4, -1)
            c = nn.sigmoid(f) * s[0] + nn.sigmoid(i) * jnp.tanh(g)
            h = nn.sigmoid(o) * jnp.tanh(c)
            return (c, h), h

        zero = jnp.zeros((xs.shape[1], d))
        return lax.scan(cell, (zero, zero), xs, reverse=reverse)[1]

    for k, w in enumerate(p):
        xs = run(w, xs, k % 2 == 1)
    return (xs**2).mean()


def wavenet(p, x):
    skip = 0
    for k, (a, b, c) in enumerate(p):
        c1 = lambda x, w: lax.conv_general_dilated(x, w, (1,), [(2**k, 0)], rhs_dilation=(2**k,), dimension_numbers=("NWC", "WIO", "NWC"))
        h = jnp.tanh(c1(x, a)) * nn.sigmoid(c1(x, b))
        skip = skip + h @ c
        x = x + h
    return (nn.relu(skip) ** 2).mean()


def autoencoder(p, x, key):
    h, kept = x, []
    for w in p["in"]:
        h = nn.elu(h @ w)
    mean, spread = jnp.split(h, 2, -1)
    z = mean + jnp.exp(0.5 * spread) * jax.random.normal(jax.random.wrap_key_data(key), mean.shape)
    for w in p["out"]:
        z = nn.elu(z @ w)
    return ((z - x) ** 2).mean() + (jnp.exp(spread) + mean**2 - spread).mean()


def experts(p, x):
    """A mixture of experts, each of which sees everything."""
    for w in p:
        gate = nn.softmax(x @ w["gate"])
        y = nn.gelu(jnp.einsum("td,edf->etf", x, w["up"]))
        x = x + jnp.einsum("etf,efd,te->td", y, w["down"], gate)
    return (x * x).mean()


def contrast(p, a, b):
    """Two towers, and the products of all with all."""
    for v, w in p:
        a, b = a + jnp.tanh(a @ v), b + nn.gelu(b @ w)
    s = rms(a) @ rms(b).T
    return -jnp.diagonal(nn.log_softmax(s) + nn.log_softmax(s.T)).mean()


def graph(p, x, edges):
    """Messages between the nodes of a graph."""
    for w, v in p:
        m = nn.relu(x[edges[0]] @ w)
        x = rms(x @ v + jax.ops.segment_sum(m, edges[1], x.shape[0]))
    return (x * x).mean()


def diffusion(p, x, t):
    """A net with long connections, and one more input in each layer."""
    e = jnp.sin(t[:, None] * jnp.arange(1.0, 65.0))
    kept = []
    for w, v in p["down"]:
        x = nn.silu(bn(conv(x, w)) + (e @ v)[:, None, None])
        kept.append(x)
        x = x[:, ::2, ::2]
    for w, v in p["up"]:
        x = x.repeat(2, 1).repeat(2, 2)
        x = nn.silu(conv(jnp.concatenate([x, kept.pop()], -1), w) + (e @ v)[:, None, None])
    return (x * x).mean()


def sharded(spec_p, spec_x):
    """A step on all GPUs."""
    gpus = jax.devices("gpu")
    mesh = jax.sharding.Mesh(np.array(gpus), ("d",))
    at = lambda *dims, spec: jax.ShapeDtypeStruct(dims, f32, sharding=jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
    p = [(at(512, 2048, spec=spec_p), at(2048, 512, spec=spec_p[::-1])) for _ in range(8)]
    return step(square(gelu), True), p, at(8192, 512, spec=spec_x)


def gelu(x, w):
    return x + nn.gelu(x @ w[0]) @ w[1]


def swiglu(x, w):
    y = rms(x)
    return x + (nn.silu(y @ w[0]) * (y @ w[1])) @ w[2]


def looped(body, mark=False):
    f = jax.checkpoint(body) if mark else body
    return lambda p, x: (lax.scan(lambda x, w: (f(x, w), None), x, p)[0].astype(f32) ** 2).mean()


def within(p, x):
    """Layers in front of a loop and behind it, so that both have to give way."""
    x = functools.reduce(gelu, p["first"], x)
    x = lax.scan(lambda x, w: (gelu(x, w), None), x, p["loop"])[0]
    return (functools.reduce(gelu, p["last"], x) ** 2).mean()


def chosen(p, x):
    """A branch in each layer, by what the layer before returned."""
    for w in p:
        x = lax.cond(x[0, 0] > 0, lambda x: x + nn.gelu(x @ w[0]) @ w[1], lambda x: jnp.sin(x) * 2, x)
    return (x * x).mean()


def ode(p, x):
    def f(x):
        return jnp.tanh(x @ p[0]) @ p[1]

    for _ in range(6):
        a = f(x)
        b = f(x + 0.05 * a)
        c = f(x + 0.05 * b)
        x = x + 0.1 / 6 * (a + 2 * b + 2 * c + f(x + 0.1 * c))
    return (x * x).mean()


six = [(shape(512, 2048), shape(2048, 512))] * 6
half = jax.tree.map(lambda s: shape(*s.shape, dtype=f16), six)
brain = jax.tree.map(lambda s: shape(*s.shape, dtype=bf16), six)
stack = jax.tree.map(lambda s: shape(4, *s.shape), six[0])
ids = shape(8, 256, dtype=i32)
three = lambda p: [p] * 3

PROGRAMS |= {
    "mlp_tanh": (step(square(lambda x, w: jnp.tanh(x @ w) * 2 + 1)), [shape(512, 512)] * 12, shape(4096, 512)),
    "mlp_shrinking": (step(square(lambda x, w: nn.relu(x @ w))), [shape(2048 >> k, 1024 >> k) for k in range(6)], shape(8192, 2048)),
    "mlp_gelu": (step(square(gelu), True), six, shape(4096, 512)),
    "mlp_gelu_f16": (step(square(gelu)), half, shape(8192, 512, dtype=f16)),
    "mlp_gelu_bf16_adam": (adam(square(gelu)), *three(brain), shape(8192, 512, dtype=bf16)),
    "mlp_swiglu_momentum": (momentum(square(swiglu)), *[[(shape(512, 1024), shape(512, 1024), shape(1024, 512))] * 8] * 2, shape(4096, 512)),
    "mlp_bias": (step(square(lambda x, w: nn.softplus(x @ w[0] + w[1]))), [(shape(512, 512), shape(512))] * 10, shape(8192, 512)),
    "dense_connections": (step(lambda p, x: (functools.reduce(lambda x, w: jnp.concatenate([x, nn.relu(x @ w)], -1), p, x) ** 2).mean()), [shape(256 * (k + 1), 256) for k in range(6)], shape(4096, 256)),
    "llama": (step(llama, True), llamas(4, 256, 2048), ids),
    "llama_adam": (adam(llama), *three(llamas(3, 256, 2048)), ids),
    "llama_bf16": (step(llama), llamas(4, 512, 4096, bf16), ids),
    "llama_tied": (step(functools.partial(llama, tied=True)), llamas(4, 256, 8192), ids),
    "llama_one_kv": (step(functools.partial(llama, groups=4)), llamas(5, 256, 1024, groups=4), ids),
    "attention_long": (jax.jit(jax.grad(lambda w, x: (attend(attend(x, w, 4), w, 4) ** 2).mean())), heads(256), shape(1, 2048, 256)),
    "attention_plain": (jax.jit(jax.grad(lambda p, x: functools.reduce(lambda x, w: x + attend(rms(x), w, 8, causal=False), p, x).var())), [heads(256)] * 4, shape(4, 512, 256)),
    "logits": (step(lambda p, x: (nn.logsumexp(jnp.tanh(x @ p["w"]) @ p["out"], -1)).mean()), {"w": shape(256, 256), "out": shape(256, 16384)}, shape(2048, 256)),
    "mixer": (step(mixer, True), [(shape(128, 512), shape(512, 128), shape(256, 1024), shape(1024, 256))] * 5, shape(32, 128, 256)),
    "mixer_bf16": (step(mixer), [jax.tree.map(lambda s: shape(*s.shape, dtype=bf16), (shape(128, 512), shape(512, 128), shape(256, 1024), shape(1024, 256)))] * 6, shape(32, 128, 256, dtype=bf16)),
    "scan_gelu": (step(looped(gelu), True), stack, shape(4096, 512)),
    "scan_gelu_marked": (step(looped(gelu, True)), stack, shape(8192, 512)),
    "scan_swiglu": (step(looped(swiglu)), (shape(6, 256, 1024), shape(6, 256, 1024), shape(6, 1024, 256)), shape(4096, 256)),
    "scan_within": (step(within), {"first": six[:3], "loop": stack, "last": six[:3]}, shape(2048, 512)),
    "branch_in_each": (step(chosen), six, shape(4096, 512)),
    "lstm_both_ways": (step(bidirectional, True), [shape(512, 1024)] * 3, shape(64, 128, 256)),
    "lstm_adam": (adam(bidirectional), *three([shape(256, 512)] * 2), shape(128, 128, 128)),
    "conv_residual": (step(lambda p, x: (functools.reduce(lambda x, w: x + nn.relu(conv(bn(x), w)), p, x) ** 2).mean()), [shape(3, 3, 32, 32)] * 8, shape(16, 48, 48, 32)),
    "conv_separable": (step(lambda p, x: (functools.reduce(lambda x, w: x + nn.gelu(conv(rms(x), w[0]) @ w[1]) @ w[2], p, x) ** 2).mean(), True), [(shape(1, 1, 48, 48), shape(48, 192), shape(192, 48))] * 5, shape(16, 32, 32, 48)),
    "conv_bf16": (step(lambda p, x: (functools.reduce(lambda x, w: nn.silu(conv(x, w)), p, x).astype(f32) ** 2).mean()), [shape(3, 3, 64, 64, dtype=bf16)] * 8, shape(32, 32, 32, 64, dtype=bf16)),
    "diffusion": (step(diffusion), {"down": [(shape(3, 3, 32, 32), shape(64, 32))] * 3, "up": [(shape(3, 3, 64, 32), shape(64, 32))] * 3}, shape(16, 64, 64, 32), shape(16)),
    "wavenet": (step(wavenet), [(shape(2, 64, 64), shape(2, 64, 64), shape(64, 64))] * 8, shape(8, 4096, 64)),
    "autoencoder": (step(autoencoder), {"in": [shape(1024, 1024)] * 4, "out": [shape(512, 1024)] + [shape(1024, 1024)] * 3}, shape(4096, 1024), shape(2, dtype=jnp.uint32)),
    "experts": (step(experts), [{"gate": shape(256, 4), "up": shape(4, 256, 512), "down": shape(4, 512, 256)}] * 4, shape(2048, 256)),
    "contrast": (step(contrast), [(shape(512, 512), shape(512, 512))] * 5, shape(2048, 512), shape(2048, 512)),
    "graph": (step(graph), [(shape(128, 128), shape(128, 128))] * 5, shape(8192, 128), shape(2, 65536, dtype=i32)),
    "ode": (jax.jit(jax.grad(ode)), (shape(256, 1024), shape(1024, 256)), shape(4096, 256)),
    "ensemble": (jax.jit(jax.vmap(jax.grad(square(lambda x, w: jnp.tanh(x @ w))))), [shape(8, 256, 256)] * 8, shape(8, 1024, 256)),
    "jvp_of_gradient": (jax.jit(lambda p, v, x: jax.jvp(jax.grad(lambda p: square(gelu)(p, x)), (p,), (v,))[1]), six[:3], six[:3], shape(2048, 512)),
    "dropout_layers": (step(lambda p, x, key: modules.dropout(p, x, key)), [shape(512, 512)] * 8, shape(8192, 512), shape(2, dtype=jnp.uint32)),
    "forward_and_back": (jax.jit(lambda p, x: (square(gelu)(p, x), jax.vjp(lambda x: functools.reduce(gelu, p, x), x)[1](x)[0])), six, shape(4096, 512)),
}


def optax_step(loss, p, *x, optimizer=None):
    import optax

    o = optimizer or optax.adamw(1e-3)

    def f(p, state, *x):
        value, g = jax.value_and_grad(loss)(p, *x)
        updates, state = o.update(g, state, p)
        return optax.apply_updates(p, updates), state, value

    return jax.jit(f, donate_argnums=(0, 1)), p, jax.eval_shape(o.init, p), *x


def flax_model(name, config, *x, vocab=True, **sizes):
    import transformers

    c = getattr(transformers, config)(**({"vocab_size": 2048} if vocab else {}), **sizes)
    net = getattr(transformers, name)(c, _do_init=False, **({"input_shape": x[0].shape} if vocab else {}))
    p = jax.eval_shape(lambda: net.init_weights(jax.random.key(0), net.input_shape))
    call = (lambda p, x: net(x, params=p)[0]) if vocab else (lambda p, x: net(pixel_values=x, params=p)[0])
    return optax_step(lambda p, x: nn.logsumexp(call(p, x).astype(f32), -1).mean(), p, *x)


def haiku_net(net, batch):
    import haiku as hk

    f = hk.transform_with_state(lambda x: getattr(hk.nets, net)(num_classes=10)(x, is_training=True))
    x = shape(batch, 96, 96, 3)
    p, state = jax.eval_shape(f.init, jax.random.key(0), x)
    return optax_step(lambda p, s, x: nn.logsumexp(f.apply(p, s, None, x)[0], -1).mean(), p, state, x)


def linen(batch):
    import flax.linen as fl
    import optax

    class Net(fl.Module):
        @fl.compact
        def __call__(self, x):
            for _ in range(4):
                y = fl.LayerNorm()(x)
                x = x + fl.MultiHeadDotProductAttention(4)(y, y)
                x = x + fl.Dense(256)(fl.gelu(fl.Dense(1024)(fl.LayerNorm()(x))))
            return fl.Dense(10)(x.mean(1))

    net, x = Net(), shape(batch, 128, 256)
    p = jax.eval_shape(net.init, jax.random.key(0), x)
    return optax_step(lambda p, x: nn.logsumexp(net.apply(p, x), -1).mean(), p, x, optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.lion(1e-3)))


# Made when they are their turn: what they need may be missing.
PROGRAMS |= {
    "public_gpt2": lambda: flax_model("FlaxGPT2LMHeadModel", "GPT2Config", shape(8, 128, dtype=i32), n_layer=4, n_embd=256, n_head=4, n_positions=128),
    "public_bert": lambda: flax_model("FlaxBertForMaskedLM", "BertConfig", shape(8, 128, dtype=i32), num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, max_position_embeddings=128),
    "public_roberta": lambda: flax_model("FlaxRobertaForMaskedLM", "RobertaConfig", shape(8, 128, dtype=i32), num_hidden_layers=3, hidden_size=256, num_attention_heads=4, intermediate_size=1024, max_position_embeddings=132),
    "public_opt": lambda: flax_model("FlaxOPTForCausalLM", "OPTConfig", shape(8, 128, dtype=i32), num_hidden_layers=4, hidden_size=256, num_attention_heads=4, ffn_dim=1024, max_position_embeddings=128, word_embed_proj_dim=256),
    "public_llama": lambda: flax_model("FlaxLlamaForCausalLM", "LlamaConfig", shape(8, 128, dtype=i32), num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=768, max_position_embeddings=128),
    "public_vit": lambda: flax_model("FlaxViTForImageClassification", "ViTConfig", shape(16, 3, 96, 96), vocab=False, num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=1024, image_size=96, patch_size=8),
    "public_haiku_resnet18": lambda: haiku_net("ResNet18", 8),
    "public_haiku_mobilenet": lambda: haiku_net("MobileNetV1", 8),
    "public_linen": lambda: linen(16),
    "gpus_data": lambda: sharded((None, None), ("d", None)),
    "gpus_weights": lambda: sharded((None, "d"), ("d", None)),
    "gpus_products": lambda: sharded((None, "d"), (None, None)),
}


def compiled(lowered, **options):
    """Compiles, and returns what the pass said of the module itself, which comes last."""
    with tempfile.TemporaryFile() as log:
        kept = os.dup(2)
        os.dup2(log.fileno(), 2)
        try:
            out = lowered.compile(compiler_options={"xla_" + k: v for k, v in options.items()})
        finally:
            os.dup2(kept, 2)
            os.close(kept)
            log.seek(0)
            text = log.read().decode("utf-8", "replace")
    text = text[text.rfind("HloRematerialization() with") :]
    number = lambda pattern, group=1: next((int(m[group]) for m in re.finditer(pattern, text)), None)
    return out, {
        "chosen": re.findall(r"Remat via recomputation: \{(.*)\}", text),
        "rematerialized": number(r"Rematerialized (\d+) instructions in module"),
        "added": number(r"Rematerialized .* (-?\d+) net instructions added"),
        "after_bytes": number(r"of module now .* \((\d+) bytes\), was"),
        "before_bytes": number(r"of module now .* was .* \((\d+) bytes\)"),
        "limit_bytes": number(r"Can't reduce memory use below .*? \((\d+) bytes\)"),
    }


def main():
    folder, parts, names, rest = sys.argv[1], [], [], sys.argv[2:]
    while rest:
        word = rest.pop(0)
        if word == "--part":
            parts.append(float(rest.pop(0)))
        else:
            names.append(word)
    pool = jax.devices("gpu")[0].memory_stats()["bytes_limit"]
    for name in names or PROGRAMS:
        try:
            program = PROGRAMS[name]
            f, *args = program() if callable(program) else program
            lowered = f.lower(*args)
            plain, said = compiled(lowered)
        except Exception as error:
            print(json.dumps({"name": name, "failed": "%s: %s" % (type(error).__name__, str(error).split("\n")[0])}), flush=True)
            continue
        s = plain.memory_analysis()
        left = pool - (s.argument_size_in_bytes + s.output_size_in_bytes - s.alias_size_in_bytes)
        peak = said["before_bytes"] - s.output_size_in_bytes
        tried = set()
        for part in parts or [0.8, 0.6, 0.4]:
            percent = max(1, round(100 * part * peak / left)) if left > 0 else 1
            if percent in tried or percent * left > 100 * peak:
                continue
            tried.add(percent)
            at = os.path.join(folder, "%s.%d" % (name, percent))
            now, said = compiled(lowered, dump_to=at, dump_hlo_as_proto=True, dump_hlo_pass_re="rematerialization", gpu_memory_limit_slop_factor=percent)
            files = {"before" if ".before_rematerialization." in n else "after": os.path.join(at, n) for n in sorted(os.listdir(at)) if "rematerialization." in n and n.endswith(".pb")}
            print(json.dumps({"name": name, "part": part, "percent": percent, "pool_bytes": pool, "temp_bytes": s.temp_size_in_bytes, "temp_after_bytes": now.memory_analysis().temp_size_in_bytes, **said, "files": files}), flush=True)


main()
