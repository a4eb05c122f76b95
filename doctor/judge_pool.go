package doctor

// The pool of XLA and TensorFlow, the driver below it, and the libraries beside it.

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strings"
)

// contexts is for programs that could not even make a context.
func (j *judge) contexts() {
	e := j.evidence
	r := e.contextRefused()
	if r == nil {
		return
	}
	q := []Evidence{r.st.quoted("not even a context could be made: the GPU was full before this program took any")}
	if m := e.pick("smi memory", func(m *fact) bool { return m.total > 0 && less(m.total, m.inUse) < max(gib, m.total/50) }); m != nil {
		j.show(DeviceOccupied, "no context: the GPU is full", cureOccupied(e), append(q, m.quoted(fmt.Sprintf("%s of %s is in use", human(m.inUse), human(m.total))))...)
		return
	}
	seen := map[int]bool{}
	for _, c := range e.failed {
		d := e.state.Device(c.device)
		if c.layer != layerContext || d == nil || seen[d.Index] {
			continue
		}
		seen[d.Index] = true
		for _, p := range d.Programs {
			if e.state.Process != nil && e.state.Process.PID == p.PID && p.PID > 0 {
				continue
			}
			q = append(q, readings([]holder{holderOf(p, Evidence{Text: fmt.Sprintf("devices[%d].processes: pid %d %s", d.Index, p.PID, p.Name)})})...)
		}
	}
	others, told := e.others()
	if len(q) == 1 && told {
		q = append(q, readings(others)...)
	}
	switch d := e.gpu(); {
	case len(q) > 1:
		j.show(DeviceOccupied, "no context: the GPU is full", cureOccupied(e), q...).with("not even a context could be made on the GPU")
	case r.strange() > 0:
	case d != nil && d.Total > 0 && d.InUse() > d.Total*3/4:
		j.show(DeviceOccupied, "no context: the GPU is full", cureOccupied(e), append(q, Evidence{Text: fmt.Sprintf("devices.used_bytes: %d", d.InUse()), Reading: fmt.Sprintf("%s of %s is in use, and no process is listed", human(d.InUse()), human(d.Total))})...)
	case !told:
		j.maybe(DeviceOccupied, "no context", cureOccupied(e), decideSmi, need(needProcesses), q...).with("not even a context could be made on the GPU: it was full before this program took any")
		j.maybe(MultiProcess, "no context: another that preallocates", cureMulti(e), decideSmi, need(needProcesses), r.st.quoted("the GPU was full before this program took any"))
	}
}

// wholePool reports whether a refused request has the size of a pool: three quarters or
// nine tenths of the GPU, or, if that is not known, a GiB or more and the only one.
func (e *evidence) wholePool(r *refusal, n int) bool {
	if t := e.total(); t.bytes > 0 {
		part := float64(r.want) / float64(t.bytes)
		return math.Abs(part-.75) < .015 || math.Abs(part-.9) < .015
	}
	return n == 1 && r.want >= gib
}

// poolReading is what a request that the driver refused shows.
func (e *evidence) poolReading(r *refusal, n int) string {
	if e.wholePool(r, n) {
		if t := e.total(); t.bytes > 0 {
			return fmt.Sprintf("the driver did not have %s: %d %% of %s, a whole pool", human(r.want), percent(r.want, t.bytes), human(t.bytes))
		}
	}
	return "the driver did not have " + human(r.want)
}

// driver is for requests that the driver refused, by a pool that starts or grows, or past
// every pool.
func (j *judge) driver() {
	e := j.evidence
	// TensorFlow, and others, say at their start what is free.
	if st, free, total := e.startReading(); st != nil && free < total/4 && (e.fatal() || e.handle() != nil) {
		j.show(DeviceOccupied, "free memory at the start", cureOccupied(e), st.quoted(fmt.Sprintf("%s of %s was free before the program took any", human(free), human(total))))
		return
	}
	j.smallDevice()
	if j.sure() {
		return
	}
	var first *refusal
	n := 0
	for _, r := range e.failed {
		if r.layer == layerDriver && r.want > 0 && !r.mild && !e.torchLike(r) && !e.uses("llama.cpp") {
			if first == nil {
				first = r
			}
			n++
		}
	}
	if first == nil {
		return
	}
	past := first.st.words["ordinal"] || first.st.words["request"] // past every pool
	region := !past
	if region && e.about("collection") != nil {
		j.collected(first)
		return
	}
	later := e.last(func(r *refusal) bool { return !r.mild && r.layer == layerPool && r.st.line > first.st.line }) != nil
	q := first.st.quoted(e.poolReading(first, n))
	t := e.total()
	others, told := e.others()
	if region && e.wholePool(first, n) || e.madeAgain() {
		if both := e.jaxAndTF(); both != nil && !e.madeAgain() {
			j.show(JAXAndTensorFlow, "a whole pool beside TensorFlow", cureJAXAndTF(e), append(both, q)...)
			return
		}
	}
	if j.secondPool(q) {
		return
	}
	for _, o := range others {
		if yes, why := o.isJAX(t.bytes); yes {
			o.from.Reading = why
			j.show(MultiProcess, "another JAX on the GPU", cureMulti(e), q, o.from)
			return
		}
	}
	if first.want > largestThen(first) && !e.unified() {
		j.show(ProgramTooBig, "a request above any GPU", cureTooBig(e), first.st.quoted(human(first.want)+" in one piece is more than any GPU has, or had when this was printed"))
		return
	}
	if past && t.bytes > 0 && first.want > t.bytes {
		j.show(ProgramTooBig, "a request above the total", cureTooBig(e), first.st.quoted(human(first.want)+" in one piece"), t.from)
		return
	}
	var big []holder
	for _, o := range others {
		if !o.isDesktop() && o.Used > max(t.bytes/10, firstLibrary) {
			big = append(big, o)
		}
	}
	if len(big) > 0 && (t.bytes == 0 || heldBy(big) > t.bytes/4 || first.want > less(t.bytes, heldBy(big))) {
		j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(big), q)...)
		return
	}
	small := first.want <= gib
	switch {
	case told && past && small && heldBy(others) < firstLibrary:
		j.show(PreallocStarves, "a small request past the pool", cureStarved(e, nil, heldBy(others)), first.st.quoted(human(first.want)+" asked of the driver, past the pool, which is alone on the GPU"))
	case told:
	case region && (!e.wholePool(first, n) || later):
		j.collected(first)
	case region:
		if !first.st.words["unified"] {
			j.maybe(SecondPool, "a whole pool is refused", cureSecondPool, decideSmi, need(needRecreated, needProcesses, needTotal), first.st.quoted("the size of a whole pool"))
			j.maybe(MultiProcess, "a whole pool is refused", cureMulti(e), decideSmi, need(needProcesses, needTotal), q)
			j.maybe(DeviceOccupied, "a whole pool is refused", cureOccupied(e), decideSmi, need(needProcesses, needTotal), q)
		}
	case small:
		j.maybe(MultiProcess, "a small request past the pool", cureMulti(e), decideSmi, nil, q)
		j.maybe(DeviceOccupied, "a small request past the pool", cureOccupied(e), decideSmi, nil, q)
		j.maybe(PreallocStarves, "a small request past the pool", cureStarved(e, nil, 0), decidePrealloc, nil, first.st.quoted(human(first.want)+" asked of the driver, past the pool: the pool left less than that, or another process did"))
	default:
		j.maybe(ProgramTooBig, "a request past the pool", cureTooBig(e), decideSmi, need(needTotal, needProcesses), q)
		j.maybe(DeviceOccupied, "a request past the pool", cureOccupied(e), decideSmi, need(needProcesses, needTotal), q)
	}
}

// largestThen is the largest GPU there was when a message was printed: XLA wrote
// "Resource exhausted" in small letters up to 2022, when an A100 had 80 GB.
func largestThen(r *refusal) uint64 {
	if strings.Contains(r.st.text, "Resource exhausted:") {
		return 80 * gib
	}
	return largestGPU
}

// secondPool reports whether the program made its backend again.
func (j *judge) secondPool(at Evidence) bool {
	e := j.evidence
	var q []Evidence
	if e.state != nil && e.state.Process != nil && e.state.Process.BackendRecreated != nil {
		if !*e.state.Process.BackendRecreated {
			return false
		}
		q = append(q, Evidence{Text: "process.backend_recreated: true", Reading: "the backend was made a second time in the same process"})
	}
	if c := e.about("cleared"); c != nil {
		q = append(q, c.quoted("the program cleared its backends"))
	}
	if len(q) == 0 {
		return false
	}
	var pools []*statement
	for _, st := range e.statements.all() {
		if st.topic("announced") != nil {
			pools = append(pools, st)
		}
	}
	if len(pools) > 1 {
		q = append(q, pools[0].quoted("the first pool"), pools[len(pools)-1].quoted("the same again"))
	}
	j.show(SecondPool, "a second pool", cureSecondPool, append(q, at)...)
	return true
}

// startReading is what a program said of the GPU before it took any of it.
func (e *evidence) startReading() (*statement, uint64, uint64) {
	var free, total *statement
	for _, st := range e.statements.all() {
		if st.report || st.words["chunks"] {
			continue
		}
		if len(e.failed) > 0 && st.line > e.failed[0].st.line || st.refused || st.library != "" {
			break
		}
		if !st.words["memory"] || st.hasAny("usage", "kv", "pool", "nvshare", "available", "cache") || st.topic("nvshare") != nil {
			continue
		}
		if st.amount(roleFree) != nil && !st.amount(roleFree).host {
			free = st
		}
		if st.amount(roleTotal) != nil && !st.amount(roleTotal).host {
			total = st
		}
	}
	if free == nil || total == nil || total.line+10 < free.line || free.line+10 < total.line {
		return nil, 0, 0
	}
	return free, free.amount(roleFree).n, total.amount(roleTotal).n
}

// smallDevice is for TensorFlow's device with a part of the GPU only.
func (j *judge) smallDevice() {
	e := j.evidence
	if !e.fatal() && e.handle() == nil {
		return
	}
	for _, d := range e.facts("tf device") {
		least, _, ok := cardTotals(d.name)
		if t := e.gpu(); !ok && t != nil && t.Total > 0 {
			least, ok = t.Total, true
		}
		if d.limit == 0 || !ok || d.limit > least/2 {
			continue
		}
		q := d.quoted(fmt.Sprintf("TensorFlow takes what is free: it got %s, and this GPU has %s", human(d.limit), human(least)))
		others, told := e.others()
		if told && heldBy(others) > least/4 {
			j.show(DeviceOccupied, "TensorFlow got a part of the GPU only", cureOccupied(e), append(readings(others), q)...)
		} else {
			j.maybe(DeviceOccupied, "TensorFlow got a part of the GPU only", cureOccupied(e), decideSmi, need(needProcesses), q)
		}
		return
	}
}

// collected is for TensorFlow's pool that gives regions back and is refused all the same.
func (j *judge) collected(r *refusal) {
	e := j.evidence
	g := e.about("collection")
	if g == nil {
		return
	}
	q := []Evidence{g.quoted("the pool has free regions, each too small, and gives them back to ask for a larger one")}
	if r != nil {
		q = append(q, r.st.quoted("the driver did not have "+human(r.want)))
	}
	j.show(Fragmentation, "regions given back", cureFragmented(e), q...)
}

// poolReport is for a refusal with a report of the pool.
func (j *judge) poolReport() {
	e := j.evidence
	p := e.pool()
	if p == nil || e.subject() != nil && p.limit.bytes == 0 {
		return
	}
	if e.about("collection") != nil && e.fatal() {
		j.collected(nil)
		return
	}
	t := e.total()
	q := []Evidence{}
	if p.refused != nil {
		q = append(q, p.refused.st.quoted(human(p.want)+" requested"))
	}
	if p.refused == nil || p.want == 0 {
		// Only a piece of a report. What was in use on the machine may say the rest.
		return
	}
	if bytes := tensorBytes(p.refused.st.text); bytes > 0 {
		j.tensor(p.refused, bytes)
	}
	fits := t.bytes == 0 || e.unified()
	switch {
	case p.want > largestThen(p.refused) && !e.unified():
		j.show(ProgramTooBig, "a request above any GPU", cureTooBig(e), p.refused.st.quoted(human(p.want)+" in one piece is more than any GPU has"))
		return
	case !fits && p.want > less(t.bytes, contextMost/4):
		j.show(ProgramTooBig, "a request above the total", cureTooBig(e), append(q, t.from)...)
		return
	}
	if p.inUse.bytes > 0 && (p.limit.bytes > 0 || p.size.bytes > 0) {
		size := p.size.bytes
		if size == 0 {
			size = p.limit.bytes
		}
		free := less(size, p.inUse.bytes)
		grow := p.limit.bytes > size && p.limit.bytes-size >= p.want && p.largest.bytes == 0
		needed := p.inUse.bytes + p.want
		switch {
		case free >= p.want && p.largest.bytes < p.want && !grow:
			all := append(q, p.inUse.from)
			if p.size.bytes > 0 {
				all = append(all, p.size.from)
			} else {
				all = append(all, p.limit.from)
			}
			if p.largest.bytes > 0 {
				all = append(all, p.largest.from)
			}
			sum := fmt.Sprintf("%s of the pool's %s is free, which is more than the %s requested, so no free block is large enough", human(free), human(size), human(p.want))
			if p.size.bytes == 0 && e.grows() {
				j.maybe(Fragmentation, "free blocks of the pool", cureFragmented(e), decideState, need(needProcesses), all...).with(sum)
			} else {
				j.show(Fragmentation, "free blocks of the pool", cureFragmented(e), all...).with(sum)
			}
			return
		case p.limit.bytes > 0 && needed > p.limit.bytes:
			all := append(q, p.limit.from, p.inUse.from)
			full := fmt.Sprintf("the pool is full: %s of its limit of %s is in use, and %s more was requested", human(p.inUse.bytes), human(p.limit.bytes), human(p.want))
			switch {
			case t.bytes == 0:
				j.maybe(PoolLimit, "the pool is at its limit", cureLimit(e, needed), decideState, need(needTotal), all...).with(full)
				j.maybe(ProgramTooBig, "the pool is at its limit", cureTooBig(e), decideState, need(needTotal), all...)
			case !e.unified() && needed > less(t.bytes, contextMost/2):
				all[0].Reading = fmt.Sprintf("%s in use and %s requested are more than the GPU's %s, whatever the pool's limit", human(p.inUse.bytes), human(p.want), human(t.bytes))
				j.show(ProgramTooBig, "more than the GPU has", cureTooBig(e), append(all, t.from)...)
			default:
				j.show(PoolLimit, "the pool is at its limit", cureLimit(e, needed), append(all, t.from)...).
					with(fmt.Sprintf("%s of the GPU lies outside of the pool", human(less(t.bytes, p.limit.bytes))))
			}
			return
		case p.size.bytes > 0 && p.limit.bytes >= p.size.bytes+p.want:
			all := append(q, p.size.from, p.limit.from)
			if others, told := e.others(); told && heldBy(others) > firstLibrary {
				j.show(DeviceOccupied, "a pool that could not grow", cureOccupied(e), append(all, readings(others)...)...)
			} else {
				j.maybe(DeviceOccupied, "a pool that could not grow", cureOccupied(e), decideSmi, need(needProcesses), all...).
					with(fmt.Sprintf("the pool has %s of its limit of %s, and the driver gave it no more: others, or what is outside of the pool, have the rest", human(p.size.bytes), human(p.limit.bytes)))
			}
			return
		}
	}
	if w := e.last(func(w *refusal) bool { return w.mild && w.want > 32*p.want }); w != nil && p.want <= 256*mib && p.limit.bytes == 0 && e.statementWith("memory", "fragmentation") != nil && (e.onTensorFlow() || !e.uses("jax")) {
		if _, st := e.assigned(); st == nil && e.about("remat") == nil {
			j.show(Fragmentation, "a small request of a busy pool", cureFragmented(e), p.refused.st.quoted("only "+human(p.want)+" was requested, and refused"), w.st.quoted(fmt.Sprintf("the same pool is asked for %s, %d times as much: it is a large pool, full of pieces", human(w.want), w.want/max(p.want, 1))))
			return
		}
	}
	if r, f := p.refused, 0.0; t.bytes > 0 && e.uses("jax") {
		if _, st := e.assigned(); st != nil {
			return // see the program's buffers
		}
		f, _ = e.fraction()
		if e.unified() {
			f *= .8 // beside what is there already
		}
		if float64(p.want) > f*float64(t.bytes) {
			j.show(PoolLimit, "a request above the pool", cureLimit(e, p.want), r.st.quoted(fmt.Sprintf("%s in one piece is more than the pool's %v of %s", human(p.want), f, human(t.bytes))), t.from)
		}
	}
}

// tensor compares a tensor that was refused with TensorFlow's device.
func (j *judge) tensor(r *refusal, bytes uint64) {
	e := j.evidence
	for _, d := range e.facts("tf device") {
		if d.limit > 0 && bytes > d.limit {
			j.show(ProgramTooBig, "a tensor above TensorFlow's device", cureTooBig(e), r.st.quoted("this tensor alone is "+human(bytes)), d.quoted("TensorFlow's device got "+human(d.limit)))
			return
		}
	}
	if t := e.total(); t.bytes > 0 && bytes > t.bytes || bytes > largestGPU {
		j.show(ProgramTooBig, "a tensor above the GPU", cureTooBig(e), r.st.quoted("this tensor alone is "+human(bytes)+", more than the GPU has"))
	}
}

// compiled is for what the compiler said of a program's buffers.
func (j *judge) compiled() {
	e := j.evidence
	for _, r := range e.failed {
		if bytes := tensorBytes(r.st.text); bytes > 0 && !r.mild && r.want == 0 {
			j.tensor(r, bytes)
		}
	}
	if st := e.about("tpu"); st != nil && st.refused {
		if r := e.last(func(r *refusal) bool { return r.st == st }); r != nil && r.alloc > r.total && r.total > 0 {
			j.show(ProgramTooBig, "a TPU's memory", cureTooBig(e), st.quoted(fmt.Sprintf("the program needs %s, and the device has %s; it is a TPU, and none of a GPU's settings apply", human(r.alloc), human(r.total))))
		}
	}
	p := e.pool()
	if st := e.about("remat"); st != nil {
		j.remat(st, p)
		return
	}
	if f := e.pick("arguments", nil); f != nil && e.fatal() && f.want > f.limit && !j.sure() {
		j.show(ProgramTooBig, "the program's arguments", cureTooBig(e), f.quoted(fmt.Sprintf("the arguments and results alone are %s, and the limit is %s", human(f.want), human(f.limit))))
	}
	total, st := e.assigned()
	if st == nil {
		if sum, part := e.parts(); part != nil && sum > 0 {
			total, st = sum, part
		} else {
			j.announced(p)
			return
		}
	}
	if j.sure() || p != nil && p.limit.bytes > 0 && p.inUse.bytes > 0 {
		return
	}
	t := e.total()
	q := st.quoted("the program needs " + human(total) + " for its buffers alone")
	fraction, set := e.fraction()
	limit := uint64(fraction * float64(t.bytes))
	switch {
	case total > largestGPU:
		j.show(ProgramTooBig, "the program's buffers above any GPU", cureTooBig(e), st.quoted(human(total)+" is more than any GPU has"))
	case t.bytes > 0 && total > less(t.bytes, contextMost/2):
		j.show(ProgramTooBig, "the program's buffers above the GPU", cureTooBig(e), q, t.from)
	case t.bytes > 0 && total > limit:
		why := "by default"
		if set {
			why = "by its setting"
		}
		all := []Evidence{st.quoted(fmt.Sprintf("the program needs %s; its pool may take %v of %s %s, which is %s", human(total), fraction, human(t.bytes), why, human(limit)))}
		if p != nil && p.refused != nil {
			all = append(all, p.refused.st.quoted(human(p.want)+" of them in one piece"))
		}
		j.show(PoolLimit, "the program's buffers above the pool", cureLimit(e, total), append(all, t.from)...)
	case t.bytes > 0 && e.ownUsed() > 0 && total+contextMost/6 > e.ownUsed():
		own := e.ownUsed()
		j.show(PoolLimit, "the program's buffers above its pool", cureLimit(e, total), q, Evidence{Text: fmt.Sprintf("devices.processes: %d bytes of its own", own), Reading: "the program's pool and context have " + human(own) + ", and the GPU " + human(t.bytes)})
	case total < smallProgram || t.bytes > 0 && total < t.bytes/8:
		// The program is small: what fills the GPU is something else.
		if d := e.gpu(); d != nil && d.Used != nil && d.InUse() < d.Total/2 {
			return // and it was not there a moment ago: nothing fits
		}
		if b := e.beside; b != nil && b.Live > 4*total {
			j.show(Leak, "a small program, and much that is live", cureLeak(e), st.quoted("the program needs "+human(total)+" only, and "+human(b.Live)+" was live when "+b.Source+" was taken"))
			return
		} else if b != nil && b.Live > 0 {
			j.show(DeviceOccupied, "a small program, and little that is live", cureOccupied(e), st.quoted("the program needs "+human(total)+", and no more than "+human(b.Live)+" was live in it: others hold the GPU"))
			return
		}
		j.maybe(Leak, "a small program that does not fit", cureLeak(e), decideLive, need(needProcesses), st.quoted("the program needs "+human(total)+" only: what fills the GPU is held elsewhere, by this process from before or by another"))
		j.maybe(DeviceOccupied, "a small program that does not fit", cureOccupied(e), decideSmi, need(needProcesses), q)
	case t.bytes == 0:
		j.maybe(PoolLimit, "the program's buffers", cureLimit(e, total), decideState, need(needTotal, needEnv), q).
			with("the program's buffers take " + human(total) + " together, by the compiler's own count")
		j.maybe(ProgramTooBig, "the program's buffers", cureTooBig(e), decideState, need(needTotal), q)
	}
}

const decideLive = "python -c 'import jax; print(sum(x.nbytes for x in jax.live_arrays()))'    # in the program, before it fails: much is held by itself; little: by another process"

// announced is for a refusal of which only the size is known, with that of a pool.
func (j *judge) announced(p *poolState) {
	e := j.evidence
	if f := e.pick("chunks", nil); f != nil && !j.sure() {
		d := e.gpu()
		if d == nil || d.Total == 0 || d.InUse() == 0 {
			return
		}
		part := float64(d.InUse()) / float64(d.Total)
		if fraction, _ := e.fraction(); math.Abs(part-fraction) < .02 {
			j.show(PoolLimit, "the GPU is used up to the pool's part", cureLimit(e, d.InUse()+d.InUse()/10), f.quoted("a pool's report, which is printed when it refused a request"),
				Evidence{Text: fmt.Sprintf("devices.used_bytes: %d", d.InUse()), Reading: fmt.Sprintf("%s of %s is in use: %d %%, the pool's part, and the rest of the GPU is free", human(d.InUse()), human(d.Total), percent(d.InUse(), d.Total))})
		}
		return
	}
	if p == nil || p.refused == nil || j.sure() {
		return
	}
	if st := e.about("announced"); st != nil {
		if n := sizeOf(st.topic("announced").name); n > 0 && p.want > n {
			t := e.total()
			q := []Evidence{st.quoted("the pool may have " + human(n)), p.refused.st.quoted(human(p.want) + " in one piece is more")}
			switch {
			case t.bytes > 0 && p.want > t.bytes:
				j.show(ProgramTooBig, "a request above the total", cureTooBig(e), append(q, t.from)...)
			case t.bytes > 0:
				j.show(PoolLimit, "a request above the pool", cureLimit(e, p.want), append(q, t.from)...)
			default:
				j.maybe(PoolLimit, "a request above the pool", cureLimit(e, p.want), decideState, need(needTotal), q...)
				j.maybe(ProgramTooBig, "a request above the pool", cureTooBig(e), decideState, need(needTotal), q[1])
			}
		}
	}
}

// twoPools is for programs that each announce a pool on one GPU.
func (j *judge) twoPools() {
	e := j.evidence
	if !e.fatal() && e.handle() == nil {
		return
	}
	var list []*statement
	for _, st := range e.statements.all() {
		if t := st.topic("announced"); t != nil {
			for _, other := range list {
				if o := other.topic("announced"); o.value == t.value && other.from != st.from && e.total().bytes < sizeOf(o.name)+sizeOf(t.name) {
					j.show(MultiProcess, "two pools on one GPU", cureMulti(e), other.quoted("one process takes "+human(sizeOf(o.name))), st.quoted("and another on the same GPU "+human(sizeOf(t.name))))
					return
				}
			}
			list = append(list, st)
		}
	}
}

// remat is for XLA's pass that recomputes.
func (j *judge) remat(st *statement, p *poolState) {
	e := j.evidence
	limit, to, from := sizeAfter(st.text, rematLimit), sizeAfter(st.text, rematTo), sizeAfter(st.text, rematFrom)
	if to == 0 {
		to = from
	}
	saved := less(from, to)
	if p != nil && p.refused != nil && (p.want > limit || saved <= from/100) {
		reading := fmt.Sprintf("recomputing brings %s to %s, and the limit is %s", human(from), human(to), human(limit))
		if saved == 0 {
			reading = fmt.Sprintf("recomputing saves nothing of %s, and the limit is %s", human(to), human(limit))
		}
		j.show(ProgramTooBig, "a buffer above the compiler's limit", cureTooBig(e), st.quoted(reading), p.refused.st.quoted("one buffer of "+human(p.want)+" is refused"))
		return
	}
	reading := fmt.Sprintf("the pass saves %s of %s (%d %%); to reach the limit of %s it would have to save %s", human(saved), human(from), percent(saved, from), human(limit), human(less(from, limit)))
	if from == 0 {
		reading = "the pass does not reach the limit of " + human(limit)
	}
	q := []Evidence{st.quoted(reading)}
	if p != nil && p.refused != nil {
		q = append(q, p.refused.st.quoted("and then "+human(p.want)+" is refused"))
	}
	j.show(RematShort, "recomputing does not save enough", cureRemat, q...)
}

// What XLA's pass says of a program: the limit, what it reached, and from where.
var (
	rematLimit = regexp.MustCompile(`(?i)\b(?:below|under|above|beyond|limit of)\s+([\d.]+ ?\w+)(?: \((\d+) bytes\))?`)
	rematTo    = regexp.MustCompile(`(?i)\bto ([\d.]+ ?\w+)(?: \((\d+) bytes\))?`)
	rematFrom  = regexp.MustCompile(`(?i)\bfrom ([\d.]+ ?\w+)(?: \((\d+) bytes\))?`)
)

// sizeAfter is the size that an expression finds, the exact one if there are two.
func sizeAfter(text string, re *regexp.Regexp) uint64 {
	m := re.FindStringSubmatch(clipped64(text))
	if m == nil {
		return 0
	}
	return cmp.Or(sizeOf(m[2]), sizeOf(m[1]))
}

// ownUsed is what the state says that the program that failed holds, 0 if unknown.
func (e *evidence) ownUsed() uint64 {
	list, _ := e.holders()
	if d := e.gpu(); d == nil || d.Programs == nil || len(list) != 1 || !slices.Contains(list[0].Frameworks, "jax") {
		return 0
	}
	return list[0].Used
}

// bare is for refusals of which nothing more is known.
func (j *judge) bare() {
	e := j.evidence
	if len(j.found) > 0 || e.handle() != nil {
		return
	}
	r := e.last(func(r *refusal) bool { return !r.mild && r.layer != layerHost && r.layer != layerContext })
	if r == nil {
		return
	}
	others, told := e.others()
	d := e.gpu()
	t := e.total().bytes
	q := r.st.quoted("memory was refused; how much was asked for is not told")
	if r.want > 0 {
		q.Reading = human(r.want) + " was refused"
	}
	switch {
	case told && t > 0 && heldBy(others) > t/2:
		j.show(DeviceOccupied, "others on the machine", cureOccupied(e), append(readings(others), q)...)
		return
	case told && len(others) == 0 && d != nil && d.Total > 0 && d.InUse() > d.Total*3/4:
		j.show(DeviceOccupied, "a full GPU that nobody is on", cureOccupied(e), q, Evidence{Text: fmt.Sprintf("devices.used_bytes: %d", d.InUse()), Reading: fmt.Sprintf("%s of %s is in use, and no process is listed: one that died and is not gone, or one outside of this container", human(d.InUse()), human(d.Total))})
		return
	}
	if e.uses("jax") && strings.Contains(r.st.text, "jaxlib/") && r.want == 0 {
		q.Reading = "the driver had no memory for a call of jaxlib, which does not come from the pool"
		if told {
			j.show(PreallocStarves, "jaxlib's own kernels", cureStarved(e, nil, 0), q)
		} else {
			j.maybe(PreallocStarves, "jaxlib's own kernels", cureStarved(e, nil, 0), decidePrealloc, need(needProcesses), q)
		}
		return
	}
	pool := r.layer == layerPool && r.want > 0 && !e.torchLike(r)
	warned := slices.ContainsFunc(e.statements.all(), func(st *statement) bool { return st.mild })
	first, _, n := e.ladder()
	switch {
	case n > 2 && first != nil, warned, r.hasFree, e.statementWith("dst", "tensor") != nil, r.st.words["unified"]:
		return // see what is certain
	case pool && e.uses("jax") || pool && r.st.words["exhausted"] || e.jaxOnly(r):
		// XLA's own sentence, which tells of nothing but the request.
		if e.grows() || e.state == nil || t == 0 {
			if e.grows() || strings.Contains(r.st.text, "Resource exhausted:") {
				j.maybe(Fragmentation, "a request that a growing pool refused", cureFragmented(e), decideReport, need(needPoolReport), r.st.quoted(q.Reading+"; a pool that grows has its free memory in pieces"))
			}
			j.maybe(ProgramTooBig, "a request and nothing more", cureTooBig(e), decideReport, need(needTotal, needPoolReport), q)
			j.maybe(PoolLimit, "a request and nothing more", cureLimit(e, r.want), decideReport, need(needTotal, needPoolReport), q)
			if r.want <= 4*gib {
				j.maybe(Leak, "a request and nothing more", cureLeak(e), decideLive, need(needPoolReport), q)
			}
		}
	case e.uses("llama.cpp") && r.want == 0:
		if e.uses("ollama") {
			j.maybe(Underestimate, "a refusal without its numbers", cureLlama(false), decideSmi, need(needTotal, needProcesses), q)
		}
		j.maybe(ProgramTooBig, "a refusal without its numbers", cureTooBig(e), decideSmi, need(needTotal, needProcesses), q)
		j.maybe(DeviceOccupied, "a refusal without its numbers", cureOccupied(e), decideSmi, need(needProcesses), q)
	case e.uses("cupy", "rmm", "torch", "vllm", "sglang", "xgboost", "numba", "julia", "onnxruntime", "paddle", "mxnet", "tensorrt", "hip", "xpu", "mps", "comfyui", "llama.cpp") || r.layer == layerDriver || r.want > 0 || r.st.words["gpu"] || r.st.words["cuda"]:
		j.maybe(ProgramTooBig, "a refusal without its numbers", cureTooBig(e), decideSmi, need(needTotal, needProcesses), q)
		j.maybe(DeviceOccupied, "a refusal without its numbers", cureOccupied(e), decideSmi, need(needProcesses), q)
	}
}

const decideReport = "TF_CPP_MIN_LOG_LEVEL=0 python PROGRAM 2>&1 | tee log; gpumem doctor log    # the pool then prints its report before the error"

// jaxOnly reports whether a refusal is by a call of jaxlib.
func (e *evidence) jaxOnly(r *refusal) bool {
	return e.uses("jax") && r.layer == layerDriver && r.want == 0
}
