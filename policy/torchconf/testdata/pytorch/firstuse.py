#!/usr/bin/env python3
"""Remakes firstuse.txt: what real PyTorch 2.15.0 raises first for random lists of settings.

    python3.11 firstuse.py FOLDER     no GPU needed; about 6 GB; needs g++ and nm

PyTorch and the headers of CUDA are installed by pip into FOLDER. firstuse.cpp calls PyTorch's own libc10_cuda.so as the
first use of a GPU does; in place of CUDA's runtime and driver stand functions that do nothing, which is enough, as the
settings are read before any memory is asked for.
"""
import json
import os
import random
import re
import subprocess
import sys

RELEASE = "2.15.0"
VALUES = {
    "max_split_size_mb": ["64", "20", "19", "0", "-1", "abc", "", "21", "64.7", "+64"],
    "garbage_collection_threshold": ["0.8", "0", "1", "2", "abc", "", "80%", ".5"],
    "per_process_memory_fraction": ["0.5", "2", "-1", "abc", "", "1", "50%"],
    "expandable_segments": ["True", "False", "true", "1", ""],
    "roundup_power2_divisions": ["4", "3", "[256:1,512:2]", "[256:3]", "[", "abc", "[256:1", "[256:1,512]"],
    "throw_on_cudamalloc_oom": ["True", "x", ""],
    "pinned_use_background_threads": ["True", "yes"],
    "pinned_num_register_threads": ["8", "3", "256", "x"],
    "pinned_reserve_segment_size_mb": ["1", "0", "x"],
    "large_segment_size_mb": ["64", "5", "20", "x"],
    "max_non_split_rounding_mb": ["64", "1", "x"],
    "backend": ["native", "cudaMallocAsync", "bogus"],
    "graph_capture_record_stream_reuse": ["True", "no"],
    "pinned_max_cached_size_mb": ["64", "x"],
    "expandable_segments_reserve": ["0.5", "abc"],
    "release_lock_on_cudamalloc": ["True", "1"],
    "bogus": ["1"], "Max_split_size_mb": ["64"], "": ["", "x"],
}
COMMON, CUDA, HIP = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"


def environments(seed, count):
    r = random.Random(seed)

    def conf():
        parts = []
        for _ in range(r.choice([1, 1, 2, 2, 3])):
            key = r.choice(list(VALUES))
            parts.append(key + r.choice([":"] * 8 + ["=", "", " : "]) + r.choice(VALUES[key]))
        return r.choice([","] * 8 + [";", " ", ",,"]).join(parts)

    for _ in range(count):
        yield {name: conf() for name in r.choice([[COMMON]] * 4 + [[CUDA]] * 4 + [[COMMON, CUDA], [HIP], [HIP, COMMON]])}


def build(folder):
    here, home, crt = os.path.dirname(os.path.abspath(__file__)), os.path.join(folder, "torch"), os.path.join(folder, "crt")
    for target, package in (home, ["torch==" + RELEASE]), (crt, ["--no-deps", "nvidia-cuda-crt"]):
        if not os.path.isdir(target):
            subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-compile", "--target", target] + package, check=True)
    lib, out = os.path.join(home, "torch", "lib"), os.path.join(folder, "firstuse")
    os.makedirs(out, exist_ok=True)
    needed = subprocess.run(["nm", "-D", "--undefined-only", os.path.join(lib, "libc10_cuda.so")], check=True, capture_output=True, text=True).stdout
    names = sorted(set(re.findall(r" ((?:__cuda|cuda|cu)[A-Za-z0-9_]*)", needed)) | {"cudaGetDeviceCount"})
    with open(os.path.join(out, "stubs.c"), "w") as f:
        f.write("int cudaGetDeviceCount(int *n) { *n = 1; return 0; }\nconst char *cudaGetErrorString(int e) { return \"\"; }\n")
        f.write("".join("int %s() { return 0; }\n" % n for n in names if n not in ("cudaGetDeviceCount", "cudaGetErrorString")))
    with open(os.path.join(out, "map"), "w") as f:
        f.write("libcudart.so.13 { global: *; };\n")
    subprocess.run(["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcudart.so.13", "-Wl,--version-script=" + out + "/map", out + "/stubs.c",
                    "-o", out + "/libcudart.so.13"], check=True)
    includes = [home + "/torch/include", home + "/nvidia/cu13/include", crt + "/nvidia/cu13/include"]
    subprocess.run(["g++", "-O1", "-std=c++20", "-w"] + ["-I" + i for i in includes] + [here + "/firstuse.cpp", "-o", out + "/firstuse", "-L" + lib,
                    "-Wl,--no-as-needed", out + "/libcudart.so.13", "-lc10_cuda", "-lc10", "-Wl,-rpath," + out, "-Wl,-rpath," + lib,
                    "-Wl,--disable-new-dtags", "-Wl,--allow-shlib-undefined"], check=True)
    return out


def main():
    out = build(os.path.abspath(sys.argv[1]))
    lines = []
    for env in environments(1, 300):
        p = subprocess.run([out + "/firstuse"], env={**env, "LD_LIBRARY_PATH": out}, capture_output=True, text=True)
        said = p.stdout.strip().split("\n")[0] or "import ! " + re.search(r"what\(\):\s*(.*)", p.stderr).group(1)
        lines.append("%s\n  %s\n" % (" ".join("%s=%s" % (k, json.dumps(v)) for k, v in env.items()), said))
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "firstuse.txt"), "w") as f:
        f.write("# What PyTorch %s says first of random settings: at import, or at the first use of a GPU. Made by firstuse.py.\n\n" % RELEASE)
        f.write("".join(lines))


if __name__ == "__main__":
    main()
