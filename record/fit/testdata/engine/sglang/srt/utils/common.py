def get_nvgpu_memory_capacity():
    raise FileNotFoundError("nvidia-smi")
