package remat

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"testing"

	"gpumem/xla/internal/cost"
	"gpumem/xla/internal/hlo"
	"gpumem/xla/internal/test/remattest"
)

func ExampleRun() {
	m, err := hlo.ParseString(`HloModule late, is_scheduled=true

ENTRY main {
  x = f32[] parameter(0)
  saved = f32[1024] broadcast(x), dimensions={}
  a = f32[1024] exponential(saved)
  b = f32[2048] concatenate(a, a), dimensions={0}
  c = f32[1024] slice(b), slice={[0:1024]}
  d = f32[1024] add(saved, c)
  ROOT sum = f32[1] slice(d), slice={[0:1]}
}
`)
	if err != nil {
		fmt.Println(err)
		return
	}
	a, err := Run(context.Background(), m, Request{
		Algorithm: "gap",
		Limit:     Percent(80),
		Rates:     cost.Rates{Bytes: 3e12, Flops: 4e14},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%d bytes become %d at %.1f %% more compute\n", a.Before, a.After, a.Extra)
	for _, i := range a.Module.Entry.Instructions {
		fmt.Println(" ", i.Name)
	}
	// Output:
	// 16384 bytes become 12288 at 8.3 % more compute
	//   x
	//   saved
	//   a
	//   b
	//   c
	//   saved.remat
	//   d
	//   sum
}

// TestRun: the module stays as it is, whatever is asked for, and the answer says what the
// plan is measured at.
func TestRun(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(8, true))
	before := m.String()
	rates := cost.Rates{Bytes: 1e9, Flops: 1e9}
	for _, r := range []Request{
		{Algorithm: "gap", Limit: Percent(60), Rates: rates, Frontier: 20},
		{Algorithm: "gap", Limit: Percent(80), Rates: rates, Packed: true},
		{Algorithm: "xla", Limit: Bytes(4 << 10), Rates: rates, Fuse: true},
		{Algorithm: "off", Limit: Percent(60), Rates: rates, Marks: []*regexp.Regexp{regexp.MustCompile("layer_1")}},
		{Algorithm: "xla", Rates: rates, Frontier: 20},
	} {
		a, err := Run(t.Context(), m, r)
		if err != nil {
			t.Fatal(err)
		}
		if m.String() != before {
			t.Fatalf("%+v changed the module", r)
		}
		if (len(a.Frontier) > 0) != (r.Frontier > 0) || (len(a.Marked) > 0) != (len(r.Marks) > 0) {
			t.Errorf("%+v: %+v", r, a)
		}
		if r.Limit == nil {
			continue
		}
		if got := remattest.TempPeak(t, a.Module); got != a.After {
			t.Errorf("%+v: %d bytes, and the answer has %d", r, got, a.After)
		}
		remattest.Same(t, m, a.Module)
	}
}

func TestRunErrors(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(2, true))
	if _, err := Run(t.Context(), m, Request{Algorithm: "best", Rates: DefaultRates}); err == nil {
		t.Error("an unknown algorithm has a plan")
	}
	if _, err := Run(t.Context(), m, Request{Algorithm: "off", Marks: []*regexp.Regexp{regexp.MustCompile("nobody")}, Rates: DefaultRates}); !errors.Is(err, ErrNoMatch) {
		t.Errorf("a pattern that matches nothing: %v", err)
	}
	broken := remattest.Parsed(t, remattest.Layers(2, true))
	broken.Entry.Instructions = broken.Entry.Instructions[1:]
	if _, err := Run(t.Context(), broken, Request{Algorithm: "off", Rates: DefaultRates}); err == nil {
		t.Error("a module without a parameter has a plan")
	}
	done, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Run(done, m, Request{Algorithm: "gap", Frontier: 5, Rates: DefaultRates}); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context is done: %v", err)
	}
}

// TestRunHolds: the answer has the sentence where the limit is missed, and none where it is met.
func TestRunHolds(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(6, true))
	for _, c := range []struct {
		name    string
		percent float64
		want    bool
	}{
		{"met", 90, false},
		{"missed", 1, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, err := Run(t.Context(), m, Request{Algorithm: "gap", Limit: Percent(c.percent), Rates: cost.Rates{Bytes: 3e12, Flops: 4e14}, Advice: true})
			if err != nil {
				t.Fatal(err)
			}
			if a.Met == c.want || (a.Holds != "") != c.want {
				t.Errorf("met %t, %q", a.Met, a.Holds)
			}
		})
	}
}
