package doctor

// The account: a message that says how much was wanted, and what the GPU, the pool or the
// process has. PyTorch's, CuPy's, MPS's and those of XGBoost or Paddle are read alike.
//
// With what is wanted W, free F, the total T, reserved by the pool R and of that allocated
// A, held by the process P and by others O, all in the message or derived from it:
//
//	W > T                      no setting helps
//	R+W > limit, F >= W        the pool's own limit
//	F >= W                     something else said no: a limit that is not told
//	O >= W-F                   others hold what is lacking
//	P-R >= W-F                 another allocator of the process does
//	R-A+F >= W                 the pool has it, in pieces
//	A+W > T                    the program is too big
//
// Sizes are rounded where they are printed; each may be off by half of its last digit.

import (
	"fmt"
	"math"
	"strings"

	"gpumem/policy"
	"gpumem/policy/frameworks"
)

// roundUp is how far PyTorch's pool rounds a request for a segment: to 2 MiB, and small
// ones of more than a MiB to 20 MiB.
func roundUp(n uint64) uint64 {
	if n > mib && n < 10*mib {
		return 20 * mib
	}
	return (n + 2*mib - 1) &^ (2*mib - 1)
}

// subject is the refusal that the account is of: the last fatal one with numbers.
func (e *evidence) subject() *refusal {
	ok := func(r *refusal) bool {
		return !r.mild && r.want > 0 && r.layer != layerHost && r.layer != layerContext && r.layer != layerNCCL && r.layer != layerEngine && r.layer != layerModule && e.torchLike(r) && r.st.topic("hami", "nvshare") == nil
	}
	if r := e.last(func(r *refusal) bool { return ok(r) && r.total > 0 && r.hasFree && r.hasAlloc }); r != nil {
		return r
	}
	if r := e.last(func(r *refusal) bool { return ok(r) && (r.total > 0 || r.hasFree || r.hasAlloc || r.limit > 0) }); r != nil {
		return r
	}
	return nil
}

// untold is for a message whose balance says who is to blame whatever was wanted.
func (j *judge) untold() {
	e := j.evidence
	r := e.last(func(r *refusal) bool {
		return !r.mild && r.want == 0 && r.total > 0 && r.hasAlloc && (r.layer == layerPool || r.layer == layerDriver) && r.st.topic("tpu") == nil
	})
	if r == nil || j.spilled(r, r.total) || !r.hasFree || r.free >= slack || len(r.listed) > 0 {
		return
	}
	if rest := less(r.total, r.free+r.reserved()+r.other); rest >= r.total*2/5 {
		others, listed := e.others()
		j.rest(r, r.total, rest, r.reserved(), false, 0, others, listed, heldBy(others), nil)
	}
}

// spilled is for a program that has more than the GPU has.
func (j *judge) spilled(r *refusal, t uint64) bool {
	if r.alloc <= t+t/50 {
		return false
	}
	j.show(ProgramTooBig, "more allocated than the GPU has", cureTooBig(j.evidence), r.st.quoted(fmt.Sprintf("%s is allocated on a GPU of %s: the driver has moved a part of it to the host's memory already", human(r.alloc), human(t)))).
		with("on Windows the driver spills into the host's memory before a program is refused")
	return true
}

func (j *judge) account() {
	e := j.evidence
	r := e.subject()
	for _, a := range e.failed {
		if want := max(a.want, tensorBytes(a.st.text)); !a.mild && want > absurd && a.layer != layerHost {
			f := j.show(NotMemory, "a size that nobody means", cureAbsurd, a.st.quoted(human(want)+" in one piece: a wrong shape, or a number that overflowed"))
			f.verdict = VerdictNotMemory
			return
		}
	}
	if over := e.last(func(r *refusal) bool { return r.st.over && !r.mild }); over != nil && (r == nil || r == over) && over.layer != layerEngine {
		q := []Evidence{over.st.quoted("the pool has reached its own maximum; the GPU was not asked")}
		if d := e.pick("simulated", nil); d != nil {
			q = append(q, d.quoted("the simulated GPU has "+human(d.total)))
		}
		j.show(PoolLimit, "the pool's own maximum", cureCap(e, over, over.limit), q...)
		return
	}
	if r != nil && r.st.words["arena"] && r.hasFree && r.free < r.want {
		for _, st := range e.statements.all() {
			if a := st.amount(roleLimit); st.words["arena"] && a != nil && a.n < saneTotal && a.n > mib {
				j.show(PoolLimit, "an arena's limit", cureCap(e, r, a.n), st.quoted("the arena may take "+human(a.n)), r.st.quoted(fmt.Sprintf("%s requested, and %s is what it may still take", human(r.want), human(r.free))))
				return
			}
		}
	}
	if r == nil {
		j.untold()
		return
	}
	if e.estimated(r) {
		return
	}
	t := r.total
	told := t > 0
	if !told {
		t = e.total().bytes
	}
	if sum := r.alloc + r.free; t == 0 && r.hasAlloc && r.hasFree && r.want > sum && r.limit == 0 && knownTotal(sum) {
		t, told = sum, true // together they are a whole GPU
	}
	others, listed := e.others()
	held := heldBy(others)
	reserved, idle := r.reserved(), r.unallocated()
	hasUse := r.hasAlloc || r.kept > 0
	lacking := less(r.want, r.free)
	async := hasUse && r.kept == 0 && !r.hasIdle && e.uses("torch")
	at := func(format string, args ...any) Evidence { return r.st.quoted(fmt.Sprintf(format, args...)) }
	hint := e.hintIsWrong(r)
	// Which of the processes in the message is this one: it holds what its pool reserved,
	// and least beside that.
	this, sum, names := r.this, uint64(0), []string{}
	own := -1
	if this == 0 && hasUse {
		for i, p := range r.listed {
			if p.used+p.used/200+mib >= reserved && (own < 0 || p.used < r.listed[own].used) {
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
			names = append(names, fmt.Sprintf("process %d: %s", p.pid, human(p.used)))
		}
	}
	inMessage := len(r.listed) > 0 || r.this > 0 || r.programs > 0
	if r.programs > 0 {
		sum += r.programs
		names = append(names, "other programs: "+human(r.programs))
	}

	if t > 0 && r.want > t && !e.unified() {
		j.show(ProgramTooBig, "a request above the total", cureTooBig(e), at("one request of %s is more than the GPU's %s", human(r.want), human(t)))
		return
	}
	if !told && r.want > largestGPU && !e.unified() {
		j.show(ProgramTooBig, "a request above any GPU", cureTooBig(e), at("%s in one piece is more than any GPU has", human(r.want)))
		return
	}
	if told && hasUse && j.spilled(r, t) {
		return
	}
	// The pool's own limit.
	limit, whose := r.limit, ""
	if f, ok := e.torchFraction(); limit == 0 && ok && t > 0 {
		limit, whose = uint64(f*float64(t)), fmt.Sprintf(" (per_process_memory_fraction %v)", f)
	}
	if told && float64(limit) > .985*float64(t) {
		limit = 0 // all of the GPU: no limit
	}
	// What is called available may be what the limit leaves.
	room := !r.hasFree || r.free+r.round+20*mib >= r.want || hasUse && limit > 0 && less(r.alloc+r.free, limit)+less(limit, r.alloc+r.free) <= limit/200
	if e.uses("mps") {
		r.other += r.programs // one memory for all
	}
	if limit > 0 && (hasUse || r.want > limit) && max(reserved, r.alloc)+r.other+roundUp(r.wantHigh)+r.round+limit/1000 >= limit && (room || r.want > limit) {
		if e.uses("mps") && r.want > limit {
			j.show(ProgramTooBig, "a request above the limit", cureTooBig(e), at("one request of %s is more than the %s that may be taken of the machine's memory", human(r.want), human(limit)))
			return
		}
		if t == 0 || r.alloc+r.want <= t {
			free := ""
			if r.hasFree {
				free = ", while " + human(r.free) + " of the GPU is free"
			}
			j.show(PoolLimit, "the pool's own limit", cureCap(e, r, limit), at("%s taken and %s requested pass the limit of %s%s%s", human(max(reserved, r.alloc)+r.other), human(r.want), human(limit), whose, free))
			return
		}
	}
	if r.hasFree && r.free >= r.want+slack {
		j.freeAndRefused(r, t, reserved, hasUse)
		return
	}
	// CUDA graphs, after an engine's cache took its part.
	if r.capture != nil && r.want <= 2*gib && (t == 0 || r.free <= t/10) {
		q := []Evidence{at("%s more while graphs are captured, and %s is free", human(r.want), human(r.free)), r.capture.quoted("CUDA graphs are captured, after the cache took its part")}
		j.show(GraphHeadroom, "graphs after the cache", cureEngineLess(e, r, t), q...)
		return
	}
	if !r.hasFree && !told && idle < r.want {
		j.poolAlone(r, reserved)
		return
	}
	full := told || t > 0
	// Others that the message or the machine lists.
	if full && r.hasFree && sum >= max(64*mib, lacking) && (sum >= t*2/5 || idle+r.free < r.want || sum >= 4*idle) {
		j.show(DeviceOccupied, "others in the message", cureOccupied(e), at("%s requested, %s free: %s was lacking, and others hold %s of %s (%s)", human(r.want), human(r.free), human(lacking), human(sum), human(t), strings.Join(names[:min(len(names), 8)], ", "))).with(hint...)
		return
	}
	if full && hasUse && this > reserved+contextMost && this-reserved-contextMost+r.round >= lacking && this-reserved >= 2*idle && !async {
		j.show(OtherAllocator, "another allocator in the process", cureOtherAllocator(e), at("this process holds %s, of which its pool reserved %s: %s belongs to another allocator in it", human(this), human(reserved), human(this-reserved))).with(hint...)
		return
	}
	// An older message, which does not say whose the rest is.
	if rest := less(t, r.free+reserved+r.other); told && r.hasFree && hasUse && !inMessage && rest >= contextMost/2+lacking && rest >= t/5 && (rest >= t*2/5 || idle+r.free < r.want) {
		j.rest(r, t, rest, reserved, async, lacking, others, listed, held, hint)
		return
	}
	// What the pool holds in pieces, by itself or with what others hold. A hundredth is
	// what rounding leaves in any pool: where a segment of 20 MiB is refused, it is no
	// cause.
	if together := idle + r.free; hasUse && idle >= 2*mib && (t == 0 || r.alloc < t*95/100) && !(r.want <= 20*mib && idle < r.alloc/100) {
		q := at("%s is reserved and not in use, and %s is free: together enough for the %s requested, but not in one piece", human(idle), human(r.free), human(r.want))
		switch {
		case together >= r.want+r.round || idle >= r.want:
			j.show(Fragmentation, "holes in the pool", cureTorchHoles(e), q)
			return
		case together+r.round >= r.want:
			q.Reading = fmt.Sprintf("%s is reserved and not in use, and %s is free: whether that is enough for the %s requested is lost in the rounding", human(idle), human(r.free), human(r.want))
			if together < r.want {
				j.maybe(ProgramTooBig, "holes in the pool, or just too few", cureTooBig(e), decideSummary, nil, q)
			}
			j.maybe(Fragmentation, "holes in the pool, or just too few", cureTorchHoles(e), decideSummary, nil, q)
			if together >= r.want {
				j.maybe(ProgramTooBig, "holes in the pool, or just too few", cureTooBig(e), decideSummary, nil, q)
			}
			return
		case sum >= 64*mib && together+sum >= r.want && idle > lacking/10 && sum > lacking/10:
			q.Reading = fmt.Sprintf("%s was lacking: others hold %s, and %s is reserved and not in use; neither alone is enough", human(lacking), human(sum), human(idle))
			j.maybe(DeviceOccupied, "others and holes together", cureOccupied(e), decideSummary, nil, q)
			j.maybe(Fragmentation, "others and holes together", cureTorchHoles(e), decideSummary, nil, q)
			j.maybe(ProgramTooBig, "others and holes together", cureTooBig(e), decideSummary, nil, q)
			return
		}
	}
	if hasUse && told {
		// A message without what is free (XPU's) tells only what this program has.
		free, rest, end := ", "+human(r.free)+" is free", "neither free nor", "does not fit"
		if !r.hasFree {
			free, rest, end = "", "not", "was refused"
		}
		q := at("the program's own allocations hold %s of %s, %s of its pool is unused%s: %s more %s", human(r.alloc), human(t), human(idle), free, human(r.want), end)
		switch {
		case listed && held >= lacking && held >= contextMost && r.alloc+r.want <= t:
			j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(others), q)...).with(hint...)
		case r.alloc+r.want+contextMost/3+r.round > t || inMessage && sum < lacking || r.alloc >= t*9/10 || listed && held < lacking:
			j.show(ProgramTooBig, "the program's own allocations fill the GPU", cureTooBig(e), q).with(hint...)
		default:
			// What others hold may be what is lacking.
			unowned := at("%s of %s is %s of this program's pool", human(less(t, r.free+reserved)), human(t), rest)
			if !r.hasFree && reserved+r.want < t/2 {
				// This program has too little to be the one that is too big.
				j.maybe(DeviceOccupied, "the rest of the GPU", cureOccupied(e), decideSmi, need(needProcesses), unowned)
				j.maybe(ProgramTooBig, "the program's own allocations", cureTooBig(e), decideSmi, need(needProcesses), q)
				return
			}
			j.maybe(ProgramTooBig, "the program's own allocations", cureTooBig(e), decideSmi, need(needProcesses), q)
			j.maybe(DeviceOccupied, "the rest of the GPU", cureOccupied(e), decideSmi, need(needProcesses), unowned)
		}
		return
	}
	if r.hasFree {
		of := ""
		if t > 0 {
			of = " of " + human(t)
		}
		q := at("%s requested, %s%s free; who holds the rest is not told", human(r.want), human(r.free), of)
		switch {
		case listed && held >= lacking && held > 0:
			j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(others), q)...)
		case listed:
			j.show(ProgramTooBig, "nobody else on the machine", cureTooBig(e), q)
		default:
			j.maybe(ProgramTooBig, "a message without its numbers", cureTooBig(e), decideSmi, need(needProcesses), q)
			j.maybe(DeviceOccupied, "a message without its numbers", cureOccupied(e), decideSmi, need(needProcesses), q)
		}
		return
	}
	j.poolAlone(r, reserved)
}

const decideSummary = "python -c 'import torch; print(torch.cuda.memory_summary())'    # in the program, when it fails: what is inactive and split; and nvidia-smi"

// estimated reports whether a refusal is llama.cpp's, whose buffers are planned before.
func (e *evidence) estimated(r *refusal) bool {
	return e.uses("llama.cpp") && (!r.hasAlloc || strings.Contains(r.st.text, "memory.required"))
}

// freeAndRefused is for a request that was refused while the GPU had as much.
func (j *judge) freeAndRefused(r *refusal, t, reserved uint64, hasUse bool) {
	e := j.evidence
	q := r.st.quoted(fmt.Sprintf("%s is free and %s was requested: the GPU was not the wall", human(r.free), human(r.want)))
	said := fmt.Sprintf("the GPU had %s free when %s was refused", human(r.free), human(r.want))
	if !hasUse || t == 0 {
		return // see what is certain
	}
	// A limit that nobody told is a round part of the GPU, mostly: what is taken is below
	// it, and with the request above. That is no coincidence where the request is small.
	high := float64(reserved+roundUp(r.wantHigh)+r.round) / float64(t)
	low := float64(less(reserved, r.round)) / float64(t)
	part := math.Ceil(low*20) / 20
	if high-low < .006 && part > low && part <= high && part < 1 {
		j.show(PoolLimit, "just below a round part of the GPU", cureCap(e, r, uint64(part*float64(t))),
			r.st.quoted(fmt.Sprintf("%s is free, and %s was refused: the pool has %s, and with the request it would pass %.0f %% of %s, a limit as programs set it", human(r.free), human(r.want), human(reserved), 100*part, human(t)))).
			with(said)
		return
	}
	if _, ok := e.torchFraction(); ok {
		return
	}
	j.maybe(PoolLimit, "refused while enough is free", cureCap(e, r, 0), decideFree, need(needFraction), q).with(said)
	j.maybe(ExternalQuota, "refused while enough is free", cureQuota(e, 0), decideFree, nil, q)
}

// rest is for a message that does not say who holds the rest of the GPU.
func (j *judge) rest(r *refusal, t, rest, reserved uint64, async bool, lacking uint64, others []holder, listed bool, held uint64, hint []string) {
	e := j.evidence
	q := r.st.quoted(fmt.Sprintf("%s of %s is in use, and this program's pool reserved %s of it", human(less(t, r.free)), human(t), human(reserved)))
	if async {
		q.Reading = fmt.Sprintf("%s of %s is in use, and the program's tensors are %s of it: others, or what the driver's pool keeps", human(less(t, r.free)), human(t), human(r.alloc))
	}
	keeps := func(sure bool) {
		k := r.st.quoted(fmt.Sprintf("%s of the GPU is neither free nor in a tensor", human(rest)))
		if sure {
			j.show(Fragmentation, "what the driver's pool keeps", cureAsyncKeeps, k)
		} else {
			j.maybe(Fragmentation, "what the driver's pool keeps", cureAsyncKeeps, decideSmi, need(needProcesses), k)
		}
	}
	switch {
	case listed && held >= lacking && held >= rest/2:
		j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(others), q)...)
	case listed && async:
		keeps(true)
	case listed && len(others) == 0:
		j.show(OtherAllocator, "alone on the GPU", cureOtherAllocator(e), q).with(hint...)
	case async:
		j.maybe(DeviceOccupied, "the rest of the GPU", cureOccupied(e), decideSmi, need(needProcesses), q)
		keeps(false)
	default:
		// The message does not say whether it is another program's or another allocator's.
		j.maybe(DeviceOccupied, "the rest of the GPU", cureOccupied(e), decideSmi, need(needProcesses), q).with(hint...)
		j.maybe(OtherAllocator, "the rest of the GPU", cureOtherAllocator(e), decideSmi, need(needProcesses), q)
	}
}

// poolAlone is for a message that tells of a pool, and not of the GPU.
func (j *judge) poolAlone(r *refusal, reserved uint64) {
	e := j.evidence
	others, listed := e.others()
	t := e.total()
	reading := fmt.Sprintf("%s was refused", human(r.want))
	if reserved > 0 {
		reading = fmt.Sprintf("%s in the pool already, %s more refused", human(reserved), human(r.want))
	}
	q := r.st.quoted(reading)
	switch sum := heldBy(others); {
	case t.bytes > 0 && (reserved > t.bytes*3/4 || reserved+r.want > t.bytes):
		j.show(ProgramTooBig, "the pool holds most of the GPU", cureTooBig(e), q, t.from)
	case listed && t.bytes > 0 && sum > t.bytes/4:
		j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(others), q)...)
	case listed && len(others) == 0:
		j.maybe(ProgramTooBig, "nobody else on the machine", cureTooBig(e), decideSmi, need(needTotal), q)
	default:
		j.maybe(ProgramTooBig, "a pool that the GPU refuses", cureTooBig(e), decideSmi, need(needTotal, needProcesses), q)
		j.maybe(DeviceOccupied, "a pool that the GPU refuses", cureOccupied(e), decideSmi, need(needProcesses), q)
	}
}

// torchFraction is the cap on PyTorch's memory in the state or the settings.
func (e *evidence) torchFraction() (float64, bool) {
	if e.state != nil && e.state.Process != nil && e.state.Process.Fraction != nil {
		return *e.state.Process.Fraction, true
	}
	// As the release reads its settings: the last of a key counts, and blanks do not.
	text := "pytorch"
	if v := e.version("torch"); v != "" {
		text += "@" + v
	}
	release, err := frameworks.ParseRelease(text)
	if err != nil {
		return 0, false
	}
	framework, version, err := release.Find()
	if err != nil {
		return 0, false
	}
	env := policy.Environ(envLines(e.env))
	if own, ok := env.Lookup("PYTORCH_HIP_ALLOC_CONF"); ok && e.uses("hip") {
		env = env.With(torchConf, own) // package policy reads for CUDA, with the same grammar
	}
	r, refused := framework.Read(env, version)
	f := r.Policy.Fraction
	return f, refused == nil && f > 0 && f < 1
}

// hintIsWrong is what to say of PyTorch's advice where the numbers refute it.
func (e *evidence) hintIsWrong(r *refusal) []string {
	if idle := r.unallocated(); (r.hasIdle || r.kept > 0) && idle < r.want/2 && (r.st.words["fragmentation"] || r.st.words["expandable"]) {
		return []string{fmt.Sprintf("PyTorch's hint at fragmentation is printed whatever the cause; %s is reserved and unused, too little for %s", human(idle), human(r.want))}
	}
	return nil
}
