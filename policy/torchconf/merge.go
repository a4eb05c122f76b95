// PyTorch's list of settings rewritten: put right, or with one more.

package torchconf

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// A pair is one setting as it is written.
type pair struct{ key, value string }

// String returns key:value, or the key alone.
func (p pair) String() string {
	if p.value == "" {
		return p.key
	}
	return p.key + ":" + p.value
}

// pairs cuts a list at the commas outside of brackets, and leaves blanks
// out.
func pairs(text string) []pair {
	var items []pair
	depth, start := 0, 0
	text = strings.Join(strings.FieldsFunc(text, literal.IsSpace), "") + ","
	for i := range len(text) {
		switch text[i] {
		case '[':
			depth++
		case ']':
			depth--
		case ',':
			if depth > 0 && i < len(text)-1 {
				continue
			}
			if key, value, _ := strings.Cut(text[start:i], ":"); text[start:i] != "" {
				items = append(items, pair{key, value})
			}
			start = i + 1
		}
	}
	return items
}

func joinTorch(items []pair) string {
	var texts []string
	for _, i := range items {
		texts = append(texts, i.String())
	}
	return strings.Join(texts, ",")
}

// repair returns the list with what was refused put right, or left out if it is a
// key that the release does not know; empty if neither gives a list that it
// takes.
func (r *release) repair(env policy.Environment, name, failed string) string {
	var items []pair
	for _, item := range pairs(env.Get(name)) {
		k, known := r.key(item.key)
		switch near := spelling.Nearest(item.key, r.names()); {
		case known && item.value == "":
			continue // names a setting without saying what
		case known && item.key == failed:
			item.value = k.repaired(item.value)
		case !known && near != "":
			item.key = near
		case !known:
			continue
		}
		items = append(items, item)
	}
	text := joinTorch(items)
	switch {
	case !r.accepts(text):
		return ""
	case text == "":
		return "-" + name
	}
	return name + "=" + text
}

// repaired returns the value that was meant, where that is plain.
func (k torchKey) repaired(value string) string {
	f, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
	switch torchTarget(k.name) {
	case keyGC, keyFraction:
		if err == nil && f > 1 && f <= 100 {
			return literal.Hundredth(f)
		}
		return value
	case keyMaxSplit, keyNonSplit:
		if err == nil && f >= 0 && f < 21 {
			return "21"
		}
		return value
	}
	switch {
	case literal.MeansYes(value):
		return "True"
	case slices.Contains([]string{"0", "false", "f", "no", "n", "off"}, strings.ToLower(value)):
		return "False"
	}
	return value
}

// Merge puts one setting into those of PyTorch's list that an
// environment has, for a program that is to be started: text is what to set the
// variable name to, with all other settings kept, and with the same one
// replaced. v is a release, such as "2.8.0"; empty means the newest known.
//
// For example, per_process_memory_fraction and 0.5 give PYTORCH_ALLOC_CONF and
// "expandable_segments:True,per_process_memory_fraction:0.5" where that variable
// was "expandable_segments:True".
//
// The error says that the release is not known, that it does not know the key
// or refuses the value, or that it refuses what the environment has already.
func Merge(env policy.Environment, v string, key, value string) (name, text string, err error) {
	release := Newest
	if v != "" {
		if release, err = Releases().Find(v, "PyTorch", "2.8.0"); err != nil {
			return "", "", err
		}
	}
	r := Releases().At(release)
	k, known := r.key(key)
	if !known {
		if since, ok := since(key); ok {
			return "", "", fmt.Errorf("PyTorch %s does not know %s, only %s and later do", release, key, since)
		}
		return "", "", fmt.Errorf("PyTorch %s does not know %s%s", release, key, spelling.DidYouMean(key, r.names()))
	}
	common, own := r.variables(env)
	if name = own; k.common {
		name = common
	}
	before, err := r.check(env.Get(name))
	if err != nil {
		return "", "", fmt.Errorf("PyTorch %s refuses %s=%s: %w", release, name, env.Get(name), err)
	}

	var items []pair
	put := pair{key, value}
	for _, item := range pairs(env.Get(name)) {
		if torchTarget(item.key) != torchTarget(key) {
			items = append(items, item)
		} else if put.key != "" {
			items, put = append(items, put), pair{}
		}
	}
	if put.key != "" {
		items = append(items, put)
	}
	text = joinTorch(items)
	after, err := r.check(text)
	if err != nil {
		return "", "", fmt.Errorf("PyTorch %s refuses %s:%s: %w", release, key, value, err)
	}
	delete(before.values, torchTarget(key))
	_, set := after.values[torchTarget(key)]
	delete(after.values, torchTarget(key))
	if !set || !maps.Equal(before.values, after.values) {
		return "", "", fmt.Errorf("cannot put %s:%s into %s=%q; write that as key:value,key:value", key, value, name, env.Get(name))
	}
	return name, text, nil
}

// check reads a list that counts for both parts.
func (r *release) check(text string) (torchSettings, error) {
	loaded, err := r.backendAt(text)
	if err != nil {
		return torchSettings{}, err
	}
	return r.parse(text, loaded)
}
