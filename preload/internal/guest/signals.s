//go:build libgpumem && linux && (amd64 || arm64)

// func sigtable() *[65]sigTabT
TEXT ·sigtable(SB), 4, $0-8 // NOSPLIT
#ifdef GOARCH_amd64
	LEAQ	runtime·sigtable(SB), AX
	MOVQ	AX, ret+0(FP)
#endif
#ifdef GOARCH_arm64
	MOVD	$runtime·sigtable(SB), R0
	MOVD	R0, ret+0(FP)
#endif
	RET
