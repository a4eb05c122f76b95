package legal_test

import (
	"flag"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/gap"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/host"
	"gpumem/xla/internal/legal"
	"gpumem/xla/internal/mark"
	"gpumem/xla/internal/pass"
	"gpumem/xla/internal/test/remattest"
)

var modules = flag.Int("modules", 500, "random modules to plan for")

// TestPlansOfRandomModulesAreLegal fails if a planner makes a module that the checker refuses:
// then one of the two is wrong.
func TestPlansOfRandomModulesAreLegal(t *testing.T) {
	t.Run("loops and calls", func(t *testing.T) { plansAreLegal(t, remattest.Random, false) })
	t.Run("in place", func(t *testing.T) { plansAreLegal(t, remattest.InPlace, true) })
}

func plansAreLegal(t *testing.T, random func(*rapid.T) string, compiled bool) {
	checks := flag.Lookup("rapid.checks")
	defer flag.Set("rapid.checks", checks.Value.String())
	flag.Set("rapid.checks", strconv.Itoa(*modules))
	n, refused := 0, map[string]int{}
	rapid.Check(t, func(t *rapid.T) {
		text := random(t)
		m := remattest.Parsed(t, text)
		// Only then it is certain that a plan's fault is its own.
		if problem := legal.Overwritten(m); compiled && problem != "" {
			t.Fatalf("the given module: %s\n%s", problem, m)
		}
		percent := uint64(rapid.IntRange(20, 95).Draw(t, "percent"))
		limit := remattest.TempPeak(t, m) * percent / 100
		pattern := rapid.SampledFrom([]string{"[02468]$", "[1-5]", "^w|^v1"}).Draw(t, "pattern")
		for name, plan := range map[string]func(*hlo.Module) error{
			"gap": func(m *hlo.Module) error {
				_, err := gap.Run(m, gap.Options{Limit: limit, Seconds: remattest.BySize})
				return err
			},
			"xla": func(m *hlo.Module) error { _, err := pass.Run(m, pass.Options{Limit: limit}); return err },
			"mark": func(m *hlo.Module) error {
				_, err := mark.Mark(m, regexp.MustCompile(pattern), mark.SaveNothing)
				return err
			},
			"host": func(m *hlo.Module) error {
				prices, err := cost.New(m, cost.Rates{})
				if err != nil {
					return err
				}
				_, err = host.Move(m, limit, &host.Memory{ToHost: 1e12, FromHost: 1e12, Seconds: prices.Seconds})
				return err
			},
		} {
			after := m.Clone()
			if err := plan(after); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			o := legal.Options{Collectives: name == "xla", Loops: name == "mark"}
			if err := o.Check(m, after); err != nil {
				// XLA's pass and marks ask for no deadlines, so that they may be refused.
				if (name == "xla" || name == "mark") && strings.Contains(err.Error(), "has overwritten") {
					refused[name]++
					continue
				}
				t.Fatalf("%s: %v\n%s\n%s", name, err, m, after)
			}
			if n++; compiled && name == "gap" && percent%10 == 0 { // the others have loops without end
				remattest.Same(t, m, after)
			}
		}
	})
	t.Logf("%d legal plans, refused %v", n, refused)
}
