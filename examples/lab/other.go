//go:build !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "lab: network namespaces and the plugins in them are Linux's: run this on Linux")
	os.Exit(1)
}
