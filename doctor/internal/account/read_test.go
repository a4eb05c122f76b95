package account

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestSpreadGivesEachReaderAll(t *testing.T) {
	text := strings.Repeat("step 12 loss 0.5\n", 300000) // more than one reader may be ahead
	broken := errors.New("broken")
	feeds := spread(io.MultiReader(iotest.HalfReader(strings.NewReader(text)), iotest.ErrReader(broken)), 3)
	all := make(chan []byte, len(feeds))
	for _, f := range feeds {
		go func() {
			got, err := io.ReadAll(f)
			if err != broken {
				t.Errorf("ends with %v, want %v", err, broken)
			}
			all <- got
		}()
	}
	for range feeds {
		if got := <-all; !bytes.Equal(got, []byte(text)) {
			t.Errorf("%d bytes read, want %d", len(got), len(text))
		}
	}
}
