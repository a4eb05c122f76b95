package cause

// device_busy: the GPU is not available: busy, or in exclusive mode.

func deviceBusy(c *view) found {
	st := c.About("busy")
	if st == nil || st.Topic("busy").Name == "scheduler" { // notMemory has a pod without a node
		return nil
	}
	l := one(st, "the driver refuses the GPU itself: no memory was requested yet")
	return found{sure(970, "the GPU is busy", c.freeGPU(), l...)}
}

// freeGPU is what to do about a GPU that is not given.
func (c *view) freeGPU() Remedy {
	const exclusive = "see whether it is in exclusive mode: nvidia-smi --query-gpu=compute_mode --format=csv"
	switch {
	case c.Uses("+mps"):
		return steps("see that the daemon of MPS runs, as the same user, on this GPU: ps -ef | grep mps; its logs are in "+
			"CUDA_MPS_LOG_DIRECTORY (/var/log/nvidia-mps): control.log, server.log",
			"let client and daemon have the same CUDA_MPS_PIPE_DIRECTORY, in a container as well; end a server that hangs: echo quit | "+
				"nvidia-cuda-mps-control", exclusive+"; with MPS it is Exclusive_Process for the server alone")
	case c.Uses("+vgpu"):
		return steps("see the licence and the profile of the virtual GPU: nvidia-smi -q | grep -i -E 'license|vgpu'; and that the guest's "+
			"driver fits the host's",
			"try another of the devices: CUDA_VISIBLE_DEVICES", exclusive)
	}
	return steps("see who has it: nvidia-smi; gpumem ps",
		exclusive+"; under a scheduler ask it for a GPU and use the one in its CUDA_VISIBLE_DEVICES",
		"try another one: CUDA_VISIBLE_DEVICES. If none works, with nobody on it, restart the machine, or its driver")
}
