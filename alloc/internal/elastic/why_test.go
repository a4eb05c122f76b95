package elastic_test

import (
	"errors"
	"strings"
	"testing"

	"gpumem/alloc"
	"gpumem/alloc/internal/elastic"
	"gpumem/device"
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

// TestWhyAddresses: where addresses are what is missing, the account says so, and only of
// that refusal.
func TestWhyAddresses(t *testing.T) {
	dev := newSim(t, 60)
	dev.OnCall(func(_ uint64, name string, bytes uint64) error {
		if name == "cuMemAddressReserve" && bytes > 256*page {
			return device.ErrOutOfMemory
		}
		return nil
	})
	a := newPool(t, dev, elastic.Config{})
	for range 12 {
		if _, err := a.Alloc(alloc.Request{Bytes: page}); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		name string
		r    alloc.Request
		want string
	}{
		{"no run that it can be aligned in", alloc.Request{Bytes: 40 * page, Align: 128 * page},
			"It needs 40 pages of 2 MiB, and as many are free, but its addresses must be in one piece: of 512 MiB reserved"},
		{"too few pages", alloc.Request{Bytes: 49 * page}, "It needs 49 pages of 2 MiB. Of 60 that may be held, blocks hold 12"},
	} {
		if _, err := a.Alloc(tc.r); !errors.Is(err, alloc.ErrNoMemory) {
			t.Fatalf("%s: %v", tc.name, err)
		}
		if got := a.Why(tc.r, 48*page)[0]; !strings.HasPrefix(got, tc.want) {
			t.Errorf("%s: %s", tc.name, got)
		}
	}
}
