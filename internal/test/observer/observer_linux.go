// Package observer says which leases a registry has and which processes a family, by what
// the kernel says of locks and processes. It shares nothing with the packages that keep the
// books, so that a test can hold them against it.
package observer

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// lowest is where the locks of leases begin in their files; what is locked below is no
// lease.
const lowest = 1 << 62

// Leased returns the bytes that the leases of a registry have locked in the kernel, by
// the name of the lock's file.
func Leased(folder string) (map[string]uint64, error) {
	names, err := filepath.Glob(filepath.Join(folder, "*.held"))
	if err != nil {
		return nil, err
	}
	inodes := map[string]string{}
	for _, name := range names {
		var of syscall.Stat_t
		if syscall.Stat(name, &of) == nil {
			inodes[strconv.FormatUint(of.Ino, 10)] = filepath.Base(name)
		}
	}
	text, err := os.ReadFile("/proc/locks")
	if err != nil {
		return nil, err
	}
	return locked(string(text), inodes), nil
}

// locked reads the text of /proc/locks, whose lines are as
//
//	7: OFDLCK ADVISORY  WRITE -1 fe:00:4711 4611686018427387904 4611686018494496767
//
// Those that wait have "->" for the second word. inodes names the files.
func locked(text string, inodes map[string]string) map[string]uint64 {
	leases := map[string]uint64{}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if isHeld := len(f) == 8 && f[1] == "OFDLCK" && f[3] == "WRITE"; !isHeld {
			continue
		}
		name, ok := inodes[f[5][strings.LastIndexByte(f[5], ':')+1:]]
		first, err := strconv.ParseUint(f[6], 10, 64)
		last, err2 := strconv.ParseUint(f[7], 10, 64) // fails for EOF
		if !ok || err != nil || err2 != nil {
			continue
		}
		if first >= lowest {
			leases[name] += last - first + 1
		}
	}
	return leases
}

// A Process is a number and, since numbers are given again, the start that goes with it.
type Process struct {
	PID   int
	Start string
}

// Processes returns the living processes that have word in their arguments and are not of
// the command that starts them, which has the argument except. Those of other pid
// namespaces count by their numbers here. It may miss one that forks and ends meanwhile.
func Processes(word, except string) (list []Process) {
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		command, err := os.ReadFile(folder + "/cmdline") // empty for a zombie
		if err != nil || !strings.Contains(string(command), word) || slices.Contains(strings.Split(string(command), "\x00"), except) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(folder)); err == nil && pid != os.Getpid() {
			if start, ok := startOf(folder); ok {
				list = append(list, Process{pid, start})
			}
		}
	}
	return list
}

// startOf returns the start of a process that lives, in clock ticks since the machine's. One
// that has been killed and has yet to run to its end does not: the kernel kills all of a pid
// namespace with the first process, in any order.
func startOf(folder string) (start string, ok bool) {
	const (
		exiting = 4      // PF_EXITING of Linux's sched.h, in the flags
		kill    = 1 << 8 // SIGKILL, in the masks of signals
	)
	text, err := os.ReadFile(folder + "/stat")
	status, err2 := os.ReadFile(folder + "/status")
	if err != nil || err2 != nil {
		return "", false
	}
	for _, name := range []string{"\nSigPnd:\t", "\nShdPnd:\t"} {
		_, mask, _ := strings.Cut(string(status), name)
		mask, _, _ = strings.Cut(mask, "\n")
		if n, _ := strconv.ParseUint(mask, 16, 64); n&kill != 0 {
			return "", false
		}
	}
	f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	flags, _ := strconv.ParseUint(f[6], 10, 64)
	hasEnded := f[0] == "Z" || f[0] == "X"
	return f[19], !hasEnded && flags&exiting == 0
}

// A View is what was so at one moment.
type View struct {
	Lives  bool   // a process was there before and after the leases were read
	Gone   bool   // none was there, before and after
	Leased uint64 // bytes
}

// Look returns what is so of the family that has word in its arguments, see [Processes],
// and of the registry, where it has the only lease. A family that hands on from process to
// process may be neither known to live nor gone.
func Look(folder, word, except string) (View, error) {
	before := Processes(word, except)
	leases, err := Leased(folder)
	after := Processes(word, except)
	v := View{
		Lives: slices.ContainsFunc(before, func(p Process) bool { return slices.Contains(after, p) }),
		Gone:  len(before) == 0 && len(after) == 0,
	}
	for _, n := range leases {
		v.Leased += n
	}
	return v, err
}
