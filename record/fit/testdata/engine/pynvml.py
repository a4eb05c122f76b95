"""Stands in for the bindings of NVML."""
import torch


class nvmlDeviceGetMemoryInfo:
    def __init__(self, _):
        self.total = torch.total


nvmlInit = lambda: None
nvmlDeviceGetCount = lambda: 1
nvmlDeviceGetHandleByIndex = lambda i: i
