package cause

// bad_setting: a setting is wrong. The program says so, and names the variable.

import (
	"strconv"
	"strings"

	"gpumem/doctor/internal/account"
)

func badSetting(c *view) found {
	if l := c.about("unsplit",
		"memory was short, and PyTorch up to 2.4 fails in this way where max_split_size_mb and expandable_segments are both set"); l != nil {
		return found{sure(990, "two settings that fail together", steps("PyTorch 2.5 and later may have both",
			"memory was short all the same: if it is then refused, give the doctor that message").
			set(account.TorchConf, "expandable_segments:True",
				"without max_split_size_mb; expandable segments do what it was for").
			check("gpumem explain --as pytorch"), l...)}
	}
	if l := c.about("setting",
		"the program does not know this setting, and stopped before it requested any memory"); l != nil {
		return found{sure(990, "a setting that was refused", c.mendSetting("setting"), l...)}
	}
	if st := c.About("forge"); st != nil && c.fatal {
		return found{sure(971, "weights above the GPU", steps(
			"set GPU Weights, at the top of the page, lower: what it leaves of the GPU is what the images are computed in, and it leaves less "+
				"than none"),
			st.Quoted("GPU Weights is "+st.Topic("forge").Name+" % of the GPU: nothing is left to compute in"))}
	}
	if l := c.about("unread",
		"the setting could not be read; the program goes on as if it were not there"); l != nil && !c.fatal && c.Library == nil {
		return found{sure(985, "a setting that was not read", c.mendSetting("unread"), l...)}
	}
	return nil
}

// mendSetting says what to write instead.
func (c *view) mendSetting(topic string) Remedy {
	st := c.About(topic)
	t := st.Topic(topic)
	line := strconv.Itoa(st.Line)
	check := c.jaxCheck("")
	switch {
	case strings.HasSuffix(t.Name, "MEM_FRACTION"):
		return steps("look in shell profiles, job scripts and container images for the old name").
			set("XLA_PYTHON_CLIENT_MEM_FRACTION", "", "both names are set, and the newer one is meant to stay").check(check)
	case t.Name == account.Allocator:
		right := "bfc"
		if strings.Contains(t.Value, "async") {
			right = "cuda_async"
		}
		return Remedy{}.set(t.Name, right,
			`"`+t.Value+`" is none of the names that this release knows: see its own list in line `+line).check(check)
	case t.Name == account.TorchConf && strings.Contains(t.Value+st.Text, "expandable_segments"):
		return steps(
			"take expandable_segments out of PYTORCH_CUDA_ALLOC_CONF: releases before 2.1 do not know it; " +
				"max_split_size_mb:128 is what they have").check("gpumem explain --as pytorch")
	case t.Name == account.TorchConf:
		return steps("correct the setting that line " + line + " names; gpumem explain --as pytorch says which keys there are in your " +
			"release").check("gpumem explain --as pytorch")
	case t.Name == "tensorflow":
		return steps(
			"make this call before TensorFlow uses the GPU for the first time: right after the import").check("gpumem explain --as tensorflow")
	case t.Name == account.TfGrowth:
		return Remedy{}.set(t.Name, "true", "only true and false are read, in exactly this spelling").check("gpumem explain --as tensorflow")
	case t.Name == "XLA_FLAGS":
		return steps("remove the flag that this release does not know: " + t.Value).check(check)
	}
	return steps("correct the setting that line " + line + " names; gpumem explain reads the environment as the framework does").check(check)
}
