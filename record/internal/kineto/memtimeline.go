package kineto

// The reader of memory timelines, which torch.profiler's export_memory_timeline writes
// (torch/profiler/_memory_profiler.py, 2.1 to 2.11). With a path that ends in .raw.json.gz they
// are events of one device: the time in nanoseconds, -1 for blocks that are older; what
// happened; the bytes, negative where they go; and the category, as PyTorch's profiler has it.
//
//	[[-1, 1, 262144, 0], [1795957688503008945, 2, 65536, 2], [1795957688508272185, 4, -65536, 4]]
//
// A block has no name. Which one goes is known by its size and its category; of several the
// youngest is taken, which changes no sum. When a block is written to, its category may change:
// then two events stand one after the other, as if it went and came. It bears the last of its
// categories.
//
// With another ending the file has sums by category alone, a list of times and a list of lists.
// Those are no recording; the error says what the peak is made of.

import (
	"bytes"
	"cmp"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"

	"gpumem/internal/input"
	"gpumem/record/internal/jsontext"
	"gpumem/record/internal/tape"
	"gpumem/size"
)

// Timeline is a memory timeline of PyTorch's profiler.
var Timeline = tape.Format{
	Name: "torch-timeline", What: "a memory timeline of PyTorch's profiler, NAME.raw.json.gz", Looks: looksTimeline, Read: readTimeline,
}

// A raw timeline begins with an event, one of sums with at least one time since 1970.
var (
	rawHead  = regexp.MustCompile(`^\s*\[\s*\[\s*(?:-1|\d+)\s*,\s*[1-4]\s*,\s*-?\d+\s*,\s*[0-7]\s*\]`)
	sumsHead = regexp.MustCompile(`^\s*\[\s*\[\s*\d{12,}\s*(?:\]|,\s*\d{12,})`)
)

func looksTimeline(head []byte) bool {
	return rawHead.Match(head) || sumsHead.Match(head)
}

// categories are those of the profiler, by their numbers; the last one is for what it does not
// know.
var categories = [...]string{
	"parameter", "optimizer state", "input", "temporary", "activation", "gradient", "autograd detail", "",
}

// What happens to a block.
const (
	older = 1 + iota
	created
	written
	destroyed
)

// change is one event.
type change struct {
	time     uint64
	bytes    uint64
	creation int // of a block that goes: the change that made it, -1 if there is none
	category uint8
	comes    bool
	seed     bool
}

// changeBytes is what a change takes in a list that grows, with what is known of its block.
const changeBytes = 2*48 + 16

func readTimeline(in *input.Reader, b *tape.Builder) error {
	head, err := in.Head()
	if err != nil {
		return err
	}
	s := jsontext.New(in)
	if !rawHead.Match(head) {
		return refuseSums(in, s)
	}
	r := timelineReader{in: in, s: s, live: make(map[kindOfBlock][]int), written: -1}
	for s.Enter('['); s.More(); {
		r.event()
	}
	if s.Err() == nil && !s.End() {
		s.Fail("damaged: the timeline is at its end here, and more follows; copy the file again")
	}
	if s.Err() != nil {
		return s.Err()
	}
	return r.play(b.Pool(""), b)
}

// kindOfBlock is what a block is known by.
type kindOfBlock struct {
	bytes    uint64
	category uint8
}

// timelineReader reads one raw timeline.
type timelineReader struct {
	in      *input.Reader
	s       *jsontext.Scanner
	changes []change
	live    map[kindOfBlock][]int // creations of live blocks
	written int                   // the creation of the block that is written to, from the first of the two events on; -1 for none
}

// event reads an event.
func (r *timelineReader) event() {
	var number [4]int64
	n := 0
	for r.s.Enter('['); r.s.More(); n++ {
		v, err := strconv.ParseInt(string(r.s.Scalar()), 10, 64)
		if n == len(number) || err != nil {
			r.s.Fail("damaged: an event is a time, what happened, bytes and a category; copy the file again")
			return
		}
		number[n] = v
	}
	action, bytes, category := number[1], number[2], number[3]
	if n != len(number) || !isEvent(action, bytes, category) {
		r.s.Fail("damaged: an event of PyTorch's memory timeline has four numbers, " +
			"such as [1795957688503008945, 2, 65536, 4]; copy the file again")
		return
	}
	if r.s.Stop(r.in.Take(changeBytes)); r.s.Err() != nil {
		return
	}
	c := change{
		time: uint64(max(number[0], 0)), bytes: uint64(max(bytes, -bytes)), category: uint8(category),
		comes: bytes > 0, seed: action == older,
	}
	kind := kindOfBlock{c.bytes, c.category}
	switch {
	case action == written && bytes < 0:
		r.written = r.take(kind)
	case action == written && bytes > 0 && r.written >= 0: // the block bears its new category
		r.changes[r.written].category = c.category
		r.live[kind] = append(r.live[kind], r.written)
		r.written = -1
	case bytes > 0:
		r.live[kind] = append(r.live[kind], len(r.changes))
		r.changes = append(r.changes, c)
	case bytes < 0:
		c.creation = r.take(kind)
		r.changes = append(r.changes, c)
	}
}

// isEvent reports whether the numbers of an event agree: a block that is destroyed goes, one that
// is older or created comes.
func isEvent(action, bytes, category int64) bool {
	if action < older || action > destroyed || category < 0 || category >= int64(len(categories)) {
		return false
	}
	switch {
	case bytes == math.MinInt64:
		return false
	case action == destroyed:
		return bytes <= 0
	case action == written:
		return true
	}
	return bytes >= 0
}

// take returns the creation of the youngest live block of a kind, which is live no more; -1 for
// none.
func (r *timelineReader) take(kind kindOfBlock) int {
	list := r.live[kind]
	if len(list) == 0 {
		return -1
	}
	r.live[kind] = list[:len(list)-1]
	return list[len(list)-1]
}

// play makes the recording.
func (r *timelineReader) play(pool *tape.PoolBuilder, b *tape.Builder) error {
	var sites [len(categories)]uint32
	for i, name := range categories {
		sites[i] = b.Site([]byte(name))
	}
	slots := make([]uint32, len(r.changes))
	dropped := 0
	var err error
	for i := range r.changes {
		c := &r.changes[i]
		if i%4096 == 0 {
			if err := r.in.Stopped(); err != nil {
				return err
			}
		}
		ev := tape.Event{Bytes: c.bytes, Site: sites[c.category]}
		if c.seed {
			if pool.Events() > pool.SeedCount() {
				return r.in.Fail("damaged: a block that is older than the recording stands behind an event of it; copy the file again")
			}
			slots[i], err = pool.Seed(ev)
		} else {
			b.At(c.time)
			switch {
			case c.comes:
				slots[i], err = pool.Alloc(ev, 0)
			case c.creation >= 0:
				err = pool.Free(tape.Event{Slot: slots[c.creation]})
			default:
				dropped++
			}
		}
		if err != nil {
			return err
		}
	}
	pool.Note("a block is known by its size and category alone, as PyTorch writes it; of several the youngest is taken for the one that goes")
	pool.NoteCount(dropped, "free", "of blocks that are not live; dropped")
	return nil
}

// refuseSums reads a timeline of sums, and returns the error that says what its peak is made of.
func refuseSums(in *input.Reader, s *jsontext.Scanner) error {
	var peak uint64
	var most, row []uint64
	s.Enter('[')
	if s.More() {
		s.Skip() // the times
	}
	for ok := s.More(); ok; ok = s.More() {
		for s.Enter('['); s.More(); {
			row = row[:0]
			sum := uint64(0)
			for s.Enter('['); s.More(); {
				n, _ := input.Decimal(bytes.TrimPrefix(s.Scalar(), []byte("-")))
				if row = append(row, n); len(row) > len(categories)+1 {
					s.Fail("damaged: sums of more than %d categories; copy the file again", len(categories))
				}
				sum = size.Add(sum, n)
			}
			if sum > peak {
				peak, most = sum, append(most[:0], row...)
			}
		}
	}
	if s.Err() != nil {
		return s.Err()
	}
	var parts []string
	for i, n := range most {
		if i > 0 && n > 0 { // the first is 0, for the drawing
			parts = append(parts, fmt.Sprintf("%s %s", size.Format(n), cmp.Or(categories[i-1], "unknown")))
		}
	}
	return in.Fail("a memory timeline of PyTorch's profiler with sums alone, whose peak is %s (%s); "+
		`export_memory_timeline("NAME.raw.json.gz") has the blocks, which are read`, size.Format(peak), strings.Join(parts, ", "))
}
