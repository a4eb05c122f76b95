// Families of programs under gpumem run, killed one by one.

package main

import (
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpumem/internal/test/observer"
)

var deaths = flag.Int("family-kills", 24, "how many members of families are killed; 2000 for the long run")

// closeAll closes every descriptor of a bash but its script's.
const closeAll = `for f in /proc/$BASHPID/fd/*; do f=${f##*/}; ((f == 255)) || eval "exec $f>&-"; done 2>&-; `

// families are programs that leave others behind. TAG is a fraction of a second by which
// their processes are known. keeper: the descriptors alone keep the lease, too.
var families = []struct {
	name    string
	outside []string // what starts gpumem run; its pid namespace ends with it
	program []string
	keeper  bool
}{
	{"one", nil, []string{"sleep", "60.TAG"}, true},
	{"three", nil, []string{"bash", "-c", "sleep 60.TAG & sleep 60.TAG & wait"}, true},
	{"double fork", nil, []string{"bash", "-c", "(setsid bash -c 'sleep 60.TAG & sleep 60.TAG & exit' &); exit"}, true},
	{"daemon", nil, []string{"bash", "-c", closeAll + "(setsid bash -c 'sleep 60.TAG & sleep 60.TAG & exit' &); exit"}, false},
	{"daemon without environment", nil, []string{"bash", "-c", closeAll + "exec env -i setsid -f sleep 60.TAG"}, false},
	{"chain", nil, []string{"bash", "-c", closeAll + "f() { if (($1)); then f $(($1 - 1)) & exit; fi; exec sleep 60.TAG; }; f 30"}, false},
	{"pid namespace inside", nil, []string{"unshare", "-pf", "--mount-proc", "bash", "-c", "sleep 60.TAG & sleep 60.TAG & wait"}, true},
	{"daemon in a pid namespace inside", nil, []string{"bash", "-c", closeAll + "exec unshare -pf bash -c 'setsid sleep 60.TAG & sleep 60.TAG; :'"}, false},
	{"rootless inside", nil, []string{"unshare", "-Urpf", "--mount-proc", "bash", "-c", closeAll + "sleep 60.TAG & sleep 60.TAG & wait"}, false},
	{"pid namespace", []string{"unshare", "-pf", "--mount-proc"}, []string{"bash", "-c", closeAll + "(setsid sleep 60.TAG &); sleep 60.TAG; :"}, false},
	{"rootless", []string{"unshare", "-Urpf", "--mount-proc"}, []string{"bash", "-c", closeAll + "(setsid sleep 60.TAG &); sleep 60.TAG; :"}, false},
}

// TestFamilyKeepsItsLeaseAndNoLonger: members are killed at random. An observer that reads
// the kernel's locks, not the registry, sees a lease whenever a member lives, and none soon
// after the last. A keeper that ends with the program, or takes a process that hands on for
// the end, loses leases here; one that follows too many keeps them.
func TestFamilyKeepsItsLeaseAndNoLonger(t *testing.T) {
	const registries = 4
	for k := range registries {
		t.Run(fmt.Sprint("registry ", k), func(t *testing.T) {
			t.Parallel()
			g := newGPUs(t, "1GiB")
			r := rand.New(rand.NewPCG(rand.Uint64(), 0))
			killed := map[string]int{}
			looks := 0
			for left := (*deaths + registries - 1) / registries; left > 0; {
				i := r.IntN(len(families))
				if f := families[i]; (*onlyFamily == "" || *onlyFamily == f.name) && canRun(t, f.outside, f.program) {
					n, l := killFamily(t, g, r, i)
					left, looks, killed[f.name] = left-n, looks+l, killed[f.name]+n
				}
			}
			eventually(t, "the GPU is free", func() bool { return g.free(t) == 1<<30 })
			t.Logf("%d looks; killed: %v", looks, killed)
		})
	}
}

// canRun reports whether this machine lets a family be what it is.
func canRun(t *testing.T, commands ...[]string) bool {
	for _, c := range commands {
		if len(c) == 0 {
			continue
		}
		if _, err := exec.LookPath(c[0]); err != nil {
			return false
		}
		if c[0] == "unshare" && exec.Command(c[0], append(c[1:3:3], "true")...).Run() != nil {
			return false
		}
	}
	return true
}

var onlyFamily = flag.String("family", "", "of the families, kill this one alone")

// killFamily starts a family and kills its members until none is left. It returns how many
// it has killed and how often it has looked.
func killFamily(t *testing.T, g *gpus, r *rand.Rand, i int) (killed, looks int) {
	t.Helper()
	f := families[i]
	tag := fmt.Sprintf("%09d", r.IntN(1e9))
	args := slices.Concat(f.outside, []string{filepath.Join(g.bin, "gpumem"), "run", "--mem", "64MiB", "--"}, f.program)
	for j, arg := range args {
		args[j] = strings.ReplaceAll(arg, "TAG", tag)
	}
	word, folder := "60."+tag, filepath.Join(g.dir, "registry")
	var errs strings.Builder
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = g.env
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	read, ended := make(chan struct{}), make(chan struct{})
	go func() { _, _ = io.Copy(&errs, pipe); close(read) }()
	go func() { _, _ = cmd.Process.Wait(); close(ended) }()
	defer func() { // a family that fails the test is left to nobody
		for _, p := range observer.Processes(word, "") {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		<-ended
		<-read
	}()
	// look looks until it knows whether the family lives.
	look := func() observer.View {
		const sure = 20 // looks: one that has been killed may still be seen
		lost := 0
		for deadline := time.Now().Add(20 * time.Second); ; {
			v, err := observer.Look(folder, word, "--mem")
			if err != nil {
				t.Fatal(err)
			}
			looks++
			if v.Lives && v.Leased != 64<<20 {
				if lost++; lost == sure {
					t.Fatalf("%s: %d bytes are leased while it lives, after %d kills: %v", f.name, v.Leased, killed, observer.Processes(word, "--mem"))
				}
				continue
			}
			if v.Lives || v.Gone && v.Leased == 0 {
				return v
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: %d bytes are leased after its end, after %d kills", f.name, v.Leased, killed)
			}
		}
	}
	started := false
	for deadline := time.Now().Add(20 * time.Second); !started; started = look().Lives {
		select {
		case <-ended:
			started = true // and it may have ended, too
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not start", f.name)
		}
	}
	keeper := f.keeper && r.IntN(2) == 0
	for look().Lives {
		if keeper {
			for _, p := range observer.Processes(folder, "--mem") {
				if exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", p.PID)); filepath.Base(exe) == "gpumem" {
					_ = syscall.Kill(p.PID, syscall.SIGKILL)
				}
			}
			keeper = false
			continue
		}
		if all := observer.Processes(word, "--mem"); len(all) > 0 {
			if syscall.Kill(all[r.IntN(len(all))].PID, syscall.SIGKILL) == nil {
				killed++
			}
		}
	}
	return killed, looks
}
