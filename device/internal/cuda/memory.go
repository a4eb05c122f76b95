//go:build linux && (amd64 || arm64) && !nodriver

// Copies and fills of device memory. The driver is not called for zero bytes.
//
// The copies and fills go through a stream of their own. The driver's waiting
// calls use its null stream, which waits for the streams that other libraries
// made without CU_STREAM_NON_BLOCKING, and spoils the graph that is being
// captured in one of those.

package cuda

import "unsafe"

// Write copies p to addr.
func (d *Device) Write(addr uint64, p []byte) error {
	c := d.begin(cuMemcpyHtoD, uint64(len(p)))
	defer c.end()
	c.host = unsafe.Pointer(unsafe.SliceData(p))
	return c.arg(addr).ptr(c.host).copy(uint64(len(p)))
}

// Read fills p from addr.
func (d *Device) Read(addr uint64, p []byte) error {
	c := d.begin(cuMemcpyDtoH, uint64(len(p)))
	defer c.end()
	c.host = unsafe.Pointer(unsafe.SliceData(p))
	return c.ptr(c.host).arg(addr).copy(uint64(len(p)))
}

// Fill sets bytes bytes from addr to b.
func (d *Device) Fill(addr, bytes uint64, b byte) error {
	c := d.begin(cuMemsetD8, bytes)
	defer c.end()
	return c.arg(addr, uint64(b)).copy(bytes)
}

// copy makes a call about that many bytes in the stream for copies, and waits for
// it.
func (c *call) copy(bytes uint64) error {
	if bytes == 0 {
		return c.err
	}
	if c.arg(bytes, c.d.side).do() != nil {
		return c.err
	}
	return c.awaitStreams([]uint64{c.d.side}, nil)
}
