package main

import (
	"strings"
	"testing"

	"gpumem/internal/report"
	"gpumem/record/advise"
	"gpumem/record/fit"
)

// TestEngineText: the answer about an engine, that serves on one card and not on another.
func TestEngineText(t *testing.T) {
	const gib = 1 << 30
	serves := fit.Engine{
		Engine: "vllm", Version: "0.33.0", Serves: true, DType: "bfloat16", CardBytes: 22 * gib, GPUs: 1, Utilization: .9, Part: "gpu-memory-utilization", MaxLen: 8192,
		Tokens: 27248, Requests: 3.33, Longest: 27248, Longest8: 3406, Need: 20 * gib,
		Figures: fit.EngineFigures{Weights: 15 * gib, Activations: gib, Graphs: gib / 8, Outside: gib / 4, Cache: 4 * gib, Left: gib},
		Set:     []string{"A=1"}, Options: []string{"load_format=dummy"}, Doubts: []string{"weights: vllm says 15 GiB, and its allocator 14 GiB"},
		Others: []fit.EngineOther{{Set: "--kv-cache-dtype fp8", Tokens: 54496, Requests: 6.66, Serves: true}},
		Cards:  []fit.EngineOther{{Card: "L40S", Serves: true, Tokens: 100000, Requests: 12.2}, {Card: "RTX 4060"}},
	}
	refused := serves
	refused.Serves, refused.Reason, refused.Need, refused.Others, refused.Cards, refused.Doubts = false, "ValueError: No available\nmemory", 18*gib, nil, nil, nil
	two := serves
	two.Set, two.Options = nil, nil
	two.GPUs, two.Replicas, two.Ranks = 2, 2, []fit.EngineFigures{serves.Figures, {Weights: 14 * gib, Activations: gib, Cache: 4 * gib, Left: gib}}
	given := serves
	given.Given, given.GivenBy, given.Serves, given.Reason = 4*gib, "kv-cache-memory-bytes", false, "its largest batch has no room"
	unknown := refused
	unknown.Need = 0
	value := "8192"
	for _, tc := range []struct {
		name, want string
		rep        *fit.Report
	}{
		{"serves", `Serves: 27,248 tokens of KV cache, 3.3 requests of 8,192 at once (vllm 0.33.0,
  bfloat16, on 22 GiB)
weights 15 GiB, activations 1 GiB, graphs 128 MiB, other 256 MiB, KV cache 4
  GiB; gpu-memory-utilization 0.9 leaves 1 GiB
longest context for one request: 27,248; for 8 at once: 3,406
Not sure: weights: vllm says 15 GiB, and its allocator 14 GiB.

set                   tokens  requests
--kv-cache-dtype fp8  54,496       6.7

Other cards of its compute capability, by arithmetic
card   tokens  requests
L40S  100,000      12.2
One request of 8,192 is served from 20 GiB on.

For the simulated GPU: A=1, load_format=dummy.
`, &fit.Report{Engine: &serves}},
		{"on two GPUs", `Serves, in each of 2 replicas: 27,248 tokens of KV cache, 3.3 requests of 8,192
  at once (vllm 0.33.0, bfloat16, on 2 GPUs of 22 GiB)
weights 15 GiB, activations 1 GiB, graphs 128 MiB, other 256 MiB, KV cache 4
  GiB; gpu-memory-utilization 0.9 leaves 1 GiB
longest context for one request: 27,248; for 8 at once: 3,406
Not sure: weights: vllm says 15 GiB, and its allocator 14 GiB.

GPU  weights  activations   graphs    other  KV cache   left
0     15 GiB        1 GiB  128 MiB  256 MiB     4 GiB  1 GiB
1     14 GiB        1 GiB      0 B      0 B     4 GiB  1 GiB

set                   tokens  requests
--kv-cache-dtype fp8  54,496       6.7

Other cards of its compute capability, 2 of each, by arithmetic
card   tokens  requests
L40S  100,000      12.2
One request of 8,192 is served from 2 GPUs of 20 GiB on.

Other is buffers
`, &fit.Report{Engine: &two}},
		{"refused", `card  serves  tokens  requests  of length  weights  activations  KV cache
L4    yes     27,248       3.3      8,192   15 GiB        1 GiB     4 GiB
T4    no                            8,192   15 GiB        1 GiB

Does not serve on 14 GiB: ValueError: No available; memory
It ran on 22 GiB to learn what it needs: GPUs of 18 GiB serve one request of
  8,192 (vllm 0.33.0, bfloat16, gpu-memory-utilization 0.9).
`, &fit.Report{Engine: &refused, Ran: []fit.RanCard{{Card: "L4", Engine: &serves}, {Card: "T4", Engine: &refused}}}},
		{"a cache that was given", `Does not serve on 22 GiB: its largest batch has no room
GPUs of 20 GiB serve one request of 8,192 (vllm 0.33.0, bfloat16,
  kv-cache-memory-bytes 4 GiB).
weights 15 GiB, activations 1 GiB, graphs 128 MiB, other 256 MiB, KV cache 4
  GiB; kv-cache-memory-bytes 4 GiB leaves 1 GiB
`, &fit.Report{Engine: &given}},
		{"tokens that do not follow", `Does not serve on 14 GiB: ValueError: No available; memory
It ran on 22 GiB to learn what it needs: its tokens do not follow from bytes, so
  which GPUs serve one request of 8,192 (vllm 0.33.0, bfloat16,
  gpu-memory-utilization 0.9) is unknown.
`, &fit.Report{Engine: &unknown}},
		{"an error on one card", `card  serves  tokens  requests  of length  weights  activations  KV cache
L4    yes     27,248       3.3      8,192   15 GiB        1 GiB     4 GiB
T4    failed
T4: ValueError: heads

Serves: `, &fit.Report{Engine: &serves, Ran: []fit.RanCard{{Card: "L4", Engine: &serves}, {Card: "T4", Error: "ValueError: heads"}}}},
		{"refused on every card", `Does not serve on 14 GiB: ValueError: No memory
Nor on 1 TiB, so what it needs is not known: OutOfMemoryError: CUDA
`, &fit.Report{Engine: &fit.Engine{Reason: "ValueError: No memory", RefusedOn: 1 << 40, LastReason: "OutOfMemoryError: CUDA"}}},
		{"varied", `max-model-len  serves  tokens  requests  of length  weights  activations  KV cache
8192           yes     27,248       3.3      8,192   15 GiB        1 GiB     4 GiB
The rest of this answer is for max-model-len=8192.

`, &fit.Report{Engine: &serves, Varied: &fit.Varied{Name: "max-model-len", Largest: &value, Tried: []fit.TriedValue{{Value: value, Engine: &serves}}}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.rep.Report = &advise.Report{DeviceBytes: 14 * gib}
			if tc.rep.Engine.Given > 0 {
				tc.rep.DeviceBytes = tc.rep.Engine.CardBytes
			}
			out := &text{Text: report.Text{Width: textWidth}}
			writeFit(out, tc.rep)
			got := out.String()
			want := strings.TrimSuffix(tc.want, "\n") // of the beginning
			if got = got[:min(len(got), len(want))]; got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}
