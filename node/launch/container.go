// Programs in a container whose leases an agent has taken, see [share.ContainerLease].

package launch

import (
	"errors"
	"fmt"
	"strings"

	"gpumem/node/share"
	"gpumem/size"
)

// inContainer reports whether this process runs in a container with leases. Its pool
// library keeps them whatever the environment says, so nothing is taken or set anew: the
// error says why the plan asks for more than there is, or for what is not done here.
func (p *Plan) inContainer() (ok bool, err error) {
	l, ok, err := share.InContainer()
	if !ok {
		return false, err
	}
	var all []string
	for i, e := range l.Entries() {
		if want := p.Bytes * uint64(max(p.Copies, 1)); want > e.Bytes {
			return true, &share.InsufficientMemoryError{Device: e.Device, Want: want, Copies: p.Copies, Free: e.Bytes, Inside: &l.Entries()[i]}
		}
		all = append(all, fmt.Sprintf("%s on %s", size.Format(e.Bytes), e.Device))
	}
	switch {
	case p.Copies > 1:
		return true, fmt.Errorf("--copies %d: the programs of this container have its lease together; start each copy by itself", p.Copies)
	case p.byTurns():
		return true, errors.New("--lend and --turns: not in a container with a lease, which is by no turns")
	case p.Record != "":
		return true, fmt.Errorf("--record: in a container with a lease set GPUMEM_RECORD=%s, and leave gpumem run out", p.Record)
	case p.Limits.Remat != "":
		return true, errors.New("--remat: not in a container with a lease; call gpumem.jax.remat in the program")
	}
	const text = "this container has a lease of %s, which its pool library keeps for all of its programs; the program starts in it"
	p.say(text+", and nothing is divided", strings.Join(all, " and "))
	return true, nil
}
