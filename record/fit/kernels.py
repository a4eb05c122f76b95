# Kernels that are compiled when they are first used, in a run of gpumem fit. They do nothing on the
# simulated GPU, so that they are not compiled: FlashInfer's and SGLang's, which want nvcc, and those
# written in CuTe. What they work in is allocated by their callers, and is as on a card. Triton's kernels
# are compiled, for engines only some of the ways to run each.
import gpumem_fit_engines as engines


class Nothing(object):
    """Stands for a compiled function, and for a module of them."""

    def __call__(self, *_, **__):
        return None

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return planned if name == "plan" else self

    def __getitem__(self, _):
        return self


def planned(*_, **__):
    """Stands for FlashInfer's plan of a batch, which is nothing but must be there, and for how many bytes of it are copied."""
    return (), 0


class Compiler(object):
    """Stands for cutlass.cute.compile, which takes options in brackets."""

    def __call__(self, *_, **__):
        return Nothing()

    def __getitem__(self, _):
        return self


def specification(module):
    for name in ("JitSpec", "CudaJitSpec"):
        kind = getattr(module, name, None)
        if kind is not None:
            kind.build_and_load = lambda *_, **__: Nothing()


class Any(object):
    """Equals whatever it is compared with."""

    __hash__ = None

    def __eq__(self, _):
        return True

    def __ne__(self, _):
        return False


def lengths(module):
    """FlashInfer compares the rows that it is given with lengths that a kernel has added up."""
    for kind in vars(module).values():
        if isinstance(kind, type) and hasattr(kind, "plan"):
            kind._qo_indptr_last = property(lambda _: Any(), lambda *_: None)


def tune(kind):
    """Triton compiles and measures each way to run a kernel, minutes for some models that engines serve (state
    spaces), and on the simulated GPU all take the same time. So an engine is left two, which need the least, and
    are measured as on a card: that takes memory. Another program measures what it says."""
    prune = kind.prune_configs

    def need(config):
        sizes = 1
        for value in config.kwargs.values():
            sizes *= value if isinstance(value, int) and value > 0 else 1
        return config.num_stages * sizes

    def call(self, *args):
        configs = prune(self, *args)
        return sorted(configs, key=need)[:2] if engines.found() else configs

    kind.prune_configs = call


MODULES = {
    "flashinfer.prefill": lengths,
    "flashinfer.jit.core": specification,
    "sglang.kernels.jit.utils.compile.loader": lambda module: setattr(module, "load_jit", lambda *_, **__: Nothing()),
    "cutlass.cute": lambda module: setattr(module, "compile", Compiler()),
    "triton.runtime.autotuner": lambda module: tune(module.Autotuner),
}
