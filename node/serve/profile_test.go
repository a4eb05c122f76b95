package serve_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/pprof/profile"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/node/serve"
	"gpumem/policy/frameworks"
)

func newPool(t testing.TB, opts ...gpumem.Option) *gpumem.Pool {
	t.Helper()
	dev, err := sim.New(sim.Config{Total: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	pool, err := gpumem.Open(dev, frameworks.Default(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

func weights(t testing.TB, pool *gpumem.Pool) {
	t.Helper()
	for range 3 {
		if _, err := pool.Alloc(t.Context(), 2<<20); err != nil {
			t.Fatal(err)
		}
	}
}

func TestProfile(t *testing.T) {
	pool := newPool(t, gpumem.WithStacks(true))
	weights(t, pool)
	bare := newPool(t)
	weights(t, bare)
	closed := newPool(t)
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name   string
		pool   *gpumem.Pool
		query  string
		status int
		typ    string
		want   []string // in a text; of a profile, its samples as count:bytes
	}{
		{"a profile", pool, "", 200, "application/octet-stream", []string{"3:6291456"}},
		{"the same, said", pool, "?debug=0", 200, "application/octet-stream", []string{"3:6291456"}},
		{"without stacks", bare, "", 200, "application/octet-stream", []string{"3:6291456"}},
		{"closed", closed, "", 200, "application/octet-stream", nil},
		{"text", pool, "?debug=1", 200, "text/plain; charset=utf-8", []string{
			"gpumem profile: 3: 6291456 @ jax\n3: 6291456\n#\tgpumem/node/serve_test.weights (profile_test.go:",
			"\n# num_allocs = 3\n# bytes_in_use = 6291456\n", "\n# pool_bytes = 805306368\n",
		}},
		{"text without stacks", bare, "?debug=1", 200, "text/plain; charset=utf-8", []string{"\n3: 6291456\n#\tunknown: open the pool with gpumem.WithStacks\n"}},
		{"text of a closed pool", closed, "?debug=2", 200, "text/plain; charset=utf-8", []string{"gpumem profile: 0: 0 @ jax\n# num_allocs = 0\n"}},
		{"no number", pool, "?debug=yes", 400, "text/plain; charset=utf-8", []string{`debug="yes" is no number`}},
		{"a time", pool, "?seconds=30", 400, "text/plain; charset=utf-8", []string{"-base"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			w := httptest.NewRecorder()
			serve.Profile(tc.pool).ServeHTTP(w, httptest.NewRequest("GET", "/debug/pprof/gpumem"+tc.query, nil))
			if w.Code != tc.status || w.Header().Get("Content-Type") != tc.typ {
				t.Fatalf("status %d, type %q; want %d, %q", w.Code, w.Header().Get("Content-Type"), tc.status, tc.typ)
			}
			if tc.typ != "application/octet-stream" {
				for _, want := range tc.want {
					if !strings.Contains(w.Body.String(), want) {
						t.Errorf("no %q in:\n%s", want, w.Body)
					}
				}
				return
			}
			p, err := profile.Parse(w.Body)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, s := range p.Sample {
				got = append(got, fmt.Sprintf("%d:%d", s.Value[0], s.Value[1]))
			}
			if strings.Join(got, " ") != strings.Join(tc.want, " ") {
				t.Errorf("samples %v, want %v", got, tc.want)
			}
		})
	}
}

var withPprof = flag.Bool("pprof", false, "run go tool pprof, which Go compiles first")

// TestProfileBeside: beside net/http/pprof's own pages, and with -pprof read by go tool pprof.
func TestProfileBeside(t *testing.T) {
	pool := newPool(t, gpumem.WithStacks(true))
	weights(t, pool)
	mux := http.NewServeMux()
	mux.Handle("GET /debug/pprof/gpumem", serve.Profile(pool))
	// As net/http/pprof does on the default mux; without a method in the pattern
	// above the two would conflict.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	if _, pattern := http.DefaultServeMux.Handler(httptest.NewRequest("GET", "/debug/pprof/gpumem", nil)); pattern != "GET /debug/pprof/" {
		t.Errorf("net/http/pprof serves %q", pattern)
	}
	server := httptest.NewServer(mux)
	defer server.Close()
	for path, want := range map[string]string{
		"/debug/pprof/gpumem?debug=1": "gpumem profile: 3: 6291456",
		"/debug/pprof/heap?debug=1":   "heap profile:",
	} {
		r, err := http.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r.Body)
		r.Body.Close()
		if err != nil || !bytes.HasPrefix(body, []byte(want)) {
			t.Errorf("%s: %v, %.100s; want %q", path, err, body, want)
		}
	}
	r, err := http.Get(server.URL + "/debug/pprof/gpumem")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	p, err := profile.Parse(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, s := range p.Sample {
		sum += s.Value[1]
	}
	if sum != 6291456 {
		t.Errorf("the profile has %d bytes, want 6291456", sum)
	}
	if !*withPprof {
		return
	}
	if out, err := exec.Command("go", "tool", "pprof", "-h").CombinedOutput(); err != nil && !bytes.Contains(out, []byte("usage")) {
		t.Skipf("no go tool pprof here: %v", err)
	}
	cmd := exec.Command("go", "tool", "pprof", "-top", "-unit=B", server.URL+"/debug/pprof/gpumem")
	cmd.Env = append(cmd.Environ(), "PPROF_TMPDIR="+t.TempDir())
	out, err := cmd.Output()
	if err != nil || !bytes.Contains(out, []byte("of 6291456B total")) {
		t.Errorf("%v: %v\n%s", cmd.Args, err, out)
	}
}

func ExampleProfile() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	pool, _ := gpumem.Open(dev, frameworks.Default())
	defer pool.Close()
	pool.Alloc(context.Background(), 64<<20)

	mux := http.NewServeMux()
	mux.Handle("GET /debug/pprof/gpumem", serve.Profile(pool))
	server := httptest.NewServer(mux) // or http.ListenAndServe("localhost:6060", mux)
	defer server.Close()
	r, err := http.Get(server.URL + "/debug/pprof/gpumem?debug=1")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	head, _, _ := strings.Cut(string(text), "\n")
	fmt.Println(head)
	// Output:
	// gpumem profile: 1: 67108864 @ jax
}
