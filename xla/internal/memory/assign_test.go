package memory

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/pack"
	"gpumem/xla/internal/test/hlotest"
)

func assigned(m *hlo.Module) (*Assignment, error) {
	a, err := AnalyzeModule(m)
	if err != nil {
		return nil, err
	}
	return a.Assign()
}

func assignText(t failer, text string) *Assignment {
	t.Helper()
	s, err := assigned(parse(t, text))
	if err != nil {
		t.Fatal(err)
	}
	s.Offsets, s.Heap = nil, 0 // heap_test.go looks at them
	return s
}

func TestAssign(t *testing.T) {
	for _, c := range []struct {
		name, body string
		want       Assignment
	}{
		{"each kind", `
  p = f32[1024] parameter(0)
  c = f32[256] constant({...})
  a = f32[1024] custom-call(p), custom_call_target="x"
  b = f32[2048] custom-call(a, c), custom_call_target="x"
  ROOT d = f32[10] custom-call(b), custom_call_target="x"`,
			Assignment{Parameters: 4096, Constants: 1024, LiveOut: 40, Temp: 12288, Total: 4096 + 1024 + 40 + 12288, TotalFragmentation: 1024 + 40}},
		{"the result's memory is used before", `
  p = f32[1024] parameter(0)
  a = f32[512] custom-call(p), custom_call_target="x"
  b = f32[8] custom-call(a), custom_call_target="x"
  ROOT d = f32[1024] custom-call(b), custom_call_target="x"`,
			// b is needed while d is made, but a is not.
			Assignment{Parameters: 4096, LiveOut: 4096, Temp: 32, Total: 8224}},
		{"an operand that dies gives its memory to the result", `
  p = f32[1024] parameter(0)
  a = f32[1024] custom-call(p), custom_call_target="x"
  ROOT d = f32[1024] negate(a)`,
			Assignment{Parameters: 4096, LiveOut: 4096, Total: 8192}},
		{"tables", `
  p = f32[4] parameter(0)
  a = f32[4] custom-call(p), custom_call_target="x"
  t = (f32[4], f32[4]) tuple(a, p)
  u = (f32[4]) tuple(p)
  ROOT d = f32[8] custom-call(t, u), custom_call_target="x"`,
			// Two tables of 16 and 8, each on its own multiple of 256, then a.
			Assignment{Parameters: 16, LiveOut: 32, Temp: 256 + 256 + 16, Total: 16 + 32 + 528, TotalFragmentation: 240 + 248}},
		{"packing", `
  p = f32[4] parameter(0)
  a = f32[4] custom-call(p), custom_call_target="x"
  b = f32[4] custom-call(p), custom_call_target="x"
  ROOT d = f32[] custom-call(a, b), custom_call_target="x"`,
			Assignment{Parameters: 16, LiveOut: 4, Temp: 256 + 16, Fragmentation: 240, Total: 16 + 4 + 272, TotalFragmentation: 240}},
		// b takes over the memory of o in that of x, though that of z, which is smaller, is free
		// when y is dead. So c finds room there, which in that of x it would not: x is made while
		// c lives. Of all of them d alone is temporary.
		{"the operand's memory before a smaller one", `
  p = f32[8] parameter(0)
  y = f32[850] custom-call(p), custom_call_target="x"
  o = f32[768] custom-call(y), custom_call_target="x"
  b = f32[768] negate(o)
  c = f32[256] custom-call(b), custom_call_target="x"
  x = f32[1024] custom-call(c), custom_call_target="x"
  d = f32[8] custom-call(c), custom_call_target="x"
  z = f32[875] custom-call(d), custom_call_target="x"
  ROOT r = (f32[1024], f32[875]) tuple(x, z)`,
			Assignment{Parameters: 32, LiveOut: 4096 + 3500 + 16, Temp: 32, Total: 32 + 4096 + 3500 + 16 + 32, TotalFragmentation: 16}},
		// Four tables of 16: the three of s, and that of the computation which s stands for and the
		// text does not show. XLA's minimum has s, p, q, the result and d, 3*16+256+256+256+16.
		{"the table of a wrapped operation", `
  p = f32[64] parameter(0)
  q = f32[64] parameter(1)
  s = ((f32[64], f32[64]), (f32[32], f32[32])) reduce-scatter-start(p, q), replica_groups={}, dimensions={0}
  ROOT d = (f32[32], f32[32]) reduce-scatter-done(s)`,
			Assignment{Parameters: 512, LiveOut: 256 + 16, Temp: 3*256 + 16, Total: 512 + 272 + 784, TotalFragmentation: 1568 - 832}},
		// The three values of sum are in registers, but their allocations come last of all, so that
		// the heap, a and b on multiples of 256, is moved in front of the table.
		{"a heap before a table", `
  p = f32[75] parameter(0)
  zero = f32[] constant(0)
  a = f32[75] custom-call(p), custom_call_target="x"
  t = (f32[75]) tuple(a)
  b = f32[8] custom-call(t), custom_call_target="x"
  ROOT d = f32[] reduce(b, zero), dimensions={0}, to_apply=sum`,
			Assignment{Parameters: 300, Constants: 4, LiveOut: 4, Temp: 768 + 8, Fragmentation: 212, Total: 300 + 4 + 4 + 776, TotalFragmentation: 1084 - 640}},
	} {
		t.Run(c.name, func(t *testing.T) {
			const sum = "sum {\n  x = f32[] parameter(0)\n  y = f32[] parameter(1)\n  ROOT s = f32[] add(x, y)\n}\n"
			text := "HloModule m, is_scheduled=true\n\nENTRY main {" + c.body + "\n}\n"
			if strings.Contains(c.body, "=sum") {
				text = strings.Replace(text, "ENTRY", sum+"\nENTRY", 1)
			}
			if got := assignText(t, text); !reflect.DeepEqual(*got, c.want) {
				t.Errorf("%+v\nwant %+v", *got, c.want)
			}
		})
	}
}

// The memory of a parameter that is given away is returned, and used before.
func TestAssignDonated(t *testing.T) {
	const text = `HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

ENTRY main {
  p = f32[1024] parameter(0)
  a = f32[8] custom-call(p), custom_call_target="x"
  b = f32[512] custom-call(a), custom_call_target="x"
  c = f32[8] custom-call(b), custom_call_target="x"
  ROOT d = f32[1024] custom-call(c), custom_call_target="x"
}
`
	got := assignText(t, text)
	// a and c lie side by side with b, which takes the parameter's memory.
	if want := (Assignment{Parameters: 4096, LiveOut: 4096, Temp: 32, Total: 4128}); !reflect.DeepEqual(*got, want) {
		t.Errorf("%+v\nwant %+v", *got, want)
	}
	if bytes, _, _ := analyzeText(t, text).Peak(); bytes != 4096+32 {
		t.Errorf("peak %d, want %d", bytes, 4096+32)
	}
}

// A value may be made in the memory of a dying one that it reads through a
// bitcast, but no copy may.
func TestAssignTakesOver(t *testing.T) {
	for op, temp := range map[string]uint64{"negate": 32, "copy": 4096 + 32} {
		got := assignText(t, `HloModule m, is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }

ENTRY main {
  p = f32[1024] parameter(0)
  b = f32[1024] bitcast(p)
  n = f32[1024] `+op+`(b)
  c = f32[8] custom-call(n), custom_call_target="x"
  ROOT d = f32[1024] custom-call(c), custom_call_target="x"
}
`)
		if got.Temp != temp {
			t.Errorf("%s: %+v, want %d of temp", op, *got, temp)
		}
	}
}

func TestAssignmentString(t *testing.T) {
	s := Assignment{Parameters: 3 << 30, Constants: 9, LiveOut: 1536, Temp: 1 << 20, Fragmentation: 1 << 19, Total: 4 << 30, TotalFragmentation: -1024}
	want := strings.TrimPrefix(`
BufferAssignment stats:
             parameter allocation:    3.00GiB
              constant allocation:         9B
        maybe_live_out allocation:     1.5KiB
     preallocated temp allocation:    1.00MiB
  preallocated temp fragmentation:   512.0KiB (50.00%)
                 total allocation:    4.00GiB
              total fragmentation:    -1.0KiB (-0.00%)
`, "\n")
	if got := s.String(); got != want {
		t.Errorf("\n%s\nwant\n%s", got, want)
	}
}

// No module takes less than what lives in it at once, and the heap's blocks
// lie apart.
func TestAssignIsEnough(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := hlotest.DrawModule(t)
		a := analyzeText(t, text)
		s, err := a.Assign()
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if bytes, _, _ := a.Peak(); s.Total < bytes {
			t.Fatalf("%d bytes in all, but %d live at once\n%s", s.Total, bytes, text)
		}
		if s.Fragmentation > s.Temp {
			t.Fatalf("%+v\n%s", s, text)
		}
	})
}

// TestSearchOfModules packs the temporary heaps of real modules into what lives at once, which is
// counted anew here, block by block: no heap is smaller. The better of XLA's two orders makes
// larger ones.
func TestSearchOfModules(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short; packing real heaps takes seconds")
	}
	for _, name := range []string{"rocm_resnet50.train_step", "rocm_vit.train_step", "xla_dlrm_keras_train_step"} {
		t.Run(name, func(t *testing.T) {
			a, err := AnalyzeModule(hlotest.Module(t, name))
			if err != nil {
				t.Fatal(err)
			}
			g := &assigner{a: a, in: make([]int32, len(a.BufferBytes))}
			blocks := a.recordBlocks(g.allocations()[0]).blocks
			fit, offsets, err := pack.BestFit(blocks, pack.Alignment)
			if err != nil {
				t.Fatal(err)
			}
			checkPacking(t, blocks, fit, offsets)
			best, offsets, err := pack.Search(blocks, pack.Alignment, 2e8)
			if err != nil {
				t.Fatal(err)
			}
			checkPacking(t, blocks, best, offsets)
			if least := liveAtOnce(blocks, pack.Alignment); best < least-pack.Alignment || best > least || fit <= best {
				t.Errorf("a heap of %d, by XLA's orders %d; %d live at once", best, fit, least)
			}
		})
	}
}

// liveAtOnce returns the most bytes that live at the same time, each block rounded up.
func liveAtOnce(blocks []pack.Block, align uint64) (most uint64) {
	change := map[int]int64{}
	for _, x := range blocks {
		bytes := int64((x.Bytes + align - 1) / align * align)
		change[x.Start] += bytes
		change[x.End+1] -= bytes
	}
	live := int64(0)
	for _, at := range slices.Sorted(maps.Keys(change)) {
		live += change[at]
		most = max(most, uint64(live))
	}
	return most
}

// checkPacking checks that blocks which share memory lie at the same offset, and that no
// others overlap that live at the same time.
func checkPacking(t *testing.T, blocks []pack.Block, heap uint64, offsets []uint64) {
	t.Helper()
	first := func(k int) int { // the first block that k lies with
		for blocks[k].With != k {
			k = blocks[k].With
		}
		return k
	}
	for k, x := range blocks {
		if offsets[k] != offsets[x.With] || offsets[k]+x.Bytes > heap {
			t.Fatalf("block %d at %d, the one that it lies with at %d, in a heap of %d", k, offsets[k], offsets[x.With], heap)
		}
		for j, y := range blocks[:k] {
			if first(j) != first(k) && x.Start <= y.End && y.Start <= x.End && offsets[j] < offsets[k]+x.Bytes && offsets[k] < offsets[j]+y.Bytes {
				t.Fatalf("blocks %d and %d overlap", j, k)
			}
		}
	}
}

func TestHostMemory(t *testing.T) {
	m := parse(t, "HloModule m\n\nENTRY main {\n  p = f32[4]{0:S(5)} parameter(0)\n  ROOT a = f32[4] custom-call(p), custom_call_target=\"x\"\n}\n")
	s, err := assigned(m)
	if err != nil || s.Host != 16 || s.Parameters != 0 || s.LiveOut != 16 {
		t.Errorf("%+v, %v", s, err)
	}
	if v := m.Entry.Instruction("p").Shape.Space(); v != hlo.HostSpace {
		t.Errorf("space %d", v)
	}
}
