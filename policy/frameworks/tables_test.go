// Tests against the frameworks themselves: the tables in testdata were made by
// asking real releases, and every row must come out the same here.

package frameworks

import (
	"bufio"
	"fmt"
	"math"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gpumem/internal/test/envtest"
	"gpumem/policy"
	"gpumem/policy/internal/literal"
)

// readAs is what a release of a framework makes of an environment on a device.
// The error is the zero one if nothing is raised.
func readAs(t *testing.T, name, release string, env policy.Environment, d policy.Device) (policy.Reading, policy.SettingError) {
	t.Helper()
	f, v, err := Release{Name: name, Version: release}.Find()
	if err != nil {
		t.Fatal(err)
	}
	env.NoPages = d.NoPages
	r, raised := f.Read(env, v)
	if raised != nil {
		return policy.Reading{}, *raised
	}
	return r, policy.SettingError{}
}

// A tableRow is one answer: what some releases make of an environment.
type tableRow struct {
	line     int
	env      policy.Environment
	releases []string // that were asked and gave this answer
	who      string   // which function was asked
	raises   string   // the exception's type; "" if there was none
	text     string   // its text
	values   map[string]string
}

// readTable reads a table of environments. An answer holds what is not as in
// the answer to the empty environment; here it is put together again.
func readTable(t *testing.T, path string) []tableRow {
	t.Helper()
	f, err := os.Open(filepath.FromSlash(path))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var (
		releases []string
		rows     []tableRow
		env      policy.Environment
		envs     int
		base     = map[string]map[string]string{} // by release and who
	)
	in := bufio.NewScanner(f)
	in.Buffer(nil, 1<<20)
	for n := 1; in.Scan(); n++ {
		line := in.Text()
		switch {
		case strings.HasPrefix(line, "# asked"):
			_, list, _ := strings.Cut(line, ": ")
			releases = append(releases, strings.Fields(list)...)
		case strings.HasPrefix(line, "#"), line == "":
		case strings.HasPrefix(line, "env"):
			env = envtest.Environ(t, strings.TrimPrefix(line, "env"))
			envs++
		default:
			span, rest, _ := strings.Cut(strings.TrimLeft(line, " "), " ")
			who, answer, _ := strings.Cut(rest, " ")
			from, to, many := strings.Cut(span, "..")
			if !many {
				to = from
			}
			i, j := slices.Index(releases, from), slices.Index(releases, to)
			if i < 0 || j < i {
				t.Fatalf("%s:%d: releases %s", path, n, span)
			}
			r := tableRow{line: n, env: env, who: who}
			own := map[string]string{}
			if kind, text, ok := strings.Cut(strings.TrimPrefix(answer, "! "), " "); ok && strings.HasPrefix(answer, "! ") {
				r.raises = kind
				if r.text, err = strconv.Unquote(text); err != nil {
					t.Fatalf("%s:%d: %v", path, n, err)
				}
			} else if answer != "same" && answer != "" {
				for name, value := range envtest.Assignments(t, answer) {
					own[name] = value
				}
			}
			for _, release := range releases[i : j+1] {
				each := r
				each.releases = []string{release}
				key := release + " " + who
				if envs == 1 {
					base[key] = own
				}
				each.values = map[string]string{}
				for _, m := range []map[string]string{base[key], own} {
					for name, value := range m {
						each.values[name] = value
					}
				}
				rows = append(rows, each)
			}
		}
	}
	if err := in.Err(); err != nil || len(rows) == 0 {
		t.Fatalf("%s: %d rows, %v", path, len(rows), err)
	}
	t.Logf("%s: %d environments, %d releases, %d answers", path, envs, len(releases), len(rows))
	return rows
}

// tableText is a value as the tables have it.
func tableText(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case float64:
		return pyFloatRepr(v)
	case bool, int64:
		return fmt.Sprint(v)
	case *big.Int:
		return v.String()
	case []int64:
		var list []string
		for _, n := range v {
			list = append(list, strconv.FormatInt(n, 10))
		}
		return "[" + strings.Join(list, ",") + "]"
	}
	return fmt.Sprintf("%T", v)
}

// pyFloatRepr writes a float so that equal ones are equal texts.
func pyFloatRepr(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// sameValue compares a table's value with ours; floats by value.
func sameValue(table, ours string, v any) bool {
	if f, ok := v.(float64); ok {
		want, ok := literal.PyFloat(table)
		return ok && (want == f && math.Signbit(want) == math.Signbit(f) || math.IsNaN(want) && math.IsNaN(f))
	}
	return table == ours
}

// TestJAXOptions: what generate_pjrt_gpu_plugin_options returns or raises, in
// every release that could be asked.
func TestJAXOptions(t *testing.T) {
	asked := 0
	for _, row := range readTable(t, "testdata/jax/options.txt") {
		_, v, err := Release{"jax", row.releases[0]}.Find()
		if err != nil {
			t.Fatal(err)
		}
		r := jaxReleases().At(v)
		where := fmt.Sprintf("options.txt:%d: %s %s", row.line, row.releases[0], row.who)
		if strings.Contains(row.text, `\U00011f51`) || strings.Contains(row.text, `\U0001fae8`) || strings.Contains(row.text, `\U00011f53`) {
			continue // letters of Unicode 15, which Python 3.11 does not know: not JAX's doing
		}
		options, raised := jaxOptions(row.env, r)
		if t.Failed() {
			t.Fatal("the first that differs")
		}
		asked++
		if (raised != nil) != (row.raises != "") || raised != nil && raised.Text != row.text {
			t.Errorf("%s: raises %v, want %s %q", where, raised, row.raises, row.text)
			continue
		}
		if raised != nil {
			continue
		}
		if row.who == "client" {
			checkClient(t, where, row.values, r.asked(options), &r)
			continue
		}
		delete(row.values, "platform_name") // which says nothing
		if len(options) != len(row.values) {
			t.Errorf("%s: %v, want %v", where, options, row.values)
		}
		for _, o := range options {
			if want, ok := row.values[o.Name]; !ok || !sameValue(want, tableText(o.Value), o.Value) {
				t.Errorf("%s: %s=%v, want %q", where, o.Name, o.Value, want)
			}
		}
	}
	t.Logf("%d answers", asked)
}

// checkClient compares with what make_gpu_client hands to XLA, in the releases
// whose XLA is in jaxlib.
func checkClient(t *testing.T, where string, want map[string]string, a asked, r *jaxRelease) {
	t.Helper()
	if !strings.EqualFold(want["kind"], a.allocator) {
		t.Errorf("%s: kind %s, want %s", where, a.allocator, want["kind"])
	}
	fraction, set := want["memory_fraction"]
	if set != a.fractionSet || set && !r.Float32 && !sameValue(fraction, "", a.fraction) {
		t.Errorf("%s: fraction %v, want %s", where, a.fraction, fraction)
	}
	if pre := want["preallocate"] != "false"; pre != a.preallocate {
		t.Errorf("%s: preallocate %v, want %v", where, a.preallocate, pre)
	}
	if n, set := want["collective_memory_size"]; set && len(n) < 19 && n != strconv.FormatInt(a.collective, 10) {
		t.Errorf("%s: collective %d, want %s", where, a.collective, n)
	}
}

// TestJAXCreateOptions: what the options are after jax/_src/xla_bridge.py has
// laid JAX_PJRT_CLIENT_CREATE_OPTIONS over them.
func TestJAXCreateOptions(t *testing.T) {
	asked := 0
	for _, row := range readTable(t, "testdata/jax/bridge.txt") {
		v, err := policy.ParseVersion(row.releases[0], "JAX", "")
		if err != nil {
			t.Fatal(err)
		}
		r := jaxReleases().At(v)
		flags := slices.ContainsFunc(row.env.Names(), func(name string) bool { return strings.ToUpper(name) != name })
		if row.who != "cuda" || v.Less(policy.Version{0, 4, 30}) || flags { // set in code, not by the environment
			continue
		}
		asked++
		where := fmt.Sprintf("bridge.txt:%d: %s", row.line, row.releases[0])
		options, raised := jaxOptions(row.env, r)
		if raised == nil {
			options, raised = createOptions(row.env, options)
		}
		if (raised != nil) != (row.raises != "") || raised != nil && raised.Text != row.text {
			t.Errorf("%s: raises %v, want %s %q", where, raised, row.raises, row.text)
			continue
		}
		delete(row.values, "platform_name")
		for _, o := range options {
			want, ok := row.values[o.Name]
			if delete(row.values, o.Name); o.Name != "platform_name" && (!ok || !sameValue(want, tableText(o.Value), o.Value)) {
				t.Errorf("%s: %s=%v, want %q", where, o.Name, o.Value, want)
			}
		}
		delete(row.values, "enable_mock_nccl") // false, unless a flag says otherwise
		if raised == nil && len(row.values) > 0 {
			t.Errorf("%s: without %v", where, row.values)
		}
	}
	t.Logf("%d answers", asked)
}
