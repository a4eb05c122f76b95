package launch

import "testing"

func TestCheckRemat(t *testing.T) {
	for limit, good := range map[string]bool{
		"60%": true, "100%": true, "0.5%": true, "12GiB": true, "2147483648": true, "auto": true,
		"": false, "0": false, "0%": false, "101%": false, "-5%": false, "NaN%": false, "%": false, "60": false, "Auto": false, "12GiB%": false, "lots": false,
	} {
		if err := CheckRemat(limit); (err == nil) != good {
			t.Errorf("%q: %v", limit, err)
		}
	}
}
