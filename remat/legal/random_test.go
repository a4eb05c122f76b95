package legal_test

import (
	"flag"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/cost"
	"gpumem/internal/test/remattest"
	"gpumem/remat/gap"
	"gpumem/remat/host"
	"gpumem/remat/legal"
	"gpumem/remat/xla"
)

var modules = flag.Int("modules", 500, "random modules to plan for")

// TestPlansOfRandomModulesAreLegal fails if a planner makes a module that the checker refuses:
// then one of the two is wrong.
func TestPlansOfRandomModulesAreLegal(t *testing.T) {
	checks := flag.Lookup("rapid.checks")
	defer flag.Set("rapid.checks", checks.Value.String())
	flag.Set("rapid.checks", strconv.Itoa(*modules))
	n, refused := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		m := remattest.Parsed(t, text)
		limit := remattest.TempPeak(t, m) * uint64(rapid.IntRange(20, 95).Draw(t, "percent")) / 100
		for name, plan := range map[string]func(*hlo.Module) error{
			"gap": func(m *hlo.Module) error {
				_, err := gap.Run(m, gap.Options{Limit: limit, Seconds: remattest.BySize})
				return err
			},
			"xla": func(m *hlo.Module) error { _, err := xla.Run(m, xla.Options{Limit: limit}); return err },
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
			o := legal.Options{Collectives: name == "xla"}
			if err := o.Check(m, after); err != nil {
				// XLA's pass asks for no deadlines, so that its plan may be refused.
				if name == "xla" && strings.Contains(err.Error(), "has overwritten") {
					refused++
					continue
				}
				t.Fatalf("%s: %v\n%s\n%s", name, err, m, after)
			}
			n++
		}
	})
	t.Logf("%d legal plans, %d of XLA's pass refused", n, refused)
}
