"""Compiles one program with JAX and writes of it

    NAME.dump.pb        what --xla_dump_hlo_as_proto writes: module and buffer assignment
    NAME.module.pb      the module alone
    NAME.assignment.pb  the assignment alone, where JAX hands it out
    NAME.txt            the module as text
    NAME.assignment.txt the assignment as text
    NAME.json           memory_analysis

    python make.py FOLDER NAME     with NAME loop-RELEASE or loop-gpu-RELEASE
"""

import glob
import json
import os
import sys
import tempfile

folder, name = sys.argv[1:]
dump = tempfile.mkdtemp()
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + f" --xla_dump_to={dump} --xla_dump_hlo_as_proto --xla_dump_hlo_as_text"

import jax
import jax.numpy as jnp


def step(w, x):
    def layer(x, w):
        return jnp.tanh(x @ w), None

    def loss(w):
        return (jax.lax.scan(layer, x, w)[0] ** 2).sum()

    value, g = jax.value_and_grad(loss)(w)
    return w - 0.1 * g, value


f32 = jnp.float32
lowered = jax.jit(step, donate_argnums=0).lower(jax.ShapeDtypeStruct((3, 64, 64), f32), jax.ShapeDtypeStruct((32, 64), f32))
compiled = lowered.compile()
s = compiled.memory_analysis()


def write(end, content):
    with open(os.path.join(folder, name + end), "wb") as file:
        file.write(content)


(path,) = [p for p in glob.glob(dump + "/*jit_step*after_optimizations.hlo.pb")]
write(".dump.pb", open(path, "rb").read())
(path,) = glob.glob(dump + "/*jit_step*after_optimizations-buffer-assignment.txt")
write(".assignment.txt", open(path, "rb").read())
write(".module.pb", compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
write(".txt", compiled.as_text().encode())
write(".json", json.dumps({k: getattr(s, k + "_size_in_bytes") for k in ("argument", "output", "alias", "temp")}).encode())
if getattr(s, "serialized_buffer_assignment_proto", b""):
    write(".assignment.pb", s.serialized_buffer_assignment_proto)
elif getattr(s, "serialized_hlo_proto", b""):
    write(".assignment.pb", s.serialized_hlo_proto)
