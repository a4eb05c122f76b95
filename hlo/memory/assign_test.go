package memory

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/pack"
	"gpumem/internal/test/hlotest"
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
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := assignText(t, "HloModule m, is_scheduled=true\n\nENTRY main {"+c.body+"\n}\n"); *got != c.want {
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
	if want := (Assignment{Parameters: 4096, LiveOut: 4096, Temp: 32, Total: 4128}); *got != want {
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

// The temporary heaps of real modules: all that is lost to BestFit can be had.
func TestSearchOfModules(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: -short; packing real heaps takes seconds")
	}
	for _, c := range []struct {
		name      string
		fit, best uint64
	}{
		{"rocm_resnet50.train_step", 5251654784, 5213118720},
		{"rocm_vit.train_step", 8449426432, 8410891264},
		{"xla_dlrm_keras_train_step", 39615489, 38411268},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := AnalyzeModule(hlotest.Module(t, c.name))
			if err != nil {
				t.Fatal(err)
			}
			g := &assigner{a: a, in: make([]int32, len(a.BufferBytes))}
			blocks := a.record(g.allocations()[0]).blocks
			fit, _, err := pack.BestFit(blocks, pack.Alignment)
			if err != nil || fit != c.fit {
				t.Errorf("BestFit: %d, %v; want %d", fit, err, c.fit)
			}
			best, offsets, err := pack.Search(blocks, pack.Alignment, 2e8)
			if err != nil || best > c.best {
				t.Errorf("Search: %d, %v; want at most %d", best, err, c.best)
			}
			checkPacking(t, blocks, best, offsets)
		})
	}
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
