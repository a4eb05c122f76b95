package advice

// The largest holders of memory.

import (
	"cmp"
	"fmt"
	"slices"

	"gpumem/size"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/memory"
	"gpumem/xla/internal/opname"
)

// A Holder is the memory that one part of a program holds at the peak.
type Holder struct {
	Part   string `json:"part"` // of op_name, with * for numbers; "(no name)"
	Bytes  uint64 `json:"bytes"`
	Values int    `json:"values"`
}

// A tally adds up values by the part of the program that they belong to. Equal holders stay in
// the order in which they came.
type tally struct {
	list []Holder
	at   map[string]int
}

func (t *tally) addValue(part string, bytes uint64) {
	n, ok := t.at[part]
	if !ok {
		if t.at == nil {
			t.at = map[string]int{}
		}
		n = len(t.list)
		t.at[part], t.list = n, append(t.list, Holder{Part: part})
	}

	t.list[n].Bytes += bytes
	t.list[n].Values++
}

// largestFirst returns the holders, not nil.
func (t *tally) largestFirst() []Holder {
	slices.SortStableFunc(t.list, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return append([]Holder{}, t.list...)
}

// findHolders returns what holds memory in the entry at the peak of its temporaries, as
// the meter counts, by part of the program, the largest first. What the called
// computations hold there is left out. parts has the part of instructions that only make
// room for it.
func findHolders(m *hlo.Module, meter *memory.Meter, parts map[*hlo.Instruction]string) ([]Holder, error) {
	alive, err := meter.Alive(m.Entry)
	if err != nil {
		return nil, err
	}

	held := map[*hlo.Instruction][]memory.Temp{}
	for _, x := range alive {
		held[x.Instruction] = append(held[x.Instruction], x)
	}

	var t tally
	for _, i := range m.Entry.Instructions { // equal holders stay in the order of the program
		for _, x := range held[i] {
			t.addValue(cmp.Or(parts[i], opname.Part(i)), x.Bytes)
		}
	}
	return t.largestFirst(), nil
}

// leastPieces is the part of the peak from which on a product is worth a word, in percent.
const leastPieces = 10

// describeHolds says what holds a plan that misses its limit: what runs once, what one instruction
// needs, and products that are larger than what they are made of, as logits and the scores of
// attention are. What is computed from such a product element by element has as many elements, so
// that it goes by their number.
func describeHolds(m *hlo.Module, meter *memory.Meter) (string, error) {
	h, err := gap.HoldsAt(m, meter)
	if err != nil || h.At == nil {
		return "", err
	}

	alive, err := meter.Alive(m.Entry)
	if err != nil {
		return "", err
	}

	text := fmt.Sprintf("At %s lie %s of loops and custom calls, which do not run again, "+
		"%s that it reads and makes, %s in what it calls and %s besides.",
		h.At.Name, size.Format(h.Once), size.Format(h.Own), size.Format(h.Called), size.Format(h.Others))
	products := largerProducts(m)
	bytes, values := map[uint64]uint64{}, map[uint64]uint64{}
	var most uint64 // the number of elements of which most bytes live
	for _, x := range alive {
		if n, err := x.Shape.Elems(); err == nil && x.Shape.IsArray() && products[n] != nil {
			bytes[n] += x.Bytes * x.Copies
			if values[n] += x.Copies; bytes[n] > bytes[most] {
				most = n
			}
		}
	}

	if peak := h.Once + h.Own + h.Called + h.Others; bytes[most] < peak/100*leastPieces || most == 0 {
		return text, nil
	}

	dot := products[most]
	return fmt.Sprintf("%s %s of it, in %d arrays, have the size of the product %s (%s): "+
		"computing that and what follows in pieces, some rows at a time, would take them away.",
		text, size.Format(bytes[most]), values[most], cmp.Or(dot.OpName(), dot.Name), dot.Shape), nil
}

// largerProducts returns the products that are larger than what they are made of, the first of
// each number of elements.
func largerProducts(m *hlo.Module) map[uint64]*hlo.Instruction {
	products := map[uint64]*hlo.Instruction{}
	for i := range m.All() {
		n, err := i.Shape.Elems()
		if err != nil || i.Opcode != hlo.Dot || products[n] != nil {
			continue
		}
		if !slices.ContainsFunc(i.Operands, func(o *hlo.Instruction) bool {
			k, err := o.Shape.Elems()
			return err != nil || k >= n
		}) {
			products[n] = i
		}
	}

	return products
}
