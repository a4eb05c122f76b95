package shared

import (
	"gpumem/device"
	"gpumem/internal/slotfile"
)

func bytesOf[T any](v *T) []byte { return slotfile.Bytes(v) }

// Processes lists who holds more than 0 bytes of a device, by pid. A process
// that has the file open several times is listed once.
func (f *File) Processes(dev int) ([]device.Process, error) {
	var list []device.Process
	err := f.do(dev, func(*slot) error {
		c, err := f.recount()
		if err == nil {
			list, err = f.h.processes(&c, dev)
		}
		return err
	})
	return list, err
}
