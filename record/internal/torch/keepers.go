package torch

// What keeps the blocks of a program, as gpumem's recorders ask Python at the end of a recording
// and add it to the snapshot (python/gpumem/_keepers.py).

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"gpumem/record/internal/tape"
)

const (
	// keepersKey is the key of a list of dicts with container, line, device, blocks and bytes.
	keepersKey = "gpumem_keepers"
	// maxKeeperText bounds the texts of a keeper, in bytes.
	maxKeeperText = 200
)

// keepers reads who keeps which addresses. What is wrong with it is left out: the recording is
// whole without.
func (t *reader) keepers(v any) {
	l, ok := v.(*list)
	if !ok {
		return
	}
	for _, v := range l.items {
		k, ok := v.(*dict)
		if !ok || !t.once(k) {
			continue
		}
		keeper := tape.Keeper{Container: keeperText(stringField(k, "container")), Line: keeperText(stringField(k, "line"))}
		blocks, _ := k.get("blocks")
		addresses, isList := blocks.(*list)
		d := t.devices[intField(k, "device")]
		if keeper.Container == "" || !isList || d == nil || !t.once(addresses) {
			continue
		}
		for _, v := range addresses.items {
			switch addr := v.(type) {
			case int64:
				d.keep(uint64(addr), keeper)
			case uint64:
				d.keep(addr, keeper)
			}
		}
	}
}

// keep notes who keeps the block that lies at an address at the end. The first counts.
func (d *device) keep(addr uint64, keeper tape.Keeper) {
	if d.keepers == nil {
		d.keepers = make(map[uint64]*kept)
	}
	if d.keepers[addr] == nil {
		d.keepers[addr] = &kept{keeper: keeper}
	}
}

// kept is a block that a container keeps: the last that lies at its address.
type kept struct {
	keeper tape.Keeper
	event  uint64 // its Alloc, from 1; 0 before that
}

// noteKept notes that the last event of the pool is the Alloc of a block at an address.
func (d *device) noteKept(addr uint64) {
	if k := d.keepers[addr]; k != nil {
		k.event = d.pool.Events()
	}
}

// finalKeepers returns what keeps the blocks, by their Alloc events.
func (d *device) finalKeepers() map[uint64]tape.Keeper {
	if len(d.keepers) == 0 {
		return nil
	}
	byEvent := make(map[uint64]tape.Keeper, len(d.keepers))
	for _, k := range d.keepers {
		if k.event > 0 {
			byEvent[k.event] = k.keeper
		}
	}
	return byEvent
}

// keeperText returns a text of a keeper in one short line, without control characters.
func keeperText(s string) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) || r == utf8.RuneError {
			return -1
		}
		return r
	}, s)
	if len(s) <= maxKeeperText {
		return s
	}
	end := maxKeeperText
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "..."
}
