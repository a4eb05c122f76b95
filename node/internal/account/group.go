// Leases by turns. Those of a group hold together at most what its ledger lets them, so they may
// come to more: the group counts, and not the sum of its leases. A member that dies changes
// nothing but that sum.

package account

import (
	"fmt"

	"gpumem/size"
)

// Group is what counts of the leases that share by turns.
type Group struct {
	Leases int    // number
	Sum    uint64 // of their sizes
	Limit  uint64 // that they hold at most together: that of their ledger, or less where Sum is

	counts uint64 // Limit, or what their processes use of their leases if that is more
	owners map[identity]bool
}

// String returns what the leases share, as a sentence.
func (g Group) String() string {
	return fmt.Sprintf("%d of these leases share %s by turns", g.Leases, size.Format(g.Limit))
}

// groupsOf returns the groups of leases, and of those in none the bytes of each process.
func groupsOf(leases []Lease) (groups map[string]Group, alone map[identity]uint64) {
	groups, alone = map[string]Group{}, map[identity]uint64{}
	for _, l := range leases {
		if l.Group == "" {
			alone[l.process()] = Plus(alone[l.process()], l.Bytes)
			continue
		}
		g := groups[l.Group]
		if g.owners == nil {
			g.owners = map[identity]bool{}
		}
		g.Leases++
		g.Sum = Plus(g.Sum, l.Bytes)
		g.owners[l.process()] = true
		if g.Limit = l.Limit; g.Limit == 0 {
			g.Limit = g.Sum
		}
		groups[l.Group] = g
	}
	for name, g := range groups {
		g.Limit = min(g.Limit, g.Sum)
		g.counts = g.Limit
		groups[name] = g
	}
	return groups, alone
}

// Leased returns the most that leases can hold together.
func Leased(leases []Lease) (sum uint64) {
	groups, alone := groupsOf(leases)
	for _, n := range alone {
		sum = Plus(sum, n)
	}
	for _, g := range groups {
		sum = Plus(sum, g.counts)
	}
	return sum
}

// addLeased adds up what is leased, once what the processes use is settled. What those of a group
// use beyond its limit, as one does whose memory is on its way to the host, is within their leases
// and so not foreign, and not free.
func (c *counter) addLeased(leases []Lease) {
	groups, alone := groupsOf(leases)
	for _, n := range alone {
		c.f.Leased = Plus(c.f.Leased, n)
	}
	for name, g := range groups {
		var used uint64
		for w := range g.owners {
			used = Plus(used, Less(c.settled[w], alone[w]))
		}
		g.counts = max(g.Limit, used)
		c.f.Leased = Plus(c.f.Leased, g.counts)
		groups[name] = g
	}
	c.f.Groups = groups
}
