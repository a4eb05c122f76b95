// The hidden command that gpumem run starts to stay beside its program.

package main

import (
	"os"

	"github.com/spf13/cobra"

	"gpumem/device/open"
	"gpumem/share/launch"
)

// keeperCommand returns the command line of the keeper for a device.
func keeperCommand(t launch.Target) ([]string, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return []string{exe, "keep", "--device=" + t.Words, "--"}, nil
}

func keepCommand() *cobra.Command {
	var device string
	cmd := &cobra.Command{
		Use:     "keep",
		Short:   "Stay beside a program (used by run)",
		Example: "  gpumem run -- python train.py",
		Hidden:  true,
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 && args[0] == "witness" {
				launch.Witness()
				return nil
			}
			k, err := launch.NewKeeper(args)
			if err != nil {
				return err
			}
			if first, err := k.Detach(); first || err != nil {
				return err
			}
			if spec, err := open.Parse(device); err == nil {
				k.Meter = meter{spec}
			}
			k.Run()
			return nil
		},
	}
	cmd.Flags().StringVar(&device, "device", "", "the `DEVICE` of the lease")
	return cmd
}
