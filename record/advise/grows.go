package advise

// Memory that is kept in step after step: a program that has it fits a card for a time.

import (
	"context"
	"errors"
	"fmt"
	"math"

	"gpumem/alloc"
	"gpumem/device"
	"gpumem/policy"
	"gpumem/record/leaks"
	"gpumem/record/replay"
	"gpumem/record/trace"
	"gpumem/size"
)

// Grows is memory that a program keeps on a GPU in each of its steps, all of it together.
type Grows struct {
	// BytesPerStep is of what is kept in a known number of steps; 0 if there is none such.
	BytesPerStep uint64 `json:"bytes_per_step"`
	// Where is the line that keeps the most, or the size of its requests; "" if no one place keeps it, as where each
	// step keeps other sizes, or one larger block for the last, and the recording has no lines.
	Where string `json:"where"`
	// Grown is by how much it grew in the recording, at least, by what is kept in an unknown number of steps.
	Grown uint64 `json:"grown_bytes,omitempty"`
	// RecordedSteps is the number of steps of the recording, in which this advice is right; 0 if it is unknown.
	RecordedSteps uint64 `json:"recorded_steps"`
	// PeakPerStep is by how much more each step needs at its peak, with what the pool cannot use
	// between the blocks; nil if that was not the same all along, or if too few steps were recorded.
	PeakPerStep *uint64 `json:"peak_bytes_per_step"`
	// FitsSteps is about the number of steps for which it fits the card with the advice, if it goes
	// on as it was recorded; nil if nothing fits or PeakPerStep is.
	FitsSteps *uint64 `json:"fits_steps"`
}

// growth is what grows on a GPU, and where in the recording.
type growth struct {
	Grows
	of       gpu
	from, to uint64 // the events that allocated the first and the last that is kept, of the pool that is replayed
	block    uint64 // the mean of what is kept at once
	// The most that one place keeps in each step, and in an unknown number of them.
	most, mostGrown uint64
}

// grows returns what grows on the GPU where that is most; nil if nothing does for certain.
func (a *adviser) grows(ctx context.Context, rep *Report) (*Grows, error) {
	if rep.Instant {
		return nil, nil
	}
	var most *growth
	for _, g := range a.gpus {
		one, err := a.growsOn(ctx, g)
		if err != nil {
			return nil, err
		}
		if most == nil || one.BytesPerStep > most.BytesPerStep || one.BytesPerStep == most.BytesPerStep && one.Grown > most.Grown {
			most = one
		}
	}
	if most.BytesPerStep == 0 && most.Grown == 0 {
		return nil, nil
	}
	if rep.Advice != nil {
		if err := a.extend(ctx, most, rep.Advice); err != nil {
			return nil, err
		}
	}
	return &most.Grows, nil
}

// growsOn adds up what grows in the pools of a GPU, of a joined recording in each process.
func (a *adviser) growsOn(ctx context.Context, g gpu) (*growth, error) {
	sum := &growth{of: g}
	add := func(t *trace.Trace, pool string, replayed bool) error {
		found, err := leaks.Find(ctx, t, leaks.Config{Pool: pool})
		if err == nil && isGrowing(found, a.cfg.Steps) {
			sum.add(found, a.cfg.Steps, replayed)
		}
		return err
	}
	for _, m := range a.cfg.Members {
		for _, of := range m.GPUs {
			if of.Joint != g.name || m.Trace == nil || !m.Has(of.Pool) {
				continue
			}
			if err := add(m.Trace, of.Pool, false); err != nil {
				return nil, err
			}
		}
	}
	if len(a.cfg.Members) > 0 {
		return sum, nil
	}
	for _, pool := range g.pools {
		if err := add(a.trace, pool, pool == g.name); err != nil {
			return nil, err
		}
	}
	return sum, nil
}

// severalSteps is how many counted steps show that what grows is more than one step, or a model that is loaded.
const severalSteps = 10

// isGrowing reports whether a program grows in each of its steps, of which some were counted, if any.
func isGrowing(found *leaks.Report, counted uint64) bool {
	isSpread := found.Verdict == leaks.Growth && len(found.Leaks) == 0 // over places none of which shows it
	return found.Verdict == leaks.Leak || isSpread && (found.Repeats || counted >= severalSteps)
}

// add adds what grows in a pool; replayed is that events of its places are those of the replay.
func (g *growth) add(found *leaks.Report, counted uint64, replayed bool) {
	steps := uint64(0)
	switch {
	case found.Steps != nil:
		steps = *found.Steps
	case counted >= severalSteps:
		steps = counted
	}
	for _, l := range found.Leaks {
		perStep, of := l.BytesPerStep, steps
		if perStep == nil && counted >= severalSteps {
			n := l.Bytes / counted
			perStep, of = &n, counted
		}
		if perStep == nil {
			g.addUnknown(l.Bytes, l.Site)
			continue
		}
		if !g.addSteady(*perStep, of, l.Site) {
			continue
		}
		if replayed && !l.Regrows {
			g.from, g.to, g.block = l.FirstEvent, l.GrowsToEvent, max(g.block, l.Bytes/max(l.Blocks, 1))
		}
	}
	switch n := found.Unnamed; {
	case n == 0:
	case steps == 0:
		g.addUnknown(n, "")
	default:
		g.addSteady(uint64(math.Round(float64(n)/(leaks.UnnamedPart*float64(steps)))), steps, "")
	}
}

// addSteady adds what each step keeps at a place, and reports whether that is the one to name.
func (g *growth) addSteady(perStep, steps uint64, where string) bool {
	if g.BytesPerStep == 0 && perStep > 0 {
		g.Where = "" // of an unknown rate
	}
	g.BytesPerStep = size.Add(g.BytesPerStep, perStep)
	switch isPlace, isNamed := where != "", g.Where != ""; {
	case isNamed && !isPlace: // a place says more than none
		return false
	case isNamed == isPlace && perStep <= g.most:
		return false
	}
	g.most, g.Where, g.RecordedSteps = perStep, where, steps
	g.from, g.to, g.block = 0, 0, perStep
	return true
}

// addUnknown adds what is kept at a place, in an unknown number of steps.
func (g *growth) addUnknown(n uint64, where string) {
	if g.Grown = size.Add(g.Grown, n); n > g.mostGrown && g.BytesPerStep == 0 {
		g.mostGrown, g.Where = n, where
	}
}

// Sentence says how fast it grows, and where, without its full stop.
func (g *Grows) Sentence() string {
	about, where := "", "at "+g.Where
	if g.Where == "" {
		about, where = "about ", "at no one place"
	}
	if g.BytesPerStep == 0 {
		return fmt.Sprintf("It grows by %s at least in the recording, %s, and in how many steps is unknown", size.Format(g.Grown), where)
	}
	return fmt.Sprintf("It grows by %s%s in each step, %s", about, size.Format(g.BytesPerStep), where)
}

const (
	// quarters is the number of parts of the steps whose peaks are compared. The first part, which has
	// a warm-up, is left out.
	quarters = 4
	// slots is the number of parts of each whose least memory that lies free between blocks is compared,
	// each of a step at least, and looks how often each quarter is looked at for that.
	slots = leastEven / quarters
	looks = 64
	// segment is what PyTorch takes of the GPU for a block that is not large, and spare the part of the
	// steps, one in so many, that is left out for what else lies free.
	segment = 20 << 20
	spare   = 50
	// leastEven is the least steps that show whether memory grows evenly.
	leastEven = 20
)

// extend finds for how many steps a candidate serves what grows, if the peaks of the steps grew evenly.
// What is kept is not what is needed: a list that is concatenated anew has the old and the new one at once.
func (a *adviser) extend(ctx context.Context, g *growth, c *Candidate) error {
	if g.RecordedSteps < leastEven {
		return nil
	}
	p := newPeaks(g.from, g.to)
	cfg := a.replay(g.of, c.ran, false)
	cfg.Hooks = append(cfg.Hooks, p.hook)
	if p.to == 0 {
		pools, err := a.trace.Choose(g.of.name)
		if err != nil {
			return err
		}
		p.from, p.to = 1, max(pools[0].Events, 1)
	}
	ran, err := replay.Run(ctx, a.trace, cfg)
	if errors.Is(err, device.ErrOutOfMemory) {
		return nil
	}
	if err != nil {
		return err
	}
	former, later := p.most[2]-min(p.most[1], p.most[2]), p.most[3]-min(p.most[2], p.most[3])
	part := max(former, later)
	if part-min(former, later) > part/10+g.block {
		return nil
	}
	processes := uint64(max(1, len(a.cfg.Members)))
	more := p.lostMore()
	perStep := max(g.BytesPerStep, (part*quarters+g.RecordedSteps-1)/g.RecordedSteps) + processes*more*quarters/2/g.RecordedSteps
	free := a.cfg.Sim.Total - min(a.cfg.Sim.Total, a.cfg.Sim.Used+a.cfg.Sim.Display+a.outside(g.of.processes)+g.of.beside)
	if c.Range == nil && p.limit > 0 { // else the limit may be raised
		free = min(free, p.limit)
	}
	held := min(ran.Results[0].HeldPeak, p.all+processes*p.mostLost)
	if c.ran.Kind == policy.Caching {
		held += segment
	}
	extra := (free - min(free, held)) / perStep
	n := g.RecordedSteps + extra - (extra+spare-1)/spare
	g.PeakPerStep, g.FitsSteps = &perStep, &n
	return nil
}

// peaks follows what the steps from one event to another need.
type peaks struct {
	from, to uint64
	most     [quarters]uint64         // in blocks, of each part
	all      uint64                   // of all the run
	looked   uint64                   // how often it was looked at
	lost     [quarters * slots]uint64 // least that is free beside blocks, where the pool cannot give it back for larger ones
	mostLost uint64
	limit    uint64 // of the pool
}

func (p *peaks) hook(pass *replay.Pass) replay.Hook {
	return replay.Hook{
		Event: func(*trace.Event, alloc.Block) error {
			p.all = max(p.all, pass.Used)
			n := pass.Event - min(pass.Event, pass.Pool.Seeds)
			if n < p.from || n > p.to {
				return nil
			}
			at, all := n-p.from, p.to-p.from+1
			quarter := at * quarters / all
			p.most[quarter] = max(p.most[quarter], pass.Used)
			if at >= p.looked*all/(quarters*looks) {
				p.looked++
				one, slot := lost(pass), at*slots*quarters/all
				p.lost[slot] = min(p.lost[slot], one)
				p.mostLost = max(p.mostLost, one)
			}
			return nil
		},
		End: func() error {
			s := pass.Stats()
			if p.limit = s.BytesLimit; pass.Policy.Kind == policy.BFC && pass.Policy.Preallocate && !pass.Policy.Grows() {
				p.limit = s.PoolBytes // it may have got less
			}
			return nil
		},
	}
}

func newPeaks(from, to uint64) *peaks {
	p := &peaks{from: from, to: to}
	for i := range p.lost {
		p.lost[i] = math.MaxUint64
	}
	return p
}

// lostMore returns how much more is lost in the last quarter than in the second.
func (p *peaks) lostMore() uint64 {
	var mean [quarters]uint64
	for i, n := range p.lost {
		if n < math.MaxUint64 {
			mean[i/slots] += n / slots
		}
	}
	return mean[3] - min(mean[1], mean[3])
}

// lost returns what is free in segments that have blocks.
func lost(pass *replay.Pass) (sum uint64) {
	if pass.Policy.Kind != policy.Caching || pass.Allocator == nil {
		return 0
	}
	free, isUsed := map[int]uint64{}, map[int]bool{}
	pass.Allocator.Walk(func(c alloc.Chunk) bool {
		if c.Live {
			isUsed[c.Region] = true
		} else {
			free[c.Region] += c.Size
		}
		return true
	})
	for region := range isUsed {
		sum += free[region]
	}
	return sum
}
