package legal

// The comparison of two numbered modules, computation by computation.
//
// The entries are a pair, and so is what two instructions with one number call. Each pair is
// compared by itself: since a computation's number says what it does each time it runs, what
// runs not more often within each pair runs not more often in the module.

import (
	"slices"
	"strings"

	"gpumem/xla/hlo"
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
	type callees struct {
		was, is *hlo.Computation
		of      *changedLoop // the loop, if its state changed
	}
	list := []callees{{c.before.m.Entry, c.after.m.Entry, nil}}
	c.paired[c.after.m.Entry] = c.before.m.Entry
	for _, k := range c.loops {
		for _, x := range []callees{{k.before.body, k.after.body, k}, {k.before.condition, k.after.condition, k}} {
			c.paired[x.is] = x.was
			list = append(list, x)
		}
		if err := c.checkInduction(k); err != nil {
			return err
		}
	}
	for len(list) > 0 {
		next := list[len(list)-1]
		list = list[:len(list)-1]
		k := newPair(c, next.was, next.is)
		if k.loop = next.of; k.loop != nil {
			k.forward = c.forwardNumbers(k.loop)
		}
		if err := k.comparePair(); err != nil {
			return err
		}
		for _, i := range next.is.Instructions {
			x := k.originalOf(i)
			if x == nil {
				continue
			}
			was := x.Called()
			for n, is := range i.Called() {
				if c.paired[is] != nil {
					continue
				}
				// The number of a fusion says all of it.
				if c.paired[is] = was[n]; !c.after.isPureFusion(i) {
					list = append(list, callees{was[n], is, nil})
				}
			}
		}
	}
	if err := c.checkOwners(); err != nil {
		return err
	}
	return c.checkChannels()
}

// checkOwners checks that what had one caller still has, where XLA demands it.
func (c *comparison) checkOwners() error {
	count := func(m *hlo.Module) map[*hlo.Computation][]*hlo.Instruction {
		callers := map[*hlo.Computation][]*hlo.Instruction{}
		for i := range m.All() {
			if ownsCallees(i, m.Scheduled) {
				for _, callee := range i.Called() {
					callers[callee] = append(callers[callee], i)
				}
			}
		}
		return callers
	}
	was, is := count(c.before.m), count(c.after.m)
	for _, callee := range c.after.m.Computations {
		list, old := is[callee], c.paired[callee]
		if len(list) < 2 {
			continue
		}
		if old == nil { // inside of a fusion
			old = c.before.m.Computation(callee.Name)
		}
		if len(was[old]) < 2 {
			return refuse(list[1], "it calls %s, as %s does: the clone of an instruction that owns its computation needs a clone of that, too", callee.Name, list[0].Name)
		}
	}
	return nil
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

func newPair(c *comparison, old, now *hlo.Computation) *pair {
	k := &pair{comparison: c, old: old, now: now, byNumber: make(map[int32][]*hlo.Instruction, len(old.Instructions)), names: make(map[string]*hlo.Instruction, len(old.Instructions))}
	for _, i := range old.Instructions {
		n := c.before.numbers[i.ID]
		k.byNumber[n] = append(k.byNumber[n], i)
		k.names[i.Name] = i
	}
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
	}
	if err := k.checkEffects(); err != nil {
		return err
	}
	for _, i := range k.now.Instructions {
		if err := k.checkInstruction(i); err != nil {
			return err
		}
	}
	if k.loop == nil && (k.before.numbers[k.old.Root.ID] != k.after.numbers[k.now.Root.ID] || k.t.shapeNumber(k.old.Root.Shape) != k.t.shapeNumber(k.now.Root.Shape)) {
		return k.explainDifference(k.now.Root, k.old.Root, "the result")
	}
	if k.old.Thread != k.now.Thread {
		return refuse(k.now.Root, "execution thread %q was %q", k.now.Thread, k.old.Thread)
	}
	if err := k.checkCounts(); err != nil {
		return err
	}
	return k.checkWaits()
}

// checkParameters checks that the caller passes what it did.
func (k *pair) checkParameters() error {
	was, is := k.old.Parameters(), k.now.Parameters()
	if len(was) != len(is) {
		return refuse(k.now.Root, "%s has %d parameters and had %d", k.now.Name, len(is), len(was))
	}
	for n, p := range is {
		if k.t.shapeNumber(p.Shape) != k.t.shapeNumber(was[n].Shape) {
			return refuse(p, "parameter %d was %s", n, was[n].Shape)
		}
	}
	return nil
}

// checkEffects compares what the computations do beside computing, by operations and callees; what
// they do it to is compared by instruction.
func (k *pair) checkEffects() error {
	was, is := k.before.functions[k.old].effects, k.after.functions[k.now].effects
	if !k.now.Module.Scheduled {
		byName := func(a, b *hlo.Instruction) int { return strings.Compare(a.Name, b.Name) }
		was, is = slices.SortedFunc(slices.Values(was), byName), slices.SortedFunc(slices.Values(is), byName)
	}
	for n, i := range is {
		if n >= len(was) {
			return refuse(i, "it has an effect, and runs once more than before")
		}
		if i.Opcode != was[n].Opcode || !k.now.Module.Scheduled && i.Name != was[n].Name {
			return refuse(i, "it has an effect, and stands where %s did: effects have to run as often as before, in the same order", was[n].Name)
		}
		// What it calls may be at fault: that is reported there.
		if string(k.before.operationKey(was[n])) != string(k.after.operationKey(i)) {
			return k.explainDifference(i, was[n], "what has an effect")
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
	if k.after.loops[i] != nil || k.loop != nil && k.mayBeNew(i) || k.isPruned(i) || k.isBesideLoops(i) {
		return nil
	}
	switch {
	case i.Opcode == hlo.TupleOp, i.Opcode == hlo.OptBarrier && len(i.Operands) == 1, i.Opcode == hlo.GetTupleElement && i.Operands[0].Opcode == hlo.OptBarrier:
		return nil
	case i.Opcode == hlo.CopyStart && movesSpace(i), i.Opcode == hlo.CopyDone && i.Operands[0].Opcode == hlo.CopyStart && movesSpace(i.Operands[0]):
		e := i.Shape
		if i.Opcode == hlo.CopyStart {
			e = i.Shape.Elements[0]
		}
		if from := sourceSpace(i); e.Space() != hlo.HostSpace && from != hlo.HostSpace {
			return refuse(i, "a copy between memory spaces %d and %d: a plan copies to the host and back", from, e.Space())
		}
		return k.checkEnds(i, nil)
	}
	x := k.names[i.Name]
	if x == nil || x.Opcode != i.Opcode {
		x = k.names[originalName(i.Name)]
	}
	if x == nil || x.Opcode != i.Opcode {
		return refuse(i, "it is no instruction of the given module, and no clone of one")
	}
	return k.explainDifference(i, x, "it")
}

// sourceSpace is the memory space that a copy-start or its end copies from.
func sourceSpace(i *hlo.Instruction) uint64 {
	if i.Opcode == hlo.CopyDone {
		i = i.Operands[0]
	}
	return i.Operands[0].Shape.Space()
}

// checkEnds checks that a start has one end, unless x, which it was, had several or none.
func (k *pair) checkEnds(i, x *hlo.Instruction) error {
	if !isStart(i) {
		return nil
	}
	count := func(i *hlo.Instruction) (n int) {
		for _, u := range i.Users {
			if isDone(u) || isUpdate(u) {
				n++
			}
		}
		return n
	}
	if n := count(i); n != 1 && (x == nil || !isStart(x) || count(x) == 1) {
		return refuse(i, "%d instructions end what it starts: want 1", n)
	}
	return nil
}

// checkCounts checks that loops and collectives run not more often, and collectives in their order.
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
	if k.o.Collectives || !k.now.Module.Scheduled {
		return nil
	}
	var order []int32
	for _, i := range k.old.Instructions {
		if k.before.classes[i.ID]&collective != 0 {
			order = append(order, k.before.numbers[i.ID])
		}
	}
	at := 0
	for _, i := range k.now.Instructions {
		if k.after.classes[i.ID]&collective == 0 {
			continue
		}
		n := slices.Index(order[at:], k.after.numbers[i.ID])
		if n < 0 {
			return refuse(i, "a collective, or one that it calls: it runs in another order than before")
		}
		at += n + 1
	}
	return nil
}

// checkWaits checks that what had to run after something still does.
func (k *pair) checkWaits() error {
	place := make(map[*hlo.Instruction]int, len(k.now.Instructions))
	now := map[int32][]*hlo.Instruction{}
	names := make(map[string]*hlo.Instruction, len(k.now.Instructions))
	for n, i := range k.now.Instructions {
		place[i], names[i.Name] = n, i
		now[k.after.numbers[i.ID]] = append(now[k.after.numbers[i.ID]], i)
	}
	// is returns what an old instruction is now: that of its name, or else the clones, which
	// are those with its number and a new name.
	is := func(x *hlo.Instruction) (list []*hlo.Instruction, named bool) {
		n := k.before.numbers[x.ID]
		if i := names[x.Name]; i != nil && (k.after.numbers[i.ID] == n || k.after.loops[i] != nil) {
			return []*hlo.Instruction{i}, true
		}
		for _, i := range now[n] {
			if k.names[i.Name] == nil && i.Opcode == x.Opcode {
				list = append(list, i)
			}
		}
		return list, false
	}
	// before returns what an old instruction waited for and is still there: for what has gone,
	// what that waited for.
	var before func(x *hlo.Instruction, seen map[*hlo.Instruction]bool) []*hlo.Instruction
	before = func(x *hlo.Instruction, seen map[*hlo.Instruction]bool) (list []*hlo.Instruction) {
		for _, p := range x.After {
			if seen[p] {
				continue
			}
			seen[p] = true
			if len(now[k.before.numbers[p.ID]]) > 0 || k.before.loops[p] != nil {
				list = append(list, p)
			} else {
				list = append(list, before(p, seen)...)
			}
		}
		return list
	}
	for _, x := range k.old.Instructions {
		if len(x.After) == 0 {
			continue
		}
		users, _ := is(x)
		for _, p := range before(x, map[*hlo.Instruction]bool{}) {
			// Where a get-tuple-element went, it is what made the element.
			found, named := is(p)
			same := func(q *hlo.Instruction) bool {
				return slices.Contains(found, q) || !named && k.after.numbers[q.ID] == k.before.numbers[p.ID]
			}
			for _, u := range users {
				if !slices.ContainsFunc(u.After, same) {
					return refuse(u, "it no longer waits for %s, which is a control predecessor", p.Name)
				}
			}
		}
	}
	return nil
}

// explainDifference says in what an instruction is not what it was.
func (k *pair) explainDifference(i, x *hlo.Instruction, what string) error {
	switch {
	case i.Opcode != x.Opcode && k.before.numbers[x.ID] != k.after.numbers[i.ID]:
		return refuse(i, "%s is another value than %s", what, x.Name)
	case k.t.shapeNumber(i.Shape) != k.t.shapeNumber(x.Shape):
		return refuse(i, "%s has another shape or layout than %s, %s", what, x.Name, x.Shape)
	}
	if k.after.isPureFusion(i) && slices.Equal(numbersOf(k.before, x.Operands), numbersOf(k.after, i.Operands)) {
		return refuse(i, "%s is a fusion with another kind or computation than %s", what, x.Name)
	}
	was := x.Called()
	for n, is := range i.Called() {
		if k.after.isPureFusion(i) {
			break
		}
		if n >= len(was) || k.paired[is] != nil || k.after.functions[is].number == k.before.functions[was[n]].number {
			continue
		}
		k.paired[is] = was[n]
		if err := newPair(k.comparison, was[n], is).comparePair(); err != nil {
			return err
		}
		return refuse(i, "%s calls %s, which computes another value than %s", what, is.Name, was[n].Name)
	}
	if string(k.before.appendAttributes(nil, x, false)) != string(k.after.appendAttributes(nil, i, false)) {
		return refuse(i, "%s has other attributes than %s", what, x.Name)
	}
	if len(i.Operands) != len(x.Operands) {
		return refuse(i, "%s has %d operands, and %s had %d", what, len(i.Operands), x.Name, len(x.Operands))
	}
	for n, o := range i.Operands {
		if k.after.numbers[o.ID] != k.before.numbers[x.Operands[n].ID] || k.t.shapeNumber(o.Shape) != k.t.shapeNumber(x.Operands[n].Shape) {
			return refuse(i, "operand %d is %s, which is another value than %s", n, o.Name, x.Operands[n].Name)
		}
	}
	return refuse(i, "%s is another value than %s", what, x.Name)
}

func numbersOf(n *numbering, list []*hlo.Instruction) (numbers []int32) {
	for _, i := range list {
		numbers = append(numbers, n.numbers[i.ID])
	}
	return numbers
}
