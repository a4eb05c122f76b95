package logs

import (
	"context"
	"strings"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

var formats = tape.Formats{tape.Text, MemDebug, RMM, MiniMalloc}

func mustRead(t testing.TB, data []byte, opt tape.Options) *tape.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, opt)
}

func readString(s string) (*tape.Trace, error) {
	return formats.Read(context.Background(), strings.NewReader(s), "in", tape.Options{})
}
