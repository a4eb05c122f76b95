"""gpumem with the real PyTorch, CuPy and RMM, on a GPU or on the simulated one in the driver's
place (scripts/python-on-sim); skipped where they or a GPU are missing."""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

import gpumem
from test_gpumem import python

DEVICE = {"GPUMEM_DEVICE": ""}  # the driver's GPU

# CuPy and RMM have a runtime of CUDA in them, which the simulated driver does not serve:
# CuPy's current device and stream are stand-ins there.
HEAD = """
import warnings; warnings.simplefilter("ignore")
import importlib.util, types, torch, gpumem
if importlib.util.find_spec("cupy"):
    import cupy
    try: cupy.cuda.device.get_device_id()
    except Exception:
        cupy.cuda.device.get_device_id = lambda: 0
        cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0)
MIB = 1 << 20
def empty(n): return torch.empty(n, dtype=torch.uint8, device="cuda")
"""


def missing(*modules):
    """Returns what is not there, "" if all is."""
    for module in modules:
        if not importlib.util.find_spec(module):
            return f"no {module}"
    status, out, err = python("import warnings; warnings.simplefilter('ignore')\nimport torch; print(torch.cuda.is_available())", **DEVICE)
    return "" if out == "True\n" else "PyTorch sees no GPU"


LACKING = missing("torch")
if LACKING:
    print(f"test_libraries: SKIPPED: {LACKING}", file=sys.stderr)


@unittest.skipIf(LACKING, LACKING)
class Libraries(unittest.TestCase):
    def check(self, program):
        status, out, err = python(HEAD + program + "\nprint('done')", **DEVICE)
        self.assertEqual((status, out.splitlines()[-1:]), (0, ["done"]), err)
        return out

    def need(self, module):
        if not importlib.util.find_spec(module):
            self.skipTest(f"no {module}")

    def test_torch_statistics_are_the_pools(self):
        self.check(
            "gpumem.torch.use('elastic:limit=2GiB')\n"
            "x, y = empty(100 * MIB), empty(50 * MIB); del y\n"
            "s = gpumem.stats()\n"
            "assert torch.cuda.memory_allocated() == s.bytes_in_use >= 100 * MIB, s\n"
            "assert torch.cuda.max_memory_allocated() == s.peak_bytes_in_use >= 150 * MIB, s\n"
            "assert torch.cuda.memory_reserved() == s.pool_bytes, s\n"
            "assert 'Allocated memory' in torch.cuda.memory_summary()\n"
            "torch.cuda.reset_peak_memory_stats(); assert torch.cuda.max_memory_allocated() == s.bytes_in_use\n"
            "del x; torch.cuda.empty_cache(); assert torch.cuda.memory_reserved() == 0\n"
        )

    def test_torch_out_of_memory(self):
        self.check(
            "gpumem.torch.use('elastic:limit=2GiB')\n"
            "try: empty(1 << 40)\n"
            "except torch.OutOfMemoryError as e: assert 'Why: 1 TiB was asked for' in str(e), e\n"
            "else: assert False\n"
            "x = empty(MIB)  # the program goes on\n"
        )

    def test_torch_streams(self):
        self.check(
            "gpumem.torch.use()\n"
            "side = torch.cuda.Stream()\n"
            "with torch.cuda.stream(side): x = empty(MIB)\n"
            "x.record_stream(torch.cuda.default_stream()); del x\n"
            "torch.cuda.synchronize(); assert gpumem.stats().live == 0\n"
        )

    def test_torch_what_cannot_work_raises(self):
        self.check(
            "gpumem.torch.use(); x = empty(MIB)\n"
            "from torch.multiprocessing.reductions import reduce_tensor\n"
            "for f in (torch.cuda.memory_snapshot, torch.cuda.memory._record_memory_history, lambda: reduce_tensor(x)):\n"
            "    try: f()\n"
            "    except RuntimeError as e: assert 'does not yet support' in str(e), e\n"
            "    else: assert False, f\n"
        )

    def test_torch_pool(self):
        self.check(
            "pool = gpumem.torch.pool('elastic:limit=2GiB')\n"
            "with torch.cuda.use_mem_pool(pool): x = empty(100 * MIB)\n"
            "y = empty(50 * MIB)\n"
            "assert torch.cuda.memory_allocated() == 150 * MIB and gpumem.stats().bytes_in_use == 100 * MIB\n"
            "try:\n"
            "    with torch.cuda.use_mem_pool(pool): empty(1 << 40)\n"
            "except torch.OutOfMemoryError: pass\n"
            "else: assert False\n"
        )

    def test_torch_data_loader(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "main.py")
            with open(path, "w") as f:
                f.write(
                    HEAD + "from torch.utils.data import DataLoader, Dataset\n"
                    "class Data(Dataset):\n"
                    "    def __len__(self): return 16\n"
                    "    def __getitem__(self, i): return torch.full((1024,), i)\n"
                    "if __name__ == '__main__':\n"
                    "    gpumem.torch.use(); x = empty(MIB)\n"
                    "    for method in ('fork', 'spawn', 'forkserver'):\n"
                    "        batches = [empty(batch.numel()) for batch in DataLoader(Data(), batch_size=4, num_workers=2, multiprocessing_context=method)]\n"
                    "        assert len(batches) == 4\n"
                    "        del batches\n"
                    "    assert gpumem.stats().live == 1\n"
                )
            done = subprocess.run([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **DEVICE}, timeout=300)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, b"", b""))

    def test_torch_history(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "run.pickle")
            self.check(
                "before = empty(4 * MIB)\n"
                f"with gpumem.record({path!r}, 'torch'):\n"
                "    kept = [empty(i * MIB) for i in range(1, 9)]; del kept[1:]\n"
            )
            out = subprocess.run([gpumem.command(), "leaks", "--live", "--json", path], stdout=subprocess.PIPE, check=True).stdout
            live = json.loads(out)["live"]
            self.assertEqual(sorted(row["bytes"] for row in live), [1 << 20, 4 << 20])
            self.assertTrue(any("<string>" in row["site"] for row in live), live)

    def test_phases_of_60_percent_by_turns(self):
        """PyTorch and CuPy on one pool, and no call to empty a cache."""
        self.need("cupy")
        self.check(
            "gpumem.torch.use(); gpumem.cupy.use()\n"
            "n = torch.cuda.mem_get_info()[0] * 60 // 100\n"
            "for i in range(5):\n"
            "    x = empty(n); del x\n"
            "    y = cupy.empty(n, dtype=cupy.uint8); del y\n"
            "s = gpumem.stats(); assert (s.allocs, s.refused, s.live) == (10, 0, 0), s\n"
        )

    def test_cupy_out_of_memory(self):
        self.need("cupy")
        self.check(
            "gpumem.cupy.use('elastic:limit=2GiB')\n"
            "try: cupy.empty(1 << 40, dtype=cupy.uint8)\n"
            "except cupy.cuda.memory.OutOfMemoryError as e: assert 'Out of memory allocating 1,099,511,627,776 bytes' in str(e) and 'Why: 1 TiB' in str(e), e\n"
            "else: assert False\n"
        )

    def test_rmm(self):
        self.need("rmm")
        self.check(
            "import rmm\nfrom rmm.pylibrmm.stream import DEFAULT_STREAM\n"
            "gpumem.configure(policy='elastic:limit=2GiB'); resource = gpumem.rmm.resource()\n"
            "at = resource.allocate(MIB, DEFAULT_STREAM); assert gpumem.stats().bytes_in_use == MIB\n"
            "resource.deallocate(at, MIB, DEFAULT_STREAM); assert gpumem.stats().bytes_in_use == 0\n"
            "try: resource.allocate(1 << 40, DEFAULT_STREAM)\n"
            "except MemoryError as e: assert 'Why: 1 TiB' in str(e), e\n"
            "else: assert False\n"
        )


if __name__ == "__main__":
    unittest.main()
