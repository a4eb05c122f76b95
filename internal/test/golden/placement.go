package golden

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Program is a list of allocations and frees, and where releases of JAX placed
// them: a file of testdata/jax, whose head says what is in it.
type Program struct {
	Name    string
	Ops     []Op
	Columns []Column
}

// Column is one run of a [Program].
type Column struct {
	Release     string // of JAX
	Setting     string // a name for the rest
	Total, Free uint64 // bytes of the device
	Environment []string
	Places      []string          // of each allocation: REGION:OFFSET, or - for a refusal
	Grants      []uint64          // bytes of each region, in the order in which they were taken
	Stats       map[string]uint64 // memory_stats at the end
}

// Programs reads testdata/jax.
func Programs() ([]Program, error) {
	files, err := filepath.Glob(filepath.Join(Dir(), "jax", "*.txt.gz"))
	if err != nil {
		return nil, err
	}
	var list []Program
	for _, path := range files {
		p, err := program(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		list = append(list, p)
	}
	return list, nil
}

func program(path string) (Program, error) {
	p := Program{Name: strings.TrimSuffix(filepath.Base(path), ".txt.gz")}
	f, err := os.Open(path)
	if err != nil {
		return p, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return p, err
	}
	sc := bufio.NewScanner(z)
	sc.Buffer(nil, 1<<20)
	for sc.Scan() {
		w := strings.Fields(sc.Text())
		if w[0] == "#" {
			continue
		}
		number, upper := strings.CutPrefix(w[1], "u")
		id, err := strconv.Atoi(number)
		if err != nil {
			return p, err
		}
		switch w[0] {
		case "c":
			c := Column{Release: w[2], Setting: w[3], Stats: map[string]uint64{}}
			if c.Total, err = bytes(w[4]); err == nil {
				c.Free, err = bytes(w[5])
			}
			if env := strings.Trim(w[6], `"`); env != "" {
				c.Environment = strings.Split(env, ";")
			}
			p.Columns = append(p.Columns, c)
		case "a":
			op := Op{Block: int32(id), Upper: upper}
			op.Bytes, err = bytes(w[2])
			p.Ops = append(p.Ops, op)
			last := ""
			for i, place := range w[3:] {
				if place != "=" {
					last = place
				}
				p.Columns[i].Places = append(p.Columns[i].Places, last)
			}
		case "f":
			p.Ops = append(p.Ops, Op{Block: int32(id), Free: true})
		case "g":
			for _, word := range w[2:] {
				n, err := bytes(word)
				if err != nil {
					return p, err
				}
				p.Columns[id].Grants = append(p.Columns[id].Grants, n)
			}
		case "s":
			for _, word := range w[2:] {
				name, value, _ := strings.Cut(word, "=")
				if p.Columns[id].Stats[name], err = bytes(value); err != nil {
					return p, err
				}
			}
		default:
			err = fmt.Errorf("unknown line %q", sc.Text())
		}
		if err != nil {
			return p, err
		}
	}
	return p, sc.Err()
}
