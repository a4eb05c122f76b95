package hlointerp

// Operations that combine elements: sums of products, and whatever a computation
// makes of them.

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// A folder puts values into accumulators.
type folder func(sums, values []uint64) ([]uint64, error)

// folder makes one of a computation of 2n single elements that gives n.
func (r *machine) folder(c *hlo.Computation, n int) (folder, error) {
	if c == nil {
		return nil, errors.New("no to_apply= says how elements combine")
	}
	parameters, results := c.Parameters(), []*hlo.Shape{c.Root.Shape}
	if c.Root.Shape.Type == hlo.Tuple {
		results = c.Root.Shape.Elements
	}
	if len(parameters) != 2*n || len(results) != n {
		return nil, fmt.Errorf("%s has %d parameters and %d results, expected %d and %d", c.Name, len(parameters), len(results), 2*n, n)
	}
	for k, p := range parameters {
		if !single(p.Shape) || !p.Shape.Compatible(results[k%n]) {
			return nil, fmt.Errorf("%s: parameter %d is %s, its result %s: expected the same single element", c.Name, k, p.Shape, results[k%n])
		}
	}
	if op := c.Root; n == 1 && op.Opcode.Binary() && len(op.Operands) == 2 && op.Operands[0] == parameters[0] && op.Operands[1] == parameters[1] {
		// The usual case, without a run for each element. Its results are the same.
		if f := binaryOf(op.Opcode, op.Shape.Type); f != nil {
			return func(sums, values []uint64) ([]uint64, error) {
				sums[0] = f(sums[0], values[0])
				return sums, r.spend(1)
			}, nil
		}
	}
	return func(sums, values []uint64) ([]uint64, error) {
		arguments := make([]Value, 2*n)
		for k := range n {
			arguments[k] = Value{Shape: parameters[k].Shape, Bits: []uint64{sums[k]}}
			arguments[n+k] = Value{Shape: parameters[n+k].Shape, Bits: []uint64{values[k]}}
		}
		v, err := r.run(c, arguments)
		if err != nil {
			return nil, err
		}
		if v.Shape.Type != hlo.Tuple {
			return v.Bits, nil
		}
		next := make([]uint64, n)
		for k, e := range v.Elements {
			next[k] = e.Bits[0]
		}
		return next, nil
	}, nil
}

func single(s *hlo.Shape) bool { return s.IsArray() && len(s.Dims) == 0 }

// outputs are the arrays of a result of n parts.
func (r *machine) outputs(s *hlo.Shape, n int) ([]Value, error) {
	shapes := []*hlo.Shape{s}
	if s.Type == hlo.Tuple {
		shapes = s.Elements
	}
	list := make([]Value, n)
	for k := range list {
		var err error
		if list[k], err = r.array(shapes[k]); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// together is a result of parts: a tuple, or the one.
func together(s *hlo.Shape, parts []Value) Value {
	if s.Type == hlo.Tuple {
		return Value{Shape: s, Elements: parts}
	}
	return parts[0]
}

// sameTypes says what is wrong if arrays are not of the results' types.
func sameTypes(i *hlo.Instruction, in, out []Value) error {
	for k, o := range out {
		if in[k].Shape.Type != o.Shape.Type {
			return fmt.Errorf("%s of %s to %s is not interpreted", i.Opcode, in[k].Shape.Type, o.Shape.Type)
		}
	}
	return nil
}

func reduce(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	n := len(in) / 2
	out, err := r.outputs(i.Shape, n)
	if err != nil {
		return Value{}, err
	}
	over, err := i.Ints("dimensions")
	if err != nil {
		return Value{}, err
	}
	fold, err := r.folder(i.Call("to_apply"), n)
	if err != nil {
		return Value{}, err
	}
	if err := sameTypes(i, in, out); err != nil {
		return Value{}, err
	}
	for k := range out {
		for m := range out[k].Bits {
			out[k].Bits[m] = in[n+k].Bits[0]
		}
	}
	sums, values := make([]uint64, n), make([]uint64, n)
	var failed error
	each(in[0].Shape.Dims, func(m int, index []int64) {
		if failed != nil {
			return
		}
		to := int64(0)
		for d, x := range index {
			if !slices.Contains(over, int64(d)) {
				to = to*in[0].Shape.Dims[d] + x
			}
		}
		for k := range n {
			sums[k], values[k] = out[k].Bits[to], in[k].Bits[m]
		}
		if sums, failed = fold(sums, values); failed == nil {
			for k := range n {
				out[k].Bits[to] = sums[k]
			}
		}
	})
	return together(i.Shape, out), failed
}

func reduceWindow(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	n := len(in) / 2
	out, err := r.outputs(i.Shape, n)
	if err != nil {
		return Value{}, err
	}
	window, err := i.Window()
	if err != nil {
		return Value{}, err
	}
	fold, err := r.folder(i.Call("to_apply"), n)
	if err != nil {
		return Value{}, err
	}
	if err := sameTypes(i, in, out); err != nil {
		return Value{}, err
	}
	size := make([]int64, len(window))
	places := uint64(1)
	for d, w := range window {
		size[d] = w.Size
		if places *= uint64(w.Size); w.Size > maxElements || places > maxElements {
			return Value{}, fmt.Errorf("a window of %d elements is not interpreted", places)
		}
	}
	sums, values := make([]uint64, n), make([]uint64, n)
	source := make([]int64, len(window))
	var failed error
	each(out[0].Shape.Dims, func(m int, index []int64) {
		if failed == nil {
			failed = r.spend(places)
		}
		if failed != nil {
			return
		}
		for k := range n {
			sums[k] = in[n+k].Bits[0]
		}
		each(size, func(_ int, tap []int64) {
			if failed != nil {
				return
			}
			for d, w := range window {
				x := index[d]*w.Stride + tap[d]*w.Dilation - w.Low
				if x < 0 || x%w.BaseDilation != 0 || x/w.BaseDilation >= in[0].Shape.Dims[d] {
					return
				}
				source[d] = x / w.BaseDilation
			}
			for k := range n {
				values[k] = in[k].Bits[at(in[k].Shape.Dims, source)]
			}
			sums, failed = fold(sums, values)
		})
		if failed == nil {
			for k := range n {
				out[k].Bits[m] = sums[k]
			}
		}
	})
	return together(i.Shape, out), failed
}

// selectAndScatter puts each of a source into the place of the operand that the
// selection picks in its window.
func selectAndScatter(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	window, err := i.Window()
	if err != nil {
		return out, err
	}
	operand, source := in[0], in[1]
	dims := operand.Shape.Dims
	sel, put := i.Call("select"), i.Call("scatter")
	if sel == nil || put == nil || len(sel.Parameters()) != 2 || !single(sel.Root.Shape) || len(window) != len(dims) || len(source.Shape.Dims) != len(dims) ||
		!slices.Equal(dims, i.Shape.Dims) || source.Shape.Type != i.Shape.Type || operand.Shape.Type != i.Shape.Type || !single(in[2].Shape) || in[2].Shape.Type != i.Shape.Type {
		return out, notInterpreted(i)
	}
	for _, p := range sel.Parameters() {
		if !single(p.Shape) || p.Shape.Type != i.Shape.Type {
			return out, notInterpreted(i)
		}
	}
	fold, err := r.folder(put, 1)
	if err != nil {
		return out, err
	}
	if put.Root.Shape.Type != i.Shape.Type {
		return out, notInterpreted(i)
	}
	for n := range out.Bits {
		out.Bits[n] = in[2].Bits[0]
	}
	size := make([]int64, len(window))
	places := uint64(1)
	for d, w := range window {
		size[d] = w.Size
		if w.Size < 1 || w.Size > maxElements || w.Stride < 1 || w.Stride > maxElements || !near(w.Low) || w.BaseDilation != 1 || w.Dilation != 1 {
			return out, notInterpreted(i)
		}
		if places *= uint64(w.Size); places > maxElements {
			return out, notInterpreted(i)
		}
	}
	spot := make([]int64, len(dims))
	var failed error
	each(source.Shape.Dims, func(n int, index []int64) {
		if failed == nil {
			failed = r.spend(places)
		}
		best := int64(-1)
		each(size, func(_ int, tap []int64) {
			if failed != nil {
				return
			}
			for d, w := range window {
				if spot[d] = index[d]*w.Stride + tap[d] - w.Low; spot[d] < 0 || spot[d] >= dims[d] {
					return
				}
			}
			here := at(dims, spot)
			if best < 0 {
				best = here
				return
			}
			var v Value
			v, failed = r.run(sel, []Value{
				{Shape: sel.Parameters()[0].Shape, Bits: operand.Bits[best : best+1]},
				{Shape: sel.Parameters()[1].Shape, Bits: operand.Bits[here : here+1]},
			})
			if failed == nil && v.Bits[0] == 0 {
				best = here
			}
		})
		if failed != nil || best < 0 {
			return
		}
		var sums []uint64
		if sums, failed = fold([]uint64{out.Bits[best]}, []uint64{source.Bits[n]}); failed == nil {
			out.Bits[best] = sums[0]
		}
	})
	return out, failed
}

// near keeps sums of places within 64 bits.
func near(n int64) bool { return n > -1<<40 && n < 1<<40 }

func mapped(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	c := i.Call("to_apply")
	for k, p := range c.Parameters() {
		if !single(p.Shape) || p.Shape.Type != in[k].Shape.Type {
			return out, fmt.Errorf("parameter %d of %s is %s, expected %s[]", k, c.Name, p.Shape, in[k].Shape.Type)
		}
	}
	if !single(c.Root.Shape) || c.Root.Shape.Type != i.Shape.Type {
		return out, fmt.Errorf("%s gives %s, expected %s[]", c.Name, c.Root.Shape, i.Shape.Type)
	}
	for n := range out.Bits {
		arguments := make([]Value, len(in))
		for k, p := range c.Parameters() {
			arguments[k] = Value{Shape: p.Shape, Bits: in[k].Bits[n : n+1]}
		}
		v, err := r.run(c, arguments)
		if err != nil {
			return out, err
		}
		out.Bits[n] = v.Bits[0]
	}
	return out, nil
}

// sorted is stable: what is equal stays in its order.
func sorted(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.outputs(i.Shape, len(in))
	if err != nil {
		return Value{}, err
	}
	dims := in[0].Shape.Dims
	along, err := i.Int("dimensions", 0)
	if err != nil {
		return Value{}, err
	}
	if along < 0 || along >= int64(len(dims)) {
		return Value{}, fmt.Errorf("sort along dimension %d of %s", along, in[0].Shape)
	}
	c := i.Call("to_apply")
	for k, p := range c.Parameters() {
		if !single(p.Shape) || p.Shape.Type != in[k/2].Shape.Type || !slices.Equal(in[k/2].Shape.Dims, dims) {
			return Value{}, fmt.Errorf("parameter %d of %s is %s, for %s", k, c.Name, p.Shape, in[k/2].Shape)
		}
	}
	if !single(c.Root.Shape) || c.Root.Shape.Type != "pred" {
		return Value{}, fmt.Errorf("%s gives %s, expected pred[]", c.Name, c.Root.Shape)
	}
	var failed error
	less := func(a, b int64) bool {
		arguments := make([]Value, 2*len(in))
		for k, p := range c.Parameters() {
			from := a
			if k%2 == 1 {
				from = b
			}
			arguments[k] = Value{Shape: p.Shape, Bits: in[k/2].Bits[from : from+1]}
		}
		if failed != nil {
			return false
		}
		var v Value
		if v, failed = r.run(c, arguments); failed != nil {
			return false
		}
		return v.Bits[0] != 0
	}
	lines := slices.Clone(dims)
	lines[along] = min(1, dims[along])
	step := int64(1)
	for _, d := range dims[along+1:] {
		step *= d
	}
	each(lines, func(_ int, index []int64) {
		first := at(dims, index)
		order := make([]int64, dims[along])
		for n := range order {
			order[n] = first + int64(n)*step
		}
		slices.SortStableFunc(order, func(a, b int64) int {
			switch {
			case less(a, b):
				return -1
			case less(b, a):
				return 1
			}
			return 0
		})
		for n, from := range order {
			for k := range out {
				out[k].Bits[first+int64(n)*step] = in[k].Bits[from]
			}
		}
	})
	return together(i.Shape, out), failed
}

// products adds x*y to a sum, in 32 bits for floats up to that width, the sum rounded at
// every step, and makes the result of the sum at the end.
func products(a, b, out hlo.Type) (add func(sum, x, y uint64) uint64, end func(uint64) uint64, err error) {
	x, y, to := kindOf(a), kindOf(b), kindOf(out)
	switch {
	case x == float && y == float && to == float:
		t := hlo.Type("f32")
		if a == "f64" || b == "f64" || out == "f64" {
			t = "f64"
		}
		return func(sum, x, y uint64) uint64 {
			// The product has its own rounding, so that no machine adds it without.
			product := float64(decode(a, x) * decode(b, y))
			return encode(t, decode(t, sum)+product)
		}, convertOf(t, out), nil
	case x == boolean && y == boolean && to == boolean:
		return func(sum, x, y uint64) uint64 { return sum | x&y }, func(b uint64) uint64 { return b }, nil
	case (x == signed || x == unsigned) && (y == signed || y == unsigned) && (to == signed || to == unsigned):
		l, r, m := convertOf(a, "s64"), convertOf(b, "s64"), mask(out)
		return func(sum, x, y uint64) uint64 { return sum + l(x)*r(y) }, func(b uint64) uint64 { return b & m }, nil
	}
	return nil, nil, fmt.Errorf("products of %s and %s to %s are not interpreted", a, b, out)
}

func dot(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	if _, sparse := i.Attribute("sparsity"); sparse || len(in) != 2 {
		return out, notInterpreted(i)
	}
	var lists [4][]int64
	for n, key := range []string{"lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims"} {
		if lists[n], err = i.Ints(key); err != nil {
			return out, err
		}
	}
	add, end, err := products(in[0].Shape.Type, in[1].Shape.Type, i.Shape.Type)
	if err != nil {
		return out, err
	}
	// outer[s] are the places of one side's first elements for each element of the
	// result, inner[s] how far each contracted one is from there.
	var outer, inner [2][]int64
	contracted := make([]int64, len(lists[2]))
	for k, d := range lists[2] {
		contracted[k] = in[0].Shape.Dims[d]
	}
	free := len(lists[0]) // where the side's own dimensions begin in the result
	for side, v := range in {
		dims := v.Shape.Dims
		stride := make([]int64, len(dims))
		for d, s := len(dims)-1, int64(1); d >= 0; d-- {
			stride[d] = s
			s *= dims[d]
		}
		step := make([]int64, len(i.Shape.Dims)) // for each dimension of the result
		for k, d := range lists[side] {
			step[k] = stride[d]
		}
		for d := range dims {
			if !slices.Contains(lists[side], int64(d)) && !slices.Contains(lists[2+side], int64(d)) {
				step[free] = stride[d]
				free++
			}
		}
		each(i.Shape.Dims, func(_ int, index []int64) {
			place := int64(0)
			for d, x := range index {
				place += x * step[d]
			}
			outer[side] = append(outer[side], place)
		})
		each(contracted, func(_ int, index []int64) {
			place := int64(0)
			for k, x := range index {
				place += x * stride[lists[2+side][k]]
			}
			inner[side] = append(inner[side], place)
		})
	}
	if err := r.spend(uint64(len(out.Bits)) * uint64(len(inner[0]))); err != nil {
		return out, err
	}
	for n := range out.Bits {
		sum := uint64(0)
		for k := range inner[0] {
			sum = add(sum, in[0].Bits[outer[0][n]+inner[0][k]], in[1].Bits[outer[1][n]+inner[1][k]])
		}
		out.Bits[n] = end(sum)
	}
	return out, nil
}

func convolution(r *machine, i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return out, err
	}
	input, kernel, output, _, err := i.DimLabels()
	if err != nil {
		return out, err
	}
	window, err := i.Window()
	if err != nil {
		return out, err
	}
	features, err := i.Int("feature_group_count", 1)
	if err != nil {
		return out, err
	}
	batches, err := i.Int("batch_group_count", 1)
	if err != nil {
		return out, err
	}
	add, end, err := products(in[0].Shape.Type, in[1].Shape.Type, i.Shape.Type)
	if err != nil {
		return out, err
	}
	x, k := in[0].Shape.Dims, in[1].Shape.Dims
	where := func(labels string, letter byte) int { return strings.IndexByte(labels, letter) }
	inF, inB := where(input, 'f'), where(input, 'b')
	kerI, kerO := where(kernel, 'i'), where(kernel, 'o')
	outF, outB := where(output, 'f'), where(output, 'b')
	made := i.Shape.Dims[outF] // output features
	if strings.ContainsRune(input+kernel+output, '?') || made%features != 0 || made%batches != 0 || x[inB]%batches != 0 {
		return out, notInterpreted(i)
	}
	taps := slices.Clone(k)
	taps[kerO] = min(1, k[kerO])
	steps := uint64(len(out.Bits))
	for _, d := range taps {
		steps *= uint64(d)
	}
	if err := r.spend(steps); err != nil {
		return out, err
	}
	source, weight := make([]int64, len(x)), make([]int64, len(k))
	each(i.Shape.Dims, func(n int, index []int64) {
		sum := uint64(0)
		each(taps, func(_ int, tap []int64) {
			copy(weight, tap)
			weight[kerO] = index[outF]
			source[inF] = index[outF]/(made/features)*k[kerI] + tap[kerI]
			source[inB] = index[outB] + index[outF]/(made/batches)*(x[inB]/batches)
			for d, w := range window {
				digit := byte('0' + d)
				spot := where(kernel, digit)
				p := index[where(output, digit)]*w.Stride + tap[spot]*w.Dilation - w.Low
				if p < 0 || p%w.BaseDilation != 0 || p/w.BaseDilation >= x[where(input, digit)] {
					return
				}
				source[where(input, digit)] = p / w.BaseDilation
				if w.Reversed {
					weight[spot] = w.Size - 1 - tap[spot]
				}
			}
			sum = add(sum, in[0].Bits[at(x, source)], in[1].Bits[at(k, weight)])
		})
		out.Bits[n] = end(sum)
	})
	return out, nil
}
