package standin_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/device/sim"
	"gpumem/internal/test/standin"
)

// TestTime runs the C program that has the driver's rules where work takes time, on a private GPU and on a shared
// one.
func TestTime(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/time.c")
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	for _, device := range []string{"sim:1GiB", "sim@" + file} {
		cmd := exec.Command(program)
		log := filepath.Join(t.TempDir(), "log")
		cmd.Env = standin.Environ(library, "GPUMEM_DEVICE="+device, "GPUMEM_SIM_KERNEL=2ms", "GPUMEM_SIM_LOG="+log)
		out, err := cmd.CombinedOutput()
		ran := 0
		for line := range strings.Lines(string(out)) {
			verdict, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
			name, why, _ := strings.Cut(rest, ":")
			t.Run(device[:4]+"/"+name, func(t *testing.T) {
				if ran++; verdict != "ok" {
					t.Error(name + why)
				}
			})
		}
		text, logErr := os.ReadFile(log)
		if err != nil || ran < 13 {
			t.Errorf("%d tests, %v", ran, err)
		}
		if strings.Contains(string(text), "internal error") || !strings.Contains(string(text), "gpu 0: kernels 34.") {
			t.Errorf("log: %v\n%s", logErr, text)
		}
	}
}

// TestProgramsShareAGPUsTime: the kernels of two programs at once take the sum of the times alone, and are over when
// both are.
func TestProgramsShareAGPUsTime(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/time.c")
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	const each = 50
	begin := time.Now()
	var both []*exec.Cmd
	for range 2 {
		cmd := exec.Command(program, "kernels", fmt.Sprint(each))
		cmd.Env = standin.Environ(library, "GPUMEM_DEVICE=sim@"+file, "GPUMEM_SIM_KERNEL=2ms")
		cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		both = append(both, cmd)
	}
	for _, cmd := range both {
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
	const want = 2 * each * 2 * time.Millisecond
	if took := time.Since(begin); took < want {
		t.Errorf("took %v for %v of kernels", took, want)
	}
	busy, err := sim.LookBusy(file)
	if err != nil || busy[0] != [sim.Engines]time.Duration{sim.Kernels: want} {
		t.Errorf("busy %v, %v, want %v", busy, err, want)
	}
}

// TestKernelsOfTheRuntimeTakeTime, in the stream that the program names; without time they are no calls of the
// driver's.
func TestKernelsOfTheRuntimeTakeTime(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/launch.c")
	for _, tc := range []struct{ setting, want string }{
		{"GPUMEM_SIM_KERNEL=2ms", "0 8000 400\n"},
		{"GPUMEM_SIM_LINK=1GB/s", "0 0 400\n"},
		{"GPUMEM_SIM_KERNEL=", "0 0 0\n"},
	} {
		for _, name := range []string{"libcudart.so.12", "libcudart.so.13"} {
			cmd := exec.Command(program, filepath.Join(library, name))
			cmd.Env = standin.Environ(library, tc.setting)
			if out, err := cmd.CombinedOutput(); err != nil || string(out) != tc.want {
				t.Errorf("%s, %s: %v, %q, want %q", tc.setting, name, err, out, tc.want)
			}
		}
	}
}

// TestAProgramThatIsKilledLeavesTheGPUToOthers: an engine was given no more than a turn beyond the time until then, and
// the next program need not wait for all that was queued.
func TestAProgramThatIsKilledLeavesTheGPUToOthers(t *testing.T) {
	library := standin.Library(t)
	program := standin.Compile(t, "testdata/time.c")
	file := filepath.Join(t.TempDir(), "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 1 << 30}); err != nil {
		t.Fatal(err)
	}
	env := standin.Environ(library, "GPUMEM_DEVICE=sim@"+file, "GPUMEM_SIM_KERNEL=2ms")
	cmd := exec.Command(program, "kernels", "1000000") // half an hour
	cmd.Env = env
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var busy [][sim.Engines]time.Duration
	for busy == nil || busy[0][sim.Kernels] < 20*time.Millisecond {
		var err error
		if busy, err = sim.LookBusy(file); err != nil {
			t.Fatal(err)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	busy, err := sim.LookBusy(file)
	if turn := 5 * time.Millisecond; err != nil || busy[0][sim.Kernels] > time.Since(begin)+turn {
		t.Errorf("busy for %v, %v", busy, err)
	}
	next := exec.Command(program, "kernels", "3")
	next.Env = env
	if out, err := next.CombinedOutput(); err != nil {
		t.Errorf("the next: %v\n%s", err, out)
	}
}
