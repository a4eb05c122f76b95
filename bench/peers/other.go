package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// peer is an allocator that run built, driven by the program replay beside it.
type peer struct {
	name    string
	version string // its source and who compiled it; "" for the driver alone
	file    string // path of the shared library
}

// findPeers reads the list that run made: a line for each peer, the library, the name
// and the version separated by tabs.
func findPeers(folder string) ([]peer, error) {
	f, err := os.Open(filepath.Join(folder, "peers.tsv"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var peers []peer
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		w := strings.Split(lines.Text(), "\t")
		if len(w) != 3 {
			return nil, fmt.Errorf("%s: line %d has %d fields, not 3", f.Name(), len(peers)+1, len(w))
		}
		peers = append(peers, peer{name: w[1], version: w[2], file: filepath.Join(folder, w[0])})
	}
	return peers, lines.Err()
}

// measure runs the program replay on a trace. A peer that crashes, hangs or prints what
// it should not is an error, and so is the end of ctx.
func (p peer) measure(ctx context.Context, o options, in *input) (figures, error) {
	// The checked pass and the timed ones take at most twice the budget of CPU time each, the
	// search for a device four times. Twice as much again is for a busy machine.
	ctx, cancel := context.WithTimeout(ctx, time.Duration(20*o.budget*float64(time.Second)))
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(o.built, "replay"), p.file, in.path,
		strconv.FormatUint(in.device, 10), strconv.Itoa(o.repeats), fmt.Sprint(o.budget), "smallest")
	cmd.Env = append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=3", "TF_ENABLE_ONEDNN_OPTS=0")
	cmd.WaitDelay = time.Second // for what its children hold open
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return figures{}, errors.Join(err, ctx.Err(), errors.New(strings.TrimSpace(problems.String())))
	}
	f, err := parse(out.String())
	if p.version == "" { // it has no device
		f = figures{ns: f.ns}
	}
	return f, err
}

// parse reads what replay prints: a name and a value a line. All are there but for the
// smallest device, which is not searched if a pass is slow; and if one is too slow, nothing
// but that.
func parse(text string) (figures, error) {
	var f figures
	seen := map[string]bool{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, " ")
		whole, err := strconv.ParseUint(value, 10, 64)
		n, notNumber := strconv.ParseFloat(value, 64)
		if notNumber == nil && !(n >= 0 && n <= math.MaxFloat32) { // no NaN
			notNumber = errors.New("out of range")
		}
		switch key {
		case "over":
			f.ns, err = "> "+nanos(n), notNumber
		case "ns":
			f.ns, err = nanos(n), notNumber
		case "refused":
			f.refused = whole
		case "calls":
			f.calls = &whole
		case "held_mean":
			f.held, err = &n, notNumber
		case "smallest":
			f.smallest = &whole
		case "digest":
			f.digest, err = value, nil
		case "live_mean", "peak_live":
			err = notNumber
		default:
			err = errors.New("unknown")
		}
		if err != nil || seen[key] {
			return figures{}, fmt.Errorf("replay printed %q", line)
		}
		seen[key] = true
	}
	if !seen["over"] {
		for _, key := range []string{"refused", "calls", "held_mean", "digest", "ns"} {
			if !seen[key] {
				return figures{}, fmt.Errorf("replay ended without its line %q", key)
			}
		}
	}
	return f, nil
}
