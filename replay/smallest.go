package replay

import (
	"context"
	"errors"
	"fmt"

	"gpumem/alloc"
	"gpumem/alloc/build"
	"gpumem/device"
	"gpumem/trace"
)

// errRefused ends a pass at the first refusal.
var errRefused = errors.New("refused")

// Fits says whether every policy serves every pool of t in whole on a device of
// total bytes, each pool on a device of its own. It only runs up to the first
// refusal, so it is quicker than Run. Errors are those of Run.
func Fits(ctx context.Context, t *trace.Trace, cfg Config, total uint64) (bool, error) {
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return false, err
	}
	for _, pol := range cfg.Policies {
		for _, pool := range pools {
			r := &runner{cfg: &cfg, trace: t, pool: pool, policy: pol}
			if ok, err := r.fits(ctx, total); !ok || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// fits says whether nothing is refused on a device of total bytes.
func (r *runner) fits(ctx context.Context, total uint64) (bool, error) {
	dev, err := r.cfg.Device(total)
	if err != nil {
		return false, nil // what others hold does not fit on so small a device
	}
	defer dev.Close()
	a, err := build.New(dev, r.policy, build.Options{})
	if err != nil {
		return false, err
	}
	defer a.Close()
	blocks := make([]alloc.Block, r.pool.Slots)
	err = r.pass(ctx, fmt.Sprintf("trying a device of %d MiB", total>>20), func(events []trace.Event) error {
		for i := range events {
			e := &events[i]
			if e.Op == trace.Free {
				if err := a.Free(blocks[e.Slot]); err != nil {
					return err
				}
				continue
			}
			b, err := a.Alloc(request(e))
			// The latter where the device is so large that elastic has too few
			// addresses for all its pages.
			if errors.Is(err, alloc.ErrNoMemory) || errors.Is(err, device.ErrOutOfMemory) {
				return errRefused
			}
			if err != nil {
				return err
			}
			if e.Refused {
				if err := a.Free(b); err != nil {
					return err
				}
				continue
			}
			blocks[e.Slot] = b
		}
		return nil
	})
	if errors.Is(err, errRefused) {
		return false, nil
	}
	return err == nil, err
}

// maxDevice is the largest device that is tried, 1 PiB, in MiB.
const maxDevice = 1 << 30

// smallest looks for the smallest device. It begins with one of the most bytes
// that were live at once. If that refuses something it tries larger ones, at
// growing distances, and then halves the last distance. So a device far larger
// than the answer, which takes long to simulate, is rarely tried.
// The result is in bytes, a multiple of 1 MiB, at least that (there is no device
// of 0 bytes); nil if even 1 PiB is too small, as where the policy has a limit
// of its own or a request is larger.
//
// Nothing is refused on a device of that size and something is at 1 MiB less.
// More cannot be promised: with a larger pool BFC cuts its blocks elsewhere, so
// a run may fit, not fit, and fit again on smaller and smaller devices.
func (r *runner) smallest(ctx context.Context) (*uint64, error) {
	const mib = 1 << 20
	peak := r.pool.PeakLive
	first := min(max((peak-min(peak, 1))/mib+1, 1), maxDevice) // in MiB, as all below
	lo, hi := uint64(0), first                                 // lo is refused
	mid := first - 1                                           // on most policies refused, too
	for step := max(first/64, 1); ; step *= 4 {
		ok, err := r.fits(ctx, hi*mib)
		if err != nil {
			return nil, err
		}
		if ok {
			break
		}
		if hi == maxDevice {
			return nil, nil
		}
		lo, hi = hi, min(hi+step, maxDevice)
		mid = lo + (hi-lo)/2
	}
	for ; hi-lo > 1; mid = lo + (hi-lo)/2 {
		ok, err := r.fits(ctx, mid*mib)
		if err != nil {
			return nil, err
		}
		if ok {
			hi = mid
		} else {
			lo = mid
		}
	}
	hi *= mib
	return &hi, nil
}
