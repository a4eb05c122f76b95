package preload

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpumem/node/machine"
)

// TestBypassIsSeen: gpumem ps says what a program in a lease took past the library, by whatever
// way it found the driver, and says nothing of programs that the library serves, whichever way
// they found it. It refuses a look at the libraries alone, which does not see the driver opened
// by the path by which the library has it.
func TestBypassIsSeen(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: builds the command")
	}
	b := libraries(t)
	if *builtIn != "" {
		t.Skip("skipped: compiles programs")
	}
	gpumem, device := command(t, b)
	dir := t.TempDir()
	program, byPath := filepath.Join(dir, "bypass"), filepath.Join(dir, "rpath")
	driver, second, again := filepath.Join(b.driver, "libcuda.so.1"), filepath.Join(dir, "libcuda.so.2"), filepath.Join(dir, "again")
	for _, args := range [][]string{{"-o", program}, {"-o", byPath, "-Wl,--disable-new-dtags,-rpath," + b.driver}} {
		if out, err := exec.Command("gcc", append(args, "-O1", "-Wall", "testdata/bypass.c", "-ldl")...).CombinedOutput(); err != nil {
			t.Fatalf("gcc: %v\n%s", err, out)
		}
	}
	data, err := os.ReadFile(driver)
	must(t, err)
	must(t, os.WriteFile(second, data, 0o755))
	must(t, os.CopyFS(again, os.DirFS(b.front)))
	inPlace := "GPUMEM_DEVICE=" + device
	for _, tc := range []struct {
		name string
		args []string
		want string // of the sentence about 128 MiB; "" is none
	}{
		{"served", []string{program, "libcuda.so.1", "128"}, ""},
		{"served, by the name without a version", []string{program, "libcuda.so", "128"}, ""},
		{"served, by the library's absolute path", []string{program, filepath.Join(b.front, "libcuda.so.1"), "128"}, ""},
		{"served, LD_PRELOAD of another library", []string{"env", "LD_PRELOAD=libnvidia-ml.so.1", program, "libcuda.so.1", "128"}, ""},
		{"served, a copy of the driver is loaded and not used", []string{"env", "LD_PRELOAD=" + second, program, "libcuda.so", "128"}, ""},
		{"off", []string{gpumem().Path, "run", "--pool", "off", "--", program, driver, "128"}, ""},
		{"absolute path", []string{program, driver, "128"}, "it has loaded " + driver + " and not the pool library"},
		{"DT_RPATH", []string{byPath, "libcuda.so.1", "128"}, "it has loaded " + driver + " and not the pool library"},
		{"LD_PRELOAD", []string{"env", "LD_PRELOAD=" + driver, program, "libcuda.so.1", "128"}, "it has loaded " + driver + " and not the pool library"},
		{"another LD_LIBRARY_PATH", []string{"env", "LD_LIBRARY_PATH=" + b.driver, program, "libcuda.so.1", "128"}, "it has loaded " + driver + " and not the pool library"},
		{"another environment", []string{"env", "-i", inPlace, "LD_LIBRARY_PATH=" + b.driver, program, "libcuda.so.1", "128"}, "it was started without the environment of the lease, and has loaded " + driver},
		{"a copy of the driver", []string{program, second, "128"}, "it has loaded " + second + " and not the pool library"},
		{"absolute path beside the library", []string{program, "libcuda.so.1", "64", driver, "128"}, "the GPU reports that much more than the ledger counts"},
		{"a copy of the driver beside the library", []string{program, "libcuda.so.1", "64", second, "128"}, "it has loaded " + second + " beside the pool library"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := hold(t, gpumem(append([]string{"run", "--device", device, "--mem", "1GiB", "--pool", "elastic", "--"}, tc.args...)...))
			cmd := gpumem("ps", "--device", device, "--json")
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var s machine.Snapshot
			if err := json.Unmarshal(out, &s); err != nil {
				t.Fatal(err)
			}
			got := ""
			for _, p := range s.Devices[0].Programs {
				if p.Beside != nil {
					got += p.Beside.String()
				}
			}
			if want := "took 128 MiB beside its lease: " + tc.want; tc.want != "" && got != want || tc.want == "" && got != "" {
				t.Errorf("%q, want %q", got, want)
			}
			p.end()
		})
	}

	// At the end of the run, once the keeper has seen it.
	t.Run("end of the run", func(t *testing.T) {
		log, err := os.Create(filepath.Join(dir, "log"))
		must(t, err)
		defer log.Close()
		cmd := gpumem("run", "--device", device, "--mem", "1GiB", "--pool", "elastic", "--", program, driver, "128")
		cmd.Stderr = log
		p := hold(t, cmd)
		within(t, "the keeper has the program's standard error", func() bool {
			links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
			for _, l := range links {
				if to, _ := os.Readlink(l); to == log.Name() && !strings.HasPrefix(l, fmt.Sprintf("/proc/%d/", cmd.Process.Pid)) && !strings.HasPrefix(l, fmt.Sprintf("/proc/%d/", os.Getpid())) {
					return true
				}
			}
			return false
		})
		p.end()
		want := fmt.Sprintf("\ngpumem: process %d took 128 MiB beside its lease: it has loaded %s and not the pool library\n", cmd.Process.Pid, driver)
		within(t, "the line", func() bool {
			text, err := os.ReadFile(log.Name())
			return err == nil && strings.HasSuffix(string(text), want)
		})
	})
}

// holder is a program that holds memory.
type holder struct{ end func() }

// hold starts a command, and returns when its program holds what it is to.
func hold(t *testing.T, cmd *exec.Cmd) holder {
	t.Helper()
	in, err := cmd.StdinPipe()
	must(t, err)
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	line, _ := bufio.NewReader(out).ReadString('\n')
	ended := false
	end := func() {
		if !ended {
			ended = true
			_ = in.Close()
			if err := cmd.Wait(); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(end)
	if line != "holds\n" {
		t.Fatalf("the program says %q", line)
	}
	return holder{end}
}

// within waits until something is so, for a minute at most.
func within(t *testing.T, what string, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not after a minute: %s", what)
		}
	}
}
