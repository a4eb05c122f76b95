"""The pages docs/python-*.md: their blocks are typed as their reader would, beside the examples of
the framework, in the shell that the page names for a machine without a GPU (scripts/pages-on-sim).

A block of Python is a program, a block without a language is for the shell, and a block of text is
what the block before it prints: "..." stands for lines that are left out. Sizes and counts must be
equal where the page names the release that is installed. A page is skipped where its framework is
missing, and a block below <!-- not run: REASON -->."""

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
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

# What a page says to those who have no GPU: the shell in which its blocks are typed.
SHELL = re.compile(r"^Install once.* Without a GPU, type them in the shell of `(gpumem run --simulate [^`]+)`", re.M)


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
    """A folder with the examples of a framework, and a terminal. python and gpumem are those of the tests."""

    def __init__(self, framework, folder, shell):
        self.framework, self.folder, self.shell = framework, folder, shlex.split(shell)
        os.mkdir(folder + "/bin")
        os.mkdir(folder + "/home")
        for name, command in (("python", sys.executable), ("gpumem", gpumem.command())):
            with open(f"{folder}/bin/{name}", "w") as f:
                f.write(f'#!/bin/sh\nexec {shlex.quote(command)} "$@"\n')
            os.chmod(f"{folder}/bin/{name}", 0o755)
        examples = os.path.join(ROOT, "examples", PAGE.get(framework, framework))
        self.work = folder + "/work"
        os.mkdir(self.work)
        for name in os.listdir(examples) if os.path.isdir(examples) else ():
            if name.endswith(".py"):
                os.symlink(os.path.join(examples, name), os.path.join(self.work, name))
        own = {"HOME": folder + "/home", "GPUMEM_RUN_DIR": folder + "/registry", "PYTHONDONTWRITEBYTECODE": "1"}
        self.env = {**os.environ, "PATH": f"{folder}/bin:{os.environ['PATH']}", **own}

    def type(self, language, text):
        """Types a block into the shell, and returns its status and all that it prints."""
        if language == "python":
            if not re.search(rf"^ *(import|from) .*\b({self.framework}|train|leak)\b", text, re.M):
                text = PAGES[self.framework] + "\n" + text
            with open(self.work + "/block.py", "w") as f:
                f.write(text)
            text = "python block.py\n"
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        done = subprocess.run(self.shell, input=text.encode(), cwd=self.work, env=self.env, timeout=600, **pipes)
        return done.returncode, done.stdout.decode("utf-8", "replace").replace(sys.executable, "python")


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
            head = f.read()
        numbers, shell = f" {release} on a simulated" in head, SHELL.search(head)
        ran = 0
        with tempfile.TemporaryDirectory() as folder:
            machine = Machine(framework, folder, shell.group(1))
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

    def test_the_shell_of_each_page_has_a_gpu_for_leases(self):
        for framework in PAGES:
            with open(os.path.join(ROOT, "docs", f"python-{PAGE.get(framework, framework)}.md"), encoding="utf-8") as f:
                shell = SHELL.search(f.read()).group(1)
            folder = tempfile.mkdtemp()  # a process of the shell may still write there when it has ended
            self.addCleanup(shutil.rmtree, folder, True)
            with self.subTest(framework):
                status, printed = Machine(framework, folder, shell).type("", "gpumem run --mem 11GiB -- gpumem ps\n")
                self.assertEqual(status, 0, printed)
                self.assertRegex(printed, "24 GiB free, 11 GiB leased")

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
