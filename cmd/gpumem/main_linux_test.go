package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
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
