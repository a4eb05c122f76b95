package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
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

// measure runs the program replay on a trace.
func (p peer) measure(ctx context.Context, o options, in *input) (figures, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(o.built, "replay"), p.file, in.path,
		strconv.FormatUint(in.device, 10), strconv.Itoa(o.repeats), fmt.Sprint(o.budget), "smallest")
	cmd.Env = append(os.Environ(), "TF_CPP_MIN_LOG_LEVEL=3", "TF_ENABLE_ONEDNN_OPTS=0")
	var out, problems bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &problems
	if err := cmd.Run(); err != nil {
		return figures{}, errors.Join(err, errors.New(strings.TrimSpace(problems.String())))
	}
	f, err := parse(out.String())
	if p.version == "" { // it has no device
		f = figures{ns: f.ns}
	}
	return f, err
}

// parse reads what replay prints: a name and a value a line.
func parse(text string) (figures, error) {
	var f figures
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		n, err := strconv.ParseFloat(value, 64)
		whole := uint64(n)
		switch key {
		case "over":
			f.ns = "> " + nanos(n)
		case "ns":
			f.ns = nanos(n)
		case "refused":
			f.refused = whole
		case "calls":
			f.calls = &whole
		case "held_mean":
			f.held = &n
		case "smallest":
			f.smallest = &whole
		case "digest":
			f.digest, err = value, nil
		}
		if err != nil {
			return f, fmt.Errorf("replay printed %q", strings.TrimSpace(line))
		}
	}
	return f, nil
}
