package memory

// The buffers of a computation in the model of XLA's rematerialization pass
// (xla/hlo/transforms/simplifiers/hlo_rematerialization.cc, and below it
// xla/hlo/analysis/tuple_points_to_analysis.cc, 2026).
//
// In the module of live.go there are four buffers: p, n, the table of t, and s; g defines
// none. p is used by n and t. n is used by t as operand 1, and by s as operands 0 and 1: so
// it has three uses and two users, t and s. The table is used by g. s is live out.

import (
	"fmt"
	"math"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
)

// A Buffer is memory that one instruction defines: its result, or a part of it.
type Buffer struct {
	Definer int32      // place of the defining instruction
	Index   []int      // which part of its result; empty: the whole
	Shape   *hlo.Shape // of that part
	Bytes   int64
	// Temp is Bytes, or 0 for a buffer that does not count: a parameter and what the
	// computation returns, which are the caller's, and with [Options.HostFree] what lies
	// in the host's memory.
	Temp    int64
	Uses    []Use
	Users   int  // different instructions among Uses
	LiveOut bool // the computation returns it
	// Indirect reports whether something other than a bitcast or a get-tuple-element
	// forwards the buffer to a user.
	Indirect bool
}

// A Use is an operand through which an instruction uses a buffer.
type Use struct {
	User    int32 // place of the using instruction
	Operand int32 // number of its operand
	// Index is the buffer's place in its definer's tuple, and -1 for a buffer that is
	// no element of the outermost tuple. xla/internal/pass asks for it to give a user of the element a
	// get-tuple-element of a clone.
	Index int32
}

// Buffers are those of one computation. Places count its list of instructions
// from 0, and the numbers of buffers are places in List. The lists share memory: a caller may
// change elements, and append to a list only after a copy.
type Buffers struct {
	List []Buffer
	// Defined, Used and Outputs are buffers by the place of the instruction that
	// defines or uses them, or whose result they are part of.
	Defined, Used, Outputs [][]int32
}

// mostBytes is the most that the buffers of a computation may take together, so
// that no sum of them overflows: 2^59 bytes. A sum counts a buffer at most a few times.
const mostBytes = math.MaxInt64 >> 4

// An analyzer has what the analyses of several computations share: what fused computations read,
// which does not change while a Meter lives.
type analyzer struct {
	options Options
	maxUses int // see mostUses
	fused   map[*hlo.Computation][][]bool
	looked  int // operands and uses that were looked at, for tests
}

func newAnalyzer(o Options) *analyzer {
	return &analyzer{options: o, maxUses: mostUses, fused: map[*hlo.Computation][][]bool{}}
}

// analyze finds the buffers of a computation: first the values and their uses, then one buffer
// for each value but those of whiles, which add their users to the operand's.
func (a *analyzer) analyze(c *hlo.Computation) (*Buffers, error) {
	f, err := alias.AnalyzeComputation(c)
	if err != nil {
		return nil, err
	}
	uses, indirect, err := a.uses(f)
	if err != nil {
		return nil, err
	}
	n := len(c.Instructions)
	b := &Buffers{List: make([]Buffer, 0, len(f.Values)),
		Defined: make([][]int32, n), Used: emptyLists(uses, n), Outputs: make([][]int32, n)}
	// Buffers are found in the order of their definers, so that those of one definer are
	// consecutive, and Defined can point into one list.
	ids := make([]int32, 0, len(f.Values))

	liveOut := make([]bool, len(f.Values))
	for _, v := range f.Parts(f.Root(0)) {
		liveOut[v] = true
	}
	// A while's values have the numbers of the buffers that they are joined to.
	number := make([]int32, len(f.Values)) // of the buffer of each value
	last := make([]int32, n)               // by user: 1 + the last buffer that it was counted for
	// A while comes behind its operand, whose buffer has a number by then.
	var sum uint64
	known := map[int32]map[int32]bool{} // see joinWhile
	for v := range f.Values {
		d := &f.Values[v]
		if d.Instruction.Opcode == hlo.While {
			o, sub, err := loopOperand(f, d)
			if err != nil {
				return nil, err
			}
			number[v] = number[f.Parts(o)[sub]]
			b.joinWhile(number[v], uses[v], liveOut[v], known)
			continue
		}
		bytes, err := addSize(&sum, d)
		if err != nil {
			return nil, err
		}
		id, definer := int32(len(b.List)), int32(d.Node)
		number[v] = id
		buffer := Buffer{Definer: definer, Index: d.Index, Shape: d.Shape, Bytes: int64(bytes)}
		buffer.Uses, buffer.LiveOut, buffer.Indirect = uses[v], liveOut[v], indirect[v]
		for _, u := range buffer.Uses {
			if last[u.User] != id+1 {
				last[u.User] = id + 1
				buffer.Users++
				b.Used[u.User] = append(b.Used[u.User], id)
			}
		}
		b.List, ids = append(b.List, buffer), append(ids, id)
		first := len(ids) - 1 - len(b.Defined[definer])
		b.Defined[definer] = ids[first:len(ids):len(ids)]
	}
	for id := range b.List {
		x := &b.List[id]
		parameter := c.Instructions[x.Definer].Opcode == hlo.Parameter
		if !x.LiveOut && !parameter && !(a.options.HostFree && x.Shape.Space() == hlo.HostSpace) {
			x.Temp = x.Bytes
		}
	}
	seen := make([]int32, len(b.List))
	outputs := make([]int32, 0, len(f.Values))
	for k := range c.Instructions {
		first := len(outputs)
		for _, v := range f.Parts(alias.Node(k)) {
			if id := number[v]; seen[id] != int32(k)+1 {
				seen[id] = int32(k) + 1
				outputs = append(outputs, id)
			}
		}
		b.Outputs[k] = outputs[first:len(outputs):len(outputs)]
	}
	return b, nil
}

// addSize adds the bytes of a value to a sum, and returns them. The error names what makes the sum
// too large, or has no size.
func addSize(sum *uint64, v *alias.Value) (bytes uint64, err error) {
	bytes, err = v.Shape.Bytes()
	if err == nil && (bytes > mostBytes || *sum+bytes > mostBytes) {
		err = hlo.ErrTooLarge
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", hlo.Where(v.Instruction), err)
	}
	*sum += bytes
	return bytes, nil
}

// loopOperand is the operand of the while that defines v, and v's part of it. In this model the
// state of a loop stays in the memory that it begins in, so that the while defines no buffer.
func loopOperand(f *alias.Flow, v *alias.Value) (o alias.Node, part int32, err error) {
	w := v.Instruction
	if len(w.Operands) != 1 {
		return 0, 0, shapeError(w, "a while takes one operand")
	}
	o, _ = f.Node(0, w.Operands[0])
	part = int32(v.ID) - f.Parts(v.Node)[0] // it defines all parts of its result
	if int(part) >= len(f.Parts(o)) {
		return 0, 0, shapeError(w, "its shape is not that of its operand")
	}
	return o, part, nil
}

// emptyLists returns an empty list for each of n users, in one piece of memory, with the
// capacity for all that it uses. Only joinWhile may add more, by which the list moves out.
func emptyLists(uses [][]Use, n int) [][]int32 {
	count := make([]int32, n)
	for _, list := range uses {
		for _, u := range list {
			count[u.User]++
		}
	}
	return carve[int32](count)
}

// carve returns empty lists with the given capacities, in one piece of memory; nil for 0.
func carve[T any](capacities []int32) [][]T {
	total := 0
	for _, n := range capacities {
		total += int(n)
	}
	lists, free := make([][]T, len(capacities)), make([]T, total)
	for k, n := range capacities {
		if n > 0 {
			lists[k], free = free[:0:n], free[n:]
		}
	}
	return lists
}

// joinWhile gives the buffer of a while's operand the users of the while's own part. known
// are the users of buffers that were joined before: a chain of loops hands one buffer on
// many times, and looking through all of its users each time would take their square.
func (b *Buffers) joinWhile(id int32, uses []Use, liveOut bool, known map[int32]map[int32]bool) {
	buffer := &b.List[id]
	buffer.Indirect = true
	buffer.LiveOut = buffer.LiveOut || liveOut
	users := known[id]
	if users == nil && len(uses) > 0 {
		users = make(map[int32]bool, len(buffer.Uses)+len(uses))
		for _, u := range buffer.Uses {
			users[u.User] = true
		}
		known[id] = users
	}
	for _, u := range uses {
		if !users[u.User] {
			users[u.User] = true
			buffer.Users++
			buffer.Uses = append(buffer.Uses, u)
			b.Used[u.User] = append(b.Used[u.User], id)
		}
	}
}

// mostUses limits the uses of all values in a computation: an instruction whose operands are
// n times the same tuple uses each part n times.
const mostUses = 1 << 24

// A partUse is a use and the part that is used. Parts are values, numbered as in the Flow.
type partUse struct {
	part int32
	Use
}

// uses finds the uses of each value, and whether an instruction other than a bitcast or a
// get-tuple-element forwards it.
//
// An instruction uses the values that its operands' results consist of. In the module of
// live.go n is a part of the result of n, used by t as operand 1; of the result of t, used
// by g, but a get-tuple-element reads the table alone; and of the result of g, used by s as
// operands 0 and 1. The same use may be found by way of two results, and counts once.
func (a *analyzer) uses(f *alias.Flow) (uses [][]Use, indirect []bool, err error) {
	indirect = make([]bool, len(f.Values))
	seen := make([]int32, len(f.Values)) // 1 + the last instruction whose result has it
	// All uses as they are found, in one list: by value they would be thousands of short ones.
	all := make([]partUse, 0, 2*len(f.Values))
	for k, i := range f.Schedule {
		from := len(all)
		var known map[partUse]bool // those found through i, where it has a part twice
		list := f.Parts(alias.Node(k))
		readers, err := a.readers(f, i, len(list))
		if err != nil {
			return nil, nil, err
		}
		for sub, v := range list {
			// A tuple may have one value in several elements: tuple(a, a). Its users read it
			// once, though they are met for each element.
			again := seen[v] == int32(k)+1
			seen[v] = int32(k) + 1
			if again && known == nil {
				known = make(map[partUse]bool, len(all)-from)
				for _, use := range all[from:] {
					known[use] = true
				}
				a.looked += len(known)
			}
			d := &f.Values[v]
			index := int32(-1)
			if len(d.Index) == 1 {
				index = int32(d.Index[0])
			}
			for _, u := range readers.of(sub) {
				a.looked++
				user, ok := f.Node(0, u)
				if !ok {
					return nil, nil, shapeError(u, "it uses an instruction of another computation")
				}
				if int(d.Node) != k && !HandsOn(i) {
					indirect[v] = true
				}
				for _, n := range f.Numbers(u, i) {
					use := partUse{v, Use{User: int32(user), Operand: n, Index: index}}
					if known != nil {
						if known[use] {
							continue
						}
						known[use] = true
					}
					all = append(all, use)
				}
				if len(all) > a.maxUses {
					return nil, nil, fmt.Errorf("%s: with it, the parts of results have more than %d uses", hlo.Where(u), a.maxUses)
				}
			}
		}
	}
	a.looked += f.Looked()
	// By part, in one piece of memory.
	count := make([]int32, len(f.Values))
	for n := range all {
		count[all[n].part]++
	}
	uses = carve[Use](count)
	for n := range all {
		q := all[n].part
		uses[q] = append(uses[q], all[n].Use)
	}
	return uses, indirect, nil
}

// HandsOn reports whether an instruction only forwards buffers, in a way that the
// pass can look through: it is a bitcast or a get-tuple-element. A tuple forwards, too, but a
// user behind it cannot be given another value without a new tuple.
func HandsOn(i *hlo.Instruction) bool {
	return i.Opcode == hlo.Bitcast || i.Opcode == hlo.GetTupleElement
}

func shapeError(i *hlo.Instruction, what string) error {
	return fmt.Errorf("%s: %s: %s", hlo.Where(i), i.Opcode, what)
}
