//go:build libgpumem

// Libgpumem is the pools as a C library, libgpumem.so, which the front (preload/front) loads
// into a program that uses a GPU. Each function here is one of package shim's, with a
// CUresult for its error.
//
// A panic is an error of the driver (999) and a line on standard error: the program is
// not ended by us.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../front -I${SRCDIR}/../internal/guest
#define _GNU_SOURCE
#include "gpumem.h"
#include "line.h"
*/
import "C"

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"gpumem"
	"gpumem/device"
	"gpumem/device/cuda"
	"gpumem/node/ledger"
	"gpumem/policy"
	"gpumem/preload/internal/guest"
	"gpumem/preload/internal/shim"
	"gpumem/record/trace"
	"gpumem/size"
)

func main() {}

// gpu is one GPU that the program uses.
type gpu struct {
	number  int
	shared  *C.gm_device
	account shim.Account
	charges atomic.Pointer[shim.Charges]
	pool    atomic.Pointer[shim.Pool] // nil until the program's context is there
	dev     *cuda.Device              // of the pool
	last    shim.Figures              // of pools that have ended
	full    sync.Once                 // said that the lease has no room for this process

	agent   *shim.Agent // nil where the memory stays
	peers   atomic.Bool // another GPU may use the memory, which stays so
	unified atomic.Bool // the memory is the host's
}

var (
	settings struct {
		libcuda, ledgers, parts string
		policy                  policy.Policy
		limit, beyond           uint64
		process                 shim.Process
		ordered, report         bool
		gate                    *gate // nil unless the process lends its memory or takes turns
		lend, turn              time.Duration
		pinned                  bool
		libnvml                 *C.char // file of the driver's NVML; "" for none
	}
	gpus     [64]atomic.Pointer[gpu]
	nameless = map[string]bool{} // ledgers without a UUID that a GPU has joined; gmOpen's alone, which is called by one thread at a time
	record   struct {
		sync.Once
		file *os.File
		w    *trace.Writer
	}
)

//export gmDeepen
func gmDeepen() { guest.Grow() }

//export gmInit
func gmInit(s *C.gm_settings) (code C.int) {
	defer recovered(&code)
	settings.libcuda, settings.ledgers, settings.parts = C.GoString(s.libcuda), C.GoString(s.ledgers), C.GoString(s.parts)
	settings.limit, settings.beyond = uint64(s.limit), uint64(s.beyond)
	settings.process = shim.Process{Outside: uint64(s.outside), Context: uint64(s.more)}
	settings.ordered, settings.report = s.ordered != 0, s.report != 0
	if s.gate != nil {
		settings.gate, settings.lend, settings.turn = &gate{s.gate}, time.Duration(s.lend), time.Duration(s.turn)
		settings.pinned, settings.libnvml = s.pinned != 0, s.libnvml
		if s.turn == C.GM_TURN_AUTO {
			settings.turn = ledger.AutoQuantum
		}
	}
	settings.policy = policy.Policy{Spec: "elastic", Name: "elastic", Kind: policy.Elastic, Fraction: 1}
	if text := C.GoString(s.policy); text != "" {
		settings.policy = policy.Policy{}
		if err := json.Unmarshal([]byte(text), &settings.policy); err != nil {
			say("GPUMEM_POLICY: %v", err)
			return C.CU_INVALID_VALUE
		}
	}
	if path := C.GoString(s.record); path != "" {
		if err := recordTo(path, C.GoString(s.whole)); err != nil {
			say("nothing is recorded: %v", err)
		}
	}
	return 0
}

// recordTo makes the recording's file: path, and for further processes path.PID. In a run of
// gpumem fit it is path.PID for each, with a file whole.PID that the front makes (front.c); else
// whole is "".
func recordTo(path, whole string) (err error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_EXCL
	of := "." + strconv.Itoa(os.Getpid())
	if whole != "" {
		path, whole = path+of, whole+of
	}
	if record.file, err = os.OpenFile(path, flags, 0o666); errors.Is(err, os.ErrExist) {
		record.file, err = os.OpenFile(path+of, flags, 0o666)
	}
	if err != nil {
		return err
	}
	is, err := record.file.Stat()
	if err != nil {
		return err
	}
	if record.w, err = trace.NewWriter(&recording{record.file, is, whole}); err == nil && whole != "" {
		record.w.FlushAfter = 0
	}
	return err
}

// recording is the recording's file, and one beside it that is there while nothing is lost.
// That is removed where writing fails, which a full disk allows.
type recording struct {
	*os.File
	is    os.FileInfo // what the descriptor was open on: a program may close all of its own
	whole string      // its path; "" for none
}

func (r *recording) Write(p []byte) (n int, err error) {
	if now, e := r.Stat(); e != nil || !os.SameFile(now, r.is) {
		err = errors.New("the program has closed the file's descriptor")
	}
	for n < len(p) && err == nil {
		var got C.ssize_t
		got, err = C.write_quietly(C.int(r.Fd()), unsafe.Pointer(&p[n]), C.size_t(len(p)-n))
		n += max(int(got), 0)
		if got >= 0 || err == syscall.EINTR {
			err = nil
		}
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", r.Name(), err)
		if r.whole != "" {
			_ = os.Remove(r.whole)
		}
	}
	return n, err
}

//export gmOpen
func gmOpen(number C.int, uuid *C.char, there C.int, shared *C.gm_device) (code C.int) {
	defer recovered(&code)
	g := gpus[number].Load()
	if g == nil {
		g = &gpu{number: int(number), shared: shared}
		if settings.ledgers != "" {
			l, err := shim.Join(settings.ledgers, settings.parts, C.GoString(uuid), nameless)
			if err != nil {
				say("GPU %d: no memory without the lease: %v", g.number, err)
				return C.CU_UNKNOWN
			}
			l.Say = func(err error) { say("GPU %d: the lease's ledger: %v", g.number, err) }
			g.account = l
			if settings.gate != nil && l.ByTurns() {
				g.takeTurns(l)
			}
			store(&shared.ledger, uint64(l.Descriptor()))
		} else {
			g.account = shim.NewLimit(cmp.Or(settings.limit, 1<<64-1))
		}
		gpus[number].Store(g)
	}
	process := settings.process
	process.Block, process.There = uint64(shared.block), there != 0
	if g.agent != nil {
		process.WaitRoom = g.agent.WaitRoom
	}
	c, err := shim.NewCharges(g.account, process)
	if err != nil {
		g.full.Do(func() { say("GPU %d: %v", g.number, err) })
		return C.CU_OUT_OF_MEMORY
	}
	g.charges.Store(c)
	store(&shared.counts, 1)
	return 0
}

// takeTurns has the memory of the GPU leave for others of the lease, and come back.
func (g *gpu) takeTurns(l *shim.Lease) {
	turning.Add(1)
	g.agent = shim.NewAgent(shim.AgentConfig{
		Gate: settings.gate, Seat: l.Member, LendAfter: settings.lend, Quantum: settings.turn, Pool: g.pool.Load, Reason: g.stays,
		Look: look,
		Say:  func(line string) { say("GPU %d: %s", g.number, line) },
	})
}

// turning is how many GPUs of this process have an agent.
var turning atomic.Int32

// turnsText says what turns have cost, behind other figures; it is empty where there were none.
func (g *gpu) turnsText() string {
	if g.agent == nil {
		return ""
	}
	return g.agent.Totals().String()
}

// moves returns what a pool needs whose memory may leave.
func (g *gpu) moves(c *shim.Config) {
	if g.agent != nil {
		c.Room, c.Pinned, c.WaitRoom = shim.Room, settings.pinned, g.agent.WaitRoom
	}
}

// store sets a word that C reads.
func store(at *C.u64, v uint64) { atomic.StoreUint64((*uint64)(unsafe.Pointer(at)), v) }

//export gmServe
func gmServe(number C.int) (code C.int) {
	defer recovered(&code)
	g := gpus[number].Load()
	if err := g.charges.Load().Enter(); err != nil {
		g.full.Do(func() { say("GPU %d: %v", g.number, err) })
		return C.CU_OUT_OF_MEMORY
	}
	dev, err := cuda.OpenLibrary(settings.libcuda, g.number)
	if err == nil {
		g.unified.Store(dev.Info().Unified)
		var p *shim.Pool
		c := shim.Config{
			Policy: settings.policy, Account: g.account, Charges: g.charges.Load(), Ordered: settings.ordered, Beyond: settings.beyond, Record: record.w,
			Say:    func(line string) { say("%s", line) },
			Before: g.last,
			// The range only grows, so that whenever C reads it all blocks are in it.
			Addresses: func(low, high uint64) {
				store(&g.shared.to, max(high, uint64(g.shared.to)))
				if from := uint64(g.shared.from); from == 0 || low < from {
					store(&g.shared.from, low)
				}
			},
			Pending: func(bytes uint64) { store(&g.shared.pending, bytes) },
		}
		g.moves(&c)
		p, err = shim.Open(dev, c)
		if err == nil {
			g.dev = dev
			g.pool.Store(p)
			store(&g.shared.context, dev.Context())
			return 0
		}
		_ = dev.Close()
	}
	say("GPU %d: its memory is the driver's own, and no pool's, within the lease: %v", g.number, err)
	return C.NOT_MINE
}

//export gmDrop
func gmDrop(number C.int) {
	defer recovered(nil)
	g := gpus[number].Load()
	p := g.pool.Swap(nil)
	store(&g.shared.context, 0)
	if p == nil {
		return
	}
	g.last = p.Figures()
	_ = p.Close() // the context ends, and all of it
	_ = g.dev.Close()
}

// poolOf is the pool of a GPU; nil while the program's context is not there.
func poolOf(number C.int) *shim.Pool { return gpus[number].Load().pool.Load() }

// chargesOf are what the program took from a GPU past the pool.
func chargesOf(number C.int) *shim.Charges { return gpus[number].Load().charges.Load() }

//export gmAlloc
func gmAlloc(number C.int, bytes C.u64, at *C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.CU_OUT_OF_MEMORY
	}
	addr, err := p.Alloc(uint64(bytes))
	return given(at, addr, err)
}

//export gmAllocAsync
func gmAllocAsync(number C.int, bytes, stream C.u64, at *C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.CU_OUT_OF_MEMORY
	}
	addr, err := p.AllocAsync(uint64(bytes), uint64(stream))
	if errors.Is(err, shim.ErrCapturing) {
		return C.NOT_MINE // the driver serves it, and it is counted
	}
	return given(at, addr, err)
}

// given returns the CUresult of a request, and stores the block's address.
func given(at *C.u64, addr uint64, err error) C.int {
	if err == nil {
		*at = C.u64(addr)
	}
	return codeOf(err)
}

//export gmFree
func gmFree(number C.int, at C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.NOT_MINE
	}
	return freed(p, uint64(at), p.Free(uint64(at)))
}

//export gmFreeAsync
func gmFreeAsync(number C.int, at, stream C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.NOT_MINE
	}
	return freed(p, uint64(at), p.FreeAsync(uint64(at), uint64(stream)))
}

// freed returns the CUresult of a free. The front knows one range for all addresses of a
// pool, and between them may be memory of the driver's.
func freed(p *shim.Pool, at uint64, err error) C.int {
	if err != nil && !p.Contains(at) {
		return C.NOT_MINE
	}
	return codeOf(err)
}

//export gmInfo
func gmInfo(number C.int, free, total *C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.CU_UNKNOWN
	}
	f, t, err := p.Info()
	*free, *total = C.u64(f), C.u64(t)
	return codeOf(err)
}

//export gmRange
func gmRange(number C.int, at C.u64, base, bytes *C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.NOT_MINE
	}
	b, n, err := p.Range(uint64(at))
	switch {
	case err != nil && !p.Contains(uint64(at)):
		return C.NOT_MINE
	case err != nil:
		return C.CU_NOT_FOUND
	}
	*base, *bytes = C.u64(b), C.u64(n)
	return 0
}

//export gmStreamDestroyed
func gmStreamDestroyed(number C.int, stream C.u64) {
	defer recovered(nil)
	if p := poolOf(number); p != nil {
		if err := p.StreamDestroyed(uint64(stream)); err != nil && !errors.Is(err, gpumem.ErrClosed) {
			say("a stream that ends: %v", err)
		}
	}
}

//export gmSynchronizing
func gmSynchronizing(number C.int) (n C.u64) {
	defer recovered(nil)
	if p := poolOf(number); p != nil {
		n = C.u64(p.Synchronizing())
	}
	return n
}

//export gmSynchronized
func gmSynchronized(number C.int, n C.u64) {
	defer recovered(nil)
	if p := poolOf(number); p != nil && n != 0 {
		if err := p.Synchronized(uint64(n)); err != nil {
			say("memory that was freed: %v", err)
		}
	}
}

//export gmPeer
func gmPeer(number, peer C.int) {
	defer recovered(nil)
	gpus[number].Load().peers.Store(true)
	if p := poolOf(number); p != nil {
		if err := p.Peer(int(peer)); err != nil {
			say("GPU %d cannot use the pool of GPU %d: %v", int(peer), int(number), err)
		}
	}
}

//export gmTrim
func gmTrim(number C.int) {
	defer recovered(nil)
	if p := poolOf(number); p != nil {
		_ = p.Trim() // what cannot be released now stays idle
	}
}

//export gmPoolAttribute
func gmPoolAttribute(number, attribute C.int, v *C.u64) (code C.int) {
	defer recovered(&code)
	p := poolOf(number)
	if p == nil {
		return C.CU_INVALID_VALUE
	}
	held, peakHeld := p.Reserved()
	used, peakUsed := p.Used()
	*v = C.u64(map[device.PoolAttribute]uint64{
		device.PoolReservedCurrent: held, device.PoolReservedHigh: peakHeld, device.PoolUsedCurrent: used, device.PoolUsedHigh: peakUsed,
	}[device.PoolAttribute(attribute)])
	return 0
}

//export gmTake
func gmTake(number C.int, bytes C.u64) (code C.int) {
	defer recovered(&code)
	return codeOf(chargesOf(number).Take(uint64(bytes)))
}

//export gmFailed
func gmFailed(number C.int, bytes C.u64) {
	defer recovered(nil)
	chargesOf(number).Failed(uint64(bytes))
}

//export gmResize
func gmResize(number C.int, counted, bytes C.u64) (code C.int) {
	defer recovered(&code)
	return codeOf(chargesOf(number).Resize(uint64(counted), uint64(bytes)))
}

//export gmDone
func gmDone(number, kind C.int, value, bytes, context C.u64) {
	defer recovered(nil)
	chargesOf(number).Done(shim.Key{Kind: shim.Kind(kind), Value: uint64(value)}, uint64(bytes), uint64(context))
}

//export gmRetained
func gmRetained(number, kind C.int, value C.u64) {
	defer recovered(nil)
	chargesOf(number).Retained(shim.Key{Kind: shim.Kind(kind), Value: uint64(value)})
}

//export gmRemove
func gmRemove(number, kind C.int, value C.u64) (token C.u64) {
	defer recovered(nil)
	return C.u64(chargesOf(number).Remove(shim.Key{Kind: shim.Kind(kind), Value: uint64(value)}))
}

//export gmRemoved
func gmRemoved(number C.int, token C.u64, code C.int) {
	defer recovered(nil)
	chargesOf(number).Removed(uint64(token), code == 0)
}

//export gmReleasing
func gmReleasing(number, begins C.int) {
	defer recovered(nil)
	if c := chargesOf(number); begins != 0 {
		c.Releasing()
	} else {
		c.Released()
	}
}

//export gmReleases
func gmReleases(number C.int) (n C.u64) {
	defer recovered(nil)
	return C.u64(chargesOf(number).Releases())
}

//export gmReleasedSince
func gmReleasedSince(number C.int, seen C.u64) (yes C.int) {
	defer recovered(nil)
	if chargesOf(number).ReleasedSince(uint64(seen)) {
		yes = 1
	}
	return yes
}

//export gmTakePooled
func gmTakePooled(number C.int, bytes, reserved, used, limit C.u64, counted *C.u64) (code C.int) {
	defer recovered(&code)
	n, err := chargesOf(number).TakePooled(uint64(bytes), uint64(reserved), uint64(used), uint64(limit))
	*counted = C.u64(n)
	return codeOf(err)
}

//export gmReservedPooled
func gmReservedPooled(number C.int, pool, reserved, counted C.u64) (code C.int) {
	defer recovered(&code)
	return codeOf(chargesOf(number).ReservedPooled(uint64(pool), uint64(reserved), uint64(counted)))
}

//export gmTakeContext
func gmTakeContext(number C.int) (code C.int) {
	defer recovered(&code)
	err := chargesOf(number).TakeContext()
	if g := gpus[number].Load(); err != nil {
		g.full.Do(func() { say("GPU %d: %v", g.number, err) })
	}
	return codeOf(err)
}

//export gmTookContext
func gmTookContext(number C.int, context C.u64) {
	defer recovered(nil)
	chargesOf(number).TookContext(uint64(context))
}

//export gmLeft
func gmLeft(number C.int, limit, left *C.u64) {
	defer recovered(nil)
	all, rest := gpus[number].Load().account.Limit()
	*limit, *left = C.u64(all), C.u64(rest)
}

//export gmRemoveContext
func gmRemoveContext(number C.int, context C.u64) (token C.u64) {
	defer recovered(nil)
	return C.u64(chargesOf(number).RemoveContext(uint64(context)))
}

//export gmRemovedContext
func gmRemovedContext(number C.int, token C.u64, code C.int) {
	defer recovered(nil)
	chargesOf(number).RemovedContext(uint64(token), code == 0)
}

//export gmMapped
func gmMapped(number C.int, at, bytes, handle C.u64) {
	defer recovered(nil)
	chargesOf(number).Mapped(uint64(at), uint64(bytes), shim.Key{Kind: shim.Handle, Value: uint64(handle)})
}

//export gmUnmapped
func gmUnmapped(number C.int, at, bytes C.u64) {
	defer recovered(nil)
	chargesOf(number).Unmapped(uint64(at), uint64(bytes))
}

//export gmExit
func gmExit() {
	defer recovered(nil)
	for i := range gpus {
		g := gpus[i].Load()
		if g == nil || g.charges.Load() == nil {
			continue
		}
		f := g.last
		if p := g.pool.Load(); p != nil {
			f = p.Figures()
		}
		g.account.Publish(f)
		if settings.report && f.Allocs+f.Refused > 0 {
			say("GPU %d, pool %s: peak %s in use, %s reserved; %d allocations, %d refused, %d driver calls%s",
				g.number, settings.policy.Spec, size.Format(f.PeakInUse), size.Format(f.PeakHeld), f.Allocs, f.Refused, f.DriverCalls, g.turnsText())
		}
	}
	if record.w != nil {
		if err := record.w.Flush(); err != nil {
			say("the recording: %v", err)
		}
	}
}

// recovered makes a panic an answer.
func recovered(code *C.int) {
	if r := recover(); r != nil {
		say("%v\n%s", r, debug.Stack())
		if code != nil {
			*code = C.CU_UNKNOWN
		}
	}
}

// say writes a line to standard error, which may have no reader: Go would end the program.
func say(format string, args ...any) {
	line := fmt.Appendf(nil, "gpumem: "+format+"\n", args...)
	C.write_line((*C.char)(unsafe.Pointer(&line[0])), C.size_t(len(line)))
}

// codeOf returns the CUresult of an error.
func codeOf(err error) C.int {
	var code cuda.Code
	switch {
	case err == nil:
		return 0
	case errors.Is(err, gpumem.ErrOutOfMemory), errors.Is(err, device.ErrOutOfMemory), errors.Is(err, shim.ErrCapturing), errors.Is(err, shim.ErrAccount):
		return C.CU_OUT_OF_MEMORY // of a capture: none that could be handed out now
	case errors.Is(err, gpumem.ErrNotAllocated), errors.Is(err, gpumem.ErrDoubleFree), errors.Is(err, gpumem.ErrBadRequest):
		return C.CU_INVALID_VALUE
	case errors.As(err, &code):
		return C.int(code)
	}
	say("%v", err)
	return C.CU_UNKNOWN
}
