package timeline

// The curves, counters and snapshots of a policy. They are gathered in the pass with
// hooks, never in one that is timed, and their size does not follow the recording's
// length: curves have a bounded number of buckets, and the whole pool is visited a
// bounded number of times.

import (
	"gpumem/alloc"
	"gpumem/internal/report"
	"gpumem/record/replay"
	"gpumem/record/trace"
)

const (
	// walkBudget is the most pieces of the pool that the snapshots of a policy visit,
	// those at the peak, at the first refusal and at the end aside: about a second.
	walkBudget = 20_000_000
	// maxRefusals is the most refusals that are listed.
	maxRefusals = 100
)

// A sampler fills a layer while one policy runs.
type sampler struct {
	*outline
	pass   *replay.Pass
	layer  *report.Layer
	bucket int // in ends
	next   int // in stretches
	walked int // pieces of the pool that were visited
	used   uint64
	held   uint64 // the most of the bucket
}

// sample returns a sampler of a pass.
func (o *outline) sample(p *replay.Pass) *sampler {
	return &sampler{outline: o, pass: p, layer: &report.Layer{Policy: p.Policy.Spec}}
}

// hook returns the sampler's hook.
func (s *sampler) hook() replay.Hook {
	return replay.Hook{Event: s.event, Refused: s.refused}
}

// number returns the number of the pass's event.
func (s *sampler) number() uint64 { return s.pool.Recorded(s.pass.Event) }

// event samples the pass after an event.
func (s *sampler) event(*trace.Event, alloc.Block) error {
	s.used, s.held = max(s.used, s.pass.Used), max(s.held, s.pass.Held)
	if s.pass.Event < s.pool.Seeds {
		return nil
	}
	n := s.number()
	if n == s.ends[s.bucket] {
		s.closeBucket()
	}
	if s.next < len(s.stretches) && n == s.stretches[s.next] {
		s.next++
		key := n == s.timeline.PeakAt || n == s.timeline.Events || s.layer.First != nil && n == s.layer.First.Event
		if key || s.walked+s.pass.Blocks <= walkBudget/len(s.stretches)*s.next {
			s.snapshot(key)
		}
	}
	return nil
}

func (s *sampler) closeBucket() {
	l, stats := s.layer, s.pass.Stats()
	free := stats.PoolBytes - min(stats.BytesInUse, stats.PoolBytes)
	l.Used, l.Held = append(l.Used, s.used), append(l.Held, s.held)
	l.Free, l.Hole = append(l.Free, free), append(l.Hole, stats.LargestFreeBlock)
	l.Frag = append(l.Frag, fragmentation(free, stats.LargestFreeBlock))
	l.Calls = append(l.Calls, s.pass.Calls)
	s.used, s.held = s.pass.Used, s.pass.Held
	s.bucket++
}

// fragmentation returns how much of the free memory lies outside the largest free block, in
// percent with one decimal; 0 if that block is unknown.
func fragmentation(free, hole uint64) float64 {
	if free == 0 || hole == 0 {
		return 0
	}
	return float64(int(1000*(1-float64(min(hole, free))/float64(free))+.5)) / 10
}

// refused lists a refusal, and takes a snapshot at the first.
func (s *sampler) refused(e *trace.Event) error {
	l := s.layer
	l.Times++
	if len(l.Refusals) == maxRefusals {
		return nil
	}
	r := report.Refusal{Event: s.number(), Bytes: e.Bytes, Stack: s.siteName(e.Site)}
	l.Refused = append(l.Refused, r.Event)
	if l.Refusals = append(l.Refusals, r); len(l.Refusals) > 1 {
		return nil
	}
	l.First = &r
	s.weights.addPeak(e.Site, e.Bytes) // so that it is named
	if s.next == len(s.stretches) || s.stretches[s.next] != r.Event {
		s.snapshot(true)
	}
	return nil
}
