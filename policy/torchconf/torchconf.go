// Package torchconf reads the memory settings of PyTorch: the list in
// PYTORCH_ALLOC_CONF and its older names, by the grammar of each release, and the
// variables that turn the pool off.
//
// [Read] makes a policy of an environment. [Merge] puts one setting into a list
// that an environment has already. What releases do is known from the releases
// themselves, whose answers are in testdata/pytorch; every answer is a test.
package torchconf

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// PyTorch's variables.
const (
	pytorchConf     = "PYTORCH_ALLOC_CONF"
	pytorchCudaConf = "PYTORCH_CUDA_ALLOC_CONF"
	pytorchHipConf  = "PYTORCH_HIP_ALLOC_CONF"
	pytorchNoCache  = "PYTORCH_NO_CUDA_MEMORY_CACHING"
	torchNoHIP      = "PYTORCH_NO_HIP_MEMORY_CACHING"

	// PyTorch 2.9 looks at the first name, but its pool for CUDA does not go by
	// it; 2.10 does.
	pytorchConfSince = "2.10"
)

// The keys that this package speaks of.
const (
	keyMaxSplit   = "max_split_size_mb"
	keyNonSplit   = "max_non_split_rounding_mb"
	keyLarge      = "large_segment_size_mb"
	keyGC         = "garbage_collection_threshold"
	keyRoundup    = "roundup_power2_divisions"
	keyExpandable = "expandable_segments"
	keyAddresses  = "expandable_segments_reserve"
	keyBackend    = "backend"
	keyFraction   = "per_process_memory_fraction"
	keyThrow      = "throw_on_cudamalloc_oom"
	keyReserve    = "pinned_reserve_segment_size_mb"
	keyRoundMost  = "pinned_max_round_threshold_mb"
	keyCacheMost  = "pinned_max_cached_size_mb"

	torchNative = "native"
	torchAsync  = "cudaMallocAsync"
)

// variables returns the names whose lists count: for the settings that GPUs of all
// makers have in common, and for CUDA's own. One that is set to the empty text
// counts, too.
func (r *release) variables(env policy.Environment) (common, own string) {
	has := func(name string) bool { _, set := env.Lookup(name); return set }
	switch {
	case r.Grammar != torchTwice || has(pytorchCudaConf):
		return pytorchCudaConf, pytorchCudaConf
	case has(pytorchHipConf):
		return pytorchHipConf, pytorchConf
	}
	return pytorchConf, pytorchConf
}

// notes are what the reader has found so far.
type notes struct{ policy.Notes }

// The end of a program whose settings are refused.
const (
	torchAtUse  = "PyTorch raises it at the first use of a GPU, not at import"
	torchLater  = "PyTorch raises it where the settings are looked at, as for pinned memory; the driver's pool itself does not read them"
	torchAtLoad = "import torch aborts the process"
)

// Read returns what a release of PyTorch's builds for CUDA does with an environment.
func Read(env policy.Environment, v policy.Version) (policy.Reading, *policy.SettingError) {
	r := Releases().At(v)
	n := notes{policy.Notes{Env: env}}
	common, own := r.variables(env)
	loaded, err := r.backendAt(env.Get(own))
	if err != nil {
		return policy.Reading{Notes: n.Notes}, &policy.SettingError{Name: own, Text: r.printed(err), Then: torchAtLoad, Fix: r.repair(env, own, "")}
	}
	// A program's first use of a GPU asks for the fraction, which is CUDA's own.
	s, err := r.read(env.Get(common), env.Get(own), loaded, true)
	if err != nil {
		name, then := common, torchAtUse
		if s.own {
			name = own
		}
		if loaded == torchAsync && r.Grammar == torchTwice {
			then = torchLater
		}
		if err == errTorchCrash {
			then = "the process crashes at the first use of a GPU"
		}
		if _, known := r.key(s.failed); !known {
			if since, ok := since(s.failed); ok {
				then += fmt.Sprintf("; PyTorch %s and later know %s", since, s.failed)
			} else if near := spelling.Nearest(s.failed, r.names()); near != "" {
				then += "; did you mean " + near + "?"
			}
		}
		if _, other := r.read(env.Get(common), env.Get(own), loaded, false); other != nil && other.Error() != err.Error() {
			then += "; a look at the settings without a GPU, as in torch.cuda.memory._snapshot(), raises: " + r.printed(other)
		}
		return policy.Reading{Notes: n.Notes}, &policy.SettingError{Name: name, Text: r.printed(err), Then: then, Fix: r.repair(env, name, s.failed)}
	}

	p := policy.Policy{Name: "pytorch", Kind: policy.Caching}
	f, given := s.fraction()
	switch uncached := n.uncached(&r); {
	case loaded == torchAsync:
		// The pool's release threshold is 2^64-1 (CUDAMallocAsyncAllocator.cpp).
		p.Kind, p.Fraction, p.AsyncKeep = policy.Async, 1, true
	case uncached != "":
		p.Kind = policy.Platform
	case given && f < 1e-9: // less than the smallest block, of 512 bytes
		p.Limit = 1
	case given && f < 1:
		p.Fraction = f
	}
	if p.Kind == policy.Caching {
		p.Torch = s.pool(&r)
	}
	n.torch(p, &r, s, common, own)
	return policy.Reading{Policy: p, Pools: func(d policy.Device) []policy.Pool { return torchPools(p, s, d) }, Notes: n.Notes}, nil
}

// CapOf1 reports whether a fraction of 1 (set_per_process_memory_fraction) is a limit in
// a release. Since 2.10 it means that there is none.
func CapOf1(v policy.Version) bool { return Releases().At(v).CapOf1 }

// pool returns the settings that decide where blocks lie.
func (s *torchSettings) pool(r *release) policy.Torch {
	t := policy.Torch{TorchRules: r.TorchRules}
	t.MaxSplit, _ = s.values[keyMaxSplit].(uint64)
	t.NonSplit, _ = s.values[keyNonSplit].(uint64)
	t.Segment, _ = s.values[keyLarge].(uint64)
	t.Divisions, _ = s.values[keyRoundup].([16]uint64)
	t.GC, _ = s.values[keyGC].(float64)
	t.Expandable, _ = s.values[keyExpandable].(bool)
	if word, _ := s.values[keyAddresses].(string); word != "" {
		number := strings.TrimRight(word, "gG")
		f, _ := strconv.ParseFloat(number, 64) // which the reader has checked
		if number == word {
			t.AddressPart = f
		} else {
			t.Addresses = uint64(min(f, 1<<20) * (1 << 30))
		}
	}
	return t
}

// printed returns an error as the release prints it: with the place in its source,
// where that is known.
func (r *release) printed(err error) string {
	text := err.Error()
	for about, place := range r.Places {
		if strings.Contains(text, about) {
			return strings.Replace(text, "ASSERT FAILED,", "ASSERT FAILED at "+place+",", 1)
		}
	}
	return text
}

func (r *release) names() []string {
	var names []string
	for _, k := range r.Keys {
		names = append(names, k.name)
	}
	return names
}

// uncached returns the variable that turns the pool off, if one does.
func (n *notes) uncached(r *release) string {
	for _, name := range []string{pytorchNoCache, torchNoHIP} {
		text, set := n.Env.Lookup(name)
		if set && (name == pytorchNoCache || r.HIPNoPool) && (!r.NoPoolIs1 || text == "1") {
			return name
		}
	}
	return ""
}

// torch says what each variable does and does not.
func (n *notes) torch(p policy.Policy, r *release, s torchSettings, common, own string) {
	n.pool(p, r)
	for _, name := range []string{pytorchCudaConf, pytorchHipConf, pytorchConf} {
		text := n.Env.Get(name)
		switch {
		case text == "":
		case name == pytorchConf && r.Grammar != torchTwice:
			n.instead(name, r, text)
		case name == pytorchHipConf && r.Grammar != torchTwice:
			n.Warn(name, "-"+name, "this release's builds for CUDA do not go by it, only by %s", pytorchCudaConf)
		case name != common && name != own:
			if winner := n.Env.Get(common); winner != text {
				n.Warn(name, "-"+name, "ignored: %s is set, too, and wins", common)
			} else {
				n.Effect(name, "the same as %s, which is the one that counts", common)
			}
		case p.Kind == policy.Platform:
			n.Warn(name, "", "without the pool its settings for GPU memory do nothing")
		default:
			n.list(p, r, s, name, name == common, name == own)
		}
	}
}

// pool says what the variables do that turn it off.
func (n *notes) pool(p policy.Policy, r *release) {
	off := n.uncached(r)
	for _, name := range []string{pytorchNoCache, torchNoHIP} {
		text := n.Env.Get(name)
		_, set := n.Env.Lookup(name)
		no := slices.Contains([]string{"0", "false", "no", "off"}, strings.ToLower(text))
		switch {
		case !set:
		case name == torchNoHIP && !r.HIPNoPool:
			n.Warn(name, "-"+name, "this release's builds for CUDA do not read it, only %s", pytorchNoCache)
		case r.NoPoolIs1 && text == "0":
			n.Effect(name, "the pool is on, as by default")
		case r.NoPoolIs1 && text != "1" && literal.MeansYes(text):
			n.Warn(name, name+"=1", "%s is not recognised, the pool stays on; since PyTorch 2.7 only 1 turns it off", literal.PyRepr(text))
		case r.NoPoolIs1 && text != "1":
			n.Warn(name, "-"+name, "%s is not recognised, the pool stays on; since PyTorch 2.7 only 1 turns it off", literal.PyRepr(text))
		case p.Kind == policy.Async:
			n.Warn(name, "-"+name, "ignored: backend:%s does not look at it", torchAsync)
		case no:
			n.Warn(name, "-"+name, "turns the pool off whatever it says; to have the pool, remove it")
		case name == off:
			n.Effect(name, "each allocation is a separate one of the driver's, which its free releases; slow")
		default:
			n.Effect(name, "the same as %s", off)
		}
	}
}

// instead warns of PYTORCH_ALLOC_CONF in a release that does not go by it.
func (n *notes) instead(name string, r *release, text string) {
	said := fmt.Sprintf("this release goes by %s; %s counts since PyTorch %s", pytorchCudaConf, name, pytorchConfSince)
	if r.Scolds {
		said += ", although this release's own warning recommends it"
	}
	fix := "-" + name
	if _, set := n.Env.Lookup(pytorchCudaConf); !set && r.accepts(text) {
		fix += " " + pytorchCudaConf + "=" + text
	}
	n.Warn(name, fix, "%s", said)
}

// accepts reports whether a list is one that can stand in a fix.
func (r *release) accepts(text string) bool {
	loaded, err := r.backendAt(text)
	if err == nil {
		_, err = r.parse(text, loaded)
	}
	return err == nil && !strings.ContainsFunc(text, literal.IsSpace)
}

// list says what a list does; common and own are whether it counts for either
// part.
func (n *notes) list(p policy.Policy, r *release, s torchSettings, name string, common, own bool) {
	var effects []string
	seen := map[string]bool{}
	for i, key := range s.given {
		k, _ := r.key(key)
		if k.common && !common || !k.common && !own {
			continue
		}
		target := torchTarget(key)
		switch {
		case slices.Contains(s.given[i+1:], key):
			if !seen[target] {
				n.Warn(name, "", "%s is there more than once; the last counts", key)
			}
		case p.Kind == policy.Async && !strings.HasPrefix(key, "pinned_") && key != keyBackend:
			n.Warn(name, "", "%s is ignored with backend:%s", key, torchAsync)
		default:
			if text := torchEffect(key, s.values[target]); text != "" {
				effects = append(effects, key+": "+text)
			}
		}
		seen[target] = true
	}
	if r.Scolds {
		effects = append(effects, "this release calls the name deprecated, but its pool reads no other")
	}
	if len(effects) > 0 {
		n.Effect(name, "%s", strings.Join(effects, "; "))
	}
	for _, odd := range s.odd {
		n.Warn(name, "", "%s is not read, or only the number that it begins with", literal.PyRepr(odd))
	}
	if p.Kind != policy.Async {
		n.useless(r, s, name)
	}
	if common && !own && strings.TrimSpace(n.Env.Get(name)) != "" {
		n.foreignKeys(r, name)
	}
}

// useless warns of settings that need others.
func (n *notes) useless(r *release, s torchSettings, name string) {
	how := "the program calls torch.cuda.set_per_process_memory_fraction"
	if _, ok := r.key(keyFraction); ok {
		how = keyFraction + " is below 1, or " + how
	}
	for _, key := range []string{keyGC, keyThrow} {
		if value, ok := s.values[key]; ok && value != false && !s.capped() {
			n.Warn(name, "", "%s does nothing unless %s", key, how)
		}
	}
	if f, ok := s.fraction(); ok && f < 1e-9 {
		n.Warn(name, "", "%s:%g leaves no memory to allocate; write .75 for 75 %%", keyFraction, f)
	}
	if on, _ := s.values[keyExpandable].(bool); on {
		if _, ok := s.values[keyMaxSplit]; ok && r.SplitAsserts {
			n.Warn(name, "", "%s and %s together: where memory is short the program fails with INTERNAL ASSERT FAILED, up to PyTorch 2.4; leave %s out", keyExpandable, keyMaxSplit, keyMaxSplit)
		}
	} else {
		for _, key := range []string{keyAddresses, keyAddresses + "_by_class"} {
			if _, ok := s.values[key]; ok {
				n.Warn(name, "", "%s does nothing without %s:True", key, keyExpandable)
			}
		}
	}
}

// foreignKeys warns of CUDA's own settings in the list for AMD.
func (n *notes) foreignKeys(r *release, name string) {
	for _, item := range pairs(n.Env.Get(name)) {
		if k, ok := r.key(item.key); ok && !k.common {
			n.Warn(name, "", "builds for CUDA do not take %s from it; write it into %s", item.key, pytorchCudaConf)
		}
	}
}

// torchEffect returns what a setting does; empty where that is nothing, or has a
// warning.
func torchEffect(key string, value any) string {
	on, _ := value.(bool)
	n, _ := value.(uint64)
	size := strconv.FormatUint(n/mib, 10) + " MiB"
	if n/mib == 1<<44-1 { // as much as there is
		size = "no limit"
	}
	switch torchTarget(key) {
	case keyMaxSplit:
		return "blocks of " + size + " and more are never split"
	case keyNonSplit:
		return "a block that is not split may be up to " + size + " too large"
	case keyLarge:
		return "segments for requests of 1 to 10 MiB are of " + size + " instead of 20"
	case keyGC:
		return fmt.Sprintf("from %s of the limit on, blocks that lie idle are released first", literal.Percent(value.(float64)))
	case keyRoundup:
		return "requests are rounded up to steps between powers of two"
	case keyExpandable:
		if on {
			return "segments grow page by page, which wastes less"
		}
		return "segments keep their size, as by default"
	case keyBackend:
		if value == torchAsync {
			return "the driver's own pool (cudaMallocAsync)"
		}
		return "PyTorch's own pool, as by default"
	case keyFraction:
		if f := value.(float64); f < 1 {
			return fmt.Sprintf("the pool may take %s of the GPU's memory; the CUDA context, NCCL and other allocators come on top", literal.Percent(f))
		}
		return "no limit, as by default"
	case keyThrow:
		return "a request that would pass the limit is refused at once"
	case keyRoundMost:
		return "pinned host memory is not rounded up to powers of two above " + size
	case keyCacheMost:
		return "freed pinned host memory above " + size + " is not kept"
	}
	switch {
	case strings.HasPrefix(key, keyAddresses):
		return "how many addresses, not memory, a segment reserves"
	case strings.HasPrefix(key, "pinned_"):
		return "about pinned host memory"
	}
	return "about speed, not about how much memory is taken"
}

// torchPools returns the pools of a device.
func torchPools(p policy.Policy, s torchSettings, d policy.Device) []policy.Pool {
	main := policy.Pool{Name: torchNative, Space: "device"}
	switch p.Kind {
	case policy.Async:
		main.Name, main.Text = torchAsync, "the driver's pool, which grows as needed and keeps what it has"
	case policy.Platform:
		main.Text = "no pool: each allocation is one of the driver's"
	default:
		large := "20 MiB"
		if n, ok := s.values[keyLarge].(uint64); ok {
			large = strconv.FormatUint(n/mib, 10) + " MiB"
		}
		main.First, main.Text = torchSegment, "segments of 2 MiB for requests up to 1 MiB, of "+large+" up to 10 MiB, above that of their size in steps of 2 MiB; all are kept"
		if on, _ := s.values[keyExpandable].(bool); on {
			main.Text = "one segment for small and one for large requests in each stream, which grow by 2 MiB and " + large
		}
		if f, _ := s.fraction(); s.capped() {
			limit := uint64(f * float64(d.Total))
			main.Limit = &limit
			if limit < torchSegment {
				main.First = 0
			}
		}
	}
	return []policy.Pool{main, {Name: "CachingHostAllocator", Space: "host", Text: "pinned host memory as the program asks for it, in powers of two; kept"}}
}

// torchSegment is the first grant for a small request (kSmallBuffer).
const torchSegment = 2 << 20
