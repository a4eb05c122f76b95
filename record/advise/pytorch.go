package advise

// PyTorch's settings, by release. Its pool is replayed exactly, package alloc/internal/pytorch.

import (
	"slices"
	"strings"
	"unicode"

	"gpumem/policy"
)

const (
	torchConf    = "PYTORCH_ALLOC_CONF"
	torchOldConf = "PYTORCH_CUDA_ALLOC_CONF" // of releases that do not read the other
	torchNoCache = "PYTORCH_NO_CUDA_MEMORY_CACHING=1"
	torchPart    = "per_process_memory_fraction"
	torchGC      = "garbage_collection_threshold:0.8" // each release knows the key
)

// torchSettings are those of one release on one card.
type torchSettings struct {
	*adviser
	has      features
	variable string
	part     bool     // a setting has the fraction; otherwise the program sets it
	recorded []string // KEY:VALUE, those of the recorded program; others are added to them
}

func (a *adviser) torch(has features) torchSettings {
	t := torchSettings{adviser: a, has: has, variable: torchConf}
	if _, ok := t.way(torchGC); !ok {
		t.variable = torchOldConf
	}
	_, t.part = t.way(torchPart + ":0.5")
	if list := settingsOf(a.trace.Settings); len(list) > 0 {
		if _, ok := t.way(list...); ok {
			t.recorded = list
		}
	}
	return t
}

// settingsOf cuts a list of PyTorch's at the commas outside of brackets.
func settingsOf(list string) []string {
	depth := 0
	return strings.FieldsFunc(list, func(c rune) bool {
		switch c {
		case '[':
			depth++
		case ']':
			depth--
		}
		return c == ',' && depth == 0 || unicode.IsSpace(c)
	})
}

// with adds settings to the recorded ones, in the place of those of the same key.
func (t torchSettings) with(settings []string) []string {
	key := func(s string) string { k, _, _ := strings.Cut(s, ":"); return k }
	kept := slices.DeleteFunc(slices.Clone(t.recorded), func(s string) bool {
		return slices.ContainsFunc(settings, func(n string) bool { return key(n) == key(s) })
	})
	return append(kept, settings...)
}

// spec returns the policy's name with settings, for gpumem replay --policy.
func (t torchSettings) spec(settings []string) string {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = strings.Replace(s, ":", "=", 1)
	}
	return t.source.release().String() + ":" + strings.Join(keys, ",")
}

// way returns the policy of settings KEY:VALUE beside the recorded ones. ok is false if the
// release does not know them.
func (t torchSettings) way(settings ...string) (w way, ok bool) {
	all := t.with(settings)
	set := []string{t.variable + "=" + strings.Join(all, ",")}
	p, ok := t.read(t.has, set...)
	p.Version, p.Spec = t.source.Version, t.spec(all)
	return way{policy: p, set: set, brief: settings, settings: settings}, ok
}

// limit returns the way with a fraction beside other settings.
func (t torchSettings) limit(part string, settings ...string) way {
	if t.part {
		w, _ := t.way(append(slices.Clone(settings), torchPart+":"+part)...)
		return w
	}
	all := t.with(settings)
	w := named(t.spec(append(slices.Clone(all), "fraction:"+part)))
	if len(all) > 0 {
		w.set = []string{t.variable + "=" + strings.Join(all, ",")}
	}
	w.call = []string{"torch.cuda.set_per_process_memory_fraction(" + part + ")"}
	if len(t.gpus) > 1 {
		w.call = []string{"for gpu in range(torch.cuda.device_count()): torch.cuda.set_per_process_memory_fraction(" + part + ", gpu)"}
	}
	w.brief = append(slices.Clone(settings), "memory_fraction("+part+")")
	return w
}

// asItIs returns the candidates that come first: the recorded settings, and what is without
// them.
func (t torchSettings) asItIs() []*Candidate {
	plain := named(t.source.release().String())
	if len(t.recorded) == 0 {
		return []*Candidate{fixed(plain)}
	}
	w, _ := t.way()
	w.set, w.brief = nil, append([]string{"(as recorded:"}, t.recorded...)
	w.brief[len(w.brief)-1] += ")"
	plain.set, plain.brief = []string{t.variable + "="}, []string{"(PyTorch's defaults)"}
	if w.policy.Torch == plain.policy.Torch && w.policy.Kind == plain.policy.Kind && w.policy.Fraction == plain.policy.Fraction {
		return []*Candidate{fixed(w)}
	}
	return []*Candidate{fixed(w), fixed(plain)}
}

// pyTorch returns the candidates of a release of PyTorch.
func (a *adviser) pyTorch(has features) []*Candidate {
	t := a.torch(has)
	a.recorded = t.recorded
	list := t.asItIs()
	add := func(rare bool, setting string) {
		if w, ok := t.way(setting); ok && !slices.Contains(t.recorded, setting) {
			c := fixed(w)
			c.rare = rare
			list = append(list, c)
		}
	}
	if has.pages {
		add(false, "expandable_segments:True")
	}
	add(false, "max_split_size_mb:128")
	add(true, "max_split_size_mb:512")
	add(true, "max_split_size_mb:32")
	collect := limited(nil, func(percent int, _ uint64) way {
		return t.limit("0"+percentText(percent), torchGC)
	})
	collect.whole = true
	list = append(list, collect)
	add(true, "roundup_power2_divisions:4")
	alone := t
	alone.recorded = nil // the driver's pool has none of them
	if w, ok := alone.way("backend:cudaMallocAsync"); ok && has.pools && w.policy.Kind == policy.Async {
		w.policy.Spec = "async:fraction=1"
		list = append(list, fixed(w))
	}
	none := named("platform", torchNoCache)
	none.brief = []string{strings.TrimPrefix(torchNoCache, "PYTORCH_")}
	return append(list, fixed(none))
}
