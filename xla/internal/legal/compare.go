package legal

// The comparison of two numbered modules, computation by computation.
//
// The entries are a pair, and so is what two instructions with one number call. Each pair is
// compared by itself: since a computation's number says what it does each time it runs, what
// runs not more often within each pair runs not more often in the module.

import (
	"bytes"
	"cmp"
	"slices"

	"gpumem/xla/internal/hlo"
)

// A comparison is one run of [Options.Check].
type comparison struct {
	o             Options
	t             *table
	before, after *numbering
	paired        map[*hlo.Computation]*hlo.Computation // what a computation of after was
	loops         []*changedLoop                        // see stacks.go
}

// compareModules compares the entries and all that they call.
func (c *comparison) compareModules() error {
	list := []*pair{c.newPair(c.before.m.Entry, c.after.m.Entry, nil)}
	for _, k := range c.loops {
		was, is := k.before.bodies(), k.after.bodies()
		for n := range is {
			list = append(list, c.newPair(was[n], is[n], k))
		}
		if err := c.checkInduction(k); err != nil {
			return err
		}
	}

	for len(list) > 0 {
		k := list[len(list)-1]
		list = list[:len(list)-1]
		if err := k.comparePair(); err != nil {
			return err
		}
		for _, i := range k.now.Instructions {
			x := k.originalOf(i)
			if x == nil {
				continue
			}
			was := x.Called()
			for n, is := range i.Called() {
				switch {
				case c.paired[is] != nil:
				case c.after.isPureFusion(i): // its number says all of it
					c.paired[is] = was[n]
				default:
					list = append(list, c.newPair(was[n], is, nil))
				}
			}
		}
	}

	return cmp.Or(c.checkOwners(), c.checkChannels())
}

// checkOwners checks that what had one caller still has, where XLA demands it.
func (c *comparison) checkOwners() error {
	was, is := ownersOf(c.before.m), ownersOf(c.after.m)
	for _, callee := range c.after.m.Computations {
		list, old := is[callee], c.paired[callee]
		if len(list) < 2 {
			continue
		}
		if old == nil { // inside of a fusion
			old = c.before.m.Computation(callee.Name)
		}
		if len(was[old]) < 2 {
			return refuse(list[1], "it calls %s, as %s does: the clone of an instruction that owns its computation needs a clone of that, too",
				callee.Name, list[0].Name)
		}
	}

	return nil
}

// ownersOf returns what calls each computation of a module and must be alone in that.
func ownersOf(m *hlo.Module) map[*hlo.Computation][]*hlo.Instruction {
	owners := map[*hlo.Computation][]*hlo.Instruction{}
	for i := range m.All() {
		if ownsCallees(i, m.Scheduled) {
			for _, callee := range i.Called() {
				owners[callee] = append(owners[callee], i)
			}
		}
	}
	return owners
}

// checkChannels checks that the channel of each collective is one that it had, or is new.
func (c *comparison) checkChannels() error {
	type use struct {
		number  int32
		channel string
	}

	had, taken := map[use]bool{}, map[string]bool{}
	for i := range c.before.m.All() {
		if v, ok := i.Attribute("channel_id"); ok {
			had[use{c.before.numbers[i.ID], v}], taken[v] = true, true
		}
	}

	for i := range c.after.m.All() {
		if v, ok := i.Attribute("channel_id"); ok && taken[v] && !had[use{c.after.numbers[i.ID], v}] {
			return refuse(i, "channel_id %s is that of another operation", v)
		}
	}
	return nil
}

// A pair compares a computation with what it was.
type pair struct {
	*comparison
	old, now *hlo.Computation
	byNumber map[int32][]*hlo.Instruction // of old
	names    map[string]*hlo.Instruction  // of old
	loop     *changedLoop                 // whose body or condition it is; nil for others
	forward  map[int32]bool               // what loop's body may compute beside that
}

func (c *comparison) newPair(old, now *hlo.Computation, loop *changedLoop) *pair {
	size := len(old.Instructions)
	k := &pair{
		comparison: c, old: old, now: now, loop: loop,
		byNumber: make(map[int32][]*hlo.Instruction, size), names: make(map[string]*hlo.Instruction, size),
	}
	for _, i := range old.Instructions {
		n := c.before.numbers[i.ID]
		k.byNumber[n] = append(k.byNumber[n], i)
		k.names[i.Name] = i
	}
	c.paired[now] = old
	return k
}

// originalOf returns the instruction of the old computation that computes what i does: that of the same
// name, or else the first; nil if there is none, or none with callees like those of i.
func (k *pair) originalOf(i *hlo.Instruction) *hlo.Instruction {
	list := k.byNumber[k.after.numbers[i.ID]]
	// Behind a get-tuple-element or a barrier stands an instruction of another kind.
	same := func(x *hlo.Instruction) bool { return x.Opcode == i.Opcode && len(x.Called()) == len(i.Called()) }
	if x := k.names[i.Name]; x != nil && same(x) && slices.Contains(list, x) {
		return x
	}
	if n := slices.IndexFunc(list, same); n >= 0 {
		return list[n]
	}
	return nil
}

func (k *pair) comparePair() error {
	if k.loop == nil {
		if err := k.checkParameters(); err != nil {
			return err
		}
	} else {
		k.forward = k.forwardNumbers(k.loop)
	}

	if err := k.checkEffects(); err != nil {
		return err
	}

	for _, i := range k.now.Instructions {
		if err := k.checkInstruction(i); err != nil {
			return err
		}
	}

	if was, is := k.old.Root, k.now.Root; k.loop == nil && !(k.isSame(is, was) && k.isSameShape(is, was)) {
		return k.explainDifference(is, was, "the result")
	}
	if k.old.Thread != k.now.Thread {
		return refuse(k.now.Root, "execution thread %q was %q", k.now.Thread, k.old.Thread)
	}
	return cmp.Or(k.checkCounts(), k.checkOrder(), k.checkWaits())
}

// isSame reports whether two instructions have one number, and isSameShape whether they have one
// shape and layout.
func (k *pair) isSame(i, x *hlo.Instruction) bool {
	return k.after.numbers[i.ID] == k.before.numbers[x.ID]
}

func (k *pair) isSameShape(i, x *hlo.Instruction) bool {
	return k.t.shapeNumber(i.Shape) == k.t.shapeNumber(x.Shape)
}

// checkParameters checks that the caller passes what it did.
func (k *pair) checkParameters() error {
	was, is := k.old.Parameters(), k.now.Parameters()
	if len(was) != len(is) {
		return refuse(k.now.Root, "%s has %d parameters and had %d", k.now.Name, len(is), len(was))
	}

	for n, p := range is {
		if !k.isSameShape(p, was[n]) {
			return refuse(p, "parameter %d was %s", n, was[n].Shape)
		}
	}
	return nil
}

// checkEffects compares what the computations do beside computing, by operations and callees; what
// they do it to is compared by instruction.
func (k *pair) checkEffects() error {
	was, is := k.before.functions[k.old].effects, k.after.functions[k.now].effects
	scheduled := k.now.Module.Scheduled
	if !scheduled {
		was, is = sortedByName(was), sortedByName(is)
	}

	for n, i := range is {
		if n >= len(was) {
			return refuse(i, "it has an effect, and runs once more than before")
		}
		x := was[n]
		if i.Opcode != x.Opcode || !scheduled && i.Name != x.Name {
			return refuse(i, "it has an effect, and stands where %s did: effects have to run as often as before, in the same order", x.Name)
		}
		// What it calls may be at fault: that is reported there.
		if !bytes.Equal(k.before.operationKey(x), k.after.operationKey(i)) {
			return k.explainDifference(i, x, "what has an effect")
		}
	}

	if len(is) < len(was) {
		return refuse(k.now.Root, "%s has an effect, and runs less often than before", was[len(is)].Name)
	}
	return nil
}

// checkInstruction checks that an instruction is one of the old ones, a clone, or hands on values.
func (k *pair) checkInstruction(i *hlo.Instruction) error {
	if list := k.byNumber[k.after.numbers[i.ID]]; len(list) > 0 {
		// What hands on a value may do so under another shape only if its operand says so.
		if i.Opcode == hlo.Bitcast && i.Shape.Space() != i.Operands[0].Shape.Space() && k.originalOf(i) == nil {
			return refuse(i, "a bitcast to another memory space copies nothing")
		}
		return k.checkEnds(i, list[0])
	}

	if k.isOfLoops(i) || handsOn(i) {
		return nil
	}
	if start := copyOf(i); start != nil {
		from, to := start.Operands[0].Shape.Space(), start.Shape.Elements[0].Space()
		if i.Opcode == hlo.CopyDone {
			to = i.Shape.Space()
		}
		if from != hlo.HostSpace && to != hlo.HostSpace {
			return refuse(i, "a copy between memory spaces %d and %d: a plan copies to the host and back", from, to)
		}
		return k.checkEnds(i, nil)
	}

	for _, name := range []string{i.Name, originalName(i.Name)} {
		if x := k.names[name]; x != nil && x.Opcode == i.Opcode {
			return k.explainDifference(i, x, "it")
		}
	}
	return refuse(i, "it is no instruction of the given module, and no clone of one")
}

// handsOn reports whether an instruction may be new because it only hands on values.
func handsOn(i *hlo.Instruction) bool {
	switch i.Opcode {
	case hlo.TupleOp:
		return true
	case hlo.OptBarrier:
		return len(i.Operands) == 1
	case hlo.GetTupleElement:
		return i.Operands[0].Opcode == hlo.OptBarrier
	}
	return false
}

// copyOf returns the start of a copy to another memory space that an instruction starts or ends, nil
// if it does not.
func copyOf(i *hlo.Instruction) *hlo.Instruction {
	if i.Opcode == hlo.CopyDone {
		i = i.Operands[0]
	}
	if i.Opcode == hlo.CopyStart && movesSpace(i) {
		return i
	}
	return nil
}

// checkEnds checks that a start has one end, unless x, which it was, had several or none.
func (k *pair) checkEnds(i, x *hlo.Instruction) error {
	if !isStart(i) {
		return nil
	}
	if n := countEnds(i); n != 1 && (x == nil || !isStart(x) || countEnds(x) == 1) {
		return refuse(i, "%d instructions end what it starts: want 1", n)
	}
	return nil
}

func countEnds(i *hlo.Instruction) (n int) {
	for _, u := range i.Users {
		if isDone(u) || isUpdate(u) {
			n++
		}
	}
	return n
}

// checkCounts checks that loops and collectives run not more often.
func (k *pair) checkCounts() error {
	left := map[int32]int{}
	for _, i := range k.old.Instructions {
		if k.before.classes[i.ID] != 0 {
			left[k.before.numbers[i.ID]]++
		}
	}

	for _, i := range k.now.Instructions {
		x, n := k.after.classes[i.ID], k.after.numbers[i.ID]
		if x == 0 || k.after.loops[i] != nil { // a changed loop is there once, by its name
			continue
		}
		if left[n]--; left[n] >= 0 {
			continue
		}
		switch {
		case x&collective != 0 && !k.o.Collectives:
			return refuse(i, "a collective, or one that it calls, or random bits: it runs more often than before")
		case x&loop != 0 && !k.o.Loops:
			return refuse(i, "a loop, a conditional or a custom call, or one in what it calls: it runs more often than before")
		}
	}

	return nil
}

// checkOrder checks that collectives run in their order.
func (k *pair) checkOrder() error {
	if k.o.Collectives || !k.now.Module.Scheduled {
		return nil
	}

	left := k.before.collectivesOf(k.old)
	for _, i := range k.after.collectivesOf(k.now) {
		n := slices.IndexFunc(left, func(x *hlo.Instruction) bool { return k.isSame(i, x) })
		if n < 0 {
			return refuse(i, "a collective, or one that it calls: it runs in another order than before")
		}
		left = left[n+1:]
	}

	return nil
}

// collectivesOf returns the instructions of a computation that are collectives, or call some.
func (n *numbering) collectivesOf(c *hlo.Computation) (list []*hlo.Instruction) {
	for _, i := range c.Instructions {
		if n.classes[i.ID]&collective != 0 {
			list = append(list, i)
		}
	}
	return list
}

// checkWaits checks that what had to run after something still does.
func (k *pair) checkWaits() error {
	w := &waits{pair: k, now: map[int32][]*hlo.Instruction{}, named: make(map[string]*hlo.Instruction, len(k.now.Instructions))}
	for _, i := range k.now.Instructions {
		n := k.after.numbers[i.ID]
		w.now[n], w.named[i.Name] = append(w.now[n], i), i
	}

	for _, x := range k.old.Instructions {
		if len(x.After) == 0 {
			continue
		}
		users, _ := w.find(x)
		for _, p := range w.waitedFor(x, map[*hlo.Instruction]bool{}) {
			found, named := w.find(p)
			// Where a get-tuple-element went, it is what made the element.
			same := func(q *hlo.Instruction) bool { return slices.Contains(found, q) || !named && k.isSame(q, p) }
			for _, u := range users {
				if !slices.ContainsFunc(u.After, same) {
					return refuse(u, "it no longer waits for %s, which is a control predecessor", p.Name)
				}
			}
		}
	}

	return nil
}

// waits are the instructions of the planned computation, by number and by name.
type waits struct {
	*pair
	now   map[int32][]*hlo.Instruction
	named map[string]*hlo.Instruction
}

// find returns what an old instruction is now: that of its name, or else the clones, which are those
// with its number and a new name.
func (w *waits) find(x *hlo.Instruction) (list []*hlo.Instruction, named bool) {
	if i := w.named[x.Name]; i != nil && (w.isSame(i, x) || w.after.loops[i] != nil) {
		return []*hlo.Instruction{i}, true
	}
	for _, i := range w.now[w.before.numbers[x.ID]] {
		if w.names[i.Name] == nil && i.Opcode == x.Opcode {
			list = append(list, i)
		}
	}
	return list, false
}

// waitedFor returns what an old instruction waited for and is still there: for what has gone, what
// that waited for.
func (w *waits) waitedFor(x *hlo.Instruction, seen map[*hlo.Instruction]bool) (list []*hlo.Instruction) {
	for _, p := range x.After {
		if seen[p] {
			continue
		}
		seen[p] = true
		if len(w.now[w.before.numbers[p.ID]]) > 0 || w.before.loops[p] != nil {
			list = append(list, p)
		} else {
			list = append(list, w.waitedFor(p, seen)...)
		}
	}

	return list
}

// explainDifference says in what an instruction is not what it was.
func (k *pair) explainDifference(i, x *hlo.Instruction, what string) error {
	if i.Opcode != x.Opcode && !k.isSame(i, x) {
		return refuse(i, "%s is another value than %s", what, x.Name)
	}
	if !k.isSameShape(i, x) {
		return refuse(i, "%s has another shape or layout than %s, %s", what, x.Name, x.Shape)
	}
	if !k.after.isPureFusion(i) {
		if err := k.explainCallees(i, x, what); err != nil {
			return err
		}
	} else if bytes.Equal(k.before.appendOperands(nil, x), k.after.appendOperands(nil, i)) {
		return refuse(i, "%s is a fusion with another kind or computation than %s", what, x.Name)
	}

	if !bytes.Equal(k.before.appendAttributes(nil, x, false), k.after.appendAttributes(nil, i, false)) {
		return refuse(i, "%s has other attributes than %s", what, x.Name)
	}
	if len(i.Operands) != len(x.Operands) {
		return refuse(i, "%s has %d operands, and %s had %d", what, len(i.Operands), x.Name, len(x.Operands))
	}

	for n, o := range i.Operands {
		if was := x.Operands[n]; !k.isSame(o, was) || !k.isSameShape(o, was) {
			return refuse(i, "operand %d is %s, which is another value than %s", n, o.Name, was.Name)
		}
	}
	return refuse(i, "%s is another value than %s", what, x.Name)
}

// explainCallees says which of the computations that an instruction calls is not what it was.
func (k *pair) explainCallees(i, x *hlo.Instruction, what string) error {
	was := x.Called()
	for n, is := range i.Called()[:min(len(i.Called()), len(was))] {
		if k.paired[is] != nil || k.after.functions[is].number == k.before.functions[was[n]].number {
			continue
		}
		if err := k.newPair(was[n], is, nil).comparePair(); err != nil {
			return err
		}
		return refuse(i, "%s calls %s, which computes another value than %s", what, is.Name, was[n].Name)
	}

	return nil
}
