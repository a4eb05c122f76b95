package memory

import (
	"cmp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/alias"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
	"gpumem/xla/internal/verify"
)

func names(list []*hlo.Instruction) string {
	var b []string
	for _, i := range list {
		b = append(b, i.Name)
	}
	return strings.Join(b, " ")
}

// The example at the head of XLA's list scheduler, which puts B off, as it makes
// more than it frees.
const putOff = `HloModule m

ENTRY main {
  A = u8[10] custom-call(), custom_call_target="x"
  B = u8[20] custom-call(A), custom_call_target="x"
  C = u8[10] custom-call(B), custom_call_target="x"
  D = u8[10] custom-call(A), custom_call_target="x"
  E = u8[10] custom-call(A), custom_call_target="x"
  F = u8[20] custom-call(D, E), custom_call_target="x"
  ROOT G = () custom-call(C, F), custom_call_target="x"
}
`

// ordersOf are the orders of a computation by name.
func ordersOf(m *hlo.Module, c *hlo.Computation) (map[string][]*hlo.Instruction, error) {
	all, err := Orders(m)
	lists := map[string][]*hlo.Instruction{}
	for _, o := range all {
		lists[o.Name] = o.Lists[c]
	}
	return lists, err
}

func TestListOfXLA(t *testing.T) {
	m := parse(t, putOff)
	orders, err := ordersOf(m, m.Entry)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(orders["list"]); got != "A E D F B C G" && got != "A D E F B C G" {
		t.Errorf("%s, want A D E F B C G", got)
	}
	if got := names(m.Entry.Instructions); got != "A B C D E F G" {
		t.Errorf("the module was changed: %s", got)
	}
	name, bytes, err := best(m)
	if err != nil {
		t.Fatal(err)
	}
	if name != "list" || bytes != 50 {
		t.Errorf("%s with %d bytes, want list, the first of equal ones, with 50", name, bytes)
	}
	if a, err := AnalyzeModule(m); err != nil || a.MinimumMemory() != bytes || !m.Scheduled {
		t.Errorf("applied: %v, scheduled %v", err, m.Scheduled)
	}
	if err := verify.Module(m); err != nil {
		t.Error(err)
	}
}

func TestOrders(t *testing.T) {
	for _, c := range []struct{ name, body, list, dfs, post string }{
		{"scalars at once", `
  p = f32[100] parameter(0)
  a = f32[100] custom-call(p), custom_call_target="x"
  s = f32[1,1] custom-call(p), custom_call_target="x"
  z = f32[] custom-call(s), custom_call_target="x"
  ROOT r = f32[100] custom-call(a, z), custom_call_target="x"`,
			"p s z a r", "p a s z r", "p a s z r"},
		{"what frees more first", `
  p = f32[] parameter(0)
  a = f32[100] custom-call(p), custom_call_target="x"
  b = f32[200] custom-call(p), custom_call_target="x"
  c = f32[2] custom-call(a), custom_call_target="x"
  d = f32[2] custom-call(b), custom_call_target="x"
  ROOT r = f32[] custom-call(c, d), custom_call_target="x"`,
			// a makes less than b; then c frees a.
			"p a c b d r", "p b d a c r", "p a c b d r"},
		{"control predecessors", `
  p = f32[2] parameter(0)
  b = f32[4] custom-call(p), custom_call_target="x"
  a = f32[2] custom-call(p), custom_call_target="x", control-predecessors={b}
  ROOT r = f32[2] custom-call(a, p, b), custom_call_target="x"`,
			"p b a r", "p b a r", "p b a r"},
		{"what is not used", `
  p = f32[2] parameter(0)
  u = f32[2] custom-call(p), custom_call_target="x"
  ROOT r = f32[2] custom-call(p), custom_call_target="x"`,
			"p r u", "p u r", "p u r"},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := "HloModule m\n\nENTRY main {" + c.body + "\n}\n"
			m := parse(t, text)
			orders, err := ordersOf(m, m.Entry)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range map[string]string{"list": c.list, "dfs": c.dfs, "post-order": c.post} {
				if got := names(orders[name]); got != want {
					t.Errorf("%s %s, want %s", name, got, want)
				}
			}
		})
	}
}

func TestOrdersOfCycle(t *testing.T) {
	m := parse(t, "HloModule m\n\nENTRY main {\n  a = f32[2] parameter(0)\n  b = f32[2] custom-call(a), custom_call_target=\"x\"\n  ROOT c = f32[2] custom-call(b), custom_call_target=\"x\"\n}\n")
	b, c := m.Entry.Instruction("b"), m.Entry.Instruction("c")
	b.AddAfter(c)
	s, err := newScheduler(m)
	if err != nil {
		t.Fatal(err)
	}
	for name, order := range map[string]func(*hlo.Computation) ([]*hlo.Instruction, error){"list": s.list, "dfs": s.dfs, "post-order": s.postOrder} {
		if list, err := order(m.Entry); err == nil {
			t.Errorf("%s %s", name, names(list))
		}
	}
}

// The three orders against what their definitions say, written down plainly.
func TestOrdersAgainstSlowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := parse(t, hlotest.DrawModule(t))
		if rapid.Bool().Draw(t, "control") {
			e := m.Entry.Instructions
			for range 3 {
				q := rapid.IntRange(1, len(e)-1).Draw(t, "after")
				e[q].AddAfter(e[rapid.IntRange(0, q-1).Draw(t, "before")])
			}
		}
		orders, err := Orders(m)
		if err != nil {
			t.Fatal(err)
		}
		f, err := alias.Analyze(m)
		if err != nil {
			t.Fatal(err)
		}
		first := map[*hlo.Computation]int32{}
		for k := len(f.Walks) - 1; k >= 0; k-- {
			first[f.Walks[k].Computation] = int32(k)
		}
		for c, walk := range first {
			for k, want := range [][]*hlo.Instruction{slowList(f, walk), slowDFS(f, walk), slowPost(c)} {
				if got := orders[k].Lists[c]; !slices.Equal(got, want) {
					t.Fatalf("%s of %s: %s\nwant %s", orders[k].Name, c.Name, names(got), names(want))
				}
			}
		}
		name, bytes, err := best(m)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range orders {
			o.Apply(m)
			if a, err := AnalyzeModule(m); err != nil || a.MinimumMemory() < bytes {
				t.Fatalf("%s takes %d, the best, %s, %d; %v", o.Name, a.MinimumMemory(), name, bytes, err)
			}
			if err := verify.Module(m); err != nil {
				t.Fatal(err)
			}
		}
	})
}

func slowPost(c *hlo.Computation) (order []*hlo.Instruction) {
	done := map[*hlo.Instruction]bool{}
	var visit func(i *hlo.Instruction)
	visit = func(i *hlo.Instruction) {
		if done[i] {
			return
		}
		done[i] = true
		for k := len(i.After) - 1; k >= 0; k-- {
			visit(i.After[k])
		}
		for _, o := range i.Operands {
			visit(o)
		}
		order = append(order, i)
	}
	for _, i := range c.Instructions {
		if len(i.Users) == 0 {
			visit(i)
		}
	}
	return order
}

// valuesOf are the values of an instruction's result.
func valuesOf(f *alias.Flow, walk int32, i *hlo.Instruction) map[int32]bool {
	set := map[int32]bool{}
	n, _ := f.Node(walk, i)
	for _, v := range f.Parts(n) {
		set[v] = true
	}
	return set
}

func bytesOf(f *alias.Flow, v int32) int64 {
	n, err := f.Values[v].Shape.Bytes()
	if err != nil {
		panic(err)
	}
	return int64(n)
}

func slowMade(f *alias.Flow, walk int32, i *hlo.Instruction) (bytes int64) {
	for v := range valuesOf(f, walk, i) {
		if d := f.Values[v]; d.Instruction == i && f.Walk(d.Node) == walk && !ignored(i) {
			bytes += bytesOf(f, v)
		}
	}
	return bytes
}

func slowDFS(f *alias.Flow, walk int32) (order []*hlo.Instruction) {
	c := f.Walks[walk].Computation
	users, bytes := map[*hlo.Instruction]int{}, map[*hlo.Instruction]int64{}
	var sum int64
	for _, i := range slowPost(c) {
		if ignored(i) {
			continue
		}
		users[i], bytes[i] = max(len(i.Users)-1, 0), slowMade(f, walk, i)
		sum += bytes[i]
		seen := map[*hlo.Instruction]bool{}
		for _, o := range i.Operands {
			if !seen[o] {
				users[i] += users[o]
				bytes[i] += bytes[o]
			}
			seen[o] = true
		}
		users[i], bytes[i] = min(users[i], len(c.Instructions)), min(bytes[i], sum)
	}
	done := map[*hlo.Instruction]bool{}
	var visit func(i *hlo.Instruction)
	visit = func(i *hlo.Instruction) {
		if done[i] {
			return
		}
		done[i] = true
		next := slices.Concat(i.Operands, i.After)
		slices.SortStableFunc(next, func(x, y *hlo.Instruction) int {
			return cmp.Or(users[y]-users[x], cmp.Compare(bytes[y], bytes[x]), strings.Compare(x.Name, y.Name))
		})
		for _, o := range next {
			visit(o)
		}
		order = append(order, i)
	}
	for _, i := range c.Instructions {
		followed := slices.ContainsFunc(c.Instructions, func(j *hlo.Instruction) bool { return slices.Contains(j.After, i) })
		if len(i.Users) == 0 && !followed && i != c.Root {
			visit(i)
		}
	}
	visit(c.Root)
	return order
}

// slowList keeps the ready in the order in which they came or were moved, and
// takes the last of the best.
func slowList(f *alias.Flow, walk int32) (order []*hlo.Instruction) {
	c := f.Walks[walk].Computation
	uses := map[*hlo.Instruction]map[int32]bool{}
	left := map[int32]int{}
	for _, i := range c.Instructions {
		uses[i] = map[int32]bool{}
		for _, o := range i.Operands {
			for v := range valuesOf(f, walk, o) {
				uses[i][v] = true
			}
		}
		for v := range uses[i] {
			left[v]++
		}
	}
	for v := range valuesOf(f, walk, c.Root) {
		left[v]++
	}
	type rank struct {
		i     *hlo.Instruction
		bytes int64
		users int
	}
	ranked := func(i *hlo.Instruction) rank {
		if scalar(i.Shape) {
			return rank{i, 1 << 62, 1 << 62}
		}
		r := rank{i, -slowMade(f, walk, i), len(i.Users)}
		for v := range uses[i] {
			if left[v] == 1 && !ignored(f.Values[v].Instruction) {
				r.bytes += bytesOf(f, v)
			}
		}
		return r
	}
	var queue []rank
	done, queued := map[*hlo.Instruction]bool{}, map[*hlo.Instruction]bool{}
	offer := func(i *hlo.Instruction) {
		if queued[i] || slices.ContainsFunc(slices.Concat(i.Operands, i.After), func(o *hlo.Instruction) bool { return !done[o] }) {
			return
		}
		queued[i] = true
		queue = append(queue, ranked(i))
	}
	for _, i := range c.Instructions {
		offer(i)
	}
	for len(queue) > 0 {
		best := 0
		for k, r := range queue {
			if r.bytes > queue[best].bytes || r.bytes == queue[best].bytes && r.users >= queue[best].users {
				best = k
			}
		}
		i := queue[best].i
		queue = slices.Delete(queue, best, best+1)
		done[i] = true
		order = append(order, i)
		last := false
		for v := range uses[i] {
			left[v]--
			last = last || left[v] == 1
		}
		for _, u := range i.Users {
			if !slices.Contains(u.After, i) {
				offer(u)
			}
		}
		for _, j := range c.Instructions {
			if slices.Contains(j.After, i) {
				offer(j)
			}
		}
		if !last {
			continue
		}
		for _, o := range i.Operands {
			for _, u := range o.Users {
				k := slices.IndexFunc(queue, func(r rank) bool { return r.i == u })
				if k >= 0 && queue[k] != ranked(u) {
					queue = append(slices.Delete(queue, k, k+1), ranked(u))
				}
			}
		}
	}
	return order
}

func TestOutfeedEarlyInfeedLate(t *testing.T) {
	m := parse(t, `HloModule m

ENTRY main {
  p = f32[100] parameter(0)
  tok = token[] after-all()
  a = f32[100] custom-call(p), custom_call_target="x"
  in = (f32[1], token[]) infeed(tok), infeed_config="x"
  out = token[] outfeed(p, tok), outfeed_shape=f32[100], outfeed_config="x"
  ROOT r = f32[] custom-call(a, in), custom_call_target="x"
}
`)
	orders, err := ordersOf(m, m.Entry)
	if err != nil {
		t.Fatal(err)
	}
	if got := names(orders["list"]); got != "tok p out a in r" && got != "p tok out a in r" {
		t.Errorf("%s, want out before a before in", got)
	}
}
