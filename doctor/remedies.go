// Remedies for a cause: settings, steps, and how to check.
//
// The texts are in remedies.txt; here are the numbers,
// computed for this GPU, and the names for this release.

package doctor

import (
	_ "embed"
	"fmt"
	"math"
	"strconv"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
	"gpumem/policy"
	"gpumem/policy/torchconf"
)

//go:embed remedies.txt
var remedyText string

// remedies are the blocks of each remedy.
var remedies = parseRemedies(remedyText)

type remedyBlock struct {
	when     string
	settings []remedyLine
	steps    []remedyLine
	check    string
	target   string // another remedy that goes on
}

// A remedyLine is there where its condition holds.
type remedyLine struct{ when, name, text string }

// Advice is one setting to make. An empty Value means to unset it.
type Advice struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Why   string `json:"why"`
}

// cure is what to do about a cause. Check is the command that shows whether the settings
// took effect; it may be empty.
type cure struct {
	Settings []Advice
	Steps    []string
	Check    string
}

func parseRemedies(text string) map[string][]*remedyBlock {
	all := map[string][]*remedyBlock{}
	id := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		word, rest, _ := strings.Cut(line, " ")
		when := ""
		if i := strings.IndexByte(line, '('); i >= 0 && (line[:i] == "set" || line[:i] == "-") {
			end := strings.IndexByte(line, ')')
			word, when, rest = line[:i], line[i+1:end], strings.TrimSpace(line[end+1:])
		}
		last := func() *remedyBlock {
			if len(all[id]) == 0 {
				all[id] = []*remedyBlock{{}}
			}
			return all[id][len(all[id])-1]
		}
		switch {
		case line == "" || line[0] == '#':
		case line[0] == '[':
			id = strings.Trim(line, "[]")
		case word == "if":
			all[id] = append(all[id], &remedyBlock{when: rest})
		case word == "set":
			setting, why, _ := strings.Cut(rest, " :: ")
			last().settings = append(last().settings, remedyLine{when, strings.TrimSuffix(setting, " ::"), why})
		case word == "check":
			last().check = rest
		case word == "go":
			last().target = rest
		default:
			last().steps = append(last().steps, remedyLine{when: when, text: rest})
		}
	}
	return all
}

// A writer writes remedies for a scene.
type writer struct{ *account.Scene }

// remedyFor returns what to do about a finding.
func remedyFor(f account.Finding) cure { return (&writer{f.At}).write(f.Remedy, f.Bytes) }

// write is what to do, by the name of a remedy and its statement.
func (s *writer) write(id string, bytes uint64) (c cure) {
	s.N["bytes"] = bytes
	s.names()
	if compute := computed[id]; compute != nil {
		compute(s, bytes)
	}
	for _, b := range remedies[id] {
		if b.when != "" && !s.Holds(b.when) {
			continue
		}
		if b.target != "" {
			target, size, _ := strings.Cut(b.target, " ")
			return s.write(target, s.N[size])
		}
		for _, l := range b.settings {
			if l.when == "" || s.Holds(l.when) {
				name, value, _ := strings.Cut(l.name, " ")
				c.Settings = append(c.Settings, Advice{s.Expand(name), s.Expand(value), s.Expand(l.text)})
			}
		}
		for _, l := range b.steps {
			if l.when == "" || s.Holds(l.when) {
				c.Steps = append(c.Steps, s.Expand(l.text))
			}
		}
		if c.Check = s.Expand(b.check); len(c.Settings) == 0 && strings.HasPrefix(b.check, "{value") {
			c.Check = ""
		}
		return c
	}
	return c
}

// computed are the numbers of remedies.
var computed = map[string]func(s *writer, bytes uint64){
	"setting": (*writer).setting, "host": (*writer).hostWords, "quota": (*writer).quota, "multi": (*writer).multi, "starved": (*writer).starved, "helped": (*writer).helped,
	"limit": (*writer).limit, "cap": (*writer).cap, "torch_holes": (*writer).torchHoles, "fragmented": (*writer).fragmented,
	"engine_less": (*writer).engineLess, "engine_free": (*writer).engineFree, "unified": (*writer).engineUnified,
}

// names are the words of all remedies.
func (s *writer) names() {
	name, why := s.FractionName()
	f, _ := s.Fraction()
	s.Words["fraction"], s.Words["fraction_why"] = name, why
	for key, value := range map[string]string{"tenth": down(f - .1), "twentieth": down(f - .05), "most": "0.95"} {
		s.Words[key+"_less"], s.Words[key+"_check"] = value, s.jaxCheck(name+"="+value)
	}
	s.Words["jax_check"] = s.jaxCheck("")
	if s.Words["raise"] == "" {
		s.Words["raise"] = "docker run --memory, resources.limits.memory of the pod, --mem of slurm"
	}
	s.Words["pair"] = `pip install -U "jax[cuda12]"`
	if s.OnTensorFlow() {
		s.Words["pair"] = `pip install "tensorflow[and-cuda]"`
	} else if s.Uses("torch") {
		s.Words["pair"] = "PyTorch's own wheel"
	}
	s.Flag("torch", s.OnTorch())
	// XLA's own sentence, where nothing shows another framework.
	s.Flag("jaxlike", s.Uses("jax") || s.R != nil && s.R.St.Words["exhausted"] && !s.OnTensorFlow() && !s.Uses("exla"))
	s.Words["empty_cache"] = "torch.cuda.empty_cache()"
	for _, word := range []string{"xpu", "npu"} {
		if s.StatementWith(word, "out", "memory") != nil {
			s.Words["empty_cache"] = "torch." + word + ".empty_cache()"
		}
	}
	s.Flag("screen", s.Display() != nil || s.H != nil && s.N["display"] > 0)
	v := s.OtherVendor()
	s.Flag("otherVendor", v != nil)
	if v != nil {
		s.Words["processes"], s.Words["visible"] = v.Processes, v.Visible
	}
	var gone []string
	others, _ := s.Others()
	for _, h := range others {
		if h.ParentGone {
			gone = append(gone, strconv.Itoa(h.PID))
		}
	}
	s.Words["gone_pids"] = strings.Join(gone, ", ")
	s.Flag("gone_pids", len(gone) > 0)
}

// value is a fraction of JAX's pool that is advised.
func (s *writer) fractionOf(value string) float64 {
	s.Words["value"], s.Words["value_check"] = value, s.jaxCheck(s.Words["fraction"]+"="+value)
	f, _ := strconv.ParseFloat(value, 64) // it is what down or up wrote
	return f
}

// down and up are fractions as people write them, two digits.
func down(f float64) string { return strconv.FormatFloat(math.Floor(f*100)/100, 'f', 2, 64) }
func up(f float64) string   { return strconv.FormatFloat(math.Ceil(f*100)/100, 'f', 2, 64) }

// jaxCheck is how to see that a fraction took effect.
func (s *writer) jaxCheck(set string) string {
	if s.Uses("exla") {
		return ""
	}
	as, device := "", ""
	if v := s.Version("jax"); v != "" {
		as = " --as jax@" + v
	}
	if t := s.Total(); t.Bytes > 0 {
		device = fmt.Sprintf(" --device sim:%dMiB", t.Bytes/statement.Mib)
	}
	return strings.TrimSpace(set + " gpumem explain" + as + device)
}

func (s *writer) setting(uint64) {
	st := s.About("setting")
	if st == nil {
		st = s.About("unread")
	}
	t := st.Topic("setting", "unread")
	s.Words["setting_value"], s.Words["setting_line"], s.Words["right"] = t.Value, strconv.Itoa(st.Line), "bfc"
	if strings.Contains(t.Value, "async") {
		s.Words["right"] = "cuda_async"
	}
	s.Flag("fraction_twice", strings.HasSuffix(t.Name, "MEM_FRACTION"))
	s.Flag("allocator", t.Name == account.Allocator)
	s.Flag("torch_conf", t.Name == account.TorchConf)
	s.Flag("expandable", strings.Contains(t.Value+st.Text, "expandable_segments"))
	s.Flag("tensorflow_call", t.Name == "tensorflow")
	s.Flag("growth", t.Name == account.TfGrowth)
	s.Flag("flags", t.Name == "XLA_FLAGS")
}

func (s *writer) hostWords(uint64) {
	st := s.R.St
	s.Flag("shm_here", st.Topic("shm") != nil)
	s.Flag("pinned", st.HasAny("pinned", "pin", "bfc", "alloc", "register") && st.HasAny("pinned", "bfc", "host", "register") || s.R.Pinning)
}

func (s *writer) quota(quota uint64) {
	t := s.Total().Bytes
	s.Flag("fits_quota", s.Uses("jax") && quota > 2*account.ContextMost && t > quota)
	s.fractionOf(down(float64(account.Less(quota, account.ContextMost)) / float64(max(t, 1))))
}

func (s *writer) multi(uint64) {
	t := s.Total().Bytes
	s.Words["arithmetic"] = "half of the GPU less what a context and libraries take"
	if t <= 4*account.ContextMost {
		s.fractionOf("0.40")
		return
	}
	f := s.fractionOf(down(float64((t-2*account.ContextMost)/2) / float64(t)))
	s.Words["arithmetic"] = fmt.Sprintf("two times (%s and %s for its context and libraries) fit into %s", account.Human(uint64(f*float64(t))), account.Human(account.ContextMost), account.Human(t))
}

// starved makes the pool smaller. It leaves what cuDNN's first convolution takes, and half
// of that for the handles of other libraries, less what was free already. display is what
// the desktop holds.
func (s *writer) starved(display uint64) {
	fraction, _ := s.Fraction()
	total, left := s.Total().Bytes, uint64(0)
	if s.H != nil && s.H.Total > 0 {
		total = s.H.Total
	}
	if s.H != nil && s.H.From != nil {
		left = s.H.Left
	}
	if total == 0 {
		s.fractionOf(down(fraction - .1))
		s.Words["arithmetic"] = "a tenth of the GPU less than now; with the GPU's size (--state) the number can be computed"
		return
	}
	pool := uint64(fraction * float64(total))
	if s.H != nil && s.H.From != nil {
		pool = min(pool, account.Less(total, left)) // whatever the setting was, no more was in use
	}
	room := account.Less(account.FirstLibrary+account.FirstLibrary/2, left)
	if room == 0 {
		s.fractionOf(down(fraction - .1))
		s.Words["arithmetic"] = fmt.Sprintf("a tenth of the GPU less than now: %s was free, and the library wanted more", account.Human(left))
		return
	}
	f := s.fractionOf(down(float64(account.Less(pool, room)) / float64(total)))
	now := uint64(f * float64(total))
	s.Words["arithmetic"] = fmt.Sprintf("%s of %s, %s less than before, leave libraries %s", account.Human(now), account.Human(total), account.Human(account.Less(pool, now)), account.Human(account.FirstLibrary+account.FirstLibrary/2))
	if display > 0 {
		s.Words["arithmetic"] += ", beside the desktop's " + account.Human(display)
	}
}

func (s *writer) helped(uint64) {
	set := strings.TrimPrefix(s.H.TriedBy.Text, "tried: ")
	s.Words["tried_name"], s.Words["tried_value"], _ = strings.Cut(set, "=")
	s.Words["tried_check"] = s.jaxCheck(set)
}

// limit raises the pool's limit to what is needed, in bytes, where the GPU has it.
func (s *writer) limit(needed uint64) {
	total := s.Total().Bytes
	s.N["gpu_total"] = total
	if total == 0 {
		return
	}
	f := s.fractionOf(up(1.05 * float64(needed) / float64(total)))
	if most := math.Min(float64(account.Less(total, account.FirstLibrary+account.ContextMost/4))/float64(total), .95); !s.Unified() && f > most {
		f = s.fractionOf(down(most))
	}
	if s.Unified() {
		s.Words["value_check"] = s.jaxCheck(s.Words["fraction"] + "=" + s.Words["value"] + " TF_FORCE_UNIFIED_MEMORY=1")
	}
	s.N["pool"] = uint64(f * float64(total))
	s.N["left"] = account.Less(total, s.N["pool"])
	s.Words["grows_as"] = s.Env[account.Prealloc]
	s.Flag("grows_as", s.Env[account.Prealloc] != "" && s.Grows())
}

func (s *writer) cap(uint64) {
	s.N["needs"] = s.R.Alloc + s.R.Want
	s.Words["or_setting"] = ""
	if v := s.Version("torch"); v == "" || !account.Older(v, 2, 10) {
		s.Words["or_setting"] = ", or since PyTorch 2.10 per_process_memory_fraction:F in " + s.ConfName()
	}
}

func (s *writer) fragmented(uint64) {
	s.Words["growing_check"] = ""
	if s.Grows() {
		s.Words["growing_check"] = s.jaxCheck(account.Prealloc + "=true")
	}
}

// torchHoles chooses what the release, and the GPU, has against gaps.
func (s *writer) torchHoles(uint64) {
	name := s.ConfName()
	value, why := "expandable_segments:True", "segments that grow by pages leave fewer gaps; releases since 2.1 read it"
	v := s.Version("torch")
	switch {
	case s.Uses("hip") && (v == "" || account.Older(v, 2, 12)):
		value, why = "max_split_size_mb:128", "large blocks are then not split, and fit large requests again; on ROCm expandable_segments works since PyTorch 2.12 with ROCm 7"
	case s.OldTorch():
		value, why = "max_split_size_mb:128", "large blocks are then not split, and fit large requests again; the message is of a release before 2.1, which does not know expandable_segments"
	}
	s.Words["holes_setting"] = value
	key, set, _ := strings.Cut(value, ":")
	if merged, text, err := torchconf.Merge(policy.Environ(account.EnvLines(s.Env)), v, key, set); err == nil && s.Env[merged] != "" {
		s.Flag("set_already", text == strings.ReplaceAll(s.Env[merged], " ", ""))
		why += "; what is set there already is kept"
		name, value = merged, text
	}
	s.Words["conf"], s.Words["holes_value"], s.Words["holes_why"] = name, value, why
}

// engineLess leaves more room beside an engine's cache, on a GPU of t bytes.
func (s *writer) engineLess(t uint64) {
	c := s.R.Capture
	s.Flag("sglang_graphs", s.Uses("sglang") || c != nil && (strings.Contains(c.Text, "CudaGraphRunner") || strings.Contains(c.Text, "Capture cuda graph")))
	s.Words["static_less"], s.Words["static_why"] = "0.8", "Take five hundredths off what you use now"
	if f := s.Number("mem_fraction_static"); f > .1 {
		s.Words["static_less"], s.Words["static_why"] = down(f-.05+1e-9), fmt.Sprintf("It is %v now: this is five hundredths less", f)
	}
	share, now := s.Number("gpu_memory_utilization"), "the value that you use (0.9 by default; 0.92 in releases since April 2026, vllm-project/vllm#38284)"
	if share > 0 {
		now = fmt.Sprintf("the %v of now", share)
	} else {
		share = .9
	}
	s.Words["value"], s.Words["engine_why"] = down(share-.03+1e-9), "graphs take memory beside the cache: take three hundredths off "+now
	if t > 0 {
		part := float64(s.R.Want+256*statement.Mib) / float64(t)
		s.Words["value"] = down(math.Max(share-part, .1))
		s.Words["engine_why"] = fmt.Sprintf("%s and a reserve of %s are %.0f %% of %s: take that off %s", account.Human(s.R.Want), account.Human(256*statement.Mib), math.Ceil(100*part), account.Human(t), now)
	}
}

func (s *writer) engineFree(uint64) {
	room := float64(s.R.Free) / float64(max(s.R.Total, 1))
	s.Flag("room_free", room > .1)
	s.Words["value"] = down(math.Max(room-.01, .05))
}

func (s *writer) engineUnified(uint64) {
	if r := s.R; r != nil && r.Layer == statement.LayerEngine && r.Total > 0 && r.HasFree {
		f := s.fractionOf(down(math.Min(float64(r.Free)/float64(r.Total)-.05, .85)))
		s.N["host_left"] = account.Less(r.Total, uint64(f*float64(r.Total)))
		s.Flag("engine_room", true)
	}
}
