// The runnable example of package share.
package share_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gpumem/device"
	"gpumem/device/sim"
	"gpumem/node/share"
)

// gpu is a shared simulated one.
type gpu string

func (g gpu) Status() (device.Status, error) {
	list, err := sim.Look(string(g))
	if err != nil {
		return device.Status{}, err
	}
	return list[0], nil
}

func Example() {
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "gpu")
	if err := sim.CreateFile(file, sim.Config{Total: 24 << 30}); err != nil {
		fmt.Println(err)
		return
	}
	r, err := share.Open(filepath.Join(dir, "registry"))
	if err != nil {
		fmt.Println(err)
		return
	}
	q := share.Request{Device: file, Meter: gpu(file), Bytes: 9 << 30, Copies: 2}
	leases, err := r.Acquire(context.Background(), q)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(len(leases), "leases of", leases[0].Bytes()>>30, "GiB")

	// A program that is started with the file holds the lease as long as it
	// lives: exec.Cmd.ExtraFiles = []*os.File{leases[0].File()}

	_, err = r.Acquire(context.Background(), q)
	var no *share.InsufficientMemoryError
	fmt.Println(errors.As(err, &no), no.Want>>30, "GiB wanted,", no.Free>>30, "GiB left")
	for _, l := range leases {
		l.Close()
	}
	list, err := r.List()
	fmt.Println(len(list), err)
	// Output:
	// 2 leases of 9 GiB
	// true 18 GiB wanted, 6 GiB left
	// 0 <nil>
}
