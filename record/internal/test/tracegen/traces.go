package main

// The programs that the traces imitate, one function each. README.md of
// examples/ says how to run them and what comes out; examples_test.go holds
// them to that.

// traces are all shipped files.
var traces = []trace{
	{"training", "40 steps of training a GPT of 250 million weights with Adam, made by examples/tracegen.\n" +
		"Forward keeps activations, backward frees them last first, the update makes all weights anew.\n" +
		"Batches are of several lengths. It fits a device of 24 GiB under every policy.", 1, training},
	{"fragmentation", "Training whose sequences get longer by and by, made by examples/tracegen.\n" +
		"Each step of a jitted program is one large block that is freed at its end; it grows from 1 to 6.4 GiB.\n" +
		"On sim:16GiB a preallocated pool serves it, a growing one does not.", 2, fragmentation},
	{"platform", "A service that computes op by op, without jit, made by examples/tracegen.\n" +
		"Many small and medium blocks, short-lived, with a burst of large requests now and then.", 3, platform},
	{"shared_gpu", "An inference job that needs 40 % of a card of 24 GiB, made by examples/tracegen.\n" +
		"Another program has 30 % of the card: run it on sim:24GiB,used=7372MiB.", 4, sharedGPU},
}

// gpt is a transformer, as far as its memory goes.
type gpt struct {
	layers, width, vocab uint64
}

// weights are the leaves of its parameter tree, in bytes of float32: for each
// layer attention in and out, feed-forward up and down, two norms; then the
// embedding, which also makes the logits.
func (m gpt) weights() []uint64 {
	var out []uint64
	sq := m.width * m.width * 4
	for range m.layers {
		out = append(out, 3*sq, sq, 4*sq, 4*sq, 4*m.width*4)
	}
	return append(out, m.vocab*m.width*4)
}

// activations are what one layer keeps of n tokens for the way back, in bytes
// of bfloat16: norm, attention in (three) and out, sum, norm, feed-forward
// before and after its nonlinearity (four each).
func (m gpt) activations(n uint64) []uint64 {
	a := n * m.width * 2
	return []uint64{a, 3 * a, a, a, a, 4 * a, 4 * a}
}

// training imitates a train step whose layers are jitted one by one, so that
// what a layer keeps for its backward pass is a block each: forward allocates,
// backward frees last first. The update is one jitted function that does not
// donate its arguments: all new weights and moments are there before the old
// ones go. Batches are padded to a multiple of 128 tokens, the next one is
// fetched early, metrics stay until they are printed, an evaluation comes every
// 10 steps.
//
// It is the trace to begin with. P6: platform holds least, and pays with a
// driver call for every event.
func training(r *recorder) {
	m := gpt{layers: 16, width: 1024, vocab: 50304}
	state := append(append(r.allocs(m.weights()), r.allocs(m.weights())...), r.allocs(m.weights())...)
	batches, metrics := queue{keep: 4}, queue{keep: 30}
	for step := range 40 {
		tokens := 8 * uint64(512+128*r.upTo(5))
		batches.push(r, r.alloc(tokens*4), r.alloc(tokens*4)) // what comes in, what should come out
		kept := forward(r, m, tokens)
		logits := r.alloc(tokens * m.vocab * 2)
		r.use(tokens * m.vocab * 4) // softmax in float32
		metrics.push(r, r.alloc(4), r.alloc(4), r.alloc(4))
		grads := []block{r.alloc(m.vocab * m.width * 4)}
		r.free(logits)
		flow := r.alloc(tokens * m.width * 2)
		for l := len(kept) - 1; l >= 0; l-- {
			r.use(tokens * m.width * 2 * 4)
			grads = append(grads, r.allocs(m.weights()[:5])...)
			next := r.alloc(tokens * m.width * 2)
			r.free(append(kept[l], flow)...)
			flow = next
		}
		r.free(flow)
		updated := r.allocs(m.weights())
		updated = append(append(updated, r.allocs(m.weights())...), r.allocs(m.weights())...)
		r.free(append(state, grads...)...)
		state = updated
		if step%10 == 9 { // evaluation keeps nothing but its loss
			for _, layer := range forward(r, m, 4*1024) {
				r.free(layer...)
			}
			metrics.push(r, r.alloc(4))
		}
	}
}

// forward is one way through the layers. It returns what each keeps.
func forward(r *recorder, m gpt, tokens uint64) [][]block {
	var kept [][]block
	for range m.layers {
		kept = append(kept, r.allocs(m.activations(tokens)))
		r.use(tokens * m.width * 2 * 2) // the kernels' workspace
	}
	return kept
}

// fragmentation imitates curriculum training: short sequences first, longer
// ones as the model learns. The step is one jitted function that donates its
// arguments, as JAX advises. So weights and moments stay where they are, and
// all temporary memory of a step is one block, as XLA's buffer assignment makes
// it, freed at the end of the step.
//
// P4: a growing pool takes 2, 4, 8 ... 4096 MiB and then what is left of its
// limit, and a block cannot span two of these regions. On a device of 16 GiB
// the limit is 12 GiB and 4098 MiB are left: nothing larger can be served, and
// the last steps need 6.4 GiB. A preallocated pool has them in one piece. So it
// goes from 14 to 19 GiB: the outcome does not hang by a hair.
func fragmentation(r *recorder) {
	m := gpt{layers: 24, width: 1024, vocab: 50304}
	for range 3 { // weights and Adam's two moments
		r.allocs(m.weights())
	}
	batches, metrics := queue{keep: 6}, queue{keep: 20}
	for length := uint64(128); length <= 832; length += 64 {
		tokens := 8 * length
		temp := tokens * m.vocab * 6 // logits, and their softmax in float32
		for _, n := range m.activations(tokens) {
			temp += m.layers * n
		}
		for step := range 40 {
			batches.push(r, r.alloc(tokens*4), r.alloc(tokens*4))
			work := r.alloc(temp)
			metrics.push(r, r.alloc(4), r.alloc(4))
			r.free(work)
			if step == 39 {
				r.use(temp / 4) // an evaluation: no way back, so little is kept
			}
		}
	}
}

// platform imitates a service (or a debugging session) that runs without jit:
// each operation asks for its result, what it read is freed, results stay in a
// cache for a while. Sizes are spread over eight octaves. Every 60th request is
// from a customer with 32 times the data.
//
// P6: platform holds what is live and releases it, so its peak and above all
// its mean are the smallest. Every event is a driver call, so the driver costs
// hundreds of times what it costs a pool.
func platform(r *recorder) {
	weights := make([]uint64, 40)
	for i := range weights {
		weights[i] = r.spread(256*kib, 7)
	}
	r.allocs(weights)
	cache := queue{keep: 24}
	for request := range 900 {
		lo := uint64(128 * kib)
		if request%60 == 59 {
			lo *= 32
		}
		last := []block{r.alloc(r.spread(lo, 8))}
		for range 8 + r.upTo(12) {
			out := r.alloc(r.spread(lo, 8))
			r.use(r.spread(64*kib, 6))
			// An operation reads one or two of the results before it; those
			// that nothing else reads are gone.
			last = append(last, out)
			for len(last) > 2+r.upTo(2) {
				r.free(last[0])
				last = last[1:]
			}
		}
		r.free(last...)
		cache.push(r, r.alloc(r.spread(128*kib, 6)))
	}
}

// sharedGPU imitates an inference job: weights in bfloat16, and for each
// conversation a key-value cache that lives while it lasts. It needs about 40 %
// of a card of 24 GiB, on which another program already has 30 %.
//
// P3: the default asks for 75 % of the total, is refused, backs off to what it
// can get and says so; then it runs. P5: with half of the total
// (jax:fraction=.5) nothing is refused, and the rest is left to others.
func sharedGPU(r *recorder) {
	m := gpt{layers: 32, width: 2560, vocab: 50304}
	var weights []uint64
	for _, n := range m.weights() {
		weights = append(weights, n/2)
	}
	r.allocs(weights)
	perToken := 2 * m.layers * m.width * 2 // key and value, bfloat16
	type talk struct {
		cache block
		bytes uint64
		left  int // tokens to go before it ends, in steps of 16
	}
	var live []talk
	var held uint64
	const room = 4750 * mib // what the server gives to caches
	for range 2500 {
		tokens := uint64(128 * (1 + r.upTo(12)))
		if n := tokens * perToken; held+n <= room {
			r.use(tokens * m.width * 8) // the prompt, worked on as a whole
			live = append(live, talk{r.alloc(n), n, 4 + r.upTo(28)})
			held += n
		}
		r.use(uint64(len(live)) * m.vocab * 4) // logits of one token each
		for i := 0; i < len(live); i++ {
			if live[i].left--; live[i].left == 0 {
				r.free(live[i].cache)
				held -= live[i].bytes
				live = append(live[:i], live[i+1:]...)
				i--
			}
		}
	}
}
