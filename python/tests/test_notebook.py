"""%gpumem and %%gpumem with the real IPython; skipped where it is not installed."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

os.environ["GPUMEM_DEVICE"] = "sim:1GiB"

try:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
except ImportError:
    InteractiveShell = None
    print("test_notebook: SKIPPED: no IPython", file=sys.stderr)

try:
    import ipykernel
    from jupyter_client.manager import start_new_kernel
except ImportError:
    start_new_kernel = None
    print("test_notebook: SKIPPED: no Jupyter kernel", file=sys.stderr)

import gpumem
from gpumem import _library

EXAMPLE = pathlib.Path(__file__).resolve().parents[2] / "examples" / "notebook" / "gpumem.ipynb"


@contextlib.contextmanager
def example():
    """Returns the cells of the example, in an empty folder: their source, and what they
    printed when it was saved."""
    cells = [cell for cell in json.loads(EXAMPLE.read_text())["cells"] if cell["cell_type"] == "code"]
    path = os.pathsep.join([os.path.dirname(gpumem.command()), os.environ["PATH"]])
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, PATH=path):
        os.chdir(folder)
        try:
            yield [("".join(cell["source"]), "".join("".join(o.get("text", "")) for o in cell["outputs"])) for cell in cells]
        finally:
            os.chdir(before)


def close_pools():
    for number in range(64, 1024):
        if _library.is_open(number):
            _library.library().gpumem_close(number)


class Example(unittest.TestCase):
    def test_cells_in_plain_python(self):
        self.addCleanup(close_pools)
        names = {}
        with example() as cells:
            self.assertGreater(len(cells), 5)
            for source, printed in cells:
                if source.startswith(("!", "%load_ext", "from IPython")):
                    continue
                plain = source.replace("%%gpumem\n", "")
                with contextlib.redirect_stdout(io.StringIO()) as out:
                    exec(plain, names)
                if plain == source and "doctor(" not in source:  # its words are its own tests'
                    self.assertEqual(out.getvalue(), printed, source)


@unittest.skipUnless(InteractiveShell, "no IPython")
class Notebook(unittest.TestCase):
    def setUp(self):
        self.shell = InteractiveShell.instance()
        self.shell.reset()
        self.addCleanup(close_pools)
        self.run_cell("%load_ext gpumem")

    def run_cell(self, cell):
        """Runs a cell; returns its text and the types of what it displays."""
        with capture_output() as out:
            self.result = self.shell.run_cell(cell, store_history=True)
        return out.stdout + out.stderr, [kind for o in out.outputs for kind in o.data]

    def test_cell_that_grows(self):
        pool = self.shell.user_ns["pool"] = gpumem.Pool()
        self.shell.user_ns["kept"] = pool.alloc(30 << 20)
        text, shown = self.run_cell("%%gpumem\nblocks = [pool.alloc(i << 20) for i in range(1, 20)]\nfor b in blocks[3:]:\n    pool.free(b)\nlen(blocks)")
        self.assertIn("gpumem: +6 MiB to 36 MiB in use, peak 220 MiB requested\n", text)
        self.assertIn("image/svg+xml", shown)
        self.assertEqual(self.result.result, 19)

    def test_statement(self):
        pool = self.shell.user_ns["pool"] = gpumem.Pool()
        self.shell.user_ns["block"] = pool.alloc(30 << 20)
        text, _ = self.run_cell("%gpumem pool.free(block)")
        self.assertEqual(text, "gpumem: -30 MiB to 0 B in use, peak 30 MiB requested\n")
        self.assertIn("30 MiB", self.run_cell("%gpumem")[0])

    def test_pool_that_the_cell_opens(self):
        text, shown = self.run_cell("%%gpumem gpumem\nimport gpumem\nwith gpumem.Pool() as pool:\n    pool.free(pool.alloc(5 << 20))")
        self.assertIn("+0 B to 0 B in use, peak 5 MiB requested", text)
        self.assertIn("image/svg+xml", shown)

    def test_two_pools(self):
        cell = "%%gpumem gpumem\nimport gpumem\nwith gpumem.Pool() as a, gpumem.Pool() as b:\n    x, y = a.alloc(5 << 20), b.alloc(6 << 20)"
        text, shown = self.run_cell(cell)
        self.assertIsNone(self.result.error_in_exec)
        self.assertIn("image/svg+xml", shown)

    def test_error_leaves_the_cell_with_its_lines(self):
        text, _ = self.run_cell("%%gpumem gpumem\n\nimport gpumem\nwith gpumem.Pool() as pool:\n    pool.alloc(2 << 30)")
        self.assertIsInstance(self.result.error_in_exec, gpumem.OutOfMemoryError)
        self.assertIn("peak 2 GiB requested, 1 refused", text)
        trace = self.result.error_in_exec.__traceback__
        lines = []
        while trace:
            lines.append((trace.tb_frame.f_code.co_name, trace.tb_lineno))
            trace = trace.tb_next
        self.assertIn(("<module>", 5), lines)

    def test_nothing_recorded(self):
        text, shown = self.run_cell("%%gpumem gpumem\nx = 1")
        self.assertIn("gpumem: +0 B to 0 B in use, peak 0 B requested\n", text)
        self.assertNotIn("image/svg+xml", shown)

    def test_example(self):
        with example() as cells:
            for source, printed in cells:
                text, _ = self.run_cell(source)
                self.assertIsNone(self.result.error_in_exec, source)
                if not source.startswith(("!", "%load_ext")) and "doctor(" not in source and self.result.result is None:
                    self.assertEqual(text, printed, source)

    def test_framework_that_is_unknown(self):
        text, _ = self.run_cell("%%gpumem nonsense\nx = 1")
        self.assertIn("no framework nonsense; there are gpumem, torch, jax, cupy", text)

    def test_extension_that_is_loaded_again(self):
        text, _ = self.run_cell("%reload_ext gpumem\n%gpumem x = 1")
        self.assertIn("+0 B to 0 B in use", text)

    def test_jax(self):
        try:
            import jax
        except ImportError:
            self.skipTest("no JAX")
        text, _ = self.run_cell("%%gpumem jax\nimport jax.numpy as jnp\nx = jnp.ones((512, 1024))\nx.shape")
        if jax.default_backend() == "cpu":
            self.assertIn("jax: +2 MiB to 2 MiB in use; no peak and no picture: JAX records none on a CPU", text)
        self.assertRegex(" ".join(row.site for row in gpumem.jax.live().live), r"<module> \(In\[\d+\]:3\)")


@unittest.skipUnless(start_new_kernel, "no Jupyter kernel")
class Kernel(unittest.TestCase):
    """A real kernel, in another process."""

    CELL = (
        "import gpumem, threading\npool = gpumem.Pool(); kept = pool.alloc(1 << 20)\n"
        "def work():\n    while True: pool.free(pool.alloc(1 << 20))\n"
        "threading.Thread(target=work, daemon=True).start()\nprint(pool.stats().total)"
    )

    def run_cell(self, client, cell):
        """Runs a cell; returns what it prints."""
        printed = []

        def shown(message):
            if message["msg_type"] in ("stream", "error"):
                printed.append(str(message["content"].get("text", message["content"])))

        client.execute_interactive(cell, timeout=60, output_hook=shown)
        return "".join(printed)

    def test_restart_with_a_pool_at_work(self):
        manager, client = start_new_kernel(kernel_name="python3", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            self.assertEqual(self.run_cell(client, self.CELL), "1073741824\n")
            for now in (False, True):
                manager.restart_kernel(now=now)
                client.wait_for_ready(timeout=60)
                self.assertEqual(self.run_cell(client, self.CELL), "1073741824\n")
            self.assertIn(" in use, peak ", self.run_cell(client, "%load_ext gpumem\n%gpumem more = pool.alloc(1 << 20)"))
        finally:
            client.stop_channels()
            manager.shutdown_kernel()


if __name__ == "__main__":
    unittest.main()
