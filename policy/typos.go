// Variables that are set in vain: misspelt, or another framework's.

package policy

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
)

// unread warns of the variables about memory that the framework does not read,
// and of names that nobody reads but that look like one about memory or
// devices. What r speaks of already is left out, and so is what is empty.
func unread(env Environment, f framework, r reading) []Warning {
	return unreadAt(env, f, f.newest, r)
}

// unreadAt is unread at a release.
func unreadAt(env Environment, f framework, v version, r reading) []Warning {
	said := map[string]bool{}
	for _, s := range r.settings {
		said[s.Name] = true
	}
	for _, w := range r.warnings {
		said[w.Name] = true
	}
	n := notes{env: env}
	for _, name := range env.names {
		if said[name] || env.Get(name) == "" {
			continue
		}
		known, ok := variable(name)
		switch {
		case ok && (known.About == AboutMemory || known.About == AboutHost) && !known.ReadBy(f.name):
			n.foreign(known, f, v)
		case !ok:
			if meant, ok := nearest(name, f.name, v); ok {
				n.misspelt(name, meant, f, v)
			}
		}
	}
	return n.warnings
}

// foreign warns of a variable of another framework.
func (n *notes) foreign(known Variable, f framework, v version) {
	set, text := Counterpart(known.Name, n.env.Get(known.Name), Framework{f.name, v.text(f)})
	open, taken := n.open(set)
	switch {
	case open != "":
		text = strings.Replace(text, set, open, 1)
	case taken != "":
		text = fmt.Sprintf("; %s goes by %s, which is set", f.title, taken)
	}
	n.warn(known.Name, n.joined(open), "only %s reads it%s", known.readers(), text)
}

// text is v as Framework has it: empty for a framework without versions.
func (v version) text(f framework) string {
	if f.like == "" {
		return ""
	}
	return v.String()
}

// same are variables that say the same thing, of which only one should be set.
var same = [][]string{{fractionVar, oldFractionVar}, {pytorchCudaConf, pytorchHipConf, pytorchConf}}

// open is the part of assignments that nothing in the environment contradicts,
// and no fix so far; taken is the last variable that does.
func (n *notes) open(set string) (open, taken string) {
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
			if n.env.Get(other) != "" {
				taken, free = other, false
			}
			for _, w := range n.warnings {
				free = free && (other == name || !strings.Contains(" "+w.Fix, " "+other+"="))
			}
		}
		if free {
			words = append(words, word)
		}
	}
	return strings.Join(words, " "), taken
}

// joined is the assignment set together with what warnings before this one
// assign to the same variable, if its value is a list.
func (n *notes) joined(set string) string {
	name, value, _ := strings.Cut(set, "=")
	if name != pytorchConf && name != pytorchCudaConf {
		return set
	}
	for i := range n.warnings {
		if _, before, ok := strings.Cut(n.warnings[i].Fix, name+"="); ok {
			set = name + "=" + before + "," + value
			n.warnings[i].Fix = set
		}
	}
	return set
}

// readers are those who read v, as a person says it. Our own runtime reads what
// JAX does.
func (v Variable) readers() string {
	var list []string
	for _, r := range v.Readers {
		if r.Framework != "gpumem" || len(v.Readers) == 1 {
			list = append(list, titles[r.Framework])
		}
	}
	return strings.Join(list, " or ")
}

// titles are the readers' names for people.
var titles = map[string]string{"jax": "JAX", "gpumem": "gpumem", "tensorflow": "TensorFlow", "pytorch": "PyTorch", "cupy": "CuPy", "nobody": "nobody", "driver": "NVIDIA's driver or libraries, under every framework"}

// misspelt warns of a name that nobody reads.
func (n *notes) misspelt(wrong string, meant Variable, f framework, v version) {
	why := ""
	if strings.EqualFold(wrong, meant.Name) {
		why = ", for case counts"
	}
	text := fmt.Sprintf("not a variable that anyone reads%s; did you mean %s?", why, meant.Name)
	value := n.env.Get(wrong)
	set := meant.Name + "=" + value
	switch _, taken := n.open(meant.Name + "="); {
	case taken != "":
		text += " It is ignored, and " + taken + " is set"
	case meant.readAt(f.name, v):
		set = n.accepted(wrong, meant.Name, f, v)
	default:
		other, more := Counterpart(meant.Name, value, Framework{f.name, v.text(f)})
		if open, _ := n.open(other); open != other {
			other, more = "", ""
		}
		if !meant.ReadBy(f.name) {
			text += " Only " + meant.readers() + " reads that" + more
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
	n.warn(wrong, fix, "%s", text)
}

// accepted is the assignment of the wrong name's value to the right one, or
// what the framework wants in place of that value; empty if it refuses it.
func (n *notes) accepted(wrong, right string, f framework, v version) string {
	value := n.env.Get(wrong)
	r, err := f.read(n.env.without(wrong).with(right, value), v)
	if err != nil {
		if strings.HasPrefix(err.Fix, right+"=") {
			return err.Fix
		}
		return ""
	}
	for _, w := range r.warnings {
		if w.Name == right && strings.HasPrefix(w.Fix, right+"=") {
			return w.Fix
		}
	}
	return right + "=" + value
}

// A goal is what users want, whatever the framework.
type goal int

const (
	grow goal = iota
	whole
	share
	async
	direct
	paged
	pinned
	devices
)

// A way is how a framework is told: by an assignment, in which {part} and
// {percent} are a fraction, {gib} and {mib} a size; or, where no variable does
// it, what to do instead, or why nothing needs doing.
type way struct {
	since   string // the first release that knows it
	set     string
	instead string
}

// goals are the ways to each, the newest first. Our runtime's are JAX's.
var goals = [...]struct {
	title string
	ways  map[string][]way
}{
	grow: {"take memory as it is needed", map[string][]way{
		"jax":        {{"", preallocateVar + "=false", ""}},
		"tensorflow": {{"", tfGrowth + "=true", ""}},
		"pytorch":    {{"", "", "takes what it needs in any case"}},
		"cupy":       {{"", "", "takes what it needs in any case"}},
	}},
	whole: {"take it all at once", map[string][]way{
		"jax":        {{"", "", "takes all at once by default"}},
		"tensorflow": {{"", "", "takes all at once by default"}},
		"pytorch":    {{"", "", "never takes all at once"}},
		"cupy":       {{"", "", "never takes all at once"}},
	}},
	share: {"use a part of the GPU, here half", map[string][]way{
		"jax":        {{"0.4.32", fractionVar + "={part}", ""}, {"", oldFractionVar + "={part}", ""}},
		"tensorflow": {{"", "", "is told by the program: `tf.config.set_logical_device_configuration`"}},
		"pytorch":    {{pytorchConfSince, pytorchConf + "=per_process_memory_fraction:{part}", ""}, {"", "", "is told by the program: `torch.cuda.set_per_process_memory_fraction`"}},
		"cupy":       {{"", cupyLimit + "={percent}%", ""}},
	}},
	async: {"the driver's own pool", map[string][]way{
		"jax":        {{"", allocatorVar + "=cuda_async", ""}},
		"tensorflow": {{"2.5", tfAllocatorVar + "=cuda_malloc_async", ""}, {"", "", "has none before 2.5"}},
		"pytorch":    {{pytorchConfSince, pytorchConf + "=backend:cudaMallocAsync", ""}, {"2.0", pytorchCudaConf + "=backend:cudaMallocAsync", ""}, {"", "", "has none before 2.0"}},
		"cupy":       {{"", "", "is told by the program: `cupy.cuda.MemoryAsyncPool`"}},
	}},
	direct: {"no pool at all; slow", map[string][]way{
		"jax":        {{"", allocatorVar + "=platform", ""}},
		"tensorflow": {{"", tfAllocatorVar + "=cuda_malloc", ""}},
		"pytorch":    {{"", pytorchNoCache + "=1", ""}},
		"cupy":       {{"", "", "is told by the program: `cupy.cuda.set_allocator(None)`"}},
	}},
	paged: {"pages mapped as they are needed", map[string][]way{
		"jax":        {{"0.10.0", allocatorVar + "=vmm", ""}, {"", "", "has none before 0.10.0"}},
		"tensorflow": {{"", "", "has nothing like it"}},
		"pytorch":    {{pytorchConfSince, pytorchConf + "=expandable_segments:True", ""}, {"2.1", pytorchCudaConf + "=expandable_segments:True", ""}, {"", "", "has none before 2.1"}},
		"cupy":       {{"", "", "has nothing like it"}},
	}},
	pinned: {"a limit for pinned host memory, here 64 GiB", map[string][]way{
		"jax":        {{"", hostLimitVar + "={gib}", ""}},
		"tensorflow": {{"", tfHostLimit + "={mib}", ""}},
		"pytorch":    {{"", "", "has nothing like it"}},
		"cupy":       {{"", "", "is told by the program: `cupy.cuda.set_pinned_memory_allocator`"}},
	}},
	devices: {"see only some GPUs", map[string][]way{
		"jax":        {{"", "CUDA_VISIBLE_DEVICES=0", ""}},
		"tensorflow": {{"", "CUDA_VISIBLE_DEVICES=0", ""}},
		"pytorch":    {{"", "CUDA_VISIBLE_DEVICES=0", ""}},
		"cupy":       {{"", "CUDA_VISIBLE_DEVICES=0", ""}},
	}},
}

// A want is a goal, with how much.
type want struct {
	goal   goal
	amount float64 // a fraction, or GiB
}

// wants says what the user wants who sets a variable; nil where that is not
// known, or nothing but the default.
func wants(name, value string) []want {
	value = strings.TrimSpace(value)
	lower := strings.ToLower(value)
	switch name {
	case preallocateVar, tfGrowth:
		yes, no := meansYes(value), slices.Contains([]string{"0", "false", "f", "no", "n", "off"}, lower)
		if name == preallocateVar {
			yes, no = no, yes
		}
		switch { // yes: growth is wanted
		case yes:
			return []want{{goal: grow}}
		case no:
			return []want{{goal: whole}}
		}
	case fractionVar, oldFractionVar:
		if f, ok := pyFloat(value); ok && f > 0 && f <= 1 {
			return []want{{share, f}}
		}
	case allocatorVar, tfAllocatorVar:
		switch lower {
		case "cuda_async", "cuda_malloc_async":
			return []want{{goal: async}}
		case "platform", "address", "cuda_malloc":
			return []want{{goal: direct}}
		case "vmm":
			return []want{{goal: paged}}
		}
	case pytorchNoCache:
		return []want{{goal: direct}}
	case pytorchConf, pytorchCudaConf, pytorchHipConf:
		return pytorchWants(value)
	case cupyLimit:
		if number, ok := strings.CutSuffix(value, "%"); ok {
			if f, err := strconv.ParseFloat(number, 64); err == nil && f > 0 && f <= 100 {
				return []want{{share, f / 100}}
			}
		}
	case hostLimitVar, tfHostLimit:
		if n, ok := cInt(value); ok && n > 0 {
			if name == tfHostLimit && n >= 1024 {
				return []want{{pinned, float64(n / 1024)}}
			} else if name == hostLimitVar {
				return []want{{pinned, float64(n)}}
			}
		}
	}
	return nil
}

// pytorchWants reads what other frameworks have, too, out of PyTorch's list.
func pytorchWants(list string) []want {
	var all []want
	for item := range strings.SplitSeq(list, ",") {
		key, value, _ := strings.Cut(item, ":")
		value = strings.TrimSpace(value)
		switch strings.TrimSpace(key) {
		case "per_process_memory_fraction":
			if f, err := strconv.ParseFloat(value, 64); err == nil && f > 0 && f <= 1 {
				all = append(all, want{share, f})
			}
		case "backend":
			if value == "cudaMallocAsync" {
				all = append(all, want{goal: async})
			}
		case "expandable_segments":
			if value == "True" {
				all = append(all, want{goal: paged})
			}
		}
	}
	return all
}

// Counterpart says how a framework is told what the variable name with this
// value tells those who read it: by set, assignments NAME=value with blanks
// between as in [Warning], empty where no variable does it or where the value
// cannot be translated. text says the same to a person, to go on after "only
// JAX reads it"; it may be empty, too.
func Counterpart(name, value string, as Framework) (set, text string) {
	var sets, texts []string
	for _, w := range wants(name, value) {
		way := w.goal.way(as)
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

// way is how a release of a framework is told; the zero way if it cannot be.
func (g goal) way(as Framework) way {
	at := newest
	if as.Version != "" {
		at, _ = parseVersion(as.Version, "", "")
	}
	if as.Name == "gpumem" { // as the newest JAX
		as.Name, at = "jax", newest
	}
	for _, w := range goals[g].ways[as.Name] {
		if since, _ := parseVersion(w.since, "", ""); !at.less(since) {
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

// nearest is the variable that a name which nobody reads was meant to be: one
// about memory or devices, within two edits, whatever the case, or with the
// same words that matter. Of several as near it is one that the framework
// reads.
func nearest(name, framework string, v version) (Variable, bool) {
	upper := strings.ToUpper(name)
	if slices.Contains(namesakes, upper) {
		return Variable{}, false
	}
	const far = 3 // what edits gives at most for lengths that differ by more than two
	best, bestEdits, bestRank := Variable{}, far, 0
	for _, c := range Variables {
		d := edits(upper, c.Name)
		if d >= far || len(c.Name) < 10 && d > 1 { // two edits make XLA_FLAGS of too much
			continue
		}
		if rank := c.rank(framework, v); d < bestEdits || d == bestEdits && rank > bestRank {
			best, bestEdits, bestRank = c, d, rank
		}
	}
	if bestEdits < far {
		return best, bestRank > 0
	}
	for _, c := range Variables {
		if words := matter(c.Name); words != "" && words == matter(upper) {
			if rank := c.rank(framework, v); rank > bestRank {
				best, bestRank = c, rank
			}
		}
	}
	return best, bestRank > 0
}

// rank is how likely a variable was meant: 0 not at all, for it is not about
// memory or devices.
func (v Variable) rank(framework string, at version) int {
	switch {
	case v.About == AboutOther && v.Name != xlaFlagsVar:
		return 0
	case v.readAt(framework, at):
		return 2
	}
	return 1
}

// namesakes are variables of other makers' GPUs that are as near to one of the
// table as a typo.
var namesakes = []string{
	"MUSA_VISIBLE_DEVICES", "PYTORCH_MUSA_ALLOC_CONF", "PYTORCH_NO_MUSA_MEMORY_CACHING", // Moore Threads
}

// Which words of a name matter. People leave out PYTHON, CLIENT, GPU or FORCE,
// or write them where they do not belong (XLA_MEM_FRACTION, JAX_PREALLOCATE,
// TF_ALLOW_GROWTH), and write a word in its longer or shorter form.
var (
	fillers  = []string{"PYTHON", "CLIENT", "PJRT", "GPU", "CUDA", "FORCE"}
	families = map[string]string{"JAX": "XLA", "TENSORFLOW": "TF", "TORCH": "PYTORCH"}
	forms    = map[string]string{"MEMORY": "MEM", "FRAC": "FRACTION", "PREALLOC": "PREALLOCATE", "PREALLOCATION": "PREALLOCATE", "CONFIG": "CONF", "DEVICE": "DEVICES"}
)

// matter is a name's family and the words that matter, in one order; empty if
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
