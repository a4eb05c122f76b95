package logs

// The reader of CUDA's memory events of Nsight Systems: CSV with a header, which sqlite3 writes
// of a report that nsys exported to SQLite (filekind.NsightQuery has the command).
//
//	start,deviceId,address,bytes,memoryOperationType
//	721334402,0,140142110343168,2097152,0
//	731210881,0,140142110343168,2097152,1
//
// The columns are those of the table CUDA_GPU_MEMORY_USAGE_EVENTS (docs.nvidia.com,
// nsys-exporter, 2021 to 2026) and may come in any order; others are passed over. The time is in
// nanoseconds. An operation is 0, an allocation, or 1, a free. The events are those of the
// driver: what a framework's pool does with its memory is not in them.

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// Nsys is CUDA's memory events of Nsight Systems.
var Nsys = tape.Format{Name: "nsys", What: "CUDA's memory events of Nsight Systems, CSV", Looks: looksNsys, Read: readNsys}

// nsysColumns are the columns that are read.
var nsysColumns = []string{"start", "deviceId", "address", "bytes", "memoryOperationType"}

func looksNsys(head []byte) bool {
	line, _ := input.FirstLine(head)
	_, ok := nsysHeader(line)
	return ok
}

// nsysHeader returns where each of the columns stands.
func nsysHeader(line []byte) (at []int, ok bool) {
	names := strings.Split(string(line[:min(len(line), 4<<10)]), ",")
	for _, name := range nsysColumns {
		at = append(at, slices.IndexFunc(names, func(s string) bool { return strings.Trim(s, " \"") == name }))
	}
	return at, !slices.Contains(at, -1)
}

// maxGPUs bounds what a damaged file can ask for.
const maxGPUs = 256

// nsysReader reads one file.
type nsysReader struct {
	in     *input.Reader
	b      *tape.Builder
	at     []int
	blocks map[uint64]*tape.Blocks // by GPU
}

func readNsys(in *input.Reader, b *tape.Builder) error {
	r := nsysReader{in: in, b: b, blocks: make(map[uint64]*tape.Blocks)}
	lines := in.Lines("CUDA's memory events of Nsight Systems")
	for lines.Next() {
		line := bytes.TrimSpace(lines.Text())
		switch {
		case len(line) == 0 || line[0] == '#':
			continue
		case r.at == nil:
			var ok bool
			if r.at, ok = nsysHeader(line); !ok {
				return in.Fail("the first line names the columns: %s", strings.Join(nsysColumns, ","))
			}
			continue
		}
		if err := r.event(line); err != nil {
			return err
		}
	}
	for _, gpu := range slices.Sorted(maps.Keys(r.blocks)) {
		r.blocks[gpu].Notes()
	}
	return lines.Err()
}

// event reads one line.
func (r *nsysReader) event(line []byte) error {
	fields := bytes.Split(line, []byte{','})
	var n [5]uint64 // start, deviceId, address, bytes, memoryOperationType
	for i, at := range r.at {
		if at >= len(fields) {
			return r.in.Fail("%s has %s, and the header more", input.Quote(line), size.Count(len(fields), "column"))
		}
		var ok bool
		if n[i], ok = input.Decimal(bytes.Trim(fields[at], " \"")); !ok {
			return r.in.Fail("%s is no number for %s", input.Quote(fields[at]), nsysColumns[i])
		}
	}
	blocks := r.blocks[n[1]]
	if blocks == nil {
		if len(r.blocks) == maxGPUs {
			return r.in.Fail("events of more than %d GPUs; the file is damaged", maxGPUs)
		}
		blocks = r.b.Pool(fmt.Sprintf("cuda:%d", n[1])).Blocks(true)
		r.blocks[n[1]] = blocks
	}
	r.b.At(n[0])
	ev := tape.Event{Bytes: n[3]}
	switch n[4] {
	case 0:
		return blocks.Alloc(n[2], ev)
	case 1:
		return blocks.Free(n[2], ev)
	}
	return r.in.Fail("%d is no operation; 0 is an allocation and 1 a free", n[4])
}
