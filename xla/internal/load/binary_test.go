package load

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlointerp"
	"gpumem/xla/internal/test/hlotest"
	"gpumem/xla/internal/verify"
)

// pairs are the modules of testdata by name: make.py there made them.
func pairs(t testing.TB) []string {
	files, err := filepath.Glob("testdata/*.pb")
	if err != nil || len(files) == 0 {
		t.Fatal("no modules in testdata", err)
	}
	for n, file := range files {
		files[n] = strings.TrimSuffix(file, ".pb")
	}
	return files
}

// read is Decode without notes and limit.
func read(b []byte) (*hlo.Module, error) {
	m, _, err := Decode(b, nil)
	return m, err
}

func contents(t testing.TB, file string) []byte {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// alike takes out what a message does not have: options of the compiler, and the order
// of computations that do not call each other.
func alike(m *hlo.Module) {
	m.Attributes = slices.DeleteFunc(m.Attributes, func(a hlo.Attribute) bool {
		return strings.HasPrefix(a.Key, "allow_spmd_sharding_propagation") || a.Key == "replica_count" || a.Key == "num_partitions"
	})
	slices.SortFunc(m.Computations, func(a, b *hlo.Computation) int { return strings.Compare(a.Name, b.Name) })
}

// A message is read as the text that XLA prints of it.
func TestReadAsText(t *testing.T) {
	for _, name := range pairs(t) {
		t.Run(filepath.Base(name), func(t *testing.T) {
			want, err := hlo.ParseString(string(contents(t, name+".txt")))
			if err != nil {
				t.Fatal(err)
			}
			got, notes, err := Decode(contents(t, name+".pb"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if len(notes) > 0 {
				t.Errorf("left out: %s", notes)
			}
			if err := verify.Module(got); err != nil {
				t.Error(err)
			}
			// Its own text is the same module again.
			again, err := hlo.ParseString(got.String())
			if err != nil {
				t.Fatal(err)
			}
			if err := hlotest.Equal(got, again); err != nil {
				t.Error("written and read:", err)
			}
			alike(got)
			alike(want)
			if err := hlotest.Equal(got, want); err != nil {
				t.Error(err)
			}
		})
	}
}

// What JAX computes on a CPU the interpreter computes too, bit by bit: from the
// message and from the text, before optimization and after.
func TestInterpretedAsXLA(t *testing.T) {
	files, _ := filepath.Glob("testdata/whole-*.json")
	for _, file := range files {
		var bits struct{ Arguments, Results [][]uint64 }
		if err := json.Unmarshal(contents(t, file), &bits); err != nil {
			t.Fatal(err)
		}
		for _, kind := range []string{".pre.pb", ".opt.pb", ".pre.txt", ".opt.txt"} {
			name := strings.TrimSuffix(file, ".json") + kind
			t.Run(filepath.Base(name), func(t *testing.T) {
				read := read
				if strings.HasSuffix(kind, ".txt") {
					read = func(b []byte) (*hlo.Module, error) { return hlo.ParseString(string(b)) }
				}
				m, err := read(contents(t, name))
				if err != nil {
					t.Fatal(err)
				}
				var arguments []hlointerp.Value
				for n, p := range m.Entry.Parameters() {
					arguments = append(arguments, hlointerp.Value{Shape: p.Shape, Bits: bits.Arguments[n]})
				}
				v, err := hlointerp.Run(m, arguments, hlointerp.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if len(v.Elements) != len(bits.Results) {
					t.Fatalf("%d results, expected %d", len(v.Elements), len(bits.Results))
				}
				for n, e := range v.Elements {
					if !slices.Equal(e.Bits, bits.Results[n]) {
						t.Errorf("result %d is %x, XLA's %x", n, e.Bits, bits.Results[n])
					}
				}
			})
		}
	}
}

// A message is found in what holds it.
func TestContainers(t *testing.T) {
	module := contents(t, "testdata/loop-0.12.0.1.pre.pb")
	want, err := read(module)
	if err != nil {
		t.Fatal(err)
	}
	wrapped := func(b []byte) []byte {
		b = protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), b)
		return append(protowire.AppendTag(b, 3, protowire.BytesType), 0)
	}
	for name, b := range map[string][]byte{
		"HloProto": wrapped(module), "HloSnapshot": wrapped(wrapped(module)),
	} {
		m, err := read(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if err := hlotest.Equal(m, want); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, b := range map[string][]byte{"nothing": nil, "text": []byte("HloModule m\n"), "four deep": wrapped(wrapped(wrapped(module))), "zeros": make([]byte, 100)} {
		if m, err := read(b); !errors.Is(err, ErrNoModule) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}
}

// A message is built field by field: message{}.with(1, "text").with(2, 5).
type message []byte

func (b message) with(n protowire.Number, value any) message {
	switch v := value.(type) {
	case int:
		return protowire.AppendVarint(protowire.AppendTag(b, n, protowire.VarintType), uint64(v))
	case string:
		return protowire.AppendString(protowire.AppendTag(b, n, protowire.BytesType), v)
	case message:
		return protowire.AppendBytes(protowire.AppendTag(b, n, protowire.BytesType), v)
	}
	panic("with: an int, a string or a message")
}

var f32 = message{}.with(2, 11)

// parameter and negate are instructions, one is a module of them.
func parameter() message {
	return message{}.with(1, "p").with(2, "parameter").with(3, f32).with(9, 0).with(35, 1)
}

func negate() message {
	return message{}.with(1, "n").with(2, "negate").with(3, f32).with(35, 2).with(36, 1)
}

func one(instructions ...message) message {
	c := message{}.with(1, "main").with(5, 7).with(6, 2)
	for _, i := range instructions {
		c = c.with(2, i)
	}
	return message{}.with(1, "m").with(2, "main").with(3, c).with(6, 7)
}

func TestErrors(t *testing.T) {
	for _, test := range []struct {
		name string
		m    message
		want string // empty: none
	}{
		{"as it is", one(parameter(), negate()), ""},
		{"entry by name", message{}.with(1, "m").with(2, "main").with(3, message{}.with(1, "main").with(2, parameter()).with(6, 1)), ""},
		{"no entry", one(parameter(), negate()).with(6, 8).with(2, "other"), `the entry "other" is none of the computations`},
		{"name with a space", one(parameter(), negate()).with(1, "a b"), `the module's name: "a b": expected letters`},
		{"no root", one(parameter()), "computation main: the root 2 is not in it"},
		{"no shape", one(parameter(), message{}.with(1, "n").with(2, "negate").with(35, 2)), "computation main, instruction n: it has no shape"},
		{"no name", one(parameter(), message{}.with(2, "negate").with(35, 2)), `computation main, instruction 1: its name: ""`},
		{"no opcode", one(parameter(), message{}.with(1, "n").with(3, f32).with(35, 2)), `instruction n: its opcode: ""`},
		{"unknown type", one(parameter(), negate().with(3, message{}.with(2, 99))), "instruction n: element type 99 is none of XLA's"},
		{"dimension below 0", one(parameter(), negate().with(3, f32.with(3, -5))), "dimension 0 has -5 elements"},
		{"array of shapes", one(parameter(), negate().with(3, f32.with(4, f32))), "with dimensions or elements that it cannot have"},
		{"operand elsewhere", one(parameter(), negate().with(36, 9)), "instruction n: operand 9 is not in the computation"},
		{"control predecessor elsewhere", one(parameter(), negate().with(37, 9)), "control predecessor 9 is not"},
		{"calls what is not there", one(parameter(), negate().with(38, 9)), "computation 9, which it calls, is not there"},
		{"id twice", one(parameter(), parameter()), "id 1 is there twice"},
		{"cycle", one(parameter(), negate().with(36, 2)), "n in main: it stands before n, which it needs"},
		{"two parameters 0", one(parameter(), parameter().with(1, "q").with(35, 2)), "a parameter number is there twice"},
		{"constant without value", one(parameter(), message{}.with(1, "c").with(2, "constant").with(3, f32).with(35, 2)), "a constant without its literal"},
		{"constant of another size", one(parameter(), message{}.with(1, "c").with(2, "constant").with(3, f32).with(35, 2).with(8, message{})), "its literal: 0 elements"},
		{"while that calls one", one(parameter(), negate().with(2, "while").with(38, 7)), "while calls 1 computations: expected 2"},
		{"kind of field", one(parameter(), message{}.with(1, 5)), "field 1 is a varint: expected a string"},
		{"kind of field inside", one(parameter(), negate().with(7, message{}.with(4, "x"))), "its metadata: field 4 is bytes: expected a varint"},
		{"no UTF-8", one(parameter(), negate().with(7, message{}.with(2, "\xff"))), "its metadata: field 2 is no text in UTF-8"},
		{"cut short", one(parameter(), message("\x0a\x05x")), "computation main, instruction 1: the message is cut short"},
		{"schedule of nothing", one(parameter(), negate()).with(7, message{}.with(1, message{}.with(1, 3))), "the schedule is of computation 3"},
		{"schedule too short", one(parameter(), negate()).with(7, message{}.with(1, message{}.with(1, 7).with(2, message{}.with(1, 1)))), "has 1 of 2 instructions"},
		{"schedule twice", one(parameter(), negate()).with(7, message{}.with(1, message{}.with(1, 7).with(2, message{}.with(1, 1).with(1, 1)))), "not there or twice"},
		{"schedule the wrong way", one(parameter(), negate()).with(7, message{}.with(1, message{}.with(1, 7).with(2, message{}.with(1, 2).with(1, 1)))), "n in main: it stands before p"},
		{"scheduled", one(parameter(), negate()).with(7, message{}.with(1, message{}.with(1, 7).with(2, message{}.with(1, 1).with(1, 2)))), ""},
		{"maximal sharding of none", one(parameter(), negate().with(40, message{}.with(1, 1))), "its sharding: a maximal sharding of 0 devices"},
		{"labels", one(parameter(), negate().with(2, "convolution").with(16, message{}.with(7, 9))), "dimension 9 of a convolution"},
	} {
		t.Run(test.name, func(t *testing.T) {
			m, err := read(test.m)
			if test.want == "" {
				if err != nil || m.Entry == nil || m.Entry.Root == nil {
					t.Error(m, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) || !strings.HasPrefix(err.Error(), "xla/internal/load: ") || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
	// Rows of nothing are not written one by one.
	rows := message{}.with(2, 11).with(3, 1<<40).with(3, 0)
	empty := message{}.with(1, "n").with(2, "constant").with(3, rows).with(35, 2).with(8, message{}.with(1, rows))
	if m, err := read(one(parameter(), empty)); err != nil || m.Entry.Root.Literal != "{...}" {
		t.Error(m, err)
	}
	// Nor are rows of which each is small, and all are many.
	rows = message{}.with(2, 11)
	for range 20 {
		rows = rows.with(3, 10)
	}
	rows = rows.with(3, 0)
	empty = message{}.with(1, "n").with(2, "constant").with(3, rows).with(35, 2).with(8, message{}.with(1, rows))
	if m, err := read(one(parameter(), empty)); err != nil || m.Entry.Root.Literal != "{...}" {
		t.Error(m, err)
	}
	// A shape in a shape in a shape.
	deep := f32
	for range 200 {
		deep = message{}.with(2, 13).with(4, deep)
	}
	if _, err := read(one(parameter(), negate().with(3, deep))); err == nil || !strings.Contains(err.Error(), "a shape of tuples 101 deep") {
		t.Error(err)
	}
}

// Fields without a text are named.
func TestNotes(t *testing.T) {
	named := message{}.with(14, message{})
	b := one(parameter().with(40, named), negate().with(200, 1).with(201, 0).with(40, message{}.with(1, 2).with(5, named)))
	m, notes, err := Decode(b.with(10, message{}.with(1, 1)), nil)
	want := []string{
		"field 10 of HloModuleProto is left out",
		"p (parameter): field 40 of HloInstructionProto is left out",
		"n (negate): field 200 of HloInstructionProto is left out",
		"n (negate): field 40 of HloInstructionProto is left out",
	}
	if err != nil || !slices.Equal(notes, want) {
		t.Errorf("%q, %v", notes, err)
	}
	if len(m.Entry.Root.Attributes) > 0 {
		t.Error(m.Entry.Root.Attributes)
	}
}

func TestShapes(t *testing.T) {
	array := message{}.with(2, 11).with(3, 4).with(3, 8)
	layout := func(l message) message { return array.with(5, l) }
	order := message{}.with(1, 1).with(1, 0)
	for _, test := range []struct {
		want  string
		shape message
	}{
		{"f32[4,8]", array},
		{"f32[4,8]{1,0}", layout(order)},
		{"f32[4,8]{1,0:T(8,128)(2,1)S(5)}", layout(order.with(6, message{}.with(1, 8).with(1, 128)).with(6, message{}.with(1, 2).with(1, 1)).with(8, 5))},
		{"f32[4,8]{1,0:L(4)E(4)}", layout(order.with(16, 4).with(7, 4))},
		{"f32[4,8]{1,0:D(D,C)#(u32)*(u64)P(f32[])M(8)}", layout(order.with(9, 0).with(9, 1).with(11, 8).with(12, 9).with(10, f32).with(15, 8))},
		{"f32[4,8]{1,0:SC(1:2,4)}", layout(order.with(17, message{}.with(1, 1).with(2, 2).with(2, 4)))},
		{"f32[<=4,8]", array.with(6, 1).with(6, 0)},
		{"f32[?]", message{}.with(2, 11).with(3, -1<<63).with(6, 1)},
		{"(f32[], token[], opaque[])", message{}.with(2, 13).with(4, f32).with(4, message{}.with(2, 17)).with(4, message{}.with(2, 14))},
		{"b(f32[4,8])", message{}.with(2, bufferType).with(4, array)},
	} {
		d := &decoder{shapes: map[string]*hlo.Shape{}}
		s, err := d.shape(test.shape)
		if err != nil || s.String() != test.want {
			t.Errorf("%v, %v, want %s", s, err, test.want)
			continue
		}
		if again, err := hlotest.ParseShape(test.want); err != nil || !hlotest.EqualShapes(again, s) {
			t.Errorf("%s: parsed %v, %v", test.want, again, err)
		}
		if again, _ := d.shape(test.shape); again != s {
			t.Errorf("%s: not shared", test.want)
		}
	}
}

// No bytes make it panic, and what it reads is a module that can be written, as text and
// with clones as a message, and measured.
func FuzzRead(f *testing.F) {
	for _, name := range pairs(f) {
		if strings.Contains(name, "loop") || strings.Contains(name, "async") || strings.Contains(name, "kinds") {
			f.Add(contents(f, name+".pb"))
		}
	}
	f.Add([]byte(one(parameter(), negate())))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := read(b)
		if err != nil {
			return
		}
		if err := verify.Graph(m); err != nil {
			t.Error(err)
		}
		_ = m.String()
		_ = verify.Module(m)
		cloneSome(m)
		_, _ = Rewrite(b, m)
	})
}
