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
	entries, err := table.Read("goals.txt", goalsText, "title", "jax", "tensorflow", "pytorch", "cupy")
	if err != nil {
		panic(err) // a test rules it out
	}
	var list []goal
	for _, e := range entries {
		g := goal{e.Name, e.Fields["title"], map[string][]way{}}
		delete(e.Fields, "title")
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

// wants says what the user wants who sets a variable; nil where that is not
// known, or nothing but the default.
func wants(name, value string) []want {
	value = strings.TrimSpace(value)
	lower := strings.ToLower(value)
	switch name {
	case "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH":
		yes, no := literal.MeansYes(value), slices.Contains([]string{"0", "false", "f", "no", "n", "off"}, lower)
		if name == "XLA_PYTHON_CLIENT_PREALLOCATE" {
			yes, no = no, yes
		}
		switch { // yes: growth is wanted
		case yes:
			return []want{{goal: "grow"}}
		case no:
			return []want{{goal: "whole"}}
		}
	case "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION":
		if f, ok := literal.PyFloat(value); ok && f > 0 && f <= 1 {
			return []want{{"share", f}}
		}
	case "XLA_PYTHON_CLIENT_ALLOCATOR", "TF_GPU_ALLOCATOR":
		switch lower {
		case "cuda_async", "cuda_malloc_async":
			return []want{{goal: "async"}}
		case "platform", "address", "cuda_malloc":
			return []want{{goal: "direct"}}
		case "vmm":
			return []want{{goal: "paged"}}
		}
	case "PYTORCH_NO_CUDA_MEMORY_CACHING":
		return []want{{goal: "direct"}}
	case "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF":
		return pytorchWants(value)
	case "CUPY_GPU_MEMORY_LIMIT":
		if number, ok := strings.CutSuffix(value, "%"); ok {
			if f, err := strconv.ParseFloat(number, 64); err == nil && f > 0 && f <= 100 {
				return []want{{"share", f / 100}}
			}
		}
	case "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "TF_GPU_HOST_MEM_LIMIT_IN_MB":
		if n, ok := literal.CInt(value); ok && n > 0 {
			if name == "TF_GPU_HOST_MEM_LIMIT_IN_MB" && n >= 1024 {
				return []want{{"pinned", float64(n / 1024)}}
			} else if name == "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" {
				return []want{{"pinned", float64(n)}}
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
				all = append(all, want{"share", f})
			}
		case "backend":
			if value == "cudaMallocAsync" {
				all = append(all, want{goal: "async"})
			}
		case "expandable_segments":
			if value == "True" {
				all = append(all, want{goal: "paged"})
			}
		}
	}
	return all
}

// counterpart is what to set in a framework for the same effect as the variable
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

// wayTo is how a release expresses a goal; the zero way if it cannot.
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
