"""Trains a small network for twenty steps with TensorFlow: python train.py [BATCH]."""

import sys

import tensorflow as tf

batch = int(sys.argv[1]) if len(sys.argv) > 1 else 32768
width, layers = 4096, 12
weights = [tf.Variable(tf.random.normal((width, width))) for _ in range(layers)]


@tf.function
def train_step(x):
    with tf.GradientTape() as tape:
        y = x
        for w in weights:
            y = tf.nn.relu(y @ w)
        loss = tf.reduce_mean((y - x) ** 2)
    for w, g in zip(weights, tape.gradient(loss, weights)):
        w.assign_sub(1e-3 * g)
    return loss


if __name__ == "__main__":
    for step in range(20):
        loss = train_step(tf.random.normal((batch, width)))
    print("loss", loss.numpy())
