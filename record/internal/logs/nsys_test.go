package logs

import (
	"strings"
	"testing"

	"gpumem/record/internal/tape"
	"gpumem/record/internal/test/tracetest"
)

const nsysHead = "start,deviceId,address,bytes,memoryOperationType\n"

func TestNsysHasAPoolForEachGPU(t *testing.T) {
	// As sqlite3 writes it, also with the columns in another order and with others.
	for _, text := range []string{
		nsysHead + "100,0,4096,512,0\n200,1,4096,64,0\n300,0,4096,512,1\n400,0,8192,7,1\n",
		"\"name\",\"bytes\",\"address\",\"memoryOperationType\",\"deviceId\",\"start\"\r\n,512,4096,0,0,100\r\n,64,4096,0,1,200\r\n,512,4096,1,0,300\r\n,7,8192,1,0,400\r\n",
	} {
		tr := tracetest.MustRead(t, tape.Formats{Nsys}, []byte(text), tape.Options{})
		const want = "cuda:0: 1 seeds, 1 streams, peak 519, end 0 in 0\na 1 7\na 0 512\nf 0 at=200\nf 1 at=300\n" +
			"cuda:1: 0 seeds, 1 streams, peak 64, end 64 in 1\na 0 64 at=100\n"
		if got := tracetest.ShowPools(t, tr); got != want {
			t.Errorf("%q:\n%s\nwant\n%s", text, got, want)
		}
		if len(tr.Notes) != 1 {
			t.Errorf("notes %q", tr.Notes)
		}
	}
}

func TestNsysDamageIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		"start,bytes\n1,2\n":              "in:1: the first line names the columns: start,deviceId,address,bytes,memoryOperationType",
		nsysHead + "1,0,1,x,0\n":          `in:2: "x" is no number for bytes`,
		nsysHead + "1,0,1,5\n":            `in:2: "1,0,1,5" has 4 columns, and the header more`,
		nsysHead + "1,0,1,5,0\n1,0,1,5,2": "in:3: 2 is no operation; 0 is an allocation and 1 a free",
	} {
		_, err := tape.Formats{Nsys}.Read(t.Context(), strings.NewReader(text), "in", tape.Options{Format: "nsys"})
		tracetest.WantInputError(t, err, want)
	}
}

func FuzzNsys(f *testing.F) {
	f.Add([]byte(nsysHead + "100,0,4096,512,0\n200,1,4096,64,0\n300,0,4096,512,1\n400,0,8192,7,1\n"))
	f.Fuzz(func(t *testing.T, in []byte) { tracetest.FuzzRead(t, tape.Formats{Nsys}, in, "nsys") })
}
