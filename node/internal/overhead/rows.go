// The format of overhead.txt.

package overhead

import (
	_ "embed" // overhead.txt
	"fmt"
	"slices"
	"strconv"
	"strings"

	"gpumem/internal/table"
	"gpumem/size"
)

//go:embed overhead.txt
var overheadText string

// frameworks are what parts are of.
var frameworks = []string{"jax", "tensorflow", "pytorch", "cupy", "cuda"}

// rows is a table of contexts and parts, in the order in which they are asked.
type rows struct {
	contexts []contextRow
	parts    []partRow
}

// contextRow is the largest context of GPUs up to a size.
type contextRow struct {
	major int    // compute capability, from this one on
	most  uint64 // bytes of memory; 0: any
	bytes uint64
}

// partRow is a part with what it depends on.
type partRow struct {
	part
	of    []string // frameworks
	major int      // compute capability, from this one on
	gpus  int      // of the program, at least
}

// isIn reports whether programs with a framework have the part on each of their gpus GPUs.
func (r partRow) isIn(framework string, g GPU, gpus int) bool {
	return slices.Contains(r.of, framework) && (g.CCMajor >= r.major || g.CCMajor == 0) && gpus >= r.gpus
}

// readRows reads the format that overhead.txt describes. The error names the line.
func readRows(text string) (r rows, err error) {
	entries, err := table.Read("overhead.txt", text, "of", "from", "gpus", "about")
	if err != nil {
		return r, err
	}
	for _, e := range entries {
		kind, rest, _ := strings.Cut(e.Name, " ")
		switch words := strings.Fields(rest); {
		case kind == "context" && len(words) == 3:
			err = r.addContext(words, e.Fields)
		case kind == "part" && len(words) == 2:
			err = r.addPart(words, e.Fields)
		default:
			err = fmt.Errorf("want context CC SIZE BYTES or part NAME BYTES")
		}
		if err == nil && e.Fields["about"] == "" {
			err = fmt.Errorf("about is missing: what the figure rests on")
		}
		if err != nil {
			return r, fmt.Errorf("overhead.txt:%d: %q: %w", e.Line, e.Name, err)
		}
	}
	return r, nil
}

// addContext adds an entry CC SIZE BYTES.
func (r *rows) addContext(words []string, fields map[string]string) (err error) {
	var c contextRow
	if len(fields) > 1 {
		return fmt.Errorf("a context has no field but about")
	}
	if c.major, err = strconv.Atoi(words[0]); err != nil || c.major < 0 {
		return fmt.Errorf("compute capability %q: want its first number", words[0])
	}
	if words[1] != "any" {
		if c.most, err = size.Parse(words[1]); err != nil {
			return err
		}
	}
	c.bytes, err = size.Parse(words[2])
	r.contexts = append(r.contexts, c)
	return err
}

// addPart adds an entry NAME BYTES.
func (r *rows) addPart(words []string, fields map[string]string) (err error) {
	p := partRow{part: part{what: words[0], source: fields["about"]}, of: strings.Split(fields["of"], ", ")}
	for _, name := range p.of {
		if !slices.Contains(frameworks, name) {
			return fmt.Errorf("of %q: want frameworks of %s", fields["of"], strings.Join(frameworks, ", "))
		}
	}
	for name, to := range map[string]*int{"from": &p.major, "gpus": &p.gpus} {
		if text := fields[name]; text != "" {
			if *to, err = strconv.Atoi(text); err != nil || *to <= 0 {
				return fmt.Errorf("%s %q: want a number above 0", name, text)
			}
		}
	}
	p.bytes, err = size.Parse(words[1])
	r.parts = append(r.parts, p)
	return err
}
