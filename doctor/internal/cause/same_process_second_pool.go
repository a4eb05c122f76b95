package cause

// same_process_second_pool: the process asked for a second pool while it still has the first.

func secondPool(c *view) found {
	d := c.Driver
	switch {
	case d == nil || d.Collected:
	case d.Second != nil:
		return found{sure(555, "a second pool", oneBackend, d.Second...).and(d.St.Quoted(d.NotHad(c.total.Bytes))).only()}
	case c.poolSizeRefused() && !c.OnTensorFlow() && d.Steps > 2:
		return found{fits(527, "a pool that tries less and less", oneBackend, c.processes(),
			d.St.Quoted(d.Tried)).needs(needRecreated, NeedProcesses).only()}
	case c.poolSizeRefused() && d.Steps <= 2:
		return found{fits(533, "a whole pool is refused", oneBackend, c.processes(),
			d.St.Quoted("the size of a whole pool")).needs(needRecreated, NeedProcesses, needTotal).only()}
	}
	return nil
}

var oneBackend = steps(
	"do not create the backend again (clear_backends, or a new client) in the same process: the first pool is not released",
	"where the memory must come back, do the work in a separate process, and let it end")
