package replay

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpumem/alloc"
)

// TestNotesAreFew: each line once, refusals only counted, and what is left out
// is said.
func TestNotesAreFew(t *testing.T) {
	n := newNotes()
	if got := n.list(); len(got) != 0 {
		t.Errorf("of nothing: %q", got)
	}
	for i := range 20 {
		n.add(alloc.Message{Severity: alloc.Error, Text: "refused"})
		n.add(alloc.Message{Severity: alloc.Info, Text: fmt.Sprintf("line %d", i/2)})
	}
	want := []string{
		"requests for a region that the device refused: 20",
		"line 0", "line 1", "line 2", "line 3", "line 4", "line 5", "line 6", "line 7",
		"other messages like these, left out: 2",
	}
	if diff := cmp.Diff(want, n.list()); diff != "" {
		t.Error(diff)
	}
}

// TestTimeIsOfTheQuickestPass: of three, or fewer if one is long or fails.
func TestTimeIsOfTheQuickestPass(t *testing.T) {
	failed := errors.New("failed")
	for _, c := range []struct {
		name   string
		took   []time.Duration // 0: the pass fails
		want   time.Duration
		err    error
		passes int
	}{
		{"the second", []time.Duration{3, 1, 2}, 1, nil, 3},
		{"the last", []time.Duration{3, 2, 1}, 1, nil, 3},
		{"the first is just short", []time.Duration{shortPass, shortPass + 1}, shortPass, nil, 2},
		{"the first is long", []time.Duration{shortPass + 1}, shortPass + 1, nil, 1},
		{"the second fails", []time.Duration{3, 0}, 0, failed, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			passes := 0
			got, err := quickest(func(i int) (time.Duration, error) {
				if passes++; c.took[i] == 0 {
					return 0, failed
				}
				return c.took[i], nil
			})
			if got != c.want || !errors.Is(err, c.err) || passes != c.passes {
				t.Errorf("%v after %d passes, %v; want %v after %d, %v", got, passes, err, c.want, c.passes, c.err)
			}
		})
	}
}

// TestLowerBound: whole pages of 2 MiB, never less than what is live.
func TestLowerBound(t *testing.T) {
	for _, c := range [][2]uint64{
		{0, 0}, {1, page}, {page, page}, {page + 1, 2 * page},
		{1<<64 - page, 1<<64 - page}, {1<<64 - page + 1, 1<<64 - 1}, {1<<64 - 1, 1<<64 - 1},
	} {
		if got := lowerBound(c[0]); got != c[1] {
			t.Errorf("lowerBound(%d) = %d, want %d", c[0], got, c[1])
		}
	}
}
