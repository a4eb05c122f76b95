// The same wish in another framework's words: what to set in JAX instead of a
// variable of TensorFlow's, and so on.

package explain

import (
	"math"
	"slices"
	"strconv"
	"strings"

	"gpumem/policy"
	"gpumem/policy/frameworks"
	"gpumem/policy/internal/literal"
)

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

// A way expresses a goal in one framework: by an assignment, in which {part} and
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
		"jax":        {{"", "XLA_PYTHON_CLIENT_PREALLOCATE=false", ""}},
		"tensorflow": {{"", "TF_FORCE_GPU_ALLOW_GROWTH=true", ""}},
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
		"jax":        {{"0.4.32", "XLA_CLIENT_MEM_FRACTION={part}", ""}, {"", "XLA_PYTHON_CLIENT_MEM_FRACTION={part}", ""}},
		"tensorflow": {{"", "", "takes it from the program: `tf.config.set_logical_device_configuration`"}},
		"pytorch":    {{"2.10", "PYTORCH_ALLOC_CONF=per_process_memory_fraction:{part}", ""}, {"", "", "takes it from the program: `torch.cuda.set_per_process_memory_fraction`"}},
		"cupy":       {{"", "CUPY_GPU_MEMORY_LIMIT={percent}%", ""}},
	}},
	async: {"the driver's own pool", map[string][]way{
		"jax":        {{"", "XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async", ""}},
		"tensorflow": {{"2.5", "TF_GPU_ALLOCATOR=cuda_malloc_async", ""}, {"", "", "has none before 2.5"}},
		"pytorch":    {{"2.10", "PYTORCH_ALLOC_CONF=backend:cudaMallocAsync", ""}, {"2.0", "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync", ""}, {"", "", "has none before 2.0"}},
		"cupy":       {{"", "", "takes it from the program: `cupy.cuda.MemoryAsyncPool`"}},
	}},
	direct: {"no pool at all; slow", map[string][]way{
		"jax":        {{"", "XLA_PYTHON_CLIENT_ALLOCATOR=platform", ""}},
		"tensorflow": {{"", "TF_GPU_ALLOCATOR=cuda_malloc", ""}},
		"pytorch":    {{"", "PYTORCH_NO_CUDA_MEMORY_CACHING=1", ""}},
		"cupy":       {{"", "", "takes it from the program: `cupy.cuda.set_allocator(None)`"}},
	}},
	paged: {"pages mapped as they are needed", map[string][]way{
		"jax":        {{"0.10.0", "XLA_PYTHON_CLIENT_ALLOCATOR=vmm", ""}, {"", "", "has none before 0.10.0"}},
		"tensorflow": {{"", "", "has nothing like it"}},
		"pytorch":    {{"2.10", "PYTORCH_ALLOC_CONF=expandable_segments:True", ""}, {"2.1", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", ""}, {"", "", "has none before 2.1"}},
		"cupy":       {{"", "", "has nothing like it"}},
	}},
	pinned: {"a limit for pinned host memory, here 64 GiB", map[string][]way{
		"jax":        {{"", "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB={gib}", ""}},
		"tensorflow": {{"", "TF_GPU_HOST_MEM_LIMIT_IN_MB={mib}", ""}},
		"pytorch":    {{"", "", "has nothing like it"}},
		"cupy":       {{"", "", "takes it from the program: `cupy.cuda.set_pinned_memory_allocator`"}},
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
	case "XLA_PYTHON_CLIENT_PREALLOCATE", "TF_FORCE_GPU_ALLOW_GROWTH":
		yes, no := literal.MeansYes(value), slices.Contains([]string{"0", "false", "f", "no", "n", "off"}, lower)
		if name == "XLA_PYTHON_CLIENT_PREALLOCATE" {
			yes, no = no, yes
		}
		switch { // yes: growth is wanted
		case yes:
			return []want{{goal: grow}}
		case no:
			return []want{{goal: whole}}
		}
	case "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION":
		if f, ok := literal.PyFloat(value); ok && f > 0 && f <= 1 {
			return []want{{share, f}}
		}
	case "XLA_PYTHON_CLIENT_ALLOCATOR", "TF_GPU_ALLOCATOR":
		switch lower {
		case "cuda_async", "cuda_malloc_async":
			return []want{{goal: async}}
		case "platform", "address", "cuda_malloc":
			return []want{{goal: direct}}
		case "vmm":
			return []want{{goal: paged}}
		}
	case "PYTORCH_NO_CUDA_MEMORY_CACHING":
		return []want{{goal: direct}}
	case "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF":
		return pytorchWants(value)
	case "CUPY_GPU_MEMORY_LIMIT":
		if number, ok := strings.CutSuffix(value, "%"); ok {
			if f, err := strconv.ParseFloat(number, 64); err == nil && f > 0 && f <= 100 {
				return []want{{share, f / 100}}
			}
		}
	case "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB", "TF_GPU_HOST_MEM_LIMIT_IN_MB":
		if n, ok := literal.CInt(value); ok && n > 0 {
			if name == "TF_GPU_HOST_MEM_LIMIT_IN_MB" && n >= 1024 {
				return []want{{pinned, float64(n / 1024)}}
			} else if name == "XLA_PJRT_GPU_HOST_MEMORY_LIMIT_GB" {
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

// counterpart is what to set in a framework for the same effect as the variable
// name with this value has where it is read: set is assignments NAME=value with blanks
// between as in [Warning], empty where no variable does it or where the value
// cannot be translated. text says the same to a person, to go on after "only
// JAX reads it"; it may be empty, too.
func counterpart(name, value string, as frameworks.Release) (set, text string) {
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

// way is how a release expresses the goal; the zero way if it cannot.
func (g goal) way(as frameworks.Release) way {
	at := policy.Newest
	if as.Version != "" {
		at, _ = policy.ParseVersion(as.Version, "", "")
	}
	if as.Name == "gpumem" { // as the newest JAX
		as.Name, at = "jax", policy.Newest
	}
	for _, w := range goals[g].ways[as.Name] {
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
