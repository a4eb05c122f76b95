"""Stands in for vLLM: the classes and names that a run of fit changes, and nothing behind them."""
import os

__version__ = "0.0.1"

FAILURES = {
    "host": OSError(12, "out of memory (fork)"),
    "never": RuntimeError("CUDA out of memory. Tried to allocate 2 TiB"),
}


class LLM:
    def __init__(self, model, **options):
        if options.pop("first", 0):
            from vllm.worker.worker import Worker

            Worker()
        from vllm.engine.arg_utils import EngineArgs
        from vllm.v1.engine.core import EngineCore

        EngineCore.fails = [error for name, error in FAILURES.items() if options.pop(name, 0)]
        import torch

        if torch.total < options.pop("broken_below", 0) * 2**20:
            EngineCore.fails.append(ValueError("heads"))

        assert os.environ["VLLM_NO_USAGE_STATS"] == "1"
        args = EngineArgs(model, **options)
        EngineCore(args.create_engine_config())
