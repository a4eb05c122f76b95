// The processes of containers, by their cgroups. The agent is in the host's pid namespace
// and sees them all.

package agent

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is a process of a container.
type process struct {
	pid       int    // in the agent's namespace
	inner     int    // in the container's
	start     uint64 // in clock ticks since the machine's start, the same in all namespaces
	container string // its ID
}

// past returns how a process of a container with a lease uses a GPU without the library,
// "" if it does not: the driver's library is loaded and ours is not, or the driver's device
// for memory is open in a program that has loaded neither. The error is that of a process
// that has ended or that may not be looked into.
func (p process) past(proc string) (string, error) {
	dir := filepath.Join(proc, strconv.Itoa(p.pid))
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	if err != nil {
		return "", err
	}
	driver := ""
	for line := range strings.Lines(string(maps)) {
		f := strings.Fields(line) // addresses, rights, offset, device, inode, path
		if len(f) < 6 || !strings.Contains(f[1], "x") {
			continue
		}
		if strings.HasPrefix(f[5], LibraryFolder+"/") {
			return "", nil
		}
		if strings.HasPrefix(filepath.Base(f[5]), "libcuda.so") {
			driver = f[5]
		}
	}
	if driver != "" {
		return "has loaded " + driver, nil
	}
	fds, err := os.ReadDir(filepath.Join(dir, "fd"))
	if err != nil {
		return "", err
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, "fd", fd.Name())); err == nil && to == "/dev/nvidia-uvm" {
			return "has opened " + to, nil
		}
	}
	return "", nil
}

// end kills a process, and no other that has got its number meanwhile.
func (p process) end(proc string) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, now := range processes(proc, map[string]bool{p.container: true}) {
		if now == p {
			return unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
		}
	}
	return unix.ESRCH
}

// inside identifies a process as it sees itself.
type inside struct {
	pid   int
	start uint64
}

var containerID = regexp.MustCompile(`[0-9a-f]{64}`)

// processes returns the processes of the containers with these IDs, of all containers
// with nil. proc is the folder /proc. Those that end meanwhile are left out.
func processes(proc string, ids map[string]bool) []process {
	if ids != nil && len(ids) == 0 {
		return nil
	}
	names, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	var list []process
	for _, dir := range names {
		groups, err := os.ReadFile(filepath.Join(dir, "cgroup"))
		if err != nil {
			continue
		}
		p := process{}
		for _, id := range containerID.FindAllString(string(groups), -1) {
			if ids == nil || ids[id] {
				p.container = id
			}
		}
		if p.container == "" {
			continue
		}
		p.pid, _ = strconv.Atoi(filepath.Base(dir))
		status, err := os.ReadFile(filepath.Join(dir, "status"))
		if err != nil {
			continue
		}
		p.inner = p.pid
		if _, rest, ok := strings.Cut(string(status), "\nNSpid:"); ok {
			line, _, _ := strings.Cut(rest, "\n")
			if f := strings.Fields(line); len(f) > 0 {
				p.inner, _ = strconv.Atoi(f[len(f)-1])
			}
		}
		stat, err := os.ReadFile(filepath.Join(dir, "stat"))
		if err != nil {
			continue
		}
		// After the name, which may have anything in it: state is field 3, the start 22.
		if f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])); len(f) > 19 {
			p.start, _ = strconv.ParseUint(f[19], 10, 64)
		}
		list = append(list, p)
	}
	return list
}

// byInside returns processes by what they know of themselves. Those of several containers are
// like each other if they started within one tick of the clock, as the first processes of
// two pods may.
func byInside(list []process) map[inside][]process {
	m := map[inside][]process{}
	for _, p := range list {
		k := inside{p.inner, p.start}
		m[k] = append(m[k], p)
	}
	return m
}
