// The suite's tests of managed memory.

package devicetest

import (
	"bytes"
	"math"
	"testing"

	"gpumem/device"
)

// managed is what a managed grant of n bytes takes of the device.
func (s *suite) managed(n uint64) uint64 {
	if s.Info().Oversubscribes {
		return 0
	}
	return n
}

func testManaged(t *testing.T, s *suite) {
	info := s.Info()
	if !info.HasManaged {
		t.Skip("no managed memory")
	}
	before := s.free()
	plain, err := s.Alloc(4 * mib)
	s.ok(err)
	r, err := s.AllocManaged(4*mib + 1)
	s.ok(err)
	if r.Bytes <= 4*mib || r.Bytes%info.Granularity != 0 || r.Addr%256 != 0 || r.Addr < plain.Addr+plain.Bytes && plain.Addr < r.Addr+r.Bytes {
		t.Errorf("AllocManaged(4 MiB and 1) = %#x, %d bytes, beside %+v; granularity %d", r.Addr, r.Bytes, plain, info.Granularity)
	}
	s.heldExactly(before, plain.Bytes+s.managed(r.Bytes), "with a managed grant")

	// The host writes, streams copy to a plain grant and back, the host reads.
	want := pattern(5, 100_001)
	s.ok(s.Fill(r.Addr, 4*mib+1, 0x5a))
	s.ok(s.Write(r.Addr+mib, want))
	h, err := s.StreamCreate()
	s.ok(err)
	s.ok(s.CopyAsync(plain.Addr, r.Addr+mib, uint64(len(want)), h))
	s.ok(s.CopyAsync(r.Addr+3*mib, plain.Addr, uint64(len(want)), h))
	s.ok(s.FillAsync(r.Addr+mib, mib, 7, h))
	s.ok(s.StreamSynchronize(h))
	s.ok(s.StreamDestroy(h))
	s.holds(plain.Addr, want, "copied to a plain grant")
	s.holds(r.Addr+3*mib, want, "and back")
	s.holds(r.Addr+mib, bytes.Repeat([]byte{7}, mib), "filled in a stream")
	s.holds(r.Addr+4*mib, []byte{0x5a}, "the last byte")
	s.heldExactly(before, plain.Bytes+s.managed(r.Bytes), "once it is touched")
	if s.exact {
		s.refused(s.Write(r.Addr+r.Bytes-1, []byte{1, 2}), "cuMemcpyHtoD", device.ErrInvalidValue)
	}
	s.ok(s.Free(r.Addr))
	if s.exact {
		s.refused(s.Read(r.Addr, make([]byte, 1)), "cuMemcpyDtoH", device.ErrInvalidValue)
	}
	s.ok(s.Free(plain.Addr))
	s.heldExactly(before, 0, "at the end")
	if !info.Oversubscribes {
		return
	}

	// More than the device has, of which plain grants may still have all.
	r, err = s.AllocManaged(info.Total + 1)
	s.ok(err)
	if r.Bytes <= info.Total {
		t.Errorf("%d bytes for more than %d", r.Bytes, info.Total)
	}
	s.ok(s.Write(r.Addr, want))
	s.ok(s.Write(r.Addr+info.Total, []byte{3}))
	s.heldExactly(before, 0, "with more than the device has")
	if s.exact {
		n := before / info.Granularity * info.Granularity
		plain, err := s.Alloc(n)
		s.ok(err)
		s.heldExactly(before, n, "with all in a plain grant")
		s.ok(s.Free(plain.Addr))
	}
	s.holds(r.Addr, want, "the beginning of more than the device has")
	s.holds(r.Addr+info.Total, []byte{3}, "its end")
	s.ok(s.Free(r.Addr))
	s.heldExactly(before, 0, "after its end")
}

func testManagedErrors(t *testing.T, s *suite) {
	info := s.Info()
	if !info.HasManaged {
		if info.Oversubscribes {
			t.Error("there is no managed memory, and more of it than the device has")
		}
		_, err := s.AllocManaged(1)
		s.refused(err, "cuMemAllocManaged", device.ErrNotSupported)
		return
	}
	before := s.free()
	large := []uint64{math.MaxUint64, math.MaxUint64 - 1, 1 << 63, 1<<47 + 1}
	if !info.Oversubscribes {
		large = append(large, info.Total+1)
	}
	for _, n := range large {
		_, err := s.AllocManaged(n)
		s.refused(err, "cuMemAllocManaged", device.ErrOutOfMemory)
	}
	_, err := s.AllocManaged(0)
	s.refused(err, "cuMemAllocManaged", device.ErrInvalidValue)
	r, err := s.AllocManaged(4 * mib)
	s.ok(err)
	s.refused(s.Free(r.Addr+2*mib), "cuMemFree", device.ErrInvalidValue)
	freeAsync := device.ErrInvalidValue
	if !info.HasPools {
		freeAsync = device.ErrNotSupported
	}
	s.refused(s.FreeAsync(r.Addr, 0), "cuMemFreeAsync", freeAsync)
	s.ok(s.Write(r.Addr, []byte{1})) // it is still there
	s.ok(s.Free(r.Addr))
	s.refused(s.Free(r.Addr), "cuMemFree", device.ErrInvalidValue)
	s.heldExactly(before, 0, "after refusals")
}

// testManagedFull takes managed memory until there is no more, of the device's
// and the host's.
func testManagedFull(t *testing.T, s *suite) {
	info := s.Info()
	switch {
	case !info.HasManaged:
		t.Skip("no managed memory")
	case !s.exact:
		t.Skip("the host's memory is not for a test to take")
	}
	before := s.free()
	unit := max(info.Granularity, 2*mib)
	n := before / 4 / unit * unit
	var all []uint64
	for {
		r, err := s.AllocManaged(n)
		if err != nil {
			s.refused(err, "cuMemAllocManaged", device.ErrOutOfMemory)
			break
		}
		if all = append(all, r.Addr); uint64(len(all)) > (1<<47)/n {
			t.Fatalf("%d bytes and no end", uint64(len(all))*n)
		}
	}
	sum := uint64(len(all)) * n
	s.heldExactly(before, s.managed(sum), "with all managed memory")
	if info.Oversubscribes != (sum > info.Total) {
		t.Errorf("%d bytes of managed memory on a device of %d", sum, info.Total)
	}
	// One that goes makes room for one.
	s.ok(s.Free(all[0]))
	r, err := s.AllocManaged(n)
	s.ok(err)
	_, err = s.AllocManaged(n)
	s.refused(err, "cuMemAllocManaged", device.ErrOutOfMemory)
	all[0] = r.Addr
	for _, a := range all {
		s.ok(s.Free(a))
	}
	s.heldExactly(before, 0, "after all went back")
}
