package remattest

// The meaning of a module, as a sum of its expressions: computing a value again changes
// nothing about it.

import (
	"fmt"
	"hash/fnv"

	"gpumem/xla/internal/hlo"
)

// A term is a sum of the expression that makes it, or of a tuple its elements.
type term struct {
	sum   uint64
	parts []term
}

func expression(name string, args ...term) term {
	h := fnv.New64a()
	fmt.Fprint(h, name)
	for _, a := range args {
		fmt.Fprintf(h, "(%x)", a.whole())
	}
	return term{sum: h.Sum64()}
}

func (v term) whole() uint64 {
	if v.parts == nil {
		return v.sum
	}
	return expression("tuple", v.parts...).sum
}

// symbol is an unknown value of a shape.
func symbol(name string, s *hlo.Shape) term {
	v := expression(name)
	for k, e := range s.Elements {
		v.parts = append(v.parts, symbol(fmt.Sprint(name, ".", k), e))
	}
	return v
}

// meaning is what a computation makes of its arguments.
func meaning(c *hlo.Computation, args ...term) term {
	known := map[*hlo.Instruction]term{}
	for _, i := range c.Instructions {
		var in []term
		for _, o := range i.Operands {
			in = append(in, known[o])
		}
		known[i] = means(i, in, args)
	}
	return known[c.Root]
}

func means(i *hlo.Instruction, in, args []term) term {
	switch i.Opcode {
	case hlo.Parameter:
		return args[i.Parameter]
	case hlo.TupleOp:
		return term{parts: in}
	case hlo.GetTupleElement:
		index, _ := i.Ints("index")
		if in[0].parts == nil {
			return expression(fmt.Sprint("element", index), in[0])
		}
		return in[0].parts[index[0]]
	case hlo.Bitcast, hlo.Copy, hlo.OptBarrier, hlo.CopyStart, hlo.CopyDone:
		return in[0] // only where it lies is different
	case hlo.Fusion:
		return meaning(i.Call("calls"), in...)
	case hlo.Call:
		return meaning(i.Call("to_apply"), in...)
	case hlo.While:
		state := symbol("state", i.Shape)
		v := expression("while", in[0], meaning(i.Call("condition"), state), meaning(i.Call("body"), state))
		for k := range i.Shape.Elements {
			v.parts = append(v.parts, expression(fmt.Sprint("element", k), term{sum: v.sum}))
		}
		return v
	case hlo.Rng:
		return expression(i.Name, in...)
	}
	name := string(i.Opcode) + i.Literal + fmt.Sprint(i.Shape.Dims)
	for _, a := range i.Attributes {
		if a.Key != "channel_id" {
			name += " " + a.Key + "=" + a.Value
		}
		for _, c := range a.Calls {
			name += fmt.Sprint(" ", ofSymbols(c).whole())
		}
	}
	return expression(name, in...)
}

// ofSymbols is what a computation makes of unknown arguments.
func ofSymbols(c *hlo.Computation) term {
	var args []term
	for n, p := range c.Parameters() {
		args = append(args, symbol(fmt.Sprint("p", n), p.Shape))
	}
	return meaning(c, args...)
}

// Meaning is a sum of what a module computes: equal if it computes the same.
func Meaning(m *hlo.Module) uint64 { return ofSymbols(m.Entry).whole() }

// ResultBytes returns what the result of a module takes with its tables. XLA's pass adds
// it to the peak that it reports.
func ResultBytes(m *hlo.Module) int64 {
	var all func(s *hlo.Shape) uint64
	all = func(s *hlo.Shape) uint64 {
		sum, err := s.Bytes()
		if err != nil {
			panic(err)
		}
		for _, e := range s.Elements {
			sum += all(e)
		}
		return sum
	}
	return int64(all(m.Entry.Root.Shape))
}
