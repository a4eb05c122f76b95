package cause

import "gpumem/doctor/internal/account"

// remat_insufficient: recomputing cannot bring the program below its limit.

func rematShort(c *view) found {
	m := c.Compiled.Remat
	if m == nil || c.rematTooBig() {
		return nil
	}
	saves := account.Say("the pass does not reach the limit of %v", m.Limit)
	switch {
	case m.Limit == 0:
		saves = "the pass does not reach its limit"
	case m.From > 0 && m.Saved() == 0:
		saves = account.Say("the pass saves nothing of %v; to reach the limit of %v it would have to save %v", m.From,
			m.Limit, account.Less(m.From, m.Limit))
	case m.From > 0:
		saves = account.Say("the pass saves %v of %v; to reach the limit of %v it would have to save %v", m.Saved(),
			m.From, m.Limit, account.Less(m.From, m.Limit))
	}
	l := one(m.St, saves)
	if p := c.Pool; p != nil && p.Want > 0 {
		l = append(l, one(p.Refused.St, "and then "+account.Human(p.Want)+" is refused")...)
	}
	return found{sure(470, "recomputing does not save enough", steps(
		"the pass cannot do it: mark what is to be recomputed by hand (jax.checkpoint), shard, or make the batch smaller",
		"gpumem remat MODULE --limit NN% says what recomputing can save at most"), l...)}
}
