//go:build libgpumem

// Recordings of what the pools of this library do.

package main

/*
#include "capi.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"time"

	"gpumem/record/trace"
)

// record is the recording under way, of all pools; guarded by opening. Each pool has the
// writer too, guarded by its own lock.
var record struct {
	file  *os.File
	w     *trace.Writer
	start time.Time
}

//export gcRecord
func gcRecord(path *C.char, e *C.gc_error) (code C.int) {
	defer recovered(e, &code)
	opening.Lock()
	defer opening.Unlock()
	return answer(e, recordTo(C.GoString(path)))
}

// recordTo ends the recording under way, and begins one in a file unless path is empty.
// Blocks that are live are in it from its start.
func recordTo(path string) error {
	if path != "" && record.w != nil {
		return fmt.Errorf("%w: %s is being recorded to", errArgument, record.file.Name())
	}
	if path == "" {
		if record.w == nil {
			return fmt.Errorf("%w: nothing is being recorded", errArgument)
		}
		setRecord(nil)
		err := errors.Join(record.w.Flush(), record.file.Close())
		record.file, record.w = nil, nil
		return err
	}
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("%w: %w", errArgument, err)
	}
	w, err := trace.NewWriter(f)
	if err != nil {
		return errors.Join(err, f.Close())
	}
	record.file, record.w, record.start = f, w, time.Now()
	setRecord(w)
	return nil
}

func setRecord(w *trace.Writer) {
	for i := range pools {
		p := pools[i].Load()
		if p == nil {
			continue
		}
		p.mu.Lock()
		p.record = w
		for addr, b := range p.blocks {
			p.recordAlloc(addr, b.asked)
		}
		p.mu.Unlock()
	}
}

// The functions below do nothing without a recording. The caller holds p.mu. A failure
// to write ends the recording, not the program: Flush returns it.

func (p *pool) recordAlloc(addr, bytes uint64) {
	if p.record != nil {
		_ = p.record.Alloc(trace.Call{Pool: p.name, ID: addr, Addr: addr, Bytes: bytes, Time: since()})
	}
}

func (p *pool) recordFree(addr uint64) {
	if p.record != nil {
		_ = p.record.Free(trace.Call{Pool: p.name, ID: addr, Time: since()})
	}
}

func (p *pool) recordRefusal(bytes uint64) {
	if p.record != nil {
		_ = p.record.Refuse(trace.Call{Pool: p.name, Bytes: bytes, Time: since()})
	}
}

func since() uint64 { return uint64(time.Since(record.start)) }
