module gpumem/bench/peers

go 1.26.0

require (
	golang.org/x/sys v0.48.0
	gpumem v0.0.0
)

require (
	github.com/google/pprof v0.0.0-20260906184651-6331bc6350fe // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)

replace gpumem => ../..
