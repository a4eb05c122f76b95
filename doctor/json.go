// The JSON of an answer.

package doctor

import (
	"bytes"
	"cmp"
	"encoding/json"
	"io"
	"slices"

	"gpumem/record/dump"
)

// extraJSON are the fields after those of a diagnosis.
type extraJSON struct {
	Log     string        `json:"log"` // empty if there is none
	Dump    *dumpJSON     `json:"dump,omitempty"`
	Program *dump.Program `json:"program,omitempty"`
}

// dumpJSON is a pool dump. What the log does not have is 0.
type dumpJSON struct {
	Allocator     string      `json:"allocator"`
	Request       requestJSON `json:"request"`
	Limit         uint64      `json:"limit_bytes"`
	Pool          uint64      `json:"pool_bytes"`
	InUse         uint64      `json:"in_use_bytes"`
	Free          uint64      `json:"free_bytes"`
	LargestFree   uint64      `json:"largest_free_bytes"`
	Fragmentation float64     `json:"fragmentation"`
	Chunks        int         `json:"chunks"`
	Complete      bool        `json:"complete"`
	Notes         []string    `json:"notes"`
	Rows          []rowJSON   `json:"rows"`
	Line          int         `json:"line"`  // where it begins, 0 in a binary one
	Dumps         int         `json:"dumps"` // in the log
}

type requestJSON struct {
	Bytes   uint64 `json:"bytes"`
	Rounded uint64 `json:"rounded"`
	Op      string `json:"op"`
}

// rowJSON is the live chunks of one size.
type rowJSON struct {
	Size  uint64 `json:"size"`
	Count uint64 `json:"count"`
	Bytes uint64 `json:"bytes"`
}

// mostRows is the number of a dump's rows that are written, the largest.
const mostRows = 20

func newDumpJSON(d *dump.Dump) *dumpJSON {
	if d == nil {
		return nil
	}
	j := &dumpJSON{
		Allocator: d.Allocator, Request: requestJSON{d.Request.Bytes, d.Request.Rounded, d.Request.Op}, Limit: d.Limit, Pool: d.Pool,
		InUse: d.InUse, Free: d.Free(), LargestFree: d.LargestFree, Fragmentation: d.Fragmentation(), Complete: d.Complete,
		Notes: append([]string{}, d.Notes...), Rows: []rowJSON{}, Line: d.Line, Dumps: d.Dumps,
	}
	for _, r := range d.Regions {
		j.Chunks += len(r.Chunks)
	}
	rows := slices.Clone(d.Rows)
	slices.SortFunc(rows, func(a, b dump.Row) int {
		return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Size, a.Size))
	})
	for _, r := range rows[:min(len(rows), mostRows)] {
		j.Rows = append(j.Rows, rowJSON(r))
	}
	return j
}

// MarshalJSON returns one object, the fields of the diagnosis first.
func (a Answer) MarshalJSON() ([]byte, error) {
	diagnosis, err := marshal(a.Diagnosis)
	if err != nil {
		return nil, err
	}
	extra := extraJSON{Log: a.Log, Dump: newDumpJSON(a.Dump)}
	if a.Program != nil {
		program := *a.Program
		program.Peak = append([]dump.Buffer{}, program.Peak...) // [] and not null
		extra.Program = &program
	}
	more, err := marshal(extra)
	if err != nil {
		return nil, err
	}
	// Two objects become one.
	return slices.Concat(diagnosis[:len(diagnosis)-1], []byte(","), more[1:]), nil
}

// marshal is json.Marshal that leaves <module> as it is.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// WriteJSON writes an object for one log, and an array for several.
func WriteJSON(w io.Writer, all []Answer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	if len(all) == 1 {
		return enc.Encode(all[0])
	}
	return enc.Encode(all)
}
