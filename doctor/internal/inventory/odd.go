package inventory

// What stands out in the figures of one subject, and what would return memory.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"gpumem/record/smi"
	"gpumem/size"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// oddOf compares the figures of a subject of the log.
func (a *Account) oddOf(name string, s *subject, sampled bool) {
	odd := func(format string, args ...any) { a.Odd = appendNew(a.Odd, name+": "+fmt.Sprintf(format, args...)) }
	get := func(key string) uint64 { return s.figures[key].bytes }
	switch s.source {
	case torch:
		a.oddOfPyTorch(s, odd)
	case jax:
		if s.has("reserved", "limit") && get("reserved") == get("limit") && get("allocated") < get("limit")/2 {
			odd("all of its limit, %s, was taken at once, and %s of it is in use: that is by design", human(get("limit")),
				human(get("allocated")))
			a.Returns = appendNew(a.Returns, "XLA_PYTHON_CLIENT_PREALLOCATE=false takes memory as it is needed")
		}
		a.Returns = appendNew(a.Returns, "an array's memory returns to the pool when its last reference goes, or with x.delete()")
	case ollama, llama:
		layers, of := s.counts["offload"], s.counts["layers"]
		if layers >= of || of == 0 {
			break
		}
		odd("%d of %d layers are on the GPU, the rest on the host: slower, and no failure", layers, of)
		if s.source == ollama {
			a.oddOfOllama(s)
		}
	case tpu:
		a.oddOfHBM(s, odd)
	case tensorrt:
		if s.has("cache") {
			a.Returns = appendNew(a.Returns, "a smaller free_gpu_memory_fraction of kv_cache_config makes the KV cache smaller")
		}
	case diffusion:
		if swapped := get("host"); swapped > 0 {
			odd("%s of the model is in the host's memory and is brought in as it is needed: slower, and no failure", human(swapped))
			a.Returns = appendNew(a.Returns, "a smaller or quantised model (fp8, GGUF), or fewer programs on the GPU, "+
				"ends the swapping; in Forge a smaller GPU Weights leaves more for inference")
		}
	case julia:
		if live, cached := s.readings("allocated"), s.readings("cached"); strings.Contains(cached, ",") {
			odd("by reading, live: %s; cached: %s", live, cached)
		}
		if cached := get("cached"); cached >= 256*mib {
			a.Returns = appendNew(a.Returns, "CUDA.reclaim() returns up to "+human(cached)+" to the driver; GC.gc() makes "+
				"more of what is live free")
		}
	}
	if held, most := get("held"), get("recommended"); most > 0 && held > most {
		odd("%s is allocated, above the %s that Metal recommends: it may be slow, or be refused when it computes", human(held), human(most))
	}
	if s.source == llama && len(s.words["unaccounted"]) > 0 && s.words["unaccounted"][0] == '-' {
		odd("this table is a plan: its parts were not yet allocated when free memory was read")
	}
	peak, now := get("peak_allocated"), get("allocated")
	if s.has("allocated", "peak_allocated") && peak > now+now/2 && peak-now >= gib {
		odd("at its peak it had %s, now %s: the peak decides whether it fits, and %s of it has gone", human(peak), human(now),
			human(peak-now))
	}
	sameLine := s.figures["peak_allocated"].Line == s.figures["allocated"].Line
	if peak > 0 && sameLine && peak < now-now/20 {
		odd("its peak, %s, is below the %s that is allocated: one of the two is no reading of that moment", human(peak), human(now))
	}
	a.growing(s, sampled, odd)
}

// mostReadings is how many readings of a figure are listed.
const mostReadings = 6

// readings are those of a figure in their order, the last ones.
func (s *subject) readings(key string) string {
	var all []string
	list := s.growth[key+" "]
	for _, f := range list[max(0, len(list)-mostReadings):] {
		all = append(all, fmt.Sprintf("%s (line %d)", human(f.bytes), f.Line))
	}
	return strings.Join(all, ", ")
}

// oddOfOllama says how much is missing for all layers.
func (a *Account) oddOfOllama(s *subject) {
	var available uint64
	for _, b := range listed(s.words["available"]) {
		available = size.Add(available, b)
	}
	full := s.figures["memory.required.full"].bytes
	more := "more memory on the GPUs would hold all layers"
	if available > 0 {
		a.Notes = append(a.Notes, human(available)+" was available on the GPUs")
		if full > available {
			more = human(full-available) + " more free on the GPUs would hold all layers"
		}
	}
	a.Returns = appendNew(a.Returns, more+": a smaller context (num_ctx, OLLAMA_CONTEXT_LENGTH), OLLAMA_NUM_PARALLEL=1, "+
		"a smaller quantisation of the model, or of the cache (OLLAMA_FLASH_ATTENTION=1 with OLLAMA_KV_CACHE_TYPE=q8_0)")
}

func (a *Account) oddOfPyTorch(s *subject, odd func(string, ...any)) {
	get := func(key string) uint64 { return s.figures[key].bytes }
	allocated, reserved := get("allocated"), get("reserved")
	ooms, retries := s.counts["ooms"], s.counts["retries"]
	_, counted := s.counts["retries"]
	switch {
	case ooms > 0:
		odd("memory was refused before this report (CUDA OOMs: %d, retries: %d)", ooms, retries)
	case retries > 0:
		odd("cudaMalloc failed and went on after the cache was given back, %d times: at that peak nothing was left, and "+
			"each time is slow", retries)
	case counted:
		a.Notes = append(a.Notes, "no refusal was counted (0 retries)")
	}
	if waiting := get("waiting"); waiting >= get("active")/20 && waiting > 0 {
		odd("%s of %s was freed and waits for another stream (active minus allocated)", human(waiting), human(get("active")))
		a.Returns = appendNew(a.Returns, "torch.cuda.synchronize() lets what waits for a stream return; fewer "+
			"record_stream calls keep it from waiting")
	}
	cached := get("cached")
	switch {
	case !s.has("allocated", "reserved") || reserved < allocated+256*mib:
	case allocated <= reserved/20:
		odd("%s of %s is in use: the rest is cached, though nothing needs it now", human(allocated), human(reserved))
	case reserved >= allocated+allocated/2:
		odd("%s is reserved for %s that is allocated", human(reserved), human(allocated))
	}
	ours := ""
	if !s.known {
		ours = "if it is PyTorch's: "
	}
	if cached >= 256*mib {
		when := ""
		if allocated <= reserved/20 {
			when = "; call it after initialisation"
		}
		a.Returns = appendNew(a.Returns, ours+"torch.cuda.empty_cache() returns up to "+human(cached)+" to the driver"+when)
	}
	if s.has("allocated") && s.known {
		a.Returns = appendNew(a.Returns, "what is allocated returns to the pool when its last reference goes: del, and "+
			"detach() or item() for what is kept of a step")
	}
}

// growing is a figure that only rises, or whose lows do.
func (a *Account) growing(s *subject, sampled bool, odd func(string, ...any)) {
	for _, key := range slices.Sorted(maps.Keys(s.growth)) {
		all := s.growth[key]
		n := len(all)
		switch key, _, _ := strings.Cut(key, " "); {
		case key != "allocated" && key != "used" || n < 5:
			continue
		case all[n-1].bytes < all[0].bytes+16*mib:
			continue
		case rises(all) >= n-2:
			a.steady(s, all, sampled, odd)
		case n >= 8:
			from, to, ok := lows(all)
			if !ok {
				continue
			}
			odd("grows from %s (line %d) to %s (line %d) over %d readings, at its lows: what is kept alive between them?",
				human(from.bytes), from.Line, human(to.bytes), to.Line, n)
		default:
			continue
		}
		if s.source == torch {
			a.Returns = appendNew(a.Returns, "gc.collect() frees what refers to itself; gpumem leaks lists what stays, from a trace")
		}
	}
}

// rises is how often a figure rises; very low if it ever falls.
func rises(all []figure) (n int) {
	for i, f := range all[1:] {
		switch {
		case f.bytes < all[i].bytes:
			return -1
		case f.bytes > all[i].bytes:
			n++
		}
	}
	return n
}

// lows are the least reading of the second and of the last quarter, where no quarter's is less than
// the one before, and the last is half as much again. The first quarter is that of a start.
func lows(all []figure) (from, to figure, rise bool) {
	var least [4]figure
	for q := range least {
		least[q] = slices.MinFunc(all[q*len(all)/4:(q+1)*len(all)/4], func(x, y figure) int { return cmp.Compare(x.bytes, y.bytes) })
		if q > 0 && least[q].bytes < least[q-1].bytes {
			return from, to, false
		}
	}
	from, to = least[1], least[3]
	return from, to, to.bytes >= from.bytes+max(from.bytes/2, 256*mib)
}

// steady is a figure that rises from reading to reading.
func (a *Account) steady(s *subject, all []figure, sampled bool, odd func(string, ...any)) {
	first, last := all[0], all[len(all)-1]
	step := (last.bytes - first.bytes) / uint64(len(all)-1)
	by := "by " + human(step) + " a reading, "
	if sampled {
		by = ""
	}
	text := fmt.Sprintf("grows %sfrom %s (line %d) to %s (line %d)", by, human(first.bytes), first.Line, human(last.bytes), last.Line)
	if t, ok := s.figures[s.total.key]; ok && s.total.key != "reserved" && !sampled && t.bytes > last.bytes {
		text += fmt.Sprintf("; %s more lasts for about %d readings", human(t.bytes-last.bytes), (t.bytes-last.bytes)/max(step, 1))
	}
	odd("%s", text)
}

// overTime is a recording of the use of a GPU.
func (a *Account) overTime(s smi.Series) {
	name := "GPU"
	if s.Index >= 0 {
		name = fmt.Sprintf("GPU %d", s.Index)
	}
	if s.Peak > s.Last {
		a.Rows = append(a.Rows, Row{name, "in use at its peak", s.Peak, From{Line: s.PeakLine}, Other})
	}
	if s.LastRise < 16*mib {
		return
	}
	over := "in the last readings"
	if s.LastOver > 0 {
		over = "in the last " + s.LastOver.Round(time.Second).String()
	}
	peak := ""
	if s.Last == s.Peak {
		peak = ", the most of the recording"
		if free := s.Total - min(s.Total, s.Last); free > 0 && s.LastOver > 0 {
			lasts := time.Duration(float64(free) / float64(s.LastRise) * float64(s.LastOver))
			peak += fmt.Sprintf("; at that rate the %s that are free last for about %s", human(free), roughly(lasts))
		}
	}
	a.Odd = append(a.Odd, fmt.Sprintf("%s: in use rose by %s %s, to %s%s", name, human(uint64(s.LastRise)), over, human(s.Last), peak))
}

// roughly writes a time with two digits, in the largest unit of which there are two.
func roughly(d time.Duration) string {
	for _, u := range []struct {
		unit time.Duration
		name string
	}{{24 * time.Hour, "days"}, {time.Hour, "hours"}, {time.Minute, "minutes"}} {
		if n := float64(d) / float64(u.unit); n >= 2 {
			digits := max(0, int(math.Log10(n))-1)
			scale := math.Pow10(digits)
			return fmt.Sprintf("%.0f %s", math.Round(n/scale)*scale, u.name)
		}
	}
	return "some minutes"
}
