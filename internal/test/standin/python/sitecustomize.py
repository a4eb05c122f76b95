"""Lets JAX look for GPUs on a machine without one.

JAX from 0.7 on leaves its CUDA plugin out unless /dev/nvidia0 is there. With this
folder in PYTHONPATH it finds that there is one, which is the simulated driver's.
"""

import importlib.abc
import importlib.util
import sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name != "jax._src.hardware_utils":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            if hasattr(module, "has_visible_nvidia_gpu"):
                module.has_visible_nvidia_gpu = lambda: True

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
