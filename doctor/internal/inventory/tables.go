package inventory

// Tables that programs print for people: models, options, processes, an allocator's figures. A heading says which table
// it is, and each line below it is a row, up to the first that is none.

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

// A table is such a form.
type table struct {
	begins, has string // its heading
	source      *source
	row         *regexp.Regexp
	tell        func(t teller, m []string)
}

// A teller takes the figures of a row.
type teller struct {
	s    *subject
	from From
}

// of tells a figure of a list.
func (t teller) of(name string, bytes float64) { t.s.told(name, figure{uint64(bytes), t.from}) }

var (
	loaded   = &source{title: "Models that Ollama has loaded", together: "together", notTold: "what other programs hold"}
	estimate = &source{title: "DeepSpeed's estimate", notTold: "activations, buffers and gaps: parameters, gradients and the optimizer's states alone are counted"}
	programs = &source{title: "Programs on the host", together: "together; what they share is counted in each",
		notTold: "what they hold on a GPU"}
	xla = func() *source {
		s := *jax
		s.title = "XLA's allocator"
		return &s
	}()
)

// tables are by how their headings begin.
var tables = []table{
	{"NAME ", "PROCESSOR", loaded, regexp.MustCompile(`^(\S+)\s+[0-9a-f]{12}\s+([\d.]+) ([KMG])B\s+(\d+)%(?:/(\d+)%)? (GPU|CPU)`), tellModel},
	{"per CPU ", "per GPU", estimate, regexp.MustCompile(`^\W*([\d.]+)GB \|\s*([\d.]+)GB \|\s*(offload_.*)`), tellOption},
	{"USER ", " RSS ", programs, regexp.MustCompile(`^\S+\s+(\d+)\s+[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\S+){4}\s+(\S+(?: \S+)?)`),
		tellProgram},
	{"AllocatorStats", "", xla, regexp.MustCompile(`^\W*(?:([A-Z][A-Za-z ]+): (?:([\d.]+ (?:[KMGT]iB|bytes|byte))|nothing|\d+)|-+)$`),
		tellAllocator},
}

// tabled reads a row of a table, or its heading.
func (r *Reader) tabled(n int, text string) bool {
	if r.within != nil && n == r.rowEnd+1 {
		if m := r.within.row.FindStringSubmatch(text); m != nil {
			r.rowEnd = n
			if s := r.of(r.within.source, ""); s != nil {
				r.within.tell(teller{s, From{n, text}}, m)
			}
			return true
		}
	}
	if text[0] == ' ' || text[0] == '#' {
		text = strings.TrimLeft(text, " #")
	}
	for i := range tables {
		if t := &tables[i]; strings.HasPrefix(text, t.begins) && strings.Contains(text, t.has) {
			r.within, r.rowEnd = t, n
			return true
		}
	}
	return false
}

// decimal are the units of sizes that are powers of 1000.
var decimal = map[string]float64{"K": 1e3, "M": 1e6, "G": 1e9}

// tellModel is for ollama ps, whose sizes are decimal, and whose parts are of the host and of the GPUs.
func tellModel(t teller, m []string) {
	size, _ := strconv.ParseFloat(m[2], 64)
	size *= decimal[m[3]]
	first, _ := strconv.ParseFloat(m[4], 64)
	switch {
	case m[5] != "":
		t.of(m[1]+", on the host ("+m[4]+" %)", math.Round(size*first/100))
		t.of(m[1]+", on the GPUs ("+m[5]+" %)", math.Round(size*(100-first)/100))
	case m[6] == "CPU":
		t.of(m[1]+", on the host", size)
	default:
		t.of(m[1]+", on the GPUs", size)
	}
}

// tellOption is for DeepSpeed's estimates, in GiB.
func tellOption(t teller, m []string) {
	options := strings.NewReplacer(" ,", ",", "offload_", "").Replace(strings.Join(strings.Fields(m[3]), " "))
	for i, where := range []string{"on the host", "on each GPU"} {
		size, _ := strconv.ParseFloat(m[i+1], 64)
		t.of(where+": "+options, math.Round(size*gib))
	}
}

// leastProgram is how much a program has that is named, in bytes.
const leastProgram = 256 * mib

// tellProgram is for ps, whose figures are in KiB.
func tellProgram(t teller, m []string) {
	if kib, _ := strconv.ParseFloat(m[2], 64); kib*1024 >= leastProgram {
		t.of("pid "+m[1]+", "+m[3], kib*1024)
	}
}

// allocatorKeys are the figures of XLA's allocator by their names in Reactant.
var allocatorKeys = map[string]string{"In Use": "allocated", "Peak In Use": "peak_allocated", "Limit": "limit", "Reserved": "programs",
	"Peak Reserved": "peak_programs", "Reservable Limit": "bytes_reservable_limit", "Largest Free Block": "largest", "Pool": "reserved",
	"Peak Pool": "peak_reserved"}

// tellAllocator is for Reactant's report of XLA's allocator.
func tellAllocator(t teller, m []string) {
	if b, ok := bytesOf(m[2], ""); ok && allocatorKeys[m[1]] != "" {
		t.s.set(allocatorKeys[m[1]], figure{b, t.from})
	}
}
