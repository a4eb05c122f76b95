package doctor

// docs/causes.md keeps step with the causes: a section for each, in one form,
// and no name in it that does not exist.

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"gpumem/policy/frameworks"
)

const causesPage = "../docs/causes.md"

// pageParts are what every section has after its messages, in this order.
var pageParts = []string{"Why", "Tell apart", "Set", "Check", "Source"}

// A section is read on one screen: by people in a hurry, and in a terminal with --explain.
const (
	pageWords    = 150 // of prose
	pageMessages = 6   // lines
	pageMessage  = 76  // columns, as --explain indents them by four
)

// pageGeneral are the sections of the page that are no causes.
var pageGeneral = []string{
	"Same text, different cause", "Free is low: that proves nothing", "What lies outside of the pool", "A fraction that leaves room",
	"From the message to the cause", "Settings that do not do what they seem to", "Words of memory that are not about memory",
}

// pageVariables are variables of programs that package policy does not read:
// name and whose.
var pageVariables = map[string]string{
	"CUDA_DEVICE_MEMORY_LIMIT":                 "HAMi's quota",
	"CUDA_DEVICE_MEMORY_SHARED_CACHE":          "HAMi's file of counts",
	"CUDA_DISABLE_CONTROL":                     "HAMi stands aside",
	"CUDA_LAUNCH_BLOCKING":                     "CUDA's, for finding an illegal address",
	"LD_LIBRARY_PATH":                          "the dynamic linker's",
	"NCCL_BUFFSIZE":                            "NCCL's",
	"NCCL_DEBUG":                               "NCCL's",
	"NCCL_MAX_NCHANNELS":                       "NCCL's",
	"NVSHARE_ENABLE_SINGLE_OVERSUB":            "nvshare's",
	"OLLAMA_CONTEXT_LENGTH":                    "Ollama's",
	"OLLAMA_GPU_OVERHEAD":                      "Ollama's",
	"OLLAMA_NUM_PARALLEL":                      "Ollama's",
	"PJRT_ALLOCATOR_FRACTION":                  "PyTorch/XLA's",
	"PJRT_ALLOCATOR_PREALLOCATE":               "PyTorch/XLA's",
	"PYTORCH_MPS_HIGH_WATERMARK_RATIO":         "PyTorch's on Apple's GPUs",
	"TF_CPP_MIN_LOG_LEVEL":                     "the log's of XLA and TensorFlow, no matter of memory",
	"TF_CUDA_HOST_MEM_LIMIT_IN_MB":             "TensorFlow's up to 1.13, before the oldest that package policy knows",
	"VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "vLLM's",
}

// pageStatus are words that look like a variable and are a status of a library or
// of the kernel.
var pageStatus = regexp.MustCompile(`^(CUDA_ERROR|CUDNN_STATUS|CUBLAS_STATUS|CUFFT_ALLOC|CL_MEM_OBJECT|VK_ERROR|NV_ERR|CONSTRAINT)_|^(RESOURCE_EXHAUSTED|RET_CHECK|E_OUTOFMEMORY|ALLOC_FAILED)$`)

// pageForeign are words in the form of an id that belong to other programs: calls,
// fields, options.
var pageForeign = strings.Fields(`
	bytes_limit cuda_async cuda_host_bfc cudagraph_capture_sizes gpu_mem_limit
	enable_remat_opt_pass maximum_pool_size memory_limit record_stream
	temp_size_in_bytes tensorflow_datasets`)

var (
	pageHeading  = regexp.MustCompile(`^(#+) (.*)$`)
	pageLink     = regexp.MustCompile(`\[([^\]]*)\]\(([^)]*)\)`)
	pageQuoted   = regexp.MustCompile("`([^`]*)`")
	pageID       = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)
	pageVariable = regexp.MustCompile(`\b[A-Z][A-Z0-9]*(_[A-Z0-9]+)+\b`)
	pagePart     = regexp.MustCompile(`^\*\*([A-Z][a-z ]+):\*\*( |$)`)
	pageWord     = regexp.MustCompile(`\S*[\p{L}\p{N}]\S*`)
	pageNotSlug  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// pageSlug is the anchor of a heading, as GitHub makes it.
func pageSlug(heading string) string {
	return strings.ReplaceAll(pageNotSlug.ReplaceAllString(strings.ToLower(heading), ""), " ", "-")
}

// A pageSection is a heading of level two, and what lies below it.
type pageSection struct {
	name string
	line int
	text []string
}

// pageSections splits a page at its headings of level two, and gives every
// anchor in it. Lines within a block of code are no headings.
func pageSections(page string) (all []pageSection, anchors map[string]bool) {
	anchors = map[string]bool{}
	code := false
	for i, line := range strings.Split(page, "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if m := pageHeading.FindStringSubmatch(line); m != nil && !code {
			anchors[pageSlug(m[2])] = true
			if m[1] == "##" {
				all = append(all, pageSection{name: m[2], line: i + 1})
				continue
			}
		}
		if len(all) > 0 {
			all[len(all)-1].text = append(all[len(all)-1].text, line)
		}
	}
	return all, anchors
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestCausesPageHasEveryCause(t *testing.T) {
	all, _ := pageSections(readPage(t, causesPage))
	seen := map[CauseID]bool{}
	for _, s := range all {
		if slices.Contains(pageGeneral, s.name) {
			continue
		}
		id := CauseID(s.name)
		title, ok := titles[id]
		switch {
		case !ok:
			t.Errorf("line %d: %q is no cause", s.line, s.name)
			continue
		case seen[id]:
			t.Errorf("line %d: a second section for %s", s.line, id)
		case pageSlug(s.name) != s.name:
			t.Errorf("line %d: the anchor of %s would be %s", s.line, id, pageSlug(s.name))
		}
		seen[id] = true
		if first := strings.TrimSpace(strings.Join(s.text[:2], "")); first != "**"+title+"**" {
			t.Errorf("line %d: %s begins with %q, not with its title **%s**", s.line, id, first, title)
		}
		s.check(t)
	}
	for id := range titles {
		if !seen[id] {
			t.Errorf("no section for %s", id)
		}
	}
}

// check fails where a section has another form than the others, or is too long.
func (s pageSection) check(t *testing.T) {
	t.Helper()
	var parts []string
	words, messages := 0, 0
	code := false
	for _, line := range s.text {
		part := pagePart.FindStringSubmatch(line)
		switch {
		case strings.HasPrefix(line, "```"):
			code = !code
		case code:
			messages++
			if n := utf8.RuneCountInString(line); n > pageMessage || len(parts) > 0 {
				t.Errorf("%s: %d columns, behind the parts %q: %s", s.name, n, parts, line)
			}
		case part != nil:
			parts = append(parts, part[1])
		}
		if !code {
			words += len(pageWord.FindAllString(line, -1))
		}
	}
	if !slices.Equal(parts, pageParts) || code {
		t.Errorf("%s: has the parts %q, want %q", s.name, parts, pageParts)
	}
	if messages == 0 || messages > pageMessages {
		t.Errorf("%s: %d lines of messages, want 1 to %d", s.name, messages, pageMessages)
	}
	if words > pageWords {
		t.Errorf("%s: %d words, want at most %d", s.name, words, pageWords)
	}
}

// TestCausesPageNames: whatever stands in backticks in the form of an id is one, or
// is known to belong to another program; and a link to a section bears its name.
func TestCausesPageNames(t *testing.T) {
	used := map[string]bool{}
	for i, line := range strings.Split(readPage(t, causesPage), "\n") {
		if strings.HasPrefix(line, "```") {
			continue
		}
		for _, q := range pageQuoted.FindAllStringSubmatch(line, -1) {
			word := q[1]
			if !pageID.MatchString(word) {
				continue
			}
			if _, ok := titles[CauseID(word)]; !ok && !slices.Contains(pageForeign, word) {
				t.Errorf("line %d: `%s` is no cause", i+1, word)
			}
			used[word] = true
		}
		for _, l := range pageLink.FindAllStringSubmatch(line, -1) {
			word, to := strings.Trim(l[1], "`"), strings.TrimPrefix(l[2], "#")
			if _, ok := titles[CauseID(to)]; ok && word != to {
				t.Errorf("line %d: [%s] leads to %s", i+1, l[1], to)
			}
		}
	}
	for _, word := range pageForeign {
		if !used[word] {
			t.Errorf("%s is not on the page any more", word)
		}
	}
}

func TestCausesPageLinks(t *testing.T) {
	page := readPage(t, causesPage)
	_, anchors := pageSections(page)
	for i, line := range strings.Split(page, "\n") {
		for _, l := range pageLink.FindAllStringSubmatch(line, -1) {
			file, anchor, _ := strings.Cut(l[2], "#")
			switch {
			case strings.HasPrefix(file, "https://"):
				continue
			case file == "":
				if !anchors[anchor] {
					t.Errorf("line %d: no heading has the anchor #%s", i+1, anchor)
				}
				continue
			}
			text, err := os.ReadFile(filepath.Join(filepath.Dir(causesPage), filepath.FromSlash(file)))
			if err != nil {
				t.Errorf("line %d: %v", i+1, err)
				continue
			}
			if _, there := pageSections(string(text)); anchor != "" && !there[anchor] {
				t.Errorf("line %d: no heading of %s has the anchor #%s", i+1, file, anchor)
			}
		}
	}
}

func TestCausesPageVariables(t *testing.T) {
	used := map[string]bool{}
	for i, line := range strings.Split(readPage(t, causesPage), "\n") {
		for _, name := range pageVariable.FindAllString(line, -1) {
			used[name] = true
			known := slices.ContainsFunc(frameworks.Variables(), func(v frameworks.Variable) bool { return v.Name == name })
			if _, other := pageVariables[name]; !known && !other && !pageStatus.MatchString(name) {
				t.Errorf("line %d: %s is a variable of nobody", i+1, name)
			} else if known && other {
				t.Errorf("package policy knows %s: no exception is needed", name)
			}
		}
	}
	for name := range pageVariables {
		if !used[name] {
			t.Errorf("%s is not on the page any more", name)
		}
	}
}

// TestCausesPageRules: what the page must never tell.
func TestCausesPageRules(t *testing.T) {
	code := false
	for i, line := range strings.Split(readPage(t, causesPage), "\n") {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		message := strings.Contains(line, "ValueError:") || strings.HasPrefix(line, "| both fraction names")
		if !message && strings.Contains(line, "XLA_CLIENT_MEM_FRACTION=") && strings.Contains(line, "XLA_PYTHON_CLIENT_MEM_FRACTION=") {
			t.Errorf("line %d sets both names of the fraction", i+1)
		}
		if code && strings.HasPrefix(line, "TF_GPU_ALLOCATOR=") {
			t.Errorf("line %d recommends TF_GPU_ALLOCATOR without saying for whom", i+1)
		}
	}
}

// TestDoctorPageIsShort: 600 words of prose, besides the examples.
func TestDoctorPageIsShort(t *testing.T) {
	words, code := 0, false
	for line := range strings.Lines(readPage(t, "../docs/doctor.md")) {
		switch {
		case strings.HasPrefix(line, "```"):
			code = !code
		case !code:
			words += len(pageWord.FindAllString(line, -1))
		}
	}
	if words > 600 {
		t.Errorf("%d words", words)
	}
}

func TestPageSlug(t *testing.T) {
	for _, tt := range []struct{ heading, want string }{
		{"pool_limit", "pool_limit"},
		{"Free is low: that proves nothing", "free-is-low-that-proves-nothing"},
		{"`XLA_CLIENT_MEM_FRACTION`", "xla_client_mem_fraction"},
	} {
		if got := pageSlug(tt.heading); got != tt.want {
			t.Errorf("pageSlug(%q) = %q, want %q", tt.heading, got, tt.want)
		}
	}
}
