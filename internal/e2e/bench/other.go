//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "bench: network namespaces and what is measured in them are Linux's: run this on Linux") //nolint:forbidigo // a main
	os.Exit(1)                                                                                                       //nolint:forbidigo // a main
}
