//go:build linux && (amd64 || arm64) && !nodriver

// What lies in the device's memory. About no bytes the driver is not asked.

package cuda

import "unsafe"

// Write copies p to addr. The driver's call returns when p may be used again,
// which for small copies is before the bytes have arrived; so Write waits for
// the null stream, where the copy was made, and for nothing else.
func (d *Device) Write(addr uint64, p []byte) error {
	c := d.begin(cuMemcpyHtoD, uint64(len(p)))
	defer c.end()
	if len(p) == 0 {
		return c.err
	}
	c.host = unsafe.Pointer(unsafe.SliceData(p))
	c.arg(addr)
	c.ptr(c.host)
	c.arg(uint64(len(p)))
	c.do()
	return c.then(cuStreamSynchronize, 0)
}

// Read fills p from addr. The driver waits by itself.
func (d *Device) Read(addr uint64, p []byte) error {
	c := d.begin(cuMemcpyDtoH, uint64(len(p)))
	defer c.end()
	if len(p) == 0 {
		return c.err
	}
	c.host = unsafe.Pointer(unsafe.SliceData(p))
	c.ptr(c.host)
	c.arg(addr)
	c.arg(uint64(len(p)))
	return c.do()
}

// Fill sets bytes bytes from addr to b, and waits as Write does: the driver's
// call only queues.
func (d *Device) Fill(addr, bytes uint64, b byte) error {
	c := d.begin(cuMemsetD8, bytes)
	defer c.end()
	if bytes == 0 {
		return c.err
	}
	c.arg(addr)
	c.arg(uint64(b))
	c.arg(bytes)
	c.do()
	return c.then(cuStreamSynchronize, 0)
}
