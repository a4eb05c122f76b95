// Variables that are set in vain: misspelt, or another framework's.

package explain

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"gpumem/internal/spelling"
	"gpumem/policy"
	"gpumem/policy/frameworks"
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
