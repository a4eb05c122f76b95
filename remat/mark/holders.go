package mark

// The largest holders of memory, and the layers of a program, by op_name.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/hlo"
	"gpumem/hlo/memory"
)

// A Holder is what of one part of a program lives at the peak.
type Holder struct {
	Part   string `json:"part"` // of op_name, its numbers as *; "(no name)"
	Bytes  uint64 `json:"bytes"`
	Values int    `json:"values"`
}

// Holders say what lives in the entry at the peak of its temporaries, as
// memory.TempPeak counts, by part of the program, the largest first. What
// the called computations hold there is not among it.
func Holders(m *hlo.Module) ([]Holder, error) {
	_, at, err := memory.TempPeak(m, memory.Options{})
	if err != nil {
		return nil, err
	}
	b, err := memory.Analyze(m.Entry, nil)
	if err != nil {
		return nil, err
	}
	place := int32(slices.Index(m.Entry.Instructions, at))
	parts := map[string]*Holder{}
	var list []*Holder
	for id := range b.List {
		x := &b.List[id]
		n := memory.Options{}.Allocated(b, int32(id))
		if n == 0 || x.Definer > place {
			continue
		}
		last := x.Definer
		for _, u := range x.Uses {
			last = max(last, u.User)
		}
		if last < place {
			continue
		}
		name := partOf(m.Entry.Instructions[x.Definer])
		h := parts[name]
		if h == nil {
			h = &Holder{Part: name}
			parts[name], list = h, append(list, h)
		}
		h.Bytes += uint64(n)
		h.Values++
	}
	slices.SortStableFunc(list, func(a, b *Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	out := make([]Holder, len(list))
	for n, h := range list {
		out[n] = *h
	}
	return out, nil
}

var (
	wrapper = regexp.MustCompile(`^(?:jit|jvp|transpose|vmap|pjit|remat|checkpoint)\((.*)\)$`)
	counted = regexp.MustCompile(`^(.*?\D)(\d+)$`)
)

// parts are the words of an op_name on its way, without the wrappers of
// transformations, without the function that is compiled, and without the
// operation at the end.
func parts(i *hlo.Instruction) []string {
	words := strings.Split(i.OpName(), "/")
	if len(words) < 2 {
		return nil
	}
	var out []string
	for n, w := range words[:len(words)-1] {
		jit := strings.HasPrefix(w, "jit(") || strings.HasPrefix(w, "pjit(")
		for {
			f := wrapper.FindStringSubmatch(w)
			if f == nil {
				break
			}
			w = f[1]
		}
		if w != "" && !(jit && (n == 0 || w == "main")) && w != "rematted_computation" && w != "checkpoint" {
			out = append(out, w)
		}
	}
	return out
}

// partOf is the way of an instruction's op_name with numbers as *, and the operation.
func partOf(i *hlo.Instruction) string {
	words := parts(i)
	for n, w := range words {
		if f := counted.FindStringSubmatch(w); f != nil {
			words[n] = f[1] + "*"
		}
	}
	name := i.OpName()
	if name == "" {
		return "(no name)"
	}
	return strings.Join(append(words, name[strings.LastIndexByte(name, '/')+1:]), "/")
}

// maxLayers is how many layers of one name are tried.
const maxLayers = 200

// A Layer is a numbered word of op_names that occurs with at least two numbers.
type Layer struct {
	Name string // without its number, such as "MixerBlock_"
	// Patterns are regular expressions for [Apply], one for each layer.
	Patterns []string
}

// Layers are the numbered words of forward instructions, those with most
// instructions first, three at most.
func Layers(m *hlo.Module) []Layer {
	type found struct {
		base    string
		numbers map[string]bool
		order   []string
		n       int
	}
	by := map[string]*found{}
	var list []*found
	for _, c := range m.Computations {
		for _, i := range c.Instructions {
			if backward(i) || !strings.Contains(i.OpName(), "jvp(") {
				continue
			}
			for _, w := range parts(i) {
				f := counted.FindStringSubmatch(w)
				if f == nil {
					continue
				}
				k := by[f[1]]
				if k == nil {
					k = &found{base: f[1], numbers: map[string]bool{}}
					by[f[1]], list = k, append(list, k)
				}
				k.n++
				if !k.numbers[f[2]] && len(k.order) < maxLayers {
					k.numbers[f[2]] = true
					k.order = append(k.order, f[2])
				}
				break // the outermost
			}
		}
	}
	slices.SortStableFunc(list, func(a, b *found) int { return b.n - a.n })
	var out []Layer
	for _, k := range list {
		if len(k.order) < 2 || len(out) == 3 {
			continue
		}
		l := Layer{Name: k.base}
		for _, n := range k.order {
			l.Patterns = append(l.Patterns, fmt.Sprintf(`(^|[/(])%s([/)]|$)`, regexp.QuoteMeta(k.base+n)))
		}
		out = append(out, l)
	}
	return out
}
