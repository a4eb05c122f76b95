package hlointerp

// Gather and scatter.

import (
	"fmt"
	"slices"

	"gpumem/xla/internal/hlo"
)

// An indexed says how an array of starts and the elements of a window lie in the
// dimensions of an operand: what gather and scatter have in common.
type indexed struct {
	windowDims []int64 // dimensions of the result (the updates) that are the window's
	starts     []int64 // which dimension of the operand each number of a start is for
	vector     int64   // which dimension of the indices a start lies along
	window     []int64 // dimensions of the operand that the window's are, in order
	batching   []int64 // dimensions of the operand that are batches, and
	of         []int64 // those of the indices that they go with
	indices    Value
	operand    []int64
}

// read reads the attributes; keys are those of gather or of scatter.
func read(i *hlo.Instruction, operand, indices, other Value, windowDims, gone, starts, batching, of string) (*indexed, error) {
	x := &indexed{indices: indices, operand: operand.Shape.Dims}
	var missing []int64
	for _, a := range []struct {
		key  string
		list *[]int64
		rank int
	}{
		{windowDims, &x.windowDims, len(other.Shape.Dims)},
		{gone, &missing, len(x.operand)},
		{starts, &x.starts, len(x.operand)},
		{batching, &x.batching, len(x.operand)},
		{of, &x.of, len(indices.Shape.Dims)},
	} {
		var err error
		if *a.list, err = i.Ints(a.key); err != nil {
			return nil, err
		}
		for n, d := range *a.list {
			if d < 0 || d >= int64(a.rank) || slices.Contains((*a.list)[:n], d) {
				return nil, &hlo.AttributeError{Instruction: i, Key: a.key, Want: fmt.Sprintf("dimensions below %d, each once", a.rank)}
			}
		}
	}
	var err error
	if x.vector, err = i.Int("index_vector_dim", int64(len(indices.Shape.Dims))); err != nil {
		return nil, err
	}
	for d := range x.operand {
		if !slices.Contains(missing, int64(d)) && !slices.Contains(x.batching, int64(d)) {
			x.window = append(x.window, int64(d))
		}
	}
	// Behind the last dimension each start is a single number.
	numbers := int64(1)
	rank := int64(len(indices.Shape.Dims))
	if x.vector >= 0 && x.vector < rank {
		numbers = indices.Shape.Dims[x.vector]
		rank--
	}
	if x.vector < 0 || x.vector > int64(len(indices.Shape.Dims)) || numbers != int64(len(x.starts)) || len(x.window) != len(x.windowDims) ||
		len(x.batching) != len(x.of) || int64(len(other.Shape.Dims)-len(x.windowDims)) != rank || slices.Contains(x.of, x.vector) ||
		kindOf(indices.Shape.Type) != signed && kindOf(indices.Shape.Type) != unsigned {
		return nil, fmt.Errorf("the dimension numbers of %s do not fit its shapes", i.Opcode)
	}
	// Each dimension of the indices, but the starts', is one of the result.
	at := 0
	for d, size := range indices.Shape.Dims {
		if int64(d) == x.vector {
			continue
		}
		for slices.Contains(x.windowDims, int64(at)) {
			at++
		}
		if other.Shape.Dims[at] != size {
			return nil, fmt.Errorf("the dimension numbers of %s do not fit its shapes", i.Opcode)
		}
		at++
	}
	for k, d := range x.batching {
		if x.operand[d] != indices.Shape.Dims[x.of[k]] {
			return nil, fmt.Errorf("the dimension numbers of %s do not fit its shapes", i.Opcode)
		}
	}
	return x, nil
}

// start is where the window of an index of the result begins in the operand.
func (x *indexed) start(index, begin []int64) {
	clear(begin)
	place := make([]int64, len(x.indices.Shape.Dims))
	next := 0
	for d := range place {
		if int64(d) == x.vector {
			continue
		}
		for slices.Contains(x.windowDims, int64(next)) {
			next++
		}
		place[d] = index[next]
		next++
	}
	for k, d := range x.starts {
		if x.vector < int64(len(place)) {
			place[x.vector] = int64(k)
		}
		begin[d] = whole(x.indices.Shape.Type, x.indices.Bits[at(x.indices.Shape.Dims, place)])
	}
	for k, d := range x.batching {
		begin[d] = place[x.of[k]]
	}
}

// offset adds an index's place within its window.
func (x *indexed) offset(index, to []int64) {
	for k, d := range x.window {
		to[d] += index[x.windowDims[k]]
	}
}

func gather(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	x, err := read(i, in[0], in[1], out, "offset_dims", "collapsed_slice_dims", "start_index_map", "operand_batching_dims", "start_indices_batching_dims")
	if err != nil {
		return out, err
	}
	sizes, err := i.Ints("slice_sizes")
	if err != nil {
		return out, err
	}
	if len(sizes) != len(x.operand) || in[0].Shape.Type != i.Shape.Type {
		return out, fmt.Errorf("slice_sizes: expected a number for each of %d dimensions", len(x.operand))
	}
	for d, n := range sizes {
		if n < 0 || n > x.operand[d] {
			return out, fmt.Errorf("slice_sizes: %d of dimension %d, which has %d", n, d, x.operand[d])
		}
		if k := slices.Index(x.window, int64(d)); k >= 0 && i.Shape.Dims[x.windowDims[k]] != n || k < 0 && n != 1 && len(out.Bits) > 0 {
			return out, fmt.Errorf("slice_sizes: %d of dimension %d does not fit %s", n, d, i.Shape)
		}
	}
	source := make([]int64, len(x.operand))
	each(i.Shape.Dims, func(n int, index []int64) {
		x.start(index, source)
		// A window that would stand out is moved in.
		for d := range source {
			source[d] = max(0, min(source[d], x.operand[d]-sizes[d]))
		}
		x.offset(index, source)
		out.Bits[n] = in[0].Bits[at(x.operand, source)]
	})
	return out, nil
}

// scatter puts in the updates in their order. One that lies outside is left out.
func scatter(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	n := len(in) / 2
	out, err := r.outputs(i.Shape, n)
	if err != nil {
		return Value{}, err
	}
	updates := in[n+1:]
	x, err := read(i, in[0], in[n], updates[0], "update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims", "input_batching_dims", "scatter_indices_batching_dims")
	if err != nil {
		return Value{}, err
	}
	fold, err := r.folder(i.Call("to_apply"), n)
	if err != nil {
		return Value{}, err
	}
	for k := range out {
		if in[k].Shape.Type != out[k].Shape.Type || updates[k].Shape.Type != out[k].Shape.Type ||
			!slices.Equal(in[k].Shape.Dims, x.operand) || !slices.Equal(updates[k].Shape.Dims, updates[0].Shape.Dims) {
			return Value{}, notInterpreted(i)
		}
		copy(out[k].Bits, in[k].Bits)
	}
	target := make([]int64, len(x.operand))
	sums, values := make([]uint64, n), make([]uint64, n)
	var failed error
	each(updates[0].Shape.Dims, func(m int, index []int64) {
		if failed != nil {
			return
		}
		x.start(index, target)
		x.offset(index, target)
		for d, p := range target {
			if p < 0 || p >= x.operand[d] {
				return
			}
		}
		to := at(x.operand, target)
		for k := range n {
			sums[k], values[k] = out[k].Bits[to], updates[k].Bits[m]
		}
		if sums, failed = fold(sums, values); failed == nil {
			for k := range n {
				out[k].Bits[to] = sums[k]
			}
		}
	})
	return together(i.Shape, out), failed
}
