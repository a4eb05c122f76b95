"""Trains with TensorFlow, and keeps the output of each step by mistake."""

import tensorflow as tf

weights = tf.Variable(tf.random.normal((1024, 1024)))
history = []


@tf.function
def train_step(x):
    y = tf.tanh(x @ weights)
    weights.assign_sub(1e-3 * tf.matmul(x, y - x, transpose_a=True))
    return y


for step in range(100):
    history.append(train_step(tf.random.normal((4096, 1024))))
print("steps", len(history))
