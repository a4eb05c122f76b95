// The documentation of all settings, docs/settings.md, made of the tables that
// the readers themselves go by, and tests of it: the file is what the tables say,
// and its links lead somewhere. -update writes the file.

package explain

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/policy/frameworks"
)

var update = flag.Bool("update", false, "write docs/settings.md anew")

func TestDocumentation(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "settings.md")
	got := Documentation()
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v (go test ./policy/explain -update writes it)", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("other than %s, which go test ./policy/explain -update writes anew (-file +tables):\n%s", path, diff)
	}
}

// TestDocumentationSays: every variable, release and reader is there.
func TestDocumentationSays(t *testing.T) {
	text := Documentation()
	for _, v := range frameworks.Variables() {
		if strings.Count(text, "### `"+v.Name+"`\n") != 1 {
			t.Errorf("%s has no heading, or several", v.Name)
		}
	}
	for _, f := range frameworks.All {
		for _, c := range f.Changes() {
			if !strings.Contains(text, "| "+c.Version+" | "+c.Date+" | "+c.Text+" | ") {
				t.Errorf("%s %s is not there", f.Title, c.Version)
			}
		}
		if !strings.Contains(text, "- "+f.Title+": "+f.When+".\n") {
			t.Errorf("when %s reads is not there", f.Title)
		}
	}
}

var (
	links    = regexp.MustCompile(`\]\(([^)]+)\)`)
	headings = regexp.MustCompile(`(?m)^#+ (.+)$`)
)

// TestDocumentationLinks: every link leads to a heading of the page, in the
// form that GitHub gives it, or to a file.
func TestDocumentationLinks(t *testing.T) {
	text := Documentation()
	anchors := map[string]bool{}
	for _, h := range headings.FindAllStringSubmatch(text, -1) {
		anchor := strings.ToLower(strings.NewReplacer("`", "", " ", "-", "'", "", ":", "").Replace(h[1]))
		if anchors[anchor] {
			t.Errorf("two headings %q", h[1])
		}
		anchors[anchor] = true
	}
	found := links.FindAllStringSubmatch(text, -1)
	if len(found) < 5 {
		t.Errorf("only %d links", len(found))
	}
	for _, m := range found {
		if anchor, ok := strings.CutPrefix(m[1], "#"); ok {
			if !anchors[anchor] {
				t.Errorf("no heading for %s", m[0])
			}
		} else if _, err := os.Stat(filepath.Join("..", "..", "docs", m[1])); err != nil {
			t.Errorf("%s: %v", m[0], err)
		}
	}
}

// TestDocumentationReads: no table is too wide and no cell is broken.
func TestDocumentationReads(t *testing.T) {
	columns := 0
	for i, line := range strings.Split(Documentation(), "\n") {
		if !strings.HasPrefix(line, "|") {
			columns = 0
			if len(line) > 900 {
				t.Errorf("line %d has %d letters: %.60s...", i+1, len(line), line)
			}
			continue
		}
		n := strings.Count(line, "|")
		if columns == 0 {
			columns = n
		}
		if n != columns || n > 6 {
			t.Errorf("line %d has %d columns, the first of the table %d: %s", i+1, n-1, columns-1, line)
		}
	}
}

// sections are the readers, in the order of the documentation, each with what
// is to be said first.
var sections = []struct{ name, title, text string }{
	{"jax", "JAX", "JAX's Python reads the first ones and passes options to XLA, which reads the rest itself. A text that Python refuses is only logged: **the program then runs on the CPU**, or stops if `JAX_PLATFORMS=cuda` is set."},
	{"gpumem", "gpumem", "The policy `env` reads what the newest JAX reads, and honours [`TF_GPU_ALLOCATOR`](#tf_gpu_allocator) and [`TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC`](#tf_cuda_malloc_async_supported_prealloc) as JAX's documentation describes them."},
	{"tensorflow", "TensorFlow", "Most memory settings are the program's (`tf.config`, `GPUOptions`). The variables go before them where both say something."},
	{"pytorch", "PyTorch", "One list of `key:value` with three names. A program can set a list at run time (`torch.cuda.memory._set_allocator_settings`, `torch._C._accelerator_setAllocatorSettings`). **That resets others**: `max_split_size_mb`, `garbage_collection_threshold`, `roundup_power2_divisions` and `max_non_split_rounding_mb` are back at their defaults unless the new list names them, too. The others stay as they were. Known from: PyTorch 2.11.0, asked; `parseArgs` in c10/core/AllocatorConfig.cpp."},
	{"cupy", "CuPy", "Most settings are the program's (`cupy.get_default_memory_pool().set_limit`, `cupy.cuda.set_allocator`)."},
	{"driver", "Driver and NVIDIA's libraries", "These hold for every framework."},
	{"nobody", "No framework", "Their names look right, and nothing reads them."},
}

const introduction = `# Settings: which variable does what

GPU memory is mostly set by environment variables, and most of them fail silently: a wrong name, a value that is not recognised or a variable of another framework changes nothing, without a message. ` + "`gpumem explain`" + ` reads an environment as a given release does and names each of these. This page has everything it knows.

- **Who reads.** Each framework reads its own variables. JAX and TensorFlow share a few whose names begin with ` + "`TF_`" + `, because both contain XLA. Those of NVIDIA's driver hold for every framework.
- **When.** Once, when the program first uses a GPU or before. What comes later has no effect: ` + "`os.environ[...] = ...`" + ` below the first use, a cell of a notebook that already ran one, ` + "`export`" + ` in another shell. Set variables before the program starts; in Python, above the first ` + "`import`" + ` of the framework.
`

const caseCounts = "- **How.** Case counts in names. `NAME= program` sets an empty value, which is not always the same as none.\n"

// Documentation is docs/settings.md: what to set for what, every entry of
// [Variables], and what each known release of each framework changed.
func Documentation() string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, f := range frameworks.All {
		fmt.Fprintf(&b, "  - %s: %s.\n", f.Title, f.When)
	}
	b.WriteString(caseCounts)
	writeGoals(&b)
	for _, s := range sections {
		writeSection(&b, s.name, s.title, s.text)
	}
	writeEngines(&b)
	for _, f := range frameworks.All {
		if len(f.Changes()) > 0 {
			writeReleases(&b, f)
		}
	}
	return b.String()
}

// engines are the settings of engines that serve models, which are flags and no variables. They
// size what lies inside of the framework's pool, so explain has nothing to say of them.
var engines = []struct{ engine, setting, effect, source string }{
	{"vLLM", "`--gpu-memory-utilization`", "The part of the total that weights, activations and KV cache may fill. 0.9; 0.92 since 2026-04", "vllm/config/cache.py; vllm-project/vllm#38284"},
	{"vLLM", "`--kv-cache-memory-bytes`", "The KV cache of each GPU in bytes. `--gpu-memory-utilization` is then ignored", "vllm/config/cache.py"},
	{"vLLM", "`--enable-sleep-mode`", "`POST /sleep?level=1` moves the weights to the host and drops the KV cache, `level=2` drops both, `POST /wake_up` brings them back; the server has these with `VLLM_SERVER_DEV_MODE=1`. " +
		"The CUDA context stays. Beside `expandable_segments:True` an assertion fails", "vLLM's page on sleep mode; vllm/device_allocator/cumem.py; pytorch/pytorch#147851"},
	{"SGLang", "`--mem-fraction-static`", "The part of the memory for weights and KV cache; the rest is for activations and CUDA graphs", "SGLang's page on server arguments"},
	{"TensorRT-LLM", "`KvCacheConfig.free_gpu_memory_fraction`, `trtllm-serve --kv_cache_free_gpu_memory_fraction`", "The part of what is **free** once the weights are loaded that the KV cache takes, not of the total. 0.9. " +
		"With `max_tokens` the smaller of both counts", "TensorRT-LLM's pages on KvCacheConfig and memory usage"},
}

func writeEngines(b *strings.Builder) {
	b.WriteString("\n## Engines that serve models\n\nThese have flags of their own beside the settings of PyTorch, on which they are built. " +
		"`gpumem explain` does not read them.\n\n| engine | setting | effect | known from |\n| --- | --- | --- | --- |\n")
	for _, e := range engines {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", e.engine, e.setting, e.effect, e.source)
	}
}

// writeGoals writes what to set in each framework for the same thing.
func writeGoals(b *strings.Builder) {
	columns := []string{"jax", "tensorflow", "pytorch", "cupy"}
	b.WriteString("\n## The same thing in each framework\n\nIn the newest release of each; older ones may want another name, see below. The policy `env` goes by JAX's.\n\n| to")
	for _, name := range columns {
		b.WriteString(" | " + titles[name])
	}
	b.WriteString(" |\n|" + strings.Repeat(" --- |", len(columns)+1) + "\n")
	for _, g := range goals() {
		b.WriteString("| " + g.title)
		for _, name := range columns {
			way := wayTo(g.name, frameworks.Release{Name: name})
			cell := way.instead
			if way.set != "" {
				cell = "`" + example(g.name).fill(way.set) + "`"
			}
			b.WriteString(" | " + cell)
		}
		b.WriteString(" |\n")
	}
}

// example is how much the table's titles speak of.
func example(g string) want {
	if g == "pinned" {
		return want{g, 64}
	}
	return want{g, 0.5}
}

// writeSection writes the variables that bear a reader's name, and the names of
// those which it also reads.
func writeSection(b *strings.Builder, name, title, text string) {
	fmt.Fprintf(b, "\n## %s\n\n%s\n", title, text)
	var own, more []frameworks.Variable
	for _, v := range frameworks.Variables() {
		switch i := slices.IndexFunc(v.Readers, func(r frameworks.Reader) bool { return r.Framework == name }); {
		case i == 0:
			own = append(own, v)
		case i > 0:
			more = append(more, v)
		}
	}
	if len(more) > 0 && name != "gpumem" { // whose are named in the text
		b.WriteString("\nIt also reads, listed elsewhere on this page:")
		for i, v := range more {
			separator := " "
			if i > 0 {
				separator = ", "
			}
			b.WriteString(separator + link(v) + readSince(v, name))
		}
		b.WriteString(".\n")
	}
	for _, v := range own {
		writeVariable(b, v)
	}
}

// readSince is " (since 0.4.32)" for one reader, or nothing.
func readSince(v frameworks.Variable, framework string) string {
	for _, r := range v.Readers {
		if r.Framework == framework && r.Since != "" {
			return " (since " + r.Since + ")"
		}
	}
	return ""
}

// link is a link to a variable's own heading.
func link(v frameworks.Variable) string {
	return "[`" + v.Name + "`](#" + strings.ToLower(v.Name) + ")"
}

func writeVariable(b *strings.Builder, v frameworks.Variable) {
	fmt.Fprintf(b, "\n### `%s`\n\n%s\n\n", v.Name, v.Effect)
	if v.Not != "" {
		fmt.Fprintf(b, "*But:* %s\n\n", v.Not)
	}
	var readers []string
	for _, r := range v.Readers {
		readers = append(readers, titles[r.Framework]+readSince(v, r.Framework))
	}
	fmt.Fprintf(b, "- Values: %s. Default: %s.\n", v.Values, v.Default)
	fmt.Fprintf(b, "- Read by %s.\n", strings.Join(readers, ", "))
	fmt.Fprintf(b, "- Known from: %s.\n", v.Source)
}

// writeReleases writes what changed in a framework, the newest first.
func writeReleases(b *strings.Builder, f frameworks.Framework) {
	fmt.Fprintf(b, "\n## What releases of %s changed\n\n", f.Title)
	fmt.Fprintf(b, "The newest that was examined is %s; newer ones are read as that one.\n\n", f.Newest)
	b.WriteString("| release | date | change | known from |\n| --- | --- | --- | --- |\n")
	for _, c := range slices.Backward(f.Changes()) {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Version, c.Date, c.Text, c.Source)
	}
}
