package doctor_test

import (
	"fmt"
	"log"
	"strings"

	"gpumem/doctor"
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
