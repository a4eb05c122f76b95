// Package advise finds the settings with which a recorded run fits a card, the
// cheapest first, the smallest card for it, and what it leaves for a second program.
// Every answer is a replay.
//
// # Candidates
//
// They are tried in the order of what they cost the user: nothing at all; a larger
// fraction; growth instead of preallocation; the driver's pool; mapped pages; a driver
// allocation for each request; and elastic, for programs in Go. The first that serves
// the whole recording is the advice.
//
// # Assumptions
//
// A program takes memory beside its pool: the CUDA context, code, handles of
// libraries. Config.Context is its size; it is taken on every simulated device before
// the pool. No fraction above .95 is advised.
//
// A recording of PyTorch is replayed through the same pools: its requests are exact,
// and how PyTorch's pool splits blocks is not modelled. So its advice names PyTorch's
// settings and is approximate.
//
// Files: advise.go the configuration and the report, candidates.go what is tried,
// cards.go the sizes of cards, search.go the least fraction and the smallest device.
package advise

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/policy"
	"gpumem/replay"
	"gpumem/trace"
)

// DefaultContext is the memory that a program is assumed to take beside its pool:
// 1.5 GiB, the most of a context, its modules and library handles in an ordinary
// program, without NCCL. Contexts alone take 0.3 to 0.6 GiB.
const DefaultContext = 1536 << 20

// Config describes the card and the program.
type Config struct {
	// Sim is the card, simulated: its total, what others hold of it, its features.
	// Its Context is replaced by the one below.
	Sim     sim.Config
	Context uint64 // bytes that the program takes beside its pool
	Pool    string // only the recording's pool of this name; "" means all, each on a separate card
	// As is the framework in whose settings the answer is: "jax", "tensorflow", "pytorch",
	// "rmm" or "none", with @VERSION for a release; "" finds it from the recording.
	As string
	// Progress, if set, is called a few times a second at most with what is being
	// done and how far it is, from 0 to 1.
	Progress func(doing string, part float64)
}

// Report is the advice. Sizes are bytes. Its JSON is that of gpumem advise.
type Report struct {
	Trace        replay.TraceInfo `json:"trace"`
	DeviceBytes  uint64           `json:"device_bytes"`
	UsedBytes    uint64           `json:"used_bytes"`        // by others, the display included
	ContextBytes uint64           `json:"context_bytes"`     // assumed beside the pool
	LowerBound   uint64           `json:"lower_bound_bytes"` // what any allocator must hold at the peak
	FitsAsItIs   bool             `json:"fits_as_it_is"`
	Advice       *Candidate       `json:"advice"` // the first candidate that fits; nil if none does
	Candidates   []*Candidate     `json:"candidates"`
	// SmallestCard is the nominal size of the smallest card on the market on which
	// some candidate fits, with no other program; nil if there is none.
	SmallestCard *uint64 `json:"smallest_card_bytes"`
	// Left is what the advice leaves of the card for others.
	Left   uint64  `json:"left_for_second_bytes"`
	Second *Second `json:"second"` // nil if too little memory is left for a second program
}

// Candidate is one set of settings, with the outcome of its replay.
type Candidate struct {
	// Policy is the name for gpumem replay --policy. The replay here is of what Set
	// means; only async differs in more than the last bits of a limit: JAX does not
	// let the driver's pool keep unused memory.
	Policy string   `json:"policy"`
	Set    []string `json:"set"`  // NAME=VALUE for the environment; empty: nothing
	Ours   bool     `json:"ours"` // only for programs that use this project's pool

	Fits          bool    `json:"fits"`
	Refused       uint64  `json:"refused"`
	FirstRefused  *uint64 `json:"first_refused_event"` // counted from 1; null if none
	RefusedBytes  uint64  `json:"first_refused_bytes"`
	HeldPeak      uint64  `json:"held_peak_bytes"`
	DriverCalls   uint64  `json:"driver_calls"`
	DriverSeconds float64 `json:"driver_seconds"` // modelled
	Left          uint64  `json:"left_bytes"`     // of the card, for others; 0 if it does not fit

	// SmallestDevice is the smallest device on which nothing is refused, with no
	// other program: to 1 MiB, and to 1 % if the recording has more than a million
	// events. It is nil if there is none.
	SmallestDevice *uint64 `json:"smallest_device_bytes"`
	SmallestCard   *uint64 `json:"smallest_card_bytes"` // nominal, as in Report
	// CardSet is Set for the smallest card: a fraction goes with the size.
	CardSet []string `json:"smallest_card_set"`

	Notes []string `json:"notes,omitempty"` // messages of the policy during the run, such as a back-off

	bound uint64                 // what any allocator must hold at the peak
	here  way                    // on the card at hand
	alone func(total uint64) way // on another, with no other program
}

// Second has the settings with which two programs share the card.
type Second struct {
	Bytes uint64   `json:"bytes"` // for the second one's pool, its own context taken off
	First []string `json:"first"` // what to set in this program
	Other []string `json:"other"` // and in the second
}

// Run finds the advice for t. ctx stops it between batches of events. Errors are
// those of [replay.Run], and a card that cannot be simulated.
func Run(ctx context.Context, t *trace.Trace, cfg Config) (*Report, error) {
	cfg.Sim.Context = cfg.Context
	a := &adviser{cfg: cfg, trace: t}
	rep := &Report{
		Trace: replay.Describe(t), DeviceBytes: cfg.Sim.Total,
		UsedBytes: cfg.Sim.Used + cfg.Sim.Display, ContextBytes: cfg.Context,
	}
	list, err := a.candidates(ctx)
	if err != nil {
		return nil, err
	}
	if err := a.tryAll(ctx, list); err != nil {
		return nil, err
	}
	rep.Candidates = list
	for _, c := range list {
		rep.LowerBound = max(rep.LowerBound, c.bound)
		if c.Fits && rep.Advice == nil {
			rep.Advice = c
		}
		if s := c.SmallestCard; s != nil && !c.Ours && (rep.SmallestCard == nil || *s < *rep.SmallestCard) {
			rep.SmallestCard = s
		}
	}
	rep.FitsAsItIs = list[0].Fits
	if rep.Advice != nil {
		rep.Left = rep.Advice.Left
	}
	a.second(rep)
	return rep, nil
}

// adviser is one call of Run.
type adviser struct {
	cfg   Config
	trace *trace.Trace

	mu sync.Mutex // guards Config.Progress
}

// tryAll tries the candidates, as many at a time as there are processors: each
// replay has a separate device and cursor.
func (a *adviser) tryAll(ctx context.Context, list []*Candidate) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	places := make(chan struct{}, runtime.GOMAXPROCS(0))
	for _, c := range list {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			if err := a.try(ctx, c); err != nil {
				stop(err) // the first counts
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// replay returns the configuration of replays under p; alone leaves other programs out.
func (a *adviser) replay(p policy.Policy, alone bool) replay.Config {
	card := a.cfg.Sim
	if alone {
		card.Used, card.Display = 0, 0
	}
	return replay.Config{
		Policies: []policy.Policy{p}, Total: card.Total, Pool: a.cfg.Pool, Untimed: true,
		Progress: func(doing string, part float64) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.cfg.Progress != nil {
				a.cfg.Progress(doing, part)
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

// fits reports whether nothing is refused on a device of total bytes.
func (a *adviser) fits(ctx context.Context, p policy.Policy, alone bool, total uint64) (bool, error) {
	ok, err := replay.Fits(ctx, a.trace, a.replay(p, alone), total)
	if errors.Is(err, device.ErrOutOfMemory) { // not even for the pool itself
		return false, nil
	}
	return ok, err
}

// try replays a candidate on the card, and searches for its smallest device and card.
func (a *adviser) try(ctx context.Context, c *Candidate) error {
	cfg := a.cfg
	c.Policy, c.Set, c.CardSet = c.here.policy.Spec, append([]string{}, c.here.set...), []string{}
	ran, err := replay.Run(ctx, a.trace, a.replay(c.here.policy, false))
	if errors.Is(err, device.ErrOutOfMemory) {
		ran, err = &replay.Report{}, nil // not even the pool itself can be made
	}
	if err != nil {
		return err
	}
	c.Fits = len(ran.Results) > 0
	for _, r := range ran.Results {
		c.Fits = c.Fits && r.Fits
		c.Refused += r.Refused
		if r.Failure != nil && c.FirstRefused == nil {
			c.FirstRefused, c.RefusedBytes = r.FirstRefused, r.Failure.Bytes
		}
		c.HeldPeak = max(c.HeldPeak, r.HeldPeak)
		c.DriverCalls += r.DriverCalls
		c.DriverSeconds += r.DriverSeconds
		c.Notes = append(c.Notes, r.Notes...)
		c.bound = max(c.bound, r.LowerBound)
	}
	if c.Fits {
		free := cfg.Sim.Total - min(cfg.Sim.Total, cfg.Sim.Used+cfg.Sim.Display+cfg.Context)
		c.Left = free - min(free, c.HeldPeak)
	}
	if c.SmallestDevice, err = a.smallest(ctx, c); err != nil || c.SmallestDevice == nil {
		return err
	}
	for _, card := range cards {
		if card.total < *c.SmallestDevice {
			continue
		}
		// With a pool that splits its blocks elsewhere a larger device may not do,
		// so the card itself is tried.
		w := c.alone(card.total)
		ok, err := a.fits(ctx, w.policy, true, card.total)
		if err != nil {
			return err
		}
		if ok {
			c.SmallestCard = &card.nominal
			c.CardSet = append(c.CardSet, w.set...)
			return nil
		}
	}
	return nil
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

// Check returns an error if the card cannot be simulated, so that the mistake is found
// before a long recording is read.
func Check(cfg Config) error {
	if cfg.Context >= 1<<62 {
		return errors.New("more memory beside the pool than any card has")
	}
	cfg.Sim.Context = cfg.Context
	dev, err := sim.New(cfg.Sim)
	if err != nil {
		return fmt.Errorf("the card cannot be simulated: %w", err)
	}
	return dev.Close()
}
