package remat

// The largest holders of memory, and the layers of a program, by op_name.

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/size"
	"gpumem/xla/hlo"
	"gpumem/xla/internal/gap"
	"gpumem/xla/memory"
)

// A Holder is the memory that one part of a program holds at the peak.
type Holder struct {
	Part   string `json:"part"` // of op_name, with * for numbers; "(no name)"
	Bytes  uint64 `json:"bytes"`
	Values int    `json:"values"`
}

// holders returns what holds memory in the entry at the peak of its temporaries, as
// the meter counts, by part of the program, the largest first. What the called
// computations hold there is left out. parts has the part of instructions that only make
// room for it.
func holders(m *hlo.Module, meter *memory.Meter, parts map[*hlo.Instruction]string) ([]Holder, error) {
	alive, err := meter.Alive(m.Entry)
	if err != nil {
		return nil, err
	}
	held := map[*hlo.Instruction][]memory.Temp{}
	for _, x := range alive {
		held[x.Instruction] = append(held[x.Instruction], x)
	}
	at := map[string]int{}
	list := []Holder{}
	for _, i := range m.Entry.Instructions { // equal holders stay in the order of the program
		for _, x := range held[i] {
			name := cmp.Or(parts[i], Part(i))
			n, ok := at[name]
			if !ok {
				n = len(list)
				at[name], list = n, append(list, Holder{Part: name})
			}
			list[n].Bytes += x.Bytes
			list[n].Values++
		}
	}
	slices.SortStableFunc(list, func(a, b Holder) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list, nil
}

// leastPieces is the part of the peak from which on a product is worth a word, in percent.
const leastPieces = 10

// holds says what holds a plan that misses its limit: what runs once, what one instruction needs,
// and products that are larger than what they are made of, as logits and the scores of attention
// are. What is computed from such a product element by element has as many elements, so that
// it goes by their number.
func holds(m *hlo.Module, meter *memory.Meter) (string, error) {
	h, err := gap.HoldsAt(m, meter)
	if err != nil || h.At == nil {
		return "", err
	}
	alive, err := meter.Alive(m.Entry)
	if err != nil {
		return "", err
	}
	text := fmt.Sprintf("At %s lie %s of loops and custom calls, which do not run again, %s that it reads and makes, %s in what it calls and %s besides.",
		h.At.Name, size.Format(h.Once), size.Format(h.Own), size.Format(h.Called), size.Format(h.Others))
	products := map[uint64]*hlo.Instruction{}
	for i := range m.All() {
		if n, err := i.Shape.Elems(); err == nil && i.Opcode == hlo.Dot && products[n] == nil && !slices.ContainsFunc(i.Operands, func(o *hlo.Instruction) bool {
			k, err := o.Shape.Elems()
			return err != nil || k >= n
		}) {
			products[n] = i
		}
	}
	bytes, values := map[uint64]uint64{}, map[uint64]uint64{}
	var most uint64 // the number of elements of which most bytes live
	for _, x := range alive {
		if n, err := x.Shape.Elems(); err == nil && x.Shape.IsArray() && products[n] != nil {
			bytes[n] += x.Bytes * x.Copies
			if values[n] += x.Copies; bytes[n] > bytes[most] {
				most = n
			}
		}
	}
	if peak := h.Once + h.Own + h.Called + h.Others; bytes[most] < peak/100*leastPieces || most == 0 {
		return text, nil
	}
	dot := products[most]
	return fmt.Sprintf("%s %s of it, in %d arrays, have the size of the product %s (%s): computing that and what follows in pieces, some rows at a time, would take them away.",
		text, size.Format(bytes[most]), values[most], cmp.Or(dot.OpName(), dot.Name), dot.Shape), nil
}

var (
	wrapper = regexp.MustCompile(`^(?:jit|jvp|transpose|vmap|pjit|remat|checkpoint)\((.*)\)$`)
	digits  = regexp.MustCompile(`^\d+$`)
	counted = regexp.MustCompile(`^(.*?\D)(\d+)$`)
)

// parts returns the words of an op_name, without the wrappers of transformations, the
// function that is compiled, and the operation at the end.
func parts(i *hlo.Instruction) []string {
	words := scopes(i.OpName())
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
			out = append(out, scopes(w)...) // a scope may have a slash in its name, as in jvp(h/3)
		}
	}
	return out
}

// scopes splits an op_name at slashes outside of parentheses.
func scopes(name string) (words []string) {
	depth, from := 0, 0
	for n, c := range name {
		switch {
		case c == '(':
			depth++
		case c == ')':
			depth--
		case c == '/' && depth == 0:
			words, from = append(words, name[from:n]), n+1
		}
	}
	return append(words, name[from:])
}

// Part returns the part of the program that an instruction belongs to: the words of its
// op_name with * for numbers, and the operation.
func Part(i *hlo.Instruction) string {
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

// maxLayers is how many layers of one name are returned.
const maxLayers = 200

// A layer is a numbered word of op_names that occurs with at least two numbers.
type layer struct {
	Name string // without its number, such as "MixerBlock_"
	// Patterns are regular expressions for [Mark], one for each layer.
	Patterns []string
}

// numbered returns the name and the number of the outermost numbered word, such as block_ and 3,
// or layer/ and 3 where the number is a word by itself; of those with that name unless it is
// empty.
func numbered(words []string, name string) (base, number string) {
	for n, w := range words {
		if f := counted.FindStringSubmatch(w); f != nil {
			base, number = f[1], f[2]
		} else if n > 0 && digits.MatchString(w) {
			base, number = words[n-1]+"/", w
		}
		if base != "" && (name == "" || base == name) {
			return base, number
		}
	}
	return "", ""
}

// patternOf returns the regular expression of a layer's name in op_names.
func patternOf(name string) string {
	return fmt.Sprintf(`(^|[/(])%s([/)]|$)`, regexp.QuoteMeta(name))
}

// layers returns the numbered words of forward instructions, at most three, those with the
// most instructions first.
func layers(m *hlo.Module) []layer {
	type found struct {
		base    string
		numbers []string // in the order of the program
		n       int      // instructions
	}
	by := map[string]*found{}
	var list []*found
	for i := range m.All() {
		if backward(i) || !strings.Contains(i.OpName(), "jvp(") {
			continue
		}
		base, number := numbered(parts(i), "")
		if base == "" {
			continue
		}
		k := by[base]
		if k == nil {
			k = &found{base: base}
			by[base], list = k, append(list, k)
		}
		k.n++
		if len(k.numbers) < maxLayers && !slices.Contains(k.numbers, number) {
			k.numbers = append(k.numbers, number)
		}
	}
	slices.SortStableFunc(list, func(a, b *found) int { return b.n - a.n })
	var out []layer
	for _, k := range list {
		if len(k.numbers) < 2 || len(out) == 3 {
			continue
		}
		// A compiled module begins with what is fused, in any order.
		slices.SortFunc(k.numbers, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		l := layer{Name: k.base}
		for _, n := range k.numbers {
			l.Patterns = append(l.Patterns, patternOf(k.base+n))
		}
		out = append(out, l)
	}
	return out
}
