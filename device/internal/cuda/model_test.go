//go:build linux && (amd64 || arm64) && !nodriver

// This package over the fake driver against the simulated GPU itself: whatever
// is asked of the two, they answer the same.

package cuda

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/device/sim"
)

// twins are the two devices, and what each gave for the same request: index 0
// is this package's, 1 the simulated GPU's. What was given back stays in the
// lists, to be asked for again.
type twins struct {
	t       *rapid.T
	gpu     [2]device.GPU
	grants  [][2]uint64 // plain and managed
	async   [][2]uint64
	streams [][2]device.Stream
	events  [][2]device.Event
	pools   [][2]device.Pool
	spaces  [][2]uint64
	handles [][2]device.Handle
}

// both asks both, and compares what kind of error they answer. It tells whether
// both worked.
func (w *twins) both(what string, ask func(i int, d device.GPU) error) bool {
	errs := [2]error{ask(0, w.gpu[0]), ask(1, w.gpu[1])}
	for _, is := range []error{device.ErrOutOfMemory, device.ErrInvalidHandle, device.ErrInvalidValue, device.ErrNotSupported, device.ErrNotPermitted, device.ErrLost} {
		if errors.Is(errs[0], is) != errors.Is(errs[1], is) {
			w.t.Fatalf("%s: %v, but simulated %v", what, errs[0], errs[1])
		}
	}
	if (errs[0] == nil) != (errs[1] == nil) {
		w.t.Fatalf("%s: %v, but simulated %v", what, errs[0], errs[1])
	}
	var call [2]*device.CallError
	if errs[0] != nil && (!errors.As(errs[0], &call[0]) || !errors.As(errs[1], &call[1]) || call[0].Call != call[1].Call) {
		w.t.Fatalf("%s: %v, but simulated %v", what, errs[0], errs[1])
	}
	return errs[0] == nil
}

// pick is one of a list, or what was never given.
func pick[V any](w *twins, list [][2]V, none V) [2]V {
	i := rapid.IntRange(-1, len(list)-1).Draw(w.t, "which")
	if i < 0 {
		return [2]V{none, none}
	}
	return list[i]
}

// step asks for one thing.
func (w *twins) step() {
	const none = 0x7770_0000
	size := rapid.SampledFrom([]uint64{0, 1, 511, 512, 513, 1 << 20, page, page + 1, 3 * page, 40 << 20, 300 << 20, 1 << 40}).Draw(w.t, "bytes")
	pages := rapid.SampledFrom([]uint64{0, page, page, 2 * page, 4 * page, page / 2, 600 << 20, 1 << 40}).Draw(w.t, "pages")
	offset := rapid.SampledFrom([]uint64{0, 0, page, 2 * page, 3}).Draw(w.t, "offset")
	// Both find work that nothing orders; here all is in order.
	w.both("synchronize", func(i int, d device.GPU) error { return d.Synchronize() })
	s := pick(w, w.streams, 0)
	p := pick(w, w.pools, none)
	switch op := rapid.SampledFrom([]string{
		"alloc", "alloc managed", "free", "stream", "stream destroy", "stream synchronize", "stream query", "event", "event destroy", "record", "wait", "event query",
		"default pool", "pool", "pool destroy", "get", "set", "trim", "alloc async", "free async", "synchronize",
		"reserve", "unreserve", "create", "release", "map", "access", "unmap", "contents",
	}).Draw(w.t, "op"); op {
	case "alloc", "alloc managed":
		var got [2]uint64
		if w.both(op, func(i int, d device.GPU) error {
			alloc := d.Alloc
			if op == "alloc managed" {
				alloc = d.AllocManaged
			}
			r, err := alloc(size)
			got[i] = r.Addr
			return err
		}) {
			w.grants = append(w.grants, got)
		}
	case "free":
		a := pick(w, append(w.grants, w.async...), none)
		w.both(op, func(i int, d device.GPU) error { return d.Free(a[i]) })
	case "stream":
		var got [2]device.Stream
		if w.both(op, func(i int, d device.GPU) (err error) { got[i], err = d.StreamCreate(); return err }) {
			w.streams = append(w.streams, got)
		}
	case "stream destroy":
		w.both(op, func(i int, d device.GPU) error { return d.StreamDestroy(s[i]) })
	case "stream synchronize":
		w.both(op, func(i int, d device.GPU) error { return d.StreamSynchronize(s[i]) })
	case "stream query":
		w.both(op, func(i int, d device.GPU) error { _, err := d.StreamQuery(s[i]); return err })
	case "event":
		var got [2]device.Event
		if w.both(op, func(i int, d device.GPU) (err error) { got[i], err = d.EventCreate(); return err }) {
			w.events = append(w.events, got)
		}
	case "event destroy", "record", "wait", "event query":
		e := pick(w, w.events, none)
		w.both(op, func(i int, d device.GPU) (err error) {
			switch op {
			case "event destroy":
				err = d.EventDestroy(e[i])
			case "record":
				err = d.EventRecord(e[i], s[i])
			case "wait":
				err = d.StreamWaitEvent(s[i], e[i])
			default:
				_, err = d.EventQuery(e[i])
			}
			return err
		})
	case "default pool":
		var got [2]device.Pool
		if w.both(op, func(i int, d device.GPU) (err error) { got[i], err = d.DefaultPool(); return err }) {
			w.pools = append(w.pools, got)
		}
	case "pool":
		var got [2]device.Pool
		if w.both(op, func(i int, d device.GPU) (err error) { got[i], err = d.PoolCreate(pages); return err }) {
			w.pools = append(w.pools, got)
		}
	case "pool destroy":
		w.both(op, func(i int, d device.GPU) error { return d.PoolDestroy(p[i]) })
	case "get", "set":
		a := device.PoolAttribute(rapid.IntRange(0, 9).Draw(w.t, "attribute"))
		v := rapid.SampledFrom([]uint64{0, 1, 2, 1 << 32, 1<<64 - 1}).Draw(w.t, "value")
		var got [2]uint64
		w.both(op, func(i int, d device.GPU) (err error) {
			if op == "set" {
				return d.PoolSetAttribute(p[i], a, v)
			}
			got[i], err = d.PoolGetAttribute(p[i], a)
			return err
		})
		if got[0] != got[1] {
			w.t.Fatalf("attribute %d is %d, simulated %d", a, got[0], got[1])
		}
	case "trim":
		w.both(op, func(i int, d device.GPU) error { return d.PoolTrim(p[i], size) })
	case "alloc async":
		var got [2]uint64
		if w.both(op, func(i int, d device.GPU) error {
			r, err := d.AllocAsync(p[i], size, s[i])
			got[i] = r.Addr
			return err
		}) {
			w.async = append(w.async, got)
		}
	case "free async":
		a := pick(w, append(w.grants, w.async...), none)
		w.both(op, func(i int, d device.GPU) error { return d.FreeAsync(a[i], s[i]) })
	case "synchronize":
		w.both(op, func(i int, d device.GPU) error { return d.Synchronize() })
	case "reserve":
		var got [2]uint64
		if w.both(op, func(i int, d device.GPU) (err error) { got[i], err = d.AddressReserve(pages, offset); return err }) {
			w.spaces = append(w.spaces, got)
		}
	case "create":
		var got [2]device.Handle
		if w.both(op, func(i int, d device.GPU) (err error) { got[i], err = d.MemCreate(pages); return err }) {
			w.handles = append(w.handles, got)
		}
	case "unreserve", "map", "access", "unmap", "release":
		va := pick(w, w.spaces, none)
		h := pick(w, w.handles, none)
		w.both(op, func(i int, d device.GPU) error {
			switch op {
			case "unreserve":
				return d.AddressFree(va[i], pages)
			case "map":
				return d.MemMap(va[i]+offset, pages, h[i])
			case "access":
				return d.MemSetAccess(va[i]+offset, pages)
			case "unmap":
				return d.MemUnmap(va[i]+offset, pages)
			default:
				return d.MemRelease(h[i])
			}
		})
	case "contents":
		a := pick(w, append(append(w.grants, w.async...), w.spaces...), none)
		p := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(w.t, "contents")
		w.both("write", func(i int, d device.GPU) error { return d.Write(a[i]+offset, p) })
		w.both("fill", func(i int, d device.GPU) error { return d.Fill(a[i]+offset+7, size%9, 0x77) })
		var got [2][20]byte
		if w.both("read", func(i int, d device.GPU) error { return d.Read(a[i]+offset, got[i][:]) }) && !bytes.Equal(got[0][:], got[1][:]) {
			w.t.Fatalf("%x is there, simulated %x", got[0], got[1])
		}
	}
}

func TestLikeSimulated(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := newFake(t)
		model, err := sim.New(sim.Config{Total: 1 << 30, Granularity: granularity})
		if err != nil {
			rt.Fatal(err)
		}
		d := f.open()
		w := &twins{t: rt, gpu: [2]device.GPU{d, model}}
		for range rapid.IntRange(1, 80).Draw(rt, "steps") {
			w.step()
			var free [2]uint64
			w.both("free", func(i int, d device.GPU) (err error) { free[i], _, err = d.MemInfo(); return err })
			if free[0] != free[1] {
				rt.Fatalf("%d bytes free, simulated %d", free[0], free[1])
			}
		}
		checkClosed(rt, f, d)
		if err := model.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}
