package advice

// Loops over layers (jax.lax.scan): what their forward pass stacks up for the backward pass, and
// what jax.checkpoint around the loop's body would leave of it.
//
// A step of a language model has two loops. In the body of the first the state p has, beside
// the activations x, an array for each value that the gradient needs:
//
//	h    = fusion(x, w)                       one layer's value, 4 MiB
//	s'   = dynamic-update-slice(p.s, h, i)    the stack of it, 12 layers, 48 MiB
//	root = tuple(i+1, x', s', ...)
//
// and the second loop reads s slice by slice. No plan makes s smaller: every layer's h is there
// when the first loop ends. With jax.checkpoint the body is computed again in the second loop,
// from the x that each layer begins with: a stack of x, 12 times the carried values, takes
// the place of all of those, and what one layer computes is there once.

import (
	"cmp"
	"math"
	"slices"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/opname"
)

// A Loop is a loop that stacks up values for the backward pass. Memory is in bytes.
type Loop struct {
	Name  string `json:"name"`          // its op_name
	At    string `json:"at,omitempty"`  // the line of the program, such as train.py:98
	Trips uint64 `json:"trips"`         // how often its body runs
	Bytes uint64 `json:"stacked_bytes"` // of the stacks that the backward pass reads
	// Stacked are the stacks by the operation whose value it is, the largest first.
	Stacked []Holder `json:"stacked"`
	// Carried is what a stack of the values takes that each round hands to the next.
	Carried uint64 `json:"carried_bytes"`
	// After is what temporaries take with jax.checkpoint around the body, as predicted: the
	// heap now, without the stacks, with a stack of what is carried and one round's values.
	After uint64  `json:"temp_after_bytes"`
	Extra float64 `json:"extra_compute_percent"` // one more run of the body for each round
	// Products are the results of products without batch dimensions that stacks are made of:
	// what offload_dot_with_no_batch_dims moves to the host's memory, over all rounds.
	Products uint64 `json:"product_bytes"`
}

// findLoops returns the loops of the entry whose stacks another loop reads, the largest first, and
// of the instructions that make room for stacks the part of the program whose values come
// there. heap is what temporaries take now, in bytes, and total what a run takes, in seconds.
func findLoops(m *hlo.Module, heap uint64, rates cost.Rates, total float64) ([]Loop, map[*hlo.Instruction]string, error) {
	prices, err := cost.New(m, rates)
	if err != nil {
		return nil, nil, err
	}

	sources := m.Sources()
	var list []Loop
	rooms := map[*hlo.Instruction]string{}
	for _, w := range m.Entry.Instructions {
		trips, ok := isLoop(w)
		if !ok {
			continue
		}
		s := stacker{w: w, body: w.Call("body"), rooms: rooms, Loop: Loop{Name: w.OpName(), At: sources.Place(w), Trips: trips}}
		for n := range w.Shape.Elements {
			if err := s.addElement(n); err != nil {
				return nil, nil, err
			}
		}
		if s.Bytes == 0 {
			continue
		}
		l := s.Loop
		l.Stacked = s.stacked.largestFirst()
		l.Products = trips * productBytes(s.stacks)
		l.After = heap - min(heap, l.Bytes) + l.Carried + s.round - s.largest*5/8
		if total > 0 {
			l.Extra = math.Round(1e6*prices.Computation(s.body).Seconds*float64(trips)/total) / 1e4
		}
		if l.After < heap {
			list = append(list, l)
		}
	}

	slices.SortStableFunc(list, func(a, b Loop) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list, rooms, nil
}

// isLoop reports whether an instruction is a loop over a tuple that runs more than once, and how often.
func isLoop(w *hlo.Instruction) (trips uint64, ok bool) {
	body := w.Call("body")
	if w.Opcode != hlo.While || body == nil || w.Shape.Type != hlo.Tuple {
		return 0, false
	}
	trips, known := cost.TripCount(w)
	root := body.Root
	return trips, known && trips > 1 && root.Opcode == hlo.TupleOp && len(root.Operands) == len(w.Shape.Elements)
}

// A stacker finds what one loop stacks up.
type stacker struct {
	w     *hlo.Instruction
	body  *hlo.Computation
	rooms map[*hlo.Instruction]string // see findLoops
	Loop
	stacked tally
	stacks  []*hlo.Instruction // what hands them on
	// round and largest are the bytes of the values of one round that no fusion computes where it
	// needs them: of all, and of one.
	round, largest uint64
}

// addElement looks at an element of the loop's state.
func (s *stacker) addElement(n int) error {
	e := s.w.Shape.Elements[n]
	bytes, err := e.TotalBytes()
	if err != nil {
		return err
	}

	made := through(s.body.Root.Operands[n])
	if slotOf(s.body, made) == n || !e.IsArray() {
		return nil // it stays as it is
	}

	written := writtenInto(s.body, made, n)
	if written == nil {
		if len(e.Dims) > 0 {
			s.Carried += bytes * s.Trips
		}
		return nil
	}

	read := findReaders(s.w, n)
	if len(read) == 0 {
		return nil
	}

	// The loop may read it in a larger type: on a CPU bfloat16 becomes float32.
	for _, e := range read {
		if n, err := e.Shape.TotalBytes(); err == nil {
			bytes = max(bytes, n)
		}
	}

	part := opname.Part(written)
	s.stacks = append(s.stacks, made)
	s.stacked.addValue(part, bytes)
	s.Bytes += bytes
	s.noteRoom(n, part)
	if !isFused(rootOf(written).Opcode) || slices.ContainsFunc(read, isReadWhole) {
		s.round += bytes / s.Trips
		s.largest = max(s.largest, bytes/s.Trips)
	}
	return nil
}

// noteRoom notes whose values come into the room for a stack.
func (s *stacker) noteRoom(n int, part string) {
	init := s.w.Operands[0]
	if init.Opcode != hlo.TupleOp {
		return
	}

	s.rooms[init.Operands[n]] = "stacked: " + part
	room := through(init.Operands[n])
	s.rooms[room] = "stacked: " + part
	if room.Opcode == hlo.GetTupleElement { // for several
		s.rooms[room.Operands[0]] = "stacked"
	}
}

// through returns what an instruction is a copy or another view of.
func through(i *hlo.Instruction) *hlo.Instruction {
	for (i.Opcode == hlo.Copy || i.Opcode == hlo.Bitcast || i.Opcode == hlo.Reshape || i.Opcode == hlo.Convert) && len(i.Operands) == 1 {
		i = i.Operands[0]
	}
	return i
}

// slotOf returns the number of the element of a body's state that an instruction is, -1 if
// it is none.
func slotOf(body *hlo.Computation, i *hlo.Instruction) int {
	if i = through(i); i.Opcode != hlo.GetTupleElement || through(i.Operands[0]).Opcode != hlo.Parameter || i.Parent != body {
		return -1
	}
	n, err := i.TupleIndex()
	if err != nil {
		return -1
	}
	return n
}

// writtenInto returns the instruction whose value a body writes into element n of its state,
// with a dynamic-update-slice that may be in a fusion; nil if it writes none there.
func writtenInto(body *hlo.Computation, made *hlo.Instruction, n int) *hlo.Instruction {
	index := -1
	if made.Opcode.IsAsyncDone() && len(made.Operands) == 1 { // a fusion that runs beside others
		made = made.Operands[0]
	}
	if made.Opcode == hlo.GetTupleElement && made.Operands[0].Opcode == hlo.Fusion {
		k, err := made.TupleIndex()
		if err != nil {
			return nil
		}
		index, made = k, made.Operands[0]
	}

	update, c := made, made.Call("calls")
	if c != nil {
		if update = c.Root; index >= 0 && update.Opcode == hlo.TupleOp && index < len(update.Operands) {
			update = update.Operands[index]
		}
		update = through(update)
	}

	if update.Opcode != hlo.DynamicUpdateSlice {
		return nil
	}

	into := through(update.Operands[0])
	if c != nil {
		if into.Opcode != hlo.Parameter || into.Parameter >= len(made.Operands) {
			return nil
		}
		into = through(made.Operands[into.Parameter])
	}

	if slotOf(body, into) != n {
		return nil
	}

	value := through(update.Operands[1])
	for value.Opcode == hlo.Broadcast || value != through(value) {
		value = through(value.Operands[0])
	}

	// Behind the parameter of a fusion stands what computes it.
	if c != nil && value.Opcode == hlo.Parameter && value.Parameter < len(made.Operands) {
		value = through(made.Operands[value.Parameter])
	}
	return value
}

// rootOf returns what computes a value: of a fusion its root.
func rootOf(i *hlo.Instruction) *hlo.Instruction {
	if i.Opcode == hlo.GetTupleElement && i.Operands[0].Opcode == hlo.Fusion {
		n, err := i.TupleIndex()
		if c := i.Operands[0].Call("calls"); err == nil && c != nil && c.Root.Opcode == hlo.TupleOp && n < len(c.Root.Operands) {
			return through(c.Root.Operands[n])
		}
	}

	if c := i.Call("calls"); i.Opcode == hlo.Fusion && c != nil {
		return through(c.Root)
	}
	return i
}

// isFused reports whether a fusion computes an operation where its result is needed.
func isFused(o hlo.Opcode) bool {
	return o.Unary() || o.Binary() || o == hlo.Select || o == hlo.Compare || o == hlo.Broadcast
}

// contracts reports whether an operation reads its operands as a whole, so that no fusion
// computes them meanwhile.
func contracts(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.Dot, hlo.Convolution, hlo.CustomCall:
		return true
	case hlo.Fusion:
		c := i.Call("calls")
		return c != nil && slices.ContainsFunc(c.Instructions, contracts)
	}
	return false
}

// productBytes returns the bytes of the products without batch dimensions that some instructions of a body
// are computed from in one round, without those that such a product reads.
func productBytes(list []*hlo.Instruction) (bytes uint64) {
	seen := map[*hlo.Instruction]bool{}
	for agenda := slices.Clone(list); len(agenda) > 0; {
		i := agenda[len(agenda)-1]
		agenda = agenda[:len(agenda)-1]
		if seen[i] {
			continue
		}
		seen[i] = true
		dot := i
		if c := i.Call("calls"); c != nil && i.Opcode == hlo.Fusion {
			if n := slices.IndexFunc(c.Instructions, func(x *hlo.Instruction) bool { return x.Opcode == hlo.Dot }); n >= 0 {
				dot = c.Instructions[n]
			}
		}
		if _, batch := dot.Attribute("lhs_batch_dims"); dot.Opcode == hlo.Dot && !batch {
			n, err := dot.Shape.TotalBytes()
			if err == nil {
				bytes += n
			}
			continue
		}
		agenda = append(agenda, i.Operands...)
	}

	return bytes
}

// isReadWhole reports whether such an operation reads a value, or a slice of it.
func isReadWhole(i *hlo.Instruction) bool {
	return slices.ContainsFunc(i.Users, func(u *hlo.Instruction) bool {
		if contracts(u) {
			return true
		}
		switch u.Opcode {
		case hlo.Copy, hlo.Bitcast, hlo.Reshape, hlo.Transpose, hlo.DynamicSlice, hlo.Slice, hlo.Convert:
			return isReadWhole(u)
		case hlo.Fusion:
			return onlySlices(u.Call("calls")) && isReadWhole(u)
		}
		return false
	})
}

// onlySlices reports whether a fusion does no more than slice a value.
func onlySlices(c *hlo.Computation) bool {
	return c != nil && through(c.Root).Opcode == hlo.DynamicSlice
}

// findReaders returns, of the loops that read element n of a loop's result, the element of the state
// in their body; none if something else reads it, too.
func findReaders(w *hlo.Instruction, n int) (list []*hlo.Instruction) {
	agenda := []*hlo.Instruction{}
	for _, u := range w.Users {
		if k, err := u.TupleIndex(); err == nil && u.Opcode == hlo.GetTupleElement && k == n {
			agenda = append(agenda, u)
		}
	}

	seen := map[*hlo.Instruction]bool{}
	for len(agenda) > 0 {
		i := agenda[len(agenda)-1]
		agenda = agenda[:len(agenda)-1]
		for _, u := range i.Users {
			if seen[u] {
				continue
			}
			seen[u] = true
			switch u.Opcode {
			case hlo.TupleOp:
				if len(u.Users) == 0 { // the result
					return nil
				}
				for _, v := range u.Users {
					if v.Opcode != hlo.While || v.Call("body") == nil {
						return nil
					}
					for _, e := range v.Call("body").Instructions {
						if k := slotOf(v.Call("body"), e); e.Opcode == hlo.GetTupleElement && k >= 0 && k < len(u.Operands) && u.Operands[k] == i {
							list = append(list, e)
						}
					}
				}
			case hlo.Copy, hlo.Bitcast, hlo.Reshape, hlo.OptBarrier, hlo.Convert, hlo.Fusion:
				if u.Opcode == hlo.Fusion && (len(u.Operands) > 1 || through(rootOf(u)).Opcode != hlo.Parameter) {
					return nil // more than another form of it
				}
				agenda = append(agenda, u)
			default:
				return nil
			}
		}
	}

	return list
}
