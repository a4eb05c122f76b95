package account

// Scenes, the inputs to each section of the table: the refusal that it is about, the quantities and
// flags of it, and the lines and texts for its readings.

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/doctor/internal/statement"
)

// Thresholds. All are in bytes.
const (
	// firstLibrary is what cuDNN needs for its first convolution, kernels
	// included: about 520 MiB (tensorflow/tensorflow#24496).
	FirstLibrary = 520 * statement.Mib
	// contextMost is the most that a context, its modules and library handles
	// take outside of any pool in an ordinary program, NCCL left out.
	ContextMost = 1536 * statement.Mib
	// absurd is what no program means to ask of one GPU.
	absurd = 16 << 40
	// smallProgram fits any GPU of the last ten years: if it did not, it was not for
	// its own size.
	smallProgram = statement.Gib
)

// defaultLeft is the part of the GPU that JAX's default pool leaves: 1 - 0.75,
// since jaxlib 0.4.4.
const defaultLeft = 0.25

// newScene is a scene with what all sections may compare.
func newScene(e *Facts, found []Finding) *Scene {
	s := &Scene{Facts: e, found: found, N: map[string]uint64{}, Words: map[string]string{}, lines: map[string][]statement.Evidence{}, said: map[string][]string{}}
	t := e.Total()
	others, told := e.Others()
	s.N["total"], s.N["gpu_total"], s.N["held"], s.N["nothers"] = t.Bytes, t.Bytes, heldBy(others), uint64(len(others))
	s.N["context"], s.N["library"], s.N["largest"], s.N["small"] = ContextMost, FirstLibrary, largestGPU, smallProgram
	s.Flag("told", told)
	s.Flag("listed", told)
	holders, _ := e.holders()
	s.Flag("seen", len(holders) > 0) // a list without anybody was taken when the program was gone
	s.Flag("fatal", e.Fatal())
	s.Flag("handle", e.handle() != nil)
	s.Flag("sure", slices.ContainsFunc(found, func(f Finding) bool { return f.Sure }))
	s.Flag("found", len(found) > 0)
	s.Flag("unified", e.Unified())
	s.Flag("grows", e.Grows())
	s.Flag("state", e.state != nil)
	s.Flag("tensorflow", e.OnTensorFlow())
	s.lines["total"], s.lines["others"] = []statement.Evidence{t.from}, readings(others)
	if t.Bytes == 0 {
		delete(s.lines, "total")
	}
	for _, st := range e.statements.all() {
		for _, topic := range st.Topics {
			s.line(topic.Id, st)
		}
	}
	if d := e.gpu(); d != nil && d.Total > 0 && d.InUse() > 0 {
		s.N["gpu_used"] = d.InUse()
		s.lines["gpu_used"] = []statement.Evidence{{Text: fmt.Sprintf("devices.used_bytes: %d", d.InUse())}}
	}
	return s
}

// Flag sets a flag.
func (s *Scene) Flag(name string, yes bool) {
	s.N[name] = 0
	if yes {
		s.N[name] = 1
	}
}

// line names a line; nil is none.
func (s *Scene) line(name string, st *statement.Statement) {
	if st != nil {
		s.lines[name] = []statement.Evidence{st.Quoted("")}
	}
}

// of makes a refusal the scene's; nil is none.
func (s *Scene) of(r *Refusal) {
	if s.R = r; r == nil {
		return
	}
	s.Flag("refused", true)
	s.line("refusal", r.St)
	s.N["want"], s.N["free"], s.N["rtotal"], s.N["rlimit"], s.N["alloc"] = r.Want, r.Free, r.Total, r.limit, r.Alloc
	s.Flag("hasfree", r.HasFree)
	s.Flag("driver_refused", r.Layer == statement.LayerDriver)
	s.Words["refused_text"] = "memory was refused; how much was requested is unknown"
	if r.Want > 0 {
		s.Words["refused_text"] = Human(r.Want) + " was refused"
	}
}

// mine reports whether a refusal was of the GPU and no warning.
func ofGPU(r *Refusal) bool { return !r.mild && r.Layer != statement.LayerHost }

func notMild(r *Refusal) bool { return !r.mild }

// prepared makes the scene of each section.
var prepared = map[string]func(*Scene){
	"settings": plain, "virtual memory": plain, "busy": plain, "jetson": plain, "shared memory": plain, "profiling": plain, "signal": plain,
	"limiters": (*Scene).limiters, "host": (*Scene).host, "pinning": (*Scene).pinning, "killed": (*Scene).killed, "kernel driver": (*Scene).kernelDriver,
	"cpu": (*Scene).onCPU, "leak": (*Scene).leaks, "no nvml": (*Scene).unifiedMemory, "unified": (*Scene).unifiedMemory,
	"nccl": (*Scene).nccl, "graphs": (*Scene).graphs, "capture": (*Scene).capture, "code": (*Scene).code,
	"two pools": (*Scene).twoPools, "engines": (*Scene).engines, "account": (*Scene).account, "contexts": (*Scene).contexts,
	"start": (*Scene).start, "small device": (*Scene).smallDevice, "driver": (*Scene).driver, "tensor": (*Scene).tensor, "pool": (*Scene).poolReport,
	"tpu": (*Scene).tpu, "arguments": (*Scene).arguments, "compiled": (*Scene).compiled, "libraries": (*Scene).libraries,
	"other": (*Scene).otherFailures, "library": (*Scene).library, "bare": (*Scene).bare, "warnings": (*Scene).warnings,
}

func plain(*Scene) {}

func (s *Scene) limiters() {
	if r := s.last(func(r *Refusal) bool { return !r.mild && r.St.Topic("lease") != nil }); r != nil {
		if other := s.About("other"); other == nil || other.Line < r.St.Line || s.last(notMild).St.Line > other.Line {
			s.lease(r.St)
		}
	}
	if st := s.About("hami"); st != nil {
		var n, limit uint64
		fmt.Sscan(st.Topic("hami").Value, &n, &limit)
		s.N["used"], s.N["limit"], s.N["over"], s.N["below"] = n, limit, Less(n, limit), -n
		s.Words["count"] = strconv.FormatUint(n, 10)
		s.Flag("below_zero", n > math.MaxInt64)
	}
	for _, st := range s.statements.all() {
		if st.Topic("nvshare") == nil {
			continue
		}
		reading := ""
		switch a, w := st.Amount(statement.RoleFree), st.Amount(statement.RoleWant); {
		case a != nil && st.Words["real"]:
			s.N["real"], reading = a.N, "the driver has "+Human(a.N)+" free"
		case a != nil:
			s.N["shown"], reading = a.N, "nvshare lets the program see "+Human(a.N)+" free"
		case w != nil:
			s.N["asked"], reading = w.N, Human(w.N)+" is requested"
		default:
			continue
		}
		s.lines["view"] = append(s.lines["view"], st.Quoted(reading))
	}
	r := s.last(notMild)
	s.of(r)
	s.Flag("bare", r != nil && r.Want == 0 && r.Total == 0)
}

// lease is for what the pool library says when the lease of gpumem run has no more.
func (s *Scene) lease(st *statement.Statement) {
	t := st.Topic("lease")
	s.line("leased", st)
	s.Words["leased"] = "the lease had no more room for a process's context and libraries"
	if left, limit, ok := strings.Cut(t.Value, "B "); ok {
		want, free, all := statement.SizeOf(t.Name), statement.SizeOf(left+"B"), statement.SizeOf(limit)
		s.N["leased_needs"] = Less(all, free) + want
		s.Words["leased"] = fmt.Sprintf("%s was requested, and %s was left of the lease of %s: that limit refused it, and the GPU was not asked", Human(want), Human(free), Human(all))
	}
}

// host is for the host's memory. RMM throws std::bad_alloc for the GPU, and on MPS there is
// one memory.
func (s *Scene) host() {
	r := s.last(func(r *Refusal) bool { return r.Layer == statement.LayerHost && !r.mild })
	if r == nil || r.St.HasAny("rmm", "mps") || s.Uses("rmm") && r.St.Words["bad"] {
		return
	}
	s.of(r)
	s.Words["asked"] = "the memory asked for is the host's, not the GPU's"
	if r.Want > 0 {
		s.Words["asked"] = Human(r.Want) + " of the host's memory was requested, not of the GPU's"
	}
	gpu := s.last(ofGPU)
	warned := r.St.Level == "W" || strings.Contains(strings.ToUpper(r.St.Text), "WARN")
	s.Flag("host", true)
	s.Flag("gpu", gpu != nil)
	s.Flag("last", gpu == nil || !s.torchLike(gpu) || gpu.St.Line < r.St.Line)
	if gpu != nil {
		s.line("gpu", gpu.St)
		s.Flag("first", (warned || gpu.Want > 0 && !gpu.St.Words["out"]) && !r.St.Words["bfc"] && gpu.St.Library == "" && !(gpu.St.Words["exhausted"] && gpu.Want == 0) && gpu.St.Line > r.St.Line)
	}
}

func (s *Scene) pinning() {
	r := s.last(func(r *Refusal) bool { return !r.mild && r.Pinning && r.Want == 0 && r.Total == 0 })
	s.of(r)
	s.Flag("pinning", r != nil)
}

// killers are those that end a process for memory, by a word of their lines.
var killers = []struct{ word, name string }{
	{"oomd", "systemd-oomd"}, {"earlyoom", "earlyoom"}, {"raylet", "Ray's memory monitor"}, {"ray", "Ray's memory monitor"}, {"evicted", "the kubelet"}, {"kubelet", "the kubelet"}, {"slurmstepd", "Slurm"},
}

// killed finds who killed the process, and whether a container's limit or the machine was the
// wall. The kernel says so by its constraint, or by the words before "Killed process".
func (s *Scene) killed() {
	s.Words["killer"] = "the kernel"
	container, machine := false, false
	for _, st := range s.statements.all() {
		if st.Topic("killed") == nil {
			continue
		}
		if _, after, ok := strings.Cut(st.Text, "constraint="); ok {
			group := strings.HasPrefix(after, "CONSTRAINT_MEMCG")
			container, machine = container || group, machine || !group
		} else {
			container = container || st.HasAny("oomkilled", "cgroup") || strings.Contains(st.Text, "OOMKilled")
			machine = machine || strings.HasPrefix(st.Text, "Out of memory: Kill")
		}
		switch {
		case st.HasAny("oomkilled", "kubepods", "kubelet", "evicted") || strings.Contains(st.Text, "OOMKilled"):
			s.Words["raise"] = "resources.limits.memory of the pod"
		case st.HasAny("slurmstepd", "slurm"):
			s.Words["raise"] = "--mem of the job (sbatch, srun)"
		case strings.Contains(st.Text, "/docker"):
			s.Words["raise"] = "docker run --memory"
		}
		for _, k := range killers {
			if st.Words[k.word] {
				s.Words["killer"] = k.name
				break
			}
		}
	}
	killer := s.Words["killer"]
	s.Flag("container", container && !machine && killer == "the kernel")
	s.Flag("machine", machine || killer == "the kubelet" || killer == "systemd-oomd" || killer == "earlyoom")
	s.Flag("ray", killer == "Ray's memory monitor")
}

func (s *Scene) kernelDriver() {
	s.Flag("shares", s.unifiedDevice() != "")
	s.Flag("discrete", s.discrete())
}

func (s *Scene) onCPU() {
	s.of(s.last(notMild))
	s.Flag("platform", strings.EqualFold(s.Env["JAX_PLATFORMS"], "cpu") || strings.EqualFold(s.Env["JAX_PLATFORM_NAME"], "cpu"))
}

// leaks finds the first figure in the log that only rises: an answer must not depend on the
// order of a map.
func (s *Scene) leaks() {
	for _, f := range slices.SortedFunc(maps.Values(s.series), func(a, b *series) int { return cmp.Compare(a.order, b.order) }) {
		if s.Fatal() && f.n >= 5 && f.rises >= f.n-1 && f.high >= f.low+f.low/2 && f.high >= 64*statement.Mib {
			f.first.Reading = Human(f.low) + " at first"
			f.last.Reading = fmt.Sprintf("%s after %d readings, each above the one before: %s more each time", Human(f.high), f.n, Human((f.high-f.low)/uint64(f.n-1)))
			s.lines["leak"] = []statement.Evidence{f.first, f.last}
			return
		}
	}
}

func (s *Scene) unifiedMemory() {
	r := s.last(ofGPU)
	if s.of(r); r == nil {
		return
	}
	s.Words["spare"] = "its free memory is what the host can spare at this moment"
	if r.HasFree && r.Total > 0 {
		s.Words["spare"] = fmt.Sprintf("%s of %s free: that is what the host can spare at this moment", Human(r.Free), Human(r.Total))
	}
	if name := s.unifiedDevice(); name != "" {
		s.lines["shares"] = []statement.Evidence{{Text: "devices.name: " + name, Reading: "it shares the host's memory"}}
		if f := s.pick("device", func(f *statement.Fact) bool { return f.Name == name }); f != nil {
			s.lines["shares"] = []statement.Evidence{f.Quoted(name + " shares the host's memory")}
		}
	}
	name, ok := unifiedTotal(r.Total)
	s.Words["shared_name"] = name
	s.Flag("shared_total", ok && !r.St.HasAny("npu", "xpu", "hip", "mps"))
}

// nccl finds the lines of NCCL, of its refusal, and of a status that is not memory's.
func (s *Scene) nccl() {
	var nccl, memory *statement.Statement
	for _, st := range s.statements.all() {
		if st.Layer != statement.LayerNCCL {
			continue
		}
		if st.Refused || st.HasAny("failed", "failure", "error", "unhandled") {
			nccl = st
			if st.Refused && (memory == nil || memory.Amount(statement.RoleWant) == nil) {
				memory = st
			}
		}
		other := st.HasAny("system", "usage", "argument")
		if s.lines["code"] == nil && (!st.Refused && st.Words["failure"] && strings.Contains(st.Text, "'") || (other || st.Words["remote"]) && st.HasAny("invalid", "unhandled", "nccl") && strings.Contains(st.Text, "nccl") && other && !st.Words["cuda"]) {
			s.line("code", st)
		}
	}
	s.line("nccl", nccl)
	s.line("memory", memory)
	if nccl != nil {
		s.Flag("unhandled", nccl.Words["cuda"] && nccl.Words["unhandled"])
	}
	if memory != nil {
		s.Flag("full_shm", memory.Topic("shm") != nil)
		s.Words["asked"] = "NCCL's buffers come from outside every pool, and the driver had no more"
		if a := memory.Amount(statement.RoleWant); a != nil {
			s.Words["asked"] = "NCCL asked the driver for " + Human(a.N) + ", outside every pool, and got nothing"
		}
	}
}

func (s *Scene) graphs() {
	if r := s.last(func(r *Refusal) bool { return r.Layer == statement.LayerGraph && !r.mild }); r != nil {
		s.line("graph", r.St)
	}
}

func (s *Scene) capture() {
	r := s.last(func(r *Refusal) bool {
		return r.Capture != nil && r.Want == 0 && r.Total == 0 && !r.mild && (r.Layer == statement.LayerDriver || r.Layer == statement.LayerPool)
	})
	if s.of(r); r != nil {
		s.line("capture", r.Capture)
	} else {
		delete(s.lines, "capture")
	}
}

func (s *Scene) code() {
	st := s.About("cubin")
	if st == nil {
		return
	}
	s.Flag("refused_code", st.Refused)
	s.Flag("about_code", st.Topic("image") != nil || codeStatus.MatchString(st.Text))
	s.Flag("status", strings.Contains(st.Text, "CUDA_ERROR_"))
	s.Flag("fails", st.Says(statement.CFail|statement.CNot))
	s.Words["guess"] = ""
	if st.Words["different"] {
		s.Words["guess"] = "; the text's guess at another GPU is wrong here"
	}
}

// twoPools finds programs that each announce a pool on one GPU.
func (s *Scene) twoPools() {
	var list []*statement.Statement
	for _, st := range s.statements.all() {
		t := st.Topic("announced")
		if t == nil {
			continue
		}
		for _, other := range list {
			if o := other.Topic("announced"); o.Value == t.Value && other.From != st.From && s.Total().Bytes < statement.SizeOf(o.Name)+statement.SizeOf(t.Name) {
				s.lines["pools"] = []statement.Evidence{other.Quoted("one process takes " + Human(statement.SizeOf(o.Name))), st.Quoted("and another on the same GPU " + Human(statement.SizeOf(t.Name)))}
				return
			}
		}
		list = append(list, st)
	}
}

// engines is for programs with their own check or estimate.
func (s *Scene) engines() {
	r := s.last(func(r *Refusal) bool {
		return r.Layer == statement.LayerEngine && r.HasFree && r.Total > 0 && !r.mild && (r.Want > 0 || Less(r.Total, r.Free) > ContextMost)
	})
	if s.of(r); r != nil {
		s.Flag("start", true)
		s.N["used"], s.N["lacking"] = Less(r.Total, r.Free), Less(r.Want, r.Free)
		s.Words["wants"] = "more than is free"
		if r.Want > 0 {
			s.Words["wants"] = Human(r.Want)
		}
		return
	}
	r = s.last(func(r *Refusal) bool { return r.Layer == statement.LayerEngine && !r.mild && r.St.Library == "" })
	if r != nil && !s.Uses("llama.cpp") && s.N["sure"] == 0 {
		s.of(r)
		s.cache(r)
		return
	}
	s.llama()
}

// cache is for an engine whose cache found no room.
func (s *Scene) cache(r *Refusal) {
	s.Flag("cache", true)
	for _, st := range s.statements.all() {
		if st.Words["weights"] && st.HasAny("took", "loaded", "loading") && len(st.Amounts) > 0 && !st.Refused {
			s.line("weights", st)
			s.N["weights"], s.N["weights_context"] = st.Amounts[0].N, ContextMost/2
		}
		if f, u := st.Amount(statement.RoleFree), st.Amount(statement.RoleUse); f != nil && u != nil && s.lines["loaded"] == nil && st.HasAny("weight", "weights", "load") {
			s.line("loaded", st)
			s.N["loaded_free"], s.N["loaded_used"], s.N["loaded_total"] = f.N, u.N, f.N+u.N
		}
	}
	share, static := s.Number("gpu_memory_utilization"), s.Number("mem_fraction_static")
	s.N["more"], s.N["share_room"], s.N["static_room"] = Less(r.Want, r.Free), uint64(share*float64(s.N["total"])), uint64(static*float64(s.N["loaded_total"]))
	if r.Want == 0 && s.N["weights"] > 0 {
		s.N["more"] = Less(s.N["weights"]+statement.Gib, s.N["share_room"])
	}
	s.Flag("share", share > 0)
	s.Flag("static", static > 0)
	s.Flag("low_static", static > 0 && static < .5)
	s.Words["share_text"], s.Words["static_text"], s.Words["share_name"] = fmt.Sprint(share), fmt.Sprint(static), s.engineShare()
	if f := s.pick("vllm usage", nil); f != nil {
		s.lines["before"] = []statement.Evidence{f.Quoted("")}
		s.N["before"], s.N["before_total"] = f.InUse, f.Total
		s.Words["before_percent"] = strconv.Itoa(percent(f.InUse, f.Total))
	}
}

// Number is a setting of the program that failed; 0 if it is unknown.
func (e *Facts) Number(name string) float64 {
	f, _ := strconv.ParseFloat(e.Env[name], 64)
	return f
}

// llama is for programs that plan which layers go to the GPU: llama.cpp and Ollama.
func (s *Scene) llama() {
	r := s.last(func(r *Refusal) bool { return ofGPU(r) && r.Want > 0 && s.estimated(r) })
	if r == nil {
		return
	}
	for _, a := range r.St.Amounts { // the plan may stand before it
		if a.Role == statement.RoleWant {
			r.Want = a.N
		}
	}
	s.of(r)
	s.Flag("llama", true)
	free, parts, start := s.loading(r)
	found := s.pick("found", nil)
	if found != nil && s.N["total"] == 0 {
		s.N["total"] = found.Total
		s.lines["total"] = []statement.Evidence{found.Quoted("the GPU has " + Human(found.Total))}
	}
	if found != nil && free == 0 {
		free, start = found.Free, found.Quoted("")
	}
	start.Reading = fmt.Sprintf("%s was free at the start", Human(free))
	s.lines["at_start"] = []statement.Evidence{start}
	s.N["free"], s.N["parts"] = free, parts
	want := Human(r.Want)
	s.Words["together"], s.Words["loaded_text"] = want, want+" was refused"
	if parts > 0 {
		loaded := Human(parts)
		s.Words["together"], s.Words["loaded_text"] = loaded+" and "+want+" more", loaded+" is loaded, and "+want+" more was refused"
	}
	s.Flag("compute", r.St.HasAny("gallocr", "compute", "reserve"))
	if st := s.StatementWith("runner", "terminated"); st != nil {
		s.line("runner", st)
	}
	if m := s.pick("estimate", nil); m != nil {
		planned, available := FromLists(m.Value, m.Version, r.device)
		planned = cmp.Or(planned, m.Want)
		if m.Limit > 0 && planned > available {
			planned = m.Limit
		}
		s.N["planned"], s.N["available"] = planned, available
		s.lines["plan"] = []statement.Evidence{m.Quoted("")}
		if planned > 0 && planned <= available {
			s.N["free"] = available
		}
	}
}

// account is for a message that says how much was wanted, and what the GPU, the pool or the
// process has. PyTorch's, CuPy's, MPS's and those of XGBoost or Paddle are read alike.
func (s *Scene) account() {
	r := s.subject()
	for _, a := range s.Failed {
		if want := max(a.Want, tensorBytes(a.St.Text)); !a.mild && want > absurd && a.Layer != statement.LayerHost && s.N["absurd"] == 0 {
			s.line("absurd", a.St)
			s.N["absurd"] = want
		}
	}
	over := s.last(func(r *Refusal) bool { return r.St.Over && !r.mild })
	if over != nil && (r == nil || r == over) && over.Layer != statement.LayerEngine {
		r = over
		s.line("over", over.St)
		if d := s.pick("simulated", nil); d != nil {
			s.lines["simulated"] = []statement.Evidence{d.Quoted("")}
			s.N["simulated"] = d.Total
		}
	}
	if r == nil {
		r = s.last(func(r *Refusal) bool {
			return !r.mild && r.Want == 0 && r.Total > 0 && r.hasAlloc && (r.Layer == statement.LayerPool || r.Layer == statement.LayerDriver) && r.St.Topic("tpu") == nil
		})
		s.Flag("untold", r != nil)
	}
	if s.of(r); r == nil {
		return
	}
	for _, st := range s.statements.all() {
		most := uint64(0) // the limit is the largest of the sizes that an arena is made with
		for _, a := range st.Amounts {
			if a.Role == statement.RoleLimit {
				most = max(most, a.N)
			}
		}
		if s.N["arena"] == 0 && st.Words["arena"] && most < saneTotal && most > statement.Mib {
			s.line("arena", st)
			s.N["arena"] = most
		}
	}
	s.Flag("estimated", s.Uses("llama.cpp") && s.estimated(r))
	t, told := r.Total, r.Total > 0
	if !told {
		t = s.N["gpu_total"]
	}
	if sum := r.Alloc + r.Free; t == 0 && r.hasAlloc && r.HasFree && r.Want > sum && r.limit == 0 && knownTotal(sum) {
		t, told = sum, true // together they are a whole GPU
	}
	reserved, idle := r.reserved(), r.unallocated()
	hasUse := r.hasAlloc || r.kept > 0
	async := hasUse && r.kept == 0 && !r.hasIdle && s.Uses("torch")
	this, sum, names := r.owners(reserved, hasUse)
	rest := Less(t, r.Free+reserved+r.other)
	s.N["total"], s.N["reserved"], s.N["idle"], s.N["this"], s.N["sum"], s.N["rest"] = t, reserved, idle, this, sum, rest
	s.N["lacking"], s.N["round"], s.N["wantup"], s.N["beside"] = Less(r.Want, r.Free), r.round, roundUp(r.wantHigh), Less(this, reserved)
	s.Flag("told", told)
	s.Flag("hasuse", hasUse)
	s.Flag("async", async)
	s.Flag("named", len(r.listed) > 0)
	s.Flag("inmessage", len(r.listed) > 0 || r.this > 0 || r.programs > 0)
	s.Words["names"] = strings.Join(names[:min(len(names), 8)], ", ")
	s.said["hint"] = s.hintIsWrong(r)
	// A fortieth, or a few segments' ends, is what rounding leaves in any pool: where a
	// segment of 20 MiB is refused, it is no cause.
	const segment = 20 * statement.Mib
	s.Flag("holes", hasUse && idle >= 2*statement.Mib && (t == 0 || r.Alloc < t*95/100) && !(r.Want <= segment && idle < max(r.Alloc/40, 4*segment)))
	s.limits(r, t, told, reserved, hasUse)
	if r.Capture != nil {
		s.line("capture", r.Capture)
	} else {
		delete(s.lines, "capture")
	}
	s.Flag("capture", r.Capture != nil)
	s.Words["in_use"] = fmt.Sprintf("%s of %s is in use, and this program's pool reserved %s of it", Human(Less(t, r.Free)), Human(t), Human(reserved))
	if async {
		s.Words["in_use"] = fmt.Sprintf("%s of %s is in use, and the program's tensors are %s of it: others, or what the driver's pool keeps", Human(Less(t, r.Free)), Human(t), Human(r.Alloc))
	}
	// A message without what is free (XPU's) tells only what this program has.
	free, end := ", "+Human(r.Free)+" is free", "does not fit"
	s.Words["neither"] = "neither free nor"
	if !r.HasFree {
		free, end, s.Words["neither"] = "", "was refused", "not"
	}
	if idle > 0 {
		free = ", " + Human(idle) + " of its pool is unused" + free
	}
	s.Words["own"] = fmt.Sprintf("the program's own allocations hold %s of %s%s: %s more %s", Human(r.Alloc), Human(t), free, Human(r.Want), end)
	s.Words["holes_and"] = ": enough"
	if r.Free > 0 {
		s.Words["holes_and"] = ", and " + Human(r.Free) + " is free: together enough"
	}
	s.N["unowned"] = Less(t, r.Free+reserved)
	s.Words["of_total"] = ""
	if t > 0 {
		s.Words["of_total"] = " of " + Human(t)
	}
	if reserved > 0 {
		s.Words["refused_text"] = fmt.Sprintf("%s in the pool already, %s more refused", Human(reserved), Human(r.Want))
	}
}

// owners is what the process of the message holds, and what others do, with their names.
// Which of the processes in the message is this one: it holds what its pool reserved, and
// least beside that. Where the pool is unknown it may be the largest.
func (r *Refusal) owners(reserved uint64, hasUse bool) (this, sum uint64, names []string) {
	own := -1
	if this = r.this; this == 0 {
		for i, p := range r.listed {
			if hasUse && p.used+p.used/200+statement.Mib >= reserved && (own < 0 || p.used < r.listed[own].used) || !hasUse && (own < 0 || p.used > r.listed[own].used) {
				own = i
			}
		}
		if own >= 0 {
			this = r.listed[own].used
		}
	}
	for i, p := range r.listed {
		if i != own {
			sum += p.used
			names = append(names, fmt.Sprintf("process %d: %s", p.pid, Human(p.used)))
		}
	}
	if r.programs > 0 {
		sum += r.programs
		names = append(names, "other programs: "+Human(r.programs))
	}
	return this, sum, names
}

// limits is for the pool's own limit: told, set, or a round part of the GPU, which is what
// programs set. What is taken is below it, and with the request above: that is no
// coincidence where the request is small.
func (s *Scene) limits(r *Refusal, t uint64, told bool, reserved uint64, hasUse bool) {
	limit := r.limit
	f, set := s.TorchFraction()
	s.Words["whose"] = ""
	if limit == 0 && set && t > 0 {
		limit = uint64(f * float64(t))
		s.Words["whose"] = fmt.Sprintf(" (per_process_memory_fraction %v)", f)
	}
	if told && float64(limit) > .985*float64(t) {
		limit = 0 // all of the GPU: no limit
	}
	if s.Uses("mps") {
		r.other += r.programs // one memory for all
	}
	// What is called available may be what the limit leaves.
	s.Flag("room", !r.HasFree || r.Free+r.round+20*statement.Mib >= r.Want || hasUse && limit > 0 && Less(r.Alloc+r.Free, limit)+Less(limit, r.Alloc+r.Free) <= limit/200)
	s.N["limit"], s.N["taken"] = limit, max(reserved, r.Alloc)+r.other
	s.Flag("fraction_set", set)
	s.Words["while_free"] = ""
	if r.HasFree {
		s.Words["while_free"] = ", while " + Human(r.Free) + " of the GPU is free"
	}
	high := float64(reserved+roundUp(r.wantHigh)+r.round) / float64(t)
	low := float64(Less(reserved, r.round)) / float64(t)
	if part := math.Ceil(low*20) / 20; t > 0 && high-low < .006 && part > low && part <= high && part < 1 {
		s.N["part"] = uint64(part * float64(t))
		s.Words["part_percent"] = fmt.Sprintf("%.0f", 100*part)
	}
}

func (s *Scene) contexts() {
	r := s.contextRefused()
	if s.of(r); r == nil {
		return
	}
	if m := s.pick("smi memory", func(m *statement.Fact) bool {
		return m.Total > 0 && Less(m.Total, m.InUse) < max(statement.Gib, m.Total/50)
	}); m != nil {
		s.lines["smi_full"] = []statement.Evidence{m.Quoted(fmt.Sprintf("%s of %s is in use", Human(m.InUse), Human(m.Total)))}
	}
	seen := map[int]bool{}
	for _, c := range s.Failed {
		d := s.state.Device(c.device)
		if c.Layer != statement.LayerContext || d == nil || seen[d.Index] {
			continue
		}
		seen[d.Index] = true
		for _, p := range d.Programs {
			if s.state.Process == nil || s.state.Process.PID != p.PID || p.PID == 0 {
				s.lines["neighbours"] = append(s.lines["neighbours"], readings([]holder{holderOf(p, statement.Evidence{Text: fmt.Sprintf("devices[%d].processes: pid %d %s", d.Index, p.PID, p.Name)})})...)
			}
		}
	}
	s.Flag("strange", r.strange() > 0)
}

func (s *Scene) start() {
	if st, free, total := s.startReading(); st != nil {
		s.line("begin", st)
		s.N["begin_free"], s.N["begin_total"] = free, total
		s.Flag("begin", true)
	}
}

func (s *Scene) smallDevice() {
	if !s.Fatal() && s.handle() == nil {
		return
	}
	for _, d := range s.facts("tf device") {
		least, _, ok := cardTotals(d.Name)
		if t := s.gpu(); !ok && t != nil && t.Total > 0 {
			least, ok = t.Total, true
		}
		if d.Limit > 0 && ok && d.Limit <= least/2 {
			s.lines["part_of"] = []statement.Evidence{d.Quoted("")}
			s.N["part_of"], s.N["part_total"] = d.Limit, least
			return
		}
	}
}

// driver is for requests that the driver refused, by a pool that starts or grows, or past
// every pool.
func (s *Scene) driver() {
	var first *Refusal
	n := 0
	for _, r := range s.Failed {
		if r.Layer == statement.LayerDriver && r.Want > 0 && !r.mild && !s.torchLike(r) && !s.Uses("llama.cpp") {
			if first == nil {
				first = r
			}
			n++
		}
	}
	if s.of(first); first == nil {
		return
	}
	past := first.St.Words["ordinal"] || first.St.Words["request"]
	whole := s.WholePool(first, n)
	s.Flag("past", past)
	s.Flag("region", !past)
	s.Flag("whole", whole)
	s.Flag("again", s.madeAgain())
	s.Flag("later", s.last(func(r *Refusal) bool {
		return !r.mild && r.Layer == statement.LayerPool && r.St.Line > first.St.Line
	}) != nil)
	s.N["largest_then"] = largestThen(first)
	s.Words["not_had"] = "the driver did not have " + Human(first.Want)
	if t := s.N["total"]; whole && t > 0 {
		s.Words["not_had"] += fmt.Sprintf(": %d %% of %s, a whole pool", percent(first.Want, t), Human(t))
	}
	s.lines["both"] = s.jaxAndTF()
	s.lines["second"] = s.secondPool()
	from, to, steps := s.Ladder()
	s.N["ladder"] = uint64(steps)
	if steps > 2 {
		// What it got at last: a pool is announced behind the ladder.
		s.Flag("got_less", slices.ContainsFunc(s.statements.all(), func(st *statement.Statement) bool {
			return st.Line > to.St.Line && (st.Topic("announced") != nil || st.Words["created"] && st.Words["device"] && len(st.Amounts) > 0)
		}))
		s.Words["ladder_text"] = fmt.Sprintf("the pool asked for %s, and %d times for a tenth less, down to %s: the GPU had less than each of them", Human(from.Want), steps-1, Human(to.Want))
	}
	others, _ := s.Others()
	var big []holder
	for i, o := range others {
		if yes, why := o.isJAX(s.N["total"]); yes && s.lines["jax_other"] == nil {
			others[i].from.Reading = why
			s.lines["jax_other"] = []statement.Evidence{others[i].from}
		}
		if !o.isDesktop() && o.Used > max(s.N["total"]/10, FirstLibrary) {
			big = append(big, o)
		}
	}
	s.lines["big"], s.N["big_held"] = readings(big), heldBy(big)
}

// secondPool are the lines that show that the program made its backend again, the first
// pool still there.
func (e *Facts) secondPool() (q []statement.Evidence) {
	if e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil {
		if !*e.state.Process.BackendRecreated {
			return nil
		}
		q = append(q, statement.Evidence{Text: "process.backend_recreated: true", Reading: "the backend was made a second time in the same process"})
	}
	if c := e.About("cleared"); c != nil {
		q = append(q, c.Quoted("the program cleared its backends"))
	}
	var pools []*statement.Statement
	for _, st := range e.statements.all() {
		if st.Topic("announced") != nil {
			pools = append(pools, st)
		}
	}
	if len(q) > 0 && len(pools) > 1 {
		q = append(q, pools[0].Quoted("the first pool"), pools[len(pools)-1].Quoted("the same again"))
	}
	return q
}

// tensor is for a tensor that was refused, beside TensorFlow's device or the GPU.
func (s *Scene) tensor() {
	for _, r := range s.Failed {
		if bytes := tensorBytes(r.St.Text); bytes > 0 && !r.mild && r.Want == bytes && r.Layer != statement.LayerHost {
			s.line("tensor", r.St)
			s.N["tensor"] = bytes
			for _, d := range s.facts("tf device") {
				if d.Limit > 0 && bytes > d.Limit && s.N["tensor_device"] == 0 {
					s.lines["tensor_device"] = []statement.Evidence{d.Quoted("")}
					s.N["tensor_device"] = d.Limit
				}
			}
		}
	}
}

// poolReport is for a refusal of XLA's or TensorFlow's pool, with or without its report.
func (s *Scene) poolReport() {
	p := s.pool()
	if p == nil {
		return
	}
	s.of(p.refused)
	s.N["want"] = p.want
	for name, v := range map[string]sized{"limit": p.limit, "size": p.size, "inuse": p.inUse, "block": p.largest} {
		if s.N[name] = v.Bytes; v.Bytes > 0 {
			s.lines[name] = []statement.Evidence{v.from}
		}
	}
	room := p.size
	if room.Bytes == 0 {
		room = p.limit
	}
	if room.Bytes == 0 {
		s.N["inuse"] = 0
	}
	s.lines["room"] = []statement.Evidence{room.from}
	s.N["room"], s.N["room_free"] = room.Bytes, Less(room.Bytes, p.inUse.Bytes)
	s.N["needed"], s.N["outside"] = p.inUse.Bytes+p.want, Less(s.N["total"], p.limit.Bytes)
	s.Flag("subject", s.subject() != nil)
	s.Flag("growing", p.limit.Bytes > room.Bytes && p.limit.Bytes-room.Bytes >= p.want && p.largest.Bytes == 0)
	total, st := s.assigned()
	s.Flag("assigned", st != nil)
	s.N["buffers"] = total
	s.N["largest_then"] = largestGPU
	if p.refused != nil {
		s.N["largest_then"] = largestThen(p.refused)
	}
	if w := s.last(func(w *Refusal) bool { return w.mild && w.Want > 32*p.want }); w != nil && s.StatementWith("memory", "fragmentation") != nil && (s.OnTensorFlow() || !s.Uses("jax")) && st == nil && s.About("remat") == nil {
		s.line("busy", w.St)
		s.N["busy"] = w.Want
		s.Words["busy_times"] = strconv.FormatUint(w.Want/max(p.want, 1), 10)
	}
	s.usual()
}

// usual is what JAX's pool may take of the GPU, by its setting or by default.
func (s *Scene) usual() {
	f, set := s.Fraction()
	if s.Words["fraction_text"] = fmt.Sprint(f); s.N["assigned"] == 0 && s.Unified() {
		f *= .8 // beside what is there already
		s.Words["fraction_text"] = fmt.Sprint(f)
	}
	s.N["usual"] = uint64(f * float64(s.N["total"]))
	s.Words["by_whom"] = "by default"
	if set {
		s.Words["by_whom"] = "by its setting"
	}
}

func (s *Scene) tpu() {
	if st := s.About("tpu"); st != nil && st.Refused {
		s.of(s.last(func(r *Refusal) bool { return r.St == st }))
	}
}

func (s *Scene) arguments() {
	if f := s.pick("arguments", nil); f != nil {
		s.lines["arguments"] = []statement.Evidence{f.Quoted("")}
		s.N["arguments"], s.N["arguments_limit"] = f.Want, f.Limit
	}
}

// compiled is for what the compiler said of a program's buffers, and of what recomputing
// them saves.
func (s *Scene) compiled() {
	p := s.pool()
	if p != nil {
		s.of(p.refused)
		s.N["want"] = p.want
		s.Flag("plimit", p.limit.Bytes > 0)
		s.Flag("pinuse", p.inUse.Bytes > 0)
	}
	s.remat()
	total, st := s.assigned()
	if st == nil {
		if sum, part := s.parts(); sum > 0 {
			total, st = sum, part
		}
	}
	s.N["buffers"] = total
	s.Flag("assigned", true)
	s.usual()
	s.N["most_usable"] = s.N["total"] * 95 / 100 // what a limit may be raised to, and leave libraries their room
	s.line("buffers", st)
	if own := s.ownUsed(); own > 0 {
		s.N["own_used"] = own
		s.lines["own_used"] = []statement.Evidence{{Text: fmt.Sprintf("devices.processes: %d bytes of its own", own)}}
	}
	d := s.gpu()
	if d != nil && d.Used != nil {
		s.N["now_used"] = max(d.InUse(), 1)
	}
	if s.Live != nil {
		s.N["live"], s.Words["source"] = s.Live(s.ordinal()), s.LiveSource
	}
	if st := s.About("announced"); st != nil && p != nil && p.refused != nil {
		s.N["announced"] = statement.SizeOf(st.Topic("announced").Name)
	} else {
		s.N["announced"] = 0
	}
	if f := s.pick("chunks", nil); f != nil {
		s.lines["report_piece"] = []statement.Evidence{f.Quoted("")}
		if fraction, _ := s.Fraction(); d != nil && d.Total > 0 && d.InUse() > 0 && math.Abs(float64(d.InUse())/float64(d.Total)-fraction) < .02 {
			s.N["part_used_more"] = d.InUse() + d.InUse()/10
			s.lines["part_used"] = []statement.Evidence{{Text: fmt.Sprintf("devices.used_bytes: %d", d.InUse()), Reading: fmt.Sprintf("%s of %s is in use: %d %%, the pool's part, and the rest of the GPU is free", Human(d.InUse()), Human(d.Total), percent(d.InUse(), d.Total))}}
		}
	}
}

// remat is for XLA's pass that recomputes.
func (s *Scene) remat() {
	st := s.About("remat")
	if st == nil {
		return
	}
	limit, to, from := sizeAfter(st.Text, rematLimit), sizeAfter(st.Text, rematTo), sizeAfter(st.Text, rematFrom)
	to = cmp.Or(to, from)
	saved := Less(from, to)
	s.N["remat_limit"], s.N["saved"], s.N["remat_from"] = limit, saved, from
	s.Words["recomputing"] = fmt.Sprintf("recomputing brings %s to %s, and the limit is %s", Human(from), Human(to), Human(limit))
	if saved == 0 {
		s.Words["recomputing"] = fmt.Sprintf("recomputing saves nothing of %s, and the limit is %s", Human(to), Human(limit))
	}
	s.Words["saves"] = fmt.Sprintf("the pass saves %s of %s (%d %%); to reach the limit of %s it would have to save %s", Human(saved), Human(from), percent(saved, from), Human(limit), Human(Less(from, limit)))
	if from == 0 {
		s.Words["saves"] = "the pass does not reach the limit of " + Human(limit)
	}
}

// libraries is for the first text that names a library that is missing, or of another
// version.
func (s *Scene) libraries() {
	for _, st := range s.statements.all() {
		t := st.Topic("missing", "symbol", "version", "image")
		if t == nil || st.Topic("cubin") != nil {
			continue
		}
		name, text := "", ""
		switch t.Id {
		case "version":
			name, text = "a library of another version", "the library that is loaded is not the one that the program was built for"
			if have, want, ok := strings.Cut(t.Value, " "); ok {
				text += ": " + have + " is loaded, and " + want + " is wanted"
			}
		case "image":
			name, text = "no code for this GPU", "the build has no code that this GPU can run"
		case "symbol":
			name, text = "a symbol is missing", "the library that is loaded lacks a symbol that the program was built with: its version is another"
		case "missing":
			if t.Name != "" && !cudaLibraries.MatchString(t.Name) || s.Fatal() {
				continue
			}
			name, text = "a library is missing", cmp.Or(t.Name, "cuDNN")+" is not where the loader looks; no amount of memory starts it"
		}
		s.line("mismatch", st)
		s.Words["mismatch_name"], s.Words["mismatch_text"] = name, text
		return
	}
}

func (s *Scene) otherFailures() {
	h := s.handle()
	st := s.About("other")
	if delete(s.lines, "other"); st != nil && !s.Fatal() && (h == nil || h.st.Line >= st.Line && !h.memory) {
		s.line("other", st)
		s.Words["other_name"] = st.Topic("other").Name
	}
}

// bare is for refusals of which nothing more is known.
func (s *Scene) bare() {
	for _, kind := range []string{"tf device", "device", "smi gpu"} {
		if f := s.pick(kind, nil); f != nil && s.N["named_card"] == 0 {
			if _, most, ok := cardTotals(f.Name); ok {
				s.N["named_card"], s.lines["named_card"] = most, []statement.Evidence{f.Quoted("")}
			}
		}
	}
	r := s.last(func(r *Refusal) bool { return ofGPU(r) && r.Layer != statement.LayerContext })
	if s.of(r); r == nil {
		return
	}
	_, _, n := s.Ladder()
	s.N["ladder"] = uint64(n)
	small := strings.Contains(r.St.Text, "Resource exhausted:")
	pool := r.Layer == statement.LayerPool && r.Want > 0 && !s.torchLike(r)
	s.Flag("jaxlib", strings.Contains(r.St.Text, "jaxlib/"))
	s.Flag("small_letters", small)
	s.Flag("warned", slices.ContainsFunc(s.statements.all(), func(st *statement.Statement) bool { return st.Mild }))
	s.Flag("copy", s.StatementWith("dst", "tensor") != nil)
	// XLA's own sentence, which tells of nothing but the request.
	s.Flag("xla", pool && (s.Uses("jax") || r.St.Words["exhausted"]) || s.Uses("jax") && r.Layer == statement.LayerDriver && r.Want == 0)
	s.Flag("known_program", s.Uses("cupy", "rmm", "torch", "vllm", "sglang", "xgboost", "numba", "julia", "onnxruntime", "paddle", "mxnet", "tensorrt", "hip", "xpu", "mps", "comfyui", "llama.cpp"))
}

func (s *Scene) warnings() {
	s.Flag("refused", s.last(notMild) != nil)
	if r := s.last(func(r *Refusal) bool { return r.mild }); r != nil {
		s.line("mild", r.St)
		s.line("went_on", r.wentOn)
		s.Flag("algorithm", r.St.Topic("picker") != nil || s.About("picker") != nil || r.St.HasAny("tactic", "tactics"))
	}
}

// library is for a library that failed.
func (s *Scene) library() {
	h := s.handle()
	if h == nil {
		return
	}
	s.H = h
	s.line("library", h.st)
	s.lines["handle"] = h.quotes()
	s.said["handle_certain"] = h.certain()
	s.N["card"] = max(h.Total, s.N["total"])
	others, _ := s.Others()
	var big []holder
	for i, o := range others {
		yes, reading := o.isJAX(s.N["card"])
		switch {
		case o.isDesktop():
			s.N["display"] += o.Used
			o.from.Reading = "the desktop takes " + Human(o.Used) + " of what the pool leaves"
			s.lines["desktop"] = append(s.lines["desktop"], o.from)
		case yes && s.lines["jax_other"] == nil:
			others[i].from.Reading = reading
			s.lines["jax_other"] = []statement.Evidence{others[i].from}
		case !yes && (o.Used > FirstLibrary || o.Used == 0 && o.ParentGone):
			big = append(big, o)
		}
	}
	s.lines["big"], s.N["big_held"] = readings(big), heldBy(big)
	s.Flag("big", len(big) > 0)
	s.Flag("gone", len(big) > 0 && big[0].ParentGone)
	if own, ok := s.ownPool(h); ok {
		s.lines["own_pool"] = []statement.Evidence{own}
	}
	s.lines["both"], s.lines["screen"] = s.jaxAndTF(), s.Display()
	if h.tried || h.helped {
		s.lines["tried"] = []statement.Evidence{h.TriedBy}
	}
	blas := h.library == "cuBLAS" && !h.call
	apart := !s.OnTensorFlow() && !s.frameworksTold() && h.From == nil
	both := apart && (blas || h.conv && s.state == nil)
	for name, yes := range map[string]bool{
		"plenty": h.plenty(), "tried": h.tried, "helped": h.helped, "short": h.short(), "open": h.open(), "early": h.early, "status": h.memory, "bare": h.bare,
		"framed": !h.torch && !h.bare, "reading": h.From != nil, "blas": blas, "jax_and_tf": apart && h.memory && !h.starved() && h.library != "cuSolver",
		"conv_and_tf": both && h.conv && h.status == "", "blas_and_tf": both && !(h.conv && h.status == ""),
		"insufficient": s.StatementWith("insufficient", "driver", "version") != nil,
	} {
		s.Flag(name, yes)
	}
}
