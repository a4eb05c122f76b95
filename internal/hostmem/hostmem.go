// Package hostmem says how much memory of the host a process may still take before the kernel
// ends a program for want of it.
package hostmem

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
)

// Room is what may still be taken.
type Room struct {
	Bytes uint64 // after the margin
	By    string // what limits it: "the host", or a control group's path
}

// The part of a limit, and the bytes, that are left for everybody else: for what a program takes
// beside what was asked for, and for page tables. A GiB of memory has 2 MiB of page tables.
const (
	marginPart  = 20
	leastMargin = 128 << 20
)

// Free returns the least room of the host and of all control groups that this process is in: the
// limit less what is in use, of which inactive pages of files do not count, as the kernel drops
// those first (Kubernetes counts so, too). It is of this moment: others may take it.
func Free() (Room, error) { return free("/") }

// free is Free where the host's root is another folder.
func free(root string) (Room, error) {
	least, err := host(root)
	if err != nil {
		return Room{}, err
	}
	groups, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel without control groups
		return Room{}, err
	}
	for line := range strings.Lines(string(groups)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(fields) != 3 {
			continue
		}
		names, ok := v2, fields[0] == "0" && fields[1] == ""
		if containsWord(fields[1], "memory") {
			names, ok = v1, true
		}
		if !ok {
			continue
		}
		for at := path.Clean("/" + fields[2]); ; at = path.Dir(at) {
			room, limited, err := names.room(filepath.Join(root, names.mount, at))
			if err != nil {
				return Room{}, err
			}
			if limited && room < least.Bytes {
				least = Room{room, "the control group " + at}
			}
			if at == "/" {
				break
			}
		}
	}
	return least, nil
}

func containsWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// host is the room of the whole machine.
func host(root string) (Room, error) {
	file := filepath.Join(root, "proc/meminfo")
	text, err := os.ReadFile(file)
	if err != nil {
		return Room{}, err
	}
	total, ok := field(text, "MemTotal:")
	available, ok2 := field(text, "MemAvailable:")
	if !ok || !ok2 {
		return Room{}, fmt.Errorf("%s: no MemTotal or MemAvailable", file)
	}
	return Room{less(available<<10, margin(total<<10)), "the host"}, nil
}

func margin(limit uint64) uint64 { return max(limit/marginPart, leastMargin) }

// version has the names of a version of control groups.
type version struct{ mount, limit, usage, inactive string }

var (
	v2 = version{"sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"}
	v1 = version{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"}
)

// unlimited is what version 1 has for no limit, and more: no machine has as much.
const unlimited = 1 << 60

// room returns the room of a group; limited is false of one that has no limit, or is not to be seen.
func (v version) room(folder string) (bytes uint64, limited bool, err error) {
	limit, err := number(filepath.Join(folder, v.limit))
	if errors.Is(err, fs.ErrNotExist) || err == nil && limit >= unlimited {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	usage, err := number(filepath.Join(folder, v.usage))
	if err != nil {
		return 0, false, err
	}
	stat, err := os.ReadFile(filepath.Join(folder, "memory.stat"))
	if err != nil {
		return 0, false, err
	}
	inactive, _ := field(stat, v.inactive)
	return less(limit, less(usage, inactive)+margin(limit)), true, nil
}

// number reads a file with one number; "max" is none.
func number(file string) (uint64, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	word := strings.TrimSpace(string(text))
	if word == "max" {
		return unlimited, nil
	}
	n, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is no number of bytes", file, word)
	}
	return n, nil
}

// field returns the number behind a word at the beginning of a line.
func field(text []byte, name string) (n uint64, ok bool) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			n, err := strconv.ParseUint(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

func less(a, b uint64) uint64 { return a - min(a, b) }
