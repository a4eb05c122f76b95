package cause

// vmm_unsupported: the GPU, or its profile, has no virtual memory management.

func vmmUnsupported(c *view) found {
	l := c.about("vmm",
		"this release of XLA allocates with cuMemCreate, and the GPU, or the profile of its virtual GPU, cannot")
	if st := c.About("vmmcall"); st != nil && !st.HasAny("nccl", "rccl") {
		x := sure(979, "a call of virtual memory", c.advise("vmm").step(
			"or use a GPU, or a profile of it, that has virtual memory management: time-sliced and fractional vGPU profiles often do not"),
			st.Quoted("the driver does not support the call by which the program takes memory; none is missing"))
		x.Alone = true
		return found{x}
	}
	if l == nil {
		return nil
	}
	return found{sure(980, "no virtual memory management", steps(
		"use a GPU, or a profile of it, that has virtual memory management; time-sliced and fractional vGPU profiles often do not",
		"or stay with a jaxlib before this became a requirement (openxla/xla#42028, 2026)"), l...)}
}
