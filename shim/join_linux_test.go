package shim_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpumem/share/ledger"
	"gpumem/shim"
)

// TestJoin: a process joins the ledger of its GPU, however the UUID is written, with the
// parts of that ledger.
func TestJoin(t *testing.T) {
	const first, second = "GPU-0a1b2c3d-0000-0000-0000-00000000000A", "MIG-ffffffff-0000-0000-0000-000000000001"
	files := make([]string, 2)
	for i, uuid := range []string{first, second} {
		files[i] = filepath.Join(t.TempDir(), "ledger")
		if err := ledger.Create(files[i], ledger.Header{Limit: uint64(i+1) << 30, Total: 4 << 30, UUID: uuid}); err != nil {
			t.Fatal(err)
		}
	}
	parts := ledger.FormatParts([][]ledger.Part{{{ID: 7, Limit: 100 << 20}}, {{ID: 8, Limit: 200 << 20}}})
	for _, tc := range []struct {
		name, parts, uuid string
		limit             uint64 // 0: refused
	}{
		{"the first", "", first, 1 << 30},
		{"the second", "", second, 2 << 30},
		{"in other letters", "", strings.ToUpper(strings.TrimPrefix(first, "GPU-")), 1 << 30},
		{"without dashes", "", strings.ReplaceAll(strings.TrimPrefix(second, "MIG-"), "-", ""), 2 << 30},
		{"a part of the first", parts, first, 100 << 20},
		{"a part of the second", parts, second, 200 << 20},
		{"another GPU", "", "GPU-11111111-0000-0000-0000-000000000000", 0},
		{"damaged parts", "7=", first, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := descriptors(t)
			l, err := shim.Join(strings.Join(files, ":"), tc.parts, tc.uuid)
			if tc.limit == 0 {
				if err == nil {
					t.Fatal("joined")
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				if limit, left := l.Limit(); limit != tc.limit || left != tc.limit {
					t.Errorf("limit %d, left %d; want %d", limit, left, tc.limit)
				}
				if n := descriptors(t); n != before+1 {
					t.Errorf("%d descriptors more", n-before)
				}
				if err := l.Leave(); err != nil {
					t.Fatal(err)
				}
			}
			if n := descriptors(t); n != before {
				t.Errorf("%d descriptors are left", n-before)
			}
		})
	}
}

// descriptors counts the open descriptors of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("no /proc/self/fd")
	}
	return len(list)
}
