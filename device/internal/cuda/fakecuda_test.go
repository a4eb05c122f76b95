//go:build linux && (amd64 || arm64) && !nodriver

// A CUDA driver for tests, behind the real C calling convention: each function
// is a purego callback that checks what the real driver would crash on or
// refuse, and passes the work on to a simulated GPU. Callbacks are never freed,
// so there is one set of them, and the state behind it is switched (use).

package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"gpumem/device"
	"gpumem/device/sim"
)

// fake is the state of a driver and of the machine that it runs on.
type fake struct {
	t    testing.TB
	host host

	// Set before use; then guarded by mu.
	mu       sync.Mutex
	version  int32
	gpus     []*fakeGPU
	lacks    map[string]bool          // symbols that are not there
	late     map[string]int32         // what a function answers when it has worked
	side     uint64                   // handle of the stream for copies of the device that open opened
	asked    func()                   // called when a question finds work under way
	fail     map[string]int32         // what a function answers instead of working
	called   map[string]int           // how often each was called
	block    map[string]chan struct{} // what a function waits for before it works
	inside   map[string]int           // how many threads are in a function that has a block
	most     map[string]int           // the most that ever were
	stacks   map[int][]uint64         // contexts of each thread, the current one last
	modes    map[int]int32            // capture mode of each thread; 0 is global
	capture  *fakeCapture             // a graph that is being captured
	problems []string                 // what the real driver would not have forgiven
	pinned   map[uint64][]byte        // the host's memory that was pinned, by address
	nv       fakeNVML
}

// fakeGPU is one GPU, or a slice.
type fakeGPU struct {
	device.GPU // the memory
	sim        *sim.Device
	id         uint64
	name       string
	uuid       [16]byte // of the slice, where it is one
	parent     [16]byte // of the GPU that it is a slice of; else the same
	attributes map[uint64]int32
	refs       int    // of the primary context
	active     bool   // the primary context is set up
	generation uint64 // counts how often it was reset; part of handles
}

// fakeCapture is a graph that is being captured, by a thread that is no test's,
// in the mode that is strictest to others (global).
type fakeCapture struct {
	stream uint64 // handle
	broken string // the call that spoiled it
}

// Handles look as pointers do, so that a truncated one is noticed.
const (
	contextBits = 0x5601_0000_0000
	streamBits  = 0x5602_0000_0000
	eventBits   = 0x5603_0000_0000
	poolBits    = 0x5604_0000_0000
	memoryBits  = 0x5605_0000_0000

	generationStep = 1 << 24 // of handles: what is above it counts generations
)

// now is the driver that the callbacks are.
var now atomic.Pointer[fake]

// newFake makes a driver with one GPU of 1 GiB.
func newFake(t testing.TB) *fake {
	f := &fake{
		t: t, version: 12080,
		lacks: map[string]bool{}, late: map[string]int32{}, fail: map[string]int32{}, called: map[string]int{},
		block: map[string]chan struct{}{}, inside: map[string]int{}, most: map[string]int{}, stacks: map[int][]uint64{}, modes: map[int]int32{},
		host: host{proc: t.TempDir(), dev: t.TempDir(), openFile: os.OpenFile, lookupEnv: func(string) (string, bool) { return "", false }},
	}
	f.nv.version = "580.82.07"
	f.add(1 << 30)
	return f
}

// add adds a GPU.
func (f *fake) add(total uint64) *fakeGPU {
	dev := f.newSim(total)
	i := len(f.gpus)
	g := &fakeGPU{
		GPU: dev, sim: dev, id: uint64(i) + 3, name: "NVIDIA Fake",
		uuid:       [16]byte{0xab, 0xcd, 15: byte(i)},
		attributes: map[uint64]int32{75: 9, 76: 1, 18: 0, 17: 0, 83: 1, 89: 1, 102: 1, 115: 1},
	}
	g.parent = g.uuid
	f.gpus = append(f.gpus, g)
	f.nv.add(g)
	return g
}

// newSim makes the memory of a GPU.
func (f *fake) newSim(total uint64) *sim.Device {
	dev, err := sim.New(sim.Config{Total: total, Granularity: granularity})
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = dev.Close() })
	return dev
}

// reset is cudaDeviceReset of another library: all in the primary context is
// gone. Its handle and the references stay.
func (f *fake) reset(g *fakeGPU) {
	dev := f.newSim(g.sim.Info().Total)
	f.mu.Lock()
	defer f.mu.Unlock()
	g.GPU, g.sim, g.active = dev, dev, false
	g.generation++
}

// use makes f the driver, loads it, and expects of the test that nothing was
// done that the real driver would not have forgiven.
func (f *fake) use() *machine {
	f.t.Helper()
	now.Store(f)
	f.t.Cleanup(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, p := range f.problems {
			f.t.Error(p)
		}
	})
	return newMachine(f.host, f.find, nil, newNVML(f.find, nil))
}

// open opens its first GPU.
func (f *fake) open() *Device {
	f.t.Helper()
	d, err := f.use().open(0)
	if err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = d.Close() })
	f.side = d.side
	return d
}

// find is the lookup of the driver's symbols.
func (f *fake) find(symbol string) (uintptr, error) {
	at, ok := callbacks()[symbol]
	if !ok || f.lacks[symbol] {
		return 0, fmt.Errorf("undefined symbol: %s", symbol)
	}
	return at, nil
}

// problem notes what would have crashed a real program.
func (f *fake) problem(format string, args ...any) int32 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.problems = append(f.problems, fmt.Sprintf(format, args...))
	return 1
}

// enter begins a call that needs no context.
func enter(symbol string) (*fake, int32) {
	f := now.Load()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.called[symbol]++
	if gate := f.block[symbol]; gate != nil {
		f.inside[symbol]++
		f.most[symbol] = max(f.most[symbol], f.inside[symbol])
		f.mu.Unlock()
		<-gate
		f.mu.Lock()
		f.inside[symbol]--
	}
	return f, f.fail[symbol]
}

// legal are the calls that go into a stream, or ask for what concerns no work,
// and so are legal in every capture mode.
var legal = map[string]bool{
	"cuMemcpyDtoDAsync_v2": true, "cuMemsetD8Async": true, "cuStreamWaitEvent": true, "cuEventRecord": true,
	"cuMemAllocFromPoolAsync": true, "cuMemFreeAsync": true, "cuStreamIsCapturing": true,
}

// in begins a call that needs a context, and returns its GPU.
func in(symbol string) (*fake, *fakeGPU, int32) {
	f, code := enter(symbol)
	if code != 0 {
		return f, nil, code
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	g, code := f.current()
	if code == 0 && f.capture != nil {
		// A wait for the context is never legal, and the rest is where the thread's
		// mode says so. The null stream waits for blocking streams.
		if symbol == "cuCtxSynchronize" || !legal[symbol] && f.modes[syscall.Gettid()] != 2 {
			f.capture.broken = symbol
			return f, nil, 900
		}
	}
	return f, g, code
}

// current is the GPU of the calling thread's context. Caller holds f.mu.
func (f *fake) current() (*fakeGPU, int32) {
	stack := f.stacks[syscall.Gettid()]
	if len(stack) == 0 {
		return nil, 201
	}
	for _, g := range f.gpus {
		if stack[len(stack)-1] != contextBits+g.id {
			continue
		}
		if !g.active {
			return g, 709
		}
		return g, 0
	}
	return nil, 201
}

// ofStream is the simulated stream with a handle; one that a graph is being
// captured in must not be asked or waited for.
func (f *fake) ofStream(g *fakeGPU, s uint64, asked bool) device.Stream {
	if s == 0 {
		f.problem("the null stream is used")
	}
	f.mu.Lock()
	if f.capture != nil && f.capture.stream == s && asked {
		f.capture.broken = "a question about the capturing stream"
	}
	f.mu.Unlock()
	return device.Stream(f.handle(g, s, streamBits))
}

// gpu is the GPU with a CUdevice.
func (f *fake) gpu(id uint64) (*fakeGPU, int32) {
	for _, g := range f.gpus {
		if g.id == id {
			return g, 0
		}
	}
	return nil, 101
}

// result is the driver's code for what the simulated GPU says.
func (f *fake) result(err error) int32 {
	if err == nil {
		return 0
	}
	for _, known := range []struct { // the first that fits
		code int32
		is   error
	}{
		{400, device.ErrInvalidHandle}, {1, device.ErrInvalidValue}, {2, device.ErrOutOfMemory}, {46, device.ErrLost},
		{700, device.ErrIllegalAddress}, {801, device.ErrNotSupported}, {800, device.ErrNotPermitted},
	} {
		if errors.Is(err, known.is) {
			return known.code
		}
	}
	f.problem("the simulated GPU says %v", err)
	return 999
}

// done is the answer to a query. Where work is under way a program that asks
// again does so later.
func (f *fake) done(g *fakeGPU, query func() (bool, error)) int32 {
	done, err := query()
	if err == nil && !done {
		g.sim.Advance(time.Millisecond)
		if f.asked != nil {
			f.asked()
		}
		return 600
	}
	return f.result(err)
}

// give is the handle of what g calls h.
func (f *fake) give(g *fakeGPU, h, bits uint64) uint64 { return bits + g.generation*generationStep + h }

// handle undoes give. A handle of another kind, or from before the context was
// reset, would have crashed the process.
func (f *fake) handle(g *fakeGPU, h, bits uint64) uint64 {
	if h>>32 != bits>>32 || h&0xffff_ffff/generationStep != g.generation {
		f.problem("%#x is no handle of kind %#x and generation %d", h, uint64(bits), g.generation)
	}
	return h % generationStep
}

// uuidText is how NVML writes a UUID.
func uuidText(prefix string, u [16]byte) string {
	return fmt.Sprintf("%s-%x-%x-%x-%x-%x", prefix, u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// fill writes s to a C buffer, without the final NUL where it just does not
// fit, as careless drivers do.
func fill(p *byte, n uint64, s string) {
	b := unsafe.Slice(p, n)
	clear(b)
	copy(b, s)
}

// pinnedTo checks the parts that every description of memory has, byte by byte.
func (f *fake) pinnedTo(g *fakeGPU, p *byte, size int, rest ...int) bool {
	if p == nil {
		f.problem("no description of memory")
		return false
	}
	b := unsafe.Slice(p, size)
	want := make([]byte, size)
	want[0] = 1                       // pinned
	want[8], want[12] = 1, byte(g.id) // on the device
	for _, i := range rest {          // checked by the caller
		want[i] = b[i]
	}
	if string(b) != string(want) {
		f.problem("memory described as %x, want %x", b, want)
		return false
	}
	return true
}

// callbacks are the functions of the driver and of NVML, by symbol.
var callbacks = sync.OnceValue(func() map[string]uintptr {
	all := map[string]uintptr{}
	for symbol, fn := range cudaCallbacks {
		all[symbol] = purego.NewCallback(fn)
	}
	for symbol, fn := range nvmlCallbacks {
		all[symbol] = purego.NewCallback(fn)
	}
	return all
})

// tempProc writes a file of the host's /proc.
func (f *fake) tempProc(name, text string) {
	f.t.Helper()
	writeFile(f.t, filepath.Join(f.host.proc, name), text)
}
