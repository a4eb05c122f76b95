package engine

import (
	"math"
	"strings"
	"testing"
)

// freely is the note of a start of SGLang 0.5.23 with a model of 1.2 billion parameters on an L4, by its
// own log: weights 2.35 GB, 397,868 tokens, K and V 6.07 GB each, graphs .44 GB, 5.94 GB free at the end.
func freely(change func(*Note)) []*Note {
	const token = 2 * 16 * 8 * 64 * 2 // keys and values of a layer's heads
	n := &Note{
		Engine: "sglang", Version: "0.5.23", Ready: true,
		Config: &config{DType: "torch.bfloat16", CacheType: "torch.bfloat16", MaxLen: 8192, Utilization: .676, MaxSeqs: 4096, MaxBatched: 4096, Positions: 131072},
		Cache:  &cache{Tokens: 397868, Requests: 397868. / 8192, Blocks: 397868, Groups: [][]any{{"MHATokenToKVPool", 1.}}},
		Worker: &worker{
			Requested: 15564424273.788, Weights: 2527068160, Params: 2505183232, Total: 23563264327, Free: 23024296263, End: 6378026598,
			Cache: 397869 * token, Table: 4097 * 8196 * 4,
		},
		Stages:  map[string][]state{caching: {{Allocated: 2527068160}, {Allocated: 2527068160 + 397869*token}}},
		Results: map[string]int64{capturing: 467664896},
	}
	if change != nil {
		change(n)
	}
	return []*Note{n}
}

// TestOfFreeMemory: all that is not free is named, and what the fraction leaves is free, but for the context.
func TestOfFreeMemory(t *testing.T) {
	a := New(freely(nil))
	if sum := a.Weights + a.Graphs + a.Outside + a.Cache + a.Left; sum != a.CardBytes || a.Activations != 0 || len(a.Doubts) > 0 {
		t.Errorf("%d of %d: %+v", sum, a.CardBytes, a)
	}
	if free := a.Left - uint64(a.taken); free != 6378026598 || a.Outside == 0 {
		t.Errorf("%d free, other %d", free, a.Outside)
	}
	if o := a.with(a.CardBytes, a.Utilization); o.Tokens != a.Tokens || !o.Serves {
		t.Errorf("the same card: %+v", o)
	}
	// Half as large tokens are twice as many, and a hundredth of what was free is so many tokens.
	if o := a.halved(); o.Tokens/2 != a.Tokens {
		t.Errorf("%+v", o)
	}
	if more := a.with(a.CardBytes, a.Utilization+.01).Tokens - a.Tokens; more != 23024296263/100/32768 {
		t.Errorf("%d tokens more", more)
	}
	a.Settings(512 << 20)
	if len(a.Others) != 2 || a.Others[0].Set != "--mem-fraction-static 0.85" || a.Others[1].Set != "--kv-cache-dtype fp8_e4m3" {
		t.Errorf("%+v", a.Others)
	}
}

// TestFractionOfOtherCards: SGLang's own rule, by which 7280 MiB stay free for a batch of 4096, unless the fraction is given.
func TestFractionOfOtherCards(t *testing.T) {
	a := New(freely(nil))
	a.OtherCards(8, 9)
	if len(a.Cards) == 0 {
		t.Fatal("no cards")
	}
	for _, o := range a.Cards {
		total := float64(o.Bytes) / (1 << 20)
		own := math.Round(1000*(total-7280)/total) / 1000
		if got := a.utilization(o.Bytes); math.Abs(got-own) > .0011 {
			t.Errorf("%s: %g, SGLang has %g", o.Card, got, own)
		}
		if o.Bytes < 20<<30 || o.Bytes >= 35<<30 || strings.Contains(o.Card, "L40S") {
			t.Errorf("%s has another batch", o.Card)
		}
	}
	if a = New(freely(func(n *Note) { n.Given = map[string]any{"mem_fraction_static": .676} })); a.utilization(32<<30) != .676 {
		t.Errorf("%g of 32 GiB where it was given", a.utilization(32<<30))
	}
}

// TestTokensThatDoNotFollow: where layers keep parts of the context, or the tokens are capped, nothing is derived.
func TestTokensThatDoNotFollow(t *testing.T) {
	for _, change := range []func(*Note){
		func(n *Note) { n.Cache.Groups[0][0] = "SWAKVPool" },
		func(n *Note) { n.Cache.Blocks = 0 },
	} {
		a := New(freely(change))
		a.Settings(512 << 20)
		if o := a.with(a.CardBytes, .9); len(a.Others) > 0 || o.Serves || a.Need > 0 {
			t.Errorf("%+v, %+v", o, a)
		}
	}
}
