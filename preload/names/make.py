"""Makes cuda.txt, versions.txt and nvml.txt from unpacked wheels.

    python3 make.py FOLDER

and internal/test/standin/names.txt, the functions of the libraries beside the
driver that frameworks look up.

FOLDER has unpacked below it the wheels whose names the lists are made of, each
in a folder of any name: nvidia-cuda-runtime-cu12 12.9 (headers of the driver),
cuda-bindings 12.9 and 13.5, nvidia-ml-py, jax-cuda12-pjrt and jax-cuda12-plugin
0.4.38, 0.10.1 and 0.12.0.1, tensorflow 2.21. `pip download --no-deps` gets them.

Only names of the public interface are taken: those that a header declares or
that a binding for the public interface looks up. What is found in a framework's
binary alone is taken if it is such a name with _v2, _v3, _ptds or _ptsz.
"""

import functools
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
here = pathlib.Path(__file__).parent


def the(pattern):
    found = sorted(root.glob("**/" + pattern))
    assert found, f"{pattern} is not below {root}"
    return found


def uncommented(path):
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(errors="replace"), flags=re.S)


@functools.cache
def strings(path):
    """What stands between zero bytes in a file and could be a name."""
    out = subprocess.run(["strings", "-a", "-n", "4", path], stdout=subprocess.PIPE, check=True, text=True, errors="replace").stdout
    return {line for line in out.splitlines() if line.startswith(("cu", "nvml", "__cuda")) and re.fullmatch(r"\w{4,90}", line)}


def binary_names(path, prefix):
    return {n for n in strings(path) if re.match(prefix + "[A-Z]", n)}


# Headers: declarations, the symbols behind macros, and those of per-thread streams.
declared = set()
per_thread = set()
for name in ["cuda.h", "cudaEGL.h", "cudaGL.h", "cudaVDPAU.h"]:
    text = uncommented(the(name)[0])
    declared |= set(re.findall(r"\b(cu[A-Z]\w+)\s*\(", text))
    declared |= set(re.findall(r"#\s*define\s+cu\w+\s+(?:__CUDA_API_PT\w\w\()?(cu[A-Z]\w+)", text))
    for kind, symbol in re.findall(r"__CUDA_API_(PTDS|PTSZ)\((cu\w+)\)", text):
        per_thread.add(f"{symbol}_{kind.lower()}")

# Bindings: what they look up.
looked_up = set()
for path in the("cydriver.pyx"):
    looked_up |= set(re.findall(r"dlsym\([^,]*,\s*'(cu\w+)'", path.read_text()))
for path in the("_internal/driver.cpython*.so"):
    looked_up |= binary_names(path, "cu")

# Those of a driver for Windows are in its headers, too; cuda*, which is the
# runtime's, is not the driver's.
public = {n for n in declared | looked_up if not n.startswith(("cuWGL", "cuda"))}
names = public | per_thread

frameworks = set()
for wheel in ["jax_plugins/*/xla_cuda_plugin.so", "jax_cuda12_plugin/*.so", "tensorflow/libtensorflow_*.so*", "tensorflow/python/*.so"]:
    for path in the(wheel):
        frameworks |= binary_names(path, "cu")
bases = {re.sub(r"_v\d$", "", n) for n in public}
for n in frameworks:
    plain = re.sub(r"(_v\d)?(_pt[ds][sz])?$", "", n)
    if plain in bases:
        names.add(n)
left = sorted(n for n in frameworks - names if not n.startswith(("cuda", "cublas", "cudnn")))
print("in frameworks alone, not taken:", " ".join(left), file=sys.stderr)

# Marks stay as they are, see ../marks_test.go, which has a rule for each name. Behind a mark
# stands how many words the arguments are: floating-point numbers cannot pass the gate.
arguments = {}
for path in the("cuda.h") + the("cuda[EGV]*.h") + the("cydriver.pyx"):
    for name, given in re.findall(r"CUresult\s+(?:CUDAAPI\s+)?_?(cu\w+)\s*\(([^()]*)\)", uncommented(path)):
        arguments.setdefault(name, []).append(given)


def words(name):
    plain = re.sub(r"_pt[ds][sz]$", "", name)
    known = arguments.get(name) or arguments.get(plain) or arguments[re.sub(r"_v\d$", "", plain)]
    assert not any(re.search(r"\b(float|double)\b(?!\s*\*)", given) for given in known), f"{name} takes floating-point numbers"
    return max(len(given.split(",")) for given in known)


marks = dict(line.split()[:2] for line in (here / "cuda.txt").read_text().splitlines() if " " in line)
(here / "cuda.txt").write_text("".join(f"{n} {marks[n]} {words(n)}\n" if n in marks else n + "\n" for n in sorted(names)))

# Versions: a base name asked at a version is the newest symbol that is not newer.
# The n-th version that the typedefs name is the n-th symbol: none, _v2, _v3, ...
asked = {}  # (base, suffix of per-thread streams) to versions
for path in the("cuda*Typedefs.h"):
    for base, version, suffix in re.findall(r"PFN_(cu\w+?)_v(\d{4,5})(_pt[sd][zs])?\)", path.read_text()):
        asked.setdefault((base, suffix), set()).add(int(version))
for path in the("cydriver.pyx"):
    for base, version in re.findall(r"_F_cuGetProcAddress_v2\('(\w+)', &__\w+, (\d+), CU_GET_PROC_ADDRESS_DEFAULT", path.read_text()):
        asked.setdefault((base, ""), {int(version)})
lines = []
for n in sorted(names):
    base, number, suffix = re.fullmatch(r"(cu\w+?)(?:_v(\d))?(_pt[sd][zs])?", n).groups("")
    versions = sorted(asked.get((base, suffix)) or asked.get((base, ""), ()))
    nth = int(number or 1) - 1
    # What 12.9 lacks is of 13.x; which of them no list at hand says.
    lines.append(f"{n} {base} {versions[nth] if nth < len(versions) else 13000}\n")
(here / "versions.txt").write_text("".join(lines))

# NVML: what bindings look up, and the names that frameworks have of it.
nvml = set(re.findall(r"_nvmlGetFunctionPointer\([\"'](nvml\w+)[\"']", the("pynvml.py")[0].read_text()))
for path in the("_internal/nvml.cpython*.so") + the("jax_plugins/*/xla_cuda_plugin.so") + the("tensorflow/libtensorflow_*.so*"):
    nvml |= {n for n in binary_names(path, "nvml") if not n.startswith("nvmlInternal")}
(here / "nvml.txt").write_text("".join(n + "\n" for n in sorted(nvml)))
# The libraries beside the driver: what frameworks look up in them. The runtime's
# are those of its header, too, and of code that its compiler makes.
prefixes = {"cudart": "(?:__)?cuda", "cublas": "cublas", "cublasLt": "cublasLt", "cudnn": "cudnn", "cufft": "cufft",
            "cusolver": "cusolver(?:Dn|Sp|Rf|Mg)?", "cusparse": "cusparse"}
beside = {library: set() for library in prefixes}
for wheel in ["jax_plugins/*/xla_cuda_plugin.so", "jax_cuda12_plugin/*.so", "tensorflow/libtensorflow_*.so*"]:
    for path in the(wheel):
        for library, prefix in prefixes.items():
            beside[library] |= binary_names(path, prefix)
beside["cublas"] -= beside["cublasLt"]
beside["cudart"] |= set(re.findall(r"CUDARTAPI\s+(cuda[A-Z]\w+)\s*\(", uncommented(the("cuda_runtime_api.h")[0])))
folder = here.parent.parent / "internal/test/standin"
folder.mkdir(exist_ok=True)
(folder / "names.txt").write_text("".join(f"{library} {n}\n" for library in sorted(beside) for n in sorted(beside[library]) if not n.endswith("_t")))

print(len(names), "names of the driver,", len(nvml), "of NVML", file=sys.stderr)
