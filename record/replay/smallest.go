package replay

import (
	"context"
	"errors"

	"gpumem/device"
	"gpumem/record/internal/bisect"
	"gpumem/record/trace"
	"gpumem/size"
)

// errRefused ends a pass at the first refusal.
var errRefused = errors.New("refused")

// Fits reports whether every policy serves every request of every pool of t on a
// device of total bytes, one device for each pool. It stops at the first refusal, so
// it is quicker than Run. Errors are those of Run.
func Fits(ctx context.Context, t *trace.Trace, cfg Config, total uint64) (bool, error) {
	pools, err := t.Choose(cfg.Pool)
	if err != nil {
		return false, err
	}
	for _, pol := range cfg.Policies {
		for _, pool := range pools {
			r := &runner{cfg: &cfg, trace: t, pool: pool, policy: pol, meter: newMeter(cfg.Progress, 1, 0)}
			if ok, err := r.fits(ctx, total); !ok || err != nil {
				return false, err
			}
		}
	}
	return true, nil
}

// fits reports whether nothing is refused on a device of total bytes.
func (r *runner) fits(ctx context.Context, total uint64) (bool, error) {
	dev, rec, err := r.device(total)
	if err != nil {
		return false, nil // what others hold does not fit on so small a device
	}
	p, err := r.newPass(dev, rec, nil)
	if err != nil {
		return false, err
	}
	defer p.close()
	p.hooks = []Hook{{Refused: func(*trace.Event) error { return errRefused }}}
	_, err = p.run(ctx, r.progress("trying a device of "+size.Format(total)))
	// The device's error where it is so large that elastic has too few addresses for
	// all its pages.
	if errors.Is(err, errRefused) || errors.Is(err, device.ErrOutOfMemory) {
		return false, nil
	}
	return err == nil, err
}

// maxDevice is the largest device that is tried: 1 PiB, in MiB.
const maxDevice = 1 << 30

// smallest searches for the smallest device. It begins with one as large as the peak
// of live bytes. While that refuses a request it tries larger ones, at growing
// distances, and then bisects the last distance. So a device far larger than the
// answer, which takes long to simulate, is rarely tried. The result is in bytes, a
// multiple of 1 MiB and at least 1 MiB; nil if even 1 PiB is too small, as where the
// policy has a limit or a request is larger.
//
// On a device of that size nothing is refused, and on one of 1 MiB less something
// is. More cannot be promised: with a larger pool BFC splits its blocks elsewhere, so
// a run may fit, not fit, and fit again on smaller and smaller devices.
func (r *runner) smallest(ctx context.Context) (*uint64, error) {
	const mib = 1 << 20
	peak := r.pool.PeakLive
	first := min(max((peak-min(peak, 1))/mib+1, 1), maxDevice) // in MiB, as all below
	step := max(first/64, 1)
	n, ok, err := bisect.Search{
		Hi: first, Mid: first - 1, // on most policies refused
		Enough: func(n uint64) (bool, error) { return r.fits(ctx, n*mib) },
		Grow: func(hi uint64) uint64 {
			if hi == maxDevice {
				return 0
			}
			hi = min(hi+step, maxDevice)
			step *= 4
			return hi
		},
	}.Least()
	if n *= mib; !ok || err != nil {
		return nil, err
	}
	return &n, nil
}
