//go:build !linux || (!amd64 && !arm64) || nodriver

package cuda

import (
	"errors"
	"strings"
	"testing"
)

func TestNoDriver(t *testing.T) {
	_, open := Open(0)
	_, count := Count()
	_, list := List()
	for _, err := range []error{open, count, list, Available()} {
		if !errors.Is(err, ErrNoDriver) || !strings.Contains(err.Error(), "this build has none") || !strings.Contains(err.Error(), "name a simulated GPU") {
			t.Errorf("%v", err)
		}
	}
}
