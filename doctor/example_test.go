package doctor_test

import (
	"fmt"
	"log"
	"strings"

	"gpumem/doctor"
	"gpumem/machine"
)

func ExampleRead() {
	text := `[rank1]: jaxlib 0.7.2
[rank1]: E0412 08:15:30.123456  731 cuda_dnn.cc:532] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
[rank1]: E0412 08:15:30.123460  731 cuda_dnn.cc:536] Memory usage: 104857600 bytes free, 8589934592 bytes total.
`
	err := doctor.Read(strings.NewReader(text), func(f doctor.Fact) {
		fmt.Printf("line %d, %s, %q: %s\n", f.Line, f.From, f.Code+f.Version, f.Kind)
		if f.Tells(doctor.HasFree | doctor.HasTotal) {
			fmt.Printf("  %d of %d bytes are free\n", f.Free, f.Total)
		}
	})
	if err != nil {
		log.Fatal(err)
	}
	// Output:
	// line 1, rank1, "0.7.2": version
	// line 2, rank1, "CUDNN_STATUS_INTERNAL_ERROR": cudnn-handle
	// line 3, rank1, "": device-free
	//   104857600 of 8589934592 bytes are free
}

func ExampleFact_Tells() {
	f := doctor.Fact{Free: 0, Has: doctor.HasFree}
	fmt.Println(f.Tells(doctor.HasFree), f.Tells(doctor.HasFree|doctor.HasTotal))
	// Output: true false
}

func ExampleDiagnose() {
	text := `jaxlib 0.7.2
E0412 08:15:30.123456  731 cuda_dnn.cc:532] Could not create cudnn handle: CUDNN_STATUS_INTERNAL_ERROR
E0412 08:15:30.123460  731 cuda_dnn.cc:536] Memory usage: 104857600 bytes free, 8589934592 bytes total.
`
	holds := uint64(6700 << 20)
	state := &machine.Snapshot{Devices: []machine.Device{{Total: 8 << 30, Programs: []machine.Program{{PID: 7, Name: "python", Used: &holds, Frameworks: []string{"jax"}}}}}}
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
