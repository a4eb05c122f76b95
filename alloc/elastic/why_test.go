package elastic_test

import (
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/elastic"
)

func TestWhy(t *testing.T) {
	dev := newSim(t, 32)
	a := newPool(t, dev, elastic.Config{Limit: 20 * page})
	if _, err := a.Alloc(alloc.Request{Bytes: 15*page + 1<<20}); err != nil {
		t.Fatal(err)
	}
	const pages = "It needs 5 pages of 2 MiB. Of 20 that may be held, blocks hold 16 and 0 are idle; holes do not matter.\n" +
		"In the pages held 31 MiB is live; 1 MiB lies between blocks, for smaller ones."
	for _, tc := range []struct {
		name  string
		bytes uint64
		free  int64
		want  string
	}{
		{"the limit", 4*page + 1, 16 * page, pages + "\nThe device has 32 MiB free, which is 16 of such pages."},
		{"others", 4*page + 1, page, pages + "\nThe device has 2 MiB free, which is 1 of such pages. Others hold what is missing to the limit."},
		{"unknown", 5 * page, -1, pages},
		{"never", 20*page + 1, 0, "It needs 21 pages of 2 MiB, and the limit is 20; no free would help."},
		{"absurd", 1<<64 - 1, 0, "It needs 8796093022208 pages of 2 MiB, and the limit is 20; no free would help."},
	} {
		if got := strings.Join(a.Why(alloc.Request{Bytes: tc.bytes}, tc.free), "\n"); got != tc.want {
			t.Errorf("%s:\n%s\nwant\n%s", tc.name, got, tc.want)
		}
	}
}

// TestWhyAddresses: where pages are free, the account does not say that they are too few.
func TestWhyAddresses(t *testing.T) {
	a := newPool(t, newSim(t, 32), elastic.Config{})
	if _, err := a.Alloc(alloc.Request{Bytes: page}); err != nil {
		t.Fatal(err)
	}
	got := a.Why(alloc.Request{Bytes: 20 * page}, 31*page)
	if !strings.HasPrefix(got[0], "It needs 20 pages of 2 MiB, and as many are free, but its addresses must be in one piece: of 8 GiB reserved") {
		t.Error(got[0])
	}
}
