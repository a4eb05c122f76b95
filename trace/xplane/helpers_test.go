package xplane

import (
	"context"
	"strings"
	"testing"

	"gpumem/internal/test/tracetest"
	"gpumem/trace"
)

var formats = trace.Formats{Format}

func mustRead(t testing.TB, data []byte, opt trace.Options) *trace.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, opt)
}

func readString(s string) (*trace.Trace, error) {
	return formats.Read(context.Background(), strings.NewReader(s), "in", trace.Options{})
}
