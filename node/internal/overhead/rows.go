// The format of overhead.txt.

package overhead

import (
	"cmp"
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

// Frameworks are those that the table has.
var Frameworks = []string{"jax", "tensorflow", "pytorch", "cupy", "cuda"}

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
	Part
	of    string // the framework
	major int    // compute capability, from this one on
	gpus  int    // of the program, at least
}

// isIn reports whether programs with a framework have the part on each of their gpus GPUs.
func (r partRow) isIn(framework string, g GPU, gpus int) bool {
	hasCapability := g.CCMajor >= r.major || g.CCMajor == 0
	return hasCapability && r.of == framework && gpus >= r.gpus
}

// readRows reads the format that overhead.txt describes. The error names the line.
func readRows(text string) (r rows, err error) {
	entries, err := table.Read("overhead.txt", text, "from", "gpus", "about", "measured")
	if err != nil {
		return r, err
	}
	for _, e := range entries {
		name, amount, _ := strings.Cut(e.Name, " ")
		words := strings.Split(name, ".")
		bytes, err := size.Parse(amount)
		switch {
		case err != nil:
		case words[0] == "context" && len(words) == 3:
			err = r.addContext(words[1], words[2], bytes, e.Fields)
		case words[0] != "context" && (len(words) == 2 || len(words) == 3):
			err = r.addPart(words[0], words[1], bytes, e.Fields)
		default:
			err = fmt.Errorf("want context.CC.SIZE BYTES or PART.FRAMEWORK BYTES")
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

// addContext adds an entry of a context.
func (r *rows) addContext(major, most string, bytes uint64, fields map[string]string) (err error) {
	c := contextRow{bytes: bytes}
	if fields["from"] != "" || fields["gpus"] != "" {
		return fmt.Errorf("a context has no from and no gpus")
	}
	if c.major, err = strconv.Atoi(major); err != nil || c.major < 0 {
		return fmt.Errorf("compute capability %q: want its first number", major)
	}
	if most != "any" {
		c.most, err = size.Parse(most)
	}
	r.contexts = append(r.contexts, c)
	return err
}

// addPart adds an entry of a part.
func (r *rows) addPart(what, framework string, bytes uint64, fields map[string]string) (err error) {
	p := partRow{Part: Part{what, bytes, cmp.Or(fields["measured"], fields["about"])}, of: framework}
	if !slices.Contains(Frameworks, framework) {
		return fmt.Errorf("framework %q: want one of %s", framework, strings.Join(Frameworks, ", "))
	}
	for name, to := range map[string]*int{"from": &p.major, "gpus": &p.gpus} {
		if text := fields[name]; text != "" {
			if *to, err = strconv.Atoi(text); err != nil || *to <= 0 {
				return fmt.Errorf("%s %q: want a number above 0", name, text)
			}
		}
	}
	r.parts = append(r.parts, p)
	return nil
}
