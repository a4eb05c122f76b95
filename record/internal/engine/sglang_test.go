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
	a.OtherCards(a.CardBytes, 8, 9)
	if len(a.Cards) == 0 {
		t.Fatal("no cards")
	}
	for _, o := range a.Cards {
		total := float64(o.Bytes) / (1 << 20)
		own := math.Round(1000*(total-7280)/total) / 1000
		if got := a.utilization(o.Bytes, a.CardBytes); math.Abs(got-own) > .0011 {
			t.Errorf("%s: %g, SGLang has %g", o.Card, got, own)
		}
		if o.Bytes < 20<<30 || o.Bytes >= 35<<30 || strings.Contains(o.Card, "L40S") {
			t.Errorf("%s has another batch", o.Card)
		}
	}
	if a = New(freely(func(n *Note) { n.Given = map[string]any{"mem_fraction_static": .676} })); a.utilization(32<<30, a.CardBytes) != .676 {
		t.Errorf("%g of 32 GiB where it was given", a.utilization(32<<30, a.CardBytes))
	}
}

// TestOtherCardsAfterARefusal: on 11 GiB the engine was refused with the fraction and the batch that it chose there, and measured with them
// on 22. The cards with this batch are those below 20 GiB, and what stays free on them is as much as on the one of 11.
func TestOtherCardsAfterARefusal(t *testing.T) {
	const asked = 11 << 30
	a := New(freely(nil))
	a.OtherCards(asked, 8, 9)
	if len(a.Cards) == 0 {
		t.Fatal("no cards")
	}
	for _, o := range a.Cards {
		if o.Bytes >= 20<<30 {
			t.Errorf("%s has another batch", o.Card)
		}
		if kept, want := (1-a.utilization(o.Bytes, asked))*float64(o.Bytes), .324*asked; math.Abs(kept-want) > .0011*float64(o.Bytes) {
			t.Errorf("%s keeps %.0f, want %.0f", o.Card, kept, want)
		}
	}
}

// TestNoDoubtOfTheRequestTable: it is made with the cache.
func TestNoDoubtOfTheRequestTable(t *testing.T) {
	a := New(freely(func(n *Note) {
		n.Worker.Table = 1 << 30
		n.Stages[caching][1].Allocated += 1 << 30
	}))
	if len(a.Doubts) > 0 {
		t.Errorf("%q", a.Doubts)
	}
}

// TestFractionGivenToOneProcess: it was given also where a process that was noted later was not asked.
func TestFractionGivenToOneProcess(t *testing.T) {
	notes := append(freely(func(n *Note) { n.Given = map[string]any{"mem_fraction_static": .676} }), &Note{Engine: "sglang"})
	if a := New(notes); a.utilization(32<<30, a.CardBytes) != .676 {
		t.Errorf("%g", a.utilization(32<<30, a.CardBytes))
	}
}

// TestLongestOfAShortModel: no request is longer than the model's positions, also of eight.
func TestLongestOfAShortModel(t *testing.T) {
	if a := New(freely(func(n *Note) { n.Config.Positions = 1000 })); a.Longest != 1000 || a.Longest8 != 1000 {
		t.Errorf("%d, %d", a.Longest, a.Longest8)
	}
}

// TestSameBatch: a size from which on there is another batch belongs to that one.
func TestSameBatch(t *testing.T) {
	k := kindOf("sglang")
	for _, tc := range []struct {
		a, b uint64
		same bool
	}{{20 << 30, 21 << 30, true}, {20<<30 - 1, 20 << 30, false}, {11 << 30, 12 << 30, true}, {21 << 30, 44 << 30, false}} {
		if k.sameBatch(tc.a, tc.b) != tc.same || k.sameBatch(tc.b, tc.a) != tc.same {
			t.Errorf("%d and %d", tc.a, tc.b)
		}
	}
}

// TestTokensThatDoNotFollow: where the note has no blocks, as of states or of tokens that are capped, nothing is derived, and
// the card that it needs is unknown.
func TestTokensThatDoNotFollow(t *testing.T) {
	a := New(freely(func(n *Note) { n.Cache.Blocks = 0 }))
	a.Settings(512 << 20)
	a.OtherCards(a.CardBytes, 8, 9)
	if o := a.with(a.CardBytes, .9); len(a.Others) > 0 || len(a.Cards) > 0 || o.Serves || a.Need > 0 {
		t.Errorf("%+v, %+v", o, a)
	}
}

// windowed changes the note into that of a model half of whose layers keep a window of 4096, for .8 as many tokens.
func windowed(n *Note) {
	n.Cache.Groups[0][0] = "SWAKVPool"
	n.Cache.Least, n.Cache.Requests, n.Cache.Longest = 5123, 1.5*397868./8192, []uint64{131072, 49733}
}

// TestWindows: tokens follow from bytes as elsewhere, there are as many as the engine starts with, and requests are those of its count.
func TestWindows(t *testing.T) {
	a := New(freely(windowed))
	if a.Requests != 1.5*397868/8192 || a.Longest8 != 49733 || len(a.Doubts) > 0 {
		t.Errorf("%+v", a)
	}
	more := a.with(a.CardBytes, a.Utilization+.01)
	if part := float64(more.Tokens) / float64(a.Tokens); part < 1.01 || math.Abs(more.Requests-part*a.Requests) > 1e-9 {
		t.Errorf("%+v", more)
	}
	// A request of 8192 wants no more than 5,462 tokens, and the engine 5,123 at least.
	const token = 32768
	if o := a.with(a.Need, a.Utilization); o.Tokens < 5400 || o.Tokens > 5462 || !o.Serves {
		t.Errorf("%+v on %d", o, a.Need)
	}
	a = New(freely(func(n *Note) { windowed(n); n.Cache.Least = 9000 }))
	if o := a.with(a.Need, a.Utilization); o.Tokens < 8990 || o.Tokens > 9000 {
		t.Errorf("%+v on %d", o, a.Need)
	}
	if o := a.with(a.Need-200*token, a.Utilization); o.Serves {
		t.Errorf("%+v: fewer than it starts with", o)
	}
	a = New(freely(func(n *Note) { windowed(n); n.Config.MaxSeqs = 7 }))
	if o := a.with(a.CardBytes, .9); a.Requests != 7 || o.Requests != 7 {
		t.Errorf("%f, %+v: more than it runs", a.Requests, o)
	}
}
