package inventory

// What stands out in the figures of one subject, and what would return memory.

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"gpumem/record/smi"
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
			odd("all of its limit, %s, was taken at once, and %s of it is in use: that is by design", human(get("limit")), human(get("allocated")))
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
			a.Notes = append(a.Notes, fmt.Sprintf("%s of %s, %d %%, is on the GPUs, of which %s was available", human(get("partial")), human(get("full")),
				100*get("partial")/max(get("full"), 1), s.words["available"]))
			a.Returns = appendNew(a.Returns, fmt.Sprintf("%s more on the GPUs would hold all layers: a smaller context (num_ctx, OLLAMA_CONTEXT_LENGTH), "+
				"OLLAMA_NUM_PARALLEL=1, a smaller quantisation of the model, or of the cache (OLLAMA_FLASH_ATTENTION=1 with OLLAMA_KV_CACHE_TYPE=q8_0)", human(get("host"))))
		}
	}
	if s.source == llama && len(s.words["unaccounted"]) > 0 && s.words["unaccounted"][0] == '-' {
		odd("this table is a plan: its parts were not yet allocated when free memory was read")
	}
	if peak, now := get("peak_allocated"), get("allocated"); s.has("allocated", "peak_allocated") && peak > now+now/2 && peak-now >= gib {
		odd("at its peak it had %s, now %s: the peak decides whether it fits, and %s of it has gone", human(peak), human(now), human(peak-now))
	}
	a.growing(s, sampled, odd)
}

func (a *Account) oddOfPyTorch(s *subject, odd func(string, ...any)) {
	get := func(key string) uint64 { return s.figures[key].bytes }
	allocated, reserved := get("allocated"), get("reserved")
	if n := s.counts["ooms"]; n > 0 {
		odd("memory was refused before this report (CUDA OOMs: %d)", n)
	}
	if waiting := get("waiting"); waiting >= get("active")/20 && waiting > 0 {
		odd("%s of %s was freed and waits for another stream (active minus allocated)", human(waiting), human(get("active")))
		a.Returns = appendNew(a.Returns, "torch.cuda.synchronize() lets what waits for a stream return; fewer record_stream calls keep it from waiting")
	}
	cached := get("cached")
	switch {
	case !s.has("allocated", "reserved") || reserved < allocated+256*mib:
	case allocated <= reserved/20:
		odd("%s of %s is in use: the rest is cached, though nothing needs it now", human(allocated), human(reserved))
	case reserved >= allocated+allocated/2:
		odd("%s is reserved for %s that is allocated", human(reserved), human(allocated))
	}
	if cached >= 256*mib {
		when := ""
		if s.words["deepspeed"] != "" || allocated <= reserved/20 {
			when = "; call it after initialisation"
		}
		a.Returns = appendNew(a.Returns, "torch.cuda.empty_cache() returns up to "+human(cached)+" to the driver"+when)
	}
	if s.has("allocated") {
		a.Returns = appendNew(a.Returns, "what is allocated returns to the pool when its last reference goes: del, and detach() or item() for what is kept of a step")
	}
}

// growing is a figure that only rises.
func (a *Account) growing(s *subject, sampled bool, odd func(string, ...any)) {
	for _, key := range []string{"allocated", "used"} {
		g := s.growth[key]
		if g == nil {
			continue
		}
		if low, high, ok := g.floor(); ok && (g.n < 5 || g.rises < g.n-1) {
			odd("the least that is %s between its peaks rises from %s (line %d) to %s (line %d): something is kept", key, human(low.bytes), low.Line, human(high.bytes), high.Line)
			continue
		}
		if g.n < 5 || g.rises < g.n-1 || g.last.bytes-g.first.bytes < 16*mib {
			continue
		}
		step := (g.last.bytes - g.first.bytes) / uint64(g.n-1)
		by := "by " + human(step) + " a reading, "
		if sampled {
			by = ""
		}
		text := fmt.Sprintf("grows %sfrom %s (line %d) to %s (line %d)", by, human(g.first.bytes), g.first.Line, human(g.last.bytes), g.last.Line)
		if t, ok := s.figures[s.total.key]; ok && s.total.key != "reserved" && !sampled && t.bytes > g.last.bytes {
			text += fmt.Sprintf("; %s more lasts for about %d readings", human(t.bytes-g.last.bytes), (t.bytes-g.last.bytes)/step)
		}
		odd("%s", text)
	}
}

// floor is the least reading of the second and of the last quarter, where each quarter's is no less
// than the one before and the last is half as much again. The first quarter is that of a start.
func (g *growth) floor() (low, high figure, ok bool) {
	n := len(g.all)
	if n < 8 || n == maxReadings {
		return low, high, false
	}
	var least [4]figure
	for q := range least {
		least[q] = slices.MinFunc(g.all[q*n/4:(q+1)*n/4], func(a, b figure) int { return cmp.Compare(a.bytes, b.bytes) })
		if q > 0 && least[q].bytes < least[q-1].bytes {
			return low, high, false
		}
	}
	low, high = least[1], least[3]
	return low, high, high.bytes >= low.bytes+low.bytes/2 && high.bytes-low.bytes >= 256*mib
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
	}
	a.Odd = append(a.Odd, fmt.Sprintf("%s: in use rose by %s %s, to %s%s", name, human(uint64(s.LastRise)), over, human(s.Last), peak))
}
