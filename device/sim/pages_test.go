package sim_test

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"gpumem/device"
	"gpumem/device/sim"
)

const page = 2 * mib

// TestPageUnit: the unit of pages on devices of several granularities.
func TestPageUnit(t *testing.T) {
	for _, tc := range []struct {
		name string
		cfg  sim.Config
		want uint64
	}{
		{"default", sim.Config{}, 2 * mib},
		{"small granularity", sim.Config{Granularity: 512}, 2 * mib},
		{"larger one", sim.Config{Granularity: 6 * mib}, 6 * mib},
		{"larger one, no multiple", sim.Config{Granularity: 3 * mib}, 2 * mib},
		{"without pages", sim.Config{NoPages: true}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.cfg.Total = gib
			d := newDevice(t, tc.cfg)
			if info := d.Info(); info.Page != tc.want || info.HasPages == tc.cfg.NoPages {
				t.Errorf("a page is %d bytes, %v; want %d", info.Page, info.HasPages, tc.want)
			}
			if tc.want == 0 {
				return
			}
			// Whatever it is, one page can be reserved, made, mapped and used, and
			// an alignment is met beside it.
			addr, err := d.AddressReserve(2*tc.want, 4*mib)
			h, err2 := d.MemCreate(tc.want)
			at := addr + tc.want
			if err := errors.Join(err, err2, d.MemMap(at, tc.want, h), d.MemSetAccess(at, tc.want), d.Write(at, []byte{1})); err != nil {
				t.Error(err)
			}
			if addr%tc.want != 0 || addr%(4*mib) != 0 {
				t.Errorf("reserved at %#x", addr)
			}
			if tc.want > 2*mib {
				if _, err := d.MemCreate(2 * mib); !errors.Is(err, device.ErrInvalidValue) {
					t.Errorf("less than a page: %v", err)
				}
			}
		})
	}
}

// everyCall is each call that sim has so far, with arguments that a device of
// 1 GiB takes when it is new.
func everyCall(d *sim.Device) []struct {
	name  string
	group string
	do    func() error
} {
	return []struct {
		name  string
		group string
		do    func() error
	}{
		{"cuMemGetInfo", "Device", func() error { _, _, err := d.MemInfo(); return err }},
		{"cuMemAlloc", "Device", func() error { _, err := d.Alloc(1); return err }},
		{"cuMemFree", "Device", func() error { return d.Free(sim.Base) }},
		{"cuMemcpyHtoD", "Memory", func() error { return d.Write(sim.Base, nil) }},
		{"cuMemcpyDtoH", "Memory", func() error { return d.Read(sim.Base, nil) }},
		{"cuMemsetD8", "Memory", func() error { return d.Fill(sim.Base, 0, 1) }},
		{"cuMemAddressReserve", "Pages", func() error { _, err := d.AddressReserve(page, 0); return err }},
		{"cuMemCreate", "Pages", func() error { _, err := d.MemCreate(page); return err }},
		{"cuMemMap", "Pages", func() error { return d.MemMap(1<<48, page, 1) }},
		{"cuMemSetAccess", "Pages", func() error { return d.MemSetAccess(1<<48, page) }},
		{"cuMemUnmap", "Pages", func() error { return d.MemUnmap(1<<48, page) }},
		{"cuMemRelease", "Pages", func() error { return d.MemRelease(1) }},
		{"cuMemAddressFree", "Pages", func() error { return d.AddressFree(1<<48, page) }},
		{"cuMemAllocManaged", "Managed", func() error { _, err := d.AllocManaged(1); return err }},
	}
}

// refusedAs checks an error, which names the call and the device.
func refusedAs(t *testing.T, err error, call string, want error) {
	t.Helper()
	var as *device.CallError
	if !errors.Is(err, want) || !errors.As(err, &as) || as.Call != call || as.Device != "sim:1GiB" {
		t.Errorf("%s: %v, want %v", call, err, want)
	}
}

func TestWithoutPages(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, NoPages: true})
	for i, call := range everyCall(d) {
		if err := call.do(); call.group == "Pages" {
			refusedAs(t, err, call.name, device.ErrNotSupported)
		} else if err != nil {
			t.Errorf("%s: %v", call.name, err)
		}
		if d.Counters().Calls != uint64(i+1) {
			t.Errorf("%s is not counted", call.name)
		}
	}
}

// TestClose: everything goes back, and each call afterwards says so.
func TestClose(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib, Context: mib})
	for _, call := range everyCall(d) {
		if err := call.do(); err != nil {
			t.Fatalf("%s: %v", call.name, err)
		}
	}
	if _, err := d.Alloc(10 * mib); err != nil {
		t.Fatal(err)
	}
	base := mapped(t, d, 3)
	if err := d.Fill(base, 3*page, 1); err != nil {
		t.Fatal(err)
	}
	if err := d.Write(base, []byte{2}); err != nil {
		t.Fatal(err)
	}
	before := d.Counters()
	for range 2 {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		for _, call := range everyCall(d) {
			refusedAs(t, call.do(), call.name, device.ErrClosed)
		}
		if now, _ := d.Held(); now != 0 || d.HeldManaged() != 0 || d.Touched() != 0 {
			t.Errorf("closed, and %d bytes and %d managed ones are held and %d touched", now, d.HeldManaged(), d.Touched())
		}
	}
	if d.Counters() != before {
		t.Errorf("calls on a closed device are counted: %+v", d.Counters())
	}
}

// mapped reserves twice n pages and maps n handles of one page each, with
// access, at the beginning.
func mapped(t testing.TB, d *sim.Device, n uint64) (addr uint64) {
	t.Helper()
	addr, err := d.AddressReserve(2*n*page, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		h, err := d.MemCreate(page)
		if err != nil {
			t.Fatal(err)
		}
		if err := d.MemMap(addr+i*page, page, h); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.MemSetAccess(addr, n*page); err != nil {
		t.Fatal(err)
	}
	return addr
}

// TestBadPages: what makes no sense is refused and changes nothing.
func TestBadPages(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	// 8 pages: [0] and [1] a mapping each, [2,3] one of two pages, [4] nothing,
	// [5] one, [6,7] nothing. Behind it another reservation.
	a, err := d.AddressReserve(8*page, 0)
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.AddressReserve(page, 0)
	if err != nil || b != a+8*page {
		t.Fatalf("reserved at %#x and %#x: %v", a, b, err)
	}
	one, err := d.MemCreate(page)
	if err != nil {
		t.Fatal(err)
	}
	two, err := d.MemCreate(2 * page)
	if err != nil {
		t.Fatal(err)
	}
	gone, err := d.MemCreate(page)
	if err != nil {
		t.Fatal(err)
	}
	grant, err := d.Alloc(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{
		d.MemMap(a, page, one), d.MemMap(a+page, page, one), d.MemMap(a+2*page, 2*page, two), d.MemMap(a+5*page, page, one),
		d.MemRelease(gone),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	reserve := func(bytes, align uint64) error { _, err := d.AddressReserve(bytes, align); return err }
	create := func(bytes uint64) error { _, err := d.MemCreate(bytes); return err }
	const far = 1 << 47
	for _, tc := range []struct {
		name string
		call string
		do   func() error
		want error
	}{
		{"nothing", "cuMemAddressReserve", func() error { return reserve(0, 0) }, device.ErrInvalidValue},
		{"half a page", "cuMemAddressReserve", func() error { return reserve(page/2, 0) }, device.ErrInvalidValue},
		{"a page and a byte", "cuMemAddressReserve", func() error { return reserve(page+1, 0) }, device.ErrInvalidValue},
		{"alignment 3", "cuMemAddressReserve", func() error { return reserve(page, 3) }, device.ErrInvalidValue},
		{"alignment of 3 pages", "cuMemAddressReserve", func() error { return reserve(page, 3*page) }, device.ErrInvalidValue},
		{"alignment 2^48", "cuMemAddressReserve", func() error { return reserve(page, 1<<48) }, device.ErrOutOfMemory},
		{"all addresses", "cuMemAddressReserve", func() error { return reserve(far, 0) }, device.ErrOutOfMemory},
		{"a page too much", "cuMemAddressReserve", func() error { return reserve(far-8*page, 0) }, device.ErrOutOfMemory},
		{"2^64 less a page", "cuMemAddressReserve", func() error { return reserve(1<<64-page, 0) }, device.ErrOutOfMemory},

		{"not the whole", "cuMemAddressFree", func() error { return d.AddressFree(b, 2*page) }, device.ErrInvalidValue},
		{"a part", "cuMemAddressFree", func() error { return d.AddressFree(a, page) }, device.ErrInvalidValue},
		{"the end", "cuMemAddressFree", func() error { return d.AddressFree(a+7*page, page) }, device.ErrInvalidValue},
		{"with mappings", "cuMemAddressFree", func() error { return d.AddressFree(a, 8*page) }, device.ErrInvalidValue},
		{"both at once", "cuMemAddressFree", func() error { return d.AddressFree(a, 9*page) }, device.ErrInvalidValue},
		{"a grant", "cuMemAddressFree", func() error { return d.AddressFree(grant.Addr, page) }, device.ErrInvalidValue},
		{"0", "cuMemAddressFree", func() error { return d.AddressFree(0, 0) }, device.ErrInvalidValue},

		{"nothing", "cuMemCreate", func() error { return create(0) }, device.ErrInvalidValue},
		{"half a page", "cuMemCreate", func() error { return create(page / 2) }, device.ErrInvalidValue},
		{"all memory", "cuMemCreate", func() error { return create(gib) }, device.ErrOutOfMemory},
		{"2^64 less a page", "cuMemCreate", func() error { return create(1<<64 - page) }, device.ErrOutOfMemory},

		{"0", "cuMemRelease", func() error { return d.MemRelease(0) }, device.ErrInvalidValue},
		{"never made", "cuMemRelease", func() error { return d.MemRelease(99) }, device.ErrInvalidValue},
		{"released", "cuMemRelease", func() error { return d.MemRelease(gone) }, device.ErrInvalidValue},

		{"handle 0", "cuMemMap", func() error { return d.MemMap(a+4*page, page, 0) }, device.ErrInvalidValue},
		{"a released handle", "cuMemMap", func() error { return d.MemMap(a+4*page, page, gone) }, device.ErrInvalidValue},
		{"nothing", "cuMemMap", func() error { return d.MemMap(a+4*page, 0, one) }, device.ErrInvalidValue},
		{"a part of a handle", "cuMemMap", func() error { return d.MemMap(a+4*page, page, two) }, device.ErrInvalidValue},
		{"more than a handle", "cuMemMap", func() error { return d.MemMap(a+6*page, 2*page, one) }, device.ErrInvalidValue},
		{"on another", "cuMemMap", func() error { return d.MemMap(a+5*page, page, one) }, device.ErrInvalidValue},
		{"on the end of another", "cuMemMap", func() error { return d.MemMap(a+3*page, page, one) }, device.ErrInvalidValue},
		{"over another's beginning", "cuMemMap", func() error { return d.MemMap(a+4*page, 2*page, two) }, device.ErrInvalidValue},
		{"off a page", "cuMemMap", func() error { return d.MemMap(a+6*page+512, page, one) }, device.ErrInvalidValue},
		{"into the next reservation", "cuMemMap", func() error { return d.MemMap(a+7*page, 2*page, two) }, device.ErrInvalidValue},
		{"past the reservations", "cuMemMap", func() error { return d.MemMap(b+page, page, one) }, device.ErrInvalidValue},
		{"on a grant", "cuMemMap", func() error { return d.MemMap(grant.Addr, page, one) }, device.ErrInvalidValue},
		{"at 0", "cuMemMap", func() error { return d.MemMap(0, page, one) }, device.ErrInvalidValue},
		{"at the last page", "cuMemMap", func() error { return d.MemMap(1<<64-page, page, one) }, device.ErrInvalidValue},

		{"nothing", "cuMemSetAccess", func() error { return d.MemSetAccess(a, 0) }, device.ErrInvalidValue},
		{"a gap", "cuMemSetAccess", func() error { return d.MemSetAccess(a, 6*page) }, device.ErrInvalidValue},
		{"ends in a gap", "cuMemSetAccess", func() error { return d.MemSetAccess(a, 5*page) }, device.ErrInvalidValue},
		{"the first half of a mapping", "cuMemSetAccess", func() error { return d.MemSetAccess(a, 3*page) }, device.ErrInvalidValue},
		{"the second half", "cuMemSetAccess", func() error { return d.MemSetAccess(a+3*page, page) }, device.ErrInvalidValue},
		{"a part of a page", "cuMemSetAccess", func() error { return d.MemSetAccess(a, 512) }, device.ErrInvalidValue},
		{"a grant", "cuMemSetAccess", func() error { return d.MemSetAccess(grant.Addr, page) }, device.ErrInvalidValue},
		{"past 2^64", "cuMemSetAccess", func() error { return d.MemSetAccess(a, -a+page) }, device.ErrInvalidValue},

		{"nothing", "cuMemUnmap", func() error { return d.MemUnmap(a, 0) }, device.ErrInvalidValue},
		{"not mapped", "cuMemUnmap", func() error { return d.MemUnmap(a+4*page, page) }, device.ErrInvalidValue},
		{"a gap", "cuMemUnmap", func() error { return d.MemUnmap(a, 6*page) }, device.ErrInvalidValue},
		{"ends in a gap", "cuMemUnmap", func() error { return d.MemUnmap(a+5*page, 2*page) }, device.ErrInvalidValue},
		{"the first half of a mapping", "cuMemUnmap", func() error { return d.MemUnmap(a, 3*page) }, device.ErrInvalidValue},
		{"the second half", "cuMemUnmap", func() error { return d.MemUnmap(a+3*page, page) }, device.ErrInvalidValue},
		{"a grant", "cuMemUnmap", func() error { return d.MemUnmap(grant.Addr, page) }, device.ErrInvalidValue},
		{"past 2^64", "cuMemUnmap", func() error { return d.MemUnmap(a, -a+page) }, device.ErrInvalidValue},

		{"a mapping", "cuMemFree", func() error { return d.Free(a) }, device.ErrInvalidValue},
	} {
		t.Run(tc.call+"/"+tc.name, func(t *testing.T) {
			held, _ := d.Held()
			calls := d.Counters().Calls
			refusedAs(t, tc.do(), tc.call, tc.want)
			if now, _ := d.Held(); now != held || d.Counters().Calls != calls+1 {
				t.Errorf("%d bytes are held, %d before, after %d calls", now, held, d.Counters().Calls-calls)
			}
		})
	}
	// All is as it was: what was mapped can be had and taken down, by the book.
	for i, err := range []error{
		d.MemSetAccess(a, 4*page), d.MemSetAccess(a+5*page, page), d.Fill(a, 4*page, 1),
		d.MemUnmap(a, 4*page), d.MemUnmap(a+5*page, page), d.AddressFree(a, 8*page), d.AddressFree(b, page),
		d.MemRelease(one), d.MemRelease(two), d.Free(grant.Addr), reserve(far, 0),
	} {
		if err != nil {
			t.Errorf("step %d: %v", i, err)
		}
	}
	if now, _ := d.Held(); now != 0 {
		t.Errorf("%d bytes are held", now)
	}
}

// TestReleaseWhileMapped: the bytes go back with the handle or with its last
// mapping, whichever is later.
func TestReleaseWhileMapped(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	a, err := d.AddressReserve(4*page, 0)
	if err != nil {
		t.Fatal(err)
	}
	var h device.Handle
	for _, tc := range []struct {
		name string
		do   func() error
		held uint64
	}{
		{"create", func() (err error) { h, err = d.MemCreate(page); return err }, page},
		{"map", func() error { return d.MemMap(a, page, h) }, page},
		{"map again", func() error { return d.MemMap(a+page, page, h) }, page},
		{"and again", func() error { return d.MemMap(a+3*page, page, h) }, page},
		{"unmap one", func() error { return d.MemUnmap(a, page) }, page},
		{"release", func() error { return d.MemRelease(h) }, page},
		{"unmap another", func() error { return d.MemUnmap(a+3*page, page) }, page},
		{"unmap the last", func() error { return d.MemUnmap(a+page, page) }, 0},
		{"another handle", func() (err error) { h, err = d.MemCreate(2 * page); return err }, 2 * page},
		{"map", func() error { return d.MemMap(a, 2*page, h) }, 2 * page},
		{"map again", func() error { return d.MemMap(a+2*page, 2*page, h) }, 2 * page},
		{"release", func() error { return d.MemRelease(h) }, 2 * page},
		{"unmap both", func() error { return d.MemUnmap(a, 4*page) }, 0},
		{"a third", func() (err error) { h, err = d.MemCreate(page); return err }, page},
		{"release it at once", func() error { return d.MemRelease(h) }, 0},
	} {
		if err := tc.do(); err != nil {
			t.Fatalf("%s: %v", tc.name, err)
		}
		free, total, err := d.MemInfo()
		if held, _ := d.Held(); held != tc.held || free != total-tc.held || err != nil {
			t.Errorf("%s: %d bytes are held, want %d; %d free, %v", tc.name, held, tc.held, free, err)
		}
	}
}

// TestAccessDoesNotSurvive a remap, at the same place or at another.
func TestAccessDoesNotSurvive(t *testing.T) {
	d := newDevice(t, sim.Config{Total: gib})
	a, _ := d.AddressReserve(2*page, 0)
	h, _ := d.MemCreate(page)
	for _, at := range []uint64{a, a, a + page} {
		if err := d.MemMap(at, page, h); err != nil {
			t.Fatal(err)
		}
		if err := d.Write(at, []byte{1}); !errors.Is(err, device.ErrInvalidValue) {
			t.Errorf("mapped and without access: %v", err)
		}
		for range 2 { // twice is once
			if err := d.MemSetAccess(at, page); err != nil {
				t.Fatal(err)
			}
		}
		if err := d.Write(at, []byte{1}); err != nil {
			t.Errorf("with access: %v", err)
		}
		if err := d.MemUnmap(at, page); err != nil {
			t.Fatal(err)
		}
		if err := d.Write(at, []byte{1}); !errors.Is(err, device.ErrInvalidValue) {
			t.Errorf("unmapped: %v", err)
		}
	}
}

// TestMostMappings: 520,000 mappings of 2 MiB have access at a time, of however
// little memory; and that many are no trouble.
func TestMostMappings(t *testing.T) {
	const most = 520_000
	d := newDevice(t, sim.Config{Total: gib})
	a, err := d.AddressReserve((most+4)*page, 0)
	if err != nil {
		t.Fatal(err)
	}
	h, err := d.MemCreate(page)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(most + 1) {
		if err := d.MemMap(a+i*page, page, h); err != nil {
			t.Fatal(err)
		}
	}
	access := func(page0, pages uint64, want error) {
		t.Helper()
		if err := d.MemSetAccess(a+page0*page, pages*page); !errors.Is(err, want) {
			t.Errorf("access to %d pages from %d: %v, want %v", pages, page0, err, want)
		}
	}
	access(0, most+1, device.ErrOutOfMemory) // all or nothing
	access(0, most-1, nil)
	access(most-1, 2, device.ErrOutOfMemory)
	access(most-1, 1, nil)
	access(most-1, 1, nil) // has it already
	access(most, 1, device.ErrOutOfMemory)
	if err := d.MemUnmap(a+5*page, page); err != nil {
		t.Fatal(err)
	}
	access(most, 1, nil)
	// A larger mapping counts by its size.
	if err := errors.Join(d.MemUnmap(a+7*page, page), d.MemUnmap(a+9*page, page)); err != nil {
		t.Fatal(err)
	}
	three, err := d.MemCreate(3 * page)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.MemMap(a+(most+1)*page, 3*page, three); err != nil {
		t.Fatal(err)
	}
	access(most+1, 3, device.ErrOutOfMemory)
	if err := d.MemUnmap(a+11*page, page); err != nil {
		t.Fatal(err)
	}
	access(most+1, 3, nil)
	p := []byte{7}
	if err := errors.Join(d.Write(a+most*page, p), d.Read(a, p)); err != nil || p[0] != 7 {
		t.Errorf("%v, read %d", err, p[0])
	}
}

// physical is memory as the model of TestPagesModel has it.
type physical struct {
	data    []byte
	handle  device.Handle // 0: a grant's, or released
	mapped  int
	granted bool
}

// region is a run of addresses of that model.
type region struct {
	addr   uint64
	mem    *physical
	access bool
}

func (r region) end() uint64 { return r.addr + uint64(len(r.mem.data)) }

// TestPagesModel runs random calls on pages, grants and contents, on a device
// and on lists that are searched from their start.
func TestPagesModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const total = 24 * mib
		d, err := sim.New(sim.Config{Total: total, Granularity: 512})
		if err != nil {
			t.Fatal(err)
		}
		var (
			free     = uint64(total)
			handles  []*physical
			regions  []region
			reserved []device.Range
			ever     []device.Range // all addresses given out
		)
		check := func(t *rapid.T, what string, err, want error) {
			t.Helper()
			if !errors.Is(err, want) {
				t.Fatalf("%s: %v, want %v", what, err, want)
			}
		}
		given := func(t *rapid.T, addr, bytes uint64) {
			for _, r := range ever {
				if r.Addr < addr+bytes && addr < r.Addr+r.Bytes {
					t.Fatalf("%#x was given out before", addr)
				}
			}
			ever = append(ever, device.Range{Addr: addr, Bytes: bytes})
		}
		valid := func(ok bool) error {
			if ok {
				return nil
			}
			return device.ErrInvalidValue
		}
		// overlaps says whether a region lies in a range.
		overlaps := func(addr, bytes uint64) bool {
			for _, r := range regions {
				if r.addr < addr+bytes && addr < r.end() {
					return true
				}
			}
			return false
		}
		// tiles are the numbers of the regions that make up a range of mappings.
		tiles := func(addr, bytes uint64) (list []int) {
			for end := addr + bytes; addr < end; {
				found := false
				for i, r := range regions {
					if r.addr == addr && r.end() <= end && !r.mem.granted {
						list, found, addr = append(list, i), true, r.end()
						break
					}
				}
				if !found {
					return nil
				}
			}
			return list
		}
		// somewhere draws an address that has to do with what there is.
		somewhere := func(t *rapid.T) uint64 {
			addrs := []uint64{0, sim.Base, 1 << 48}
			for _, r := range regions {
				addrs = append(addrs, r.addr)
			}
			for _, r := range reserved {
				for at := r.Addr; at <= r.Addr+r.Bytes; at += page {
					addrs = append(addrs, at)
				}
			}
			return rapid.SampledFrom(addrs).Draw(t, "addr")
		}
		pages := rapid.Map(rapid.Uint64Range(0, 4), func(n uint64) uint64 { return n * page })
		// near draws a range for contents, and what of it there is in the model,
		// byte by byte; nil if something is missing.
		near := func(t *rapid.T) (addr, n uint64, place func(i uint64) *byte) {
			addr = somewhere(t) + rapid.SampledFrom([]uint64{0, 1, page - 3, page - 70_000}).Draw(t, "off")
			n = rapid.SampledFrom([]uint64{0, 1, 2, 5, 512, 70_000, 140_000}).Draw(t, "n")
			of := func(i uint64) *byte {
				for _, r := range regions {
					if r.addr <= addr+i && addr+i < r.end() && (r.access || r.mem.granted) {
						return &r.mem.data[addr+i-r.addr]
					}
				}
				return nil
			}
			for i := range n {
				if of(i) == nil {
					return addr, n, nil
				}
			}
			return addr, n, of
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": func(t *rapid.T) {
				n := rapid.OneOf(rapid.Uint64Range(1, 2048), rapid.Uint64Range(1, 5*mib)).Draw(t, "bytes")
				rounded := (n + 511) / 512 * 512
				r, err := d.Alloc(n)
				if rounded > free {
					check(t, "alloc", err, device.ErrOutOfMemory)
					return
				}
				check(t, "alloc", err, nil)
				given(t, r.Addr, r.Bytes)
				regions = append(regions, region{r.Addr, &physical{data: make([]byte, rounded), granted: true}, true})
				free -= rounded
			},
			"free": func(t *rapid.T) {
				addr := somewhere(t)
				err := d.Free(addr)
				for i, r := range regions {
					if r.addr == addr && r.mem.granted {
						check(t, "free", err, nil)
						free += uint64(len(r.mem.data))
						regions = append(regions[:i], regions[i+1:]...)
						return
					}
				}
				check(t, "free", err, device.ErrInvalidValue)
			},
			"reserve": func(t *rapid.T) {
				n, align := pages.Draw(t, "bytes"), rapid.SampledFrom([]uint64{0, 1, 512, page, 8 * page}).Draw(t, "align")
				addr, err := d.AddressReserve(n, align)
				check(t, "reserve", err, valid(n > 0))
				if n > 0 {
					given(t, addr, n)
					reserved = append(reserved, device.Range{Addr: addr, Bytes: n})
					if addr%max(align, page) != 0 {
						t.Fatalf("reserved at %#x with alignment %#x", addr, align)
					}
				}
			},
			"free addresses": func(t *rapid.T) {
				addr, n := somewhere(t), pages.Draw(t, "bytes")
				err := d.AddressFree(addr, n)
				for i, r := range reserved {
					if r == (device.Range{Addr: addr, Bytes: n}) && !overlaps(addr, n) {
						check(t, "free addresses", err, nil)
						reserved = append(reserved[:i], reserved[i+1:]...)
						return
					}
				}
				check(t, "free addresses", err, device.ErrInvalidValue)
			},
			"create": func(t *rapid.T) {
				n := pages.Draw(t, "bytes")
				h, err := d.MemCreate(n)
				switch {
				case n == 0:
					check(t, "create", err, device.ErrInvalidValue)
				case n > free:
					check(t, "create", err, device.ErrOutOfMemory)
				default:
					check(t, "create", err, nil)
					free -= n
					handles = append(handles, &physical{data: make([]byte, n), handle: h})
				}
			},
			"release": func(t *rapid.T) {
				if len(handles) == 0 {
					check(t, "release", d.MemRelease(device.Handle(rapid.Uint64Range(0, 50).Draw(t, "handle"))), device.ErrInvalidValue)
					return
				}
				i := rapid.IntRange(0, len(handles)-1).Draw(t, "which")
				m := handles[i]
				check(t, "release", d.MemRelease(m.handle), nil)
				check(t, "release again", d.MemRelease(m.handle), device.ErrInvalidValue)
				handles = append(handles[:i], handles[i+1:]...)
				if m.handle = 0; m.mapped == 0 {
					free += uint64(len(m.data))
				}
			},
			"map": func(t *rapid.T) {
				if len(handles) == 0 {
					t.Skip("no handle")
				}
				m := rapid.SampledFrom(handles).Draw(t, "handle")
				addr, n := somewhere(t), uint64(len(m.data))
				if rapid.IntRange(0, 9).Draw(t, "wrong size") == 0 {
					n += page
				}
				inside := false
				for _, r := range reserved {
					inside = inside || r.Addr <= addr && addr+n <= r.Addr+r.Bytes
				}
				ok := inside && !overlaps(addr, n) && n == uint64(len(m.data))
				check(t, "map", d.MemMap(addr, n, m.handle), valid(ok))
				if ok {
					m.mapped++
					regions = append(regions, region{addr: addr, mem: m})
				}
			},
			"access": func(t *rapid.T) {
				addr, n := somewhere(t), pages.Draw(t, "bytes")
				list := tiles(addr, n)
				check(t, "access", d.MemSetAccess(addr, n), valid(list != nil))
				for _, i := range list {
					regions[i].access = true
				}
			},
			"unmap": func(t *rapid.T) {
				addr, n := somewhere(t), pages.Draw(t, "bytes")
				list := tiles(addr, n)
				check(t, "unmap", d.MemUnmap(addr, n), valid(list != nil))
				if list == nil {
					return
				}
				var rest []region
				for _, r := range regions {
					if r.addr < addr || r.addr >= addr+n {
						rest = append(rest, r)
					} else if r.mem.mapped--; r.mem.mapped == 0 && r.mem.handle == 0 {
						free += uint64(len(r.mem.data))
					}
				}
				regions = rest
			},
			"write": func(t *rapid.T) {
				addr, n, place := near(t)
				p := bytes.Repeat([]byte{rapid.Byte().Draw(t, "byte"), 1, 2}, int(n+2)/3)[:n]
				check(t, "write", d.Write(addr, p), valid(place != nil))
				for i := range p {
					if place != nil {
						*place(uint64(i)) = p[i]
					}
				}
			},
			"fill": func(t *rapid.T) {
				addr, n, place := near(t)
				v := rapid.SampledFrom([]byte{0, 0, 9}).Draw(t, "byte")
				check(t, "fill", d.Fill(addr, n, v), valid(place != nil))
				for i := range n {
					if place != nil {
						*place(i) = v
					}
				}
			},
			"read": func(t *rapid.T) {
				addr, n, place := near(t)
				p := bytes.Repeat([]byte{0xee}, int(n))
				check(t, "read", d.Read(addr, p), valid(place != nil))
				for i := range p {
					if place != nil && p[i] != *place(uint64(i)) {
						t.Fatalf("%#x reads %d, want %d", addr+uint64(i), p[i], *place(uint64(i)))
					}
				}
			},
			"": func(t *rapid.T) {
				held, _ := d.Held()
				if got, all, err := d.MemInfo(); got != free || all != total || err != nil || held != total-free {
					t.Fatalf("MemInfo() = %d, %d, %v and %d held; want %d free", got, all, err, held, free)
				}
			},
		})
	})
}
