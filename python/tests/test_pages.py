"""The pages docs/python-*.md: their blocks are typed as their reader would, beside the examples of
the framework, on a machine whose GPU is a simulated one of 24 GiB (scripts/pages-on-sim).

A block of Python is a program, a block without a language is one for sh, and a block of text is
what the block before it prints: "..." stands for lines that are left out. Sizes and counts must be
equal where the page names the release that is installed. A page is skipped where its framework is
missing, and a block below <!-- not run: REASON -->."""

import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import unittest

import gpumem

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

PAGES = {  # by framework: what its blocks of Python that import nothing of it stand below
    "torch": "import torch, gpumem\nfrom train import *",
    "jax": "import jax, gpumem\nx = jax.numpy.ones((8, 4096))\ndef step(x): return x @ x.T",
    "tensorflow": "import tensorflow, gpumem",
    "cupy": "import cupy, gpumem",
}
PAGE = {"torch": "pytorch"}

# The machine: its GPU is in a file, so that programs can share it. python and gpumem are found first
# in PATH; what gpumem starts is the real Python.
GPUMEM = """#!/bin/sh
for word; do shift; [ "$word" != python ] || word={python}; set -- "$@" "$word"; done
if [ "$1" = run ] && [ -z "${{GPUMEM_SIM_FOLDER-}}" ] && [ "$2" != --simulate ]; then shift; set -- run --simulate {gpu} "$@"; fi
[ "$1" != ps ] || export GPUMEM_DEVICE={gpu}
exec {gpumem} "$@"
"""
PYTHON = """#!/bin/sh
exec {bin}/gpumem run --simulate {gpu} -- {python} "$@"
"""


def blocks(page):
    """Returns the blocks of a page: the line, the language and the text of each, and what it prints or None."""
    found, inside, skipped = [], None, False
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as f:
        for number, line in enumerate(f, 1):
            if not line.startswith("```"):
                if inside is not None:
                    inside.append(line)
                elif line.startswith("<!-- not run: "):
                    print(f"test_pages: SKIPPED {page}:{number + 1}: {line[14:-4].strip()}", file=sys.stderr)
                    skipped = True
            elif inside is None:
                inside, language, start = [], line[3:].strip(), number
            else:
                if language == "text":
                    found[-1][3] = "".join(inside)
                elif not skipped:
                    found.append([start, language, "".join(inside), None])
                inside, skipped = None, False
    return found


class Machine:
    """A folder with the examples of a framework, and a GPU of 24 GiB."""

    def __init__(self, framework, folder):
        self.framework, self.folder = framework, folder
        words = {"python": sys.executable, "gpumem": gpumem.command(), "gpu": "sim@" + folder + "/gpu", "bin": folder + "/bin"}
        os.mkdir(folder + "/bin")
        os.mkdir(folder + "/home")
        for name, text in (("gpumem", GPUMEM), ("python", PYTHON)):
            with open(f"{folder}/bin/{name}", "w") as f:
                f.write(text.format(**words))
            os.chmod(f"{folder}/bin/{name}", 0o755)
        examples = os.path.join(ROOT, "examples", PAGE.get(framework, framework))
        self.work = folder + "/work"
        os.mkdir(self.work)
        for name in os.listdir(examples) if os.path.isdir(examples) else ():
            if name.endswith(".py"):
                os.symlink(os.path.join(examples, name), os.path.join(self.work, name))
        path = f"{folder}/bin:{_compilers()}{os.environ['PATH']}"
        own = {"HOME": folder + "/home", "GPUMEM_RUN_DIR": folder + "/registry", "PYTHONDONTWRITEBYTECODE": "1"}
        self.env = {**os.environ, "PATH": path, **own}
        make = ["devices", "--device", f"sim@{folder}/gpu,create,total=24GiB"]
        subprocess.run([gpumem.command(), *make], stdout=subprocess.DEVNULL, check=True)

    def type(self, language, text):
        """Runs a block, and returns its status and all that it prints."""
        if language == "python":
            if not re.search(rf"^ *(import|from) .*\b({self.framework}|train|leak)\b", text, re.M):
                text = PAGES[self.framework] + "\n" + text
            with open(self.work + "/block.py", "w") as f:
                f.write(text)
            text = "python block.py"
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(["sh", "-c", text], cwd=self.work, env=self.env, timeout=600, **pipes)
        return done.returncode, done.stdout.decode("utf-8", "replace").replace(sys.executable, "python")


def _compilers():
    """Returns the folders of CUDA's compilers from wheels, each with a colon, which XLA looks for in PATH."""
    spec = importlib.util.find_spec("nvidia")
    wheels = spec.submodule_search_locations or () if spec else ()
    places = [os.path.join(place, name, "bin") for place in wheels for name in ("cu13", "cuda_nvcc")]
    return "".join(place + ":" for place in places if os.path.isdir(place))


def missing(language, text):
    """Returns a module that a block of Python imports and that is not installed, or ""."""
    modules = re.findall(r"^import (\w+)", text, re.M) if language == "python" else []
    return next((m for m in modules if not importlib.util.find_spec(m)), "")


def normal(line, numbers):
    """Returns a line without what differs from run to run: processes, and numbers if they do not count."""
    line = re.sub(r"\bprocess \d+", "process N", " ".join(line.split()))
    return line if numbers else re.sub(r"\d[\d.,]*( [KMGT]?i?B)?", "N", line)


def lacking(shown, printed, numbers):
    """Returns the first line that is shown and was not printed in its place, or None. Between lines of
    "..." and at both ends others may be printed."""
    lines = [normal(line, numbers) for line in printed.splitlines()]
    at = 0
    for part in re.split(r"^\.\.\.\n", shown, flags=re.M):
        want = [normal(line, numbers) for line in part.splitlines()]
        places = [i for i in range(at, len(lines) - len(want) + 1) if lines[i : i + len(want)] == want]
        if not places:
            return next((line for line in part.splitlines() if normal(line, numbers) not in lines[at:]), part)
        at = places[0] + len(want)
    return None


class Pages(unittest.TestCase):
    maxDiff = None

    def page(self, framework):
        page = f"python-{PAGE.get(framework, framework)}.md"
        if not importlib.util.find_spec(framework):
            print(f"test_pages: SKIPPED {page}: no {framework} in {sys.executable}", file=sys.stderr)
            self.skipTest(f"no {framework}")
        release = importlib.metadata.version({"cupy": "cupy-cuda13x"}.get(framework, framework)).split("+")[0]
        with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as f:
            numbers = f" {release} on a simulated" in f.read()
        ran = 0
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(framework, folder)
            for line, language, text, shown in blocks(page):
                if missing(language, text):
                    print(f"test_pages: SKIPPED {page}:{line}: no {missing(language, text)}", file=sys.stderr)
                    continue
                with self.subTest(f"{page}:{line}"):
                    status, printed = machine.type(language, text)
                    if shown is None or language == "python":  # a shell's may show a program that fails
                        self.assertEqual(status, 0, f"{page}:{line}\n{text}\n{printed}")
                    if shown is not None:
                        self.assertIsNone(lacking(shown, printed, numbers), f"{page}:{line}\n{text}\n{printed}")
                    ran += 1
        print(f"test_pages: {page}: {ran} blocks with {framework} {release}, sizes {'' if numbers else 'not '}compared", file=sys.stderr)

    def test_pytorch(self):
        self.page("torch")

    def test_jax(self):
        self.page("jax")

    def test_tensorflow(self):
        self.page("tensorflow")

    def test_cupy(self):
        self.page("cupy")


class Reading(unittest.TestCase):
    """What would let a page pass that is wrong."""

    def test_each_page_begins_with_five_parts(self):
        for framework in PAGES:
            with open(os.path.join(ROOT, "docs", f"python-{PAGE.get(framework, framework)}.md"), encoding="utf-8") as f:
                heads = re.findall(r"^## (.*)$", f.read(), re.M)
            self.assertEqual(heads[:5], ["It crashed", "Two on one GPU", "Does it fit?", "What fills it?", "What grows?"])

    def test_lines_must_stand_together(self):
        self.assertIsNone(lacking("a\nb\n...\nd\n", "x\na\nb\nc\nd\n", True))
        self.assertEqual(lacking("a\nd\n", "a\nb\nd\n", True), "a\nd\n")
        self.assertEqual(lacking("b\n...\na\n", "a\nb\n", True), "a")

    def test_sizes_count_where_the_release_is_named(self):
        self.assertIsNone(lacking("8 GiB in 3 blocks\n", "9.5 GiB in 1,000 blocks\n", False))
        self.assertEqual(lacking("8 GiB\n", "9 GiB\n", True), "8 GiB")
        self.assertIsNone(lacking("process 12 holds 1 KiB\n", "process 99 holds  1 KiB\n", True))


if __name__ == "__main__":
    unittest.main()
