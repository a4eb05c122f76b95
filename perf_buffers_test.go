package gpumem_test

import (
	"bytes"
	"fmt"
	"testing"

	"gpumem/internal/report"
)

// owners is the table of what a Buffer costs beside a block, and of what looks at
// all that is alive.
func owners(t testing.TB) string {
	best := benchmarks(t, ".", "^Benchmark(Buffer|Collect|Profile)$", "-count", "5", "-benchtime", "200ms")
	ns := func(name string) string {
		v, ok := best[name+" ns/op"]
		if !ok {
			t.Fatalf("no benchmark is called %q: %v", name, best)
		}
		return report.Count(uint64(v + .5))
	}
	tab := report.NewTable("an allocation and its free", ">ns", ">heap allocations", ">bytes")
	for _, row := range [][2]string{
		{"a block", "block"},
		{"a Buffer", "plain"},
		{"with WithLeaks, without stacks", "leaks"},
		{"with WithCollect", "collect"},
		{"with both", "both"},
		{"with WithCollect, dropped instead of freed", "dropped"},
	} {
		key := "Buffer/" + row[1]
		tab.Row(row[0], ns(key), fmt.Sprint(best[key+" allocs/op"]), fmt.Sprint(best[key+" B/op"]))
	}
	var b bytes.Buffer
	tab.WriteTo(&b)
	b.WriteByte('\n')
	all := report.NewTable("what looks at all", ">ns")
	for _, n := range []string{"0", "1000", "100000"} {
		all.Row("a collection, Buffers held: "+n, ns("Collect/"+n))
	}
	all.Row("a profile of 100,000 blocks", ns("Profile"))
	all.WriteTo(&b)
	return b.String()
}
