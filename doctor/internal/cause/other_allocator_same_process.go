package cause

// other_allocator_same_process: another allocator in the same process holds the memory.

import "gpumem/doctor/internal/account"

func otherAllocator(c *view) []Explanation {
	s := c.Shortfall
	switch c.who() {
	case besidePool:
		return []Explanation{sure(652, "another allocator in the process", c.oneAllocator(),
			quote(s.St,
				"this process holds %v, of which its pool reserved %v: %v belongs to another allocator in it", s.Process, s.Reserved, account.Less(s.Process, s.Reserved))).
			certainly(c.hint()...)}
	case limitByOthers:
		return []Explanation{fits(672, "others in the process", steps(
			"release what is not PyTorch's: other models, caches and Metal users of the process, or start it anew; "+
				"torch.mps.empty_cache()",
			"or take a smaller workflow: batch, resolution, half precision"),
			seeMetal, quote(s.St, "%v of the %v that the process may take is not of PyTorch's own allocations, which are %v",
				s.OtherHere(), s.Limit, s.Alloc))}
	case restOwn:
		return []Explanation{sure(647, "alone on the GPU", c.oneAllocator(),
			s.St.Quoted(s.InUse())).certainly(c.hint()...)}
	case restUnknown:
		if !s.Async {
			return []Explanation{fits(646, "the rest of the GPU", c.oneAllocator(), c.processes(),
				s.St.Quoted(s.InUse())).needs(NeedProcesses)}
		}
	}
	return nil
}

// oneAllocator lets the other allocator take less.
func (c *view) oneAllocator() Remedy {
	const check = "gpumem explain --pid PID"
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
