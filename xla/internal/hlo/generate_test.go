package hlo_test

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	. "gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// generated makes modules of any kind that a text can hold, well shaped or not.
func generated() *rapid.Generator[*Module] {
	return rapid.Custom(func(t *rapid.T) *Module {
		flip := func(what string) bool { return rapid.Bool().Draw(t, what) }
		m := &Module{Name: "m", Style: Style{flip("percent"), flip("operand shapes"), flip("signatures")}, Scheduled: flip("scheduled")}
		if flip("tables") {
			m.Tables = "FileNames\n1 \"a\""
		}
		values := rapid.SampledFrom([]string{"1", "{a, b}", `"x,\"}"`, "b01_01->b", "{ {1}, (2) }", "mesh['a'=2] {a}", `'it"s'`, "{/*,*/}"})
		m.Attributes = []Attribute{{Key: "num_partitions", Value: values.Draw(t, "value")}}
		for n := range rapid.IntRange(0, 3).Draw(t, "aliases") {
			m.Aliases = append(m.Aliases, Alias{Output: []int{n}, Parameter: n * 7, Index: rapid.SliceOfN(rapid.IntRange(0, 20), 1, 3).Draw(t, "index"), Must: flip("must")})
		}
		pool := rapid.SliceOfN(shapes(2), 1, 5).Draw(t, "shapes")
		for n := range rapid.IntRange(1, 5).Draw(t, "computations") {
			c := &Computation{Name: fmt.Sprintf("c.%d", n), Module: m, Thread: rapid.SampledFrom([]string{"", "", "host"}).Draw(t, "thread")}
			parameters := 0
			for k := range rapid.IntRange(1, 12).Draw(t, "instructions") {
				i := m.NewInstruction(fmt.Sprintf("i-%d", k), "", rapid.SampledFrom(pool).Draw(t, "shape"))
				switch kind := rapid.IntRange(0, 5).Draw(t, "kind"); {
				case kind == 0:
					i.Opcode, i.Parameter = Parameter, parameters
					parameters++
				case kind == 1 || k == 0:
					i.Opcode, i.Literal = Constant, rapid.SampledFrom([]string{"1", "{...}", "(1, {2})", "{ { 1, /*x*/2 },\n { 3, nan(0x1) } }"}).Draw(t, "literal")
				default:
					i.Opcode = rapid.SampledFrom([]Opcode{Add, "call-start", "new-one", Fusion}).Draw(t, "opcode")
					for _, o := range rapid.SliceOfN(rapid.SampledFrom(c.Instructions), 0, 8).Draw(t, "operands") {
						i.AddOperand(o)
					}
				}
				if k > 0 && flip("control") {
					i.AddAfter(rapid.SampledFrom(c.Instructions).Draw(t, "after"))
				}
				if n > 0 && flip("calls") {
					all := rapid.SampledFrom(m.Computations)
					switch rapid.IntRange(0, 2).Draw(t, "calls") {
					case 0:
						i.Attributes = append(i.Attributes, Attribute{Key: "to_apply", Calls: []*Computation{all.Draw(t, "callee")}})
					case 1:
						i.Attributes = append(i.Attributes, Attribute{Key: "branch_computations", Calls: rapid.SliceOfN(all, 0, 3).Draw(t, "callees"), List: true})
					case 2:
						i.Attributes = append(i.Attributes, Attribute{Key: "calls", Calls: []*Computation{all.Draw(t, "callee")}, List: true})
					}
				}
				for _, key := range []string{"sharding", "metadata", "backend_config"} {
					if rapid.IntRange(0, 4).Draw(t, key) == 0 {
						i.Attributes = append(i.Attributes, Attribute{Key: key, Value: values.Draw(t, "value")})
					}
				}
				i.Parent = c
				c.Instructions = append(c.Instructions, i)
			}
			c.Root = rapid.SampledFrom(c.Instructions).Draw(t, "root")
			m.Computations = append(m.Computations, c)
		}
		m.Entry = rapid.SampledFrom(m.Computations).Draw(t, "entry")
		return m
	})
}

// What is written is read back, and no less.
func TestGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := generated().Draw(t, "module")
		text := m.String()
		again, err := ParseString(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if err := hlotest.Equal(m, again); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if twice := again.String(); twice != text {
			// A module without operands has none whose shape could be there.
			again.Style = m.Style
			if twice = again.String(); twice != text {
				t.Fatalf("printed as\n%s\nand then\n%s", text, twice)
			}
		}
	})
}
