package cause

// device_busy: the GPU is not available: busy, or in exclusive mode.

func deviceBusy(c *view) found {
	st := c.About("busy")
	if st == nil {
		return nil
	}
	if st.Topic("busy").Name == "scheduler" {
		return found{sure(970, "no GPU to give", steps(
			"see which GPUs are given out, and to whom: kubectl describe nodes | grep -A8 'Allocated resources'",
			"ask for fewer, wait, or add a node; a GPU that the device plugin does not report is not there for the scheduler"), st.Quoted("the scheduler has no node with a free GPU: the program did not start"))}
	}
	l := one(st, "the driver refuses the GPU itself: no memory was requested yet")
	return found{sure(970, "the GPU is busy", steps("see who has it: nvidia-smi; gpumem ps",
		"see whether it is in exclusive mode: nvidia-smi --query-gpu=compute_mode --format=csv; "+
			"under a scheduler ask it for a GPU and use the one in its CUDA_VISIBLE_DEVICES"), l...)}
}
