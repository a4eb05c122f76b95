// Package advise finds the settings with which a recorded run fits a card, the
// cheapest first, the smallest card for it, and what it leaves for a second program.
// Every answer is a replay.
//
// # Candidates
//
// They are those of the framework that was recorded, in its own words, in the order of
// what they cost the user: nothing at all; a larger limit; growth instead of
// preallocation; the driver's pool; mapped pages; a driver allocation for each request;
// and last elastic, this project's pool, which serves unchanged programs through the pool
// library. The first that serves the whole recording is the advice.
//
// # Limits
//
// A limit is a part of the card, in hundredths. The one that is advised is the least that
// is enough: with one hundredth less a request is refused. Range has it and the most that
// leaves memory for what is beside the pool; both are replayed. No part above .95 is
// advised.
//
// # GPUs
//
// Pools of the host's memory and compiled code are left out. Settings are those of a
// process, so a candidate fits if it serves each GPU of the recording on a card of its
// own; Report.GPUs has the answer for each GPU alone. Of a joined recording of several
// processes each has its own pool and context on the GPU that they share. Of several pools on one GPU the
// largest is replayed, and what the others hold at their peaks is taken beside it: a
// replay has one pool on a device.
//
// # Assumptions
//
// A program takes memory beside its pool: the CUDA context, code, handles of
// libraries. Config.Context is its size; it is taken on every simulated device before
// the pool.
//
// Files: advise.go the configuration and the report, source.go the framework and the GPUs
// of the recording, candidates.go what is tried, jax.go, tensorflow.go, pytorch.go and
// others.go the settings of each framework, cards.go the sizes of cards, search.go the least
// limit and the smallest device, need.go why nothing fits, second.go a second program on the
// card, together.go several recorded ones.
package advise

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/record/internal/parallel"
	"gpumem/record/internal/tape"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

// DefaultContext is the memory that a program is assumed to take beside its pool, as on a GPU of
// gpumem run --simulate.
const DefaultContext = sim.UsualContext

// Config describes the card and the program.
type Config struct {
	// Sim is the card, simulated: its total, what others hold of it, its features.
	// Its Context is replaced by the one below.
	Sim     sim.Config
	Context uint64 // bytes that the program is assumed to take beside its pool
	// Constants is the bytes of constants that are known to lie beside the pool, too.
	Constants uint64
	Pool      string // only the recording's pool of this name; "" means those of GPUs
	// As is the framework in whose settings the answer is: "jax", "tensorflow", "pytorch",
	// "rmm" or "none", with @VERSION for a release; "" finds it from the recording.
	As string
	// Members are the processes of a joined recording, each of which grows by itself.
	Members []tape.Member
	// Steps is the number of steps of the program, as its framework counts them; 0 if it is unknown.
	Steps uint64
	// Progress, if set, is called a few times a second at most with what is being
	// done and how far it is, from 0 to 1.
	Progress func(doing string, part float64)
}

// Report is the advice. Sizes are bytes. Its JSON is that of gpumem advise.
type Report struct {
	Trace replay.TraceInfo `json:"trace"` // of the pools of GPUs; the peak is that of one GPU
	Source
	Instant       bool      `json:"one_instant,omitempty"` // the recording is of one moment, without frees
	LeftOut       []LeftOut `json:"left_out,omitempty"`    // pools that are on no GPU
	PoolNote      string    `json:"pool_note,omitempty"`   // that what is replayed was on no GPU, if so
	DeviceBytes   uint64    `json:"device_bytes"`
	UsedBytes     uint64    `json:"used_bytes"`               // by others, the display included
	ContextBytes  uint64    `json:"context_bytes"`            // assumed beside the pool
	ConstantBytes uint64    `json:"constant_bytes,omitempty"` // beside the pool, too
	LowerBound    uint64    `json:"lower_bound_bytes"`        // what any allocator must hold at the peak
	// Recorded are the settings of the recorded program, with which the answer begins; "" if
	// there are none, or if the recording does not have them.
	Recorded   string       `json:"recorded_settings,omitempty"`
	FitsAsItIs bool         `json:"fits_as_it_is"`
	Grows      *Grows       `json:"grows"`  // what each step keeps; nil if nothing does
	Advice     *Candidate   `json:"advice"` // the first candidate that fits; nil if none does
	Need       *Need        `json:"need"`   // why nothing fits; nil if something does
	Candidates []*Candidate `json:"candidates"`
	// SmallestCard is the nominal size of the smallest card on the market on which
	// some candidate of the framework fits, with no other program; nil if there is none.
	SmallestCard *uint64 `json:"smallest_card_bytes"`
	// Left is what the advice leaves of the card for others.
	Left   uint64  `json:"left_for_second_bytes"`
	Second *second `json:"second"` // nil if too little memory is left for a second program
	// GPUs has the answer for each GPU of the recording; nil if there is one, without
	// other pools on it. The answer above is for all of them.
	GPUs []*GPU `json:"gpus,omitempty"`
}

// GPU is the answer for one of several GPUs. Fields are as in Report.
type GPU struct {
	Pool         string       `json:"pool"`              // the one that is replayed
	Others       []string     `json:"others,omitempty"`  // pools on the same GPU
	Beside       uint64       `json:"others_bytes"`      // what they hold at their peaks, which counts beside the pool
	PeakLive     uint64       `json:"peak_live_bytes"`   // of the pool
	LowerBound   uint64       `json:"lower_bound_bytes"` // of the pool
	FitsAsItIs   bool         `json:"fits_as_it_is"`
	Advice       *Candidate   `json:"advice"`
	Candidates   []*Candidate `json:"candidates"`
	SmallestCard *uint64      `json:"smallest_card_bytes"`
	Left         uint64       `json:"left_for_second_bytes"`
}

// Candidate is one set of settings, with the outcome of its replay.
type Candidate struct {
	// Policy is the name for gpumem replay --policy. The replay here is of what Set and
	// Call mean; async differs in what the driver's pool keeps when it is synchronised.
	Policy string   `json:"policy"`
	Set    []string `json:"set"`            // NAME=VALUE for the environment; empty: nothing
	Call   []string `json:"call,omitempty"` // statements for the program
	Ours   bool     `json:"ours"`           // this project's pool under the unchanged program: Run
	Run    string   `json:"run,omitempty"`  // the command that starts the program so
	// Approximate says how the replay differs from the framework; "" if the policy places
	// each block as the framework does.
	Approximate string `json:"approximate,omitempty"`
	Range       *Range `json:"range,omitempty"` // of the limit in Set or Call; nil without one, or if it does not fit

	Fits          bool    `json:"fits"`
	Refused       uint64  `json:"refused"`
	FirstRefused  *uint64 `json:"first_refused_event"` // counted from 1, blocks older than the recording included; null if none
	Seeds         uint64  `json:"seeds,omitempty"`     // the blocks of that pool that are older than the recording
	RefusedPool   string  `json:"first_refused_pool,omitempty"`
	RefusedBytes  uint64  `json:"first_refused_bytes"`
	HeldPeak      uint64  `json:"held_peak_bytes"`      // reserved from the device
	UsedPeak      uint64  `json:"allocated_peak_bytes"` // in live blocks, as the pool rounds them
	DriverCalls   uint64  `json:"driver_calls"`
	DriverSeconds float64 `json:"driver_seconds"` // modelled
	Left          uint64  `json:"left_bytes"`     // of the card, for others; 0 if it does not fit

	// SmallestDevice is the smallest device on which nothing is refused, with no
	// other program: to 1 MiB, and to 1 % if the recording has more than a million
	// events. It is nil if there is none.
	SmallestDevice *uint64 `json:"smallest_device_bytes"`
	SmallestCard   *uint64 `json:"smallest_card_bytes"` // nominal, as in Report
	// Raised reports that SmallestDevice wants a limit beside Set, the most that the
	// device leaves.
	Raised bool `json:"smallest_device_with_limit,omitempty"`
	// CardPolicy, CardSet, CardCall and CardRange are Policy, Set, Call and Range for the
	// smallest card: a limit goes with the size.
	CardPolicy string   `json:"smallest_card_policy,omitempty"`
	CardSet    []string `json:"smallest_card_set"`
	CardCall   []string `json:"smallest_card_call,omitempty"`
	CardRange  *Range   `json:"smallest_card_range,omitempty"`

	Notes []string `json:"notes,omitempty"` // messages of the policy during the run, such as a back-off

	// Brief is what is set without what the names have in common, a line for each setting,
	// for a table. CardBrief is that for the smallest card.
	Brief     []string `json:"-"`
	CardBrief []string `json:"-"`

	bound   uint64 // what any allocator must hold at the peak
	ran     policy.Policy
	options // how it is set
}

// Range is a limit as it is written in a setting: the least with which nothing is refused,
// and the most that leaves the memory beside the pool.
type Range struct {
	Least string `json:"least"`
	Most  string `json:"most"`
	// TooLittle is one hundredth of the card less than Least, with which a request is
	// refused; "" if that is nothing.
	TooLittle string `json:"too_little,omitempty"`
	// Capped reports that more than Most would leave that memory, too: no limit above .95
	// of the card is advised.
	Capped bool `json:"capped,omitempty"`
}

// Run finds the advice for t. ctx stops it between batches of events. Errors are
// those of [replay.Run], an unknown framework, a card that cannot be simulated, and
// ErrNoGPU in a *trace.Error.
func Run(ctx context.Context, t *trace.Trace, cfg Config) (*Report, error) {
	source, err := sourceOf(t, cfg.As)
	if err != nil {
		return nil, err
	}
	gpus, left, err := split(t, cfg.Pool)
	if err != nil {
		return nil, err
	}
	rep := &Report{
		Trace: describe(t, gpus), Source: source, Instant: ofInstant(t),
		LeftOut: left, PoolNote: elsewhere(t, gpus), DeviceBytes: cfg.Sim.Total,
		UsedBytes: cfg.Sim.Used + cfg.Sim.Display, ContextBytes: cfg.Context,
		ConstantBytes: cfg.Constants,
	}
	var pools []string
	for _, g := range gpus {
		pools = append(pools, g.pools...)
	}
	if err := rep.Trace.AddPeaks(ctx, t, pools...); err != nil {
		return nil, err
	}
	a := &adviser{cfg: cfg, trace: t, source: source, gpus: gpus}
	all, err := a.answer(ctx)
	if err != nil {
		return nil, err
	}
	rep.LowerBound, rep.FitsAsItIs, rep.Advice, rep.Candidates = all.LowerBound, all.FitsAsItIs, all.Advice, all.Candidates
	rep.SmallestCard, rep.Left = all.SmallestCard, all.Left
	rep.Recorded = strings.Join(a.recorded, ",")
	if rep.Advice == nil {
		if rep.Need, err = a.need(ctx); err != nil {
			return nil, err
		}
	}
	if rep.Grows, err = a.grows(ctx, rep); err != nil {
		return nil, err
	}
	if rep.Grows == nil { // what grows takes what is left for a second program
		a.second(rep)
	}
	if len(gpus) == 1 && len(gpus[0].pools) == 1 {
		return rep, nil
	}
	for _, g := range gpus {
		one := all
		if len(gpus) > 1 {
			b := &adviser{cfg: cfg, trace: t, source: source, gpus: []gpu{g}}
			if one, err = b.answer(ctx); err != nil {
				return nil, err
			}
		}
		one.Pool, one.Beside, one.PeakLive = g.name, g.beside, g.peak
		one.Others = g.others()
		rep.GPUs = append(rep.GPUs, one)
	}
	return rep, nil
}

// ofInstant reports whether a recording is of one moment, without frees.
func ofInstant(t *trace.Trace) bool {
	return t.Format == "memdump" || t.Format == "pprof" || t.Events == t.Seeds
}

// others returns the pools that are not replayed.
func (g gpu) others() []string {
	return slices.DeleteFunc(slices.Clone(g.pools), func(name string) bool { return name == g.name })
}

// describe returns what a report has about the recording, of the pools that are replayed.
func describe(t *trace.Trace, gpus []gpu) replay.TraceInfo {
	info := replay.Describe(t)
	info.Events, info.Allocs, info.Seeds, info.Refused, info.PeakLive = 0, 0, 0, 0, 0
	in := map[string]bool{}
	for _, g := range gpus {
		info.PeakLive = max(info.PeakLive, g.peak)
		for _, name := range g.pools {
			in[name] = true
		}
	}
	for _, p := range t.Pools {
		if in[p.Name] {
			info.Events += p.Events - p.Seeds
			info.Allocs += p.Allocs - p.Seeds
			info.Seeds += p.Seeds
			info.Refused += p.Refused
		}
	}
	info.Notes = slices.DeleteFunc(slices.Clone(info.Notes), func(note string) bool {
		name, _, found := strings.Cut(note, ": ") // see trace.PoolBuilder.Note
		of := slices.ContainsFunc(t.Pools, func(p *trace.Pool) bool { return p.Name == name })
		return found && of && !in[name]
	})
	return info
}

// adviser answers for some GPUs of a recording.
type adviser struct {
	cfg    Config
	trace  *trace.Trace
	source Source
	gpus   []gpu
	ofFree bool // a limit is a part of what is free, not of the card
	// recorded are the settings of the recorded program, KEY:VALUE, with which the answer begins.
	recorded []string

	mu sync.Mutex // guards Config.Progress
}

// answer finds the candidates of the framework and tries them.
func (a *adviser) answer(ctx context.Context) (*GPU, error) {
	list, err := a.candidates()
	if err != nil {
		return nil, err
	}
	if err := a.tryAll(ctx, list); err != nil {
		return nil, err
	}
	rep := &GPU{FitsAsItIs: list[0].Fits && len(list[0].Set) == 0}
	for i, c := range list {
		if c.rare && (!c.Fits || rep.Advice != nil) {
			continue
		}
		rep.Candidates = append(rep.Candidates, list[i])
		rep.LowerBound = max(rep.LowerBound, c.bound)
		if c.Fits && rep.Advice == nil {
			rep.Advice = c
		}
		if s := c.SmallestCard; s != nil && !c.Ours && (rep.SmallestCard == nil || *s < *rep.SmallestCard) {
			rep.SmallestCard = s
		}
	}
	if rep.Advice != nil {
		rep.Left = rep.Advice.Left
	}
	return rep, nil
}

// tryAll tries the candidates, as many at a time as there are processors: each
// replay has a separate device and cursor.
func (a *adviser) tryAll(ctx context.Context, list []*Candidate) error {
	err := parallel.Run(ctx, len(list), runtime.GOMAXPROCS(0), func(ctx context.Context, i int) error { return a.try(ctx, list[i]) })
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// replay returns the configuration of replays of a GPU under p; alone leaves other
// programs out.
func (a *adviser) replay(g gpu, p policy.Policy, alone bool) replay.Config {
	card := a.cfg.Sim
	card.Context = a.outside(1) + g.beside // of each process
	if alone {
		card.Used, card.Display = 0, 0
	}
	return replay.Config{
		Policies: []policy.Policy{p}, Total: card.Total, Pool: g.name, Untimed: true,
		Progress: func(p replay.Progress) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.cfg.Progress != nil {
				a.cfg.Progress(p.Doing, p.Part)
			}
		},
		Device: func(total uint64) (device.GPU, error) {
			card := card
			card.Total = total
			dev, err := sim.New(card)
			if err != nil {
				return nil, err
			}
			return dev, nil
		},
	}
}

// fits reports whether nothing is refused on devices of total bytes, one for each GPU.
func (a *adviser) fits(ctx context.Context, p policy.Policy, alone bool, total uint64) (bool, error) {
	for _, g := range a.gpus {
		ok, err := replay.Fits(ctx, a.trace, a.replay(g, p, alone), total)
		if errors.Is(err, device.ErrOutOfMemory) { // not even for the pool itself
			return false, nil
		}
		if !ok || err != nil {
			return false, err
		}
	}
	return true, nil
}

// try replays a candidate on the card, and searches for its smallest device and card.
func (a *adviser) try(ctx context.Context, c *Candidate) error {
	here, err := a.choose(ctx, c, false, a.cfg.Sim.Total)
	if err != nil {
		return err
	}
	c.ran = here.policy
	c.Policy, c.Set, c.Call, c.Brief, c.CardSet = here.policy.Spec, append([]string{}, here.set...), here.call, here.brief, []string{}
	c.Fits, c.Left = true, ^uint64(0)
	for _, g := range a.gpus {
		if err := a.run(ctx, c, g, here.policy); err != nil {
			return err
		}
	}
	if c.Fits {
		c.Range = here.limits
	} else {
		c.Left = 0
	}
	if c.SmallestDevice, err = a.smallest(ctx, c); err != nil || c.SmallestDevice == nil {
		return err
	}
	if c.plain != nil && c.at != nil && here.limits == nil {
		ok, err := a.fits(ctx, c.plain.policy, true, *c.SmallestDevice)
		if err != nil {
			return err
		}
		c.Raised = !ok
	}
	for _, card := range cards {
		if card.total < *c.SmallestDevice {
			continue
		}
		// With a pool that splits its blocks elsewhere a larger device may not do,
		// so the card itself is tried.
		ok, err := a.serves(ctx, c, card.total)
		if err != nil {
			return err
		}
		if ok {
			w, err := a.choose(ctx, c, true, card.total)
			c.SmallestCard = &card.nominal
			c.CardPolicy = w.policy.Spec
			c.CardSet, c.CardCall, c.CardRange, c.CardBrief = append(c.CardSet, w.set...), w.call, w.limits, w.brief
			return err
		}
	}
	return nil
}

// run replays one GPU under a candidate's policy, and adds the outcome.
func (a *adviser) run(ctx context.Context, c *Candidate, g gpu, p policy.Policy) error {
	ran, err := replay.Run(ctx, a.trace, a.replay(g, p, false))
	if errors.Is(err, device.ErrOutOfMemory) {
		c.Fits = false // not even the pool itself can be made
		return nil
	}
	if err != nil {
		return err
	}
	r := ran.Results[0]
	c.Fits = c.Fits && r.Fits
	c.Refused += r.Refused
	if r.Failure != nil && c.FirstRefused == nil {
		c.FirstRefused, c.RefusedBytes, c.Seeds = r.FirstRefused, r.Failure.Bytes, r.Seeds
		if len(a.gpus) > 1 {
			c.RefusedPool = g.name
		}
	}
	c.HeldPeak = max(c.HeldPeak, r.HeldPeak)
	c.UsedPeak = max(c.UsedPeak, r.Stats.PeakBytesInUse)
	c.DriverCalls += r.DriverCalls
	c.DriverSeconds += r.DriverSeconds
	c.Notes = append(c.Notes, r.Notes...)
	c.bound = max(c.bound, r.LowerBound)
	free := a.cfg.Sim.Total - min(a.cfg.Sim.Total, a.cfg.Sim.Used+a.cfg.Sim.Display+a.outside(g.processes)+g.beside)
	c.Left = min(c.Left, free-min(free, r.HeldPeak))
	return nil
}

// outside returns what so many processes have outside their pools.
func (a *adviser) outside(processes int) uint64 {
	return uint64(processes) * (a.cfg.Context + a.cfg.Constants)
}

// taken returns what is not for the pool: what others hold unless the program is alone,
// and what a process has beside its pool on the GPU where that is most.
func (a *adviser) taken(alone bool) uint64 {
	n := a.outside(1) + a.beside()
	if !alone {
		n += a.cfg.Sim.Used + a.cfg.Sim.Display
	}
	return n
}

// beside returns the most that other pools hold on one of the GPUs.
func (a *adviser) beside() (n uint64) {
	for _, g := range a.gpus {
		n = max(n, g.beside)
	}
	return n
}

// Simulated returns a device as a card: its size and features, and what others hold of
// it now.
func Simulated(dev device.GPU) sim.Config {
	info := dev.Info()
	card := sim.Config{Total: info.Total, CCMajor: info.CCMajor, CCMinor: info.CCMinor, NoPages: !info.HasPages, NoPools: !info.HasPools}
	if free, total, err := dev.MemInfo(); err == nil {
		card.Used = total - min(total, free)
	}
	return card
}

// Check returns an error if the framework is unknown or the card cannot be simulated, so
// that the mistake is found before a long recording is read.
func Check(cfg Config) error {
	if cfg.As != "" {
		if _, err := parseSource(cfg.As); err != nil {
			return err
		}
	}
	if cfg.Context >= 1<<62 || cfg.Constants >= 1<<62 {
		return errors.New("more memory beside the pool than any card has")
	}
	cfg.Sim.Context = cfg.Context
	dev, err := sim.New(cfg.Sim)
	if err != nil {
		return fmt.Errorf("the card cannot be simulated: %w", err)
	}
	return dev.Close()
}
