package alias

// The parts of shapes, numbered in preorder.
//
// The shape (f32[2], (s32[], pred[]), f32[3]) has six parts: 0 its table, 1 f32[2], 2 the
// table of the inner tuple, 3 s32[], 4 pred[] and 5 f32[3]. Index {1, 1} leads to pred[]: its
// offset is 4, as element 1 begins at 2 and element 1 of that one 2 further on. So a result
// of that shape takes six consecutive positions of a Flow.

import (
	"sort"

	"gpumem/xla/internal/hlo"
)

// countParts is how many parts a shape has, tables of tuples included: 1 for an array or a token.
func countParts(s *hlo.Shape) int32 {
	n := int32(1)
	for _, e := range s.Elements {
		n += countParts(e)
	}
	return n
}

// sameParts reports whether values can be forwarded from one shape to another: they have the
// same parts.
func sameParts(s, t *hlo.Shape) bool {
	if len(s.Elements) != len(t.Elements) || (s.Type == hlo.Tuple) != (t.Type == hlo.Tuple) {
		return false
	}
	for k := range s.Elements {
		if !sameParts(s.Elements[k], t.Elements[k]) {
			return false
		}
	}
	return true
}

// A places table has the preorder numbers of the elements of wide tuples. Each tuple's are
// found once: counting them for each element would take the square of the elements.
type places struct {
	starts map[*hlo.Shape][]int32
	looked int // elements that were looked at, for tests
}

// wideTuple is how many elements a tuple needs to be worth a table. Training steps return
// tuples of thousands, and most others have two or three.
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

// element returns the place in preorder of element k of a tuple: 1, for the table, and the parts
// of all elements before it.
func (t *places) element(s *hlo.Shape, k int) int {
	if len(s.Elements) < wideTuple {
		at := 1
		for _, e := range s.Elements[:k] {
			at += int(countParts(e))
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
			at += countParts(e)
		}
		if t.starts == nil {
			t.starts = map[*hlo.Shape][]int32{}
		}
		t.starts[s] = starts
	}
	return int(starts[k])
}

// index returns the index of the part at a place in preorder: of place 4 in the example {1, 1}.
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

// eachPart calls visit for the parts of a shape in preorder, until it returns an error. The index
// is only good for the call.
func eachPart(s *hlo.Shape, index []int, visit func(*hlo.Shape, []int) error) error {
	if err := visit(s, index); err != nil {
		return err
	}
	for k, e := range s.Elements {
		if err := eachPart(e, append(index, k), visit); err != nil {
			return err
		}
	}
	return nil
}
