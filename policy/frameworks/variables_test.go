// Tests of the table of variables: nothing that the readers look up is missing
// in it, and every entry is complete.

package frameworks

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/policy"
)

// source parses the package's own files, tests left out.
func source(t *testing.T) []*ast.File {
	t.Helper()
	paths, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// looksLikeVariable is a text that can only be the name of a variable.
var looksLikeVariable = regexp.MustCompile(`^(XLA|JAX|TF|PYTORCH|TORCH|CUPY|CUDA|NVIDIA|CUBLAS|GPUMEM)_[A-Z0-9_]+$`)

// TestEveryVariableThatIsRead: each text in the package's source that looks
// like a variable is one of the table, unless it is no variable.
func TestEveryVariableThatIsRead(t *testing.T) {
	found := 0
	for _, f := range source(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			lit, ok := n.(*ast.BasicLit)
			if !ok || lit.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(lit.Value)
			if err != nil || !looksLikeVariable.MatchString(text) || strings.Contains(text, "MUSA") {
				return true
			}
			found++
			if _, ok := Lookup(text); !ok {
				t.Errorf("%s stands in the source and is not in the table", text)
			}
			return true
		})
	}
	if found < 30 {
		t.Errorf("only %d names found: the test looks in the wrong place", found)
	}
}

// TestVariables: every entry is complete and plain.
func TestVariables(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range Variables() {
		t.Run(v.Name, func(t *testing.T) {
			if seen[v.Name] {
				t.Error("twice")
			}
			seen[v.Name] = true
			if !looksLikeVariable.MatchString(v.Name) {
				t.Error("not a name as the others")
			}
			if len(v.Readers) == 0 {
				t.Error("nobody reads it")
			}
			for i, r := range v.Readers {
				known := func(f Framework) bool { return f.Name == r.Framework }
				if r.Framework != "driver" && r.Framework != "nobody" && !slices.ContainsFunc(All, known) {
					t.Errorf("%q reads it, which is no framework", r.Framework)
				}
				if _, err := policy.ParseVersion(r.Since, "", ""); r.Since != "" && err != nil {
					t.Errorf("since %q: %v", r.Since, err)
				}
				if slices.ContainsFunc(v.Readers[:i], func(other Reader) bool { return other.Framework == r.Framework }) {
					t.Errorf("%s reads it twice", r.Framework)
				}
			}
			for what, text := range map[string]string{"values": v.Values, "default": v.Default, "effect": v.Effect, "source": v.Source} {
				if text == "" {
					t.Errorf("no %s", what)
				}
			}
			for _, sentence := range []string{v.Effect, v.Not} {
				if sentence != "" && !strings.HasSuffix(sentence, ".") {
					t.Errorf("no sentence: %q", sentence)
				}
			}
			for _, part := range []string{v.Values, v.Default, v.Source} {
				if strings.HasSuffix(part, ".") && !strings.HasSuffix(part, "...") {
					t.Errorf("a full stop too many: %q", part)
				}
			}
			for _, text := range []string{v.Values, v.Default, v.Effect, v.Not, v.Source} {
				if strings.Count(text, "`")%2 != 0 || strings.ContainsAny(text, "|\n") {
					t.Errorf("breaks the Markdown: %q", text)
				}
			}
			if len(v.Effect)+len(v.Not) > 600 {
				t.Errorf("%d letters, who reads that?", len(v.Effect)+len(v.Not))
			}
		})
	}
}

// TestSince: the table and the releases' own rows say the same.
func TestSince(t *testing.T) {
	for _, tc := range []struct {
		name string
		read func(jaxRelease) bool
	}{
		{fractionVar, func(r jaxRelease) bool { return r.NewFraction }},
		{collectiveVar, func(r jaxRelease) bool { return r.Collective }},
		{abortVar, func(r jaxRelease) bool { return r.Abort }},
		{tfrtVar, func(r jaxRelease) bool { return r.TFRT }},
	} {
		v, _ := Lookup(tc.name)
		for _, row := range jaxReleases() {
			if got, want := v.ReadAt("jax", row.Version), tc.read(jaxReleases().At(row.Version)); got != want {
				t.Errorf("%s in %s: %v, want %v", tc.name, row.Version, got, want)
			}
		}
	}
}

func TestReadBy(t *testing.T) {
	for _, tc := range []struct {
		variable, framework, version string
		ever, then                   bool
	}{
		{fractionVar, "jax", "0.4.31", true, false},
		{fractionVar, "jax", "0.4.32", true, true},
		{fractionVar, "gpumem", "0", true, true},
		{fractionVar, "tensorflow", "2.15", false, false},
		{oldFractionVar, "jax", "0.1.16", true, true},
		{"CUDA_VISIBLE_DEVICES", "cupy", "1.0", true, true},
		{"TF_GPU_ALLOCATOR", "jax", "0.12.0", false, false},
		{"TF_GPU_ALLOCATOR", "gpumem", "0", true, true},
		{"PYTORCH_ALLOC_CONF", "pytorch", "2.9.1", true, false},
	} {
		v, ok := Lookup(tc.variable)
		at, _ := policy.ParseVersion(tc.version, "", "")
		if !ok || v.ReadBy(tc.framework) != tc.ever || v.ReadAt(tc.framework, at) != tc.then {
			t.Errorf("%s in %s %s: %v, %v", tc.variable, tc.framework, tc.version, v.ReadBy(tc.framework), v.ReadAt(tc.framework, at))
		}
	}
	if _, ok := Lookup("HOME"); ok {
		t.Error("HOME is in the table")
	}
}

// TestReadVariables: what is wrong with the table is said with its line.
func TestReadVariables(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"no readers", "# head\nA_B\n\tvalues: x\n", "variables.txt:2: A_B: want readers, and about, if there, one of devices, host, other"},
		{"about what", "A_B\n\treaders: jax\n\tabout: GPUs\n", "variables.txt:1: A_B: want readers, and about, if there, one of devices, host, other"},
		{"a field misspelt", "A_B\n\treader: jax\n", `variables.txt:2: "reader: jax": want a field of an entry, each at most once, of readers, about, values, default, effect, not, source`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if list, err := readVariables(tc.text); err == nil || err.Error() != tc.want {
				t.Errorf("%v, %v\nwant %s", list, err, tc.want)
			}
		})
	}
}
