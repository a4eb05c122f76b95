package logs

// Where the recorded blocks lay: the addresses of every format
// that has them, in memory and in the temporary file.

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

// addresses lists those of a pool, a dash for an event without one.
func addresses(t *testing.T, p *tape.Pool) string {
	t.Helper()
	all, err := tracetest.PlacesOf(p, tracetest.Events(t, p, 100))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, addr := range all {
		if addr == 0 {
			out = append(out, "-")
			continue
		}
		out = append(out, fmt.Sprintf("%x", addr))
	}
	return strings.Join(out, " ")
}

func TestPlacesOfFormats(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"text has none", "a 1 5\nf 1\n", "- -"},
		{"memdebug, after an older block and a refusal",
			memLine("", "AllocateRaw,x,5,0") + memLine("", "AllocateRaw,x,5,0x100") + memLine("", "DeallocateRaw,x,5,0x900") + memLine("", "AllocateRaw,x,6,0x200"),
			"- - 100 - 200"},
		{"rmm", rmmHeader + "\n7,12:00:00,allocate,0x300,5,0\n7,12:00:00,free,0x300,5,0\n7,12:00:00,allocate,0x100,5,0\n", "300 - 100"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := mustRead(t, []byte(c.in), tape.Options{})
			if d := cmp.Diff(c.want, addresses(t, tr.Pools[0])); d != "" {
				t.Error(d)
			}
			if err := tracetest.CheckTrace(tr); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPlacesInTheFileAreThoseInMemory: more places than a block holds, with gaps.
func TestPlacesInTheFileAreThoseInMemory(t *testing.T) {
	var in strings.Builder
	want := []uint64{}
	for i := range uint64(40_000) {
		addr := uint64(0x7f00_0000_0000) + i*i*256
		fmt.Fprint(&in, memLine("", fmt.Sprintf("AllocateRaw,x,5,%#x", addr)))
		want = append(want, addr)
		if i%1000 == 0 {
			fmt.Fprint(&in, memLine("", "AllocateRaw,x,5,0"))
			want = append(want, 0)
		}
	}
	for _, limit := range []int{0, 1000} {
		tr := mustRead(t, []byte(in.String()), tape.Options{Format: "memdebug", SpoolLimit: limit, TempDir: t.TempDir()})
		got, err := tracetest.PlacesOf(tr.Pools[0], tracetest.Events(t, tr.Pools[0], 100))
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) || tr.Pools[0].Placed != 40_000 {
			t.Errorf("limit %d: the addresses differ; %d of them", limit, tr.Pools[0].Placed)
		}
	}
}
