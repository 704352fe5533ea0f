//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: needs Linux, for network namespaces") //nolint:forbidigo // a main
	os.Exit(1)                                                            //nolint:forbidigo // a main
}
