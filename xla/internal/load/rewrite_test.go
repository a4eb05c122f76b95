package load

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/internal/hlo"
)

// list is numbers as a field has them.
func list(numbers ...int) (b message) {
	for _, v := range numbers {
		b = protowire.AppendVarint(b, uint64(v))
	}
	return b
}

// op is an instruction of a message, and body a computation whose root is the last.
func op(id int, name, opcode string, shape message, operands ...int) message {
	m := message{}.with(1, name).with(2, opcode).with(3, shape).with(35, id)
	if len(operands) > 0 {
		m = m.with(36, list(operands...))
	}
	return m
}

func body(id int, name string, root int, all ...message) message {
	m := message{}.with(1, name)
	for _, i := range all {
		m = m.with(2, i)
	}
	return m.with(5, id).with(6, root)
}

// module is one whose entry is computation 1. scheduled are those with a schedule, in
// which instructions have the numbers 1, 2 and so on, as many as is said.
func module(scheduled map[int]int, all ...message) message {
	m := message{}.with(1, "m").with(2, "main")
	for _, c := range all {
		m = m.with(3, c)
	}
	var order message
	for id := range 9 {
		if n := scheduled[id]; n > 0 {
			ids := []int{1, 2, 3, 4, 5, 6, 7, 8, 9}[:n]
			order = order.with(1, message{}.with(1, id).with(2, message{}.with(1, list(ids...))))
		}
	}
	if len(order) > 0 {
		m = m.with(7, order)
	}
	return m.with(6, 1)
}

var (
	pair     = message{}.with(2, 11).with(3, 4)
	counters = message{}.with(2, 4).with(3, 2)
	both     = message{}.with(2, 13).with(4, pair).with(4, counters)
	flag     = message{}.with(2, 1)
)

// rawOf returns the message of an instruction.
func rawOf(t *testing.T, module []byte, name string) message {
	t.Helper()
	d, err := decode(module, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range d.computations {
		for _, i := range c.list {
			if i.i.Name == name {
				return i.raw
			}
		}
	}
	t.Fatalf("no instruction %s", name)
	return nil
}

// TestRewriteNewMessages: what a planner adds has the message that the same instruction has in
// a module that XLA writes. The shape s32[2] is there inside of a tuple alone, and (s32[2]) not
// at all.
func TestRewriteNewMessages(t *testing.T) {
	b := module(nil, body(1, "main", 3,
		op(1, "p", "parameter", pair),
		op(2, "c", "custom-call", both, 1),
		op(3, "r", "get-tuple-element", pair, 2)))
	m := asText(t, b)
	c := m.Entry.Instructions[1]
	index := func(i *hlo.Instruction, n string) *hlo.Instruction {
		i.Attributes = []hlo.Attribute{{Key: "index", Value: n}}
		return i
	}
	e := index(m.NewInstruction("e", hlo.GetTupleElement, c.Shape.Elements[1], c), "1")
	tuple := m.NewInstruction("t", hlo.TupleOp, &hlo.Shape{Type: hlo.Tuple, Elements: []*hlo.Shape{e.Shape}}, e)
	barrier := m.NewInstruction("b", hlo.OptBarrier, tuple.Shape, tuple)
	m.Entry.Insert(3, e, tuple, barrier, index(m.NewInstruction("f", hlo.GetTupleElement, e.Shape, barrier), "0"))
	got, err := Rewrite(b, m)
	if err != nil {
		t.Fatal(err)
	}
	alone := message{}.with(2, 13).with(4, counters)
	for _, want := range []message{
		message{}.with(1, "e").with(2, "get-tuple-element").with(3, counters).with(13, 1).with(35, 4).with(36, list(2)),
		message{}.with(1, "t").with(2, "tuple").with(3, alone).with(35, 5).with(36, list(4)),
		message{}.with(1, "b").with(2, "opt-barrier").with(3, alone).with(35, 6).with(36, list(5)),
		message{}.with(1, "f").with(2, "get-tuple-element").with(3, counters).with(35, 7).with(36, list(6)),
	} {
		name := string(want[2:3])
		if raw := rawOf(t, got, name); !bytes.Equal(sorted(raw), want) {
			t.Errorf("%s: %x\nwant %x", name, raw, want)
		}
	}
}

// TestRewriteNameOfAnother: what a planner adds may have the name and the text of an
// instruction of another computation, but not the id, which is taken here.
func TestRewriteNameOfAnother(t *testing.T) {
	b := module(nil,
		body(2, "sub", 3, op(1, "q", "parameter", both), op(3, "e", "get-tuple-element", counters, 1).with(13, 1)),
		body(1, "main", 3, op(1, "p", "parameter", pair), op(2, "c", "custom-call", both, 1), op(3, "r", "call", counters, 2).with(38, list(2))))
	m := asText(t, b)
	c := m.Entry.Instructions[1]
	e := m.NewInstruction("e", hlo.GetTupleElement, c.Shape.Elements[1], c)
	e.Attributes = []hlo.Attribute{{Key: "index", Value: "1"}}
	m.Entry.Insert(2, e)
	got, err := Rewrite(b, m)
	if err != nil {
		t.Fatal(err)
	}
	want := message{}.with(1, "e.1").with(2, "get-tuple-element").with(3, counters).with(13, 1).with(35, 4).with(36, list(2))
	if raw := rawOf(t, got, "e.1"); !bytes.Equal(sorted(raw), want) {
		t.Errorf("%x\nwant %x", raw, want)
	}
}

// schedule is that of a module, as text: main: p r.
func schedule(t *testing.T, module []byte) string {
	t.Helper()
	d, err := decode(module, nil)
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	d.fields(d.raw).message(7).messages(1, func(f *fields) {
		c := d.computations[f.int(1)]
		line := c.c.Name + ":"
		for _, id := range f.message(2).ints(1) {
			line += " " + c.find(id).i.Name
		}
		lines = append(lines, line)
	})
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// TestRewriteSchedule: a schedule has what runs by itself, and nothing of what runs within an
// operation.
func TestRewriteSchedule(t *testing.T) {
	fused := body(2, "fused", 2, op(1, "x", "parameter", pair), op(2, "y", "negate", pair, 1))
	calling := body(3, "calling", 2, op(1, "x", "parameter", pair), op(2, "y", "call", pair, 1).with(38, list(2)))
	less := body(4, "less", 2, op(1, "s", "parameter", pair), op(2, "l", "custom-call", flag, 1))
	step := body(5, "step", 2, op(1, "s", "parameter", pair), op(2, "f", "fusion", pair, 1).with(11, "kLoop").with(38, list(2)))
	within := body(1, "main", 2, op(1, "p", "parameter", pair), op(2, "r", "fusion", pair, 1).with(11, "kLoop").with(38, list(3)))
	loop := body(1, "main", 2, op(1, "p", "parameter", pair), op(2, "w", "while", pair, 1).with(38, list(5, 4)))
	inLoop := map[int]int{1: 2, 4: 2, 5: 2}
	clone := func(m *hlo.Module) {
		w := m.Entry.Instructions[1]
		m.Entry.Insert(2, w.CloneOwning("w.remat"))
	}
	run := func(m *hlo.Module) {
		m.Scheduled = true
		m.Attributes = append([]hlo.Attribute{{Key: "is_scheduled", Value: "true"}}, m.Attributes...)
	}
	for _, test := range []struct {
		name  string
		given message
		edit  func(*hlo.Module)
		want  []string
	}{
		{"what a fusion calls", module(nil, fused, calling, within), run, []string{"main: p r"}},
		{"what a loop calls", module(nil, fused, less, step, loop), run, []string{"less: s l", "main: p w", "step: s f"}},
		{"another order", module(map[int]int{1: 3}, body(1, "main", 2, op(1, "p", "parameter", pair), op(2, "a", "negate", pair, 1), op(3, "b", "sine", pair, 1))),
			func(m *hlo.Module) { i := m.Entry.Instructions; m.Entry.Reorder([]*hlo.Instruction{i[0], i[2], i[1]}) }, []string{"main: p b a"}},
		{"the clone of a loop", module(inLoop, fused, less, step, loop), clone,
			[]string{"less.clone: s.1 l.1", "less: s l", "main: p w w.remat", "step.clone: s.2 f.1", "step: s f"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := asText(t, test.given)
			test.edit(m)
			got, err := Rewrite(test.given, m)
			if err != nil {
				t.Fatal(err)
			}
			if text := schedule(t, got); text != strings.Join(test.want, "\n") {
				t.Errorf("%s\nwant\n%s", text, strings.Join(test.want, "\n"))
			}
		})
	}
}

// TestCheckFindsDifferences: what Rewrite made is read again, and compared in all that it may
// get wrong.
func TestCheckFindsDifferences(t *testing.T) {
	sub := func(name string, id int) message { return body(id, name, 1, op(1, "x", "parameter", pair)) }
	parts := func(c message) message { return module(nil, sub("left", 2), sub("right", 3), c) }
	call := op(4, "c", "call", pair, 1).with(38, list(2))
	p, n, s := op(1, "p", "parameter", pair), op(2, "n", "negate", pair, 1), op(3, "s", "sine", pair, 1)
	after := slices.Clone(s).with(37, list(2))
	m, err := read(parts(body(1, "main", 3, p, n, call, after)))
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name  string
		given message
		want  string
	}{
		{"nothing", parts(body(1, "main", 3, p, n, call, after)), "<nil>"},
		{"no control predecessor", parts(body(1, "main", 3, p, n, call, s)), "s in main reads back otherwise"},
		{"another control predecessor", parts(body(1, "main", 3, p, n, call, slices.Clone(s).with(37, list(1)))), "s in main reads back otherwise"},
		{"another operand", parts(body(1, "main", 3, p, n, call, op(3, "s", "sine", pair, 2).with(37, list(2)))), "s in main reads back otherwise"},
		{"another operation", parts(body(1, "main", 3, p, op(2, "n", "cosine", pair, 1), call, after)), "n in main reads back otherwise"},
		{"another callee", parts(body(1, "main", 3, p, n, op(4, "c", "call", pair, 1).with(38, list(3)), after)), "c in main reads back otherwise"},
		{"another root", parts(body(1, "main", 2, p, n, call, after)), "the root of main reads back otherwise"},
		{"an instruction less", parts(body(1, "main", 3, p, n, s)), "computation main reads back otherwise"},
		{"a computation less", module(nil, sub("left", 2), body(1, "main", 3, p, n, call, after)), "it reads back with 2 computations"},
		{"another name of a computation", module(nil, sub("left", 2), sub("wrong", 3), body(1, "main", 3, p, n, call, after)), "computation right reads back otherwise"},
		{"a schedule", module(map[int]int{1: 4}, sub("left", 2), sub("right", 3), body(1, "main", 3, p, n, call, after)), "scheduled true"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if err := (&encoder{m: m}).checkWritten(test.given); !strings.Contains(fmt.Sprint(err), test.want) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}
