package remat

import (
	"errors"
	"testing"

	"gpumem/xla/internal/pass"
	"gpumem/xla/internal/test/remattest"
)

func TestRoomLimit(t *testing.T) {
	// An argument of 4,096 bytes and a result of 8,192, nothing in place.
	m := remattest.Parsed(t, `HloModule m

ENTRY e {
  p = f32[1024] parameter(0)
  ROOT r = f32[2048] concatenate(p, p), dimensions={0}
}
`)
	for _, tc := range []struct {
		name               string
		total, inUse, want uint64
		err                error
	}{
		{"nothing in use", 112288, 0, 95000, nil},
		{"the argument alone in use", 112288, 4096, 95000, nil},
		{"others in use besides", 122288, 14096, 95000, nil},
		{"less in use than the argument, so others", 112388, 100, 95000, nil},
		{"just room for arguments and results", 12288, 4096, 0, nil},
		{"no room for them", 12287, 0, 0, pass.ErrNoRoom},
		{"more in use than there is", 10000, 20000, 0, pass.ErrNoRoom},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := Request{Limit: Bytes(0)}
			err := r.SetRoomLimit(m, tc.total, tc.inUse)
			if got := r.Limit(0); got != tc.want || !errors.Is(err, tc.err) || (r.LimitFrom == "") != (err != nil) {
				t.Errorf("%d from %q, %v; want %d, %v", got, r.LimitFrom, err, tc.want, tc.err)
			}
		})
	}
}
