"""A few training steps under TensorFlow, and a line of JSON with what they took.

    python tensorflow_step.py [STEPS [WIDTH]]
"""

import json
import sys

import tensorflow as tf

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 20
width = int(sys.argv[2]) if len(sys.argv) > 2 else 1024

gpus = tf.config.list_physical_devices("GPU")
assert gpus, "TensorFlow sees no GPU"
tf.config.experimental.set_memory_growth(gpus[0], True)

with tf.device("/GPU:0"):
    weights = tf.Variable(tf.ones((width, width)))

    @tf.function
    def train():
        weights.assign(tf.tanh(weights) * 0.5 + weights)

    for _ in range(steps):
        train()
    try:
        peak = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    except ValueError:  # the allocator keeps none
        peak = None
print(json.dumps({"framework": "tensorflow " + tf.__version__, "steps": steps, "peak_bytes_in_use": peak}))
