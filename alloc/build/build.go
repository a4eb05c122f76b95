// Package build makes the allocator that a policy asks for, on a device: the one
// switch over the kinds of policy.
package build

import (
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/internal/async"
	"gpumem/alloc/internal/bfc"
	"gpumem/alloc/internal/direct"
	"gpumem/alloc/internal/elastic"
	"gpumem/alloc/internal/pytorch"
	"gpumem/alloc/internal/vmm"
	"gpumem/alloc/streams"
	"gpumem/device"
	"gpumem/policy"
)

var (
	// ErrNoPolicy is the error of a policy that is empty or of an unknown kind.
	ErrNoPolicy = errors.New("no such allocator")
	// ErrNoDevice is the error of a nil device. It wraps alloc.ErrBadRequest.
	ErrNoDevice = fmt.Errorf("%w: the device is nil; package device/open opens one", alloc.ErrBadRequest)
)

// Options are how an allocator works, not where its blocks lie.
type Options struct {
	// Log, if not nil, is called for what the framework would log.
	Log func(alloc.Message)
	// Deterministic makes the same calls give the same blocks in every run, at the
	// cost of waits (async and elastic; the others are so anyway).
	Deterministic bool
	// Report2025 has the pool of XLA write its out-of-memory report as JAX did until
	// December 2025; see bfc.Config. It is for tests of readers of logs.
	Report2025 bool
	// Streams numbers the streams of requests. nil makes a stream of the device for
	// each number in requests; it ends with the device.
	Streams *streams.Tracker
}

// New makes the allocator that p asks for on dev. It takes no memory yet, has no
// lock, and does not wait. An error wraps ErrNoPolicy, ErrNoDevice,
// alloc.ErrBadRequest for settings that contradict each other,
// device.ErrNotSupported, or is the device's.
func New(dev device.GPU, p policy.Policy, o Options) (alloc.Allocator, error) {
	if dev == nil {
		return nil, ErrNoDevice
	}
	if o.Streams == nil {
		o.Streams = streams.Creating(dev)
	}
	if p == (policy.Policy{}) {
		return nil, fmt.Errorf("the policy is empty: %w; frameworks.Default and frameworks.Parse make one", ErrNoPolicy)
	}
	limited, err := asPolicySees(dev, p)
	if err != nil {
		return nil, fmt.Errorf("policy %s: the pool is a part of what is free: %w", p.Spec, err)
	}
	if err := p.Check(limited); err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Spec, err)
	}
	// XLA takes a negative fraction for a limit of nearly 2^64 bytes and backs
	// off; half of that does as well, and leaves room to count.
	limit := min(p.LimitBytes(limited), 1<<63)
	a, err := func() (alloc.Allocator, error) {
		switch p.Kind {
		case policy.Platform, policy.Address:
			return direct.New(capped(dev, p.GrantLimit), p.Limit), nil
		case policy.BFC:
			backing := capped(dev, p.GrantLimit)
			initial := uint64(0)
			if p.Grows() {
				initial = p.InitialBytes(limited)
			}
			if p.Managed {
				if !dev.Info().HasManaged {
					return nil, fmt.Errorf("%s has no unified memory: %w", dev.Info().Name, device.ErrNotSupported)
				}
				backing = unified{dev}
			}
			return made(bfc.New(backing, bfc.Config{
				Limit:           limit,
				Initial:         initial,
				Growth:          !p.Preallocate,
				FirstRegion:     p.FirstRegion,
				RegionUnit:      p.RegionUnit,
				Spatial:         p.Spatial,
				TopDown:         p.TopDown,
				CollectiveAlign: p.CollectiveAlign,
				GC:              p.GC,
				Coalesce:        p.Coalesce,
				Fragmentation:   p.Fragmentation,
				Align:           p.Align,
				IgnoreAlign:     p.IgnoreAlign,
				Quiesce:         quiesce(o.Streams),
				Log:             o.Log,
				Report2025:      o.Report2025,
			}))
		case policy.Async:
			keep, first := p.AsyncBytes(limited)
			return made(async.New(dev, async.Config{
				Reserve: keep, Preallocate: first, Deterministic: o.Deterministic, Streams: o.Streams, Log: o.Log,
			}))
		case policy.VMM:
			return made(vmm.New(dev, vmm.Config{Budget: limit, Streams: o.Streams, Log: o.Log}))
		case policy.Caching:
			if p.Name != "pytorch" {
				return nil, fmt.Errorf("%w: the pool of %s is explained only", ErrNoPolicy, p.Name)
			}
			return made(pytorch.New(dev, torch(p, limited, o)))
		case policy.Elastic:
			return made(elastic.New(dev, elastic.Config{
				Limit: limit, Reserve: p.Reserve, Eager: p.Eager, Deterministic: o.Deterministic, Streams: o.Streams, Log: o.Log,
			}))
		}
		return nil, fmt.Errorf("%w: %v", ErrNoPolicy, p.Kind)
	}()
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Spec, err)
	}
	return a, nil
}

// torch is the settings of PyTorch's pool.
func torch(p policy.Policy, d policy.Device, o Options) pytorch.Config {
	t := p.Torch
	cfg := pytorch.Config{
		MaxSplit: t.MaxSplit, Slack: t.NonSplit, Segment: t.Segment, Divisions: t.Divisions, GC: t.GC,
		Expandable: t.Expandable, Addresses: t.Addresses, KeepSizes: t.KeepSizes, CaptureEvents: t.CaptureEvents, PoolCaptures: t.PoolCaptures, PrivateGrants: t.PrivateGrants,
		Tie:     [...]pytorch.Tie{policy.OldestSegment: pytorch.BySegment, policy.LowestAddress: pytorch.ByAddress, policy.OldestBlock: pytorch.ByObject}[t.Order],
		Streams: o.Streams, Log: o.Log,
	}
	if t.AddressPart != 0 {
		cfg.Addresses = uint64(min(t.AddressPart, 2) * float64(d.Total)) // more than 9/8 makes no difference
	}
	if p.Limit != 0 || p.Fraction != 0 {
		cfg.Limit = max(p.LimitBytes(d), 1)
	}
	return cfg
}

// quiesce returns the wait for all work before the driver is given memory back, which
// waits for it in any case: where the owner of the tracker waits without its lock.
func quiesce(t *streams.Tracker) func() error {
	return func() error {
		if !t.Deferred() || t.Repeated() {
			return nil
		}
		return t.Synchronize()
	}
}

// asPolicySees returns what a policy must know of dev. The driver is asked for free
// memory only where the policy depends on it.
func asPolicySees(dev device.GPU, p policy.Policy) (policy.Device, error) {
	info := dev.Info()
	d := policy.Device{Total: info.Total, CCMajor: info.CCMajor}
	if !p.GoesByFree() {
		return d, nil
	}
	var err error
	d.Free, _, err = dev.MemInfo()
	return d, err
}

// capped returns dev, or a device like it whose single allocations are at most that
// many bytes; 0 means no limit.
func capped(dev device.GPU, most uint64) device.Device {
	if most == 0 {
		return dev
	}
	return cappedGrants{dev, most}
}

type cappedGrants struct {
	device.GPU
	most uint64
}

func (c cappedGrants) Alloc(bytes uint64) (device.Range, error) {
	if bytes > c.most {
		return device.Range{}, &device.CallError{Call: "grant", Device: c.Info().Name, Bytes: bytes, Err: device.ErrOutOfMemory}
	}
	return c.GPU.Alloc(bytes)
}

// unified is a device whose plain grants are unified memory.
type unified struct{ device.GPU }

func (u unified) Alloc(bytes uint64) (device.Range, error) { return u.AllocManaged(bytes) }

// made keeps a nil pointer from becoming an allocator that is not nil.
func made[A alloc.Allocator](a A, err error) (alloc.Allocator, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}
