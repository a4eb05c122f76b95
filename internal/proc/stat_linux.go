package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func readStat(pid int) (Stat, bool) {
	text, err := os.ReadFile(system.file(pid, "stat"))
	if err != nil {
		return Stat{}, false
	}
	return parseStat(string(text))
}

func self() Stat {
	text, _ := os.ReadFile(filepath.Join(string(system), "self", "stat"))
	s, _ := parseStat(string(text))
	return s
}

// parseStat reads PID (NAME) STATE PARENT ..., where the name may have anything
// in it.
func parseStat(text string) (s Stat, ok bool) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return s, false
	}
	f := strings.Fields(text[end+1:])
	if len(f) < 20 || len(f[0]) != 1 { // from field 3 to 22, the start
		return s, false
	}
	s.Name, s.State = text[open+1:end], f[0][0]
	for i, to := range map[int]*int{1: &s.Parent, 2: &s.Group, 3: &s.Session, 17: &s.Threads} {
		n, err := strconv.ParseInt(f[i], 10, 32)
		if err != nil || n < 0 {
			return Stat{}, false
		}
		*to = int(n)
	}
	var err error
	if s.Start, err = strconv.ParseUint(f[19], 10, 64); err != nil {
		return Stat{}, false
	}
	return s, true
}

func command(pid int) []string {
	text, _ := os.ReadFile(system.file(pid, "cmdline"))
	return words(string(text))
}

func cgroup(pid int) string {
	text, _ := os.ReadFile(system.file(pid, "cgroup"))
	return string(text)
}

// uptime returns the time since the machine's start.
func (r root) uptime() (time.Duration, error) {
	text, err := os.ReadFile(filepath.Join(string(r), "uptime"))
	if err != nil {
		return 0, err
	}
	first, _, _ := bytes.Cut(text, []byte(" "))
	up, err := strconv.ParseFloat(string(first), 64)
	if err != nil || up < 0 || up > 1e9 {
		return 0, fmt.Errorf("cannot read the machine's uptime %q", text)
	}
	return time.Duration(up * float64(time.Second)), nil
}

func uptime() time.Duration {
	up, _ := system.uptime()
	return up
}
