package advise

// PyTorch's settings, by release. Its pool is replayed exactly, package alloc/internal/pytorch.

import (
	"slices"
	"strings"

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
	part     bool // a setting has the fraction; otherwise the program sets it
}

func (a *adviser) torch(has features) torchSettings {
	t := torchSettings{a, has, torchConf, false}
	if _, ok := t.way(torchGC); !ok {
		t.variable = torchOldConf
	}
	_, t.part = t.way(torchPart + ":0.5")
	return t
}

// way returns the policy of settings KEY:VALUE. ok is false if the release does not know
// them.
func (t torchSettings) way(settings ...string) (w way, ok bool) {
	set := []string{t.variable + "=" + strings.Join(settings, ",")}
	p, ok := t.read(t.has, set...)
	p.Version, p.Spec = t.source.Version, t.source.release().String()+":"+strings.ReplaceAll(strings.Join(settings, ","), ":", "=")
	return way{policy: p, set: set, brief: settings, settings: settings}, ok
}

// limit returns the way with a fraction beside other settings.
func (t torchSettings) limit(part string, settings ...string) way {
	if t.part {
		w, _ := t.way(append(slices.Clone(settings), torchPart+":"+part)...)
		return w
	}
	spec := t.source.release().String() + ":" + strings.ReplaceAll(strings.Join(append(slices.Clone(settings), "fraction:"+part), ","), ":", "=")
	w := named(spec)
	if len(settings) > 0 {
		w.set = []string{t.variable + "=" + strings.Join(settings, ",")}
	}
	w.call = []string{"torch.cuda.set_per_process_memory_fraction(" + part + ")"}
	if len(t.gpus) > 1 {
		w.call = []string{"for gpu in range(torch.cuda.device_count()): torch.cuda.set_per_process_memory_fraction(" + part + ", gpu)"}
	}
	w.brief = append(slices.Clone(settings), "memory_fraction("+part+")")
	return w
}

// pyTorch returns the candidates of a release of PyTorch.
func (a *adviser) pyTorch(has features) []*Candidate {
	t := a.torch(has)
	list := []*Candidate{fixed(named(a.source.release().String()))}
	add := func(rare bool, setting string) {
		if w, ok := t.way(setting); ok {
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
	if w, ok := t.way("backend:cudaMallocAsync"); ok && has.pools && w.policy.Kind == policy.Async {
		w.policy.Spec = "async:fraction=1"
		list = append(list, fixed(w))
	}
	none := named("platform", torchNoCache)
	none.brief = []string{strings.TrimPrefix(torchNoCache, "PYTORCH_")}
	return append(list, fixed(none))
}
