from types import SimpleNamespace

from sglang.srt.model_executor.model_runner import ModelRunner


class Scheduler:
    tp_rank, tp_size, pp_rank = 0, 1, 0

    def __init__(self, server_args, port_args):
        runner = ModelRunner(server_args)
        self.server_args, self.tp_worker = server_args, SimpleNamespace(model_runner=runner)
        self.page_size, self.max_running_requests, self.max_total_num_tokens = 16, 8, 16 * runner.blocks
        self.full_tokens_per_layer, self.swa_tokens_per_layer = self.max_total_num_tokens, 8 * runner.blocks // 16 * 16
        self.sliding_window_size = server_args.window and int(server_args.window)
        if self.sliding_window_size and self.sliding_window_size + 16 >= self.swa_tokens_per_layer:
            raise ValueError("SWA pool cannot hold even one request. Not enough memory.")
