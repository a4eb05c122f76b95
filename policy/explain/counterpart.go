// The same wish in another framework's words: what to set in JAX instead of a
// variable of TensorFlow's, and so on.

package explain

import (
	_ "embed" // goals.txt
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/policy/internal/literal"
	"gpumem/policy/internal/table"
)

// A goal is what users want, whatever the framework: an entry of goals.txt.
type goal struct {
	name, title string
	from        []string         // assignments
	ways        map[string][]way // by framework, the newest first
}

// A way expresses a goal in one framework, as goals.txt has it: by an assignment, or by
// what to do instead.
type way struct {
	since   string // the first release that knows it
	set     string
	instead string
}

//go:embed goals.txt
var goalsText string

// goals is goals.txt, in its order.
var goals = sync.OnceValue(func() []goal {
	entries, err := table.Read("goals.txt", goalsText, "title", "from", "jax", "tensorflow", "pytorch", "cupy")
	if err != nil {
		panic(err) // a test rules it out
	}
	var list []goal
	for _, e := range entries {
		g := goal{e.Name, e.Fields["title"], strings.Fields(e.Fields["from"]), map[string][]way{}}
		delete(e.Fields, "title")
		delete(e.Fields, "from")
		for framework, text := range e.Fields {
			for one := range strings.SplitSeq(text, " | ") {
				w := way{instead: strings.Trim(one, "()")}
				if one[0] != '(' {
					w.set, w.since, _ = strings.Cut(one, " since ")
					w.instead = ""
				}
				g.ways[framework] = append(g.ways[framework], w)
			}
		}
		list = append(list, g)
	}
	return list
})

// A want is a goal, with how much.
type want struct {
	goal   string  // by name
	amount float64 // a fraction, or GiB
}

// wants returns what the user wants who sets a variable; nil where that is not
// known, or nothing but the default.
func wants(name, value string) (all []want) {
	values := []string{value}
	if slices.Contains(same[1], name) { // PyTorch's lists
		name, values = "PYTORCH_CONF", strings.Split(strings.ReplaceAll(value, " ", ""), ",")
	}
	for _, value := range values {
		for _, g := range goals() {
			for _, from := range g.from {
				variable, pattern, _ := strings.Cut(from, "=")
				if amount, ok := matches(strings.TrimSpace(value), pattern); ok && variable == name {
					all = append(all, want{g.name, amount})
				}
			}
		}
	}
	return all
}

// matches reports whether a value is as a pattern of goals.txt has it, with how much.
func matches(value, pattern string) (amount float64, ok bool) {
	if at := strings.IndexByte(pattern, '{'); at > 0 { // behind the key of a setting
		value, ok = strings.CutPrefix(value, pattern[:at])
		amount, is := matches(value, pattern[at:])
		return amount, ok && is
	}
	switch pattern {
	case "any":
		return 0, true
	case "yes":
		return 0, literal.MeansYes(value)
	case "no":
		return 0, slices.Contains([]string{"0", "false", "f", "no", "n", "off"}, strings.ToLower(value))
	case "{part}":
		f, ok := literal.PyFloat(value)
		return f, ok && f > 0 && f <= 1
	case "{percent}%":
		number, ok := strings.CutSuffix(value, "%")
		f, err := strconv.ParseFloat(number, 64)
		return f / 100, ok && err == nil && f > 0 && f <= 100
	case "{gib}", "{mib}":
		n, ok := literal.CInt(value)
		if pattern == "{mib}" {
			n /= 1024
		}
		return float64(n), ok && n > 0
	}
	return 0, strings.EqualFold(value, pattern)
}

// counterpart returns what to set in a framework for the same effect as the variable
// name with this value has where it is read: set is assignments NAME=value with blanks
// between as in [Warning], empty where no variable does it or where the value
// cannot be translated. text says the same to a person, to go on after "only
// JAX reads it"; it may be empty, too.
func counterpart(name, value string, as frameworks.Release) (set, text string) {
	var sets, texts []string
	for _, w := range wants(name, value) {
		way := wayTo(w.goal, as)
		switch {
		case way.set != "":
			sets = append(sets, w.fill(way.set))
		case way.instead != "":
			texts = append(texts, strings.ReplaceAll(way.instead, "`", ""))
		}
	}
	// PyTorch has one list for several.
	for i := len(sets) - 1; i > 0; i-- {
		name, value, _ := strings.Cut(sets[i], "=")
		if before, ok := strings.CutPrefix(sets[i-1], name+"="); ok {
			sets = slices.Replace(sets, i-1, i+1, name+"="+before+","+value)
		}
	}
	title := titles[as.Name]
	if len(sets) > 0 {
		set = strings.Join(sets, " ")
		text = "; in " + title + " write " + set
	}
	if len(texts) > 0 {
		text += "; " + title + " " + strings.Join(texts, ", and ")
	}
	return set, text
}

// wayTo returns how a release expresses a goal; the zero way if it cannot.
func wayTo(name string, as frameworks.Release) way {
	at := policy.Newest
	if as.Version != "" {
		at, _ = policy.ParseVersion(as.Version, "", "")
	}
	if as.Name == "gpumem" { // as the newest JAX
		as.Name, at = "jax", policy.Newest
	}
	i := slices.IndexFunc(goals(), func(g goal) bool { return g.name == name })
	for _, w := range goals()[i].ways[as.Name] {
		if since, _ := policy.ParseVersion(w.since, "", ""); !at.Less(since) {
			return w
		}
	}
	return way{}
}

// fill puts the amount into an assignment.
func (w want) fill(set string) string {
	number := func(f float64) string { return strconv.FormatFloat(f, 'g', 6, 64) }
	return strings.NewReplacer("{part}", strconv.FormatFloat(w.amount, 'g', -1, 64), "{percent}", number(w.amount*100),
		"{gib}", number(w.amount), "{mib}", strconv.FormatInt(int64(math.Round(w.amount*1024)), 10)).Replace(set)
}
