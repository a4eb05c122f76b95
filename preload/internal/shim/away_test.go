package shim_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"gpumem"
	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/preload/internal/shim"
)

// movable are policies whose memory may leave, once to pinned memory that is kept.
var movable = []string{"elastic", "vmm", "platform", "jax:preallocate=false", "pytorch", "address", "elastic pinned"}

// lender is a program whose memory leaves and returns, and what it has written into its blocks.
type lender struct {
	t       *testing.T
	r       *rand.Rand
	d       *driver
	account *account
	pool    *shim.Pool
	stream  device.Stream
	live    map[uint64]uint64 // bytes by address
	written map[uint64]uint64 // a number by address, of which its contents are made
	number  uint64
	onHost  uint64 // bytes of Config.Room in use
	hostMax uint64 // bytes of the host; more is refused
	pinned  bool   // Config.Pinned
	said    []string
}

var errHost = errors.New("the host is full")

func newLender(t *testing.T, spec string, seed uint64) *lender {
	t.Helper()
	l := &lender{t: t, r: rand.New(rand.NewPCG(seed, 7)), live: map[uint64]uint64{}, written: map[uint64]uint64{}, hostMax: unlimited}
	l.d = newDriver(t, sim.Config{Total: 64 * mib})
	l.account = newAccount(t, 20*mib)
	spec, l.pinned = strings.CutSuffix(spec, " pinned")
	l.pool = openOn(t, l.d, spec, shim.Config{Account: l.account, Room: l.room, Pinned: l.pinned, Say: func(line string) { l.said = append(l.said, line) }})
	l.stream = l.d.stream(t)
	return l
}

func (l *lender) room(bytes uint64) (shim.HostMemory, error) {
	if bytes > l.hostMax-l.onHost {
		return shim.HostMemory{}, errHost
	}
	l.onHost += bytes
	b := make([]byte, bytes)
	return shim.HostMemory{Bytes: b, Release: func() error {
		l.onHost -= bytes
		clear(b) // nobody has a right to it any more
		return nil
	}}, nil
}

// pattern is what a block has at an offset of 8 bytes: no two pages are alike.
func pattern(number, at uint64) uint64 { return number<<32 ^ at*0x9e3779b97f4a7c15 }

func (l *lender) write(addr uint64) {
	l.t.Helper()
	l.number++
	b := make([]byte, l.live[addr])
	for i := uint64(0); i+8 <= uint64(len(b)); i += 8 {
		binary.LittleEndian.PutUint64(b[i:], pattern(l.number, i))
	}
	if err := l.d.Write(addr, b); err != nil {
		l.t.Fatal(err)
	}
	l.written[addr] = l.number
}

// check is contents and books.
func (l *lender) check() {
	l.t.Helper()
	l.contents()
	l.books()
	if l.onHost != 0 {
		l.t.Fatalf("%d bytes of the host are in use", l.onHost)
	}
}

// contents fails the test if a block does not have what was written to it.
func (l *lender) contents() {
	l.t.Helper()
	for addr, number := range l.written {
		b := make([]byte, l.live[addr])
		if err := l.d.Read(addr, b); err != nil {
			l.t.Fatal(err)
		}
		for i := uint64(0); i+8 <= uint64(len(b)); i += 8 {
			if got := binary.LittleEndian.Uint64(b[i:]); got != pattern(number, i) {
				l.t.Fatalf("block at %#x of %d bytes: at %d there is %#x", addr, len(b), i, got)
			}
		}
	}
}

func (l *lender) books() {
	l.t.Helper()
	held, _ := l.d.Held()
	if counted, _, _ := l.account.counts(); held != counted {
		l.t.Fatalf("the driver has granted %d bytes, and %d are counted", held, counted)
	}
}

// step allocates or frees. What is allocated while the memory is away is written later.
func (l *lender) step() {
	l.t.Helper()
	if l.r.IntN(5) < 2 && len(l.live) > 0 {
		for addr := range l.live {
			free := func() error { return l.pool.Free(addr) }
			if l.r.IntN(2) == 0 {
				free = func() error { return l.pool.FreeAsync(addr, uint64(l.stream)) }
			}
			if err := free(); err != nil {
				l.t.Fatal(err)
			}
			delete(l.live, addr)
			delete(l.written, addr)
			return
		}
	}
	bytes := (l.r.Uint64N(mib>>l.r.IntN(14)) + 8) &^ 7
	addr, err := l.pool.Alloc(bytes)
	if l.r.IntN(2) == 0 && err != nil {
		addr, err = l.pool.AllocAsync(bytes, uint64(l.stream))
	}
	if errors.Is(err, gpumem.ErrOutOfMemory) {
		return
	}
	if err != nil {
		l.t.Fatal(err)
	}
	l.live[addr] = bytes
	if _, away := l.pool.IsAway(); !away {
		l.write(addr)
	}
}

func (l *lender) leave() {
	l.t.Helper()
	m, err := l.pool.Leave()
	if err != nil {
		l.t.Fatal(err)
	}
	if held, _ := l.d.Held(); held != 0 {
		l.t.Fatalf("%d bytes stay on the GPU; %+v", held, m)
	}
	l.books()
}

// seeds are how many programs at random there are.
func seeds() uint64 {
	if testing.Short() {
		return 1
	}
	return 5
}

// TestLeaveAndReturn: after each way out and back each block has its contents at its address, those
// that were allocated meanwhile have memory, and books are right at each step.
func TestLeaveAndReturn(t *testing.T) {
	for _, spec := range movable {
		t.Run(spec, func(t *testing.T) {
			for seed := range seeds() {
				l := newLender(t, spec, seed)
				for range 12 {
					for range l.r.IntN(8) {
						l.step()
					}
					l.leave()
					l.occupy()
					for range l.r.IntN(6) {
						l.step()
					}
					if _, err := l.pool.Return(); err != nil {
						t.Fatal(err)
					}
					l.check()
				}
				if err := l.pool.Close(); err != nil {
					t.Fatal(err)
				}
				l.books()
				if len(l.d.pinned) > 0 || strings.Contains(strings.Join(l.said, ""), "pinned") {
					t.Errorf("%d pieces of pinned memory are left; %q", len(l.d.pinned), l.said)
				}
			}
		})
	}
}

// occupy is another program, which uses the GPU's memory meanwhile: new memory has its contents, or none.
func (l *lender) occupy() {
	l.t.Helper()
	r, err := l.d.Alloc(20 * mib)
	if err != nil {
		l.t.Fatal(err)
	}
	if err := errors.Join(l.d.Fill(r.Addr, r.Bytes, 0xa5), l.d.Free(r.Addr)); err != nil {
		l.t.Fatal(err)
	}
}

// TestLeaveWhenCallsFail: whichever driver call of a way out or back fails, once or from there on,
// no contents are lost and nothing is miscounted; when the driver works again the program goes on.
func TestLeaveWhenCallsFail(t *testing.T) {
	broken := errors.New("broken")
	for _, spec := range movable {
		for _, forever := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, forever %v", spec, forever), func(t *testing.T) {
				step := 1
				if testing.Short() {
					step = 5
				}
				for at := 0; ; at += step {
					l := newLender(t, spec, 3)
					for range 12 {
						l.step()
					}
					n, failed := 0, false
					l.d.count(func(string) error {
						n++
						if n-1 == at || forever && n > at {
							failed = true
							return broken
						}
						return nil
					})
					_, err := l.pool.Leave()
					if err == nil {
						l.d.OnCall(nil)
						l.occupy()
						l.d.count(func(string) error {
							n++
							if n-1 == at || forever && n > at {
								failed = true
								return broken
							}
							return nil
						})
						_, err = l.pool.Return()
					}
					if failed && err == nil && forever {
						t.Fatalf("call %d fails, and nobody says so", at)
					}
					if n := len(l.d.copies); n > 0 && !forever {
						t.Fatalf("call %d fails, and %d copies are still under way", at, n)
					}
					l.d.OnCall(nil)
					l.books()
					if _, err := l.pool.Return(); err != nil {
						t.Fatal(err)
					}
					l.check()
					l.leave()
					l.occupy()
					if _, err := l.pool.Return(); err != nil {
						t.Fatal(err)
					}
					l.check()
					if !failed {
						return
					}
				}
			})
		}
	}
}
