package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"
	"unsafe"
)

// A program that says which signal it gets when its parent ends.
func init() {
	if filepath.Base(os.Args[0]) == "deathsig" { // which asks about the main thread
		runtime.LockOSThread()
	}
	programs["deathsig"] = func() {
		var sig int32
		_, _, errno := syscall.Syscall(syscall.SYS_PRCTL, syscall.PR_GET_PDEATHSIG, uintptr(unsafe.Pointer(&sig)), 0)
		fmt.Println(sig, errno)
	}
}

// TestSignalsHaveTheirDefaultBeforeWhatTakesLong: package early is initialized before all other
// packages of this module. Without, SIGQUIT in the first milliseconds was a dump of all stacks.
func TestSignalsHaveTheirDefaultBeforeWhatTakesLong(t *testing.T) {
	cmd := exec.Command("gpumem", "version")
	cmd.Env = append(os.Environ(), "GODEBUG=inittrace=1")
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if name, ok := strings.CutPrefix(line, "init gpumem/"); ok && !strings.HasPrefix(name, "internal/unhandled") {
			t.Fatalf("%s before internal/unhandled/early:\n%s", line, out)
		} else if ok && strings.HasPrefix(name, "internal/unhandled/early ") {
			return
		}
	}
	t.Errorf("internal/unhandled/early is not initialized:\n%s", out)
}

// TestProgramHasTheDeathSignalOfItsCaller: the caller sets it for the main thread alone.
func TestProgramHasTheDeathSignalOfItsCaller(t *testing.T) {
	dir, err := os.MkdirTemp("", "gpumem-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // the keepers still tidy up there for a moment
		for deadline := time.Now().Add(time.Minute); os.RemoveAll(dir) != nil && time.Now().Before(deadline); {
			runtime.Gosched()
		}
	})
	device := "sim@" + filepath.Join(dir, "gpu")
	env := append(os.Environ(), "GPUMEM_DEVICE="+device, "GPUMEM_RUN_DIR="+filepath.Join(dir, "registry"), "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	made := exec.Command("gpumem", "devices", "--device", device+",total=24GiB,create")
	made.Env = env
	if out, err := made.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	runtime.LockOSThread() // the signal comes when the thread ends that started the program
	defer runtime.UnlockOSThread()
	for range 5 { // which thread it is without a lock is a matter of chance
		cmd := exec.Command("gpumem", "run", "--mem", "1GiB", "--", "deathsig")
		cmd.Env, cmd.Stderr = env, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGUSR2}
		if out, err := cmd.Output(); err != nil || string(out) != fmt.Sprintf("%d errno 0\n", syscall.SIGUSR2) {
			t.Fatalf("%q, %v", out, err)
		}
	}
}
