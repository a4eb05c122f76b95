// Package policy says what an environment or a command line asks for, as one
// struct, [Policy], that the allocators are built from. It knows the words and
// the quirks of each framework and release; nothing else in this module knows
// versions. It touches no device, keeps no state, and reads no file but one that
// XLA_FLAGS names.
//
// # From an environment to a policy
//
// A user of JAX types
//
//	XLA_PYTHON_CLIENT_MEM_FRACTION=.9 XLA_PYTHON_CLIENT_PREALLOCATE=no python train.py
//
// and two programs read it, so [Explain] does it in two steps.
//
// First Python (jaxlib/xla_client.py, generate_pjrt_gpu_plugin_options). The
// fraction stands under its deprecated name, which still works as long as the
// new one, XLA_CLIENT_MEM_FRACTION, is not set as well: that would be a
// ValueError, here a [SettingError] in Python's words. The allocator is not
// set, so it is "default", which is BFC. float(".9") is the double 0.9. "no" is
// none of false, False and 0, the only texts that mean no: preallocation stays
// on, although the user asked for the contrary. That is a [Warning].
//
// Then C++ (XLA's PJRT_Client_Create and CreateBFCAllocator). The fraction
// passes through a 32-bit float and becomes 0.89999997615814. Preallocation is
// on, so the pool is divided between two ends (Spatial), with ordinary memory
// at the upper one (TopDown).
//
// The policy holds the fraction and not yet the bytes, because it does not know
// the device. [Policy.LimitBytes] gives them. On a GPU of 85,045,542,912 bytes
// the product is 76,540,986,593; arithmetic in doubles alone would have given
// 76,540,988,620. Since JAX 0.10.2 it is rounded up to a multiple of 2 MiB, so
// the limit is 76,541,853,696 bytes.
//
// # From a command line to a policy
//
// [Parse] reads NAME[@VERSION][:key=value,...]. The name chooses the defaults,
// the version one row of the table in tables.go, the keys change single
// fields:
//
//	jax                            the newest JAX with nothing set
//	jax@0.4.0:preallocate=false    an older one, growing as needed
//	tensorflow:fraction=.5         the newest TensorFlow, told so in code
//	bfc:limit=10GiB,gc=true        XLA's allocator alone, every setting by hand
//	env                            what FromEnv says
//
// # What is known, and from where
//
// The files testdata/*/*.txt are answers of the frameworks themselves, made with
// stand-ins for the GPU's driver; every answer is a test. A release that changes
// something is one row of a table in tables.go, with its source.
package policy
