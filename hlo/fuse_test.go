package hlo_test

import (
	"path/filepath"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"gpumem/hlo"
	"gpumem/hlo/verify"
	"gpumem/internal/test/hlointerp"
	"gpumem/internal/test/remattest"
	"gpumem/remat/gap"
)

func TestFuse(t *testing.T) {
	m := remattest.Parsed(t, remattest.Layers(4, true))
	n, err := hlo.Fuse(m)
	if err != nil || n == 0 {
		t.Fatal(n, err)
	}
	after := remattest.Written(t, m)
	if got := strings.Count(after.String(), " fusion("); got != n {
		t.Errorf("%d fusions, and %d are told", got, n)
	}
	before := remattest.Parsed(t, remattest.Layers(4, true))
	remattest.Same(t, before, after)
	if was, now := remattest.TempPeak(t, before), remattest.TempPeak(t, after); now > was {
		t.Errorf("%d bytes before, and %d after", was, now)
	}
}

// TestFuseRandom: the results are the same to the bit, also after a plan on what
// was fused.
func TestFuseRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := remattest.Random(t)
		if rapid.Bool().Draw(t, "training") {
			text = remattest.Layers(rapid.IntRange(1, 6).Draw(t, "layers"), true)
		}
		before, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		m, err := hlo.ParseString(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := hlo.Fuse(m); err != nil {
			t.Fatal(err)
		}
		if rapid.Bool().Draw(t, "plan") {
			if _, err := gap.Run(m, gap.Options{Limit: uint64(rapid.IntRange(0, 20_000).Draw(t, "limit")), Seconds: remattest.BySize}); err != nil {
				t.Fatal(err)
			}
		}
		if err := verify.Module(m); err != nil {
			t.Fatalf("%v\n%s\n%s", err, text, m)
		}
		after, err := hlo.ParseString(m.String())
		if err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		args, err := hlointerp.Arguments(before, 1)
		if err != nil {
			t.Fatal(err)
		}
		x, err := hlointerp.Run(before, args, hlointerp.Options{Work: 1 << 22})
		if err != nil {
			return // what the interpreter cannot run, such as a loop without end
		}
		y, err := hlointerp.Run(after, args, hlointerp.Options{Work: 1 << 22})
		if err != nil {
			t.Fatalf("%v\n%s", err, m)
		}
		if !hlointerp.Equal(x, y) {
			t.Errorf("the results differ\n%s\n%s", text, m)
		}
	})
}

func TestFuseReal(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped: long")
	}
	for _, file := range remattest.Real(t) {
		name := strings.TrimSuffix(filepath.Base(file), ".hlo.gz")
		t.Run(name, func(t *testing.T) {
			m := remattest.Read(t, file)
			was, n := remattest.TempPeak(t, m), m.Instructions()
			made, err := hlo.Fuse(m)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%d fusions, %d instructions of %d in the entry; peak %.3f of what it was", made, len(m.Entry.Instructions), n, float64(remattest.TempPeak(t, remattest.Written(t, m)))/float64(was))
		})
	}
}
