package category

// What a block is, by the passes at its birth and its death.

import (
	"slices"
	"sort"
)

// A judge knows a run and its passes.
type judge struct {
	*span
	phases
	of      map[role][]*phase // the phases by role
	roles   []role            // of sites
	facts   []fact            // of sites
	blind   bool              // no stack says anything: the passes are known by lifetimes
	start   uint64            // the first event of a forward or backward pass
	trains  bool              // some pass is backward
	sizes   map[uint64]int    // of what is made early and never freed: how many blocks
	laid    map[uint64]int    // of those, how many are made before the first pass
	olds    map[uint64]int    // of those, how many are older than the recording
	turn    map[*block]int    // of those, how many of its size come before each, and itself
	grows   map[*block]bool   // what is replaced by something a little larger
	carried map[uint64]int    // sizes of what a call of the model leaves for later ones
	grads   map[uint64]int    // sizes of gradients of one pass: how many blocks at most
	// forgotten are the backward passes whose gradients are freed before anything else is made.
	forgotten map[*phase]bool
	// workspaces are those of cuBLAS that its size and place show; true is one that is sure.
	workspaces map[*block]bool
	// repeats are the sites that keep something step after step.
	repeats map[uint32]bool
	alike   map[uint64]int // sizes of what the program's own code makes and keeps: how many blocks
}

// newJudge returns a judge that knows the passes of a run.
func newJudge(s *span, site func(uint32) string) *judge {
	j := &judge{span: s, sizes: s.kept()}
	j.read(site)
	j.countGradients()
	j.findCaches()
	j.findWorkspaces()
	j.findRepeats()
	j.alike = map[uint64]int{}
	for i := range j.blocks {
		if b := &j.blocks[i]; j.isOwnData(b) {
			j.alike[b.bytes]++
		}
	}
	return j
}

// labels returns what each block is for. known tells whether the format is that of a
// framework whose programs are known to have these passes.
func (j *judge) labels(known bool) []label {
	labels := make([]label, len(j.blocks))
	if len(j.phases) == 0 && !(known && j.churns()) {
		for i := range labels {
			labels[i].Category = Unknown
		}
		return labels
	}
	for i := range j.blocks {
		labels[i] = j.label(&j.blocks[i])
		if j.blind { // lifetimes alone are alike too often
			labels[i].sure = false
		}
	}
	return labels
}

// read finds what all sites say, and the passes.
func (j *judge) read(site func(uint32) string) {
	var most uint32
	for i := range j.blocks {
		most = max(most, j.blocks[i].site)
	}
	j.roles, j.facts = make([]role, most+1), make([]fact, most+1)
	for i := uint32(1); i <= most; i++ {
		stack := site(i)
		j.roles[i], j.facts[i] = roleOf(stack), factsOf(stack)
	}
	if j.hearsOfMost() {
		for i := range j.facts {
			if !j.facts[i].said {
				j.roles[i] = backward // the engine's threads have no frames of Python
			}
		}
	}
	j.phases = passes(j.momentsOf(j.born))
	if len(j.phases) == 0 {
		j.blind = true
		j.phases = j.lifetimes()
	}
	j.of = j.byRole()
	j.start = never
	for _, r := range []role{forward, backward} {
		if p := j.firstOf(r); p != nil {
			j.start = min(j.start, p.first)
		}
	}
	j.trains = j.firstOf(backward) != nil
	if !j.blind {
		j.countKept()
	}
	j.laid, j.olds, j.turn = map[uint64]int{}, map[uint64]int{}, map[*block]int{}
	for i := range j.blocks {
		b := &j.blocks[i]
		if b.died == never && b.born < j.start {
			j.laid[b.bytes]++
		}
		if b.died == never && b.seed {
			j.olds[b.bytes]++
			j.turn[b] = j.olds[b.bytes]
		}
	}
}

// countKept counts the sizes of what is made early and stays, now that the passes are known: what is
// there before the first of them, or is moved, is early in a recording of any length. What the engine
// makes is no parameter, a workspace of its own thread among it.
func (j *judge) countKept() {
	j.sizes = map[uint64]int{}
	for i := range j.blocks {
		b := &j.blocks[i]
		if j.isOfModel(b) {
			j.sizes[b.bytes]++
		}
	}
}

// isOfModel reports whether a block is one that countKept counts.
func (j *judge) isOfModel(b *block) bool {
	switch {
	case !b.seed && j.born(b) == backward:
		return false
	case j.born(b) == load: // a trainer may move its model away at the end
		return true
	}
	return j.stays(b) && (b.born < j.start || j.isEarly(b))
}

// born returns what the program did when a block was made.
func (j *judge) born(b *block) role {
	if j.blind {
		return j.during(b.born)
	}
	return j.roles[b.site]
}

// hearsOfMost reports whether stacks were recorded all along: a tenth of what is made from the first stack on
// has one. With frames of Python alone the engine's blocks, which are more than half in many a
// training, have none.
func (j *judge) hearsOfMost() bool {
	said, all := 0, 0
	for i := range j.blocks {
		switch b := &j.blocks[i]; {
		case b.seed:
		case j.facts[b.site].said:
			said++
			all++
		case said > 0:
			all++
		}
	}
	return 10*said > all
}

// after returns the first phase of a role that ends after an event, nil if there is none.
func (j *judge) after(r role, event uint64) *phase {
	list := j.of[r]
	i := sort.Search(len(list), func(i int) bool { return list[i].last > event })
	if i == len(list) {
		return nil
	}
	return list[i]
}

// before returns the last phase of a role that ends before an event, nil if there is none.
func (j *judge) before(r role, event uint64) *phase {
	list := j.of[r]
	i := sort.Search(len(list), func(i int) bool { return list[i].last >= event })
	if i == 0 {
		return nil
	}
	return list[i-1]
}

// during returns the role of the phase that an event is in.
func (j *judge) during(event uint64) role {
	if p := j.at(event); p != nil && event <= p.last {
		return p.role
	}
	return unsaid
}

// isGradient reports whether a block was made in a backward pass and outlived it, with the
// size of a parameter. What else is made there last is freed with the engine's own, after the
// last block is made. Where the model is older than a trace that does not list it, no size is known.
func (j *judge) isGradient(b *block) bool {
	if b.seed || j.born(b) != backward {
		return false
	}
	p := j.at(b.born)
	if p == nil || p.role != backward || b.died <= p.last {
		return false
	}
	return j.sizes[b.bytes] > 0 || j.unlisted && b.died > j.end(p)
}

// countGradients counts the gradients of a pass, by size, and of each pass those that are
// freed at its end.
func (j *judge) countGradients() {
	j.grads, j.forgotten = map[uint64]int{}, map[*phase]bool{}
	one := map[uint64]int{}
	var of *phase
	all, early := 0, 0
	end := func() {
		if of != nil {
			j.forgotten[of] = 2*early > all
		}
		clear(one)
		all, early = 0, 0
	}
	for i := range j.blocks {
		b := &j.blocks[i]
		if !j.isGradient(b) {
			continue
		}
		if p := j.at(b.born); p != of {
			end()
			of = p
		}
		one[b.bytes]++
		j.grads[b.bytes] = max(j.grads[b.bytes], one[b.bytes])
		all++
		if b.died <= j.end(of) {
			early++
		}
	}
	end()
}

// leastCaches is how many blocks a cache of keys and values has at least: those of two layers.
const leastCaches = 4

// findCaches finds what lives at the peak and is replaced by something a little larger, in a
// run without a backward pass. So does a cache grow by a token: the larger block is made,
// then the old one freed. What a model's call leaves for later ones is counted by size.
func (j *judge) findCaches() {
	j.grows, j.carried = map[*block]bool{}, map[uint64]int{}
	if j.trains {
		return
	}
	const after = 4 // allocations at most from the larger one to the free of the old one
	for i := range j.blocks {
		b := &j.blocks[i]
		if b.seed {
			continue
		}
		if b.lives(j.peak) && j.isCarried(b) {
			j.carried[b.bytes]++
		}
		if b.died == never {
			continue
		}
		k := sort.Search(len(j.blocks), func(i int) bool { return j.blocks[i].born >= b.died })
		for m := max(i+1, k-after); m < max(i+1, k); m++ {
			n := &j.blocks[m]
			if larger := n.bytes > b.bytes && n.bytes-b.bytes <= b.bytes/2; larger && (n.died == never || n.died-n.born >= (b.died-b.born)/2) {
				j.grows[b], j.grows[n] = true, true
				break
			}
		}
	}
	at := 0 // the peak
	for b := range j.grows {
		if b.lives(j.peak) {
			at++
		}
	}
	if at < leastCaches {
		clear(j.grows)
	}
}

// isCarried reports whether a block was made in a call of a model and outlives it. One of
// half the size of a parameter may be its copy in 16 bits, which autocast keeps to its end: it
// must outlive the next call, too.
func (j *judge) isCarried(b *block) bool {
	if j.blind || j.born(b) != forward {
		return false
	}
	end := j.end(j.at(b.born))
	if j.sizes[2*b.bytes] == 0 || b.died <= end {
		return b.died > end
	}
	next := j.after(forward, end)
	return next != nil && b.died > next.last
}

// label returns what a block is for.
func (j *judge) label(b *block) label {
	switch {
	case j.isWorkspace(b):
		return label{Workspace, j.workspaces[b]}
	case !b.seed && j.born(b) == load:
		return label{Parameters, j.outlivesPasses(b)}
	case j.born(b) == bucket && !b.seed:
		return label{Gradients, false}
	case b.seed || b.born < j.start && j.born(b) != update:
		return j.resident(b)
	}
	switch j.born(b) {
	case update:
		return j.updating(b)
	case backward:
		return j.goingBack(b)
	case again:
		return label{Activations, false}
	case gather:
		return label{Parameters, false}
	case bucket:
		return label{Gradients, false}
	case copied:
		return label{Parameters, false}
	}
	return j.passing(b)
}

// outlivesPasses reports whether a block lives to the end, or is freed when all passes are over: a
// program whose training is a function frees what it has as it returns.
func (j *judge) outlivesPasses(b *block) bool {
	n := len(j.phases)
	return b.died == never || n > 0 && b.died > j.phases[n-1].last
}

// older labels what is older than the recording and stays. The update that made the
// optimizer's state was not recorded then, and state has the sizes of parameters, once or
// more often. The model was made first, and lies first.
func (j *judge) older(b *block) label {
	grads := j.grads[b.bytes]
	switch {
	case grads > 0 && j.olds[b.bytes] <= grads:
		return label{Parameters, true}
	case grads > 0 && j.turn[b] <= grads:
		return label{Parameters, false}
	case grads > 0:
		return label{State, false}
	case j.grads[b.bytes/2] > 0 && j.olds[b.bytes]%j.grads[b.bytes/2] == 0:
		return label{State, false} // in float32, of gradients in 16 bits
	}
	return label{Parameters, false}
}

// churns reports whether blocks come and go, as while a model runs, and none of them as
// gradients do, with nearly all the sizes of what stays. With those it trains, though no pass is
// known.
func (j *judge) churns() bool {
	const least = 50
	n := 0
	like := map[uint64]bool{}
	for i := range j.blocks {
		b := &j.blocks[i]
		if b.died != never && !b.refused {
			n++
			if j.sizes[b.bytes] > 0 {
				like[b.bytes] = true
			}
		}
	}
	return n >= least && len(j.sizes) > 0 && 4*len(like) <= 3*len(j.sizes)
}

// resident labels what was there before the first pass.
func (j *judge) resident(b *block) label {
	switch {
	case b.seed && b.died == never && j.trains:
		return j.older(b)
	case j.stays(b) && j.grads[b.bytes] == 0 && j.grads[b.bytes/2] > 0:
		return label{State, false} // a master weight, in float32, of one in 16 bits
	case j.isOwnData(b) && !j.trains && j.alike[b.bytes] >= leastCaches:
		return label{KVCache, false} // a pair for each layer
	case j.isOwnData(b):
		return label{Inputs, false} // a batch, or data that stays
	case j.stays(b):
		return label{Parameters, false}
	case len(j.phases) == 0 && j.grows[b]:
		return label{KVCache, false}
	case len(j.phases) == 0:
		return label{Temporaries, false}
	case b.died < j.start:
		return label{Temporaries, true}
	}
	return label{Inputs, false}
}

// isOwnData reports whether the program's own code made a block that stays and has no gradient.
func (j *judge) isOwnData(b *block) bool {
	return !b.seed && j.isOwn(b) && j.stays(b) && j.grads[b.bytes] == 0
}

// updating labels what was made in an update.
func (j *judge) updating(b *block) label {
	p := j.at(b.born)
	switch {
	case j.goesWith(b, p):
		// Behind the last update of all it may be state that goes as the program ends.
		return label{Temporaries, b.died <= p.last || j.end(p) < j.last}
	case j.outlivesPasses(b) && j.facts[b.site].byHand && j.repeats[b.site]:
		return label{Kept, false}
	case j.outlivesPasses(b):
		return label{State, !j.facts[b.site].byHand}
	case j.blind && j.grads[b.bytes] > 0:
		return label{Gradients, false}
	case j.blind:
		return label{Inputs, false}
	}
	return label{State, false} // one that is replaced
}

// goesWith reports whether a block is freed in a pass, or before the next block is made.
func (j *judge) goesWith(b *block, p *phase) bool {
	return p != nil && (b.died <= p.last || !j.blind && b.died <= j.end(p))
}

// goingBack labels what was made in a backward pass.
func (j *judge) goingBack(b *block) label {
	p := j.at(b.born)
	tip := j.blind && b.born <= p.high // it may still be of the forward pass
	switch {
	case j.blind && b.died == never && j.laid[b.bytes] > 0 && j.grads[b.bytes] > j.laid[b.bytes]:
		return label{State, false} // more than there are parameters: an update's, too
	case j.isGradient(b) && b.died > j.end(p) && j.diesGoingBack(b):
		return label{Activations, false} // no gradient is freed in a later backward pass
	case j.isGradient(b):
		return label{Gradients, j.sizes[b.bytes] > 0 && b.bytes > scalar && (b.died > j.end(p) || j.forgotten[p])}
	case tip && b.died > p.high && b.died <= p.last:
		return label{Activations, false}
	case j.goesWith(b, p):
		// What is there for long may be kept for a second derivative.
		const short = 32
		return label{Temporaries, b.died-b.born <= short}
	case b.died == never:
		return label{Gradients, false}
	case j.diesGoingBack(b):
		return label{Activations, false} // of a backward pass that is gone through backwards, too
	}
	return label{Temporaries, false}
}

// scalar is the most bytes of what may be a single number: PyTorch's smallest block.
const scalar = 512

// passing labels what the program itself made in a forward pass, or beside it.
func (j *judge) passing(b *block) label {
	if j.blind && b.died == never && j.grads[b.bytes] > 0 {
		return label{State, false} // an update's, which lifetimes do not tell from what follows
	}
	next := j.after(backward, b.born)
	if next != nil && b.died < next.first {
		return label{Temporaries, !j.isOwn(b)}
	}
	if !j.blind && j.born(b) != forward && !j.outlivesSteps(b) {
		if j.isForCall(b, next) {
			return label{Inputs, false}
		}
	}
	switch {
	case j.outlivesSteps(b) && j.diesWithinBackward(b):
		return label{Activations, false} // of a pass that is gone through backwards at last
	case j.outlivesSteps(b) && j.followsFirstBackward(b):
		return label{State, false} // of an optimizer that is written out in the program
	case j.outlivesSteps(b):
		return label{Kept, false}
	case next == nil && j.grows[b]:
		return label{KVCache, true}
	case next == nil && !j.trains && j.carried[b.bytes] >= leastCaches && j.isCarried(b):
		return label{KVCache, false}
	case next == nil:
		p := j.at(b.born)
		return label{Temporaries, !j.trains && p != nil && b.died <= j.end(p)}
	case b.died > j.end(next) && !j.diesGoingBack(b):
		return label{Temporaries, false} // an output that a variable holds
	}
	// A loss lives as long as what is kept, and so does an output that a function's variable holds to
	// its end, just after the pass.
	return label{Activations, b.bytes > scalar && !j.isOwn(b) && j.diesWithinBackward(b)}
}

// isOwn reports whether the program's own code made a block outside of a model's call. It may be
// a batch.
func (j *judge) isOwn(b *block) bool {
	return !j.blind && j.born(b) != forward && j.facts[b.site].own
}

// isForCall reports whether a block is there as a call of the model begins, before the next backward pass.
func (j *judge) isForCall(b *block, next *phase) bool {
	f := j.after(forward, b.born)
	if f == nil || f.first < b.born || b.died < f.first {
		return false
	}
	return next == nil || f.first < next.first
}

// outlivesSteps reports whether a block lives through backward passes of several steps that came
// after its own, or through as many calls of a model that only runs: no batch, output or activation does.
func (j *judge) outlivesSteps(b *block) bool {
	const several = 5 // a step of two models, or with a line search, has as many
	list := j.of[backward]
	if !j.trains { // calls of a model, whose own blocks may be a cache
		if list = j.of[forward]; j.born(b) == forward {
			return false
		}
	}
	i := sort.Search(len(list), func(i int) bool { return list[i].first > b.born })
	return i+several <= len(list) && list[i+several-1].last < b.died
}

// diesGoingBack reports whether a block is freed in a backward pass: the next one need not be
// its own, where a step has several.
func (j *judge) diesGoingBack(b *block) bool {
	if b.died == never || j.blind {
		return false
	}
	if j.diesWithinBackward(b) {
		return true
	}
	i := sort.Search(len(j.phases), func(i int) bool { return j.phases[i].first > b.died })
	for i--; i >= 0 && j.phases[i].role != backward; i-- {
		if j.phases[i].role == forward && j.phases[i].first > b.born {
			return false
		}
	}
	return i >= 0 && b.died <= j.end(&j.phases[i])
}

// diesWithinBackward reports whether a block is freed in the midst of a backward pass: by the engine,
// for the program waits for it.
func (j *judge) diesWithinBackward(b *block) bool {
	p := j.at(b.died)
	return p != nil && p.role == backward && b.died < p.last
}

// end returns the event up to which what a pass has held is freed: that before the next block
// of the program is made.
func (j *judge) end(p *phase) uint64 {
	if j.blind { // the pass ends about there
		end := p.last + (p.last-p.first)/4
		if f := j.after(forward, p.last); f != nil && f.first > p.last {
			end = min(end, f.first)
		}
		return end
	}
	i := sort.Search(len(j.blocks), func(i int) bool { return j.blocks[i].born > p.last })
	if i == len(j.blocks) {
		return j.last
	}
	return j.blocks[i].born - 1
}

// isWorkspace reports whether findWorkspaces found a block.
func (j *judge) isWorkspace(b *block) bool {
	_, is := j.workspaces[b]
	return is
}

// findWorkspaces finds the workspaces of cuBLAS, which PyTorch asks its pool for within the first
// product of a thread and keeps: 4,096 KiB twice and 16 KiB eight times, from Hopper on 4,096 KiB eight
// times, and 1 MiB for cuBLASLt (CUDABlas: getChosenWorkspaceSize, _getWorkspaceSize). A tensor may
// have such a size, too. A native frame settles it; else the first of its size in a pass may be one,
// if what is made before or after it is made by the same line: the product's result.
func (j *judge) findWorkspaces() {
	const old, hopper, lt = 2*4096<<10 + 8*16<<10, 8 * 4096 << 10, 1 << 20
	j.workspaces = map[*block]bool{}
	type kind struct {
		bytes uint64
		role
	}
	first, like := map[kind]*block{}, map[kind]int{}
	said := slices.ContainsFunc(j.facts, func(f fact) bool { return f.cublas })
	for i := range j.blocks {
		b := &j.blocks[i]
		switch size := b.bytes == old || b.bytes == hopper || b.bytes == lt; {
		case j.facts[b.site].cublas:
			j.workspaces[b] = true
		case said || !size || !j.stays(b):
		case b.seed && j.olds[b.bytes] == 1 && j.grads[b.bytes] == 0:
			j.workspaces[b] = false
		case b.seed || b.born < j.start:
		case j.born(b) == forward || j.born(b) == backward:
			k := kind{b.bytes, j.born(b)}
			like[k]++
			if first[k] == nil && j.isBesideAnother(i) {
				first[k] = b
			}
		}
	}
	for k, b := range first {
		mixed := k.bytes == hopper && (first[kind{old, forward}] != nil || first[kind{old, backward}] != nil)
		if likeGradient := j.grads[k.bytes] > 0 && (j.blind || k.role == backward); !likeGradient && !mixed {
			j.workspaces[b] = like[k] == 1
		}
	}
}

// isBesideAnother reports whether what is made just before or after a block is made by the same line
// and is of another size.
func (j *judge) isBesideAnother(i int) bool {
	for _, k := range []int{i - 1, i + 1} {
		if k >= 0 && k < len(j.blocks) && j.blocks[k].site == j.blocks[i].site && j.blocks[k].bytes != j.blocks[i].bytes {
			return true
		}
	}
	return false
}

// findRepeats finds the sites that keep something behind more than two backward passes. State is
// made in the first update that a parameter takes part in; a program may log something each time.
func (j *judge) findRepeats() {
	const most = 2 // of the updates of two models
	j.repeats = map[uint32]bool{}
	last, n := map[uint32]*phase{}, map[uint32]int{}
	for i := range j.blocks {
		b := &j.blocks[i]
		if j.blind || b.seed || !j.outlivesPasses(b) {
			continue
		}
		if p := j.before(backward, b.born); p != nil && p != last[b.site] {
			last[b.site] = p
			n[b.site]++
		}
		j.repeats[b.site] = n[b.site] > most
	}
}

// followsFirstBackward reports whether the program's own code made a block between the first backward
// pass and the next forward pass, and its line keeps nothing step after step.
func (j *judge) followsFirstBackward(b *block) bool {
	first := j.before(backward, b.born)
	if first == nil || first != j.of[backward][0] || !j.isOwn(b) || j.repeats[b.site] {
		return false
	}
	next := j.after(forward, first.last)
	return j.outlivesPasses(b) && next != nil && b.born < next.first
}
