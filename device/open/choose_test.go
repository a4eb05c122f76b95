package open

import (
	"errors"
	"testing"
)

// TestChooseWithDriver: where a driver loads its first GPU is the default, but
// not for those who need other sizes.
func TestChooseWithDriver(t *testing.T) {
	defer func(f func() error) { driverLoads = f }(driverLoads)
	none := func(string) (string, bool) { return "", false }
	for _, tc := range []struct {
		name   string
		driver error
		resize bool
		want   string
	}{
		{"a driver", nil, false, "cuda:0"},
		{"a driver, and other sizes", nil, true, Default},
		{"none", errors.New("no driver"), false, Default},
	} {
		t.Run(tc.name, func(t *testing.T) {
			driverLoads = func() error { return tc.driver }
			spec, note, err := Choose("", none, tc.resize)
			if err != nil || spec.Text != tc.want || note == "" {
				t.Errorf("%q, note %q, %v; want %s and a note", spec.Text, note, err, tc.want)
			}
			if spec, _, _ := Choose("sim:1GiB", none, tc.resize); spec.Text != "sim:1GiB" {
				t.Errorf("the flag's device became %q", spec.Text)
			}
		})
	}
}
