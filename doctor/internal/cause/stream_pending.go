package cause

// stream_pending: memory is freed, and waits for another stream before it may be used again.

func streamPending(c *view) []Explanation {
	s := c.Shortfall
	switch c.who() {
	case pendingFrees:
		return []Explanation{sure(651, "freed, and waiting for a stream", waitLess,
			s.WaitingFrom,
			quote(s.St, "%v was lacking, and %v waits", s.Lacking, s.Waiting))}
	case holesOrWaiting:
		return []Explanation{fits(639, "freed, and waiting for a stream", waitLess, seeActive,
			quote(s.St, "%v is reserved and not allocated: blocks that wait for another stream count so, too", s.Idle))}
	}
	return nil
}

var waitLess = steps(
	"let the streams meet before the memory is needed again: "+
		"current_stream().wait_stream(side), or side.synchronize(), in each step",
	"record_stream keeps a block until the other stream is done with it: "+
		"free such tensors later, or copy them within one stream; a loader that prefetches on a stream of its own may be too far ahead")
