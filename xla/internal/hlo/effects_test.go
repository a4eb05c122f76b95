package hlo_test

import (
	"strings"
	"testing"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
	"gpumem/xla/internal/verify"
)

func TestRecomputable(t *testing.T) {
	const text = `HloModule m, is_scheduled=true
random {
  q = f32[8] parameter(0)
  z = f32[] constant(0)
  r = f32[8] rng(z, z), distribution=rng_uniform
  ROOT a = f32[8] add(q, r)
}
called {
  q = f32[8] parameter(0)
  k = f32[8] custom-call(q), custom_call_target="x"
  ROOT a = f32[8] add(q, k)
}
effect {
  q = f32[8] parameter(0)
  ROOT k = f32[8] custom-call(q), custom_call_target="x", custom_call_has_side_effect=true
}
plus {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT z = f32[] add(x, y)
}
always {
  q = f32[8] parameter(0)
  ROOT y = pred[] constant(true)
}
ENTRY e {
  p = f32[8] parameter(0)
  m = f32[4,2]{1,0} parameter(1)
  state = u64[2] parameter(2)
  k = token[] after-all()
  zero = f32[] constant(0)
  no.constant = f32[8] constant({1,2,3,4,5,6,7,8})
  yes.add = f32[8] add(p, p)
  yes.reshape = f32[4,2] reshape(p)
  no.copy = f32[8]{0} copy(p)
  no.copy2 = f32[4,2] copy(m)
  yes.copy = f32[4,2]{0,1} copy(m)
  no.rng = f32[8] rng(zero, zero), distribution=rng_uniform
  yes.bits = (u64[2], u32[8]) rng-bit-generator(state), algorithm=rng_threefry
  no.state = u64[1] rng-get-and-update-state(), delta=1
  no.call = f32[8] call(p), to_apply=called
  no.while = f32[8] while(p), condition=always, body=called
  no.custom = f32[8] custom-call(p), custom_call_target="x"
  yes.fusion = f32[8] fusion(p), kind=kLoop, calls=called
  no.fusion = f32[8] fusion(p), kind=kLoop, calls=random
  no.fusion2 = f32[8] fusion(p), kind=kLoop, calls=effect
  yes.gather = f32[16] all-gather(p), dimensions={0}, channel_id=1, replica_groups={{0,1}}
  no.gather = f32[16] all-gather(p), dimensions={0}, channel_id=2, replica_groups={{0,1}}, constrain_layout=true
  yes.reduce = f32[8] all-reduce(p), to_apply=plus, channel_id=3
  yes.scatter = f32[4] reduce-scatter(p), dimensions={0}, to_apply=plus, replica_groups={{0,1}}
  yes.permute = f32[8] collective-permute(p), channel_id=4, source_target_pairs={{0,1}}
  no.send = (f32[8], u32[], token[]) send(p, k), channel_id=5
  no.senddone = token[] send-done(no.send), channel_id=5
  no.infeed = (f32[8], token[]) infeed(k)
  no.outfeed = token[] outfeed(p, k)
  yes.barrier = f32[8] opt-barrier(p)
  no.start = (f32[8], f32[8]) collective-permute-start(p), source_target_pairs={{0,1}}
  no.ata = ((f32[8]), f32[8], s32[]) all-to-all-start(p), constrain_layout=true, replica_groups={{0,1}}
  no.atadone = f32[8] all-to-all-done(no.ata)
  yes.atb = ((f32[8]), f32[8], s32[]) all-to-all-start(p), replica_groups={{0,1}}
  yes.atbdone = f32[8] all-to-all-done(yes.atb)
  yes.arstart = f32[8] all-reduce-start(p), to_apply=plus
  no.ardone = f32[8] all-reduce-done(yes.arstart)
  ROOT yes.root = f32[8] negate(p)
}
`
	m := remattest.Parsed(t, text)
	effects := hlo.Effects{}
	for _, i := range m.Entry.Instructions {
		want, rest, _ := strings.Cut(i.Name, ".")
		if rest == "" {
			continue
		}
		if got := effects.Recomputable(i); got != (want == "yes") {
			t.Errorf("%s: %v", i.Name, got)
		}
	}
}

func TestRemoveDead(t *testing.T) {
	tests := []struct {
		name, text string
		changed    bool
		want       string // of the entry
		more       string // other computations
	}{
		{"nothing", "ENTRY e {\n  p = f32[] parameter(0)\n  ROOT n = f32[] negate(p)\n}\n", false, "p n", ""},
		{"a chain, not the parameter", "ENTRY e {\n  p = f32[] parameter(0)\n  q = f32[] parameter(1)\n  a = f32[] negate(q)\n  b = f32[] negate(a)\n  ROOT n = f32[] negate(p)\n}\n", true, "p q n", ""},
		{"what others wait for stays, and what waits", "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] negate(p)\n  b = f32[] negate(p), control-predecessors={a}\n  ROOT n = f32[] negate(p)\n}\n", false, "p a b n", ""},
		{"effects stay", "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] custom-call(p), custom_call_target=\"x\", custom_call_has_side_effect=true\n  b = f32[] custom-call(p), custom_call_target=\"x\"\n  ROOT n = f32[] negate(p)\n}\n", true, "p a n", ""},
		{"an annotation stays", "ENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] custom-call(p), custom_call_target=\"Sharding\", sharding={replicated}\n  ROOT n = f32[] negate(p)\n}\n", false, "p a n", ""},
		{"computations", "f {\n  ROOT q = f32[] parameter(0)\n}\ng {\n  ROOT q = f32[] parameter(0)\n}\nENTRY e {\n  p = f32[] parameter(0)\n  a = f32[] call(p), to_apply=g\n  ROOT n = f32[] call(p), to_apply=f\n}\n", true, "p n", "f:q"},
		{"outputs and parameters of a fusion", `f {
  q = f32[] parameter(0)
  r = f32[] parameter(1)
  s = f32[] parameter(2)
  a = f32[] negate(q)
  b = f32[] negate(r)
  c = f32[] negate(s)
  ROOT o = (f32[], f32[], f32[]) tuple(a, b, c), metadata={op_name="o"}
}
ENTRY e {
  p = f32[] parameter(0)
  u = f32[] negate(p)
  f = (f32[], f32[], f32[]) fusion(p, u, p), kind=kLoop, calls=f
  g = f32[] get-tuple-element(f), index=0
  h = f32[] get-tuple-element(f), index=2
  ROOT n = f32[] add(g, h)
}
`, true, "p f g h n", "f:q s a c o"},
		{"all outputs but one", `f {
  q = f32[] parameter(0)
  a = f32[] negate(q)
  ROOT o = (f32[], f32[]) tuple(q, a)
}
ENTRY e {
  p = f32[] parameter(0)
  f = (f32[], f32[]) fusion(p), kind=kLoop, calls=f
  g = f32[] get-tuple-element(f), index=1
  h = f32[] negate(p), control-predecessors={g}
  ROOT n = f32[] add(g, h)
}
`, true, "p f h n", "f:q a"},
		{"a fusion in place keeps its outputs", `f {
  q = f32[] parameter(0)
  a = f32[] negate(q)
  ROOT o = (f32[], f32[]) tuple(q, a)
}
ENTRY e {
  p = f32[] parameter(0)
  f = (f32[], f32[]) fusion(p), kind=kLoop, calls=f, output_to_operand_aliasing={{0}: (0, {})}
  ROOT g = f32[] get-tuple-element(f), index=1
}
`, false, "p f g", "f:q a o"},
		{"the last element is the result", `f {
  q = f32[] parameter(0)
  a = f32[] negate(q)
  ROOT o = (f32[], f32[]) tuple(q, a)
}
ENTRY e {
  p = f32[] parameter(0)
  f = (f32[], f32[]) fusion(p), kind=kLoop, calls=f
  ROOT g = f32[] get-tuple-element(f), index=1
}
`, true, "p f", "f:q a"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := remattest.Parsed(t, "HloModule m, is_scheduled=true\n"+test.text)
			sum := remattest.Meaning(m)
			changed, err := hlo.RemoveDead(m)
			if err != nil {
				t.Fatal(err)
			}
			if err := verify.Module(m); err != nil {
				t.Fatalf("%v\n%s", err, m)
			}
			var more []string
			for _, c := range m.Computations {
				if c != m.Entry {
					// XLA has another tuple there.
					if c.Root.Opcode == hlo.TupleOp && c.Root.OpName() != "" {
						t.Errorf("%s keeps its metadata", c.Root.Name)
					}
					more = append(more, c.Name+":"+strings.Join(names(c.Instructions), " "))
				}
			}
			got := strings.Join(names(m.Entry.Instructions), " ")
			if changed != test.changed || got != test.want || strings.Join(more, " ") != test.more {
				t.Errorf("%v: %s; %s\n%s", changed, got, more, m)
			}
			if remattest.Meaning(m) != sum {
				t.Errorf("it computes something else\n%s", m)
			}
		})
	}
}
