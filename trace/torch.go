package trace

import (
	"bufio"
	"context"
)

func readTorch(ctx context.Context, in *bufio.Reader, b *builder, keep bool) error { return nil }
