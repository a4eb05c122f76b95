package memory

import "gpumem/hlo/pack"

// Offsets returns where each value lies in the heap of temporaries that AssignBest(work) packs, in
// bytes, by the value's ID; -1 for one that lies elsewhere. Each memory space has a separate
// heap, which begins at 0.
func (a *Analysis) Offsets(work int) ([]int64, error) {
	list := make([]int64, len(a.Values))
	for v := range list {
		list[v] = -1
	}
	g := &assigner{a: a, in: make([]int32, len(a.BufferBytes))}
	for _, use := range g.allocations() {
		r := a.record(use)
		_, offsets, err := pack.Search(r.blocks, a.alignment(), work)
		if err != nil {
			return nil, err
		}
		for v, of := range use {
			if of {
				list[v] = int64(offsets[r.block[v]])
			}
		}
	}
	return list, nil
}
