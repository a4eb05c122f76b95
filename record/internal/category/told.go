package category

// The categories that PyTorch's profiler finds itself, by the storage of its tensors. They are the
// sites of a memory timeline of it.

// byPyTorch are its categories. A detail of autograd is a gradient of something that is no
// parameter, which does not outlive the backward pass.
var byPyTorch = map[string]Category{
	"parameter": Parameters, "optimizer state": State, "input": Inputs, "temporary": Temporaries,
	"activation": Activations, "gradient": Gradients, "autograd detail": Temporaries,
}

// labelsByPyTorch returns the labels of blocks by their sites. None is sure: PyTorch tells
// them by rules of its own.
func labelsByPyTorch(s *span, site func(uint32) string) []label {
	labels := make([]label, len(s.blocks))
	for i := range s.blocks {
		if labels[i].Category = byPyTorch[site(s.blocks[i].site)]; labels[i].Category == "" {
			labels[i].Category = Unknown
		}
	}
	return labels
}
