package hlointerp

// Operations that move, cut and join arrays, element by element.

import (
	"fmt"
	"math"
	"slices"

	"gpumem/xla/internal/hlo"
)

type arrayOp func(r *machine, i *hlo.Instruction, in []Value) (Value, error)

var arrayOps map[hlo.Opcode]arrayOp

func init() {
	arrayOps = map[hlo.Opcode]arrayOp{
		hlo.Bitcast:            bitcast,
		"bitcast-convert":      bitcastConvert,
		hlo.Broadcast:          broadcast,
		"clamp":                clamp,
		hlo.Concatenate:        concatenate,
		hlo.Convolution:        convolution,
		hlo.Dot:                dot,
		hlo.DynamicSlice:       dynamicSlice,
		hlo.DynamicUpdateSlice: dynamicUpdateSlice,
		hlo.Gather:             gather,
		hlo.Iota:               iota_,
		hlo.Map:                mapped,
		hlo.Pad:                pad,
		hlo.Reduce:             reduce,
		hlo.ReduceWindow:       reduceWindow,
		hlo.Reshape:            reshape,
		hlo.Reverse:            reverse,
		hlo.RngBitGenerator:    randomBits,
		hlo.Scatter:            scatter,
		hlo.Select:             choose,
		hlo.SelectAndScatter:   selectAndScatter,
		hlo.Slice:              slice,
		hlo.Sort:               sorted,
		hlo.Transpose:          transpose,
	}
}

// each goes through all indices of an array, the last dimension fastest. The
// index is its own: copy it to keep it.
func each(dims []int64, f func(n int, index []int64)) {
	for _, d := range dims {
		if d == 0 {
			return
		}
	}
	index := make([]int64, len(dims))
	for n := 0; ; n++ {
		f(n, index)
		d := len(dims) - 1
		for ; d >= 0; d-- {
			if index[d]++; index[d] < dims[d] {
				break
			}
			index[d] = 0
		}
		if d < 0 {
			return
		}
	}
}

// at is the place of an index in an array's elements.
func at(dims, index []int64) int64 {
	n := int64(0)
	for d, size := range dims {
		n = n*size + index[d]
	}
	return n
}

// pick makes an array of elements of another, found by index.
func (r *machine) pick(s *hlo.Shape, from Value, where func(index, source []int64)) (Value, error) {
	out, err := r.array(s)
	if err != nil {
		return out, err
	}
	source := make([]int64, len(from.Shape.Dims))
	each(s.Dims, func(n int, index []int64) {
		where(index, source)
		out.Bits[n] = from.Bits[at(from.Shape.Dims, source)]
	})
	return out, nil
}

func reshape(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	if _, err := count(i.Shape); err != nil {
		return Value{}, err
	}
	return Value{Shape: i.Shape, Bits: in[0].Bits}, nil
}

// bitcast keeps the order in memory, which the layouts give.
func bitcast(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	n, err := count(i.Shape)
	if err != nil {
		return Value{}, err
	}
	if bitsOf(in[0].Shape.Type) != bitsOf(i.Shape.Type) || n != len(in[0].Bits) {
		return Value{}, fmt.Errorf("bitcast of %s to %s is not interpreted", in[0].Shape, i.Shape)
	}
	from, err := memory(i.Operands[0].Shape)
	if err != nil {
		return Value{}, err
	}
	to, err := memory(i.Shape)
	if err != nil {
		return Value{}, err
	}
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	for k := range from {
		out.Bits[to[k]] = in[0].Bits[from[k]]
	}
	return out, nil
}

// memory are the places of an array's elements in the order in which they lie in
// memory.
func memory(s *hlo.Shape) ([]int64, error) {
	rank := len(s.Dims)
	order := make([]int64, rank) // minor to major
	for d := range order {
		order[d] = int64(rank - 1 - d)
	}
	if s.Layout != "" {
		layout := hlo.Instruction{Attributes: []hlo.Attribute{{Key: "layout", Value: "{" + s.Layout + "}"}}}
		list, err := layout.Ints("layout")
		sorted := slices.Sorted(slices.Values(list))
		for d, n := range sorted {
			if err != nil || n != int64(d) || len(sorted) != rank {
				return nil, fmt.Errorf("bitcast with layout {%s} is not interpreted", s.Layout)
			}
		}
		if err != nil || len(list) != rank {
			return nil, fmt.Errorf("bitcast with layout {%s} is not interpreted", s.Layout)
		}
		order = list
	}
	dims := make([]int64, rank) // major to minor
	for d := range dims {
		dims[d] = s.Dims[order[rank-1-d]]
	}
	places := make([]int64, 0)
	index := make([]int64, rank)
	each(dims, func(n int, physical []int64) {
		for d, x := range physical {
			index[order[rank-1-d]] = x
		}
		places = append(places, at(s.Dims, index))
	})
	return places, nil
}

// bitcastConvert reads bits as another type. Where widths differ, the last
// dimension is that of the parts, the lowest bits first.
func bitcastConvert(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	from, to := bitsOf(in[0].Shape.Type), bitsOf(i.Shape.Type)
	if from*len(in[0].Bits) != to*len(out.Bits) || max(from, to)%min(from, to) != 0 {
		return out, notInterpreted(i)
	}
	for k, b := range in[0].Bits {
		switch {
		case from == to:
			out.Bits[k] = b
		case from > to:
			for part := range from / to {
				out.Bits[k*(from/to)+part] = b >> (part * to) & mask(i.Shape.Type)
			}
		default:
			out.Bits[k/(to/from)] |= b << (k % (to / from) * from)
		}
	}
	return out, nil
}

func broadcast(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	to, err := i.Ints("dimensions")
	if err != nil {
		return Value{}, err
	}
	return r.pick(i.Shape, in[0], func(index, source []int64) {
		for n, d := range to {
			source[n] = index[d]
		}
	})
}

func transpose(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	order, err := i.Ints("dimensions")
	if err != nil {
		return Value{}, err
	}
	return r.pick(i.Shape, in[0], func(index, source []int64) {
		for n, d := range order {
			source[d] = index[n]
		}
	})
}

func reverse(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	turned, err := i.Ints("dimensions")
	if err != nil {
		return Value{}, err
	}
	return r.pick(i.Shape, in[0], func(index, source []int64) {
		copy(source, index)
		for _, d := range turned {
			source[d] = i.Shape.Dims[d] - 1 - index[d]
		}
	})
}

func slice(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	cut, err := i.Slices()
	if err != nil {
		return Value{}, err
	}
	return r.pick(i.Shape, in[0], func(index, source []int64) {
		for d, s := range cut {
			source[d] = s.Start + index[d]*s.Stride
		}
	})
}

// iota_ counts along a dimension; the name iota is Go's.
func iota_(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	along, err := i.Int("iota_dimension", 0)
	if err != nil {
		return out, err
	}
	number := convertOf("s64", i.Shape.Type)
	each(i.Shape.Dims, func(n int, index []int64) { out.Bits[n] = number(uint64(index[along])) })
	return out, nil
}

func concatenate(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	along, err := i.Int("dimensions", 0)
	if err != nil {
		return out, err
	}
	offset := int64(0)
	target := make([]int64, len(i.Shape.Dims))
	for _, v := range in {
		each(v.Shape.Dims, func(n int, index []int64) {
			copy(target, index)
			target[along] += offset
			out.Bits[at(i.Shape.Dims, target)] = v.Bits[n]
		})
		offset += v.Shape.Dims[along]
	}
	return out, nil
}

func pad(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	padding, err := i.Padding()
	if err != nil {
		return out, err
	}
	for n := range out.Bits {
		out.Bits[n] = in[1].Bits[0]
	}
	target := make([]int64, len(i.Shape.Dims))
	each(in[0].Shape.Dims, func(n int, index []int64) {
		for d, p := range padding {
			target[d] = p.Low + index[d]*(p.Interior+1)
			if target[d] < 0 || target[d] >= i.Shape.Dims[d] {
				return
			}
		}
		out.Bits[at(i.Shape.Dims, target)] = in[0].Bits[n]
	})
	return out, r.spend(uint64(len(in[0].Bits)))
}

func choose(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	if in[1].Shape.Type != i.Shape.Type || in[2].Shape.Type != i.Shape.Type {
		return out, notInterpreted(i)
	}
	for n := range out.Bits {
		on := in[0].Bits[0]
		if len(in[0].Shape.Dims) > 0 {
			on = in[0].Bits[n]
		}
		if out.Bits[n] = in[2].Bits[n]; on != 0 {
			out.Bits[n] = in[1].Bits[n]
		}
	}
	return out, nil
}

func clamp(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	t := i.Shape.Type
	low, high := binaryOf("maximum", t), binaryOf("minimum", t)
	if in[0].Shape.Type != t || in[1].Shape.Type != t || in[2].Shape.Type != t || low == nil {
		return out, notInterpreted(i)
	}
	bound := func(v Value, n int) uint64 {
		if len(v.Shape.Dims) == 0 {
			return v.Bits[0]
		}
		return v.Bits[n]
	}
	for n, x := range in[1].Bits {
		out.Bits[n] = high(low(x, bound(in[0], n)), bound(in[2], n))
	}
	return out, nil
}

// starts are where a dynamic slice begins, so that it fits.
func starts(list []Value, dims, sizes []int64) []int64 {
	begin := make([]int64, len(dims))
	for d := range dims {
		v, n := list[min(d, len(list)-1)], 0
		if len(v.Shape.Dims) == 1 {
			n = d // one vector for all
		}
		begin[d] = max(0, min(whole(v.Shape.Type, v.Bits[n]), dims[d]-sizes[d]))
	}
	return begin
}

// whole is a whole number of any type, at most the largest of 63 bits.
func whole(t hlo.Type, b uint64) int64 {
	if kindOf(t) == signed {
		return extend(t, b)
	}
	return int64(min(b, math.MaxInt64))
}

func dynamicSlice(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	if err := vector(in[1:], len(in[0].Shape.Dims)); err != nil {
		return Value{}, err
	}
	begin := starts(in[1:], in[0].Shape.Dims, i.Shape.Dims)
	return r.pick(i.Shape, in[0], func(index, source []int64) {
		for d := range source {
			source[d] = begin[d] + index[d]
		}
	})
}

func dynamicUpdateSlice(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	if err := vector(in[2:], len(in[0].Shape.Dims)); err != nil {
		return Value{}, err
	}
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	copy(out.Bits, in[0].Bits)
	begin := starts(in[2:], in[0].Shape.Dims, in[1].Shape.Dims)
	target := make([]int64, len(begin))
	each(in[1].Shape.Dims, func(n int, index []int64) {
		for d := range target {
			target[d] = begin[d] + index[d]
		}
		out.Bits[at(i.Shape.Dims, target)] = in[1].Bits[n]
	})
	return out, nil
}

// vector checks starts that are one vector: it has one number a dimension.
func vector(list []Value, rank int) error {
	for _, v := range list {
		if len(v.Shape.Dims) == 1 && len(v.Bits) != rank || kindOf(v.Shape.Type) == float {
			return fmt.Errorf("starts of %s for %d dimensions", v.Shape, rank)
		}
	}
	return nil
}

// randomBits stands in for XLA's generators: the bits and the next state hang on
// nothing but the state and the algorithm's name.
func randomBits(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	algorithm, _ := i.Attribute("algorithm")
	seed := uint64(len(algorithm))
	for _, c := range algorithm {
		seed = mix(seed ^ uint64(c))
	}
	for _, b := range in[0].Bits {
		seed = mix(seed ^ b)
	}
	shapes := []*hlo.Shape{i.Shape}
	if i.Shape.Type == hlo.Tuple {
		shapes = i.Shape.Elements
	}
	result := Value{Shape: i.Shape}
	for _, s := range shapes {
		v, err := r.array(s)
		if err != nil {
			return v, err
		}
		if k := kindOf(s.Type); k != unsigned && k != signed {
			return v, notInterpreted(i)
		}
		for n := range v.Bits {
			seed++
			v.Bits[n] = mix(seed) & mask(s.Type)
		}
		if i.Shape.Type != hlo.Tuple {
			return v, nil
		}
		result.Elements = append(result.Elements, v)
	}
	return result, nil
}
