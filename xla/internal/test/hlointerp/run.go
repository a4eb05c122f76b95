package hlointerp

// Running computations: which instructions, in which order, and what calls others.

import (
	"errors"
	"fmt"
	"math"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/verify"
)

// DefaultWork is the limit of [Run]'s options: some seconds of one core.
const DefaultWork = 1 << 28

// Options are limits.
type Options struct {
	// Work is how many elements may be computed in all, each instruction counting at
	// least one; 0: [DefaultWork]. It ends loops that do not end by themselves.
	Work uint64
}

// ErrWork is the error of a module that needs more work than its limit.
var ErrWork = errors.New("interp: the limit of work is reached (Options.Work)")

// Run runs the entry computation on the values of its parameters and gives its
// result. Only instructions that the result needs are run. The error is that of
// [verify.Module], of arguments that do not fit, or names the instruction that
// cannot be run: one whose opcode or type the interpreter does not have, or that
// has a side effect.
func Run(m *hlo.Module, arguments []Value, options Options) (Value, error) {
	if err := verify.Module(m); err != nil {
		return Value{}, err
	}
	if options.Work == 0 {
		options.Work = DefaultWork
	}
	parameters := m.Entry.Parameters()
	if len(arguments) != len(parameters) {
		return Value{}, fmt.Errorf("interp: %d arguments, %s has %d parameters", len(arguments), m.Entry.Name, len(parameters))
	}
	for n, p := range parameters {
		if err := fits(arguments[n], p.Shape); err != nil {
			return Value{}, fmt.Errorf("interp: argument %d: %w", n, err)
		}
	}
	r := &machine{left: options.Work, orders: map[*hlo.Computation][]step{}, values: make([]Value, m.IDs())}
	return r.run(m.Entry, arguments)
}

// fits says what is wrong with a value for a shape.
func fits(v Value, s *hlo.Shape) error {
	if v.Shape == nil || !v.Shape.Compatible(s) || len(v.Elements) != len(s.Elements) {
		return fmt.Errorf("expected a value of %s", s)
	}
	for n, e := range v.Elements {
		if err := fits(e, s.Elements[n]); err != nil {
			return err
		}
	}
	if s.IsArray() {
		if n, err := count(s); err != nil || n != len(v.Bits) {
			return fmt.Errorf("%s with %d elements: %w", s, len(v.Bits), err)
		}
	}
	return nil
}

type machine struct {
	left   uint64
	orders map[*hlo.Computation][]step
	// values are by ID. A computation never runs while it runs, so it needs no
	// second set.
	values []Value
}

// A step is an instruction and the values that no later one needs.
type step struct {
	i    *hlo.Instruction
	done []*hlo.Instruction
}

// spend takes work from what is left.
func (r *machine) spend(n uint64) error {
	if n > r.left {
		r.left = 0
		return ErrWork
	}
	r.left -= n
	return nil
}

// order is what the root of a computation needs, operands first.
func (r *machine) order(c *hlo.Computation) []step {
	if list, ok := r.orders[c]; ok {
		return list
	}
	type visit struct {
		i    *hlo.Instruction
		next int
	}
	seen := map[*hlo.Instruction]bool{c.Root: true}
	stack := []visit{{c.Root, 0}}
	var list []step
	for len(stack) > 0 {
		top := &stack[len(stack)-1]
		if top.next == len(top.i.Operands) {
			list = append(list, step{i: top.i})
			stack = stack[:len(stack)-1]
			continue
		}
		o := top.i.Operands[top.next]
		top.next++
		if !seen[o] {
			seen[o] = true
			stack = append(stack, visit{o, 0})
		}
	}
	last := map[*hlo.Instruction]int{}
	for n, s := range list {
		for _, o := range s.i.Operands {
			last[o] = n
		}
	}
	// In the order of the list, not of the map.
	for _, s := range list {
		if n, ok := last[s.i]; ok {
			list[n].done = append(list[n].done, s.i)
		}
	}
	r.orders[c] = list
	return list
}

func (r *machine) run(c *hlo.Computation, arguments []Value) (Value, error) {
	// One more than the instructions, so that no loop is without work.
	if err := r.spend(1); err != nil {
		return Value{}, err
	}
	for _, s := range r.order(c) {
		if err := r.spend(1); err != nil {
			return Value{}, located(s.i, err)
		}
		v, err := r.instruction(s.i, arguments)
		if err != nil {
			return Value{}, located(s.i, err)
		}
		r.values[s.i.ID] = v
		for _, o := range s.done {
			r.values[o.ID] = Value{}
		}
	}
	v := r.values[c.Root.ID]
	r.values[c.Root.ID] = Value{}
	return v, nil
}

// A runError names the innermost instruction that could not be run.
type runError struct {
	i   *hlo.Instruction
	err error
}

func (e *runError) Error() string { return hlo.Where(e.i) + ": " + e.err.Error() }
func (e *runError) Unwrap() error { return e.err }

func located(i *hlo.Instruction, err error) error {
	var inner *runError
	var attribute *hlo.AttributeError
	if errors.As(err, &inner) || errors.As(err, &attribute) {
		return err
	}
	return &runError{i, err}
}

func (r *machine) instruction(i *hlo.Instruction, arguments []Value) (Value, error) {
	in := make([]Value, len(i.Operands))
	for n, o := range i.Operands {
		in[n] = r.values[o.ID]
	}
	switch i.Opcode {
	case hlo.Parameter:
		return arguments[i.Parameter], nil
	case hlo.Constant:
		return Literal(i.Shape, i.Literal)
	case hlo.TupleOp:
		return Value{Shape: i.Shape, Elements: in}, nil
	case hlo.GetTupleElement:
		n, err := i.Int("index", -1)
		if err != nil {
			return Value{}, err
		}
		return in[0].Elements[n], nil
	case hlo.OptBarrier, hlo.Domain, hlo.AddDependency:
		return in[0], nil
	case "after-all":
		return Value{Shape: i.Shape}, nil
	case hlo.Call:
		return r.run(i.Call("to_apply"), in)
	case hlo.Fusion:
		return r.run(i.Call("calls"), in)
	case hlo.Conditional:
		return r.conditional(i, in)
	case hlo.While:
		return r.while(i, in[0])
	case hlo.CopyStart:
		if e := i.Shape.Elements; len(e) == 3 && in[0].Shape.IsArray() && e[2].Type == "u32" && len(e[2].Dims) == 0 {
			return Value{Shape: i.Shape, Elements: []Value{{Shape: e[0], Bits: in[0].Bits}, {Shape: e[1], Bits: in[0].Bits}, {Shape: e[2], Bits: make([]uint64, 1)}}}, nil
		}
	case hlo.CopyDone:
		if len(in[0].Elements) == 3 {
			return in[0].Elements[0], nil
		}
	case hlo.CustomCall:
		if target, _ := i.Attribute("custom_call_target"); target == `"Sharding"` && len(in) == 1 {
			return in[0], nil
		}
	case hlo.Copy:
		if i.Shape.Type == hlo.Tuple {
			return in[0], nil
		}
	}
	for n := range min(movers[i.Opcode], len(in)) {
		if in[n].Shape.Type != i.Shape.Type {
			return Value{}, fmt.Errorf("%s of %s to %s is not interpreted", i.Opcode, in[n].Shape.Type, i.Shape.Type)
		}
	}
	if array := arrayOps[i.Opcode]; array != nil {
		return array(r, i, in)
	}
	if i.Opcode.Unary() || i.Opcode.Binary() {
		return r.elementwise(i, in)
	}
	return Value{}, notInterpreted(i)
}

// movers are the opcodes that put elements elsewhere, with how many of their first
// operands have the result's type.
var movers = map[hlo.Opcode]int{
	hlo.Broadcast: 1, hlo.Concatenate: math.MaxInt, hlo.DynamicSlice: 1, hlo.DynamicUpdateSlice: 2, hlo.Pad: 2, hlo.Reshape: 1,
	hlo.Reverse: 1, hlo.Slice: 1, hlo.Transpose: 1,
}

func notInterpreted(i *hlo.Instruction) error {
	return fmt.Errorf("opcode %s is not interpreted for %s", i.Opcode, i.Shape)
}

func (r *machine) conditional(i *hlo.Instruction, in []Value) (Value, error) {
	branches := i.Branches()
	at := len(branches) - 1
	if on := in[0]; on.Shape.Type == "pred" {
		at = int(1 - on.Bits[0]) // the true one is first
	} else if n := extend(on.Shape.Type, on.Bits[0]); n >= 0 && n < int64(at) {
		at = int(n) // any other number takes the last
	}
	return r.run(branches[at], in[at+1:at+2])
}

func (r *machine) while(i *hlo.Instruction, state Value) (Value, error) {
	for {
		more, err := r.run(i.Call("condition"), []Value{state})
		if err != nil {
			return Value{}, err
		}
		if more.Bits[0] == 0 {
			return state, nil
		}
		if state, err = r.run(i.Call("body"), []Value{state}); err != nil {
			return Value{}, err
		}
	}
}

// array is an empty array of a shape, its work spent.
func (r *machine) array(s *hlo.Shape) (Value, error) {
	n, err := count(s)
	if err == nil {
		err = r.spend(uint64(n))
	}
	if err != nil {
		return Value{}, err
	}
	return Value{Shape: s, Bits: make([]uint64, n)}, nil
}

func (r *machine) elementwise(i *hlo.Instruction, in []Value) (Value, error) {
	out, err := r.array(i.Shape)
	if err != nil {
		return Value{}, err
	}
	// The operands' type is what is computed in: is-finite gives pred.
	t := in[0].Shape.Type
	if i.Opcode.Unary() {
		f := unaryOf(i.Opcode, t)
		switch i.Opcode {
		case "convert":
			f = convertOf(t, i.Shape.Type)
		case "reduce-precision":
			if f, err = reducePrecision(i); err != nil {
				return Value{}, err
			}
		}
		if f == nil {
			return Value{}, fmt.Errorf("opcode %s is not interpreted for %s", i.Opcode, t)
		}
		for n, x := range in[0].Bits {
			out.Bits[n] = f(x)
		}
		return widened(out, t, i.Opcode), nil
	}
	if in[1].Shape.Type != t {
		return Value{}, fmt.Errorf("%s of %s and %s is not interpreted", i.Opcode, t, in[1].Shape.Type)
	}
	f := binaryOf(i.Opcode, t)
	if i.Opcode == hlo.Compare {
		direction, _ := i.Attribute("direction")
		kind, _ := i.Attribute("type")
		order, _ := i.Attribute("order") // as releases from 2026 on print it
		compare := compareOf(direction, t, kind == "TOTALORDER" || order == "TOTAL")
		f = func(a, b uint64) uint64 { return truth(compare(a, b)) }
	}
	if f == nil {
		return Value{}, fmt.Errorf("opcode %s is not interpreted for %s", i.Opcode, t)
	}
	for n, x := range in[0].Bits {
		out.Bits[n] = f(x, in[1].Bits[n])
	}
	return widened(out, t, i.Opcode), nil
}

// widened brings results of a float type into the result's own, where precisions
// are mixed.
func widened(v Value, from hlo.Type, op hlo.Opcode) Value {
	if to := v.Shape.Type; to != from && op != "convert" && kindOf(to) == float && kindOf(from) == float {
		f := convertOf(from, to)
		for n, x := range v.Bits {
			v.Bits[n] = f(x)
		}
	}
	return v
}

// reducePrecision rounds to fewer bits of exponent and fraction and back.
func reducePrecision(i *hlo.Instruction) (func(uint64) uint64, error) {
	exponent, err := i.Int("exponent_bits", 0)
	if err != nil {
		return nil, err
	}
	fraction, err := i.Int("mantissa_bits", 0)
	if err != nil {
		return nil, err
	}
	t := i.Operands[0].Shape.Type
	if kindOf(t) != float || exponent < 1 || exponent > 11 || fraction < 1 || fraction > 52 {
		return nil, fmt.Errorf("reduce-precision of %s to %d and %d bits is not interpreted", t, exponent, fraction)
	}
	return func(b uint64) uint64 {
		return encode(t, wide(round(decode(t, b), int(exponent), int(fraction)), int(exponent), int(fraction)))
	}, nil
}
