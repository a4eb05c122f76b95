package verify

// Shape rules by opcode. Layouts are not compared, a dimension without bound (?) agrees
// with any, and arithmetic may mix f32 and bf16: XLA's verifier allows mixed precision
// after optimization.

import (
	"fmt"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// checkShapes is what is wrong with the shapes of an instruction, its operands
// and what it calls: empty if nothing is, or if the opcode's rule is not here.
func checkShapes(i *hlo.Instruction) string {
	want, counted := operandCounts[i.Opcode]
	rule, ruled := shapeRules[i.Opcode]
	switch {
	case i.Opcode.Unary():
		want, counted = 1, true
	case i.Opcode.Binary():
		want, counted = 2, true
	}
	if counted && len(i.Operands) != want {
		return fmt.Sprintf("%s has %d operands, expected %d", i.Opcode, len(i.Operands), want)
	}
	if !ruled && (i.Opcode.Unary() || i.Opcode.Binary()) {
		rule = elementwise
	}
	if ofArrays[i.Opcode] {
		if p := arrays(i); p != "" {
			return p
		}
	}
	if rule == nil {
		return ""
	}
	return rule(i)
}

// ofArrays are the opcodes whose operands and result are arrays. The rules of others look
// for themselves.
var ofArrays = map[hlo.Opcode]bool{
	hlo.Broadcast: true, "clamp": true, hlo.Compare: true, hlo.Concatenate: true, hlo.Convolution: true, hlo.Pad: true,
	hlo.Reshape: true, hlo.Reverse: true, hlo.Slice: true, hlo.Transpose: true,
}

// operandCounts are how many operands an opcode has.
var operandCounts = func() map[hlo.Opcode]int {
	counts := map[hlo.Opcode]int{}
	for n, list := range [][]hlo.Opcode{
		{hlo.Parameter, hlo.Constant, hlo.Iota, "partition-id", "replica-id", hlo.RngGetAndUpdateState},
		{hlo.Bitcast, hlo.Broadcast, hlo.GetTupleElement, hlo.OptBarrier, hlo.Reshape, hlo.Reverse, hlo.Slice, hlo.Transpose, hlo.While,
			"get-dimension-size", "cholesky"},
		{hlo.Pad, hlo.Convolution, hlo.AddDependency, hlo.SetDimensionSize, hlo.TriangularSolve, hlo.Gather},
		{hlo.Select, "clamp", hlo.SelectAndScatter},
	} {
		for _, o := range list {
			counts[o] = n
		}
	}
	return counts
}()

// shapeRules are the rules of single opcodes. Other element-wise opcodes have elementwise.
var shapeRules = map[hlo.Opcode]func(*hlo.Instruction) string{
	// The type or the dimensions of these change.
	"bitcast-convert": nil, "real": nil, "imag": nil, "complex": nil,
	hlo.AddDependency:      func(i *hlo.Instruction) string { return sameShape(i, i.Operands[0].Shape) },
	hlo.AllReduce:          allReduce,
	hlo.Broadcast:          broadcastRule,
	hlo.Call:               func(i *hlo.Instruction) string { return called(i.Call("to_apply"), i.Operands, i.Shape) },
	"clamp":                clampRule,
	hlo.Compare:            compareRule,
	hlo.Concatenate:        concatenateRule,
	hlo.Conditional:        conditionalRule,
	hlo.Convolution:        convolutionRule,
	hlo.Dot:                dotRule,
	hlo.DynamicSlice:       dynamicSliceRule,
	hlo.DynamicUpdateSlice: dynamicUpdateSliceRule,
	hlo.Fusion:             func(i *hlo.Instruction) string { return called(i.Call("calls"), i.Operands, i.Shape) },
	hlo.GetTupleElement:    getTupleElementRule,
	hlo.Iota:               iotaRule,
	hlo.Map:                mapRule,
	hlo.OptBarrier:         func(i *hlo.Instruction) string { return sameShape(i, i.Operands[0].Shape) },
	hlo.Pad:                padRule,
	hlo.Reduce:             reduceRule,
	hlo.ReduceWindow:       reduceWindowRule,
	hlo.Reshape:            reshapeRule,
	hlo.Reverse:            reverseRule,
	hlo.Scatter:            scatterRule,
	hlo.Select:             selectRule,
	hlo.Slice:              sliceRule,
	hlo.Sort:               sortRule,
	hlo.Transpose:          transposeRule,
	hlo.TupleOp:            tupleRule,
	hlo.While:              whileRule,
}

// floating reports whether a type is a real floating point one.
func floating(t hlo.Type) bool { return strings.HasPrefix(string(t), "f") || t == "bf16" }

// sameType lets floating types pass for each other.
func sameType(a, b hlo.Type) bool { return a == b || floating(a) && floating(b) }

// short is a shape in messages.
func short(s *hlo.Shape) string {
	if s.Type == hlo.Tuple {
		return fmt.Sprintf("a tuple of %d", len(s.Elements))
	}
	return string(s.Type) + dims(s.Dims)
}

func dims(d []int64) string { return strings.ReplaceAll(fmt.Sprint(d), " ", ",") }

func sameShape(i *hlo.Instruction, want *hlo.Shape) string {
	if d := difference(i.Shape, want); d != "" {
		return "shape " + d
	}
	return ""
}

// difference is where two shapes that are not compatible differ first: "f32[2],
// expected f32[3]", "element 1: ..." in tuples. It is empty if they do not.
func difference(got, want *hlo.Shape) string {
	if got.Compatible(want) {
		return ""
	}
	if got.Type == hlo.Tuple && want.Type == hlo.Tuple && len(got.Elements) == len(want.Elements) {
		for n := range got.Elements {
			if d := difference(got.Elements[n], want.Elements[n]); d != "" {
				return fmt.Sprintf("element %d: %s", n, d)
			}
		}
	}
	return fmt.Sprintf("%s, expected %s", short(got), short(want))
}

// result compares dimensions with what they have to be.
func result(i *hlo.Instruction, want []int64) string {
	if !i.Shape.IsArray() || !hlo.SameDims(i.Shape.Dims, want) {
		return fmt.Sprintf("shape %s, expected dimensions %s", short(i.Shape), dims(want))
	}
	return ""
}

// arrays says what is wrong if an operand or the result is none.
func arrays(i *hlo.Instruction) string {
	if !i.Shape.IsArray() {
		return fmt.Sprintf("%s of an array is %s", i.Opcode, short(i.Shape))
	}
	for n, o := range i.Operands {
		if !o.Shape.IsArray() {
			return fmt.Sprintf("operand %d is %s, expected an array", n, short(o.Shape))
		}
	}
	return ""
}

func elementwise(i *hlo.Instruction) string {
	if i.Opcode == hlo.Copy && !i.Shape.IsArray() {
		return sameShape(i, i.Operands[0].Shape)
	}
	if p := arrays(i); p != "" {
		return p
	}
	for n, o := range i.Operands {
		if !hlo.SameDims(o.Shape.Dims, i.Shape.Dims) {
			return fmt.Sprintf("operand %d is %s, the result %s: expected the same dimensions", n, short(o.Shape), short(i.Shape))
		}
		// convert and is-finite change the type; abs and others of a complex number do.
		keeps := i.Opcode != "convert" && i.Opcode != "is-finite" && !strings.HasPrefix(string(o.Shape.Type), "c")
		if keeps && !sameType(o.Shape.Type, i.Shape.Type) {
			return fmt.Sprintf("operand %d is %s, the result %s: expected the same type", n, short(o.Shape), short(i.Shape))
		}
	}
	return ""
}

func compareRule(i *hlo.Instruction) string {
	a, b := i.Operands[0].Shape, i.Operands[1].Shape
	if i.Shape.Type != "pred" || !hlo.SameDims(a.Dims, b.Dims) || !hlo.SameDims(a.Dims, i.Shape.Dims) || !sameType(a.Type, b.Type) {
		return fmt.Sprintf("compare of %s and %s is %s, expected pred of the same dimensions", short(a), short(b), short(i.Shape))
	}
	if d, _ := i.Attribute("direction"); !slices.Contains([]string{"EQ", "NE", "GE", "GT", "LE", "LT"}, d) {
		return fmt.Sprintf("direction=%s, expected EQ, NE, GE, GT, LE or LT", d)
	}
	return ""
}

func selectRule(i *hlo.Instruction) string {
	if !i.Shape.IsArray() {
		return ""
	}
	if p := arrays(i); p != "" {
		return p
	}
	if on := i.Operands[0].Shape; on.Type != "pred" || len(on.Dims) > 0 && !hlo.SameDims(on.Dims, i.Shape.Dims) {
		return fmt.Sprintf("operand 0 is %s, expected pred[] or pred%s", short(on), dims(i.Shape.Dims))
	}
	return likeResult(i, 1, 2)
}

func likeResult(i *hlo.Instruction, operands ...int) string {
	for _, n := range operands {
		if o := i.Operands[n].Shape; !hlo.SameDims(o.Dims, i.Shape.Dims) || !sameType(o.Type, i.Shape.Type) {
			return fmt.Sprintf("operand %d is %s, the result %s: expected the same", n, short(o), short(i.Shape))
		}
	}
	return ""
}

func clampRule(i *hlo.Instruction) string {
	for _, n := range []int{0, 2} {
		if o := i.Operands[n].Shape; len(o.Dims) > 0 && !hlo.SameDims(o.Dims, i.Shape.Dims) {
			return fmt.Sprintf("operand %d is %s, expected one element or dimensions %s", n, short(o), dims(i.Shape.Dims))
		}
	}
	return likeResult(i, 1)
}

func tupleRule(i *hlo.Instruction) string {
	if i.Shape.Type != hlo.Tuple || len(i.Shape.Elements) != len(i.Operands) {
		return fmt.Sprintf("shape %s, expected a tuple of %d", short(i.Shape), len(i.Operands))
	}
	for n, o := range i.Operands {
		if !o.Shape.Compatible(i.Shape.Elements[n]) {
			return fmt.Sprintf("element %d is %s, its operand %s", n, short(i.Shape.Elements[n]), short(o.Shape))
		}
	}
	return ""
}

func getTupleElementRule(i *hlo.Instruction) string {
	index, err := i.Int("index", -1)
	if err != nil {
		return "index: expected a number"
	}
	tuple := i.Operands[0].Shape
	if tuple.Type != hlo.Tuple || index < 0 || index >= int64(len(tuple.Elements)) {
		return fmt.Sprintf("element %d of %s", index, short(tuple))
	}
	return sameShape(i, tuple.Elements[index])
}

// called checks operands against the parameters of what is called, and a result
// against its root.
func called(c *hlo.Computation, operands []*hlo.Instruction, result *hlo.Shape) string {
	if c == nil {
		return "it names no computation to call"
	}
	parameters := c.Parameters()
	if len(parameters) != len(operands) {
		return fmt.Sprintf("%d operands, %s has %d parameters", len(operands), c.Name, len(parameters))
	}
	for n, p := range parameters {
		if d := difference(operands[n].Shape, p.Shape); d != "" {
			return fmt.Sprintf("operand %d against its parameter of %s: %s", n, c.Name, d)
		}
	}
	if d := difference(c.Root.Shape, result); d != "" {
		return fmt.Sprintf("the root of %s: %s", c.Name, d)
	}
	return ""
}

func whileRule(i *hlo.Instruction) string {
	if p := called(i.Call("body"), i.Operands, i.Shape); p != "" {
		return "body: " + p
	}
	if p := called(i.Call("condition"), i.Operands, &hlo.Shape{Type: "pred"}); p != "" {
		return "condition: " + p
	}
	return sameShape(i, i.Operands[0].Shape)
}

func conditionalRule(i *hlo.Instruction) string {
	branches := i.Branches()
	if len(branches) == 0 || len(i.Operands) != len(branches)+1 {
		return fmt.Sprintf("%d branches and %d operands, expected one operand more than branches", len(branches), len(i.Operands))
	}
	if on := i.Operands[0].Shape; len(on.Dims) > 0 || on.Type != "s32" && (on.Type != "pred" || len(branches) != 2) {
		return fmt.Sprintf("operand 0 is %s, expected s32[], or pred[] for two branches", short(on))
	}
	for n, c := range branches {
		if p := called(c, i.Operands[n+1:n+2], i.Shape); p != "" {
			return fmt.Sprintf("branch %d: %s", n, p)
		}
	}
	return ""
}

func allReduce(i *hlo.Instruction) string {
	if len(i.Operands) == 1 {
		return sameDimsShape(i.Shape, i.Operands[0].Shape)
	}
	if len(i.Shape.Elements) != len(i.Operands) {
		return fmt.Sprintf("%d operands give %s", len(i.Operands), short(i.Shape))
	}
	for n, o := range i.Operands {
		if p := sameDimsShape(i.Shape.Elements[n], o.Shape); p != "" {
			return fmt.Sprintf("operand %d: %s", n, p)
		}
	}
	return ""
}

func sameDimsShape(a, b *hlo.Shape) string {
	if !a.IsArray() || !b.IsArray() || !hlo.SameDims(a.Dims, b.Dims) {
		return fmt.Sprintf("%s becomes %s, expected the same dimensions", short(b), short(a))
	}
	return ""
}
