package cause

// stream_pending: memory is freed, and waits for another stream before it may be used again.

import "fmt"

func streamPending(c *view) []Explanation {
	s := c.Shortfall
	switch c.who() {
	case pendingFrees:
		return []Explanation{sure(651, "freed, and waiting for a stream", waitLess, s.WaitingFrom, s.St.Quoted(fmt.Sprintf("%s was lacking, and %s waits", human(s.Lacking), human(s.Waiting))))}
	case holesOrWaiting:
		return []Explanation{fits(639, "freed, and waiting for a stream", waitLess, seeActive, s.St.Quoted(fmt.Sprintf("%s is reserved and not allocated: blocks that wait for another stream count so, too", human(s.Idle))))}
	}
	return nil
}

var waitLess = steps("let the streams meet before the memory is needed again: current_stream().wait_stream(side), or side.synchronize(), in each step",
	"record_stream keeps a block until the other stream is done with it: free such tensors later, or copy them within one stream; a loader that prefetches on a stream of its own may be too far ahead")
