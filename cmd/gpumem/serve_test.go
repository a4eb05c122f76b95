package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"gpumem/internal/test/machinetest"
	"gpumem/node/machine"
	"gpumem/node/serve"
)

// TestServe: it prints its address, answers there, and ends without an error when it is
// interrupted, also while somebody watches.
func TestServe(t *testing.T) {
	t.Setenv("GPUMEM_DEVICE", "sim:24GiB")
	t.Setenv("GPUMEM_TOKEN", "")
	for _, tt := range []struct {
		name string
		args []string
		auth string
	}{
		{"here", []string{"--listen", "127.0.0.1:0"}, ""},
		{"with a token", []string{"--listen", "127.0.0.1:0", "--token", "secret"}, "Bearer secret"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, stop := context.WithCancel(context.Background())
			defer stop()
			read, write := io.Pipe()
			var stderr bytes.Buffer
			done := make(chan int, 1)
			go func() {
				done <- run(ctx, append([]string{"serve"}, tt.args...), write, &stderr)
				write.Close()
			}()
			line, err := bufio.NewReader(read).ReadString('\n')
			if err != nil {
				t.Fatalf("%v: status %d, %s", err, <-done, &stderr)
			}
			address, token, _ := strings.Cut(strings.TrimSpace(line), "?token=")
			if (token == "secret") != (tt.auth != "") {
				t.Errorf("it prints %s", line)
			}
			get := func(path, auth string) *http.Response {
				r, err := http.NewRequest("GET", address+path, nil)
				if err != nil {
					t.Fatal(err)
				}
				if auth != "" {
					r.Header.Set("Authorization", auth)
				}
				res, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			res := get("state", tt.auth)
			var s serve.State
			if err := json.NewDecoder(res.Body).Decode(&s); err != nil || len(s.Devices) != 1 || s.Devices[0].Total != 24<<30 {
				t.Errorf("%+v, %v", s, err)
			}
			res.Body.Close()
			if tt.auth != "" {
				res := get("state", "")
				if res.StatusCode != 401 {
					t.Errorf("without the token %s", res.Status)
				}
				res.Body.Close()
			}
			watching := get("events", tt.auth)
			defer watching.Body.Close()
			stop()
			if status := <-done; status != 0 {
				t.Errorf("status %d, %s", status, &stderr)
			}
			if _, err := io.ReadAll(watching.Body); err != nil {
				t.Errorf("the stream broke: %v", err)
			}
		})
	}
}

// TestServeState: what ps knows is all there.
func TestServeState(t *testing.T) {
	s, err := serve.Machine("host", func() (*machine.Snapshot, error) { return machinetest.Example(), nil })(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"title":"host"`, `"device":"cuda:0"`, `"command":"/usr/bin/python3 train.py"`, `"parent gone"`, `"lease_bytes":`} {
		if !strings.Contains(string(data), want) {
			t.Errorf("no %s in %s", want, data)
		}
	}
}
