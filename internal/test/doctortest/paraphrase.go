// Other words for the same log. Numbers, units, names of programs, files,
// settings and error codes stay; verbs, nouns, prepositions, the order of
// clauses and punctuation change. No reader was looked at to write the lists: a
// phrase is here if a person would read it as the same.
package doctortest

import (
	"cmp"
	"maps"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// sizePattern is a number with its unit.
const sizePattern = `(?:\d[\d.,]*\d|\d) ?(?:bytes|[KMGT]i?B|[KMGT]\b)`

// A reworking writes one sentence anew. In its forms $1, $2 are what the pattern
// has in parentheses.
type reworking struct {
	pattern *regexp.Regexp
	within  string // is in every sentence that matches
	forms   []string
}

// reworkings are whole sentences; (S stands for a size.
var reworkings = reworked([][]string{
	{`Tried to allocate (S)`, "Attempted to allocate $1", "A request for $1 was made", "Requested: $1", "Wanted to allocate $1"},
	{`has a total capac(?:i)?ty of (S) of which (S) is free`, "offers $1 in total, and $2 of it is available", "has a capacity of $1 overall, with $2 still free", "has $2 free of its $1 in total"},
	{`Of the allocated memory (S) is allocated by PyTorch, and (S) is reserved by PyTorch but unallocated`,
		"PyTorch has allocated $1, and another $2 is reserved by PyTorch without being allocated", "PyTorch's allocations are $1, and reserved by PyTorch, yet not allocated is $2"},
	{`Of the allocated memory (S) is allocated by PyTorch, with (S) allocated in private pools \(e\.g\., CUDA Graphs\), and (S) is reserved by PyTorch but unallocated`,
		"PyTorch has allocated $1 ($2 in private pools such as those of CUDA Graphs), and another $3 is reserved by PyTorch without being allocated"},
	{`Process (\d+) has (S) memory in use`, "Process $1 uses $2 of memory", "$2 of memory is occupied by process $1", "Process $1 holds $2"},
	{`Including non-PyTorch memory, this process has (S) memory in use`, "This process uses $1 of memory, non-PyTorch memory included", "Non-PyTorch memory counted, this process holds $1"},
	{`(S) total capacity; (S) already allocated; (S) free; (S) reserved in total by PyTorch`, "$1 capacity in total; $3 available; $2 allocated so far; PyTorch has reserved $4 altogether", "of $1 in total, $2 is allocated and $3 is free; $4 is reserved by PyTorch overall"},
	{`If reserved (?:but unallocated )?memory is (?:large|>> allocated memory) try setting (\S+) to avoid fragmentation`, "Setting $1 may help against fragmentation where much reserved memory is not allocated", "Where reserved memory is far above allocated memory, $1 can prevent fragmentation"},
	{`Memory usage: (S) free, (S) total`, "Memory in use: of $2 in total, $1 available", "Memory state: $2 in total, $1 free", "Memory on the device: $1 unused of $2"},
	{`Out of memory while trying to allocate (S)`, "Not enough memory for an attempt to allocate $1", "Memory was exhausted while allocating $1", "There was no memory left to allocate $1"},
	{`ran out of memory (?:trying|tying) to allocate (S)`, "had no memory left when it attempted to allocate $1", "exhausted its memory while allocating $1", "could not find memory to allocate $1"},
	{`(?:The )?caller indicates that this is not a failure, but (?:this )?may mean that there could be performance gains if more memory were available`,
		"According to the caller this is no failure, though more memory could mean better performance", "To the caller this does not count as a failure; with more memory available it might run faster"},
	{`[Ff]ailed to allocate request for (S) \((\d+)B\) on device ordinal (\d+)`, "Could not serve a request for $1 (${2}B) on device number $3", "A request for $1 (${2}B) could not be allocated on device $3"},
	{`failed to allocate (S) \((\d+ bytes)\) from device`, "could not get $1 ($2) from the device", "was unable to allocate $1 ($2) on the device", "the device had no room for $1 ($2)"},
	{`failed to alloc (\d+ bytes) (on host|unified memory)`, "could not allocate $1 $2", "an allocation of $1 $2 did not succeed"},
	{`could not allocate pinned host memory of size: (\d+)`, "was unable to get pinned memory of the host, size: $1", "failed to allocate $1 bytes of pinned host memory"},
	{`failed to allocate (S) of pinned memory`, "could not get $1 of pinned memory", "no $1 of pinned memory to be had"},
	{`Can't reduce memory use below (S \([^)]*\)) by rematerialization; only reduced to (S \([^)]*\)), down from (S \([^)]*\)) originally`,
		"Rematerialization cannot bring memory use under $1; it went from $3 down to $2 only", "Memory use stays above $1 in spite of rematerialization: reduced to $2, from $3 at first"},
	{`The byte size of input/output arguments \((\d+)\) exceeds the base limit \((\d+)\)`, "Input/output arguments take $1 bytes, which is more than the base limit of $2"},
	{`Out of memory allocating ([\d,]+ bytes) \(allocated so far: ([\d,]+ bytes), limit set to: ([\d,]+ bytes)\)`, "Not enough memory to allocate $1 (already allocated: $2, the limit is $3)", "Memory exhausted by a request for $1 (limit: $3, in use: $2)"},
	{`out of memory to allocate (\d+ bytes) \(total (\d+ bytes)\)`, "no memory left to allocate $1 ($2 in total)"},
	{`Free memory on device (\S+ )?\(([\d.]+)/([\d.]+ GiB)\) on startup is less than desired GPU memory utilization \(([\d.]+), ([\d.]+ GiB)\)`,
		"At startup, free memory of device ${1}($2/$3) was below the desired GPU memory utilization ($4, $5)", "The desired GPU memory utilization ($4, $5) is above the memory that was free on device ${1}at startup ($2/$3)"},
	{`No available memory for the cache blocks`, "There is no memory left for cache blocks", "Memory for the cache blocks is not available"},
	{`Try increasing (\S+) when initializing the engine`, "A higher $1 at the engine's start may help", "Consider a larger $1 when the engine is initialized"},
	{`allocating ([\d.]+ MiB) on device (\d+): cudaMalloc failed: out of memory`, "no $1 to be allocated on device $2: cudaMalloc did not succeed: out of memory", "request for $1 on device $2: cudaMalloc gave an error: not enough memory"},
	{`failed to allocate (CUDA\d) buffer of size (\d+)`, "could not allocate a buffer of $2 bytes on $1", "the $1 buffer of size $2 was not allocated"},
	{`unable to allocate (CUDA\d) buffer`, "could not allocate the buffer of $1", "no buffer on $1 could be allocated"},
	{`Failed to CUDA calloc (\d+ bytes)`, "Could not CUDA calloc $1", "CUDA calloc of $1 was not possible"},
	{`Simulating GPU with memory size of (\d+ bytes)`, "A GPU with $1 of memory is simulated"},
	{`There was an error before creating cudnn handle`, "An error occurred before a cudnn handle was created", "Before the cudnn handle could be made there was an error"},
	{`(?:Could not create|failed to create) (cudnn|cublas) handle`, "Unable to create a $1 handle", "Creating the $1 handle was not possible", "No $1 handle could be created", "Creation of a $1 handle failed"},
	{`Failure to initialize cublas may be due to OOM \(cublas needs some free memory when you initialize it, and your deep-learning framework may have preallocated more than its fair share\), or may be because this binary was not built with support for the GPU in your machine`,
		"That cublas does not initialize can be due to OOM (it needs free memory at that moment, of which your deep-learning framework may have preallocated too much), or this binary has no support for the machine's GPU built in"},
	{`CUDA runtime implicit initialization on (GPU:\d) failed`, "Implicit initialization of the CUDA runtime was not possible on $1", "On $1 the CUDA runtime could not be initialized implicitly"},
	{`Device (\d+) does not support CUDA Virtual Memory Management`, "CUDA Virtual Memory Management is not supported by device $1", "Device $1 has no support for CUDA Virtual Memory Management"},
	{`Total memory: (S)\b`, "Memory in total: $1"}, {`Free memory: (S)\b`, "Memory that is free: $1"},
	{`totalMemory: (S) freeMemory: (S)`, "totalMemory: $1, freeMemory: $2"},
	{`(\d+) Chunks of size (\d+) totalling (S)`, "$1 chunks, each of size $2, in total $3", "Chunks of size $2: $1, which makes $3"},
	{`Sum Total of in-use chunks: (S)`, "In-use chunks in total: $1", "All chunks in use sum up to $1"},
	{`Garbage collection: deallocate free memory regions \(i\.e\., allocations\) so that we can re-allocate a larger region to avoid OOM due to memory fragmentation`,
		"Garbage collection: free memory regions (i.e., allocations) are deallocated to re-allocate a larger one, which avoids OOM due to memory fragmentation"},
	{`Maximum pool size exceeded`, "The pool's maximum size was exceeded", "Request is over the maximum pool size"},
	{`Initial free memory ([\d.]+ GiB), current free memory ([\d.]+ GiB)`, "Free memory at first $1, free memory now $2", "free memory was $1 initially and is $2 currently"},
	{`real_cuMemGetInfo returned free=([\d.]+ MiB), total=([\d.]+ MiB)`, "real_cuMemGetInfo gave total=$2, free=$1"},
	{`cuMemAlloc requested (\d+ bytes)`, "cuMemAlloc was called for $1", "cuMemAlloc asked for $1"},
	{`If the cause is memory fragmentation maybe the environment variable (\S+) will improve the situation`, "Should memory fragmentation be the cause, the environment variable $1 might help"},
	{`model requires more system memory \(([^)]*)\) than is available \(([^)]*)\)`, "the system memory that the model needs ($1) is more than there is ($2)", "available system memory ($2) is below what the model requires ($1)"},
	{`Unable to allocate (S) for an array`, "Could not get $1 for an array", "No memory for an array of $1"},
	{`you tried to allocate (\d+ bytes)`, "the request was for $1", "you asked for $1"},
	{`Cannot allocate (\S+) memory on GPU (\d), (\S+) memory has been allocated and available memory is only (\S+)\.\n`, "On GPU $2, an allocation of $1 of memory was refused: $3 is allocated already, only $4 is available.\n"},
	{`Effective GPU memory usage: ([\d.]+%) \((S)/(S)\)`, "GPU memory in effective use: $1 ($2 of $3)"},
	{`Memory pool usage: (S) \((S) reserved\)`, "The memory pool uses $1 (and has reserved $2)"},
	{`Available memory of (\d+) is smaller than requested bytes of (\d+)`, "$2 bytes were requested, which is more than the available memory of $1", "Requested bytes: $2, available memory: $1"},
	{`(S) allowed; `, "up to $1 permitted; ", "at most $1 may be allocated; "},
	{`\(MPS allocated: (S), other allocations: (S), max allowed: (S)\)`, "(allocated by MPS: $1, by others: $2, permitted at most: $3)"},
	{`- Free memory: (\S+)`, "- Memory still free: $1", "- Available memory: $1"},
	{`- Requested memory: (\S+)`, "- Memory asked for: $1", "- Size of the request: $1"},
	{`Currently allocated +: (S)`, "Allocated at present: $1", "In use at the moment: $1"},
	{`Device limit +: (S)`, "Limit of the device: $1"},
	{`Out of GPU memory trying to allocate (S)`, "No GPU memory left for an allocation of $1", "GPU memory exhausted by a request for $1"},
	{`Requested amount of GPU memory \((\d+ bytes)\) could not be allocated\. There may not be enough free memory for allocation to succeed`, "The GPU memory that was asked for ($1) was not to be had. Perhaps too little memory is free"},
	{`XLA backend allocating (\d+ bytes) on device (\d+) for`, "XLA backend takes $1 of device $2 for", "XLA backend reserves $1 on device $2 for"},
	{`XLA backend will use up to (\d+ bytes) on device (\d+) for`, "XLA backend may take at most $1 of device $2 for"},
	{`Available KV cache memory: ([\d.]+ GiB)`, "Memory available for the KV cache: $1", "KV cache memory that is available: $1"},
	{`Loading model weights took ([\d.]+ GB)`, "The model's weights took $1", "Weights of the model loaded, $1"},
	{`\(([\d.]+ GiB) KV cache is needed, which is larger than the available KV cache memory \(([\d.]+ GiB)\)`, "($1 of KV cache would be needed, but only $2 of KV cache memory is available"},
	{`has been killed by the OOM killer`, "was killed by the OOM killer", "fell to the OOM killer"},
	{`It is possible that dataloader's workers are out of shared memory\. Please try to raise your shared memory limit`, "Perhaps the dataloader's workers have no shared memory left; a higher limit of shared memory may help"},
})

// synonyms are words and phrases that mean the same in these sentences.
var synonyms = map[string][]string{
	"out of memory":                {"not enough memory", "memory exhausted", "no memory left"},
	"ran out of memory":            {"had no memory left", "exhausted its memory"},
	"cuda out of memory":           {"CUDA has no memory left", "CUDA ran out of memory", "CUDA memory exhausted"},
	"failed to":                    {"could not", "was unable to", "did not manage to"},
	"could not":                    {"failed to", "was unable to"},
	"unable to":                    {"not able to"},
	"failed call to":               {"unsuccessful call to", "error in a call to"},
	"total memory reported":        {"memory reported in total", "the driver reports a total memory of"},
	"is busy or unavailable":       {"is in use or not available"},
	"is/are busy or unavailable":   {"is/are in use or not available"},
	"are busy or unavailable":      {"are in use or not available"},
	"failed:":                      {"did not succeed:", "went wrong:", "was not possible:"},
	"an illegal memory access was": {"an illegal access to memory was", "illegal memory access"},
	"execution of replica":         {"running replica"},
	"see documentation for":        {"consult the documentation on", "the documentation covers this under"},
	"this may mean":                {"this can mean"},
	"aborted":                      {"aborting"},
	"please also":                  {"kindly also"},
	"error loading model":          {"the model could not be loaded", "could not load the model"},
	"failed to load model":         {"the model was not loaded"},
	"decrease":                     {"lower", "reduce"},
	"please":                       {"kindly"},
	"perhaps":                      {"maybe"},
	"used by other processes":      {"taken by other processes", "in use by other processes"},
	"attempting to":                {"trying to"},
	"without blas support":         {"that has no BLAS support"},
	"to ignore this failure and":   {"to pass over this failure and"},
	"when calling":                 {"in a call of"},
	"profiling failure on":         {"failure while profiling"},
	"successfully opened":          {"opened"},
	"initialization failed":        {"initialization did not succeed"},
	"probably because":             {"likely because"},
	"suboptimal performance":       {"lower performance"},
	"no kernel image is available": {"there is no kernel image"},
	"is specified together with":   {"is given in addition to"},
	"remove the latter one":        {"drop the latter"},
	"it is deprecated":             {"which is deprecated"},
	"must be":                      {"has to be"},
	"does not support":             {"has no support for"},
	"is required for":              {"is needed for"},
	"no supported devices found":   {"found no supported devices"},
	"unable to initialize":         {"could not initialize"},
	"cannot open":                  {"unable to open"},
	"could not load":               {"was unable to load"},
	"not found":                    {"could not be found", "is missing"},
	"exceeds":                      {"is more than", "is above"},
	"insufficient":                 {"too little"},
	"creating":                     {"making"},
	"is killed by signal":          {"was killed by signal", "died of signal"},
	"exited with exit code":        {"ended with exit code", "returned exit code"},
	"encountered":                  {"met"},
	"reported":                     {"shown"},
	"requested":                    {"asked for", "wanted"},
	"larger than":                  {"above", "in excess of"},
	"hip out of memory":            {"HIP has no memory left", "HIP ran out of memory"},
	"xpu out of memory":            {"XPU has no memory left", "XPU ran out of memory"},
	"backend out of memory":        {"backend has no memory left", "backend ran out of memory"},
	"out of memory error":          {"out-of-memory error", "error for want of memory"},
	"cgroup out of memory":         {"cgroup has no memory left", "cgroup is out of memory"},
	"would exceed allowed memory":  {"would be more than the allowed memory"},
}

// optional and literal find what every match of a pattern has.
var (
	optional = regexp.MustCompile(`\(\?:[^)]*\)\??|\([^()]*\)\?`)
	literal  = regexp.MustCompile(`[A-Za-z, ]{4,}`)
)

func reworked(table [][]string) []reworking {
	var out []reworking
	for _, row := range table {
		within := ""
		for _, piece := range literal.FindAllString(optional.ReplaceAllString(row[0], "|"), -1) {
			if len(piece) > len(within) {
				within = piece
			}
		}
		out = append(out, reworking{regexp.MustCompile(strings.ReplaceAll(row[0], "(S", "("+sizePattern)), within, row[1:]})
	}
	return out
}

// phrases are the keys of synonyms, the longest first.
var phrases = slices.SortedFunc(maps.Keys(synonyms), func(a, b string) int {
	return cmp.Or(cmp.Compare(len(b), len(a)), strings.Compare(a, b))
})

// Paraphrase returns the log in other words, always the same for the same n.
func Paraphrase(log string, n int) string {
	d := newDraw("paraphrase", n)
	var out strings.Builder
	for _, line := range strings.SplitAfter(log, "\n") {
		out.WriteString(paraphraseLine(d, line))
	}
	return out.String()
}

func paraphraseLine(d draw, line string) string {
	for _, r := range reworkings {
		if !strings.Contains(line, r.within) || !d.chance(75) {
			continue
		}
		form := d.one(r.forms...)
		line = r.pattern.ReplaceAllStringFunc(line, func(found string) string {
			return string(r.pattern.ExpandString(nil, form, found, r.pattern.FindStringSubmatchIndex(found)))
		})
	}
	line = replaceWords(d, line)
	if d.chance(50) {
		line = shuffleSentences(d, line)
	}
	if d.chance(30) {
		line = repunctuate(d, line)
	}
	return line
}

// replaceWords exchanges phrases that stand alone: not within a name, a path, a
// setting or an error code.
func replaceWords(d draw, line string) string {
	var out strings.Builder
	lower := strings.ToLower(line)
	if len(lower) != len(line) { // letters whose small form has another length
		lower = line
	}
	for at := 0; at < len(line); {
		i := slices.IndexFunc(phrases, func(p string) bool {
			return strings.HasPrefix(lower[at:], p) && standsAlone(line, at, at+len(p))
		})
		if i < 0 {
			out.WriteByte(line[at])
			at++
			continue
		}
		found := line[at : at+len(phrases[i])]
		at += len(found)
		if found == strings.ToUpper(found) || !d.chance(60) {
			if d.chance(15) { // "Out of Memory"
				found = strings.ReplaceAll(strings.ToUpper(found[:1])+found[1:], " memory", " Memory")
			}
			out.WriteString(found)
			continue
		}
		word := d.one(synonyms[phrases[i]]...)
		if unicode.IsUpper(rune(found[0])) {
			word = strings.ToUpper(word[:1]) + word[1:]
		}
		out.WriteString(word)
	}
	return out.String()
}

// standsAlone reports whether line[from:to] is bounded by blanks, quotes or the
// punctuation of a sentence.
func standsAlone(line string, from, to int) bool {
	before := from == 0 || strings.ContainsRune(" \t([>:;,]", rune(line[from-1])) && !(line[from-1] == ':' && from > 1 && line[from-2] == ':')
	rest := line[to:]
	after := rest == "" || strings.ContainsRune(" \t\n\r\"'`)];,", rune(rest[0])) ||
		strings.ContainsRune(".:!?", rune(rest[0])) && (len(rest) == 1 || strings.ContainsRune(" \n\r\t\"'", rune(rest[1])))
	return before && after
}

var processSentence = regexp.MustCompile(`[A-Z0-9](?:[^.;]|\.\d)*\b[Pp]rocess(?: \d+)?\b(?:[^.;]|\.\d)*\. `)

// shuffleSentences puts the sentences about processes, which follow one another,
// into another order, and the parts of a list in parentheses behind its first.
func shuffleSentences(d draw, line string) string {
	var at [][]int
	if strings.Count(line, "rocess ") > 1 {
		at = processSentence.FindAllStringIndex(line, -1)
	}
	if len(at) > 1 {
		var list []string
		adjacent := true
		for i, a := range at {
			list = append(list, line[a[0]:a[1]])
			adjacent = adjacent && (i == 0 || at[i-1][1] == a[0])
		}
		if adjacent {
			line = line[:at[0][0]] + strings.Join(d.shuffle(list...), "") + line[at[len(at)-1][1]:]
		}
	}
	if open, end := strings.Index(line, "(GPU "), strings.Index(line, " by PyTorch)"); open >= 0 && end > open {
		inner := strings.Split(line[open+1:end+len(" by PyTorch")], "; ")
		if len(inner) > 2 {
			line = line[:open+1] + inner[0] + "; " + strings.Join(d.shuffle(inner[1:]...), "; ") + line[end+len(" by PyTorch"):]
		}
	}
	return line
}

// repunctuate exchanges the marks between sentences.
func repunctuate(d draw, line string) string {
	switch d.IntN(3) {
	case 0:
		return strings.ReplaceAll(line, ". ", "; ")
	case 1:
		return strings.ReplaceAll(line, "; ", ", ")
	}
	// The last colon of the text, not one of the prefix.
	if i := strings.LastIndex(line, ": "); i > strings.Index(line, "] ") && !strings.HasPrefix(line[i+2:], " ") {
		return line[:i] + " - " + line[i+2:]
	}
	return line
}
