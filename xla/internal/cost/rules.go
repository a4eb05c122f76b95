package cost

// Costs of each opcode.

import (
	"cmp"
	"errors"
	"math"
	"math/bits"
	"strings"

	"gpumem/xla/internal/hlo"
)

// transcendental are the opcodes that count as transcendental functions, one for
// each element, and not as flops.
var transcendental = map[hlo.Opcode]bool{
	"acos": true, "acosh": true, "asin": true, "asinh": true, "atan2": true, "atanh": true, "cbrt": true, "cosine": true, "cosh": true,
	"erf": true, "exponential": true, "exponential-minus-one": true, "log": true, "log-plus-one": true, "logistic": true, "power": true,
	"rsqrt": true, "sine": true, "sinh": true, "sqrt": true, "tan": true, "tanh": true,
}

// free are the opcodes that no code is made for: they forward what they have or
// only order others.
var free = map[hlo.Opcode]bool{
	hlo.Parameter: true, hlo.Constant: true, hlo.GetTupleElement: true, hlo.Bitcast: true, hlo.Domain: true, hlo.AddDependency: true,
	hlo.OptBarrier: true, "after-all": true, "partition-id": true, "replica-id": true, "get-dimension-size": true,
}

func (a *Analysis) instruction(i *hlo.Instruction) Cost {
	if free[i.Opcode] || i.Opcode.IsAsyncDone() || i.Opcode.IsAsyncUpdate() {
		return Cost{}
	}
	switch i.Opcode {
	case hlo.Call, hlo.AsyncStart:
		return a.costOfCalled(i)
	case hlo.While:
		return a.while(i)
	case hlo.Conditional:
		var most Cost
		for _, c := range i.Branches() {
			most = larger(most, a.sums[c])
		}
		return most
	case hlo.Fusion:
		return a.fusion(i)
	case hlo.CustomCall:
		target, _ := i.Attribute("custom_call_target")
		if isMarker(strings.Trim(target, `"`)) {
			return Cost{}
		}
		a.Unknown = append(a.Unknown, i)
	}
	if len(i.Called()) > 0 && i.Opcode.IsAsyncStart() {
		return a.costOfCalled(i)
	}
	c := Cost{Bytes: a.bytesMoved(i)}
	a.addComputed(i, &c)
	return a.timed(c)
}

// isMarker reports whether a custom call only carries a hint for the partitioner or
// the layouts: the compiler takes it out.
func isMarker(target string) bool {
	switch target {
	case "Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "LayoutConstraint":
		return true
	}
	return strings.HasPrefix(target, "xla.sdy.")
}

func (a *Analysis) costOfCalled(i *hlo.Instruction) (sum Cost) {
	for _, c := range i.Called() {
		sum = plus(sum, a.sums[c])
	}
	return sum
}

// addComputed adds an instruction's flops and transcendentals.
func (a *Analysis) addComputed(i *hlo.Instruction, c *Cost) {
	out := a.elems(i.Shape)
	// inner adds n runs of what the instruction calls by that attribute.
	inner := func(key string, n uint64) {
		if callee := i.Call(key); callee != nil {
			c.Flops = add(c.Flops, mul(a.sums[callee].Flops, n))
			c.Transcendentals = add(c.Transcendentals, mul(a.sums[callee].Transcendentals, n))
		}
	}
	operand := func(n int) uint64 {
		if n >= len(i.Operands) {
			return 0
		}
		return a.elems(i.Operands[n].Shape)
	}
	// kept is the elements of the result, of several the first.
	kept := func() uint64 { return a.elems(i.Shape.At(make([]int, min(1, len(i.Shape.Elements)))...)) }
	switch {
	case transcendental[i.Opcode]:
		c.Transcendentals = out
		return
	case i.Opcode == hlo.Copy:
		return
	case i.Opcode.Unary() || i.Opcode.Binary():
		c.Flops = out
		return
	}
	switch i.Opcode {
	case hlo.Select, "clamp", hlo.AllReduce, "all-reduce-start":
		c.Flops = out
	case hlo.Rng, hlo.RngBitGenerator:
		c.Transcendentals = out
	case hlo.Map:
		inner("to_apply", out)
	case hlo.Dot:
		c.Flops = a.dot(i, out)
	case hlo.Convolution:
		c.Flops = a.convolution(i)
	case hlo.Reduce:
		in := operand(0)
		inner("to_apply", in-min(kept(), in))
	case hlo.ReduceWindow:
		inner("to_apply", windowApplications(i, a.window(i), kept()))
	case hlo.SelectAndScatter:
		source := operand(1)
		inner("select", mul(source, windowElements(a.window(i))-1))
		inner("scatter", source)
	case hlo.Scatter:
		inner("to_apply", operand(len(i.Operands)/2+1))
	case hlo.Sort:
		if n := operand(0); n > 0 {
			c.Flops = mul(n, uint64(bits.Len64(n-1)))
		}
	case "fft":
		c.Flops = mul(8, operand(0)) // four multiplications and additions a complex one
		for _, l := range a.ints(i, "fft_length") {
			c.Flops = mul(c.Flops, uint64(bits.Len64(uint64(max(l, 1)))-1))
		}
	case hlo.TriangularSolve, "cholesky":
		n, width := operand(len(i.Operands)-1), uint64(1)
		if d := i.Operands[0].Shape.Dims; len(d) > 0 {
			width = uint64(max(d[len(d)-1], 0))
		}
		if c.Flops = mul(n, width, 2); i.Opcode == "cholesky" {
			c.Flops = mul(n, width) / 3
		}
	}
}

// windowElements is how many elements a window has.
func windowElements(window []hlo.WindowDim) uint64 {
	n := uint64(1)
	for _, w := range window {
		n = mul(n, uint64(max(w.Size, 1)))
	}
	return n
}

// windowApplications is how often reduce-window applies its function: once less than the
// window has elements for each of the result. One whose window sees the
// whole dimension from every place is a reduce and a broadcast in disguise.
func windowApplications(i *hlo.Instruction, window []hlo.WindowDim, out uint64) uint64 {
	wide, padded, whole := 0, 0, -1
	for d, w := range window {
		if w.Size != 1 {
			wide++
		}
		if w.Low != 0 || w.High != 0 {
			padded++
		}
		centered := w.Low > 0 && w.Low == w.High && w.Low < math.MaxInt64/4 && w.Size == 2*w.Low+1
		if whole < 0 && centered {
			whole = d
		}
	}
	if wide == 1 && padded == 1 && whole >= 0 && i.Shape.IsArray() && window[whole].Low == i.Shape.Dims[whole]-1 {
		n := uint64(i.Shape.Dims[whole])
		return add(out/n, n-1)
	}
	return mul(windowElements(window)-1, out)
}

// dot is two flops for each element of the result and each of what is contracted.
func (a *Analysis) dot(i *hlo.Instruction, out uint64) uint64 {
	flops := mul(2, out)
	for _, d := range a.ints(i, "lhs_contracting_dims") {
		// Of a sparse dot the dimensions are not verified.
		if l := i.Operands[0].Shape.Dims; d >= 0 && d < int64(len(l)) {
			flops = mul(flops, uint64(max(l[d], 0)))
		}
	}
	return flops
}

// convolution is two flops for each pair of an element of the result and one of
// the kernel that lies on the input: not on padding and not between dilated elements.
func (a *Analysis) convolution(i *hlo.Instruction) uint64 {
	input, kernel, output, _, err := i.DimLabels()
	features, err2 := i.Int("feature_group_count", 1)
	batches, err3 := i.Int("batch_group_count", 1)
	window := a.window(i)
	if a.fail(cmp.Or(err, err2, err3)); a.err != nil {
		return 0
	}
	size := func(s *hlo.Shape, labels string, letter byte) uint64 {
		return uint64(max(s.Dims[strings.IndexByte(labels, letter)], 0))
	}
	in, ker := i.Operands[0].Shape, i.Operands[1].Shape
	flops := mul(2, size(in, input, 'f')/uint64(features), size(i.Shape, output, 'f'), size(in, input, 'b')/uint64(batches))
	for d, w := range window {
		digit := byte('0' + d)
		flops = mul(flops, taps(w, int64(size(in, input, digit)), int64(size(ker, kernel, digit)), int64(size(i.Shape, output, digit))))
	}
	return flops
}

// countable is how many places of a window are gone through one by one.
const countable = 1 << 22

// taps is how many pairs of a place in the result and one in the kernel have an
// element of the input under them. Where both have more than a few
// million places all pairs count.
func taps(w hlo.WindowDim, in, kernel, out int64) (n uint64) {
	if min(kernel, out) > countable || in > 1<<40 || kernel > 1<<40 || out > 1<<40 ||
		w.Stride > 1<<20 || w.Dilation > 1<<20 || w.BaseDilation > 1<<20 || w.Low > 1<<60 || w.Low < -1<<60 {
		return mul(uint64(kernel), uint64(out))
	}
	// The place o of the result and k of the kernel meet at o*Stride + k*Dilation - Low,
	// which has to be a multiple of BaseDilation from 0 to (in-1)*BaseDilation. Going
	// through the shorter side, count what fits on the longer one.
	short, long, by, step := kernel, out, w.Dilation, w.Stride
	if out < kernel {
		short, long, by, step = out, kernel, w.Stride, w.Dilation
	}
	base := w.BaseDilation
	// first has the least x for which x*step leaves that remainder, and -1. The
	// others follow every round.
	round := base / gcd(step, base)
	first := make([]int64, base)
	for r := range first {
		first[r] = -1
	}
	for x := range round {
		first[x*step%base] = x
	}
	for k := range short {
		start := k*by - w.Low
		low := int64(0)
		if start < 0 {
			low = (-start + step - 1) / step
		}
		last := (in-1)*base - start
		x := first[((-start)%base+base)%base]
		if in == 0 || last < 0 || x < 0 {
			continue
		}
		high := min(long-1, last/step)
		if x < low {
			x += (low - x + round - 1) / round * round
		}
		if x <= high {
			n = add(n, uint64((high-x)/round)+1)
		}
	}
	return n
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// bytesMoved is what an instruction reads and writes.
func (a *Analysis) bytesMoved(i *hlo.Instruction) uint64 {
	switch o := i.Operands; i.Opcode {
	case hlo.TupleOp:
		n, err := i.Shape.Bytes()
		a.fail(err)
		return n
	case hlo.Slice:
		return a.bytes(i.Shape, i.Shape)
	case hlo.DynamicSlice:
		if len(o) < 2 {
			return a.bytes(i.Shape, i.Shape)
		}
		return a.bytes(i.Shape, i.Shape, o[1].Shape)
	case hlo.Gather:
		return a.bytes(i.Shape, i.Shape, o[1].Shape)
	case hlo.DynamicUpdateSlice:
		if len(o) < 3 {
			return a.bytes(o[1].Shape, o[1].Shape)
		}
		return a.bytes(o[1].Shape, o[1].Shape, o[2].Shape)
	case hlo.Scatter:
		list := []*hlo.Shape{o[len(o)/2].Shape}
		for _, update := range o[len(o)/2+1:] {
			list = append(list, update.Shape, update.Shape, update.Shape)
		}
		return a.bytes(list...)
	case hlo.Transpose:
		if isBitcast(i) {
			return 0
		}
	case hlo.CopyStart:
		if len(o) > 0 {
			return a.bytes(o[0].Shape, o[0].Shape)
		}
	case hlo.TriangularSolve:
		return add(a.bytes(o[0].Shape)/2, a.bytes(i.Shape, o[1].Shape))
	case "cholesky":
		return a.bytes(o[0].Shape)
	case hlo.Infeed:
		return a.bytes(i.Shape)
	}
	sum := a.bytes(i.Shape)
	for _, o := range i.Operands {
		sum = add(sum, a.bytes(o.Shape))
	}
	return sum
}

// isBitcast reports whether a transpose only renames dimensions: the layouts have
// them in the same order, and no tiles.
func isBitcast(i *hlo.Instruction) bool {
	renamed, err := i.Ints("dimensions")
	from, known := i.Operands[0].Shape.MinorToMajor()
	to, known2 := i.Shape.MinorToMajor()
	tiled := strings.Contains(i.Operands[0].Shape.Layout+i.Shape.Layout, ":")
	if err != nil || tiled || !known || !known2 {
		return false
	}
	if len(from) != len(renamed) || len(to) != len(renamed) {
		return false
	}
	for n, d := range to {
		if renamed[d] != int64(from[n]) {
			return false
		}
	}
	return true
}

// What follows notes the first error in a.err, and goes on with 0.

func (a *Analysis) fail(err error) {
	if a.err == nil {
		a.err = err
	}
}

func (a *Analysis) ints(i *hlo.Instruction, key string) []int64 {
	list, err := i.Ints(key)
	a.fail(err)
	return list
}

func (a *Analysis) window(i *hlo.Instruction) []hlo.WindowDim {
	window, err := i.Window()
	a.fail(err)
	return window
}

// elems is how many elements all arrays of a shape have.
func (a *Analysis) elems(s *hlo.Shape) (sum uint64) {
	for _, e := range s.Elements {
		sum = add(sum, a.elems(e))
	}
	if s.IsArray() {
		return a.limitToMax(s.Elems())
	}
	return sum
}

// bytes is what all arrays of some shapes take.
func (a *Analysis) bytes(list ...*hlo.Shape) (sum uint64) {
	for _, s := range list {
		n := uint64(0)
		if s.Type == hlo.Tuple {
			n = a.bytes(s.Elements...)
		} else {
			n = a.limitToMax(s.Bytes())
		}
		sum = add(sum, n)
	}
	return sum
}

// limitToMax is the largest number in place of one that is too large.
func (a *Analysis) limitToMax(n uint64, err error) uint64 {
	if errors.Is(err, hlo.ErrTooLarge) {
		return math.MaxUint64
	}
	a.fail(err)
	return n
}
