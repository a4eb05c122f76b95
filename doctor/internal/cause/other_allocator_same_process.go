package cause

// other_allocator_same_process: another allocator in the same process holds the memory.

// oneAllocator lets the other allocator take less.
func (c *view) oneAllocator() Remedy {
	const check = "gpumem explain --pid PID"
	if c.at("hip") {
		return steps("see what it holds beside PyTorch's pool: MIOpen's workspaces (MIOPEN_FIND_MODE=FAST takes less), a second library, or "+
			"another program",
			"ask for less at a time: decode or compute in tiles")
	}
	if !c.Uses("jax", "tensorflow") {
		return steps(
			"see what else in the process takes memory of the GPU: "+
				"gpumem explain --pid PID shows which frameworks it has loaded, and what each takes",
			"if it is JAX or PyTorch/XLA: XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION=0.40; "+
				"if it is TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true; if it is CuPy or RMM: "+
				"give both one pool (rmm.allocators.torch)").check(check)
	}
	r := Remedy{}.set("XLA_PYTHON_CLIENT_PREALLOCATE", "false",
		"if the other one is JAX or PyTorch/XLA: it then takes what it needs")
	r.Settings = append(r.Settings, c.fraction("0.40", "and no more than this").Settings...)
	return r.step(`if it is TensorFlow: TF_FORCE_GPU_ALLOW_GROWTH=true; if it only reads data: tf.config.set_visible_devices([], "GPU")`,
		"gpumem explain --pid PID shows which frameworks the process has loaded, and what each takes").check(check)
}
