package doctor_test

import (
	"fmt"
	"log"
	"strings"

	"gpumem/doctor"
	"gpumem/node/machine"
)

func ExampleDiagnose() {
	text := `jaxlib 0.7.2
E0412 08:15:30.123456  731 cuda_dnn.cc:532] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
E0412 08:15:30.123460  731 cuda_dnn.cc:536] Memory usage: 104857600 bytes free, 8589934592 bytes total.
`
	holds := uint64(6700 << 20)
	state := &machine.Snapshot{Devices: []machine.Device{{Total: 8 << 30,
		Programs: []machine.Program{{PID: 7, Name: "python", Used: &holds, Frameworks: []string{"jax"}}}}}}
	d, err := doctor.Diagnose(strings.NewReader(text), state)
	if err != nil {
		log.Fatal(err)
	}
	c := d.Causes[0]
	fmt.Printf("%s: %s (%s)\n", d.Verdict, c.ID, c.Title)
	for _, e := range c.Evidence {
		fmt.Printf("  line %d: %s\n", e.Line, e.Reading)
	}
	fmt.Printf("%s=%s\n", c.Settings[0].Name, c.Settings[0].Value)
	// Output:
	// cause: multi_process_preallocation (several processes preallocate on one GPU)
	//   line 2: cuDNN could not make its handle: CUDNN_STATUS_INTERNAL_ERROR is printed for missing memory and for a broken library alike
	//   line 3: 100 MiB of 8 GiB was free (1 %)
	//   line 0: another JAX process holds 6.54 GiB
	// XLA_CLIENT_MEM_FRACTION=0.31
}
