package legal

// The loops whose state changed, and which elements of it are the same.
//
// Of
//
//	forward, in round i                           backward, in round j
//	t   = tanh(h)                                 t = dynamic-slice(ts, n-1-j)
//	ts' = dynamic-update-slice(ts, t, i)          g = multiply(t, d)
//	hs' = dynamic-update-slice(hs, h, i)
//
// the planned module has no ts: its backward body has t' = tanh(dynamic-slice(hs, n-1-j)), and
// g = multiply(t', d). Such loops are paired by their names, and the elements of their states by
// what makes them in each round. All of that is a guess, which stacks.go confirms: there both
// bodies are numbered, element by element.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"

	"gpumem/xla/internal/hlo"
)

// A changedLoop is a loop whose state is another in the planned module.
type changedLoop struct {
	id     int32
	number int32 // of the loop in the list: 1, 2, ...
	before loopSide
	after  loopSide
	// forward is set if the loop reads stacks of another one, whose round is a*j + b.
	forward *changedLoop
	a, b    int64
}

// A loopSide is a changed loop in one of the modules.
type loopSide struct {
	*changedLoop
	w               *hlo.Instruction
	body, condition *hlo.Computation
	names           []int32 // of the elements: the same in both modules; below 0: new
	inits, nexts    []int32
	counter         int // the element that counts rounds, -1: unknown
	rounds          int64
	test            int32 // the condition's number
	// configs are what a compiler wrote down about slots: of a GPU's backend, how the
	// bytes' place depends on the round, which does not hold in another loop.
	configs map[string]*hlo.Instruction
}

// changedLoops pairs the loops whose state has other shapes; it is empty if none has. With all it
// pairs all loops, as what a state has may be another at the same shapes.
func changedLoops(before, after *hlo.Module, all bool) ([]*changedLoop, error) {
	var list []*changedLoop
	for _, c := range after.Computations {
		old := before.Computation(c.Name)
		if old == nil {
			continue
		}
		for _, w := range c.Instructions {
			if w.Opcode != hlo.While {
				continue
			}
			x := old.Instruction(w.Name)
			if x == nil || x.Opcode != hlo.While {
				continue
			}
			same := len(x.Shape.Elements) == len(w.Shape.Elements) && x.Shape.Equal(w.Shape)
			if same && !all {
				continue
			}

			k := &changedLoop{number: int32(len(list) + 1)}
			k.before, k.after = loopSide{changedLoop: k, w: x}, loopSide{changedLoop: k, w: w}
			err := cmp.Or(k.before.checkForm(), k.after.checkForm())
			if err == nil {
				err = k.matchElements()
			}
			switch {
			case err == nil:
				list = append(list, k)
			case !same:
				return nil, err
			}
		}
	}

	return list, nil
}

// bodies returns the body and the condition of a loop.
func (s *loopSide) bodies() [2]*hlo.Computation { return [2]*hlo.Computation{s.body, s.condition} }

// checkForm checks that a loop has the form that can be proven.
func (s *loopSide) checkForm() error {
	s.counter = -1
	s.body, s.condition = s.w.Call("body"), s.w.Call("condition")
	no := func(what string) error {
		return refuse(s.w, "its state changed, and %s: that cannot be proven", what)
	}

	if s.body == nil || s.condition == nil || s.w.Shape.Type != hlo.Tuple || len(s.w.Operands) != 1 {
		return no("it is no loop over a tuple")
	}
	if root := s.body.Root; root.Opcode != hlo.TupleOp || len(root.Operands) != len(s.w.Shape.Elements) {
		return no("its body does not end in a tuple")
	}

	for _, c := range s.bodies() {
		if list := c.Parameters(); len(list) != 1 || list[0] == nil {
			return no("its body has several parameters")
		}
		for i := range s.w.Parent.Module.All() {
			if i != s.w && slices.Contains(i.Called(), c) {
				return no(i.Name + " calls " + c.Name + ", too")
			}
		}
	}

	return nil
}

// sharesMemory reports two elements of the state that begin in the same memory, if a round may write to
// it. XLA copies one of them, but not after it has scheduled.
func (s *loopSide) sharesMemory() error {
	tuple := s.w.Operands[0]
	if tuple.Opcode != hlo.TupleOp {
		return refuse(s.w, "its state changed, and does not begin as a tuple: that cannot be proven")
	}

	type place struct {
		i  *hlo.Instruction
		at string
	}

	first := map[place]int{}
	for n, o := range tuple.Operands {
		i, at := lookThrough(o, nil)
		x := place{i, fmt.Sprint(at)}
		k, known := first[x]
		if known && (s.isCarried(k) || s.isCarried(n)) {
			return refuse(s.w, "elements %d and %d of its state begin in the same memory, and a round writes there", k, n)
		}
		if !known {
			first[x] = n
		}
	}

	return nil
}

// isCarried reports whether a round may change element k of the state.
func (s *loopSide) isCarried(k int) bool {
	o := s.body.Root.Operands[k]
	if o.Opcode != hlo.GetTupleElement || o.Operands[0] != s.body.Parameters()[0] {
		return true
	}
	n, err := o.TupleIndex()
	return err != nil || n != k
}

// matchElements names the elements of both loops. What is matched is only a guess, which the induction
// confirms: two are one if the same instruction, by name, makes their next value.
func (k *changedLoop) matchElements() error {
	free := map[int]bool{}
	k.before.names = make([]int32, len(k.before.w.Shape.Elements))
	for n := range k.before.names {
		k.before.names[n] = int32(n)
		free[n] = k.before.isCarried(n)
	}

	for n := range k.after.w.Shape.Elements {
		name := int32(-1 - n)
		if k.after.isCarried(n) {
			if m := k.findElement(n, free); m >= 0 {
				name, free[m] = int32(m), false
			}
		}
		k.after.names = append(k.after.names, name)
	}

	// What a compiler wrote down about the loop must stay true.
	was, is := namedElements(k.before.w), namedElements(k.after.w)
	if len(was) != len(is) {
		return refuse(k.after.w, "its backend_config differs")
	}

	for n := range is {
		if is[n] >= len(k.after.names) || k.after.names[is[n]] != int32(was[n]) {
			return refuse(k.after.w, "its backend_config names element %d, which is another one now", is[n])
		}
	}
	return nil
}

// findElement returns which of the free elements of the given loop element n of the planned one was,
// -1 if none: by the name of what makes it, then by that of its original, then as what was an output of a
// fusion that is pruned to it.
func (k *changedLoop) findElement(n int, free map[int]bool) int {
	is, e := k.after.body.Root.Operands[n], k.after.w.Shape.Elements[n]
	for by, name := range []string{is.Name, originalName(is.Name), is.Name} {
		for m, x := range k.before.w.Shape.Elements {
			was := k.before.body.Root.Operands[m]
			if by == 2 {
				if was.Opcode != hlo.GetTupleElement {
					continue
				}
				was = was.Operands[0]
			}
			if free[m] && sameShape(x, e) && was.Name == name {
				return m
			}
		}
	}

	return -1
}

func sameShape(x, y *hlo.Shape) bool { return x.Equal(y) && x.FullLayout() == y.FullLayout() }

var tupleIndex = regexp.MustCompile(`"tuple_index":"(\d+)"`)

// namedElements returns the elements that a loop's backend_config names.
func namedElements(w *hlo.Instruction) (list []int) {
	config, _ := w.Attribute("backend_config")
	for _, m := range tupleIndex.FindAllStringSubmatch(config, -1) {
		n, err := strconv.Atoi(m[1])
		if err != nil {
			n = 1 << 30
		}
		list = append(list, n)
	}
	return list
}
