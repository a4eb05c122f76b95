package memory

import (
	"fmt"
	"slices"
	"sort"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/hlotest"
)

// A slow model of AnalyzeModule: it follows every part of every result back to
// where it is made, by name, and finds ranges by looking at everything.

// A run is an instruction in one of the walks through its computation, which is
// named by the calls that led there.
type run struct {
	path string
	i    *hlo.Instruction
}

type slow struct {
	steps   []run
	step    map[run]int
	span    map[string][2]int
	comp    map[string]*hlo.Computation
	caller  map[string]run
	assumed map[string]bool
}

func (s *slow) list(path string, c *hlo.Computation) {
	s.comp[path] = c
	from := len(s.steps)
	for _, i := range c.Instructions {
		for n, callee := range callees(i) {
			p := fmt.Sprint(path, "/", i.Name, ":", n)
			s.caller[p] = run{path, i}
			s.list(p, callee)
		}
		s.step[run{path, i}] = len(s.steps)
		s.steps = append(s.steps, run{path, i})
	}
	s.span[path] = [2]int{from, len(s.steps)}
}

func callees(i *hlo.Instruction) []*hlo.Computation {
	switch i.Opcode {
	case hlo.Call, hlo.While, hlo.Conditional:
		return i.Called()
	}
	return nil
}

func name(path string, i *hlo.Instruction, index []int) string {
	return fmt.Sprint(path, "/", i.Name, index)
}

// key is what names the value at a part of a result, empty for one that is
// assumed to be anything.
func (s *slow) key(path string, i *hlo.Instruction, index []int) string {
	own := name(path, i, index)
	below := func(n int) string { return fmt.Sprint(path, "/", i.Name, ":", n) }
	switch i.Opcode {
	case hlo.Parameter:
		if path == "" {
			return own
		}
		caller := s.caller[path]
		switch caller.i.Opcode {
		case hlo.Call:
			return s.key(caller.path, caller.i.Operands[i.Parameter], index)
		case hlo.Conditional:
			branch := int(path[len(path)-1] - '0')
			return s.key(caller.path, caller.i.Operands[branch+1], index)
		}
		return s.loop(caller.path, caller.i, index, own)
	case hlo.GetTupleElement:
		n, _ := i.TupleIndex()
		return s.key(path, i.Operands[0], append([]int{n}, index...))
	case hlo.Bitcast, hlo.OptBarrier:
		return s.key(path, i.Operands[0], index)
	case hlo.TupleOp:
		if len(index) > 0 {
			return s.key(path, i.Operands[index[0]], index[1:])
		}
	case hlo.Copy:
		if len(index) > 0 {
			return s.key(path, i.Operands[0], index)
		}
	case hlo.Call:
		return s.key(below(0), i.Call("to_apply").Root, index)
	case hlo.Conditional:
		var found []string
		for n, c := range callees(i) {
			if k := s.key(below(n), c.Root, index); k != "" && !slices.Contains(found, k) {
				found = append(found, k)
			}
		}
		if len(found) == 0 {
			return ""
		}
		if len(found) == 1 {
			return found[0]
		}
	case hlo.While:
		return s.loop(path, i, index, own)
	}
	return own
}

// loop is a part of a loop's state: what it began as if the body always
// returns that, else a value of its own.
func (s *slow) loop(path string, w *hlo.Instruction, index []int, own string) string {
	id := name(path, w, index)
	if s.assumed[id] {
		return ""
	}
	s.assumed[id] = true
	back := s.key(fmt.Sprint(path, "/", w.Name, ":1"), w.Call("body").Root, index)
	delete(s.assumed, id)
	if first := s.key(path, w.Operands[0], index); back == "" || back == first {
		return first
	}
	return own
}

// A slowValue is a value by its key.
type slowValue struct {
	key        string
	r          run
	index      []int
	start, end int
	bytes      uint64
}

func eachPart(i *hlo.Instruction, f func(index []int, s *hlo.Shape)) {
	var visit func(index []int, s *hlo.Shape)
	visit = func(index []int, s *hlo.Shape) {
		f(index, s)
		for k, e := range s.Elements {
			visit(append(slices.Clone(index), k), e)
		}
	}
	visit(nil, i.Shape)
}

func (s *slow) values() []*slowValue {
	all := map[string]*slowValue{}
	var list []*slowValue
	for _, r := range s.steps {
		eachPart(r.i, func(index []int, shape *hlo.Shape) {
			if k := name(r.path, r.i, index); s.key(r.path, r.i, index) == k {
				bytes, _ := shape.Bytes()
				v := &slowValue{key: k, r: r, index: index, start: s.step[r], bytes: bytes}
				if r.i.Opcode == hlo.Parameter {
					v.start = s.span[r.path][0]
				}
				all[k] = v
				list = append(list, v)
			}
		})
	}
	for _, r := range s.steps {
		eachPart(r.i, func(index []int, _ *hlo.Shape) {
			v := all[s.key(r.path, r.i, index)]
			v.end = max(v.end, s.step[r])
			if r.i == s.comp[r.path].Root {
				v.end = max(v.end, s.span[r.path][1])
			}
			if r.path == "" && r.i.Opcode == hlo.Parameter {
				v.end = len(s.steps)
			}
		})
		for _, o := range r.i.Operands {
			eachPart(o, func(index []int, _ *hlo.Shape) {
				step := s.step[r]
				switch r.i.Opcode {
				case hlo.TupleOp, hlo.Call:
					return
				case hlo.GetTupleElement, hlo.Copy:
					if len(index) > 0 {
						return
					}
				case hlo.While:
					body := r.i.Call("body")
					step = s.step[run{fmt.Sprint(r.path, "/", r.i.Name, ":1"), body.Parameters()[0]}]
				}
				v := all[s.key(r.path, o, index)]
				v.end = max(v.end, step)
			})
		}
	}
	return list
}

// joinBuffers are sets of keys.
func (s *slow) joinBuffers(list []*slowValue) map[string]int {
	set := map[string]int{}
	for n, v := range list {
		set[v.key] = n
	}
	join := func(a, b string) {
		if x, y := set[a], set[b]; x != y {
			for k := range set {
				if set[k] == x {
					set[k] = y
				}
			}
		}
	}
	for _, r := range s.steps {
		eachPart(r.i, func(index []int, _ *hlo.Shape) {
			self := s.key(r.path, r.i, index)
			switch r.i.Opcode {
			case hlo.While:
				join(self, s.key(r.path, r.i.Operands[0], index))
				for n, c := range callees(r.i) {
					p := fmt.Sprint(r.path, "/", r.i.Name, ":", n)
					join(self, s.key(p, c.Parameters()[0], index))
					if n == 1 {
						join(self, s.key(p, c.Root, index))
					}
				}
			case hlo.Conditional:
				for n, c := range callees(r.i) {
					join(self, s.key(fmt.Sprint(r.path, "/", r.i.Name, ":", n), c.Root, index))
				}
			case hlo.DynamicUpdateSlice:
				join(self, s.key(r.path, r.i.Operands[0], index))
			}
		})
	}
	return set
}

// measureAll is the ranges, the curve and XLA's figure.
func (s *slow) measureAll() (ranges []string, curve []uint64, minimum uint64) {
	list := s.values()
	set := s.joinBuffers(list)
	members := map[int][]*slowValue{}
	size := map[int]uint64{}
	for _, v := range list {
		b := set[v.key]
		members[b] = append(members[b], v)
		size[b] = max(size[b], v.bytes)
	}
	for _, m := range members {
		sort.SliceStable(m, func(a, b int) bool {
			return m[a].start < m[b].start || m[a].start == m[b].start && m[a].end < m[b].end
		})
		for k := 0; k+1 < len(m); k++ {
			m[k+1].end = max(m[k].end, m[k+1].end)
			m[k].end = min(m[k].end, m[k+1].start)
		}
	}
	for _, v := range list {
		ranges = append(ranges, fmt.Sprint(v.r.i.Name, v.index, ":", v.start, "-", v.end))
	}
	sort.Strings(ranges)

	alive := map[*slowValue]bool{}
	for step := 0; step <= len(s.steps); step++ {
		note := func() uint64 {
			var plain, once uint64
			seen := map[int]bool{}
			for v := range alive {
				b := set[v.key]
				plain += size[b]
				if !seen[b] {
					seen[b] = true
					once += size[b]
				}
			}
			minimum = max(minimum, plain)
			return once
		}
		for _, v := range list {
			if v.start != step || v.r.i.Opcode == hlo.Constant {
				continue
			}
			if op := v.r.i.Opcode; (op == hlo.Add || op == "negate") && len(members[set[v.key]]) == 1 {
				for _, o := range v.r.i.Operands {
					k := s.key(v.r.path, o, nil)
					w := list[slices.IndexFunc(list, func(w *slowValue) bool { return w.key == k })]
					if w.end == step && alive[w] && len(members[set[k]]) == 1 && k == name(v.r.path, o, nil) {
						delete(alive, w)
						break
					}
				}
			}
			alive[v] = true
			note()
		}
		curve = append(curve, note())
		for v := range alive {
			if v.end == step {
				delete(alive, v)
			}
		}
	}
	return ranges, curve, minimum
}

func TestAgainstSlowModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := hlotest.DrawModule(t)
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		a, err := AnalyzeModule(m)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		s := &slow{step: map[run]int{}, span: map[string][2]int{}, comp: map[string]*hlo.Computation{}, caller: map[string]run{}, assumed: map[string]bool{}}
		s.list("", m.Entry)
		ranges, curve, minimum := s.measureAll()
		var got []string
		for _, v := range a.Values {
			got = append(got, fmt.Sprint(v.Instruction.Name, v.Index, ":", v.Start, "-", v.End))
		}
		sort.Strings(got)
		if !slices.Equal(got, ranges) {
			t.Fatalf("ranges\n%v\nwant\n%v\n%s", got, ranges, text)
		}
		if !slices.Equal(a.Curve(), curve) {
			t.Fatalf("curve\n%v\nwant\n%v\n%s", a.Curve(), curve, text)
		}
		if bytes, _, _ := a.Peak(); bytes != slices.Max(curve) || a.MinimumMemory() != minimum {
			t.Fatalf("peak %d, as XLA counts %d; want %d, %d\n%s", bytes, a.MinimumMemory(), slices.Max(curve), minimum, text)
		}
	})
}
