// Noop is a plugin that does nothing. It shows the cost of a process.
package main

import (
	"io"
	"os"
)

func main() {
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		os.Exit(1)
	}
	switch os.Getenv("CNI_COMMAND") {
	case "ADD":
		_, _ = os.Stdout.WriteString(`{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}],"ips":[{"address":"192.0.2.2/24"}]}`)
	case "VERSION":
		_, _ = os.Stdout.WriteString(`{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}`)
	}
}
