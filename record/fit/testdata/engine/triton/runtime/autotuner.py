"""Stands in for Triton's measurement of the ways to run a kernel."""
from types import SimpleNamespace


class Autotuner:
    configs = [SimpleNamespace(num_stages=stages, kwargs={"BLOCK": block, "EVEN": True}) for stages in (4, 2) for block in (64, 32, 128)]

    def prune_configs(self, kwargs):
        return self.configs
