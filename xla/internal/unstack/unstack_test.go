package unstack_test

import (
	"fmt"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/unstack"
	"gpumem/xla/internal/verify"
)

// check is that of plans.
var check = legal.Options{}.Check

// dropSome returns a random module and what remains of it when some of its stacks are dropped.
func dropSome(t *rapid.T) (before, after *hlo.Module, dropped int) {
	before = remattest.Parsed(t, remattest.Scans(t))
	if problem := check(before, before.Clone()); problem != nil {
		t.Fatalf("the given module: %v\n%s", problem, before)
	}
	var keys []string
	carry := rapid.Bool().Draw(t, "carry")
	for _, p := range unstack.Find(before) {
		var drop []*unstack.Stack
		for _, s := range p.Stacks {
			if !rapid.Bool().Draw(t, "drop") {
				continue
			}
			if _, _, ok := p.Needs(append(drop[:len(drop):len(drop)], s), carry); ok {
				drop = append(drop, s)
				keys = append(keys, p.Key(s))
			}
		}
	}
	after = before.Clone()
	if _, err := unstack.Drop(after, keys, carry); err != nil {
		t.Fatalf("%v\n%s", err, before)
	}
	if rapid.Bool().Draw(t, "then gap") {
		after = after.Clone()
		limit := remattest.TempPeak(t, after) / 100 * uint64(rapid.IntRange(40, 99).Draw(t, "percent"))
		if _, err := gap.Run(after, gap.Options{Limit: limit, Seconds: remattest.BySize}); err != nil {
			t.Fatal(err)
		}
	}
	return before, remattest.Parsed(t, after.String()), len(keys)
}

// TestDrop: what is dropped is computed again, bit by bit, and the checker can prove it.
func TestDrop(t *testing.T) {
	dropped := 0
	rapid.Check(t, func(t *rapid.T) {
		before, after, n := dropSome(t)
		dropped += n
		if err := check(before, after); err != nil {
			t.Fatalf("%v\n%s\n%s", err, before, after)
		}
		remattest.Same(t, before, after)
		if n > 0 && remattest.TempPeak(t, after) > remattest.TempPeak(t, before)+4096 {
			t.Fatalf("%d stacks dropped, and the peak is %d instead of %d\n%s", n, remattest.TempPeak(t, after), remattest.TempPeak(t, before), before)
		}
	})
	if dropped == 0 {
		t.Error("nothing was dropped")
	}
	t.Logf("%d stacks dropped", dropped)
}

// TestFaultsAreFound plants one fault into a module without some of its stacks: if the checker
// lets it pass, the module computes the same bits.
func TestFaultsAreFound(t *testing.T) {
	remattest.Checks(t, 500)
	found, harmless := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		before, after, n := dropSome(t)
		if n == 0 {
			return
		}
		c := after.Computations[rapid.IntRange(0, len(after.Computations)-1).Draw(t, "computation")]
		at := rapid.IntRange(0, len(c.Instructions)-1).Draw(t, "instruction")
		i := c.Instructions[at]
		switch {
		case i.Opcode == hlo.GetTupleElement:
			i.Attributes[0].Value = strconv.Itoa(rapid.IntRange(0, len(i.Operands[0].Shape.Elements)-1).Draw(t, "element"))
		case i.Opcode == hlo.Constant && i.Shape.Type == "s32":
			i.Literal = fmt.Sprint(rapid.IntRange(0, 5).Draw(t, "literal"))
		case i.Opcode == "tanh":
			i.Opcode = "sine"
		case i.Opcode == hlo.Subtract:
			i.Opcode = hlo.Add
		case len(i.Operands) > 0 && at > 0:
			k := rapid.IntRange(0, len(i.Operands)-1).Draw(t, "operand")
			if o := c.Instructions[rapid.IntRange(0, at-1).Draw(t, "other")]; o.Shape.Equal(i.Operands[k].Shape) {
				i.SetOperand(k, o)
			}
		default:
			return
		}
		changed, err := hlo.ParseString(after.String())
		if err != nil || verify.Module(changed) != nil {
			return
		}
		if err := check(before, changed); err != nil {
			found++
			return
		}
		harmless++
		remattest.Same(t, before, changed)
		if t.Failed() {
			t.Fatalf("%s in %s was changed, and passes\n%s\n%s", i.Name, c.Name, before, changed)
		}
	})
	if found == 0 && !testing.Short() { // of 20 modules one run in 12 finds none; of 100 a dozen
		t.Error("no fault was found")
	}
	t.Logf("%d faults found, %d changes without a fault", found, harmless)
}
