// Package observe looks at a node from outside: what the processes of its containers hold
// of a simulated GPU, what their ledgers and lease files say, and whether all of it is
// within the claims. It reads the files by their documented layouts with code of its own, so
// that an error in the programs under test is not in here, too.
package observe

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
)

// The layout of the file of simulated GPUs, see package gpumem/device/internal/shared.
const (
	simSize    = 192976
	simMarks   = 4160 + 8 + 8 + 16*8 + 16*8 // a bit for each slot
	simSlots   = simMarks + 16*8
	simSlot    = 8 + 8 + 32 + 8 + 16*8
	simHeld    = 8 + 8 + 32 + 8
	simOfSlots = 1024
	simLocks   = 1<<40 + 1 // the byte whose lock says that slot 0 is a living process's

	getLock = 36 // F_OFD_GETLK of fcntl.h
)

// Holder is a process that holds memory of a simulated GPU.
type Holder struct {
	PID   uint64 // as it sees itself
	Start uint64 // ticks since the machine's start
	Bytes uint64
}

// slots reads the slots of a GPU's file that are in use, by number. A dead process's is in
// use until its room is needed.
func slots(f io.Reader, gpu int) (map[int]Holder, error) {
	b, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if len(b) != simSize || string(b[:8]) != "gpumemS\n" {
		return nil, fmt.Errorf("no simulated GPU: %d bytes", len(b))
	}
	all := map[int]Holder{}
	for i := range simOfSlots {
		if binary.NativeEndian.Uint64(b[simMarks+i/64*8:])&(1<<(i%64)) != 0 {
			slot := b[simSlots+i*simSlot:]
			all[i] = Holder{binary.NativeEndian.Uint64(slot), binary.NativeEndian.Uint64(slot[8:]), binary.NativeEndian.Uint64(slot[simHeld+8*gpu:]) >> 8}
		}
	}
	return all, nil
}

// Holders reads which processes that live hold memory of a GPU.
func Holders(file string, gpu int) ([]Holder, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all, err := slots(f, gpu)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var list []Holder
	for _, i := range slices.Sorted(maps.Keys(all)) {
		lock := syscall.Flock_t{Type: syscall.F_WRLCK, Start: simLocks + int64(i), Len: 1}
		if err := syscall.FcntlFlock(f.Fd(), getLock, &lock); err != nil {
			return nil, fmt.Errorf("%s: lock of slot %d: %w", file, i, err)
		}
		if lock.Type != syscall.F_UNLCK { // else it is dead
			list = append(list, all[i])
		}
	}
	return list, nil
}

// slotsOf returns the slots that a process has the locks of, by the kernel's account of its
// open files. dir is its folder in /proc.
func slotsOf(dir string, inode uint64) (list []int) {
	files, _ := filepath.Glob(dir + "/fdinfo/*")
	for _, file := range files {
		text, _ := os.ReadFile(file) // it may be closed by now
		for line := range strings.Lines(string(text)) {
			// lock: 1: OFDLCK ADVISORY WRITE -1 00:2f:1234 FIRST LAST
			f := strings.Fields(line)
			if len(f) != 9 || f[0] != "lock:" || f[2] != "OFDLCK" || !strings.HasSuffix(f[6], fmt.Sprint(":", inode)) {
				continue
			}
			first, err1 := strconv.ParseInt(f[7], 10, 64)
			last, err2 := strconv.ParseInt(f[8], 10, 64)
			if err1 != nil || err2 != nil || first < simLocks || last >= simLocks+simOfSlots {
				continue
			}
			for i := first; i <= last; i++ {
				list = append(list, int(i-simLocks))
			}
		}
	}
	return list
}

// Ledger is what a ledger says, see package gpumem/node/ledger.
type Ledger struct {
	Limit, Held uint64 // bytes; Held includes processes that have died and were not cleared yet
}

// ReadLedger reads a ledger.
func ReadLedger(file string) (Ledger, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return Ledger{}, err
	}
	if len(b) != 135168 || string(b[:8]) != "gpumemL1" {
		return Ledger{}, fmt.Errorf("%s is no ledger: %d bytes", file, len(b))
	}
	l := Ledger{Limit: binary.LittleEndian.Uint64(b[8:])}
	for i := range 1024 {
		slot := b[4096+i*128:]
		if binary.LittleEndian.Uint32(slot) != 0 {
			l.Held += binary.LittleEndian.Uint64(slot[16:]) + binary.LittleEndian.Uint64(slot[24:]) + binary.LittleEndian.Uint64(slot[72:])
		}
	}
	return l, nil
}

// Process is a process of a container.
type Process struct {
	PID       int // on the node
	Inside    uint64
	Start     uint64
	Container string // its ID
	Leased    bool   // it sees a lease file and the library's mark
	Device    bool   // it has a device of a claim
	Shares    []string
	Bytes     uint64 // of its lease
}

func (p Process) dir() string { return fmt.Sprint("/proc/", p.PID) }

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// Processes returns the processes of all containers whose program is exe, as /proc has them.
func Processes(exe string) ([]Process, error) {
	dirs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		return nil, err
	}
	var list []Process
	for _, dir := range dirs {
		// Any of the files may be gone with its process.
		cmdline, _ := os.ReadFile(dir + "/cmdline")
		if name, rest, _ := strings.Cut(string(cmdline), "\x00"); name != exe || strings.HasPrefix(rest, "pause") {
			continue
		}
		cgroup, _ := os.ReadFile(dir + "/cgroup")
		environ, _ := os.ReadFile(dir + "/environ")
		p := Process{Container: containerID.FindString(string(cgroup)), Device: strings.Contains("\x00"+string(environ), "\x00GPUMEM_DEVICE=")}
		p.PID, _ = strconv.Atoi(filepath.Base(dir))
		if p.Start, p.Inside = startOf(dir), insideOf(dir); p.Start == 0 || p.Container == "" {
			continue
		}
		text, err := os.ReadFile(dir + "/root/etc/gpumem/lease.json")
		_, mark := os.Stat(dir + "/root/opt/gpumem/lib/leased")
		p.Leased = err == nil && mark == nil
		var lease struct {
			GPUs []struct {
				Bytes  uint64
				Shares []string
			}
		}
		if err == nil {
			if err := json.Unmarshal(text, &lease); err != nil {
				return nil, fmt.Errorf("lease file of process %d: %w", p.PID, err)
			}
		}
		for _, g := range lease.GPUs {
			p.Shares = append(p.Shares, g.Shares...)
			p.Bytes += g.Bytes
		}
		if startOf(dir) == p.Start { // still the same process
			list = append(list, p)
		}
	}
	return list, nil
}

// startOf returns when a process was started, 0 if it is gone.
func startOf(dir string) uint64 {
	b, _ := os.ReadFile(dir + "/stat")
	_, rest, _ := strings.Cut(string(b), ") ")
	if f := strings.Fields(rest); len(f) > 19 && f[0] != "Z" {
		n, _ := strconv.ParseUint(f[19], 10, 64)
		return n
	}
	return 0
}

// insideOf returns a process's number as it sees itself.
func insideOf(dir string) uint64 {
	b, _ := os.ReadFile(dir + "/status")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			n, _ := strconv.ParseUint(f[len(f)-1], 10, 64)
			return n
		}
	}
	return 0
}

// Node is a node as one look saw it.
type Node struct {
	Processes int    // with a device of a claim
	Held      uint64 // by them, of the GPU
}

// Look looks at a node once. sim is the file of its GPU, shares the agent's folder of
// ledgers, claims the bytes that each share consumed. The error names what must not be: a
// process with a device and without a lease, processes that hold more than their claim, a
// ledger whose limit is not the claim's.
func Look(sim, shares, exe string, claims map[string]uint64) (Node, error) {
	var n Node
	f, err := os.Open(sim)
	if err != nil {
		return n, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return n, err
	}
	processes, err := Processes(exe)
	if err != nil {
		return n, err
	}
	// Whose a slot is, the kernel says by its lock. Two containers of one tick look the same
	// in the file, and what it says of a slot may still be the one's before.
	own := map[int][]int{}
	for _, p := range processes {
		own[p.PID] = slotsOf(p.dir(), st.Sys().(*syscall.Stat_t).Ino)
	}
	all, err := slots(f, 0)
	if err != nil {
		return n, fmt.Errorf("%s: %w", sim, err)
	}
	seen := map[int]bool{}
	held := map[int]uint64{} // by PID
	for _, p := range processes {
		for _, i := range own[p.PID] {
			h := all[i]
			if !seen[i] && h.PID == p.Inside && h.Start == p.Start && startOf(p.dir()) == p.Start { // so the lock was its own until now
				seen[i] = true
				held[p.PID] += h.Bytes
			}
		}
	}
	sums := map[string]uint64{} // by the shares of a lease
	limits := map[string]uint64{}
	for _, p := range processes {
		if !p.Device {
			continue
		}
		n.Processes++
		if !p.Leased {
			return n, fmt.Errorf("process %d in container %.12s has a device and no lease", p.PID, p.Container)
		}
		var limit uint64
		for _, s := range p.Shares {
			limit += claims[s]
		}
		if limit == 0 {
			continue // a claim that the caller does not know yet
		}
		if p.Bytes != limit {
			return n, fmt.Errorf("process %d in container %.12s has a lease on %d bytes, and its claims consumed %d", p.PID, p.Container, p.Bytes, limit)
		}
		key := strings.Join(p.Shares, "+")
		n.Held += held[p.PID]
		sums[key] += held[p.PID]
		limits[key] = limit
	}
	for key, sum := range sums {
		if sum > limits[key] {
			return n, fmt.Errorf("the processes of share %s hold %d bytes, and the claim has %d", key, sum, limits[key])
		}
		l, err := ReadLedger(filepath.Join(shares, key, "ledger"))
		if os.IsNotExist(err) {
			continue // the pod has ended since
		}
		if err != nil {
			return n, err
		}
		if l.Limit != limits[key] || l.Held > l.Limit {
			return n, fmt.Errorf("ledger of share %s: limit %d, held %d; the claim has %d", key, l.Limit, l.Held, limits[key])
		}
	}
	return n, nil
}
