// Tests of CuPy's limit against CuPy itself, by the table in testdata/cupy.

package frameworks

import (
	"math"
	"os"
	"strconv"
	"strings"
	"testing"

	"gpumem/policy"
)

// cupyTotal is the device that the table was made on.
const cupyTotal = 8000000001

// TestCuPyLimits: the limit of the pool, or the exception, in every release
// that was asked.
func TestCuPyLimits(t *testing.T) {
	table, err := os.ReadFile("testdata/cupy/limits.txt")
	if err != nil {
		t.Fatal(err)
	}
	agree, skipped := 0, 0
	var text string
	for i, line := range strings.Split(string(table), "\n") {
		rest, answer := strings.CutPrefix(line, "  ")
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case !answer:
			if text, err = strconv.Unquote(line); err != nil {
				t.Fatal(err)
			}
			continue
		}
		span, said, _ := strings.Cut(rest, " ")
		from, _, _ := strings.Cut(span, "..")
		v, err := policy.ParseVersion(from, "CuPy", "")
		if err != nil {
			t.Fatal(err)
		}
		bytes, fraction, problem := cupyParse(text)
		got, raised := readCuPy(policy.Environ([]string{cupyLimit + "=" + text}), v)
		ok := false
		switch kind, value, _ := strings.Cut(said, " "); {
		case text == "%" && v.Less(policy.Version{8}):
			skipped++ // the words are Python 3.7's, not CuPy's; later ones quote the empty text
			continue
		case kind == "!":
			_, quoted, _ := strings.Cut(value, " ")
			want, err := strconv.Unquote(quoted)
			if err != nil {
				t.Fatal(err)
			}
			ok = raised != nil && raised.Text == want && problem == want
		case kind == "size": // of 13 and later, before its range is looked at
			ok = problem == "" && strconv.FormatUint(bytes, 10) == value || strings.HasSuffix(problem, ": "+value) ||
				value == "18446744073709551616" && strings.Contains(problem, "too large")
		case kind == "fraction": // likewise
			want, err := strconv.ParseFloat(value, 64)
			ok = err == nil && problem == "" && fraction == want || strings.HasSuffix(problem, ": "+value)
		default:
			limit := uint64(0)
			if raised == nil {
				if pools := got.Pools(policy.Device{Total: cupyTotal}); pools[0].Limit != nil {
					limit = *pools[0].Limit
				}
			}
			ok = raised == nil && strconv.FormatUint(limit, 10) == said
		}
		if !ok {
			t.Errorf("limits.txt:%d: %s %q: %d, %v, %q, want %s", i+1, span, text, bytes, fraction, problem, said)
		}
		agree++
	}
	t.Logf("%d answers, %d skipped", agree, skipped)
}

func TestCuPyPolicy(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		v          policy.Version
		limit      uint64
		fraction   float64
		effect     string
		warning    string // with its fix after a bar
	}{
		{"bytes", "1073741824", newestCuPy, 1 << 30, 0, "the pool may take 1 GiB of each GPU", ""},
		{"percent", "50%", newestCuPy, 0, 0.5, "the pool may take 50 % of the GPU's memory", ""},
		{"none", "0", newestCuPy, 0, 0, "no limit, as by default", ""},
		{"no percent", "0%", newestCuPy, 0, 0, "", "0 % is no limit|-CUPY_GPU_MEMORY_LIMIT"},
		{"minus nothing", "-0%", newestCuPy, 0, 0, "", "0 % is no limit|-CUPY_GPU_MEMORY_LIMIT"},
		{"a fraction of a percent", "0.05%", newestCuPy, 0, 0.0005, "", "very little|"},
		{"meant GiB", "8", newestCuPy, 8, 0, "", "8 bytes is very little|"},
		{"before", "50%", policy.Version{6, 7}, 0, 0, "", "only CuPy 7.0 and later do|-CUPY_GPU_MEMORY_LIMIT"},
		{"before, not even a number", "abc", policy.Version{6, 7}, 0, 0, "", "only CuPy 7.0 and later do|-CUPY_GPU_MEMORY_LIMIT"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := readCuPy(policy.Environ([]string{cupyLimit + "=" + tc.text}), tc.v)
			if err != nil {
				t.Fatal(err)
			}
			if want := (policy.Policy{Name: "cupy", Kind: policy.Caching, Limit: tc.limit, Fraction: tc.fraction}); got.Policy != want || math.Signbit(got.Policy.Fraction) {
				t.Errorf("%+v, want %+v", got.Policy, want)
			}
			if tc.effect == "" && len(got.Settings) > 0 || tc.effect != "" && (len(got.Settings) != 1 || !strings.Contains(got.Settings[0].Effect, tc.effect)) {
				t.Errorf("%+v, want %q", got.Settings, tc.effect)
			}
			text, fix, _ := strings.Cut(tc.warning, "|")
			if tc.warning == "" && len(got.Warnings) > 0 || tc.warning != "" && (len(got.Warnings) != 1 || !strings.Contains(got.Warnings[0].Text, text) || got.Warnings[0].Fix != fix) {
				t.Errorf("%+v, want %q", got.Warnings, tc.warning)
			}
		})
	}
	if got, err := readCuPy(policy.Environ(nil), newestCuPy); err != nil || got.Policy != (policy.Policy{Name: "cupy", Kind: policy.Caching}) || len(got.Settings)+len(got.Warnings) > 0 || got.Pools(policy.Device{Total: cupyTotal})[0].Limit != nil {
		t.Errorf("nothing set: %+v, %v", got, err)
	}
}

// TestCuPyFixes: what to set in place of what is refused.
func TestCuPyFixes(t *testing.T) {
	for text, want := range map[string]string{
		"4GB": "4294967296", "1.5GiB": "1610612736", "0.5": "50%", " .25": "25%", "50% ": "50%", "": "-",
		"150%": "", "abc": "", "-1": "", "1e9": "", "3": "no error",
	} {
		_, err := readCuPy(policy.Environ([]string{cupyLimit + "=" + text}), newestCuPy)
		switch got := ""; {
		case err == nil:
			if want != "no error" {
				t.Errorf("%q is no error", text)
			}
		default:
			if got = strings.TrimPrefix(err.Fix, cupyLimit+"="); got == "-"+cupyLimit {
				got = "-"
			}
			if got != want || !strings.Contains(err.Then, "at the first allocation") {
				t.Errorf("%q: %+v, want %q", text, err, want)
			}
		}
	}
}

func FuzzCuPyLimit(f *testing.F) {
	for _, text := range []string{"", "0", "50%", "1_000", "nan%", "-1", "4GB", "\u0661%", "1e999%"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := readCuPy(policy.Environ([]string{cupyLimit + "=" + text}), newestCuPy)
		if err == nil {
			if fraction := got.Policy.Fraction; !(fraction >= 0 && fraction <= 1) {
				t.Fatalf("%+v", got.Policy)
			}
			got.Pools(policy.Device{Total: 1 << 33})
			return
		}
		if fixed, ok := strings.CutPrefix(err.Fix, cupyLimit+"="); ok {
			if _, again := readCuPy(policy.Environ([]string{err.Fix}), newestCuPy); again != nil {
				t.Fatalf("%q is no better: %v", fixed, again)
			}
		}
	})
}
