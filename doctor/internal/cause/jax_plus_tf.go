package cause

// jax_plus_tf: JAX and TensorFlow share one process, and both take the GPU.

func jaxAndTensorFlow(c *view) (all []Explanation) {
	if d := c.Driver; d != nil && (!d.Past || d.Whole) && !d.Collected && d.Both != nil && !c.MadeAgain() {
		all = append(all, sure(560, "a whole pool beside TensorFlow", c.tensorFlowLess(),
			d.Both...).and(d.St.Quoted(d.NotHad(c.total.Bytes))).only())
	}
	l := c.libraryOpen()
	if l == nil {
		return all
	}
	both := c.JAXAndTF()
	apart := c.onJAX() && !c.FrameworksTold() && l.From == nil
	switch {
	case both != nil && c.framed(l):
		all = append(all, sure(380, "JAX and TensorFlow in the process", c.tensorFlowLess(),
			l.Quotes()...).and(both...).only().certainly(l.Certain()...))
	case !c.framed(l):
	case l.Short() && apart && l.Memory && !l.Starved() && l.Name != "cuSolver":
		all = append(all, fits(349, "a library without room", c.tensorFlowLess(), seeProcess,
			l.Quotes()...).needs(needFrameworks).certainly(l.Certain()...))
	case l.Open() && apart && (l.Starts() || l.Conv && c.State() == nil):
		x := fits(349, "a library that failed", c.tensorFlowLess(), seeProcess, l.Quotes()...).certainly(l.Certain()...)
		if l.Conv && l.Status == "" {
			x = x.needs(needFrameworks)
		}
		all = append(all, x)
	}
	return all
}

// tensorFlowLess lets TensorFlow take less, or nothing.
func (c *view) tensorFlowLess() Remedy {
	r := Remedy{}.set("TF_FORCE_GPU_ALLOW_GROWTH", "true",
		"TensorFlow then takes what it needs and not all that is free")
	r.Settings = append(r.Settings, c.fraction("0.70",
		"if TensorFlow must have the GPU too, JAX leaves it room").Settings...)
	return r.step(`if TensorFlow only reads data, take the GPU from it, right after the import: tf.config.set_visible_devices([], "GPU"); or unchanged: gpumem run --cpu-tensorflow -- python PROGRAM`).
		check("gpumem explain --pid PID    # while it runs; gpumem ps shows who holds what")
}
