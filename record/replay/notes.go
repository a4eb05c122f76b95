package replay

import (
	"fmt"

	"gpumem/alloc"
)

// maxNotes is the number of different messages of one policy that are kept. A pool at
// its limit has a new one for every region.
const maxNotes = 8

// notes keeps the messages of an allocator during a run: a few, each once. Requests
// that the device refused are only counted: the original logs a line for each try.
type notes struct {
	refusals int // of the device
	lines    []string
	seen     map[string]bool // messages so far, those not kept included
}

func newNotes() *notes { return &notes{seen: map[string]bool{}} }

func (n *notes) add(m alloc.Message) {
	if m.Severity == alloc.Error {
		n.refusals++
		return
	}
	if n.seen[m.Text] {
		return
	}
	n.seen[m.Text] = true
	if len(n.lines) < maxNotes {
		n.lines = append(n.lines, m.Text)
	}
}

func (n *notes) list() []string {
	var out []string
	if n.refusals > 0 {
		out = append(out, fmt.Sprintf("requests for a region that the device refused: %d", n.refusals))
	}
	out = append(out, n.lines...)
	if more := len(n.seen) - len(n.lines); more > 0 {
		out = append(out, fmt.Sprintf("other messages like these, left out: %d", more))
	}
	return out
}
