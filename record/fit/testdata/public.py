"""Training steps of models that public wheels have: dm-haiku, flax, transformers below 5, with
optax's AdamW.

    python public.py NAME BATCH STEPS

At its end it prints the statistics of each GPU, as JSON.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax


def array(*dims):
    return jnp.asarray(np.random.RandomState(0).randn(*dims).astype("f"))


def tokens(*dims, top):
    return jnp.asarray(np.random.RandomState(1).randint(0, top, dims), jnp.int32)


def cross_entropy(logits, labels):
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def haiku(net):
    import haiku as hk

    def make(batch):
        f = hk.transform_with_state(lambda x: getattr(hk.nets, net)(num_classes=10)(x, is_training=True))
        x, y = array(batch, 96, 96, 3), tokens(batch, top=10)
        params, state = f.init(jax.random.key(0), x)
        return lambda p, x, y: cross_entropy(f.apply(p, state, None, x)[0], y), params, (x, y)

    return make


def language(name, config, **sizes):
    def make(batch):
        import transformers

        model = getattr(transformers, name)(getattr(transformers, config)(vocab_size=4096, **sizes), input_shape=(batch, 128), seed=0)
        return lambda p, ids: cross_entropy(model(input_ids=ids, params=p, train=False)[0], jnp.roll(ids, -1, -1)), model.params, (tokens(batch, 128, top=4096),)

    return make


def vision(batch):
    import transformers

    config = transformers.ViTConfig(num_hidden_layers=6, hidden_size=384, num_attention_heads=6, intermediate_size=1536, image_size=96, patch_size=8, num_labels=10)
    model = transformers.FlaxViTForImageClassification(config, seed=0)
    return lambda p, x, y: cross_entropy(model(pixel_values=x, params=p, train=False)[0], y), model.params, (array(batch, 3, 96, 96), tokens(batch, top=10))


def nnx(batch):
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, rngs):
            self.attention = nnx.MultiHeadAttention(num_heads=8, in_features=384, qkv_features=384, decode=False, rngs=rngs)
            self.norm, self.up, self.down = nnx.LayerNorm(384, rngs=rngs), nnx.Linear(384, 1536, rngs=rngs), nnx.Linear(1536, 384, rngs=rngs)

        def __call__(self, x):
            x = x + self.attention(self.norm(x))
            return x + self.down(nnx.gelu(self.up(x)))

    graphs, params = zip(*[nnx.split(Block(nnx.Rngs(k))) for k in range(6)])

    def loss(p, x):
        for graph, part in zip(graphs, p):
            x = nnx.merge(graph, part)(x)
        return (x * x).mean()

    return loss, list(params), (array(batch, 128, 384),)


PROGRAMS = {
    "haiku-resnet18": haiku("ResNet18"),
    "haiku-mobilenet": haiku("MobileNetV1"),
    "flax-gpt2": language("FlaxGPT2LMHeadModel", "GPT2Config", n_layer=6, n_embd=384, n_head=6, n_positions=128),
    "flax-bert": language("FlaxBertForMaskedLM", "BertConfig", num_hidden_layers=6, hidden_size=384, num_attention_heads=6, intermediate_size=1536, max_position_embeddings=128),
    "flax-vit": vision,
    "flax-nnx": nnx,
}


def main():
    name, batch, steps = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    loss, params, data = PROGRAMS[name](batch)
    adam = optax.adamw(1e-3)
    state = adam.init(params)

    @jax.jit
    def step(params, state, *data):
        value, grads = jax.value_and_grad(loss)(params, *data)
        updates, state = adam.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    for _ in range(steps):
        params, state, value = step(params, state, *data)
    jax.block_until_ready(value)
    print(json.dumps([device.memory_stats() for device in jax.local_devices()]))


main()
