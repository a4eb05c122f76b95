// Leases by turns: those of a user on a GPU that count in one ledger.

package share

import (
	"fmt"
	"os"

	"gpumem/internal/crashpoint"
	"gpumem/node/internal/account"
	"gpumem/node/internal/registry"
	"gpumem/node/ledger"
)

// TurnGroup is what the leases of one user share by turns.
type TurnGroup = account.Group

// group returns which leases those of the bid share with: the name of their ledger; "" for none.
func (b *bid) group() string {
	if !b.q.Turns {
		return ""
	}
	return b.gpu.TurnsPath(os.Geteuid())
}

// accountsOf returns what counts of leases, with the limits of their ledgers by turns. Another user's
// cannot be read, so that each of those leases counts in full.
func (b *bid) accountsOf(leases []registry.Claim) []account.Lease {
	all, limits := make([]account.Lease, len(leases)), map[string]uint64{}
	for i, l := range leases {
		all[i] = l.Record.Entry(l.UID).Counted()
		if all[i].Group = b.gpu.TurnsOf(l); all[i].Group == "" {
			continue
		}
		limit, known := limits[all[i].Group]
		if !known {
			limit = ledger.LimitOf(all[i].Group, l.UID)
			limits[all[i].Group] = limit
		}
		all[i].Limit = limit
	}
	return all
}

// byTurns returns the groups of leases that together are larger than what they hold at most.
func byTurns(f account.Figures) (all []TurnGroup) {
	for _, g := range f.Groups {
		if g.Sum > g.Limit {
			all = append(all, g)
		}
	}
	return all
}

// joinTurns makes the ledger of the leases by turns ready for those of the bid, and returns its
// inode; 0 if the bid has none. Where no lease that lives is in the one that is there, whatever it is,
// a new one takes its place.
//
// The limit is set before the leases are made. A process that is killed in between leaves one that is
// no more than the leases of others leave, see [account.Ask.Limit], and with which those that live
// count as before or as what it is. In the other order the new ones would count by the old limit. That
// may be stale, and more than others have left since.
func (b *bid) joinTurns(r reading) (inode uint64, err error) {
	if !b.q.Turns {
		return 0, nil
	}
	if inode, err = b.gpu.TurnsFile(); err != nil {
		return 0, err
	}
	limit := b.ask().Limit(r.Figures, b.each)
	h := ledger.Header{UUID: r.status.UUID, Limit: limit, Total: r.status.Total, Turns: true}
	if r.Groups[b.group()].Leases == 0 {
		return b.gpu.ReplaceTurns(func(path string) error { return ledger.Create(path, h) })
	}
	l, err := ledger.OpenOf(b.group(), os.Geteuid())
	if err == nil {
		defer l.Close()
		if now := l.Header(); now.Total != h.Total || now.UUID != h.UUID || !now.Turns {
			err = fmt.Errorf("ledger %s: %w: it is of another GPU", b.group(), ledger.ErrDamaged)
		}
	}
	if err == nil {
		err = l.SetLimit(limit)
		crashpoint.At("turns: limit set")
	}
	if err != nil {
		return 0, fmt.Errorf("by turns with other leases of this user (%d): %w", r.Groups[b.group()].Leases, err)
	}
	return inode, nil
}
