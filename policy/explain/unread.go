package explain

// Variables that are set in vain: misspelt, or another framework's. Of the latter the same
// wish in the framework's own words is named, from goals.txt: what to set in JAX instead of
// a variable of TensorFlow's, and so on.

import (
	_ "embed" // goals.txt
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"

	"gpumem/internal/spelling"
	"gpumem/internal/table"
	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/policy/internal/literal"
)

// corrections are the warnings so far of what is set in vain.
type corrections struct{ policy.Notes }

// unread warns of the variables about memory that the framework does not read,
// and of names that no framework reads but that look like one about memory or
// devices. What r speaks of already is left out, and so is what is empty.
func unread(env policy.Environment, f frameworks.Framework, v policy.Version, r policy.Reading) []policy.Warning {
	said := map[string]bool{}
	for _, s := range r.Settings {
		said[s.Name] = true
	}
	for _, w := range r.Warnings {
		said[w.Name] = true
	}
	n := corrections{policy.Notes{Env: env}}
	_, launched := env.Lookup("GPUMEM_TF_LIMIT_MIB")
	for _, name := range env.Names() {
		if said[name] || env.Get(name) == "" {
			continue
		}
		known, ok := frameworks.Lookup(name)
		switch {
		case ok && launched: // its own framework's were set for whichever it is
		case ok && known.Readers[0].Framework == "gpumem": // the pool library serves every framework
		case ok && (known.About == frameworks.AboutMemory || known.About == frameworks.AboutHost) && !known.ReadBy(f.Name):
			n.foreign(known, f, v)
		case !ok:
			if meant, ok := nearest(name, f.Name, v); ok {
				n.misspelt(name, meant, f, v)
			}
		}
	}
	return n.Warnings
}

// foreign warns of a variable of another framework.
func (n *corrections) foreign(known frameworks.Variable, f frameworks.Framework, v policy.Version) {
	set, text := counterpart(known.Name, n.Env.Get(known.Name), f.Release(v))
	open, taken := n.open(set)
	switch {
	case open != "":
		text = strings.Replace(text, set, open, 1)
	case taken != "":
		text = fmt.Sprintf("; %s goes by %s, which is set", f.Title, taken)
	}
	n.Warn(known.Name, n.joined(open), "only %s reads it%s", readersOf(known), text)
}

// same are variables that say the same thing, of which only one should be set.
var same = [][]string{{"XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"}, {"PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_ALLOC_CONF"}}

// open returns the part of assignments that nothing in the environment contradicts,
// and no fix so far; taken is the last variable that does.
func (n *corrections) open(set string) (open, taken string) {
	var words []string
	for word := range strings.FieldsSeq(set) {
		name, _, _ := strings.Cut(word, "=")
		group := []string{name}
		for _, names := range same {
			if slices.Contains(names, name) {
				group = names
			}
		}
		free := true
		for _, other := range group {
			if n.Env.Get(other) != "" {
				taken, free = other, false
			}
			for _, w := range n.Warnings {
				free = free && (other == name || !strings.Contains(" "+w.Fix, " "+other+"="))
			}
		}
		if free {
			words = append(words, word)
		}
	}
	return strings.Join(words, " "), taken
}

// joined returns the assignment set together with what warnings before this one
// assign to the same variable, if its value is a list.
func (n *corrections) joined(set string) string {
	name, value, _ := strings.Cut(set, "=")
	if name != "PYTORCH_ALLOC_CONF" && name != "PYTORCH_CUDA_ALLOC_CONF" {
		return set
	}
	for i := range n.Warnings {
		if _, before, ok := strings.Cut(n.Warnings[i].Fix, name+"="); ok {
			set = name + "=" + before + "," + value
			n.Warnings[i].Fix = set
		}
	}
	return set
}

// readersOf returns those who read v, as a person says it. Our own runtime reads what
// JAX does.
func readersOf(v frameworks.Variable) string {
	var list []string
	for _, r := range v.Readers {
		if r.Framework != "gpumem" || len(v.Readers) == 1 {
			list = append(list, titles[r.Framework])
		}
	}
	return strings.Join(list, " or ")
}

// titles are the readers' names for people.
var titles = map[string]string{"jax": "JAX", "gpumem": "gpumem", "tensorflow": "TensorFlow", "pytorch": "PyTorch", "cupy": "CuPy", "nobody": "no framework", "driver": "NVIDIA's driver or libraries, under every framework"}

// misspelt warns of a name that no framework reads.
func (n *corrections) misspelt(wrong string, meant frameworks.Variable, f frameworks.Framework, v policy.Version) {
	why := ""
	if strings.EqualFold(wrong, meant.Name) {
		why = ", for case counts"
	}
	text := fmt.Sprintf("no framework reads this variable%s; did you mean %s?", why, meant.Name)
	value := n.Env.Get(wrong)
	set := meant.Name + "=" + value
	switch _, taken := n.open(meant.Name + "="); {
	case taken != "":
		text += " It is ignored, and " + taken + " is set"
	case meant.ReadAt(f.Name, v):
		set = n.accepted(wrong, meant.Name, f, v)
	default:
		other, more := counterpart(meant.Name, value, f.Release(v))
		if open, _ := n.open(other); open != other {
			other, more = "", ""
		}
		if !meant.ReadBy(f.Name) {
			text += " Only " + readersOf(meant) + " reads that" + more
			set += " " + other
		} else if other != "" { // but not this release
			text += " This release does not read that" + more
			set = other
		}
	}
	fix := "-" + wrong
	if open, _ := n.open(set); open != "" && len(strings.Fields(value)) == 1 { // else a fix would read otherwise
		fix += " " + open
	}
	n.Warn(wrong, fix, "%s", text)
}

// accepted returns the assignment of the wrong name's value to the right one, or
// what the framework wants instead of that value; empty if it refuses it.
func (n *corrections) accepted(wrong, right string, f frameworks.Framework, v policy.Version) string {
	value := n.Env.Get(wrong)
	r, err := f.Read(n.Env.Without(wrong).With(right, value), v)
	if err != nil {
		if strings.HasPrefix(err.Fix, right+"=") {
			return err.Fix
		}
		return ""
	}
	for _, w := range r.Warnings {
		if w.Name == right && strings.HasPrefix(w.Fix, right+"=") {
			return w.Fix
		}
	}
	return right + "=" + value
}

// nearest returns the variable that a name which no framework reads was meant to be: one
// about memory or devices, within two edits, whatever the case, or with the
// same words that matter. Of several as near it is one that the framework
// reads.
func nearest(name, framework string, v policy.Version) (frameworks.Variable, bool) {
	upper := strings.ToUpper(name)
	if slices.Contains(namesakes, upper) {
		return frameworks.Variable{}, false
	}
	const far = 3 // what edits gives at most for lengths that differ by more than two
	best, bestEdits, bestRank := frameworks.Variable{}, far, 0
	for _, c := range frameworks.Variables() {
		d := spelling.Distance(upper, c.Name)
		if d >= far || len(c.Name) < 10 && d > 1 { // two edits make XLA_FLAGS of too much
			continue
		}
		if rank := likelihood(c, framework, v); d < bestEdits || d == bestEdits && rank > bestRank {
			best, bestEdits, bestRank = c, d, rank
		}
	}
	if bestEdits < far {
		return best, bestRank > 0
	}
	for _, c := range byWords()[matter(upper)] {
		if rank := likelihood(c, framework, v); rank > bestRank {
			best, bestRank = c, rank
		}
	}
	return best, bestRank > 0
}

// byWords is the table by the words that matter. It is made once: a look at all
// programs of a machine asks for every variable of each.
var byWords = sync.OnceValue(func() map[string][]frameworks.Variable {
	table := map[string][]frameworks.Variable{}
	for _, v := range frameworks.Variables() {
		if words := matter(v.Name); words != "" {
			table[words] = append(table[words], v)
		}
	}
	return table
})

// likelihood returns how likely a variable was meant: 0 not at all, for it is not about
// memory or devices.
func likelihood(v frameworks.Variable, framework string, at policy.Version) int {
	switch {
	case v.About == frameworks.AboutOther && v.Name != "XLA_FLAGS":
		return 0
	case v.ReadAt(framework, at):
		return 2
	}
	return 1
}

// namesakes are variables of other makers' GPUs that are as near to one of the
// table as a typo.
var namesakes = []string{
	"MUSA_VISIBLE_DEVICES", "PYTORCH_MUSA_ALLOC_CONF", "PYTORCH_NO_MUSA_MEMORY_CACHING", // Moore Threads
}

// The words of a name that matter. People leave out PYTHON, CLIENT, GPU or FORCE,
// or write them where they do not belong (XLA_MEM_FRACTION, JAX_PREALLOCATE,
// TF_ALLOW_GROWTH), and write a word in its longer or shorter form.
var (
	fillers  = []string{"PYTHON", "CLIENT", "PJRT", "GPU", "CUDA", "FORCE"}
	families = map[string]string{"JAX": "XLA", "TENSORFLOW": "TF", "TORCH": "PYTORCH"}
	forms    = map[string]string{"MEMORY": "MEM", "FRAC": "FRACTION", "PREALLOC": "PREALLOCATE", "PREALLOCATION": "PREALLOCATE", "CONFIG": "CONF", "DEVICE": "DEVICES"}
)

// matter returns a name's family and the words that matter, in one order; empty if
// no word does, and for XLA_FLAGS.
func matter(name string) string {
	family, rest, _ := strings.Cut(name, "_")
	if other, ok := families[family]; ok {
		family = other
	}
	var words []string
	for word := range strings.SplitSeq(rest, "_") {
		if slices.Contains(fillers, word) {
			continue
		}
		if form, ok := forms[word]; ok {
			word = form
		}
		words = append(words, word)
	}
	slices.Sort(words)
	key := family + " " + strings.Join(words, " ")
	if len(words) == 0 || key == "XLA FLAGS" {
		return ""
	}
	return key
}

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
