package proc

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"
)

func command(pid int) []string {
	text, _ := os.ReadFile(system.file(pid, "cmdline"))
	return words(string(text))
}

func cgroup(pid int) string {
	text, _ := os.ReadFile(system.file(pid, "cgroup"))
	return string(text)
}

func inner(pid int) (namespace uint64, number int, ok bool) {
	link, err := os.Readlink(system.file(pid, "ns/pid"))
	if err != nil {
		return 0, 0, false
	}
	if _, err := fmt.Sscanf(link, "pid:[%d]", &namespace); err != nil {
		return 0, 0, false
	}
	text, err := os.ReadFile(system.file(pid, "status"))
	if err != nil {
		return 0, 0, false
	}
	s, _ := parseStatus(string(text))
	return namespace, s.inner, s.inner != 0
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
