package preload

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// never is the program of never.c.
var never = compiled("never")

// TestNothingEndsTheProgram: what befalls the library is an error of a call, at most with one
// line. It refuses a library whose ledger is read through a mapping (cut), whose threads block
// the signals of faults, whose lines raise SIGPIPE or take the program's own back, that runs
// Go on whatever stack it finds, that needs a descriptor for its timers (close), and that lets
// Go's runtime find out what the process may not have (limit).
func TestNothingEndsTheProgram(t *testing.T) {
	b := libraries(t)
	program, err := never()
	if err != nil {
		t.Fatal(err)
	}
	// A user without rights reads the library here, for whom the number of threads is limited.
	front := filepath.Join(t.TempDir(), "front")
	driver := filepath.Join(filepath.Dir(front), "driver")
	must(t, os.CopyFS(front, os.DirFS(b.front)))
	must(t, os.CopyFS(driver, os.DirFS(b.driver)))
	must(t, os.Link(program, filepath.Join(filepath.Dir(front), "never")))
	for _, tc := range []struct {
		name, args string // LEDGER is the lease's file
		says       string // by the library: one line, which begins so; "" for none, "-" for any
	}{
		{"ledger cut to nothing", "cut LEDGER 0", "-"},
		{"ledger cut behind its header", "cut LEDGER 4096", "-"},
		{"ledger cut within the slots", "cut LEDGER 4100", "-"},
		{"faults", "faults", ""},
		{"no reader", "pipe default", ""},
		{"no reader, a handler", "pipe none", ""},
		{"no reader, SIGPIPE pending in the thread", "pipe thread", ""},
		{"no reader, SIGPIPE pending in the process", "pipe process", ""},
		{"file that may not grow", "file", ""},
		{"thread of 16 KiB", "stack thread 16", ""},
		{"thread of 24 KiB", "stack thread 24", ""},
		{"fiber of 16 KiB", "stack fiber 16", ""},
		{"fiber of 256 KiB", "stack fiber 256", ""},
		{"all descriptors closed", "close LEDGER", ""},
		{"no addresses left", "limit addresses", "gpumem: the pools are not loaded, and there is no GPU memory without them: Go's runtime needs 1 GiB of addresses"},
		{"no threads left", "limit threads", "gpumem: the pools are not loaded, and there is no GPU memory without them: Go's runtime needs 12 threads"},
		{"last thread is the program's", "last threads", ""},
		{"no descriptors left", "limit descriptors", "gpumem: the pools are not loaded: "},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := newLedger(t, 512<<20)
			cmd := exec.Command(filepath.Join(filepath.Dir(front), "never"), strings.Fields(strings.ReplaceAll(tc.args, "LEDGER", path))...)
			cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+front, "GPUMEM_LIBCUDA="+filepath.Join(driver, "libcuda.so.1"), "GPUMEM_DEVICE=sim:1GiB", "GPUMEM_REPORT=0", "GPUMEM_LEDGER="+path)
			if strings.Contains(tc.args, "threads") && os.Getuid() == 0 {
				cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 54321, Gid: 54321}}
				must(t, os.Chown(path, 54321, 54321))
				must(t, os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
				must(t, os.Chmod(filepath.Dir(filepath.Dir(front)), 0o755))
			}
			var out, said bytes.Buffer
			cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &out, &said, time.Second
			timer := time.AfterFunc(time.Minute, func() { _ = cmd.Process.Kill() })
			defer timer.Stop()
			err := cmd.Run()
			if err != nil || out.Len() > 0 {
				t.Errorf("%v: %s%s", err, out.String(), said.String())
			}
			if line := said.String(); !isLine(line, tc.says) {
				t.Errorf("it says %q, want %q", line, tc.says)
			}
		})
	}
}

// isLine reports whether what was said is one line that begins with want, nothing for "", or
// anything for "-".
func isLine(said, want string) bool {
	switch want {
	case "-":
		return true
	case "":
		return said == ""
	}
	return strings.HasPrefix(said, want) && strings.Count(said, "\n") == 1
}
