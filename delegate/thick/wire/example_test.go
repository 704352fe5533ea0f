package wire_test

import (
	"encoding/json"
	"fmt"

	"github.com/metacni/metacni/delegate/thick/wire"
)

// A shim posts this to /cni.
func Example() {
	text, err := json.MarshalIndent(wire.Request{
		Env:        map[string]string{"CNI_COMMAND": "STATUS", "CNI_PATH": "/opt/cni/bin"},
		Config:     []byte(`{"cniVersion":"1.1.0","name":"pods","type":"multinet-shim"}`),
		APIVersion: wire.Version,
	}, "", "  ")
	fmt.Println(string(text), err)
	// Output:
	// {
	//   "env": {
	//     "CNI_COMMAND": "STATUS",
	//     "CNI_PATH": "/opt/cni/bin"
	//   },
	//   "config": "eyJjbmlWZXJzaW9uIjoiMS4xLjAiLCJuYW1lIjoicG9kcyIsInR5cGUiOiJtdWx0aW5ldC1zaGltIn0=",
	//   "apiVersion": 1
	// } <nil>
}
