package gpumem_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"gpumem"
	"gpumem/device/sim"
)

// TestIdleMemoryReachesAnotherProcess: a process whose pool holds idle memory,
// and would keep it for ever, releases it when another one waits for memory.
func TestIdleMemoryReachesAnotherProcess(t *testing.T) {
	for _, spec := range []string{"elastic", "jax:preallocate=false,spatial=false", "vmm", "async", "platform"} {
		for _, live := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, with a live block %v", spec, live), func(t *testing.T) {
				path := filepath.Join(t.TempDir(), "gpu")
				if err := sim.CreateFile(path, sim.Config{Total: 1 << 30}); err != nil {
					t.Fatal(err)
				}
				child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHolderOfIdleMemory$")
				child.Env = append(os.Environ(), "GPUMEM_TEST_HOLDER="+path)
				stdin, err := child.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				stdout, err := child.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := child.Start(); err != nil {
					t.Fatal(err)
				}
				defer func() {
					stdin.Close()
					if err := child.Wait(); err != nil {
						t.Error(err)
					}
				}()
				if line, err := bufio.NewReader(stdout).ReadString('\n'); line != "idle\n" {
					t.Fatalf("the other process: %q, %v", line, err)
				}

				dev, err := sim.Join(path, 0, sim.Config{})
				if err != nil {
					t.Fatal(err)
				}
				defer dev.Close()
				pool := newPool(t, dev, spec, gpumem.WithRetry(time.Minute))
				defer pool.Close()
				if live {
					if _, err := pool.Alloc(t.Context(), mib); err != nil {
						t.Fatal(err)
					}
				}
				if _, err := pool.Alloc(t.Context(), 512*mib); err != nil {
					t.Errorf("512 MiB of 1 GiB, of which another process holds 900 idle: %v", err)
				}
			})
		}
	}
}

// TestHolderOfIdleMemory is the other process.
func TestHolderOfIdleMemory(t *testing.T) {
	path := os.Getenv("GPUMEM_TEST_HOLDER")
	if path == "" {
		t.Skip("TestIdleMemoryReachesAnotherProcess starts it")
	}
	dev, err := sim.Join(path, 0, sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pool := newPool(t, dev, "elastic", gpumem.WithIdleTrim(0), gpumem.WithLowWater(0))
	b, err := pool.Alloc(t.Context(), 900*mib)
	if err != nil {
		t.Fatal(err)
	}
	if err := pool.Free(b); err != nil {
		t.Fatal(err)
	}
	fmt.Println("idle")
	_, _ = io.Copy(io.Discard, os.Stdin) // until the other one is done
	if err := pool.Close(); err != nil {
		t.Fatal(err)
	}
}
