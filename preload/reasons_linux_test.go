package preload

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/node/ledger"
)

// reasons is the program of reasons.c.
var reasons = compiled("reasons")

// startByTurns starts the program of reasons.c in a lease by turns.
func startByTurns(t testing.TB, ledgerPath, driver string, args []string, env ...string) *program {
	t.Helper()
	b := libraries(t)
	path, err := reasons()
	must(t, err)
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+b.front, "GPUMEM_LIBCUDA="+driver, "GPUMEM_DEVICE=sim:4GiB")
	cmd.Env = append(cmd.Env, "GPUMEM_REPORT=0", "GPUMEM_LEDGER="+ledgerPath, "GPUMEM_TURNS=50000000")
	cmd.Env = append(cmd.Env, env...)
	var said bytes.Buffer
	cmd.Stderr = &said
	p := &program{t: t}
	p.in, err = cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	p.out = bufio.NewScanner(out)
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = p.in.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(said.String())
		}
	})
	p.out.Scan()
	switch line := p.out.Text(); line {
	case "ready":
	case "no devices":
		t.Skip("SKIPPED: the test needs devices of its own, and this user may not mount any")
	default:
		t.Fatalf("%s; %s", line, said.String())
	}
	return p
}

// settled returns what the first process of a ledger says when it is not about to leave.
func settled(t testing.TB, l *ledger.Ledger) ledger.Entry {
	t.Helper()
	for {
		all := l.Turns()
		if len(all) == 0 || all[0].Slot != 0 {
			t.Fatalf("the first is gone: %+v", all)
		}
		if all[0].State != ledger.Leaving {
			return all[0]
		}
		time.Sleep(time.Millisecond)
	}
}

// TestReasonsToStay has a program with 40 MiB, or less, do what may keep it from being asked to
// leave, in a lease of 64 MiB in which another wants 40 MiB. Where it is not asked its record says
// why. Where it has ended what it did, it is: a wrong program always has a reason, or one for ever.
func TestReasonsToStay(t *testing.T) {
	b := libraries(t)
	usual, more := filepath.Join(b.driver, "libcuda.so.1"), otherDriver(t, "reasons_driver.c")
	devices := []string{"own devices"}
	for _, tc := range []struct {
		name   string
		driver string
		args   []string
		env    string
		orders string
		want   ledger.Reason
	}{
		{"nothing", usual, nil, "", "alloc 40", ledger.NoReason},
		{"managed memory", usual, nil, "", "alloc 40, managed 2", ledger.ManagedMemory},
		{"managed memory that was freed", usual, nil, "", "alloc 40, managed 2, managed 2, free 1, free 2", ledger.NoReason},
		{"managed memory, of which some is left", usual, nil, "", "alloc 40, managed 2, managed 2, free 1", ledger.ManagedMemory},
		{"managed memory of a context that has ended", usual, nil, "", "alloc 40, context 0, managed2 2, destroy 1", ledger.NoReason},
		{"a handle for others", usual, nil, "", "alloc 40, context 0, plain 2, get 2", ledger.SharingMemory},
		{"a handle for others, of memory that was freed", usual, nil, "", "alloc 40, context 0, plain 2, get 2, get 2, free 2", ledger.NoReason},
		{"memory of others", usual, nil, "", "alloc 40, open 0", ledger.SharingMemory},
		{"memory of others, by a pointer", usual, nil, "", "alloc 40, open1 0", ledger.SharingMemory},
		{"memory of others, of which some is left", usual, nil, "", "alloc 40, open 0, open 0, close 1", ledger.SharingMemory},
		{"memory of others that was closed", usual, nil, "", "alloc 40, open 0, close 1", ledger.NoReason},
		{"a handle of the system", more, nil, "", "alloc 40, export 0", ledger.SharingMemory},
		{"one that was imported", more, nil, "", "alloc 40, import 0", ledger.SharingMemory},
		{"a pool that was exported", more, nil, "", "alloc 40, poolexport 0", ledger.SharingMemory},
		{"a pool that was imported", more, nil, "", "alloc 40, poolimport 0", ledger.SharingMemory},
		{"memory for a network card", more, nil, "", "alloc 40, context 0, plain 2, range 2", ledger.SharingMemory},
		{"another GPU", more, nil, "", "alloc 40, peer 0", ledger.PeerAccess},
		{"no other GPU", more, nil, "", "alloc 40", ledger.NoReason},
		{"memory of the host", usual, nil, "GPUMEM_DEVICE=sim:1GiB,unified=true", "alloc 40", ledger.IntegratedGPU},
		{"mappings", usual, nil, "", "alloc 10, map 20", ledger.OwnMappings},
		{"mappings that are small", usual, nil, "", "alloc 38, map 4", ledger.NoReason},
		{"mappings that have ended", usual, nil, "", "alloc 10, map 20, unmap 1, alloc 30", ledger.NoReason},
		{"several ranks", usual, nil, "", "alloc 40, shm 0", ledger.Communicating},
		{"several ranks that have ended", usual, nil, "", "alloc 40, shm 0, unshm 0", ledger.NoReason},
		{"devices", usual, devices, "", "alloc 40", ledger.RegisteredMemory},
		{"devices that were closed", usual, devices, "", "alloc 40, undevice 0", ledger.NoReason},
		{"confidential", usual, nil, "GPUMEM_LIBNVML=" + more, "alloc 40", ledger.ConfidentialGPU},
		{"not confidential", usual, nil, "GPUMEM_LIBNVML=" + filepath.Join(b.driver, "libnvidia-ml.so.1"), "alloc 40", ledger.NoReason},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel() // it waits most of the time
			path := filepath.Join(t.TempDir(), "lease.ledger")
			must(t, ledger.Create(path, ledger.Header{Limit: 64 << 20, Total: 1 << 30, Turns: true}))
			l, err := ledger.Open(path)
			must(t, err)
			defer l.Close()
			first, second := startByTurns(t, path, tc.driver, tc.args, tc.env), startByTurns(t, path, usual, nil)
			orders := strings.Split(tc.orders, ", ")
			if codes := first.do(orders...); strings.Trim(codes, "0 ") != "" {
				t.Fatalf("%s\ncodes %s", tc.orders, codes)
			}
			code := second.do("alloc 40")
			e := settled(t, l)
			leaves := tc.want == ledger.NoReason
			if (code == "0") != leaves || (e.Swaps > 0) != leaves || e.Reason != tc.want {
				t.Errorf("the second has %s; want %q of %+v", code, tc.want, e)
			}
		})
	}
}

var swapped = flag.Int("swapped", 30, "2^`N` bytes leave and return in BenchmarkSwap")

// BenchmarkSwap measures a way out and in of a block over a link of 2 GB/s and of PCIe 4's, beside
// what the link alone takes: by two stages, and with pinned memory that is kept, the second time.
// What lies in the block is not kept, as that takes the simulated GPU's time.
func BenchmarkSwap(b *testing.B) {
	l := libraries(b)
	driver := filepath.Join(l.driver, "libcuda.so.1")
	for _, rate := range []float64{2, 25} {
		for _, pinned := range []string{"", "1"} {
			b.Run(fmt.Sprintf("%gGBps pinned=%s", rate, pinned), func(b *testing.B) {
				for b.Loop() {
					bytes := uint64(1) << *swapped
					path := filepath.Join(b.TempDir(), "lease.ledger")
					must(b, ledger.Create(path, ledger.Header{Limit: bytes * 3 / 2, Total: 1 << 40, Turns: true}))
					led, err := ledger.Open(path)
					must(b, err)
					env := []string{"GPUMEM_DEVICE=sim:1TiB", "GPUMEM_SIM_CONTENTS=1MiB", fmt.Sprintf("GPUMEM_SIM_LINK=%gGB/s", rate), "GPUMEM_LEND_PINNED=" + pinned}
					first, second := startByTurns(b, path, driver, nil, env...), startByTurns(b, path, driver, nil)
					alloc, fill := fmt.Sprint("alloc ", bytes>>20), fmt.Sprint("fill ", *swapped-20)
					first.do(alloc, fill)
					for n := range 2 {
						if code := second.do(alloc); code != "0" {
							b.Fatalf("%s: %+v", code, led.Turns())
						}
						settled(b, led)
						second.do(fmt.Sprint("free ", 2*n))
						first.do("fill 0")
					}
					cost := settled(b, led).Cost
					b.ReportMetric(cost.Seconds()*1e3, "ms")
					b.ReportMetric(cost.Seconds()/(2*float64(bytes)/rate/1e9), "times-link")
					_ = led.Close()
				}
			})
		}
	}
}
