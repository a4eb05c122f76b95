package xplane

import (
	"context"
	"strings"
	"testing"

	"gpumem/record/internal/test/tracetest"
	"gpumem/record/trace"
)

var formats = trace.Formats{Format}

func mustRead(t testing.TB, data []byte, opt trace.Options) *trace.Trace {
	t.Helper()
	return tracetest.MustRead(t, formats, data, opt)
}

func readString(s string) (*trace.Trace, error) {
	return formats.Read(context.Background(), strings.NewReader(s), "in", trace.Options{})
}
