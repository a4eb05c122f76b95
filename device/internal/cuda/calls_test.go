//go:build linux && (amd64 || arm64) && !nodriver

// Every function of the driver, each way that it can fail, and what is left
// after it.

package cuda

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"pgregory.net/rapid"

	"gpumem/device"
)

const page = 2 << 20

// things is one of everything that a device hands out.
type things struct {
	d            *Device
	grant, async device.Range
	managed      device.Range
	s            device.Stream
	e            device.Event
	p            device.Pool
	free, va     uint64 // reservations of a page, the second with m mapped
	m, loose     device.Handle
	pinned       []byte
}

// newThings makes one of everything.
func newThings(t *testing.T, d *Device) *things {
	t.Helper()
	x := &things{d: d}
	var errs [14]error
	x.grant, errs[0] = d.Alloc(4 << 20)
	x.s, errs[1] = d.StreamCreate()
	x.e, errs[2] = d.EventCreate()
	x.p, errs[3] = d.PoolCreate(0)
	x.async, errs[4] = d.AllocAsync(x.p, 1<<20, x.s)
	x.free, errs[5] = d.AddressReserve(page, 0)
	x.va, errs[6] = d.AddressReserve(page, 0)
	x.m, errs[7] = d.MemCreate(page)
	x.loose, errs[8] = d.MemCreate(page)
	errs[9] = d.MemMap(x.va, page, x.m)
	errs[10] = d.MemSetAccess(x.va, page)
	errs[11] = d.StreamSynchronize(x.s)
	x.managed, errs[12] = d.AllocManaged(2 << 30)
	x.pinned, errs[13] = d.HostAlloc(9)
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
	return x
}

// ops are the calls on a device: the function that each makes and how. What
// one takes away does not matter to the others, which have things of their own.
var ops = []struct {
	f      int
	do     func(*things) error
	waits  bool // it calls f until that says that the work is done
	handle bool // f is given a stream or an event that is the caller's
}{
	{f: cuCtxPushCurrent, do: func(x *things) error { return x.d.Synchronize() }},
	{f: cuThreadExchangeStreamCaptureMode, do: func(x *things) error { return x.d.Synchronize() }},
	{f: cuStreamIsCapturing, do: func(x *things) error { return x.d.Synchronize() }, waits: true, handle: true},
	{f: cuEventRecord, do: func(x *things) error { return x.d.Synchronize() }, waits: true, handle: true},
	{f: cuEventQuery, do: func(x *things) error { return x.d.Synchronize() }, waits: true, handle: true},
	{f: cuEventSynchronize, do: func(x *things) error { return x.d.Synchronize() }, waits: true, handle: true},
	{f: cuMemGetInfo, do: func(x *things) error { _, _, err := x.d.MemInfo(); return err }},
	{f: cuMemAlloc, do: func(x *things) error { _, err := x.d.Alloc(100); return err }},
	{f: cuMemAllocManaged, do: func(x *things) error { _, err := x.d.AllocManaged(100); return err }},
	{f: cuMemFree, do: func(x *things) error { return x.d.Free(x.grant.Addr) }},
	{f: cuMemFree, do: func(x *things) error { return x.d.Free(x.managed.Addr) }},
	{f: cuMemcpyHtoD, do: func(x *things) error { return x.d.Write(x.grant.Addr, []byte{1}) }},
	{f: cuEventSynchronize, do: func(x *things) error { return x.d.Write(x.grant.Addr, []byte{1}) }, waits: true},
	{f: cuMemcpyDtoH, do: func(x *things) error { return x.d.Read(x.grant.Addr, make([]byte, 1)) }},
	{f: cuMemcpyHtoD, do: func(x *things) error { return x.d.WriteAsync(x.grant.Addr, x.pinned, x.s) }, handle: true},
	{f: cuMemcpyDtoH, do: func(x *things) error { return x.d.ReadAsync(x.pinned, x.grant.Addr, x.s) }, handle: true},
	{f: cuMemHostAlloc, do: func(x *things) error { _, err := x.d.HostAlloc(100); return err }},
	{f: cuMemFreeHost, do: func(x *things) error { return x.d.HostFree(x.pinned) }},
	{f: cuMemsetD8, do: func(x *things) error { return x.d.Fill(x.grant.Addr, 5, 0xff) }},
	{f: cuEventRecord, do: func(x *things) error { return x.d.Fill(x.grant.Addr, 5, 0xff) }, waits: true},
	{f: cuMemcpyDtoDAsync, do: func(x *things) error { return x.d.CopyAsync(x.grant.Addr, x.grant.Addr+1024, 9, x.s) }, handle: true},
	{f: cuMemsetD8Async, do: func(x *things) error { return x.d.FillAsync(x.grant.Addr, 5, 0xff, 0) }},
	{f: cuStreamCreate, do: func(x *things) error { _, err := x.d.StreamCreate(); return err }},
	{f: cuStreamDestroy, do: func(x *things) error { return x.d.StreamDestroy(x.s) }, handle: true},
	{f: cuStreamQuery, do: func(x *things) error { _, err := x.d.StreamQuery(x.s); return err }, handle: true},
	{f: cuEventQuery, do: func(x *things) error { return x.d.StreamSynchronize(x.s) }, waits: true, handle: true},
	{f: cuStreamWaitEvent, do: func(x *things) error { return x.d.StreamDestroy(x.s) }, handle: true},
	{f: cuStreamWaitEvent, do: func(x *things) error { return x.d.StreamWaitEvent(x.s, x.e) }, handle: true},
	{f: cuEventCreate, do: func(x *things) error { _, err := x.d.EventCreate(); return err }},
	{f: cuEventDestroy, do: func(x *things) error { return x.d.EventDestroy(x.e) }, handle: true},
	{f: cuEventRecord, do: func(x *things) error { return x.d.EventRecord(x.e, x.s) }, handle: true},
	{f: cuEventQuery, do: func(x *things) error { _, err := x.d.EventQuery(x.e); return err }, handle: true},
	{f: cuEventSynchronize, do: func(x *things) error { return x.d.EventSynchronize(x.e) }, waits: true, handle: true},
	{f: cuDeviceGetDefaultMemPool, do: func(x *things) error { _, err := x.d.DefaultPool(); return err }},
	{f: cuMemPoolCreate, do: func(x *things) error { _, err := x.d.PoolCreate(64 << 20); return err }},
	{f: cuMemPoolDestroy, do: func(x *things) error { return x.d.PoolDestroy(x.p) }},
	{f: cuMemPoolGetAttribute, do: func(x *things) error { _, err := x.d.PoolGetAttribute(x.p, 1); return err }},
	{f: cuMemPoolSetAttribute, do: func(x *things) error { return x.d.PoolSetAttribute(x.p, device.PoolReleaseThreshold, 1<<40) }},
	{f: cuMemPoolTrimTo, do: func(x *things) error { return x.d.PoolTrim(x.p, 1) }},
	{f: cuMemAllocFromPoolAsync, do: func(x *things) error { _, err := x.d.AllocAsync(x.p, 7, x.s); return err }, handle: true},
	{f: cuMemFreeAsync, do: func(x *things) error { return x.d.FreeAsync(x.async.Addr, x.s) }, handle: true},
	{f: cuMemAddressReserve, do: func(x *things) error { _, err := x.d.AddressReserve(page, page); return err }},
	{f: cuMemAddressFree, do: func(x *things) error { return x.d.AddressFree(x.free, page) }},
	{f: cuMemCreate, do: func(x *things) error { _, err := x.d.MemCreate(page); return err }},
	{f: cuMemRelease, do: func(x *things) error { return x.d.MemRelease(x.loose) }},
	{f: cuMemMap, do: func(x *things) error { return x.d.MemMap(x.free, page, x.loose) }},
	{f: cuMemSetAccess, do: func(x *things) error { return x.d.MemSetAccess(x.va, page) }},
	{f: cuMemUnmap, do: func(x *things) error { return x.d.MemUnmap(x.va, page) }},
}

// opening are the functions that Open cannot do without.
var opening = []int{
	cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceTotalMem, cuDeviceGetAttribute,
	cuMemGetAllocationGranularity, cuDevicePrimaryCtxRetain, cuCtxPushCurrent, cuThreadExchangeStreamCaptureMode, cuStreamCreate,
}

// unknownCode is one that the fake driver knows and this package does not;
// nobodysCode is known to none.
const unknownCode, nobodysCode Code = 12345, 54321

// allCodes are those of the table and two others, in order.
func allCodes() []Code {
	return append(slices.Sorted(maps.Keys(codes)), unknownCode, nobodysCode)
}

// checkRefused asserts that err is a CallError of function f with the code.
func checkRefused(t *testing.T, err error, f int, code Code) {
	t.Helper()
	var ce *device.CallError
	switch {
	case !errors.As(err, &ce):
		t.Errorf("%s with %v: %v is no CallError", cuFunctions[f].symbol, code, err)
		return
	case ce.Call != cuFunctions[f].name() || ce.Device == "":
		t.Errorf("%s with %v: of %q on %q", cuFunctions[f].symbol, code, ce.Call, ce.Device)
	case !errors.Is(err, code):
		t.Errorf("%s: %v, want %v", cuFunctions[f].symbol, err, code)
	}
	want := []string{codes[code].name, codes[code].advice}
	if code == unknownCode {
		want = []string{"CUDA_ERROR_OF_TOMORROW", "12345", "something new"}
	}
	for _, s := range want {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("%s: %q does not say %q", cuFunctions[f].symbol, err, s)
		}
	}
	for _, is := range []error{
		device.ErrOutOfMemory, device.ErrInvalidValue, device.ErrInvalidHandle, device.ErrLost, device.ErrIllegalAddress,
		device.ErrNotSupported, device.ErrNotPermitted, device.ErrClosed, ErrNoDriver,
	} {
		if errors.Is(err, is) != errors.Is(codes[code].is, is) {
			t.Errorf("%s: errors.Is(%v, %v) = %v", cuFunctions[f].symbol, err, is, errors.Is(err, is))
		}
	}
}

func (f *fake) setFail(fn int, code Code) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.fail, cuFunctions[fn].symbol)
	if code != 0 {
		f.fail[cuFunctions[fn].symbol] = int32(code)
	}
}

func (f *fake) count(fn int) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.called[cuFunctions[fn].symbol]
}

// TestEveryFailure makes every function answer every code, and then work after
// all: a failed call took nothing and gave nothing back.
func TestEveryFailure(t *testing.T) {
	for _, op := range ops {
		t.Run(cuFunctions[op.f].name(), func(t *testing.T) {
			f := newFake(t)
			x := newThings(t, f.open())
			thread := op.f == cuCtxPushCurrent || op.f == cuThreadExchangeStreamCaptureMode // needed by every call
			for _, code := range allCodes() {
				if op.waits && op.f == cuEventQuery && code == notReady {
					continue // it goes on waiting
				}
				if op.handle && (code == invalidHandle || code == contextDestroyed) {
					continue // see TestDestroyedElsewhere
				}
				f.setFail(op.f, code)
				err := op.do(x)
				if code == notReady && (op.f == cuStreamQuery || op.f == cuEventQuery) {
					if err != nil {
						t.Errorf("work under way is told as %v", err)
					}
					continue
				}
				want := code
				if op.f == cuCtxPushCurrent && code == invalidContext {
					want = contextDestroyed
				}
				checkRefused(t, err, op.f, want)

				// What ends the process's use of the GPU ends every call.
				calls := f.count(cuCtxGetId)
				_, _, err = x.d.MemInfo()
				if !want.fatal() && op.f != cuMemGetInfo && !thread && err != nil {
					t.Errorf("after %v: %v", code, err)
				}
				if want.fatal() {
					checkRefused(t, err, cuMemGetInfo, want)
					if f.count(cuCtxGetId) != calls {
						t.Errorf("after %v the driver was called again", code)
					}
					x.d.fatal.Store(0)
				}
			}
			f.setFail(op.f, 0)
			if err := op.do(x); err != nil {
				t.Errorf("after all failures: %v", err)
			}
			checkClosed(t, f, x.d)
		})
	}
}

// checkClosed closes a device and asserts that the driver has all back.
func checkClosed(t rapid.TB, f *fake, d *Device) {
	t.Helper()
	if err := d.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	now, _ := f.gpus[0].sim.Held()
	if managed := f.gpus[0].sim.HeldManaged(); now != 0 || managed != 0 || f.gpus[0].refs != 0 {
		t.Errorf("%d bytes, %d managed ones and %d references are left", now, managed, f.gpus[0].refs)
	}
}

func TestOpenFailures(t *testing.T) {
	for _, fn := range opening {
		f := newFake(t)
		m := f.use()
		for _, code := range allCodes() {
			if fn == cuDeviceGetAttribute && code == 1 {
				continue // an attribute that the driver does not know
			}
			if fn == cuCtxPushCurrent && code == invalidContext {
				continue // told as a context that was reset
			}
			f.setFail(fn, code)
			d, err := m.open(0)
			if d != nil || f.gpus[0].refs != 0 {
				t.Fatalf("%s with %v: a device, or %d references left", cuFunctions[fn].symbol, code, f.gpus[0].refs)
			}
			checkRefused(t, err, fn, code)
		}
		f.setFail(fn, 0)
		d, err := m.open(0)
		if err != nil {
			t.Fatal(err)
		}
		checkClosed(t, f, d)
	}
	f := newFake(t)
	for _, ordinal := range []int{-1, 1, 1 << 40} {
		_, err := f.use().open(ordinal)
		if !errors.Is(err, Code(101)) || !strings.Contains(err.Error(), "there are 1 devices") {
			t.Errorf("device %d: %v", ordinal, err)
		}
	}
}

// TestCloseFailures: whatever fails while closing, the rest is given back.
func TestCloseFailures(t *testing.T) {
	for _, fn := range []int{
		cuStreamIsCapturing, cuEventRecord, cuEventQuery, cuEventSynchronize,
		cuMemUnmap, cuMemRelease, cuMemAddressFree, cuMemFreeAsync, cuMemFree,
		cuEventDestroy, cuStreamDestroy, cuMemPoolDestroy, cuMemPoolTrimTo, cuDevicePrimaryCtxRelease,
	} {
		for _, code := range []Code{1, 999, 700} {
			f := newFake(t)
			x := newThings(t, f.open())
			if _, err := x.d.DefaultPool(); err != nil {
				t.Fatal(err)
			}
			f.setFail(fn, code)
			err := x.d.Close()
			if code.fatal() && fn != cuDevicePrimaryCtxRelease {
				if err != nil { // it is gone, and all on it
					t.Errorf("%s with %v: %v", cuFunctions[fn].symbol, code, err)
				}
			} else {
				checkRefused(t, err, fn, code)
			}
			if f.count(cuDevicePrimaryCtxRelease) != 1 {
				t.Errorf("%s with %v: the context is not released", cuFunctions[fn].symbol, code)
			}
			if err := x.d.Close(); err != nil {
				t.Errorf("closing again: %v", err)
			}
		}
	}
}

// TestMissing leaves each symbol out.
func TestMissing(t *testing.T) {
	for i, fn := range cuFunctions {
		t.Run(fn.symbol, func(t *testing.T) {
			f := newFake(t)
			f.lacks[fn.symbol] = true
			m := f.use()
			d, err := m.open(0)
			if slices.Contains(needed, i) {
				if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), fn.symbol) || !strings.Contains(err.Error(), "update") {
					t.Errorf("%v", err)
				}
				if _, err := m.list(); !errors.Is(err, ErrNoDriver) {
					t.Errorf("List: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			info := d.Info()
			pools := i < firstPoolFunction || i > lastPoolFunction
			pages := i < firstPageFunction || i > lastPageFunction
			managed := i != cuMemAllocManaged
			if info.HasPools != pools || info.HasPages != pages || (info.Page != 0) != pages || info.HasManaged != managed || info.Oversubscribes != managed {
				t.Errorf("%+v", info)
			}
			for _, op := range ops {
				if op.f != i {
					continue
				}
				// A device with one of everything that it can have.
				x := &things{d: d}
				x.grant, _ = d.Alloc(4 << 20)
				x.managed, _ = d.AllocManaged(4 << 20)
				x.s, _ = d.StreamCreate()
				x.e, _ = d.EventCreate()
				x.pinned, _ = d.HostAlloc(9)
				err := op.do(x)
				var ce *device.CallError
				if !errors.As(err, &ce) || ce.Call != fn.name() || !errors.Is(err, device.ErrNotSupported) ||
					!strings.Contains(err.Error(), fn.symbol) || !strings.Contains(err.Error(), "CUDA 12.8") || !strings.Contains(err.Error(), "update") {
					t.Errorf("%v", err)
				}
			}
		})
	}
}

// TestSymbols: the tables are whole, and each function is called in some test.
func TestSymbols(t *testing.T) {
	f := newFake(t)
	f.nv.devices[0].compute = []nvmlProcess{{pid: 1}}
	m := f.use()
	if _, err := m.list(); err != nil {
		t.Fatal(err)
	}
	for _, op := range ops {
		d, err := m.open(0)
		if err != nil {
			t.Fatal(err)
		}
		if err := op.do(newThings(t, d)); err != nil {
			t.Errorf("%s: %v", cuFunctions[op.f].symbol, err)
		}
		checkClosed(t, f, d)
	}
	m.nvml.names()
	_ = m.cause(cuInit, unknownCode).Error()
	// What is asked when something went wrong.
	d := f.open()
	x := newThings(t, d)
	f.setFail(cuMemFree, 999)
	if err := d.Free(x.grant.Addr); !errors.Is(err, Code(999)) {
		t.Error(err)
	}
	f.setFail(cuMemFree, 0)
	if err := f.gpus[0].sim.StreamDestroy(device.Stream(f.handle(f.gpus[0], uint64(x.s), streamBits))); err != nil {
		t.Fatal(err)
	}
	if err := d.Synchronize(); err != nil {
		t.Error(err)
	}
	// And of older libraries.
	for _, old := range []string{"cuDeviceGetUuid_v2", "nvmlDeviceGetMemoryInfo_v2", "cuCtxGetId"} {
		f.lacks[old] = true
	}
	for _, version := range []string{"_v3", "_v2"} {
		for _, kind := range []string{"Compute", "Graphics", "MPSCompute"} {
			f.lacks["nvmlDeviceGet"+kind+"RunningProcesses"+version] = true
		}
		if _, err := f.use().list(); err != nil {
			t.Fatal(err)
		}
	}
	if err := f.open().Synchronize(); err != nil {
		t.Fatal(err)
	}
	symbols := map[string]bool{}
	for _, fn := range slices.Concat(cuFunctions, nvmlFunctions) {
		symbols[fn.symbol] = true
		if fn.symbol == "" || callbacks()[fn.symbol] == 0 {
			t.Errorf("function %q has no stand-in", fn.symbol)
		}
		if f.called[fn.symbol] == 0 {
			t.Errorf("%s is never called", fn.symbol)
		}
	}
	if n := len(callbacks()); n != len(symbols) {
		t.Errorf("%d stand-ins for %d functions", n, len(symbols))
	}
	for symbol, want := range map[string]string{
		"cuMemAlloc_v2": "cuMemAlloc", "cuInit": "cuInit", "nvmlDeviceGetComputeRunningProcesses_v3": "nvmlDeviceGetComputeRunningProcesses",
	} {
		if got := (function{symbol: symbol}).name(); got != want {
			t.Errorf("%s is called %q", symbol, got)
		}
	}
}

// TestLayouts pins what C compilers make of the structures on Linux.
func TestLayouts(t *testing.T) {
	var p memProps
	var a memAccess
	var o poolProps
	var m nvmlMemory2
	var n nvmlProcess
	for _, tc := range []struct {
		name      string
		got, want uintptr
	}{
		{"memLocation", unsafe.Sizeof(p.location), 8},
		{"memProps", unsafe.Sizeof(p), 32},
		{"memProps.handles", unsafe.Offsetof(p.handles), 4},
		{"memProps.location", unsafe.Offsetof(p.location), 8},
		{"memProps.win32", unsafe.Offsetof(p.win32), 16},
		{"memProps.compressed", unsafe.Offsetof(p.compressed), 24},
		{"memProps.rdma", unsafe.Offsetof(p.rdma), 25},
		{"memProps.usage", unsafe.Offsetof(p.usage), 26},
		{"memAccess", unsafe.Sizeof(a), 12},
		{"memAccess.flags", unsafe.Offsetof(a.flags), 8},
		{"poolProps", unsafe.Sizeof(o), 88},
		{"poolProps.handles", unsafe.Offsetof(o.handles), 4},
		{"poolProps.location", unsafe.Offsetof(o.location), 8},
		{"poolProps.win32", unsafe.Offsetof(o.win32), 16},
		{"poolProps.max", unsafe.Offsetof(o.max), 24},
		{"poolProps.usage", unsafe.Offsetof(o.usage), 32},
		{"nvmlMemory", unsafe.Sizeof(nvmlMemory{}), 24},
		{"nvmlMemory.free", unsafe.Offsetof(nvmlMemory{}.free), 8},
		{"nvmlMemory.used", unsafe.Offsetof(nvmlMemory{}.used), 16},
		{"nvmlMemory2", unsafe.Sizeof(m), 40},
		{"nvmlMemory2.total", unsafe.Offsetof(m.total), 8},
		{"nvmlMemory2.reserved", unsafe.Offsetof(m.reserved), 16},
		{"nvmlMemory2.free", unsafe.Offsetof(m.free), 24},
		{"nvmlMemory2.used", unsafe.Offsetof(m.used), 32},
		{"nvmlMemory2Version", nvmlMemory2Version, 0x2000028},
		{"nvmlProcess", unsafe.Sizeof(n), 16},
		{"nvmlProcess.used", unsafe.Offsetof(n.used), 8},
	} {
		if tc.got != tc.want {
			t.Errorf("%s is %d, want %d", tc.name, tc.got, tc.want)
		}
	}
}

// TestThreads: contexts belong to threads and goroutines wander between them.
func TestThreads(t *testing.T) {
	f := newFake(t)
	f.add(1 << 30)
	m := f.use()
	var ds [2]*Device
	var opened [2]uint64 // calls
	for i := range ds {
		var err error
		if ds[i], err = m.open(i); err != nil {
			t.Fatal(err)
		}
		defer ds[i].Close()
		opened[i] = ds[i].Counters().Calls
	}
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			d := ds[g%2]
			for range 25 {
				r, err := d.Alloc(1 << 20)
				if err == nil {
					err = d.Free(r.Addr)
				}
				if err != nil {
					t.Errorf("goroutine %d: %v", g, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for i, g := range f.gpus {
		if now, peak := g.sim.Held(); now != 0 || peak == 0 {
			t.Errorf("GPU %d: %d bytes held, %d at most", i, now, peak)
		}
		if c := ds[i].Counters(); c.Calls != opened[i]+32*25*2 || c.Time <= 0 {
			t.Errorf("GPU %d: %+v", i, c)
		}
	}
}

// TestCloseMeanwhile closes a device that others are using: their calls work
// or find it closed, and nothing stays.
func TestCloseMeanwhile(t *testing.T) {
	f := newFake(t)
	d := f.open()
	var wg sync.WaitGroup
	var started sync.WaitGroup
	for range 8 {
		started.Add(1)
		wg.Go(func() {
			for i := 0; ; i++ {
				_, err := d.Alloc(1000)
				if i == 3 {
					started.Done()
				}
				if errors.Is(err, device.ErrClosed) {
					return
				}
				if err != nil && !errors.Is(err, device.ErrOutOfMemory) {
					t.Error(err)
					return
				}
			}
		})
	}
	started.Wait()
	checkClosed(t, f, d)
	wg.Wait()
}

// TestNoBytes: about no bytes the driver is not asked, but a closed device says
// that it is.
func TestNoBytes(t *testing.T) {
	f := newFake(t)
	d := f.open()
	opened := d.Counters().Calls
	for _, want := range []error{nil, device.ErrClosed} {
		for call, err := range map[string]error{
			"Write": d.Write(1, nil), "Read": d.Read(1, nil), "Fill": d.Fill(1, 0, 1),
			"CopyAsync": d.CopyAsync(1, 2, 0, 0), "FillAsync": d.FillAsync(1, 0, 1, 0),
		} {
			if !errors.Is(err, want) {
				t.Errorf("%s: %v, want %v", call, err, want)
			}
		}
		if n := d.Counters().Calls; want == nil && n != opened {
			t.Errorf("%d calls", n)
		}
		checkClosed(t, f, d)
	}
}
