package memory

// The parts of each result in the pass's model: new memory, or an operand's.

import (
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"gpumem/hlo"
)

// countParts is how many parts a shape has, tables of tuples included.
func countParts(s *hlo.Shape) int {
	n := 1
	for _, e := range s.Elements {
		n += countParts(e)
	}
	return n
}

// A places table has the preorder numbers of the elements of wide tuples, each tuple's
// once: counting them for each element would take the square of the elements.
type places struct {
	starts map[*hlo.Shape][]int32
	looked int // elements that were looked at, for tests
}

// wideTuple is how many elements a tuple needs to be worth a table.
const wideTuple = 16

// offset returns the place in preorder of the part at an index, and reports whether the
// shape has it.
func (t *places) offset(s *hlo.Shape, index []int) (int, bool) {
	at := 0
	for _, k := range index {
		if k < 0 || k >= len(s.Elements) {
			return 0, false
		}
		at += t.element(s, k)
		s = s.Elements[k]
	}
	return at, true
}

// element returns the place in preorder of element k of a tuple.
func (t *places) element(s *hlo.Shape, k int) int {
	if len(s.Elements) < wideTuple {
		at := 1
		for _, e := range s.Elements[:k] {
			at += countParts(e)
		}
		t.looked += k
		return at
	}
	starts, ok := t.starts[s]
	if !ok {
		t.looked += len(s.Elements)
		starts = make([]int32, len(s.Elements))
		at := int32(1)
		for n, e := range s.Elements {
			starts[n] = at
			at += int32(countParts(e))
		}
		if t.starts == nil {
			t.starts = map[*hlo.Shape][]int32{}
		}
		t.starts[s] = starts
	}
	return int(starts[k])
}

// index returns the index of the part at a place in preorder.
func (t *places) index(s *hlo.Shape, at int) (index []int) {
	for at > 0 {
		// The last element that begins at the place or before.
		k := sort.Search(len(s.Elements), func(k int) bool { return t.element(s, k) > at }) - 1
		index = append(index, k)
		at -= t.element(s, k)
		s = s.Elements[k]
	}
	return index
}

// walk visits the parts of a shape in preorder. The index is only good for the call.
func walk(s *hlo.Shape, index []int, visit func(*hlo.Shape, []int) error) error {
	if err := visit(s, index); err != nil {
		return err
	}
	for k, e := range s.Elements {
		if err := walk(e, append(index, k), visit); err != nil {
			return err
		}
	}
	return nil
}

// pointsTo finds what the results in a computation are made of. Operands have to
// stand before their users.
func (a *analyzer) pointsTo(c *hlo.Computation) (*points, error) {
	a.number(c)
	p := &points{c: c, parts: make([]part, 0, len(c.Instructions)), of: make([][]int32, len(c.Instructions))}
	total := 0
	for k, i := range c.Instructions {
		if i.Shape == nil {
			return nil, shapeError(i, "it has no shape")
		}
		for _, o := range i.Operands {
			if at, ok := a.at(c, o); !ok || int(at) >= k {
				return nil, shapeError(i, fmt.Sprintf("its operand %s does not stand before it", o.Name))
			}
		}
		list, err := a.result(p, k, i)
		if err != nil {
			return nil, err
		}
		p.of[k] = list
		if total += len(list); total > maxPositions || len(p.parts) > maxValues {
			return nil, shapeError(i, errTooManyParts.Error())
		}
	}
	return p, nil
}

// number notes the places of a computation's instructions. What it noted of others may
// stay: see at.
func (a *analyzer) number(c *hlo.Computation) {
	low, high := c.Module.IDs(), 0
	for _, i := range c.Instructions {
		low, high = min(low, i.ID), max(high, i.ID+1)
	}
	a.base = low
	a.place = slices.Grow(a.place[:0], max(0, high-low))[:max(0, high-low)]
	for k, i := range c.Instructions {
		a.place[i.ID-low] = int32(k)
	}
}

// operand is what operand n of the instruction at place k is made of.
func (a *analyzer) operand(p *points, i *hlo.Instruction, n int) ([]int32, error) {
	if n >= len(i.Operands) {
		return nil, shapeError(i, fmt.Sprintf("it has %d operands and needs %d", len(i.Operands), n+1))
	}
	k, _ := a.at(p.c, i.Operands[n])
	return p.of[k], nil
}

// own is a result all of the instruction's own, but for the parts that source names.
// source is called in preorder with the index of each part; -1 is its own.
func (p *points) own(k int, i *hlo.Instruction, source func(index []int) (int32, error)) ([]int32, error) {
	list := make([]int32, 0, 1)
	err := walk(i.Shape, nil, func(s *hlo.Shape, index []int) error {
		q := int32(-1)
		if source != nil {
			var err error
			if q, err = source(index); err != nil {
				return err
			}
		}
		if q < 0 {
			q = int32(len(p.parts))
			p.parts = append(p.parts, part{int32(k), slices.Clone(index), s})
		}
		list = append(list, q)
		return nil
	})
	return list, err
}

// same is what operand 0 is made of, for a result of as many parts.
func (a *analyzer) same(p *points, i *hlo.Instruction) ([]int32, error) {
	list, err := a.operand(p, i, 0)
	if err == nil && countParts(i.Shape) != len(list) {
		err = shapeError(i, "its shape does not have as many parts as its operand's")
	}
	return list, err
}

// at is the part of operand n at an index; an error where the operand has none.
func (a *analyzer) partOf(p *points, i *hlo.Instruction, n int, index []int) (int32, error) {
	list, err := a.operand(p, i, n)
	if err != nil {
		return 0, err
	}
	at, ok := a.places.offset(i.Operands[n].Shape, index)
	if !ok {
		return 0, shapeError(i, fmt.Sprintf("operand %s has no part at %v", i.Operands[n].Name, index))
	}
	return list[at], nil
}

// result is what the result of the instruction at place k is made of.
func (a *analyzer) result(p *points, k int, i *hlo.Instruction) ([]int32, error) {
	switch op := i.Opcode; {
	case op == hlo.GetTupleElement:
		return a.element(p, i)
	case op == hlo.Bitcast, op == hlo.Domain, op == hlo.AddDependency, op == hlo.OptBarrier:
		return a.same(p, i)
	case op == hlo.Copy:
		// A copy of a tuple copies the table.
		from, err := a.same(p, i)
		if err != nil {
			return nil, err
		}
		list := slices.Clone(from)
		list[0] = int32(len(p.parts))
		p.parts = append(p.parts, part{definer: int32(k), shape: i.Shape})
		return list, nil
	case op == hlo.TupleOp:
		return a.tuple(p, k, i)
	case op == hlo.Fusion:
		return a.fusion(p, k, i)
	case op == hlo.CopyStart:
		return p.own(k, i, func(index []int) (int32, error) {
			if len(index) == 1 && index[0] == 1 {
				return a.partOf(p, i, 0, nil)
			}
			return -1, nil
		})
	case op == hlo.CopyDone:
		q, err := a.partOf(p, i, 0, []int{0})
		return []int32{q}, err
	case op == hlo.Send:
		return p.own(k, i, func(index []int) (int32, error) {
			if len(index) > 0 && index[0] == 0 {
				return a.partOf(p, i, 0, index[1:])
			}
			return -1, nil
		})
	case op == hlo.RecvDone:
		return p.own(k, i, func(index []int) (int32, error) {
			if len(index) > 0 && index[0] == 0 {
				return a.partOf(p, i, 0, index)
			}
			return -1, nil
		})
	case op.WrapsStart():
		return a.asyncStart(p, k, i)
	case op.IsAsyncUpdate():
		return p.own(k, i, func(index []int) (int32, error) {
			if len(index) > 0 && index[0] < 2 && len(i.Operands) > 0 && i.Operands[0].Shape.At(index...) != nil {
				return a.partOf(p, i, 0, index)
			}
			return -1, nil
		})
	case op.WrapsEnd():
		return p.own(k, i, func(index []int) (int32, error) {
			return a.partOf(p, i, 0, append([]int{1}, index...))
		})
	}
	return p.own(k, i, nil)
}

// element is what a get-tuple-element gets.
func (a *analyzer) element(p *points, i *hlo.Instruction) ([]int32, error) {
	list, err := a.operand(p, i, 0)
	if err != nil {
		return nil, err
	}
	n, err := i.TupleIndex()
	if err != nil {
		return nil, err
	}
	at, ok := a.places.offset(i.Operands[0].Shape, []int{n})
	count := countParts(i.Shape)
	if !ok || at+count > len(list) {
		return nil, shapeError(i, fmt.Sprintf("operand %s has no such element", i.Operands[0].Name))
	}
	return list[at : at+count : at+count], nil
}

// tuple is a new table and the operands.
func (a *analyzer) tuple(p *points, k int, i *hlo.Instruction) ([]int32, error) {
	list := make([]int32, 1, 1+len(i.Operands))
	list[0] = int32(len(p.parts))
	p.parts = append(p.parts, part{definer: int32(k), shape: i.Shape})
	for n := range i.Operands {
		from, err := a.operand(p, i, n)
		if err != nil {
			return nil, err
		}
		list = append(list, from...)
	}
	if len(list) != countParts(i.Shape) {
		return nil, shapeError(i, "its shape does not have as many parts as its operands")
	}
	return list, nil
}

// fusion has new memory except where an output is declared to be an operand.
func (a *analyzer) fusion(p *points, k int, i *hlo.Instruction) ([]int32, error) {
	aliases, err := outputAliases(i)
	if err != nil || len(aliases) == 0 {
		list, e := p.own(k, i, nil)
		if err == nil {
			err = e
		}
		return list, err
	}
	of := aliasOf(aliases)
	return p.own(k, i, func(index []int) (int32, error) {
		if x, ok := of(index); ok {
			return a.partOf(p, i, x.operand, x.index)
		}
		return -1, nil
	})
}

// asyncStart has a tuple of its operands, the result, and more that only it knows.
func (a *analyzer) asyncStart(p *points, k int, i *hlo.Instruction) ([]int32, error) {
	aliases, err := outputAliases(i)
	if err != nil {
		return nil, err
	}
	of := aliasOf(slices.DeleteFunc(aliases, func(x outputAlias) bool { return x.operand >= len(i.Operands) }))
	return p.own(k, i, func(index []int) (int32, error) {
		if len(index) >= 2 && index[0] == 0 {
			return a.partOf(p, i, index[1], index[2:])
		}
		if x, ok := of(index); ok {
			return a.partOf(p, i, x.operand, x.index)
		}
		return -1, nil
	})
}

// An outputAlias is one entry of output_to_operand_aliasing.
type outputAlias struct {
	output  []int
	operand int
	index   []int
}

// aliasOf returns a function that finds the first alias of an output.
func aliasOf(list []outputAlias) func(index []int) (outputAlias, bool) {
	if len(list) < wideTuple {
		return func(index []int) (outputAlias, bool) {
			n := slices.IndexFunc(list, func(x outputAlias) bool { return slices.Equal(x.output, index) })
			if n < 0 {
				return outputAlias{}, false
			}
			return list[n], true
		}
	}
	byOutput := make(map[string]outputAlias, len(list))
	for _, x := range slices.Backward(list) { // the first is written last
		byOutput[fmt.Sprint(x.output)] = x
	}
	return func(index []int) (outputAlias, bool) {
		x, ok := byOutput[fmt.Sprint(index)]
		return x, ok
	}
}

// outputAliases reads output_to_operand_aliasing={{0}: (1, {}), {1}: (0, {2})}.
func outputAliases(i *hlo.Instruction) ([]outputAlias, error) {
	text, ok := i.Attribute("output_to_operand_aliasing")
	if !ok {
		return nil, nil
	}
	fail := &hlo.AttributeError{Instruction: i, Key: "output_to_operand_aliasing", Want: "{{output}: (operand, {index}), ...}"}
	text = strings.Join(strings.Fields(text), "")
	text, open := strings.CutPrefix(text, "{")
	text, closed := strings.CutSuffix(text, "}")
	if !open || !closed {
		return nil, fail
	}
	var list []outputAlias
	for text != "" {
		left, rest, ok := strings.Cut(text, "}:(")
		if !ok {
			return nil, fail
		}
		right, rest, ok := strings.Cut(rest, ")")
		if !ok {
			return nil, fail
		}
		operand, index, _ := strings.Cut(right, ",")
		var x outputAlias
		var err error
		if x.operand, err = strconv.Atoi(operand); err != nil || x.operand < 0 {
			return nil, fail
		}
		// A word such as may-alias can stand behind the index.
		index, _, _ = strings.Cut(strings.TrimPrefix(index, "{"), "}")
		output, ok := strings.CutPrefix(left, "{")
		if !ok {
			return nil, fail
		}
		if x.output, err = numbers(output); err != nil {
			return nil, fail
		}
		if x.index, err = numbers(index); err != nil {
			return nil, fail
		}
		list = append(list, x)
		text = strings.TrimPrefix(rest, ",")
	}
	return list, nil
}

// numbers reads 1,2,3.
func numbers(text string) (list []int, err error) {
	if text == "" {
		return nil, nil
	}
	for _, f := range strings.Split(text, ",") {
		n, err := strconv.Atoi(f)
		if err != nil {
			return nil, err
		}
		list = append(list, n)
	}
	return list, nil
}
