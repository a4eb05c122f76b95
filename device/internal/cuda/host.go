//go:build linux && (amd64 || arm64) && !nodriver

// Facts about GPUs and programs that Linux has.

package cuda

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// host is where Linux tells it; tests have their own.
type host struct {
	proc, dev string
	openFile  func(name string, flag int, perm fs.FileMode) (*os.File, error)
	lookupEnv func(string) (string, bool)
}

var realHost = host{proc: "/proc", dev: "/dev", openFile: os.OpenFile, lookupEnv: os.LookupEnv}

// nodes says what is wrong with the driver's device files; "" if nothing is.
func (h host) nodes() string {
	if _, err := os.Stat(filepath.Join(h.dev, "dxg")); err == nil {
		return "" // Windows' driver under WSL, which has no others
	}
	path := filepath.Join(h.dev, "nvidiactl")
	f, err := h.openFile(path, os.O_RDWR, 0)
	switch {
	case err == nil:
		_ = f.Close()
		return ""
	case errors.Is(err, fs.ErrNotExist):
		return "there is no " + path + ": load the kernel module (modprobe nvidia), or in a container start it with --gpus all"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not open " + path + ": see the permissions of " + filepath.Join(h.dev, "nvidia*") + ", often those of the groups video or render"
	}
	return fmt.Sprintf("cannot open the driver: %v", err)
}

// memAvailable is how much of the host's memory programs may still take, in
// bytes, as the kernel estimates it.
func (h host) memAvailable() (uint64, error) {
	path := filepath.Join(h.proc, "meminfo")
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := parseMemAvailable(string(b))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// parseMemAvailable finds it in the text of meminfo.
func parseMemAvailable(text string) (uint64, error) {
	for line := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(line, "MemAvailable:")
		if !ok {
			continue
		}
		f := strings.Fields(rest)
		if len(f) == 2 && f[1] == "kB" {
			if kib, err := strconv.ParseUint(f[0], 10, 54); err == nil {
				return kib << 10, nil
			}
		}
		return 0, fmt.Errorf("cannot read %q", strings.TrimSpace(line))
	}
	return 0, errors.New("no line MemAvailable")
}

// program is the name of a running program, "" if it is unknown: it has
// ended, or its number is of another namespace. In the latter case the number
// may be another program's here, which cannot be known.
func (h host) program(pid int) string {
	b, err := os.ReadFile(filepath.Join(h.proc, strconv.Itoa(pid), "comm"))
	if err != nil {
		return ""
	}
	return string(bytes.TrimSuffix(b, []byte("\n")))
}
