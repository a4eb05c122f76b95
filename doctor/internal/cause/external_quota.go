package cause

// external_quota: a limit set outside the program refused it: a lease of gpumem run, HAMi,
// nvshare. limiter_bug: the limiter counted wrongly.

import (
	"fmt"
	"math"
	"strings"

	"gpumem/doctor/internal/account"
	"gpumem/doctor/internal/statement"
)

// hamiCount is what HAMi counted, and its limit, in bytes, and the line; nil if it refused nothing.
func (c *view) hamiCount() (used, limit uint64, st *statement.Statement) {
	if st = c.About("hami"); st != nil {
		if n, _ := fmt.Sscan(st.Topic("hami").Value, &used, &limit); n < 2 {
			return 0, 0, nil
		}
	}
	return used, limit, st
}

func limiterBug(c *view) found {
	used, _, st := c.hamiCount()
	if st == nil || used <= math.MaxInt64 {
		return nil
	}
	return found{sure(962, "a count below zero", steps(
		"upgrade the limiter: the count went below zero, which newer HAMi-core repairs (Project-HAMi/HAMi#1181)",
		"until then delete its state file and restart; a run without it (CUDA_DISABLE_CONTROL=true) proves that it is the limiter"),
		st.Quoted(fmt.Sprintf("%d is %s below 2^64: a count that went below zero, not a size",
			used, account.Human(-used))))}
}

func externalQuota(c *view) found {
	if st := c.leaseRefusal(); st != nil {
		return found{c.ownLease(st)}
	}
	if used, limit, st := c.hamiCount(); st != nil && used <= math.MaxInt64 {
		return found{sure(960, "a limiter's quota", c.raiseQuota(limit),
			quote(st, "with this request %v would be in use, %v above the quota of %v", used, account.Less(used, limit),
				limit))}
	}
	if x := c.nvshare(); x != nil {
		return x
	}
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild })
	if c.fatal && r != nil && r.Want == 0 && r.Total == 0 {
		if l := c.about("limiter", "HAMi stands between the program and the driver"); l != nil {
			return found{fits(958, "a limiter is at work", c.raiseQuota(0), withoutHAMi, l...)}
		}
	}
	return nil
}

// leaseRefusal is what the pool library says when the lease of gpumem run has no more, if that
// is the end of the program.
func (c *view) leaseRefusal() *statement.Statement {
	last := c.Last(func(r *account.Refusal) bool { return !r.Mild })
	r := c.Last(func(r *account.Refusal) bool { return !r.Mild && r.St.Topic("lease") != nil })
	if r == nil {
		return nil
	}
	if other := c.About("other"); other != nil && other.Line >= r.St.Line && last.St.Line <= other.Line {
		return nil
	}
	return r.St
}

// ownLease explains a refusal by a lease of gpumem run.
func (c *view) ownLease(st *statement.Statement) Explanation {
	said, more := "the lease had no more room for a process's context and libraries",
		"give it more: gpumem run --mem SIZE -- COMMAND; without a lease the limit is GPUMEM_LIMIT"
	t := st.Topic("lease")
	if left, limit, ok := strings.Cut(t.Value, "B "); ok {
		want, free, all := statement.SizeOf(t.Name), statement.SizeOf(left+"B"), statement.SizeOf(limit)
		said = account.Say("%v was requested, and %v was left of the lease of %v: that limit refused it, and the GPU was not asked",
			want, free, all)
		more = account.Say("give it more: gpumem run --mem SIZE -- COMMAND, with SIZE above %v here; without a lease the limit is GPUMEM_LIMIT",
			account.Less(all, free)+want)
	}
	x := sure(965, "the lease of gpumem run", steps(more,
		"or let it take less: a smaller batch; gpumem ps shows what each process of the lease holds and uses",
		"to see what any allocator would need: gpumem run --record FILE -- COMMAND; gpumem replay FILE --smallest"), st.Quoted(said))
	x.Alone = true
	return x
}

// nvshare lets a program see less than there is.
func (c *view) nvshare() found {
	var view []statement.Evidence
	var real, shown, asked uint64
	for _, st := range c.Statements() {
		if st.Topic("nvshare") == nil {
			continue
		}
		switch a, w := st.Amount(statement.RoleFree), st.Amount(statement.RoleWant); {
		case a != nil && st.Words["real"]:
			real = a.N
			view = append(view, quote(st, "the driver has %v free", a.N))
		case a != nil:
			shown = a.N
			view = append(view, quote(st, "nvshare lets the program see %v free", a.N))
		case w != nil:
			asked = w.N
			view = append(view, quote(st, "%v is requested", w.N))
		}
	}
	if c.About("nvshare") == nil || view == nil {
		return nil
	}
	remedy := steps(
		"nvshare refuses a single process more memory than the GPU has: " +
			"set NVSHARE_ENABLE_SINGLE_OVERSUB=1, or let the program take less")
	if asked > shown && shown > 0 && (real == 0 || asked <= real || shown < real) {
		return found{sure(960, "a limiter's view", remedy, view...)}
	}
	return found{fits(960, "a limiter's view", remedy, withoutShare, view...)}
}

// raiseQuota is what to do about a quota of bytes; 0 is unknown.
func (c *view) raiseQuota(quota uint64) Remedy {
	r := Remedy{}
	if c.Uses("jax") && quota > 2*account.ContextMost && c.total.Bytes > quota {
		r = c.fraction(down(float64(quota-account.ContextMost)/float64(c.total.Bytes)),
			"a pool within the quota of "+account.Human(quota)+", a context left")
	}
	limiter := c.About("limiter", "hami", "nvshare", "lease") != nil
	return r.step(when(limiter || quota > 0, "raise the quota (nvidia.com/gpumem of the pod), or let the program take less: the limit is "+
		"the limiter's, not the GPU's"),
		when(!limiter && quota == 0, "see whether somebody gave the program a part of the GPU only: a container's or partition's share, a "+
			"MIG slice, HAMi, nvshare, MPS (CUDA_MPS_PINNED_DEVICE_MEM_LIMIT). The limit is that part then"))
}
