package verify

// Shape rules of operations that move, cut and combine arrays.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// dimensions reads the attribute of that key and checks that each is a dimension
// of an array of the given rank, and there once.
func dimensions(i *hlo.Instruction, key string, rank int) ([]int64, string) {
	list, err := i.Ints(key)
	if err != nil {
		return nil, key + ": expected numbers in braces"
	}
	for n, d := range list {
		if d < 0 || d >= int64(rank) || slices.Contains(list[:n], d) {
			return nil, fmt.Sprintf("%s=%s: each has to be a dimension below %d, once", key, dims(list), rank)
		}
	}
	return list, ""
}

// oneEach is the attribute dimensions where it has a dimension below rank for each of the
// operand's.
func oneEach(i *hlo.Instruction, rank int) ([]int64, string) {
	list, p := dimensions(i, "dimensions", rank)
	if n := len(i.Operands[0].Shape.Dims); p == "" && len(list) != n {
		return nil, fmt.Sprintf("dimensions=%s for an operand of %d dimensions", dims(list), n)
	}
	return list, p
}

func broadcastRule(i *hlo.Instruction) string {
	from := i.Operands[0].Shape.Dims
	to, p := oneEach(i, len(i.Shape.Dims))
	for n, d := range to {
		if !hlo.SameDim(from[n], i.Shape.Dims[d]) {
			return fmt.Sprintf("dimension %d of the operand has %d, dimension %d of the result %d", n, from[n], d, i.Shape.Dims[d])
		}
	}
	return p
}

func reshapeRule(i *hlo.Instruction) string {
	if o := i.Operands[0].Shape; !sameType(o.Type, i.Shape.Type) {
		return fmt.Sprintf("reshape of %s is %s, expected the same type", short(o), short(i.Shape))
	}
	a, err1 := i.Operands[0].Shape.Elems()
	b, err2 := i.Shape.Elems()
	if err1 == nil && err2 == nil && a != b {
		return fmt.Sprintf("reshape of %s is %s: %d and %d elements", short(i.Operands[0].Shape), short(i.Shape), a, b)
	}
	return ""
}

func transposeRule(i *hlo.Instruction) string {
	from := i.Operands[0].Shape.Dims
	order, p := oneEach(i, len(from))
	if p != "" {
		return p
	}
	want := make([]int64, len(from))
	for n, d := range order {
		want[n] = from[d]
	}
	return result(i, want)
}

func reverseRule(i *hlo.Instruction) string {
	if _, p := dimensions(i, "dimensions", len(i.Shape.Dims)); p != "" {
		return p
	}
	return result(i, i.Operands[0].Shape.Dims)
}

func iotaRule(i *hlo.Instruction) string {
	if !i.Shape.IsArray() || len(i.Shape.Dims) == 0 {
		return fmt.Sprintf("iota is %s, expected an array with dimensions", short(i.Shape))
	}
	list, p := dimensions(i, "iota_dimension", len(i.Shape.Dims))
	if p == "" && len(list) != 1 {
		p = "iota_dimension is missing"
	}
	return p
}

func concatenateRule(i *hlo.Instruction) string {
	if len(i.Operands) == 0 {
		return "concatenate of nothing"
	}
	rank := len(i.Shape.Dims)
	along, p := dimensions(i, "dimensions", rank)
	if p != "" || len(along) != 1 {
		return p + " (concatenate has one dimension)"
	}
	want := slices.Clone(i.Operands[0].Shape.Dims)
	for n, o := range i.Operands {
		if len(o.Shape.Dims) != rank {
			return fmt.Sprintf("operand %d is %s, the result %s", n, short(o.Shape), short(i.Shape))
		}
		for d, size := range o.Shape.Dims {
			switch at := int64(d) == along[0]; {
			case at && (size < 0 || want[d] < 0):
				want[d] = -1
			case at && n > 0:
				want[d] += size
			case !at && !hlo.SameDim(size, want[d]):
				return fmt.Sprintf("operand %d is %s, operand 0 %s", n, short(o.Shape), short(i.Operands[0].Shape))
			}
		}
	}
	return result(i, want)
}

func sliceRule(i *hlo.Instruction) string {
	from := i.Operands[0].Shape.Dims
	cut, err := i.Slices()
	if err != nil {
		return "slice: expected {[start:limit:stride], ...}"
	}
	if len(cut) != len(from) {
		return fmt.Sprintf("slice of %d dimensions of %s", len(cut), short(i.Operands[0].Shape))
	}
	want := make([]int64, len(from))
	for d, s := range cut {
		if s.Start < 0 || s.Limit < s.Start || s.Stride < 1 || from[d] >= 0 && s.Limit > from[d] {
			return fmt.Sprintf("slice [%d:%d:%d] of dimension %d, which has %d", s.Start, s.Limit, s.Stride, d, from[d])
		}
		want[d] = s.Out()
	}
	return result(i, want)
}

func padRule(i *hlo.Instruction) string {
	from := i.Operands[0].Shape.Dims
	pad, err := i.Padding()
	if err != nil || len(pad) != len(from) {
		return fmt.Sprintf("padding: expected L_H or L_H_I for each of %d dimensions", len(from))
	}
	if len(i.Operands[1].Shape.Dims) > 0 {
		return fmt.Sprintf("operand 1 is %s, expected one element", short(i.Operands[1].Shape))
	}
	want := make([]int64, len(from))
	for d, p := range pad {
		if want[d] = -1; from[d] >= 0 {
			out, ok := p.Out(from[d])
			if !ok {
				return fmt.Sprintf("dimension %d of %d padded by %d_%d_%d", d, from[d], p.Low, p.High, p.Interior)
			}
			want[d] = out
		}
	}
	return result(i, want)
}

func dynamicSliceRule(i *hlo.Instruction) string {
	if len(i.Operands) < 1 {
		return "dynamic-slice of nothing"
	}
	if p := arrays(i); p != "" {
		return p
	}
	from := i.Operands[0].Shape
	sizes, err := i.Ints("dynamic_slice_sizes")
	if err != nil || len(sizes) != len(from.Dims) {
		return fmt.Sprintf("dynamic_slice_sizes: expected a number for each of %d dimensions", len(from.Dims))
	}
	for d, n := range sizes {
		if n < 0 || from.Dims[d] >= 0 && n > from.Dims[d] {
			return fmt.Sprintf("slice of %d of dimension %d, which has %d", n, d, from.Dims[d])
		}
	}
	if p := starts(i, 1, len(from.Dims)); p != "" {
		return p
	}
	return result(i, sizes)
}

// starts checks the operands that say where a slice begins: one number for each
// dimension, or, before 2019, one vector for all.
func starts(i *hlo.Instruction, first, rank int) string {
	got := i.Operands[first:]
	if len(got) == 1 && len(got[0].Shape.Dims) == 1 {
		return ""
	}
	if len(got) != rank {
		return fmt.Sprintf("%d starts for %d dimensions", len(got), rank)
	}
	for n, o := range got {
		if len(o.Shape.Dims) > 0 || floating(o.Shape.Type) {
			return fmt.Sprintf("operand %d is %s, expected a whole number", first+n, short(o.Shape))
		}
	}
	return ""
}

func dynamicUpdateSliceRule(i *hlo.Instruction) string {
	if len(i.Operands) < 2 {
		return fmt.Sprintf("%s has %d operands, expected 2 and the starts", i.Opcode, len(i.Operands))
	}
	if p := arrays(i); p != "" {
		return p
	}
	into, update := i.Operands[0].Shape, i.Operands[1].Shape
	if len(into.Dims) != len(update.Dims) {
		return fmt.Sprintf("update %s into %s", short(update), short(into))
	}
	for d, n := range update.Dims {
		if n > into.Dims[d] && into.Dims[d] >= 0 {
			return fmt.Sprintf("update %s into %s", short(update), short(into))
		}
	}
	if p := starts(i, 2, len(into.Dims)); p != "" {
		return p
	}
	return result(i, into.Dims)
}

func dotRule(i *hlo.Instruction) string {
	if n := len(i.Operands); n < 2 {
		return fmt.Sprintf("dot of %d operands, expected 2", n)
	}
	if _, sparse := i.Attribute("sparsity"); sparse || len(i.Operands) != 2 {
		return ""
	}
	if p := arrays(i); p != "" {
		return p
	}
	l, r := i.Operands[0].Shape.Dims, i.Operands[1].Shape.Dims
	var lists [4][]int64
	for n, key := range []string{"lhs_batch_dims", "rhs_batch_dims", "lhs_contracting_dims", "rhs_contracting_dims"} {
		var p string
		if lists[n], p = dimensions(i, key, len([][]int64{l, r}[n%2])); p != "" {
			return p
		}
	}
	var want []int64
	for n, key := range []string{"batch", "contracting"} {
		lhs, rhs := lists[2*n], lists[2*n+1]
		if len(lhs) != len(rhs) {
			return fmt.Sprintf("%s dimensions %s and %s", key, dims(lhs), dims(rhs))
		}
		for k, d := range lhs {
			if !hlo.SameDim(l[d], r[rhs[k]]) {
				return fmt.Sprintf("%s dimension %d of the left has %d, %d of the right %d", key, d, l[d], rhs[k], r[rhs[k]])
			}
			if n == 0 {
				want = append(want, l[d])
			}
		}
	}
	for n, side := range [][]int64{l, r} {
		for d, size := range side {
			if !slices.Contains(lists[n], int64(d)) && !slices.Contains(lists[2+n], int64(d)) {
				want = append(want, size)
			}
		}
	}
	return result(i, want)
}

func convolutionRule(i *hlo.Instruction) string {
	input, kernel, output, ok, err := i.DimLabels()
	window, err2 := i.Window()
	features, err3 := i.Int("feature_group_count", 1)
	batches, err4 := i.Int("batch_group_count", 1)
	if err = cmp.Or(err, err2, err3, err4); !ok || err != nil || features < 1 || batches < 1 {
		return "convolution: expected dim_labels, window and group counts of 1 or more"
	}
	in, ker, out := i.Operands[0].Shape.Dims, i.Operands[1].Shape.Dims, i.Shape.Dims
	if len(in) != len(input) || len(ker) != len(input) || len(out) != len(input) {
		return "dim_labels has another number of dimensions than the shapes"
	}
	if strings.ContainsRune(input+kernel+output, '?') {
		return ""
	}
	at := func(labels string, letter byte) int { return strings.IndexByte(labels, letter) }
	if f := in[at(input, 'f')]; f >= 0 && f != ker[at(kernel, 'i')]*features {
		return fmt.Sprintf("%d input features, the kernel has %d in %d groups", f, ker[at(kernel, 'i')], features)
	}
	want := make([]int64, len(out))
	want[at(output, 'f')] = ker[at(kernel, 'o')]
	if want[at(output, 'b')] = in[at(input, 'b')]; want[at(output, 'b')] > 0 {
		want[at(output, 'b')] /= batches
	}
	if len(window) != len(in)-2 {
		return fmt.Sprintf("a window of %d dimensions for %d spatial ones", len(window), len(in)-2)
	}
	for d, w := range window {
		digit := byte('0' + d)
		if !hlo.SameDim(w.Size, ker[at(kernel, digit)]) {
			return fmt.Sprintf("the window has %d, the kernel %d", w.Size, ker[at(kernel, digit)])
		}
		if want[at(output, digit)], ok = placesOf(w, in[at(input, digit)]); !ok {
			return noWindow
		}
	}
	return result(i, want)
}

const noWindow = "the window is none: sizes, strides and dilations are 1 or more"

// placesOf is how many places a window has over a dimension, and -1 for one without bound.
func placesOf(w hlo.WindowDim, n int64) (places int64, ok bool) {
	if n < 0 {
		return -1, true
	}
	return w.Out(n)
}

// results are an operation's parts: those of a tuple, or the one.
func results(s *hlo.Shape) []*hlo.Shape {
	if s.Type == hlo.Tuple {
		return s.Elements
	}
	return []*hlo.Shape{s}
}

// applies checks that to_apply has n parameters.
func applies(i *hlo.Instruction, n int) string {
	if c := i.Call("to_apply"); c == nil || len(c.Parameters()) != n {
		return fmt.Sprintf("to_apply: expected a computation of %d parameters", n)
	}
	return ""
}

// likeOperands checks that each result has the dimensions of its operand.
func likeOperands(i *hlo.Instruction) string {
	for k, s := range results(i.Shape) {
		if o := i.Operands[k].Shape; !o.IsArray() || !s.IsArray() || !hlo.SameDims(o.Dims, s.Dims) {
			return fmt.Sprintf("operand %d is %s, its result %s: expected the same dimensions", k, short(o), short(s))
		}
	}
	return ""
}

func reduceRule(i *hlo.Instruction) string {
	if p := pairs(i); p != "" {
		return p
	}
	from := i.Operands[0].Shape
	over, p := dimensions(i, "dimensions", len(from.Dims))
	if p != "" {
		return p
	}
	var want []int64
	for d, size := range from.Dims {
		if !slices.Contains(over, int64(d)) {
			want = append(want, size)
		}
	}
	return folded(i, want)
}

func pairs(i *hlo.Instruction) string {
	if n := len(i.Operands); n == 0 || n%2 != 0 {
		return fmt.Sprintf("%s has %d operands, expected arrays and as many initial values", i.Opcode, n)
	}
	return ""
}

// folded checks what reduce and reduce-window share: n arrays of the same
// dimensions, n single values, n results, a computation of 2n parameters.
func folded(i *hlo.Instruction, want []int64) string {
	n := len(i.Operands) / 2
	if p := applies(i, 2*n); p != "" {
		return p
	}
	for k, o := range i.Operands {
		switch {
		case !o.Shape.IsArray():
			return fmt.Sprintf("operand %d is %s, expected an array", k, short(o.Shape))
		case k < n && !hlo.SameDims(o.Shape.Dims, i.Operands[0].Shape.Dims):
			return fmt.Sprintf("operand %d is %s, operand 0 %s: expected the same dimensions", k, short(o.Shape), short(i.Operands[0].Shape))
		case k >= n && len(o.Shape.Dims) > 0:
			return fmt.Sprintf("operand %d is %s, expected one element", k, short(o.Shape))
		}
	}
	got := results(i.Shape)
	if len(got) != n {
		return fmt.Sprintf("%s of %d arrays is %s", i.Opcode, n, short(i.Shape))
	}
	for _, s := range got {
		if !s.IsArray() || !hlo.SameDims(s.Dims, want) {
			return fmt.Sprintf("result %s, expected dimensions %s", short(s), dims(want))
		}
	}
	return ""
}

func reduceWindowRule(i *hlo.Instruction) string {
	if p := pairs(i); p != "" {
		return p
	}
	from := i.Operands[0].Shape
	window, err := i.Window()
	if err != nil || len(window) != len(from.Dims) {
		return fmt.Sprintf("window: expected %d dimensions", len(from.Dims))
	}
	want := make([]int64, len(window))
	for d, w := range window {
		var ok bool
		if want[d], ok = placesOf(w, from.Dims[d]); !ok {
			return noWindow
		}
	}
	return folded(i, want)
}

func mapRule(i *hlo.Instruction) string {
	if p := applies(i, len(i.Operands)); p != "" {
		return p
	}
	for n, o := range i.Operands {
		if !o.Shape.IsArray() || !hlo.SameDims(o.Shape.Dims, i.Shape.Dims) {
			return fmt.Sprintf("operand %d is %s, the result %s: expected the same dimensions", n, short(o.Shape), short(i.Shape))
		}
	}
	return ""
}

func scatterRule(i *hlo.Instruction) string {
	n := len(i.Operands) / 2
	if len(i.Operands)%2 == 0 || len(results(i.Shape)) != n {
		return fmt.Sprintf("scatter of %d operands is %s, expected arrays, indices and as many updates", len(i.Operands), short(i.Shape))
	}
	return likeOperands(i)
}

func sortRule(i *hlo.Instruction) string {
	n := len(i.Operands)
	if n == 0 || len(results(i.Shape)) != n {
		return fmt.Sprintf("sort of %d operands is %s", n, short(i.Shape))
	}
	if p := applies(i, 2*n); p != "" {
		return p
	}
	return likeOperands(i)
}
