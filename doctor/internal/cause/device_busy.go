package cause

// device_busy: the GPU is not available: busy, or in exclusive mode.

func deviceBusy(c *view) []Explanation {
	l := c.about("busy", "the driver does not give the GPU at all: no amount is asked for yet")
	if l == nil {
		return nil
	}
	return []Explanation{sure(970, "the GPU is busy", steps("see who has it: nvidia-smi; gpumem ps",
		"see whether it is in exclusive mode: nvidia-smi --query-gpu=compute_mode --format=csv; under a scheduler ask it for a GPU and use the one in its CUDA_VISIBLE_DEVICES"), l...)}
}
