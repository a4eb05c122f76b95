package serve_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"gpumem"
	"gpumem/device/sim"
	"gpumem/node/serve"
	"gpumem/policy/frameworks"
)

// A program shows its pool at /memory/ of its own server.
func Example() {
	dev, _ := sim.New(sim.Config{Total: 24 << 30})
	defer dev.Close()
	pool, _ := gpumem.Open(dev, frameworks.Default())
	defer pool.Close()
	_, _ = pool.Alloc(context.Background(), 1<<30)

	mux := http.NewServeMux()
	mux.Handle("/memory/", http.StripPrefix("/memory", serve.Handler(serve.Pools(pool), serve.Options{})))

	s := httptest.NewServer(mux)
	defer s.Close()
	res, err := http.Get(s.URL + "/memory/metrics")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	text, _ := io.ReadAll(res.Body)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "gpumem_pool_in_use_bytes") || strings.HasPrefix(line, "gpumem_pool_held_bytes") {
			fmt.Print(line)
		}
	}
	// Output:
	// gpumem_pool_in_use_bytes{pool="bfc_0",policy="jax"} 1073741824
	// gpumem_pool_held_bytes{pool="bfc_0",policy="jax"} 19327352832
}
