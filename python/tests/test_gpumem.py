"""What an installed wheel does, on the simulated GPU: python -m unittest in a venv with it.

PyTorch, CuPy and RMM are stand-ins here: modules with the functions that ours call.
"""

import contextlib
import ctypes
import importlib
import inspect
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import types
import unittest
from unittest import mock

os.environ["GPUMEM_DEVICE"] = "sim:1GiB"

import gpumem
from gpumem import _explain, _library, _record, _watch

MIB = 1 << 20
LOG = "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 6727663616 bytes."


def python(program, *args, **env):
    """Runs a program in another Python; returns (status, stdout, stderr)."""
    done = subprocess.run([sys.executable, "-c", program, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **env}, timeout=120)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@contextlib.contextmanager
def only(frameworks):
    """Makes these the frameworks that are imported."""
    with mock.patch.dict(sys.modules):
        for name in ("cupy", "jax", "jaxlib", "tensorflow", "torch"):
            sys.modules.pop(name, None)
        sys.modules.update(frameworks)
        yield


class Import(unittest.TestCase):
    def test_imports_nothing_and_does_nothing(self):
        program = "import sys; before = set(sys.modules); import gpumem; print(sorted(m for m in set(sys.modules) - before if not m.startswith('_')))"
        self.assertEqual(python(program), (0, "['gpumem']\n", ""))

    def test_every_name_is_there(self):
        for name in gpumem.__all__:
            self.assertTrue(getattr(gpumem, name), name)
            self.assertIn(name, dir(gpumem))
        with self.assertRaisesRegex(AttributeError, "no attribute 'nonsense'"):
            gpumem.nonsense

    def test_is_typed(self):
        self.assertTrue((pathlib.Path(gpumem.__file__).parent / "py.typed").exists())


class Command(unittest.TestCase):
    def test_module_and_script(self):
        module = subprocess.run([sys.executable, "-m", "gpumem", "--version"], stdout=subprocess.PIPE, check=True).stdout
        script = subprocess.run([os.path.join(os.path.dirname(sys.executable), "gpumem"), "--version"], stdout=subprocess.PIPE, check=True).stdout
        self.assertEqual(module, script)
        self.assertIn(gpumem.__version__, module.decode())

    def test_status_is_the_commands(self):
        self.assertEqual(subprocess.run([sys.executable, "-m", "gpumem", "nonsense"], stderr=subprocess.DEVNULL).returncode, 2)

    def test_missing_command(self):
        status, out, err = python("import sys; sys.argv = ['gpumem']; import gpumem.__main__", GPUMEM_COMMAND="/nonexistent")
        self.assertEqual((status, out), (1, ""))
        self.assertRegex(err, "^gpumem: /nonexistent: there is no such program; .*\n$")


class Doctor(unittest.TestCase):
    def test_text(self):
        answer = gpumem.doctor(LOG)
        self.assertEqual(answer.verdict, "needs")
        self.assertIn("program_too_big", [cause.id for cause in answer.causes])
        self.assertTrue(all(cause.steps for cause in answer.causes))
        self.assertIn("6.27 GiB was refused", str(answer))
        json.dumps(answer)

    def test_exception(self):
        try:
            raise RuntimeError(LOG)
        except RuntimeError as e:
            self.assertEqual(gpumem.doctor(e).verdict, "needs")
            self.assertEqual(gpumem.doctor().verdict, "needs")  # the one that is being handled

    def test_file(self):
        with tempfile.TemporaryDirectory() as folder:
            log = pathlib.Path(folder, "log")
            log.write_text(LOG)
            self.assertEqual(gpumem.doctor(log).verdict, "needs")
            with self.assertRaisesRegex(FileNotFoundError, "none: there is no such file"):
                gpumem.doctor(pathlib.Path(folder, "none"))

    def test_a_name_or_a_text(self):
        """A misspelt name was read as a log of one line, in which no memory failed."""
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            stack.callback(os.chdir, os.getcwd())
            os.chdir(folder)
            os.mkdir("logs")
            pathlib.Path("train run").write_text(LOG)
            self.assertEqual(gpumem.doctor("train run").verdict, "needs")
            for name in ("train.log", "train.LOG", "slurm-1.out", "train.log.1", "train.txt.gz", "./train", "logs/train"):
                with self.assertRaisesRegex(FileNotFoundError, f"^gpumem.doctor: {name}: there is no such file$"):
                    gpumem.doctor(name)
            with self.assertRaisesRegex(IsADirectoryError, "^gpumem.doctor: logs: this is a folder"):
                gpumem.doctor("logs")
            for text in ("CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; see /tmp/train.log)", "train.log: CUDA out of memory", "std::bad_alloc", "torch.OutOfMemoryError", "failed\n./train.log"):
                gpumem.doctor(text)

    def test_messages_in_the_words_of_python(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "x.txt")
            pathlib.Path(path).write_text("hello")
            for call, words in {
                "doctor('')": "gpumem.doctor: the text is empty",
                "doctor(b'\\0\\0\\0')": "gpumem.doctor: the text: this is no text",
                "doctor('x', with_file=path)": f"gpumem.doctor: with_file={path}:1: ",
                "doctor('x', with_file='none')": "gpumem.doctor: with_file=none: there is no such file",
                "doctor('x', state='none')": "gpumem.doctor: state=none: there is no such file",
                "doctor('x', state=path, machine=True)": "gpumem.doctor: state= is of the machine where it failed",
                "explain('nope')": 'gpumem.explain: unknown framework "nope"',
                "explain('')": 'gpumem.explain: framework="": it is empty; give a value, or leave it out',
                "explain('jax', device='bad')": 'gpumem.explain: device="bad": no card',
            }.items():
                with self.assertRaises((ValueError, OSError)) as raised:
                    eval("gpumem." + call, {"gpumem": gpumem, "path": path})
                self.assertEqual((str(raised.exception)[: len(words)], "--" in str(raised.exception), "stdin" in str(raised.exception)), (words, False, False))

    def test_the_next_command_has_a_new_file(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            stack.callback(os.chdir, os.getcwd())
            os.chdir(folder)
            stack.enter_context(only({"torch": types.ModuleType("torch")}))
            stack.enter_context(mock.patch.object(sys, "orig_argv", ["python", "train.py"], create=True))
            for name in ("run.pickle", "run2.pickle", "run3.pickle"):
                self.assertIn(f"gpumem run --record {name} -- python train.py    # for gpumem leaks {name}", _explain._next(leaks=True)[-1])
                pathlib.Path(name).touch()

    def test_what_a_log_may_be(self):
        """Its name, as in the shell; bytes; an open file, of text or of bytes."""
        with tempfile.TemporaryDirectory() as folder:
            log = os.path.join(folder, "-train.log")
            pathlib.Path(log).write_text(LOG)
            with contextlib.ExitStack() as stack:
                files = [stack.enter_context(open(log, mode)) for mode in ("r", "rb")]
                for problem in (log, LOG.encode(), *files):
                    self.assertEqual(gpumem.doctor(problem).verdict, "needs", problem)
            before = os.getcwd()
            self.addCleanup(os.chdir, before)
            os.chdir(folder)
            for problem in ("-train.log", pathlib.Path("-train.log")):  # which is no flag
                self.assertEqual(gpumem.doctor(problem).verdict, "needs")
            os.chdir(before)

    def test_the_machine_alone(self):
        program = "import gpumem\nanswer = gpumem.doctor(machine=True)\nprint(answer.certain)\nprint(str(answer))"
        status, out, err = python(program)
        self.assertEqual((status, err), (0, ""))
        self.assertIn("sim:1GiB: 1 GiB, total", out)

    def test_bad_arguments(self):
        with self.assertRaisesRegex(TypeError, "a text, an exception or a Path, not 5"):
            gpumem.doctor(5)
        with self.assertRaisesRegex(AttributeError, "no 'nonsense' in this answer; it has"):
            gpumem.doctor(LOG).nonsense


class Explain(unittest.TestCase):
    def test_environment(self):
        answer = gpumem.explain("jax@0.4.30", device="sim:24GiB", env={"XLA_PYTHON_CLIENT_PREALLOCATE": "off"})
        self.assertEqual((answer.allocator, answer.preallocate), ("bfc", True))
        self.assertEqual(answer.warnings[0].name, "XLA_PYTHON_CLIENT_PREALLOCATE")
        self.assertIn("not recognised", str(answer))

    def test_loaded_framework(self):
        with only({"torch": types.SimpleNamespace(__version__="2.9.0+cu128")}):
            answer = gpumem.explain(device="sim:24GiB")
        self.assertEqual((answer.framework, answer.version), ("pytorch", "2.9.0"))

    def test_settings_that_are_refused(self):
        answer = gpumem.explain("jax", device="sim:24GiB", env={"XLA_CLIENT_MEM_FRACTION": ".5", "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5"})
        self.assertTrue(answer.errors)


class Arguments(unittest.TestCase):
    """Odd values for each argument of each public function: what is raised is one sentence for people,
    and no frame but the function's own is above it."""

    ODD = (None, 3, -1, 1.5, b"", "", object(), dict, [], (i for i in ()), len, {1: 2}, "no such", pathlib.Path("/no/such"), float("nan"), 1 << 70)
    INTERNAL = r"\b_[a-z]|NoneType|has no attribute|ArgumentError|unhashable|expected str, bytes|not subscriptable|codec|ctypes|<[a-z]+ .* at 0x"
    OTHERS = {"alloc": {"size": 1}, "free": {"address": 0}, "record_stream": {"address": 0, "stream": 0}, "remat": {"limit": None}, "record": {"path": "/no/such/file"}}

    def functions(self, pool):
        for name in gpumem.__all__:
            value = getattr(gpumem, name)
            if isinstance(value, types.ModuleType):
                yield from ((f"{name}.{n}", f) for n, f in vars(value).items() if callable(f) and not n.startswith("_") and getattr(f, "__module__", "") == value.__name__)
            elif callable(value) and name not in ("Answer", "Error", "OutOfMemoryError", "Stats"):
                yield name, value
        for name in ("alloc", "free", "record_stream"):
            yield "Pool." + name, getattr(pool, name)

    def test_odd_values(self):
        tried = 0
        data = ("Stats", "Program", "Programs", "Live")
        with gpumem.Pool("sim:1GiB") as pool, only({}), mock.patch("sys.stderr", io.StringIO()) as err:
            for name, function in list(self.functions(pool)):
                short = name.rpartition(".")[2]
                for parameter in inspect.signature(function).parameters if short not in data else ():
                    for odd in self.ODD:
                        if short == "diagnose" and odd is None:
                            continue  # which is right, and changes the hooks
                        with self.subTest(f"{name}({parameter}={odd!r})"):
                            self.call(function, {**self.OTHERS.get(short, {}), parameter: odd})
                            tried += 1
        self.assertGreater(tried, 300)
        self.assertNotRegex(err.getvalue(), self.INTERNAL)

    def call(self, function, arguments):
        try:
            made = function(**arguments)
            if isinstance(made, gpumem.Pool):
                made.close()
        except (TypeError, ValueError, OSError, ImportError, gpumem.Error) as e:
            self.assertNotRegex(str(e), self.INTERNAL)
            self.assertFalse("\n" in str(e).strip() and not isinstance(e, gpumem.OutOfMemoryError), e)
            frames, trace = [], e.__traceback__
            while trace:
                if trace.tb_frame.f_code.co_filename.startswith(os.path.dirname(gpumem.__file__)):
                    frames.append(trace.tb_frame.f_code.co_name)
                trace = trace.tb_next
            if not isinstance(e, ImportError):  # a framework that is missing
                self.assertFalse([n for n in frames if n.startswith("_") and not n.startswith("__")], frames)

    def test_misuse_that_is_common(self):
        with self.assertRaisesRegex(TypeError, r"@gpumem.watch\(\)"):

            @gpumem.watch
            def f():
                pass

        for wrong in ("boom", ValueError):
            with mock.patch("sys.stderr", io.StringIO()) as err:
                gpumem.diagnose(wrong)
            self.assertRegex(err.getvalue(), "^gpumem: diagnose wants an exception that was caught, .*\n$")
        self.assertTrue(all(isinstance(c, type) for c in (gpumem.torch.TrainerCallback, gpumem.torch.LightningCallback)))  # transformers makes one of a class

    def test_history_of_a_callback_is_checked_when_it_is_made(self):
        with tempfile.TemporaryDirectory() as folder:
            there = pathlib.Path(folder, "there")
            there.write_text("x")
            for make in (gpumem.torch.LightningCallback, gpumem.torch.TrainerCallback):
                for history, error in ((3, TypeError), ("", TypeError), ("/nope/x", FileNotFoundError), (there, FileExistsError), (folder, IsADirectoryError)):
                    with self.assertRaises(error):
                        make(history=history)
            self.assertEqual(os.listdir(folder), ["there"])

    def test_explain_under_our_pool(self):
        with only({"torch": types.SimpleNamespace(__version__="2.9.0")}), mock.patch.object(gpumem.torch, "_used", object()):
            answer = gpumem.explain(device="sim:24GiB")
            self.assertRegex(str(answer), "^Under gpumem.torch.use")
            self.assertEqual(answer.warnings[0].name, "gpumem.torch.use")
            self.assertNotIn("Under", str(gpumem.explain("pytorch@2.9", device="sim:24GiB")))


class Diagnose(unittest.TestCase):
    def run_program(self, body):
        return python("import gpumem; gpumem.diagnose(); gpumem.diagnose()\n" + body)

    def test_explains_once(self):
        status, out, err = self.run_program(f"raise RuntimeError({LOG!r})")
        self.assertEqual((status, out), (1, ""))
        self.assertLess(err.index("Traceback"), err.index("6.27 GiB"))
        self.assertEqual(err.count("6.27 GiB"), 1)

    def test_error_of_a_pool_has_its_report(self):
        status, _, err = self.run_program("p = gpumem.Pool('sim:1GiB'); p.alloc(5 << 20); p.alloc(2 << 30)")
        self.assertEqual(status, 1)
        self.assertLess(err.index("Why: 2 GiB was asked for"), err.index("in use    5 MiB"))
        self.assertNotIn("XLA_PYTHON", err)

    def test_cause_of_another_exception(self):
        err = self.run_program(f"try: raise RuntimeError({LOG!r})\nexcept RuntimeError as e: raise KeyError('step') from e")[2]
        self.assertEqual(err.count("6.27 GiB"), 1)

    def test_thread(self):
        program = f"import threading\ndef f(): raise RuntimeError({LOG!r})\nt = threading.Thread(target=f); t.start(); t.join()"
        status, _, err = self.run_program(program)
        self.assertEqual(status, 0)
        self.assertEqual(err.count("6.27 GiB"), 1)

    def test_other_errors_are_left_alone(self):
        for body in ("raise ValueError('x')", "raise SystemExit(3)", "raise KeyboardInterrupt"):
            plain = python("\n" + body)
            self.assertEqual(self.run_program(body), (plain[0], plain[1], plain[2]), body)

    def test_out_of_memory_without_numbers_is_never_silent(self):
        """An error of a framework's own type is explained also where the answer is "unknown"; another's
        RESOURCE_EXHAUSTED, such as a quota, is left alone."""
        own = "class ResourceExhaustedError(Exception): pass\n"
        for body in (own + "raise ResourceExhaustedError('OOM when allocating tensor')", own + "raise ResourceExhaustedError('x')", "raise MemoryError('x')",
                     "class E(Exception): __module__ = 'jaxlib._jax'\nraise E('RESOURCE_EXHAUSTED: ')"):
            self.assertRegex(self.run_program(body)[2], "(?m)^(The cause is not known|The cause:|Perhaps|Not certain|One of)", body)
        self.assertNotIn("cause", self.run_program("raise RuntimeError('RESOURCE_EXHAUSTED: quota exceeded for requests')")[2])

    TENSORFLOW = """
import sys, types
tf, eager = types.ModuleType("tensorflow"), types.ModuleType("tensorflow.python.eager.context")
eager.context = lambda: types.SimpleNamespace(_initialized=USED)
own = types.SimpleNamespace(memory_limit=LIMIT)
tf.config = types.SimpleNamespace(
    list_logical_devices=lambda kind: [types.SimpleNamespace(name="/device:GPU:0")], list_physical_devices=lambda kind: ["gpu"],
    get_logical_device_configuration=lambda gpu: [own], experimental=types.SimpleNamespace(get_memory_info=lambda name: {"current": NOW << 20, "peak": 900 << 20}))
sys.modules.update({"tensorflow": tf, eager.__name__: eager})
class ResourceExhaustedError(Exception): pass
raise ResourceExhaustedError("OOM when allocating tensor with shape[134217728] and type float on /job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc")
"""

    def test_tensorflow_is_asked_for_its_own_figures(self):
        def run(used=True, limit=1000, now=800):
            return self.run_program(self.TENSORFLOW.replace("USED", str(used)).replace("LIMIT", str(limit)).replace("NOW", str(now)))[2]

        self.assertIn("TensorFlow counts 800 MiB in use on GPU:0 of its limit of 1000 MiB, and 900 MiB at its peak, which left 100 MiB.\n", run())
        self.assertIn("TensorFlow counts 800 MiB in use on GPU:0, and 900 MiB at its peak.\n", run(limit=500))  # which cannot be true
        self.assertNotIn("TensorFlow counts", run(used=False))  # to ask would begin to use the GPU
        self.assertIn("The cause: the program needs more memory than there is", run())
        # What was freed when the error left says nothing about what was in use at the failure.
        self.assertNotIn("The cause:", run(now=1))

    def test_command_that_fails(self):
        status, _, err = python(f"import gpumem; gpumem.diagnose(); raise RuntimeError({LOG!r})", GPUMEM_COMMAND="/nonexistent")
        self.assertEqual(status, 1)
        self.assertIn("Traceback", err)
        self.assertIn("could not be explained: /nonexistent: there is no such program", err)

    def test_notebook(self):
        handlers = {}
        shell = types.SimpleNamespace(events=types.SimpleNamespace(register=handlers.__setitem__))
        before = sys.excepthook, threading.excepthook
        self.addCleanup(lambda: (setattr(sys, "excepthook", before[0]), setattr(threading, "excepthook", before[1])))
        with mock.patch.dict(sys.modules, IPython=types.SimpleNamespace(get_ipython=lambda: shell)):
            gpumem.diagnose()
        import io

        for error, told in ((RuntimeError(LOG), True), (None, False), (ValueError("x"), False)):
            with mock.patch("sys.stderr", io.StringIO()) as err:
                handlers["post_run_cell"](types.SimpleNamespace(error_in_exec=error))
            self.assertEqual("6.27 GiB" in err.getvalue(), told)


class Pool(unittest.TestCase):
    def test_blocks(self):
        with gpumem.Pool("sim:1GiB", "elastic:limit=64MiB") as pool:
            block = pool.alloc(40 * MIB, stream=0x1000)
            self.assertEqual(pool.alloc(0), 0)
            pool.record_stream(block, 0x2000)
            with self.assertRaisesRegex(gpumem.OutOfMemoryError, "(?s)trying to allocate 40.00MiB.*Why:") as caught:
                pool.alloc(40 * MIB)
            self.assertEqual(caught.exception.code, 2)
            self.assertIsInstance(caught.exception, MemoryError)
            stats = pool.stats()
            self.assertEqual((stats.bytes_in_use, stats.live, stats.allocs, stats.refused, stats.total), (40 * MIB, 1, 1, 1, 64 * MIB))
            self.assertIn("40 MiB in 1 block ", pool.report())
            pool.free(block, 0x1000)
            with self.assertRaisesRegex(gpumem.Error, "no live block"):
                pool.free(block)
            self.assertEqual(pool.trim(), 40 * MIB)
            with self.assertRaises(ValueError):
                pool.alloc(-1)
            for size in (1 << 63, 1 << 64, (1 << 64) + 5):
                with self.assertRaises(MemoryError):
                    pool.alloc(size)
            for size, stream in (("1GiB", 0), (1.5, 0), (1, "x")):
                with self.assertRaises(TypeError):
                    pool.alloc(size, stream)
        with self.assertRaisesRegex(gpumem.Error, "there is no such pool"):
            pool.alloc(1)
        pool.close()

    def test_bad_arguments(self):
        for device, policy in (("nonsense", None), ("sim:1GiB", "nonsense"), ("cuda:63", None)):
            with self.assertRaises(gpumem.Error):
                gpumem.Pool(device, policy)

    def test_environment_of_the_program_is_read(self):
        with mock.patch.dict(os.environ, GPUMEM_DEVICE="sim:3GiB"), gpumem.Pool() as pool:
            self.assertEqual(pool.stats().total, 3 << 30)

    def test_a_simulated_driver_is_used_as_a_driver(self):
        # As in gpumem run --simulate: PyTorch must know the addresses.
        with mock.patch.dict(os.environ, GPUMEM_DEVICE="sim:3GiB", GPUMEM_SIM_FOLDER="/none"):
            try:
                with gpumem.Pool() as pool:
                    self.assertNotEqual(pool.stats().total, 3 << 30)
            except gpumem.Error as e:
                self.assertIn("driver", str(e))

    def test_recording(self):
        with tempfile.TemporaryDirectory() as folder, gpumem.Pool("sim:1GiB") as pool:
            path = os.path.join(folder, "run.rec")
            before = pool.alloc(MIB)
            with gpumem.record(path):
                pool.free(pool.alloc(3 * MIB))
                pool.free(before)
            out = subprocess.run([gpumem.command(), "replay", path, "--policy", "elastic", "--json"], stdout=subprocess.PIPE, check=True).stdout
            trace = json.loads(out)["trace"]
            self.assertEqual((trace["events"], trace["allocs"], trace["peak_live_bytes"]), (4, 2, 4 * MIB))
            with self.assertRaises(OSError), gpumem.record(os.path.join(folder, "none", "file")):
                pass
            for framework in ("gpumem", "torch"):  # whatever is imported, the file stays as it is
                size = os.path.getsize(path)
                with self.assertRaises((FileExistsError, ModuleNotFoundError)), gpumem.record(path, framework):
                    pass
                self.assertEqual(os.path.getsize(path), size)
        with only({}), self.assertRaisesRegex(ValueError, "no framework imported"), gpumem.record(os.devnull):
            pass

    def test_whose_memory_a_recording_has(self):
        """A shared pool that has PyTorch's segments alone has not PyTorch's blocks."""
        for segments, serves, is_open, wanted in (
            (False, False, [], "torch"), (True, False, [0], "torch"), (False, False, [0], "gpumem"), (True, True, [0], "gpumem"), (True, False, [0, 64], "gpumem")
        ):
            with self.subTest((segments, serves, is_open)), only({"torch": mock.MagicMock()}), mock.patch.multiple(_library, _segments=segments, _serves=serves, is_open=is_open.__contains__):
                self.assertEqual(_record._guess(), wanted)
                if 64 not in is_open:
                    self.assertEqual(_watch._choose()[0], wanted)

    def test_watch_refuses_what_it_cannot_decorate(self):
        async def later():
            pass

        def several():
            yield

        for function in (later, several):
            with self.assertRaisesRegex(TypeError, "put the block within it"):
                gpumem.watch()(function)
        with self.assertRaisesRegex(TypeError, r"@gpumem.watch\(\)"):
            gpumem.watch(several)

    def test_recording_ends_with_an_exception(self):
        with tempfile.TemporaryDirectory() as folder, gpumem.Pool("sim:1GiB") as pool:
            for i in range(2):  # the first is over when the second begins
                with self.assertRaises(KeyError), gpumem.record(os.path.join(folder, str(i))):
                    pool.free(pool.alloc(MIB))
                    raise KeyError

    def test_threads(self):
        with gpumem.Pool("sim:1GiB") as pool:

            def work(stream):
                for i in range(200):
                    pool.free(pool.alloc(1 + i * 1000, stream), stream)

            threads = [threading.Thread(target=work, args=(s << 8,)) for s in range(16)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            self.assertEqual((pool.stats().allocs, pool.stats().live), (3200, 0))


class Processes(unittest.TestCase):
    def check(self, program):
        self.assertEqual(python(program), (0, "done\n", ""))

    def test_fork_after_use_is_refused_and_does_not_hang(self):
        self.check(
            "import gpumem, os, warnings\n"
            "warnings.simplefilter('ignore')  # Python 3.12 warns of a fork with threads\n"
            "p = gpumem.Pool(); a = p.alloc(1 << 20)\n"
            "child = os.fork()\n"
            "if not child:\n"
            "    code = 0\n"
            "    try: p.alloc(1)\n"
            "    except gpumem.Error as e: code = e.code\n"
            "    assert 'a pool is' not in gpumem.report()\n"
            "    os._exit(code)\n"
            "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5\n"
            "p.free(a); print('done')"
        )

    def test_fork_before_use(self):
        self.check(
            "import gpumem, multiprocessing\n"
            "def f(): p = gpumem.Pool(); p.free(p.alloc(5))\n"
            "c = multiprocessing.get_context('fork').Process(target=f); c.start(); c.join()\n"
            "assert c.exitcode == 0\nf(); print('done')"
        )

    def test_spawn(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "worker.py").write_text("import gpumem\ndef f(n):\n    p = gpumem.Pool()\n    return bool(p.alloc(n))\n")
            self.check(
                f"import sys; sys.path.insert(0, {folder!r})\nimport multiprocessing, worker\n"
                "if __name__ == '__main__':\n    worker.f(1)\n"
                "    with multiprocessing.get_context('spawn').Pool(2) as p: assert p.map(worker.f, [1, 2]) == [True, True]\n    print('done')"
            )

    def test_workers_that_load_data(self):
        """As PyTorch's DataLoader: workers are forked while a pool is at work, and end by
        themselves."""
        for method in ("fork", "forkserver", "spawn"):
            with tempfile.TemporaryDirectory() as folder:
                pathlib.Path(folder, "data.py").write_text("import gpumem\ndef load(wanted, loaded):\n    for i in iter(wanted.get, None): loaded.put(bytes(i))\n")
                self.check(
                    f"import sys; sys.path.insert(0, {folder!r})\nimport data, gpumem, multiprocessing, warnings\n"
                    "warnings.simplefilter('ignore')\n"
                    "if __name__ == '__main__':\n"
                    "    pool = gpumem.Pool()\n"
                    f"    context = multiprocessing.get_context({method!r})\n"
                    "    wanted, loaded = context.Queue(), context.Queue()\n"
                    "    workers = [context.Process(target=data.load, args=(wanted, loaded)) for _ in range(3)]\n"
                    "    for w in workers: w.start()\n"
                    "    for i in range(30): wanted.put(i)\n"
                    "    for i in range(30): pool.free(pool.alloc(1 + len(loaded.get()) << 20))\n"
                    "    for w in workers: wanted.put(None)\n"
                    "    for w in workers: w.join()\n"
                    "    assert [w.exitcode for w in workers] == [0, 0, 0]\n"
                    "    print('done')"
                )

    def test_fork_with_a_thread_at_work(self):
        self.check(
            "import gpumem, os, threading, warnings\nwarnings.simplefilter('ignore')\n"
            "pool = gpumem.Pool(); begun, over = threading.Event(), threading.Event()\n"
            "def work():\n    while not over.is_set(): pool.free(pool.alloc(1 << 20)); begun.set()\n"
            "t = threading.Thread(target=work); t.start(); begun.wait()\n"
            "for i in range(10):\n"
            "    child = os.fork()\n"
            "    if not child:\n"
            "        import gc; gc.collect()\n"
            "        raise SystemExit(7)  # the usual end, with all that is registered for it\n"
            "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7\n"
            "over.set(); t.join(); print('done')"
        )

    def test_programs_that_are_started(self):
        self.check("import gpumem, subprocess\np = gpumem.Pool(); p.alloc(1)\nassert subprocess.run(['true']).returncode == 0; print('done')")

    def test_faulthandler(self):
        for order in ("import faulthandler; faulthandler.enable()\nimport gpumem; p = gpumem.Pool()\n", "import faulthandler, gpumem; p = gpumem.Pool()\nfaulthandler.enable()\n"):
            self.check(order + "p.free(p.alloc(1 << 20)); print('done')")
            status, out, err = python(order + "p.alloc(1); import ctypes; ctypes.string_at(0)")
            self.assertEqual((status, out), (-11, ""), err)
            self.assertIn("Fatal Python error: Segmentation fault", err)
            self.assertIn('File "<string>"', err)

    def test_pool_that_is_dropped_at_the_end(self):
        self.check(
            "import atexit, gpumem, weakref\n"
            "p = gpumem.Pool()\n"
            "class Tensor:\n    def __init__(self): self.at = p.alloc(1 << 20)\n    def __del__(self): p.free(self.at)\n"
            "t = Tensor(); cycle = [t]; cycle.append(cycle)\n"
            "atexit.register(lambda: p.trim())\n"
            "print('done')"
        )

    def test_end_of_the_program(self):
        self.check("import gpumem\np = gpumem.Pool(); a = p.alloc(1 << 20); q = gpumem.Pool(); q.alloc(5); print('done')")

    def test_end_with_a_thread_at_work(self):
        self.check(
            "import gpumem, threading\np = gpumem.Pool()\nbegun = threading.Event()\n"
            "def f():\n    while True:\n        p.free(p.alloc(1 << 20)); begun.set()\n"
            "threading.Thread(target=f, daemon=True).start(); begun.wait(); print('done')"
        )

    def test_signals_are_pythons(self):
        self.check(
            "import gpumem, os, signal\np = gpumem.Pool(); p.alloc(1)\nseen = []\n"
            "for s in (signal.SIGUSR1, signal.SIGURG, signal.SIGALRM):\n    signal.signal(s, lambda s, f: seen.append(s)); os.kill(os.getpid(), s)\n"
            "signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored here\n"
            "try:\n    os.kill(os.getpid(), signal.SIGINT)\n    while True: pass\nexcept KeyboardInterrupt: pass\n"
            "assert len(seen) == 3, seen; print('done')"
        )


# Stand-ins for the libraries, run in another process, whose shared pool is new.
STANDINS = '''
import ctypes, os, sys, types
import gpumem
from gpumem import _explain

cupy = types.ModuleType("cupy"); cupy.cuda = types.SimpleNamespace()
class CupyError(MemoryError):
    def __init__(self, size, total, limit=0): super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes, limit set to: {limit:,} bytes).")
class UnownedMemory:
    def __init__(self, ptr, size, owner, device_id): self.ptr, self.size, self.owner = ptr, size, owner
class MemoryPointer:
    def __init__(self, mem, offset): self.mem, self.ptr = mem, mem.ptr + offset
cupy.cuda.memory = types.SimpleNamespace(OutOfMemoryError=CupyError)
cupy.cuda.device = types.SimpleNamespace(get_device_id=lambda: 0)
cupy.cuda.get_current_stream = lambda: types.SimpleNamespace(ptr=0x30)
cupy.cuda.UnownedMemory, cupy.cuda.MemoryPointer = UnownedMemory, MemoryPointer
cupy.cuda.set_allocator = lambda f: setattr(cupy, "alloc", f)
sys.modules["cupy"] = cupy

rmm = types.ModuleType("rmm")
rmm.mr = types.SimpleNamespace(CallbackMemoryResource=lambda allocate, free: types.SimpleNamespace(allocate=allocate, free=free))
sys.modules["rmm"] = rmm
class Stream:
    def __cuda_stream__(self): return 0, 0x40

torch = types.ModuleType("torch"); torch.__version__ = "2.15.0"
torch._C = types.SimpleNamespace(_cuda_customAllocator=1)
class Inner:
    def set_record_stream_fn(self, f): self.record = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(f)
    def set_reset_fn(self, f): self.reset = ctypes.CFUNCTYPE(None)(f)
class Pluggable:
    def __init__(self, path, alloc, free):
        lib = ctypes.CDLL(path); self.inner = Inner()
        self.malloc, self.free = getattr(lib, alloc), getattr(lib, free)
        self.malloc.restype = ctypes.c_void_p; self.malloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
        self.free.restype = None; self.free.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    def allocator(self): return self.inner
torch.cuda = types.SimpleNamespace(is_initialized=lambda: False, MemPool=lambda allocator: allocator,
    memory=types.SimpleNamespace(CUDAPluggableAllocator=Pluggable, change_current_allocator=lambda a: setattr(torch, "a", a)))
sys.modules["torch"] = torch
'''


class Libraries(unittest.TestCase):
    def check(self, program, **env):
        self.assertEqual(python(STANDINS + program + "\nprint('done')", **env), (0, "done\n", ""))

    def test_phases_of_60_percent_by_turns(self):
        """Three libraries on one pool, each with 60 % of the GPU, and no call to empty a cache."""
        self.check(
            "gpumem.torch.use(); gpumem.cupy.use(); resource = gpumem.rmm.resource()\n"
            "n = 60 * (1 << 30) // 100\n"
            "for i in range(5):\n"
            "    a = torch.a.malloc(n, 0, 0x20); assert a; torch.a.free(a, n, 0, 0x20)\n"
            "    b = cupy.alloc(n); assert b.ptr; del b\n"
            "    c = resource.allocate(n, Stream()); assert c; resource.free(c, n, Stream())\n"
            "s = gpumem.stats(); assert (s.live, s.allocs, s.refused) == (0, 15, 0), s\n"
        )

    def test_refusals(self):
        self.check(
            "gpumem.configure(policy='elastic:limit=64MiB'); gpumem.cupy.use(); resource = gpumem.rmm.resource()\n"
            "try: cupy.alloc(1 << 29)\n"
            "except cupy.cuda.memory.OutOfMemoryError as e: assert 'Out of memory allocating 536,870,912 bytes' in str(e) and 'Why:' in str(e), e\n"
            "else: assert False\n"
            "try: resource.allocate(1 << 29, Stream())\n"
            "except MemoryError as e: assert 'Why:' in str(e)\n"
            "else: assert False\n"
            "assert gpumem.stats().refused == 2\n"
        )

    def test_torch_statistics(self):
        self.check(
            "gpumem.torch.use('elastic:limit=512MiB'); gpumem.torch.use()\n"
            "a = torch.a.malloc(5 << 20, 0, 0); b = torch.a.malloc(7 << 20, 0, 0); torch.a.inner.record(a, 0x50); torch.a.free(a, 5 << 20, 0, 0)\n"
            "s, ours = torch._C._cuda_memoryStats(0), gpumem.stats()\n"
            "assert s['allocated_bytes']['all'] == {'current': 7 << 20, 'peak': 12 << 20, 'allocated': 12 << 20, 'freed': 5 << 20}, s\n"
            "assert s['reserved_bytes']['all']['current'] == ours.pool_bytes and s['allocation']['all']['current'] == 1\n"
            "torch._C._cuda_resetPeakMemoryStats(0); assert torch._C._cuda_memoryStats(0)['allocated_bytes']['all']['peak'] == 7 << 20\n"
            "torch.a.free(b, 7 << 20, 0, 0); torch.a.inner.reset(); assert gpumem.stats().pool_bytes == 0\n"
            "assert gpumem.torch.pool() is not None\n"
            "try: gpumem.torch.pool('platform')\n"
            "except gpumem.Error as e: assert 'is open already' in str(e), e\n"
            "else: assert False\n"
        )

    def test_torch_too_late(self):
        self.check("torch.cuda.is_initialized = lambda: True\ntry: gpumem.torch.use()\nexcept RuntimeError as e: assert 'comes before the first use of CUDA' in str(e)\nelse: assert False")

    def test_torch_without_cuda(self):
        self.check("del torch._C._cuda_customAllocator\ntry: gpumem.torch.use()\nexcept RuntimeError as e: assert 'built without CUDA' in str(e)\nelse: assert False")

    def test_torch_settings_that_are_not_read(self):
        self.check("import warnings\nwith warnings.catch_warnings(record=True) as w:\n    warnings.simplefilter('always'); gpumem.torch.use()\nassert 'PYTORCH_ALLOC_CONF is not read' in str(w[0].message)", PYTORCH_ALLOC_CONF="x:1")

    def test_nothing_is_opened_by_looking(self):
        self.check("assert gpumem.stats().total == 0 and gpumem.trim() == 0 and 'nothing in this process' in gpumem.report(); assert 'ctypes' in sys.modules", GPUMEM_DEVICE="nonsense")


if __name__ == "__main__":
    unittest.main()
