"""Makes the modules of this folder with JAX: binary, as text, and run.

Usage: python3 make.py [--dir DIR]

Fetches the releases named below from PyPI with pip into DIR (500 MB each), by
default a temporary folder, and writes here, for each program P of a release R

  P-R.pre.pb, .txt   before optimization: the HloModuleProto, and XLA's text of it
  P-R.opt.pb, .txt   after optimization for a CPU, with its schedule
  whole-R.json       the bits of the arguments and of the results of whole,
                     which only has operations with one right answer

and for each text N.hlo that is here, written by hand,

  N-R.pb, .txt       what the newest release reads of it

This file runs both as the driver and in the processes that it starts for the
releases. It needs Python 3.10 for 0.4.13 and Python 3.12 for 0.12.0.1 (as
python3.10 and python3.12, or named by --python), pip, and nothing but the
standard library.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent

# The release and the Python that it is run with.
RELEASES = {"0.4.13": "3.10", "0.12.0.1": "3.12"}
EXTRA = {"0.4.13": ["numpy<2", "scipy<1.12"], "0.12.0.1": []}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dir")
    parser.add_argument("--python", action="append", default=[])
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(options.dir or temporary)
        for release, version in RELEASES.items():
            python = python_of(version, options.python)
            packages = folder / release
            if not packages.exists():
                subprocess.run(
                    [python, "-m", "pip", "install", "-q", "--target", str(packages),
                     "jax==" + release, "jaxlib==" + release, *EXTRA[release]],
                    check=True)
            environment = dict(os.environ, PYTHONPATH=str(packages), JAX_PLATFORMS="cpu")
            subprocess.run([python, str(HERE / "make.py"), "--make", release], check=True, env=environment, cwd=HERE)


def python_of(version, given):
    for python in [*given, "python" + version]:
        try:
            answer = subprocess.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"],
                                    capture_output=True, text=True)
        except OSError:
            continue
        if answer.stdout.strip() == version:
            return python
    sys.exit("no Python %s: name one with --python" % version)


def make(release):
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jax import lax

    # File names without folders, so that they do not hang on the machine.
    jax.config.update("jax_hlo_source_file_canonicalization_regex", ".*/")

    def train(w1, w2, x, y):
        """A step of gradient descent whose first layer is computed again."""
        def loss(w):
            layer = jax.checkpoint(lambda x: jnp.tanh(x @ w[0]))
            return jnp.mean((jax.nn.log_softmax(layer(x) @ w[1]) - y) ** 2)
        value, g = jax.value_and_grad(loss)((w1, w2))
        return value, w1 - 0.1 * g[0], w2 - 0.1 * g[1]

    def loop(x):
        return lax.scan(lambda c, a: (c * a + jnp.sin(c), c * a), jnp.ones(3), x)

    def whole(x, y, i, f):
        """Whole numbers in every way, and floats where they are only moved."""
        picture = x.reshape(1, 4, 5, 2)[:, :, :, :1]
        return (
            x + y, x * y, lax.div(x, y), lax.rem(x, y), x << (y & 7), lax.shift_right_logical(x, y), lax.shift_right_arithmetic(x, y),
            jnp.maximum(x, y), lax.clz(x), lax.population_count(x), x.astype(jnp.int8), x.astype(jnp.uint16), x.astype(jnp.float32), x > y,
            jnp.sort(x), jnp.argsort(x), jnp.cumsum(x), x[i], x.at[i].add(y[:3]), jnp.roll(x, 3), x.reshape(8, 5) @ y.reshape(5, 8), jnp.max(x.reshape(8, 5), 0),
            lax.conv_general_dilated(picture, picture.transpose(1, 2, 3, 0)[:2, :3], (1, 2), ((1, 0), (0, 2)), lhs_dilation=(2, 1),
                                     dimension_numbers=("NHWC", "HWIO", "NHWC")),
            lax.while_loop(lambda c: c[0] < 5, lambda c: (c[0] + 1, c[1] * 3), (0, x))[1],
            lax.cond(x[0] > y[0], lambda a: a + 1, lambda a: a - 1, x),
            f + f, f * f[::-1], f.astype(jnp.bfloat16), f.astype(jnp.float16), f.astype(jnp.bfloat16) * f.astype(jnp.bfloat16),
            lax.reduce_precision(f, 5, 3), lax.bitcast_convert_type(f, jnp.int32), jnp.pad(f, (1, 2), mode="edge"), jnp.where(f > 0, f, -f), jnp.clip(f, -0.5, 0.5),
            jnp.floor(f * 9), jnp.round(f * 9), lax.dynamic_slice(f, (i[1],), (4,)), lax.dynamic_update_slice(f, f[:3], (i[0],)),
        )

    ones = lambda *shape: np.ones(shape, np.float32)
    random = np.random.RandomState(1)
    arguments = (random.randint(-2**31, 2**31, 40).astype(np.int32), random.randint(1, 30, 40).astype(np.int32) * random.choice([-1, 1], 40).astype(np.int32),
                 np.array([2, 39, 5], np.int32), random.uniform(-2, 2, 12).astype(np.float32))
    programs = {
        "train": (train, (ones(6, 8), ones(8, 4), ones(3, 6), ones(3, 4))),
        "loop": (loop, (ones(5, 3),)),
        "whole": (whole, arguments),
    }
    for name, (function, given) in programs.items():
        lowered = jax.jit(function).lower(*given)
        compiled = lowered.compile()
        before = lowered.compiler_ir("hlo")
        after = compiled.runtime_executable().hlo_modules()[0]
        before = before.as_hlo_module() if hasattr(before, "as_hlo_module") else before.get_hlo_module()
        for kind, module in (("pre", before), ("opt", after)):
            file = HERE / f"{name}-{release}.{kind}"
            file.with_name(file.name + ".pb").write_bytes(module.as_serialized_hlo_module_proto())
            file.with_name(file.name + ".txt").write_text(module.to_string())
        if name == "whole":
            results = jax.tree_util.tree_leaves(compiled(*given))
            text = json.dumps({"arguments": [bits(a) for a in given], "results": [bits(a) for a in results]})
            (HERE / f"{name}-{release}.json").write_text(text.replace("], [", "],\n[") + "\n")


def convert(release):
    try:
        from jaxlib import _hlo as hlo
    except ImportError:
        return  # the older release cannot read all of them
    for file in sorted(HERE.glob("*.hlo")):
        module = hlo.hlo_module_from_text(file.read_text())
        (HERE / f"{file.stem}-{release}.pb").write_bytes(module.as_serialized_hlo_module_proto())
        (HERE / f"{file.stem}-{release}.txt").write_text(module.to_string())


def bits(array):
    """The bit patterns of an array's elements."""
    import numpy as np

    array = np.ascontiguousarray(np.asarray(array))
    if array.dtype == bool:
        return [int(x) for x in array.reshape(-1)]
    return [int(x) for x in array.reshape(-1).view({1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[array.dtype.itemsize])]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--make"]:
        make(sys.argv[2])
        convert(sys.argv[2])
    else:
        main()
