// Package golden gives tests the recorded behaviour of the original allocator:
// the traces, and for each way of running them the digest of all placements
// and every counter, as the real C++ program printed them.
//
// It reads text traces with a separate reader, as plain as can be, so that
// no bug of package trace can hide one of an allocator.
package golden

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// Dir is the folder of this project's recorded data.
func Dir() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "..", "testdata")
}

// Op is one event of a trace: an allocation of Bytes, or a free. Block numbers
// are dense; that of a freed block is used again.
type Op struct {
	Bytes uint64
	Block int32
	Free  bool
	Upper bool // the id begins with u
}

// Trace reads testdata/NAME.txt or .txt.gz, where NAME is such as
// "bfc/tiny" or "peers/mltrain".
func Trace(name string) ([]Op, error) {
	path := filepath.Join(Dir(), filepath.FromSlash(name)) + ".txt"
	f, err := os.Open(path)
	var r io.Reader = f
	if err != nil {
		if f, err = os.Open(path + ".gz"); err != nil {
			return nil, err
		}
		if r, err = gzip.NewReader(f); err != nil {
			return nil, err
		}
	}
	defer f.Close()
	var ops []Op
	blocks := map[string]int32{}
	var unused []int32
	n := int32(0)
	sc := bufio.NewScanner(r)
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if len(w) == 0 || strings.HasPrefix(w[0], "#") {
			continue
		}
		if w[0] == "f" {
			ops = append(ops, Op{Block: blocks[w[1]], Free: true})
			unused = append(unused, blocks[w[1]])
			delete(blocks, w[1])
			continue
		}
		bytes, err := strconv.ParseUint(w[2], 10, 64)
		if err != nil {
			return nil, err
		}
		b := n
		if k := len(unused); k > 0 {
			b, unused = unused[k-1], unused[:k-1]
		} else {
			n++
		}
		ops = append(ops, Op{Bytes: bytes, Block: b, Upper: strings.HasPrefix(w[1], "u")})
		blocks[w[1]] = b
	}
	return ops, sc.Err()
}

// Row is one run of the original: how it was run, and what came out.
type Row struct {
	Name        string
	Trace       string
	Limit       uint64
	DeviceTotal uint64 // capacity of the device; the limit where none was given
	Granularity uint64
	Growth      bool
	Spatial     bool
	Coalesce    bool
	GC          bool
	Frag        float64
	Align       uint64

	// Out holds the columns after the options, by name: oom, num_allocs,
	// bytes_in_use ... fragmentation, placement_fnv1a64.
	Out map[string]string
}

// Rows reads golden.tsv.
func Rows() ([]Row, error) {
	f, err := os.Open(filepath.Join(Dir(), "bfc", "golden.tsv"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var rows []Row
	var head []string
	sc := bufio.NewScanner(f)
	for sc.Scan() {
		w := strings.Split(sc.Text(), "\t")
		if head == nil {
			head = w
			continue
		}
		row := Row{Name: w[0], Trace: w[1], Granularity: 1, Out: map[string]string{}}
		if row.Limit, err = bytes(w[2]); err != nil {
			return nil, err
		}
		row.DeviceTotal = row.Limit
		opts := strings.Fields(w[3])
		for len(opts) > 0 {
			val := ""
			if len(opts) > 1 {
				val = opts[1]
			}
			used := 2
			var err error
			switch opts[0] {
			case "--growth":
				row.Growth, used = true, 1
			case "--spatial":
				row.Spatial, used = true, 1
			case "--coalesce":
				row.Coalesce, used = true, 1
			case "--gc":
				row.GC, used = true, 1
			case "--device-total":
				row.DeviceTotal, err = bytes(val)
			case "--granularity":
				row.Granularity, err = bytes(val)
			case "--align":
				row.Align, err = bytes(val)
			case "--frag":
				row.Frag, err = strconv.ParseFloat(val, 64)
			default:
				err = fmt.Errorf("unknown option %s", opts[0])
			}
			if err != nil {
				return nil, fmt.Errorf("%s: %w", row.Name, err)
			}
			opts = opts[used:]
		}
		for i := 4; i < len(w); i++ {
			row.Out[head[i]] = w[i]
		}
		rows = append(rows, row)
	}
	return rows, sc.Err()
}

// bytes reads a number with an optional K, M or G.
func bytes(s string) (uint64, error) {
	shift := 0
	switch {
	case strings.HasSuffix(s, "K"):
		shift = 10
	case strings.HasSuffix(s, "M"):
		shift = 20
	case strings.HasSuffix(s, "G"):
		shift = 30
	}
	n, err := strconv.ParseUint(strings.TrimRight(s, "KMG"), 10, 64)
	return n << shift, err
}

// Digest is the fingerprint of a run's placements. It is FNV-1a over eight
// bytes for each allocation, low byte first, but begins with another basis
// than the usual one.
type Digest uint64

// NewDigest begins a fingerprint.
func NewDigest() Digest { return 1469598103934665603 }

// Add takes in one placement: the offset of the block, or Refused.
func (d *Digest) Add(offset uint64) {
	h := uint64(*d)
	for range 8 {
		h = (h ^ offset&0xff) * 1099511628211
		offset >>= 8
	}
	*d = Digest(h)
}

// Refused is what a refused allocation adds.
const Refused = ^uint64(0)

// String is 16 hexadecimal digits.
func (d Digest) String() string { return fmt.Sprintf("%016x", uint64(d)) }
