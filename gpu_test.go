package gpumem_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"gpumem"
	"gpumem/device"
	"gpumem/device/cuda"
	"gpumem/device/open"
	"gpumem/policy/frameworks"
)

// Tests of whole pools on whole devices: what is written into a block is what is
// read back, whatever the policy did in between, alone and beside other programs.
// They run on the simulated GPU, private and shared, and on a real one where a
// driver loads (docs/gpu.md says how to bring this test's binary there).

// childVar makes this test binary another program: its value is the device's
// words, a blank, and the policy's.
const childVar = "GPUMEM_POOL_CHILD"

func TestMain(m *testing.M) {
	if words := os.Getenv(childVar); words != "" {
		if err := contender(words); err != nil {
			fmt.Fprintln(os.Stderr, "contender:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// gpus are the words of every kind of device that there is here.
func gpus(t *testing.T) []string {
	words := []string{"sim:4GiB", "sim:4GiB,vmm=false,pools=false,context=300MiB"}
	if runtime.GOOS == "linux" {
		file := filepath.Join(t.TempDir(), "gpu")
		spec, err := open.Parse("sim@" + file + ",total=1GiB/4GiB,create")
		if err == nil {
			err = spec.Make()
		}
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, "sim@"+file+",device=1")
	}
	if err := cuda.Available(); err != nil {
		t.Logf("SKIPPED on a real GPU: %v", err)
	} else {
		words = append(words, "cuda:0")
	}
	return words
}

func openGPU(t testing.TB, words string) device.GPU {
	t.Helper()
	spec, err := open.Parse(words)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := spec.Device()
	if err != nil {
		t.Fatal(err)
	}
	return dev
}

// mark is what a block's first and last bytes hold: who it is.
func mark(id uint64, n uint64) []byte {
	m := binary.LittleEndian.AppendUint64(nil, id*0x9E3779B97F4A7C15)
	return m[:min(8, n)]
}

// exercise takes, marks, checks and frees blocks at random; refusals for want of
// memory are counted and are no error. Every block is checked at its end.
func exercise(ctx context.Context, dev device.GPU, pool *gpumem.Pool, seed uint64, ops int) (served, refused int, err error) {
	type held struct {
		block gpumem.Block
		bytes uint64
		id    uint64
	}
	r := rand.New(rand.NewPCG(seed, 1))
	var live []held
	check := func(h held) error {
		want := mark(h.id, h.bytes)
		got := make([]byte, len(want))
		for _, at := range []uint64{h.block.Addr, h.block.Addr + h.bytes - uint64(len(want))} {
			if err := dev.Read(at, got); err != nil {
				return err
			}
			if h.bytes >= 16 && !bytes.Equal(got, want) {
				return fmt.Errorf("block %d of %d bytes holds another's mark at %#x", h.id, h.bytes, at)
			}
		}
		return nil
	}
	drop := func(i int) error {
		h := live[i]
		live[i] = live[len(live)-1]
		live = live[:len(live)-1]
		return errors.Join(check(h), pool.Free(h.block))
	}
	for id := range uint64(ops) {
		if len(live) > 0 && (len(live) >= 40 || r.IntN(2) == 0) {
			if err := drop(r.IntN(len(live))); err != nil {
				return served, refused, err
			}
			continue
		}
		n := uint64(1) << r.IntN(25)
		n += r.Uint64N(n)
		b, err := pool.TryAlloc(n)
		if errors.Is(err, gpumem.ErrOutOfMemory) {
			refused++
			continue
		}
		if err != nil {
			return served, refused, err
		}
		h := held{b, n, id}
		live = append(live, h)
		served++
		// The driver's pool has the block in its stream's order only.
		if err := dev.StreamSynchronize(0); err != nil {
			return served, refused, err
		}
		for _, at := range []uint64{b.Addr + n - uint64(len(mark(id, n))), b.Addr} {
			if err := dev.Write(at, mark(id, n)); err != nil {
				return served, refused, err
			}
		}
	}
	for len(live) > 0 {
		if err := drop(0); err != nil {
			return served, refused, err
		}
	}
	return served, refused, ctx.Err()
}

// sized are the policies of a test, small enough for a GPU that others use, too.
var sized = []string{
	"jax:fraction=.02", "jax:limit=512MiB", "jax:limit=512MiB,preallocate=false", "bfc:limit=512MiB", "bfc:limit=512MiB,preallocate=false,gc=true",
	"platform", "address", "async", "async:async_prealloc=512MiB", "vmm:limit=512MiB", "elastic:limit=512MiB", "elastic:limit=512MiB,eager=true",
}

func TestContents(t *testing.T) {
	for _, words := range gpus(t) {
		for _, spec := range sized {
			if kind, _, _ := strings.Cut(spec, ":"); strings.Contains(words, "vmm=false") && (kind == "async" || kind == "vmm" || kind == "elastic") {
				continue // that device has neither pages nor pools
			}
			name, _, _ := strings.Cut(words, "@")
			t.Run(name+" "+spec, func(t *testing.T) {
				dev := openGPU(t, words)
				defer dev.Close()
				before, _, err := dev.MemInfo() // with the context
				if err != nil {
					t.Fatal(err)
				}
				pool := newPool(t, dev, spec)
				served, refused, err := exercise(t.Context(), dev, pool, 1, 3000)
				if err != nil || served == 0 {
					t.Errorf("%d served, %d refused: %v", served, refused, err)
				}
				if err := pool.Close(); err != nil {
					t.Error(err)
				}
				if after, _, err := dev.MemInfo(); err != nil || dev.Info().Simulated && after != before {
					t.Errorf("%d bytes free before and %d after: %v", before, after, err)
				}
			})
		}
	}
}

// contender is another program: a pool under a policy, exercised.
func contender(words string) error {
	words, spec, _ := strings.Cut(words, " ")
	s, err := open.Parse(words)
	if err != nil {
		return err
	}
	dev, err := s.Device()
	if err != nil {
		return err
	}
	p, err := frameworks.Parse(spec)
	if err != nil {
		return err
	}
	pool, err := gpumem.Open(dev, p)
	if err != nil {
		return err
	}
	served, _, err := exercise(context.Background(), dev, pool, uint64(os.Getpid()), 1500)
	if err == nil && served == 0 {
		err = errors.New("nothing was served")
	}
	fmt.Println(strconv.Itoa(served))
	return errors.Join(err, pool.Close(), dev.Close())
}

// TestContenders: several programs with a pool each on one device, whatever the
// policies, keep their contents apart and leave nothing.
func TestContenders(t *testing.T) {
	for _, words := range gpus(t) {
		if strings.HasPrefix(words, "sim:") { // private
			continue
		}
		name, _, _ := strings.Cut(words, "@")
		t.Run(name, func(t *testing.T) {
			dev := openGPU(t, words)
			defer dev.Close()
			before, _, err := dev.MemInfo()
			if err != nil {
				t.Fatal(err)
			}
			var cmds []*exec.Cmd
			var outs []*bytes.Buffer
			for _, spec := range []string{"jax:fraction=.2", "jax:fraction=.2,preallocate=false", "platform", "bfc:limit=300MiB", "elastic:limit=400MiB", "async"} {
				cmd := exec.Command(os.Args[0])
				cmd.Env = append(os.Environ(), childVar+"="+words+" "+spec)
				var out bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := cmd.Start(); err != nil {
					t.Fatal(err)
				}
				cmds, outs = append(cmds, cmd), append(outs, &out)
			}
			for i, cmd := range cmds {
				if err := cmd.Wait(); err != nil {
					t.Errorf("program %d: %v: %s", i, err, outs[i])
				}
			}
			if after, _, err := dev.MemInfo(); err != nil || dev.Info().Simulated && after != before {
				t.Errorf("%d bytes free before and %d after: %v", before, after, err)
			}
		})
	}
}
