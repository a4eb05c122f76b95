package xla

import (
	"slices"
	"strings"
	"testing"
	"time"

	"gpumem/hlo"
	"gpumem/remat/host"
)

// padded is a size that rounds the fastest dimension up to 64, and tables of tuples are 4 bytes.
func padded(s *hlo.Shape) (uint64, error) {
	if !s.IsArray() {
		return 4, nil
	}
	n := uint64(4)
	fastest := len(s.Dims) - 1
	if strings.HasPrefix(s.Layout, "0") {
		fastest = 0
	}
	for d, size := range s.Dims {
		if d == fastest {
			size = (size + 63) / 64 * 64
		}
		n *= uint64(size)
	}
	return n, nil
}

// compact lets the larger of two dimensions run fastest.
func compact(s *hlo.Shape) (*hlo.Shape, error) {
	if len(s.Dims) != 2 {
		return s, nil
	}
	c := *s
	c.HasLayout = true
	if strings.HasPrefix(s.FullLayout(), "1,0") && s.Dims[1] < s.Dims[0] {
		c.Layout = "0,1"
	} else if strings.HasPrefix(s.FullLayout(), "0,1") && s.Dims[0] < s.Dims[1] {
		c.Layout = "1,0"
	}
	return &c, nil
}

const plus = `plus {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
`

func TestCompress(t *testing.T) {
	reduce := func(name, of string) string {
		return "  " + name + " = f32[] reduce(" + of + ", c), dimensions={0,1}, to_apply=plus\n"
	}
	begin := head + plus + `ENTRY e {
  p = f32[] parameter(0)
  c = f32[] constant(0)
`
	negate := "  n = f32[64,2]{1,0} negate(b)\n"
	b := "  b = f32[64,2]{1,0} broadcast(p), dimensions={}\n"
	tests := []struct {
		name    string
		text    string
		limit   uint64
		min     uint64
		changed bool
		copied  []string // reductions of what was compressed
		not     []string
	}{
		{"20 large ones only", begin + b + "  b2 = f32[10,2]{1,0} broadcast(p), dimensions={}\n" + negate + reduce("r0", "n") + reduce("r1", "b") + reduce("r2", "b2") +
			"  a = f32[] add(r0, r1)\n  ROOT z = f32[] add(a, r2)\n}\n", 30 * kib, 10 * kib, true, []string{"r1"}, []string{"r2"}},
		{"21 one", begin + b + negate + reduce("r0", "n") + reduce("r1", "b") + "  ROOT a = f32[] add(r0, r1)\n}\n", 30 * kib, 0, true, []string{"r1"}, nil},
		{"22 copies larger than the peak", begin + "  b = f32[63,60]{1,0} broadcast(p), dimensions={}\n  b2 = f32[16,64]{1,0} broadcast(p), dimensions={}\n" +
			reduce("r0", "b2") + reduce("r1", "b") + "  ROOT a = f32[] add(r0, r1)\n}\n", 16 * kib, 0, false, nil, []string{"r0", "r1"}},
		{"23 one copy for all", begin + b + negate + reduce("r0", "n") + reduce("r1", "n") + reduce("r2", "b") + "  a = f32[] add(r0, r1)\n" + reduce("r3", "b") +
			"  a2 = f32[] add(r2, r3)\n  ROOT o = (f32[], f32[]) tuple(a, a2)\n}\n", 30 * kib, 0, true, []string{"r2", "r3"}, nil},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := parse(t, test.text)
			var steps []Step
			r := apply(t, m, Options{Limit: test.limit, MinSize: test.min, Size: padded, Compact: compact, Strategies: Compress, OnStep: func(s Step) { steps = append(steps, s) }})
			if r.Changed != test.changed || len(steps) > 0 != test.changed {
				t.Errorf("changed %v in %d steps", r.Changed, len(steps))
			}
			var copies []*hlo.Instruction
			for _, name := range test.copied {
				full := at(t, m.Entry, name).Operands[0]
				if full.Name != "b.remat_uncompressed" || full.Operands[0].Name != "b.remat_compressed" || full.Operands[0].Operands[0].Name != "b" {
					t.Errorf("%s reduces %s", name, full.Name)
				}
				copies = append(copies, full)
			}
			if len(slices.Compact(copies)) > 1 {
				t.Errorf("several copies")
			}
			for _, name := range test.not {
				if o := at(t, m.Entry, name).Operands[0]; o.Opcode != hlo.Broadcast {
					t.Errorf("%s reduces %s", name, o.Opcode)
				}
			}
			for _, s := range steps {
				if s.Strategy != Compress || s.Added != 2 || s.Before-s.After != 16*kib-512 || s.Chosen[0].Name != "b" || s.At.Name != "r0" {
					t.Errorf("step %+v at %s", s, s.At.Name)
				}
			}
		})
	}
}

// host takes half a second for each tanh and add of 1024, and a second for
// 4 KiB to or from it.
var hostMemory = &host.Memory{ToHost: 4 * kib, FromHost: 4 * kib, Seconds: func(i *hlo.Instruction) float64 {
	if i.Opcode == hlo.Add || i.Opcode == "tanh" {
		return 0.5
	}
	return 0
}}

// fromHost says whether an instruction is what name was, brought back from the host.
func fromHost(i *hlo.Instruction, name string) bool {
	for _, want := range []struct {
		op    hlo.Opcode
		space uint64
	}{{hlo.CopyDone, 0}, {hlo.CopyStart, 0}, {hlo.CopyDone, hlo.HostSpace}, {hlo.CopyStart, hlo.HostSpace}} {
		shape := i.Shape
		if i.Opcode == hlo.CopyStart {
			shape = shape.Elements[0]
		}
		if i.Opcode != want.op || shape.Space() != want.space {
			return false
		}
		i = i.Operands[0]
	}
	return i.Name == name
}

func TestOffload(t *testing.T) {
	text := func(view string, last string) string {
		return head + `ENTRY e {
  p0 = f32[1024]{0} parameter(0)
  p1 = f32[1024]{0} parameter(1)
  r3 = f32[1024]{0} add(p0, p1)
` + view + `  r4 = f32[1024]{0} tanh(r3)
  r5 = f32[1024]{0} tanh(r4)
  r6 = f32[1024]{0} tanh(r5)
  r7 = f32[1024]{0} add(r6, r6)
  r8 = f32[1024]{0} add(r7, r5)
  r9 = f32[1024]{0} add(r8, r4)
  r10 = f32[1024]{0} add(r9, ` + last + `)
  ROOT r11 = f32[1024]{0} tanh(r10)
}
`
	}
	t.Run("24 two values", func(t *testing.T) {
		m := parse(t, text("", "r3"))
		r := apply(t, m, Options{Limit: 10 * kib, Strategies: Offload, Host: hostMemory})
		if !r.Changed || r.Added != 8 || len(m.Entry.Instructions) != 19 {
			t.Errorf("%+v\n%s", r, m)
		}
		if o := at(t, m.Entry, "r10").Operands; o[0].Name != "r9" || !fromHost(o[1], "r3") {
			t.Errorf("r10 uses %s\n%s", o[1].Name, m)
		}
		if o := at(t, m.Entry, "r9").Operands; o[0].Name != "r8" || !fromHost(o[1], "r4") {
			t.Errorf("r9 uses %s\n%s", o[1].Name, m)
		}
		for user, o := range map[string]string{"r4": "r3", "r5": "r4", "r8": "r7", "r11": "r10"} {
			if at(t, m.Entry, user).Operands[0].Name != o {
				t.Errorf("%s uses %s", user, at(t, m.Entry, user).Operands[0].Name)
			}
		}
		if last := m.Entry.Instructions[len(m.Entry.Instructions)-1]; last.Name != "r11" {
			t.Errorf("the last is %s", last.Name)
		}
	})
	t.Run("25 not through a bitcast", func(t *testing.T) {
		m := parse(t, text("  v = f32[1024]{0} bitcast(r3)\n", "v"))
		r := apply(t, m, Options{Limit: 10 * kib, Strategies: Offload, Host: hostMemory})
		if !r.Changed || r.Added != 4 {
			t.Errorf("%+v\n%s", r, m)
		}
		if o := at(t, m.Entry, "r10").Operands; o[1].Opcode != hlo.Bitcast || o[1].Operands[0].Name != "r3" {
			t.Errorf("r10 uses %s", o[1].Name)
		}
		if o := at(t, m.Entry, "r9").Operands; !fromHost(o[1], "r4") {
			t.Errorf("r9 uses %s\n%s", o[1].Name, m)
		}
	})
	t.Run("no time", func(t *testing.T) {
		m := parse(t, text("", "r3"))
		slow := *hostMemory
		slow.ToHost = 1
		if r := apply(t, m, Options{Limit: 10 * kib, Strategies: Offload, Host: &slow}); r.Changed {
			t.Errorf("%+v", r)
		}
	})
	t.Run("no host", func(t *testing.T) {
		for _, h := range []*host.Memory{nil, {}, {ToHost: 1, FromHost: 1}, {ToHost: 1, Seconds: hostMemory.Seconds}} {
			if _, err := Run(parse(t, text("", "r3")), Options{Strategies: Offload, Host: h}); err != host.ErrNoSpeed {
				t.Errorf("%+v: error %v", h, err)
			}
		}
	})
}

// nested is three calls deep; the innermost holds chain. large is the size of what it computes.
func nested(chain string) string {
	return head + "deep {" + chain + `}
call {
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  k = f32[1024]{0} call(p, q), to_apply=deep
  ROOT n = f32[1024]{0} negate(k)
}
twice {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  bx = f32[1024]{0} broadcast(x), dimensions={}
  by = f32[1024]{0} broadcast(y), dimensions={}
  k = f32[1024]{0} call(bx, by), to_apply=call
  ROOT m = f32[1024]{0} multiply(k, k)
}
ENTRY e {
  p = f32[] parameter(0)
  q = f32[] parameter(1)
  k = f32[1024]{0} call(p, q), to_apply=twice
  ROOT n = f32[1024]{0} negate(k)
}
`
}

const chainOne = `
  c8 = f32[] constant(8)
  u8 = f32[1024]{0} broadcast(c8), dimensions={}
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  pq = f32[1024]{0} add(p, q)
  c1 = f32[] constant(1)
  big = f32[16384]{0} broadcast(c1), dimensions={}
  t1 = f32[16384]{0} tanh(big)
  t2 = f32[16384]{0} tanh(t1)
  t3 = f32[16384]{0} tanh(t2)
  t4 = f32[16384]{0} tanh(t3)
  s = f32[1024]{0} slice(t4), slice={[0:1024]}
  r1 = f32[1024]{0} add(pq, s)
  r3 = f32[1024]{0} add(u8, r1)
  x8 = f32[1024]{0} broadcast(c8), dimensions={}
  xpq = f32[1024]{0} add(x8, pq)
  ROOT r = f32[1024]{0} add(r3, xpq)
`

func chainTwo(large string) string {
	return strings.ReplaceAll(`
  c8 = f32[] constant(8)
  u8 = f32[1024]{0} broadcast(c8), dimensions={}
  p = f32[1024]{0} parameter(0)
  v8 = f32[1024]{0} broadcast(c8), dimensions={}
  q = f32[1024]{0} parameter(1)
  pq = f32[1024]{0} add(p, q)
  c1 = f32[] constant(1)
  big = f32[LARGE]{0} broadcast(c1), dimensions={}
  t1 = f32[LARGE]{0} tanh(big)
  t2 = f32[LARGE]{0} tanh(t1)
  t3 = f32[LARGE]{0} tanh(t2)
  t4 = f32[LARGE]{0} tanh(t3)
  s = f32[1024]{0} slice(t4), slice={[0:1024]}
  r1 = f32[1024]{0} add(pq, s)
  r3 = f32[1024]{0} add(u8, r1)
  r32 = f32[1024]{0} add(v8, r3)
  x8 = f32[1024]{0} broadcast(c8), dimensions={}
  xpq = f32[1024]{0} add(x8, pq)
  r4 = f32[1024]{0} add(r32, xpq)
  ROOT r = f32[1024]{0} add(r3, r4)
`, "LARGE", large)
}

func TestPeakFirst(t *testing.T) {
	t.Run("28 at the peak", func(t *testing.T) {
		m := parse(t, head+`ENTRY e {
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  o = f32[] constant(1)
  w = f32[] constant(2)
  b0 = f32[16384]{0} broadcast(o), dimensions={}
  b1 = f32[16384]{0} broadcast(w), dimensions={}
  c8 = f32[] constant(8)
  mega = f32[262144]{0} broadcast(c8), dimensions={}
  ms = f32[1024]{0} slice(mega), slice={[0:1024]}
  bs = f32[1024]{0} slice(b1), slice={[0:1024]}
  x = f32[1024]{0} add(ms, bs)
  m0 = f32[1024]{0} slice(mega), slice={[0:1024]}
  m1 = f32[1024]{0} slice(mega), slice={[1024:2048]}
  pq = f32[1024]{0} add(p, q)
  xpq = f32[1024]{0} add(x, pq)
  mm = f32[1024]{0} add(m0, m1)
  op1 = f32[16384]{0} tanh(b0)
  op2 = f32[16384]{0} tanh(op1)
  op3 = f32[16384]{0} tanh(op2)
  op4 = f32[16384]{0} tanh(op3)
  s = f32[1024]{0} slice(op4), slice={[0:1024]}
  r1 = f32[1024]{0} add(pq, s)
  u8 = f32[1024]{0} broadcast(c8), dimensions={}
  r2 = f32[1024]{0} add(u8, r1)
  ROOT r = f32[1024]{0} add(r2, xpq)
}
`)
		r := apply(t, m, Options{Limit: 100 * kib, Algorithm: PeakFirst})
		names := order(m.Entry)
		clone := slices.Index(names, "b0.remat")
		if !r.Changed || slices.Contains(names, "b0") || slices.Contains(names, "pq.remat") || slices.Contains(names, "b1.remat2") ||
			clone < 0 || names[clone+1] != "op1" {
			t.Errorf("%+v\n%v", r, names)
		}
	})
	t.Run("29 in calls", func(t *testing.T) {
		m := parse(t, nested(chainOne))
		if r := apply(t, m, Options{Algorithm: PeakFirst}); !r.Changed || r.After >= r.Before {
			t.Errorf("%+v", r)
		}
	})
	t.Run("32 several at one peak", func(t *testing.T) {
		m := parse(t, nested(chainTwo("16384")))
		r := apply(t, m, Options{Algorithm: PeakFirst})
		names := order(m.Computation("deep"))
		if !r.Changed || slices.Contains(names, "u8") || slices.Contains(names, "x8.remat2") || !slices.Contains(names, "u8.remat") || !slices.Contains(names, "v8.remat") {
			t.Errorf("%+v\n%v", r, names)
		}
	})
	t.Run("34 little progress", func(t *testing.T) {
		m := parse(t, nested(chainTwo("131072")))
		if r := apply(t, m, Options{Algorithm: PeakFirst}); !warned(r, TooLittle) {
			t.Errorf("%+v", r)
		}
	})
}

func warned(r *Result, kind WarningKind) bool {
	return slices.ContainsFunc(r.Warnings, func(w Warning) bool { return w.Kind == kind })
}

// 33: A clock that jumps by five minutes.
func TestTooLong(t *testing.T) {
	now := time.Unix(0, 0)
	clock := func() time.Time {
		now = now.Add(5 * time.Minute)
		return now
	}
	m := parse(t, head+"ENTRY e {"+twoUsers+"}\n")
	if r := apply(t, m, Options{Limit: 12 * kib, Now: clock}); !warned(r, TooLong) {
		t.Errorf("%+v", r)
	}
}

// 30: Who is told of what.
func TestOnClone(t *testing.T) {
	m := parse(t, nested(chainOne))
	group := map[*hlo.Instruction]*hlo.Instruction{}
	r := apply(t, m, Options{Limit: 14 * kib, OnClone: func(original, clone *hlo.Instruction) {
		if g := group[original]; g != nil {
			original = g
		}
		group[clone] = original
	}})
	clones := map[string][]string{}
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if base, _, ok := strings.Cut(i.Name, ".remat"); ok {
				clones[base] = append(clones[base], i.Name)
				if group[i] == nil || group[i].Name != base {
					t.Errorf("%s is a clone of %v", i.Name, group[i])
				}
			}
		}
	}
	want := map[string]int{"x8": 1, "u8": 1, "pq": 2, "bx": 1, "by": 1}
	if !r.Changed || len(clones) != len(want) {
		t.Errorf("%+v: %v", r, clones)
	}
	for base, n := range want {
		if len(clones[base]) != n {
			t.Errorf("%s has the clones %v, want %d", base, clones[base], n)
		}
	}
}

// 31: What a clone has made superfluous says nothing about where clones stand.
func TestPeakFirstDead(t *testing.T) {
	m := parse(t, head+`ENTRY e {
  c8 = f32[] constant(8)
  p = f32[1024]{0} parameter(0)
  q = f32[1024]{0} parameter(1)
  c1 = f32[] constant(1)
  b0 = f32[16384]{0} broadcast(c1), dimensions={}
  b1 = f32[16384]{0} broadcast(c1), dimensions={}
  op1 = f32[16384]{0} tanh(b0)
  op2 = f32[16384]{0} tanh(op1)
  op3 = f32[16384]{0} add(op1, op2)
  op5 = f32[16384]{0} add(op3, op3)
  op6 = f32[16384]{0} add(op3, op5)
  f1 = f32[16384]{0} add(b0, b1)
  f2 = f32[16384]{0} add(b0, b1)
  v1 = f16[32768]{0} bitcast(f1)
  v2 = f16[32768]{0} bitcast(f2)
  w2 = f16[32768]{0} bitcast(f2)
  h1 = f16[32768]{0} add(v1, v1)
  z1 = f32[16384]{0} bitcast(h1)
  h2 = f16[32768]{0} add(w2, w2)
  z2 = f32[16384]{0} bitcast(h2)
  t0 = f32[1024]{0} slice(op6), slice={[0:1024]}
  t1 = f32[1024]{0} add(t0, t0)
  t2 = f32[1024]{0} add(t1, t1)
  t3 = f32[1024]{0} add(t2, t1)
  t4 = f32[1024]{0} add(t3, t1)
  t5 = f32[1024]{0} add(t4, t1)
  t6 = f32[1024]{0} add(t5, t1)
  t7 = f32[1024]{0} add(t6, t1)
  pq.remat = f32[1024]{0} add(p, q)
  r1 = f32[1024]{0} add(pq.remat, t7)
  u8.remat = f32[1024]{0} broadcast(c8), dimensions={}
  r3 = f32[1024]{0} add(u8.remat, r1)
  v8.remat = f32[1024]{0} broadcast(c8), dimensions={}
  r32 = f32[1024]{0} add(v8.remat, r3)
  x8 = f32[1024]{0} broadcast(c8), dimensions={}
  xpq = f32[1024]{0} add(x8, pq.remat)
  sz2 = f32[1024]{0} slice(z2), slice={[0:1024]}
  r4 = f32[1024]{0} add(r32, xpq)
  sz1 = f32[1024]{0} slice(z1), slice={[0:1024]}
  k1 = f32[1024]{0} slice(sz1), slice={[0:1024]}
  k2 = f32[1024]{0} slice(f2), slice={[0:1024]}
  r5 = f32[1024]{0} add(k1, r4)
  r6 = f32[1024]{0} add(k2, r5)
  r7 = f32[1024]{0} add(sz1, r6)
  r8 = f32[1024]{0} add(sz2, r7)
  ROOT r = f32[1024]{0} add(r3, r8)
}
`)
	r := apply(t, m, Options{Limit: 25 * kib, Algorithm: PeakFirst, BlockLimit: 32})
	names := order(m.Entry)
	place := func(name string) int { return slices.Index(names, name) }
	for _, name := range []string{"f1.remat", "f2.remat", "k2", "op1.remat", "op6.remat", "bitcast.remat.2"} {
		if place(name) < 0 {
			t.Fatalf("no %s in %v", name, names)
		}
	}
	if !r.Changed || place("f2.remat") <= place("f1.remat") || place("bitcast.remat.2") != place("f2.remat")+1 || at(t, m.Entry, "bitcast.remat.2").Operands[0].Name != "f2.remat" {
		t.Errorf("%+v\n%v", r, names)
	}
}

// What only bitcasts and get-tuple-elements use goes with them, or stays with them.
func TestPeakFirstTrees(t *testing.T) {
	text := func(views, uses, later string) string {
		return head + `pair {
  x = f32[16384]{0} parameter(0)
  y = f32[16384]{0} parameter(1)
  a0 = f32[16384]{0} add(x, y)
  a1 = f32[16384]{0} add(x, y)
  ROOT o = (f32[16384]{0}, f32[16384]{0}) tuple(a0, a1)
}
ENTRY e {
  c = f32[] constant(1)
  c0 = f32[16384]{0} broadcast(c), dimensions={}
  c1 = f32[16384]{0} broadcast(c), dimensions={}
  f = (f32[16384]{0}, f32[16384]{0}) fusion(c0, c1), kind=kLoop, calls=pair
` + views + uses + `  b0 = f32[16384]{0} broadcast(c), dimensions={}
  b1 = f32[16384]{0} broadcast(c), dimensions={}
  peak = f32[16384]{0} add(b0, b1)
  small = f32[1024]{0} slice(peak), slice={[0:1024]}
` + later + `  y = f32[1024]{0} add(x0, x1)
  ROOT r = f32[1024]{0} add(y, small)
}
`
	}
	t.Run("gone", func(t *testing.T) {
		m := parse(t, text(`  g0 = f32[16384]{0} get-tuple-element(f), index=0
  g1 = f32[16384]{0} get-tuple-element(f), index=1
  v0 = f16[32768]{0} bitcast(g0)
  w0 = f16[32768]{0} bitcast(g0)
  v1 = f16[32768]{0} bitcast(g1)
`, "", `  h0 = f16[32768]{0} add(v0, w0)
  h1 = f16[32768]{0} add(v1, v1)
  s0 = f16[1024]{0} slice(h0), slice={[0:1024]}
  s1 = f16[1024]{0} slice(h1), slice={[0:1024]}
  x0 = f32[1024]{0} convert(s0)
  x1 = f32[1024]{0} convert(s1)
`))
		r := apply(t, m, Options{Limit: 250 * kib, Algorithm: PeakFirst, BlockLimit: 32})
		names := order(m.Entry)
		for _, name := range []string{"f", "g0", "g1", "v0", "w0", "v1"} {
			if slices.Contains(names, name) {
				t.Errorf("%s is still there", name)
			}
		}
		if !r.Changed || !slices.Contains(names, "f.remat") {
			t.Errorf("%+v\n%v", r, names)
		}
		for _, name := range []string{"h0", "h1"} {
			for _, o := range at(t, m.Entry, name).Operands {
				if !strings.HasPrefix(o.Name, "bitcast.remat") {
					t.Errorf("%s uses %s", name, o.Name)
				}
			}
		}
	})
	t.Run("kept", func(t *testing.T) {
		m := parse(t, text(`  g0 = f32[16384]{0} get-tuple-element(f), index=0
  v0 = f16[32768]{0} bitcast(g0)
`, `  h0 = f16[32768]{0} add(v0, v0)
  s0 = f16[1024]{0} slice(h0), slice={[0:1024]}
  k0 = f16[1024]{0} custom-call(s0), custom_call_target="someone"
`, `  h1 = f16[32768]{0} add(v0, v0)
  s1 = f16[1024]{0} slice(h1), slice={[0:1024]}
  x0 = f32[1024]{0} convert(k0)
  x1 = f32[1024]{0} convert(s1)
`))
		r := apply(t, m, Options{Limit: 250 * kib, Algorithm: PeakFirst, BlockLimit: 32})
		names := order(m.Entry)
		if !r.Changed || !slices.Contains(names, "f") || !slices.Contains(names, "v0") || !slices.Contains(names, "f.remat") {
			t.Errorf("%+v\n%v", r, names)
		}
		for _, o := range at(t, m.Entry, "h0").Operands {
			if o.Name != "v0" {
				t.Errorf("h0 uses %s", o.Name)
			}
		}
		for _, o := range at(t, m.Entry, "h1").Operands {
			if !strings.HasPrefix(o.Name, "bitcast.remat") {
				t.Errorf("h1 uses %s", o.Name)
			}
		}
	})
}
