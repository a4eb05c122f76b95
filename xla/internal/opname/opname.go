// Package opname reads the names that a program gave its instructions: op_name in their metadata,
// such as "jit(step)/transpose(jvp(layer_3))/dot_general".
package opname

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"gpumem/xla/internal/hlo"
)

// Backward reports whether an instruction is of the backward pass.
func Backward(i *hlo.Instruction) bool { return strings.Contains(i.OpName(), "transpose(") }

var (
	wrapper = regexp.MustCompile(`^(?:jit|jvp|transpose|vmap|pjit|remat|checkpoint)\((.*)\)$`)
	digits  = regexp.MustCompile(`^\d+$`)
	counted = regexp.MustCompile(`^(.*?\D)(\d+)$`)
)

// wordsOf returns the words of an op_name, without the wrappers of transformations, the
// function that is compiled, and the operation at the end.
func wordsOf(i *hlo.Instruction) []string {
	words := splitScopes(i.OpName())
	if len(words) < 2 {
		return nil
	}
	var out []string
	for n, w := range words[:len(words)-1] {
		jit := strings.HasPrefix(w, "jit(") || strings.HasPrefix(w, "pjit(")
		for f := wrapper.FindStringSubmatch(w); f != nil; f = wrapper.FindStringSubmatch(w) {
			w = f[1]
		}
		compiled := jit && (n == 0 || w == "main")
		if !compiled && w != "" && w != "rematted_computation" && w != "checkpoint" {
			out = append(out, splitScopes(w)...) // a scope may have a slash in its name, as in jvp(h/3)
		}
	}
	return out
}

// splitScopes splits an op_name at slashes outside of parentheses.
func splitScopes(name string) (words []string) {
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
	words := wordsOf(i)
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

// A Layer is a numbered word of op_names that occurs with at least two numbers.
type Layer struct {
	Name string // without its number, such as "MixerBlock_"
	// Patterns are regular expressions for mark.Mark, one for each layer.
	Patterns []string
	index    map[string]int // of the pattern, by the layer's number
}

// IndexOf returns which of the layers an instruction belongs to, from 0; -1 if to none.
func (l *Layer) IndexOf(i *hlo.Instruction) int {
	_, number := numbered(wordsOf(i), l.Name)
	if n, ok := l.index[number]; ok {
		return n
	}
	return -1
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

// Layers returns the numbered words of forward instructions, at most three, those with the
// most instructions first.
func Layers(m *hlo.Module) []Layer {
	type found struct {
		base    string
		numbers []string // in the order of the program
		n       int      // instructions
	}
	by := map[string]*found{}
	var list []*found
	for i := range m.All() {
		if Backward(i) || !strings.Contains(i.OpName(), "jvp(") {
			continue
		}
		base, number := numbered(wordsOf(i), "")
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
	var out []Layer
	for _, k := range list {
		if len(k.numbers) < 2 || len(out) == 3 {
			continue
		}
		// A compiled module begins with what is fused, in any order.
		slices.SortFunc(k.numbers, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
		l := Layer{Name: k.base, index: map[string]int{}}
		for n, number := range k.numbers {
			l.index[number] = n
			l.Patterns = append(l.Patterns, fmt.Sprintf(`(^|[/(])%s([/)]|$)`, regexp.QuoteMeta(k.base+number)))
		}
		out = append(out, l)
	}
	return out
}
