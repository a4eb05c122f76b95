// PyTorch as a policy of the command line.

package frameworks

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/policy"
	"gpumem/policy/torchconf"
)

// pyTorch is PyTorch's pool in a release, "" for the newest known, with settings
// key=value or, as PyTorch writes them, key:value.
func pyTorch(version string, settings []string) (policy.Policy, error) {
	_, v, err := Release{"pytorch", version}.Find()
	if err != nil {
		return policy.Policy{}, err
	}
	var env policy.Environment
	fraction := 0.0
	seen := map[string]bool{}
	// conf=TEXT is PYTORCH_ALLOC_CONF with ; in place of the comma, in brackets, too.
	if i := slices.IndexFunc(settings, func(s string) bool { return strings.HasPrefix(s, "conf=") }); i >= 0 {
		list := strings.ReplaceAll(settings[i][len("conf="):], ";", ",")
		settings = slices.Replace(slices.Clone(settings), i, i+1, splitSettings(list)...)
	}
	for _, setting := range settings {
		at := strings.IndexAny(setting, "=:")
		if at < 0 {
			return policy.Policy{}, fmt.Errorf("%q is not key=value, with a key of PYTORCH_ALLOC_CONF", setting)
		}
		key, value := strings.TrimSpace(setting[:at]), strings.TrimSpace(setting[at+1:])
		switch {
		case seen[key]:
			return policy.Policy{}, fmt.Errorf("key %q is given twice; give it once", key)
		case key == "fraction":
			fraction, err = strconv.ParseFloat(value, 64)
			if err != nil || !(fraction > 0 && fraction <= 1) {
				return policy.Policy{}, fmt.Errorf("key %q: got %q, want a number above 0 and up to 1, such as 0.75 for 75 %%", key, value)
			}
		case key == "expandable_segments_reserve_by_class":
			return policy.Policy{}, errors.New("key expandable_segments_reserve_by_class is not modelled; use expandable_segments_reserve")
		default:
			name, text, err := torchconf.Merge(env, version, key, value)
			if err != nil {
				return policy.Policy{}, err
			}
			env = env.With(name, text)
		}
		seen[key] = true
	}
	r, refused := torchconf.Read(env, v)
	if refused != nil {
		return policy.Policy{}, refused
	}
	p := r.Policy
	p.Version = version
	if fraction != 0 && p.Kind == policy.Caching {
		if p.Fraction = fraction; fraction == 1 && !torchconf.CapOf1(v) {
			p.Fraction = 0
		}
	}
	return p, nil
}

// splitSettings cuts a list at the commas outside of brackets.
func splitSettings(text string) []string {
	var list []string
	depth, start := 0, 0
	for i, c := range text {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth == 0:
			list = append(list, text[start:i])
			start = i + 1
		}
	}
	return append(list, text[start:])
}
