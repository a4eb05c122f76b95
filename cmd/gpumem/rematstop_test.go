package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestRematInterrupted: who interrupts a long search does not wait for it, and nothing is
// left behind.
func TestRematInterrupted(t *testing.T) {
	var b strings.Builder
	const n = 400
	b.WriteString("HloModule m, is_scheduled=true\n\nENTRY e {\n  x0 = f32[4096] parameter(0)\n")
	for k := range n {
		fmt.Fprintf(&b, "  x%d = f32[4096] tanh(x%d)\n", k+1, k)
	}
	fmt.Fprintf(&b, "  g%d = f32[4096] negate(x%d)\n", n, n)
	for k := n - 1; k >= 0; k-- {
		fmt.Fprintf(&b, "  g%d = f32[4096] multiply(g%d, x%d)\n", k, k+1, k+1)
	}
	b.WriteString("  ROOT out = f32[4096] add(g0, x0)\n}\n")
	dir := t.TempDir()
	module, out := filepath.Join(dir, "m.hlo"), filepath.Join(dir, "out.hlo")
	if err := os.WriteFile(module, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	var stdout, stderr bytes.Buffer
	status := run(ctx, []string{"remat", module, "--algorithm", "gap", "--limit", "10%", "--time", "20s", "--out", out}, &stdout, &stderr)
	if status != exitInterrupted || stdout.Len() > 0 || strings.TrimSpace(stderr.String()) != "gpumem: interrupted" {
		t.Errorf("status %d, %s%s", status, &stdout, &stderr)
	}
	if _, err := os.Stat(out); err == nil {
		t.Error("it left a file")
	}
}
