package serve

// The pools of a program.

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpumem"
	"gpumem/alloc"
	"gpumem/node/internal/history"
)

// A shownPool is one of package gpumem. Sizes are bytes.
type shownPool struct {
	Name     string      `json:"name"` // policy and number
	Policy   string      `json:"policy"`
	Stats    alloc.Stats `json:"stats"`
	Live     []shownSite `json:"live"`       // who holds the live blocks, or did a few looks ago, the largest first; places change only for a twentieth more
	Rest     uint64      `json:"rest_bytes"` // live, and not in Live
	Map      []int       `json:"map"`        // percentages in use of equal parts of the reserved memory, by address
	MapBytes uint64      `json:"map_bytes"`  // of all parts
}

// shownSite is a place in the program that allocated memory.
type shownSite struct {
	Stack  string `json:"stack"` // innermost first, a line for each frame; empty if not recorded
	Blocks int    `json:"blocks"`
	Bytes  uint64 `json:"bytes"`

	Grows *history.Growth `json:"grows,omitempty"` // filled by the handler
}

const (
	mostSites = 20  // of a pool that are served
	mapParts  = 240 // of a pool's map
)

// Pools shows pools of this program. Each is locked for a walk over its blocks, about a
// millisecond for 50,000.
func Pools(pools ...*gpumem.Pool) Look {
	return func(context.Context) (*State, error) {
		s := &State{Time: time.Now(), Title: filepath.Base(os.Args[0])}
		for n, p := range pools {
			s.Pools = append(s.Pools, poolOf(p, n))
		}
		return s, nil
	}
}

func poolOf(p *gpumem.Pool, n int) shownPool {
	v := shownPool{Name: p.Policy().Kind.String() + "_" + strconv.Itoa(n), Policy: p.Policy().Spec, Stats: alloc.Stats(p.Stats())}
	for k, u := range p.Live() {
		if k < mostSites {
			v.Live = append(v.Live, shownSite{Stack: strings.TrimSuffix(u.Stack, "\n"), Blocks: u.Blocks, Bytes: u.Bytes})
		} else {
			v.Rest += u.Bytes
		}
	}
	type piece struct {
		bytes uint64
		live  bool
	}
	var pieces []piece
	p.Walk(func(c alloc.Chunk) bool {
		pieces = append(pieces, piece{c.Size, c.Live})
		v.MapBytes += c.Size
		return true
	})
	if v.MapBytes == 0 {
		return v
	}
	parts := uint64(min(mapParts, v.MapBytes))
	used := make([]uint64, parts)
	part := (v.MapBytes + parts - 1) / parts
	var at uint64
	for _, c := range pieces {
		for end := at + c.bytes; at < end; {
			next := min(end, (at/part+1)*part)
			if c.live {
				used[at/part] += next - at
			}
			at = next
		}
	}
	for k, u := range used {
		whole := min(part, v.MapBytes-min(v.MapBytes, uint64(k)*part))
		if whole == 0 {
			break
		}
		v.Map = append(v.Map, int((100*u+whole-1)/whole)) // rounded up: little is more than nothing
	}
	return v
}
