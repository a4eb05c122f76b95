package legal_test

import (
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

// TestWhatPassesMeansTheSame changes one operand of a plan: if the checker lets that pass, the
// module computes the same by the sum of its expressions, which shares nothing with the checker.
func TestWhatPassesMeansTheSame(t *testing.T) {
	remattest.Checks(t, 1000)
	found := 0
	rapid.Check(t, func(t *rapid.T) {
		m := remattest.Parsed(t, rapid.SampledFrom([]func(*rapid.T) string{remattest.Random, remattest.InPlace}).Draw(t, "kind")(t))
		after := m.Clone()
		if _, err := gap.Run(after, gap.Options{Limit: remattest.TempPeak(t, m) / 2, Seconds: remattest.BySize}); err != nil {
			t.Fatal(err)
		}
		after = after.Clone()
		c := after.Computations[rapid.IntRange(0, len(after.Computations)-1).Draw(t, "computation")]
		n := rapid.IntRange(0, len(c.Instructions)-1).Draw(t, "instruction")
		i := c.Instructions[n]
		if len(i.Operands) == 0 || n == 0 {
			return
		}
		k := rapid.IntRange(0, len(i.Operands)-1).Draw(t, "operand")
		if o := c.Instructions[rapid.IntRange(0, n-1).Draw(t, "other")]; o.Shape.Equal(i.Operands[k].Shape) {
			i.SetOperand(k, o)
		}
		if verify.Module(after) != nil {
			return
		}
		err := legal.Options{}.Check(m, after.Clone())
		if same := meaning(m) == meaning(after); err == nil && !same {
			t.Fatalf("operand %d of %s in %s differs, and passes\n%s\n%s", k, i.Name, c.Name, m, after)
		}
		if err != nil {
			found++
		}
	})
	if found == 0 {
		t.Error("no fault was planted")
	}
	t.Logf("%d faults found", found)
}

// meaning is remattest.Meaning, for which what a loop hands on unchanged is what it began with.
func meaning(m *hlo.Module) uint64 {
	m = m.Clone()
	for i := range m.All() {
		if i.Opcode != hlo.GetTupleElement || i.Operands[0].Opcode != hlo.While {
			continue
		}
		n, err := i.TupleIndex()
		loop := i.Operands[0]
		last := loop.Call("body").Root
		if err != nil || last.Opcode != hlo.TupleOp {
			continue
		}
		if same, err := last.Operands[n].TupleIndex(); err == nil && same == n && last.Operands[n].Operands[0].Opcode == hlo.Parameter {
			i.SetOperand(0, loop.Operands[0])
		}
	}
	return remattest.Meaning(m)
}
