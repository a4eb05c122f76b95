package remat

import (
	"os"
	"testing"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/hlo/memory"
)

func TestAliveX(t *testing.T) {
	n := os.Getenv("N")
	dir := "/work/scratch/byhand/"
	show := func(m *hlo.Module) {
		meter := memory.NewMeter(memory.Options{})
		al, err := meter.Alive(m.Entry)
		if err != nil {
			t.Fatal(err)
		}
		pk, _ := meter.Peak(m.Entry)
		pos := map[*hlo.Instruction]int{}
		for k, i := range m.Entry.Instructions {
			pos[i] = k
		}
		t.Logf("peak %d at %s (%d of %d) %s", pk.Bytes, pk.At.Name, pos[pk.At], len(pos), pk.At.OpName())
		for k, x := range al {
			if k < 45 {
				last := ""
				lp := -1
				for _, u := range x.Instruction.Users {
					if pos[u] > lp {
						lp = pos[u]
						last = u.OpName()
					}
				}
				t.Logf("  %9d %5d..%5d %-40s %-60s last %s", x.Bytes, pos[x.Instruction], lp, x.Instruction.Name, x.Instruction.OpName(), last)
			}
		}
	}
	rd := func(f string) *hlo.Module {
		text, _ := os.ReadFile(dir + f)
		m, err := hlo.ParseString(string(text))
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	m := rd(n + ".hlo")
	l := layers(m)[0]
	save, pol := SavePolicy(SaveNothing), "nothing"
	if os.Getenv("DOTS") != "" {
		save, pol = product, "dots"
	}
	c, _, err := checkpointed(m, l, len(l.Patterns), save, cost.Rates{})
	if err != nil {
		t.Fatal(err)
	}
	t.Log("SIMULATED")
	show(c)
	t.Log("TRUE")
	show(rd(n + "."+pol+"_saveable.hlo"))
}
