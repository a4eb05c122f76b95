package dump_test

// The screen.

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"gpumem/alloc"
	"gpumem/record/dump"
	"gpumem/size"
)

// TestSummaryFits: the fullest screen has 40 lines, none wider than asked.
func TestSummaryFits(t *testing.T) {
	var b strings.Builder
	b.WriteString("Allocator (GPU_0_bfc) ran out of memory trying to allocate 9.00GiB (rounded to 9663676416)requested by op x\n")
	addr := 1 << 20
	rnd := rand.New(rand.NewPCG(1, 1))
	for i := range 500 {
		n := 256 << rnd.IntN(20)
		fmt.Fprintf(&b, "InUse at %x of size %d by op layer%d next 1\n", addr, n, i%40)
		addr += n
		n = 256 << rnd.IntN(20)
		fmt.Fprintf(&b, "Free  at %x of size %d next 1\n", addr, n)
		addr += n
		if i%50 == 49 {
			addr += 4096
			b.WriteString("Free  at z of size 1 next 1\nInUse at 1 of size 0 next 1\nNext region of size 3\n")
		}
	}
	b.WriteString("Sum Total of in-use chunks: 1.00GiB\nTotal bytes in pool: 1 memory_limit_: 99999999999 available bytes: 0\n")
	d := read(t, b.String()+b.String())
	if len(d.Notes) < 4 {
		t.Errorf("notes %q", d.Notes)
	}
	for _, width := range []int{0, 40, 80, 132} {
		for room := range 41 {
			lines := d.Summary(width, room)
			if len(lines) > room {
				t.Errorf("%d lines of %d at width %d:\n%s", len(lines), room, width, strings.Join(lines, "\n"))
			}
			for _, l := range lines {
				if utf8.RuneCountInString(l) > max(width, 40) {
					t.Errorf("width %d: %q", width, l)
				}
			}
			// What was refused, what fills most, where holes are, and a strip of the map.
			text := strings.Join(lines, "\n")
			if room >= 14 && (!strings.Contains(text, "would fit") || !strings.Contains(text, "each") || !strings.Contains(text, "holes of") || !strings.Contains(text, "\n[")) {
				t.Errorf("%d lines at width %d lack a part:\n%s", room, width, text)
			}
		}
	}
}

// TestSummaryNarrow: words behind a sum get a line below, and are not cut.
func TestSummaryNarrow(t *testing.T) {
	d := read(t, "InUse at 1000 of size 1024 next 1\nInUse at 1400 of size 1024 next 2\nSum Total of in-use chunks: 1.50GiB\n")
	for width, want := range map[int]string{80: "100 %  (the dump's sum: 1.50 GiB)", 58: "100 %\n              (the dump's sum: 1.50 GiB)"} {
		if got := strings.Join(d.Summary(width, 40), "\n"); !strings.Contains(got, want) {
			t.Errorf("width %d: %q is not in\n%s", width, want, got)
		}
	}
}

// TestSummarySums: the rows of the table sum to the bytes in use, rounding of
// the printed numbers aside.
func TestSummarySums(t *testing.T) {
	a := fill(t, config{Limit: 1 << 28}, 20_000, 6, small)
	d := read(t, a.Report(alloc.Request{Bytes: 1 << 30}).String())
	var sum, all uint64
	in := false
	for _, l := range d.Summary(80, 40) {
		f := strings.Fields(l)
		switch {
		case strings.Contains(l, "each"):
			in = true
		case in && len(f) > 2:
			n, err := size.Parse(f[0] + f[1])
			if err != nil {
				t.Fatal(err)
			}
			if f[2] == "all" {
				all, in = n, false
				if !strings.Contains(l, "= the dump's sum") {
					t.Error(l)
				}
				continue
			}
			sum += n
		}
	}
	if slack := d.InUse / 50; all == 0 || sum > all+slack || sum+slack < all {
		t.Errorf("rows come to %d, all is %d", sum, all)
	}
}

// TestSummaryText is the whole screen of small dumps.
func TestSummaryText(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"half full", `Allocator (GPU_0_bfc) ran out of memory trying to allocate 3.0KiB (rounded to 3072) from the lower end requested by op ` + `
Next region of size 6144
InUse at 1000 of size 1024 tag lower next 1
Free  at 1400 of size 2048 tag lower next 2
InUse at 1c00 of size 1024 tag lower next 3
Free  at 2000 of size 2048 tag lower next 4
Sum Total of in-use chunks: 2.0KiB
Allocator memory summary: rounded request 3.0KiB, total free in pool 4.0KiB, largest free chunk usable by lower end 2.0KiB, unallocated bytes 2.0KiB, pool size 6.0KiB, pool limit 8.0KiB
`, `GPU_0_bfc: 2 KiB in use (33 %) of 6 KiB, of a limit of 8 KiB
refused: 3 KiB
free: 4 KiB in 2 holes, the largest 2 KiB; fragmentation 50 %
would fit: one block of up to 2 KiB
  the refused one would fit if the free bytes were in one piece
      in use          each      blocks   share
       2 KiB         1 KiB           2   100 %
       2 KiB           all           2   100 %  = the dump's sum
holes of 2 KiB to 4 KiB: 2, 4 KiB
in order of addresses: _ free, . and + below and above half in use, * in use
[****________****________]`},
		{"full", `InUse at 1000 of size 1024 next 1
Sum Total of in-use chunks: 1.0KiB
`, `pool: 1 KiB in use (100 %) of 1 KiB
free: nothing
      in use          each      blocks   share
       1 KiB         1 KiB           1   100 %
       1 KiB           all           1   100 %  = the dump's sum
in order of addresses: _ free, . and + below and above half in use, * in use
[****]`},
		{"sums by size", `Bin (256): Total Chunks: 5, Chunks in use: 3. 1.2KiB allocated for chunks. 768B in use in bin. 700B client-requested in use in bin.
3 Chunks of size 256 totalling 768B
Sum Total of in-use chunks: 768B
`, `pool: 768 B in use
      in use          each      blocks   share
       768 B         256 B           3   100 %
       768 B           all           3   100 %  = the dump's sum
holes of 256 B to 512 B: 2, 460 B
note: The dump has no chunk lines: what is free, and where, is not known.`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := strings.Join(read(t, tc.text).Summary(80, 40), "\n")
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func Example() {
	const log = `
2026-06-01 10:00:00 W Allocator (GPU_0_bfc) ran out of memory trying to allocate 2.0KiB (rounded to 2048)requested by op matmul
2026-06-01 10:00:00 I Next region of size 4096
2026-06-01 10:00:00 I InUse at 7f0000000000 of size 512 next 1
2026-06-01 10:00:00 I Free  at 7f0000000200 of size 1536 next 2
2026-06-01 10:00:00 I InUse at 7f0000000800 of size 512 next 3
2026-06-01 10:00:00 I Free  at 7f0000000a00 of size 1536 next 4
2026-06-01 10:00:00 I Sum Total of in-use chunks: 1.0KiB
`
	d, _, err := dump.ReadLog(strings.NewReader(log))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(d.InUse, d.LargestFree)
	for _, line := range d.Summary(80, 40) {
		fmt.Println(line)
	}
	// Output:
	// 1024 1536
	// GPU_0_bfc: 1 KiB in use (25 %) of 4 KiB
	// refused: 2 KiB by matmul
	// free: 3 KiB in 2 holes, the largest 1.50 KiB; fragmentation 50 %
	// would fit: one block of up to 1.50 KiB
	//   the refused one would fit if the free bytes were in one piece
	//       in use          each      blocks   share
	//        1 KiB         512 B           2   100 %
	//        1 KiB           all           2   100 %  = the dump's sum
	// holes of 1 KiB to 2 KiB: 2, 3 KiB
	// in order of addresses: _ free, . and + below and above half in use, * in use
	// [**______**______]
}

// Free chunks of the bins that are not listed are summed in one line.
func TestSummarySumsTheOtherHoles(t *testing.T) {
	var text strings.Builder
	addr, sum := 0x7f0000000000, 0
	chunk := func(kind string, n int) {
		fmt.Fprintf(&text, "%s at %x of size %d next 1\n", kind, addr, n)
		addr += n
		sum += n
	}
	for _, n := range []int{256 << 10, 256, 128 << 10, 512, 64 << 10, 256, 32 << 10} {
		chunk("Free ", n)
		chunk("InUse", 1024)
	}
	d := read(t, fmt.Sprintf("Next region of size %d\n%sSum Total of in-use chunks: 7.0KiB\n", sum, text.String()))
	if !d.Complete || d.Free() != 481<<10 {
		t.Fatalf("%d bytes are free, notes %q", d.Free(), d.Notes)
	}
	lines := strings.Join(d.Summary(80, 40), "\n")
	for _, want := range []string{"free: 481 KiB in 7 holes, the largest 256 KiB", "holes of 32 KiB to 64 KiB: 1, 32 KiB\nholes elsewhere: 3, 1 KiB\n"} {
		if !strings.Contains(lines, want) {
			t.Errorf("no %q in\n%s", want, lines)
		}
	}
}

// A cell of the map that lacks one chunk of 256 bytes is not shown as full.
func TestMapShowsASmallHole(t *testing.T) {
	const cell, cells = 200 * 256, 3 * 40 // three lines of 40 characters
	d := read(t, fmt.Sprintf(`Next region of size %d
InUse at 7f0000000000 of size 25600 next 2
Free  at 7f0000006400 of size 256 next 3
InUse at 7f0000006500 of size %d next 18446744073709551615
Sum Total of in-use chunks: 5.86MiB
`, cell*cells, cell*cells-25600-256))
	want := []string{"[+" + strings.Repeat("*", 39) + "]", "[" + strings.Repeat("*", 40) + "]", "[" + strings.Repeat("*", 40) + "]"}
	lines := d.Summary(42, 40)
	if at := slices.Index(lines, want[0]); at < 0 || !slices.Equal(lines[at:at+3], want) {
		t.Errorf("no such map in\n%s", strings.Join(lines, "\n"))
	}
}
