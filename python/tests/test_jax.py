"""gpumem.jax with the real JAX, on its CPU; skipped where it is not installed."""

import contextlib
import io
import os
import sys
import unittest

try:
    import jax
    import jax.extend
    import jax.numpy as jnp
except ImportError:
    jax = None
    print("test_jax: SKIPPED: no JAX", file=sys.stderr)

import gpumem
from test_gpumem import python


def make(n):
    return jnp.ones((n, 1024))  # the line that live() names


@unittest.skipUnless(jax, "no JAX")
class Jax(unittest.TestCase):
    def test_live_arrays_by_line(self):
        kept = [make(256) for _ in range(3)] + [jnp.zeros(1 << 20)]
        answer = gpumem.jax.live()
        lines = {row.site: (row.bytes, row.blocks) for row in answer.live if row.pool != "executable"}
        here = sys.modules[__name__].__file__
        name = os.path.basename(here)
        line = make.__code__.co_firstlineno + 1
        self.assertEqual(lines[f"make ({name}:{line})"], (3 << 20, 3))
        self.assertEqual(sorted(lines.values())[-1], (4 << 20, 1))
        self.assertRegex(str(answer), rf"3 MiB +3 .*make \({name}:{line}\)")
        self.assertIn("ones (", answer.live[1].stack)
        devices = {str(device) for device in jax.local_devices()}
        self.assertLessEqual({row.pool for row in answer.live}, devices | {"executable"})
        del kept
        self.assertNotIn(f"make ({name}:{line})", [row.site for row in gpumem.jax.live().live if row.pool != "executable"])

    def test_diagnose_shows_what_lives(self):
        status, _, err = python(
            "import gpumem, jax.numpy as jnp\ngpumem.diagnose()\nx = jnp.ones((1024, 1024))\n"
            "raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6727663616 bytes.')"
        )
        self.assertEqual(status, 1)
        self.assertRegex(err, r"Live in JAX: 4 MiB in \d+ blocks?\n(.*\n)+ *4 MiB +1 .*<module> \(<string>:3\)")

    def test_watch_has_the_lines_of_the_end(self):
        status, out, err = python("import gpumem, jax.numpy as jnp\nwith gpumem.watch():\n    x = jnp.ones((1024, 1024))", JAX_PLATFORMS="cpu")
        self.assertEqual((status, out), (0, ""), err)
        self.assertRegex(err, r"gpumem.watch: jax: the peak is unknown, for JAX counts none on this device; 4 MiB at the end; live then:\n.*where\n +4 MiB +1  <module> \(<string>:3\)")

    def test_jax_that_is_not_used_is_left_alone(self):
        status, out, err = python(
            "import gpumem, jax; gpumem.diagnose()\n"
            "import atexit; atexit.register(lambda: print(gpumem.jax.is_used()))\n"
            "raise RuntimeError('RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6727663616 bytes.')"
        )
        self.assertEqual((status, out), (1, "False\n"))
        self.assertNotIn("Live in JAX", err)

    def test_statistics_of_each_device(self):
        stats = gpumem.jax.stats()
        self.assertEqual(list(stats), [str(device) for device in jax.local_devices()])
        for device, s in zip(jax.local_devices(), stats.values()):
            self.assertEqual(s.bytes_in_use, (device.memory_stats() or {}).get("bytes_in_use"))

    def test_programs(self):
        def step(x):
            return jnp.sin(x @ x.T).sum()

        x = make(256)
        compiled = jax.jit(jax.grad(step), donate_argnums=0).lower(x).compile()
        program, sizes = gpumem.jax.program(compiled), compiled.memory_analysis()
        self.assertEqual((program.argument_bytes, program.output_bytes, program.temp_bytes), (1 << 20, 1 << 20, sizes.temp_size_in_bytes))
        self.assertIn(program.name, [p.name for p in gpumem.jax.programs()])
        self.assertRegex(repr(program), "^jit_step: .*arguments 1 MiB, outputs 1 MiB, temporaries")
        self.assertGreaterEqual(program.hlo().peak_bytes, 2 << 20)
        with self.assertRaisesRegex(TypeError, "compile\\(\\) returns, not function"):
            gpumem.jax.program(step)

    @unittest.skipUnless(jax and hasattr(jax.extend, "xla") if jax else False, "no JAX that can change what XLA compiles")
    def test_remat(self):
        def loss(w, x):
            for _ in range(8):
                x = jnp.tanh(x @ w) * 2 + 1
            return (x * x).sum()

        w, x = jnp.eye(256) * 0.5, jnp.ones((4096, 256))
        compiled = lambda: jax.jit(jax.grad(loss)).lower(w, x).compile()
        plain, said = compiled(), io.StringIO()
        try:
            with contextlib.redirect_stderr(said):
                gpumem.jax.remat("60%")
                jax.clear_caches()
                less = compiled()
        finally:
            gpumem.jax.remat(None)
        before, after = (c.memory_analysis().temp_size_in_bytes for c in (plain, less))
        self.assertLess(after, before * 0.65)
        self.assertEqual(plain(w, x).tobytes(), less(w, x).tobytes())
        self.assertRegex(said.getvalue(), "gpumem: jit_loss: [0-9.]+ MiB of temporaries instead of [0-9.]+ MiB, for [0-9.]+ % more compute")
        jax.clear_caches()
        self.assertEqual(compiled().memory_analysis().temp_size_in_bytes, before)
        for wrong in (0.6, True, "lots", "0%"):
            with self.assertRaisesRegex(ValueError, "want bytes"):
                gpumem.jax.remat(wrong)


if __name__ == "__main__":
    unittest.main()
