"""Stands in for SGLang: the classes and names that a run of fit changes, and nothing behind them."""
__version__ = "0.0.1"


def Engine(**options):
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(**options)
    args.resolve_once()
    Scheduler(args, None)
